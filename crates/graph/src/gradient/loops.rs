//! Gradients of loops, as in TensorFlow 1: a loop that goes back through the iterations of the differentiated loop.
//!
//! The differentiated loop gets a counter, and a stack for each value that the gradients need (`saved`). The loop of its
//! gradient counts down and pops the values from the stacks. The gradient of a loop variable is a loop variable of that loop:
//! it enters as the gradient of the value at the Exit and leaves as the gradient of the value at the Enter. Those of loop
//! invariants are summed (`sums`).

mod again;
mod saved;
mod sums;

use std::collections::HashMap;

use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Tensor};

use super::Gradient;
use super::call::zeros_like;
use super::context::{Contexts, Place, is_loop_merge, is_loop_switch, leads_back};
use super::reach::Between;
use super::rules::Stop;
use crate::op::Role;
use crate::{Graph, GraphBuilder, Node, NodeId, Output};

pub(super) struct Loops {
    pub contexts: Contexts,
    /// The scope of the gradients, which is part of the names of their loops' frames.
    scope: String,
    all: HashMap<Place, Loop>,
    /// The LoopCond of each loop.
    conditions: HashMap<Place, Output>,
    saved: saved::Saved,
    again: again::Again,
}

/// A loop that gradients pass through.
#[derive(Default)]
struct Loop {
    variables: Vec<Variable>,
    /// The number of nodes that gradients come from and that are not ready yet.
    waiting: usize,
    exits: Vec<NodeId>,
    /// Gradients of values that were pushed on stacks are passed to it.
    is_handed: bool,
    is_open: bool,
    /// Nodes and loops inside that are ready, except that the loop is not open.
    held: Vec<NodeId>,
    held_loops: Vec<Place>,
    backward: Option<Backward>,
}

/// A loop variable that has a gradient.
#[derive(Clone, Copy)]
struct Variable {
    enter: NodeId,
    next: NodeId,
    switch: NodeId,
    /// The Exit of its last value.
    exit: Option<NodeId>,
}

/// The nodes added to a loop, and the loop of its gradient.
struct Backward {
    frame: String,
    parallel: i64,
    /// The counter of the differentiated loop's iterations.
    counted: Output,
    /// Runs when all values of an iteration have been pushed on their stacks.
    all_pushed: Output,
    /// Whether the loop of the gradient continues.
    goes_on: Output,
    /// Its entry and its end.
    start: Output,
    end: Output,
    /// A node that runs in each iteration of it.
    iteration: Output,
    /// Runs when all values of an iteration have been popped from their stacks.
    all_popped: Output,
    /// The Merge of the gradient of each loop variable, by the variable's Switch.
    merges: HashMap<NodeId, Output>,
}

/// The part of a node in the structure of a loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The Enter of a loop variable, where its gradient leaves the loop.
    VariableEnter,
    /// The Enter of a loop invariant.
    InvariantEnter,
    Merge,
    Switch,
    Next,
    Exit,
}

impl Loops {
    /// Finds the loops of a graph that gradients pass through.
    pub fn find(graph: &Graph, between: &Between, scope: String) -> Loops {
        let has_loops = graph.nodes().any(|(_, node)| node.op.role == Role::Enter);
        let contexts = if has_loops || between.has_branches { Contexts::of(graph) } else { Contexts::default() };
        let mut loops = Loops {
            contexts,
            scope,
            all: HashMap::new(),
            conditions: HashMap::new(),
            saved: saved::Saved::default(),
            again: again::Again::default(),
        };
        if has_loops {
            loops.find_all(graph, between);
        }
        loops
    }

    fn find_all(&mut self, graph: &Graph, between: &Between) {
        let (mut switches, mut exits) = (HashMap::new(), HashMap::new());
        for (id, node) in graph.nodes() {
            match node.op.role {
                Role::Switch if is_loop_switch(graph, node) => switches.insert(node.inputs[0].node, id),
                Role::Exit if node.inputs[0].port == 0 => exits.insert(node.inputs[0].node, id),
                Role::LoopCond => {
                    if let Some(place) = self.around(id) {
                        self.conditions.insert(place, Output { node: id, port: 0 });
                    }
                    None
                }
                _ => None,
            };
        }
        let is_between = |id: NodeId| between.waits[id.index()].is_some();
        for (id, node) in graph.nodes().filter(|&(id, _)| is_between(id)) {
            let Some(place) = self.around(id) else { continue };
            let all = &mut self.all;
            match node.op.role {
                Role::Exit => {
                    let it = all.entry(place).or_default();
                    it.exits.push(id);
                    it.waiting += 1;
                }
                Role::Merge if is_loop_merge(graph, node) => {
                    let next = node.inputs.iter().find(|input| leads_back(graph, input.node, node));
                    let enter = node.inputs.iter().find(|input| !leads_back(graph, input.node, node));
                    let Some(switch) = switches.get(&id).filter(|&&switch| is_between(switch)) else { continue };
                    let (Some(next), Some(enter)) = (next, enter) else { continue };
                    all.entry(place).or_default().variables.push(Variable {
                        enter: enter.node,
                        next: next.node,
                        switch: *switch,
                        exit: exits.get(switch).copied(),
                    });
                }
                _ => {}
            }
        }
        for &pushed in between.pushed.values() {
            let mut around = if is_between(pushed.node) { self.around_output(graph, pushed) } else { None };
            while let Some(place) = around {
                self.all.entry(place).or_default().is_handed = true;
                around = self.contexts.loop_of(self.contexts.outer(place));
            }
        }
    }

