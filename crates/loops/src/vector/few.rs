//! Products of a few rows and a matrix, which is read once, from its place: packing it would take as long as reading it twice,
//! and as much memory again.

#![allow(unsafe_code, reason = "the loops read and write what was checked before them")]

use super::cut::summed;
use super::lanes::{Lanes, Registered, Width};
use super::place::joined;
use super::product::MatrixView;
use crate::chunks::{in_chunks, threads};

/// Most rows. Each of them reads the part of the matrix that is in the nearest cache; for more rows, tiles that stay in registers
/// are faster.
pub const FEW_ROWS: usize = 4;

/// Fewest multiplications of a chunk of columns, and most, about a millisecond between two checks for cancellation.
const CHUNK: std::ops::RangeInclusive<usize> = 1 << 17..=1 << 24;
/// Chunks for each thread, so that no thread waits long for the other threads.
const CHUNKS: usize = 2;
/// Columns of rows that are read together: contiguous for as long as possible, and their sums stay in the nearest cache.
const RUN: usize = 1024;
/// Rows that are read together: each sum is loaded and stored once for all of them.
const TOGETHER: usize = 4;
/// The parts of a sum along contiguous columns, whatever the width of the registers.
const PARTS: usize = 64;

/// The product of at most [`FEW_ROWS`] rows and a matrix, on all threads if that pays, with checks for cancellation; `None` if
/// the matrix is contiguous neither within its rows nor within its columns, these are short, or `x` is not contiguous within its
/// rows. No bit of it depends on the number of threads.
///
/// # Panics
/// If the sizes do not fit, or a matrix is not within its elements.
pub fn few_rows(x: MatrixView, y: MatrixView) -> Option<Vec<f32>> {
    with(Width::widest(), x, y)
}

fn with(width: Width, x: MatrixView, y: MatrixView) -> Option<Vec<f32>> {
    let ([rows, inner], columns) = (x.dims, y.dims[1]);
    assert!(inner == y.dims[0], "a product for each row of the right matrix");
    let is_along = y.steps[0] == 1 && (y.steps[1] != 1 || columns == 1);
    if rows > FEW_ROWS || x.steps[1] != 1 || !y.steps.contains(&1) || is_along && inner < PARTS {
        return None;
    }
    if rows == 0 || columns == 0 || inner == 0 {
        return Some(vec![0.0; rows * columns]);
    }
    assert!(x.lies_within() && y.lies_within(), "the matrices have elements");
    let work = rows.saturating_mul(inner);
    let share = columns.div_ceil(CHUNKS * threads()).max(CHUNK.start() / work).min(CHUNK.end() / work);
    let chunk = share.max(1).next_multiple_of(PARTS);
    let part = |from: usize, to: &mut [f32]| {
        let y = y.part([0, from], [inner, to.len() / rows]);
        if is_along { along(width, x, y, to) } else { down(width, x, y, to) }
    };
    if rows == 1 {
        return Some(summed(columns, std::iter::repeat(chunk), part));
    }
    let mut parts = vec![Vec::new(); columns.div_ceil(chunk)];
    in_chunks(parts.iter_mut().enumerate(), |(i, to)| {
        let from = i * chunk;
        *to = vec![0f32; rows * chunk.min(columns - from)];
        part(from, to);
    });
    Some(joined(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), rows))
}

/// Adds the product of `x` and a matrix whose rows are contiguous to zeros: every sum in the order of its terms.
fn down(width: Width, x: MatrixView, y: MatrixView, to: &mut [f32]) {
    let ([_, inner], columns) = (x.dims, y.dims[1]);
    let whole = columns / width.lanes() * width.lanes();
    for first in (0..whole).step_by(RUN) {
        let count = RUN.min(whole - first);
        width.run(Down { x, y: y.part([0, first], [inner, count]), to: &mut to[first..], apart: columns });
    }
    if whole < columns {
        // The last columns, padded to a register.
        let (count, lanes) = (columns - whole, width.lanes());
        let mut packed = vec![0f32; inner * lanes];
        for (row, to) in packed.chunks_exact_mut(lanes).enumerate() {
            to[..count].copy_from_slice(&y.elements[row * y.steps[0] + whole..][..count]);
        }
        let y = MatrixView { elements: &packed, dims: [inner, lanes], steps: [lanes, 1] };
        let mut sums = vec![0f32; x.dims[0] * lanes];
        width.run(Down { x, y, to: &mut sums, apart: lanes });
        for (row, sums) in sums.chunks_exact(lanes).enumerate() {
            to[row * columns + whole..][..count].copy_from_slice(&sums[..count]);
        }
    }
}

