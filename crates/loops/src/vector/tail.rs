//! Functions of the elements that a loop has just written, while they are in the processor's cache: the bias and the activation
//! after a convolution. Each element is the one that the functions give one after the other, on all elements.

use super::channels::{Normal, Normaliser};
use super::cut::NEAR;
use super::repeat::Repeat;
use super::target::{Work, widest};
use super::walk::Operand;

/// The end of a computation: receives the index of the first element of a part that is done, a whole position, and that part.
pub type Finish<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// Elements of a loop's output that are finished at a time: half of the smallest second cache in use.
pub(super) const FINISHED: usize = 1 << 15;

/// Fewest elements of a row of numbers of channels.
const ROW: usize = 128;

type Over = Box<dyn Fn(&mut [f32]) + Send + Sync>;
type OverPairs = Box<dyn Fn(&mut [f32], Operand) + Send + Sync>;

/// A function that overwrites some elements on the calling thread.
pub struct Near {
    pub(super) apply: Over,
    /// The limits, if it is a rectifier: an element below the first, or above the second, becomes the limit.
    pub(super) limits: Option<[f32; 2]>,
}

/// As [`Near`], with an operand.
pub struct NearPairs {
    pub(super) apply: OverPairs,
    pub(super) is_sum: bool,
}

/// One function. The values are numbered: 0 is that of the loop, and each step makes the next.
pub struct Step<'a> {
    /// The value of which it is the function.
    pub of: usize,
    pub act: Act<'a>,
}

/// The function of a step.
pub enum Act<'a> {
    One(&'a Near),
    Two(&'a NearPairs, With<'a>),
    /// By the numbers of each channel.
    Normalise(&'a [Normal]),
}

/// The other operand of a function of two.
#[derive(Clone, Copy)]
pub enum With<'a> {
    Number(f32),
    /// A number for each channel.
    Channels(&'a [f32]),
    /// As many elements as the loop has.
    Elements(&'a [f32]),
    /// A value of an earlier step.
    Value(usize),
}

/// Steps on the output of a loop, whose last dimension is that of the channels.
pub struct Tail<'a> {
    /// Elements that pass through all steps at a time: whole rows.
    block: usize,
    steps: Vec<Placed<'a>>,
    /// The number of values that exist at a time; the first of them is in the place of the output.
    places: usize,
    /// The place of the last value.
    last: usize,
}

/// A step whose value has a place.
struct Placed<'a> {
    /// The place of its operand, which is copied to that of the result if it is another.
    from: usize,
    to: usize,
    act: PlacedAct<'a>,
}

enum PlacedAct<'a> {
    One(&'a Near),
    /// With a row of numbers, repeated.
    Row(&'a NearPairs, Vec<f32>, Repeat),
    /// The sum with a row of numbers, within limits: a bias and a rectifier in one pass.
    Sum(Vec<f32>, [f32; 2]),
    Elements(&'a NearPairs, &'a [f32]),
    Place(&'a NearPairs, usize),
    Normalise(Normaliser, [f32; 2]),
}

/// Limits that all elements are within, NaN too.
pub(super) const NO_LIMITS: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];

/// The element within limits; NaN stays, and so does each zero.
#[inline(always)]
pub(super) fn limited(x: f32, [low, high]: [f32; 2]) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// Elements of a row of numbers: those of the channels, repeated.
fn row_of(channels: usize) -> usize {
    channels.saturating_mul(ROW.div_ceil(channels.max(1)))
}

struct Sum<'a> {
    xs: &'a mut [f32],
    row: &'a [f32],
    limits: [f32; 2],
}

impl Work for Sum<'_> {
    #[inline(always)]
    fn run(self) {
        for xs in self.xs.chunks_mut(self.row.len()) {
            xs.iter_mut().zip(self.row).for_each(|(x, &y)| *x = limited(*x + y, self.limits));
        }
    }
}

