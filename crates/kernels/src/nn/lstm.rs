//! Cells of long short-term memory: one step, all steps of a sequence, and the gradients of both.
//!
//! A step multiplies the concatenation of its input and the previous output by one matrix `[inputs + cells, 4 * cells]`,
//! whose columns are the gates. It is computed as two products (`steps`).

mod steps;

use meshtf_loops::chunks::{even_chunk, in_chunks};
use meshtf_loops::vector;
use meshtf_loops::vector::LstmPast;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

use super::super::call::take;
use super::super::real::widened;
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::cell::{CellSizes, check};
use steps::{Given, Results, add_peepholes};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("LSTMBlockCell", |node| kernel(node, OLDER, |lstm, inputs| lstm.one(take(inputs)?)));
    ops.insert("LSTMBlockCellGrad", |node| kernel(node, OLDER, |lstm, inputs| lstm.one_back(take(inputs)?)));
    ops.insert("BlockLSTM", |node| kernel(node, OLDER, |lstm, inputs| lstm.all(take(inputs)?)));
    ops.insert("BlockLSTMV2", |node| kernel(node, NEWER, |lstm, inputs| lstm.all(take(inputs)?)));
    ops.insert("BlockLSTMGrad", |node| kernel(node, OLDER, |lstm, inputs| lstm.all_back(take(inputs)?)));
    ops.insert("BlockLSTMGradV2", |node| kernel(node, NEWER, |lstm, inputs| lstm.all_back(take(inputs)?)));
}

/// The index of the cell input and that of the forget gate among the gates.
type Order = (usize, usize);

const OLDER: Order = (1, 2);
const NEWER: Order = (2, 1);

fn kernel(
    node: &KernelNode,
    order: Order,
    compute: fn(&Lstm, Inputs) -> Result<Outputs>,
) -> Result<Option<HostKernel>> {
    let lstm = Lstm::of(node, order)?;
    let kernel: HostKernel = Box::new(move |inputs| compute(&lstm, inputs));
    match node.attrs.dtype("T")? {
        DType::F16 | DType::F32 => Ok(Some(widened(node, kernel))),
        _ => Ok(None),
    }
}

struct Lstm {
    forget_bias: f32,
    /// The limit on the absolute value of a cell's state, if above 0.
    clip: f32,
    /// Whether the gates have peepholes to the cell states.
    peephole: bool,
    /// The indices among the gates of the cell input and of the forget gate; the input gate is first, the output gate
    /// last.
    input_at: usize,
    forget_at: usize,
}

impl Lstm {
    fn of(node: &KernelNode, (input_at, forget_at): Order) -> Result<Lstm> {
        let float = |name: &str| node.attrs.get(name).map_or(Ok(0.0), |_| node.attrs.float(name));
        Ok(Lstm {
            forget_bias: float("forget_bias")?,
            clip: float("cell_clip")?,
            peephole: node.attrs.bool("use_peephole")?,
            input_at,
            forget_at,
        })
    }

