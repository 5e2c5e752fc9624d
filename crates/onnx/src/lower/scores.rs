//! The scores of classical models: labels by scores, and the transformation of scores to probabilities, as onnxruntime has them
//! where the standard is silent.

use std::f64::consts::SQRT_2;

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use crate::cx::Cx;
use crate::emit::op;
use crate::node::{Node, Value};

/// The labels of classes.
pub struct Labels(Tensor);

impl Labels {
    /// Those that a node states, in the spelling of trees or of other models.
    ///
    /// # Errors
    /// InvalidArgument if there are none.
    pub fn of(n: &Node) -> Result<Labels> {
        let ints = n.ints("classlabels_int64s").or_else(|| n.ints("classlabels_ints"));
        let labels = match ints.filter(|ints| !ints.is_empty()) {
            Some(ints) => Tensor::vector(ints.to_vec()),
            None => {
                let texts = n.strs("classlabels_strings")?;
                Tensor::vector(texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>())
            }
        };
        if labels.is_empty() {
            return Err(Failure::invalid("it states no labels of classes"));
        }
        Ok(Labels(labels))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The labels of these classes.
    pub fn at(&self, cx: &mut Cx, classes: Output) -> Result<Output> {
        op!(cx.em, "GatherV2", self.0.clone(), classes, 0i64)
    }

    /// The label of each row's largest score, the first of equal ones.
    pub fn of_largest(&self, cx: &mut Cx, scores: Output) -> Result<Output> {
        let largest = op!(cx.em, "ArgMax", scores, 1i64)?;
        self.at(cx, largest)
    }

    /// The second label where a condition holds, else the first.
    pub fn of_two(&self, cx: &mut Cx, is_second: Output) -> Result<Output> {
        let class = cx.long(is_second)?;
        self.at(cx, class)
    }
}

/// The function that makes probabilities of scores.
#[derive(Clone, Copy, PartialEq)]
pub enum Transform {
    None,
    Softmax,
    Logistic,
    /// Softmax of the scores that are not zero.
    SoftmaxZero,
    Probit,
}

impl Transform {
    /// # Errors
    /// InvalidArgument for another name.
    pub fn named(name: &str) -> Result<Transform> {
        Ok(match name {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            other => return Err(Failure::invalid(format!("{other:?} is no post_transform"))),
        })
    }

    /// By its number in `TreeEnsemble`.
    ///
    /// # Errors
    /// InvalidArgument for another number.
    pub fn numbered(number: i64) -> Result<Transform> {
        Transform::named(match number {
            0 => "NONE",
            1 => "SOFTMAX",
            2 => "LOGISTIC",
            3 => "SOFTMAX_ZERO",
            4 => "PROBIT",
            _ => "",
        })
    }

    /// Of rows of a single score, which but for the probit stays.
    pub fn of_one(self, cx: &mut Cx, y: Output) -> Result<Output> {
        if self == Transform::Probit { self.of_rows(cx, y) } else { Ok(y) }
    }

