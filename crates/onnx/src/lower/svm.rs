//! Support vector machines. Kernels and their sums are float64: onnxruntime's sums are, and distances are differences of large
//! squares.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::scores::{self, Labels, Transform, matrix};
use super::{Operator, ml, one};
use crate::cx::Cx;
use crate::emit::op;
use crate::flow;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[ml("SVMClassifier", 1, classify), ml("SVMRegressor", 1, regress)];

/// Most classes with probabilities: an iteration has nodes for each.
const MOST_COUPLED: usize = 256;
/// Most iterations of the coupling of probabilities.
const MOST_ITERATIONS: i32 = 100;
/// The least probability of one of two classes.
const LEAST: f64 = 1e-7;

fn wrong(why: impl Into<String>) -> Failure {
    Failure::invalid(why.into())
}

/// The first numbers of an attribute, as float64.
fn numbers(n: &Node, name: &str, count: usize) -> Result<Vec<f64>> {
    let all = n.floats(name).unwrap_or(&[]);
    let some = all.get(..count).ok_or_else(|| wrong(format!("it has {} {name}, and needs {count}", all.len())))?;
    Ok(some.iter().map(|&x| f64::from(x)).collect())
}

/// The values of a kernel: for each row of `x` one for each of the `count` vectors of an attribute.
fn kernel(cx: &mut Cx, n: &Node, x: Output, (name, count): (&str, usize)) -> Result<Output> {
    let length = n.floats(name).map_or(0, <[f32]>::len);
    if count == 0 || length == 0 || !length.is_multiple_of(count) {
        return Err(wrong(format!("it has {length} numbers of {name} for {count} vectors")));
    }
    let vectors = numbers(n, name, length)?;
    let lengths: Vec<f64> = vectors.chunks(length / count).map(|row| row.iter().map(|x| x * x).sum()).collect();
    let vectors = Tensor::vector(vectors).reshaped(Shape::from([count, length / count]))?;
    let products = op!(cx.em, "MatMul", x, vectors; "transpose_b" => true)?;
    let [gamma, shift, degree] = match n.floats("kernel_params").unwrap_or(&[]) {
        [] => [0.0; 3],
        &[gamma, shift, degree, ..] => [gamma, shift, degree].map(f64::from),
        other => return Err(wrong(format!("it has {} kernel_params, and not 3", other.len()))),
    };
    match n.str("kernel_type", "LINEAR")? {
        "LINEAR" => Ok(products),
        "RBF" => {
            let squares = op!(cx.em, "Square", x)?;
            let own = cx.reduce("Sum", squares, &[1], true)?;
            let both = op!(cx.em, "AddV2", own, Tensor::vector(lengths))?;
            let twice = op!(cx.em, "Mul", products, 2.0)?;
            let distances = op!(cx.em, "Sub", both, twice)?;
            let distances = op!(cx.em, "Maximum", distances, 0.0)?;
            let powers = op!(cx.em, "Mul", distances, -gamma)?;
            op!(cx.em, "Exp", powers)
        }
        name @ ("POLY" | "SIGMOID") => {
            let scaled = op!(cx.em, "Mul", products, gamma)?;
            let shifted = op!(cx.em, "AddV2", scaled, shift)?;
            if name == "POLY" { op!(cx.em, "Pow", shifted, degree) } else { op!(cx.em, "Tanh", shifted) }
        }
        other => Err(wrong(format!("{other:?} is no kernel_type"))),
    }
}

/// The rows of the input, as float64 of float32.
fn wide_rows(cx: &mut Cx, n: &Node) -> Result<Output> {
    let x = n.input(0)?;
    let x = matrix(cx, x)?;
    cx.cast(x, DType::F64)
}

/// The products with the coefficients, if there are no vectors: a column for each of `count`, and one number added to all.
fn without_vectors(cx: &mut Cx, n: &Node, x: Output, count: usize) -> Result<Output> {
    let rho = numbers(n, "rho", 1)?[0];
    let length = n.floats("coefficients").map_or(0, <[f32]>::len);
    if length == 0 || !length.is_multiple_of(count) {
        return Err(wrong(format!("it has {length} coefficients for {count} scores")));
    }
    let weights = Tensor::vector(numbers(n, "coefficients", length)?).reshaped(Shape::from([count, length / count]))?;
    let y = op!(cx.em, "MatMul", x, weights; "transpose_b" => true)?;
    let y = op!(cx.em, "AddV2", y, rho)?;
    cx.cast(y, DType::F32)
}

