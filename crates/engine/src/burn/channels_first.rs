//! Ops on images whose channels come before height and width (NCHW), on float32 in this process's memory: each is computed as
//! the op on the image with the channels last. The images between such ops are views of images that are stored so (`order`):
//! the elements are moved once, where they enter.

use meshtf_graph::{Attr, Attrs};
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};

use super::array::Site;
use super::memory::Backing;
use super::order::{is_here, lies, permuted};
use super::{Body, plain_body};
use crate::{EngineOutcome, Value, Values};

/// From channels first to channels last, and back.
pub(super) const LAST: [usize; 4] = [0, 2, 3, 1];
pub(super) const FIRST: [usize; 4] = [0, 3, 1, 2];

/// An op on images.
struct Family {
    op: &'static str,
    /// The inputs that are images.
    images: &'static [usize],
    /// The input that has the sizes of an image.
    sizes: Option<usize>,
    /// Whether the first output is an image.
    is_image: bool,
    /// Whether images that are stored channels first are moved, since the op takes longer than that.
    moves: bool,
}

const fn family(
    op: &'static str,
    images: &'static [usize],
    sizes: Option<usize>,
    is_image: bool,
    moves: bool,
) -> Family {
    Family { op, images, sizes, is_image, moves }
}

const FAMILIES: &[Family] = &[
    family("AvgPool", &[0], None, true, false),
    family("AvgPoolGrad", &[1], Some(0), true, false),
    family("BiasAdd", &[0], None, true, false),
    family("BiasAddGrad", &[0], None, false, false),
    family("Conv2D", &[0], None, true, true),
    family("Conv2DBackpropFilter", &[0, 2], None, false, true),
    family("Conv2DBackpropInput", &[2], Some(0), true, true),
    family("DepthwiseConv2dNative", &[0], None, true, true),
    family("DepthwiseConv2dNativeBackpropFilter", &[0, 2], None, false, true),
    family("DepthwiseConv2dNativeBackpropInput", &[2], Some(0), true, true),
    family("FusedBatchNormGradV3", &[0, 1], None, true, true),
    family("FusedBatchNormV3", &[0], None, true, true),
    family("MaxPool", &[0], None, true, false),
    family("MaxPoolGrad", &[0, 1, 2], None, true, false),
];

/// The kernel of such an op, and whether it is light; `None` if the node is none, or is better computed as it is.
pub(super) fn body<B: Backing>(node: &KernelNode, site: &Site<B>) -> Result<Option<(Body<B>, bool)>> {
    let is_first = node.attrs.get("data_format").is_some() && node.attrs.str("data_format")? == "NCHW";
    let family = FAMILIES.iter().find(|family| family.op == node.op);
    let Some(family) = family.filter(|_| B::IN_PLACE && is_first) else { return Ok(None) };
    let Some(attrs) = with_channels_last(node.attrs) else { return Ok(None) };
    let last = KernelNode { attrs: &attrs, ..*node };
    let Some((mut of_last, is_light)) = plain_body(&last, site)? else { return Ok(None) };
    let mut of_first = plain_body(node, site)?.map(|(body, _)| body);
    let body: Body<B> = Box::new(move |site, inputs| {
        let inputs = if family.takes(&inputs) {
            match of_last(site, family.with_images(inputs, &LAST)?)? {
                EngineOutcome::Done(mut values) => {
                    if family.is_image {
                        let image = values.remove(0);
                        values.insert(0, permuted(image, &FIRST)?);
                    }
                    return Ok(EngineOutcome::Done(values));
                }
                EngineOutcome::Declined(inputs) => family.with_images(inputs, &FIRST)?,
            }
        } else {
            inputs
        };
        match &mut of_first {
            Some(of_first) => of_first(site, inputs),
            None => Ok(EngineOutcome::Declined(inputs)),
        }
    });
    Ok(Some((body, is_light)))
}

impl Family {
    /// Whether the inputs are computed with the channels last.
    fn takes(&self, inputs: &Values) -> bool {
        let mut images = self.images.iter().filter_map(|&i| inputs.get(i));
        let mut sizes = self.sizes.iter().filter_map(|&i| inputs.get(i));
        // An op may leave out the sizes of batch and channels.
        let is_whole = |sizes: &Value| matches!(sizes, Value::Host(tensor) if tensor.rank() == 1 && tensor.len() == 4);
        images.clone().all(|image| image.rank() == 4 && is_here(image))
            && sizes.all(is_whole)
            && (self.moves || images.any(|image| lies(image, &LAST)))
    }