/// Adds a rectifier to the step before it, if that computes in one pass with limits, in the same place.
fn is_merged(placed: &mut [Placed], from: usize, act: &Act) -> bool {
    let (Act::One(Near { limits: Some(limits), .. }), Some(before)) = (act, placed.last_mut()) else { return false };
    match &mut before.act {
        PlacedAct::Sum(_, own) | PlacedAct::Normalise(_, own) if before.to == from && *own == NO_LIMITS => {
            *own = *limits;
            true
        }
        _ => false,
    }
}

impl<'a> Tail<'a> {
    /// The steps for an output of so many channels, at least one.
    ///
    /// # Panics
    /// If a step takes a later value, or there is not a number for each channel.
    pub fn new(channels: usize, steps: Vec<Step<'a>>) -> Tail<'a> {
        let row = row_of(channels);
        let block = row * (NEAR / row).max(1);
        let count = steps.len();
        // By value: the last step that takes it. The last value is taken by nobody, and kept.
        let mut last_use = vec![0; count + 1];
        for (i, step) in steps.iter().enumerate() {
            assert!(step.of <= i, "a step takes an earlier value");
            last_use[step.of] = i;
            if let Act::Two(_, With::Value(other)) = step.act {
                assert!(other <= i, "a step takes an earlier value");
                last_use[other] = i;
            }
        }
        let (mut place_of, mut is_free, mut placed) = (vec![0], vec![false], Vec::with_capacity(count));
        for (i, step) in steps.into_iter().enumerate() {
            let from = place_of[step.of];
            let other = match step.act {
                Act::Two(_, With::Value(other)) => Some(other),
                _ => None,
            };
            let is_last = last_use[step.of] == i && other.is_none_or(|other| place_of[other] != from);
            let to = if is_last {
                from
            } else {
                let free = is_free.iter().position(|&free| free);
                free.unwrap_or_else(|| {
                    is_free.push(false);
                    is_free.len() - 1
                })
            };
            if to == from && is_merged(&mut placed, from, &step.act) {
                place_of.push(to);
                continue;
            }
            let act = match step.act {
                Act::One(act) => PlacedAct::One(act),
                Act::Two(NearPairs { is_sum: true, .. }, With::Number(number)) => {
                    PlacedAct::Sum(vec![number; row], NO_LIMITS)
                }
                Act::Two(act, With::Number(number)) => {
                    PlacedAct::Row(act, vec![number], Repeat::new(&[block], &[1]).expect("a number is repeated"))
                }
                Act::Two(act, With::Channels(numbers)) => {
                    assert_eq!(numbers.len(), channels, "there is a number for each channel");
                    let numbers = numbers.iter().copied().cycle().take(row).collect();
                    match act.is_sum {
                        true => PlacedAct::Sum(numbers, NO_LIMITS),
                        false => {
                            let repeat = Repeat::new(&[block / row, row], &[row]).expect("a row is repeated");
                            PlacedAct::Row(act, numbers, repeat)
                        }
                    }
                }
                Act::Two(act, With::Elements(elements)) => PlacedAct::Elements(act, elements),
                Act::Two(act, With::Value(other)) => PlacedAct::Place(act, place_of[other]),
                Act::Normalise(numbers) => {
                    assert_eq!(numbers.len(), channels, "there is a number for each channel");
                    PlacedAct::Normalise(Normaliser::new(numbers), NO_LIMITS)
                }
            };
            placed.push(Placed { from, to, act });
            is_free[to] = false;
            for value in [Some(step.of), other].into_iter().flatten() {
                if last_use[value] == i && place_of[value] != to {
                    is_free[place_of[value]] = true;
                }
            }
            place_of.push(to);
        }
        Tail { block, steps: placed, places: is_free.len(), last: place_of[count] }
    }

    /// Bytes that [`Tail::new`] takes: rows of numbers of the channels.
    pub fn row_bytes(channels: usize, steps: &[Step]) -> usize {
        let row = row_of(channels);
        let elements = steps.iter().map(|step| match &step.act {
            Act::Two(NearPairs { is_sum: true, .. }, With::Number(_)) | Act::Two(_, With::Channels(_)) => row,
            Act::Two(_, With::Number(_)) => 1,
            Act::Normalise(_) => Normaliser::elements(channels),
            Act::One(_) | Act::Two(_, With::Elements(_) | With::Value(_)) => 0,
        });
        elements.fold(0, usize::saturating_add).saturating_mul(size_of::<f32>())
    }

    /// Most bytes that a thread takes while it applies the steps: the places beside the output.
    pub fn scratch_bytes(&self) -> usize {
        (self.places - 1).saturating_mul(self.block).saturating_mul(size_of::<f32>())
    }

    /// Overwrites elements of the loop with those after the last step: those from this index on, which begins a position.
    ///
    /// # Panics
    /// If an operand has fewer elements.
    pub fn apply(&self, from: usize, xs: &mut [f32]) {
        let mut others = vec![0f32; (self.places - 1) * self.block.min(xs.len())];
        for (i, xs) in xs.chunks_mut(self.block).enumerate() {
            let (at, len) = (from + i * self.block, xs.len());
            let mut places: Vec<&mut [f32]> = Vec::with_capacity(self.places);
            places.push(xs);
            places.extend(others.chunks_exact_mut(len).take(self.places - 1));
            for Placed { from, to, act } in &self.steps {
                let own = std::mem::take(&mut places[*to]);
                if from != to {
                    own.copy_from_slice(places[*from]);
                }
                match act {
                    PlacedAct::One(act) => (act.apply)(own),
                    PlacedAct::Row(act, elements, repeat) => (act.apply)(own, Operand { elements, repeat }),
                    PlacedAct::Sum(row, limits) => widest(Sum { xs: &mut *own, row, limits: *limits }),
                    PlacedAct::Elements(act, elements) => {
                        (act.apply)(own, Operand { elements: &elements[at..][..len], repeat: &Repeat::none(len) });
                    }
                    PlacedAct::Place(act, other) => {
                        (act.apply)(own, Operand { elements: places[*other], repeat: &Repeat::none(len) });
                    }
                    PlacedAct::Normalise(normaliser, limits) => normaliser.over(own, *limits),
                }
                places[*to] = own;
            }
            if self.last != 0 {
                let (first, rest) = places.split_at_mut(1);
                first[0].copy_from_slice(rest[self.last - 1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{binary, unary};
    use super::*;

    #[test]
    fn a_rectifier_is_a_part_of_the_sum_before_it() {
        let (add, count) = (binary("AddV2").unwrap().straight.near, 40 * 300);
        let odd = [f32::NAN, -0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 6.0, 6.5, -3.0];
        let xs: Vec<f32> = (0..count).map(|i| odd[i % odd.len()] + (i / odd.len() % 3) as f32 * -0.0).collect();
        let bias: Vec<f32> = (0..40).map(|i| [0.0, -0.0, 2.5, -7.0][i % 4]).collect();
        let normal: Vec<Normal> =
            bias.iter().map(|&x| Normal { mean: x, factor: 0.5, scale: 2.0, offset: -0.0 }).collect();
        for op in ["Relu", "Relu6"] {
            let relu = unary(op).unwrap();
            for is_sum in [true, false] {
                let act = || match is_sum {
                    true => Act::Two(&add, With::Channels(&bias)),
                    false => Act::Normalise(&normal),
                };
                let tail = Tail::new(40, vec![Step { of: 0, act: act() }, Step { of: 1, act: Act::One(&relu.near) }]);
                assert_eq!(tail.steps.len(), 1, "{op}");
                let (mut got, mut want) = (xs.clone(), xs.clone());
                tail.apply(0, &mut got);
                Tail::new(40, vec![Step { of: 0, act: act() }]).apply(0, &mut want);
                (relu.over)(&mut want);
                assert!(got.iter().zip(&want).all(|(x, y)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()));
                // Another step takes the sum without limits.
                let steps = vec![
                    Step { of: 0, act: act() },
                    Step { of: 1, act: Act::One(&relu.near) },
                    Step { of: 2, act: Act::Two(&add, With::Value(1)) },
                ];
                assert_eq!(Tail::new(40, steps).steps.len(), 3, "{op}");
            }
        }
    }

    #[test]
    fn steps_are_computed_in_their_order_and_values_are_kept_while_they_are_taken() {
        let (relu, square) = (unary("Relu").unwrap().near, unary("Square").unwrap().near);
        let [add, mul, sub] = ["Add", "Mul", "Sub"].map(|op| binary(op).unwrap());
        for (channels, positions) in [(1, 5), (3, 1000), (16, 129), (200, 30), (5000, 2)] {
            let count = channels * positions;
            let xs: Vec<f32> = (0..count).map(|i| ((i * 37) % 19) as f32 * 0.5 - 4.0).collect();
            let image: Vec<f32> = (0..count).map(|i| ((i * 11) % 7) as f32).collect();
            let bias: Vec<f32> = (0..channels).map(|i| (i % 5) as f32 - 2.0).collect();
            let normal: Vec<Normal> = (0..channels)
                .map(|i| Normal { mean: (i % 3) as f32, factor: 2.0, scale: 0.5, offset: (i % 2) as f32 })
                .collect();
            let add_ = &add.straight.near;
            let steps = vec![
                Step { of: 0, act: Act::Two(add_, With::Channels(&bias)) },
                Step { of: 1, act: Act::Two(add_, With::Number(3.0)) },
                Step { of: 2, act: Act::One(&relu) },
                // Both are taken again.
                Step { of: 1, act: Act::Two(&mul.straight.near, With::Value(3)) },
                Step { of: 4, act: Act::Two(&sub.swapped.near, With::Value(3)) },
                Step { of: 5, act: Act::Two(&sub.straight.near, With::Elements(&image)) },
                Step { of: 6, act: Act::Normalise(&normal) },
                Step { of: 7, act: Act::Two(&mul.straight.near, With::Value(7)) },
                Step { of: 8, act: Act::Two(add_, With::Value(1)) },
                Step { of: 7, act: Act::One(&square) },
                Step { of: 9, act: Act::Two(add_, With::Value(10)) },
            ];
            // A bias, a number, and three of a normalisation.
            let row = channels * 128usize.div_ceil(channels);
            assert_eq!(Tail::row_bytes(channels, &steps), 5 * row * 4, "{channels} channels");
            let tail = Tail::new(channels, steps);
            assert_eq!(tail.scratch_bytes(), (tail.places - 1) * tail.block * 4);
            assert_eq!(tail.places, 3);
            let mut got = xs.clone();
            // In two parts.
            let cut = positions / 2 * channels;
            let (first, second) = got.split_at_mut(cut);
            tail.apply(0, first);
            tail.apply(cut, second);
            for (i, got) in got.into_iter().enumerate() {
                let c = i % channels;
                let v1 = xs[i] + bias[c];
                let v3 = (v1 + 3.0).max(0.0);
                let v6 = (v3 - v1 * v3) - image[i];
                let v7 = (v6 - normal[c].mean) * (normal[c].scale * normal[c].factor) + normal[c].offset;
                let want = (v7 * v7 + v1) + v7 * v7;
                assert_eq!(got, want, "{channels} channels, element {i}");
            }
        }
        // Without steps, and on nothing.
        let mut same = [1.0, 2.0];
        Tail::new(2, Vec::new()).apply(0, &mut same);
        assert_eq!(same, [1.0, 2.0]);
        Tail::new(2, vec![Step { of: 0, act: Act::One(&relu) }]).apply(0, &mut []);
    }
}
