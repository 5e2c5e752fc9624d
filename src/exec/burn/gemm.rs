//! Products of matrices on one thread, directly from and to their elements.

#![allow(unsafe_code, reason = "gemm takes pointers")]

use crate::exec::engine::{Memory, Value};

/// A matrix of float32 in this process's memory.
#[derive(Clone, Copy)]
pub(super) struct Factor<'a> {
    /// From its first element on; the last is there, too.
    elements: &'a [f32],
    /// Rows and columns.
    pub dims: [usize; 2],
    /// How far the next row lies, and the next column.
    pub steps: [usize; 2],
}

impl<'a> Factor<'a> {
    /// `None` if it is no matrix, is empty, or lies elsewhere or backwards.
    pub fn of(value: &'a Value, is_transposed: bool) -> Option<Factor<'a>> {
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
        let last = rows.checked_sub(1)? * row + columns.checked_sub(1)? * column;
        let factor = match is_transposed {
            false => Factor { elements, dims: [rows, columns], steps: [row, column] },
            true => Factor { elements, dims: [columns, rows], steps: [column, row] },
        };
        (last < elements.len()).then_some(factor)
    }

    /// Without so many of the first rows.
    pub fn below(&self, rows: usize) -> Factor<'a> {
        Factor { elements: &self.elements[rows * self.steps[0]..], dims: [self.dims[0] - rows, self.dims[1]], ..*self }
    }
}

/// Adds the product of the first rows of `x`, as many as `to` has, and `y` to `to`, or writes it over that.
pub(super) fn multiply(x: Factor, y: Factor, adds: bool, to: &mut [f32]) {
    let [k, n] = y.dims;
    let m = to.len() / n;
    assert!(m <= x.dims[0] && x.dims[1] == k && to.len() == m * n, "the sizes were compared");
    let [[x_row, x_column], [y_row, y_column]] = [x.steps, y.steps].map(|steps| steps.map(|step| step as isize));
    let (out, left, right, alone) =
        (to.as_mut_ptr(), x.elements.as_ptr(), y.elements.as_ptr(), gemm::Parallelism::None);
    let (n_step, old) = (n as isize, if adds { 1.0 } else { 0.0 });
    // SAFETY: `Factor::of` has seen to it that the last element of each factor is there; `to` is borrowed exclusively, and of
    // `m` by `n` elements.
    unsafe {
        gemm::gemm(
            m, n, k, out, 1, n_step, adds, left, x_column, x_row, right, y_column, y_row, old, 1.0, false, false,
            false, alone,
        );
    }
}
