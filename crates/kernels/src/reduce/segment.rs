//! Segments: rows with the same id are summed, averaged, multiplied, or reduced to their minimum or maximum.

use meshtf_loops::turn::Pace;
use meshtf_loops::vector::{Work, widest};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Complex, DType, Data, Numeric, Ring, Shape, Tensor, with_integer, with_type};

use super::super::Registry;
use super::super::call::{self, input_dtype, kernel as call};
use super::super::math::widened;
use super::super::named::{RowRange, in_ranges};

/// The kernel of an op for every numeric dtype.
macro_rules! numbers {
    ($node:expr, $t:ident, $dtype:ident => $kernel:expr) => {{
        let $dtype = input_dtype($node, 0)?;
        Ok(widened($dtype, |wide| with_type!(wide, $t => $kernel; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)))
    }};
}

/// The kernel of an op for every numeric dtype, complex ones too.
macro_rules! rings {
    ($node:expr, $t:ident => $kernel:expr) => {
        Ok(widened(input_dtype($node, 0)?, |wide| {
            with_type!(wide, $t => $kernel;
                F32 f32, F64 f64, I32 i32, I64 i64, U64 u64, C64 Complex<f32>, C128 Complex<f64>)
        }))
    };
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SegmentSum", |node| {
        rings!(node, T => call(|[data, ids]| sorted::<T>(&data, &ids, <T as Ring>::ZERO, <T as Ring>::add, None)))
    });
    ops.insert("SegmentMean", |node| {
        numbers!(node, T, _dtype => {
            call(|[data, ids]| sorted::<T>(&data, &ids, T::ZERO, T::add, Some(divide::<T>)))
        })
    });
    ops.insert(
        "SegmentMax",
        |node| numbers!(node, T, _dtype => call(|[data, ids]| sorted::<T>(&data, &ids, T::ZERO, greater, None))),
    );
    ops.insert(
        "SegmentMin",
        |node| numbers!(node, T, _dtype => call(|[data, ids]| sorted::<T>(&data, &ids, T::ZERO, less, None))),
    );
    ops.insert("SegmentProd", |node| {
        rings!(node, T => call(|[data, ids]| sorted::<T>(&data, &ids, <T as Ring>::ONE, <T as Ring>::mul, None)))
    });
    ops.insert("UnsortedSegmentSum", |node| {
        rings!(node, T => {
            call(|[data, ids, n]| unsorted::<T>(&data, &ids, &n, <T as Ring>::ZERO, <T as Ring>::add))
        })
    });
    ops.insert("UnsortedSegmentProd", |node| {
        rings!(node, T => {
            call(|[data, ids, n]| unsorted::<T>(&data, &ids, &n, <T as Ring>::ONE, <T as Ring>::mul))
        })
    });
    ops.insert("UnsortedSegmentMin", |node| {
        numbers!(node, T, dtype => {
            call(move |[data, ids, n]| unsorted::<T>(&data, &ids, &n, greatest(dtype), less))
        })
    });
    ops.insert("UnsortedSegmentMax", |node| {
        numbers!(node, T, dtype => call(move |[data, ids, n]| unsorted::<T>(&data, &ids, &n, least(dtype), greater)))
    });
}

/// The lesser of two; the second if it is NaN.
#[inline]
fn less<T: Numeric>(x: T, y: T) -> T {
    if y < x || y.partial_cmp(&y).is_none() { y } else { x }
}

/// The greater of two; the second if it is NaN.
#[inline]
fn greater<T: Numeric>(x: T, y: T) -> T {
    if y > x || y.partial_cmp(&y).is_none() { y } else { x }
}

/// The least finite value of `dtype`, TensorFlow's result for a segment without rows.
#[inline]
fn least<T: Numeric>(dtype: DType) -> T {
    match dtype {
        DType::F16 => T::from_f64(half::f16::MIN.to_f64()),
        DType::BF16 => T::from_f64(half::bf16::MIN.to_f64()),
        DType::F32 => T::from_f64(f64::from(f32::MIN)),
        DType::F64 => T::from_f64(f64::MIN),
        _ => with_integer!(dtype, N => T::from_i64(N::LOWEST.to_i64())).unwrap_or(T::LOWEST),
    }
}

