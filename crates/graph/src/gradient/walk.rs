//! The backward walk through a graph that adds its gradients.

use std::collections::{HashMap, HashSet, VecDeque};

use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::call::{Call, zeros_like};
use super::context::{Place, leads_back};
use super::error::{GradientError, Path};
use super::loops::{Loops, Part};
use super::reach::Between;
use super::rules::{self, Stop};
use super::{Differentiation, Gradient, GradientRule, Rows, Unconnected};
use crate::op::Role;
use crate::{Attr, Graph, GraphBuilder, Node, NodeId, Output};

/// Adds the gradients of `ys` with respect to `xs` to the graph of a builder whose nodes are all checked, in that scope.
pub(super) fn walk(
    g: &mut GraphBuilder,
    scope: &str,
    ys: &[Output],
    xs: &[Output],
    options: &Differentiation,
) -> Result<Vec<Option<Gradient>>> {
    check(g, ys, xs, options)?;
    let between = Between::new(g.settled(), ys, xs, &options.stops);
    let source = g.full_name(scope);
    let mut loops = Loops::find(g.settled(), &between, source.clone());
    for &output in ys.iter().chain(xs).chain(options.starts.iter().flatten()) {
        if loops.around_output(g.settled(), output).is_some() {
            return Err(GradientError::InLoop(g.tensor_name(output)).into());
        }
    }
    g.with_scope(scope, |g| {
        let mut walk = Walk {
            g,
            between,
            found: HashMap::new(),
            came_from: HashMap::new(),
            ready: VecDeque::new(),
            source,
            loops,
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
    /// The gradients found so far of each tensor, one for each path from it.
    found: HashMap<Output, Vec<Gradient>>,
    /// The node through which the first gradient of a node came: the way back to a differentiated tensor.
    came_from: HashMap<NodeId, NodeId>,
    /// The nodes whose gradients are all known.
    ready: VecDeque<NodeId>,
    /// The scope of these gradients, which distinguishes them from others of the same graph.
    source: String,
    /// The contexts of the nodes, and the nodes added for loops.
    loops: Loops,
}

impl Walk<'_> {
    /// Sets the gradients of the differentiated tensors: ones, or the given ones.
    fn start(&mut self, ys: &[Output], starts: &[Option<Output>]) -> Result<()> {
        let mut are_ready = HashSet::new();
        for (i, &y) in ys.iter().enumerate() {
            let start = match starts.get(i).copied().flatten() {
                Some(start) => start,
                None => self.ones_like(y, i)?,
            };
            self.found.entry(y).or_default().push(Gradient::Dense(start));
        }
        for y in ys {
            if self.between.waits[y.node.index()] == Some(0) && are_ready.insert(y.node) {
                self.make_ready(y.node)?;
            }
        }
        for place in self.loops.without_exits() {
            self.open(place, ys[0].node)?;
        }
        Ok(())
    }

    /// Called when all gradients of a node's outputs are known. Those of a loop continue once those of all its Exits are known.
    fn make_ready(&mut self, id: NodeId) -> Result<()> {
        let place = match self.g.settled().node(id).op.role {
            Role::Exit => self.loops.exit_is_ready(id),
            _ => self.loops.hold(id),
        };
        match place {
            Some(place) => self.open(place, id),
            None => {
                self.ready.push_back(id);
                Ok(())
            }
        }
    }

    /// Opens a loop, and releases the nodes held for it, if it may be opened.
    fn open(&mut self, place: Place, by: NodeId) -> Result<()> {
        let mut open = vec![place];
        while let Some(place) = open.pop() {
            let (may_open, around) = self.loops.may_open(place);
            open.extend(around);
            if !may_open {
                continue;
            }
            let exits = self.loops.exits(place).to_vec();
            let mut gradients = HashMap::new();
            for &exit in &exits {
                if self.between.stops.contains(&exit) {
                    continue;
                }
                let node = self.g.settled().node(exit).clone();
                if let Some(gradient) = self.sum_up(Output { node: exit, port: 0 }, &node)? {
                    gradients.insert(exit, gradient);
                }
            }
            let from = exits.into_iter().find(|exit| gradients.contains_key(exit)).unwrap_or(by);
            let found = self.loops.open(self.g, place, &gradients);
            self.take(from, found)?;
            let (ready, loops) = self.loops.released(place);
            let is_between = |id: &NodeId| self.between.waits[id.index()].is_some();
            self.ready.extend(ready.into_iter().filter(is_between));
            open.extend(loops);
        }
        Ok(())
    }

    /// Records gradients that came through a node.
    fn take(&mut self, from: NodeId, found: std::result::Result<Vec<(Output, Output)>, Stop>) -> Result<()> {
        let node = self.g.settled().node(from).clone();
        for (output, gradient) in found.map_err(|stop| self.stopped(from, &node, stop))? {
            if output.node != from {
                self.came_from.entry(output.node).or_insert(from);
            }
            self.found.entry(output).or_default().push(Gradient::Dense(gradient));
        }
        Ok(())
    }

    fn ones_like(&mut self, y: Output, i: usize) -> Result<Output> {
        let graph = self.g.settled();
        let dtype = graph.output_type(y).dtype;
        let device = home(graph, graph.node(y.node)).to_owned();
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
        let mut are_ready = Vec::new();
        let mut grads = Vec::with_capacity(node.outputs.len());
        for port in 0..node.outputs.len() as u32 {
            grads.push(self.sum_up(Output { node: id, port }, node)?);
        }
        let pushed = self.between.pushed.get(&id).copied();
        if let (Some(pushed), Some(gradient)) = (pushed, grads.first().copied().flatten())
            && !self.between.stops.contains(&id)
        {
            let around = self.loops.around(id);
            let found = self.loops.inside(self.g, around, |g, _| super::dense(g, gradient));
            let found = found.and_then(|gradient| self.loops.hand_on(self.g, id, pushed, gradient));
            self.take(id, found)?;
        } else if !self.between.stops.contains(&id) {
            let part = Loops::part(self.g.settled(), node);
            let of_inputs = match part {
                Some(part) => self.pass_part(id, node, part, &grads)?,
                None if grads.iter().any(Option::is_some) => self.differentiate(id, node, grads)?,
                None => Vec::new(),
            };
            for (&input, gradient) in node.inputs.iter().zip(of_inputs) {
                let Some(gradient) = gradient else { continue };
                self.check_taken(id, node, input)?;
                let gradient = self.brought_out(id, node, input, gradient)?;
                self.came_from.entry(input.node).or_insert(id);
                self.found.entry(input).or_default().push(gradient);
            }
        }
        let inputs = node.inputs.iter().filter(|input| !leads_back(self.g.settled(), input.node, node));
        for input in inputs.chain(&pushed) {
            if let Some(waits) = &mut self.between.waits[input.node.index()] {
                *waits -= 1;
                if *waits == 0 {
                    are_ready.push(input.node);
                }
            }
        }
        are_ready.into_iter().try_for_each(|id| self.make_ready(id))
    }

    /// The gradients of the inputs of a node that is part of a loop's structure.
    fn pass_part(
        &mut self,
        id: NodeId,
        node: &Node,
        part: Part,
        grads: &[Option<Gradient>],
    ) -> Result<Vec<Option<Gradient>>> {
        let passed = match part {
            Part::Exit | Part::Merge => Ok(Vec::new()),
            Part::VariableEnter | Part::Next => Ok(vec![grads[0]]),
            Part::Switch => self.loops.close(self.g, id, grads[1]).map(|()| Vec::new()),
            Part::InvariantEnter => match grads[0] {
                Some(gradient) => self.loops.sum(self.g, id, gradient).map(|sum| vec![Some(sum)]),
                None => Ok(Vec::new()),
            },
        };
        passed.map_err(|stop| self.stopped(id, node, stop).into())
    }

    /// A loop variable may have a gradient only through the output of its Switch.
    fn check_taken(&self, id: NodeId, node: &Node, input: Output) -> Result<()> {
        let graph = self.g.settled();
        match Loops::part(graph, graph.node(input.node)) {
            Some(Part::Merge | Part::VariableEnter) => {
                let name = &graph.node(input.node).name;
                let why = format!("is not supported: it takes {name} before the loop's condition is evaluated");
                Err(self.stopped(id, node, Stop::Unsupported(why)).into())
            }
            _ => Ok(()),
        }
    }

    /// The gradients of a node's inputs.
    fn differentiate(
        &mut self,
        id: NodeId,
        node: &Node,
        grads: Vec<Option<Gradient>>,
    ) -> Result<Vec<Option<Gradient>>> {
        let rule = match node.op.gradient {
            // A node that cannot run has a placeholder op.
            GradientRule::Rule(rule) if node.refused.is_none() => rule,
            GradientRule::None if node.refused.is_none() => return Ok(vec![None; node.inputs.len()]),
            _ => return Err(self.stopped(id, node, Stop::NoRule).into()),
        };
        let (g, contexts, source) = (&mut *self.g, &mut self.loops.contexts, self.source.as_str());
        let first = g.nodes().len();
        let device = home(g.settled(), node).to_owned();
        let added = g.with_device(&device, |g| {
            g.with_scope(&format!("{}_grad", node.name), |g| {
                // A rule that stops is not an error of the builder: it is reported with the path.
                match (rule.add)(&mut Call::new(g, contexts, source, node, id, grads)) {
                    Ok(grads) => Ok(Ok(grads)),
                    Err(Stop::Failed(failure)) => Err(failure),
                    Err(stop) => Ok(Err(stop)),
                }
            })
        })?;
        let moved = added.and_then(|grads| {
            let last = self.g.nodes().len();
            self.loops.move_inside(self.g, self.loops.around(id), first..last)?;
            Ok(grads)
        });
        let mut grads = moved.map_err(|stop| self.stopped(id, node, stop))?;
        grads.resize(node.inputs.len(), None);
        Ok(grads)
    }

    /// A gradient with respect to a tensor that a node inside of a branch consumes from outside of it without a Switch: zeros
    /// if the branch is not taken.
    fn brought_out(&mut self, id: NodeId, node: &Node, input: Output, gradient: Gradient) -> Result<Gradient> {
        if !self.between.has_branches || node.op.role.is_control_flow() {
            return Ok(gradient);
        }
        let left = self.loops.contexts.left(self.g.settled(), id, input);
        if left.is_empty() {
            return Ok(gradient);
        }
        let around = self.loops.around(id);
        let device = home(self.g.settled(), node).to_owned();
        let added = self.loops.inside(self.g, around, |g, _| {
            g.with_device(&device, |g| {
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
        });
        added.map_err(|stop| self.stopped(id, node, stop).into())
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
            Stop::NoRule => GradientError::NoRule { node, op, path },
            Stop::Failed(failure) => GradientError::Failed(failure),
        }
    }

    /// The complete gradient of a tensor: the sum of those of all paths.
    fn sum_up(&mut self, output: Output, node: &Node) -> Result<Option<Gradient>> {
        let Some(found) = self.found.get(&output) else { return Ok(None) };
        if let [one] = found[..] {
            return Ok(Some(one));
        }
        let found = found.clone();
        let around = self.loops.around_output(self.g.settled(), output);
        let device = home(self.g.settled(), node).to_owned();
        let sum = self.loops.inside(self.g, around, |g, _| g.with_device(&device, |g| add_up(g, &found)));
        let sum = sum.map_err(|stop| self.stopped(output.node, node, stop))?;
        self.found.insert(output, vec![sum]);
        Ok(Some(sum))
    }

    /// Nodes of a cycle wait for each other, and the nodes before them are never reached.
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
                let device = home(self.g.settled(), &node).to_owned();
                let zeros = self.g.with_device(&device, |g| zeros_like(g, x))?;
                Ok(Some(Gradient::Dense(zeros)))
            }
            (found, _) => Ok(found),
        }
    }
}

