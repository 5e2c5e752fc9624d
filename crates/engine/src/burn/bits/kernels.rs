//! The GPU kernels of the bitwise functions: one thread for a few elements.

use burn_backend::cubecl::dtype_to_storage_type;
use burn_backend::ops::{BoolTensorOps, FloatTensorOps};
use burn_backend::{BoolDType, DType, FloatDType, Shape, TensorMetadata};
use burn_wgpu::{CubeBackend, CubeTensor};
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use cubecl::{calculate_cube_count_elemwise, tensor_vector_size_parallel};
use meshtf_kernels as kernel;

use super::{BinaryFunction, ComparisonFunction, UnaryFunction};

const SIGN: u32 = 0x8000_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;
const NAN: u32 = 0x7fc0_0000;
const LEAST_NORMAL: u32 = 0x0080_0000;
const ZERO: u32 = 0;
const HALF: u32 = 0x3f00_0000;
const ONE: u32 = 0x3f80_0000;
const SIX: u32 = 0x40c0_0000;
const SELU_SCALE: f32 = kernel::SELU_SCALE as f32;
const SELU_SCALE_ALPHA: f32 = kernel::SELU_SCALE_ALPHA as f32;
/// The logarithm of 2.
const LN_2: u32 = 0x3f31_7218;

/// The bits of the results for the infinities and for the zeros; and the bits of the negative number below which the function
/// is undefined.
type Edges = (u32, u32, u32, u32, Option<u32>);

fn edges(function: UnaryFunction) -> Edges {
    let odd = |infinity: u32, zero: u32| (infinity, infinity | SIGN, zero, zero | SIGN, None);
    match function {
        UnaryFunction::Ceil | UnaryFunction::Floor => odd(INFINITY, ZERO),
        UnaryFunction::Erf | UnaryFunction::Tanh => odd(ONE, ZERO),
        UnaryFunction::Sin | UnaryFunction::Softsign => odd(NAN, ZERO),
        UnaryFunction::Reciprocal => odd(ZERO, INFINITY),
        UnaryFunction::Cos => (NAN, NAN, ONE, ONE, None),
        UnaryFunction::Elu | UnaryFunction::Expm1 => (INFINITY, ONE | SIGN, ZERO, SIGN, None),
        UnaryFunction::Selu => (INFINITY, SELU_SCALE_ALPHA.to_bits() | SIGN, ZERO, SIGN, None),
        UnaryFunction::Power(halves) => {
            let (infinite, zero) = if halves > 0 { (INFINITY, ZERO) } else { (ZERO, INFINITY) };
            match halves % 4 {
                2 | -2 => odd(infinite, zero),
                0 => (infinite, infinite, zero, zero, None),
                _ => (infinite, infinite, zero, zero, Some(SIGN)),
            }
        }
        UnaryFunction::Exp => (INFINITY, ZERO, ONE, ONE, None),
        UnaryFunction::Sigmoid => (ONE, ZERO, HALF, HALF, None),
        UnaryFunction::Softplus => (INFINITY, ZERO, LN_2, LN_2, None),
        UnaryFunction::Log => (INFINITY, NAN, INFINITY | SIGN, INFINITY | SIGN, Some(SIGN)),
        UnaryFunction::Log1p => (INFINITY, NAN, ZERO, SIGN, Some(ONE | SIGN)),
        UnaryFunction::Sqrt => (INFINITY, NAN, ZERO, SIGN, Some(SIGN)),
        UnaryFunction::Rsqrt => (ZERO, NAN, INFINITY, INFINITY | SIGN, Some(SIGN)),
        UnaryFunction::Abs
        | UnaryFunction::LeakyRelu(_)
        | UnaryFunction::Neg
        | UnaryFunction::Relu
        | UnaryFunction::Relu6
        | UnaryFunction::Sign => {
            unreachable!("computed on the bits alone")
        }
    }
}

#[cube]
fn is_nan<N: Size>(bits: Vector<u32, N>) -> Vector<bool, N> {
    (bits & Vector::new(MAGNITUDE)).greater_than(&Vector::new(INFINITY))
}

#[cube]
fn is_negative<N: Size>(bits: Vector<u32, N>) -> Vector<bool, N> {
    bits.greater_than(&Vector::new(MAGNITUDE))
}