fn regress(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let count = usize::try_from(n.int("n_supports", 0)).map_err(|_| wrong("n_supports is negative"))?;
    let x = wide_rows(cx, n)?;
    let y = match count {
        0 => without_vectors(cx, n, x, 1)?,
        _ => {
            let values = kernel(cx, n, x, ("support_vectors", count))?;
            let weights = Tensor::vector(numbers(n, "coefficients", count)?).reshaped(Shape::from([count, 1]))?;
            let y = op!(cx.em, "MatMul", values, weights)?;
            let y = op!(cx.em, "AddV2", y, numbers(n, "rho", 1)?[0])?;
            cx.cast(y, DType::F32)?
        }
    };
    if !n.flag("one_class", false) {
        return one(y);
    }
    let is_inside = op!(cx.em, "Greater", y, 0.0)?;
    let sides = cx.cast(is_inside, DType::F32)?;
    let sides = op!(cx.em, "Mul", sides, 2.0)?;
    one(op!(cx.em, "Sub", sides, 1.0)?)
}

fn classify(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let labels = Labels::of(n)?;
    let transform = Transform::named(n.str("post_transform", "NONE")?)?;
    let classes = labels.len();
    if classes < 2 {
        return Err(wrong("it has a single class"));
    }
    let x = wide_rows(cx, n)?;
    let vectors = vectors_per_class(n, classes)?;
    let Some(vectors) = vectors else {
        let y = without_vectors(cx, n, x, classes)?;
        let is_positive = n.floats("coefficients").is_some_and(|all| all.iter().all(|&x| x >= 0.0));
        let mut label = labels.of_largest(cx, y)?;
        if classes == 2 && n.floats("prob_a").unwrap_or(&[]).is_empty() {
            // The second of two, too, if the larger score is above the middle.
            let most = cx.reduce("Max", y, &[1], false)?;
            let is_second = match is_positive {
                true => op!(cx.em, "GreaterEqual", most, 0.5)?,
                false => op!(cx.em, "Greater", most, 0.0)?,
            };
            let second = labels.of_two(cx, is_second)?;
            label = op!(cx.em, "SelectV2", is_second, second, label)?;
        }
        return Ok(vec![label.into(), transform.of_rows(cx, y)?.into()]);
    };
    let values = kernel(cx, n, x, ("support_vectors", vectors.iter().sum()))?;
    let sums = pair_sums(cx, n, values, &vectors)?;
    let wins = op!(cx.em, "Greater", sums, 0.0)?;
    let wins = cx.cast(wins, DType::F32)?;
    let wins = of_pairs(cx, wins, classes)?;
    let votes = cx.reduce("Sum", wins, &[2], false)?;
    let label = labels.of_largest(cx, votes)?;
    let sums = cx.cast(sums, DType::F32)?;
    let scores = match n.floats("prob_a").unwrap_or(&[]) {
        [] if classes == 2 => scores::paired(cx, sums, transform, transform != Transform::None)?,
        [] => transform.of_rows(cx, sums)?,
        _ => {
            let probabilities = probabilities(cx, n, sums, classes)?;
            transform.of_rows(cx, probabilities)?
        }
    };
    Ok(vec![label.into(), scores.into()])
}

/// The numbers of support vectors of the classes; `None` if there are none at all.
fn vectors_per_class(n: &Node, classes: usize) -> Result<Option<Vec<usize>>> {
    let counts = n.ints("vectors_per_class").unwrap_or(&[]);
    let count = |&count: &i64| usize::try_from(count).ok();
    let vectors = counts.iter().map(count).collect::<Option<Vec<usize>>>();
    let vectors = vectors.ok_or_else(|| wrong("a number of vectors_per_class is negative"))?;
    let total = vectors.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
    match total.ok_or_else(|| wrong("vectors_per_class are too many"))? {
        0 => Ok(None),
        _ if vectors.len() != classes => {
            Err(wrong(format!("it has {} vectors_per_class for {classes} classes", vectors.len())))
        }
        _ => Ok(Some(vectors)),
    }
}

/// Pairs of classes, the first below the second, in the order of the model.
fn pairs(classes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..classes).flat_map(move |i| (i + 1..classes).map(move |j| (i, j)))
}

