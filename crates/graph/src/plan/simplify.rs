//! The removal of items from a pruned graph that need not be computed.
//!
//! Consumers of a node that provably outputs its input unchanged (a sum over no axes, a reshape to the shape that a tensor has:
//! gradients are full of these) take that input instead. A node that only computes, and whose value nothing uses, is removed:
//! the items that waited for it wait for its inputs and control inputs. TensorFlow's own optimiser does both.
//!
//! The gradients of an op wait for each other in TensorFlow's graphs: each is an Identity that waits for a NoOp, which waits
//! for all of them. Nodes that only compute need not be waited for: such an Identity keeps only the waits for something else
//! (an effect, the read of a variable), or its consumers take these over and bypass it.

use super::Mode;
use super::prune::{Edge, Item, ItemOp, PrunedGraph};
use super::waits::{Question, Waits};
use crate::Shapes;
use crate::op::{Role, Unchanged};
use crate::shape::Declarations;

/// Removes items that need not run. Every remaining item computes the same as before.
pub(super) fn simplify(pruned: &mut PrunedGraph, mode: Mode) {
    let references = references(pruned);
    let waits = Waits::of(pruned, mode, &references);
    wait_less(pruned, &waits);
    hand_on_waits(pruned, &waits, &references);
    pass_by(pruned, &waits, &references);
    leave_out(pruned);
}

/// Removes the control inputs of an Identity that only compute, or that are waited for through its value anyway.
fn wait_less(pruned: &mut PrunedGraph, waits: &Waits) {
    let gates =
        (0..pruned.items.len()).filter(|&item| hands_on(pruned, item) && !pruned.items[item].control.is_empty());
    let gates: Vec<usize> = gates.collect();
    let question = |&item: &usize| {
        let Item { inputs, control, .. } = &pruned.items[item];
        Question { values: inputs.iter().map(value).collect(), others: each(pruned, control) }
    };
    let questions: Vec<Question> = gates.iter().map(question).collect();
    let answers = waits.included(pruned, &questions);
    for ((item, question), answers) in gates.into_iter().zip(questions).zip(answers) {
        pruned.items[item].control = remaining(question, answers).collect();
    }
}

/// Most control inputs that a consumer takes over from an Identity, and most control inputs of a NoOp that are waited for in
/// its stead.
const FEW: usize = 4;

/// Lets items that only compute bypass an Identity: they take its input, and its waits except for those that the values
/// include.
fn hand_on_waits(pruned: &mut PrunedGraph, waits: &Waits, references: &[bool]) {
    let is_gate = |&(item, _): &(usize, u32)| {
        let control = &pruned.items[item].control;
        hands_on(pruned, item)
            && (1..=FEW).contains(&control.len())
            && requests_nothing_else(pruned, item)
            && is_value_of_its_branch(pruned, references, item)
    };
    let mut takers = Vec::new();
    let mut questions = Vec::new();
    for item in 0..pruned.items.len() {
        let Item { inputs, .. } = &pruned.items[item];
        let is_value = pruned.node(item).is_some_and(|node| matches!(node.op.role, Role::Compute | Role::Forward));
        if !is_value || waits.has_own(item) || !inputs.iter().any(is_gate) {
            continue;
        }
        let (mut values, mut others) = (Vec::with_capacity(inputs.len()), Vec::new());
        for input in inputs {
            let Item { inputs: behind, control, .. } = &pruned.items[input.0];
            match is_gate(input) {
                true => {
                    values.push(behind[0]);
                    others.extend_from_slice(control);
                }
                false => values.push(*input),
            }
        }
        takers.push((item, values.clone()));
        questions.push(Question { values: values.iter().map(value).collect(), others: each(pruned, &others) });
    }
    let answers = waits.included(pruned, &questions);
    for (((item, values), question), answers) in takers.into_iter().zip(questions).zip(answers) {
        let Item { inputs, control, .. } = &mut pruned.items[item];
        *inputs = values;
        control.extend(remaining(question, answers));
        control.sort_unstable();
        control.dedup();
    }
}

