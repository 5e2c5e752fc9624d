//! Random numbers. A step draws others than the one before unless a seed is stated.

use meshtf_graph::{Attr, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::elem::Elem;
use crate::emit::op;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("Bernoulli", 15, bernoulli),
    onnx("Multinomial", 7, multinomial),
    onnx("RandomNormal", 1, |cx, n| drawn(cx, n, false, false)),
    onnx("RandomNormalLike", 1, |cx, n| drawn(cx, n, false, true)),
    onnx("RandomUniform", 1, |cx, n| drawn(cx, n, true, false)),
    onnx("RandomUniformLike", 1, |cx, n| drawn(cx, n, true, true)),
];

/// The seed as an int: that of ONNX is a float.
fn seed(n: &Node) -> i64 {
    n.attr("seed").and_then(|attr| attr.f).map_or(0, |seed| i64::from(seed.to_bits()))
}

fn dtype(cx: &Cx, n: &Node, like: Option<Output>) -> Result<DType> {
    match (n.maybe_int("dtype"), like) {
        (Some(to), _) => Elem(i32::try_from(to).unwrap_or(0)).dtype(),
        (None, Some(like)) => Ok(cx.em.dtype(like)),
        (None, None) => Ok(DType::F32),
    }
}

fn drawn(cx: &mut Cx, n: &Node, is_uniform: bool, has_like: bool) -> Result<Vec<Value>> {
    let like = if has_like { Some(n.input(0)?) } else { None };
    let dtype = dtype(cx, n, like)?;
    let shape = match like {
        Some(like) => cx.shape_of(like)?,
        None => cx.ints(n.ints("shape").unwrap_or(&[]))?,
    };
    let own = if dtype.is_float() { dtype } else { DType::F32 };
    let name = if is_uniform { "RandomUniform" } else { "RandomStandardNormal" };
    let y = op!(cx.em, name, shape; "dtype" => own, "seed" => seed(n))?;
    let (scale, offset) = if is_uniform {
        let (low, high) = (f64::from(n.float("low", 0.0)), f64::from(n.float("high", 1.0)));
        (high - low, low)
    } else {
        (n.float("scale", 1.0).into(), n.float("mean", 0.0).into())
    };
    let y = op!(cx.em, "Mul", y, scale)?;
    let y = op!(cx.em, "AddV2", y, offset)?;
    one(cx.cast(y, dtype)?)
}

fn bernoulli(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let to = dtype(cx, n, Some(x))?;
    let shape = cx.shape_of(x)?;
    let own = cx.em.dtype(x);
    let y = op!(cx.em, "RandomUniform", shape; "dtype" => own, "seed" => seed(n))?;
    let y = op!(cx.em, "Less", y, x)?;
    one(cx.cast(y, to)?)
}

fn multinomial(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let to = n.maybe_int("dtype").map_or(DType::I32, |to| if to == 7 { DType::I64 } else { DType::I32 });
    let count = n.int("sample_size", 1) as i32;
    one(op!(cx.em, "Multinomial", x, count; "output_dtype" => Attr::Type(to), "seed" => seed(n))?)
}
