//! Image ops: colours, sizes, parts and boxes, and the decoding and encoding of image files.

mod boxes;
pub(crate) mod coded;
mod color;
mod combined;
mod crop;
mod glimpse;
mod project;
mod resize;
mod sampled;
mod scale;
mod suppression;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::Registry;

/// Registers the image ops.
pub(super) fn register(ops: &mut Registry) {
    color::register(ops);
    resize::register(ops);
    crop::register(ops);
    glimpse::register(ops);
    boxes::register(ops);
    suppression::register(ops);
    combined::register(ops);
    project::register(ops);
    scale::register(ops);
    sampled::register(ops);
    coded::register(ops);
}

/// The batch, height, width and channels of images.
fn sizes_of(images: &Tensor, what: &str) -> Result<[usize; 4]> {
    match *images.dims() {
        [batch, height, width, channels] => Ok([batch, height, width, channels]),
        _ => Err(Failure::invalid(format!("{what} must be 4-dimensional, got shape {}", images.shape()))),
    }
}

/// A height and a width, after a check that both are positive.
fn size_of(size: &Tensor, what: &str) -> Result<[usize; 2]> {
    let sizes = size.to_i64s()?;
    let (1, &[height, width]) = (size.rank(), &sizes[..]) else {
        return Err(Failure::invalid(format!("{what} must be 1-D and have 2 elements, got shape {}", size.shape())));
    };
    match (usize::try_from(height), usize::try_from(width)) {
        (Ok(height @ 1..), Ok(width @ 1..)) => Ok([height, width]),
        _ => Err(Failure::invalid(format!("{what}: dimensions must be positive, got {height} and {width}"))),
    }
}
