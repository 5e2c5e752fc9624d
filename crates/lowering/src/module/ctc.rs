//! Rules for the loss of connectionist temporal classification.
//!
//! TensorFlow's op takes scores, to which it applies the softmax, the blank as the last class, and labels as a sparse matrix.
//! burn takes the logarithms of probabilities without normalising them, any class as the blank, and returns infinity if there
//! are more labels than steps.

use burn_ir::{CtcLossBackwardOpIr, CtcLossOpIr, TensorIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::pool::floats;
use crate::Lowering;
use crate::compose::{axis, integers, number, sizes};
use crate::values::dtype;

/// The inputs of the loss.
struct Alignment<'a> {
    log_probs: &'a TensorIr,
    targets: &'a TensorIr,
    input_lengths: &'a TensorIr,
    target_lengths: &'a TensorIr,
    blank: usize,
}

/// The loss, and the intermediate results that its gradient needs.
struct Aligned {
    /// Steps, batch and classes.
    dims: [usize; 3],
    /// The logarithms of the probabilities, `[steps, batch, classes]`, in this dtype.
    log_probs: Output,
    work: DType,
    /// `[batch]`.
    loss: Output,
    /// Whether a step counts: `[steps, batch]`.
    counted: Output,
    /// Whether there is no label: `[batch]`.
    unlabelled: Output,
    /// The op's gradient by its scores, whose last class is the blank; `None` if no example can have a label.
    by_scores: Option<Output>,
}

