//! Convolutions whose kernel computes the nodes that follow them, too (`meshtf_exec::program::followers`): bias, normalisation,
//! activation, the sum with another image. Each part of the output passes through all of them while it is in a core's cache, and
//! is written once. The numbers are those of the separate kernels, since the functions are the same.

use meshtf_graph::Attrs;
use meshtf_kernels::{self as kernel, HostKernel, KernelNode, Slide};
use meshtf_loops::chunks::threads;
use meshtf_loops::vector::channels::Normal;
use meshtf_loops::vector::{self, Act, Binary, Finish, Step, Tail, Unary, With};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape};

use super::channels_first::{FIRST, LAST, with_channels_last};
use super::channels_last::Filter;
use super::conv::{WindowAttrs, finished_conv2d, fit};
use super::dense::{self, floats};
use super::memory::Backing;
use super::order::{is_here, permuted};
use super::{BurnEngine, SMALL, depthwise, forms, guarded};
use crate::{Engine, EngineKernel, EngineOutcome, Follower, Origin, Value, Values};

/// Ops of two inputs that may follow a convolution.
const TWO: [&str; 7] = ["Add", "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"];

/// Whether a node may be a follower of this convolution.
pub(super) fn may_follow<B: Backing>(convolution: &KernelNode, node: &KernelNode) -> bool {
    let is_float = |node: &KernelNode| node.inputs.iter().all(|&dtype| dtype == DType::F32);
    let is_alike = || match (convolution.attrs.str("data_format"), node.attrs.str("data_format")) {
        (Ok(own), Ok(other)) => own == other,
        _ => false,
    };
    B::IN_PLACE
        && matches!(convolution.op, "Conv2D" | "DepthwiseConv2dNative")
        && is_float(convolution)
        && is_float(node)
        && (node.op != "BiasAdd" || is_alike())
        && (node.op != "FusedBatchNormV3" || is_alike())
        && matches!(Function::of(node), Ok(Some(_)))
}

/// The function of a follower.
enum Function {
    One(Unary),
    Two(Binary),
    /// A sum with a number of each channel.
    Bias(Binary),
    /// Batch normalisation by given averages.
    Normalise {
        epsilon: f32,
    },
}

impl Function {
    fn of(node: &KernelNode) -> Result<Option<Function>> {
        Ok(match (node.op, node.inputs.len()) {
            ("LeakyRelu", 1) => Some(Function::One(vector::leaky(node.attrs.float("alpha")?))),
            ("BiasAdd", 2) => vector::binary("Add").map(Function::Bias),
            ("FusedBatchNormV3", 5)
                if !node.attrs.bool("is_training")? && node.attrs.float("exponential_avg_factor")? == 1.0 =>
            {
                Some(Function::Normalise { epsilon: node.attrs.float("epsilon")? })
            }
            (op, 2) if TWO.contains(&op) => vector::binary(op).map(Function::Two),
            (op, 1) => vector::unary(op).map(Function::One),
            _ => None,
        })
    }
}

/// Compiles a convolution with its followers, each of which takes the output of one before.
pub(super) fn kernel<B: Backing>(
    engine: &BurnEngine<B>,
    node: &KernelNode,
    followers: &[Follower],
) -> Result<Option<EngineKernel>> {
    let mut functions = Vec::with_capacity(followers.len());
    for follower in followers {
        match Function::of(&follower.node)?.filter(|_| may_follow::<B>(node, &follower.node)) {
            Some(function) => functions.push((function, follower.inputs.clone())),
            None => return Ok(None),
        }
    }
    let mut together = Together::of(node, functions).map_err(|failure| failure.at_node(node.name, node.op))?;
    let mut apart = Apart::of(engine, node, followers)?;
    let name = engine.name().to_owned();
    let convolution = (node.name.to_owned(), node.op.to_owned());
    let run = move |inputs: Values| {
        let answer = match &mut together {
            Some(together) => guarded(&name, || together.run::<B>(&inputs))
                .map_err(|failure| failure.at_node(&convolution.0, &convolution.1))?,
            None => None,
        };
        let answer = answer.map_or_else(|| apart.run(inputs), Ok)?;
        Ok(EngineOutcome::Done(Values::from_iter([answer])))
    };
    Ok(Some(EngineKernel { run: Box::new(run), host_up_to: 0, forms: forms::<B>(node) }))
}

/// The convolution, with the channels last.
enum Convolution {
    Whole { window: WindowAttrs, filter: Filter },
    Depthwise(Slide),
}

/// All nodes as one loop.
struct Together {
    convolution: Convolution,
    /// Whether the node's images have their channels first.
    channels_first: bool,
    functions: Vec<(Function, Vec<Origin>)>,
}

