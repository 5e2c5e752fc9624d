//! Sum, Prod, Mean, EuclideanNorm, Max, Min, All, Any and L2Loss.

use meshtf_loops::turn::blocks;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{
    Complex, DType, Element, Float, Integer, Numeric, Shape, Tensor, with_complex, with_integer, with_type,
};

use super::super::broadcast::Broadcast;
use super::super::call::{self, input_dtype, kernel as call};
use super::super::math::{Pair, widened};
use super::super::{HostKernel, KernelNode, Registry};

/// Independent lanes in which longer rows are folded.
const LANES: usize = 8;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Sum", |node| kernel(node, Fold::Sum));
    ops.insert("Prod", |node| kernel(node, Fold::Prod));
    ops.insert("Mean", |node| kernel(node, Fold::Mean));
    ops.insert("EuclideanNorm", |node| kernel(node, Fold::EuclideanNorm));
    ops.insert("Max", |node| extremes(node, true));
    ops.insert("Min", |node| extremes(node, false));
    ops.insert("All", |node| {
        let (dtype, keep_dims) = (input_dtype(node, 0)?, node.attrs.bool("keep_dims")?);
        Ok((dtype == DType::Bool).then(|| reduction(keep_dims, true, |x: bool| x, |x, y| x & y, |x, _| x)))
    });
    ops.insert("Any", |node| {
        let (dtype, keep_dims) = (input_dtype(node, 0)?, node.attrs.bool("keep_dims")?);
        Ok((dtype == DType::Bool).then(|| reduction(keep_dims, false, |x: bool| x, |x, y| x | y, |x, _| x)))
    });
    ops.insert("L2Loss", |node| {
        Ok(widened(
            input_dtype(node, 0)?,
            |dtype| with_type!(dtype, T => call(|[x]| l2_loss::<T>(&x)); F32 f32, F64 f64),
        ))
    });
}

/// A reduction that is computed differently for floats, integers and complex numbers.
#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Prod,
    Mean,
    EuclideanNorm,
}

fn kernel(node: &KernelNode, fold: Fold) -> Result<Option<HostKernel>> {
    let (dtype, keep_dims) = (input_dtype(node, 0)?, node.attrs.bool("keep_dims")?);
    if dtype.is_complex() {
        return Ok(with_complex!(dtype, T => of_complex::<T>(fold, keep_dims)));
    }
    Ok(widened(dtype, |dtype| {
        with_type!(dtype, T => of_floats::<T>(fold, keep_dims); F32 f32, F64 f64)
            .or_else(|| with_type!(dtype, T => of_integers::<T>(fold, keep_dims); I32 i32, I64 i64, U64 u64))
    }))
}

fn extremes(node: &KernelNode, greatest: bool) -> Result<Option<HostKernel>> {
    let (dtype, keep_dims) = (input_dtype(node, 0)?, node.attrs.bool("keep_dims")?);
    Ok(widened(
        dtype,
        |wide| with_type!(wide, T => extreme::<T>(greatest, dtype, keep_dims); F32 f32, F64 f64, I32 i32, I64 i64, U64 u64),
    ))
}

/// Reductions of floats, in f64, so that neither the order nor the number of elements costs precision.
fn of_floats<T: Float>(fold: Fold, keep_dims: bool) -> HostKernel {
    match fold {
        Fold::Sum => reduction(keep_dims, 0.0, T::to_f64, |x, y| x + y, |sum, _| T::from_f64(sum)),
        Fold::Prod => reduction(keep_dims, 1.0, T::to_f64, |x, y| x * y, |product, _| T::from_f64(product)),
        Fold::EuclideanNorm => euclidean_norm::<T>(keep_dims),
        Fold::Mean => reduction(keep_dims, 0.0, T::to_f64, |x, y| x + y, |sum, n| T::from_f64(sum / n as f64)),
    }
}

fn euclidean_norm<T: Numeric>(keep_dims: bool) -> HostKernel {
    let square = |x: T| x.to_f64() * x.to_f64();
    reduction(keep_dims, 0.0, square, |x, y| x + y, |sum: f64, _| T::from_f64(sum.sqrt()))
}

/// The mean of no elements is 0, as in TensorFlow.
fn of_complex<T: Pair>(fold: Fold, keep_dims: bool) -> HostKernel {
    let zero = Complex { re: 0.0, im: 0.0 };
    match fold {
        Fold::Sum => reduction(keep_dims, zero, T::wide, |x, y| x + y, |sum, _| T::from_wide(sum)),
        Fold::Prod => {
            let one = Complex { re: 1.0, im: 0.0 };
            reduction(keep_dims, one, T::wide, |x, y| x * y, |product, _| T::from_wide(product))
        }
        Fold::EuclideanNorm => {
            let square = |x: T| T::wide(x).re.powi(2) + T::wide(x).im.powi(2);
            let root = |sum: f64, _| T::from_wide(Complex { re: sum.sqrt(), im: 0.0 });
            reduction(keep_dims, 0.0, square, |x, y| x + y, root)
        }
        Fold::Mean => reduction(keep_dims, zero, T::wide, |x, y| x + y, |sum, n| T::from_wide(sum / n.max(1) as f64)),
    }
}

