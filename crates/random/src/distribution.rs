//! The conversion of random bits to numbers, as in TensorFlow: the bits that a number consumes, and the computation.

use half::{bf16, f16};
use meshtf_loops::vector::{Cut, Places, Work, anew, widest};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};

use super::philox::{ABREAST, Bits, Philox, Words};

/// The distribution of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Uniform over [0, 1).
    Uniform,
    /// Mean 0, variance 1.
    Normal,
    /// Like normal, but drawn again unless within 2 of 0.
    TruncatedNormal,
}

/// Counts reserved for each group of a truncated normal's numbers, which may take many draws.
const COUNTS_PER_TRUNCATED_NUMBER: u64 = 64;

/// The work of drawing a single number, in elements.
pub const DRAW: usize = 16;

/// The work per number of a large draw: for numbers made of their bits alone, and for numbers that take a logarithm or a
/// sine.
const BITS: usize = 2;
const FUNCTION: usize = 32;

/// The bound of a truncated normal.
const TRUNCATED_AT: f64 = 2.0;

impl Distribution {
    /// A tensor of numbers; `None` if TensorFlow has no such numbers of this dtype.
    ///
    /// # Errors
    /// As [`Shape::checked_elements`].
    pub fn draw(self, dtype: DType, shape: Shape, philox: Philox) -> Option<Result<Tensor>> {
        if !dtype.is_float() {
            return None;
        }
        let n = match shape.checked_elements(dtype) {
            Ok(n) => n,
            Err(failure) => return Some(Err(failure)),
        };
        let floats = || match self {
            Distribution::Normal => groups_of(FUNCTION, n, philox, normal4),
            _ => truncated(n, philox, |words| normal2([words.draw(), words.draw()])),
        };
        Some(Ok(match (self, dtype) {
            (Distribution::Uniform, DType::F16) => {
                Tensor::from_vec(shape, groups(n, philox, |bits| each(bits, |word| uniform_f16(word as u16))))
            }
            (Distribution::Uniform, DType::BF16) => {
                Tensor::from_vec(shape, groups(n, philox, |bits| each(bits, |word| uniform_bf16(word as u16))))
            }
            (Distribution::Uniform, DType::F32) => {
                Tensor::from_vec(shape, groups(n, philox, |bits| each(bits, uniform_f32)))
            }
            (Distribution::Uniform, _) => {
                Tensor::from_vec(shape, groups(n, philox, |[a, b, c, d]| [uniform_f64([a, b]), uniform_f64([c, d])]))
            }
            (_, DType::F16) => Tensor::from_vec(shape, floats().into_iter().map(f16::from_f32).collect()),
            (_, DType::BF16) => Tensor::from_vec(shape, floats().into_iter().map(bf16::from_f32).collect()),
            (_, DType::F32) => Tensor::from_vec(shape, floats()),
            (Distribution::Normal, _) => Tensor::from_vec(shape, groups_of(FUNCTION, n, philox, normal2_f64)),
            (Distribution::TruncatedNormal, _) => {
                let pair = |words: &mut Words| normal2_f64(std::array::from_fn(|_| words.draw()));
                Tensor::from_vec(shape, truncated(n, philox, pair))
            }
        }))
    }
}

/// A number for each word. In a build of several codegen units an array's `map` was not inlined: it took 2.4 times as long.
#[inline(always)]
pub(crate) fn each<T>([a, b, c, d]: Bits, number: impl Fn(u32) -> T) -> [T; 4] {
    [number(a), number(b), number(c), number(d)]
}

/// `n` numbers made of their bits alone; each count gives `G` of them.
pub(crate) fn groups<T: Copy + Default + Send, const G: usize>(
    n: usize,
    philox: Philox,
    numbers: impl Fn(Bits) -> [T; G] + Copy + Sync,
) -> Vec<T> {
    groups_of(BITS, n, philox, numbers)
}

/// As [`groups`], with `work` per number.
fn groups_of<T: Copy + Default + Send, const G: usize>(
    work: usize,
    n: usize,
    philox: Philox,
    numbers: impl Fn(Bits) -> [T; G] + Copy + Sync,
) -> Vec<T> {
    anew(n, Cut { period: G * ABREAST, work }, |at, to| {
        let mut philox = philox;
        philox.skip((at / G) as u64);
        widest(Groups { philox, to, numbers });
    })
}

/// A run of numbers, from the next count on.
struct Groups<'a, 'p, T, F> {
    philox: Philox,
    to: &'a mut Places<'p, T>,
    numbers: F,
}

impl<T: Copy + Default, const G: usize, F: Fn(Bits) -> [T; G]> Work for Groups<'_, '_, T, F> {
    #[inline(always)]
    fn run(self) {
        let Groups { mut philox, to, numbers } = self;
        while to.left() >= G * ABREAST {
            let bits = philox.draw_abreast();
            let mut block = [[T::default(); G]; ABREAST];
            for (i, group) in block.iter_mut().enumerate() {
                *group = numbers([bits[0][i], bits[1][i], bits[2][i], bits[3][i]]);
            }
            to.copy(block.as_flattened());
        }
        while to.left() > 0 {
            let group = numbers(philox.draw());
            to.copy(&group[..to.left().min(G)]);
        }
    }
}

/// The element type of a truncated normal, drawn in pairs.
trait Normal: Copy + Send + Into<f64> {
    /// The numbers per group: as many as the bits of one count give.
    const GROUP: usize;
}

impl Normal for f32 {
    const GROUP: usize = 4;
}

impl Normal for f64 {
    const GROUP: usize = 2;
}

