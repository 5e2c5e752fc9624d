//! The gates of recurrent cells, and the gradients of both: long short-term memory, and the gated recurrent unit.
//!
//! A cell's matrices have a row for each example. The gates of an example are in one row, before their activations and
//! without their biases.

use super::functions::{sigmoid, tanh};
use super::many::{Block, Many, Slot, Strided, each, lanes, many};
use super::target::MulAdd;

/// A row that all rows of a result read.
fn repeated(elements: &[f32]) -> Strided<'_> {
    Strided { elements, apart: 0 }
}

/// A cell of long short-term memory, with four gates: the input gate is the first, the output gate the last.
#[derive(Clone, Copy)]
pub struct Lstm<'a> {
    /// The number of cells, the length of a row.
    pub cells: usize,
    /// The indices among the gates of the cell input and of the forget gate.
    pub input_at: usize,
    pub forget_at: usize,
    /// The biases of the gates, in their order.
    pub biases: &'a [f32],
    /// A number that is added to the bias of the forget gate.
    pub forget_bias: f32,
    /// The limit on the absolute value of a state; infinity for none.
    pub clip: f32,
    /// The weights by which the states take part in the input, the forget and the output gate.
    pub peepholes: Option<[&'a [f32]; 3]>,
}

/// The states before a step, and those of its results that its gradient needs.
#[derive(Clone, Copy)]
pub struct LstmPast<'a> {
    pub states_before: &'a [f32],
    pub input_gates: &'a [f32],
    pub forget_gates: &'a [f32],
    pub output_gates: &'a [f32],
    pub cell_inputs: &'a [f32],
    /// Before the output gates.
    pub outputs: &'a [f32],
}

