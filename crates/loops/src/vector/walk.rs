//! Functions of one and of two numbers over slices, in place or into a new vector.

#![allow(unsafe_code, reason = "a buffer is filled before it is initialised")]

use std::mem::MaybeUninit;

use super::cut::{Cut, NEAR, Places, anew, in_place, made, on_copy};
use super::repeat::{Block, Repeat, Runs};
use super::target::{FusedWork, MulAdd, Work, widest, widest_fused};

/// A function of one number. To be inlined always.
pub trait One: Copy + Send + Sync {
    /// The time that it takes, relative to an addition.
    const WORK: usize = 1;
    /// Greatest magnitude of an argument of [`One::of`]; if it is finite, infinities and NaN are excluded.
    const LARGEST: f32 = f32::INFINITY;

    fn of<M: MulAdd>(self, x: f32) -> f32;

    /// The function of an argument outside the domain of [`One::of`]. A loop over it is not vectorised.
    #[inline]
    fn of_larger(self, _x: f32) -> f32 {
        unreachable!("a function with a limit says what it is beyond that")
    }

    /// The function of any number.
    #[inline(always)]
    fn of_any<M: MulAdd>(self, x: f32) -> f32 {
        if x.abs() <= Self::LARGEST { self.of::<M>(x) } else { self.of_larger(x) }
    }

    /// Whether all of these are in the domain of [`One::of`].
    #[inline(always)]
    fn takes(xs: &[f32]) -> bool {
        // Without an early exit, so that the loop is vectorised.
        Self::LARGEST == f32::INFINITY || xs.iter().fold(true, |all, x| all & (x.abs() <= Self::LARGEST))
    }
}

/// A function of two numbers. To be inlined always.
pub trait Two<R = f32>: Copy + Send + Sync {
    /// The time that it takes, relative to an addition.
    const WORK: usize = 1;

    fn of<M: MulAdd>(self, x: f32, y: f32) -> R;
}

/// Elements that are repeated in memory at a time.
const REPEATED: usize = 1 << 8;

/// Writes the elements at the next positions of an output.
fn spread<'a>(runs: &mut Runs, elements: &[f32], to: &'a mut [MaybeUninit<f32>]) -> &'a mut [f32] {
    runs.write(elements, to);
    // SAFETY: every slot was written.
    unsafe { to.assume_init_mut() }
}

struct Map<'a, F> {
    xs: &'a mut [f32],
    f: F,
}

impl<F: One> FusedWork for Map<'_, F> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for xs in self.xs.chunks_mut(NEAR) {
            if F::takes(xs) {
                xs.iter_mut().for_each(|x| *x = self.f.of::<M>(*x));
            } else {
                xs.iter_mut().for_each(|x| *x = self.f.of_any::<M>(*x));
            }
        }
    }
}

/// Overwrites each number with the function of it.
#[inline]
pub fn map<F: One>(xs: &mut [f32], f: F) {
    in_place(xs, Cut { period: 1, work: F::WORK }, |_, xs| widest_fused(Map { xs, f }));
}

/// As [`map`], on the calling thread, without a check for cancellation.
#[inline]
pub fn map_near<F: One>(xs: &mut [f32], f: F) {
    widest_fused(Map { xs, f });
}

/// The function of each number.
pub fn mapped<F: One>(xs: &[f32], f: F) -> Vec<f32> {
    anew(xs.len(), Cut { period: 1, work: F::WORK }, |at, to| {
        let xs = &xs[at..][..to.left()];
        widest_fused(MapRows { to, xs, rows: Rows { count: 1, len: xs.len(), apart: 0 }, f });
    })
}

/// Rows of one length that begin `apart` from one another: a part of each row of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub count: usize,
    pub len: usize,
    pub apart: usize,
}

struct MapRows<'a, 'p, F> {
    to: &'a mut Places<'p, f32>,
    /// From the first of the mapped rows on.
    xs: &'a [f32],
    rows: Rows,
    f: F,
}

impl<F: One> FusedWork for MapRows<'_, '_, F> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let MapRows { to, mut xs, rows: Rows { len, apart, .. }, f } = self;
        while to.left() > 0 {
            for near in xs[..len].chunks(NEAR) {
                if F::takes(near) {
                    to.map(near, |x| f.of::<M>(x));
                } else {
                    to.map(near, |x| f.of_any::<M>(x));
                }
            }
            xs = xs.get(apart..).unwrap_or_default();
        }
    }
}

