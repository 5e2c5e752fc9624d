//! Products of one row and a matrix, which is read once, from its place: packing it would take as long as reading it twice,
//! and as much memory again.
//!
//! Each thread reads memory that is contiguous: rows of the matrix, whose sums are added up at the end, or columns of a
//! transpose.

#![allow(unsafe_code, reason = "the loops read and write what was checked before them")]

use super::cut::summed;
use super::lanes::{Lanes, Registered, Width};
use super::product::MatrixView;
use crate::chunks::in_chunks;

/// Fewest multiplications of a chunk: some microseconds of reading.
const LEAST: usize = 1 << 16;
/// Most chunks, of which each may have sums of its own.
pub const ONE_ROW_CHUNKS: usize = 16;
/// Rows that are read together: each sum is loaded and stored once for all of them.
const TOGETHER: usize = 8;
/// Columns of rows that are read together: their sums stay in the nearest cache.
const RUN: usize = 2048;
/// The parts of a sum along contiguous columns, whatever the width of the registers.
const PARTS: usize = 64;
/// Fewest rows of a transpose: for fewer, the parts of a sum take longer to add up than the products.
const LEAST_ALONG: usize = 4 * PARTS;

/// The product of a row and a matrix, on all threads if that pays, with checks for cancellation; `None` if the matrix is
/// contiguous neither within its rows nor within its columns, or these are short. No bit of it depends on the number of threads.
///
/// # Panics
/// If the sizes do not fit, or the matrix is not within its elements.
pub fn one_row(x: &[f32], y: MatrixView) -> Option<Vec<f32>> {
    with(Width::widest(), x, y)
}

fn with(width: Width, x: &[f32], y: MatrixView) -> Option<Vec<f32>> {
    let [inner, columns] = y.dims;
    assert!(inner == x.len(), "a factor for each row of the matrix");
    if inner == 0 || columns == 0 {
        return Some(vec![0.0; columns]);
    }
    let is_along = y.steps[0] == 1 && (y.steps[1] != 1 || columns == 1);
    if !y.steps.contains(&1) || is_along && inner < LEAST_ALONG {
        return None;
    }
    assert!(y.lies_within(), "the matrix has elements");
    // The rows or columns of a chunk, which take so many multiplications each.
    let chunk = |count: usize, work: usize| count.div_ceil(ONE_ROW_CHUNKS).max(LEAST / work).next_multiple_of(TOGETHER);
    if is_along {
        let chunk = chunk(columns, inner);
        let part = |from: usize, to: &mut [f32]| {
            width.run(Along { x, y: y.part([0, from], [inner, to.len()]), to });
        };
        return Some(summed(columns, std::iter::repeat(chunk), part));
    }
    let chunk = chunk(inner, columns);
    let mut parts = vec![vec![0f32; columns]; inner.div_ceil(chunk)];
    in_chunks(parts.iter_mut().enumerate(), |(i, to)| {
        let (from, count) = (i * chunk, chunk.min(inner - i * chunk));
        down(width, &x[from..][..count], y.part([from, 0], [count, columns]), to);
    });
    let mut parts = parts.into_iter();
    let mut all = parts.next()?;
    for part in parts {
        all.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    Some(all)
}

/// Adds the product of `x` and a matrix whose rows are contiguous to sums: every sum in the order of its terms.
fn down(width: Width, x: &[f32], y: MatrixView, to: &mut [f32]) {
    let ([inner, columns], lanes) = (y.dims, width.lanes());
    let whole = columns / lanes * lanes;
    for first in (0..whole).step_by(RUN) {
        let count = RUN.min(whole - first);
        width.run(Down { x, y: y.part([0, first], [inner, count]), to: &mut to[first..][..count] });
    }
    if whole < columns {
        // The last columns, padded to a register.
        let count = columns - whole;
        let mut packed = vec![0f32; inner * lanes];
        for (row, to) in packed.chunks_exact_mut(lanes).enumerate() {
            to[..count].copy_from_slice(&y.elements[row * y.steps[0] + whole..][..count]);
        }
        let mut sums = vec![0f32; lanes];
        let y = MatrixView { elements: &packed, dims: [inner, lanes], steps: [lanes, 1] };
        width.run(Down { x, y, to: &mut sums });
        to[whole..].copy_from_slice(&sums[..count]);
    }
}

/// Adds a product to sums. The columns fill whole registers.
struct Down<'a> {
    x: &'a [f32],
    y: MatrixView<'a>,
    to: &'a mut [f32],
}

impl Registered for Down<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Down { x, y, to } = self;
        let [inner, columns] = y.dims;
        assert!(columns.is_multiple_of(L::COUNT) && y.steps[1] == 1, "rows of whole registers");
        assert!(y.lies_within() && x.len() == inner && columns == to.len(), "all is within its slice");
        let together = inner / TOGETHER * TOGETHER;
        let (from, to) = (y.elements.as_ptr(), to.as_mut_ptr());
        // SAFETY: these rows and columns exist, as was checked.
        unsafe {
            for row in (0..together).step_by(TOGETHER) {
                let x: [L; TOGETHER] = std::array::from_fn(|j| L::splat(x[row + j]));
                let from = from.add(row * y.steps[0]);
                for column in (0..columns).step_by(L::COUNT) {
                    let mut sum = L::load(to.add(column));
                    for (j, &x) in x.iter().enumerate() {
                        sum = sum.plus(x, L::load(from.add(j * y.steps[0] + column)));
                    }
                    sum.store(to.add(column));
                }
            }
            for (row, &x) in x.iter().enumerate().skip(together) {
                let (x, from) = (L::splat(x), from.add(row * y.steps[0]));
                for column in (0..columns).step_by(L::COUNT) {
                    L::load(to.add(column)).plus(x, L::load(from.add(column))).store(to.add(column));
                }
            }
        }
    }
}

