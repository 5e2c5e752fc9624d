//! Leaves out of a pruned graph what need not be computed.
//!
//! Consumers of a node that provably outputs its input as it is (a sum over no axes, a reshape to the shape that a tensor has:
//! gradients are full of these) take that input instead. A node that only computes, and whose value nothing takes, is left out:
//! what waited for it waits for what it would have waited for. TensorFlow's own optimiser does both.

use std::collections::{HashSet, VecDeque};

use super::prune::{Item, ItemOp, PrunedGraph};
use crate::graph::Shapes;
use crate::graph::op::{Role, Unchanged};
use crate::graph::shape::Declarations;

/// Leaves out what need not run. Every item that stays computes the same as before.
pub(super) fn simplify(pruned: &mut PrunedGraph) {
    pass_by(pruned);
    leave_out(pruned);
}

/// Replaces inputs that are outputs of an item which outputs its own input as it is: consumers take that input instead.
fn pass_by(pruned: &mut PrunedGraph) {
    let references = references(pruned);
    let shapes = pruned.shapes(Declarations::Doubted);
    let mut instead: Vec<Option<(usize, u32)>> = vec![None; pruned.items.len()];
    for item in 0..pruned.items.len() {
        let is_unchanged = is_unchanged(pruned, &shapes, &references, item);
        let inputs = &mut pruned.items[item].inputs;
        inputs.iter_mut().for_each(|input| *input = instead[input.0].filter(|_| input.1 == 0).unwrap_or(*input));
        instead[item] = inputs.first().copied().filter(|_| is_unchanged);
    }
}

/// By item: whether an output may be a reference to a variable and not a value. An item that forwards a reference may too: its
/// consumers see what the variable holds when they run, of whatever shape.
fn references(pruned: &PrunedGraph) -> Vec<bool> {
    let mut references: Vec<bool> = Vec::with_capacity(pruned.items.len());
    for item in 0..pruned.items.len() {
        let only_hands_on = pruned.role(item).forwards();
        // What comes around a loop is not known yet.
        let takes = pruned.items[item].inputs.iter().any(|&(from, _)| references.get(from).is_none_or(|&it| it));
        let answers = pruned.outputs(item).iter().any(|output| output.is_ref || output.dtype.is_handle());
        references.push(answers || (only_hands_on && takes));
    }
    references
}

/// Whether the item's one output is its first input as it is, and available no later and in the same branch.
fn is_unchanged(pruned: &PrunedGraph, shapes: &Shapes, references: &[bool], item: usize) -> bool {
    let Item { inputs, control, .. } = &pruned.items[item];
    let tensor = |(item, port): (usize, u32)| pruned.tensor(item, port);
    let is_same = match pruned.node(item).and_then(|node| node.op.unchanged) {
        Some(Unchanged::SameShape) => shapes.are_same(tensor(inputs[0]), tensor((item, 0))),
        Some(Unchanged::NoAxes) => shapes.is_empty_list(tensor(inputs[1])),
        None => false,
    };
    is_same
        && control.is_empty()
        && !references[inputs[0].0]
        && !follows_control_flow(pruned, item)
        && adds_no_wait(pruned, inputs[1].0, inputs[0].0)
}

/// Most items that are visited to find out what a value waits for.
const MOST_LOOKED_AT: usize = 256;

/// Whether waiting for `value` includes waiting for all that `other` waits for, so that `other` (a shape, axes) need no longer be
/// taken. An effect may come before it, or a branch that is not taken, even through a control input of a constant.
fn adds_no_wait(pruned: &PrunedGraph, other: usize, value: usize) -> bool {
    let before = |item: usize| pruned.items[item].before();
    // What comes before the value, with no control flow in between.
    let mut waited_for = HashSet::from([value]);
    let mut open = VecDeque::from([value]);
    while let Some(item) = open.pop_front().filter(|_| waited_for.len() < MOST_LOOKED_AT) {
        if !pruned.role(item).is_control_flow() {
            open.extend(before(item).take(MOST_LOOKED_AT).filter(|&from| waited_for.insert(from)));
        }
    }
    let mut seen = HashSet::from([other]);
    let mut open = vec![other];
    while let Some(item) = open.pop() {
        if waited_for.contains(&item) && !pruned.role(item).is_control_flow() {
            continue;
        }
        let Item { op, inputs, control } = &pruned.items[item];
        let is_feed = matches!(op, ItemOp::Feed(..));
        let is_far = inputs.len() + control.len() + seen.len() > MOST_LOOKED_AT;
        if is_far || !(is_feed || only_computes(pruned, item)) {
            return false;
        }
        open.extend(before(item).filter(|&from| seen.insert(from)));
    }
    true
}

