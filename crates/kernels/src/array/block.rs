//! SpaceToBatchND, BatchToSpaceND, SpaceToDepth and DepthToSpace: blocks of an image moved between its dimensions.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Shape, Tensor};

use super::super::call::{self, kernel as call, vector};
use super::super::{HostKernel, KernelNode, Registry};
use super::pad::pad;
use super::view::View;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SpaceToBatchND", |_| Ok(Some(call(|[x, block, paddings]| space_to_batch(x, &block, &paddings)))));
    ops.insert("BatchToSpaceND", |_| Ok(Some(call(|[x, block, crops]| batch_to_space(&x, &block, &crops)))));
    ops.insert("SpaceToDepth", |node| depth(node, true));
    ops.insert("DepthToSpace", |node| depth(node, false));
}

/// Blocks of pixels to depth, or depth to blocks of pixels.
fn depth(node: &KernelNode, to_depth: bool) -> Result<Option<HostKernel>> {
    let block = usize::try_from(node.attrs.int("block_size")?).unwrap_or(0).max(1);
    let channels_last = match node.attrs.str("data_format")? {
        "NHWC" => true,
        "NCHW" => false,
        other => return Err(Failure::invalid(format!("{} takes data_format NHWC or NCHW, got {other}", node.op))),
    };
    Ok(Some(call(move |[x]: [Tensor; 1]| {
        let &[n, a, b, c] = x.dims() else {
            return Err(Failure::invalid(format!("Input rank should be: 4 instead of: {}", x.rank())));
        };
        let (h, w, c) = if channels_last { (a, b, c) } else { (b, c, a) };
        // A size of 0 is divisible by any block; the shape that follows from the other sizes is checked below.
        let squared = block.checked_mul(block);
        let fits =
            if to_depth { h % block == 0 && w % block == 0 } else { squared.is_some_and(|squared| c % squared == 0) };
        if !fits {
            let (what, size) = if to_depth {
                ("Image width and height", format!("{h} x {w}"))
            } else {
                ("Input depth dimension", c.to_string())
            };
            return Err(Failure::invalid(format!(
                "{what} {size} should be divisible by block_size {block}{}",
                if to_depth { "" } else { " squared" }
            )));
        }
        let times = |a: usize, b: usize| a.checked_mul(b);
        let answer = if to_depth {
            squared.and_then(|squared| Some((h / block, w / block, times(squared, c)?)))
        } else {
            times(h, block).zip(times(w, block)).map(|(h, w)| (h, w, c / block / block))
        };
        let (oh, ow, oc) = answer.ok_or_else(|| {
            Failure::invalid(format!("block_size {block} makes a shape out of {} that exceeds every limit", x.shape()))
        })?;
        // Split the blocked dimensions, reorder them, and merge them.
        let (split, order) = match (to_depth, channels_last) {
            (true, true) => (vec![n, oh, block, ow, block, c], [0, 1, 3, 2, 4, 5]),
            (true, false) => (vec![n, c, oh, block, ow, block], [0, 3, 5, 1, 2, 4]),
            (false, true) => (vec![n, h, w, block, block, oc], [0, 1, 3, 2, 4, 5]),
            (false, false) => (vec![n, block, block, oc, h, w], [0, 3, 4, 1, 5, 2]),
        };
        let shape = if channels_last { [n, oh, ow, oc] } else { [n, oc, oh, ow] };
        reordered(&x, &split, &order, shape.into())
    })))
}

/// The elements of `x` split into dimensions `split`, which are reordered by `order`, as a tensor of `shape`.
fn reordered(x: &Tensor, split: &[usize], order: &[usize], shape: Shape) -> Result<Tensor> {
    if x.is_empty() {
        shape.checked_elements(x.dtype())?;
        return x.clone().reshaped(shape);
    }
    let all = View::all(&split.into());
    View { offset: 0, dims: order.iter().map(|&axis| all.dims[axis]).collect() }.read(x, shape)
}

fn block_sizes(block: &Tensor) -> Result<Vec<usize>> {
    let positive = |size: i64| {
        usize::try_from(size)
            .ok()
            .filter(|&size| size > 0)
            .ok_or_else(|| Failure::invalid(format!("All values in block_shape must be positive, got value, {size}")))
    };
    vector(block, "block_shape", false)?.into_iter().map(positive).collect()
}

