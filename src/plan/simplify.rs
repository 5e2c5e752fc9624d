//! What a step need not compute, though its graph says so.
//!
//! A node that provably answers its input as it is (a sum over no axes, a reshape to the shape it has: what gradients are
//! full of) is passed by. A node that only computes, and whose value nobody takes, is left out: whoever waited for it
//! waits for what it would have waited for. TensorFlow's own optimiser does both.

use std::collections::{HashSet, VecDeque};

use super::prune::{Item, ItemOp, PrunedGraph};
use super::shape::Shapes;
use crate::graph::Node;
use crate::graph::op::Role;

/// Leaves out what need not run. Every item that stays computes what it did.
pub(super) fn simplify(step: &mut PrunedGraph) {
    pass_by(step);
    leave_out(step);
}

/// Has those who take the answer of an item that only hands on its input take that input.
fn pass_by(step: &mut PrunedGraph) {
    let references = references(step);
    let shapes = Shapes::infer(step, &references);
    let mut instead: Vec<Option<(usize, u32)>> = vec![None; step.items.len()];
    for item in 0..step.items.len() {
        let hands_on = hands_on(step, &shapes, &references, item);
        let inputs = &mut step.items[item].inputs;
        inputs.iter_mut().for_each(|input| *input = instead[input.0].filter(|_| input.1 == 0).unwrap_or(*input));
        instead[item] = inputs.first().copied().filter(|_| hands_on);
    }
}

/// By item: whether an answer may be a variable and not a value. What only hands on a reference hands on that: who takes it
/// sees what the variable holds then, whatever its shape is then.
fn references(step: &PrunedGraph) -> Vec<bool> {
    let mut references: Vec<bool> = Vec::with_capacity(step.items.len());
    for item in 0..step.items.len() {
        let only_hands_on = step.role(item).hands_on();
        // What comes round a loop is not known yet.
        let takes = step.items[item].inputs.iter().any(|&(from, _)| references.get(from).is_none_or(|&it| it));
        let answers = step.outputs(item).iter().any(|output| output.is_ref || output.dtype.is_handle());
        references.push(answers || (only_hands_on && takes));
    }
    references
}

/// Whether the item's one output is its first input as it is, and comes no later, nor from another branch.
fn hands_on(step: &PrunedGraph, shapes: &Shapes, references: &[bool], item: usize) -> bool {
    let Item { inputs, control, .. } = &step.items[item];
    let is_same = match step.op(item) {
        "Reshape" | "BroadcastTo" => shapes.are_same(inputs[0], (item, 0)),
        "Sum" | "Mean" | "Prod" | "Max" | "Min" | "All" | "Any" => shapes.is_empty_list(inputs[1].0, inputs[1].1),
        _ => false,
    };
    is_same
        && control.is_empty()
        && !references[inputs[0].0]
        && !follows_control_flow(step, item)
        && adds_no_wait(step, inputs[1].0, inputs[0].0)
}

/// Most items that are looked at to find out what a value waits for.
const MOST_LOOKED_AT: usize = 256;

/// Whether whoever waits for `value` has waited for all that `other` waits for: what is asked, where `other` (a shape, axes)
/// is no longer taken. An effect may come before it, or a branch not taken, by a control input of a constant even.
fn adds_no_wait(step: &PrunedGraph, other: usize, value: usize) -> bool {
    let before = |item: usize| step.items[item].before();
    // What comes before the value, with nothing of control flow between.
    let mut waited_for = HashSet::from([value]);
    let mut open = VecDeque::from([value]);
    while let Some(item) = open.pop_front().filter(|_| waited_for.len() < MOST_LOOKED_AT) {
        if !step.role(item).is_control_flow() {
            open.extend(before(item).take(MOST_LOOKED_AT).filter(|&from| waited_for.insert(from)));
        }
    }
    let mut seen = HashSet::from([other]);
    let mut open = vec![other];
    while let Some(item) = open.pop() {
        if waited_for.contains(&item) && !step.role(item).is_control_flow() {
            continue;
        }
        let Item { op, inputs, control } = &step.items[item];
        let is_feed = matches!(op, ItemOp::Feed(..));
        let is_far = inputs.len() + control.len() + seen.len() > MOST_LOOKED_AT;
        if is_far || !(is_feed || only_computes(step, item)) {
            return false;
        }
        open.extend(before(item).filter(|&from| seen.insert(from)));
    }
    true
}

