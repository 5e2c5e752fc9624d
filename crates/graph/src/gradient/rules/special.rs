//! Gradients of Bessel functions and of integrals of elementary functions.

use std::f64::consts::FRAC_PI_2;

use super::Rule;
use super::unary::scaled;
use crate::Output;
use crate::gradient::call::{Added, Call, Grads};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("bessel_i0", |c| scaled(c, |c, x| c.un("BesselI1", x))),
    ("bessel_i1", |c| first_of_order_1(c, "BesselI0", 1.0)),
    ("bessel_j0", |c| scaled(c, |c, x| negative(c, "BesselJ1", x))),
    ("bessel_j1", |c| first_of_order_1(c, "BesselJ0", 0.5)),
    ("bessel_k0", |c| scaled(c, |c, x| negative(c, "BesselK1", x))),
    ("bessel_k0e", |c| {
        let y = c.y(0);
        scaled(c, |c, x| {
            let other = c.un("BesselK1e", x)?;
            c.sub(y, other)
        })
    }),
    ("bessel_k1", |c| {
        let y = c.y(0);
        scaled(c, |c, x| {
            let (other, ratio) = (negative(c, "BesselK0", x)?, c.div(y, x)?);
            c.sub(other, ratio)
        })
    }),
    ("bessel_k1e", |c| {
        let y = c.y(0);
        scaled(c, |c, x| {
            let inverse = c.un("Reciprocal", x)?;
            let rest = c.sub(c.num(1.0), inverse)?;
            let (own, other) = (c.mul(y, rest)?, c.un("BesselK0e", x)?);
            c.sub(own, other)
        })
    }),
    ("bessel_y0", |c| scaled(c, |c, x| negative(c, "BesselY1", x))),
    ("bessel_y1", |c| {
        let y = c.y(0);
        scaled(c, |c, x| {
            let (other, ratio) = (c.un("BesselY0", x)?, c.div(y, x)?);
            c.sub(other, ratio)
        })
    }),
    ("dawsn", |c| {
        let y = c.y(0);
        scaled(c, |c, x| {
            let product = c.mul(x, y)?;
            let twice = c.mul(product, c.num(2.0))?;
            c.sub(c.num(1.0), twice)
        })
    }),
    ("expint", |c| {
        scaled(c, |c, x| {
            let exp = c.un("Exp", x)?;
            c.div(exp, x)
        })
    }),
    ("fresnel_cos", |c| scaled(c, |c, x| of_quarter_square(c, "Cos", x))),
    ("fresnel_sin", |c| scaled(c, |c, x| of_quarter_square(c, "Sin", x))),
    ("spence", |c| {
        // At 1, where the formula has no value, it is -1.
        scaled(c, |c, x| {
            let is_one = c.bin("Equal", x, c.num(1.0))?;
            let safe = c.select(is_one, c.num(2.0), x)?;
            let (log, rest) = (c.un("Log", safe)?, c.sub(c.num(1.0), safe)?);
            let slope = c.div(log, rest)?;
            c.select(is_one, c.num(-1.0), slope)
        })
    }),
];

fn negative(c: &mut Call, op: &str, x: Output) -> Added {
    let value = c.un(op, x)?;
    c.neg(value)
}

/// The function of order 0 less the ratio of the output and the input, which is not defined at 0: the derivative there is
/// given.
fn first_of_order_1(c: &mut Call, of_order_0: &str, at_zero: f64) -> Grads {
    let y = c.y(0);
    scaled(c, |c, x| {
        let is_zero = c.bin("Equal", x, c.num(0.0))?;
        let safe = c.select(is_zero, c.num(1.0), x)?;
        let (other, ratio) = (c.un(of_order_0, x)?, c.div(y, safe)?);
        let slope = c.sub(other, ratio)?;
        c.select(is_zero, c.num(at_zero), slope)
    })
}

/// A function of pi / 2 times the square.
fn of_quarter_square(c: &mut Call, op: &str, x: Output) -> Added {
    let square = c.un("Square", x)?;
    let angle = c.mul(square, c.num(FRAC_PI_2))?;
    c.un(op, angle)
}
