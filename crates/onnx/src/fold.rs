//! Ops on small constants, computed while a model is read: models compute shapes, scales and conditions from them, and a lowering
//! needs their values.

use meshtf_graph::Attr;
use meshtf_tensor::{DType, Data, Numeric, Shape, Tensor, with_float, with_integer, with_type};

/// The value of an op if all of its inputs are constants and it is one of those that are computed here.
pub fn fold(op: &str, values: &[&Tensor], attrs: &[(&str, Attr)]) -> Option<Tensor> {
    let attr = |name: &str| attrs.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
    let first = values[0];
    match op {
        "Identity" => Some(first.clone()),
        "Reshape" => reshape(first, &values[1].to_i64s().ok()?),
        "ExpandDims" => {
            let mut dims = first.dims().to_vec();
            let axis = crate::axis(values[1].to_i64().ok()?, dims.len() + 1)?;
            dims.insert(axis, 1);
            first.clone().reshaped(dims).ok()
        }
        "Squeeze" => match attr("squeeze_dims") {
            Some(Attr::Ints(axes)) if !axes.is_empty() => {
                let keep = |at: &usize| !axes.iter().any(|&axis| crate::axis(axis, first.rank()) == Some(*at));
                let dims: Vec<usize> = (0..first.rank()).filter(keep).map(|at| first.dims()[at]).collect();
                first.clone().reshaped(dims).ok()
            }
            _ => None,
        },
        "Cast" => match attr("DstT") {
            Some(Attr::Type(to)) => cast(first, *to),
            _ => None,
        },
        "ConcatV2" => {
            let (axis, parts) = values.split_last()?;
            let is_vector = |part: &&Tensor| part.rank() == 1;
            (parts.iter().all(is_vector) && axis.to_i64().ok()? == 0).then(|| joined(parts))?
        }
        "Pack" => {
            let is_first = matches!(attr("axis"), None | Some(Attr::Int(0)));
            let is_scalar = |part: &&Tensor| part.rank() == 0;
            (is_first && values.iter().all(is_scalar)).then(|| joined(values))?
        }
        "GatherV2"
            if first.rank() == 1 && values[2].to_i64().ok()? == 0 && !attrs.iter().any(|a| a.0 == "batch_dims") =>
        {
            let at: Option<Vec<usize>> =
                values[1].to_i64s().ok()?.into_iter().map(|at| crate::axis(at, first.len())).collect();
            taken(first, &at?, values[1].shape().clone())
        }
        "Floor" | "Ceil" | "Sqrt" | "Neg" | "Rint" | "Abs" | "Reciprocal" | "Exp" | "Log" => unary(op, first),
        "LogicalNot" => {
            let bools = first.slice::<bool>().ok()?;
            Tensor::new(first.shape().clone(), Data::Bool(bools.iter().map(|value| !value).collect())).ok()
        }
        "AddV2" | "Sub" | "Mul" | "RealDiv" | "FloorDiv" | "FloorMod" | "Maximum" | "Minimum" | "Pow" => {
            arithmetic(op, first, values[1])
        }
        "Equal" | "NotEqual" | "Less" | "LessEqual" | "Greater" | "GreaterEqual" | "LogicalAnd" | "LogicalOr" => {
            compared(op, first, values[1])
        }
        _ => None,
    }
}

fn reshape(value: &Tensor, sizes: &[i64]) -> Option<Tensor> {
    let rest: i64 = sizes.iter().filter(|&&size| size != -1).product();
    let open = if rest > 0 { value.len() as i64 / rest } else { 0 };
    let sizes: Vec<i64> = sizes.iter().map(|&size| if size == -1 { open } else { size }).collect();
    value.clone().reshaped(Shape::from_i64s(&sizes).ok()?).ok()
}

/// A constant in another dtype, if the values are numbers or bools and the conversion is defined.
pub fn cast(value: &Tensor, to: DType) -> Option<Tensor> {
    if value.dtype() == to {
        return Some(value.clone());
    }
    let is_whole = |dtype: DType| dtype.is_integer() || dtype == DType::Bool;
    let data = if is_whole(value.dtype()) && to.is_integer() {
        let whole: Vec<i64> = match value.data() {
            Data::Bool(values) => values.iter().map(|&value| value.into()).collect(),
            _ => {
                with_integer!(value.dtype(), T => value.slice::<T>().ok()?.iter().map(|value| value.to_i64()).collect())?
            }
        };
        with_integer!(to, T => <T as meshtf_tensor::Element>::into_data(whole.iter().map(|&n| <T as Numeric>::from_i64(n)).collect()))?
    } else {
        let numbers: Vec<f64> = value.numbers()?.collect();
        if to == DType::Bool {
            Data::Bool(numbers.iter().map(|&n| n != 0.0).collect())
        } else if to.is_float() {
            with_float!(to, T => <T as meshtf_tensor::Element>::into_data(numbers.iter().map(|&n| <T as Numeric>::from_f64(n)).collect()))?
        } else {
            // Only what every conversion agrees on.
            let limit = 2f64.powi(31);
            if !matches!(to, DType::I32 | DType::I64) || numbers.iter().any(|n| n.is_nan() || n.abs() >= limit) {
                return None;
            }
            with_integer!(to, T => <T as meshtf_tensor::Element>::into_data(numbers.iter().map(|&n| <T as Numeric>::from_f64(n)).collect()))?
        }
    };
    Tensor::new(value.shape().clone(), data).ok()
}

