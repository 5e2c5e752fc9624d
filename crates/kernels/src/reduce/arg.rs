//! ArgMax and ArgMin: the first position of the greatest or least element along an axis.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_loops::turn::{BLOCK, Pace, look};
use meshtf_loops::vector::{Work, widest};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Element, Numeric, Shape, Tensor, with_type};

use super::super::call::{self, input_dtype, kernel as call, output_dtype};
use super::super::math::{cast, wide};
use super::super::{HostKernel, KernelNode, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ArgMax", |node| kernel(node, true));
    ops.insert("ArgMin", |node| kernel(node, false));
}

fn kernel(node: &KernelNode, greatest: bool) -> Result<Option<HostKernel>> {
    let (dtype, to) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
    // False sorts before true.
    let wide = if dtype == DType::Bool { DType::I32 } else { wide(dtype) };
    let found = with_type!(wide, T => call(move |[x, axis]| place::<T>(&cast(x, wide)?, &axis, greatest, to));
        F32 f32, F64 f64, I32 i32, I64 i64, U64 u64);
    Ok(found)
}

fn place<T: Numeric + Element>(x: &Tensor, axis: &Tensor, greatest: bool, to: DType) -> Result<Tensor> {
    let axis = match axis.data() {
        Data::I16(values) if values.len() == 1 => i64::from(values[0]),
        _ => axis.to_i64()?,
    };
    let rank = x.rank() as i64;
    let at = call::axis(axis, x.rank()).map_err(|_| {
        Failure::invalid(format!("Expected dimension in the range [{}, {rank}), but got {axis}", -rank))
    })?;
    let size = x.dims()[at];
    if size == 0 {
        return Err(Failure::invalid(format!("Reduction axis {at} is empty in shape {}", x.shape())));
    }
    let inner = call::product(&x.dims()[at + 1..]);
    let mut dims = x.dims().to_vec();
    dims.remove(at);
    let mut places = vec![0i64; Shape::from(dims.as_slice()).checked_elements(DType::I64)?];
    if !places.is_empty() {
        let blocks = chunk(2 * size * inner);
        let chunks = x.slice::<T>()?.chunks(blocks * size * inner).zip(places.chunks_mut(blocks * inner));
        in_chunks(chunks, |(elements, places)| match inner {
            // A chunk of several rows is short; a single long row is processed after one cancellation check.
            1 => {
                look();
                widest(Along { rows: elements, size, greatest, places });
            }
            _ => {
                let mut best = vec![T::ZERO; inner];
                let mut pace = Pace::new();
                for (block, places) in elements.chunks_exact(size * inner).zip(places.chunks_exact_mut(inner)) {
                    // The most rows that may be processed between two cancellation checks.
                    let rows = (BLOCK / inner).max(1);
                    best.fill(start(greatest));
                    for (i, rows_of) in block.chunks(rows * inner).enumerate() {
                        pace.go(rows_of.len());
                        let first = i * rows;
                        widest(Across { rows: rows_of, first, greatest, best: &mut best, places });
                    }
                }
            }
        });
    }
    cast(Tensor::from_vec(Shape::from(dims), places), to)
}

/// Elements that are compared in parallel.
const LANES: usize = 32;

#[inline]
fn start<T: Numeric>(greatest: bool) -> T {
    if greatest { T::LOWEST } else { T::HIGHEST }
}

#[inline(always)]
fn is_better<T: Numeric>(x: T, best: T, greatest: bool) -> bool {
    if greatest { x > best } else { x < best }
}

/// Updates the best element of each column so far, and its row, by some rows, the first of which has index `first`.
/// Neither a NaN nor a tie replaces an earlier element.
struct Across<'a, T> {
    rows: &'a [T],
    first: usize,
    greatest: bool,
    best: &'a mut [T],
    places: &'a mut [i64],
}

impl<T: Numeric> Work for Across<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (i, row) in self.rows.chunks_exact(self.best.len()).enumerate() {
            let number = (self.first + i) as i64;
            for ((best, place), &x) in self.best.iter_mut().zip(&mut *self.places).zip(row) {
                let is_better = is_better(x, *best, self.greatest);
                *best = if is_better { x } else { *best };
                *place = if is_better { number } else { *place };
            }
        }
    }
}

/// The index of the first greatest or least element of each row; 0 if no element is a number.
struct Along<'a, T> {
    rows: &'a [T],
    size: usize,
    greatest: bool,
    places: &'a mut [i64],
}

impl<T: Numeric> Work for Along<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Along { rows, size, greatest, places } = self;
        let (mut rows_left, mut places_left) = (rows, places);
        if size <= SHORT {
            let (blocks, others) = places_left.as_chunks_mut::<TOGETHER>();
            let (whole, rows_of_others) = rows.split_at(blocks.len() * TOGETHER * size);
            for (block, rows) in blocks.iter_mut().zip(whole.chunks_exact(TOGETHER * size)) {
                *block = if greatest { firsts::<T, true>(rows, size) } else { firsts::<T, false>(rows, size) };
            }
            (rows_left, places_left) = (rows_of_others, others);
        }
        for (place, row) in places_left.iter_mut().zip(rows_left.chunks_exact(size)) {
            *place = first(row, greatest) as i64;
        }
    }
}

