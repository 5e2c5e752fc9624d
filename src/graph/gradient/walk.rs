//! The walk back through a graph that adds its gradients.

use std::collections::{HashMap, HashSet, VecDeque};

use super::call::{Call, zeros_like};
use super::context::Contexts;
use super::error::{GradientError, Path};
use super::reach::Between;
use super::rules::{self, Stop};
use super::{Differentiation, Gradient, Rows, Unconnected};
use crate::failure::Result;
use crate::graph::op::Role;
use crate::graph::{GraphBuilder, Node, NodeId, Output};
use crate::tensor::DType;

/// Adds the gradients of `ys` by `xs` to the graph of a builder whose nodes are all checked, in that scope.
pub(super) fn walk(
    g: &mut GraphBuilder,
    scope: &str,
    ys: &[Output],
    xs: &[Output],
    options: &Differentiation,
) -> Result<Vec<Option<Gradient>>> {
    check(g, ys, xs, options)?;
    let between = Between::new(g.settled(), ys, xs, &options.stops);
    g.with_scope(scope, |g| {
        let mut walk = Walk {
            g,
            between,
            found: HashMap::new(),
            came_from: HashMap::new(),
            ready: VecDeque::new(),
            contexts: None,
        };
        walk.start(ys, &options.starts)?;
        while let Some(id) = walk.ready.pop_front() {
            walk.pass(id)?;
        }
        walk.check_done()?;
        xs.iter().map(|&x| walk.gradient_by(x, options.unconnected)).collect()
    })
}

fn check(g: &GraphBuilder, ys: &[Output], xs: &[Output], options: &Differentiation) -> Result<()> {
    let graph = g.settled();
    let starts = options.starts.iter().flatten();
    for output in ys.iter().chain(xs).chain(starts).chain(&options.stops) {
        let is_ours = output.node.index() < graph.len();
        if !is_ours || output.port as usize >= graph.node(output.node).outputs.len() {
            return Err(GradientError::Foreign(format!("{output:?}")).into());
        }
    }
    if !options.starts.is_empty() && options.starts.len() != ys.len() {
        return Err(GradientError::Starts { given: options.starts.len(), wanted: ys.len() }.into());
    }
    for (&y, start) in ys.iter().zip(&options.starts) {
        let Some(start) = *start else { continue };
        let (given, wanted) = (graph.output_type(start).dtype, graph.output_type(y).dtype);
        if given != wanted {
            return Err(GradientError::StartType {
                start: graph.tensor_name(start),
                given: given.name(),
                y: graph.tensor_name(y),
                wanted: wanted.name(),
            }
            .into());
        }
    }
    Ok(())
}

struct Walk<'g> {
    g: &'g mut GraphBuilder,
    between: Between,
    /// What was found of the gradient of each tensor so far, by the paths from it.
    found: HashMap<Output, Vec<Gradient>>,
    /// The node by which the first gradient of a node came: the way back to what is differentiated.
    came_from: HashMap<NodeId, NodeId>,
    /// The nodes of which all gradients are known.
    ready: VecDeque<NodeId>,
    /// In which branches of conditionals nodes are, once that is asked for.
    contexts: Option<Contexts>,
}

