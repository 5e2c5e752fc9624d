//! Signals: Fourier transforms, windows, mel weights.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::elem::Elem;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("BlackmanWindow", 17, |cx, n| window(cx, n, [0.42, -0.5, 0.08])),
    onnx("DFT", 17, transform),
    onnx("HammingWindow", 17, |cx, n| window(cx, n, [25.0 / 46.0, -21.0 / 46.0, 0.0])),
    onnx("HannWindow", 17, |cx, n| window(cx, n, [0.5, -0.5, 0.0])),
    onnx("MelWeightMatrix", 17, mel),
    onnx("STFT", 17, short_time),
];

fn output_type(n: &Node) -> Result<DType> {
    Elem(i32::try_from(n.int("output_datatype", 1)).unwrap_or(0)).dtype()
}

/// A sum of cosines.
fn window(cx: &mut Cx, n: &Node, shares: [f64; 3]) -> Result<Vec<Value>> {
    let size = n.input(0)?;
    let size = cx.reshape(size, &[])?;
    let size = cx.long(size)?;
    let span = if n.flag("periodic", true) { size } else { op!(cx.em, "Sub", size, 1i64)? };
    let range = match cx.em.ints(size).as_deref() {
        Some(&[size]) => cx.range(Size::Known(size))?,
        _ => cx.range(Size::Of(size))?,
    };
    let (at, span) = (cx.cast(range, DType::F64)?, cx.cast(span, DType::F64)?);
    let turn = op!(cx.em, "Mul", at, std::f64::consts::TAU)?;
    let turn = op!(cx.em, "RealDiv", turn, span)?;
    let mut sum = None;
    for (i, &share) in shares.iter().enumerate().skip(1).filter(|(_, share)| **share != 0.0) {
        let angle = if i == 1 { turn } else { op!(cx.em, "Mul", turn, i as f64)? };
        let wave = op!(cx.em, "Cos", angle)?;
        let wave = op!(cx.em, "Mul", wave, share)?;
        sum = Some(match sum {
            None => wave,
            Some(other) => op!(cx.em, "AddV2", other, wave)?,
        });
    }
    let sum = sum.ok_or_else(|| Failure::invalid("it has no waves"))?;
    let y = op!(cx.em, "AddV2", sum, shares[0])?;
    one(cx.cast(y, output_type(n)?)?)
}

/// Pairs in the last axis, or single numbers, as complex numbers without that axis.
fn complex(cx: &mut Cx, x: Output) -> Result<(Output, bool)> {
    let rank = cx.em.rank(x)?;
    let dtype = cx.em.dtype(x);
    let to = if dtype == DType::F64 { DType::C128 } else { DType::C64 };
    let wide = if dtype == DType::F64 { x } else { cx.cast(x, DType::F32)? };
    let is_pair = match cx.em.size(x, rank - 1) {
        Some(2) => true,
        Some(1) => false,
        _ => return Err(unsupported("unsupported: a signal whose last axis is neither 1 nor 2, or is not known")),
    };
    let real = op!(cx.em, "GatherV2", wide, 0i64, (rank - 1) as i64)?;
    let imaginary = match is_pair {
        true => op!(cx.em, "GatherV2", wide, 1i64, (rank - 1) as i64)?,
        false => op!(cx.em, "ZerosLike", real)?,
    };
    Ok((op!(cx.em, "Complex", real, imaginary; "Tout" => to)?, is_pair))
}

/// Complex numbers as pairs in a last axis.
fn pairs(cx: &mut Cx, x: Output, dtype: DType) -> Result<Output> {
    let part = if cx.em.dtype(x) == DType::C128 { DType::F64 } else { DType::F32 };
    let (real, imaginary) = (op!(cx.em, "Real", x; "Tout" => part)?, op!(cx.em, "Imag", x; "Tout" => part)?);
    let rank = cx.em.rank(real)? as i64;
    let y = op!(cx.em, "Pack", real, imaginary; "axis" => rank)?;
    cx.cast(y, dtype)
}