/// The decisions between the classes of each pair: above zero for the first. Each class has coefficients of its vectors for each
/// other class.
fn pair_sums(cx: &mut Cx, n: &Node, values: Output, vectors: &[usize]) -> Result<Output> {
    let (classes, total) = (vectors.len(), vectors.iter().sum::<usize>());
    let count = total.checked_mul(classes - 1).ok_or_else(|| wrong("vectors_per_class are too many"))?;
    let coefficients = numbers(n, "coefficients", count)?;
    let rho = numbers(n, "rho", classes * (classes - 1) / 2)?;
    let (mut parts, mut places, mut begin, mut columns) = (Vec::new(), Vec::new(), 0, 0);
    for &own in vectors {
        places.push((own > 0).then_some(columns));
        if own > 0 {
            let rows = coefficients.chunks(total).flat_map(|row| &row[begin..begin + own]).copied().collect();
            let weights = Tensor::vector(rows).reshaped(Shape::from([classes - 1, own]))?;
            let of_class = cx.slice(values, 1, (begin as i64).into(), Some(((begin + own) as i64).into()))?;
            parts.push(op!(cx.em, "MatMul", of_class, weights; "transpose_b" => true)?);
            columns += classes - 1;
        }
        begin += own;
    }
    // A class without vectors takes the column of zeros.
    if places.contains(&None) {
        parts.push(op!(cx.em, "ZerosLike", parts[0])?);
    }
    let all = cx.concat(&parts, 1)?;
    let column = |class: usize, at: usize| places[class].map_or(columns, |first| first + at) as i64;
    let first: Vec<i64> = pairs(classes).map(|(i, j)| column(i, j - 1)).collect();
    let second: Vec<i64> = pairs(classes).map(|(i, j)| column(j, i)).collect();
    let (first, second) = (op!(cx.em, "GatherV2", all, first, 1i64)?, op!(cx.em, "GatherV2", all, second, 1i64)?);
    let sums = op!(cx.em, "AddV2", first, second)?;
    op!(cx.em, "AddV2", sums, Tensor::vector(rho))
}

/// Numbers from 0 to 1 of pairs as a matrix for each row: of the first class against the second, and what is left of 1 the other
/// way around. The diagonal is 0.
fn of_pairs(cx: &mut Cx, x: Output, classes: usize) -> Result<Output> {
    let count = classes * (classes - 1) / 2;
    let mut places = vec![2 * count as i64; classes * classes];
    for (place, (i, j)) in pairs(classes).enumerate() {
        places[i * classes + j] = place as i64;
        places[j * classes + i] = (count + place) as i64;
    }
    let less = op!(cx.em, "Neg", x)?;
    let rest = op!(cx.em, "AddV2", less, 1.0)?;
    let zeros = op!(cx.em, "ZerosLike", x)?;
    let all = cx.concat(&[x, rest, zeros], 1)?;
    let all = op!(cx.em, "GatherV2", all, places, 1i64)?;
    op!(cx.em, "Reshape", all, [-1, classes as i64, classes as i64])
}