/// Adds a product to sums, whose rows are `apart`. The columns fill whole registers.
struct Down<'a> {
    x: MatrixView<'a>,
    y: MatrixView<'a>,
    to: &'a mut [f32],
    apart: usize,
}

impl Registered for Down<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Down { x, y, to, apart } = self;
        let ([rows, inner], columns) = (x.dims, y.dims[1]);
        assert!(columns.is_multiple_of(L::COUNT) && x.steps[1] == 1 && y.steps[1] == 1, "the rows are contiguous");
        assert!(
            x.lies_within() && y.lies_within() && (rows - 1) * apart + columns <= to.len(),
            "all is within its slice"
        );
        let together = inner / TOGETHER * TOGETHER;
        for row in (0..together).step_by(TOGETHER) {
            for i in 0..rows {
                // SAFETY: these rows and columns exist, as was checked.
                unsafe {
                    let x: [L; TOGETHER] = std::array::from_fn(|j| L::splat(x.elements[i * x.steps[0] + row + j]));
                    let from = y.elements.as_ptr().add(row * y.steps[0]);
                    let to = to.as_mut_ptr().add(i * apart);
                    for column in (0..columns).step_by(L::COUNT) {
                        let mut sum = L::load(to.add(column));
                        for (j, &x) in x.iter().enumerate() {
                            sum = sum.plus(x, L::load(from.add(j * y.steps[0] + column)));
                        }
                        sum.store(to.add(column));
                    }
                }
            }
        }
        for row in together..inner {
            for i in 0..rows {
                // SAFETY: as above.
                unsafe {
                    let x = L::splat(x.elements[i * x.steps[0] + row]);
                    let (from, to) = (y.elements.as_ptr().add(row * y.steps[0]), to.as_mut_ptr().add(i * apart));
                    for column in (0..columns).step_by(L::COUNT) {
                        L::load(to.add(column)).plus(x, L::load(from.add(column))).store(to.add(column));
                    }
                }
            }
        }
    }
}

/// Writes the product of `x` and a matrix whose columns are contiguous.
fn along(width: Width, x: MatrixView, y: MatrixView, to: &mut [f32]) {
    let columns = y.dims[1];
    for column in 0..columns {
        let own = &y.elements[column * y.steps[1]..][..y.dims[0]];
        for row in 0..x.dims[0] {
            let mut parts = [0f32; PARTS];
            width.run(Along { x: &x.elements[row * x.steps[0]..][..own.len()], y: own, parts: &mut parts });
            let mut count = PARTS;
            while count > 1 {
                count /= 2;
                for i in 0..count {
                    parts[i] += parts[i + count];
                }
            }
            to[row * columns + column] = parts[0];
        }
    }
}

/// The products of two vectors of one length, added up in parts: the terms that are [`PARTS`] apart.
struct Along<'a> {
    x: &'a [f32],
    y: &'a [f32],
    parts: &'a mut [f32; PARTS],
}