    /// The part of a node in the structure of its loop; `None` for a node of the body.
    pub fn part(graph: &Graph, node: &Node) -> Option<Part> {
        Some(match node.op.role {
            Role::Enter if node.attrs.bool("is_constant").unwrap_or(false) => Part::InvariantEnter,
            Role::Enter => Part::VariableEnter,
            Role::Exit => Part::Exit,
            Role::NextIteration => Part::Next,
            Role::Merge if is_loop_merge(graph, node) => Part::Merge,
            Role::Switch if is_loop_switch(graph, node) => Part::Switch,
            _ => return None,
        })
    }

    /// The loop that a node runs in.
    pub fn around(&self, id: NodeId) -> Option<Place> {
        self.contexts.loop_of(self.contexts.of_node(id))
    }

    /// The loop that a tensor is in.
    pub fn around_output(&mut self, graph: &Graph, output: Output) -> Option<Place> {
        let place = self.contexts.of_output(graph, output);
        self.contexts.loop_of(place)
    }

    /// Called when all gradients of an Exit are known; returns the loop that it leaves.
    pub fn exit_is_ready(&mut self, exit: NodeId) -> Option<Place> {
        let place = self.around(exit)?;
        let it = self.all.get_mut(&place)?;
        it.waiting = it.waiting.saturating_sub(1);
        Some(place)
    }

    /// The loops without a gradient at any Exit, but with gradients of values that were pushed on stacks.
    pub fn without_exits(&self) -> Vec<Place> {
        let mut places: Vec<Place> =
            self.all.iter().filter(|(_, it)| it.is_handed && it.waiting == 0).map(|(&place, _)| place).collect();
        places.sort_unstable();
        places
    }

    /// Holds a ready node until the loop that it runs in is open; returns that loop, unless it is open already.
    pub fn hold(&mut self, id: NodeId) -> Option<Place> {
        let place = self.around(id)?;
        let it = self.all.entry(place).or_default();
        if it.is_open {
            return None;
        }
        it.held.push(id);
        Some(place)
    }

    /// Whether the gradients of all Exits of a loop are known, and the enclosing loop is open; otherwise it is held until that
    /// is. The second is the enclosing loop, if that may be opened first.
    pub fn may_open(&mut self, place: Place) -> (bool, Option<Place>) {
        let it = self.all.entry(place).or_default();
        if it.is_open || it.waiting > 0 {
            return (false, None);
        }
        let around = self.contexts.loop_of(self.contexts.outer(place));
        let Some(around) = around else { return (true, None) };
        let outer = self.all.entry(around).or_default();
        if outer.is_open {
            return (true, None);
        }
        outer.held_loops.push(place);
        (false, Some(around))
    }

    /// The Exits of a loop that gradients pass through.
    pub fn exits(&self, place: Place) -> &[NodeId] {
        self.all.get(&place).map_or(&[], |it| &it.exits)
    }

    /// The nodes of a loop that are ready once it is open, and the loops that may be opened.
    pub fn released(&mut self, place: Place) -> (Vec<NodeId>, Vec<Place>) {
        let it = self.all.entry(place).or_default();
        let nexts = it.variables.iter().map(|variable| variable.next);
        let ready = it.exits.iter().copied().chain(nexts).chain(std::mem::take(&mut it.held)).collect();
        (ready, std::mem::take(&mut it.held_loops))
    }