impl Lowering<'_> {
    pub(super) fn ctc_loss(&mut self, op: &CtcLossOpIr) -> Result<()> {
        let CtcLossOpIr { log_probs, targets, input_lengths, target_lengths, blank, out } = op;
        let aligned = self.aligned(&Alignment { log_probs, targets, input_lengths, target_lengths, blank: *blank })?;
        let loss = self.cast(aligned.loss, aligned.work, dtype(out.dtype)?)?;
        self.write(out, loss)
    }

    /// At each step that counts, the probability of each class, minus its probability among all alignments of the labels.
    pub(super) fn ctc_loss_backward(&mut self, op: &CtcLossBackwardOpIr) -> Result<()> {
        let CtcLossBackwardOpIr { log_probs, targets, input_lengths, target_lengths, grad_loss, blank, out } = op;
        let alignment = Alignment { log_probs, targets, input_lengths, target_lengths, blank: *blank };
        let Aligned { dims: [steps, batch, classes], log_probs, work, loss, counted, unlabelled, by_scores } =
            self.aligned(&alignment)?;
        let mut only_blank = vec![0.0; classes];
        only_blank[*blank] = 1.0;
        let only_blank = Input::Value(floats(&only_blank, &[1, 1, classes], work)?);
        let among = match by_scores {
            None => only_blank,
            Some(by_scores) => {
                let by_scores = match alignment.last_blank(classes) {
                    true => by_scores,
                    false => {
                        let back = alignment.classes(classes, classes as i32 - 1);
                        self.node("GatherV2", [by_scores.into(), Input::Value(back), axis(2)?])?
                    }
                };
                let likely = self.node("Softmax", [log_probs.into()])?;
                let among = self.node("Sub", [likely.into(), by_scores.into()])?;
                let unlabelled = self.node("Reshape", [unlabelled.into(), sizes(&[1, batch, 1])?])?;
                self.node("SelectV2", [unlabelled.into(), only_blank, among.into()])?.into()
            }
        };
        let likely = self.node("Exp", [log_probs.into()])?;
        let each = self.node("Sub", [likely.into(), among])?;
        let factor = self.read(grad_loss)?;
        let factor = self.cast(factor, dtype(grad_loss.dtype)?, work)?;
        let factor = self.node("Reshape", [factor.into(), sizes(&[1, batch, 1])?])?;
        let each = self.node("Mul", [each.into(), factor.into()])?;
        let possible = self.node("IsFinite", [loss.into()])?;
        let kept = self.node("LogicalAnd", [counted.into(), possible.into()])?;
        let kept = self.node("Reshape", [kept.into(), sizes(&[steps, batch, 1])?])?;
        let value = self.node("SelectV2", [kept.into(), each.into(), number(0.0, work)?])?;
        let value = self.cast(value, work, dtype(out.dtype)?)?;
        self.write(out, value)
    }

    fn aligned(&mut self, of: &Alignment) -> Result<Aligned> {
        let (&[steps, batch, classes], &[of_batch, most]) = (&of.log_probs.shape[..], &of.targets.shape[..]) else {
            return Err(Failure::invalid("it takes logarithms [steps, batch, classes] and targets [batch, labels]"));
        };
        if of_batch != batch || of.blank >= classes || steps == 0 {
            let (log_probs, targets) = (&of.log_probs.shape[..], &of.targets.shape[..]);
            let why = format!("logarithms {log_probs:?}, targets {targets:?} and the blank {} do not fit", of.blank);
            return Err(Failure::invalid(why));
        }
        let dims = [steps, batch, classes];
        let from = dtype(of.log_probs.dtype)?;
        let work = if from == DType::F64 { DType::F64 } else { DType::F32 };
        let log_probs = self.read(of.log_probs)?;
        let log_probs = self.cast(log_probs, from, work)?;
        let lengths = self.integers_of(of.input_lengths)?;
        // As in burn, the first step always counts.
        let lengths = self.node("Maximum", [lengths.into(), axis(1)?])?;
        let lengths = self.node("Minimum", [lengths.into(), axis(steps)?])?;
        let counted = self.node("Less", [range(steps, &[steps, 1])?, lengths.into()])?;
        let labels = self.integers_of(of.target_lengths)?;
        // Looked up, so that a length beyond the targets fails.
        let labels = self.node("GatherV2", [range(most + 1, &[most + 1])?, labels.into(), axis(0)?])?;
        let unlabelled = self.node("Equal", [labels.into(), axis(0)?])?;
        let blanks = self.node("GatherV2", [log_probs.into(), axis(of.blank)?, axis(2)?])?;
        let blanks = self.summed(blanks, counted, work)?;
        let nothing = self.node("Neg", [blanks.into()])?;
        if most == 0 {
            return Ok(Aligned { dims, log_probs, work, loss: nothing, counted, unlabelled, by_scores: None });
        }
        let scores = match of.last_blank(classes) {
            true => log_probs,
            false => {
                let order = (0..classes).filter(|&class| class != of.blank).chain([of.blank]);
                let order = integers(order, DType::I32)?;
                self.node("GatherV2", [log_probs.into(), Input::Value(order), axis(2)?])?
            }
        };
        let [places, values] = self.sparse_labels(of, [batch, most, classes], labels, unlabelled)?;
        let attrs = [("ignore_longer_outputs_than_inputs", true.into())];
        let loss = self.node_with("CTCLoss", [scores.into(), places.into(), values.into(), lengths.into()], &attrs)?;
        let by_scores = loss.port(1);
        // The sums by which the op has divided the probabilities of each step.
        let sums = self.log_sums(log_probs)?;
        let sums = self.summed(sums, counted, work)?;
        let loss = self.node("Sub", [loss.into(), sums.into()])?;
        let too_many = self.node("Greater", [labels.into(), lengths.into()])?;
        let loss = self.node("SelectV2", [too_many.into(), number(f64::INFINITY, work)?, loss.into()])?;
        let loss = self.node("SelectV2", [unlabelled.into(), nothing.into(), loss.into()])?;
        Ok(Aligned { dims, log_probs, work, loss, counted, unlabelled, by_scores: Some(by_scores) })
    }

    /// The labels that count, and their positions. An example without labels gets one, since the op rejects it otherwise.
    fn sparse_labels(
        &mut self,
        of: &Alignment,
        [batch, most, classes]: [usize; 3],
        labels: Output,
        unlabelled: Output,
    ) -> Result<[Output; 2]> {
        let labels = self.node("Reshape", [labels.into(), sizes(&[batch, 1])?])?;
        let real = self.node("Less", [range(most, &[1, most])?, labels.into()])?;
        let targets = self.integers_of(of.targets)?;
        // Looked up, so that a target that is no class fails; one that is the blank is negative, which the op rejects.
        let targets = self.node("SelectV2", [real.into(), targets.into(), axis(0)?])?;
        let table = Input::Value(of.classes(classes, -1));
        let targets = self.node("GatherV2", [table, targets.into(), axis(0)?])?;
        let targets = self.node("SelectV2", [real.into(), targets.into(), axis(0)?])?;
        let unlabelled = self.node("Reshape", [unlabelled.into(), sizes(&[batch, 1])?])?;
        let first = self.node("Less", [range(most, &[1, most])?, axis(1)?])?;
        let instead = self.node("LogicalAnd", [unlabelled.into(), first.into()])?;
        let stated = self.node("LogicalOr", [real.into(), instead.into()])?;
        let places = self.node("Where", [stated.into()])?;
        Ok([places, self.node("GatherNd", [targets.into(), places.into()])?])
    }

    /// A tensor of integers as int32.
    fn integers_of(&mut self, tensor: &TensorIr) -> Result<Output> {
        let value = self.read(tensor)?;
        self.cast(value, dtype(tensor.dtype)?, DType::I32)
    }

    /// The sum over the steps that count.
    fn summed(&mut self, values: Output, counted: Output, work: DType) -> Result<Output> {
        let values = self.node("SelectV2", [counted.into(), values.into(), number(0.0, work)?])?;
        self.node("Sum", [values.into(), sizes(&[0])?])
    }

    /// The logarithm of the sum of the probabilities of all classes.
    fn log_sums(&mut self, log_probs: Output) -> Result<Output> {
        let most = self.node_with("Max", [log_probs.into(), sizes(&[2])?], &[("keep_dims", true.into())])?;
        let shares = self.node("Sub", [log_probs.into(), most.into()])?;
        let shares = self.node("Exp", [shares.into()])?;
        let sum = self.node("Sum", [shares.into(), sizes(&[2])?])?;
        let sum = self.node("Log", [sum.into()])?;
        let most = self.node("Max", [log_probs.into(), sizes(&[2])?])?;
        self.node("AddV2", [sum.into(), most.into()])
    }
}

impl Alignment<'_> {
    fn last_blank(&self, classes: usize) -> bool {
        self.blank + 1 == classes
    }

    /// The op's class for each of burn's; for the blank, `blank`.
    fn classes(&self, classes: usize, blank: i32) -> Tensor {
        let class = |class: usize| if class > self.blank { class - 1 } else { class };
        let class = |at: usize| if at == self.blank { blank } else { class(at) as i32 };
        Tensor::vector((0..classes).map(class).collect())
    }
}

/// The numbers from 0 to below `count`.
fn range(count: usize, dims: &[usize]) -> Result<Input> {
    Ok(Input::Value(integers(0..count, DType::I32)?.reshaped(dims.to_vec())?))
}
