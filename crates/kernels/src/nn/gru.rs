//! One step of a gated recurrent unit, and its gradient.
//!
//! Examples are independent of one another: a thread computes all of the step for some of them.

use meshtf_loops::chunks::in_chunks;
use meshtf_loops::vector::{Gru, Panels, Strided, row_sums};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};
use smallvec::smallvec;

use super::super::call::take;
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::cell::{CellSizes, check, matrix, transposed};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("GRUBlockCell", |node| for_f32(node, |inputs| forward(take(inputs)?)));
    ops.insert("GRUBlockCellGrad", |node| for_f32(node, |inputs| backward(take(inputs)?)));
}

fn for_f32(node: &KernelNode, kernel: fn(Inputs) -> Result<Outputs>) -> Result<Option<HostKernel>> {
    Ok((node.attrs.dtype("T")? == DType::F32).then(|| Box::new(kernel) as HostKernel))
}

/// The sizes, after a check of the weights of the two gates and of the candidate.
fn sizes([x, h_prev, w_ru, w_c, b_ru, b_c]: [&Tensor; 6]) -> Result<CellSizes> {
    let sizes = CellSizes::of(x.shape(), ("h_prev", h_prev.shape()), 2)?;
    sizes.check_weights(("w_ru", w_ru), ("b_ru", b_ru))?;
    check("w_c", w_c, &[("input_size + cell_size", sizes.inputs + sizes.cells), ("cell_size", sizes.cells)])?;
    check("b_c", b_c, &[("cell_size", sizes.cells)])?;
    Ok(sizes)
}

/// The reset gate, the update gate, the candidate and the output; `[batch, cells]` each.
fn forward([x, h_prev, w_ru, w_c, b_ru, b_c]: [Tensor; 6]) -> Result<Outputs> {
    let sizes = sizes([&x, &h_prev, &w_ru, &w_c, &b_ru, &b_c])?;
    let (batch, inputs, cells) = (sizes.batch, sizes.inputs, sizes.cells);
    let mut parts = [0; 4].map(|_| Vec::new());
    for part in &mut parts {
        *part = CellSizes::zeros(batch, cells)?;
    }
    if batch * cells > 0 {
        let (xs, before, b_ru, b_c) = (x.slice::<f32>()?, h_prev.slice::<f32>()?, b_ru.slice()?, b_c.slice()?);
        let [ru_of_x, ru_of_h] = sizes.weights(w_ru.slice()?, 2 * cells).map(|weights| Panels::of(weights, batch));
        let [c_of_x, c_of_h] = sizes.weights(w_c.slice()?, cells).map(|weights| Panels::of(weights, batch));
        let rows = ru_of_h.chunk(batch, 2);
        let mut gates = CellSizes::zeros(batch, 2 * cells)?;
        let [r, u, c, h] = parts.each_mut().map(|part| part.chunks_mut(rows * cells));
        let chunks = gates.chunks_mut(rows * 2 * cells).zip(r.zip(u).zip(c.zip(h))).enumerate();
        in_chunks(chunks, |(chunk, (gates, ((r, u), (c, h))))| {
            let count = r.len() / cells;
            let gru = Gru { sizes: [count, cells] };
            let x = matrix(&xs[chunk * rows * inputs..], [count, inputs]);
            let before = &before[chunk * rows * cells..][..r.len()];
            ru_of_x.multiply(x, false, gates);
            ru_of_h.multiply(matrix(before, [count, cells]), true, gates);
            // The outputs that the reset gates leave, until the outputs themselves are known.
            gru.gates(gates, b_ru, before, &mut [&mut *r, &mut *u, &mut *h]);
            let candidates = &mut gates[..r.len()];
            c_of_x.multiply(x, false, candidates);
            c_of_h.multiply(matrix(h, [count, cells]), true, candidates);
            gru.outputs(candidates, b_c, u, before, &mut [c, h]);
        });
    }
    Ok(parts.into_iter().map(|part| Tensor::from_vec([batch, cells], part)).collect())
}

/// The gradients of the input and of the previous output, and those of the candidate and of the gates before their
/// activations.
fn backward([x, h_prev, w_ru, w_c, b_ru, b_c, r, u, c, d_h]: [Tensor; 10]) -> Result<Outputs> {
    let sizes = sizes([&x, &h_prev, &w_ru, &w_c, &b_ru, &b_c])?;
    let (batch, inputs, cells) = (sizes.batch, sizes.inputs, sizes.cells);
    for (name, value) in [("r", &r), ("u", &u), ("c", &c), ("d_h", &d_h)] {
        sizes.check(name, value)?;
    }
    let columns = inputs + cells;
    let mut d_x = CellSizes::zeros(batch, inputs)?;
    let (mut d_before, mut d_c) = (CellSizes::zeros(batch, cells)?, CellSizes::zeros(batch, cells)?);
    let mut d_gates = CellSizes::zeros(batch, 2 * cells)?;
    if batch * cells > 0 {
        let before = h_prev.slice::<f32>()?;
        let (r, u, c, d_h) = (r.slice::<f32>()?, u.slice::<f32>()?, c.slice::<f32>()?, d_h.slice::<f32>()?);
        let of_gates = Panels::of(transposed(matrix(w_ru.slice()?, [columns, 2 * cells])), batch);
        let of_candidates = Panels::of(transposed(matrix(w_c.slice()?, [columns, cells])), batch);
        let rows = of_gates.chunk(batch, 2);
        let mut through = CellSizes::zeros(batch, 2 * columns)?;
        // Without inputs, their gradients have no chunks.
        let mut d_xs = d_x.chunks_mut((rows * inputs).max(1));
        let d_states = d_before.chunks_mut(rows * cells).zip(d_c.chunks_mut(rows * cells));
        let chunks = d_states.zip(d_gates.chunks_mut(rows * 2 * cells)).zip(through.chunks_mut(rows * 2 * columns));
        let chunks = chunks.map(|chunk| (d_xs.next().unwrap_or_default(), chunk));
        in_chunks(chunks.enumerate(), |(chunk, (d_x, (((d_before, d_c), d_gates), through)))| {
            let count = d_c.len() / cells;
            let gru = Gru { sizes: [count, cells] };
            let [before, r, u, c, d_h] = [before, r, u, c, d_h].map(|all| &all[chunk * rows * cells..][..d_c.len()]);
            let (through_c, through_gates) = through.split_at_mut(count * columns);
            gru.by_candidates(d_h, u, c, d_c);
            of_candidates.multiply(matrix(d_c, [count, cells]), false, through_c);
            let by_left = Strided { elements: &through_c[inputs..], apart: columns };
            gru.by_gates(by_left, d_h, before, [r, u, c], d_gates);
            of_gates.multiply(matrix(d_gates, [count, 2 * cells]), false, through_gates);
            let by_gates = |at: usize| Strided { elements: &through_gates[at..], apart: columns };
            gru.by_outputs_before(by_gates(inputs), by_left, d_h, [r, u], d_before);
            row_sums([count, inputs], [by_gates(0), Strided { elements: through_c, apart: columns }], d_x);
        });
    }
    let of_batch = |columns: usize, values: Vec<f32>| Tensor::from_vec([batch, columns], values);
    Ok(smallvec![of_batch(inputs, d_x), of_batch(cells, d_before), of_batch(cells, d_c), of_batch(2 * cells, d_gates)])
}
