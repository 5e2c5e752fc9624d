//! Functions of one and of two numbers over many of them, in place or into a new vector; side by side on several threads if
//! there are enough for that.

#![allow(unsafe_code, reason = "a vector is filled before it is initialised")]

use std::mem::MaybeUninit;

use super::target::{Work, widest};
use crate::exec::lots::{in_lots, threads};

/// A function of one number. To be inlined always.
pub trait One: Copy + Send + Sync {
    /// How much longer it takes than an addition.
    const WORK: usize = 1;

    fn of(self, x: f32) -> f32;
}

/// A function of two numbers. To be inlined always.
pub trait Two: Copy + Send + Sync {
    /// How much longer it takes than an addition.
    const WORK: usize = 1;

    fn of(self, x: f32, y: f32) -> f32;
}

/// Fewest elements for which it pays to wake another thread, if each takes an addition.
const FEWEST: usize = 1 << 18;
/// Most elements of a lot: together with the others of its round, about a millisecond between two looks.
const MOST: usize = 1 << 18;
/// Lots per thread, so that none waits long for the others.
const LOTS: usize = 4;
/// Elements that are copied and computed on while a processor's nearest memory holds them.
const NEAR: usize = 1 << 11;

/// How a walk is cut.
#[derive(Clone, Copy)]
pub struct Cut {
    /// The parts, but for the last, are multiples of this.
    pub period: usize,
    /// How much longer an element takes than an addition.
    pub work: usize,
}

impl Cut {
    /// How many of `len` elements make a lot.
    fn lot(self, len: usize) -> usize {
        let fewest = FEWEST / self.work;
        let lot = len.div_ceil(threads() * LOTS).clamp(fewest / 2, MOST);
        if len < fewest { len.max(1) } else { lot.next_multiple_of(self.period) }
    }
}

/// Calls `act` with the place of the first element of each part of `xs`, and that part.
pub fn in_place(xs: &mut [f32], cut: Cut, act: impl Fn(usize, &mut [f32]) + Sync) {
    let lot = cut.lot(xs.len());
    in_lots(xs.chunks_mut(lot).enumerate(), |(i, part)| act(i * lot, part));
}

/// As [`in_place`], on a copy.
pub fn on_copy(xs: &[f32], cut: Cut, act: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let lot = cut.lot(xs.len());
    let near = NEAR.next_multiple_of(cut.period);
    let mut copy = Vec::with_capacity(xs.len());
    let places = copy.spare_capacity_mut()[..xs.len()].chunks_mut(lot);
    in_lots(places.zip(xs.chunks(lot)).enumerate(), |(i, (places, xs))| {
        for (j, (places, xs)) in places.chunks_mut(near).zip(xs.chunks(near)).enumerate() {
            act(i * lot + j * near, places.write_copy_of_slice(xs));
        }
    });
    // SAFETY: the lots are all of the vector's places, and each was written before `in_lots` returned.
    unsafe { copy.set_len(xs.len()) };
    copy
}

struct Map<'a, F> {
    xs: &'a mut [f32],
    f: F,
}

impl<F: One> Work for Map<'_, F> {
    #[inline(always)]
    fn run(self) {
        for x in self.xs {
            *x = self.f.of(*x);
        }
    }
}

/// Overwrites each number with the function of it.
pub fn map<F: One>(xs: &mut [f32], f: F) {
    in_place(xs, Cut { period: 1, work: F::WORK }, |_, xs| widest(Map { xs, f }));
}

/// The function of each number.
pub fn mapped<F: One>(xs: &[f32], f: F) -> Vec<f32> {
    on_copy(xs, Cut { period: 1, work: F::WORK }, |_, xs| widest(Map { xs, f }))
}

/// Rows of one length that begin `apart` from one another: what a part of each row of a matrix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub count: usize,
    pub len: usize,
    pub apart: usize,
}

struct MapRows<'a, 'p, F> {
    to: &'a mut Places<'p, f32>,
    /// From the first row that is mapped on.
    xs: &'a [f32],
    rows: Rows,
    f: F,
}

impl<F: One> Work for MapRows<'_, '_, F> {
    #[inline(always)]
    fn run(self) {
        let MapRows { to, mut xs, rows: Rows { len, apart, .. }, f } = self;
        while to.left() > 0 {
            let row = &xs[..len];
            to.each(len, |i| f.of(row[i]));
            xs = xs.get(apart..).unwrap_or_default();
        }
    }
}

