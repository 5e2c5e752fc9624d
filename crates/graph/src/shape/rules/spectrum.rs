//! Shapes of Fourier transforms over the last dimensions.

use super::{Entry, one};
use crate::shape::call::Call;
use crate::shape::{Extent, Fact};

pub(super) const RULES: &[Entry] = &[
    ("fft", |call| same(call, 1), Extent::Unknown),
    ("fft_2d", |call| same(call, 2), Extent::Unknown),
    ("fft_3d", |call| same(call, 3), Extent::Unknown),
    ("rfft", |call| resized(call, 1, false), Extent::Unknown),
    ("rfft_2d", |call| resized(call, 2, false), Extent::Unknown),
    ("rfft_3d", |call| resized(call, 3, false), Extent::Unknown),
    ("irfft", |call| resized(call, 1, true), Extent::Unknown),
    ("irfft_2d", |call| resized(call, 2, true), Extent::Unknown),
    ("irfft_3d", |call| resized(call, 3, true), Extent::Unknown),
];

/// The shape of the input, which has at least `rank` dimensions.
fn same(call: &Call, rank: usize) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    if dims.len() < rank { None } else { one(dims) }
}

/// The last `rank` dimensions have the lengths in the second input; the last one has half of that plus one, as it holds
/// frequencies, unless the transform is the `inverse`.
fn resized(call: &Call, rank: usize, inverse: bool) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let batch = dims.len().checked_sub(rank)?;
    let lengths = call.counts(1).filter(|lengths| lengths.len() == rank);
    for i in 0..rank {
        let half = i + 1 == rank && !inverse;
        let length = lengths.as_ref().map(|lengths| lengths[i]);
        dims[batch + i] = call.size(length.map(|n| if half && n > 0 { n / 2 + 1 } else { n }));
    }
    one(dims)
}
