//! Gradients of convolutions, and of the ops that are their gradients.

use super::Rule;
use crate::gradient::Gradient;
use crate::gradient::call::{Call, Grads, all};

/// The ops of one kind of convolution, and the attributes that they share.
struct Kind {
    forward: &'static str,
    by_input: &'static str,
    by_filter: &'static str,
    attrs: &'static [&'static str],
}

const PLANE: Kind = Kind {
    forward: "Conv2D",
    by_input: "Conv2DBackpropInput",
    by_filter: "Conv2DBackpropFilter",
    attrs: &["strides", "use_cudnn_on_gpu", "padding", "explicit_paddings", "data_format", "dilations"],
};

const DEPTHWISE: Kind = Kind {
    forward: "DepthwiseConv2dNative",
    by_input: "DepthwiseConv2dNativeBackpropInput",
    by_filter: "DepthwiseConv2dNativeBackpropFilter",
    attrs: &["strides", "padding", "explicit_paddings", "data_format", "dilations"],
};

const SPACE: Kind = Kind {
    forward: "Conv3D",
    by_input: "Conv3DBackpropInputV2",
    by_filter: "Conv3DBackpropFilterV2",
    attrs: &["strides", "padding", "data_format", "dilations"],
};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("dilation2d", |c| {
        let (inputs, attrs) = ([c.x(0), c.x(1), c.dy()?], ["strides", "rates", "padding"]);
        let by_input = c.with_attrs("Dilation2DBackpropInput", &inputs, &attrs)?;
        all([by_input, c.with_attrs("Dilation2DBackpropFilter", &inputs, &attrs)?])
    }),
    ("conv2d", |c| forward(c, &PLANE)),
    ("conv2d_backprop_input", |c| by_input(c, &PLANE)),
    ("conv2d_backprop_filter", |c| by_filter(c, &PLANE)),
    ("depthwise_conv2d_native", |c| forward(c, &DEPTHWISE)),
    ("depthwise_conv2d_native_backprop_input", |c| by_input(c, &DEPTHWISE)),
    ("depthwise_conv2d_native_backprop_filter", |c| by_filter(c, &DEPTHWISE)),
    ("conv3d", |c| forward(c, &SPACE)),
    ("conv3d_backprop_input_v2", |c| by_input(c, &SPACE)),
    ("conv3d_backprop_filter_v2", |c| by_filter(c, &SPACE)),
];

fn forward(c: &mut Call, kind: &Kind) -> Grads {
    let (x, filter, dy) = (c.x(0), c.x(1), c.dy()?);
    let (x_shape, filter_shape) = (c.shape(x)?, c.shape(filter)?);
    all([
        c.with_attrs(kind.by_input, &[x_shape, filter, dy], kind.attrs)?,
        c.with_attrs(kind.by_filter, &[x, filter_shape, dy], kind.attrs)?,
    ])
}

/// Differentiates the gradient with respect to the input, which takes the input's sizes, the filter and the gradient of the
/// output.
fn by_input(c: &mut Call, kind: &Kind) -> Grads {
    let (filter, g, dz) = (c.x(1), c.x(2), c.dy()?);
    let filter_shape = c.shape(filter)?;
    let of_filter = c.with_attrs(kind.by_filter, &[dz, filter_shape, g], kind.attrs)?;
    let of_g = c.with_attrs(kind.forward, &[dz, filter], kind.attrs)?;
    Ok(vec![None, Some(Gradient::Dense(of_filter)), Some(Gradient::Dense(of_g))])
}

/// Differentiates the gradient with respect to the filter, which takes the input, the filter's sizes and the gradient of the
/// output.
fn by_filter(c: &mut Call, kind: &Kind) -> Grads {
    let (x, g, dz) = (c.x(0), c.x(2), c.dy()?);
    let x_shape = c.shape(x)?;
    let of_x = c.with_attrs(kind.by_input, &[x_shape, dz, g], kind.attrs)?;
    let of_g = c.with_attrs(kind.forward, &[x, dz], kind.attrs)?;
    Ok(vec![Some(Gradient::Dense(of_x)), None, Some(Gradient::Dense(of_g))])
}