/// Integers in the order of the floats whose bits they are, if none is NaN; all zeros and denormals map to one.
#[cube]
fn key<N: Size>(bits: Vector<u32, N>) -> Vector<u32, N> {
    let magnitude = bits & Vector::new(MAGNITUDE);
    let whole = select_many(magnitude.less_than(&Vector::new(LEAST_NORMAL)), Vector::new(ZERO), magnitude);
    select_many(is_negative(bits), Vector::new(SIGN) - whole, Vector::new(SIGN) + whole)
}

/// e^x - 1, by its series where e^x is close to 1.
#[cube]
fn exp_less_one<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::new(1.0f32);
    let mut series = one;
    #[unroll]
    for i in 0..8u32 {
        let divisor = Vector::new(comptime![(9 - i) as f32]);
        series = one + x / divisor * series;
    }
    let size = Vector::<u32, N>::reinterpret(x) & Vector::new(MAGNITUDE);
    select_many(size.less_equal(&Vector::new(HALF)), x * series, x.exp() - one)
}

/// `below` times (e^x - 1) for numbers below 0, `above` times the number for the rest.
#[cube]
fn exp_below_zero<N: Size>(x: Vector<f32, N>, #[comptime] below: f32, #[comptime] above: f32) -> Vector<f32, N> {
    let negative = is_negative(Vector::<u32, N>::reinterpret(x));
    select_many(negative, Vector::new(below) * exp_less_one(x), Vector::new(above) * x)
}

/// `x` to the power of `halves` halves.
#[cube]
fn power<N: Size>(x: Vector<f32, N>, #[comptime] halves: i32) -> Vector<f32, N> {
    let size = comptime![halves.unsigned_abs()];
    let mut answer = Vector::new(1.0f32);
    if comptime![size % 2 == 1] {
        answer = x.sqrt();
    }
    #[unroll]
    for _ in 0..comptime![size / 2] {
        answer *= x;
    }
    if comptime![halves < 0] {
        answer = Vector::new(1.0f32) / answer;
    }
    answer
}

/// The function of an ordinary number.
#[cube]
fn inside<N: Size>(x: Vector<f32, N>, #[comptime] function: UnaryFunction) -> Vector<f32, N> {
    let one = Vector::new(1.0f32);
    match comptime![function] {
        UnaryFunction::Ceil => x.ceil(),
        UnaryFunction::Cos => x.cos(),
        UnaryFunction::Elu => exp_below_zero(x, 1.0, 1.0),
        UnaryFunction::Erf => x.erf(),
        UnaryFunction::Exp => x.exp(),
        UnaryFunction::Expm1 => exp_less_one(x),
        UnaryFunction::Floor => x.floor(),
        UnaryFunction::Log => x.ln(),
        UnaryFunction::Log1p => x.log1p(),
        UnaryFunction::Power(halves) => power(x, halves),
        UnaryFunction::Reciprocal => one / x,
        UnaryFunction::Rsqrt => one / x.sqrt(),
        UnaryFunction::Selu => exp_below_zero(x, SELU_SCALE_ALPHA, SELU_SCALE),
        UnaryFunction::Sigmoid => one / (one + (-x).exp()),
        UnaryFunction::Sin => x.sin(),
        // Never overflows.
        UnaryFunction::Softplus => {
            select_many(is_negative(Vector::<u32, N>::reinterpret(x)), Vector::new(0.0f32), x)
                + (-(x.abs())).exp().log1p()
        }
        UnaryFunction::Softsign => x / (one + x.abs()),
        UnaryFunction::Sqrt => x.sqrt(),
        _ => x.tanh(),
    }
}