    /// Adds the loop of the gradient, if there is any. `gradients` are those of the Exits. Returns the gradients of the values
    /// that enter the loop and of those on its back edges.
    pub fn open(
        &mut self,
        g: &mut GraphBuilder,
        place: Place,
        gradients: &HashMap<NodeId, Gradient>,
    ) -> Result<Vec<(Output, Output)>, Stop> {
        let it = self.all.entry(place).or_default();
        it.is_open = true;
        if gradients.is_empty() && !it.is_handed {
            return Ok(Vec::new());
        }
        let variables = it.variables.clone();
        self.count(g, place)?;
        let around = self.contexts.loop_of(self.contexts.outer(place));
        let mut found = self.handed(g, place)?;
        for variable in variables {
            let device = g.settled().node(variable.switch).device.clone();
            let given = variable.exit.and_then(|exit| gradients.get(&exit)).copied();
            let start = self.inside(g, around, |g, loops| {
                g.with_device(&device, |g| match given {
                    Some(gradient) => super::dense(g, gradient),
                    None => loops.zeros_for_exit(g, place, variable),
                })
            })?;
            let back = self.backward(place)?;
            let (frame, parallel, goes_on) = (back.frame.clone(), back.parallel, back.goes_on);
            let (merge, switch, exit) = g.with_device(&device, |g| {
                let enter = g.op("Enter").name("b_exit").input(start);
                let enter = enter.attr("frame_name", frame.as_str()).attr("parallel_iterations", parallel).build()?;
                let merge = g.op("Merge").name("b_switch").input(enter).build()?;
                let switch = g.op("Switch").name("b_next").input(merge).input(goes_on).build()?;
                let exit = g.op("Exit").name("b_enter").input(switch).build()?;
                Ok((merge, switch, exit))
            })?;
            self.backward(place)?.merges.insert(variable.switch, merge);
            found.push((Output { node: variable.enter, port: 0 }, exit));
            found.push((Output { node: variable.next, port: 0 }, switch.port(1)));
        }
        Ok(found)
    }

    /// Called when the gradient of a loop variable has passed through the body: it continues with the previous iteration, as
    /// zeros if the variable is not used there.
    pub fn close(&mut self, g: &mut GraphBuilder, switch: NodeId, gradient: Option<Gradient>) -> Result<(), Stop> {
        let Some(place) = self.around(switch) else { return Ok(()) };
        let merge = self.all.get(&place).and_then(|it| it.backward.as_ref()?.merges.get(&switch).copied());
        let Some(merge) = merge else { return Ok(()) };
        let device = g.settled().node(switch).device.clone();
        let next = self.inside(g, Some(place), |g, _| {
            g.with_device(&device, |g| match gradient {
                Some(gradient) => super::dense(g, gradient),
                None => zeros_like(g, Output { node: switch, port: 1 }),
            })
        })?;
        let next = g.with_device(&device, |g| g.op("NextIteration").input(next).build())?;
        Ok(g.add_input(merge, next)?)
    }

    fn backward(&mut self, place: Place) -> Result<&mut Backward, Stop> {
        self.all.get_mut(&place).and_then(|it| it.backward.as_mut()).ok_or(Stop::Loop)
    }

    /// Adds the counter of a loop, and the loop of its gradient that counts down.
    fn count(&mut self, g: &mut GraphBuilder, place: Place) -> Result<(), Stop> {
        let &goes_on = self.conditions.get(&place).ok_or(Stop::Loop)?;
        let device = g.device_of(goes_on);
        let device = device.as_str();
        let outer = self.contexts.outer(place);
        let around = self.contexts.loop_of(outer);
        let Some(&enter) = self.contexts.enters(place).first() else { return Err(Stop::Loop) };
        let attrs = g.settled().node(enter).attrs.clone();
        let frame = attrs.str("frame_name").unwrap_or("").to_owned();
        let parallel = attrs.int("parallel_iterations").unwrap_or(10).max(1);
        // The counter starts where the loop does: in the iteration of the enclosing loop and in the enclosing branch.
        let start = self.entrance(g, place);
        let counted_around = around.and_then(|around| Some(self.all.get(&around)?.backward.as_ref()?.counted));
        let (count, counted, all_pushed) = g.with_device(device, |g| {
            let mut zero = g.op("Const").name("f_count").attr("value", Tensor::scalar(0));
            if let Some(counted) = counted_around {
                zero = zero.control(counted);
            }
            let zero = zero.build()?;
            if let Some(start) = start {
                let start = g.op("Identity").name("f_start").input(start).build()?;
                g.add_control(zero, start)?;
            }
            let enter = g.op("Enter").name("f_count").input(zero).attr("frame_name", frame.as_str());
            let enter = enter.attr("parallel_iterations", parallel).build()?;
            let merge = g.op("Merge").name("f_count").input(enter).build()?;
            let switch = g.op("Switch").name("f_count").input(merge).input(goes_on).build()?;
            let (counted, next) = step(g, switch, "AddV2", "f_sync")?;
            g.add_input(merge, next.0)?;
            Ok((g.op("Exit").name("f_count").input(switch).build()?, counted, next.1))
        })?;
        self.saved.note(g, count, outer, DType::I32, device);
        let back = Backward {
            frame: format!("{}/{frame}", self.scope),
            parallel,
            counted,
            all_pushed,
            goes_on: count,
            start: count,
            end: count,
            iteration: count,
            all_popped: count,
            merges: HashMap::new(),
        };
        self.all.entry(place).or_default().backward = Some(back);
        self.count_down(g, place, around, count, device)
    }