/// An input of a follower, as the loop takes it.
enum Given {
    Number(f32),
    Channels(Value),
    Elements(Value),
}

impl Together {
    /// `None` for attributes that only other kernels take.
    fn of(node: &KernelNode, functions: Vec<(Function, Vec<Origin>)>) -> Result<Option<Together>> {
        let channels_first = node.attrs.str("data_format")? == "NCHW";
        let attrs: Option<Attrs> = match channels_first {
            true => with_channels_last(node.attrs),
            false => Some(node.attrs.clone()),
        };
        let Some(attrs) = attrs else { return Ok(None) };
        let last = KernelNode { attrs: &attrs, ..*node };
        let convolution = if node.op == "Conv2D" {
            WindowAttrs::read(&attrs)?
                .map(|window| Convolution::Whole { window, filter: Filter::new(node.is_constant(1)) })
        } else {
            // Errors in the attributes are reported by the host.
            Slide::of(&last, 2).ok().filter(|slide| !slide.channels_first).map(Convolution::Depthwise)
        };
        Ok(convolution.map(|convolution| Together { convolution, channels_first, functions }))
    }

    /// The output of the last follower; `None` if the inputs are for other kernels.
    fn run<B: Backing>(&mut self, inputs: &Values) -> Result<Option<Value>> {
        let [image, filter, ..] = inputs.as_slice() else { return Ok(None) };
        if image.rank() != 4 || ![image, filter].into_iter().all(is_here) || image.is_empty() || filter.is_empty() {
            return Ok(None);
        }
        let image = self.last(image)?;
        let answer = match &self.convolution {
            Convolution::Whole { window, .. } => {
                fit::<B>(window, DType::F32, image.shape(), filter.shape()).map(|fit| fit.answer)
            }
            Convolution::Depthwise(slide) => depthwise::answer_shape(slide, image.shape(), filter.shape()),
        };
        // The kernels of fewer elements are the host's, whose functions may round otherwise.
        let Some(answer) = answer.filter(|answer| answer.elements().is_some_and(|count| count > SMALL)) else {
            return Ok(None);
        };
        let Some(given) = self.given(inputs, &answer)? else { return Ok(None) };
        let Some(normals) = self.normals(&given, answer.dims()[3]) else { return Ok(None) };
        let channels = answer.dims()[3];
        let Some(steps) = steps(&self.functions, &given, &normals) else { return Ok(None) };
        // Without memory for the loop, the kernels run one after the other.
        if budget::admit(Tail::row_bytes(channels, &steps)).is_err() {
            return Ok(None);
        }
        let tail = Tail::new(channels, steps);
        if budget::admit(tail.scratch_bytes().saturating_mul(threads())).is_err() {
            return Ok(None);
        }
        let finish: Finish = &|from, part| tail.apply(from, part);
        let operands = Values::from_iter([image, filter.clone()]);
        let done = match &mut self.convolution {
            Convolution::Whole { window, filter } => finished_conv2d::<B>(window, filter, &operands, finish)?,
            Convolution::Depthwise(slide) => depthwise::finished(slide, operands, finish)?,
        };
        match done {
            Some(EngineOutcome::Done(mut values)) => self.first(values.remove(0)).map(Some),
            _ => Ok(None),
        }
    }

    /// An image of the node, with the channels last.
    fn last(&self, image: &Value) -> Result<Value> {
        if self.channels_first { permuted(image.clone(), &LAST) } else { Ok(image.clone()) }
    }

    fn first(&self, image: Value) -> Result<Value> {
        if self.channels_first { permuted(image, &FIRST) } else { Ok(image) }
    }

    /// The inputs after the filter, by their indices; `None` if one is neither a number, nor a number of each channel, nor as
    /// large as the output.
    fn given(&self, inputs: &Values, answer: &Shape) -> Result<Option<Vec<Option<Given>>>> {
        let mut given: Vec<Option<Given>> = inputs.iter().map(|_| None).collect();
        let &[batch, high, wide, channels] = answer.dims() else { return Ok(None) };
        let (whole, of_channels) = match self.channels_first {
            true => ([batch, channels, high, wide], [1, channels, 1, 1]),
            false => ([batch, high, wide, channels], [1, 1, 1, channels]),
        };
        for (function, origins) in &self.functions {
            for &origin in origins {
                let Origin::Input(at) = origin else { continue };
                let Some(input) = inputs.get(at).filter(|input| is_here(input)) else { return Ok(None) };
                let dims = input.shape().dims();
                let is_vector = matches!(function, Function::Bias(_) | Function::Normalise { .. });
                let lifted: Vec<usize> =
                    std::iter::repeat_n(1, 4usize.saturating_sub(dims.len())).chain(dims.iter().copied()).collect();
                given[at] = Some(if is_vector {
                    if dims != [channels] {
                        return Ok(None);
                    }
                    Given::Channels(dense::in_order(input.clone())?)
                } else if lifted == [1; 4] {
                    let input = dense::in_order(input.clone())?;
                    let Some(&[number]) = floats(&input) else { return Ok(None) };
                    Given::Number(number)
                } else if lifted == of_channels {
                    Given::Channels(dense::in_order(input.clone())?)
                } else if dims == whole {
                    Given::Elements(dense::in_order(self.last(input)?)?)
                } else {
                    return Ok(None);
                });
            }
        }
        Ok(Some(given))
    }