fn joined(parts: &[&Tensor]) -> Option<Tensor> {
    let dtype = parts.first()?.dtype();
    with_type!(dtype, T => {
        let mut all = Vec::new();
        for part in parts {
            all.extend_from_slice(part.slice::<T>().ok()?);
        }
        Tensor::vector(all)
    })
}

fn taken(value: &Tensor, at: &[usize], shape: Shape) -> Option<Tensor> {
    with_type!(value.dtype(), T => {
        let from = value.slice::<T>().ok()?;
        Tensor::from_vec(shape, at.iter().map(|&at| &from[at]).cloned().collect::<Vec<T>>())
    })
}

fn unary(op: &str, value: &Tensor) -> Option<Tensor> {
    let apply = |x: f64| match op {
        "Floor" => x.floor(),
        "Ceil" => x.ceil(),
        "Sqrt" => x.sqrt(),
        "Neg" => -x,
        "Abs" => x.abs(),
        "Reciprocal" => 1.0 / x,
        "Exp" => x.exp(),
        "Log" => x.ln(),
        _ => x.round_ties_even(),
    };
    if !value.dtype().is_float() {
        return None;
    }
    let numbers: Vec<f64> = value.numbers()?.map(apply).collect();
    let data = with_float!(value.dtype(), T => <T as meshtf_tensor::Element>::into_data(numbers.iter().map(|&n| <T as Numeric>::from_f64(n)).collect()))?;
    Tensor::new(value.shape().clone(), data).ok()
}

/// The pairs of elements of two operands, of which one may be a single element; the shape of the result.
fn pairs<T: Copy>(a: &[T], b: &[T], left: &Tensor, right: &Tensor) -> Option<(Vec<(T, T)>, Shape)> {
    let shape = left.shape().broadcast(right.shape()).ok()?;
    let n = shape.elements()?;
    if (a.len() != n && a.len() != 1) || (b.len() != n && b.len() != 1) {
        return None;
    }
    let at = |of: &[T], i: usize| if of.len() == 1 { of[0] } else { of[i] };
    Some(((0..n).map(|i| (at(a, i), at(b, i))).collect(), shape))
}

fn arithmetic(op: &str, left: &Tensor, right: &Tensor) -> Option<Tensor> {
    let dtype = left.dtype();
    if dtype != right.dtype() {
        return None;
    }
    if dtype.is_float() {
        let (a, b): (Vec<f64>, Vec<f64>) = (left.numbers()?.collect(), right.numbers()?.collect());
        let (pairs, shape) = pairs(&a, &b, left, right)?;
        let apply = |(x, y): (f64, f64)| {
            Some(match op {
                "AddV2" => x + y,
                "Sub" => x - y,
                "Mul" => x * y,
                "RealDiv" => x / y,
                "Maximum" if !x.is_nan() && !y.is_nan() => x.max(y),
                "Minimum" if !x.is_nan() && !y.is_nan() => x.min(y),
                _ => return None,
            })
        };
        let numbers: Vec<f64> = pairs.into_iter().map(apply).collect::<Option<_>>()?;
        let data = with_float!(dtype, T => <T as meshtf_tensor::Element>::into_data(numbers.iter().map(|&n| <T as Numeric>::from_f64(n)).collect()))?;
        return Tensor::new(shape, data).ok();
    }
    let (a, b) = (left.to_i64s().ok()?, right.to_i64s().ok()?);
    let (pairs, shape) = pairs(&a, &b, left, right)?;
    let apply = |(x, y): (i64, i64)| match op {
        "AddV2" => x.checked_add(y),
        "Sub" => x.checked_sub(y),
        "Mul" => x.checked_mul(y),
        "FloorDiv" if y != 0 => x.checked_div_euclid(y).map(|q| if y < 0 && x.rem_euclid(y) != 0 { q - 1 } else { q }),
        "FloorMod" if y > 0 => x.checked_rem_euclid(y),
        "Maximum" => Some(x.max(y)),
        "Minimum" => Some(x.min(y)),
        _ => None,
    };
    let numbers: Vec<i64> = pairs.into_iter().map(apply).collect::<Option<_>>()?;
    cast(&Tensor::new(shape, Data::I64(numbers)).ok()?, dtype)
}

fn compared(op: &str, left: &Tensor, right: &Tensor) -> Option<Tensor> {
    let (a, b): (Vec<f64>, Vec<f64>) = (left.numbers()?.collect(), right.numbers()?.collect());
    let (pairs, shape) = pairs(&a, &b, left, right)?;
    let apply = |(x, y): (f64, f64)| match op {
        "Equal" => x == y,
        "NotEqual" => x != y,
        "Less" => x < y,
        "LessEqual" => x <= y,
        "Greater" => x > y,
        "GreaterEqual" => x >= y,
        "LogicalAnd" => x != 0.0 && y != 0.0,
        _ => x != 0.0 || y != 0.0,
    };
    Tensor::new(shape, Data::Bool(pairs.into_iter().map(apply).collect())).ok()
}
