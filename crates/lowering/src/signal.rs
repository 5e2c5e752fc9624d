//! Rules for burn-signal's Fourier transforms of real signals, which a program sends as custom operations.
//!
//! In burn, a spectrum is two tensors, its real and its imaginary part; in TensorFlow it is one, of complex numbers.

use burn_ir::{CustomOpIr, ScalarIr, TensorIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::compose::{integers, sizes};
use super::values::dtype;
use super::{Lowering, refused};

impl Lowering<'_> {
    /// A custom operation, identified by its name.
    ///
    /// # Errors
    /// Unimplemented, with the name, if there is no rule for it.
    pub(super) fn custom(&mut self, op: &CustomOpIr) -> Result<()> {
        match (op.id.as_str(), &op.inputs[..], &op.outputs[..]) {
            ("signal::rfft", [signal], [re, im]) => self.rfft(op, signal, re, im),
            ("signal::irfft", [re, im], [signal]) => self.irfft(op, re, im, signal),
            _ => Err(refused(&op.id, "it is a custom operation, of which only the name is known")),
        }
    }

    /// The spectrum of a real signal along a dim: of its first n values, padded with zeros if there are fewer.
    fn rfft(&mut self, op: &CustomOpIr, signal: &TensorIr, re: &TensorIr, im: &TensorIr) -> Result<()> {
        let transform = Transform::of(op, signal, |length| length)?;
        for part in [re, im] {
            transform.answers(part, transform.length / 2 + 1)?;
        }
        let value = self.read(signal)?;
        let value = self.wide_enough(value, signal)?;
        let value = self.along_last(value, signal, &transform, transform.length)?;
        let (real, complex) = numbers(dtype(signal.dtype)?);
        let length = sizes(&[transform.length])?;
        let spectrum = self.node_with("RFFT", [value.into(), length], &[("Tcomplex", complex.into())])?;
        for (part, out) in [("Real", re), ("Imag", im)] {
            let part = self.node_with(part, [spectrum.into()], &[("Tout", real.into())])?;
            let part = self.swap_last(part, transform.dim, transform.rank)?;
            let part = self.narrowed(part, out)?;
            self.write(out, part)?;
        }
        Ok(())
    }

    /// The real signal of n values that has this spectrum along a dim. The imaginary parts of the lowest and the highest
    /// frequency have no effect, as those of a real signal are zero.
    fn irfft(&mut self, op: &CustomOpIr, re: &TensorIr, im: &TensorIr, signal: &TensorIr) -> Result<()> {
        let transform = Transform::of(op, re, |frequencies| frequencies.saturating_sub(1).saturating_mul(2))?;
        transform.answers(signal, transform.length)?;
        let (real_part, imaginary) = (self.read(re)?, self.read(im)?);
        let (real_part, imaginary) = (self.wide_enough(real_part, re)?, self.wide_enough(imaginary, im)?);
        let (real, complex) = numbers(dtype(re.dtype)?);
        let spectrum = self.node_with("Complex", [real_part.into(), imaginary.into()], &[("Tout", complex.into())])?;
        let spectrum = self.along_last(spectrum, re, &transform, transform.length / 2 + 1)?;
        let length = sizes(&[transform.length])?;
        let value = self.node_with("IRFFT", [spectrum.into(), length], &[("Treal", real.into())])?;
        let value = self.swap_last(value, transform.dim, transform.rank)?;
        let value = self.narrowed(value, signal)?;
        self.write(signal, value)
    }

    /// A value of this tensor with the dim of a transform last, padded with zeros if it is shorter than `least`.
    fn along_last(&mut self, value: Output, of: &TensorIr, transform: &Transform, least: usize) -> Result<Output> {
        let value = self.swap_last(value, transform.dim, transform.rank)?;
        let missing = least.saturating_sub(of.shape[transform.dim]);
        if missing == 0 {
            return Ok(value);
        }
        let mut amounts = vec![0; 2 * transform.rank];
        amounts[2 * transform.rank - 1] = missing;
        let amounts = integers(amounts.into_iter(), DType::I64)?.reshaped([transform.rank, 2])?;
        self.node("Pad", [value.into(), Input::Value(amounts)])
    }

    /// A value of this tensor in a dtype that has transforms.
    fn wide_enough(&mut self, value: Output, of: &TensorIr) -> Result<Output> {
        let from = dtype(of.dtype)?;
        self.cast(value, from, numbers(from).0)
    }

    /// The result of a transform, in the dtype of this tensor.
    fn narrowed(&mut self, value: Output, out: &TensorIr) -> Result<Output> {
        let to = dtype(out.dtype)?;
        self.cast(value, numbers(to).0, to)
    }
}

/// The dtypes of real and of complex numbers in which tensors of this one are transformed.
fn numbers(dtype: DType) -> (DType, DType) {
    if dtype == DType::F64 { (DType::F64, DType::C128) } else { (DType::F32, DType::C64) }
}

/// The dim of a transform, and the length of the signal along it.
struct Transform {
    dim: usize,
    rank: usize,
    length: usize,
}

impl Transform {
    /// The transform that an operation's scalars specify: a dim, whether a length is given, and the length. Without one, it
    /// follows from the input's size.
    fn of(op: &CustomOpIr, input: &TensorIr, natural: impl Fn(usize) -> usize) -> Result<Transform> {
        let [ScalarIr::UInt(dim), ScalarIr::Bool(is_given), ScalarIr::UInt(length)] = op.scalars[..] else {
            let why = format!("{} has the arguments {:?}, which are not those of burn-signal 0.22", op.id, op.scalars);
            return Err(Failure::invalid(why));
        };
        let (dim, rank) = (dim as usize, input.shape.rank());
        let Some(&size) = input.shape.get(dim) else {
            return Err(Failure::invalid(format!("{} along dim {dim} of a tensor of rank {rank}", op.id)));
        };
        Ok(Transform { dim, rank, length: if is_given { length as usize } else { natural(size) } })
    }

    /// Checks that an output has `count` values along the dim.
    fn answers(&self, out: &TensorIr, count: usize) -> Result<()> {
        if out.shape.get(self.dim) == Some(&count) {
            return Ok(());
        }
        let shape = &out.shape[..];
        Err(Failure::invalid(format!("an output of shape {shape:?} for {count} values along dim {}", self.dim)))
    }
}