/// Writes the product of `x` and a matrix whose columns are contiguous. Each sum is added up in parts: of the terms that are
/// [`PARTS`] apart.
struct Along<'a> {
    x: &'a [f32],
    y: MatrixView<'a>,
    to: &'a mut [f32],
}

impl Registered for Along<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Along { x, y, to } = self;
        let [inner, columns] = y.dims;
        assert!(
            y.lies_within() && y.steps[0] == 1 && x.len() == inner && columns == to.len(),
            "all is within its slice"
        );
        let whole = inner / PARTS * PARTS;
        for (column, to) in to.iter_mut().enumerate() {
            let own = &y.elements[column * y.steps[1]..][..inner];
            let mut parts = [0f32; PARTS];
            // SAFETY: the processor has the registers, and `whole` numbers of each are read.
            unsafe {
                let mut sums = [L::splat(0.0); PARTS];
                let sums = &mut sums[..PARTS / L::COUNT];
                for at in (0..whole).step_by(PARTS) {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let at = at + i * L::COUNT;
                        *sum = sum.plus(L::load(x.as_ptr().add(at)), L::load(own.as_ptr().add(at)));
                    }
                }
                for (i, sum) in sums.iter().enumerate() {
                    sum.store(parts.as_mut_ptr().add(i * L::COUNT));
                }
            }
            for (part, (x, y)) in parts.iter_mut().zip(x[whole..].iter().zip(&own[whole..])) {
                *part = x.mul_add(*y, *part);
            }
            let mut count = PARTS;
            while count > 1 {
                count /= 2;
                for i in 0..count {
                    parts[i] += parts[i + count];
                }
            }
            *to = parts[0];
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
    fn products_of_one_row_are_those_of_a_loop() {
        let sizes = [
            [1, 1],
            [5, 2],
            [64, 32],
            [65, 33],
            [7, 1],
            [256, 3],
            [300, 1100],
            [130, 2070],
            [900, 700],
            [1, 40],
            [3, 5000],
            [2100, 70],
        ];
        for (width, [k, n]) in Width::all().flat_map(|width| sizes.map(|size| (width, size))) {
            // The matrix is a part of a wider one, as a slice of weights is.
            let (x, elements) = (numbers(k, 1), numbers((k + 3) * (n + 3), 5));
            for steps in [[n + 3, 1], [1, k + 3]] {
                let is_short = k < LEAST_ALONG && steps[0] == 1;
                let Some(got) = with(width, &x, MatrixView { elements: &elements, dims: [k, n], steps }) else {
                    assert!(is_short, "{k} by {n}, {steps:?}");
                    continue;
                };
                assert!(!is_short, "{k} by {n}, {steps:?}");
                let term = |column: usize, q: usize| x[q] * elements[q * steps[0] + column * steps[1]];
                let want: Vec<f32> = (0..n).map(|column| (0..k).map(|q| term(column, q)).sum()).collect();
                assert_eq!(got, want, "{k} by {n} with {width:?}, {steps:?}");
            }
        }
    }

    #[test]
    fn sums_do_not_depend_on_the_width_beyond_the_fusion_of_products() {
        // Products that are exact, whether they are fused or not, and sums that are not.
        let values = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * 7919 + seed) % 1013) as f32 * 2f32.powi((i * 31 % 9) as i32 - 4)).collect()
        };
        // Several chunks of rows, and a remainder of a part.
        let (x, elements) = (values(4000, 1), values(4000 * 37, 5));
        for steps in [[37, 1], [1, 4000]] {
            let y = MatrixView { elements: &elements, dims: [4000, 37], steps };
            let mut all = Width::all().map(|width| with(width, &x, y));
            let first = all.next().flatten().expect("one row");
            all.for_each(|other| assert_eq!(other.as_ref(), Some(&first), "{steps:?}"));
        }
    }

    #[test]
    fn other_products_are_left_to_others() {
        let elements = numbers(600, 1);
        let matrix = |dims: [usize; 2], steps: [usize; 2]| MatrixView { elements: &elements, dims, steps };
        assert!(one_row(&elements[..8], matrix([8, 3], [6, 2])).is_none());
        assert_eq!(one_row(&[], matrix([0, 3], [3, 1])), Some(vec![0.0; 3]));
        assert_eq!(one_row(&elements[..4], matrix([4, 0], [1, 1])), Some(vec![]));
        let short = MatrixView { elements: &elements[..20], dims: [8, 3], steps: [3, 1] };
        assert!(std::panic::catch_unwind(|| one_row(&numbers(8, 1), short)).is_err());
    }
}
