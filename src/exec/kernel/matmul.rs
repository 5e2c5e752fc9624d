//! MatMul, BatchMatMul and Einsum on the host, for every dtype; a burn backend has the fast ones.

mod einsum;

use super::broadcast::Broadcast;
use super::call::{self, input_dtype, kernel as call, no_kernel};
use super::{HostKernel, KernelNode};
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Float, Numeric, Shape, Tensor, with_float, with_integer};

/// Rows of the product that are made together, so that each row of the right matrix is read once for all of them.
const BLOCK_ROWS: usize = 8;

/// The kernel of a node whose op multiplies matrices.
///
/// # Errors
/// InvalidArgument where the op has no kernel for the dtype, or an equation has no meaning.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let (adjoint_x, adjoint_y, broadcasts) = match node.op {
        "MatMul" => (node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?, None),
        "BatchMatMul" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Some(false)),
        "BatchMatMulV2" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Some(true)),
        "Einsum" => return einsum::kernel(node),
        _ => return Ok(None),
    };
    if multiplication(input_dtype(node, 0)?).is_none() {
        return no_kernel(node);
    }
    Ok(Some(call(move |[x, y]: [Tensor; 2]| match broadcasts {
        None if x.rank() != 2 || y.rank() != 2 => Err(Failure::invalid(format!(
            "In[0] and In[1] has different ndims or are no matrices: {} vs. {}",
            x.shape(),
            y.shape()
        ))),
        Some(false)
            if x.rank() != y.rank()
                || x.dims()[..x.rank().saturating_sub(2)] != y.dims()[..y.rank().saturating_sub(2)] =>
        {
            Err(Failure::invalid(format!(
                "In[0] and In[1] must have compatible batch dimensions: {} vs. {}",
                x.shape(),
                y.shape()
            )))
        }
        _ => matmul(&x, &y, adjoint_x, adjoint_y),
    })))
}

/// The product of the matrices in the last two dimensions, each transposed first where asked; the dimensions before
/// are broadcast.
///
/// # Errors
/// InvalidArgument where the sizes do not fit, ResourceExhausted where the product would be too large.
pub fn matmul(x: &Tensor, y: &Tensor, adjoint_x: bool, adjoint_y: bool) -> Result<Tensor> {
    let multiply = multiplication(x.dtype())
        .ok_or_else(|| Failure::invalid(format!("matrices of {} cannot be multiplied", x.dtype())))?;
    let (Some(x_batch), Some(y_batch)) = (x.rank().checked_sub(2), y.rank().checked_sub(2)) else {
        return Err(Failure::invalid(format!("In[0] and In[1] ndims must be >= 2: {} vs. {}", x.shape(), y.shape())));
    };
    let matrix = |tensor: &Tensor, batch: usize, adjoint: bool| {
        let (rows, columns) = (tensor.dims()[batch], tensor.dims()[batch + 1]);
        if adjoint { (columns, rows) } else { (rows, columns) }
    };
    let ((m, k), (k2, n)) = (matrix(x, x_batch, adjoint_x), matrix(y, y_batch, adjoint_y));
    if k != k2 {
        return Err(Failure::invalid(format!("Matrix size-incompatible: In[0]: {}, In[1]: {}", x.shape(), y.shape())));
    }
    let (x_batches, y_batches) = (Shape::from(&x.dims()[..x_batch]), Shape::from(&y.dims()[..y_batch]));
    let batches = x_batches.broadcast(&y_batches).map_err(|_| {
        Failure::invalid(format!(
            "In[0] and In[1] must have compatible batch dimensions: {} vs. {}",
            x.shape(),
            y.shape()
        ))
    })?;
    let shape: Shape = batches.dims().iter().copied().chain([m, n]).collect();
    shape.checked_elements(x.dtype())?;
    let mut pairs = Vec::with_capacity(call::product(batches.dims()));
    let walk = Broadcast::new(&batches, [&x_batches, &y_batches]);
    let (row, [step_x, step_y]) = (walk.row(), walk.steps());
    walk.for_each_row(|[a, b]| pairs.extend((0..row).map(|i| (a + i * step_x, b + i * step_y))));
    multiply(
        Operand { tensor: x, adjoint: adjoint_x },
        Operand { tensor: y, adjoint: adjoint_y },
        &pairs,
        [m, k, n],
        shape,
    )
}