/// The device that a node requests, or that of the node that its attribute `_class` names.
fn home<'g>(graph: &'g Graph, node: &'g Node) -> &'g str {
    /// Most nodes in a chain of colocations: a longer chain has a cycle.
    const MOST: usize = 64;
    let with = |node: &Node| {
        let Some(Attr::Strs(classes)) = node.attrs.get("_class") else { return None };
        let mut names = classes.iter().filter_map(|class| std::str::from_utf8(class.strip_prefix(b"loc:@")?).ok());
        names.find_map(|name| graph.find(name)).map(|id| graph.node(id))
    };
    let mut all = std::iter::successors(Some(node), |&node| with(node)).take(MOST);
    all.find(|node| !node.device.is_empty()).map_or("", |node| node.device.as_str())
}

/// Adds gradients up: dense ones by AddN; if all are sparse, their rows are concatenated.
fn add_up(g: &mut GraphBuilder, all: &[Gradient]) -> Result<Gradient> {
    let rows: Vec<Rows> =
        all.iter().filter_map(|one| if let Gradient::Sparse(rows) = one { Some(*rows) } else { None }).collect();
    if rows.len() < all.len() {
        let dense = all.iter().map(|&one| super::dense(g, one)).collect::<Result<Vec<_>>>()?;
        return g.op("AddN").inputs(dense).build().map(Gradient::Dense);
    }
    let values = g.op("ConcatV2").name("concat").inputs(rows.iter().map(|rows| rows.values)).input(0).build()?;
    // The indices may be int32 and int64 mixed.
    let indices = rows
        .iter()
        .map(|rows| g.op("Cast").input(rows.indices).attr("DstT", DType::I64).build())
        .collect::<Result<Vec<_>>>()?;
    let indices = g.op("ConcatV2").name("concat").inputs(indices).input(0).build()?;
    Ok(Gradient::Sparse(Rows { values, indices, dense_shape: rows[0].dense_shape }))
}
