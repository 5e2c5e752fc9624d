//! Gradients of sums of products in Einstein's notation.

use super::{Rule, Stop};
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads, all};

pub(super) const RULES: &[(&str, Rule)] = &[("einsum", einsum)];

/// The label of the axes of an ellipsis, in an input of which they are the first.
const DOTS: &str = "...";

fn einsum(c: &mut Call) -> Grads {
    let equation = c.node.attrs.str("equation").unwrap_or("").replace(' ', "");
    let unclear = || Stop::Unsupported(format!("needs an equation with ->, not {equation:?}"));
    let (inputs, output) = equation.split_once("->").ok_or_else(unclear)?;
    let inputs: Vec<&str> = inputs.split(',').collect();
    let repeats = |labels: &&str| {
        let labels = labels.trim_start_matches(DOTS);
        labels.chars().any(|label| labels.matches(label).count() > 1)
    };
    if let Some(labels) = inputs.iter().find(|labels| repeats(labels)) {
        return Err(Stop::Unsupported(format!("is not supported if an input repeats a label, as {labels:?}")));
    }
    if let Some(labels) = inputs.iter().chain([&output]).find(|labels| labels.find(DOTS).is_some_and(|at| at > 0)) {
        return Err(Stop::Unsupported(format!("is supported only if \"...\" comes first in {labels:?}")));
    }
    let dz = c.dy()?;
    match inputs[..] {
        [x] => {
            let by_x = by_input(c, 0, x, &[(output, dz)])?;
            Ok(vec![Some(Gradient::Dense(by_x))])
        }
        [x, y] => {
            let (of_x, of_y) = (c.x(0), c.x(1));
            let (of_x, of_y) = (c.conj(of_x)?, c.conj(of_y)?);
            let by_x = by_input(c, 0, x, &[(output, dz), (y, of_y)])?;
            let by_y = by_input(c, 1, y, &[(output, dz), (x, of_x)])?;
            all([by_x, by_y])
        }
        _ => Err(Stop::Unsupported(format!("is supported for one or two inputs, not {}", inputs.len()))),
    }
}

/// The gradient of an input: the product of the other inputs and the output's gradient over the labels that they have and it
/// has not, repeated along the axes that it alone has.
fn by_input(c: &mut Call, i: usize, labels: &str, others: &[(&str, Output)]) -> Added {
    let x = c.x(i);
    let has_dots = others.iter().any(|(other, _)| other.starts_with(DOTS));
    let letters = labels.trim_start_matches(DOTS);
    let is_known = |label: char| others.iter().any(|(other, _)| other.contains(label));
    let known: String = letters.chars().filter(|&label| is_known(label)).collect();
    let dots = if has_dots { DOTS } else { "" };
    let names: Vec<&str> = others.iter().map(|&(name, _)| name).collect();
    let equation = format!("{}->{dots}{known}", names.join(","));
    let product = c.op("Einsum").inputs(others.iter().map(|&(_, other)| other)).attr("equation", equation).build()?;
    let shape = c.shape(x)?;
    if known.len() == letters.len() && !has_dots {
        return Ok(product);
    }
    let mut expanded = product;
    // The axes of this input alone are inserted at their positions, one by one from the left, with size 1.
    let count = letters.len() as i32;
    for (at, label) in letters.chars().enumerate() {
        if !is_known(label) {
            // Axes to the right that have not been inserted yet do not count.
            let missing = letters[at + 1..].chars().filter(|&label| !is_known(label)).count() as i32;
            let axis = at as i32 - count + missing;
            expanded = c.op("ExpandDims").input(expanded).input(axis).build()?;
        }
    }
    if has_dots {
        let of_expanded = c.shape_of_added(expanded)?;
        let axes = c.bin("BroadcastGradientArgs", shape, of_expanded)?;
        let sum = c.sum(expanded, axes, true)?;
        // The remainder has the sizes of the input, or 1 along the axes of this input alone.
        let rank = c.un("Size", shape)?;
        let tail = c.shape_of_added(sum)?;
        let begin = c.neg(rank)?;
        let begin = c.reshape(begin, [1])?;
        let tail = c.op("StridedSlice").input(tail).input(begin).input([0]).input([1]).attr("end_mask", 1).build()?;
        expanded = c.reshape(sum, tail)?;
    }
    c.bin("BroadcastTo", expanded, shape)
}