/// The function of each number of some rows, of which the first begins with `xs`.
pub fn mapped_rows<F: One>(xs: &[f32], rows: Rows, f: F) -> Vec<f32> {
    anew(rows.count * rows.len, Cut { period: rows.len, work: F::WORK }, |at, to| {
        widest(MapRows { xs: &xs[at / rows.len * rows.apart..], to, rows, f });
    })
}

/// How the second numbers of pairs are repeated until there are as many as of the first: each so many times in a row, and then
/// all of them over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    pub each: usize,
}

impl Repeat {
    /// Over and over, or not at all.
    pub const WHOLE: Repeat = Repeat { each: 1 };
}

/// `ys` are as many as `xs`, or one, or as many as a part of them that is repeated.
struct Zip<'a, F> {
    xs: &'a mut [f32],
    ys: &'a [f32],
    f: F,
}

impl<F: Two> Work for Zip<'_, F> {
    #[inline(always)]
    fn run(self) {
        if let &[y] = self.ys {
            for x in self.xs {
                *x = self.f.of(*x, y);
            }
            return;
        }
        for xs in self.xs.chunks_mut(self.ys.len()) {
            for (x, &y) in xs.iter_mut().zip(self.ys) {
                *x = self.f.of(*x, y);
            }
        }
    }
}

/// Each of the `ys` belongs to `each` of the `xs` in a row, of which the first is at `from`.
struct Spread<'a, F> {
    xs: &'a mut [f32],
    ys: &'a [f32],
    each: usize,
    from: usize,
    f: F,
}

impl<F: Two> Work for Spread<'_, F> {
    #[inline(always)]
    fn run(self) {
        let (mut at, mut rest) = (self.from, self.xs);
        while !rest.is_empty() {
            let count = (self.each - at % self.each).min(rest.len());
            let (own, others) = rest.split_at_mut(count);
            let y = self.ys[at / self.each % self.ys.len()];
            for x in own {
                *x = self.f.of(*x, y);
            }
            (at, rest) = (at + count, others);
        }
    }
}

/// Overwrites each `x` with the function of it and its `y`. The `ys` are repeated until there are as many.
///
/// # Panics
/// If there are no `ys`.
pub fn zip<F: Two>(xs: &mut [f32], ys: &[f32], repeat: Repeat, f: F) {
    let (cut, act) = zipping(xs.len(), ys, repeat, f);
    in_place(xs, cut, act);
}

/// The function of each `x` and its `y`; as [`zip`].
///
/// # Panics
/// If there are no `ys`.
pub fn zipped<F: Two>(xs: &[f32], ys: &[f32], repeat: Repeat, f: F) -> Vec<f32> {
    let (cut, act) = zipping(xs.len(), ys, repeat, f);
    on_copy(xs, cut, act)
}

fn zipping<F: Two>(len: usize, ys: &[f32], Repeat { each }: Repeat, f: F) -> (Cut, impl Fn(usize, &mut [f32]) + Sync) {
    let period = if each == 1 { period(len, ys) } else { 1 };
    let act = move |from: usize, xs: &mut [f32]| {
        if each == 1 {
            widest(Zip { ys: beside(ys, period, from, xs.len()), xs, f });
        } else {
            widest(Spread { xs, ys, each, from, f });
        }
    };
    (Cut { period, work: F::WORK }, act)
}

/// The places of a part of a new vector. They are filled in their order.
pub struct Places<'a, R> {
    all: &'a mut [MaybeUninit<R>],
    filled: usize,
}

impl<R: Copy> Places<'_, R> {
    /// How many are not filled yet.
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.all.len() - self.filled
    }

    /// Fills the next `count` places: each with what `of` returns for its number among them.
    #[inline(always)]
    pub fn each(&mut self, count: usize, of: impl Fn(usize) -> R) {
        for (i, place) in self.all[self.filled..][..count].iter_mut().enumerate() {
            place.write(of(i));
        }
        self.filled += count;
    }

    /// Fills the next places with copies of these.
    #[inline(always)]
    pub fn copy(&mut self, from: &[R]) {
        self.all[self.filled..][..from.len()].write_copy_of_slice(from);
        self.filled += from.len();
    }
}