/// The function of each number of some rows, the first of which begins with `xs`.
pub fn mapped_rows<F: One>(xs: &[f32], rows: Rows, f: F) -> Vec<f32> {
    anew(rows.count * rows.len, Cut { period: rows.len, work: F::WORK }, |at, to| {
        widest_fused(MapRows { xs: &xs[at / rows.len * rows.apart..], to, rows, f });
    })
}

/// A tensor's elements, with their repetition in an output.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub elements: &'a [f32],
    pub repeat: &'a Repeat,
}

impl Operand<'_> {
    /// Calls `act` with the operand, or with an equivalent one of more elements: see [`Repeat::unrolled`].
    #[inline]
    pub(super) fn unrolled<R>(self, act: impl FnOnce(Operand) -> R) -> R {
        let more = self.repeat.unrolled(self.elements);
        act(more.as_ref().map_or(self, |(elements, repeat)| Operand { elements, repeat }))
    }
}

/// The function of each of `xs`, the first of which is at index `from`, and its `y`.
/// `for_each` tells the compiler that `xs` and `y` do not overlap; in a `for` loop, some functions are not vectorised.
struct Zip<'a, F> {
    xs: &'a mut [f32],
    ys: Operand<'a>,
    from: usize,
    f: F,
}

impl<F: Two> FusedWork for Zip<'_, F> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Operand { elements, repeat } = self.ys;
        let mut runs = repeat.runs(self.from, self.xs.len());
        if repeat.is_short() {
            let mut places = [const { MaybeUninit::uninit() }; REPEATED];
            for xs in self.xs.chunks_mut(REPEATED) {
                let ys = spread(&mut runs, elements, &mut places[..xs.len()]);
                xs.iter_mut().zip(ys).for_each(|(x, &mut y)| *x = self.f.of::<M>(*x, y));
            }
            return;
        }
        let mut rest = self.xs;
        while let Some(Block { rows, len, first, apart }) = runs.next_block(usize::MAX) {
            let (own, others) = rest.split_at_mut(rows * len);
            for (i, own) in own.chunks_exact_mut(len).enumerate() {
                if repeat.step() == 1 {
                    let ys = &elements[first + i * apart..][..len];
                    own.iter_mut().zip(ys).for_each(|(x, &y)| *x = self.f.of::<M>(*x, y));
                } else {
                    let y = elements[first + i * apart];
                    own.iter_mut().for_each(|x| *x = self.f.of::<M>(*x, y));
                }
            }
            rest = others;
        }
    }
}

/// Overwrites each `x` with the function of it and its `y`.
#[inline]
pub fn zip<F: Two>(xs: &mut [f32], ys: Operand, f: F) {
    ys.unrolled(|ys| in_place(xs, Cut { period: 1, work: F::WORK }, |from, xs| widest_fused(Zip { xs, ys, from, f })));
}

/// As [`zip`], on the calling thread, without a check for cancellation.
#[inline]
pub fn zip_near<F: Two>(xs: &mut [f32], ys: Operand, f: F) {
    widest_fused(Zip { xs, ys, from: 0, f });
}

/// As [`Zip`], into new slots.
struct ZipAnew<'a, 'p, R, F> {
    to: &'a mut Places<'p, R>,
    xs: &'a [f32],
    ys: Operand<'a>,
    from: usize,
    f: F,
}

impl<R: Copy, F: Two<R>> FusedWork for ZipAnew<'_, '_, R, F> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let ZipAnew { to, xs, ys: Operand { elements, repeat }, from, f } = self;
        let mut runs = repeat.runs(from, xs.len());
        if repeat.is_short() {
            let mut places = [const { MaybeUninit::uninit() }; REPEATED];
            for xs in xs.chunks(REPEATED) {
                let ys = &*spread(&mut runs, elements, &mut places[..xs.len()]);
                to.zip(xs, ys, |x, y| f.of::<M>(x, y));
            }
            return;
        }
        let mut rest = xs;
        while let Some(Block { rows, len, first, apart }) = runs.next_block(usize::MAX) {
            let (own, others) = rest.split_at(rows * len);
            for (i, xs) in own.chunks_exact(len).enumerate() {
                let at = first + i * apart;
                if repeat.step() == 1 {
                    to.zip(xs, &elements[at..][..len], |x, y| f.of::<M>(x, y));
                } else {
                    let y = elements[at];
                    to.map(xs, |x| f.of::<M>(x, y));
                }
            }
            rest = others;
        }
    }
}

