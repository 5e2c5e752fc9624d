//! Gradients of elementwise functions of one tensor.

use meshtf_tensor::DType;

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, all, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("abs", |c| scaled(c, |c, x| c.un("Sign", x))),
    ("neg", |c| {
        let dy = c.dy()?;
        one(c.neg(dy)?)
    }),
    ("reciprocal", |c| of_output(c, "ReciprocalGrad")),
    ("sqrt", |c| of_output(c, "SqrtGrad")),
    ("rsqrt", |c| of_output(c, "RsqrtGrad")),
    ("sigmoid", |c| of_conjugate(c, "SigmoidGrad")),
    ("tanh", |c| of_conjugate(c, "TanhGrad")),
    ("square", |c| scaled(c, |c, x| c.mul(x, c.num(2.0)))),
    ("exp", |c| {
        let (dy, y) = (c.dy()?, c.y(0));
        let y = c.conj(y)?;
        one(c.mul(dy, y)?)
    }),
    ("expm1", |c| scaled(c, |c, x| c.un("Exp", x))),
    ("log", |c| scaled(c, |c, x| c.un("Reciprocal", x))),
    ("log1p", |c| {
        scaled(c, |c, x| {
            let sum = c.add(c.num(1.0), x)?;
            c.un("Reciprocal", sum)
        })
    }),
    ("sin", |c| scaled(c, |c, x| c.un("Cos", x))),
    ("cos", |c| {
        scaled(c, |c, x| {
            let sin = c.un("Sin", x)?;
            c.neg(sin)
        })
    }),
    ("tan", |c| {
        scaled(c, |c, x| {
            let cos = c.un("Cos", x)?;
            let secant = c.un("Reciprocal", cos)?;
            c.un("Square", secant)
        })
    }),
    ("sinh", |c| scaled(c, |c, x| c.un("Cosh", x))),
    ("cosh", |c| scaled(c, |c, x| c.un("Sinh", x))),
    ("asin", |c| scaled(c, inverse_root_of_one_minus_square)),
    ("acos", |c| {
        scaled(c, |c, x| {
            let of_asin = inverse_root_of_one_minus_square(c, x)?;
            c.neg(of_asin)
        })
    }),
    ("atan", |c| {
        scaled(c, |c, x| {
            let square = c.un("Square", x)?;
            let sum = c.add(c.num(1.0), square)?;
            c.un("Reciprocal", sum)
        })
    }),
    ("atanh", |c| {
        scaled(c, |c, x| {
            let square = c.un("Square", x)?;
            let rest = c.sub(c.num(1.0), square)?;
            c.un("Reciprocal", rest)
        })
    }),
    ("asinh", |c| divided(c, "Cosh")),
    ("acosh", |c| divided(c, "Sinh")),
    ("erf", |c| scaled(c, |c, x| gauss(c, x, std::f64::consts::FRAC_2_SQRT_PI))),
    ("erfc", |c| scaled(c, |c, x| gauss(c, x, -std::f64::consts::FRAC_2_SQRT_PI))),
    ("bessel_i0e", |c| {
        let y = c.y(0);
        scaled(c, |c, x| {
            let (first, sign) = (c.un("BesselI1e", x)?, c.un("Sign", x)?);
            let falling = c.mul(sign, y)?;
            c.sub(first, falling)
        })
    }),
    ("bessel_i1e", |c| {
        // At 0, where the formula has no value, it is a half.
        let (y, least) = (c.y(0), epsilon(c.t()));
        scaled(c, |c, x| {
            let size = c.un("Abs", x)?;
            let is_large = c.bin("Greater", size, c.num(least))?;
            let safe = c.select(is_large, x, c.num(least))?;
            let (other, sign, inverse) = (c.un("BesselI0e", safe)?, c.un("Sign", safe)?, c.un("Reciprocal", safe)?);
            let both = c.add(sign, inverse)?;
            let falling = c.mul(both, y)?;
            let slope = c.sub(other, falling)?;
            c.select(is_large, slope, c.num(0.5))
        })
    }),
    ("lgamma", |c| scaled(c, |c, x| c.un("Digamma", x))),
    ("digamma", |c| scaled(c, |c, x| c.bin("Polygamma", c.num(1.0), x))),
    ("erfinv", |c| {
        let y = c.y(0);
        scaled(c, |c, _| {
            let square = c.un("Square", y)?;
            let growth = c.un("Exp", square)?;
            c.mul(growth, c.num(0.5 * std::f64::consts::PI.sqrt()))
        })
    }),
    ("ndtri", |c| {
        let y = c.y(0);
        scaled(c, |c, _| {
            let square = c.un("Square", y)?;
            let half = c.mul(square, c.num(0.5))?;
            let growth = c.un("Exp", half)?;
            c.mul(growth, c.num((2.0 * std::f64::consts::PI).sqrt()))
        })
    }),
    ("sign", |c| {
        let x = c.x(0);
        one(c.un("ZerosLike", x)?)
    }),
    ("reciprocal_grad", |c| {
        let (y, g, dz) = (c.x(0), c.x(1), c.dy()?);
        let turned = c.conj_like(dz, y)?;
        let y = c.conj(y)?;
        twice_product(c, "ReciprocalGrad", [y, g, turned], dz)
    }),
    ("tanh_grad", |c| {
        let (y, g, dz) = (c.x(0), c.x(1), c.dy()?);
        let (y, g) = (c.conj(y)?, c.conj(g)?);
        twice_product(c, "TanhGrad", [y, g, dz], dz)
    }),
    ("sigmoid_grad", |c| {
        let (y, g, dz) = (c.x(0), c.x(1), c.dy()?);
        let (y, g) = (c.conj(y)?, c.conj(g)?);
        let product = c.mul(dz, g)?;
        let slope = c.mul(y, c.num(2.0))?;
        let slope = c.mul(product, slope)?;
        let by_y = c.sub(product, slope)?;
        all([by_y, c.bin("SigmoidGrad", y, dz)?])
    }),
    ("sqrt_grad", |c| {
        // z = g / 2y
        let (y, z, dz) = (c.x(0), c.y(0), c.dy()?);
        let ratio = c.div(dz, y)?;
        let turned = c.conj_like(ratio, y)?;
        let product = c.mul(turned, z)?;
        all([c.neg(product)?, c.mul(ratio, c.num(0.5))?])
    }),
    ("rsqrt_grad", |c| {
        // z = -g y^3 / 2
        let (y, g, dz) = (c.x(0), c.x(1), c.dy()?);
        let turned = c.conj_like(dz, y)?;
        let y = c.conj(y)?;
        let square = c.un("Square", y)?;
        let product = c.mul(turned, g)?;
        let product = c.mul(product, square)?;
        all([c.mul(product, c.num(-1.5))?, c.bin("RsqrtGrad", y, dz)?])
    }),
];

