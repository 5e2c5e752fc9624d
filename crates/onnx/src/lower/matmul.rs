//! Products of matrices.

use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::{Operator, microsoft, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("Det", 11, determinant),
    onnx("Einsum", 12, einsum),
    onnx("Gemm", 1, gemm),
    onnx("MatMul", 1, |cx, n| {
        let (a, b) = (n.input(0)?, n.input(1)?);
        one(product(cx, a, b)?)
    }),
    microsoft("FusedMatMul", fused),
    microsoft("FusedGemm", fused_gemm),
];

/// A product by NumPy's rules: a vector is a row before the other operand, and a column after it.
pub fn product(cx: &mut Cx, a: Output, b: Output) -> Result<Output> {
    let (left, right) = (cx.em.rank(a)?, cx.em.rank(b)?);
    if left == 0 || right == 0 {
        return Err(Failure::invalid("a scalar is no matrix"));
    }
    let a = if left == 1 { cx.unsqueeze(a, &[0])? } else { a };
    let b = if right == 1 { cx.unsqueeze(b, &[1])? } else { b };
    let y = matrices(cx, a, b, false, false)?;
    let rank = cx.em.rank(y)?;
    let mut axes = Vec::new();
    if left == 1 {
        axes.push(rank - 2);
    }
    if right == 1 {
        axes.push(rank - 1);
    }
    cx.squeeze(y, &axes)
}

/// A product of matrices or batches of them, of which either may be transposed.
pub fn matrices(cx: &mut Cx, a: Output, b: Output, adj_a: bool, adj_b: bool) -> Result<Output> {
    let dtype = cx.em.dtype(a);
    if matches!(dtype, DType::I8 | DType::I16 | DType::U8 | DType::U16) {
        let (a, b) = (cx.cast(a, DType::I32)?, cx.cast(b, DType::I32)?);
        let y = matrices(cx, a, b, adj_a, adj_b)?;
        return cx.cast(y, dtype);
    }
    if cx.em.rank(a)? == 2 && cx.em.rank(b)? == 2 {
        return op!(cx.em, "MatMul", a, b; "transpose_a" => adj_a, "transpose_b" => adj_b);
    }
    op!(cx.em, "BatchMatMulV2", a, b; "adj_x" => adj_a, "adj_y" => adj_b)
}

fn scaled(cx: &mut Cx, x: Output, factor: f32) -> Result<Output> {
    if factor == 1.0 {
        return Ok(x);
    }
    if cx.em.dtype(x).is_float() {
        return op!(cx.em, "Mul", x, f64::from(factor));
    }
    let dtype = cx.em.dtype(x);
    let wide = cx.cast(x, DType::F64)?;
    let wide = op!(cx.em, "Mul", wide, f64::from(factor))?;
    cx.cast(wide, dtype)
}

fn general(cx: &mut Cx, n: &Node) -> Result<Output> {
    let (a, b, c) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let y = matrices(cx, a, b, n.flag("transA", false), n.flag("transB", false))?;
    let y = scaled(cx, y, n.float("alpha", 1.0))?;
    match c {
        Some(c) => {
            let c = scaled(cx, c, n.float("beta", 1.0))?;
            op!(cx.em, "AddV2", y, c)
        }
        None => Ok(y),
    }
}

fn gemm(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    one(general(cx, n)?)
}

fn fused_gemm(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let y = general(cx, n)?;
    match n.str("activation", "")? {
        "" => one(y),
        name @ ("Relu" | "Sigmoid" | "Tanh" | "Elu") => one(op!(cx.em, name, y)?),
        "LeakyRelu" => one(op!(cx.em, "LeakyRelu", y; "alpha" => n.float("activation_alpha", 0.01))?),
        other => Err(crate::unsupported(format!("unsupported: the activation {other}"))),
    }
}

fn fused(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (a, b) = (n.input(0)?, n.input(1)?);
    if n.flag("transBatchA", false) || n.flag("transBatchB", false) {
        return Err(crate::unsupported("unsupported: transposed batches"));
    }
    let y = match n.flag("transA", false) || n.flag("transB", false) {
        true => matrices(cx, a, b, n.flag("transA", false), n.flag("transB", false))?,
        false => product(cx, a, b)?,
    };
    one(scaled(cx, y, n.float("alpha", 1.0))?)
}

fn determinant(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    one(op!(cx.em, "MatrixDeterminant", x)?)
}

fn einsum(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let equation: String = n.str("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_owned(), right.to_owned()),
        None => {
            // The labels that occur once, in order, after those of an ellipsis.
            let mut labels: Vec<char> = equation.chars().filter(char::is_ascii_alphabetic).collect();
            labels.sort_unstable();
            let once = labels.iter().filter(|&label| labels.iter().filter(|other| *other == label).count() == 1);
            let ellipsis = if equation.contains("...") { "..." } else { "" };
            (equation.clone(), format!("{ellipsis}{}", once.collect::<String>()))
        }
    };
    let mut terms: Vec<String> = left.split(',').map(str::to_owned).collect();
    let mut all = n.all()?;
    if terms.len() != all.len() {
        return Err(Failure::invalid(format!("its equation has {} terms for {} inputs", terms.len(), all.len())));
    }
    // Two at a time: the first two are contracted to the labels that the others or the result need.
    while all.len() > 2 {
        let needed: String = terms[2..].concat() + &right;
        let kept = |label: &char| label.is_ascii_alphabetic() && needed.contains(*label);
        let mut labels: Vec<char> = terms[0].chars().chain(terms[1].chars()).filter(kept).collect();
        labels.sort_unstable();
        labels.dedup();
        let ellipsis = if terms[..2].iter().any(|term| term.contains("...")) { "..." } else { "" };
        let out = format!("{ellipsis}{}", labels.into_iter().collect::<String>());
        let equation = format!("{},{}->{out}", terms[0], terms[1]);
        let both = op!(cx.em, "Einsum", all[0], all[1]; "equation" => equation)?;
        terms.splice(..2, [out]);
        all.splice(..2, [both]);
    }
    let args = all.into_iter().map(Into::into).collect();
    one(cx.em.add("Einsum", args, &[("equation", format!("{}->{right}", terms.join(",")).into())])?)
}
