//! Gradients of pools, and of the ops that are their gradients.

use meshtf_tensor::DType;

use super::{Rule, Stop};
use crate::gradient::Gradient;
use crate::gradient::call::{Call, Grads, all, one};

const WINDOW: &[&str] = &["ksize", "strides", "padding", "explicit_paddings", "data_format"];

pub(super) const RULES: &[(&str, Rule)] = &[
    ("avg_pool", |c| average(c, "AvgPoolGrad")),
    ("avg_pool3d", |c| average(c, "AvgPool3DGrad")),
    ("avg_pool_grad", |c| of_average(c, "AvgPool")),
    ("avg_pool3d_grad", |c| of_average(c, "AvgPool3D")),
    ("max_pool", |c| greatest(c, "MaxPoolGrad")),
    ("max_pool3d", |c| greatest(c, "MaxPool3DGrad")),
    ("max_pool_with_argmax", |c| {
        let (x, at, dy) = (c.x(0), c.y(1), c.dy()?);
        let attrs = ["ksize", "strides", "padding", "include_batch_in_index"];
        one(c.with_attrs("MaxPoolGradWithArgmax", &[x, dy, at], &attrs)?)
    }),
    ("max_pool_v2", |c| {
        let inputs = [c.x(0), c.y(0), c.dy()?, c.x(1), c.x(2)];
        one(c.with_attrs("MaxPoolGradV2", &inputs, WINDOW)?)
    }),
    ("fractional_avg_pool", |c| {
        let (shape, dy) = (c.shape_as(c.x(0), DType::I64)?, c.dy()?);
        one(c.with_attrs("FractionalAvgPoolGrad", &[shape, dy, c.y(1), c.y(2)], &["overlapping"])?)
    }),
    ("fractional_max_pool", |c| {
        let inputs = [c.x(0), c.y(0), c.dy()?, c.y(1), c.y(2)];
        one(c.with_attrs("FractionalMaxPoolGrad", &inputs, &["overlapping"])?)
    }),
    ("max_pool_grad", of_greatest),
    ("max_pool_grad_grad", |c| of_moved(c, "MaxPoolGrad")),
    ("max_pool_grad_v2", |c| {
        let (x, y) = (c.x(0), c.x(1));
        let inputs = [x, y, c.dy()?, c.x(3), c.x(4)];
        let of_g = c.with_attrs("MaxPoolGradGradV2", &inputs, WINDOW)?;
        all([c.un("ZerosLike", x)?, c.un("ZerosLike", y)?, of_g])
    }),
    ("max_pool3d_grad", |c| of_moved(c, "MaxPool3DGradGrad")),
    ("max_pool3d_grad_grad", |c| of_moved(c, "MaxPool3DGrad")),
];

fn average(c: &mut Call, op: &str) -> Grads {
    let (x, dy) = (c.x(0), c.dy()?);
    let shape = c.shape(x)?;
    one(c.with_attrs(op, &[shape, dy], WINDOW)?)
}

fn of_average(c: &mut Call, op: &str) -> Grads {
    let dz = c.dy()?;
    let of_g = c.with_attrs(op, &[dz], WINDOW)?;
    Ok(vec![None, Some(Gradient::Dense(of_g))])
}

fn greatest(c: &mut Call, op: &str) -> Grads {
    let (x, y, dy) = (c.x(0), c.y(0), c.dy()?);
    one(c.with_attrs(op, &[x, y, dy], WINDOW)?)
}

/// The gradient of an op that moves elements between windows and the positions of the greatest: the inverse op.
fn of_moved(c: &mut Call, op: &str) -> Grads {
    let (x, y, dz) = (c.x(0), c.x(1), c.dy()?);
    let back = c.with_attrs(op, &[x, y, dz], WINDOW)?;
    all([c.un("ZerosLike", x)?, c.un("ZerosLike", y)?, back])
}

/// The gradient of a pool's gradient: that op only moves elements to the positions of the greatest, and this one gathers them
/// from there.
fn of_greatest(c: &mut Call) -> Grads {
    let format = c.node.attrs.str("data_format").unwrap_or("NHWC");
    let padding = c.node.attrs.str("padding").unwrap_or("");
    if format != "NHWC" || padding == "EXPLICIT" {
        let why = format!("is supported for NHWC with SAME or VALID padding, not for {format} with {padding}");
        return Err(Stop::Unsupported(why));
    }
    let (x, y, g, dz) = (c.x(0), c.x(1), c.x(2), c.dy()?);
    let attrs = ["ksize", "strides", "padding"].map(|name| (name, c.attr(name)));
    let mut pool = c.op("MaxPoolWithArgmax").input(x).attr("include_batch_in_index", true);
    for (name, value) in attrs {
        pool = pool.attr(name, value);
    }
    let at = pool.build()?.port(1);
    let flat = c.reshape(dz, [-1])?;
    let of_g = c.op("GatherV2").input(flat).input(at).input(0).build()?;
    let shape = c.shape(g)?;
    let of_g = c.reshape(of_g, shape)?;
    all([c.un("ZerosLike", x)?, c.un("ZerosLike", y)?, of_g])
}