    /// Adds the loop of a gradient: one iteration for each of the `count` iterations of the differentiated loop.
    fn count_down(
        &mut self,
        g: &mut GraphBuilder,
        place: Place,
        around: Option<Place>,
        count: Output,
        device: &str,
    ) -> Result<(), Stop> {
        let count = match around {
            None => count,
            Some(around) => self.real(g, around, count)?,
        };
        let start = g.with_device(device, |g| g.op("Identity").name("b_start").input(count).build())?;
        for end in self.ends_before(place) {
            g.add_control(start, end)?;
        }
        let back = self.backward(place)?;
        let (frame, parallel) = (back.frame.clone(), back.parallel);
        let (goes_on, counted, all_popped, exit) = g.with_device(device, |g| {
            let enter = g.op("Enter").name("b_count").input(start).attr("frame_name", frame.as_str());
            let enter = enter.attr("parallel_iterations", parallel).build()?;
            let merge = g.op("Merge").name("b_count").input(enter).build()?;
            let one = g.op("Const").name("b_count").attr("value", Tensor::scalar(1)).control(merge).build()?;
            let more = g.op("GreaterEqual").input(merge).input(one).build()?;
            let goes_on = g.op("LoopCond").name("b_count").input(more).build()?;
            let switch = g.op("Switch").name("b_count").input(merge).input(goes_on).build()?;
            let (counted, next) = step(g, switch, "Sub", "b_sync")?;
            g.add_input(merge, next.0)?;
            let exit = g.op("Exit").name("b_count").input(switch).build()?;
            Ok((goes_on, counted, next.1, exit))
        })?;
        let back = self.backward(place)?;
        (back.start, back.end) = (start, exit);
        (back.goes_on, back.iteration, back.all_popped) = (goes_on, counted, all_popped);
        // All pops of this loop in one iteration of the enclosing loop come before those of the next.
        if let Some(around) = around {
            let all_popped = self.backward(around)?.all_popped;
            g.add_control(all_popped, exit)?;
        }
        Ok(())
    }

    /// A value that enters a loop in exactly the branch and the iteration that the loop is in; `None` if it is in none.
    fn entrance(&mut self, g: &GraphBuilder, place: Place) -> Option<Output> {
        let outer = self.contexts.outer(place)?;
        let inputs = self.contexts.enters(place).iter().filter_map(|&id| g.settled().node(id).inputs.first().copied());
        let inputs: Vec<Output> = inputs.collect();
        inputs.into_iter().find(|&input| self.contexts.of_output(g.settled(), input) == Some(outer))
    }

    /// The gradient of a loop variable whose final value is not differentiated.
    fn zeros_for_exit(&mut self, g: &mut GraphBuilder, place: Place, variable: Variable) -> Result<Output, Failure> {
        let exit = match variable.exit {
            Some(exit) => Output { node: exit, port: 0 },
            None => {
                let switch = Output { node: variable.switch, port: 0 };
                let dtype = g.settled().output_type(switch).dtype;
                let exit = g.op("Exit").name("f_exit").input(switch).build()?;
                let device = g.device_of(switch);
                self.saved.note(g, exit, self.contexts.outer(place), dtype, &device);
                exit
            }
        };
        g.op("ZerosLike").input(exit).build()
    }
}

/// Adds the addition or subtraction of one iteration of a counter; returns its result, the value for the next iteration and the
/// node that this waits for.
fn step(g: &mut GraphBuilder, switch: Output, op: &str, sync: &str) -> Result<(Output, (Output, Output)), Failure> {
    let body = g.op("Identity").input(switch.port(1)).build()?;
    let one = g.op("Const").attr("value", Tensor::scalar(1)).control(body).build()?;
    let counted = g.op(op).input(body).input(one).build()?;
    let sync = g.op("ControlTrigger").name(sync).control(counted).build()?;
    let next = g.op("NextIteration").input(counted).control(sync).build()?;
    Ok((counted, (next, sync)))
}
