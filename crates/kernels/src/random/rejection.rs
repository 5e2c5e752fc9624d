//! Numbers drawn by rejection: Poisson, gamma, and truncated normal ones.

use meshtf_loops::turn::Pace;
use meshtf_random::{DRAW, Distribution, Philox, normal2_f64, uniform_f64};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Float, Numeric, Shape, Tensor, with_float, with_number, with_type};

use super::super::broadcast::Broadcast;
use super::super::call::{input_dtype, kernel as call, output_dtype};
use super::super::{HostKernel, Registry};
use super::stateful::{COUNTS_PER_NUMBER, Generator, shape_of};
use super::stateless;

/// The maximum number of consecutive rejections of a truncated normal number.
const MAX_TRIES: usize = 1000;
/// The numbers drawn from one position if all have the same bounds.
const BATCH: usize = 100;
/// If the bounds contain the mean and reach beyond this many deviations from it on one side, normal numbers are drawn
/// until one is within the bounds.
const MOSTLY_WITHIN: f64 = 1.3;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_drawing("RandomPoissonV2", |node, generators| {
        let (generator, dtype) = (generators.of(node)?, output_dtype(node, 0)?);
        Ok(with_number!(dtype, T => of_parameters(generator, dtype, poisson, <T as Numeric>::from_f64)))
    });
    ops.insert_drawing("RandomGamma", |node, generators| {
        let (generator, dtype) = (generators.of(node)?, output_dtype(node, 0)?);
        Ok(with_float!(input_dtype(node, 1)?, T => of_parameters(generator, dtype, gamma, <T as Numeric>::from_f64)))
    });
    ops.insert("StatelessRandomPoisson", |node| {
        let dtype = output_dtype(node, 0)?;
        Ok(with_type!(dtype, T => call(|[shape, seed, rates]: [Tensor; 3]| {
            of_shape::<T>(&shape, &[seed], &rates, poisson)
        }); F16 half::f16, F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("StatelessRandomGammaV2", |node| {
        Ok(with_type!(output_dtype(node, 0)?, T => call(|[shape, seed, alphas]: [Tensor; 3]| {
            of_shape::<T>(&shape, &[seed], &alphas, gamma)
        }); F16 half::f16, F32 f32, F64 f64))
    });
    ops.insert("StatelessRandomGammaV3", |node| {
        Ok(with_type!(output_dtype(node, 0)?, T => call(|[shape, key, counter, algorithm, alphas]: [Tensor; 5]| {
            of_shape::<T>(&shape, &[key, counter, algorithm], &alphas, gamma)
        }); F16 half::f16, F32 f32, F64 f64))
    });
    ops.insert("StatelessParameterizedTruncatedNormal", |node| {
        Ok(with_type!(output_dtype(node, 0)?, T => call(|[shape, seed, means, deviations, lows, highs]: [Tensor; 6]| {
            bounded_of_shape::<T>(&shape, seed, [means, deviations, lows, highs])
        }); F16 half::f16, F32 f32, F64 f64))
    });
    ops.insert_drawing("ParameterizedTruncatedNormal", |node, generators| {
        let generator = generators.of(node)?;
        Ok(with_type!(output_dtype(node, 0)?, T => call(move |[shape, means, deviations, lows, highs]| {
            bounded::<T>(&shape, [means, deviations, lows, highs], &generator)
        }); F16 half::f16, F32 f32, F64 f64))
    });
}

/// Numbers of a shape for each parameter: `draw` draws each from a separate position.
fn of_parameters<T: Numeric>(
    generator: Generator,
    dtype: DType,
    draw: fn(f64, &mut Draws, &mut Pace) -> f64,
    number: fn(f64) -> T,
) -> HostKernel {
    call(move |[shape, parameters]| {
        let each = shape_of(&shape)?;
        let of_each = each.checked_elements(dtype)?;
        let whole: Shape = each.dims().iter().chain(parameters.dims()).copied().collect();
        let all = whole.checked_elements(dtype)?;
        let philox = generator.reserve((all as u64).saturating_mul(COUNTS_PER_NUMBER));
        let parameters = numbers_of(&parameters)?;
        let mut numbers = vec![T::ZERO; all];
        let mut pace = Pace::new();
        for (i, &parameter) in parameters.iter().enumerate() {
            for sample in 0..of_each {
                pace.go(4 * DRAW);
                let mut draws = Draws::new(philox, (i * of_each + sample) as u64 * COUNTS_PER_NUMBER);
                numbers[sample * parameters.len() + i] = number(draw(parameter, &mut draws, &mut pace));
            }
        }
        Ok(Tensor::from_vec(whole, numbers))
    })
}

/// Numbers of a shape that ends with that of the parameters, each of which `draw` draws from a separate position.
fn of_shape<T: Numeric>(
    shape: &Tensor,
    source: &[Tensor],
    parameters: &Tensor,
    draw: fn(f64, &mut Draws, &mut Pace) -> f64,
) -> Result<Tensor> {
    let whole = shape_of(shape)?;
    let all = whole.checked_elements(T::DTYPE)?;
    let philox = stateless::source(source)?;
    if all == 0 {
        return Ok(Tensor::from_vec(whole, Vec::<T>::new()));
    }
    if !whole.dims().ends_with(parameters.dims()) {
        return Err(Failure::invalid(format!(
            "Shape passed in must end with broadcasted shape. It is {whole}, and the parameters have shape {}",
            parameters.shape()
        )));
    }
    let parameters = numbers_of(parameters)?;
    let of_each = all / parameters.len();
    let mut numbers = vec![T::ZERO; all];
    let mut pace = Pace::new();
    for (i, &parameter) in parameters.iter().enumerate() {
        for sample in 0..of_each {
            pace.go(4 * DRAW);
            let mut draws = Draws::new(philox, ((i * of_each + sample) as u64).wrapping_mul(COUNTS_PER_NUMBER));
            numbers[sample * parameters.len() + i] = T::from_f64(draw(parameter, &mut draws, &mut pace));
        }
    }
    Ok(Tensor::from_vec(whole, numbers))
}

/// Truncated normal numbers of a shape that ends with that of the parameters, which are broadcast.
fn bounded_of_shape<T: Float>(shape: &Tensor, seed: Tensor, parameters: [Tensor; 4]) -> Result<Tensor> {
    let mut own = Shape::from([]);
    for parameter in &parameters {
        own = own.broadcast(parameter.shape()).map_err(|_| {
            let shapes = parameters.iter().map(|parameter| parameter.shape().to_string()).collect::<Vec<_>>();
            Failure::invalid(format!(
                "means, stddevs, minvals, maxvals must have compatible shapes: {}",
                shapes.join(", ")
            ))
        })?;
    }
    if shape.rank() != 1 {
        return Err(Failure::invalid(format!("Input shape should be a vector, got shape: {}", shape.shape())));
    }
    let whole = shape_of(shape)?;
    let all = whole.checked_elements(T::DTYPE)?;
    if !whole.dims().ends_with(own.dims()) {
        return Err(Failure::invalid(format!(
            "Shape passed in must end with broadcasted shape. It is {whole}, and the parameters have shape {own}"
        )));
    }
    let mut bits = stateless::source(&[seed])?;
    if all == 0 {
        return Ok(Tensor::from_vec(whole, Vec::<T>::new()));
    }
    let of_each: usize = whole.dims()[..whole.rank() - own.rank()].iter().product();
    let values = parameters.each_ref().map(numbers_of);
    let [means, deviations, lows, highs] = values;
    let values = [means?, deviations?, lows?, highs?];
    let walk = Broadcast::new(&own, parameters.each_ref().map(Tensor::shape));
    let (row, steps, pairs) = (walk.row(), walk.steps(), all / of_each);
    let (mut numbers, mut pace, mut at) = (vec![T::ZERO; all], Pace::new(), 0);
    for starts in walk.rows() {
        for i in 0..row {
            let [mean, deviation, low, high] = std::array::from_fn(|k| values[k][starts[k] + i * steps[k]]);
            let mut drawn = Vec::with_capacity(of_each);
            Bounded::<T>::new(mean, deviation, low, high)?.draw(&mut drawn, of_each, &mut bits, &mut pace)?;
            drawn.into_iter().enumerate().for_each(|(sample, x)| numbers[sample * pairs + at] = x);
            at += 1;
        }
    }
    Ok(Tensor::from_vec(whole, numbers))
}

/// Uniform and normal numbers of 64 bits, each kind in pairs whose second number is used first.
struct Draws {
    philox: Philox,
    uniform: Option<f64>,
    normal: Option<f64>,
}

impl Draws {
    #[inline]
    fn new(mut philox: Philox, skipped: u64) -> Draws {
        philox.skip(skipped);
        Draws { philox, uniform: None, normal: None }
    }

    #[inline]
    fn uniform(&mut self) -> f64 {
        self.uniform.take().unwrap_or_else(|| {
            let [a, b, c, d] = self.philox.draw();
            self.uniform = Some(uniform_f64([a, b]));
            uniform_f64([c, d])
        })
    }

    #[inline]
    fn normal(&mut self) -> f64 {
        self.normal.take().unwrap_or_else(|| {
            let [first, second] = normal2_f64(self.philox.draw());
            self.normal = Some(first);
            second
        })
    }
}

/// A Poisson-distributed count with mean `rate`.
fn poisson(rate: f64, draws: &mut Draws, pace: &mut Pace) -> f64 {
    if rate.is_nan() || rate == f64::INFINITY {
        return rate;
    }
    if rate < 10.0 {
        // Knuth 1969: waiting times between events.
        let (least, mut product, mut count) = ((-rate).exp(), 1.0, 0.0);
        loop {
            product *= draws.uniform();
            if product <= least {
                return count;
            }
            count += 1.0;
        }
    }
    // Hörmann 1993: transformed rejection.
    let b = 0.931 + 2.53 * rate.sqrt();
    let a = -0.059 + 0.02483 * b;
    let over_acceptance = 1.1239 + 1.1328 / (b - 3.4);
    loop {
        pace.go(DRAW);
        let u = draws.uniform() - 0.5;
        let v = draws.uniform();
        let near = 0.5 - u.abs();
        let count = ((2.0 * a / near + b) * u + rate + 0.43).floor();
        if near >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2.0) {
            return count;
        }
        if count < 0.0 || near < 0.013 && v > near {
            continue;
        }
        let drawn = (v * over_acceptance / (a / (near * near) + b)).ln();
        if drawn <= -rate + count * rate.ln() - libm::lgamma(count + 1.0) {
            return count;
        }
    }
}

/// A number of the gamma distribution with shape `alpha` and scale 1 (Marsaglia and Tsang 2000).
fn gamma(alpha: f64, draws: &mut Draws, pace: &mut Pace) -> f64 {
    if alpha == 1.0 {
        return -(-draws.uniform()).ln_1p();
    }
    let is_small = alpha < 1.0;
    let d = alpha + if is_small { 2.0 / 3.0 } else { -1.0 / 3.0 };
    let c = 1.0 / 3.0 / d.sqrt();
    if d.is_nan() || c.is_nan() {
        return f64::NAN;
    }
    loop {
        pace.go(DRAW);
        let x = draws.normal();
        let v = 1.0 + c * x;
        if v <= 0.0 {
            continue;
        }
        let v = v * v * v;
        let u = draws.uniform();
        let is_surely_within = u < 1.0 - 0.0331 * (x * x) * (x * x);
        if is_surely_within || u.ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
            return if is_small { d * v * draws.uniform().powf(1.0 / alpha) } else { d * v };
        }
    }
}

/// Truncated normal numbers, with a mean, a deviation and bounds for each row or for all.
fn bounded<T: Float>(shape: &Tensor, parameters: [Tensor; 4], generator: &Generator) -> Result<Tensor> {
    if shape.rank() != 1 {
        let why = format!("Input shape should be a vector, got shape: {}", shape.shape());
        return Err(Failure::invalid(why));
    }
    let whole = shape_of(shape)?;
    let Some((&rows, rest)) = whole.dims().split_first() else {
        return Err(Failure::invalid("Shape tensor must not be empty"));
    };
    let all = whole.checked_elements(T::DTYPE)?;
    let names = ["means", "stddevs", "minvals", "maxvals"];
    for (name, parameter) in names.iter().zip(&parameters) {
        if parameter.rank() > 1 {
            let why = format!("Input {name} should be a scalar or vector, got shape: {}", parameter.shape());
            return Err(Failure::invalid(why));
        }
    }
    let [means, deviations, lows, highs] = &parameters;
    let is_one = |tensor: &Tensor| tensor.len() == 1;
    let (rows, of_each) = if is_one(means) && is_one(deviations) && lows.rank() == 0 && highs.rank() == 0 {
        (all.div_ceil(BATCH), BATCH)
    } else {
        for (name, parameter) in names.iter().zip(&parameters) {
            if parameter.rank() == 1 && parameter.len() != 1 && parameter.len() != rows {
                let why = format!("Input {name} should have length 1 or shape[0], got shape: {}", parameter.shape());
                return Err(Failure::invalid(why));
            }
        }
        (rows, rest.iter().product())
    };
    let counts = (rows as u64).saturating_mul(2 * MAX_TRIES as u64).saturating_mul(of_each as u64 + 3) / 4;
    let mut bits = generator.reserve(counts);
    let values = parameters.map(|parameter| numbers_of(&parameter));
    let [means, deviations, lows, highs] = values;
    let (means, deviations, lows, highs) = (means?, deviations?, lows?, highs?);
    let at = |values: &[f64], row: usize| if values.len() == 1 { values[0] } else { values[row] };
    let mut numbers = Vec::with_capacity(all);
    let mut pace = Pace::new();
    for row in 0..rows {
        let end = all.min((row + 1) * of_each);
        let normal = Bounded::<T>::new(at(&means, row), at(&deviations, row), at(&lows, row), at(&highs, row))?;
        normal.draw(&mut numbers, end, &mut bits, &mut pace)?;
    }
    Ok(Tensor::from_vec(whole, numbers))
}

/// A truncated normal distribution. Each step is rounded to the dtype.
struct Bounded<T> {
    mean: f64,
    deviation: f64,
    /// The bounds, normalized to mean 0 and deviation 1.
    low: f64,
    high: f64,
    dtype: std::marker::PhantomData<T>,
}

impl<T: Float> Bounded<T> {
    fn new(mean: f64, mut deviation: f64, mut low: f64, mut high: f64) -> Result<Bounded<T>> {
        if !(deviation > 0.0 && low < high && (low.is_finite() || high.is_finite())) {
            return Err(Failure::invalid("Invalid parameters"));
        }
        if low == f64::NEG_INFINITY || high < mean {
            (low, high) = (high, low);
            deviation = -deviation;
        }
        let normal = |bound: f64| round::<T>(round::<T>(bound - mean) / deviation);
        Ok(Bounded { mean, deviation, low: normal(low), high: normal(high), dtype: std::marker::PhantomData })
    }

    /// Appends numbers until there are `end`.
    fn draw(&self, numbers: &mut Vec<T>, end: usize, bits: &mut Philox, pace: &mut Pace) -> Result<()> {
        let Bounded { low, high, .. } = *self;
        let within = round::<T>(MOSTLY_WITHIN);
        if low < -within && high >= 0.0 || high > within && low <= 0.0 {
            return self.normal(numbers, end, bits, pace);
        }
        let r = round::<T>;
        let root = r(r(r(low * low) + 4.0).sqrt());
        let exponent = r(0.5 + r(r(low * r(low - root)) / 4.0));
        let cutoff = r(r(2.0 * r(exponent.exp())) / r(low + root));
        if r(high - low) < cutoff {
            self.even(numbers, end, bits, pace)
        } else {
            self.exponential(numbers, end, bits, pace)
        }
    }

    #[inline]
    fn made(&self, z: f64) -> T {
        T::from_f64(round::<T>(z * self.deviation) + self.mean)
    }

    fn normal(&self, numbers: &mut Vec<T>, end: usize, bits: &mut Philox, pace: &mut Pace) -> Result<()> {
        let way = Rejection { cost: 4 * DRAW, most_rejected: MAX_TRIES, what: "randn rejection" };
        self.accepted(numbers, end, pace, way, || {
            let all = drawn::<T>(Distribution::Normal, bits)?.into_iter();
            Ok(all.map(|z| (z, z >= self.low && z <= self.high)))
        })
    }

    fn even(&self, numbers: &mut Vec<T>, end: usize, bits: &mut Philox, pace: &mut Pace) -> Result<()> {
        let r = round::<T>;
        let width = r(self.high - self.low);
        let most = if self.low < 0.0 { 0.0 } else { r(self.low * self.low) };
        let way = Rejection { cost: 8 * DRAW, most_rejected: MAX_TRIES - 1, what: "uniform rejection" };
        self.accepted(numbers, end, pace, way, || {
            let places = drawn::<T>(Distribution::Uniform, bits)?;
            let all = places.into_iter().zip(drawn::<T>(Distribution::Uniform, bits)?);
            Ok(all.map(move |(place, u)| {
                let z = r(r(place * width) + self.low);
                (z, u <= r(r(r(most - r(z * z)) / 2.0).exp()))
            }))
        })
    }

    fn exponential(&self, numbers: &mut Vec<T>, end: usize, bits: &mut Philox, pace: &mut Pace) -> Result<()> {
        let r = round::<T>;
        let alpha = r(r(self.low + r(r(r(self.low * self.low) + 4.0).sqrt())) / 2.0);
        let way =
            Rejection { cost: 8 * DRAW, most_rejected: MAX_TRIES - 1, what: "exponential distribution rejection" };
        self.accepted(numbers, end, pace, way, || {
            let mut all = drawn::<T>(Distribution::Uniform, bits)?.into_iter();
            let pairs = std::iter::from_fn(move || Some((all.next()?, all.next()?)));
            Ok(pairs.map(move |(place, u)| {
                let z = r(r(-r(place.ln()) / alpha) + self.low);
                let x = if self.low < alpha { r(alpha - z) } else { r(self.low - alpha) };
                (z, u <= r(r(r(-x * x) / 2.0).exp()) && z < self.high)
            }))
        })
    }

    /// Appends the accepted numbers of each draw until there are `end`.
    fn accepted<Draw: Iterator<Item = (f64, bool)>>(
        &self,
        numbers: &mut Vec<T>,
        end: usize,
        pace: &mut Pace,
        Rejection { cost, most_rejected, what }: Rejection,
        mut draw: impl FnMut() -> Result<Draw>,
    ) -> Result<()> {
        let mut rejected = 0;
        while numbers.len() < end {
            pace.go(cost);
            for (z, is_accepted) in draw()? {
                if is_accepted {
                    rejected = 0;
                    numbers.push(self.made(z));
                    if numbers.len() == end {
                        break;
                    }
                } else {
                    rejected += 1;
                    if rejected > most_rejected {
                        return Err(out_of_tries(what));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The parameters of a rejection sampler: the work of a draw, the maximum number of consecutive rejections, and its name.
struct Rejection {
    cost: usize,
    most_rejected: usize,
    what: &'static str,
}

#[inline]
fn round<T: Float>(x: f64) -> f64 {
    T::from_f64(x).to_f64()
}

/// The numbers of the dtype from the bits of one count.
fn drawn<T: Float>(distribution: Distribution, bits: &mut Philox) -> Result<Vec<f64>> {
    let count = if T::DTYPE == DType::F64 { 2 } else { 4 };
    let now = *bits;
    bits.skip(1);
    let numbers = distribution.draw(T::DTYPE, Shape::from([count]), now);
    let numbers = numbers.unwrap_or_else(|| Err(Failure::invalid("random numbers are floats")))?;
    numbers_of(&numbers)
}

/// The elements of a tensor as float64, rounded if necessary.
fn numbers_of(tensor: &Tensor) -> Result<Vec<f64>> {
    let all = with_number!(tensor.dtype(), T => tensor.slice::<T>()?.iter().map(|x| Numeric::to_f64(*x)).collect());
    all.ok_or_else(|| Failure::invalid(format!("expected numbers, got {}", tensor.dtype())))
}

fn out_of_tries(sampler: &str) -> Failure {
    let why = format!("TruncatedNormal {sampler} sampler failed to accept a sample.");
    Failure::new(Code::Internal, why)
}
