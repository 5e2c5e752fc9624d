//! Gradients of parts of complex numbers, and of Fourier transforms.

use meshtf_tensor::{DType, Tensor};

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("conj", |c| {
        let dy = c.dy()?;
        one(c.un("Conj", dy)?)
    }),
    ("real", |c| {
        let (dy, part) = (c.dy()?, part(c));
        one(c.complex(dy, zero(part), part)?)
    }),
    ("imag", |c| {
        let (dy, part) = (c.dy()?, part(c));
        one(c.complex(zero(part), dy, part)?)
    }),
    ("complex_abs", |c| {
        let (x, y, dy, part) = (c.x(0), c.y(0), c.dy()?, part(c));
        let (dy, size) = (c.complex(dy, zero(part), part)?, c.complex(y, zero(part), part)?);
        let share = c.bin("DivNoNan", dy, size)?;
        one(c.mul(share, x)?)
    }),
    ("angle", |c| {
        let (x, dy, part) = (c.x(0), c.dy()?, part(c));
        let re = c.op("Real").input(x).attr("Tout", part).build()?;
        let im = c.op("Imag").input(x).attr("Tout", part).build()?;
        let turned = c.complex(im, re, part)?;
        let inverse = c.un("Reciprocal", turned)?;
        let dy = c.complex(dy, zero(part), part)?;
        let negative = c.neg(dy)?;
        one(c.mul(negative, inverse)?)
    }),
    ("fft", |c| turned_back(c, "IFFT", 1)),
    ("fft_2d", |c| turned_back(c, "IFFT2D", 2)),
    ("fft_3d", |c| turned_back(c, "IFFT3D", 3)),
    ("ifft", |c| turned_back(c, "FFT", 1)),
    ("ifft_2d", |c| turned_back(c, "FFT2D", 2)),
    ("ifft_3d", |c| turned_back(c, "FFT3D", 3)),
    ("rfft", |c| of_spectrum(c, "IFFT", 1)),
    ("rfft_2d", |c| of_spectrum(c, "IFFT2D", 2)),
    ("rfft_3d", |c| of_spectrum(c, "IFFT3D", 3)),
    ("irfft", |c| of_signal(c, "RFFT")),
    ("irfft_2d", |c| of_signal(c, "RFFT2D")),
    ("irfft_3d", |c| of_signal(c, "RFFT3D")),
];

/// The dtype of the parts of the node's complex input or output.
fn part(c: &Call) -> DType {
    c.t().real()
}

fn zero(part: DType) -> Tensor {
    if part == DType::F64 { Tensor::scalar(0f64) } else { Tensor::scalar(0f32) }
}

/// The number of elements that a transform of that rank combines, in the dtype.
fn count(c: &mut Call, lengths: Output, dtype: DType) -> Added {
    let count = c.op("Prod").input(lengths).input([0]).build()?;
    c.cast(count, dtype)
}

/// The last `rank` sizes of an input.
fn last_sizes(c: &mut Call, of: Output, rank: i32) -> Added {
    let shape = c.shape(of)?;
    c.part(shape, -rank, None)
}

/// The gradient by the inverse transform, with its division by the number of elements corrected.
fn turned_back(c: &mut Call, opposite: &str, rank: i32) -> Grads {
    let (x, dy, dtype) = (c.x(0), c.dy()?, c.t());
    let lengths = last_sizes(c, x, rank)?;
    let count = count(c, lengths, dtype)?;
    let back = c.un(opposite, dy)?;
    one(if opposite.starts_with('I') { c.mul(back, count)? } else { c.div(back, count)? })
}

/// Pads the last dimensions with zeros to the sizes of another tensor; all other sizes are the same.
fn padded(c: &mut Call, x: Output, to: Output) -> Added {
    let have = c.shape_of_added(x)?;
    let missing = c.sub(to, have)?;
    let none = c.un("ZerosLike", missing)?;
    let paddings = c.op("Pack").name("stack").input(none).input(missing).attr("axis", 1).build()?;
    c.bin("Pad", x, paddings)
}

/// The frequencies that the spectrum of a real signal omits have no gradient.
fn of_spectrum(c: &mut Call, inverse: &str, rank: i32) -> Grads {
    let (x, lengths, dy, part) = (c.x(0), c.x(1), c.dy()?, part(c));
    let shape = c.shape(x)?;
    let batch = c.part(shape, 0, Some(-rank))?;
    let whole = c.concat([batch, lengths], 0)?;
    let spectrum = padded(c, dy, whole)?;
    let signal = c.un(inverse, spectrum)?;
    let signal = c.op("Real").input(signal).attr("Tout", part).build()?;
    let count = count(c, lengths, part)?;
    let by_x = c.mul(signal, count)?;
    one(padded(c, by_x, shape)?)
}

/// Each frequency stands for two of a real signal, except for the first and, of an even length, the last.
fn of_signal(c: &mut Call, forward: &str) -> Grads {
    let (x, lengths, dy, dtype) = (c.x(0), c.x(1), c.dy()?, c.t());
    let spectrum = c.op(forward).input(dy).input(lengths).attr("Tcomplex", dtype).build()?;
    let length = c.element(lengths, -1)?;
    let half = c.bin("FloorDiv", length, 2)?;
    let end = c.add(half, 1)?;
    let places = c.op("Range").name("range").input(0).input(end).input(1).build()?;
    // 1 where the frequency is its own mirror image.
    let twice = c.mul(places, 2)?;
    let mirrored = c.op("FloorMod").name("mod").input(twice).input(length).build()?;
    let is_own = c.bin("Equal", mirrored, 0)?;
    let weights = c.select(is_own, 1, 2)?;
    let weights = c.cast(weights, dtype)?;
    let count = count(c, lengths, dtype)?;
    let weights = c.div(weights, count)?;
    let by_stated = c.mul(spectrum, weights)?;
    let shape = c.shape(x)?;
    one(padded(c, by_stated, shape)?)
}
