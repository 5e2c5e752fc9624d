//! Products of matrices with scales and zero points, and of float32 with such a matrix.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::call::kernel as call;
use super::super::{KernelNode, Registry};
use super::is_of;
use super::product::add_scaled;
use super::scale::{least, most};
use super::uniform::{Factor, Limits, Scaling, axis, quantized};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("UniformQuantizedDot", |node| {
        if axis(node, "lhs_")?.is_some() {
            return Err(Failure::invalid("lhs_quantization_axis Attr must be -1 (per-tensor)."));
        }
        columns(node, "rhs_")?;
        columns(node, "output_")?;
        let limits = Limits::of(node, "output_")?;
        let kernel = call(move |inputs| dot(inputs, limits));
        Ok(is_of(node, &[DType::QI8, DType::QI8], DType::QI32).then_some(kernel))
    });
    ops.insert("UniformQuantizedDotHybrid", |node| {
        columns(node, "rhs_")?;
        Ok(is_of(node, &[DType::F32, DType::QI8], DType::F32).then(|| call(hybrid)))
    });
}

/// Checks that an attribute names the columns of a matrix, or no axis.
fn columns(node: &KernelNode, of: &str) -> Result<()> {
    match axis(node, of)? {
        None | Some(1) => Ok(()),
        Some(other) => Err(Failure::invalid(format!(
            "{of}quantization_axis Attr must be 1 (per-channel) or -1 (per-tensor), got {other}"
        ))),
    }
}

/// The rows and the depth of the first matrix, and the columns of the second.
fn sizes(lhs: &Tensor, rhs: &Tensor) -> Result<[usize; 3]> {
    match (lhs.dims(), rhs.dims()) {
        (&[rows, depth], &[same, columns]) if depth == same => Ok([rows, depth, columns]),
        _ => Err(Failure::invalid(format!(
            "lhs and rhs must be matrices, with as many columns of lhs as rows of rhs, but given lhs shape {} and rhs shape {}",
            lhs.shape(),
            rhs.shape()
        ))),
    }
}

/// The scaling of a matrix by columns if its scales are a vector.
fn of_columns(scales: &Tensor, zeros: &Tensor, shape: &Shape, name: &str) -> Result<Scaling> {
    Scaling::of(scales, zeros, shape, (scales.rank() > 0).then_some(1))?.positive(name)
}

/// The sums of products of integers less their zero points, modulo 2^32, each completed by `f` of its row and column.
fn products<T: Send + Default + Clone>(
    [rows, depth, columns]: [usize; 3],
    lhs: impl Fn(usize, usize) -> i32 + Sync,
    rhs: (&[i8], &Scaling),
    f: impl Fn(usize, usize, i32) -> T + Sync,
) -> Result<Vec<T>> {
    memory::admit(size_of_val(rhs.0) * size_of::<i32>())?;
    let zeros: Vec<i32> = (0..columns).map(|column| rhs.1.zero(column)).collect();
    let rhs: Vec<i32> =
        rhs.0.iter().zip(zeros.iter().cycle()).map(|(&x, &zero)| i32::from(x).wrapping_sub(zero)).collect();
    let mut out = vec![T::default(); rows * columns];
    let many = chunk(depth.saturating_mul(columns));
    in_chunks(out.chunks_mut((many * columns).max(1)).enumerate(), |(i, to)| {
        let mut sums = vec![0i32; columns];
        for (row, to) in (i * many..).zip(to.chunks_mut(columns)) {
            sums.fill(0);
            for k in 0..depth {
                add_scaled(&mut sums, lhs(row, k), &rhs[k * columns..(k + 1) * columns]);
            }
            to.iter_mut().zip(&sums).enumerate().for_each(|(column, (to, &sum))| *to = f(row, column, sum));
        }
    });
    Ok(out)
}

fn dot(inputs: [Tensor; 8], limits: Limits) -> Result<Tensor> {
    let [lhs, rhs, lhs_scales, lhs_zeros, rhs_scales, rhs_zeros, scales, zeros] = inputs;
    let [rows, depth, columns] = sizes(&lhs, &rhs)?;
    let of_lhs = Scaling::of(&lhs_scales, &lhs_zeros, lhs.shape(), None)?.positive("lhs")?;
    let of_rhs = of_columns(&rhs_scales, &rhs_zeros, rhs.shape(), "rhs")?;
    let shape = Shape::from([rows, columns]);
    let of_out = of_columns(&scales, &zeros, &shape, "output")?;
    let completed = Completed::new(&of_lhs, &of_rhs, of_out, columns, limits)?;
    shape.checked_elements(DType::QI32)?;
    let (x, zero) = (lhs.stored::<i8>()?, of_lhs.zero(0));
    let lhs = |row: usize, k: usize| i32::from(x[row * depth + k]).wrapping_sub(zero);
    let out = products([rows, depth, columns], lhs, (rhs.stored::<i8>()?, &of_rhs), |_, column, sum| {
        completed.of(column, sum)
    })?;
    Ok(Tensor::from_stored(DType::QI32, shape, out))
}

