//! IsotonicRegression: the nearest rows that do not increase.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Tensor, memory, with_type};
use smallvec::smallvec;

use super::super::call::{input_dtype, output_dtype, take};
use super::super::math::cast;
use super::super::{Outputs, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("IsotonicRegression", |node| {
        let (input, output) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
        let is_held = match input {
            DType::I8 | DType::I16 => output == DType::F32,
            DType::I32 | DType::I64 => output == DType::F64,
            _ => output == input,
        };
        let kernel = with_type!(output, T => Box::new(move |inputs| {
            let [input] = take(inputs)?;
            pooled::<T>(&cast(input, output)?)
        }) as crate::HostKernel; F16 half::f16, BF16 half::bf16, F32 f32, F64 f64);
        Ok(kernel.filter(|_| is_held))
    });
}

/// Adjacent elements of a row that increase are replaced by their mean, until none do. Returns the rows, and for each element
/// the number of its group.
fn pooled<T: Numeric>(input: &Tensor) -> Result<Outputs> {
    let Some(&width) = input.dims().last() else {
        return Err(Failure::invalid("the input of IsotonicRegression must have at least one dimension, got a scalar"));
    };
    memory::admit(input.len().saturating_mul(size_of::<T>() + 4).saturating_add(width.saturating_mul(32)))?;
    let (mut values, mut groups) = (Vec::with_capacity(input.len()), Vec::with_capacity(input.len()));
    let mut pace = Pace::new();
    for row in input.slice::<T>()?.chunks_exact(width.max(1)) {
        // Of each group: the number of its elements, their sum and their mean.
        let mut pools: Vec<(usize, T, T)> = Vec::new();
        for &x in row {
            pace.go(4);
            let mut last = (1, x, x);
            while let Some(&(count, sum, mean)) = pools.last()
                && last.2 > mean
            {
                pools.pop();
                let (count, sum) = (count + last.0, sum.add(last.1));
                last = (count, sum, T::from_f64(sum.to_f64() / T::from_f64(count as f64).to_f64()));
            }
            pools.push(last);
        }
        for (number, (count, _, mean)) in (0i32..).zip(pools) {
            values.extend(std::iter::repeat_n(mean, count));
            groups.extend(std::iter::repeat_n(number, count));
        }
    }
    Ok(smallvec![Tensor::from_vec(input.shape().clone(), values), Tensor::from_vec(input.shape().clone(), groups)])
}
