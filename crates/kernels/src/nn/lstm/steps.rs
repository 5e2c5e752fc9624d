//! The steps of a sequence through cells of long short-term memory, and back.
//!
//! The inputs of many steps are multiplied by their weights at once, and so are, in the gradient, the gradients of their
//! gates. A step has to wait for the one before it only with the product of the outputs. Examples are independent of one
//! another: a thread computes all steps of some of them, and waits for no other thread in between.

use meshtf_loops::chunks::in_chunks;
use meshtf_loops::vector::{Lstm, LstmPast, MatrixView, Panels};
use meshtf_tensor::failure::Result;

use super::super::cell::{CellSizes, matrix, transposed};

/// Most gates of the steps that are computed at a time, unless a step alone has more: they stay in a cache.
const MOST_GATES: usize = 1 << 18;

/// The tensors before the first step, and the weights.
pub struct Given<'a> {
    /// The inputs of all steps.
    pub x: &'a [f32],
    pub states: &'a [f32],
    pub outputs: &'a [f32],
    pub w: &'a [f32],
}

/// The results that a gradient needs: each of all steps.
pub struct Results<'a> {
    pub i: &'a [f32],
    pub cs: &'a [f32],
    pub f: &'a [f32],
    pub o: &'a [f32],
    pub ci: &'a [f32],
    pub co: &'a [f32],
    pub h: &'a [f32],
}

/// The gradients of everything that a sequence is computed from.
pub struct Gradients {
    pub x: Vec<f32>,
    pub states: Vec<f32>,
    pub outputs: Vec<f32>,
    pub w: Vec<f32>,
    pub peepholes: [Vec<f32>; 3],
    pub biases: Vec<f32>,
}

/// The steps, of `count`, that are computed at a time: about as many each time.
fn block(sizes: &CellSizes, count: usize) -> usize {
    let most = MOST_GATES.checked_div(sizes.batch * 4 * sizes.cells).unwrap_or(count).max(1);
    count.div_ceil(count.div_ceil(most).max(1)).max(1)
}

/// A step of some examples: its gates before their activations, and its results.
struct StepRows<'a> {
    gates: &'a mut [f32],
    results: [&'a mut [f32]; 7],
}

/// Writes the results of the first `count` steps.
pub fn forward(sizes: &CellSizes, lstm: &Lstm, count: usize, given: &Given, parts: &mut [Vec<f32>; 7]) -> Result<()> {
    let (batch, inputs, cells) = (sizes.batch, sizes.inputs, sizes.cells);
    let (each, columns) = (batch * cells, 4 * cells);
    if count * each == 0 {
        return Ok(());
    }
    let [of_inputs, of_outputs] = sizes.weights(given.w, columns).map(|weights| Panels::of(weights, count * batch));
    let block = block(sizes, count);
    let mut gates = CellSizes::zeros(block * batch, columns)?;
    for first in (0..count).step_by(block) {
        let steps = block.min(count - first);
        let gates = &mut gates[..steps * batch * columns];
        of_inputs.spread(matrix(&given.x[first * batch * inputs..], [steps * batch, inputs]), false, gates);
        let rows = of_outputs.chunk(batch, steps);
        let (mut before, mut parts) = (Vec::with_capacity(7), parts.each_mut().map(|part| &mut part[..]));
        for part in &mut parts {
            let (done, left) = std::mem::take(part).split_at_mut(first * each);
            before.push(&done[first.saturating_sub(1) * each..]);
            *part = left;
        }
        let [states, outputs] = if first == 0 { [given.states, given.outputs] } else { [before[1], before[6]] };
        let mut chunks: Vec<Vec<StepRows>> = (0..batch.div_ceil(rows)).map(|_| Vec::with_capacity(steps)).collect();
        let mut parts = parts.map(|part| part.chunks_exact_mut(each));
        for gates in gates.chunks_exact_mut(batch * columns) {
            let mut results = parts.each_mut().map(|steps| {
                let step = steps.next().expect("a result of each step");
                step.chunks_mut(rows * cells)
            });
            for (chunk, gates) in chunks.iter_mut().zip(gates.chunks_mut(rows * columns)) {
                let results = results.each_mut().map(|rows| rows.next().expect("a result of each example"));
                chunk.push(StepRows { gates, results });
            }
        }
        let before = states.chunks(rows * cells).zip(outputs.chunks(rows * cells));
        in_chunks(chunks.into_iter().zip(before), |(mut steps, (states, outputs))| {
            for t in 0..steps.len() {
                let (done, left) = steps.split_at_mut(t);
                let (states, outputs) =
                    done.last().map_or((states, outputs), |step| (&*step.results[1], &*step.results[6]));
                let step = &mut left[0];
                of_outputs.multiply(matrix(outputs, [outputs.len() / cells, cells]), true, step.gates);
                lstm.forward(step.gates, states, &mut step.results);
            }
        });
    }
    Ok(())
}

/// Some examples on the way back: the gradients of the gates of each step, and those of the states and the outputs after it.
struct BackRows<'a> {
    gates: Vec<&'a mut [f32]>,
    states: &'a mut [f32],
    /// Of the states before the step.
    next_states: &'a mut [f32],
    outputs: &'a mut [f32],
}