/// The function of each `x` and its `y`, for `len` positions.
pub fn zipped<R: Copy + Send, F: Two<R>>(xs: Operand, ys: Operand, len: usize, f: F) -> Vec<R> {
    let cut = Cut { period: 1, work: F::WORK };
    ys.unrolled(|ys| {
        anew(len, cut, |mut from, to| {
            if xs.repeat.is_none() {
                return widest_fused(ZipAnew { xs: &xs.elements[from..][..to.left()], to, ys, from, f });
            }
            let mut runs = xs.repeat.runs(from, to.left());
            let mut places = [const { MaybeUninit::uninit() }; REPEATED];
            while to.left() > 0 {
                let count = to.left().min(REPEATED);
                let xs = &*spread(&mut runs, xs.elements, &mut places[..count]);
                widest_fused(ZipAnew { to: &mut *to, xs, ys, from, f });
                from += count;
            }
        })
    })
}

/// Some slots of a new matrix.
struct Outer<'a, 'p> {
    to: &'a mut Places<'p, f32>,
    /// The index of the first of the slots.
    at: usize,
    column: &'a [f32],
    row: &'a [f32],
}

impl Work for Outer<'_, '_> {
    #[inline(always)]
    fn run(self) {
        let Outer { to, mut at, column, row } = self;
        while to.left() > 0 {
            let (x, from) = (column[at / row.len()], at % row.len());
            let part = &row[from..row.len().min(from + to.left())];
            // As a sum that begins with zero, so that no zero is negative.
            to.map(part, |y| x * y + 0.0);
            at += part.len();
        }
    }
}

/// The matrix of the products of each number of a column and each of a row.
pub fn outer(column: &[f32], row: &[f32]) -> Vec<f32> {
    anew(column.len() * row.len(), Cut::ANYWHERE, |at, to| widest(Outer { to, at, column, row }))
}

/// A row of `depth` numbers for each index: `on` at the index, if the row has that position, and `off` elsewhere.
pub fn one_hot(indices: &[i64], depth: usize, [on, off]: [f32; 2]) -> Vec<f32> {
    let len = indices.len() * depth;
    let chunk = Cut { period: depth.max(1), work: 1 }.chunk(len);
    made(len, chunk, |from, places: &mut [MaybeUninit<f32>]| {
        places.fill(MaybeUninit::new(off));
        for (row, &index) in places.chunks_exact_mut(depth).zip(&indices[from / depth..]) {
            if let Some(place) = usize::try_from(index).ok().and_then(|index| row.get_mut(index)) {
                place.write(on);
            }
        }
    })
}

/// Overwrites each number with the sum of it and those at the same index of `others`, added in their order.
pub fn sum_over(xs: &mut [f32], others: &[&[f32]]) {
    in_place(xs, Cut { period: 1, work: others.len().max(1) }, |from, xs| {
        for (i, xs) in xs.chunks_mut(NEAR).enumerate() {
            add_all(xs, others, from + i * NEAR);
        }
    });
}

/// The sums of numbers at the same index, added in their order.
pub fn sums(xs: &[f32], others: &[&[f32]]) -> Vec<f32> {
    on_copy(xs, Cut { period: 1, work: others.len().max(1) }, |from, xs| add_all(xs, others, from))
}

fn add_all(xs: &mut [f32], others: &[&[f32]], from: usize) {
    for other in others {
        let repeat = &Repeat::none(xs.len());
        let ys = Operand { elements: &other[from..from + xs.len()], repeat };
        widest_fused(Zip { xs, ys, from: 0, f: super::ops::Add });
    }
}

#[cfg(test)]
mod tests {
    use super::super::convert::converted;
    use super::super::cut::{FEWEST, MOST};
    use super::*;

    #[derive(Clone, Copy)]
    struct Less;

    impl Two<bool> for Less {
        #[inline(always)]
        fn of<M: MulAdd>(self, x: f32, y: f32) -> bool {
            x < y
        }
    }

    #[derive(Clone, Copy)]
    struct Difference;

    impl Two for Difference {
        #[inline(always)]
        fn of<M: MulAdd>(self, x: f32, y: f32) -> f32 {
            x - y
        }
    }

    #[derive(Clone, Copy)]
    struct Half;

