//! Rules for the operations of burn's `ModuleOperationIr`.

mod attention;
mod conv;
mod ctc;
mod deformable;
mod linear;
mod norm;
mod pool;
mod resize;
mod sample;
mod window;

use burn_ir::ModuleOperationIr;
use conv::Convolution;
use meshtf_tensor::failure::Result;
use pool::Pool;
pub(super) use pool::Pooled;

use super::Lowering;

/// The tensors of a convolution and the movement of its filter, from the fields of an operation.
macro_rules! convolution {
    ($op:ident, $x:ident) => {
        Convolution { x: &$op.$x, weight: &$op.weight, slide: (&$op.options).try_into()?, out: &$op.out }
    };
}

/// The pool that an operation describes.
macro_rules! pool {
    (line $op:ident) => {
        Pool::line($op.kernel_size, $op.stride, $op.padding, 1)
    };
    (line $op:ident dilated) => {
        Pool::line($op.kernel_size, $op.stride, $op.padding, $op.dilation)
    };
    (plane $op:ident) => {
        Pool { size: $op.kernel_size, stride: $op.stride, padding: $op.padding, dilation: [1, 1] }
    };
    (plane $op:ident dilated) => {
        Pool { size: $op.kernel_size, stride: $op.stride, padding: $op.padding, dilation: $op.dilation }
    };
}

impl Lowering<'_> {
    pub(super) fn module(&mut self, op: &ModuleOperationIr) -> Result<()> {
        use ModuleOperationIr as Op;
        match op {
            Op::Linear(op) => self.linear(op),
            Op::LinearXBackward(op) => self.linear_x_backward(op),
            Op::LinearWeightBackward(op) => self.linear_weight_backward(op),
            Op::LinearBiasBackward(op) => self.linear_bias_backward(op),
            Op::Embedding(op) => self.embedding(op),
            Op::EmbeddingBackward(op) => self.embedding_backward(op),

            Op::BatchNorm(op) => self.batch_norm(op),
            Op::LayerNorm(op) => self.layer_norm(op),
            Op::Attention(op) => self.attention(op),

            Op::Conv1d(op) => self.convolution(convolution!(op, x), op.bias.as_ref()),
            Op::Conv2d(op) => self.convolution(convolution!(op, x), op.bias.as_ref()),
            Op::Conv3d(op) => self.convolution(convolution!(op, x), op.bias.as_ref()),
            Op::Conv1dXBackward(op) => self.convolution_by_image(convolution!(op, output_grad), None),
            Op::Conv2dXBackward(op) => self.convolution_by_image(convolution!(op, output_grad), None),
            Op::Conv3dXBackward(op) => self.convolution_by_image(convolution!(op, output_grad), None),
            Op::Conv1dWeightBackward(op) => self.convolution_by_filter(convolution!(op, x), &op.output_grad),
            Op::Conv2dWeightBackward(op) => self.convolution_by_filter(convolution!(op, x), &op.output_grad),
            Op::Conv3dWeightBackward(op) => self.convolution_by_filter(convolution!(op, x), &op.output_grad),
            Op::ConvTranspose1d(op) => self.convolution_by_image(convolution!(op, x), op.bias.as_ref()),
            Op::ConvTranspose2d(op) => self.convolution_by_image(convolution!(op, x), op.bias.as_ref()),
            Op::ConvTranspose3d(op) => self.convolution_by_image(convolution!(op, x), op.bias.as_ref()),
            // The image of the convolution is the output of the transposed one.
            Op::ConvTranspose1dWeightBackward(op) => self.convolution_by_filter(convolution!(op, output_grad), &op.x),
            Op::ConvTranspose2dWeightBackward(op) => self.convolution_by_filter(convolution!(op, output_grad), &op.x),
            Op::ConvTranspose3dWeightBackward(op) => self.convolution_by_filter(convolution!(op, output_grad), &op.x),
            Op::Conv1dBiasBackward(op) => self.convolution_by_bias(&op.output_grad, &op.out),
            Op::Conv2dBiasBackward(op) => self.convolution_by_bias(&op.output_grad, &op.out),
            Op::Conv3dBiasBackward(op) => self.convolution_by_bias(&op.output_grad, &op.out),
            Op::ConvTranspose1dBiasBackward(op) => self.convolution_by_bias(&op.output_grad, &op.out),
            Op::ConvTranspose2dBiasBackward(op) => self.convolution_by_bias(&op.output_grad, &op.out),
            Op::ConvTranspose3dBiasBackward(op) => self.convolution_by_bias(&op.output_grad, &op.out),
            Op::DeformableConv2d(op) => self.deformable(op),
            Op::DeformableConv2dBackward(op) => self.deformable_backward(op),

            Op::AvgPool1d(op) => self.avg_pool(&op.x, &pool!(line op), op.count_include_pad, &op.out),
            Op::AvgPool2d(op) => self.avg_pool(&op.x, &pool!(plane op), op.count_include_pad, &op.out),
            Op::AvgPool1dBackward(op) => {
                self.avg_pool_backward(&pool!(line op), &op.grad, op.count_include_pad, &op.out)
            }
            Op::AvgPool2dBackward(op) => {
                self.avg_pool_backward(&pool!(plane op), &op.grad, op.count_include_pad, &op.out)
            }
            Op::MaxPool1d(op) => self.max_pool(&op.x, &pool!(line op dilated), &op.out),
            Op::MaxPool2d(op) => self.max_pool(&op.x, &pool!(plane op dilated), &op.out),
            Op::MaxPool1dWithIndices(op) => {
                self.max_pool_with_indices(&op.x, &pool!(line op dilated), [&op.out, &op.out_indices])
            }
            Op::MaxPool2dWithIndices(op) => {
                self.max_pool_with_indices(&op.x, &pool!(plane op dilated), [&op.out, &op.out_indices])
            }
            Op::MaxPool1dWithIndicesBackward(op) => {
                self.max_pool_backward([&op.x, &op.grad, &op.indices], &pool!(line op dilated), &op.out)
            }
            Op::MaxPool2dWithIndicesBackward(op) => {
                self.max_pool_backward([&op.x, &op.grad, &op.indices], &pool!(plane op dilated), &op.out)
            }

            Op::AdaptiveAvgPool1d(op) => self.adaptive_avg_pool(&op.x, &op.out),
            Op::AdaptiveAvgPool2d(op) => self.adaptive_avg_pool(&op.x, &op.out),
            Op::AdaptiveAvgPool3d(op) => self.adaptive_avg_pool(&op.x, &op.out),
            Op::AdaptiveAvgPool1dBackward(op) => self.adaptive_avg_pool_backward(&op.grad, &op.out),
            Op::AdaptiveAvgPool2dBackward(op) => self.adaptive_avg_pool_backward(&op.grad, &op.out),
            Op::AdaptiveAvgPool3dBackward(op) => self.adaptive_avg_pool_backward(&op.grad, &op.out),
            Op::Interpolate(op) => self.interpolate(op),
            Op::InterpolateBackward(op) => self.interpolate_backward(op),
            Op::Unfold4d(op) => self.unfold4d(op),

            Op::CtcLoss(op) => self.ctc_loss(op),
            Op::CtcLossBackward(op) => self.ctc_loss_backward(op),
        }
    }
}
