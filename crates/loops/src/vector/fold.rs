//! Reductions of numbers along some dimensions of a tensor: sum, product, greatest or least.
//!
//! Sums and products are of double precision, except that a sum first adds numbers in groups of four in float32. A long fold
//! is done part by part, in an order that follows from the sizes alone.

use smallvec::SmallVec;

use super::cut::Cut;
use super::target::{Work, widest};
use crate::chunks::in_chunks;

/// Numbers of a row that are folded in parallel lanes, in groups of four: the number that the widest registers hold.
const LANES: usize = 16;
/// The number of rows, too short for that, that are folded at a time, number by number.
const SIDE_BY_SIDE: usize = 8;
/// Columns that are folded while their results are in the L1 cache.
const TILE: usize = 1 << 10;
/// Fewer columns are folded some rows at a time.
const FEW: usize = 32;
/// Columns of some rows that are folded as one.
const WIDE: usize = 2 * FEW;
/// Fewest results of which each is folded as a whole: enough for all cores.
const WHOLE: usize = 64;
/// Elements of a part.
const PART: usize = 1 << 15;
/// Fewest rows of a part, so that its results take little memory compared with its elements.
const ROWS: usize = 64;
/// Most parts of a fold.
const PARTS: usize = 256;

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    Sum,
    Mean,
    Product,
    /// NaN if one is among them, as for the least.
    Greatest,
    Least,
    /// The root of the sum of the squares.
    Norm,
    /// Half the sum of the squares.
    HalfSquares,
}

/// How numbers are folded: in any order. To be inlined always.
trait Folder<T>: Copy + Send + Sync {
    type Folded: Copy + Send + Sync;
    const START: Self::Folded;
    /// Fewest numbers of a row that are folded in parallel lanes.
    const LEAST: usize = 2 * LANES;

    fn load(self, x: T) -> Self::Folded;
    fn join(self, x: Self::Folded, y: Self::Folded) -> Self::Folded;

    #[inline(always)]
    fn four(self, [a, b, c, d]: [T; 4]) -> Self::Folded {
        self.join(self.join(self.load(a), self.load(b)), self.join(self.load(c), self.load(d)))
    }
}

macro_rules! sums {
    ($($name:ident: |$x:ident| $term:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Folder<f32> for $name {
                type Folded = f64;
                const START: f64 = 0.0;
                const LEAST: usize = LANES;

                #[inline(always)]
                fn load(self, $x: f32) -> f64 {
                    f64::from($term)
                }

                #[inline(always)]
                fn join(self, x: f64, y: f64) -> f64 {
                    x + y
                }

                /// Four terms are added in float32: widening each would take longer than adding it.
                #[inline(always)]
                fn four(self, [a, b, c, d]: [f32; 4]) -> f64 {
                    let term = |$x: f32| $term;
                    f64::from((term(a) + term(b)) + (term(c) + term(d)))
                }
            }
        )*
    };
}

sums! {
    Total: |x| x;
    Squares: |x| x * x;
}

#[derive(Clone, Copy)]
struct Product;

impl Folder<f32> for Product {
    type Folded = f64;
    const START: f64 = 1.0;

    #[inline(always)]
    fn load(self, x: f32) -> f64 {
        f64::from(x)
    }

    #[inline(always)]
    fn join(self, x: f64, y: f64) -> f64 {
        x * y
    }
}

macro_rules! extremes {
    ($($name:ident: $start:expr, |$a:ident, $b:ident| $is_first:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Folder<f32> for $name {
                type Folded = f32;
                const START: f32 = $start;

                #[inline(always)]
                fn load(self, x: f32) -> f32 {
                    x
                }

                #[inline(always)]
                fn join(self, $b: f32, $a: f32) -> f32 {
                    if $is_first || $a.is_nan() { $a } else { $b }
                }

                /// With one check for NaN for all of them.
                #[inline(always)]
                fn four(self, [a, b, c, d]: [f32; 4]) -> f32 {
                    let of_two = |$a: f32, $b: f32| if $is_first { $a } else { $b };
                    let is_nan = (a.is_nan() | b.is_nan()) | (c.is_nan() | d.is_nan());
                    if is_nan { f32::NAN } else { of_two(of_two(a, b), of_two(c, d)) }
                }
            }
        )*
    };
}