    impl One for Half {
        #[inline(always)]
        fn of<M: MulAdd>(self, x: f32) -> f32 {
            0.5 * x
        }
    }

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i + seed) * 7919 % 1009) as f32).collect()
    }

    /// The element at each position of an output of the shape `whole`, one by one.
    fn broadcast(elements: &[f32], whole: &[usize], own: &[usize]) -> Vec<f32> {
        let missing = whole.len() - own.len();
        (0..whole.iter().product())
            .map(|mut place: usize| {
                let (mut at, mut stride) = (0, 1);
                for (axis, &size) in whole.iter().enumerate().rev() {
                    let index = place % size;
                    place /= size;
                    if axis >= missing {
                        at += if own[axis - missing] == 1 { 0 } else { index * stride };
                        stride *= own[axis - missing];
                    }
                }
                elements[at]
            })
            .collect()
    }

    fn check(whole: &[usize], x: &[usize], y: &[usize]) {
        let len = whole.iter().product();
        let (x_repeat, y_repeat) = (Repeat::new(whole, x).unwrap(), Repeat::new(whole, y).unwrap());
        let (xs, ys) = (numbers(x.iter().product(), 1), numbers(y.iter().product(), 5));
        let (mut all_xs, all_ys) = (broadcast(&xs, whole, x), broadcast(&ys, whole, y));
        let pairs = || all_xs.iter().zip(&all_ys);
        let differences: Vec<f32> = pairs().map(|(x, y)| x - y).collect();
        let less: Vec<bool> = pairs().map(|(x, y)| x < y).collect();
        let one_for_true: Vec<f32> = less.iter().map(|&less| f32::from(less)).collect();
        let (x_operand, y_operand) =
            (Operand { elements: &xs, repeat: &x_repeat }, Operand { elements: &ys, repeat: &y_repeat });
        let case = format!("{x:?} with {y:?}");
        assert!(zipped(x_operand, y_operand, len, Difference) == differences, "{case}");
        assert!(zipped(x_operand, y_operand, len, Less) == less, "{case}");
        assert!(converted::<bool, f32>(&less) == one_for_true, "{case}");
        zip(&mut all_xs, y_operand, Difference);
        assert!(all_xs == differences, "{case} in place");
    }

    #[test]
    fn every_number_meets_its_own_whatever_the_sizes() {
        for count in [0, 1, 2, 15, 16, 17, NEAR - 1, NEAR + 1, FEWEST - 1, FEWEST, FEWEST + 3, 2 * MOST + 5] {
            check(&[count], &[count], &[count]);
            check(&[count], &[count], &[]);
            check(&[count], &[], &[count]);
        }
        // A short sequence over and over.
        for (period, times) in [(3, 5), (7, 20_000), (32, 4_096), (1000, 100), (NEAR + 1, 70), (FEWEST + 1, 3)] {
            check(&[times, period], &[times, period], &[period]);
            check(&[times, period], &[1, period], &[times, period]);
        }
        // Each number repeated `each` times.
        for (period, each) in [(3, 2), (5, 17), (90, NEAR + 1), (3, FEWEST + 7), (100_000, 3)] {
            check(&[period, each], &[period, each], &[period, 1]);
            check(&[4, period, each], &[4, period, each], &[period, 1]);
        }
    }

    #[test]
    fn numbers_are_repeated_in_any_dimensions_of_either_operand() {
        // The mask of attention, a scale for each image's channels, a table of distances, and all of it in short rows.
        for [b, h, t, c] in [[2, 3, 4, 5], [3, 1, 7, 16], [5, 4, 33, 33], [2, 0, 3, 2], [1, 1, 1, 1], [6, 40, 50, 31]] {
            let whole = [b, h, t, c];
            for y in [[b, 1, 1, c], [b, 1, t, 1], [1, h, 1, c], [b, h, 1, 1], [1, 1, t, 1], [1, h, t, 1], [b, h, 1, c]]
            {
                check(&whole, &whole, &y);
                check(&whole, &y, &whole);
                check(&whole, &y, &[t, c]);
                check(&whole, &[h, 1, 1], &whole);
            }
        }
        check(&[700, 800], &[700, 1], &[1, 800]);
        check(&[700, 800], &[800], &[700, 1]);
        check(&[300_000, 2], &[300_000, 1], &[2]);
        check(&[2, 300_000], &[300_000], &[2, 1]);
        check(&[9, 2, 9, 2, 9, 2, 9], &[9, 1, 9, 1, 9, 1, 9], &[1, 2, 1, 2, 1, 2, 1]);
    }

    #[test]
    fn copies_and_one_hot_rows_are_whole_whatever_the_sizes() {
        for count in [0, 1, 33, FEWEST + 1, 2 * MOST + 77] {
            let xs = numbers(count, 2);
            assert!(super::super::place::copied(&xs) == xs, "{count}");
        }
        for (count, depth) in [(0, 5), (3, 0), (1, 1), (7, 3), (FEWEST + 5, 2), (300, 5001), (3, FEWEST + 9)] {
            // Some before the first position and some beyond the last.
            let indices: Vec<i64> = (0..count).map(|i| (i * 7919 % (depth + 3)) as i64 - 1).collect();
            let mut want = vec![-0.5f32; count * depth];
            for (i, &index) in indices.iter().enumerate().filter(|(_, index)| (0..depth as i64).contains(*index)) {
                want[i * depth + index as usize] = 2.5;
            }
            assert!(one_hot(&indices, depth, [2.5, -0.5]) == want, "{count} of {depth}");
        }
    }

    #[test]
    fn maps_reach_every_row() {
        for (count, len, apart, start) in [(1, 5, 9, 4), (3, 1, 2, 1), (64, 33, 132, 66), (1025, 300, 301, 1)] {
            let xs = numbers(start + (count - 1) * apart + len, 2);
            let want = (0..count).flat_map(|row| xs[start + row * apart..][..len].iter().map(|x| 0.5 * x));
            assert!(
                mapped_rows(&xs[start..], Rows { count, len, apart }, Half).into_iter().eq(want),
                "{count} of {len}"
            );
        }
    }

    #[test]
    fn outer_products_are_of_every_pair() {
        for (rows, columns) in [(1, 1), (3, 0), (0, 3), (7, 16), (1000, 300), (3, MOST + 5)] {
            let (column, row) = (numbers(rows, 4), numbers(columns, 1));
            let want = column.iter().flat_map(|x| row.iter().map(move |y| x * y));
            assert!(outer(&column, &row).into_iter().eq(want), "{rows} by {columns}");
        }
    }

    #[test]
    fn numbers_too_large_for_a_function_are_computed_otherwise() {
        /// Doubles up to 100; halves a larger number, and counts the rest as 7.
        #[derive(Clone, Copy)]
        struct Doubled;

        impl One for Doubled {
            const LARGEST: f32 = 100.0;

            #[inline(always)]
            fn of<M: MulAdd>(self, x: f32) -> f32 {
                2.0 * x
            }

            fn of_larger(self, x: f32) -> f32 {
                if x.is_finite() { 0.5 * x } else { 7.0 }
            }
        }

        let mut xs: Vec<f32> = (0..3 * NEAR).map(|i| (i % 90) as f32).collect();
        (xs[NEAR + 3], xs[NEAR + 9], xs[2 * NEAR], xs[2 * NEAR - 1]) = (-300.0, f32::NAN, f32::INFINITY, 100.0);
        let of = |x: f32| match x.abs() {
            ..=100.0 => 2.0 * x,
            size if size.is_finite() => 0.5 * x,
            _ => 7.0,
        };
        let want: Vec<f32> = xs.iter().copied().map(of).collect();
        assert!(mapped(&xs, Doubled) == want);
        let rows = Rows { count: 3, len: NEAR - 1, apart: NEAR };
        let of_rows = xs.chunks(NEAR).flat_map(|row| row[..NEAR - 1].iter().copied().map(of));
        assert!(mapped_rows(&xs, rows, Doubled).into_iter().eq(of_rows));
        map(&mut xs, Doubled);
        assert!(xs == want);
    }

    #[test]
    fn maps_and_sums_reach_every_number() {
        for count in [0, 1, 33, NEAR, FEWEST + 1, MOST + 77] {
            let (xs, ys, zs) = (numbers(count, 0), numbers(count, 3), numbers(count, 9));
            let mut over = xs.clone();
            map(&mut over, Half);
            let half: Vec<f32> = xs.iter().map(|x| 0.5 * x).collect();
            assert!(over == half && mapped(&xs, Half) == half, "{count}");
            let want: Vec<f32> = xs.iter().zip(&ys).zip(&zs).map(|((x, y), z)| x + y + z).collect();
            let mut over = xs.clone();
            sum_over(&mut over, &[&ys, &zs]);
            assert!(over == want && sums(&xs, &[&ys, &zs]) == want, "{count}");
        }
    }
}