    /// The inputs with the axes of images and of their sizes in another order.
    fn with_images(&self, inputs: Values, axes: &[usize; 4]) -> Result<Values> {
        let moved = |(i, input)| match input {
            image if self.images.contains(&i) => permuted(image, axes),
            Value::Host(sizes) if self.sizes == Some(i) => {
                let of = sizes.to_i64s()?;
                let moved = axes.iter().map(|&axis| of[axis]);
                Ok(Value::Host(match sizes.dtype() {
                    DType::I64 => Tensor::vector(moved.collect::<Vec<i64>>()),
                    // Sizes that were int32 stay so.
                    _ => Tensor::vector(moved.map(|size| size as i32).collect::<Vec<i32>>()),
                }))
            }
            other => Ok(other),
        };
        inputs.into_iter().enumerate().map(moved).collect()
    }
}

/// The attributes of the op on the image with the channels last; `None` if there is none that is alike.
pub(super) fn with_channels_last(attrs: &Attrs) -> Option<Attrs> {
    let mut last = attrs.clone();
    last.set("data_format", Attr::Str(b"NHWC".to_vec()));
    for name in ["strides", "dilations", "ksize"] {
        if attrs.get(name).is_some() {
            let of: &[i64; 4] = attrs.ints(name).ok()?.try_into().ok()?;
            last.set(name, Attr::Ints(LAST.iter().map(|&axis| of[axis]).collect()));
        }
    }
    if let Ok(sides @ [_, ..]) = attrs.ints("explicit_paddings") {
        let sides: &[i64; 8] = sides.try_into().ok()?;
        last.set(
            "explicit_paddings",
            Attr::Ints(LAST.iter().flat_map(|&axis| [sides[2 * axis], sides[2 * axis + 1]]).collect()),
        );
    }
    Some(last)
}

#[cfg(test)]
mod tests {
    use burn_flex::Flex;
    use meshtf_graph::OutputType;
    use meshtf_kernels::compile;
    use meshtf_tensor::Shape;

    use super::super::BurnEngine;
    use super::*;
    use crate::Engine;

