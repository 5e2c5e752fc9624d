//! Products of matrices on one thread, directly from and to their elements.

#![allow(unsafe_code, reason = "gemm takes pointers")]

use crate::exec::engine::{Memory, Value};
use crate::exec::vector::{MatrixView, by_transpose};

/// The matrix of float32 in this process's memory that a value is; `None` if it is none, is empty, or lies elsewhere or
/// backwards.
pub(super) fn matrix(value: &Value, is_transposed: bool) -> Option<MatrixView<'_>> {
    let &[rows, columns] = value.shape().dims() else { return None };
    let (elements, [row, column]) = match value {
        Value::Host(tensor) => (tensor.slice().ok()?, [columns, 1]),
        Value::Device(tensor) => match tensor.memory.as_ref() {
            Some(Memory::Flex(raw)) if raw.dtype() == burn_backend::DType::F32 => {
                let &[row, column] = raw.layout().strides() else { return None };
                let steps = [usize::try_from(row).ok()?, usize::try_from(column).ok()?];
                (raw.storage::<f32>().get(raw.layout().start_offset()..)?, steps)
            }
            _ => return None,
        },
    };
    let matrix = match is_transposed {
        false => MatrixView { elements, dims: [rows, columns], steps: [row, column] },
        true => MatrixView { elements, dims: [columns, rows], steps: [column, row] },
    };
    lies_within(&matrix).then_some(matrix)
}

/// Whether it has elements, and all of them are there.
fn lies_within(matrix: &MatrixView) -> bool {
    let last = |i: usize| matrix.dims[i].checked_sub(1)?.checked_mul(matrix.steps[i]);
    let last = || last(0)?.checked_add(last(1)?);
    last().is_some_and(|last| last < matrix.elements.len())
}

/// Adds the product of `x` and `y` to `to`, or writes it over that. `y` is put in order first if it is a transpose and the
/// product is `in_order`.
///
/// # Panics
/// If a matrix is not within its elements, or the sizes do not fit.
pub(super) fn multiply(x: MatrixView, y: MatrixView, in_order: bool, adds: bool, to: &mut [f32]) {
    assert!(lies_within(&x) && lies_within(&y), "the matrices have elements");
    let [k, n] = y.dims;
    let m = x.dims[0];
    assert!(x.dims[1] == k && to.len() == m * n, "the sizes were compared");
    if in_order {
        return by_transpose(x, y, adds, to);
    }
    let [[x_row, x_column], [y_row, y_column]] = [x.steps, y.steps].map(|steps| steps.map(|step| step as isize));
    let (out, left, right, alone) =
        (to.as_mut_ptr(), x.elements.as_ptr(), y.elements.as_ptr(), gemm::Parallelism::None);
    let (n_step, old) = (n as isize, if adds { 1.0 } else { 0.0 });
    // SAFETY: the last element of each factor is there, and so are those before it; `to` is borrowed exclusively, and of `m` by
    // `n` elements.
    unsafe {
        gemm::gemm(
            m, n, k, out, 1, n_step, adds, left, x_column, x_row, right, y_column, y_row, old, 1.0, false, false,
            false, alone,
        );
    }
}

/// Whether the product of so many rows and `y`, a transpose, takes less time if `y` is put in order. gemm reads it element by
/// element, each from another row, which takes up to four times as long. It has other ways for few rows or few columns, and
/// beside very many rows it does not matter.
pub(super) fn is_better_in_order(rows: usize, y: &MatrixView) -> bool {
    let [step, apart] = y.steps;
    step == 1 && apart >= 16 && (3..=1024).contains(&rows) && rows * y.dims[1] > UNPACKED
}

/// Up to this many elements of a product of rows by rows are computed without packing.
pub(super) const UNPACKED: usize = 256;