impl Registered for Along<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Along { x, y, parts } = self;
        let (x, x_rest) = x.as_chunks::<PARTS>();
        let (y, y_rest) = y.as_chunks::<PARTS>();
        assert!(x_rest.len() == y_rest.len(), "the vectors have one length");
        // The last terms, padded with zeros.
        let mut ends = [[0f32; PARTS]; 2];
        ends[0][..x_rest.len()].copy_from_slice(x_rest);
        ends[1][..y_rest.len()].copy_from_slice(y_rest);
        let [x_end, y_end] = &ends;
        // SAFETY: the processor has the registers, and each array has as many numbers as are read of it.
        unsafe {
            let mut sums = [L::splat(0.0); PARTS];
            let sums = &mut sums[..PARTS / L::COUNT];
            for (x, y) in x.iter().zip(y).chain([(x_end, y_end)]) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let at = i * L::COUNT;
                    *sum = sum.plus(L::load(x.as_ptr().add(at)), L::load(y.as_ptr().add(at)));
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                sum.store(parts.as_mut_ptr().add(i * L::COUNT));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, so that every order of adding them up has the same sum.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed) % 17) as f32 - 8.0).collect()
    }

    #[test]
    fn products_of_few_rows_are_those_of_a_loop() {
        let sizes = [
            [1, 1, 1],
            [1, 5, 2],
            [2, 64, 32],
            [3, 65, 33],
            [4, 7, 1],
            [1, 200, 1100],
            [4, 130, 2070],
            [1, 900, 700],
            [2, 1, 40],
            [1, 3, 5000],
        ];
        for (width, [m, k, n]) in Width::all().flat_map(|width| sizes.map(|size| (width, size))) {
            // The right matrix is a part of a wider one, as a slice of weights is.
            let (left, right) = (numbers(m * k, 1), numbers((k + 3) * (n + 3), 5));
            for steps in [[n + 3, 1], [1, k + 3]] {
                let x = MatrixView { elements: &left, dims: [m, k], steps: [k, 1] };
                let y = MatrixView { elements: &right, dims: [k, n], steps };
                let is_short = k < PARTS && steps[0] == 1;
                let Some(got) = with(width, x, y).filter(|_| !is_short) else {
                    assert!(is_short, "{m} by {k} by {n}, {steps:?}");
                    continue;
                };
                let term = |at: usize, q: usize| left[at / n * k + q] * right[q * steps[0] + at % n * steps[1]];
                let want: Vec<f32> = (0..m * n).map(|at| (0..k).map(|q| term(at, q)).sum()).collect();
                assert_eq!(got, want, "{m} by {k} by {n} with {width:?}, {steps:?}");
            }
        }
    }

    #[test]
    fn sums_do_not_depend_on_the_width_beyond_the_fusion_of_products() {
        // Products that are exact, whether they are fused or not, and sums that are not.
        let values = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * 7919 + seed) % 1013) as f32 * 2f32.powi((i * 31 % 9) as i32 - 4)).collect()
        };
        let (left, right) = (values(3 * 150, 1), values(150 * 37, 5));
        for steps in [[37, 1], [1, 150]] {
            let x = MatrixView { elements: &left, dims: [3, 150], steps: [150, 1] };
            let y = MatrixView { elements: &right, dims: [150, 37], steps };
            let mut all = Width::all().map(|width| with(width, x, y));
            let first = all.next().flatten().expect("few rows");
            all.for_each(|other| assert_eq!(other.as_ref(), Some(&first), "{steps:?}"));
        }
    }

    #[test]
    fn other_products_are_left_to_others() {
        let elements = numbers(600, 1);
        let matrix = |dims: [usize; 2], steps: [usize; 2]| MatrixView { elements: &elements, dims, steps };
        assert!(few_rows(matrix([5, 8], [8, 1]), matrix([8, 3], [3, 1])).is_none());
        assert!(few_rows(matrix([2, 8], [1, 2]), matrix([8, 3], [3, 1])).is_none());
        assert!(few_rows(matrix([2, 8], [8, 1]), matrix([8, 3], [6, 2])).is_none());
        assert_eq!(few_rows(matrix([2, 0], [1, 1]), matrix([0, 3], [3, 1])), Some(vec![0.0; 6]));
        assert_eq!(few_rows(matrix([2, 4], [4, 1]), matrix([4, 0], [1, 1])), Some(vec![]));
        let short = MatrixView { elements: &elements[..20], dims: [8, 3], steps: [3, 1] };
        assert!(std::panic::catch_unwind(|| few_rows(matrix([1, 8], [8, 1]), short)).is_err());
    }
}
