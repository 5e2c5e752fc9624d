//! Elementwise ops on complex numbers, their construction, and the extraction of their parts.
//!
//! Functions are computed with float64 parts and rounded once, so that one implementation serves both dtypes.

use meshtf_tensor::failure::Result;
use meshtf_tensor::{Complex, DType, Element, Ring, with_complex};

use super::super::call::{input_dtype, kernel as call, no_kernel, output_dtype};
use super::super::{HostKernel, KernelNode, Registry};
use super::binary::zip_same;
use super::{map, map_to, zip, zip_to};

type Number = Complex<f64>;

/// A complex element type.
pub(crate) trait Pair: Ring {
    /// The type of its parts.
    type Part: Element + Copy;
    fn wide(self) -> Number;
    fn from_wide(value: Number) -> Self;
    fn new(re: Self::Part, im: Self::Part) -> Self;
    fn parts(self) -> [Self::Part; 2];
    /// The value of a part that is nearest to `value`.
    fn part(value: f64) -> Self::Part;

    #[inline]
    fn conjugate(self) -> Self {
        Self::from_wide(self.wide().conj())
    }

    #[inline]
    fn over(self, other: Self) -> Self {
        Self::from_wide(quotient(self.wide(), other.wide()))
    }
}

macro_rules! pair {
    ($($part:ty),*) => {
        $(impl Pair for Complex<$part> {
            type Part = $part;
            fn wide(self) -> Number { Complex::new(self.re.into(), self.im.into()) }
            fn from_wide(value: Number) -> Self { Complex::new(value.re as $part, value.im as $part) }
            fn new(re: $part, im: $part) -> Self { Complex::new(re, im) }
            fn parts(self) -> [$part; 2] { [self.re, self.im] }
            fn part(value: f64) -> $part { value as $part }
        })*
    };
}

pair!(f32, f64);

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Conj", |node| match input_dtype(node, 0)? {
        DType::Variant => Ok(Some(call(|[x]| Ok(x)))),
        dtype => Ok(with_complex!(dtype, T => call(|[x]| map(x, <T as Pair>::conjugate)))),
    });
    ops.insert("Complex", |node| {
        Ok(with_complex!(whole(node, output_dtype(node, 0)?)?, T => call(|[re, im]| {
            zip_to(&re, &im, |&re: &<T as Pair>::Part, &im| <T as Pair>::new(re, im))
        })))
    });
    ops.insert("Real", |node| {
        let dtype = whole(node, input_dtype(node, 0)?)?;
        Ok(with_complex!(dtype, T => call(|[x]| map_to(&x, |x: &T| x.parts()[0]))))
    });
    ops.insert("Imag", |node| {
        let dtype = whole(node, input_dtype(node, 0)?)?;
        Ok(with_complex!(dtype, T => call(|[x]| map_to(&x, |x: &T| x.parts()[1]))))
    });
    ops.insert("ComplexAbs", |node| {
        let dtype = whole(node, input_dtype(node, 0)?)?;
        Ok(with_complex!(dtype, T => call(|[x]| map_to(&x, |x: &T| <T as Pair>::part(size(x.wide()))))))
    });
    ops.insert("Angle", |node| {
        let dtype = whole(node, input_dtype(node, 0)?)?;
        Ok(with_complex!(dtype, T => call(|[x]| map_to(&x, |x: &T| <T as Pair>::part(angle(x.wide()))))))
    });
}

/// The dtype of the whole numbers of an op that combines or extracts parts. The dtype of the parts must match.
fn whole(node: &KernelNode, dtype: DType) -> Result<DType> {
    if input_dtype(node, 0)?.real() == output_dtype(node, 0)?.real() { Ok(dtype) } else { no_kernel(node) }
}

/// The kernel of a function of one number.
pub(super) fn unary<T: Pair>(f: fn(Number) -> Number) -> HostKernel {
    call(move |[x]| map(x, move |x: T| T::from_wide(f(x.wide()))))
}

/// The kernel of a function of two numbers.
pub(super) fn binary<T: Pair>(f: fn(Number, Number) -> Number) -> HostKernel {
    call(move |[x, y]| zip(x, y, move |x: T, y: T| T::from_wide(f(x.wide(), y.wide()))))
}

/// A gradient as a function of the conjugate of the op's result and of the incoming gradient.
pub(crate) fn conjugate_gradient<T: Pair>(f: fn(Number, Number) -> Number) -> HostKernel {
    call(move |[y, dy]| zip_same(y, dy, move |y: T, dy: T| T::from_wide(f(y.wide().conj(), dy.wide()))))
}

pub const ZERO: Number = Complex::new(0.0, 0.0);
pub const ONE: Number = Complex::new(1.0, 0.0);

/// i z
#[inline]
fn turned(z: Number) -> Number {
    Complex::new(-z.im, z.re)
}

/// -i z
#[inline]
fn turned_back(z: Number) -> Number {
    Complex::new(z.im, -z.re)
}

#[inline]
fn size(z: Number) -> f64 {
    z.re.hypot(z.im)
}

#[inline]
fn angle(z: Number) -> f64 {
    z.im.atan2(z.re)
}