/// The distance of 1 to the next larger number of a dtype.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => half::f16::EPSILON.into(),
        DType::BF16 => half::bf16::EPSILON.into(),
        _ => f32::EPSILON.into(),
    }
}

/// The output's gradient times the derivative at the input; for complex numbers, at its conjugate.
pub(super) fn scaled(c: &mut Call, derivative: impl FnOnce(&mut Call, Output) -> Added) -> Grads {
    let (dy, x) = (c.dy()?, c.x(0));
    let x = c.conj(x)?;
    let derivative = derivative(c, x)?;
    one(c.mul(dy, derivative)?)
}

/// The gradient by an op that computes it from the output and the output's gradient.
fn of_output(c: &mut Call, op: &str) -> Grads {
    let (dy, y) = (c.dy()?, c.y(0));
    one(c.bin(op, y, dy)?)
}

/// The gradient by an op that takes the output's conjugate in place of the output.
fn of_conjugate(c: &mut Call, op: &str) -> Grads {
    let (dy, y) = (c.dy()?, c.y(0));
    let y = c.conj(y)?;
    one(c.bin(op, y, dy)?)
}

/// The gradient divided by a function of the output.
fn divided(c: &mut Call, op: &str) -> Grads {
    let (dy, y) = (c.dy()?, c.y(0));
    let y = c.conj(y)?;
    let by = c.un(op, y)?;
    one(c.div(dy, by)?)
}

fn inverse_root_of_one_minus_square(c: &mut Call, x: Output) -> Added {
    let square = c.un("Square", x)?;
    let rest = c.sub(c.num(1.0), square)?;
    c.un("Rsqrt", rest)
}

/// `factor * exp(-x^2)`
fn gauss(c: &mut Call, x: Output, factor: f64) -> Added {
    let square = c.un("Square", x)?;
    let negative = c.neg(square)?;
    let exp = c.un("Exp", negative)?;
    c.mul(exp, c.num(factor))
}

/// For an op that is linear in its second input `g` and has the derivative `-2 g y` with respect to its first, `y`; these may
/// be conjugates, as may `by_dz`, the gradient of the output `dz`.
fn twice_product(c: &mut Call, op: &str, [y, g, by_dz]: [Output; 3], dz: Output) -> Grads {
    let twice = c.mul(by_dz, c.num(-2.0))?;
    let product = c.mul(twice, g)?;
    all([c.mul(product, y)?, c.bin(op, y, dz)?])
}
