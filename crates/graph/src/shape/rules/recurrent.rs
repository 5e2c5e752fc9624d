//! Shapes of recurrent cells.

use super::Entry;
use crate::shape::call::Call;
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("recurrent_cell", cell, Extent::Shapes),
    ("lstm_cell_gradient", lstm_cell_gradient, Extent::Shapes),
    ("gru_cell_gradient", gru_cell_gradient, Extent::Shapes),
    ("lstm", lstm, Extent::Unknown),
    ("lstm_gradient", lstm_gradient, Extent::Unknown),
];

/// All outputs `[batch, cells]`, from an input and the previous output.
fn cell(call: &Call) -> Option<Vec<Fact>> {
    let whole = of_batch(call)?;
    Some(call.node.outputs.iter().map(|_| whole.clone().into()).collect())
}

fn of_batch(call: &Call) -> Option<Dims> {
    Some(vec![call.of_rank(0, 2)?[0], call.of_rank(1, 2)?[1]])
}

/// The gradients of the cell states, of the gates, and of the peephole weights.
fn lstm_cell_gradient(call: &Call) -> Option<Vec<Fact>> {
    let whole = of_batch(call)?;
    let [batch, cells] = whole[..] else { return None };
    let gates = call.map(cells, |cells| cells.checked_mul(4));
    let weights: Fact = vec![cells].into();
    Some(vec![whole.into(), vec![batch, gates].into(), weights.clone(), weights.clone(), weights])
}

/// The gradients of the input, of the previous output, of the candidate and of the gates.
fn gru_cell_gradient(call: &Call) -> Option<Vec<Fact>> {
    let (x, whole, gates) = (call.of_rank(0, 2)?, of_batch(call)?, call.of_rank(2, 2)?[1]);
    let both = vec![whole[0], gates];
    Some(vec![x.into(), whole.clone().into(), whole.into(), both.into()])
}

/// All outputs `[steps, batch, cells]`: the number of cells is a quarter of that of the biases.
fn lstm(call: &Call) -> Option<Vec<Fact>> {
    let (x, biases): (Dims, Size) = (call.of_rank(1, 3)?, call.of_rank(call.len() - 1, 1)?[0]);
    let cells = match biases.known() {
        Some(biases) if biases % 4 != 0 => return None,
        _ => call.map(biases, |biases| Some(biases / 4)),
    };
    let whole = vec![x[0], x[1], cells];
    Some(call.node.outputs.iter().map(|_| whole.clone().into()).collect())
}

/// The gradients have the shapes of the tensors they are the gradients of.
fn lstm_gradient(call: &Call) -> Option<Vec<Fact>> {
    let ranks = [3, 2, 2, 2, 1, 1, 1, 1];
    let each = ranks.into_iter().enumerate().map(|(i, rank)| call.of_rank(i + 1, rank).map(Fact::from));
    each.collect()
}