fn transform(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axis = if n.version >= 20 {
        match n.maybe(2)? {
            Some(axis) => match cx.em.ints(axis) {
                Some(axis) => *axis.first().unwrap_or(&-2),
                None => {
                    // The axis is moved to the end of the others, and back after the transform.
                    let axis = cx.reshape(axis, &[])?;
                    let axis = cx.long(axis)?;
                    let axis = op!(cx.em, "FloorMod", axis, rank as i64)?;
                    let all = cx.range(Size::Known(rank as i64 - 1))?;
                    let others = op!(cx.em, "NotEqual", all, axis)?;
                    let others = op!(cx.em, "Where", others)?;
                    let others = op!(cx.em, "Reshape", others, [-1i64])?;
                    let axis = cx.unsqueeze(axis, &[0])?;
                    let end = cx.ints(&[rank as i64 - 1])?;
                    let order = cx.concat(&[others, axis, end], 0)?;
                    let moved = op!(cx.em, "Transpose", x, order)?;
                    let last = cx.em.size(x, rank - 1);
                    let mut dims = vec![None; rank];
                    dims[rank - 1] = last;
                    let moved = op!(cx.em, "EnsureShape", moved; "shape" => meshtf_tensor::PartialShape(Some(dims)))?;
                    let y = transformed(cx, n, moved, rank - 2)?;
                    let back = op!(cx.em, "InvertPermutation", order)?;
                    let y = op!(cx.em, "Transpose", y, back)?;
                    return one(cx.of_rank(y, rank)?);
                }
            },
            None => -2,
        }
    } else {
        n.int("axis", 1)
    };
    let axis = cx.axis(axis, rank)?;
    if axis + 1 == rank {
        return Err(Failure::invalid("its axis is that of the real and imaginary parts"));
    }
    one(transformed(cx, n, x, axis)?)
}

/// The transform along an axis.
fn transformed(cx: &mut Cx, n: &Node, x: Output, axis: usize) -> Result<Output> {
    let (rank, length) = (cx.em.rank(x)?, n.maybe(1)?);
    let (is_inverse, is_half) = (n.flag("inverse", false), n.flag("onesided", false));
    let (z, _) = complex(cx, x)?;
    let (mut moved, back) = cx.moved_last(z, axis)?;
    let last = rank - 2;
    let own = cx.size(moved, last)?;
    let wanted = match length {
        Some(length) => {
            let length = cx.reshape(length, &[])?;
            let length = cx.long(length)?;
            Some(match cx.em.ints(length).as_deref() {
                Some(&[length]) => Size::Known(length),
                _ => Size::Of(length),
            })
        }
        None => None,
    };
    if is_inverse && is_half {
        // The other half are the conjugates in reverse order.
        let whole = match wanted {
            Some(whole) => whole,
            None => {
                let steps = cx.compute("Sub", own, Size::Known(1))?;
                cx.compute("Mul", steps, Size::Known(2))?
            }
        };
        let to = if cx.em.dtype(moved) == DType::C128 { DType::F64 } else { DType::F32 };
        let whole = cx.packed(&[whole])?;
        let whole = cx.cast(whole, DType::I32)?;
        let y = op!(cx.em, "IRFFT", moved, whole; "Treal" => to)?;
        let y = cx.transpose(y, &back)?;
        let y = cx.unsqueeze(y, &[rank - 1])?;
        return cx.cast(y, cx.em.dtype(x));
    }
    if let Some(wanted) = wanted {
        moved = resized(cx, moved, last, own, wanted)?;
    }
    let y = op!(cx.em, if is_inverse { "IFFT" } else { "FFT" }, moved)?;
    let y = if is_half { half_of(cx, y, last)? } else { y };
    let y = cx.transpose(y, &back)?;
    let dtype = cx.em.dtype(x);
    pairs(cx, y, dtype)
}

/// The first half of a spectrum, and the middle.
fn half_of(cx: &mut Cx, y: Output, axis: usize) -> Result<Output> {
    let size = cx.size(y, axis)?;
    let half = cx.compute("FloorDiv", size, Size::Known(2))?;
    let half = cx.compute("AddV2", half, Size::Known(1))?;
    cx.slice(y, axis, Size::Known(0), Some(half))
}

