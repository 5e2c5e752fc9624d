//! The rates at which a device computes, measured with two of its kernels.

use std::time::{Duration, Instant};

use meshtf_graph::{Attr, Attrs, OutputType};
use meshtf_kernels::{Inputs, KernelNode};
use meshtf_tensor::device::Rates;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};
use smallvec::smallvec;

use crate::{Engine, EngineOutcome, Value};

/// A measurement ends after the first round that ends later than this.
const TIME: Duration = Duration::from_millis(10);
/// Least and most rounds, of which the fastest counts: on a busy machine, most are disturbed.
const ROUNDS: (usize, usize) = (3, 5);
/// Calls in a row, each on the result of the one before.
const CALLS: u32 = 4;
/// Measures a device for some tens of milliseconds; `None` if the times are not plausible. While the machine has other work,
/// the rates are lower.
///
/// # Errors
/// As the engine's kernels.
pub fn measure(engine: &dyn Engine) -> Result<Option<Rates>> {
    // On a processor, so little that the memory of an idle node does not grow; on a GPU, more than its launches take.
    let (size, len) = if engine.computes_here() { (256, 256 << 10) } else { (2048, 32 << 20) };
    let matrix = Tensor::from_vec([size, size], vec![1.0 / size as f32; size * size]);
    let product = fastest(engine, "MatMul", &matrix)?;
    let sum = fastest(engine, "Add", &Tensor::vector(vec![0f32; len]))?;
    let (Some(product), Some(sum)) = (product, sum) else { return Ok(None) };
    // Two tensors are read, and one is written.
    let bytes = per_second(3 * len * size_of::<f32>(), sum);
    Ok(Some(Rates { multiply_adds: per_second(size * size * size, product), bytes }))
}

fn per_second(amount: usize, time: Duration) -> u64 {
    (amount as f64 / time.as_secs_f64().max(1e-9)) as u64
}

/// The least time that a call of this op took on two tensors like this one; `None` if it could not be told from noise.
fn fastest(engine: &dyn Engine, op: &str, operand: &Tensor) -> Result<Option<Duration>> {
    let mut attrs = Attrs::from([("T", Attr::Type(DType::F32))]);
    if op == "MatMul" {
        attrs.set("transpose_a", Attr::Bool(false));
        attrs.set("transpose_b", Attr::Bool(false));
    }
    let outputs = [OutputType { dtype: DType::F32, is_ref: false }];
    let node =
        KernelNode { name: "rate", op, attrs: &attrs, inputs: &[DType::F32; 2], outputs: &outputs, constants: 0 };
    let mut host =
        meshtf_kernels::compile(&node)?.ok_or_else(|| Failure::new(Code::Internal, format!("{op} has no kernel")))?;
    let mut of_engine = engine.compile(&node)?;
    let mut call = |left: Value, right: Value| -> Result<Value> {
        let mut values = smallvec![left, right];
        if let Some(kernel) = &mut of_engine {
            match (kernel.run)(values)? {
                EngineOutcome::Done(mut outputs) => return outputs.pop().ok_or_else(no_output),
                EngineOutcome::Declined(inputs) => values = inputs,
            }
        }
        let inputs = values.into_iter().map(Value::into_host).collect::<Result<Inputs>>()?;
        host(inputs)?.pop().map(Value::Host).ok_or_else(no_output)
    };
    let right = engine.upload(operand.clone())?;
    let mut timed = |calls: u32| -> Result<Duration> {
        let mut left = engine.upload(operand.clone())?;
        let start = Instant::now();
        for _ in 0..calls {
            left = call(left, right.clone())?;
            engine.begin(&left);
        }
        left.into_host()?;
        Ok(start.elapsed())
    };
    // It makes all that kernels keep: threads, buffers, compiled code of a GPU.
    timed(1)?;
    let begun = Instant::now();
    // The least of each apart: of a difference, an interrupted first time would make too high a rate.
    let (mut least_one, mut least_more) = (Duration::MAX, Duration::MAX);
    for round in 1..=ROUNDS.1 {
        least_one = least_one.min(timed(1)?);
        least_more = least_more.min(timed(1 + CALLS)?);
        if round >= ROUNDS.0 && begun.elapsed() > TIME {
            break;
        }
    }
    // The difference has no part of the transfer of the result to the host.
    Ok(least_more.checked_sub(least_one).map(|time| time / CALLS))
}

fn no_output() -> Failure {
    Failure::new(Code::Internal, "a kernel without an output")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostEngine;

    #[test]
    fn a_device_has_rates_that_it_could_have() {
        let Some(rates) = measure(&HostEngine).unwrap() else { panic!("five rounds without a plausible one") };
        // The slowest processor in use does more than a thousand a second, and none a thousand million millions.
        for rate in [rates.multiply_adds, rates.bytes] {
            assert!((1_000..1_000_000_000_000_000).contains(&rate), "{rates:?}");
        }
    }
}