/// The bits of `function` of a number, by its bits.
#[cube]
pub fn of_one<N: Size>(bits: Vector<u32, N>, #[comptime] function: UnaryFunction) -> Vector<u32, N> {
    let magnitude = bits & Vector::new(MAGNITUDE);
    let negative = is_negative(bits);
    let answer = match comptime![function] {
        UnaryFunction::Abs => magnitude,
        UnaryFunction::Neg => bits ^ Vector::new(SIGN),
        UnaryFunction::Relu => select_many(negative, Vector::new(ZERO), bits),
        UnaryFunction::Sign => {
            let one = (bits & Vector::new(SIGN)) | Vector::new(ONE);
            select_many(magnitude.less_than(&Vector::new(LEAST_NORMAL)), Vector::new(ZERO), one)
        }
        UnaryFunction::Relu6 => {
            let least = select_many(magnitude.greater_than(&Vector::new(SIX)), Vector::new(SIX), bits);
            select_many(negative, Vector::new(ZERO), least)
        }
        UnaryFunction::LeakyRelu(slope) => {
            let slope = comptime![f32::from_bits(slope)];
            let scaled = Vector::<f32, N>::reinterpret(bits) * Vector::new(slope);
            select_many(negative, Vector::<u32, N>::reinterpret(scaled), bits)
        }
        _ => {
            let edges = comptime![edges(function)];
            let inside = inside(Vector::<f32, N>::reinterpret(bits), function);
            let mut answer = Vector::<u32, N>::reinterpret(inside);
            if comptime![edges.4.is_some()] {
                // Without their sign, the bits of negative numbers rise as the numbers fall.
                let undefined = bits.greater_than(&Vector::new(comptime![edges.4.unwrap_or(SIGN)]));
                answer = select_many(undefined, Vector::new(NAN), answer);
            }
            let far = select_many(negative, Vector::new(comptime![edges.1]), Vector::new(comptime![edges.0]));
            let near = select_many(negative, Vector::new(comptime![edges.3]), Vector::new(comptime![edges.2]));
            answer = select_many(magnitude.equal(&Vector::new(INFINITY)), far, answer);
            select_many(magnitude.equal(&Vector::new(ZERO)), near, answer)
        }
    };
    select_many(is_nan(bits), bits, answer)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn one_kernel<N: Size>(
    x: LinearView<'_, Vector<u32, N>>,
    mut to: LinearViewMut<'_, Vector<u32, N>>,
    #[comptime] function: UnaryFunction,
) {
    if !to.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    to.write(ABSOLUTE_POS, of_one(x.read(ABSOLUTE_POS), function));
}

/// The bits of `function` of two numbers, by theirs.
#[cube]
pub fn of_two<N: Size>(x: Vector<u32, N>, y: Vector<u32, N>, #[comptime] function: BinaryFunction) -> Vector<u32, N> {
    match comptime![function] {
        BinaryFunction::Maximum => {
            let more = select_many(key(x).less_than(&key(y)), y, x);
            select_many(is_nan(x), x, select_many(is_nan(y), y, more))
        }
        BinaryFunction::Minimum => {
            let less = select_many(key(y).less_than(&key(x)), y, x);
            select_many(is_nan(x), x, select_many(is_nan(y), y, less))
        }
        BinaryFunction::ReluGrad => select_many(is_positive(y), x, times_zero(x)),
        BinaryFunction::Relu6Grad => {
            let within = is_positive(y).vec_and(y.less_than(&Vector::new(SIX)));
            select_many(within, x, times_zero(x))
        }
        BinaryFunction::LeakyReluGrad(slope) => {
            let slope = comptime![f32::from_bits(slope)];
            let scaled = Vector::<f32, N>::reinterpret(x) * Vector::new(slope);
            let elsewhere = select_many(is_nan(x), x, Vector::<u32, N>::reinterpret(scaled));
            select_many(is_positive(y), x, elsewhere)
        }
        _ => {
            let answer = both(Vector::<f32, N>::reinterpret(x), Vector::<f32, N>::reinterpret(y), function);
            let answer = Vector::<u32, N>::reinterpret(answer);
            let zero = Vector::new(ZERO);
            match comptime![function] {
                // Zero times infinity is zero, as it is in TensorFlow.
                BinaryFunction::DivNoNan
                | BinaryFunction::ReciprocalGrad
                | BinaryFunction::RsqrtGrad
                | BinaryFunction::SqrtGrad => {
                    select_many((y & Vector::new(MAGNITUDE)).less_than(&Vector::new(LEAST_NORMAL)), zero, answer)
                }
                BinaryFunction::SoftplusGrad => select_many(is_nan(y), y, answer),
                _ => answer,
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn two_kernel<N: Size>(
    x: LinearView<'_, Vector<u32, N>>,
    y: LinearView<'_, Vector<u32, N>>,
    mut to: LinearViewMut<'_, Vector<u32, N>>,
    #[comptime] function: BinaryFunction,
) {
    if !to.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    to.write(ABSOLUTE_POS, of_two(x.read(ABSOLUTE_POS), y.read(ABSOLUTE_POS), function));
}

/// The bits of `x` times 0.
#[cube]
fn times_zero<N: Size>(x: Vector<u32, N>) -> Vector<u32, N> {
    let is_finite = (x & Vector::new(MAGNITUDE)).less_than(&Vector::new(INFINITY));
    select_many(is_finite, x & Vector::new(SIGN), Vector::new(NAN))
}

/// A function of two numbers that is composed of sums, products and quotients: `x` and `y` are the inputs of the op in their
/// order.
#[cube]
fn both<N: Size>(x: Vector<f32, N>, y: Vector<f32, N>, #[comptime] function: BinaryFunction) -> Vector<f32, N> {
    let one = Vector::new(1.0f32);
    let bits = Vector::<u32, N>::reinterpret(y);
    let size = bits & Vector::new(MAGNITUDE);
    let below = is_negative(bits).vec_and(size.greater_equal(&Vector::new(LEAST_NORMAL)));
    let below = below.vec_and(size.less_equal(&Vector::new(INFINITY)));
    match comptime![function] {
        BinaryFunction::DivNoNan => x / y,
        BinaryFunction::EluGrad => select_many(below, (y + one) * x, x),
        BinaryFunction::ReciprocalGrad => -y * x * x,
        BinaryFunction::RsqrtGrad => Vector::new(-0.5f32) * (y * x) * (x * x),
        BinaryFunction::SeluGrad => {
            select_many(below, x * (y + Vector::new(SELU_SCALE_ALPHA)), x * Vector::new(SELU_SCALE))
        }
        BinaryFunction::SigmoidGrad => y * x * (one - x),
        BinaryFunction::SoftplusGrad => {
            let infinite = size.equal(&Vector::new(INFINITY));
            let far = select_many(is_negative(bits), Vector::new(INFINITY), Vector::new(ZERO));
            let exp = select_many(infinite, Vector::<f32, N>::reinterpret(far), (-y).exp());
            x / (exp + one)
        }
        BinaryFunction::SoftsignGrad => {
            let divisor = Vector::<f32, N>::reinterpret(size) + one;
            x / (divisor * divisor)
        }
        BinaryFunction::SqrtGrad => Vector::new(0.5f32) * y / x,
        BinaryFunction::SquaredDifference => (x - y) * (x - y),
        _ => y * (one - x * x),
    }
}

#[cube]
fn is_positive<N: Size>(bits: Vector<u32, N>) -> Vector<bool, N> {
    let above = bits.greater_equal(&Vector::new(LEAST_NORMAL));
    above.vec_and(bits.less_equal(&Vector::new(INFINITY)))
}

/// Whether `comparison` holds for two numbers, by their bits.
#[cube]
pub fn of_comparison<N: Size>(
    x: Vector<u32, N>,
    y: Vector<u32, N>,
    #[comptime] comparison: ComparisonFunction,
) -> Vector<bool, N> {
    let nan = is_nan(x).or(is_nan(y));
    let yes = Vector::new(ONE);
    let no = Vector::new(ZERO);
    let plain = match comptime![comparison] {
        ComparisonFunction::Equal => select_many(key(x).equal(&key(y)), yes, no),
        ComparisonFunction::NotEqual => select_many(key(x).equal(&key(y)), no, yes),
        ComparisonFunction::Greater => select_many(key(x).greater_than(&key(y)), yes, no),
        ComparisonFunction::GreaterEqual => select_many(key(x).less_than(&key(y)), no, yes),
    };
    let with_nan = match comptime![comparison] {
        ComparisonFunction::NotEqual => yes,
        _ => no,
    };
    select_many(nan, with_nan, plain).not_equal(&no)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn comparison_kernel<Bool: Numeric, N: Size>(
    x: LinearView<'_, Vector<u32, N>>,
    y: LinearView<'_, Vector<u32, N>>,
    mut to: LinearViewMut<'_, Vector<Bool, N>>,
    #[comptime] comparison: ComparisonFunction,
    #[define(Bool)] _bools: ElemType,
) {
    if !to.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let holds = of_comparison(x.read(ABSOLUTE_POS), y.read(ABSOLUTE_POS), comparison);
    to.write(ABSOLUTE_POS, Vector::cast_from(holds));
}

/// `function` of each element.
pub fn one(x: CubeTensor, function: UnaryFunction) -> CubeTensor {
    if x.dtype() == DType::F16 {
        return narrow(one(wide(x), function));
    }
    let in_place = x.can_mut() && x.is_nonoverlapping();
    let to = if in_place { x.clone() } else { like(&x, x.shape()) };
    let at = Launch::over(&to, &[&x]);
    let onto = if in_place { to.as_linear_view_alias(0) } else { to.clone().into_linear_view() };
    let from = x.into_linear_view_like(&to);
    // SAFETY: a thread reads and writes only the elements at its index, none past the end.
    unsafe { one_kernel::launch_unchecked(&at.client, at.cubes, at.cube, at.address, at.width, from, onto, function) };
    to
}

/// `function` of each pair of elements, broadcast; the tensors have equal ranks.
pub fn two(x: CubeTensor, y: CubeTensor, function: BinaryFunction) -> CubeTensor {
    if x.dtype() == DType::F16 {
        return narrow(two(wide(x), wide(y), function));
    }
    let to = like(&x, broadcast(&x, &y));
    let at = Launch::over(&to, &[&x, &y]);
    let (x, y) = (x.into_linear_view_like(&to), y.into_linear_view_like(&to));
    let onto = to.clone().into_linear_view();
    // SAFETY: as in `one`.
    unsafe { two_kernel::launch_unchecked(&at.client, at.cubes, at.cube, at.address, at.width, x, y, onto, function) };
    to
}

/// Whether `comparison` holds for each pair of elements, broadcast; the tensors have equal ranks.
pub fn compare(x: CubeTensor, y: CubeTensor, comparison: ComparisonFunction, bools: BoolDType) -> CubeTensor {
    if x.dtype() == DType::F16 {
        return compare(wide(x), wide(y), comparison, bools);
    }
    let to = CubeBackend::bool_empty(broadcast(&x, &y), &x.device(), bools);
    let at = Launch::over(&to, &[&x, &y]);
    let (x, y) = (x.into_linear_view_like(&to), y.into_linear_view_like(&to));
    let (onto, stored) = (to.clone().into_linear_view(), dtype_to_storage_type(to.dtype()));
    // SAFETY: as in `one`.
    unsafe {
        comparison_kernel::launch_unchecked(
            &at.client, at.cubes, at.cube, at.address, at.width, x, y, onto, comparison, stored,
        )
    };
    to
}

/// Some shading languages cannot read the bits of half floats: these are widened, keeping NaN and the infinities.
fn wide(x: CubeTensor) -> CubeTensor {
    CubeBackend::float_cast(x, FloatDType::F32)
}

fn narrow(x: CubeTensor) -> CubeTensor {
    CubeBackend::float_cast(x, FloatDType::F16)
}

fn like(x: &CubeTensor, shape: Shape) -> CubeTensor {
    CubeBackend::float_empty(shape, &x.device(), FloatDType::F32)
}

fn broadcast(x: &CubeTensor, y: &CubeTensor) -> Shape {
    let (x, y) = (x.shape(), y.shape());
    x.iter().zip(y.iter()).map(|(&x, &y)| x.max(y)).collect::<Vec<_>>().into()
}

/// The distribution of a kernel over the elements of its result.
pub struct Launch {
    pub client: Client,
    pub cubes: CubeCount,
    pub cube: CubeDim,
    pub address: AddressType,
    /// The number of elements that a thread handles at once.
    pub width: usize,
}

impl Launch {
    pub fn over(to: &CubeTensor, from: &[&CubeTensor]) -> Launch {
        let width = |x: &CubeTensor| {
            let sizes = x.client.io_optimized_vector_sizes(4);
            tensor_vector_size_parallel(sizes, x.meta.shape(), x.meta.strides(), x.meta.num_dims() - 1)
        };
        let width = from.iter().map(|x| width(x)).fold(width(to), Ord::min);
        let address = from.iter().map(|x| x.required_address_type()).fold(to.required_address_type(), Ord::max);
        let units = to.meta.num_elements() / width;
        let cube = CubeDim::new(&to.client, units);
        let cubes = calculate_cube_count_elemwise(&to.client, units, cube);
        Launch { client: to.client.clone(), cubes, cube, address, width }
    }
}