/// As many elements as wanted along an axis: cut, or followed by zeros.
fn resized(cx: &mut Cx, x: Output, axis: usize, own: Size, wanted: Size) -> Result<Output> {
    let kept = cx.compute("Minimum", own, wanted)?;
    let y = cx.slice(x, axis, Size::Known(0), Some(kept))?;
    let more = cx.compute("Sub", wanted, kept)?;
    if matches!(more, Size::Known(0)) {
        return Ok(y);
    }
    let rank = cx.em.rank(x)?;
    let sides: Vec<Size> =
        (0..rank).flat_map(|at| [Size::Known(0), if at == axis { more } else { Size::Known(0) }]).collect();
    let sides = cx.packed(&sides)?;
    let sides = cx.reshape(sides, &[rank.into(), Size::Known(2)])?;
    op!(cx.em, "Pad", y, sides)
}

fn short_time(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, step) = (n.input(0)?, n.input(1)?);
    let (shape, length) = (n.maybe(2)?, n.maybe(3)?);
    let dtype = cx.em.dtype(x);
    let known = |cx: &Cx, x: Output| -> Result<Size> {
        Ok(match cx.em.ints(x).as_deref() {
            Some(&[value]) => Size::Known(value),
            _ => Size::Of(x),
        })
    };
    let step = cx.reshape(step, &[])?;
    let step = cx.long(step)?;
    let step = known(cx, step)?;
    let frame = match (length, shape) {
        (Some(length), _) => {
            let length = cx.reshape(length, &[])?;
            let length = cx.long(length)?;
            known(cx, length)?
        }
        (None, Some(shape)) => cx.size(shape, 0)?,
        (None, None) => return Err(Failure::invalid("it states neither a window nor a frame_length")),
    };
    // The frames: [batch, frames, length, 1 or 2].
    let size = cx.size(x, 1)?;
    let rest = cx.compute("Sub", size, frame)?;
    let (rest, step_of) = (cx.scalar(rest)?, cx.scalar(step)?);
    let count = op!(cx.em, "FloorDiv", rest, step_of)?;
    let count = op!(cx.em, "AddV2", count, 1i64)?;
    let count = known(cx, count)?;
    let starts = cx.range(count)?;
    let starts = op!(cx.em, "Mul", starts, step_of)?;
    let starts = cx.unsqueeze(starts, &[1])?;
    let offsets = cx.range(frame)?;
    let places = op!(cx.em, "AddV2", starts, offsets)?;
    let x = if cx.em.rank(x)? == 2 { cx.unsqueeze(x, &[2])? } else { x };
    let mut frames = op!(cx.em, "GatherV2", x, places, 1i64)?;
    if let Some(shape) = shape {
        let shape = cx.unsqueeze(shape, &[1])?;
        frames = op!(cx.em, "Mul", frames, shape)?;
    }
    let (z, is_pair) = complex(cx, frames)?;
    let y = op!(cx.em, "FFT", z)?;
    let y = if n.flag("onesided", true) && !is_pair { half_of(cx, y, 2)? } else { y };
    one(pairs(cx, y, dtype)?)
}

fn mel(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let mut numbers = [0.0; 5];
    for (i, number) in numbers.iter_mut().enumerate() {
        let x = n.input(i)?;
        match cx.em.floats(x).and_then(|all| all.first().copied()) {
            Some(known) => *number = known,
            None => return mel_of_step(cx, n),
        }
    }
    let [bins, length, rate, low, high] = numbers;
    let bins = bins as usize;
    let columns = (length / 2.0).floor() as usize + 1;
    if bins > 1 << 16 || columns > 1 << 20 || bins.saturating_mul(columns) > 1 << 24 {
        return Err(Failure::invalid(format!("{bins} bins of a transform of length {length}")));
    }
    let to_mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let (first, last) = (to_mel(low), to_mel(high));
    // Of as many steps as there are edges, by the specification.
    let step = (last - first) / (bins + 2) as f64;
    let edge = |i: usize| -> i64 {
        let hertz = 700.0 * (10f64.powf((first + step * i as f64) / 2595.0) - 1.0);
        ((length + 1.0) * hertz / rate).floor() as i64
    };
    let mut all = vec![0f64; columns * bins];
    for bin in 0..bins {
        let (from, centre, to) = (edge(bin), edge(bin + 1), edge(bin + 2));
        let mut set = |row: i64, value: f64| {
            if let Some(row) = usize::try_from(row).ok().filter(|&row| row < columns) {
                all[row * bins + bin] = value;
            }
        };
        if centre == from {
            set(centre, 1.0);
        } else {
            (from..=centre).for_each(|row| set(row, (row - from) as f64 / (centre - from) as f64));
        }
        if to > centre {
            (centre..to).for_each(|row| set(row, (to - row) as f64 / (to - centre) as f64));
        }
    }
    let all = cx.em.constant(Tensor::from_vec([columns, bins], all))?;
    one(cx.cast(all, output_type(n)?)?)
}