impl Walk<'_> {
    /// Sets the gradients of what is differentiated: ones, or what is given.
    fn start(&mut self, ys: &[Output], starts: &[Option<Output>]) -> Result<()> {
        let mut are_ready = HashSet::new();
        for (i, &y) in ys.iter().enumerate() {
            let start = match starts.get(i).copied().flatten() {
                Some(start) => start,
                None => self.ones_like(y, i)?,
            };
            self.found.entry(y).or_default().push(Gradient::Dense(start));
            if self.between.waits[y.node.index()] == Some(0) && are_ready.insert(y.node) {
                self.ready.push_back(y.node);
            }
        }
        Ok(())
    }

    fn ones_like(&mut self, y: Output, i: usize) -> Result<Output> {
        let graph = self.g.settled();
        let dtype = graph.output_type(y).dtype;
        let device = graph.node(y.node).device.clone();
        let Some(one) = rules::number(dtype, 1.0) else {
            let name = self.g.tensor_name(y);
            let (op, path) = (dtype.with_article(), Path(vec![name.clone()]));
            return Err(GradientError::NoRule { node: name, op, path }.into());
        };
        self.g.with_device(&device, |g| {
            let known = g.settled().shapes().known(y);
            let shape = match known {
                Some(shape) => g.constant("Shape", shape.dims().iter().map(|&n| n as i32).collect::<Vec<_>>())?,
                None => g.op("Shape").input(y).build()?,
            };
            let one = g.constant(&format!("grad_ys_{i}"), one)?;
            g.op("Fill").input(shape).input(one).build()
        })
    }

    /// Adds the gradients of a node's inputs, now that those of its outputs are complete.
    fn pass(&mut self, id: NodeId) -> Result<()> {
        let node = &self.g.settled().node(id).clone();
        let mut grads = Vec::with_capacity(node.outputs.len());
        for port in 0..node.outputs.len() as u32 {
            grads.push(self.sum_up(Output { node: id, port }, node)?);
        }
        if grads.iter().any(Option::is_some) && !self.between.stops.contains(&id) {
            let of_inputs = self.differentiate(id, node, grads)?;
            for (&input, gradient) in node.inputs.iter().zip(of_inputs) {
                let Some(gradient) = gradient else { continue };
                let gradient = self.brought_out(id, node, input, gradient)?;
                self.came_from.entry(input.node).or_insert(id);
                self.found.entry(input).or_default().push(gradient);
            }
        }
        for input in &node.inputs {
            if let Some(waits) = &mut self.between.waits[input.node.index()] {
                *waits -= 1;
                if *waits == 0 {
                    self.ready.push_back(input.node);
                }
            }
        }
        Ok(())
    }

    /// The gradients of a node's inputs.
    fn differentiate(
        &mut self,
        id: NodeId,
        node: &Node,
        grads: Vec<Option<Gradient>>,
    ) -> Result<Vec<Option<Gradient>>> {
        let rule = match rules::of(node.op.name) {
            // A node that cannot run has an op of no name.
            rules::Known::Rule(rule) if node.refused.is_none() => rule,
            rules::Known::NotDifferentiable if node.refused.is_none() => return Ok(vec![None; node.inputs.len()]),
            _ => return Err(self.stopped(id, node, Stop::NoRule).into()),
        };
        let (g, contexts) = (&mut *self.g, &mut self.contexts);
        let added = g.with_device(&node.device, |g| {
            g.with_scope(&format!("{}_grad", node.name), |g| {
                // What a rule stops at is no failure of the builder's: it is told with the path.
                match rule(&mut Call::new(g, contexts, node, id, grads)) {
                    Ok(grads) => Ok(Ok(grads)),
                    Err(Stop::Failed(failure)) => Err(failure),
                    Err(stop) => Ok(Err(stop)),
                }
            })
        })?;
        let mut grads = added.map_err(|stop| self.stopped(id, node, stop))?;
        grads.resize(node.inputs.len(), None);
        Ok(grads)
    }

    /// A gradient by a tensor that a node inside of a branch takes from outside of it, not by a Switch: zeros where the branch is
    /// not taken.
    fn brought_out(&mut self, id: NodeId, node: &Node, input: Output, gradient: Gradient) -> Result<Gradient> {
        if !self.between.has_branches || node.op.role.is_control_flow() {
            return Ok(gradient);
        }
        let graph = self.g.settled();
        let left = self.contexts.get_or_insert_with(|| Contexts::of(graph)).left(graph, id, input);
        if left.is_empty() {
            return Ok(gradient);
        }
        self.g.with_device(&node.device, |g| {
            g.with_scope(&format!("{}_grad", node.name), |g| {
                let mut outer = super::dense(g, gradient)?;
                for branch in left {
                    let zeros = zeros_like(g, input)?;
                    let switch = g.op("Switch").input(zeros).input(branch.predicate).build()?;
                    outer = g.op("Merge").input(outer).input(switch.port(1 - branch.port)).build()?;
                }
                Ok(Gradient::Dense(outer))
            })
        })
    }

    fn stopped(&self, id: NodeId, node: &Node, stop: Stop) -> GradientError {
        let graph = self.g.settled();
        let op = node.refused.as_ref().map_or(node.op.name, |refused| &refused.op).to_owned();
        let mut names = vec![node.name.clone()];
        let mut at = id;
        while let Some(&next) = self.came_from.get(&at) {
            names.push(graph.node(next).name.clone());
            at = next;
        }
        names.reverse();
        let (node, path) = (node.name.clone(), Path(names));
        match stop {
            Stop::Loop => GradientError::Loop { node, op, path },
            Stop::Prevented(why) => GradientError::Prevented { node, why, path },
            Stop::Unsupported(why) => GradientError::Unsupported { node, op, why, path },
            Stop::NoRule | Stop::Failed(_) => GradientError::NoRule { node, op, path },
        }
    }

    /// The whole gradient of a tensor: the sum of those that came by each path.
    fn sum_up(&mut self, output: Output, node: &Node) -> Result<Option<Gradient>> {
        let Some(found) = self.found.get(&output) else { return Ok(None) };
        if let [one] = found[..] {
            return Ok(Some(one));
        }
        let found = found.clone();
        let sum = self.g.with_device(&node.device, |g| add_up(g, &found))?;
        self.found.insert(output, vec![sum]);
        Ok(Some(sum))
    }

    /// Nodes around a loop wait for each other, and what lies before them is never reached.
    fn check_done(&self) -> Result<()> {
        let graph = self.g.settled();
        let waiting = (0..).zip(&self.between.waits).filter(|(_, waits)| waits.is_some_and(|count| count > 0));
        let mut waiting = waiting.map(|(id, _)| NodeId(id));
        let Some(first) = waiting.next() else { return Ok(()) };
        let goes_back = |id: &NodeId| graph.node(*id).op.role == Role::NextIteration;
        let id = if goes_back(&first) { first } else { waiting.find(goes_back).unwrap_or(first) };
        Err(self.stopped(id, graph.node(id), Stop::Loop).into())
    }

    fn gradient_by(&mut self, x: Output, unconnected: Unconnected) -> Result<Option<Gradient>> {
        let node = self.g.settled().node(x.node).clone();
        match (self.sum_up(x, &node)?, unconnected) {
            (None, Unconnected::Zero) => {
                let zeros = self.g.with_device(&node.device, |g| zeros_like(g, x))?;
                Ok(Some(Gradient::Dense(zeros)))
            }
            (found, _) => Ok(found),
        }
    }
}

/// Adds gradients up: dense ones by AddN; sparse ones are put one behind the other, if all are.
fn add_up(g: &mut GraphBuilder, all: &[Gradient]) -> Result<Gradient> {
    let rows: Vec<Rows> =
        all.iter().filter_map(|one| if let Gradient::Sparse(rows) = one { Some(*rows) } else { None }).collect();
    if rows.len() < all.len() {
        let dense = all.iter().map(|&one| super::dense(g, one)).collect::<Result<Vec<_>>>()?;
        return g.op("AddN").inputs(dense).build().map(Gradient::Dense);
    }
    let values = g.op("ConcatV2").name("concat").inputs(rows.iter().map(|rows| rows.values)).input(0).build()?;
    // Some may be int32 and others int64.
    let indices = rows
        .iter()
        .map(|rows| g.op("Cast").input(rows.indices).attr("DstT", DType::I64).build())
        .collect::<Result<Vec<_>>>()?;
    let indices = g.op("ConcatV2").name("concat").inputs(indices).input(0).build()?;
    Ok(Gradient::Sparse(Rows { values, indices, dense_shape: rows[0].dense_shape }))
}