/// Most elements of a short row, as of the scores of some classes: several of them are compared at a time, since one by itself
/// would not fill the registers.
const SHORT: usize = LANES;
const TOGETHER: usize = 16;

/// As [`first`], of each of [`TOGETHER`] short rows.
#[inline(always)]
fn firsts<T: Numeric, const GREATEST: bool>(rows: &[T], size: usize) -> [i64; TOGETHER] {
    let mut columns = [[T::ZERO; TOGETHER]; SHORT];
    let columns = &mut columns[..size];
    for (i, row) in rows.chunks_exact(size).enumerate().take(TOGETHER) {
        for (column, &x) in columns.iter_mut().zip(row) {
            column[i] = x;
        }
    }
    let mut best = [start::<T>(GREATEST); TOGETHER];
    for column in &*columns {
        for (best, &x) in best.iter_mut().zip(column) {
            *best = if is_better(x, *best, GREATEST) { x } else { *best };
        }
    }
    // The last column first: the first of equal elements counts.
    let mut places = [0i32; TOGETHER];
    for (number, column) in columns.iter().enumerate().rev() {
        for ((place, best), x) in places.iter_mut().zip(&best).zip(column) {
            *place = if x == best { number as i32 } else { *place };
        }
    }
    places.map(i64::from)
}

#[inline(always)]
fn first<T: Numeric>(row: &[T], greatest: bool) -> usize {
    let better = |best: T, x: T| if is_better(x, best, greatest) { x } else { best };
    let (parts, rest) = row.as_chunks::<LANES>();
    let mut best = rest.iter().fold(start(greatest), |best, &x| better(best, x));
    if !parts.is_empty() {
        let mut lanes = [start::<T>(greatest); LANES];
        for part in parts {
            for (best, &x) in lanes.iter_mut().zip(part) {
                *best = better(*best, x);
            }
        }
        let mut count = LANES;
        while count > 1 {
            count /= 2;
            for i in 0..count {
                lanes[i] = better(lanes[i], lanes[i + count]);
            }
        }
        best = better(best, lanes[0]);
    }
    // The fold has no early exit, so that the loop is vectorised.
    let has = |part: &&[T; LANES]| part.iter().fold(false, |any, &x| any | (x == best));
    let from = parts.iter().take_while(|part| !has(part)).count() * LANES;
    row[from..].iter().position(|&x| x == best).map_or(0, |place| from + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_best_counts_and_nothing_that_is_no_number() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (row, greatest, least) in [
            (vec![1.0, 3.0, 3.0, -2.0, -2.0], 1, 3),
            (vec![nan, 1.0, nan, 2.0], 3, 1),
            (vec![nan, nan], 0, 0),
            (vec![-0.0, 0.0], 0, 0),
            (vec![nan, -inf, 5.0], 2, 1),
            (vec![inf, nan, inf], 0, 0),
            (vec![-inf, -inf], 0, 0),
        ] {
            assert_eq!((first(&row, true), first(&row, false)), (greatest, least), "{row:?}");
            // The same, among many elements between the two and at the end.
            for others in [20, 100] {
                let mut long = vec![nan; others];
                long.extend(&row);
                long.extend(vec![nan; others]);
                let moved = |place: usize| if row.iter().all(|x| x.is_nan()) { 0 } else { place + others };
                assert_eq!((first(&long, true), first(&long, false)), (moved(greatest), moved(least)), "{row:?}");
            }
            // The same, of many such rows.
            let many = row.repeat(TOGETHER);
            assert_eq!(firsts::<f32, true>(&many, row.len()), [greatest as i64; TOGETHER], "{row:?}");
            assert_eq!(firsts::<f32, false>(&many, row.len()), [least as i64; TOGETHER], "{row:?}");
        }
    }

    #[test]
    fn places_along_any_axis_are_those_of_a_loop() {
        for dims in [
            [7, 11, 10],
            [5, 3, 32],
            [1, 47, 1],
            [700, 3, 900],
            [2, 1000, 300],
            [9, 10, 33],
            [3000, 70, 2],
            [1, 1_000_000, 1],
            [5, 0, 3],
            [3, 7, 0],
        ] {
            let xs: Vec<f32> = (0..dims.iter().product()).map(|i: usize| (i * 7919 % 1009) as f32).collect();
            let x = Tensor::from_vec(dims, xs.clone());
            for axis in (0..3).filter(|&axis| dims[axis] > 0) {
                let inner: usize = dims[axis + 1..].iter().product();
                for greatest in [true, false] {
                    let got = place::<f32>(&x, &Tensor::scalar(axis as i32), greatest, DType::I64).unwrap();
                    for (i, &got) in got.slice::<i64>().unwrap().iter().enumerate() {
                        let from = i / inner * dims[axis] * inner + i % inner;
                        let row = || xs[from..].iter().step_by(inner).take(dims[axis]);
                        let best =
                            if greatest { row().copied().reduce(f32::max) } else { row().copied().reduce(f32::min) };
                        assert_eq!(Some(got as usize), row().position(|&x| Some(x) == best), "{dims:?} {axis} {i}");
                    }
                }
            }
        }
    }
}