extremes! {
    Greatest: f32::NEG_INFINITY, |a, b| a > b;
    Least: f32::INFINITY, |a, b| a < b;
}

/// A fold of partial results.
#[derive(Clone, Copy)]
struct Again<F>(F);

impl<F: Folder<f32>> Folder<F::Folded> for Again<F> {
    type Folded = F::Folded;
    const START: F::Folded = F::START;

    #[inline(always)]
    fn load(self, x: F::Folded) -> F::Folded {
        x
    }

    #[inline(always)]
    fn join(self, x: F::Folded, y: F::Folded) -> F::Folded {
        self.0.join(x, y)
    }
}

/// A tensor that is folded along one dimension, the second of three.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    outer: usize,
    size: usize,
    inner: usize,
}

impl Sizes {
    /// The number of rows of a fold in a part.
    #[inline]
    fn rows(self) -> usize {
        if self.outer >= WHOLE || self.inner >= WHOLE * TILE {
            return self.size;
        }
        (PART / self.inner).max(ROWS).max(self.size.div_ceil(PARTS)).min(self.size)
    }

    #[inline]
    fn parts(self) -> usize {
        self.size.div_ceil(self.rows())
    }

    /// Results of all parts.
    #[inline]
    fn results(self) -> usize {
        self.outer * self.parts() * self.inner
    }
}

/// A tensor's dimensions outermost first, each with whether it is folded.
#[derive(Clone, Debug)]
pub struct Folding {
    dims: SmallVec<[(usize, bool); 8]>,
}

impl Folding {
    /// Neighbours of a kind are one dimension.
    pub fn new(dims: impl IntoIterator<Item = (usize, bool)>) -> Folding {
        let mut merged = SmallVec::<[(usize, bool); 8]>::new();
        for (size, gone) in dims.into_iter().filter(|dim| dim.0 != 1) {
            match merged.last_mut() {
                Some(run) if run.1 == gone => run.0 *= size,
                _ => merged.push((size, gone)),
            }
        }
        Folding { dims: merged }
    }

    /// Whether the fold combines any numbers.
    #[inline]
    pub fn is_some(&self) -> bool {
        self.dims.iter().any(|dim| dim.1)
    }

    /// The fold along the longest dimension, and the folding of the result that remains; `None` if there is none.
    #[inline]
    fn first(&self) -> Option<(Sizes, Folding)> {
        let gone = self.dims.iter().enumerate().filter(|(_, dim)| dim.1);
        let (at, &(size, _)) = gone.max_by_key(|(_, dim)| dim.0)?;
        let product = |dims: &[(usize, bool)]| dims.iter().map(|dim| dim.0).product();
        let (outer, inner) = (product(&self.dims[..at]), product(&self.dims[at + 1..]));
        let left = self.dims.iter().enumerate().filter(|&(i, _)| i != at).map(|(_, dim)| *dim);
        Some((Sizes { outer, size, inner }, Folding::new(left)))
    }

    /// The number of bytes that the results take while they are computed.
    #[inline]
    pub fn scratch_bytes(&self) -> usize {
        self.first().map_or(0, |(sizes, _)| 2 * size_of::<f64>() * sizes.results())
    }

    /// The reduction of the numbers, of which there is at least one.
    pub fn folded(&self, fold: Fold, xs: &[f32]) -> Vec<f32> {
        let rounded = |all: Vec<f64>| all.into_iter().map(|x| x as f32).collect();
        match fold {
            Fold::Sum => rounded(self.all(xs, Total)),
            Fold::Mean => {
                let count = self.dims.iter().filter(|dim| dim.1).map(|dim| dim.0).product::<usize>() as f64;
                self.all(xs, Total).into_iter().map(|x| (x / count) as f32).collect()
            }
            Fold::Product => rounded(self.all(xs, Product)),
            Fold::Norm => self.all(xs, Squares).into_iter().map(|x| x.sqrt() as f32).collect(),
            Fold::HalfSquares => self.all(xs, Squares).into_iter().map(|x| (0.5 * x) as f32).collect(),
            Fold::Greatest => self.all(xs, Greatest),
            Fold::Least => self.all(xs, Least),
        }
    }

