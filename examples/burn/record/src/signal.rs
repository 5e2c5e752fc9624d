//! burn-signal's Fourier transforms, which are custom operations.

use burn_backend::DType;
use burn_ir::{CustomOpIr, OperationIr, ScalarIr};

use crate::case::{Case, Cases};

pub fn fill(cases: &mut Cases) {
    // With and without a length, which pads or cuts the signal off.
    for (shape, dim, length) in [
        (&[8][..], 0, None),
        (&[1], 0, None),
        (&[2], 0, None),
        (&[3, 4], 1, None),
        (&[4, 3], 0, None),
        (&[2, 16, 3], 1, None),
        (&[5], 0, Some(8)),
        (&[2, 7], 1, Some(4)),
        (&[3, 2], 0, Some(16)),
        (&[2, 3], 1, Some(1)),
        (&[2, 4], 1, Some(4)),
        (&[2, 64], 1, None),
    ] {
        forward(cases, DType::F32, shape, dim, length);
    }
    for (shape, dim, length) in [
        (&[5][..], 0, None),
        (&[2], 0, None),
        (&[2, 3], 1, None),
        (&[3, 2], 0, None),
        (&[2, 9, 3], 1, None),
        (&[5], 0, Some(4)),
        (&[2, 3], 1, Some(16)),
        (&[3, 2], 0, Some(8)),
        (&[2, 3], 1, Some(1)),
        (&[2, 33], 1, None),
    ] {
        inverse(cases, DType::F32, shape, dim, length);
    }
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        forward(cases, dtype, &[2, 8], 1, None);
        inverse(cases, dtype, &[2, 5], 1, None);
    }
}

fn scalars(dim: usize, length: Option<usize>) -> Vec<ScalarIr> {
    vec![ScalarIr::UInt(dim as u64), ScalarIr::Bool(length.is_some()), ScalarIr::UInt(length.unwrap_or(0) as u64)]
}

fn forward(cases: &mut Cases, dtype: DType, shape: &[usize], dim: usize, length: Option<usize>) {
    cases.add(|c: &Case| {
        let mut out = shape.to_vec();
        out[dim] = length.unwrap_or(shape[dim]) / 2 + 1;
        let (signal, outputs) = (c.any(dtype, shape), [c.out(dtype, &out), c.out(dtype, &out)]);
        OperationIr::Custom(CustomOpIr::with_scalars("signal::rfft", &[signal], &outputs, scalars(dim, length)))
    });
}

fn inverse(cases: &mut Cases, dtype: DType, shape: &[usize], dim: usize, length: Option<usize>) {
    cases.add(|c: &Case| {
        let mut out = shape.to_vec();
        out[dim] = length.unwrap_or((shape[dim] - 1) * 2);
        // The lowest and the highest frequency of a real signal are real: the answer of flex to others does not matter.
        let (inner, after) = (shape[dim + 1..].iter().product::<usize>(), out[dim] / 2);
        let imaginary: Vec<f64> = (0..shape.iter().product::<usize>())
            .map(|i| {
                let frequency = i / inner % shape[dim];
                let value = (c.unit() * 16.0).round() / 4.0 - 2.0;
                if frequency == 0 || frequency == after { 0.0 } else { value }
            })
            .collect();
        let spectrum = [c.any(dtype, shape), c.of(dtype, shape, &imaginary)];
        let outputs = [c.out(dtype, &out)];
        OperationIr::Custom(CustomOpIr::with_scalars("signal::irfft", &spectrum, &outputs, scalars(dim, length)))
    });
}
