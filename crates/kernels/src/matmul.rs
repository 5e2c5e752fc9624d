//! MatMul, BatchMatMul and Einsum on the host, for every dtype; the burn backends have faster versions.

mod einsum;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Complex, DType, Ring, Shape, Tensor, with_type};

use super::broadcast::Broadcast;
use super::call::{self, input_dtype, kernel as call, no_kernel, output_dtype};
use super::math::{cast, map, wide};
use super::{HostKernel, KernelNode, Registry};

/// Rows of the product that are computed together, so that each row of the right matrix is read once for all of them.
const BLOCK_ROWS: usize = 8;

/// Registers the products of matrices.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("MatMul", |node| kernel(node, ["transpose_a", "transpose_b"], None));
    ops.insert("BatchMatMul", |node| kernel(node, ["adj_x", "adj_y"], Some(false)));
    ops.insert("BatchMatMulV2", |node| kernel(node, ["adj_x", "adj_y"], Some(true)));
    ops.insert("BatchMatMulV3", |node| {
        let (x, y, product) = (input_dtype(node, 0)?, input_dtype(node, 1)?, output_dtype(node, 0)?);
        if x == y && x == product {
            return kernel(node, ["adj_x", "adj_y"], Some(true));
        }
        // TensorFlow's CPU kernels multiply 8-bit integers with each other, to int32, and with bfloat16.
        let is_byte = |dtype: DType| matches!(dtype, DType::I8 | DType::U8);
        let is_held = match product {
            DType::I32 => is_byte(x) && is_byte(y),
            DType::BF16 => (is_byte(x) && y == DType::BF16) || (x == DType::BF16 && is_byte(y)),
            _ => false,
        };
        let (adjoint_x, adjoint_y) = (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?);
        Ok(is_held.then(|| {
            call(move |[x, y]: [Tensor; 2]| matmul(&cast(x, product)?, &cast(y, product)?, adjoint_x, adjoint_y))
        }))
    });
    ops.insert("Einsum", einsum::kernel);
}

/// The kernel of a product. `flags` are the attributes that turn the factors; `broadcasts` is `None` for matrices, and otherwise
/// whether batches of different shapes are broadcast.
fn kernel(node: &KernelNode, flags: [&str; 2], broadcasts: Option<bool>) -> Result<Option<HostKernel>> {
    let (adjoint_x, adjoint_y) = (node.attrs.bool(flags[0])?, node.attrs.bool(flags[1])?);
    let dtype = input_dtype(node, 0)?;
    if !dtype.is_differentiable() && !dtype.is_integer() {
        return no_kernel(node);
    }
    Ok(Some(call(move |[x, y]: [Tensor; 2]| match broadcasts {
        None if x.rank() != 2 || y.rank() != 2 => {
            Err(Failure::invalid(format!("In[0] and In[1] must both be matrices: {} vs. {}", x.shape(), y.shape())))
        }
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
        // MatMul's adjoint is the transpose only; the other ops conjugate, too.
        Some(_) => matmul(&x, &y, adjoint_x, adjoint_y),
        None => matmul(&conjugated(x, adjoint_x)?, &conjugated(y, adjoint_y)?, adjoint_x, adjoint_y),
    })))
}

/// The products of the matrices in the last two dimensions, with adjoint operands transposed and conjugated first. The
/// other dimensions are broadcast.
///
/// # Errors
/// InvalidArgument if the sizes do not match, ResourceExhausted if the product would be too large.
pub fn matmul(x: &Tensor, y: &Tensor, adjoint_x: bool, adjoint_y: bool) -> Result<Tensor> {
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
    if shape.checked_elements(x.dtype())? == 0 {
        return Tensor::zeros(x.dtype(), shape);
    }
    let mut pairs = Vec::with_capacity(call::product(batches.dims()));
    let walk = Broadcast::new(&batches, [&x_batches, &y_batches]);
    let (row, [step_x, step_y]) = (walk.row(), walk.steps());
    for [a, b] in walk.rows() {
        pairs.extend((0..row).map(|i| (a + i * step_x, b + i * step_y)));
    }
    // The low bits of a product of wider integers are those of the narrow product.
    let dtype = if x.dtype().is_integer() { DType::I64 } else { wide(x.dtype()) };
    let wide_x = conjugated(cast(x.clone(), dtype)?, adjoint_x)?;
    let wide_y = conjugated(cast(y.clone(), dtype)?, adjoint_y)?;
    let operands = [Operand { tensor: &wide_x, adjoint: adjoint_x }, Operand { tensor: &wide_y, adjoint: adjoint_y }];
    with_type!(dtype, T => by_rows::<T>(operands, &pairs, [m, k, n], shape); F32 f32, F64 f64, I64 i64,
        C64 Complex<f32>, C128 Complex<f64>)
    .unwrap_or_else(|| Err(Failure::invalid(format!("matrices of {} cannot be multiplied", x.dtype()))))
    .and_then(|product| cast(product, x.dtype()))
}

/// The conjugates of complex numbers, if `wanted`; any other tensor unchanged.
fn conjugated(x: Tensor, wanted: bool) -> Result<Tensor> {
    if !wanted {
        return Ok(x);
    }
    match x.dtype() {
        DType::C64 => map(x, |x: Complex<f32>| x.conj()),
        DType::C128 => map(x, |x: Complex<f64>| x.conj()),
        _ => Ok(x),
    }
}

struct Operand<'a> {
    tensor: &'a Tensor,
    adjoint: bool,
}

/// The products of pairs of matrices, given by their indices in the batches.
fn by_rows<T: Ring>(
    [x, y]: [Operand; 2],
    pairs: &[(usize, usize)],
    [m, k, n]: [usize; 3],
    shape: Shape,
) -> Result<Tensor> {
    let (xs, ys) = (x.tensor.slice::<T>()?, y.tensor.slice::<T>()?);
    let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
    let mut sums = vec![T::ZERO; BLOCK_ROWS * n];
    let mut right: Vec<T> = Vec::new();
    let mut loaded = None;
    let mut pace = Pace::new();
    for &(i, j) in pairs {
        // The right matrix in row order, kept while consecutive left matrices use it.
        if loaded != Some(j) {
            let matrix = &ys[j * k * n..(j + 1) * k * n];
            right.clear();
            if y.adjoint {
                for p in 0..k {
                    pace.go(8 * n);
                    right.extend((0..n).map(|q| matrix[q * k + p]));
                }
            } else {
                right.extend_from_slice(matrix);
            }
            loaded = Some(j);
        }
        let left = &xs[i * m * k..(i + 1) * m * k];
        let at = |row: usize, p: usize| if x.adjoint { left[p * m + row] } else { left[row * k + p] };
        for first in (0..m).step_by(BLOCK_ROWS) {
            let rows = BLOCK_ROWS.min(m - first);
            let sums = &mut sums[..rows * n];
            sums.fill(T::ZERO);
            for p in 0..k {
                pace.go(rows * n);
                let ys = &right[p * n..(p + 1) * n];
                for row in 0..rows {
                    let x = at(first + row, p);
                    for (sum, &y) in sums[row * n..(row + 1) * n].iter_mut().zip(ys) {
                        *sum = sum.add(x.mul(y));
                    }
                }
            }
            out.extend_from_slice(sums);
        }
    }
    Ok(Tensor::from_vec(shape, out))
}
