//! Softmax along the last dimension, its logarithm, and the cross entropies based on it.
//!
//! Every row is shifted by its maximum first, so that no exponential overflows.

use meshtf_loops::turn::paced;
use meshtf_loops::vector;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Float, Shape, Tensor, with_float};
use smallvec::smallvec;

use super::super::call::{input_dtype, kernel as call, owned, take};
use super::super::real::{exp, ln, widened, with_real};
use super::super::{HostKernel, Outputs, Registry};

pub(super) fn register(ops: &mut Registry) {
    // Half floats are rounded once in this op and at every step in the other ops, as in TensorFlow.
    ops.insert("Softmax", |node| match input_dtype(node, 0)? {
        DType::F32 => Ok(Some(rows(vector::softmax))),
        dtype => Ok(with_real!(dtype, T => rows(each(softmax::<T>))).map(|kernel| widened(node, kernel))),
    });
    ops.insert("LogSoftmax", |node| match input_dtype(node, 0)? {
        DType::F32 => Ok(Some(rows(vector::log_softmax))),
        dtype => Ok(with_float!(dtype, T => rows(each(log_softmax::<T>)))),
    });
    ops.insert("SoftmaxCrossEntropyWithLogits", |node| match input_dtype(node, 0)? {
        DType::F32 => Ok(Some(Box::new(|inputs| cross_entropy(take(inputs)?, vector::cross_entropy)) as HostKernel)),
        dtype => Ok(with_float!(dtype, T => {
            Box::new(|inputs| cross_entropy(take(inputs)?, losses::<T>)) as HostKernel
        })),
    });
    ops.insert("SparseSoftmaxCrossEntropyWithLogits", |node| match input_dtype(node, 0)? {
        DType::F32 => {
            Ok(Some(Box::new(|inputs| sparse_cross_entropy(take(inputs)?, vector::sparse_cross_entropy)) as HostKernel))
        }
        dtype => Ok(with_float!(dtype, T => {
            Box::new(|inputs| sparse_cross_entropy(take(inputs)?, sparse_losses::<T>)) as HostKernel
        })),
    });
}

/// A kernel that changes every row (along the last dimension) independently; `f` receives all rows and the length of a
/// row.
fn rows<T: Float>(f: impl Fn(&mut [T], usize) + Send + 'static) -> HostKernel {
    call(move |[mut logits]: [Tensor; 1]| {
        let Some(&classes) = logits.dims().last() else {
            return Err(Failure::invalid(format!("logits must have >= 1 dimension, got {}", logits.shape())));
        };
        if classes > 0 {
            f(logits.slice_mut::<T>()?, classes);
        }
        Ok(logits)
    })
}

/// A function of all rows, from a function of one row.
#[inline]
fn each<T: Float>(f: fn(&mut [T])) -> impl Fn(&mut [T], usize) {
    move |all, classes| paced(all.chunks_exact_mut(classes), 8 * classes).for_each(f)
}

/// Subtracts the row's maximum from it.
#[inline]
fn shift<T: Float>(row: &mut [T]) {
    let max = row.iter().fold(T::LOWEST, |max, &x| if x > max { x } else { max });
    row.iter_mut().for_each(|x| *x = *x - max);
}

#[inline]
fn sum<T: Float>(row: impl Iterator<Item = T>) -> T {
    row.fold(T::ZERO, |sum, x| sum + x)
}

#[inline]
fn softmax<T: Float>(row: &mut [T]) {
    shift(row);
    row.iter_mut().for_each(|x| *x = exp(*x));
    let sum = sum(row.iter().copied());
    row.iter_mut().for_each(|x| *x = *x / sum);
}

#[inline]
fn log_softmax<T: Float>(row: &mut [T]) {
    shift(row);
    let log_sum = ln(sum(row.iter().map(|&x| exp(x))));
    row.iter_mut().for_each(|x| *x = *x - log_sum);
}

/// `losses` receives the rows, the length of a row, the labels of each row, and a slot for the loss of each row. It
/// replaces the rows by the gradient.
fn cross_entropy<T: Float>(
    [logits, labels]: [Tensor; 2],
    losses: fn(&mut [T], usize, &[T], &mut [T]),
) -> Result<Outputs> {
    let shape = logits.shape().broadcast(labels.shape()).map_err(|_| {
        Failure::invalid(format!(
            "logits and labels must be broadcastable: logits_size={} labels_size={}",
            logits.shape(),
            labels.shape()
        ))
    })?;
    let &[batch, classes] = shape.dims() else {
        return Err(Failure::invalid(format!(
            "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional, got {} and {}",
            logits.shape(),
            labels.shape()
        )));
    };
    let mut backprop = owned(rows_of::<T>(logits, &shape)?)?;
    let labels = rows_of::<T>(labels, &shape)?;
    let mut loss = vec![T::ZERO; batch];
    if classes > 0 {
        losses(backprop.slice_mut()?, classes, labels.slice()?, &mut loss);
    }
    Ok(smallvec![Tensor::from_vec([batch], loss), backprop])
}