    /// An op, its attributes beside `data_format` and `T`, the shapes of its inputs, and how many outputs are compared. A shape
    /// that begins with -1 stands for a tensor of the sizes that follow.
    type Case<'a> = (&'a str, &'a [(&'a str, Attr)], &'a [&'a [i64]], usize);

    /// Small whole numbers, whose sums are exact in any order.
    fn whole(shape: &[i64], seed: usize) -> Tensor {
        let dims: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
        let count = dims.iter().product();
        Tensor::from_vec(dims, (0..count).map(|i| ((i * 7919 + seed * 131) % 13) as f32 - 5.0).collect::<Vec<f32>>())
    }

    fn ints(sizes: &[i64]) -> Attr {
        Attr::Ints(sizes.to_vec())
    }

    /// The same tensor as a view of one that is stored channels last.
    fn as_view(engine: &BurnEngine<Flex>, tensor: Tensor) -> Value {
        let value = engine.upload(tensor).unwrap();
        let last = super::super::dense::in_order(permuted(value, &LAST).unwrap()).unwrap();
        permuted(last, &FIRST).unwrap()
    }

    #[test]
    fn ops_answer_as_the_host_does_however_images_are_stored() {
        let engine = BurnEngine::<Flex>::new("flex", Default::default());
        let text = |text: &str| Attr::Str(text.into());
        let pads = [("padding", text("EXPLICIT")), ("explicit_paddings", ints(&[0, 0, 0, 0, 1, 2, 2, 0]))];
        let [padding, sides] = pads;
        let strides = ("strides", ints(&[1, 1, 2, 3]));
        let even = ("strides", ints(&[1, 1, 2, 2]));
        let convolution = [strides, ("dilations", ints(&[1, 1, 2, 1])), padding.clone(), sides.clone()];
        let depthwise = [even.clone(), padding, sides];
        let pool = [("ksize", ints(&[1, 1, 3, 2])), even, ("padding", text("VALID"))];
        let (inference, training) = (("is_training", Attr::Bool(false)), ("is_training", Attr::Bool(true)));
        let norm = |mode: &(&'static str, Attr)| {
            [mode.clone(), ("epsilon", Attr::Float(0.001)), ("exponential_avg_factor", Attr::Float(1.0))]
        };
        let (inference, training) = (norm(&inference), norm(&training));
        let (image, answer): (&[i64], &[i64]) = (&[8, 6, 12, 11], &[8, 20, 6, 4]);
        let (deep, thin): (&[i64], &[i64]) = (&[8, 12, 7, 6], &[8, 6, 5, 5]);
        let sizes: &[i64] = &[-1, 8, 6, 12, 11];
        let cases: &[Case] = &[
            ("Conv2D", &convolution, &[image, &[3, 3, 6, 20]], 1),
            ("Conv2D", &convolution, &[image, &[3, 3, 1, 6]], 1),
            ("Conv2D", &convolution, &[image, &[3, 3, 1, 12]], 1),
            ("Conv2DBackpropInput", &convolution, &[sizes, &[3, 3, 6, 20], answer], 1),
            ("Conv2DBackpropFilter", &convolution, &[image, &[-1, 3, 3, 6, 20], answer], 1),
            ("DepthwiseConv2dNative", &depthwise, &[image, &[3, 3, 6, 2]], 1),
            ("DepthwiseConv2dNativeBackpropInput", &depthwise, &[sizes, &[3, 3, 6, 2], deep], 1),
            ("DepthwiseConv2dNativeBackpropFilter", &depthwise, &[image, &[-1, 3, 3, 6, 2], deep], 1),
            ("MaxPool", &pool, &[image], 1),
            ("MaxPoolGrad", &pool, &[image, thin, thin], 1),
            ("AvgPool", &pool, &[image], 1),
            ("AvgPoolGrad", &pool, &[sizes, thin], 1),
            ("BiasAdd", &[], &[image, &[6]], 1),
            ("BiasAddGrad", &[], &[image], 1),
            ("FusedBatchNormV3", &training, &[image, &[6], &[6], &[0], &[0]], 5),
            ("FusedBatchNormV3", &inference, &[image, &[6], &[6], &[6], &[6]], 1),
            ("FusedBatchNormGradV3", &training, &[image, image, &[6], &[6], &[6], &[0]], 3),
        ];
        for &(op, attrs, shapes, compared) in cases {
            let mut own = Attrs::default();
            let def = meshtf_graph::op::lookup(op).unwrap();
            for attr in &def.attrs {
                attr.default.iter().for_each(|default| own.set(attr.name, default.clone()));
            }
            own.set("T", Attr::Type(DType::F32));
            own.set("U", Attr::Type(DType::F32));
            own.set("data_format", Attr::Str(b"NCHW".to_vec()));
            attrs.iter().for_each(|(name, value)| own.set(*name, value.clone()));
            let mut inputs: Vec<Tensor> = shapes
                .iter()
                .enumerate()
                .map(|(i, &shape)| match shape {
                    &[-1, ref sizes @ ..] => Tensor::vector(sizes.iter().map(|&size| size as i32).collect::<Vec<_>>()),
                    shape => whole(shape, i),
                })
                .collect();
            if op == "MaxPoolGrad" {
                // The second input is the pool's output.
                let node = node_of("MaxPool", &own, &[DType::F32], 1);
                inputs[1] =
                    compile(&node).unwrap().unwrap()([inputs[0].clone()].into_iter().collect()).unwrap().remove(0);
            }
            if op.starts_with("FusedBatchNorm") {
                // Variances are not negative.
                let variances = inputs.len() - 1 - usize::from(op.contains("Grad"));
                let squares =
                    inputs[variances].slice::<f32>().unwrap().iter().map(|x| x * x + 1.0).collect::<Vec<f32>>();
                inputs[variances] = Tensor::from_vec(inputs[variances].dims().to_vec(), squares);
            }
            let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
            let node = node_of(op, &own, &dtypes, def.outputs.len());
            let want = compile(&node).unwrap().unwrap()(inputs.iter().cloned().collect()).unwrap();
            let mut kernel = engine.compile(&node).unwrap().unwrap_or_else(|| panic!("{op} has a kernel"));
            for is_view in [false, true] {
                let is_filter = |i: usize| i == 1 && op.to_lowercase().contains("conv2d") && !op.contains("Filter");
                let given = inputs.iter().enumerate().map(|(i, input)| match input.rank() {
                    4 if is_view && !is_filter(i) => as_view(&engine, input.clone()),
                    _ => Value::Host(input.clone()),
                });
                let EngineOutcome::Done(got) = (kernel.run)(given.collect()).unwrap() else {
                    assert!(!is_view, "{op} takes a view");
                    continue;
                };
                for (i, (got, want)) in got.into_iter().zip(&want).take(compared).enumerate() {
                    assert_eq!(got.shape(), &Shape::from(want.dims().to_vec()), "{op}, output {i}");
                    let got = got.into_host().unwrap();
                    for (got, want) in got.slice::<f32>().unwrap().iter().zip(want.slice::<f32>().unwrap()) {
                        let is_near = (got - want).abs() <= 2e-4 * want.abs().max(1.0);
                        assert!(is_near, "{op}, output {i}, view {is_view}: {got} for {want}");
                    }
                }
            }
        }
    }

    fn node_of<'a>(op: &'a str, attrs: &'a Attrs, inputs: &'a [DType], outputs: usize) -> KernelNode<'a> {
        const OUTPUTS: [OutputType; 6] = [OutputType { dtype: DType::F32, is_ref: false }; 6];
        KernelNode { name: "node", op, attrs, inputs, outputs: &OUTPUTS[..outputs], constants: 0 }
    }
}
