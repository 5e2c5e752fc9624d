//! Classical models of ai.onnx.ml but trees: linear models, and what prepares their features.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::scores::{self, Labels, Transform, matrix};
use super::{Operator, ml, one};
use crate::cx::Cx;
use crate::emit::op;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    ml("FeatureVectorizer", 1, vectorize),
    ml("Imputer", 1, impute),
    ml("LinearClassifier", 1, classify),
    ml("LinearRegressor", 1, regress),
    ml("Normalizer", 1, normalize),
    ml("OneHotEncoder", 1, one_hot),
    ml("Scaler", 1, scale),
    ml("ZipMap", 1, |_, n| one(n.input(0)?)),
];

/// The product of rows and the rows of coefficients, which are `columns`, and their intercepts.
fn product(cx: &mut Cx, n: &Node, x: Output, columns: usize) -> Result<Output> {
    let coefficients = n.floats("coefficients").unwrap_or(&[]);
    if columns == 0 || coefficients.is_empty() || !coefficients.len().is_multiple_of(columns) {
        return Err(Failure::invalid(format!("it has {} coefficients for {columns} scores", coefficients.len())));
    }
    let shape = Shape::from([columns, coefficients.len() / columns]);
    let weights = Tensor::vector(coefficients.to_vec()).reshaped(shape)?;
    let y = op!(cx.em, "MatMul", x, weights; "transpose_b" => true)?;
    match n.floats("intercepts").unwrap_or(&[]) {
        [] => Ok(y),
        [one] => op!(cx.em, "AddV2", y, f64::from(*one)),
        all if all.len() == columns => op!(cx.em, "AddV2", y, Tensor::vector(all.to_vec())),
        all => Err(Failure::invalid(format!("it has {} intercepts for {columns} scores", all.len()))),
    }
}

fn classify(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let labels = Labels::of(n)?;
    let columns = n.floats("intercepts").map_or(labels.len(), <[f32]>::len);
    if columns > 1 && columns != labels.len() {
        return Err(Failure::invalid(format!("it has {columns} intercepts for {} labels", labels.len())));
    }
    let x = n.input(0)?;
    let x = matrix(cx, x)?;
    let y = product(cx, n, x, columns)?;
    scores::linear(cx, y, columns, &labels, Transform::named(n.str("post_transform", "NONE")?)?)
}

fn regress(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let targets = usize::try_from(n.int("targets", 1)).unwrap_or(0);
    let x = n.input(0)?;
    let x = matrix(cx, x)?;
    let y = product(cx, n, x, targets)?;
    let transform = Transform::named(n.str("post_transform", "NONE")?)?;
    one(if targets == 1 { transform.of_one(cx, y)? } else { transform.of_rows(cx, y)? })
}

fn vectorize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let all = n.all()?;
    let rows = all.into_iter().map(|x| matrix(cx, x)).collect::<Result<Vec<_>>>()?;
    one(cx.concat(&rows, 1)?)
}

fn scale(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let mut y = cx.cast(x, DType::F32)?;
    let list = |name: &str| n.floats(name).filter(|list| !list.is_empty()).map(|list| Tensor::vector(list.to_vec()));
    if let Some(offset) = list("offset") {
        y = op!(cx.em, "Sub", y, offset)?;
    }
    if let Some(scale) = list("scale") {
        y = op!(cx.em, "Mul", y, scale)?;
    }
    one(y)
}

fn normalize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let x = cx.cast(x, DType::F32)?;
    let last = cx.em.rank(x)?.checked_sub(1).ok_or_else(|| Failure::invalid("a scalar has no rows"))?;
    let size = match n.str("norm", "MAX")? {
        "MAX" => cx.reduce("Max", x, &[last], true)?,
        "L1" => {
            let sizes = op!(cx.em, "Abs", x)?;
            cx.reduce("Sum", sizes, &[last], true)?
        }
        "L2" => {
            let squares = op!(cx.em, "Square", x)?;
            let total = cx.reduce("Sum", squares, &[last], true)?;
            op!(cx.em, "Sqrt", total)?
        }
        other => return Err(Failure::invalid(format!("{other:?} is no norm"))),
    };
    // A row of zeros stays.
    let ones = op!(cx.em, "OnesLike", size)?;
    let is_zero = op!(cx.em, "Equal", size, 0.0)?;
    let size = op!(cx.em, "SelectV2", is_zero, ones, size)?;
    one(op!(cx.em, "RealDiv", x, size)?)
}

fn impute(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let dtype = cx.em.dtype(x);
    let (values, is_missing) = if dtype.is_float() {
        let values = n.floats("imputed_value_floats").unwrap_or(&[]);
        let replaced = n.float("replaced_value_float", 0.0);
        let is_missing = match replaced.is_nan() {
            true => op!(cx.em, "IsNan", x)?,
            false => op!(cx.em, "Equal", x, f64::from(replaced))?,
        };
        (Tensor::vector(values.to_vec()), is_missing)
    } else {
        let values = n.ints("imputed_value_int64s").unwrap_or(&[]);
        (Tensor::vector(values.to_vec()), op!(cx.em, "Equal", x, n.int("replaced_value_int64", 0) as f64)?)
    };
    if values.is_empty() {
        return Err(Failure::invalid("it states no values in place of missing ones"));
    }
    let values = cx.em.constant(values)?;
    let values = cx.cast(values, dtype)?;
    one(op!(cx.em, "SelectV2", is_missing, values, x)?)
}

fn one_hot(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let texts = n.strs("cats_strings")?;
    let ints = n.ints("cats_int64s").unwrap_or(&[]);
    let (x, classes) = match texts.is_empty() {
        true => (cx.long(x)?, Tensor::vector(ints.to_vec())),
        false => (x, Tensor::vector(texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>())),
    };
    if classes.is_empty() {
        return Err(Failure::invalid("it states no categories"));
    }
    let rank = cx.em.rank(x)?;
    let own = cx.unsqueeze(x, &[rank])?;
    let same = op!(cx.em, "Equal", own, classes)?;
    let y = cx.cast(same, DType::F32)?;
    if n.flag("zeros", true) {
        return one(y);
    }
    let is_known = cx.reduce("Any", same, &[rank], false)?;
    let all: Vec<usize> = (0..rank).collect();
    let are_known = cx.reduce("All", is_known, &all, false)?;
    one(cx.checked(y, are_known, "a category is none of those that the model states")?)
}
