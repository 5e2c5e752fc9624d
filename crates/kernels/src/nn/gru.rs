//! One step of a gated recurrent unit, and its gradient.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

use super::super::call::take;
use super::super::matmul::matmul;
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::cell::{CellSizes, beside, check, narrow_rows, sigmoid};

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
    let (batch, cells) = (sizes.batch, sizes.cells);
    Shape::from([5, batch, cells]).checked_elements(DType::F32)?;
    let (x, before) = (x.slice::<f32>()?, h_prev.slice::<f32>()?);
    let gates = matmul(&beside(&sizes, x, before)?, &w_ru, false, false)?;
    let (gates, b_ru) = (gates.slice::<f32>()?, b_ru.slice::<f32>()?);
    let (mut r, mut u) = (Vec::with_capacity(batch * cells), Vec::with_capacity(batch * cells));
    for row in paced(0..batch, 20 * cells) {
        let gates = &gates[row * 2 * cells..][..2 * cells];
        r.extend((0..cells).map(|cell| sigmoid(gates[cell] + b_ru[cell])));
        u.extend((cells..2 * cells).map(|cell| sigmoid(gates[cell] + b_ru[cell])));
    }
    let left: Vec<f32> = before.iter().zip(&r).map(|(h, r)| h * r).collect();
    let candidates = matmul(&beside(&sizes, x, &left)?, &w_c, false, false)?;
    let (candidates, b_c) = (candidates.slice::<f32>()?, b_c.slice::<f32>()?);
    let mut c = Vec::with_capacity(batch * cells);
    for row in paced(0..batch, 10 * cells) {
        c.extend((0..cells).map(|cell| (candidates[row * cells + cell] + b_c[cell]).tanh()));
    }
    let h = u.iter().zip(before).zip(&c).map(|((u, h), c)| u * (h - c) + c).collect();
    let of_batch = |values: Vec<f32>| Tensor::from_vec([batch, cells], values);
    Ok(smallvec![of_batch(r), of_batch(u), of_batch(c), of_batch(h)])
}

/// The gradients of the input and of the previous output, and those of the candidate and of the gates before their
/// activations.
fn backward([x, h_prev, w_ru, w_c, b_ru, b_c, r, u, c, d_h]: [Tensor; 10]) -> Result<Outputs> {
    let sizes = sizes([&x, &h_prev, &w_ru, &w_c, &b_ru, &b_c])?;
    let (batch, cells) = (sizes.batch, sizes.cells);
    for (name, value) in [("r", &r), ("u", &u), ("c", &c), ("d_h", &d_h)] {
        sizes.check(name, value)?;
    }
    Shape::from([9, batch, cells]).checked_elements(DType::F32)?;
    let (before, r, u) = (h_prev.slice::<f32>()?, r.slice::<f32>()?, u.slice::<f32>()?);
    let (c, d_h) = (c.slice::<f32>()?, d_h.slice::<f32>()?);
    let each = || paced(0..batch * cells, 10);
    let d_c: Vec<f32> = each().map(|i| d_h[i] * (1.0 - u[i]) * (1.0 - c[i] * c[i])).collect();
    let d_c = Tensor::from_vec([batch, cells], d_c);
    let through_c = matmul(&d_c, &w_c, false, true)?;
    let mut d_left = vec![0f32; batch * cells];
    narrow_rows(&through_c, sizes.inputs, &mut d_left)?;
    let mut d_gates = Vec::with_capacity(2 * batch * cells);
    for row in paced(0..batch, 20 * cells) {
        let row = row * cells..(row + 1) * cells;
        d_gates.extend(row.clone().map(|i| d_left[i] * before[i] * r[i] * (1.0 - r[i])));
        d_gates.extend(row.map(|i| d_h[i] * (before[i] - c[i]) * u[i] * (1.0 - u[i])));
    }
    let d_gates = Tensor::from_vec([batch, 2 * cells], d_gates);
    let through_gates = matmul(&d_gates, &w_ru, false, true)?;
    let mut d_x = vec![0f32; x.shape().checked_elements(DType::F32)?];
    let mut more = vec![0f32; x.shape().checked_elements(DType::F32)?];
    narrow_rows(&through_gates, 0, &mut d_x)?;
    narrow_rows(&through_c, 0, &mut more)?;
    d_x.iter_mut().zip(more).for_each(|(sum, value)| *sum += value);
    let mut d_before = vec![0f32; batch * cells];
    narrow_rows(&through_gates, sizes.inputs, &mut d_before)?;
    each().for_each(|i| d_before[i] += d_left[i] * r[i] + d_h[i] * u[i]);
    let d_before = Tensor::from_vec([batch, cells], d_before);
    Ok(smallvec![Tensor::from_vec(x.shape().clone(), d_x), d_before, d_c, d_gates])
}