fn value(&(from, port): &(usize, u32)) -> Edge {
    (from, Some(port))
}

/// These control inputs, with a NoOp that waits for few items replaced by those.
fn each(pruned: &PrunedGraph, control: &[usize]) -> Vec<Edge> {
    let mut all = Vec::with_capacity(control.len());
    for &before in control {
        match &pruned.items[before] {
            Item { control: behind, .. } if pruned.role(before) == Role::Nothing && behind.len() <= FEW => {
                all.extend_from_slice(behind);
            }
            _ => all.push(before),
        }
    }
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|before| (before, None)).collect()
}

/// The control inputs that the values do not include.
fn remaining(question: Question, included: Vec<bool>) -> impl Iterator<Item = usize> {
    question.others.into_iter().zip(included).filter(|(_, is_included)| !is_included).map(|((before, _), _)| before)
}

/// Whether the item outputs its one input unchanged.
fn hands_on(pruned: &PrunedGraph, item: usize) -> bool {
    let is_one = |outputs: usize| pruned.items[item].inputs.len() == 1 && outputs == 1;
    pruned.node(item).is_some_and(|node| node.op.role == Role::Forward && is_one(node.outputs.len()))
}

/// Whether the item requests the same device as its input does: with another one, it moves a value.
fn requests_nothing_else(pruned: &PrunedGraph, item: usize) -> bool {
    let requests = |item: usize| pruned.node(item).map_or("", |node| node.device.as_str());
    requests(item) == requests(pruned.items[item].inputs[0].0)
}

/// Replaces inputs that are outputs of an item that outputs its own input unchanged: consumers take that input instead.
fn pass_by(pruned: &mut PrunedGraph, waits: &Waits, references: &[bool]) {
    let shapes = pruned.shapes(Declarations::Doubted);
    let unchanged = (0..pruned.items.len()).filter(|&item| is_unchanged(pruned, &shapes, references, item));
    let unchanged: Vec<usize> = unchanged.collect();
    // A shape or axes are no longer an input. They may depend on an effect, or on a branch that is not taken, even through a
    // control input of a constant.
    let question = |&item: &usize| {
        let (values, others) = pruned.items[item].inputs.split_at(1);
        Question { values: values.iter().map(value).collect(), others: others.iter().map(value).collect() }
    };
    let questions: Vec<Question> = unchanged.iter().map(question).collect();
    let answers = waits.included(pruned, &questions);
    let mut is_passed_by = vec![false; pruned.items.len()];
    unchanged.into_iter().zip(answers).for_each(|(item, answers)| is_passed_by[item] = !answers.contains(&false));
    let mut instead: Vec<Option<(usize, u32)>> = vec![None; pruned.items.len()];
    for item in 0..pruned.items.len() {
        let inputs = &mut pruned.items[item].inputs;
        inputs.iter_mut().for_each(|input| *input = instead[input.0].filter(|_| input.1 == 0).unwrap_or(*input));
        instead[item] = inputs.first().copied().filter(|_| is_passed_by[item]);
    }
}

/// By item: whether an output may be a reference to a variable and not a value. An item that forwards a reference may output
/// one: its consumers see the variable's value of the time when they run, of any shape.
fn references(pruned: &PrunedGraph) -> Vec<bool> {
    let mut known = vec![false; pruned.items.len()];
    // The value of a back edge is known in the next round. Where references pass through many loops, every back edge may be one
    // in the last round.
    for around in (0..MOST_ROUNDS).map(|round| round + 1 == MOST_ROUNDS) {
        let before = std::mem::replace(&mut known, Vec::with_capacity(pruned.items.len()));
        for item in 0..pruned.items.len() {
            let comes = |&(from, _): &(usize, u32)| known.get(from).copied().unwrap_or(around || before[from]);
            let takes = pruned.items[item].inputs.iter().any(comes);
            let answers = pruned.outputs(item).iter().any(|output| output.is_ref || output.dtype.is_handle());
            known.push(answers || (pruned.role(item).forwards() && takes));
        }
        if known == before {
            break;
        }
    }
    known
}