/// Leaves out the items that only compute and whose value nobody takes.
fn leave_out(step: &mut PrunedGraph) {
    let stays = staying(step);
    if stays.iter().all(|&stays| stays) {
        return;
    }
    let edges: usize = step.items.iter().map(|item| item.before().count()).sum();
    let Some(control) = control_without(step, &stays, 2 * edges + 1024) else { return };
    let mut count = 0;
    let place = |&stays: &bool| {
        count += usize::from(stays);
        count.saturating_sub(1)
    };
    // Of those that stay; nobody asks for another's.
    let places: Vec<usize> = stays.iter().map(place).collect();
    let items = std::mem::take(&mut step.items).into_iter().zip(control).zip(&stays).filter(|(_, stays)| **stays);
    step.items = items
        .map(|((item, control), _)| Item {
            op: item.op,
            inputs: item.inputs.into_iter().map(|(from, port)| (places[from], port)).collect(),
            control: control.into_iter().map(|before| places[before]).collect(),
        })
        .collect();
}

/// By item: whether it has an effect, was asked for, or is taken by one that stays.
fn staying(step: &PrunedGraph) -> Vec<bool> {
    let mut stays: Vec<bool> = (0..step.items.len()).map(|item| !only_computes(step, item)).collect();
    // Those who take come after what they take, but round a loop, where all stay.
    for item in (0..step.items.len()).rev() {
        if stays[item] {
            step.items[item].inputs.iter().for_each(|&(from, _)| stays[from] = true);
        }
    }
    stays
}

/// The control inputs of each item that stays, once the others are left out; `None` where they would be more than `most`
/// in all, and it costs less to compute what nobody takes.
fn control_without(step: &PrunedGraph, stays: &[bool], most: usize) -> Option<Vec<Vec<usize>>> {
    let mut control: Vec<Vec<usize>> = Vec::with_capacity(step.items.len());
    let mut count = 0;
    for (item, &stays_too) in step.items.iter().zip(stays) {
        // Whoever is left out leaves what it waited for, over values too, in its place.
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

/// Whether all that the item does is to compute its outputs, of values alone.
fn only_computes(step: &PrunedGraph, item: usize) -> bool {
    let ItemOp::Node(id) = step.items[item].op else { return false };
    let node = step.graph.node(id);
    // An unfed Placeholder is an error, and a NoOp keeps together what waits for much and what much waits for.
    let is_other = matches!(node.op.role, Role::Placeholder | Role::Nothing);
    !is_other
        && !step.targets.contains(&id)
        && !has_effect(node)
        && !node.op.role.is_control_flow()
        && !takes_reference(step, item)
        && !follows_control_flow(step, item)
}

fn has_effect(node: &Node) -> bool {
    node.op.stateful || node.op.inputs.iter().chain(&node.op.outputs).any(|arg| arg.is_ref)
}

/// Whether an input is a variable, which has another value at another time.
fn takes_reference(step: &PrunedGraph, item: usize) -> bool {
    step.items[item].inputs.iter().any(|&(from, port)| step.is_ref(from, port))
}

/// Whether it takes or waits for an answer of control flow: which port that comes from, or which iteration, says whether the
/// item runs at all, and a control input in its place would not.
fn follows_control_flow(step: &PrunedGraph, item: usize) -> bool {
    step.items[item].before().any(|from| step.role(from).is_control_flow())
}
