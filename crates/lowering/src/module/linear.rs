//! Rules for linear layers, embeddings, and their gradients.
//!
//! burn's weights are `[in, out]`; the dims before the last one of the input are merged into rows.

use burn_ir::{
    EmbeddingBackwardOpIr, EmbeddingOpIr, LinearBiasBackwardOpIr, LinearOpIr, LinearWeightBackwardOpIr,
    LinearXBackwardOpIr, TensorIr,
};
use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};

use crate::Lowering;
use crate::compose::{axis, sizes};

impl Lowering<'_> {
    pub(super) fn linear(&mut self, op: &LinearOpIr) -> Result<()> {
        let x = self.rows(&op.x)?;
        let weight = self.read(&op.weight)?;
        let mut answer = self.node("MatMul", [x.into(), weight.into()])?;
        if let Some(bias) = &op.bias {
            let bias = self.read(bias)?;
            answer = self.node("BiasAdd", [answer.into(), bias.into()])?;
        }
        self.write_rows(&op.out, answer)
    }

    pub(super) fn linear_x_backward(&mut self, op: &LinearXBackwardOpIr) -> Result<()> {
        let (gradient, weight) = (self.rows(&op.output_grad)?, self.read(&op.weight)?);
        let attrs = [("transpose_b", true.into())];
        let answer = self.node_with("MatMul", [gradient.into(), weight.into()], &attrs)?;
        self.write_rows(&op.out, answer)
    }

    pub(super) fn linear_weight_backward(&mut self, op: &LinearWeightBackwardOpIr) -> Result<()> {
        let (x, gradient) = (self.rows(&op.x)?, self.rows(&op.output_grad)?);
        let attrs = [("transpose_a", true.into())];
        let answer = self.node_with("MatMul", [x.into(), gradient.into()], &attrs)?;
        self.write(&op.out, answer)
    }

    pub(super) fn linear_bias_backward(&mut self, op: &LinearBiasBackwardOpIr) -> Result<()> {
        let gradient = self.rows(&op.output_grad)?;
        let answer = self.node("Sum", [gradient.into(), sizes(&[0])?])?;
        self.write(&op.out, answer)
    }

    pub(super) fn embedding(&mut self, op: &EmbeddingOpIr) -> Result<()> {
        let (weights, (indices, _)) = (self.read(&op.weights)?, self.indices(&op.indices)?);
        let answer = self.node("GatherV2", [weights.into(), indices.into(), axis(0)?])?;
        self.write(&op.out, answer)
    }

    /// Each row of the gradient is added to the row of the weights from which it was made.
    pub(super) fn embedding_backward(&mut self, op: &EmbeddingBackwardOpIr) -> Result<()> {
        let (gradient, (indices, _)) = (self.read(&op.out_grad)?, self.indices(&op.indices)?);
        let rows = axis(op.weights.shape[0])?;
        let answer = self.node("UnsortedSegmentSum", [gradient.into(), indices.into(), rows])?;
        self.write(&op.out, answer)
    }

    /// A tensor as a matrix of its last dim's rows.
    fn rows(&mut self, tensor: &TensorIr) -> Result<Output> {
        let value = self.read(tensor)?;
        let Some((&width, before)) = tensor.shape[..].split_last() else {
            return Err(Failure::invalid("a linear layer needs tensors of rank 1 or more".to_owned()));
        };
        self.reshape(value, &tensor.shape, &[before.iter().product(), width])
    }

    /// The reverse of [`rows`](Self::rows).
    fn write_rows(&mut self, tensor: &TensorIr, value: Output) -> Result<()> {
        let rows = match &tensor.shape[..] {
            [_, _] => None,
            [before @ .., width] => Some([before.iter().product(), *width]),
            [] => None,
        };
        let value = match rows {
            Some(rows) => self.reshape(value, &rows, &tensor.shape)?,
            None => value,
        };
        self.write(tensor, value)
    }
}