/// The last step of a product: from a sum to an integer of the output's scaling.
pub(super) struct Completed {
    factors: Vec<Factor>,
    out: Scaling,
    limits: Limits,
}

impl Completed {
    /// # Errors
    /// InvalidArgument if a product of scales is not positive and finite, or if the output has a scale for each channel and the
    /// second factor has not.
    pub fn new(lhs: &Scaling, rhs: &Scaling, out: Scaling, channels: usize, limits: Limits) -> Result<Completed> {
        if out.axis.is_some() && rhs.axis.is_none() {
            return Err(Failure::invalid("If rhs is per-tensor quantized, output must be also per-tensor quantized."));
        }
        let factor = |channel| {
            Factor::new(f64::from(lhs.scale(0)) * f64::from(rhs.scale(channel)) / f64::from(out.scale(channel)))
        };
        // A single factor is computed, and refused, for a product without channels, too.
        let count = if rhs.axis.is_some() { channels } else { 1 };
        Ok(Completed { factors: (0..count).map(factor).collect::<Result<_>>()?, out, limits })
    }

    #[inline]
    pub fn of(&self, channel: usize, sum: i32) -> i32 {
        let factor = self.factors[if self.factors.len() > 1 { channel } else { 0 }];
        self.limits.clamped(factor.times(sum).wrapping_add(self.out.zero(channel)))
    }
}

/// Numbers as int8s with a scale and a zero point that fit them.
pub(super) struct Fitted {
    pub whole: Vec<i8>,
    pub scale: f32,
    pub zero: i32,
}

impl Fitted {
    pub fn new(numbers: &[f32]) -> Fitted {
        const LEAST: f64 = -128.0;
        const MOST: f64 = 127.0;
        let min = f64::from(least(0.0, numbers.iter().fold(f32::INFINITY, |min, &x| least(min, x))));
        let max = f64::from(most(0.0, numbers.iter().fold(f32::NEG_INFINITY, |max, &x| most(max, x))));
        let scale = ((max - min) / (MOST - LEAST)) as f32;
        let inverse = if max - min == 0.0 { 0.0 } else { ((MOST - LEAST) / (max - min)) as f32 };
        if scale == 0.0 || !inverse.is_finite() {
            return Fitted { whole: vec![0; numbers.len()], scale: 1.0, zero: 0 };
        }
        // Of both ends, the one that gives the more precise zero point.
        let (below, above) = (min / f64::from(scale), max / f64::from(scale));
        let zero = if LEAST.abs() + below.abs() < MOST.abs() + above.abs() { LEAST - below } else { MOST - above };
        let zero = zero.clamp(LEAST, MOST).round() as i32;
        let whole = numbers.iter().map(|&x| quantized(x, inverse, zero, Limits::BYTE) as i8).collect();
        Fitted { whole, scale, zero }
    }
}

fn hybrid(inputs: [Tensor; 4]) -> Result<Tensor> {
    let [lhs, rhs, rhs_scales, rhs_zeros] = inputs;
    let [rows, depth, columns] = sizes(&lhs, &rhs)?;
    let of_rhs = of_columns(&rhs_scales, &rhs_zeros, rhs.shape(), "rhs")?;
    let shape = Shape::from([rows, columns]);
    shape.checked_elements(DType::F32)?;
    memory::admit(lhs.len())?;
    let all = lhs.slice::<f32>()?;
    let fitted: Vec<Fitted> = (0..rows).map(|row| Fitted::new(&all[row * depth..(row + 1) * depth])).collect();
    let lhs = |row: usize, k: usize| i32::from(fitted[row].whole[k]) - fitted[row].zero;
    let out = products([rows, depth, columns], lhs, (rhs.stored::<i8>()?, &of_rhs), |row, column, sum| {
        sum as f32 * fitted[row].scale * of_rhs.scale(column)
    })?;
    Ok(Tensor::from_vec(shape, out))
}