    /// The numbers of each batch normalisation.
    fn normals(&self, given: &[Option<Given>], channels: usize) -> Option<Vec<Vec<Normal>>> {
        let numbers = |origin: &Origin| match origin {
            Origin::Input(at) => match given[*at].as_ref()? {
                Given::Channels(value) => floats(value).filter(|numbers| numbers.len() == channels),
                _ => None,
            },
            Origin::Value(_) => None,
        };
        self.functions
            .iter()
            .map(|(function, origins)| match (function, &origins[..]) {
                (&Function::Normalise { epsilon }, [_, scale, offset, mean, variance]) => {
                    let [scale, offset] = [numbers(scale)?, numbers(offset)?];
                    let [mean, variance] = [numbers(mean)?, numbers(variance)?];
                    let normal = |i: usize| Normal {
                        mean: mean[i],
                        factor: 1.0 / (variance[i] + epsilon).sqrt(),
                        scale: scale[i],
                        offset: offset[i],
                    };
                    Some((0..channels).map(normal).collect())
                }
                (Function::Normalise { .. }, _) => None,
                _ => Some(Vec::new()),
            })
            .collect()
    }
}

/// The steps of the loop; `None` if an input is not in a form that it takes.
fn steps<'a>(
    functions: &'a [(Function, Vec<Origin>)],
    given: &'a [Option<Given>],
    normals: &'a [Vec<Normal>],
) -> Option<Vec<Step<'a>>> {
    let with = |origin: &Origin| match *origin {
        Origin::Value(value) => Some(With::Value(value)),
        Origin::Input(at) => Some(match given[at].as_ref()? {
            Given::Number(number) => With::Number(*number),
            Given::Channels(value) => With::Channels(floats(value)?),
            Given::Elements(value) => With::Elements(floats(value)?),
        }),
    };
    functions
        .iter()
        .zip(normals)
        .map(|((function, origins), normals)| {
            let (of, act) = match (function, &origins[..]) {
                (Function::One(one), &[Origin::Value(of)]) => (of, Act::One(&one.near)),
                // The sum with an image is no bias: its node refuses it.
                (Function::Bias(two), [Origin::Value(of), bias @ Origin::Input(_)]) => {
                    (*of, Act::Two(&two.straight.near, with(bias)?))
                }
                (Function::Two(two), [Origin::Value(of), other]) => (*of, Act::Two(&two.straight.near, with(other)?)),
                (Function::Two(two), [other, Origin::Value(of)]) => (*of, Act::Two(&two.swapped.near, with(other)?)),
                (Function::Normalise { .. }, &[Origin::Value(of), ..]) => (of, Act::Normalise(normals)),
                _ => return None,
            };
            Some(Step { of, act })
        })
        .collect()
}

/// The kernel of one node, on the engine and on the host, and the origins of its inputs: whether each is taken for the last time.
struct Lone {
    name: String,
    op: String,
    on_engine: Option<EngineKernel>,
    /// Or the reason why there is none, for inputs that the engine declines.
    on_host: Result<HostKernel>,
    inputs: Vec<(Origin, bool)>,
}

/// The kernels of all nodes, run one after the other.
struct Apart {
    nodes: Vec<Lone>,
}

impl Apart {
    fn of<B: Backing>(engine: &BurnEngine<B>, node: &KernelNode, followers: &[Follower]) -> Result<Apart> {
        let own = [Origin::Input(0), Origin::Input(1)];
        let all = std::iter::once((node, &own[..])).chain(followers.iter().map(|one| (&one.node, &one.inputs[..])));
        let mut nodes = Vec::with_capacity(1 + followers.len());
        for (node, inputs) in all {
            let missing = || Failure::new(Code::Internal, "it has no kernel on the host");
            let named = |failure: Failure| failure.at_node(node.name, node.op);
            let on_engine = engine.compile(node).map_err(named)?;
            let on_host = kernel::compile(node).and_then(|kernel| kernel.ok_or_else(missing));
            let on_host = match on_host {
                Err(failure) if on_engine.is_none() => return Err(named(failure)),
                on_host => on_host,
            };
            let inputs = inputs.iter().map(|&origin| (origin, false)).collect();
            nodes.push(Lone { name: node.name.to_owned(), op: node.op.to_owned(), on_engine, on_host, inputs });
        }
        let mut seen = Vec::new();
        for (origin, is_last) in nodes.iter_mut().rev().flat_map(|node| node.inputs.iter_mut().rev()) {
            *is_last = !seen.contains(origin);
            seen.push(*origin);
        }
        Ok(Apart { nodes })
    }