    fn all<F: Folder<f32>>(&self, xs: &[f32], f: F) -> Vec<F::Folded> {
        let nothing = || (Sizes { outer: xs.len(), size: 1, inner: 1 }, Folding { dims: SmallVec::new() });
        let (sizes, mut left) = self.first().unwrap_or_else(nothing);
        let mut folded = once(xs, sizes, f);
        while let Some((sizes, next)) = left.first() {
            folded = once(&folded, sizes, Again(f));
            left = next;
        }
        folded
    }
}

/// Folds along one dimension.
fn once<T: Copy + Sync, F: Folder<T>>(xs: &[T], sizes: Sizes, f: F) -> Vec<F::Folded> {
    let Sizes { outer, inner, .. } = sizes;
    let (rows, parts) = (sizes.rows(), sizes.parts());
    let mut results = vec![F::START; sizes.results()];
    let chunk = Cut::ANYWHERE.chunk(xs.len()).div_ceil(rows).next_multiple_of(inner.min(TILE));
    in_chunks(results.chunks_mut(chunk).enumerate(), |(i, to)| {
        widest(Chunk { to, from: i * chunk, xs, sizes, rows, parts, f });
    });
    if parts == 1 {
        return results;
    }
    let mut folded = vec![F::START; outer * inner];
    for (to, parts) in folded.chunks_exact_mut(inner).zip(results.chunks_exact(parts * inner)) {
        for part in parts.chunks_exact(inner) {
            to.iter_mut().zip(part).for_each(|(to, &x)| *to = f.join(*to, x));
        }
    }
    folded
}

/// Some results, of which the first has index `from`.
struct Chunk<'a, T, F: Folder<T>> {
    to: &'a mut [F::Folded],
    from: usize,
    xs: &'a [T],
    sizes: Sizes,
    rows: usize,
    parts: usize,
    f: F,
}

impl<T: Copy + Sync, F: Folder<T>> Work for Chunk<'_, T, F> {
    #[inline(always)]
    fn run(self) {
        let Chunk { mut to, from, xs, sizes: Sizes { size, inner, .. }, rows, parts, f } = self;
        if (inner, parts) == (1, 1) {
            return fold_rows(to, &xs[from * size..], size, f);
        }
        let mut at = from;
        while !to.is_empty() {
            let (part, column) = (at / inner, at % inner);
            let (unit, part) = (part / parts, part % parts);
            let count = rows.min(size - part * rows);
            let columns = (inner - column).min(TILE).min(to.len());
            let (own, others) = to.split_at_mut(columns);
            let start = (unit * size + part * rows) * inner + column;
            if inner == 1 {
                own[0] = folded_row(&xs[start..start + count], f);
            } else if inner < FEW && own.len() == inner && count > WIDE / inner {
                fold_few_columns(own, &xs[start..start + count * inner], f);
            } else {
                fold_columns(own, &xs[start..], count, inner, f);
            }
            (at, to) = (at + own.len(), others);
        }
    }
}

/// Folds each row of `size` numbers.
#[inline(always)]
fn fold_rows<T: Copy, F: Folder<T>>(to: &mut [F::Folded], xs: &[T], size: usize, f: F) {
    if size >= F::LEAST {
        for (to, row) in to.iter_mut().zip(xs.chunks_exact(size)) {
            *to = folded_row(row, f);
        }
        return;
    }
    let (blocks, rest) = to.as_chunks_mut::<SIDE_BY_SIDE>();
    let (whole, xs) = xs.split_at(blocks.len() * SIDE_BY_SIDE * size);
    for (to, rows) in blocks.iter_mut().zip(whole.chunks_exact(SIDE_BY_SIDE * size)) {
        let mut folded = [F::START; SIDE_BY_SIDE];
        for column in 0..size {
            for (row, folded) in folded.iter_mut().enumerate() {
                *folded = f.join(*folded, f.load(rows[row * size + column]));
            }
        }
        *to = folded;
    }
    for (to, row) in rest.iter_mut().zip(xs.chunks_exact(size)) {
        *to = row.iter().fold(F::START, |folded, &x| f.join(folded, f.load(x)));
    }
}