/// `n` numbers near 0; `pair` draws two. Each group starts at a separate count.
fn truncated<T: Normal>(n: usize, philox: Philox, pair: impl Fn(&mut Words) -> [T; 2] + Sync) -> Vec<T> {
    anew(n, Cut { period: T::GROUP, work: 2 * FUNCTION }, |mut at, to| {
        while to.left() > 0 {
            let mut start = philox;
            start.skip(at as u64 * COUNTS_PER_TRUNCATED_NUMBER);
            let mut words = start.words();
            let mut left = to.left().min(T::GROUP);
            at += left;
            while left > 0 {
                for x in pair(&mut words) {
                    if left > 0 && Into::<f64>::into(x).abs() < TRUNCATED_AT {
                        to.copy(&[x]);
                        left -= 1;
                    }
                }
            }
        }
    })
}

/// 10 bits as the mantissa of a number in [1, 2), less 1.
#[inline(always)]
fn uniform_f16(bits: u16) -> f16 {
    f16::from_bits(15 << 10 | bits & 0x3ff) - f16::ONE
}

/// 7 bits as the mantissa of a number in [1, 2), less 1.
#[inline(always)]
fn uniform_bf16(bits: u16) -> bf16 {
    bf16::from_bits(127 << 7 | bits & 0x7f) - bf16::ONE
}

/// 23 bits as the mantissa of a number in [1, 2), less 1.
#[inline(always)]
pub fn uniform_f32(bits: u32) -> f32 {
    f32::from_bits(127 << 23 | bits & 0x7f_ffff) - 1.0
}

/// 52 bits as the mantissa of a number in [1, 2), less 1; the high word is first.
#[inline(always)]
pub fn uniform_f64([high, low]: [u32; 2]) -> f64 {
    let mantissa = u64::from(high & 0xf_ffff) << 32 | u64::from(low);
    f64::from_bits(1023 << 52 | mantissa) - 1.0
}

/// Two normal numbers from two uniform ones (Box and Muller 1958). The angle is computed in f64 and then rounded.
#[inline]
fn normal2([radius, angle]: [u32; 2]) -> [f32; 2] {
    let radius = (-2.0 * uniform_f32(radius).max(1.0e-7).ln()).sqrt();
    let angle = (2.0 * std::f64::consts::PI * f64::from(uniform_f32(angle))) as f32;
    [angle.sin() * radius, angle.cos() * radius]
}

#[inline]
fn normal4([a, b, c, d]: Bits) -> [f32; 4] {
    let ([first, second], [third, fourth]) = (normal2([a, b]), normal2([c, d]));
    [first, second, third, fourth]
}

#[inline]
pub fn normal2_f64([a, b, c, d]: Bits) -> [f64; 2] {
    let radius = (-2.0 * uniform_f64([a, b]).max(1.0e-7).ln()).sqrt();
    let angle = 2.0 * std::f64::consts::PI * uniform_f64([c, d]);
    [angle.sin() * radius, angle.cos() * radius]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(distribution: Distribution, n: usize) -> Vec<f32> {
        let philox = Philox::from_seeds(12, 34);
        distribution.draw(DType::F32, Shape::from([n]), philox).unwrap().unwrap().into_vec().unwrap()
    }

    #[test]
    fn many_numbers_are_those_of_tensorflow() {
        // `tf.raw_ops.RandomUniform(shape=[1_500_003], dtype=tf.float32, seed=12, seed2=34)` and similar calls return
        // these numbers at these indices.
        let places =
            [0, 255, 256, 131_071, 131_072, 262_144, 393_221, 786_432, 1_000_001, 1_499_999, 1_500_000, 1_500_002];
        let recorded: [(Distribution, [u32; 12]); 3] = [
            (
                Distribution::Uniform,
                [
                    0x3f44_c0dc,
                    0x3f0d_a452,
                    0x3f67_f3a8,
                    0x3f6a_d544,
                    0x3f3b_80c6,
                    0x3e3e_25a8,
                    0x3ecf_32d8,
                    0x3f28_23f8,
                    0x3f0c_a674,
                    0x3f33_4d88,
                    0x3c4d_8900,
                    0x3e1c_fb30,
                ],
            ),
            (
                Distribution::Normal,
                [
                    0xbe15_1c5b,
                    0xbf50_51a1,
                    0x3eb3_a1f3,
                    0x3fdd_6081,
                    0x3f16_cd72,
                    0x3f88_3a89,
                    0xbf16_2853,
                    0x3e56_1131,
                    0xbf87_b8dc,
                    0xbe81_569d,
                    0xbefc_3332,
                    0x3f36_4894,
                ],
            ),
            (
                Distribution::TruncatedNormal,
                [
                    0xbe15_1c5b,
                    0xbf96_d34a,
                    0xbf37_16d4,
                    0x3f51_06b2,
                    0x3eb7_871f,
                    0xbf98_9d63,
                    0xbef6_3187,
                    0xbe9a_6d3b,
                    0xbf01_a459,
                    0xbf5a_b302,
                    0xbf14_1a33,
                    0xbf56_d014,
                ],
            ),
        ];
        for (distribution, want) in recorded {
            let all = drawn(distribution, 1_500_003);
            assert_eq!(places.map(|place| all[place].to_bits()), want, "{distribution:?}");
        }
    }

    #[test]
    fn fewer_numbers_are_the_first_of_many() {
        let many = (1 << 18) + 1001;
        for distribution in [Distribution::Uniform, Distribution::Normal, Distribution::TruncatedNormal] {
            let all = drawn(distribution, many);
            for n in [0, 1, 3, 4, 5, 255, 256, 257, 511, 1025, (1 << 17) - 1, (1 << 17) + 3, 1 << 18] {
                let some = drawn(distribution, n);
                assert!(
                    some.iter().map(|x| x.to_bits()).eq(all[..n].iter().map(|x| x.to_bits())),
                    "{distribution:?} {n}"
                );
            }
        }
    }
}
