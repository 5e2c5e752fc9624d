//! Einsum: sums of products over named axes, as transposes, reshapes and one batched matrix product.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Shape, Tensor, with_ring};

use super::super::array::View;
use super::super::call::{self, no_kernel, one};
use super::super::{HostKernel, Inputs, KernelNode};
use super::matmul;

/// The axes of a tensor by name. Broadcast axes (an ellipsis) are named by digits, counted from the last.
type Labels = Vec<char>;

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    if !node.inputs.iter().all(|dtype| dtype.is_differentiable() || dtype.is_integer()) {
        return no_kernel(node);
    }
    let equation = Equation::parse(node.attrs.str("equation")?)?;
    if equation.inputs.len() != node.inputs.len() || node.inputs.is_empty() || node.inputs.len() > 2 {
        return Err(Failure::invalid(format!(
            "Expected {} inputs in equation {:?} but got: {}",
            equation.inputs.len(),
            equation.text,
            node.inputs.len()
        )));
    }
    Ok(Some(Box::new(move |inputs: Inputs| equation.apply(inputs).map(one))))
}

struct Equation {
    text: String,
    inputs: Vec<String>,
    output: String,
}

impl Equation {
    fn parse(text: &str) -> Result<Equation> {
        let wrong = |why: &str| Failure::invalid(format!("Einsum equation {text:?}: {why}"));
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) =
            compact.split_once("->").ok_or_else(|| wrong("expected '->' between inputs and output"))?;
        let check = |labels: &str| -> Result<String> {
            let plain = labels.replacen("...", "", 1);
            match plain.chars().find(|c| !c.is_ascii_alphabetic()) {
                Some(c) => Err(wrong(&format!("a label must be a letter, got {c:?}"))),
                None => Ok(labels.to_owned()),
            }
        };
        let equation = Equation {
            text: text.to_owned(),
            inputs: inputs.split(',').map(check).collect::<Result<_>>()?,
            output: check(output)?,
        };
        for label in output.chars().filter(|c| *c != '.') {
            if !equation.inputs.iter().any(|input| input.contains(label)) {
                return Err(wrong(&format!("label {label:?} of the output is in no input")));
            }
        }
        Ok(equation)
    }

    fn apply(&self, inputs: Inputs) -> Result<Tensor> {
        let mut operands = Vec::with_capacity(2);
        let mut broadcast = Shape::scalar();
        for (labels, tensor) in self.inputs.iter().zip(inputs) {
            let labels = self.expand(labels, tensor.rank())?;
            let extra: Shape = labels
                .iter()
                .zip(tensor.dims())
                .filter(|(label, _)| label.is_ascii_digit())
                .map(|(_, &size)| size)
                .collect();
            broadcast = broadcast.broadcast(&extra)?;
            operands.push((labels, tensor));
        }
        let output = self.expand(&self.output, broadcast.rank() + self.output.replace("...", "").len())?;
        let output = if self.output.contains("...") { output } else { self.output.chars().collect() };
        let mut sizes: Vec<(char, usize)> = Vec::new();
        for (labels, tensor) in &operands {
            for (&label, &size) in labels.iter().zip(tensor.dims()) {
                match sizes.iter_mut().find(|(known, _)| *known == label) {
                    None => sizes.push((label, size)),
                    Some((_, known)) if *known == size => {}
                    Some((_, known)) if label.is_ascii_digit() && *known == 1 => *known = size,
                    Some(_) if label.is_ascii_digit() && size == 1 => {}
                    Some((_, known)) => {
                        return Err(Failure::invalid(format!(
                            "Expected dimension {known} at axis {label:?} of equation {:?} but got dimension {size}",
                            self.text
                        )));
                    }
                }
            }
        }
        let size = |label: char| sizes.iter().find(|(known, _)| *known == label).map_or(1, |(_, size)| *size);
        let mut distinct: Labels = Vec::new();
        for &label in &output {
            if !distinct.contains(&label) {
                distinct.push(label);
            }
        }
        let mut operands = operands.into_iter();
        let (left_labels, left) = operands.next().ok_or_else(|| Failure::invalid("Einsum takes at least one input"))?;
        let Some((right_labels, right)) = operands.next() else {
            // A single operand is multiplied by one, which sums over the axes that the output lacks.
            let unit = super::super::math::cast(Tensor::scalar(1i32), left.dtype())?;
            return inflated(&distinct, product(&left_labels, left, &[], unit, &distinct, size)?, &output);
        };
        inflated(&distinct, product(&left_labels, left, &right_labels, right, &distinct, size)?, &output)
    }

    /// The labels with the ellipsis replaced by a digit for each remaining axis of a tensor of `rank`.
    fn expand(&self, labels: &str, rank: usize) -> Result<Labels> {
        let stated = labels.replace("...", "").len();
        let Some((before, after)) = labels.split_once("...") else {
            return if stated == rank || labels == self.output {
                Ok(labels.chars().collect())
            } else {
                Err(Failure::invalid(format!(
                    "Expected input of rank {stated} for {labels:?} of equation {:?}, got rank {rank}",
                    self.text
                )))
            };
        };
        let extra = rank.checked_sub(stated).filter(|&extra| extra < 10).ok_or_else(|| {
            Failure::invalid(format!("{labels:?} of equation {:?} does not fit a tensor of rank {rank}", self.text))
        })?;
        Ok(before
            .chars()
            .chain((0..extra as u32).rev().filter_map(|i| char::from_digit(i, 10)))
            .chain(after.chars())
            .collect())
    }
}