/// A new vector of `len` elements. `act` is called with the place of the first element of a part, and fills that part.
///
/// # Panics
/// If `act` leaves a place as it is.
pub fn anew<R: Copy + Send>(len: usize, cut: Cut, act: impl Fn(usize, &mut Places<R>) + Sync) -> Vec<R> {
    let lot = cut.lot(len);
    let mut made = Vec::with_capacity(len);
    in_lots(made.spare_capacity_mut()[..len].chunks_mut(lot).enumerate(), |(i, all)| {
        let mut places = Places { all, filled: 0 };
        act(i * lot, &mut places);
        assert_eq!(places.left(), 0, "every place is filled");
    });
    // SAFETY: the lots are all of the vector's places, and each was filled before `in_lots` returned.
    unsafe { made.set_len(len) };
    made
}

/// Where a walk may be cut: where the `ys` begin anew, or anywhere.
fn period(len: usize, ys: &[f32]) -> usize {
    if len == ys.len() { 1 } else { ys.len() }
}

/// The `ys` that belong to `count` numbers from a place on: as many, or all that are repeated.
#[inline]
fn beside(ys: &[f32], period: usize, from: usize, count: usize) -> &[f32] {
    if period == 1 && ys.len() > 1 { &ys[from..from + count] } else { ys }
}

/// Overwrites each number with the sum of it and those in its place in `others`, added in their order.
pub fn sum_over(xs: &mut [f32], others: &[&[f32]]) {
    in_place(xs, Cut { period: 1, work: others.len().max(1) }, |from, xs| {
        for (i, xs) in xs.chunks_mut(NEAR).enumerate() {
            add_all(xs, others, from + i * NEAR);
        }
    });
}

/// The sums of numbers in the same place, added in their order.
pub fn sums(xs: &[f32], others: &[&[f32]]) -> Vec<f32> {
    on_copy(xs, Cut { period: 1, work: others.len().max(1) }, |from, xs| add_all(xs, others, from))
}

fn add_all(xs: &mut [f32], others: &[&[f32]], from: usize) {
    for other in others {
        widest(Zip { ys: &other[from..from + xs.len()], xs, f: super::ops::Add });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Difference;

    impl Two for Difference {
        #[inline(always)]
        fn of(self, x: f32, y: f32) -> f32 {
            x - y
        }
    }

    #[derive(Clone, Copy)]
    struct Half;

    impl One for Half {
        #[inline(always)]
        fn of(self, x: f32) -> f32 {
            0.5 * x
        }
    }

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i + seed) * 7919 % 1009) as f32).collect()
    }

    #[test]
    fn every_number_meets_its_own_whatever_the_sizes() {
        let check = |count: usize, period: usize| {
            let (xs, ys) = (numbers(count, 1), numbers(period, 5));
            let want: Vec<f32> = xs.iter().zip(ys.iter().cycle()).map(|(x, y)| x - y).collect();
            let mut over = xs.clone();
            zip(&mut over, &ys, Repeat::WHOLE, Difference);
            assert!(over == want && zipped(&xs, &ys, Repeat::WHOLE, Difference) == want, "{count} with {period}");
        };
        for count in [1, 2, 15, 16, 17, NEAR - 1, NEAR + 1, FEWEST - 1, FEWEST, FEWEST + 3, 2 * MOST + 5] {
            check(count, count);
            check(count, 1);
        }
        for (period, times) in [(3, 5), (7, 20_000), (32, 4_096), (1000, 100), (NEAR + 1, 70), (FEWEST + 1, 9)] {
            check(period * times, period);
        }
    }

    #[test]
    fn every_number_meets_its_own_if_each_is_repeated() {
        for (each, period, times) in
            [(2, 3, 1), (17, 5, 1), (16, 4, 3), (NEAR + 1, 90, 1), (1000, 40, 9), (FEWEST + 7, 3, 1), (3, 1, 5)]
        {
            let (xs, ys) = (numbers(each * period * times, 1), numbers(period, 5));
            let own = || ys.iter().flat_map(|y| std::iter::repeat_n(y, each)).cycle();
            let want: Vec<f32> = xs.iter().zip(own()).map(|(x, y)| x - y).collect();
            let mut over = xs.clone();
            zip(&mut over, &ys, Repeat { each }, Difference);
            let case = format!("{period} numbers {each} times, {times} times over");
            assert!(over == want && zipped(&xs, &ys, Repeat { each }, Difference) == want, "{case}");
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