struct Operand<'a> {
    tensor: &'a Tensor,
    adjoint: bool,
}

type Multiply = fn(Operand, Operand, &[(usize, usize)], [usize; 3], Shape) -> Result<Tensor>;

fn multiplication(dtype: DType) -> Option<Multiply> {
    with_float!(dtype, T => if T::WIDE { by_rows::<T, f64> as Multiply } else { by_rows::<T, f32> })
        .or_else(|| with_integer!(dtype, T => by_rows::<T, i64> as Multiply))
}

/// What products are added up in: for halves f32, as TensorFlow does; for integers i64, whose low bits are those of
/// any narrower sum.
trait Accumulator: Copy {
    const ZERO: Self;
    fn load<T: Numeric>(x: T) -> Self;
    fn store<T: Numeric>(self) -> T;
    fn multiply_add(self, x: Self, y: Self) -> Self;
}

macro_rules! accumulator {
    ($($type:ty, $load:expr, $store:expr, $fma:expr;)*) => {
        $(impl Accumulator for $type {
            const ZERO: Self = 0 as $type;
            fn load<T: Numeric>(x: T) -> Self { $load(x) }
            fn store<T: Numeric>(self) -> T { $store(self) }
            fn multiply_add(self, x: Self, y: Self) -> Self { $fma(self, x, y) }
        })*
    };
}

accumulator! {
    f32, |x: T| x.to_f64() as f32, |x| T::from_f64(f64::from(x)), |sum: f32, x: f32, y: f32| sum + x * y;
    f64, T::to_f64, T::from_f64, |sum: f64, x: f64, y: f64| sum + x * y;
    i64, T::to_i64, T::from_i64, |sum: i64, x: i64, y: i64| sum.wrapping_add(x.wrapping_mul(y));
}

fn by_rows<T: Numeric, A: Accumulator>(
    x: Operand,
    y: Operand,
    pairs: &[(usize, usize)],
    [m, k, n]: [usize; 3],
    shape: Shape,
) -> Result<Tensor> {
    let (xs, ys) = (x.tensor.slice::<T>()?, y.tensor.slice::<T>()?);
    let mut out = Vec::with_capacity(pairs.len() * m * n);
    let mut sums = vec![A::ZERO; BLOCK_ROWS * n];
    let mut right: Vec<A> = Vec::new();
    let mut loaded = None;
    for &(i, j) in pairs {
        // The right matrix as accumulators, row by row; made once where several left ones meet it.
        if loaded != Some(j) {
            let matrix = &ys[j * k * n..(j + 1) * k * n];
            right.clear();
            if y.adjoint {
                right.extend((0..k).flat_map(|p| (0..n).map(move |q| A::load(matrix[q * k + p]))));
            } else {
                right.extend(matrix.iter().map(|&y| A::load(y)));
            }
            loaded = Some(j);
        }
        let left = &xs[i * m * k..(i + 1) * m * k];
        let at = |row: usize, p: usize| A::load(if x.adjoint { left[p * m + row] } else { left[row * k + p] });
        for first in (0..m).step_by(BLOCK_ROWS) {
            let rows = BLOCK_ROWS.min(m - first);
            let sums = &mut sums[..rows * n];
            sums.fill(A::ZERO);
            for p in 0..k {
                let ys = &right[p * n..(p + 1) * n];
                for row in 0..rows {
                    let x = at(first + row, p);
                    for (sum, &y) in sums[row * n..(row + 1) * n].iter_mut().zip(ys) {
                        *sum = sum.multiply_add(x, y);
                    }
                }
            }
            out.extend(sums.iter().map(|sum| sum.store::<T>()));
        }
    }
    Ok(Tensor::from_vec(shape, out))
}
