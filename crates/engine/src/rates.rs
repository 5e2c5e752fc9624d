//! The rates at which a device computes and reads, measured with two of its kernels.

use std::time::{Duration, Instant};

use meshtf_graph::{Attr, Attrs, OutputType};
use meshtf_kernels::{Inputs, KernelNode};
use meshtf_tensor::device::Rates;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{DType, Tensor};
use smallvec::smallvec;

use crate::{Engine, EngineOutcome, Value};

/// A measurement ends after the first round that ends later than this.
const TIME: Duration = Duration::from_millis(10);
/// Least and most rounds: on a busy machine, most are disturbed.
const ROUNDS: (usize, usize) = (3, 5);

/// The calls of a measurement.
#[derive(Clone, Copy)]
struct Trial {
    /// Calls in a row, each on the result of the one before.
    calls: u32,
    /// A first call that takes longer ends the measurement without a result.
    first_within: Duration,
    /// Which round counts: the fastest or, where steps are disturbed as often as these, the usual one.
    is_usual: bool,
}

/// Of kernels whose first call makes what they keep: threads, buffers, compiled code of a GPU.
const COMPUTING: Trial = Trial { calls: 4, first_within: Duration::MAX, is_usual: false };
/// Of one that reads memory, on a machine that has no other work.
const STREAMING: Trial = Trial { calls: 1, first_within: Duration::from_millis(100), is_usual: true };
/// A matrix of this many rows and columns, 128 MiB, is more than the caches of most processors hold.
const STREAMED_SIZE: usize = 5792;
/// The matrix is made if this many times its bytes are free.
const STREAMED_ROOM: usize = 4;

/// Measures a device for some tens of milliseconds, and its memory, too, if it `streams`; `None` if the times are not plausible.
/// While the machine has other work, the rates are lower.
///
/// # Errors
/// As the engine's kernels.
pub fn measure(engine: &dyn Engine, streams: bool) -> Result<Option<Rates>> {
    // On a processor that starts, so little that it takes no time; on a GPU, more than its launches take.
    let (size, len) = match (engine.computes_here(), streams) {
        (true, false) => (256, 256 << 10),
        // Other threads need some time to begin.
        (true, true) => (512, 256 << 10),
        (false, _) => (2048, 32 << 20),
    };
    let (matrix, vector) = (square(size), Tensor::vector(vec![0f32; len]));
    let product = fastest(engine, "MatMul", (&matrix, &matrix), COMPUTING)?;
    let sum = fastest(engine, "Add", (&vector, &vector), COMPUTING)?;
    let (Some(product), Some(sum)) = (product, sum) else { return Ok(None) };
    // Two tensors are read, and one is written.
    let bytes = per_second(3 * len * size_of::<f32>(), sum);
    let streamed = if streams && engine.computes_here() { streamed(engine)? } else { None };
    Ok(Some(Rates { multiply_adds: per_second(size * size * size, product), bytes, streamed }))
}

/// The bytes of weights that a product reads from memory, a second; `None` if memory is short, or the time is not plausible.
///
/// # Errors
/// As [`measure`].
fn streamed(engine: &dyn Engine) -> Result<Option<u64>> {
    let bytes = STREAMED_SIZE * STREAMED_SIZE * size_of::<f32>();
    if Budget::current().free().is_some_and(|free| free < STREAMED_ROOM * bytes) {
        return Ok(None);
    }
    let row = Tensor::from_vec([1, STREAMED_SIZE], vec![1f32; STREAMED_SIZE]);
    let time = fastest(engine, "MatMul", (&row, &square(STREAMED_SIZE)), STREAMING)?;
    Ok(time.map(|time| per_second(bytes, time)))
}

/// A matrix whose products with itself and with a row stay as large as these are.
fn square(size: usize) -> Tensor {
    Tensor::from_vec([size, size], vec![1.0 / size as f32; size * size])
}

fn per_second(amount: usize, time: Duration) -> u64 {
    (amount as f64 / time.as_secs_f64().max(1e-9)) as u64
}

/// The least time that a call of this op took on these tensors; `None` if it could not be told from noise, or the first took
/// too long.
fn fastest(engine: &dyn Engine, op: &str, (left, right): (&Tensor, &Tensor), trial: Trial) -> Result<Option<Duration>> {
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
    let right = engine.upload(right.clone())?;
    let mut timed = |calls: u32| -> Result<Duration> {
        let mut left = engine.upload(left.clone())?;
        let start = Instant::now();
        for _ in 0..calls {
            left = call(left, right.clone())?;
            engine.begin(&left);
        }
        left.into_host()?;
        Ok(start.elapsed())
    };
    if timed(1)? > trial.first_within {
        return Ok(None);
    }
    let begun = Instant::now();
    let (mut one, mut more) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS.1 {
        one.push(timed(1)?);
        more.push(timed(1 + trial.calls)?);
        if round >= ROUNDS.0 && begun.elapsed() > TIME {
            break;
        }
    }
    // Of each apart: of a difference, an interrupted first time would make too high a rate.
    let counts = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[if trial.is_usual { times.len() / 2 } else { 0 }]
    };
    // The difference has no part of the transfer of the result to the host.
    Ok(counts(more).checked_sub(counts(one)).map(|time| time / trial.calls))
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
        let Some(rates) = measure(&HostEngine, false).unwrap() else { panic!("five rounds without a plausible one") };
        // The slowest processor in use does more than a thousand a second, and none a thousand million millions.
        let streamed = streamed(&HostEngine).unwrap();
        for rate in [rates.multiply_adds, rates.bytes].into_iter().chain(streamed) {
            assert!((1_000..1_000_000_000_000_000).contains(&rate), "{rates:?}");
        }
    }

    #[test]
    fn no_matrix_is_made_where_memory_is_short() {
        assert_eq!(Budget::of(500 << 20).run(|| streamed(&HostEngine)), Ok(None));
    }
}
