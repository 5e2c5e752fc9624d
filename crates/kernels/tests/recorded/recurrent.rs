//! Long sequences, whose steps are computed in several parts and on several threads, compared with the definition in float64.

use meshtf_cases::with_node;
use meshtf_kernels::{Inputs, compile};
use meshtf_tensor::Tensor;
use serde_json::{Value, json};

const STEPS: usize = 60;
/// The steps that are computed.
const COUNT: usize = 55;
const BATCH: usize = 50;
const INPUTS: usize = 21;
const CELLS: usize = 35;

fn numbers(dims: &[usize], size: f32, seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    let value = |i: usize| size * (((i * 7919 + seed * 31) % 1013) as f32 / 506.0 - 1.0);
    Tensor::from_vec(dims, (0..count).map(value).collect())
}

fn run(op: &str, attrs: Value, inputs: &[Tensor]) -> Vec<Vec<f32>> {
    let case = json!({"op": op, "attrs": attrs});
    let mut kernel = with_node(&case, inputs, compile).unwrap().unwrap();
    let outputs = kernel(inputs.iter().cloned().collect::<Inputs>()).unwrap();
    outputs.iter().map(|output| output.slice::<f32>().unwrap().to_vec()).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The definition, one cell after another.
struct Reference {
    has_peepholes: bool,
    clip: f64,
    /// The indices among the gates of the cell input and of the forget gate.
    order: [usize; 2],
    forget_bias: f64,
    x: Vec<f64>,
    cs_prev: Vec<f64>,
    h_prev: Vec<f64>,
    w: Vec<f64>,
    peepholes: [Vec<f64>; 3],
    b: Vec<f64>,
}

impl Reference {
    fn before<'a>(first: &'a [f64], all: &'a [f64], t: usize) -> &'a [f64] {
        if t == 0 { first } else { &all[(t - 1) * BATCH * CELLS..][..BATCH * CELLS] }
    }

    /// Input gate, state, forget gate, output gate, cell input, and the output before and after the output gate.
    fn forward(&self) -> [Vec<f64>; 7] {
        let mut parts = [0; 7].map(|_| vec![0f64; STEPS * BATCH * CELLS]);
        for (t, row) in (0..COUNT).flat_map(|t| (0..BATCH).map(move |row| (t, row))) {
            let states = Self::before(&self.cs_prev, &parts[1], t)[row * CELLS..][..CELLS].to_vec();
            let xh = self.row_before(&parts[6], t, row);
            for (cell, &state) in states.iter().enumerate() {
                let gate = |gate: usize| {
                    let column = gate * CELLS + cell;
                    let terms = xh.iter().enumerate().map(|(i, x)| x * self.w[i * 4 * CELLS + column]);
                    terms.sum::<f64>() + self.b[column]
                };
                let seen = |i: usize, of: f64| if self.has_peepholes { self.peepholes[i][cell] * of } else { 0.0 };
                let i = sigmoid(gate(0) + seen(0, state));
                let ci = gate(self.order[0]).tanh();
                let f = sigmoid(gate(self.order[1]) + self.forget_bias + seen(1, state));
                let cs = (i * ci + f * state).clamp(-self.clip, self.clip);
                let co = cs.tanh();
                let o = sigmoid(gate(3) + seen(2, cs));
                let at = (t * BATCH + row) * CELLS + cell;
                parts.iter_mut().zip([i, cs, f, o, ci, co, o * co]).for_each(|(part, value)| part[at] = value);
            }
        }
        parts
    }

    /// The inputs of a step and the outputs before it.
    fn row_before(&self, h: &[f64], t: usize, row: usize) -> Vec<f64> {
        let x = &self.x[(t * BATCH + row) * INPUTS..][..INPUTS];
        [x, &Self::before(&self.h_prev, h, t)[row * CELLS..][..CELLS]].concat()
    }

    /// The gradients of x, cs_prev, h_prev, w, the peephole weights and b.
    fn backward(&self, parts: &[Vec<f64>; 7], cs_grad: &[f64], h_grad: &[f64]) -> Vec<Vec<f64>> {
        let [i, cs, f, o, ci, co, h] = parts;
        let mut x_grad = vec![0f64; self.x.len()];
        let (mut by_states, mut by_outputs) = (vec![0f64; BATCH * CELLS], vec![0f64; BATCH * CELLS]);
        let (mut w_grad, mut b_grad) = (vec![0f64; self.w.len()], vec![0f64; 4 * CELLS]);
        let mut peep_grads = [0; 3].map(|_| vec![0f64; CELLS]);
        for (t, row) in (0..COUNT).rev().flat_map(|t| (0..BATCH).map(move |row| (t, row))) {
            let mut gates = vec![0f64; 4 * CELLS];
            for cell in 0..CELLS {
                let (at, own) = ((t * BATCH + row) * CELLS + cell, row * CELLS + cell);
                let before = Self::before(&self.cs_prev, cs, t)[own];
                let dh = h_grad[at] + by_outputs[own];
                let weight = |i: usize| if self.has_peepholes { self.peepholes[i][cell] } else { 0.0 };
                let d_o = dh * co[at] * o[at] * (1.0 - o[at]);
                let dcs = dh * o[at] * (1.0 - co[at] * co[at]) + cs_grad[at] + by_states[own] + weight(2) * d_o;
                let di = dcs * ci[at] * i[at] * (1.0 - i[at]);
                let df = dcs * before * f[at] * (1.0 - f[at]);
                let dci = dcs * i[at] * (1.0 - ci[at] * ci[at]);
                by_states[own] = dcs * f[at] + weight(0) * di + weight(1) * df;
                for (gate, value) in [(0, di), (self.order[0], dci), (self.order[1], df), (3, d_o)] {
                    gates[gate * CELLS + cell] = value;
                }
                let terms = [di * before, df * before, d_o * cs[at]];
                peep_grads.iter_mut().zip(terms).for_each(|(sum, term)| sum[cell] += term);
            }
            for (j, x) in self.row_before(h, t, row).into_iter().enumerate() {
                let weights = &self.w[j * 4 * CELLS..][..4 * CELLS];
                let through: f64 = weights.iter().zip(&gates).map(|(w, gate)| w * gate).sum();
                match j.checked_sub(INPUTS) {
                    None => x_grad[(t * BATCH + row) * INPUTS + j] = through,
                    Some(cell) => by_outputs[row * CELLS + cell] = through,
                }
                w_grad[j * 4 * CELLS..].iter_mut().zip(&gates).for_each(|(sum, gate)| *sum += x * gate);
            }
            b_grad.iter_mut().zip(&gates).for_each(|(sum, gate)| *sum += gate);
        }
        if !self.has_peepholes {
            peep_grads.iter_mut().for_each(|sum| sum.fill(0.0));
        }
        let [wci, wcf, wco] = peep_grads;
        vec![x_grad, by_states, by_outputs, w_grad, wci, wcf, wco, b_grad]
    }
}

fn wide(tensor: &Tensor) -> Vec<f64> {
    tensor.slice::<f32>().unwrap().iter().map(|&x| x.into()).collect()
}

/// Errors relative to the largest of the numbers: most of them are sums of numbers of either sign.
fn assert_close(name: &str, got: &[f32], want: &[f64], error: f64) {
    let largest = want.iter().fold(0f64, |most, x| most.max(x.abs()));
    assert_eq!(got.len(), want.len(), "{name}");
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(got) - want).abs() <= error * largest, "{name}, element {at}: {got}, not {want}");
    }
}