/// Brings the operands to [batch, own, contracted] and [batch, contracted, own], multiplies, and orders the axes.
fn product(
    left_labels: &[char],
    left: Tensor,
    right_labels: &[char],
    right: Tensor,
    output: &[char],
    size: impl Fn(char) -> usize,
) -> Result<Tensor> {
    let mut all: Labels = left_labels.iter().chain(right_labels).copied().collect();
    all.sort_unstable();
    all.dedup();
    let of_kind = |in_left: bool, in_right: bool, in_output: bool| -> Labels {
        all.iter()
            .copied()
            .filter(|label| {
                left_labels.contains(label) == in_left
                    && right_labels.contains(label) == in_right
                    && output.contains(label) == in_output
            })
            .collect()
    };
    let (batch, rows, columns) = (of_kind(true, true, true), of_kind(true, false, true), of_kind(false, true, true));
    let contracted = of_kind(true, true, false);
    let (left_sum, right_sum) = (of_kind(true, false, false), of_kind(false, true, false));
    let count = |labels: &[char]| labels.iter().fold(1usize, |n, &label| n.saturating_mul(size(label)));
    // An axis that only one operand has and the output lacks is summed in that operand first, by a product with ones.
    let left = arranged(left_labels, left, &[&batch, &rows, &contracted, &left_sum], &size)?;
    let left = summed(left, [count(&batch), count(&rows), count(&contracted)], count(&left_sum))?;
    let right = arranged(right_labels, right, &[&batch, &contracted, &columns, &right_sum], &size)?;
    let right = summed(right, [count(&batch), count(&contracted), count(&columns)], count(&right_sum))?;
    let made: Labels = [batch, rows, columns].concat();
    let dims: Shape = made.iter().map(|&label| size(label)).collect();
    let made_tensor = matmul(&left, &right, false, false)?.reshaped(dims)?;
    arranged(&made, made_tensor, &[output], &size)
}

/// The tensor with its axes in the order of `groups`; repeated axes become their diagonal, sizes of 1 are broadcast.
fn arranged(labels: &[char], tensor: Tensor, groups: &[&[char]], size: impl Fn(char) -> usize) -> Result<Tensor> {
    let all = View::all(tensor.shape());
    let order: Labels = groups.concat();
    let dims = order
        .iter()
        .map(|&label| {
            let own = labels.iter().zip(&all.dims).filter(|(own, _)| **own == label);
            // A step along a diagonal moves along each of its axes.
            let stride = own.map(|(_, &(own_size, stride))| if own_size == 1 { 0 } else { stride }).sum();
            (size(label), stride)
        })
        .collect();
    let shape = order.iter().map(|&label| size(label)).collect();
    View { offset: 0, dims }.read(&tensor, shape)
}

/// The tensor on the diagonal of each axis repeated in `output`, zero elsewhere: the gradient of taking the diagonal.
fn inflated(labels: &[char], tensor: Tensor, output: &[char]) -> Result<Tensor> {
    if labels.len() == output.len() {
        return Ok(tensor);
    }
    let size = |label: &char| labels.iter().position(|own| own == label).map_or(1, |axis| tensor.dims()[axis]);
    let shape: Shape = output.iter().map(size).collect();
    shape.checked_elements(tensor.dtype())?;
    let strides = shape.strides();
    let steps: Vec<usize> = labels
        .iter()
        .map(|label| output.iter().zip(&strides).filter(|(own, _)| *own == label).map(|(_, stride)| stride).sum())
        .collect();
    let own = tensor.shape().strides();
    let place = |i: usize| -> usize {
        own.iter().zip(tensor.dims()).zip(&steps).map(|((stride, size), step)| i / stride % size * step).sum()
    };
    let mut inflated = Tensor::zeros(tensor.dtype(), shape)?;
    with_ring!(tensor.dtype(), T => {
        let to = inflated.slice_mut::<T>()?;
        for (i, &x) in tensor.slice::<T>()?.iter().enumerate() {
            to[place(i)] = x;
        }
    });
    Ok(inflated)
}

/// The tensor in three dimensions, with its innermost `extra` elements summed.
fn summed(tensor: Tensor, dims: [usize; 3], extra: usize) -> Result<Tensor> {
    if extra == 1 {
        return tensor.reshaped(dims);
    }
    let ones = super::super::math::cast(Tensor::scalar(1i32), tensor.dtype())?;
    let ones = View { offset: 0, dims: vec![(extra, 0)] }.read(&ones, [extra, 1].into())?;
    let rows = call::product(&dims);
    matmul(&tensor.reshaped([rows, extra])?, &ones, false, false)?.reshaped(dims)
}