/// Moves the batch's blocks back into space and crops the edges.
fn batch_to_space(x: &Tensor, block: &Tensor, crops: &Tensor) -> Result<Tensor> {
    let block = block_sizes(block)?;
    let blocked = block.len();
    if x.rank() < blocked + 1 || crops.dims() != [blocked, 2] {
        return Err(Failure::invalid(format!(
            "input rank should be >= {} and crops of shape [{blocked},2], got {} and {}",
            blocked + 1,
            x.shape(),
            crops.shape()
        )));
    }
    let all = call::product(&block);
    if !x.dims()[0].is_multiple_of(all) {
        return Err(Failure::invalid(format!(
            "Input batch dimension ({}) is not divisible by product of block sizes ({all})",
            x.dims()[0]
        )));
    }
    let crops = crops.to_i64s()?;
    let mut split = block.clone();
    split.push(x.dims()[0] / all);
    split.extend(&x.dims()[1..]);
    let mut order = vec![blocked];
    let mut whole = vec![x.dims()[0] / all];
    for (i, &size) in block.iter().enumerate() {
        order.extend([blocked + 1 + i, i]);
        whole.push(x.dims()[i + 1].saturating_mul(size));
    }
    order.extend(2 * blocked + 1..split.len());
    whole.extend(&x.dims()[blocked + 1..]);
    let shape = Shape::from(whole);
    let spread = reordered(x, &split, &order, shape.clone())?;
    let mut view = View::all(&shape);
    let mut kept = shape.dims().to_vec();
    for (i, ends) in crops.chunks_exact(2).enumerate() {
        let size = kept[i + 1] as i64;
        let left = ends[0].checked_add(ends[1]).map(|cut| size - cut);
        let Some(left) = left.filter(|&left| left >= 0 && ends[0] >= 0 && ends[1] >= 0) else {
            return Err(Failure::invalid(format!(
                "crops {ends:?} of dimension {i} must be non-negative and at most the uncropped size {size}"
            )));
        };
        view.offset += ends[0] as isize * view.dims[i + 1].1;
        view.dims[i + 1].0 = left as usize;
        kept[i + 1] = left as usize;
    }
    view.read(&spread, kept.into())
}

fn space_to_batch(x: Tensor, block: &Tensor, paddings: &Tensor) -> Result<Tensor> {
    let block = block_sizes(block)?;
    let blocked = block.len();
    if x.rank() < blocked + 1 || paddings.dims() != [blocked, 2] {
        return Err(Failure::invalid(format!(
            "input rank should be >= {} and paddings of shape [{blocked},2], got {} and {}",
            blocked + 1,
            x.shape(),
            paddings.shape()
        )));
    }
    // In `all_paddings` every dimension has a row, zero for the batch and the dimensions after the blocked ones.
    let mut all_paddings = vec![0; x.rank() * 2];
    all_paddings[2..2 + 2 * blocked].copy_from_slice(&paddings.to_i64s()?);
    let zero = Tensor::zeros(x.dtype(), Shape::scalar())?;
    let x = pad(x.clone(), &Tensor::from_vec([x.rank(), 2], all_paddings), &zero)?;
    let mut split = vec![x.dims()[0]];
    let mut shape = vec![x.dims()[0].saturating_mul(call::product(&block))];
    for (i, &size) in block.iter().enumerate() {
        let dim = x.dims()[i + 1];
        if dim % size != 0 {
            return Err(Failure::invalid(format!(
                "padded_shape[{i}]={dim} is not divisible by block_shape[{i}]={size}"
            )));
        }
        split.extend([dim / size, size]);
        shape.push(dim / size);
    }
    let rest = &x.dims()[blocked + 1..];
    split.extend(rest);
    shape.extend(rest);
    let order: Vec<usize> = (0..blocked)
        .map(|i| 2 + 2 * i)
        .chain([0])
        .chain((0..blocked).map(|i| 1 + 2 * i))
        .chain((0..rest.len()).map(|i| 1 + 2 * blocked + i))
        .collect();
    reordered(&x, &split, &order, shape.into())
}
