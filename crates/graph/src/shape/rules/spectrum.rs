//! Shapes of Fourier transforms over the last dimensions.

use super::one;
use crate::shape::Fact;
use crate::shape::call::Call;

/// The shape of the input, which has at least `rank` dimensions.
pub(super) fn same(call: &Call, rank: usize) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    if dims.len() < rank { None } else { one(dims) }
}

/// The last `rank` dimensions have the lengths in the second input; the last one has half of that plus one, as it holds
/// frequencies, unless the transform is the `inverse`.
pub(super) fn resized(call: &Call, rank: usize, inverse: bool) -> Option<Vec<Fact>> {
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
