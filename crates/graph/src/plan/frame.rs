//! The loop that each node of a pruned graph runs in, found by following values from Enter to Exit.
//!
//! Independent of devices.

use std::collections::HashMap;

use super::PlanError;
use super::prune::{ItemOp, PrunedGraph};
use crate::Attrs;
use crate::op::Role;

/// Number of concurrent iterations of a loop if its Enter nodes do not specify it.
const PARALLEL_ITERATIONS: u32 = 10;

/// Most loops nested in each other: what a device stores for a loop grows with its depth.
const MAX_DEPTH: usize = 256;

/// The loops of a pruned graph. `all[0]` is the root, outside of every loop; parents come before their children.
#[derive(Debug)]
pub(super) struct Loops {
    pub all: Vec<Loop>,
    /// The frame that each item runs in.
    pub runs_in: Vec<usize>,
    /// The frame that each item's outputs are in.
    pub answers_in: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub name: String,
    /// The enclosing loop; the root's is the root.
    pub parent: usize,
    /// The number of enclosing loops, including itself; 0 for the root.
    depth: usize,
    pub parallel_iterations: u32,
    /// The item that is its LoopCond.
    pub condition: Option<usize>,
    /// An item that is a NextIteration in it.
    pub next_iteration: Option<usize>,
}

impl Loops {
    /// Finds the frame of every item.
    ///
    /// # Errors
    /// InvalidArgument if a node mixes values of two frames, a loop has two conditions or is nested too deeply, or a value is
    /// fetched from within a loop.
    pub fn find(pruned: &PrunedGraph) -> Result<Loops, PlanError> {
        let root = Loop {
            name: String::new(),
            parent: 0,
            depth: 0,
            parallel_iterations: 1,
            condition: None,
            next_iteration: None,
        };
        let mut loops = Loops {
            all: vec![root],
            runs_in: Vec::with_capacity(pruned.items.len()),
            answers_in: Vec::with_capacity(pruned.items.len()),
        };
        let mut children: HashMap<(usize, &str), usize> = HashMap::new();
        for item in 0..pruned.items.len() {
            let frame = loops.frame_of_inputs(pruned, item)?;
            let mut answers_in = frame;
            match pruned.role(item) {
                Role::Enter => {
                    let (name, parallel) = enter(pruned, item);
                    let depth = loops.all[frame].depth + 1;
                    if depth > MAX_DEPTH {
                        let (node, op) = (pruned.tensor_name(item, 0), pruned.op(item).to_owned());
                        return Err(PlanError::LoopsTooDeep { frame: name.to_owned(), node, op, limit: MAX_DEPTH });
                    }
                    answers_in = *children.entry((frame, name)).or_insert_with(|| {
                        loops.all.push(Loop {
                            name: name.to_owned(),
                            parent: frame,
                            depth,
                            parallel_iterations: parallel,
                            condition: None,
                            next_iteration: None,
                        });
                        loops.all.len() - 1
                    });
                }
                Role::Exit if frame == 0 => return Err(outside(pruned, item)),
                Role::Exit => answers_in = loops.all[frame].parent,
                Role::NextIteration if frame == 0 => return Err(outside(pruned, item)),
                Role::NextIteration => loops.all[frame].next_iteration = Some(item),
                Role::LoopCond if frame == 0 => return Err(outside(pruned, item)),
                Role::LoopCond => {
                    if let Some(first) = loops.all[frame].condition.replace(item) {
                        return Err(PlanError::TwoConditions {
                            frame: loops.all[frame].name.clone(),
                            first: pruned.tensor_name(first, 0),
                            second: pruned.tensor_name(item, 0),
                            op: pruned.op(item).to_owned(),
                        });
                    }
                }
                _ => {}
            }
            loops.runs_in.push(frame);
            loops.answers_in.push(answers_in);
        }
        loops.check_back_edges(pruned)?;
        loops.check_fetches(pruned)?;
        Ok(loops)
    }

    /// The frame of the inputs and control inputs of an item; the root if it has none.
    fn frame_of_inputs(&self, pruned: &PrunedGraph, item: usize) -> Result<usize, PlanError> {
        let mut found: Option<(usize, usize)> = None;
        for from in pruned.items[item].before().filter(|&from| !pruned.role(from).leads_back(pruned.role(item))) {
            let frame = self.answers_in[from];
            match found {
                None => found = Some((from, frame)),
                Some((_, known)) if known == frame => {}
                Some((first, known)) => return Err(self.mixed(pruned, item, (first, known), (from, frame))),
            }
        }
        Ok(found.map_or(0, |(_, frame)| frame))
    }

    fn check_back_edges(&self, pruned: &PrunedGraph) -> Result<(), PlanError> {
        for item in (0..pruned.items.len()).filter(|&item| pruned.role(item) == Role::Merge) {
            for from in pruned.items[item].before() {
                if self.answers_in[from] != self.runs_in[item] {
                    let own = (item, self.runs_in[item]);
                    return Err(self.mixed(pruned, item, own, (from, self.answers_in[from])));
                }
            }
        }
        Ok(())
    }

    fn check_fetches(&self, pruned: &PrunedGraph) -> Result<(), PlanError> {
        for (item, fetch) in pruned.items.iter().enumerate() {
            let (ItemOp::Fetch(_, tensor), frame @ 1..) = (fetch.op, self.runs_in[item]) else { continue };
            let node = pruned.graph.node(tensor.node);
            return Err(PlanError::FetchInLoop {
                tensor: pruned.graph.tensor_name(tensor),
                node: node.name.clone(),
                op: node.op.name.to_owned(),
                frame: self.all[frame].name.clone(),
            });
        }
        Ok(())
    }

    fn mixed(&self, pruned: &PrunedGraph, item: usize, first: (usize, usize), second: (usize, usize)) -> PlanError {
        PlanError::Frames {
            node: pruned.tensor_name(item, 0),
            op: pruned.op(item).to_owned(),
            first: pruned.tensor_name(first.0, 0),
            first_frame: self.all[first.1].name.clone(),
            second: pruned.tensor_name(second.0, 0),
            second_frame: self.all[second.1].name.clone(),
        }
    }
}

/// The loop's name and its parallel iterations, as specified by an Enter.
fn enter<'a>(pruned: &PrunedGraph<'a>, item: usize) -> (&'a str, u32) {
    let attrs: Option<&'a Attrs> = pruned.node(item).map(|node| &node.attrs);
    let name = attrs.and_then(|attrs| attrs.str("frame_name").ok()).unwrap_or_default();
    let parallel = attrs.and_then(|attrs| attrs.int("parallel_iterations").ok());
    let parallel = parallel.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
    (name, parallel.unwrap_or(PARALLEL_ITERATIONS))
}

fn outside(pruned: &PrunedGraph, item: usize) -> PlanError {
    PlanError::OutsideLoop { node: pruned.tensor_name(item, 0), op: pruned.op(item).to_owned() }
}