    /// Of rows of scores.
    pub fn of_rows(self, cx: &mut Cx, y: Output) -> Result<Output> {
        match self {
            Transform::None => Ok(y),
            Transform::Softmax => op!(cx.em, "Softmax", y),
            Transform::Logistic => op!(cx.em, "Sigmoid", y),
            Transform::SoftmaxZero => {
                let most = cx.reduce("Max", y, &[1], true)?;
                let below = op!(cx.em, "Sub", y, most)?;
                let (own, size) = (op!(cx.em, "Exp", below)?, op!(cx.em, "Abs", y)?);
                let is_some = op!(cx.em, "Greater", size, 1e-7)?;
                // A score near zero is scaled as the others are.
                let scale = op!(cx.em, "Neg", most)?;
                let scale = op!(cx.em, "Exp", scale)?;
                let others = op!(cx.em, "Mul", y, scale)?;
                let parts = op!(cx.em, "SelectV2", is_some, own, others)?;
                let zeros = op!(cx.em, "ZerosLike", parts)?;
                let counted = op!(cx.em, "SelectV2", is_some, own, zeros)?;
                let total = cx.reduce("Sum", counted, &[1], true)?;
                op!(cx.em, "RealDiv", parts, total)
            }
            Transform::Probit => {
                let twice = op!(cx.em, "Mul", y, 2.0)?;
                let twice = op!(cx.em, "Sub", twice, 1.0)?;
                let root = op!(cx.em, "Erfinv", twice)?;
                op!(cx.em, "Mul", root, SQRT_2)
            }
        }
    }
}

/// How trees decide.
pub struct Trees {
    pub labels: Labels,
    /// Numbers that are added to the scores.
    pub base: Vec<f64>,
    /// Whether a leaf has a weight for a class.
    pub known: Vec<bool>,
    /// For each row and class, whether one of its leaves has a weight for it, if some have not.
    pub scored: Option<Output>,
    /// Whether no weight of a leaf is negative.
    pub is_positive: bool,
    pub transform: Transform,
}

/// The labels and the scores of rows, from the sums of trees.
pub fn chosen(cx: &mut Cx, y: Output, trees: &Trees) -> Result<Vec<Value>> {
    let Trees { labels, base, transform, .. } = trees;
    if !base.is_empty() && base.len() > labels.len() {
        return Err(Failure::invalid(format!("it has {} base_values for {} classes", base.len(), labels.len())));
    }
    if labels.len() == 2 {
        return of_two(cx, y, trees);
    }
    let mut y = y;
    if !base.is_empty() {
        let mut all: Vec<f32> = base.iter().map(|&x| x as f32).collect();
        all.resize(labels.len(), 0.0);
        y = op!(cx.em, "AddV2", y, Tensor::vector(all))?;
    }
    // Classes without a score lose to all others.
    let compared = match trees.scored {
        Some(scored) if base.is_empty() => {
            let least = cx.em.constant(Tensor::scalar(f32::NEG_INFINITY))?;
            op!(cx.em, "SelectV2", scored, y, least)?
        }
        _ => y,
    };
    let label = labels.of_largest(cx, compared)?;
    Ok(vec![label.into(), transform.of_rows(cx, y)?.into()])
}

/// Of two classes, of which often one alone has scores.
fn of_two(cx: &mut Cx, y: Output, trees: &Trees) -> Result<Vec<Value>> {
    let Trees { labels, base, known, is_positive, transform, .. } = trees;
    let is_binary = known.iter().filter(|&&known| known).count() == 1;
    let is_positive = is_binary && *is_positive;
    let both = cx.split(y, 1, 2)?;
    let (mut first, mut second) = (both[0], both[1]);
    let (has_first, has_second) = (known[0], known[1]);
    match base[..] {
        // A base value is that of a class with a score.
        [own] | [own, _] if has_first && !has_second => first = op!(cx.em, "AddV2", first, own)?,
        [own] if has_first => first = op!(cx.em, "AddV2", first, own)?,
        // onnxruntime takes the second value for both classes, and the scores of the first.
        [_, own] => {
            second = op!(cx.em, "AddV2", first, own)?;
            if has_first {
                first = op!(cx.em, "Neg", second)?;
            }
        }
        _ => {}
    }
    let decides = if has_second { second } else { first };
    let is_second = op!(cx.em, "Greater", decides, if is_positive { 0.5 } else { 0.0 })?;
    let is_second = op!(cx.em, "Reshape", is_second, [-1i64])?;
    let label = labels.of_two(cx, is_second)?;
    let scores = if has_second || base.len() == 2 {
        let scores = cx.concat(&[first, second], 1)?;
        transform.of_rows(cx, scores)?
    } else {
        paired(cx, first, *transform, is_positive)?
    };
    Ok(vec![label.into(), scores.into()])
}

/// The scores of two classes from that of the second: a probability, or a number whose sign decides.
pub fn paired(cx: &mut Cx, y: Output, transform: Transform, is_probability: bool) -> Result<Output> {
    let y = if transform == Transform::Probit { transform.of_rows(cx, y)? } else { y };
    let mut other = op!(cx.em, "Neg", y)?;
    if is_probability && transform != Transform::Logistic {
        other = op!(cx.em, "AddV2", other, 1.0)?;
    }
    let scores = cx.concat(&[other, y], 1)?;
    if transform == Transform::Logistic { transform.of_rows(cx, scores) } else { Ok(scores) }
}

/// The label and the scores of a linear model: `y` has a column for each class, or one alone for two.
pub fn linear(cx: &mut Cx, y: Output, columns: usize, labels: &Labels, transform: Transform) -> Result<Vec<Value>> {
    if columns > 1 {
        let label = labels.of_largest(cx, y)?;
        return Ok(vec![label.into(), transform.of_rows(cx, y)?.into()]);
    }
    if labels.len() != 2 {
        return Err(Failure::invalid(format!("it has one score for {} labels", labels.len())));
    }
    let is_second = op!(cx.em, "Greater", y, 0.0)?;
    let is_second = op!(cx.em, "Reshape", is_second, [-1i64])?;
    let label = labels.of_two(cx, is_second)?;
    Ok(vec![label.into(), paired(cx, y, transform, true)?.into()])
}

/// A matrix of float32: a vector is one row.
pub fn matrix(cx: &mut Cx, x: Output) -> Result<Output> {
    let x = if cx.em.rank(x)? == 1 { cx.unsqueeze(x, &[0])? } else { x };
    match cx.em.rank(x)? {
        2 => cx.cast(x, DType::F32),
        rank => Err(Failure::invalid(format!("its input has rank {rank}, where rows of numbers were expected"))),
    }
}
