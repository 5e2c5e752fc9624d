//! Cells of long short-term memory: one step, all steps of a sequence, and the gradients of both.
//!
//! A step multiplies the concatenation of its input and the previous output by one matrix `[inputs + cells, 4 * cells]`,
//! whose columns are the gates.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

use super::super::call::take;
use super::super::matmul::matmul;
use super::super::real::widened;
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::cell::{CellSizes, beside, check, narrow_rows, sigmoid};

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

/// The peephole weights: of the input, the forget and the output gate.
struct Peep<'a>([&'a [f32]; 3]);

impl Peep<'_> {
    /// The contribution of a cell's state to a gate.
    #[inline]
    fn of(&self, gate: usize, cell: usize, holds: f32) -> f32 {
        self.0[gate].get(cell).map_or(0.0, |weight| weight * holds)
    }
}

/// The results of a step, `[batch, cells]` each: input gate, cell state, forget gate, output gate, cell input, and the
/// output before and after the output gate.
#[derive(Default)]
struct CellStep {
    parts: [Vec<f32>; 7],
}

/// The inputs and results of a step that its gradient needs.
struct Past<'a> {
    cs_prev: &'a [f32],
    i: &'a [f32],
    cs: &'a [f32],
    f: &'a [f32],
    o: &'a [f32],
    ci: &'a [f32],
    co: &'a [f32],
}