#[test]
fn long_sequences_are_those_of_the_definition() {
    for (version, has_peepholes, clip) in [("", false, 0.0), ("", true, 0.2), ("V2", true, 0.0)] {
        let x = numbers(&[STEPS, BATCH, INPUTS], 0.8, 1);
        let (cs_prev, h_prev) = (numbers(&[BATCH, CELLS], 0.3, 2), numbers(&[BATCH, CELLS], 0.3, 3));
        let (w, b) = (numbers(&[INPUTS + CELLS, 4 * CELLS], 0.25, 4), numbers(&[4 * CELLS], 0.2, 5));
        let peepholes = [6, 7, 8].map(|seed| numbers(&[CELLS], 0.5, seed));
        let [wci, wcf, wco] = peepholes.clone();
        let mut inputs = vec![Tensor::scalar(COUNT as i64), x, cs_prev, h_prev, w, wci, wcf, wco, b];
        let reference = Reference {
            has_peepholes,
            clip: if clip > 0.0 { clip } else { f64::INFINITY },
            order: if version.is_empty() { [1, 2] } else { [2, 1] },
            forget_bias: if version.is_empty() { 0.5 } else { 0.0 },
            x: wide(&inputs[1]),
            cs_prev: wide(&inputs[2]),
            h_prev: wide(&inputs[3]),
            w: wide(&inputs[4]),
            peepholes: peepholes.each_ref().map(wide),
            b: wide(&inputs[8]),
        };
        let mut attrs = json!({"use_peephole": has_peepholes, "cell_clip": clip});
        if version.is_empty() {
            attrs["forget_bias"] = json!(0.5);
        }
        let got = run(&format!("BlockLSTM{version}"), attrs, &inputs);
        let want = reference.forward();
        for ((name, got), want) in ["i", "cs", "f", "o", "ci", "co", "h"].iter().zip(&got).zip(&want) {
            assert_close(&format!("{name}{version}"), got, want, 1e-5);
        }

        let [cs_grad, h_grad] = [9, 10].map(|seed| numbers(&[STEPS, BATCH, CELLS], 1.0, seed));
        let want = reference.backward(&want, &wide(&cs_grad), &wide(&h_grad));
        inputs.extend(got.into_iter().map(|part| Tensor::from_vec([STEPS, BATCH, CELLS], part)));
        inputs.extend([cs_grad, h_grad]);
        let got = run(&format!("BlockLSTMGrad{version}"), json!({"use_peephole": has_peepholes}), &inputs);
        let names = ["x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b"];
        for ((name, got), want) in names.iter().zip(&got).zip(&want) {
            assert_close(&format!("gradient of {name}{version}"), got, want, 1e-5);
        }
    }
}
