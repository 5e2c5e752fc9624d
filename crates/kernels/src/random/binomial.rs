//! Binomial numbers.

use meshtf_loops::turn::Pace;
use meshtf_random::{DRAW, Philox, uniform_f64};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Float, Numeric, Shape, Tensor, with_number, with_type};

use super::super::Registry;
use super::super::broadcast::Broadcast;
use super::super::call::{input_dtype, kernel as call, output_dtype};
use super::stateful::shape_of;
use super::stateless::source;

/// Counts between the positions of two numbers that are drawn by rejection.
const REJECTION_COUNTS: u64 = 256;

/// Counts between the positions of two numbers that are drawn by inversion, which are small.
const INVERSION_COUNTS: u64 = 42;

/// The mean from which numbers are drawn by rejection.
const LARGE_MEAN: f64 = 10.0;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StatelessRandomBinomial", |node| {
        let dtype = output_dtype(node, 0)?;
        if !matches!(input_dtype(node, 2)?, DType::F16 | DType::F32 | DType::F64) {
            return Ok(None);
        }
        Ok(Some(call(move |[shape, seed, counts, probabilities]: [Tensor; 4]| {
            drawn(&shape, &counts, &probabilities, dtype, |_| source(&[seed]))
        })))
    });
}

/// Numbers of a shape that ends with that of the counts and probabilities, as `dtype`. `state` returns the low and the high half
/// of Philox's counter and its key, given the numbers of samples and of pairs of parameters.
///
/// # Errors
/// InvalidArgument if the shapes do not match, ResourceExhausted if the numbers are too many, and those of `state`.
pub fn binomial(
    shape: &Tensor,
    counts: &Tensor,
    probabilities: &Tensor,
    dtype: DType,
    state: impl FnOnce([usize; 2]) -> Result<[u64; 3]>,
) -> Result<Tensor> {
    drawn(shape, counts, probabilities, dtype, |sizes| {
        state(sizes).map(|[low, high, key]| Philox::new(key, u128::from(high) << 64 | u128::from(low)))
    })
}

fn drawn(
    shape: &Tensor,
    counts: &Tensor,
    probabilities: &Tensor,
    dtype: DType,
    philox: impl FnOnce([usize; 2]) -> Result<Philox>,
) -> Result<Tensor> {
    let parameters = counts.shape().broadcast(probabilities.shape()).map_err(|_| {
        Failure::invalid(format!(
            "counts and probs must have compatible batch dimensions: {} vs. {}",
            counts.shape(),
            probabilities.shape()
        ))
    })?;
    let whole = shape_of(shape)?;
    let all = whole.checked_elements(dtype)?;
    if !whole.dims().ends_with(parameters.dims()) {
        return Err(Failure::invalid(format!(
            "Shape passed in must end with broadcasted shape. It is {whole}, and the parameters have shape {parameters}"
        )));
    }
    let samples: usize = whole.dims()[..whole.rank() - parameters.rank()].iter().product();
    let pairs = all.checked_div(samples).unwrap_or(0);
    let philox = philox([samples, pairs])?;
    let filled = with_number!(dtype, U => {
        with_type!(counts.dtype(), T => filled::<T, U>([counts, probabilities], &parameters, whole, [samples, pairs], philox);
            F16 half::f16, F32 f32, F64 f64)
    });
    filled.flatten().unwrap_or_else(|| Err(Failure::invalid(format!("binomial numbers are not held as {dtype}"))))
}

fn filled<T: Float, U: Numeric>(
    of: [&Tensor; 2],
    parameters: &Shape,
    whole: Shape,
    [samples, pairs]: [usize; 2],
    philox: Philox,
) -> Result<Tensor> {
    let (counts, probabilities) = (of[0].slice::<T>()?, of[1].slice::<T>()?);
    let mut out = vec![U::ZERO; samples * pairs];
    let mut pace = Pace::new();
    let walk = Broadcast::new(parameters, [of[0].shape(), of[1].shape()]);
    let (row, steps) = (walk.row(), walk.steps());
    let mut pair = 0;
    if out.is_empty() {
        return Ok(Tensor::from_vec(whole, out));
    }
    for [count, probability] in walk.rows() {
        for i in 0..row {
            let binomial = Binomial::of(counts[count + i * steps[0]], probabilities[probability + i * steps[1]]);
            for sample in 0..samples {
                pace.go(4 * DRAW);
                let number = binomial.draw(philox, (pair * samples + sample) as u64, &mut pace);
                out[sample * pairs + pair] = U::from_f64(number);
            }
            pair += 1;
        }
    }
    Ok(Tensor::from_vec(whole, out))
}

/// How the numbers of a count and a probability are drawn.
enum Way {
    Always(f64),
    Inversion,
    Rejection,
}