/// The gradients of the peephole weights.
struct PeepGrad([Vec<f32>; 3]);

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

    fn peep<'a>(&self, sizes: &CellSizes, weights: [&'a Tensor; 3]) -> Result<Peep<'a>> {
        let mut slices: [&[f32]; 3] = Default::default();
        if self.peephole {
            for ((slice, name), weight) in slices.iter_mut().zip(["wci", "wcf", "wco"]).zip(weights) {
                check(name, weight, &[("cell_size", sizes.cells)])?;
                *slice = weight.slice::<f32>()?;
            }
        }
        Ok(Peep(slices))
    }

    fn one(&self, [x, cs_prev, h_prev, w, wci, wcf, wco, b]: [Tensor; 8]) -> Result<Outputs> {
        let sizes = CellSizes::of(x.shape(), ("cs_prev", cs_prev.shape()), 4)?;
        sizes.check("h_prev", &h_prev)?;
        sizes.check_weights(("w", &w), ("b", &b))?;
        Shape::from([7, sizes.batch, sizes.cells]).checked_elements(DType::F32)?;
        let peep = self.peep(&sizes, [&wci, &wcf, &wco])?;
        let xh = beside(&sizes, x.slice::<f32>()?, h_prev.slice::<f32>()?)?;
        let step = self.step(&sizes, &xh, cs_prev.slice::<f32>()?, &w, &b, &peep)?;
        Ok(step.parts.into_iter().map(|part| Tensor::from_vec([sizes.batch, sizes.cells], part)).collect())
    }

    fn step(
        &self,
        sizes: &CellSizes,
        xh: &Tensor,
        cs_prev: &[f32],
        w: &Tensor,
        b: &Tensor,
        peep: &Peep,
    ) -> Result<CellStep> {
        let gates = matmul(xh, w, false, false)?;
        let (gates, b, cells) = (gates.slice::<f32>()?, b.slice::<f32>()?, sizes.cells);
        let mut step = CellStep::default();
        step.parts.iter_mut().for_each(|part| part.reserve_exact(sizes.batch * cells));
        for row in paced(0..sizes.batch, 40 * cells) {
            let gates = &gates[row * 4 * cells..][..4 * cells];
            for cell in 0..cells {
                let before = cs_prev[row * cells + cell];
                let gate = |at: usize| gates[at * cells + cell] + b[at * cells + cell];
                let i = sigmoid(gate(0) + peep.of(0, cell, before));
                let ci = gate(self.input_at).tanh();
                let f = sigmoid(gate(self.forget_at) + self.forget_bias + peep.of(1, cell, before));
                let mut cs = i * ci + f * before;
                if self.clip > 0.0 {
                    cs = cs.clamp(-self.clip, self.clip);
                }
                let co = cs.tanh();
                let o = sigmoid(gate(3) + peep.of(2, cell, cs));
                let all = [i, cs, f, o, ci, co, o * co];
                step.parts.iter_mut().zip(all).for_each(|(part, value)| part.push(value));
            }
        }
        Ok(step)
    }

    fn all(&self, [count, x, cs_prev, h_prev, w, wci, wcf, wco, b]: [Tensor; 9]) -> Result<Outputs> {
        let (steps, first) = sequence(&x)?;
        let sizes = CellSizes::of(&first, ("cs_prev", cs_prev.shape()), 4)?;
        let count = steps_to_do(&count, steps)?;
        sizes.check("h_prev", &h_prev)?;
        sizes.check_weights(("w", &w), ("b", &b))?;
        let peep = self.peep(&sizes, [&wci, &wcf, &wco])?;
        let whole = Shape::from([steps, sizes.batch, sizes.cells]);
        Shape::from([7, steps, sizes.batch, sizes.cells]).checked_elements(DType::F32)?;
        let (x, each) = (x.slice::<f32>()?, sizes.batch * sizes.cells);
        let mut parts: [Vec<f32>; 7] = std::array::from_fn(|_| Vec::with_capacity(steps * each));
        for t in 0..count {
            let from = t.saturating_sub(1) * each;
            let before = |at: usize, first: &Tensor| match t {
                0 => first.slice::<f32>().map(<[f32]>::to_vec),
                _ => Ok(parts[at][from..][..each].to_vec()),
            };
            let xh = beside(&sizes, &x[t * sizes.batch * sizes.inputs..], &before(6, &h_prev)?)?;
            let step = self.step(&sizes, &xh, &before(1, &cs_prev)?, &w, &b, &peep)?;
            parts.iter_mut().zip(step.parts).for_each(|(all, part)| all.extend(part));
        }
        parts.iter_mut().for_each(|part| part.resize(steps * each, 0.0));
        Ok(parts.into_iter().map(|part| Tensor::from_vec(whole.clone(), part)).collect())
    }

    fn one_back(&self, inputs: [Tensor; 16]) -> Result<Outputs> {
        let [x, cs_prev, h_prev, w, wci, wcf, wco, b, i, cs, f, o, ci, co, cs_grad, h_grad] = inputs;
        let sizes = CellSizes::of(x.shape(), ("cs_prev", cs_prev.shape()), 4)?;
        sizes.check_weights(("w", &w), ("b", &b))?;
        let values = [&h_prev, &i, &cs, &f, &o, &ci, &co, &cs_grad, &h_grad];
        let names = ["h_prev", "i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad"];
        names.iter().zip(values).try_for_each(|(name, value)| sizes.check(name, value))?;
        let peep = self.peep(&sizes, [&wci, &wcf, &wco])?;
        let past = Past {
            cs_prev: cs_prev.slice()?,
            i: i.slice()?,
            cs: cs.slice()?,
            f: f.slice()?,
            o: o.slice()?,
            ci: ci.slice()?,
            co: co.slice()?,
        };
        let mut sums = PeepGrad::new(&sizes)?;
        let (gates, before) = self.back(&sizes, &past, &peep, cs_grad.slice()?, h_grad.slice()?, &mut sums)?;
        let mut outputs: Outputs = SmallVec::new();
        outputs.push(Tensor::from_vec([sizes.batch, sizes.cells], before));
        outputs.push(gates);
        // Without peepholes the weights may have any size, and their gradients are zero.
        for (sum, weight) in sums.0.into_iter().zip([wci, wcf, wco]) {
            outputs.push(if self.peephole {
                Tensor::vector(sum)
            } else {
                Tensor::zeros(DType::F32, weight.shape().clone())?
            });
        }
        Ok(outputs)
    }

    /// The gradients of the gates before their activations, `[batch, 4 * cells]`, and of the cell states before the step.
    fn back(
        &self,
        sizes: &CellSizes,
        past: &Past,
        peep: &Peep,
        cs_grad: &[f32],
        h_grad: &[f32],
        sums: &mut PeepGrad,
    ) -> Result<(Tensor, Vec<f32>)> {
        let cells = sizes.cells;
        let mut gates = vec![0f32; Shape::from([sizes.batch, 4 * cells]).checked_elements(DType::F32)?];
        let mut before = Vec::with_capacity(sizes.batch * cells);
        for row in paced(0..sizes.batch, 40 * cells) {
            let gates = &mut gates[row * 4 * cells..][..4 * cells];
            for cell in 0..cells {
                let at = row * cells + cell;
                let (cs_prev, cs, dh) = (past.cs_prev[at], past.cs[at], h_grad[at]);
                let (i, f, o, ci, co) = (past.i[at], past.f[at], past.o[at], past.ci[at], past.co[at]);
                let d_o = o * (1.0 - o) * dh * co;
                let dcs = (1.0 - co * co) * dh * o + cs_grad[at] + peep.of(2, cell, d_o);
                let dci = (1.0 - ci * ci) * dcs * i;
                let df = f * (1.0 - f) * dcs * cs_prev;
                let di = i * (1.0 - i) * dcs * ci;
                gates[cell] = di;
                gates[self.input_at * cells + cell] = dci;
                gates[self.forget_at * cells + cell] = df;
                gates[3 * cells + cell] = d_o;
                before.push(dcs * f + peep.of(0, cell, di) + peep.of(1, cell, df));
                if self.peephole {
                    let seen = [di * cs_prev, df * cs_prev, d_o * cs];
                    sums.0.iter_mut().zip(seen).for_each(|(sum, value)| sum[cell] += value);
                }
            }
        }
        Ok((Tensor::from_vec([sizes.batch, 4 * cells], gates), before))
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
        let peep = self.peep(&sizes, [&wci, &wcf, &wco])?;
        let each = batch * cells;
        let part = |of: &Tensor, t: usize| of.slice::<f32>().map(|all| all[t * each..][..each].to_vec());
        let before = |of: &Tensor, first: &Tensor, t: usize| match t {
            0 => first.slice::<f32>().map(<[f32]>::to_vec),
            _ => part(of, t - 1),
        };
        let mut x_grad = vec![0f32; x.shape().checked_elements(DType::F32)?];
        let mut w_grad = vec![0f32; w.shape().checked_elements(DType::F32)?];
        let mut b_grad = vec![0f32; b.len()];
        let mut sums = PeepGrad::new(&sizes)?;
        let (mut cs_after, mut h_after) = (vec![0f32; each], vec![0f32; each]);
        for t in (0..count).rev() {
            let plus = |of: &Tensor, after: &[f32]| -> Result<Vec<f32>> {
                Ok(part(of, t)?.iter().zip(after).map(|(a, b)| a + b).collect())
            };
            let (cs_sum, h_sum) = (plus(&cs_grad, &cs_after)?, plus(&h_grad, &h_after)?);
            let held = before(&cs, &cs_prev, t)?;
            let [i, cs, f, o, ci, co] =
                [part(&i, t)?, part(&cs, t)?, part(&f, t)?, part(&o, t)?, part(&ci, t)?, part(&co, t)?];
            let past = Past { cs_prev: &held, i: &i, cs: &cs, f: &f, o: &o, ci: &ci, co: &co };
            let (gates, cs_before) = self.back(&sizes, &past, &peep, &cs_sum, &h_sum, &mut sums)?;
            let xh_grad = matmul(&gates, &w, false, true)?;
            let into = &mut x_grad[t * batch * sizes.inputs..][..batch * sizes.inputs];
            narrow_rows(&xh_grad, 0, into)?;
            h_after.resize(each, 0.0);
            narrow_rows(&xh_grad, sizes.inputs, &mut h_after)?;
            cs_after = cs_before;
            let xh = beside(&sizes, &x.slice::<f32>()?[t * batch * sizes.inputs..], &before(&h, &h_prev, t)?)?;
            let product = matmul(&xh, &gates, true, false)?;
            w_grad.iter_mut().zip(product.slice::<f32>()?).for_each(|(sum, &value)| *sum += value);
            for row in gates.slice::<f32>()?.chunks_exact((4 * cells).max(1)) {
                b_grad.iter_mut().zip(row).for_each(|(sum, &value)| *sum += value);
            }
        }
        let of_batch = |values: Vec<f32>| Tensor::from_vec([batch, cells], values);
        let mut outputs: Outputs = SmallVec::new();
        outputs.push(Tensor::from_vec(x.shape().clone(), x_grad));
        outputs.push(of_batch(cs_after));
        outputs.push(of_batch(h_after));
        outputs.push(Tensor::from_vec(w.shape().clone(), w_grad));
        for (sum, weight) in sums.0.into_iter().zip([wci, wcf, wco]) {
            outputs.push(if self.peephole {
                Tensor::vector(sum)
            } else {
                Tensor::zeros(DType::F32, weight.shape().clone())?
            });
        }
        outputs.push(Tensor::vector(b_grad));
        Ok(outputs)
    }
}

impl PeepGrad {
    fn new(sizes: &CellSizes) -> Result<PeepGrad> {
        Shape::from([3, sizes.cells]).checked_elements(DType::F32)?;
        Ok(PeepGrad(std::array::from_fn(|_| vec![0.0; sizes.cells])))
    }
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
