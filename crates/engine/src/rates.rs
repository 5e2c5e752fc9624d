//! The rates at which a device computes and reads, measured with two of its kernels.

use std::time::{Duration, Instant};

use meshtf_graph::{Attr, Attrs, OutputType};
use meshtf_kernels::{Inputs, KernelNode};
use meshtf_loops::chunks::threads;
use meshtf_tensor::device::{Rates, STREAMED_BYTES, Streamed};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{DType, Tensor};
use smallvec::smallvec;

use crate::{Engine, EngineOutcome, Value};

/// The calls of a measurement, of whose rounds the fastest counts.
#[derive(Clone, Copy)]
struct Trial {
    /// Further calls in a row, each on the result of the one before, which alone count; with 0, the first one does.
    further: u32,
    /// Least and most rounds: on a busy machine, most are disturbed.
    rounds: (usize, usize),
    /// It ends after the first round that ends later than this.
    time: Duration,
    /// If the very first call takes longer, there is no result.
    first_within: Duration,
}

/// Of kernels whose first call makes what they keep: threads, buffers, compiled code of a GPU.
const COMPUTING: Trial =
    Trial { further: 4, rounds: (3, 5), time: Duration::from_millis(10), first_within: Duration::MAX };
/// Of one that reads so much that nothing else takes time. The difference of two such times would be that of their disturbances.
const STREAMING: Trial =
    Trial { further: 0, rounds: (5, 50), time: Duration::from_millis(20), first_within: Duration::from_millis(100) };
/// The same on several threads, which the system may leave on one core for that long after they began.
const SPREADING: Duration = Duration::from_millis(80);

/// Matrices of so many rows and columns have the sizes of [`STREAMED_BYTES`], or a little less.
const STREAMED_SIZES: [usize; 2] = [2048, 5792];
/// The larger one is made if this many times its bytes are free.
const STREAMED_ROOM: u64 = 4;

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
    // First, since it has the threads spread over the cores.
    let streamed = if streams && engine.computes_here() { streamed(engine)? } else { None };
    let (matrix, vector) = (square(size), Tensor::vector(vec![0f32; len]));
    let product = fastest(engine, "MatMul", (&matrix, &matrix), COMPUTING)?;
    let sum = fastest(engine, "Add", (&vector, &vector), COMPUTING)?;
    let (Some(product), Some(sum)) = (product, sum) else { return Ok(None) };
    // Two tensors are read, and one is written.
    let bytes = per_second(3 * len * size_of::<f32>(), sum);
    Ok(Some(Rates { multiply_adds: per_second(size * size * size, product), bytes, streamed }))
}

/// The rates at which a product reads weights; `None` if memory is short, or the times are not plausible.
///
/// # Errors
/// As [`measure`].
fn streamed(engine: &dyn Engine) -> Result<Option<Streamed>> {
    if Budget::current().free().is_some_and(|free| (free as u64) < STREAMED_ROOM * STREAMED_BYTES[1]) {
        return Ok(None);
    }
    let [small, large] = STREAMED_SIZES;
    let of = |size: usize, time: Duration| {
        let row = Tensor::from_vec([1, size], vec![1f32; size]);
        fastest(engine, "MatMul", (&row, &square(size)), Trial { time, ..STREAMING })
    };
    let (spreading, usual) = (if threads() > 1 { SPREADING } else { STREAMING.time }, STREAMING.time);
    let Some(of_large) = of(large, spreading)? else { return Ok(None) };
    let Some(of_small) = of(small, usual)? else { return Ok(None) };
    let bytes = [small, large].map(|size| size * size * size_of::<f32>());
    Ok(by_two_sizes(bytes, [of_small, of_large]))
}

/// The rates if so many bytes were read in these times; `None` if the larger number was read sooner.
fn by_two_sizes([small, large]: [usize; 2], [of_small, of_large]: [Duration; 2]) -> Option<Streamed> {
    let kept = per_second(small, of_small);
    let rest = of_large.checked_sub(of_small).filter(|rest| !rest.is_zero())?;
    // Memory is not faster than caches.
    Some(Streamed { kept, memory: per_second(large - small, rest).min(kept) })
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
    let (mut one, mut more) = (Duration::MAX, Duration::MAX);
    for round in 1..=trial.rounds.1 {
        one = one.min(timed(1)?);
        if trial.further > 0 {
            more = more.min(timed(1 + trial.further)?);
        }
        if round >= trial.rounds.0 && begun.elapsed() > trial.time {
            break;
        }
    }
    if trial.further == 0 {
        return Ok(Some(one));
    }
    // The least of each apart: of a difference, an interrupted first time would make too high a rate. The difference has no part
    // of the transfer of the result to the host.
    Ok(more.checked_sub(one).map(|time| time / trial.further))
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
        let streamed = streamed(&HostEngine).unwrap().map(|Streamed { kept, memory }| [kept, memory]);
        for rate in [rates.multiply_adds, rates.bytes].into_iter().chain(streamed.into_iter().flatten()) {
            assert!((1_000..1_000_000_000_000_000).contains(&rate), "{rates:?}");
        }
    }

    #[test]
    fn memory_brings_what_the_larger_matrix_has_more() {
        // 20 MB in 0.2 ms, and 80 MB more in 2 ms more.
        let of = |small, large| by_two_sizes([20_000_000, 100_000_000], [small, large].map(Duration::from_micros));
        let check = |rates: Option<Streamed>, kept: u64, memory: u64| {
            let rates = rates.unwrap();
            assert!(rates.kept.abs_diff(kept) <= 1 && rates.memory.abs_diff(memory) <= 1, "{rates:?}");
        };
        check(of(200, 2_200), 100_000_000_000, 40_000_000_000);
        // 80 MB in 0.4 ms would be 200 GB/s, twice the rate of the caches.
        check(of(200, 600), 100_000_000_000, 100_000_000_000);
        assert_eq!(of(200, 200), None);
        assert_eq!(of(200, 150), None);
    }

    #[test]
    fn no_matrix_is_made_where_memory_is_short() {
        assert_eq!(Budget::of(500 << 20).run(|| streamed(&HostEngine)), Ok(None));
    }
}