fn losses<T: Float>(all: &mut [T], classes: usize, labels: &[T], losses: &mut [T]) {
    let rows = all.chunks_exact_mut(classes).zip(labels.chunks_exact(classes)).zip(losses);
    for ((row, labels), loss) in paced(rows, 16 * classes) {
        shift(row);
        let total = sum(row.iter().map(|&x| exp(x)));
        let log_total = ln(total);
        *loss = sum(row.iter().zip(labels).map(|(&x, &label)| {
            // A class with label 0 adds nothing, even if its logit is minus infinity.
            if label == T::ZERO { T::ZERO } else { label * (log_total - x) }
        }));
        row.iter_mut().zip(labels).for_each(|(x, &label)| *x = exp(*x) / total - label);
    }
}

/// The tensor broadcast to a matrix; unchanged if it has that shape.
fn rows_of<T: Float>(tensor: Tensor, shape: &Shape) -> Result<Tensor> {
    let &[rows, columns] = shape.dims() else { return Ok(tensor) };
    if tensor.shape() == shape {
        return Ok(tensor);
    }
    let from = tensor.slice::<T>()?;
    shape.checked_elements(T::DTYPE)?;
    // A scalar or vector is a matrix with one row.
    let size = |axis_from_end: usize| tensor.dims().iter().rev().nth(axis_from_end).copied().unwrap_or(1);
    let (own_rows, own_columns) = (size(1), size(0));
    let at = |row: usize, column: usize| {
        let row = if own_rows == 1 { 0 } else { row };
        from[row * own_columns + if own_columns == 1 { 0 } else { column }]
    };
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| at(r, c)).collect();
    Ok(Tensor::from_vec(shape.clone(), all))
}

/// `losses` receives the rows, the length of a row, and a label and a slot for the loss of each. It replaces the rows by
/// the gradient.
fn sparse_cross_entropy<T: Float>(
    [mut logits, labels]: [Tensor; 2],
    losses: fn(&mut [T], usize, &[i64], &mut [T]),
) -> Result<Outputs> {
    let &[batch, classes] = logits.dims() else {
        return Err(Failure::invalid(format!("logits must be 2-D, but got shape {}", logits.shape())));
    };
    if labels.rank() != 1 {
        return Err(Failure::invalid(format!("labels must be 1-D, but got shape {}", labels.shape())));
    }
    if labels.len() != batch {
        return Err(Failure::invalid(format!(
            "logits and labels must have the same first dimension, got logits shape {} and labels shape {}",
            logits.shape(),
            labels.shape()
        )));
    }
    if classes == 0 {
        return Err(Failure::invalid(format!("Must have at least one class, but got logits shape {}", logits.shape())));
    }
    let labels = labels.to_i64s()?;
    if let Some(bad) = labels.iter().find(|&&label| !(0..classes as i64).contains(&label)) {
        let shown: Vec<_> = labels.iter().take(MAX_LABELS_SHOWN).map(i64::to_string).collect();
        return Err(Failure::invalid(format!(
            "Received a label value of {bad} which is outside the valid range of [0, {classes}).  Label values: {}{}",
            shown.join(" "),
            if labels.len() > shown.len() { " ..." } else { "" }
        )));
    }
    let mut loss = vec![T::ZERO; batch];
    losses(logits.slice_mut::<T>()?, classes, &labels, &mut loss);
    Ok(smallvec![Tensor::from_vec([batch], loss), logits])
}

fn sparse_losses<T: Float>(all: &mut [T], classes: usize, labels: &[i64], losses: &mut [T]) {
    let rows = all.chunks_exact_mut(classes).zip(labels).zip(losses);
    for ((row, &label), loss) in paced(rows, 16 * classes) {
        shift(row);
        let total = sum(row.iter().map(|&x| exp(x)));
        let label = label as usize;
        *loss = ln(total) - row[label];
        row.iter_mut().for_each(|x| *x = exp(*x) / total);
        row[label] = row[label] - T::ONE;
    }
}

/// The maximum number of labels in the message about an invalid one.
const MAX_LABELS_SHOWN: usize = 32;