/// The gradients through the first `count` steps, from those of all states and outputs.
pub fn backward(
    sizes: &CellSizes,
    lstm: &Lstm,
    count: usize,
    given: &Given,
    results: &Results,
    [cs_grad, h_grad]: [&[f32]; 2],
) -> Result<Gradients> {
    let (batch, inputs, cells) = (sizes.batch, sizes.inputs, sizes.cells);
    let (each, columns) = (batch * cells, 4 * cells);
    let zeros = |len: usize| CellSizes::zeros(1, len);
    let mut sums = Gradients {
        x: zeros(given.x.len())?,
        states: zeros(each)?,
        outputs: zeros(each)?,
        w: zeros(given.w.len())?,
        peepholes: [zeros(cells)?, zeros(cells)?, zeros(cells)?],
        biases: zeros(columns)?,
    };
    if count * each == 0 {
        return Ok(sums);
    }
    let [of_inputs, of_outputs] =
        sizes.weights(given.w, columns).map(|weights| Panels::of(transposed(weights), count * batch));
    let block = block(sizes, count);
    let (mut gates, mut next_states) = (CellSizes::zeros(block * batch, columns)?, zeros(each)?);
    for first in (0..count).step_by(block).rev() {
        let steps = block.min(count - first);
        let gates = &mut gates[..steps * batch * columns];
        let rows = of_outputs.chunk(batch, steps);
        let states = sums.states.chunks_mut(rows * cells).zip(next_states.chunks_mut(rows * cells));
        let after = states.zip(sums.outputs.chunks_mut(rows * cells));
        let mut chunks: Vec<BackRows> = after
            .map(|((states, next_states), outputs)| BackRows {
                gates: Vec::with_capacity(steps),
                states,
                next_states,
                outputs,
            })
            .collect();
        for gates in gates.chunks_exact_mut(batch * columns) {
            chunks.iter_mut().zip(gates.chunks_mut(rows * columns)).for_each(|(chunk, gates)| chunk.gates.push(gates));
        }
        in_chunks(chunks.into_iter().enumerate(), |(i, chunk)| {
            let BackRows { gates, mut states, mut next_states, outputs } = chunk;
            let len = outputs.len();
            for (t, gates) in gates.into_iter().enumerate().rev() {
                let at = (first + t) * each + i * rows * cells;
                let of = |all| part_of(all, at, len);
                let past = LstmPast {
                    states_before: match first + t {
                        0 => part_of(given.states, at, len),
                        _ => part_of(results.cs, at - each, len),
                    },
                    input_gates: of(results.i),
                    forget_gates: of(results.f),
                    output_gates: of(results.o),
                    cell_inputs: of(results.ci),
                    outputs: of(results.co),
                };
                lstm.backward(past, [of(cs_grad), states], [of(h_grad), outputs], gates, next_states);
                of_outputs.multiply(matrix(gates, [len / cells, columns]), false, outputs);
                std::mem::swap(&mut states, &mut next_states);
            }
        });
        // The gradients after the last of these steps and before the first have changed places at each of them.
        if steps % 2 == 1 {
            std::mem::swap(&mut sums.states, &mut next_states);
        }
        let through = matrix(gates, [steps * batch, columns]);
        let x = first * batch * inputs..(first + steps) * batch * inputs;
        of_inputs.spread(through, false, &mut sums.x[x.clone()]);
        // The outputs before each of these steps.
        let joined;
        let outputs = match first {
            0 => {
                joined = [given.outputs, &results.h[..(steps - 1) * each]].concat();
                &joined[..]
            }
            _ => &results.h[(first - 1) * each..],
        };
        let panels = Panels::of(through, inputs + cells);
        let (of_inputs, of_outputs) = sums.w.split_at_mut(inputs * columns);
        panels.spread(transposed(matrix(&given.x[x], [steps * batch, inputs])), true, of_inputs);
        panels.spread(transposed(matrix(outputs, [steps * batch, cells])), true, of_outputs);
        let ones = MatrixView { elements: &[1.0], dims: [1, steps * batch], steps: [0, 0] };
        panels.multiply(ones, true, &mut sums.biases);
        if lstm.peepholes.is_some() {
            for t in 0..steps {
                let states_before = match first + t {
                    0 => given.states,
                    t => part_of(results.cs, (t - 1) * each, each),
                };
                let states = [states_before, states_before, part_of(results.cs, (first + t) * each, each)];
                add_peepholes(lstm, &gates[t * batch * columns..][..batch * columns], states, &mut sums.peepholes);
            }
        }
    }
    Ok(sums)
}

fn part_of(all: &[f32], at: usize, len: usize) -> &[f32] {
    &all[at..at + len]
}

/// Adds the gradients of the peephole weights in a step, from those of its gates: of the input, the forget and the output
/// gate, each with the states that take part in it.
pub fn add_peepholes(lstm: &Lstm, gates: &[f32], states: [&[f32]; 3], sums: &mut [Vec<f32>; 3]) {
    let cells = lstm.cells;
    for ((sum, gate), states) in sums.iter_mut().zip([0, lstm.forget_at, 3]).zip(states) {
        for (gates, states) in gates.chunks_exact(4 * cells).zip(states.chunks_exact(cells)) {
            let terms = gates[gate * cells..].iter().zip(states);
            sum.iter_mut().zip(terms).for_each(|(sum, (gate, state))| *sum += gate * state);
        }
    }
}