    fn run(&mut self, inputs: Values) -> Result<Value> {
        let mut inputs: Vec<Option<Value>> = inputs.into_iter().map(Some).collect();
        let mut values: Vec<Option<Value>> = Vec::with_capacity(self.nodes.len());
        let missing = || Failure::new(Code::Internal, "an input is missing");
        for node in &mut self.nodes {
            let taken = node.inputs.iter().map(|&(origin, is_last)| {
                let slot = match origin {
                    Origin::Input(at) => inputs.get_mut(at),
                    Origin::Value(at) => values.get_mut(at),
                };
                let slot = slot.ok_or_else(missing)?;
                if is_last { slot.take() } else { slot.clone() }.ok_or_else(missing)
            });
            let taken = taken.collect::<Result<Values>>()?;
            let made = node.run(taken).map_err(|failure| failure.at_node(&node.name, &node.op))?;
            values.push(Some(made));
        }
        values.pop().flatten().ok_or_else(missing)
    }
}

impl Lone {
    fn run(&mut self, inputs: Values) -> Result<Value> {
        let made = match &mut self.on_engine {
            Some(kernel) if !kernel.leaves(inputs.iter().map(Some)) => (kernel.run)(inputs)?,
            _ => EngineOutcome::Declined(inputs),
        };
        let made: Values = match made {
            EngineOutcome::Done(values) => values,
            EngineOutcome::Declined(inputs) => {
                let on_host = self.on_host.as_mut().map_err(|failure| failure.clone())?;
                let inputs = inputs.into_iter().map(Value::into_host).collect::<Result<_>>()?;
                on_host(inputs)?.into_iter().map(Value::Host).collect()
            }
        };
        made.into_iter().next().ok_or_else(|| Failure::new(Code::Internal, "it has no output"))
    }
}

#[cfg(test)]
mod tests {
    use meshtf_graph::{Attr, OutputType};
    use meshtf_tensor::Tensor;
    use meshtf_tensor::memory::Budget;

    use super::*;
    use crate::adapters::{self, BackendChoice};

    const OUTPUTS: [OutputType; 1] = [OutputType { dtype: DType::F32, is_ref: false }];

    fn node<'a>(name: &'a str, op: &'a str, attrs: &'a Attrs, inputs: usize) -> KernelNode<'a> {
        KernelNode { name, op, attrs, inputs: &[DType::F32; 2][..inputs], outputs: &OUTPUTS, constants: 0 }
    }

    #[test]
    fn without_memory_for_its_image_the_convolution_is_named() {
        let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
        let none = Attrs::default();
        for (op, filter) in [("Conv2D", [3, 3, 8, 8]), ("DepthwiseConv2dNative", [3, 3, 8, 1])] {
            let mut attrs = Attrs::default();
            for attr in &meshtf_graph::op::lookup(op).unwrap().attrs {
                attr.default.iter().for_each(|default| attrs.set(attr.name, default.clone()));
            }
            attrs.set("T", Attr::Type(DType::F32));
            attrs.set("padding", Attr::Str(b"SAME".to_vec()));
            attrs.set("strides", Attr::Ints(vec![1; 4]));
            let convolution = node("c", op, &attrs, 2);
            let followers = [Follower { node: node("y", "Relu", &none, 1), inputs: vec![Origin::Value(0)] }];
            let mut kernel = engine.compile_with_followers(&convolution, &followers).unwrap().unwrap();
            let ones = |dims: [usize; 4]| Value::Host(Tensor::from_vec(dims, vec![1f32; dims.iter().product()]));
            let inputs = || Values::from_iter([ones([1, 40, 40, 8]), ones(filter)]);
            let Err(failure) = Budget::of(1000).run(|| (kernel.run)(inputs())) else { panic!("{op} has memory") };
            assert_eq!(failure.code, Code::ResourceExhausted, "{failure}");
            assert_eq!((failure.node.as_deref(), failure.op.as_deref()), (Some("c"), Some(op)), "{failure}");
            assert!(matches!((kernel.run)(inputs()), Ok(EngineOutcome::Done(_))), "{op}");
        }
    }
}