impl Lstm<'_> {
    /// Writes the results of a step: the input gates, states, forget gates, output gates, cell inputs, and the outputs before
    /// and after the output gates.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn forward(&self, gates: &[f32], states_before: &[f32], to: &mut [&mut [f32]; 7]) {
        let sizes = [states_before.len().checked_div(self.cells).unwrap_or(0), self.cells];
        if sizes.contains(&0) {
            return;
        }
        let of_gate = |at: usize| Strided { elements: &gates[at * self.cells..], apart: 4 * self.cells };
        let bias = |at: usize| repeated(&self.biases[at * self.cells..]);
        let slots = std::array::from_fn(|slice| Slot { slice, at: 0, apart: self.cells });
        let f = LstmForward { forget_bias: self.forget_bias, clip: self.clip };
        let [input, forget] = [self.input_at, self.forget_at];
        let from = [
            Strided { elements: states_before, apart: self.cells },
            of_gate(0),
            of_gate(input),
            of_gate(forget),
            of_gate(3),
            bias(0),
            bias(input),
            bias(forget),
            bias(3),
        ];
        match self.peepholes {
            None => many(sizes, from, to, slots, f),
            Some(weights) => {
                let all = |i: usize| from.get(i).copied().unwrap_or_else(|| repeated(weights[i - 9]));
                let from: [Strided; 12] = std::array::from_fn(all);
                many(sizes, from, to, slots, f);
            }
        }
    }

    /// Writes the gradients of the gates before their activations, and those of the states before the step. `by_states` are
    /// two parts of the gradients of the states after the step, `by_outputs` of its outputs. The limit of the states counts
    /// for nothing, as in TensorFlow.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn backward(
        &self,
        past: LstmPast,
        by_states: [&[f32]; 2],
        by_outputs: [&[f32]; 2],
        gates: &mut [f32],
        states_before: &mut [f32],
    ) {
        let sizes = [states_before.len().checked_div(self.cells).unwrap_or(0), self.cells];
        if sizes.contains(&0) {
            return;
        }
        let rows = |elements| Strided { elements, apart: self.cells };
        let of_past = [
            past.states_before,
            past.input_gates,
            past.forget_gates,
            past.output_gates,
            past.cell_inputs,
            past.outputs,
        ];
        let ([before, i, f, o, ci, co], [cs_grad, cs_after]) = (of_past.map(rows), by_states.map(rows));
        let [h_grad, h_after] = by_outputs.map(rows);
        let of_gate = |at: usize| Slot { slice: 0, at: at * self.cells, apart: 4 * self.cells };
        let of_states = Slot { slice: 1, at: 0, apart: self.cells };
        let slots = [of_gate(0), of_gate(self.input_at), of_gate(self.forget_at), of_gate(3), of_states];
        let to = &mut [gates, states_before];
        let from = [before, i, f, o, ci, co, cs_grad, cs_after, h_grad, h_after];
        match self.peepholes {
            None => many(sizes, from, to, slots, LstmBackward),
            Some(weights) => {
                let all = |i: usize| from.get(i).copied().unwrap_or_else(|| repeated(weights[i - 10]));
                let from: [Strided; 13] = std::array::from_fn(all);
                many(sizes, from, to, slots, LstmBackward);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct LstmForward {
    forget_bias: f32,
    clip: f32,
}

impl LstmForward {
    #[inline(always)]
    fn results<M: MulAdd>(self, x: [&Block; 9], peepholes: Option<[&Block; 3]>) -> [Block; 7] {
        let [before, i, ci, f, o, bi, bci, bf, bo] = x;
        let seen = |gate: Block, at: usize, states: &Block| match peepholes {
            Some(weights) => each([&gate, weights[at], states], |[gate, weight, state]| gate + weight * state),
            None => gate,
        };
        let gate = |gates: &Block| each([gates], |[x]| sigmoid::<M>(x));
        let tangent = |x: &Block| each([x], |[x]| tanh::<M>(x));
        let i = gate(&seen(each([i, bi], |[i, b]| i + b), 0, before));
        let ci = tangent(&each([ci, bci], |[ci, b]| ci + b));
        let f = gate(&seen(each([f, bf], |[f, b]| f + b + self.forget_bias), 1, before));
        let cs = each([&i, &ci, &f, before], |[i, ci, f, before]| {
            let cs = i * ci + f * before;
            // NaN stays NaN.
            let cs = if cs > self.clip { self.clip } else { cs };
            if cs < -self.clip { -self.clip } else { cs }
        });
        let co = tangent(&cs);
        let o = gate(&seen(each([o, bo], |[o, b]| o + b), 2, &cs));
        let h = each([&o, &co], |[o, co]| o * co);
        [i, cs, f, o, ci, co, h]
    }
}

impl Many<9, 7> for LstmForward {
    #[inline(always)]
    fn of<M: MulAdd>(self, x: &[Block; 9]) -> [Block; 7] {
        self.results::<M>(x.each_ref(), None)
    }
}

impl Many<12, 7> for LstmForward {
    #[inline(always)]
    fn of<M: MulAdd>(self, x: &[Block; 12]) -> [Block; 7] {
        let [before, i, ci, f, o, bi, bci, bf, bo, wci, wcf, wco] = x;
        self.results::<M>([before, i, ci, f, o, bi, bci, bf, bo], Some([wci, wcf, wco]))
    }
}

#[derive(Clone, Copy)]
struct LstmBackward;

impl LstmBackward {
    #[inline(always)]
    fn results(x: [f32; 10], [wci, wcf, wco]: [f32; 3], has_peepholes: bool) -> [f32; 5] {
        let [before, i, f, o, ci, co, cs_grad, cs_after, h_grad, h_after] = x;
        let seen = |sum: f32, weight: f32, gate: f32| if has_peepholes { sum + weight * gate } else { sum };
        let dh = h_grad + h_after;
        let d_o = o * (1.0 - o) * dh * co;
        let dcs = seen((1.0 - co * co) * dh * o + (cs_grad + cs_after), wco, d_o);
        let dci = (1.0 - ci * ci) * dcs * i;
        let df = f * (1.0 - f) * dcs * before;
        let di = i * (1.0 - i) * dcs * ci;
        [di, dci, df, d_o, seen(seen(dcs * f, wci, di), wcf, df)]
    }
}

impl Many<10, 5> for LstmBackward {
    #[inline(always)]
    fn of<M: MulAdd>(self, x: &[Block; 10]) -> [Block; 5] {
        lanes(x, |x| LstmBackward::results(x, [0.0; 3], false))
    }
}

impl Many<13, 5> for LstmBackward {
    #[inline(always)]
    fn of<M: MulAdd>(self, x: &[Block; 13]) -> [Block; 5] {
        lanes(x, |[before, i, f, o, ci, co, cs_grad, cs_after, h_grad, h_after, wci, wcf, wco]| {
            let x = [before, i, f, o, ci, co, cs_grad, cs_after, h_grad, h_after];
            LstmBackward::results(x, [wci, wcf, wco], true)
        })
    }
}

/// A gated recurrent unit, with a reset gate and an update gate.
#[derive(Clone, Copy)]
pub struct Gru {
    /// The number of examples, and that of cells, the length of a row.
    pub sizes: [usize; 2],
}

impl Gru {
    /// Writes the reset gates, the update gates, and the outputs before the step that the reset gates leave.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn gates(&self, gates: &[f32], biases: &[f32], outputs_before: &[f32], to: &mut [&mut [f32]; 3]) {
        let [rows, cells] = self.sizes;
        if rows * cells == 0 {
            return;
        }
        let of_gate = |at: usize| Strided { elements: &gates[at * cells..], apart: 2 * cells };
        let bias = |at: usize| repeated(&biases[at * cells..]);
        let from = [of_gate(0), of_gate(1), bias(0), bias(1), self.rows(outputs_before)];
        many(self.sizes, from, to, self.slots(), GruGates);
    }

    /// Writes the candidates, which are given before their activation and without their biases, and the outputs.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn outputs(
        &self,
        candidates: &[f32],
        biases: &[f32],
        updates: &[f32],
        outputs_before: &[f32],
        to: &mut [&mut [f32]; 2],
    ) {
        let from = [self.rows(candidates), repeated(biases), self.rows(updates), self.rows(outputs_before)];
        many(self.sizes, from, to, self.slots(), GruOutputs);
    }

    /// Writes the gradients of the candidates before their activation.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn by_candidates(&self, by_outputs: &[f32], updates: &[f32], candidates: &[f32], to: &mut [f32]) {
        let from = [by_outputs, updates, candidates].map(|elements| self.rows(elements));
        many(self.sizes, from, &mut [to], self.slots(), GruByCandidates);
    }

    /// Writes the gradients of the gates before their activations. `by_left` are those of the outputs that the reset gates
    /// leave.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn by_gates(
        &self,
        by_left: Strided,
        by_outputs: &[f32],
        outputs_before: &[f32],
        [resets, updates, candidates]: [&[f32]; 3],
        to: &mut [f32],
    ) {
        let cells = self.sizes[1];
        let [by_outputs, before, r, u, c] =
            [by_outputs, outputs_before, resets, updates, candidates].map(|elements| self.rows(elements));
        let slots = [0, 1].map(|gate| Slot { slice: 0, at: gate * cells, apart: 2 * cells });
        many(self.sizes, [by_left, by_outputs, before, r, u, c], &mut [to], slots, GruByGates);
    }

    /// Writes the gradients of the outputs before the step: of these, the part `through_gates` is given.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn by_outputs_before(
        &self,
        through_gates: Strided,
        by_left: Strided,
        by_outputs: &[f32],
        [resets, updates]: [&[f32]; 2],
        to: &mut [f32],
    ) {
        let [by_outputs, r, u] = [by_outputs, resets, updates].map(|elements| self.rows(elements));
        many(self.sizes, [through_gates, by_left, by_outputs, r, u], &mut [to], self.slots(), GruByOutputsBefore);
    }

    fn rows<'a>(&self, elements: &'a [f32]) -> Strided<'a> {
        Strided { elements, apart: self.sizes[1] }
    }

    fn slots<const O: usize>(&self) -> [Slot; O] {
        std::array::from_fn(|slice| Slot { slice, at: 0, apart: self.sizes[1] })
    }
}