struct Binomial {
    count: f64,
    /// The probability, or that of the other outcome if that is less likely.
    probability: f64,
    counts_other: bool,
    way: Way,
}

impl Binomial {
    fn of<T: Float>(count: T, probability: T) -> Binomial {
        let p = probability.to_f64();
        let own = count.to_f64();
        let always = |value| Binomial { count: own, probability: p, counts_other: false, way: Way::Always(value) };
        if own <= 0.0 || p <= 0.0 {
            return always(0.0);
        }
        if p >= 1.0 {
            return always(own);
        }
        if p.is_nan() {
            return always(f64::NAN);
        }
        let counts_other = p > 0.5;
        let less = if counts_other { T::ONE - probability } else { probability };
        let way = if (count * less).to_f64() >= LARGE_MEAN { Way::Rejection } else { Way::Inversion };
        Binomial { count: own, probability: less.to_f64(), counts_other, way }
    }

    fn draw(&self, mut philox: Philox, index: u64, pace: &mut Pace) -> f64 {
        let drawn = match self.way {
            Way::Always(value) => return value,
            Way::Inversion => {
                philox.skip(INVERSION_COUNTS.wrapping_mul(index));
                self.inverted(&mut Uniforms { philox, next: None }, pace)
            }
            Way::Rejection => {
                philox.skip(REJECTION_COUNTS.wrapping_mul(index));
                self.accepted(&mut Uniforms { philox, next: None }, pace)
            }
        };
        if self.counts_other { self.count - drawn } else { drawn }
    }

    /// The number of geometric waiting times before the count is exceeded.
    fn inverted(&self, uniforms: &mut Uniforms, pace: &mut Pace) -> f64 {
        let (mut sum, mut successes) = (0.0, 0.0);
        loop {
            pace.go(DRAW);
            sum += (uniforms.draw().ln() / (-self.probability).ln_1p()).ceil();
            if sum > self.count || sum.is_nan() {
                return successes;
            }
            successes += 1.0;
        }
    }

    /// Transformed rejection (Hormann, The generation of binomial random variates, 1993).
    fn accepted(&self, uniforms: &mut Uniforms, pace: &mut Pace) -> f64 {
        let (n, p) = (self.count, self.probability);
        let deviation = (n * p * (1.0 - p)).sqrt();
        let b = 1.15 + 2.53 * deviation;
        let a = -0.0873 + 0.0248 * b + 0.01 * p;
        let center = n * p + 0.5;
        let tight = 0.92 - 4.2 / b;
        let odds = p / (1.0 - p);
        let alpha = (2.83 + 5.1 / b) * deviation;
        let mode = ((n + 1.0) * p).floor();
        loop {
            pace.go(DRAW);
            let u = uniforms.draw() - 0.5;
            let v = uniforms.draw();
            let near = 0.5 - u.abs();
            let k = ((2.0 * a / near + b) * u + center).floor();
            if near >= 0.07 && v <= tight {
                return k;
            }
            if !(0.0..=n).contains(&k) {
                continue;
            }
            let drawn = (v * alpha / (a / (near * near) + b)).ln();
            let bound = (mode + 0.5) * ((mode + 1.0) / (odds * (n - mode + 1.0))).ln()
                + (n + 1.0) * ((n - mode + 1.0) / (n - k + 1.0)).ln()
                + (k + 0.5) * (odds * (n - k + 1.0) / (k + 1.0)).ln()
                + stirling(mode)
                + stirling(n - mode)
                - stirling(k)
                - stirling(n - k);
            if drawn <= bound {
                return k;
            }
        }
    }
}

/// Uniform numbers in pairs, whose second number is used first.
struct Uniforms {
    philox: Philox,
    next: Option<f64>,
}

impl Uniforms {
    #[inline]
    fn draw(&mut self) -> f64 {
        self.next.take().unwrap_or_else(|| {
            let [a, b, c, d] = self.philox.draw();
            self.next = Some(uniform_f64([a, b]));
            uniform_f64([c, d])
        })
    }
}

/// The logarithm of the factorial of `k` less Stirling's approximation.
fn stirling(k: f64) -> f64 {
    const FIRST: [f64; 10] = [
        0.081_061_466_795_327_2,
        0.041_340_695_955_409_2,
        0.027_677_925_684_998_3,
        0.020_790_672_103_765_09,
        0.016_644_691_189_821_1,
        0.013_876_128_823_070_7,
        0.011_896_709_945_891_7,
        0.010_411_265_261_972_0,
        0.009_255_462_182_712_73,
        0.008_330_563_433_362_87,
    ];
    if k <= 9.0 {
        return FIRST[k as usize];
    }
    let square = (k + 1.0) * (k + 1.0);
    (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / square) / square) / (k + 1.0)
}