    /// The cells, with their biases and peephole weights.
    fn cells<'a>(&self, sizes: &CellSizes, b: &'a Tensor, weights: [&'a Tensor; 3]) -> Result<vector::Lstm<'a>> {
        let mut peepholes: [&[f32]; 3] = Default::default();
        if self.peephole {
            for ((slice, name), weight) in peepholes.iter_mut().zip(["wci", "wcf", "wco"]).zip(weights) {
                check(name, weight, &[("cell_size", sizes.cells)])?;
                *slice = weight.slice::<f32>()?;
            }
        }
        Ok(vector::Lstm {
            cells: sizes.cells,
            input_at: self.input_at,
            forget_at: self.forget_at,
            biases: b.slice()?,
            forget_bias: self.forget_bias,
            clip: if self.clip > 0.0 { self.clip } else { f32::INFINITY },
            peepholes: self.peephole.then_some(peepholes),
        })
    }

    fn one(&self, [x, cs_prev, h_prev, w, wci, wcf, wco, b]: [Tensor; 8]) -> Result<Outputs> {
        let sizes = CellSizes::of(x.shape(), ("cs_prev", cs_prev.shape()), 4)?;
        sizes.check("h_prev", &h_prev)?;
        sizes.check_weights(("w", &w), ("b", &b))?;
        let cells = self.cells(&sizes, &b, [&wci, &wcf, &wco])?;
        let given = Given { x: x.slice()?, states: cs_prev.slice()?, outputs: h_prev.slice()?, w: w.slice()? };
        forward(&sizes, &cells, 1, &given, [sizes.batch, sizes.cells].into())
    }

    fn all(&self, [count, x, cs_prev, h_prev, w, wci, wcf, wco, b]: [Tensor; 9]) -> Result<Outputs> {
        let (steps, first) = sequence(&x)?;
        let sizes = CellSizes::of(&first, ("cs_prev", cs_prev.shape()), 4)?;
        let count = steps_to_do(&count, steps)?;
        sizes.check("h_prev", &h_prev)?;
        sizes.check_weights(("w", &w), ("b", &b))?;
        let cells = self.cells(&sizes, &b, [&wci, &wcf, &wco])?;
        let given = Given { x: x.slice()?, states: cs_prev.slice()?, outputs: h_prev.slice()?, w: w.slice()? };
        forward(&sizes, &cells, count, &given, [steps, sizes.batch, sizes.cells].into())
    }

    fn one_back(&self, inputs: [Tensor; 16]) -> Result<Outputs> {
        let [x, cs_prev, h_prev, w, wci, wcf, wco, b, i, cs, f, o, ci, co, cs_grad, h_grad] = inputs;
        let sizes = CellSizes::of(x.shape(), ("cs_prev", cs_prev.shape()), 4)?;
        sizes.check_weights(("w", &w), ("b", &b))?;
        let values = [&h_prev, &i, &cs, &f, &o, &ci, &co, &cs_grad, &h_grad];
        let names = ["h_prev", "i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad"];
        names.iter().zip(values).try_for_each(|(name, value)| sizes.check(name, value))?;
        let lstm = self.cells(&sizes, &b, [&wci, &wcf, &wco])?;
        let (batch, cells) = (sizes.batch, sizes.cells);
        let mut gates = CellSizes::zeros(batch, 4 * cells)?;
        let mut before = CellSizes::zeros(batch, cells)?;
        let after = CellSizes::zeros(batch, cells)?;
        let (states_before, states) = (cs_prev.slice::<f32>()?, cs.slice::<f32>()?);
        let [i, f, o, ci, co] = [&i, &f, &o, &ci, &co].map(Tensor::slice::<f32>);
        let (i, f, o, ci, co) = (i?, f?, o?, ci?, co?);
        let (cs_grad, h_grad) = (cs_grad.slice::<f32>()?, h_grad.slice::<f32>()?);
        let rows = even_chunk(batch, 10 * cells.max(1));
        let parts = gates.chunks_mut((rows * 4 * cells).max(1)).zip(before.chunks_mut((rows * cells).max(1)));
        in_chunks(parts.enumerate(), |(chunk, (gates, before))| {
            let from = chunk * rows * cells;
            let own = from..from + before.len();
            let past = LstmPast {
                states_before: &states_before[own.clone()],
                input_gates: &i[own.clone()],
                forget_gates: &f[own.clone()],
                output_gates: &o[own.clone()],
                cell_inputs: &ci[own.clone()],
                outputs: &co[own.clone()],
            };
            let after = &after[own.clone()];
            lstm.backward(past, [&cs_grad[own.clone()], after], [&h_grad[own], after], gates, before);
        });
        let mut sums = [CellSizes::zeros(1, cells)?, CellSizes::zeros(1, cells)?, CellSizes::zeros(1, cells)?];
        if self.peephole && cells > 0 {
            add_peepholes(&lstm, &gates, [states_before, states_before, states], &mut sums);
        }
        let mut outputs: Outputs = SmallVec::new();
        outputs.push(Tensor::from_vec([batch, cells], before));
        outputs.push(Tensor::from_vec([batch, 4 * cells], gates));
        self.push_peepholes(sums, [wci, wcf, wco], &mut outputs)?;
        Ok(outputs)
    }

    /// Without peepholes their weights may have any size, and their gradients are zero.
    fn push_peepholes(&self, sums: [Vec<f32>; 3], weights: [Tensor; 3], outputs: &mut Outputs) -> Result<()> {
        for (sum, weight) in sums.into_iter().zip(weights) {
            outputs.push(if self.peephole {
                Tensor::vector(sum)
            } else {
                Tensor::zeros(DType::F32, weight.shape().clone())?
            });
        }
        Ok(())
    }

    fn all_back(&self, inputs: [Tensor; 18]) -> Result<Outputs> {
        let [count, x, cs_prev, h_prev, w, wci, wcf, wco, b, i, cs, f, o, ci, co, h, cs_grad, h_grad] = inputs;
        let (steps, first) = sequence(&x)?;
        let sizes = CellSizes::of(&first, ("cs_prev", cs_prev.shape()), 4)?;
        let count = steps_to_do(&count, steps)?;
        let (batch, cells) = (sizes.batch, sizes.cells);
        sizes.check("h_prev", &h_prev)?;
        sizes.check_weights(("w", &w), ("b", &b))?;
        let values = [&i, &cs, &f, &o, &ci, &co, &h, &cs_grad, &h_grad];
        let names = ["i", "cs", "f", "o", "ci", "co", "h", "cs_grad", "h_grad"];
        let whole = [("timelen", steps), ("batch_size", batch), ("cell_size", cells)];
        names.iter().zip(values).try_for_each(|(name, value)| check(name, value, &whole))?;
        let lstm = self.cells(&sizes, &b, [&wci, &wcf, &wco])?;
        let given = Given { x: x.slice()?, states: cs_prev.slice()?, outputs: h_prev.slice()?, w: w.slice()? };
        let results = Results {
            i: i.slice()?,
            cs: cs.slice()?,
            f: f.slice()?,
            o: o.slice()?,
            ci: ci.slice()?,
            co: co.slice()?,
            h: h.slice()?,
        };
        let sums = steps::backward(&sizes, &lstm, count, &given, &results, [cs_grad.slice()?, h_grad.slice()?])?;
        let mut outputs: Outputs = SmallVec::new();
        outputs.push(Tensor::from_vec(x.shape().clone(), sums.x));
        outputs.push(Tensor::from_vec([batch, cells], sums.states));
        outputs.push(Tensor::from_vec([batch, cells], sums.outputs));
        outputs.push(Tensor::from_vec(w.shape().clone(), sums.w));
        self.push_peepholes(sums.peepholes, [wci, wcf, wco], &mut outputs)?;
        outputs.push(Tensor::vector(sums.biases));
        Ok(outputs)
    }
}

/// The results of the first `count` steps, each of the `whole` shape and zero after them.
fn forward(sizes: &CellSizes, cells: &vector::Lstm, count: usize, given: &Given, whole: Shape) -> Result<Outputs> {
    let all: Shape = [7].into_iter().chain(whole.dims().iter().copied()).collect();
    let len = all.checked_elements(DType::F32)? / 7;
    let mut parts: [Vec<f32>; 7] = std::array::from_fn(|_| vec![0f32; len]);
    steps::forward(sizes, cells, count, given, &mut parts)?;
    Ok(parts.into_iter().map(|part| Tensor::from_vec(whole.clone(), part)).collect())
}

/// The number of steps of a sequence `[steps, batch, inputs]`, and the shape of one step.
fn sequence(x: &Tensor) -> Result<(usize, Shape)> {
    let &[steps, batch, inputs] = x.dims() else {
        return Err(Failure::invalid(format!("x must have the shape [steps, batch, inputs], got {}", x.shape())));
    };
    Ok((steps, [batch, inputs].into()))
}

/// The number of steps to compute.
fn steps_to_do(count: &Tensor, steps: usize) -> Result<usize> {
    let count = super::super::call::size(count, "seq_len_max")?;
    if count > steps {
        return Err(Failure::invalid(format!("seq_len_max is {count}, but x has {steps} steps")));
    }
    Ok(count)
}