/// Writes the sums of the rows of two matrices.
///
/// # Panics
/// If the sizes do not fit.
pub fn row_sums([rows, len]: [usize; 2], from: [Strided; 2], to: &mut [f32]) {
    many([rows, len], from, &mut [to], [Slot { slice: 0, at: 0, apart: len }], Sum);
}

macro_rules! many {
    ($($name:ident: $inputs:literal = |$($x:ident),*| [$($result:expr),*]: $outputs:literal;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Many<$inputs, $outputs> for $name {
                #[inline(always)]
                fn of<M: MulAdd>(self, x: &[Block; $inputs]) -> [Block; $outputs] {
                    lanes(x, |[$($x),*]| [$($result),*])
                }
            }
        )*
    };
}

many! {
    GruByCandidates: 3 = |dh, u, c| [dh * (1.0 - u) * (1.0 - c * c)]: 1;
    GruByGates: 6 = |by_left, dh, before, r, u, c|
        [by_left * before * r * (1.0 - r), dh * (before - c) * u * (1.0 - u)]: 2;
    GruByOutputsBefore: 5 = |through, by_left, dh, r, u| [through + (by_left * r + dh * u)]: 1;
    Sum: 2 = |x, y| [x + y]: 1;
}

#[derive(Clone, Copy)]
struct GruGates;

impl Many<5, 3> for GruGates {
    #[inline(always)]
    fn of<M: MulAdd>(self, [r, u, br, bu, before]: &[Block; 5]) -> [Block; 3] {
        let gate = |x: &Block, biases: &Block| each([x, biases], |[x, b]| sigmoid::<M>(x + b));
        let r = gate(r, br);
        [r, gate(u, bu), each([before, &r], |[before, r]| before * r)]
    }
}

#[derive(Clone, Copy)]
struct GruOutputs;

impl Many<4, 2> for GruOutputs {
    #[inline(always)]
    fn of<M: MulAdd>(self, [c, bc, u, before]: &[Block; 4]) -> [Block; 2] {
        let c = each([c, bc], |[c, b]| tanh::<M>(c + b));
        [c, each([u, before, &c], |[u, before, c]| u * (before - c) + c)]
    }
}
