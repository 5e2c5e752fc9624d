//! Bulk computation on float32: loops over slices that the compiler can vectorise, for the processor that they run on
//! (`target`), on several threads if that pays (`cut`).
//!
//! None of it knows a tensor, a backend or a step. Denormals count as zero or not, as the thread is set.

mod angles;
mod axis;
pub mod channels;
mod conv;
mod convert;
mod cut;
mod depthwise;
pub mod flags;
mod fold;
mod functions;
mod lanes;
mod layout;
mod many;
mod one_row;
mod ops;
mod panels;
mod place;
mod pool;
mod power;
mod product;
mod recurrent;
mod repeat;
mod response;
mod softmax;
mod tail;
mod target;
mod tile;
mod transpose;
mod walk;

pub use axis::Axis;
pub use conv::{Convolution, PackedFilter};
pub use convert::{To, converted};
pub use cut::{Cut, Places, anew};
pub use depthwise::Depthwise;
pub use fold::{Fold, Folding};
pub use layout::{laid_out, repeated, rows, slices, tiled};
pub use many::Strided;
pub use one_row::{ONE_ROW_CHUNKS, one_row};
pub use ops::{Binary, Comparison, Unary, binary, comparison, leaky, leaky_gradient, power_to, unary};
pub use panels::Panels;
pub use place::{Stretch, copied, joined, picked};
pub use pool::Pool;
pub use product::{MatrixView, by_transpose, is_small_product, small_products};
pub use recurrent::{Gru, Lstm, LstmPast, row_sums};
pub use repeat::{Along, Repeat};
pub use response::LocalResponse;
pub use softmax::{
    cross_entropy, cross_entropy_of, log_softmax, log_softmax_of, softmax, softmax_of, sparse_cross_entropy,
};
pub use tail::{Act, Finish, Near, NearPairs, Step, Tail, With};
pub use target::{Work, widest};
pub use walk::{Operand, Rows, one_hot, outer, sum_over, sums};

#[cfg(test)]
mod tests {
    /// A denormal.
    pub const DENORMAL: f32 = 1e-40;

    /// The distance of a float from a number, in units in the last place of the float nearest to that number. A result below
    /// the smallest normal float counts as zero, or as itself.
    pub fn units(got: f32, want: f64) -> f64 {
        let nearest = want as f32;
        if got == nearest || got.is_nan() && nearest.is_nan() {
            return 0.0;
        }
        if !nearest.is_finite() || !got.is_finite() {
            return f64::INFINITY;
        }
        let size = nearest.abs().max(f32::MIN_POSITIVE);
        if nearest.is_subnormal() && got == 0.0 {
            return 0.0;
        }
        let unit = f64::from(f32::from_bits(size.to_bits() + 1)) - f64::from(size);
        (f64::from(got) - want).abs() / unit
    }
}
