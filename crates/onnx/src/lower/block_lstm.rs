//! A direction of an LSTM layer as one op over all steps, if its activations are the usual ones. The weights of input and state
//! are one matrix there, `[inputs + hidden, 4 * hidden]`, and the gates are input, forget, cell, output; ONNX's are input,
//! output, forget, cell.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::recurrent::{Cell, Kind, Ran};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;

/// The places of the op's gates among ONNX's.
const GATES: [usize; 4] = [0, 2, 3, 1];

/// The weights of a direction: of the input `[4 * hidden, inputs]`, of the state `[4 * hidden, hidden]`, and the bias.
pub(super) struct Weights {
    pub input: Output,
    pub state: Output,
    pub bias: Option<Output>,
}

impl Cell {
    /// Whether the op computes as the cell does.
    pub(super) fn is_block(&self, dtype: DType) -> bool {
        let usual = ["sigmoid", "tanh", "tanh"];
        self.kind == Kind::Lstm
            && dtype == DType::F32
            && self.clip.is_none()
            && !self.coupled
            && self.activations.iter().zip(usual).all(|(own, usual)| own.name.eq_ignore_ascii_case(usual))
    }
}

/// Runs the cell over the steps of its input, `[length, batch, inputs]`.
pub(super) fn over_time(cx: &mut Cx, cell: &Cell, weights: &Weights, x: Output, [h, c]: [Output; 2]) -> Result<Ran> {
    let count = cx.size(x, 0)?;
    let length = cx.scalar(count)?;
    let matrix = matrix(cx, weights)?;
    let bias = match weights.bias {
        Some(bias) => arranged(cx, bias)?,
        None => cx.em.constant(Tensor::zeros(DType::F32, [4 * cell.hidden as usize])?)?,
    };
    let peepholes = match cell.peepholes {
        Some([input, output, forget]) => [input, forget, output],
        None => [cx.em.constant(Tensor::zeros(DType::F32, [0])?)?; 3],
    };
    let [of_input, of_forget, of_output] = peepholes;
    let inputs = [length, x, c, h, matrix, of_input, of_forget, of_output, bias].map(Into::into).to_vec();
    let attrs = [("cell_clip", 0f32.into()), ("use_peephole", cell.peepholes.is_some().into())];
    let outputs = cx.em.many("BlockLSTMV2", inputs, &attrs, 7)?;
    let (all_c, all) = (outputs[1], outputs[6]);
    // Of no step at all, the last state is the first.
    let last = |cx: &mut Cx, first: Output, all: Output| match count {
        Size::Known(steps @ 1..) => op!(cx.em, "GatherV2", all, steps - 1, 0i64),
        _ => {
            let first = cx.unsqueeze(first, &[0])?;
            let all = cx.concat(&[first, all], 0)?;
            op!(cx.em, "GatherV2", all, length, 0i64)
        }
    };
    Ok(Ran { all, h: last(cx, h, all)?, c: Some(last(cx, c, all_c)?) })
}

/// The weights as one matrix: constants are arranged while the model is read.
fn matrix(cx: &mut Cx, weights: &Weights) -> Result<Output> {
    if let (Some(input), Some(state)) = (cx.em.known(weights.input), cx.em.known(weights.state))
        && let (&[rows, inputs], &[_, hidden]) = (input.dims(), state.dims())
        && rows == 4 * hidden
    {
        meshtf_tensor::memory::admit((inputs + hidden) * rows * size_of::<f32>())?;
        let mut all = Vec::with_capacity((inputs + hidden) * rows);
        for (of, columns) in [(input.slice::<f32>()?, inputs), (state.slice::<f32>()?, hidden)] {
            for column in 0..columns {
                let gates = GATES.iter().flat_map(|gate| gate * hidden..(gate + 1) * hidden);
                all.extend(gates.map(|row| of[row * columns + column]));
            }
        }
        let name = format!("{}/arranged", cx.em.graph().node(weights.input.node).name);
        return cx.em.constant_named(&name, Tensor::from_vec([inputs + hidden, rows], all));
    }
    let both = cx.concat(&[weights.input, weights.state], 1)?;
    let both = arranged(cx, both)?;
    cx.transpose(both, &[1, 0])
}

/// The gates, along the first axis, in the op's order.
fn arranged(cx: &mut Cx, gates: Output) -> Result<Output> {
    if let Some(known) = cx.em.known(gates)
        && let &[size] = known.dims()
        && size % 4 == 0
    {
        let of = known.slice::<f32>()?;
        let all = GATES.iter().flat_map(|gate| of[gate * size / 4..(gate + 1) * size / 4].iter().copied()).collect();
        return cx.em.constant(Tensor::from_vec([size], all));
    }
    let parts = cx.split(gates, 0, 4)?;
    let &[input, output, forget, cell] = parts.as_slice() else {
        return Err(Failure::invalid("an LSTM has four gates"));
    };
    cx.concat(&[input, forget, cell, output], 0)
}