/// Leaves out the items that only compute and whose value nothing takes.
fn leave_out(pruned: &mut PrunedGraph) {
    let stays = staying(pruned);
    if stays.iter().all(|&stays| stays) {
        return;
    }
    let edges: usize = pruned.items.iter().map(|item| item.before().count()).sum();
    let Some(control) = control_without(pruned, &stays, 2 * edges + 1024) else { return };
    let mut count = 0;
    let place = |&stays: &bool| {
        count += usize::from(stays);
        count.saturating_sub(1)
    };
    // Of the items that stay; those of the others are not used.
    let places: Vec<usize> = stays.iter().map(place).collect();
    let items = std::mem::take(&mut pruned.items).into_iter().zip(control).zip(&stays).filter(|(_, stays)| **stays);
    pruned.items = items
        .map(|((item, control), _)| Item {
            op: item.op,
            inputs: item.inputs.into_iter().map(|(from, port)| (places[from], port)).collect(),
            control: control.into_iter().map(|before| places[before]).collect(),
        })
        .collect();
}

/// By item: whether it has an effect, is a target or fetched, or an item that stays takes its value.
fn staying(pruned: &PrunedGraph) -> Vec<bool> {
    let mut stays: Vec<bool> = (0..pruned.items.len()).map(|item| !only_computes(pruned, item)).collect();
    // Consumers come after their inputs, except around loops, which stay as they are.
    for item in (0..pruned.items.len()).rev() {
        if stays[item] {
            pruned.items[item].inputs.iter().for_each(|&(from, _)| stays[from] = true);
        }
    }
    stays
}

/// The control inputs of each item that stays, once the others are left out; `None` if they would be more than `most` in all:
/// then it costs less to compute what nothing takes.
fn control_without(pruned: &PrunedGraph, stays: &[bool], most: usize) -> Option<Vec<Vec<usize>>> {
    let mut control: Vec<Vec<usize>> = Vec::with_capacity(pruned.items.len());
    let mut count = 0;
    for (item, &stays_too) in pruned.items.iter().zip(stays) {
        // What waits for an item that is left out waits for what that waited for, through values too.
        let values = item.inputs.iter().map(|&(from, _)| from).filter(|_| !stays_too);
        let mut waits = Vec::new();
        for from in item.control.iter().copied().chain(values) {
            match stays[from] {
                true => waits.push(from),
                false => waits.extend_from_slice(&control[from]),
            }
        }
        waits.sort_unstable();
        waits.dedup();
        count += waits.len();
        if count > most {
            return None;
        }
        control.push(waits);
    }
    Some(control)
}

/// Whether the item only computes its outputs, from values.
fn only_computes(pruned: &PrunedGraph, item: usize) -> bool {
    let ItemOp::Node(id) = pruned.items[item].op else { return false };
    let node = pruned.graph.node(id);
    // An unfed Placeholder is an error, and a NoOp saves edges between many items that wait for many.
    let is_other = matches!(node.op.role, Role::Placeholder | Role::Nothing);
    !is_other
        && !pruned.targets.contains(&id)
        && !node.op.has_effect()
        && !node.op.role.is_control_flow()
        && !takes_reference(pruned, item)
        && !follows_control_flow(pruned, item)
}

/// Whether an input is a reference to a variable, whose value depends on when it is read.
fn takes_reference(pruned: &PrunedGraph, item: usize) -> bool {
    pruned.items[item].inputs.iter().any(|&(from, port)| pruned.is_ref(from, port))
}

/// Whether it takes or waits for an output of control flow: the port and the iteration that this comes from decide whether the
/// item runs at all, and a control input in its place would not.
fn follows_control_flow(pruned: &PrunedGraph, item: usize) -> bool {
    pruned.items[item].before().any(|from| pruned.role(from).is_control_flow())
}