/// The same of numbers that only a step has.
fn mel_of_step(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let mut numbers = Vec::with_capacity(5);
    for i in 0..5 {
        let x = n.input(i)?;
        let x = cx.reshape(x, &[])?;
        numbers.push(cx.cast(x, DType::F64)?);
    }
    let [bins, length, rate, low, high] = numbers[..] else { unreachable!("five were added") };
    let to_mel = |cx: &mut Cx, hertz: Output| {
        let share = op!(cx.em, "RealDiv", hertz, 700.0)?;
        let log = op!(cx.em, "Log1p", share)?;
        op!(cx.em, "Mul", log, 2595.0 / std::f64::consts::LN_10)
    };
    let (first, last) = (to_mel(cx, low)?, to_mel(cx, high)?);
    let (span, parts) = (op!(cx.em, "Sub", last, first)?, op!(cx.em, "AddV2", bins, 2.0)?);
    let step = op!(cx.em, "RealDiv", span, parts)?;
    let count = cx.long(bins)?;
    let bin = cx.range(Size::Of(count))?;
    let bin = cx.cast(bin, DType::F64)?;
    let places = op!(cx.em, "AddV2", length, 1.0)?;
    let edge = |cx: &mut Cx, after: f64| {
        let at = op!(cx.em, "AddV2", bin, after)?;
        let at = op!(cx.em, "Mul", at, step)?;
        let mel = op!(cx.em, "AddV2", at, first)?;
        let power = op!(cx.em, "Mul", mel, std::f64::consts::LN_10 / 2595.0)?;
        let share = op!(cx.em, "Expm1", power)?;
        let hertz = op!(cx.em, "Mul", share, 700.0)?;
        let at = op!(cx.em, "Mul", hertz, places)?;
        let at = op!(cx.em, "RealDiv", at, rate)?;
        op!(cx.em, "Floor", at)
    };
    let (from, centre, to) = (edge(cx, 0.0)?, edge(cx, 1.0)?, edge(cx, 2.0)?);
    let half = op!(cx.em, "FloorDiv", length, 2.0)?;
    let rows = op!(cx.em, "AddV2", half, 1.0)?;
    let rows = cx.long(rows)?;
    let row = cx.range(Size::Of(rows))?;
    let row = cx.cast(row, DType::F64)?;
    let row = cx.unsqueeze(row, &[1])?;
    // The line from one corner of the triangle to the other, where its sides are not vertical.
    let side = |cx: &mut Cx, a: Output, b: Output, width: [Output; 2]| {
        let (part, whole) = (op!(cx.em, "Sub", a, b)?, op!(cx.em, "Sub", width[0], width[1])?);
        let whole = op!(cx.em, "Maximum", whole, 1.0)?;
        op!(cx.em, "RealDiv", part, whole)
    };
    let (up, down) = (side(cx, row, from, [centre, from])?, side(cx, to, row, [to, centre])?);
    let within = |cx: &mut Cx, low: &str, from: Output, high: &str, to: Output| {
        let (above, below) = (op!(cx.em, low, row, from)?, op!(cx.em, high, row, to)?);
        op!(cx.em, "LogicalAnd", above, below)
    };
    let falls = within(cx, "GreaterEqual", centre, "Less", to)?;
    let rises = within(cx, "GreaterEqual", from, "LessEqual", centre)?;
    let is_peak = op!(cx.em, "Equal", from, centre)?;
    let ones = op!(cx.em, "OnesLike", up)?;
    let zeros = op!(cx.em, "ZerosLike", up)?;
    let up = op!(cx.em, "SelectV2", is_peak, ones, up)?;
    let rising = op!(cx.em, "SelectV2", rises, up, zeros)?;
    let all = op!(cx.em, "SelectV2", falls, down, rising)?;
    one(cx.cast(all, output_type(n)?)?)
}