/// The numbers of a row folded.
#[inline(always)]
fn folded_row<T: Copy, F: Folder<T>>(row: &[T], f: F) -> F::Folded {
    let mut lanes = [F::START; LANES];
    let (blocks, rest) = row.as_chunks::<{ 4 * LANES }>();
    for block in blocks {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = f.join(*lane, f.four([0, 1, 2, 3].map(|k| block[k * LANES + i])));
        }
    }
    let (few, rest) = rest.as_chunks::<LANES>();
    for xs in few {
        for (lane, &x) in lanes.iter_mut().zip(xs) {
            *lane = f.join(*lane, f.load(x));
        }
    }
    // By itself: lanes that are indexed by a variable would be stored in memory.
    let last = rest.iter().fold(F::START, |folded, &x| f.join(folded, f.load(x)));
    let eight: [F::Folded; 8] = halved(&lanes, f);
    let four: [F::Folded; 4] = halved(&eight, f);
    let [first, second]: [F::Folded; 2] = halved(&four, f);
    f.join(f.join(first, second), last)
}

/// Each of the first `H`, joined with the one `H` after it.
#[inline(always)]
fn halved<T, F: Folder<T>, const H: usize>(xs: &[F::Folded], f: F) -> [F::Folded; H] {
    let mut half = [F::START; H];
    for i in 0..H {
        half[i] = f.join(xs[i], xs[i + H]);
    }
    half
}

/// Folds `count` rows, which begin `stride` apart, into `to`.
#[inline(always)]
fn fold_columns<T: Copy, F: Folder<T>>(to: &mut [F::Folded], xs: &[T], count: usize, stride: usize, f: F) {
    let columns = to.len();
    let row = |i: usize| &xs[i * stride..][..columns];
    let mut i = 0;
    while i + 4 <= count {
        let rows = [row(i), row(i + 1), row(i + 2), row(i + 3)];
        let pairs = rows[0].iter().zip(rows[1]).zip(rows[2].iter().zip(rows[3]));
        for (to, ((&a, &b), (&c, &d))) in to.iter_mut().zip(pairs) {
            *to = f.join(*to, f.four([a, b, c, d]));
        }
        i += 4;
    }
    for i in i..count {
        for (to, &x) in to.iter_mut().zip(&xs[i * stride..]) {
            *to = f.join(*to, f.load(x));
        }
    }
}