/// The quotient, scaled to avoid premature overflow; a quotient by 0 is that of C.
pub fn quotient(x: Number, y: Number) -> Number {
    let largest = y.re.abs().max(y.im.abs());
    if largest == 0.0 {
        let infinite = f64::INFINITY.copysign(y.re);
        return Complex::new(infinite * x.re, infinite * x.im);
    }
    if largest.is_infinite() && x.re.is_finite() && x.im.is_finite() {
        let unit = |part: f64| if part.is_infinite() { 1f64.copysign(part) } else { 0f64.copysign(part) };
        let product = x * Complex::new(unit(y.re), -unit(y.im));
        return Complex::new(0.0 * product.re, 0.0 * product.im);
    }
    if !largest.is_finite() {
        return x / y;
    }
    let scale = 2f64.powi(-(libm::ilogb(largest)).clamp(-1022, 1022));
    let y = y * scale;
    let product = x * y.conj();
    product / (y.re * y.re + y.im * y.im) * scale
}

#[inline]
pub fn exp(z: Number) -> Number {
    if z.im == 0.0 {
        return Complex::new(z.re.exp(), z.im);
    }
    let size = z.re.exp();
    if size == 0.0 { ZERO } else { Complex::new(size * z.im.cos(), size * z.im.sin()) }
}

#[inline]
pub fn exp_m1(z: Number) -> Number {
    let half = (z.im / 2.0).sin();
    Complex::new(z.re.exp_m1() * z.im.cos() - 2.0 * half * half, z.re.exp() * z.im.sin())
}

#[inline]
pub fn ln(z: Number) -> Number {
    let (more, less) = (z.re.abs().max(z.im.abs()), z.re.abs().min(z.im.abs()));
    let near_one = (0.5..2.0).contains(&more) && less < 2.0;
    let size = if near_one { ((more - 1.0) * (more + 1.0) + less * less).ln_1p() / 2.0 } else { size(z).ln() };
    Complex::new(size, angle(z))
}

#[inline]
pub fn ln_1p(z: Number) -> Number {
    if size(z) > 0.5 {
        return ln(ONE + z);
    }
    Complex::new((z.re * (2.0 + z.re) + z.im * z.im).ln_1p() / 2.0, z.im.atan2(1.0 + z.re))
}

pub fn sqrt(z: Number) -> Number {
    if z == ZERO {
        return Complex::new(0.0, z.im);
    }
    if z.im.is_infinite() {
        return Complex::new(f64::INFINITY, z.im);
    }
    // Halved, so that the sum of two large numbers is finite.
    let root = ((z.re / 2.0).abs() + (z.re / 2.0).hypot(z.im / 2.0)).sqrt();
    if z.re >= 0.0 {
        Complex::new(root, z.im / (2.0 * root))
    } else {
        Complex::new(z.im.abs() / (2.0 * root), root.copysign(z.im))
    }
}

#[inline]
pub fn pow(x: Number, y: Number) -> Number {
    if y == ZERO {
        return ONE;
    }
    if x == ZERO {
        return if y.re > 0.0 { ZERO } else { Complex::new(f64::NAN, f64::NAN) };
    }
    exp(y * ln(x))
}

#[inline]
pub fn sinh(z: Number) -> Number {
    Complex::new(z.re.sinh() * z.im.cos(), z.re.cosh() * z.im.sin())
}

#[inline]
pub fn cosh(z: Number) -> Number {
    Complex::new(z.re.cosh() * z.im.cos(), z.re.sinh() * z.im.sin())
}

/// Kahan's formula, which does not overflow.
pub fn tanh(z: Number) -> Number {
    /// From this value on, e to the -2 |re| is negligible compared to 1.
    const FAR: f64 = 20.0;
    if z.re.abs() > FAR {
        let rest = 4.0 * z.im.sin() * z.im.cos() * (-2.0 * z.re.abs()).exp();
        return Complex::new(1f64.copysign(z.re), rest);
    }
    let (tan, sinh) = (z.im.tan(), z.re.sinh());
    let beta = 1.0 + tan * tan;
    let below = 1.0 + beta * sinh * sinh;
    Complex::new(beta * (1.0 + sinh * sinh).sqrt() * sinh / below, tan / below)
}

#[inline]
pub fn asinh(z: Number) -> Number {
    // An odd function: computed on the side where no digits cancel.
    if z.re.is_sign_negative() { -asinh(-z) } else { ln(z + sqrt(z * z + ONE)) }
}

#[inline]
pub fn acosh(z: Number) -> Number {
    ln(z + sqrt(z + ONE) * sqrt(z - ONE))
}

#[inline]
pub fn asin(z: Number) -> Number {
    turned_back(asinh(turned(z)))
}

#[inline]
pub fn acos(z: Number) -> Number {
    let asin = asin(z);
    Complex::new(std::f64::consts::FRAC_PI_2 - asin.re, -asin.im)
}

#[inline]
pub fn atanh(z: Number) -> Number {
    (ln_1p(z) - ln_1p(-z)) / 2.0
}

#[inline]
pub fn atan(z: Number) -> Number {
    turned_back(atanh(turned(z)))
}

#[inline]
pub fn sin(z: Number) -> Number {
    turned_back(sinh(turned(z)))
}

#[inline]
pub fn cos(z: Number) -> Number {
    cosh(turned(z))
}

#[inline]
pub fn tan(z: Number) -> Number {
    turned_back(tanh(turned(z)))
}

/// The number of size 1 in the direction of `z`; 0 for 0.
#[inline]
pub fn sign(z: Number) -> Number {
    if z == ZERO { ZERO } else { z / size(z) }
}
