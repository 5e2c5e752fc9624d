//! Rules for normalisation by given statistics, and over the last dim.

use burn_ir::{BatchNormOpIr, LayerNormOpIr, TensorIr};
use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use crate::Lowering;
use crate::compose::sizes;
use crate::values::dtype;

impl Lowering<'_> {
    /// (x - mean) · gamma / √(variance + epsilon) + beta; all but x are one number per channel.
    pub(super) fn batch_norm(&mut self, op: &BatchNormOpIr) -> Result<()> {
        let (x, of) = (self.read(&op.x)?, dtype(op.x.dtype)?);
        let mean = self.per_channel(&op.mean, &op.x)?;
        let variance = self.per_channel(&op.variance, &op.x)?;
        let gamma = self.per_channel(&op.gamma, &op.x)?;
        let beta = self.per_channel(&op.beta, &op.x)?;
        let epsilon = self.scalar_input(op.epsilon, of)?;
        let variance = self.node("AddV2", [variance.into(), epsilon])?;
        let inverse = self.node("Rsqrt", [variance.into()])?;
        let scale = self.node("Mul", [gamma.into(), inverse.into()])?;
        let centred = self.node("Sub", [x.into(), mean.into()])?;
        let scaled = self.node("Mul", [centred.into(), scale.into()])?;
        let answer = self.node("AddV2", [scaled.into(), beta.into()])?;
        self.write(&op.out, answer)
    }

    /// One number per channel, in a shape that is broadcast over `x`: channels are dim 1.
    fn per_channel(&mut self, tensor: &TensorIr, x: &TensorIr) -> Result<Output> {
        let value = self.read(tensor)?;
        let rank = x.shape.rank();
        if rank < 2 {
            return Err(Failure::invalid(format!("x has rank {rank}, which has no channels")));
        }
        let mut dims = vec![1; rank];
        dims[1] = x.shape[1];
        self.reshape(value, &tensor.shape, &dims)
    }

    /// (x - mean) · gamma / √(variance + epsilon) + beta; mean and variance are those of the last dim.
    pub(super) fn layer_norm(&mut self, op: &LayerNormOpIr) -> Result<()> {
        let (x, of) = (self.read(&op.input)?, dtype(op.input.dtype)?);
        let Some(last) = op.input.shape.rank().checked_sub(1) else {
            return Err(Failure::invalid("the input has no dim".to_owned()));
        };
        // Half floats would be rounded between the ops.
        let wide = if matches!(of, DType::F16 | DType::BF16) { DType::F32 } else { of };
        let x = self.cast(x, of, wide)?;
        let mean = self.mean(x, last)?;
        let centred = self.node("Sub", [x.into(), mean.into()])?;
        let square = self.node("Square", [centred.into()])?;
        let variance = self.mean(square, last)?;
        let epsilon = self.scalar_input(op.epsilon, wide)?;
        let variance = self.node("AddV2", [variance.into(), epsilon])?;
        let inverse = self.node("Rsqrt", [variance.into()])?;
        let normal = self.node("Mul", [centred.into(), inverse.into()])?;
        let gamma = self.read(&op.gamma)?;
        let gamma = self.cast(gamma, of, wide)?;
        let mut answer = self.node("Mul", [normal.into(), gamma.into()])?;
        if let Some(beta) = &op.beta {
            let beta = self.read(beta)?;
            let beta = self.cast(beta, of, wide)?;
            answer = self.node("AddV2", [answer.into(), beta.into()])?;
        }
        let answer = self.cast(answer, wide, of)?;
        self.write(&op.out, answer)
    }

    /// The mean along a dim, which stays with length 1.
    fn mean(&mut self, x: Output, dim: usize) -> Result<Output> {
        self.node_with("Mean", [x.into(), sizes(&[dim])?], &[("keep_dims", true.into())])
    }
}