/// Reductions of integers, in i64, whose low bits are those of any narrower sum.
fn of_integers<T: Integer>(fold: Fold, keep_dims: bool) -> HostKernel {
    match fold {
        Fold::Sum => reduction(keep_dims, 0i64, T::to_i64, i64::wrapping_add, |sum, _| T::from_i64(sum)),
        Fold::Prod => reduction(keep_dims, 1i64, T::to_i64, i64::wrapping_mul, |product, _| T::from_i64(product)),
        Fold::EuclideanNorm => euclidean_norm::<T>(keep_dims),
        Fold::Mean => reduction(keep_dims, 0i64, T::to_i64, i64::wrapping_add, |sum, n| {
            let n = n.max(1);
            T::from_i64(if T::DTYPE == DType::U64 { (sum as u64 / n as u64) as i64 } else { sum / n as i64 })
        }),
    }
}

/// The greatest or least element; NaN if an element is NaN.
fn extreme<T: Numeric>(greatest: bool, dtype: DType, keep_dims: bool) -> HostKernel {
    let is_nan = |x: &T| x.partial_cmp(x).is_none();
    // The start value is a limit of the node's dtype, not of the wider one of the computation.
    let (lowest, highest) = limits::<T>(dtype);
    if greatest {
        reduction(keep_dims, lowest, |x| x, move |x: T, y: T| if y > x || is_nan(&y) { y } else { x }, |x, _| x)
    } else {
        reduction(keep_dims, highest, |x| x, move |x: T, y: T| if y < x || is_nan(&y) { y } else { x }, |x, _| x)
    }
}

/// The least and the greatest value of `dtype`.
#[inline]
fn limits<T: Numeric>(dtype: DType) -> (T, T) {
    with_integer!(dtype, N => (T::from_i64(N::LOWEST.to_i64()), T::from_i64(N::HIGHEST.to_i64())))
        .unwrap_or((T::LOWEST, T::HIGHEST))
}

/// A reduction over the axes that the second input names: folds the results of `load` for the elements, beginning with
/// `start`, then calls `store` with the number of elements in each result.
fn reduction<T: Element + Copy, A: Copy + Send + 'static, R: Element>(
    keep_dims: bool,
    start: A,
    load: impl Fn(T) -> A + Copy + Send + 'static,
    fold: impl Fn(A, A) -> A + Copy + Send + 'static,
    store: impl Fn(A, usize) -> R + Copy + Send + 'static,
) -> HostKernel {
    call(move |[x, axes]: [Tensor; 2]| {
        let reduced = Reduced::new(x.shape(), &axes)?;
        let elements = x.slice::<T>()?;
        let n = reduced.kept.checked_elements(R::DTYPE)?;
        let mut sums = vec![start; n];
        let walk = Broadcast::new(x.shape(), [x.shape(), &reduced.kept]);
        let (row, [_, step]) = (walk.row(), walk.steps());
        for [from, to] in walk.rows() {
            let elements = &elements[from..from + row];
            if step == 0 || n == 1 {
                sums[to] = fold(sums[to], fold_row(elements, start, load, fold));
            } else {
                for (sum, &x) in sums[to..to + row].iter_mut().zip(elements) {
                    *sum = fold(*sum, load(x));
                }
            }
        }
        let count = elements.len().checked_div(n).unwrap_or(0);
        let out = sums.into_iter().map(|sum| store(sum, count)).collect();
        Ok(Tensor::from_vec(if keep_dims { reduced.kept } else { reduced.dropped }, out))
    })
}

fn fold_row<T: Copy, A: Copy>(row: &[T], start: A, load: impl Fn(T) -> A, fold: impl Fn(A, A) -> A) -> A {
    let mut lanes = [start; LANES];
    let rest = &row[row.len() / LANES * LANES..];
    // A block is a multiple of `LANES`.
    for block in blocks(row) {
        for chunk in block.chunks_exact(LANES) {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = fold(*lane, load(x));
            }
        }
    }
    let all = lanes.into_iter().fold(start, &fold);
    rest.iter().fold(all, |all, &x| fold(all, load(x)))
}

/// The shapes of a reduction's result.
struct Reduced {
    /// With the reduced dimensions as size 1.
    kept: Shape,
    /// Without the reduced dimensions.
    dropped: Shape,
}

impl Reduced {
    fn new(shape: &Shape, axes: &Tensor) -> Result<Reduced> {
        if axes.rank() > 1 {
            return Err(Failure::invalid(format!(
                "reduction indices must be a scalar or a vector, got shape {}",
                axes.shape()
            )));
        }
        let mut over = vec![false; shape.rank()];
        for axis in axes.to_i64s()? {
            let at = call::axis(axis, shape.rank()).map_err(|_| {
                Failure::invalid(format!(
                    "Invalid reduction dimension ({axis} for input with {} dimension(s))",
                    shape.rank()
                ))
            })?;
            if std::mem::replace(&mut over[at], true) {
                return Err(Failure::invalid(format!(
                    "Invalid reduction arguments: Axes contains duplicate dimension: {at}"
                )));
            }
        }
        let dims = || shape.dims().iter().zip(&over);
        Ok(Reduced {
            kept: dims().map(|(&size, &over)| if over { 1 } else { size }).collect(),
            dropped: dims().filter(|(_, over)| !**over).map(|(&size, _)| size).collect(),
        })
    }
}

fn l2_loss<T: Float>(x: &Tensor) -> Result<Tensor> {
    let squares = fold_row(x.slice::<T>()?, 0.0, |x| x.to_f64() * x.to_f64(), |x, y| x + y);
    Ok(Tensor::scalar(T::from_f64(squares / 2.0)))
}
