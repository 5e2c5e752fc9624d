//! The gradients of recurrent cells.

use super::Rule;
use crate::Output;
use crate::gradient::call::{Call, Grads, some};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("block_lstm", |c| block_lstm(c, "BlockLSTMGrad")),
    // TensorFlow uses BlockLSTMGrad for this, too, which has the gates in another order.
    ("block_lstm_v2", |c| block_lstm(c, "BlockLSTMGradV2")),
];

/// Only the gradients of the cell states and the outputs count, as in TensorFlow.
fn block_lstm(c: &mut Call, gradient: &str) -> Grads {
    let (by_cells, by_outputs) = (c.d(1)?, c.d(6)?);
    let mut inputs: Vec<Output> = c.node.inputs.to_vec();
    inputs.extend((0..7).map(|port| c.y(port)));
    inputs.extend([by_cells, by_outputs]);
    let node = c.with_attrs(gradient, &inputs, &["use_peephole"])?;
    let part = |i: u32| Some(node.port(i));
    some([None, Some(node), part(1), part(2), part(3), part(4), part(5), part(6), part(7)])
}
