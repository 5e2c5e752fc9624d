//! Recurrent layers: RNN, GRU and LSTM, forwards, backwards or both.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::activation::hard;
use super::block_lstm::{self, Weights};
use super::control::{empty_list, stacked};
use super::conv::arranged;
use super::quant::{centred_floats, product_by_own_range};
use super::{Operator, microsoft, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::flow;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    microsoft("DynamicQuantizeLSTM", quantized_lstm),
    onnx("GRU", 1, |cx, n| layer(cx, n, Kind::Gru)),
    onnx("LSTM", 1, |cx, n| layer(cx, n, Kind::Lstm)),
    onnx("RNN", 1, |cx, n| layer(cx, n, Kind::Rnn)),
];

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Rnn,
    Gru,
    Lstm,
}

impl Kind {
    fn gates(self) -> i64 {
        match self {
            Kind::Rnn => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
    }

    /// The activations of one direction unless others are stated.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Kind::Rnn => &["Tanh"],
            Kind::Gru => &["Sigmoid", "Tanh"],
            Kind::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// An activation, with its parameters.
#[derive(Clone)]
pub(super) struct Activation {
    pub name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl Activation {
    fn apply(&self, cx: &mut Cx, x: Output) -> Result<Output> {
        let (alpha, beta) = (|default: f64| self.alpha.unwrap_or(default), |default: f64| self.beta.unwrap_or(default));
        match self.name.to_ascii_lowercase().as_str() {
            "sigmoid" => op!(cx.em, "Sigmoid", x),
            "tanh" => op!(cx.em, "Tanh", x),
            "relu" => op!(cx.em, "Relu", x),
            "softsign" => op!(cx.em, "Softsign", x),
            "softplus" => op!(cx.em, "Softplus", x),
            "elu" if alpha(1.0) == 1.0 => op!(cx.em, "Elu", x),
            "leakyrelu" => op!(cx.em, "LeakyRelu", x; "alpha" => alpha(0.01) as f32),
            "hardsigmoid" => hard(cx, x, alpha(0.2), beta(0.5)),
            "affine" => {
                let y = op!(cx.em, "Mul", x, alpha(1.0))?;
                op!(cx.em, "AddV2", y, beta(0.0))
            }
            "scaledtanh" => {
                let y = op!(cx.em, "Mul", x, beta(1.0))?;
                let y = op!(cx.em, "Tanh", y)?;
                op!(cx.em, "Mul", y, alpha(1.0))
            }
            _ => Err(unsupported(format!("unsupported: the activation {}", self.name))),
        }
    }
}

/// The parts of a direction.
pub(super) struct Cell {
    pub kind: Kind,
    /// `[hidden, gates * hidden]`.
    recurrent: Output,
    /// The scale of the recurrent weights if these are quantised, and the state is by its own range in each step.
    scale: Option<Output>,
    /// The bias of the hidden gate of a GRU, which is not added to the input's part.
    inner_bias: Option<Output>,
    pub peepholes: Option<[Output; 3]>,
    pub activations: Vec<Activation>,
    pub clip: Option<f64>,
    /// Of a GRU: the product comes before the reset.
    linear_before_reset: bool,
    /// Of an LSTM: input and forget gates are coupled.
    pub coupled: bool,
    pub hidden: i64,
}

impl Cell {
    fn clipped(&self, cx: &mut Cx, x: Output) -> Result<Output> {
        let Some(clip) = self.clip else { return Ok(x) };
        let x = op!(cx.em, "Minimum", x, clip)?;
        op!(cx.em, "Maximum", x, -clip)
    }

    fn active(&self, cx: &mut Cx, i: usize, x: Output) -> Result<Output> {
        let x = self.clipped(cx, x)?;
        self.activations[i].apply(cx, x)
    }

    fn gate(&self, cx: &mut Cx, x: Output, i: i64) -> Result<Output> {
        cx.slice(x, 1, Size::Known(i * self.hidden), Some(Size::Known((i + 1) * self.hidden)))
    }

    /// A step: from the input's part of the gates, the hidden state and the cell's state to the new states.
    fn step(&self, cx: &mut Cx, x: Output, h: Output, c: Option<Output>) -> Result<(Output, Option<Output>)> {
        let recurrent = cx.outer_tensor(self.recurrent)?;
        match self.kind {
            Kind::Rnn => {
                let own = op!(cx.em, "MatMul", h, recurrent)?;
                let sum = op!(cx.em, "AddV2", x, own)?;
                Ok((self.active(cx, 0, sum)?, None))
            }
            Kind::Gru => {
                // The gates are update, reset, hidden.
                let hidden = self.hidden;
                let part = |cx: &mut Cx, from: i64, to: i64| {
                    cx.slice(recurrent, 1, Size::Known(from * hidden), Some(Size::Known(to * hidden)))
                };
                let first = part(cx, 0, 2)?;
                let both = op!(cx.em, "MatMul", h, first)?;
                let own = cx.slice(x, 1, Size::Known(0), Some(Size::Known(2 * hidden)))?;
                let both = op!(cx.em, "AddV2", both, own)?;
                let both = self.active(cx, 0, both)?;
                let (update, reset) = (self.gate(cx, both, 0)?, self.gate(cx, both, 1)?);
                let last = part(cx, 2, 3)?;
                let bias = match self.inner_bias {
                    Some(bias) => Some(cx.outer_tensor(bias)?),
                    None => None,
                };
                let own = if self.linear_before_reset {
                    let mut own = op!(cx.em, "MatMul", h, last)?;
                    if let Some(bias) = bias {
                        own = op!(cx.em, "AddV2", own, bias)?;
                    }
                    op!(cx.em, "Mul", reset, own)?
                } else {
                    let kept = op!(cx.em, "Mul", reset, h)?;
                    let own = op!(cx.em, "MatMul", kept, last)?;
                    match bias {
                        Some(bias) => op!(cx.em, "AddV2", own, bias)?,
                        None => own,
                    }
                };
                let of_input = self.gate(cx, x, 2)?;
                let sum = op!(cx.em, "AddV2", of_input, own)?;
                let new = self.active(cx, 1, sum)?;
                let rest = op!(cx.em, "Sub", 1.0, update)?;
                let (new, old) = (op!(cx.em, "Mul", rest, new)?, op!(cx.em, "Mul", update, h)?);
                Ok((op!(cx.em, "AddV2", new, old)?, None))
            }
            Kind::Lstm => {
                // The gates are input, output, forget, cell.
                let c = c.ok_or_else(|| Failure::invalid("a cell has no state"))?;
                let own = match self.scale {
                    Some(scale) => {
                        let scale = cx.outer_tensor(scale)?;
                        product_by_own_range(cx, h, recurrent, scale)?
                    }
                    None => op!(cx.em, "MatMul", h, recurrent)?,
                };
                let sum = op!(cx.em, "AddV2", x, own)?;
                let mut gates = Vec::new();
                for i in 0..4 {
                    gates.push(self.gate(cx, sum, i)?);
                }
                let peep = |cx: &mut Cx, gate: Output, i: usize, c: Output| -> Result<Output> {
                    let Some(peepholes) = self.peepholes else { return Ok(gate) };
                    let weight = cx.outer_tensor(peepholes[i])?;
                    let more = op!(cx.em, "Mul", weight, c)?;
                    op!(cx.em, "AddV2", gate, more)
                };
                let input = peep(cx, gates[0], 0, c)?;
                let input = self.active(cx, 0, input)?;
                let forget = if self.coupled {
                    op!(cx.em, "Sub", 1.0, input)?
                } else {
                    let forget = peep(cx, gates[2], 2, c)?;
                    self.active(cx, 0, forget)?
                };
                let new = self.active(cx, 1, gates[3])?;
                let (kept, new) = (op!(cx.em, "Mul", forget, c)?, op!(cx.em, "Mul", input, new)?);
                let c = op!(cx.em, "AddV2", kept, new)?;
                let output = peep(cx, gates[1], 1, c)?;
                let output = self.active(cx, 0, output)?;
                let shown = self.activations[2].apply(cx, c)?;
                Ok((op!(cx.em, "Mul", output, shown)?, Some(c)))
            }
        }
    }
}

/// The results of a direction of a layer: the states of all steps, and the last ones.
pub(super) struct Ran {
    /// `[length, batch, hidden]`.
    pub all: Output,
    pub h: Output,
    pub c: Option<Output>,
}

fn layer(cx: &mut Cx, n: &Node, kind: Kind) -> Result<Vec<Value>> {
    layer_of(cx, n, kind, false)
}

/// An LSTM whose weights are quantised, `[directions, inputs, 4 * hidden]`, with their scales and zero points at the inputs from
/// 8 on: for a direction, or for each of its columns.
fn quantized_lstm(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    layer_of(cx, n, Kind::Lstm, true)
}

fn layer_of(cx: &mut Cx, n: &Node, kind: Kind, is_quantized: bool) -> Result<Vec<Value>> {
    let is_batch_first = n.flag("layout", false);
    let x = n.input(0)?;
    let x = cx.of_rank(x, 3)?;
    let x = if is_batch_first { cx.transpose(x, &[1, 0, 2])? } else { x };
    let (weights, recurrent) = (n.input(1)?, n.input(2)?);
    let directions: &[bool] = match n.str("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(Failure::invalid(format!("direction is {other:?}"))),
    };
    let axis_of_hidden = if is_quantized { 1 } else { 2 };
    let hidden = cx.em.size(recurrent, axis_of_hidden).map(|size| size as i64).or(n.maybe_int("hidden_size"));
    let hidden = hidden.ok_or_else(|| unsupported("unsupported: a hidden size that is not known"))?;
    let dtype = cx.em.dtype(x);
    let batch = cx.size(x, 1)?;
    let lengths = match n.maybe(4)? {
        Some(lengths) => Some(cx.cast(lengths, DType::I32)?),
        None => None,
    };
    let mut ran = Vec::new();
    for (i, &is_reverse) in directions.iter().enumerate() {
        let one = |cx: &mut Cx, x: Output| row(cx, x, i);
        let mut weights = one(cx, weights)?;
        let mut of_state = one(cx, recurrent)?;
        let mut scales = None;
        if is_quantized {
            let zero = |cx: &mut Cx, i: usize| n.maybe(i)?.map(|zero| one(cx, zero)).transpose();
            let (zero_of_input, zero_of_state) = (zero(cx, 9)?, zero(cx, 11)?);
            weights = centred_floats(cx, weights, zero_of_input)?;
            of_state = centred_floats(cx, of_state, zero_of_state)?;
            let (of_input, scale) = (n.input(8)?, n.input(10)?);
            scales = Some((one(cx, of_input)?, one(cx, scale)?));
        }
        let activations = activations(n, kind, i)?;
        let gates = kind.gates() * hidden;
        let mut bias = None;
        let mut inner_bias = None;
        if let Some(all) = n.maybe(3)? {
            let all = one(cx, all)?;
            let (input, state) = halves(cx, all, gates)?;
            if kind == Kind::Gru {
                // The last gate's bias of the state is within the reset.
                let first = cx.slice(state, 0, Size::Known(0), Some(Size::Known(2 * hidden)))?;
                inner_bias = Some(cx.slice(state, 0, Size::Known(2 * hidden), Some(Size::Known(gates)))?);
                let padded = cx.pad(first, &[(0, hidden)], None)?;
                bias = Some(op!(cx.em, "AddV2", input, padded)?);
            } else {
                bias = Some(sum(cx, input, state)?);
            }
        }
        let peepholes = match (kind, n.maybe(7)?) {
            (Kind::Lstm, Some(all)) => {
                let all = one(cx, all)?;
                let parts = cx.split(all, 0, 3)?;
                Some([parts[0], parts[1], parts[2]])
            }
            _ => None,
        };
        let state = |cx: &mut Cx, i: usize| -> Result<Output> {
            match n.maybe(i)? {
                Some(state) => {
                    let state = if is_batch_first { cx.transpose(state, &[1, 0, 2])? } else { state };
                    one(cx, state)
                }
                None => {
                    let shape = cx.packed(&[batch, Size::Known(hidden)])?;
                    cx.fill(shape, 0.0, dtype)
                }
            }
        };
        let h = state(cx, 5)?;
        let c = if kind == Kind::Lstm { Some(state(cx, 6)?) } else { None };
        let mut cell = Cell {
            kind,
            recurrent: of_state,
            scale: scales.map(|(_, scale)| scale),
            inner_bias,
            peepholes,
            activations,
            clip: n.attr("clip").and_then(|attr| attr.f).map(f64::from),
            linear_before_reset: n.flag("linear_before_reset", false),
            coupled: n.flag("input_forget", false),
            hidden,
        };
        let reversed = |cx: &mut Cx, x: Output| match lengths {
            Some(lengths) => op!(cx.em, "ReverseSequence", x, lengths; "seq_dim" => 0i64, "batch_dim" => 1i64),
            None => op!(cx.em, "ReverseV2", x, [0i64]),
        };
        let mut own = if is_reverse { reversed(cx, x)? } else { x };
        let mut done = match c {
            Some(c) if lengths.is_none() && scales.is_none() && cell.is_block(dtype) => {
                block_lstm::over_time(cx, &cell, &Weights { input: weights, state: of_state, bias }, own, [h, c])?
            }
            _ => {
                // The input's part of all gates in all steps, at once.
                own = match scales {
                    Some((scale, _)) => product_by_own_range(cx, own, weights, scale)?,
                    None => {
                        cell.recurrent = arranged(cx, of_state, &[1, 0])?;
                        op!(cx.em, "BatchMatMulV2", own, weights; "adj_y" => true)?
                    }
                };
                if let Some(bias) = bias {
                    own = op!(cx.em, "AddV2", own, bias)?;
                }
                over_time(cx, &cell, own, h, c, lengths)?
            }
        };
        if is_reverse {
            done.all = reversed(cx, done.all)?;
        }
        ran.push(done);
    }
    // [length, directions, batch, hidden]
    let pack = |cx: &mut Cx, all: Vec<Output>, axis: i64| {
        cx.em.add("Pack", all.into_iter().map(Into::into).collect(), &[("axis", axis.into())])
    };
    let y = pack(cx, ran.iter().map(|done| done.all).collect(), 1)?;
    let h = pack(cx, ran.iter().map(|done| done.h).collect(), 0)?;
    let mut outputs = vec![y, h];
    if kind == Kind::Lstm {
        outputs.push(pack(cx, ran.iter().filter_map(|done| done.c).collect(), 0)?);
    }
    if is_batch_first {
        outputs[0] = cx.transpose(outputs[0], &[2, 0, 1, 3])?;
        for state in &mut outputs[1..] {
            *state = cx.transpose(*state, &[1, 0, 2])?;
        }
    }
    Ok(outputs.into_iter().map(Value::Tensor).collect())
}

/// A direction's part; of constants, while the model is read.
fn row(cx: &mut Cx, all: Output, i: usize) -> Result<Output> {
    let dtypes = [DType::F32, DType::I8, DType::U8];
    match cx.em.known(all).filter(|all| dtypes.contains(&all.dtype()) && all.rank() > 0 && all.dims()[0] > i) {
        Some(known) => {
            let (size, shape) = (known.byte_len() / known.dims()[0], known.dims()[1..].to_vec());
            let bytes = known.bytes().unwrap_or_default();
            let own = Tensor::from_bytes(known.dtype(), shape, &bytes[i * size..][..size])?;
            let name = format!("{}/{i}", cx.em.graph().node(all.node).name);
            cx.em.constant_named(&name, own)
        }
        None => op!(cx.em, "GatherV2", all, i as i64, 0i64),
    }
}

/// The biases of the input and of the state.
fn halves(cx: &mut Cx, all: Output, gates: i64) -> Result<(Output, Output)> {
    if let Some(known) = cx.em.known(all).filter(|all| all.dtype() == DType::F32 && all.len() == 2 * gates as usize) {
        let parts =
            [0, 1].map(|i| known.slice::<f32>().map(|all| all[i * gates as usize..][..gates as usize].to_vec()));
        let [input, state] = parts;
        return Ok((cx.em.constant(Tensor::vector(input?))?, cx.em.constant(Tensor::vector(state?))?));
    }
    let input = cx.slice(all, 0, Size::Known(0), Some(Size::Known(gates)))?;
    Ok((input, cx.slice(all, 0, Size::Known(gates), Some(Size::Known(2 * gates)))?))
}

/// The sum of two vectors; of constants, while the model is read.
fn sum(cx: &mut Cx, x: Output, y: Output) -> Result<Output> {
    let known = |x| cx.em.known(x).filter(|x| x.dtype() == DType::F32);
    let (Some(xs), Some(ys)) = (known(x), known(y)) else { return op!(cx.em, "AddV2", x, y) };
    let sums: Vec<f32> = xs.slice::<f32>()?.iter().zip(ys.slice::<f32>()?).map(|(x, y)| x + y).collect();
    cx.em.constant(Tensor::vector(sums))
}

fn activations(n: &Node, kind: Kind, direction: usize) -> Result<Vec<Activation>> {
    let per = kind.activations().len();
    let stated = n.strs("activations")?;
    let (alphas, betas) = (n.floats("activation_alpha").unwrap_or(&[]), n.floats("activation_beta").unwrap_or(&[]));
    // Parameters are listed for those activations alone that have any.
    let (mut alpha_at, mut beta_at) = (0, 0);
    let mut all = Vec::new();
    for i in 0..per * (direction + 1) {
        let name = stated.get(i).copied().unwrap_or(kind.activations()[i % per]);
        let lower = name.to_ascii_lowercase();
        let next = |list: &[f32], at: &mut usize, takes: bool| {
            let value = if takes { list.get(*at).map(|&value| f64::from(value)) } else { None };
            *at += usize::from(takes);
            value
        };
        let alpha = next(
            alphas,
            &mut alpha_at,
            ["leakyrelu", "thresholdedrelu", "elu", "hardsigmoid", "affine", "scaledtanh"].contains(&lower.as_str()),
        );
        let beta = next(betas, &mut beta_at, ["hardsigmoid", "affine", "scaledtanh"].contains(&lower.as_str()));
        all.push(Activation { name: name.to_owned(), alpha, beta });
    }
    Ok(all.split_off(per * direction))
}

/// Runs a cell over the steps of its input, `[length, batch, gates * hidden]`. After the end of a sequence its state stays, and
/// the results are zero.
fn over_time(
    cx: &mut Cx,
    cell: &Cell,
    x: Output,
    h: Output,
    c: Option<Output>,
    lengths: Option<Output>,
) -> Result<Ran> {
    let dtype = cx.em.dtype(x);
    let count = cx.size(x, 0)?;
    let count = cx.scalar(count)?;
    let zero = cx.em.constant(Tensor::scalar(0i64))?;
    let item = PartialShape(Some(vec![cx.em.size(x, 1), Some(cell.hidden as usize)]));
    let list = empty_list(cx, dtype, &item)?;
    let mut start = vec![zero, list, h];
    start.extend(c);
    let mut cond = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let count = child.outer_tensor(count)?;
        Ok(vec![op!(child.em, "Less", params[0], count)?])
    };
    let outputs = flow::repeat(cx, &start, &mut cond, &mut |child, params| {
        let all = child.outer_tensor(x)?;
        let own = op!(child.em, "GatherV2", all, params[0], 0i64)?;
        let (mut h, mut c) = cell.step(child, own, params[2], params.get(3).copied())?;
        let mut shown = h;
        if let Some(lengths) = lengths {
            let lengths = child.outer_tensor(lengths)?;
            let lengths = child.long(lengths)?;
            let runs = op!(child.em, "Less", params[0], lengths)?;
            let runs = child.unsqueeze(runs, &[1])?;
            let none = child.em.number(0.0, dtype)?;
            shown = op!(child.em, "SelectV2", runs, h, none)?;
            h = op!(child.em, "SelectV2", runs, h, params[2])?;
            if let (Some(new), Some(&old)) = (c, params.get(3)) {
                c = Some(op!(child.em, "SelectV2", runs, new, old)?);
            }
        }
        let next = op!(child.em, "AddV2", params[0], 1i64)?;
        let mut results = vec![next, op!(child.em, "TensorListPushBack", params[1], shown)?, h];
        results.extend(c);
        Ok(results)
    })?;
    let all = stacked(cx, outputs[1], dtype, &item)?;
    Ok(Ran { all, h: outputs[2], c: outputs.get(3).copied() })
}