/// The probabilities of the classes from the decisions of pairs: those of the pairs by Platt's sigmoid, coupled by the second
/// method of Wu, Lin and Weng (2004), with the bounds of libsvm.
fn probabilities(cx: &mut Cx, n: &Node, sums: Output, classes: usize) -> Result<Output> {
    if classes > MOST_COUPLED {
        return Err(unsupported(format!("unsupported: probabilities of more than {MOST_COUPLED} classes")));
    }
    let count = classes * (classes - 1) / 2;
    let list = |name: &str| -> Result<Tensor> {
        Ok(Tensor::vector(numbers(n, name, count)?.into_iter().map(|x| x as f32).collect::<Vec<_>>()))
    };
    let scaled = op!(cx.em, "Mul", sums, list("prob_a")?)?;
    let logits = op!(cx.em, "AddV2", scaled, list("prob_b")?)?;
    let logits = op!(cx.em, "Neg", logits)?;
    let own = op!(cx.em, "Sigmoid", logits)?;
    let own = op!(cx.em, "Maximum", own, LEAST)?;
    let own = op!(cx.em, "Minimum", own, 1.0 - LEAST)?;
    let r = of_pairs(cx, own, classes)?;
    // Q has -r(j,i) r(i,j) beside the diagonal, and on it the sum of r(j,i)² over j.
    let squares = op!(cx.em, "Square", r)?;
    let diagonal = cx.reduce("Sum", squares, &[1], false)?;
    let turned = cx.transpose(r, &[0, 2, 1])?;
    let products = op!(cx.em, "Mul", r, turned)?;
    let on_diagonal = op!(cx.em, "MatrixDiag", diagonal)?;
    let q = op!(cx.em, "Sub", on_diagonal, products)?;
    // All begin alike.
    let start = op!(cx.em, "OnesLike", diagonal)?;
    let start = op!(cx.em, "RealDiv", start, classes as f64)?;
    let zero = cx.em.constant(Tensor::scalar(0i32))?;
    let first = cx.slice(start, 1, 0i64.into(), Some(1i64.into()))?;
    let is_open = op!(cx.em, "Greater", first, 0.0)?;
    let mut cond = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let is_any = child.reduce("Any", params[2], &[0, 1], false)?;
        let is_early = op!(child.em, "Less", params[0], MOST_ITERATIONS)?;
        Ok(vec![op!(child.em, "LogicalAnd", is_any, is_early)?])
    };
    let ends = flow::repeat(cx, &[zero, start, is_open], &mut cond, &mut |child, params| {
        let q = child.outer_tensor(q)?;
        let diagonal = child.outer_tensor(diagonal)?;
        let (p, is_open) = coupled(child, (q, diagonal), params[1], params[2], classes)?;
        Ok(vec![op!(child.em, "AddV2", params[0], 1i32)?, p, is_open])
    })?;
    Ok(ends[1])
}

/// An iteration of the coupling, of the rows that are not near their end: the probabilities, and which rows were not.
fn coupled(
    cx: &mut Cx,
    (q, diagonal): (Output, Output),
    p: Output,
    is_open: Output,
    classes: usize,
) -> Result<(Output, Output)> {
    let column = op!(cx.em, "ExpandDims", p, 2i64)?;
    let qp = op!(cx.em, "BatchMatMulV2", q, column)?;
    let mut qp = op!(cx.em, "Squeeze", qp; "squeeze_dims" => vec![2i64])?;
    let parts = op!(cx.em, "Mul", p, qp)?;
    let mut pqp = cx.reduce("Sum", parts, &[1], true)?;
    let off = op!(cx.em, "Sub", qp, pqp)?;
    let off = op!(cx.em, "Abs", off)?;
    let error = cx.reduce("Max", off, &[1], true)?;
    let is_far = op!(cx.em, "GreaterEqual", error, 0.005 / classes as f64)?;
    let is_open = op!(cx.em, "LogicalAnd", is_open, is_far)?;
    let mut p = p;
    for i in 0..classes as i64 {
        let own = |cx: &mut Cx, of: Output| cx.slice(of, 1, i.into(), Some((i + 1).into()));
        let (qp_own, q_own) = (own(cx, qp)?, own(cx, diagonal)?);
        let change = op!(cx.em, "Sub", pqp, qp_own)?;
        let change = op!(cx.em, "RealDiv", change, q_own)?;
        let zeros = op!(cx.em, "ZerosLike", change)?;
        let change = op!(cx.em, "SelectV2", is_open, change, zeros)?;
        let scale = op!(cx.em, "AddV2", change, 1.0)?;
        // p q p with the change.
        let steep = op!(cx.em, "Mul", change, q_own)?;
        let twice = op!(cx.em, "Mul", qp_own, 2.0)?;
        let steep = op!(cx.em, "AddV2", steep, twice)?;
        let more = op!(cx.em, "Mul", change, steep)?;
        pqp = op!(cx.em, "AddV2", pqp, more)?;
        pqp = op!(cx.em, "RealDiv", pqp, scale)?;
        pqp = op!(cx.em, "RealDiv", pqp, scale)?;
        let row = op!(cx.em, "GatherV2", q, i, 1i64)?;
        let more = op!(cx.em, "Mul", row, change)?;
        qp = op!(cx.em, "AddV2", qp, more)?;
        qp = op!(cx.em, "RealDiv", qp, scale)?;
        let mut place = vec![0f32; classes];
        place[i as usize] = 1.0;
        let more = op!(cx.em, "Mul", change, Tensor::vector(place))?;
        p = op!(cx.em, "AddV2", p, more)?;
        p = op!(cx.em, "RealDiv", p, scale)?;
    }
    Ok((p, is_open))
}
