//! Recurrent layers, unrolled over the length of their input: one cell for each time step, all with the same variables.

use meshtf_graph::Attrs;

use super::{Model, Value};
use crate::Initializer;

/// The longest sequence that is unrolled.
const MAX_LENGTH: usize = 4096;

impl Value {
    /// An LSTM over `[n, time, features]`: its output at each time, `[n, time, units]`. Variables `NAME/kernel`
    /// `[features + units, 4 · units]` (input, candidate, forget and output gates, in this order) and `NAME/bias`; 1 is added to
    /// the forget gates, as in TensorFlow's BasicLSTMCell.
    pub fn lstm(&self, name: &str, units: usize) -> Value {
        self.recurrent("lstm", name, units, 2, |model, features| {
            let kernel = model.variable("kernel", [features + units, 4 * units], Initializer::GlorotUniform);
            let bias = model.variable("bias", [4 * units], Initializer::Zeros);
            move |x: &Value, states: &[Value]| {
                let gates = x.concat(&[&states[0]], 1).matmul(&kernel) + &bias;
                let [input, candidate, forget, output] = gates.split();
                let memory = &states[1] * (forget + 1.0).sigmoid() + input.sigmoid() * candidate.tanh();
                vec![memory.tanh() * output.sigmoid(), memory]
            }
        })
    }

    /// A GRU over `[n, time, features]`: its output at each time, `[n, time, units]`. Variables `NAME/gates/kernel`
    /// `[features + units, 2 · units]` (reset and update gates), `NAME/candidate/kernel` and their biases, as in TensorFlow's
    /// GRUCell.
    pub fn gru(&self, name: &str, units: usize) -> Value {
        self.recurrent("gru", name, units, 1, |model, features| {
            let part = |part: &str, outputs: usize, first: Initializer| {
                let kernel = format!("{part}/kernel");
                let kernel = model.variable(&kernel, [features + units, outputs], Initializer::GlorotUniform);
                (kernel, model.variable(&format!("{part}/bias"), [outputs], first))
            };
            let (gates, of_gates) = part("gates", 2 * units, Initializer::Ones);
            let (candidate, of_candidate) = part("candidate", units, Initializer::Zeros);
            move |x: &Value, states: &[Value]| {
                let state = &states[0];
                let both = (x.concat(&[state], 1).matmul(&gates) + &of_gates).sigmoid();
                let [reset, update] = both.split();
                let new = (x.concat(&[&(reset * state)], 1).matmul(&candidate) + &of_candidate).tanh();
                vec![&update * state + (1.0 - &update) * new]
            }
        })
    }

    /// Runs a cell over the time steps; the first of its states is its output.
    fn recurrent<C: Fn(&Value, &[Value]) -> Vec<Value>>(
        &self,
        what: &str,
        name: &str,
        units: usize,
        states: usize,
        cell: impl FnOnce(&Model, usize) -> C,
    ) -> Value {
        let Some(sizes) = self.sizes(what, 3) else { return self.clone() };
        let (length, features) = (sizes[1].unwrap_or(1), sizes[2].unwrap_or(1));
        if length == 0 || length > MAX_LENGTH || sizes.len() != 3 {
            let why = format!("{what} {name}: expected [n, time, features] with a time of 1 to {MAX_LENGTH}");
            return self.model.refuse(why);
        }
        self.model.scope(name, || {
            let cell = cell(&self.model, features);
            let attrs = Attrs::from([("num", (length as i64).into()), ("axis", 1.into())]);
            let steps = self.with_attrs("Unpack", [], attrs);
            // Zeros for each example of the batch, however large it is.
            let zeros = (steps.sum_along(&[1], true) * 0.0).with("Tile", [vec![1, units as i32].into()]);
            let mut states = vec![zeros; states];
            let mut outputs = Vec::with_capacity(length);
            for time in 0..length as u32 {
                states = cell(&steps.port(time), &states);
                outputs.push(states[0].clone());
            }
            let rest = outputs[1..].iter().map(Value::input).collect::<Vec<_>>();
            outputs[0].with_attrs("Pack", rest, Attrs::from([("axis", 1.into())]))
        })
    }

    /// `N` equal parts along dimension 1.
    fn split<const N: usize>(&self) -> [Value; N] {
        let output = self.output;
        let parts = self.model.add(|state| {
            let split = state.g.op("Split").input(1).input(output.ok_or_else(super::after)?);
            split.attr("num_split", N as i64).build()
        });
        std::array::from_fn(|port| parts.port(port as u32))
    }
}
