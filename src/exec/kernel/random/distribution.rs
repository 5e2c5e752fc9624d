//! From random bits to numbers, as in TensorFlow: which bits make up a number, and how.

use half::{bf16, f16};

use super::philox::{Bits, Philox, Words};
use crate::exec::turn::Pace;
use crate::failure::Result;
use crate::tensor::{DType, Shape, Tensor};

/// How numbers are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Evenly over [0, 1).
    Uniform,
    /// Mean 0, variance 1.
    Normal,
    /// Like normal, but drawn again until within 2 of 0.
    TruncatedNormal,
}

/// Counts reserved for each group of a truncated normal's numbers, which may take many draws.
const COUNTS_PER_TRUNCATED_NUMBER: u64 = 64;

/// The work of drawing a number, in elements.
pub const DRAW: usize = 16;

/// The bound of a truncated normal.
const TRUNCATED_AT: f64 = 2.0;

impl Distribution {
    /// A tensor of numbers; `None` if TensorFlow draws no such numbers of this dtype.
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
            Distribution::Normal => groups(n, philox, normal4),
            _ => truncated(n, philox, &mut |words, [a, b]: &mut [f32; 2]| {
                [*a, *b] = normal2([words.draw(), words.draw()])
            }),
        };
        Some(Ok(match (self, dtype) {
            (Distribution::Uniform, DType::F16) => {
                Tensor::from_vec(shape, groups(n, philox, |bits| bits.map(|word| uniform_f16(word as u16))))
            }
            (Distribution::Uniform, DType::BF16) => {
                Tensor::from_vec(shape, groups(n, philox, |bits| bits.map(|word| uniform_bf16(word as u16))))
            }
            (Distribution::Uniform, DType::F32) => {
                Tensor::from_vec(shape, groups(n, philox, |bits| bits.map(uniform_f32)))
            }
            (Distribution::Uniform, _) => {
                Tensor::from_vec(shape, groups(n, philox, |[a, b, c, d]| [uniform_f64([a, b]), uniform_f64([c, d])]))
            }
            (_, DType::F16) => Tensor::from_vec(shape, floats().into_iter().map(f16::from_f32).collect()),
            (_, DType::BF16) => Tensor::from_vec(shape, floats().into_iter().map(bf16::from_f32).collect()),
            (_, DType::F32) => Tensor::from_vec(shape, floats()),
            (Distribution::Normal, _) => Tensor::from_vec(shape, groups(n, philox, normal2_f64)),
            (Distribution::TruncatedNormal, _) => Tensor::from_vec(
                shape,
                truncated(n, philox, &mut |words, pair: &mut [f64; 2]| {
                    *pair = normal2_f64(std::array::from_fn(|_| words.draw()));
                }),
            ),
        }))
    }
}

/// `n` numbers; each count gives `G` of them.
pub fn groups<T: Copy, const G: usize>(n: usize, mut philox: Philox, numbers: impl Fn(Bits) -> [T; G]) -> Vec<T> {
    let mut all = Vec::with_capacity(n.next_multiple_of(G));
    let mut pace = Pace::new();
    while all.len() < n {
        pace.go(DRAW * G);
        all.extend(numbers(philox.draw()));
    }
    all.truncate(n);
    all
}

/// The element type of a truncated normal, drawn in pairs.
trait Normal: Copy + Default + Into<f64> {
    /// Numbers per group: as many as the bits of one count give.
    const GROUP: usize;
}

impl Normal for f32 {
    const GROUP: usize = 4;
}

impl Normal for f64 {
    const GROUP: usize = 2;
}

/// `n` numbers near 0; each group starts at a count of its own.
fn truncated<T: Normal>(n: usize, philox: Philox, pair: &mut dyn FnMut(&mut Words, &mut [T; 2])) -> Vec<T> {
    let mut all = Vec::with_capacity(n.next_multiple_of(T::GROUP));
    let mut pace = Pace::new();
    while all.len() < n {
        pace.go(2 * DRAW * T::GROUP);
        let mut start = philox;
        start.skip(all.len() as u64 * COUNTS_PER_TRUNCATED_NUMBER);
        let mut words = start.words();
        let end = all.len() + T::GROUP;
        while all.len() < end {
            let mut two = [T::default(); 2];
            pair(&mut words, &mut two);
            let near = two.into_iter().filter(|&x| Into::<f64>::into(x).abs() < TRUNCATED_AT);
            all.extend(near.take(end - all.len()));
        }
    }
    all.truncate(n);
    all
}

/// 10 bits as the mantissa of a number in [1, 2), less 1.
fn uniform_f16(bits: u16) -> f16 {
    f16::from_bits(15 << 10 | bits & 0x3ff) - f16::ONE
}

/// 7 bits as the mantissa of a number in [1, 2), less 1.
fn uniform_bf16(bits: u16) -> bf16 {
    bf16::from_bits(127 << 7 | bits & 0x7f) - bf16::ONE
}

/// 23 bits as the mantissa of a number in [1, 2), less 1.
pub fn uniform_f32(bits: u32) -> f32 {
    f32::from_bits(127 << 23 | bits & 0x7f_ffff) - 1.0
}

/// 52 bits as the mantissa of a number in [1, 2), less 1; the high word is first.
pub fn uniform_f64([high, low]: [u32; 2]) -> f64 {
    let mantissa = u64::from(high & 0xf_ffff) << 32 | u64::from(low);
    f64::from_bits(1023 << 52 | mantissa) - 1.0
}

/// Two normal numbers from two uniform ones (Box and Muller 1958). The angle is computed in f64 and then rounded.
fn normal2([radius, angle]: [u32; 2]) -> [f32; 2] {
    let radius = (-2.0 * uniform_f32(radius).max(1.0e-7).ln()).sqrt();
    let angle = (2.0 * std::f64::consts::PI * f64::from(uniform_f32(angle))) as f32;
    [angle.sin() * radius, angle.cos() * radius]
}

fn normal4([a, b, c, d]: Bits) -> [f32; 4] {
    let ([first, second], [third, fourth]) = (normal2([a, b]), normal2([c, d]));
    [first, second, third, fourth]
}

pub fn normal2_f64([a, b, c, d]: Bits) -> [f64; 2] {
    let radius = (-2.0 * uniform_f64([a, b]).max(1.0e-7).ln()).sqrt();
    let angle = 2.0 * std::f64::consts::PI * uniform_f64([c, d]);
    [angle.sin() * radius, angle.cos() * radius]
}