/// The greatest finite value of `dtype`.
#[inline]
fn greatest<T: Numeric>(dtype: DType) -> T {
    match dtype {
        DType::F16 => T::from_f64(half::f16::MAX.to_f64()),
        DType::BF16 => T::from_f64(half::bf16::MAX.to_f64()),
        DType::F32 => T::from_f64(f64::from(f32::MAX)),
        DType::F64 => T::from_f64(f64::MAX),
        _ => with_integer!(dtype, N => T::from_i64(N::HIGHEST.to_i64())).unwrap_or(T::HIGHEST),
    }
}

/// Refuses ids of segments that are negative or not sorted.
///
/// # Errors
/// InvalidArgument in TensorFlow's words, which depend on the last id, then on the first.
pub(crate) fn check_sorted(ids: &[i64]) -> Result<()> {
    let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else { return Ok(()) };
    if last < 0 {
        return Err(Failure::invalid("segment ids must be >= 0"));
    }
    if first < 0 {
        let segments = last.saturating_add(1);
        return Err(Failure::invalid(format!(
            "Segment id {first} out of range [0, {segments}), possibly because 'segment_ids' input is not sorted."
        )));
    }
    if !ids.is_sorted() {
        return Err(Failure::invalid("segment ids are not increasing"));
    }
    Ok(())
}

/// Sorted segments, one id for each row; a segment without rows is `empty`. `mean` divides a sum by the number of its
/// rows.
fn sorted<T: Ring>(
    data: &Tensor,
    ids: &Tensor,
    empty: T,
    fold: impl Fn(T, T) -> T,
    mean: Option<fn(T, usize) -> T>,
) -> Result<Tensor> {
    let ids = call::vector(ids, "segment_ids", false)?;
    if data.dims().first() != Some(&ids.len()) {
        return Err(Failure::invalid("segment_ids should be the same size as dimension 0 of input."));
    }
    check_sorted(&ids)?;
    let segments = ids.last().map_or(0, |&last| (last as usize).saturating_add(1));
    let mut dims = data.dims().to_vec();
    dims[0] = segments;
    let shape = Shape::from(dims);
    let mut out = vec![empty; shape.checked_elements(T::DTYPE)?];
    let row = call::product(&data.dims()[1..]);
    let rows = data.slice::<T>()?;
    let (mut first, mut pace) = (0, Pace::new());
    for same in ids.chunk_by(|a, b| a == b) {
        let to = &mut out[same[0] as usize * row..][..row];
        to.copy_from_slice(&rows[first * row..][..row]);
        for i in first + 1..first + same.len() {
            pace.go(row + 4);
            to.iter_mut().zip(&rows[i * row..]).for_each(|(sum, &x)| *sum = fold(*sum, x));
        }
        if let Some(mean) = mean {
            to.iter_mut().for_each(|sum| *sum = mean(*sum, same.len()));
        }
        first += same.len();
    }
    Ok(Tensor::from_vec(shape, out))
}

#[inline]
fn divide<T: Numeric>(sum: T, n: usize) -> T {
    match T::DTYPE {
        DType::U64 => T::from_i64((sum.to_i64() as u64 / n as u64) as i64),
        dtype if dtype.is_integer() => T::from_i64(sum.to_i64() / n as i64),
        _ => T::from_f64(sum.to_f64() / n as f64),
    }
}