/// Folds rows without gaps into `to`, some of them as one.
#[inline(always)]
fn fold_few_columns<T: Copy, F: Folder<T>>(to: &mut [F::Folded], xs: &[T], f: F) {
    let columns = to.len();
    let stride = columns * WIDE.div_ceil(columns);
    let mut wide = [F::START; WIDE + FEW];
    let wide = &mut wide[..stride];
    let count = xs.len() / stride;
    fold_columns(wide, xs, count, stride, f);
    for (to, &x) in wide.iter_mut().zip(&xs[count * stride..]) {
        *to = f.join(*to, f.load(x));
    }
    for row in wide.chunks_exact(columns) {
        to.iter_mut().zip(row).for_each(|(to, &x)| *to = f.join(*to, x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDS: [Fold; 7] =
        [Fold::Sum, Fold::Mean, Fold::Product, Fold::Greatest, Fold::Least, Fold::Norm, Fold::HalfSquares];

    /// The elements that are folded into each result, in order.
    fn groups(dims: &[(usize, bool)], xs: &[f32]) -> Vec<Vec<f32>> {
        let kept: usize = dims.iter().filter(|dim| !dim.1).map(|dim| dim.0).product();
        let mut groups = vec![Vec::new(); kept];
        for (i, &x) in xs.iter().enumerate() {
            let (mut place, mut at, mut stride) = (i, 0, 1);
            for &(size, gone) in dims.iter().rev() {
                if !gone {
                    at += place % size * stride;
                    stride *= size;
                }
                place /= size;
            }
            groups[at].push(x);
        }
        groups
    }

    fn wanted(fold: Fold, group: &[f32]) -> f64 {
        let all = || group.iter().map(|&x| f64::from(x));
        let extreme =
            |of: fn(f64, f64) -> f64| if all().any(f64::is_nan) { f64::NAN } else { all().reduce(of).unwrap() };
        match fold {
            Fold::Sum => all().sum(),
            Fold::Mean => all().sum::<f64>() / group.len() as f64,
            Fold::Product => all().product(),
            Fold::Greatest => extreme(f64::max),
            Fold::Least => extreme(f64::min),
            Fold::Norm => all().map(|x| x * x).sum::<f64>().sqrt(),
            Fold::HalfSquares => all().map(|x| x * x).sum::<f64>() / 2.0,
        }
    }

    fn check(dims: &[(usize, bool)], xs: &[f32]) {
        let folding = Folding::new(dims.iter().copied());
        let groups = groups(dims, xs);
        // A large tensor takes a test long.
        let folds = if xs.len() < 20_000 { &FOLDS[..] } else { &[Fold::Sum, Fold::Greatest] };
        for &fold in folds {
            let got = folding.folded(fold, xs);
            assert_eq!(got.len(), groups.len(), "{fold:?} {dims:?}");
            for (got, group) in got.into_iter().zip(&groups) {
                let want = wanted(fold, group);
                let rounded = match fold {
                    // Two roundings of float32, relative to the terms, not to the remainder after cancellation.
                    Fold::Sum | Fold::Mean => 1.2e-7 * wanted(fold, &group.iter().map(|x| x.abs()).collect::<Vec<_>>()),
                    // And one of the squares.
                    Fold::Norm | Fold::HalfSquares => 1.8e-7 * want,
                    Fold::Product | Fold::Greatest | Fold::Least => 1e-11 * want.abs(),
                };
                let is_near = (f64::from(got) - want).abs() <= 6e-8 * want.abs() + rounded + 1e-44;
                let is_same = f64::from(got) == want || got.is_nan() && want.is_nan() || got == want as f32;
                assert!(is_same || is_near, "{fold:?} {dims:?}: {got}, not {want}");
            }
        }
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i * 7919 % 2017) as f32 / 500.0 - 2.0).collect()
    }

    #[test]
    fn folds_are_those_of_a_loop_whatever_the_sizes() {
        let sizes = [
            [1, 1, 1],
            [3, 7, 1],
            [2, 31, 33],
            [5, 32, 3],
            [1, 100_003, 1],
            [1, 20_000, 31],
            [1, 1100, 257],
            [70, 60, 128],
            [9000, 4, 8],
            [100_001, 3, 1],
            [300, 1023, 1],
            [3, 2, 70_000],
            [2, 5, 70_001],
            [65, 9, 1500],
            [7, 20_000, 2],
        ];
        for [a, b, c] in sizes {
            let xs = numbers(a * b * c);
            for mask in 0..8 {
                check(&[(a, mask & 1 > 0), (b, mask & 2 > 0), (c, mask & 4 > 0)], &xs);
            }
        }
        let dims = [(3, true), (40, false), (5, true), (6, false), (70, true)];
        check(&dims, &numbers(dims.iter().map(|dim| dim.0).product()));
        check(&[], &[3.5]);
    }

    #[test]
    fn nothing_that_is_no_number_gets_lost() {
        for (count, inner) in [(3, 1), (40, 1), (1000, 1), (100_000, 1), (9, 5), (3000, 5), (3000, 40), (100, 2000)] {
            for at in [0, 1, 2, count / 2, count / 2 + 1, count - 1] {
                let mut xs = numbers(count * inner);
                xs[at * inner + inner / 2] = f32::NAN;
                xs[at * inner + inner - 1] = if inner == 1 { f32::NAN } else { f32::INFINITY };
                check(&[(count, true), (inner, false)], &xs);
            }
        }
    }

    #[test]
    fn zeros_of_either_sign_and_endless_numbers() {
        let folded = |fold, xs: &[f32]| Folding::new([(xs.len(), true)]).folded(fold, xs)[0];
        for count in [2, 33, 70_000] {
            assert_eq!(folded(Fold::Greatest, &vec![-0.0; count]).to_bits(), (-0f32).to_bits());
            assert_eq!(folded(Fold::Least, &vec![-0.0; count]).to_bits(), (-0f32).to_bits());
            assert_eq!(folded(Fold::Greatest, &vec![f32::NEG_INFINITY; count]), f32::NEG_INFINITY);
            assert_eq!(folded(Fold::Least, &vec![f32::INFINITY; count]), f32::INFINITY);
            let mut mixed = vec![0.0; count];
            mixed[count - 1] = -0.0;
            assert_eq!((folded(Fold::Greatest, &mixed), folded(Fold::Least, &mixed)), (0.0, 0.0));
        }
        assert!(folded(Fold::Sum, &[f32::INFINITY, 1.0, f32::NEG_INFINITY]).is_nan());
        assert_eq!(folded(Fold::Sum, &[3e38, 3e38]), f32::INFINITY);
        assert_eq!(folded(Fold::Mean, &[3e38, 3e38]), 3e38);
    }
}