/// The number of rounds over the back edges of loops.
const MOST_ROUNDS: usize = 4;

/// Whether the item's one output is its first input unchanged, in the same branch, and available no later than the inputs are.
fn is_unchanged(pruned: &PrunedGraph, shapes: &Shapes, references: &[bool], item: usize) -> bool {
    let Item { inputs, control, .. } = &pruned.items[item];
    let tensor = |(item, port): (usize, u32)| pruned.tensor(item, port);
    let is_same = match pruned.node(item).and_then(|node| node.op.unchanged) {
        Some(Unchanged::SameShape) => shapes.are_same(tensor(inputs[0]), tensor((item, 0))),
        Some(Unchanged::NoAxes) => shapes.is_empty_list(tensor(inputs[1])),
        None => hands_on(pruned, item) && requests_nothing_else(pruned, item),
    };
    is_same && control.is_empty() && is_value_of_its_branch(pruned, references, item)
}

/// Whether the item's first input is a value that arrives in the branch and the iteration of the item.
fn is_value_of_its_branch(pruned: &PrunedGraph, references: &[bool], item: usize) -> bool {
    !references[pruned.items[item].inputs[0].0] && !follows_control_flow(pruned, item)
}

/// Removes the items that only compute and whose value nothing uses.
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
    // The new indices of the remaining items; those of the removed items are not used.
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

/// By item: whether it has an effect, is a target or fetched, or its value is used by a remaining item. A NoOp remains, too, if
/// anything but such a NoOp waits for it: it saves edges between many items that wait for many.
fn staying(pruned: &PrunedGraph) -> Vec<bool> {
    let is_group = |item: usize| pruned.role(item) == Role::Nothing && !is_target(pruned, item);
    let mut stays: Vec<bool> =
        (0..pruned.items.len()).map(|item| !only_computes(pruned, item) && !is_group(item)).collect();
    // Consumers come after their inputs, except around loops, which remain unchanged.
    for item in (0..pruned.items.len()).rev() {
        let Item { inputs, control, .. } = &pruned.items[item];
        if stays[item] {
            inputs.iter().for_each(|&(from, _)| stays[from] = true);
        }
        if stays[item] || !is_group(item) {
            control.iter().filter(|&&before| is_group(before)).for_each(|&before| stays[before] = true);
        }
    }
    stays
}

fn is_target(pruned: &PrunedGraph, item: usize) -> bool {
    matches!(pruned.items[item].op, ItemOp::Node(id) if pruned.targets.contains(&id))
}

/// The control inputs of each remaining item after the removal; `None` if they would be more than `most` in all: then it costs
/// less to compute the unused values.
fn control_without(pruned: &PrunedGraph, stays: &[bool], most: usize) -> Option<Vec<Vec<usize>>> {
    let mut control: Vec<Vec<usize>> = Vec::with_capacity(pruned.items.len());
    let mut count = 0;
    for (item, &stays_too) in pruned.items.iter().zip(stays) {
        // An item that waited for a removed item waits for the inputs and control inputs of that item.
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
    // An unfed Placeholder is an error.
    let is_other = matches!(node.op.role, Role::Placeholder | Role::Nothing);
    !is_other
        && !is_target(pruned, item)
        && !node.op.has_effect()
        && !node.op.role.is_control_flow()
        && !takes_reference(pruned, item)
        && !follows_control_flow(pruned, item)
}

/// Whether an input is a reference to a variable, whose value depends on the time of the read.
fn takes_reference(pruned: &PrunedGraph, item: usize) -> bool {
    pruned.items[item].inputs.iter().any(|&(from, port)| pruned.is_ref(from, port))
}

/// Whether it consumes or waits for an output of control flow: the port and the iteration of that output decide whether the
/// item runs at all, and a control input in its place would not.
fn follows_control_flow(pruned: &PrunedGraph, item: usize) -> bool {
    pruned.items[item].before().any(|from| pruned.role(from).is_control_flow())
}
