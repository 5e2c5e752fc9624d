//! Selection between numbers by bools.

use super::cut::{Cut, Places, anew, in_place};
use super::repeat::{Along, Walk};
use super::target::{Work, widest};

/// Numbers that are chosen by flags. `dims` are of three: the flags, the numbers for true and those for false. The outermost is
/// first.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    pub flags: &'a [bool],
    pub when: [&'a [f32]; 2],
    pub dims: &'a [Along<3>],
}

/// The index of the numbers for true, and of those for false, in a [`Choice`].
pub const TRUE: usize = 0;
pub const FALSE: usize = 1;

/// One of the two, by bit operations: a branch on unpredictable flags takes ten times as long.
#[inline(always)]
fn choose(flag: bool, yes: f32, no: f32) -> f32 {
    let mask = u32::from(flag).wrapping_neg();
    f32::from_bits((yes.to_bits() & mask) | (no.to_bits() & !mask))
}

struct Choosing<'a, 'p> {
    to: &'a mut Places<'p, f32>,
    choice: Choice<'a>,
    from: usize,
}

impl Work for Choosing<'_, '_> {
    #[inline(always)]
    fn run(self) {
        let Choosing { to, choice: Choice { flags, when: [yes, no], dims }, from } = self;
        let mut walk = Walk::from(dims, from);
        let [by_flag, by_yes, by_no] = walk.steps();
        while to.left() > 0 {
            let ([flag, at_yes, at_no], count) = walk.next(to.left());
            if by_flag == 0 {
                let (from, by) = if flags[flag] { (&yes[at_yes..], by_yes) } else { (&no[at_no..], by_no) };
                if by == 1 {
                    to.copy(&from[..count])
                } else {
                    to.each(count, |_| from[0])
                }
                continue;
            }
            let flags = &flags[flag..][..count];
            match (by_yes, by_no) {
                (1, 1) => {
                    let (yes, no) = (&yes[at_yes..][..count], &no[at_no..][..count]);
                    to.each(count, |i| choose(flags[i], yes[i], no[i]));
                }
                (1, _) => {
                    let (yes, no) = (&yes[at_yes..][..count], no[at_no]);
                    to.each(count, |i| choose(flags[i], yes[i], no));
                }
                (_, 1) => {
                    let (yes, no) = (yes[at_yes], &no[at_no..][..count]);
                    to.each(count, |i| choose(flags[i], yes, no[i]));
                }
                _ => {
                    let (yes, no) = (yes[at_yes], no[at_no]);
                    to.each(count, |i| choose(flags[i], yes, no));
                }
            }
        }
    }
}

/// The chosen numbers.
pub fn chosen(choice: Choice) -> Vec<f32> {
    let len = choice.dims.iter().map(|dim| dim.0).product();
    anew(len, Cut::ANYWHERE, |from, to| widest(Choosing { to, choice, from }))
}

struct ChoosingOver<'a> {
    xs: &'a mut [f32],
    kept: usize,
    choice: Choice<'a>,
    from: usize,
}

impl Work for ChoosingOver<'_> {
    #[inline(always)]
    fn run(self) {
        let ChoosingOver { xs, kept, choice: Choice { flags, when, dims }, from } = self;
        let (others, is_kept) = (when[1 - kept], kept == TRUE);
        let mut walk = Walk::from(dims, from);
        let (by_flag, by_other) = (walk.steps()[0], walk.steps()[2 - kept]);
        let mut rest = xs;
        while !rest.is_empty() {
            let (offsets, count) = walk.next(rest.len());
            let (own, behind) = rest.split_at_mut(count);
            rest = behind;
            let (flag, others) = (offsets[0], &others[offsets[2 - kept]..]);
            match (by_flag, by_other) {
                (0, _) if flags[flag] == is_kept => {}
                (0, 1) => own.copy_from_slice(&others[..count]),
                (0, _) => own.fill(others[0]),
                (_, 1) => {
                    for ((x, &other), &flag) in own.iter_mut().zip(&others[..count]).zip(&flags[flag..][..count]) {
                        *x = choose(flag == is_kept, *x, other);
                    }
                }
                (_, _) => {
                    let other = others[0];
                    for (x, &flag) in own.iter_mut().zip(&flags[flag..][..count]) {
                        *x = choose(flag == is_kept, *x, other);
                    }
                }
            }
        }
    }
}

/// Writes the chosen numbers over `xs`, which are all those of one side, [`TRUE`] or [`FALSE`], in their order. The slice of
/// that side in the choice is not read.
#[inline]
pub fn choose_over(xs: &mut [f32], kept: usize, choice: Choice) {
    in_place(xs, Cut::ANYWHERE, |from, xs| widest(ChoosingOver { xs, kept, choice, from }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i + seed) * 7919 % 1009) as f32).collect()
    }

    /// The numbers that are chosen, one by one.
    fn one_by_one(Choice { flags, when: [yes, no], dims }: Choice) -> Vec<f32> {
        let len = dims.iter().map(|dim| dim.0).product();
        let one = |mut place: usize| {
            let mut offsets = [0; 3];
            for (size, strides) in dims.iter().rev() {
                (0..3).for_each(|k| offsets[k] += place % size * strides[k]);
                place /= size;
            }
            if flags[offsets[0]] { yes[offsets[1]] } else { no[offsets[2]] }
        };
        (0..len).map(one).collect()
    }

    #[test]
    fn every_number_is_the_one_that_its_flag_chooses() {
        let many = (1 << 18) + 3;
        let check = |dims: &[Along<3>]| {
            let counts =
                [0, 1, 2].map(|k| 1 + dims.iter().map(|(size, strides)| (size - 1) * strides[k]).sum::<usize>());
            let flags: Vec<bool> = numbers(counts[0], 3).iter().map(|x| *x < 500.0).collect();
            let (yes, no) = (numbers(counts[1], 1), numbers(counts[2], 7));
            let choice = Choice { flags: &flags, when: [&yes, &no], dims };
            let want = one_by_one(choice);
            assert!(chosen(choice) == want, "{dims:?}");
            for kept in [TRUE, FALSE] {
                let mut xs = choice.when[kept].to_vec();
                if xs.len() == want.len() {
                    let mut when = choice.when;
                    when[kept] = &[];
                    choose_over(&mut xs, kept, Choice { when, ..choice });
                    assert!(xs == want, "{dims:?} over those of {kept}");
                }
            }
        };
        for count in [1, 2, 31, 33, many] {
            for steps in [[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1]] {
                check(&[(count, steps)]);
            }
        }
        // A flag for each row; rows that are short, and long.
        check(&[(5, [1, 3, 3]), (3, [0, 1, 1])]);
        check(&[(90_001, [1, 3, 3]), (3, [0, 1, 1])]);
        check(&[(7, [1, many, many]), (many, [0, 1, 1])]);
        check(&[(3000, [1, 101, 0]), (101, [0, 1, 0])]);
        // The same flags for each of several heads, and one number or a row of them where they are false.
        check(&[(6, [700, 5 * 700, 0]), (5, [0, 700, 0]), (700, [1, 1, 0])]);
        check(&[(6, [70_000, 5 * 70_000, 0]), (5, [0, 70_000, 0]), (70_000, [1, 1, 0])]);
        check(&[(40, [33, 33 * 400, 0]), (400, [0, 33, 0]), (33, [1, 1, 1])]);
        check(&[(3, [0, 1, 0]), (90_000, [1, 0, 1])]);
    }
}