/// Unsorted segments; rows with negative ids are dropped. The ids' shape is a prefix of the data's.
fn unsorted<T: Ring>(
    data: &Tensor,
    ids: &Tensor,
    n: &Tensor,
    start: T,
    fold: impl Fn(T, T) -> T + Copy + Sync,
) -> Result<Tensor> {
    if n.rank() > 0 {
        return Err(Failure::invalid(format!("num_segments should be a scalar, not shape {}", n.shape())));
    }
    let segments = call::size(n, "num_segments")?;
    if !data.dims().starts_with(ids.dims()) {
        return Err(Failure::invalid(format!(
            "data.shape = {} does not start with segment_ids.shape = {}",
            data.shape(),
            ids.shape()
        )));
    }
    let rest = &data.dims()[ids.rank()..];
    let shape: Shape = std::iter::once(segments).chain(rest.iter().copied()).collect();
    let mut out = vec![start; shape.checked_elements(T::DTYPE)?];
    let row = call::product(rest);
    let rows = data.slice::<T>()?;
    let id_values = match ids.data() {
        Data::I16(values) => values.iter().map(|&id| i64::from(id)).collect(),
        _ => ids.to_i64s()?,
    };
    let name = |(i, id): (usize, i64)| {
        if id < 0 {
            return Ok(usize::MAX);
        }
        usize::try_from(id).ok().filter(|&id| id < segments).ok_or_else(|| {
            Failure::invalid(format!(
                "segment_ids{} = {id} is out of range [0, {segments})",
                call::place(i, ids.dims())
            ))
        })
    };
    let names = id_values.into_iter().enumerate().map(name).collect::<Result<Vec<usize>>>()?;
    in_ranges([&mut out], &names, row, WORK, |part| widest(Rows { part, rows, fold }));
    Ok(Tensor::from_vec(shape, out))
}

/// The work per element of a segment, in the unit of `chunks::chunk`.
const WORK: usize = 2;

struct Rows<'a, T, F> {
    part: RowRange<'a, T, 1>,
    rows: &'a [T],
    fold: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Work for Rows<'_, T, F> {
    #[inline(always)]
    fn run(self) {
        let width = self.part.width;
        self.part.each(|i, [sums]| {
            let row = &self.rows[i * width..][..width];
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum = (self.fold)(*sum, x));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are those of TensorFlow 2.21 for these ids.
    #[test]
    fn ids_that_are_negative_or_not_sorted_are_refused() {
        let check = |ids: [i64; 4], why: &str| assert_eq!(check_sorted(&ids).unwrap_err().message, why, "{ids:?}");
        check([0, 0, 0, -1], "segment ids must be >= 0");
        check([-1, -1, -1, -1], "segment ids must be >= 0");
        check([0, 1, 0, -2], "segment ids must be >= 0");
        let range = "Segment id -1 out of range [0, 2), possibly because 'segment_ids' input is not sorted.";
        check([-1, 0, 1, 1], range);
        check([0, 1, -1, 2], "segment ids are not increasing");
        assert!(check_sorted(&[0, 0, 2, 2]).is_ok() && check_sorted(&[]).is_ok());
    }

    #[test]
    fn many_rows_add_up_to_their_segments() {
        // Integers, whose sums are exact: row i is i % 5 + its column, and some rows are dropped.
        let (rows, width, segments) = (9001, 33, 700);
        let id = |i: usize| (i * 7919 % (segments + 40)) as i64 - 40;
        let data: Vec<f32> = (0..rows * width).map(|k| (k / width % 5 + k % width) as f32).collect();
        let mut want = vec![0f32; segments * width];
        for (i, id) in (0..rows).map(|i| (i, id(i))).filter(|(_, id)| *id >= 0) {
            (0..width).for_each(|column| want[id as usize * width + column] += (i % 5 + column) as f32);
        }
        let (data, ids) =
            (Tensor::from_vec([rows, width], data), Tensor::vector((0..rows).map(id).collect::<Vec<_>>()));
        let sums = unsorted::<f32>(&data, &ids, &Tensor::scalar(segments as i32), 0.0, |x, y| x + y).unwrap();
        assert_eq!(sums.dims(), [segments, width]);
        assert!(sums.slice::<f32>().unwrap() == want);
    }
}
