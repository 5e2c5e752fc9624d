//! Random ops without state: their numbers follow from a key and a counter, or from a seed that determines both.

use meshtf_random::{Distribution, Philox, between, of_all};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor, with_float, with_type};
use smallvec::smallvec;

use super::super::call::{input_dtype, kernel as call, output_dtype, take};
use super::super::{HostKernel, KernelNode, Registry};
use super::stateful::{Dice, draw_classes, shape_of, shuffled};

/// The algorithm ids in graphs.
const PHILOX: i64 = 1;
const AUTO_SELECT: i64 = 3;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StatelessRandomGetKeyCounter", |_| {
        Ok(Some(Box::new(|inputs| {
            let [seed] = take(inputs)?;
            let (key, counter) = key_and_counter(&seed)?;
            let words = vec![counter as u64, (counter >> 64) as u64];
            Ok(smallvec![Tensor::vector(vec![key]), Tensor::vector(words)])
        }) as HostKernel))
    });
    ops.insert("StatelessRandomGetAlg", |_| Ok(Some(call(|[]| Ok(Tensor::scalar(PHILOX as i32))))));
    ops.insert("StatelessRandomGetKeyCounterAlg", |_| {
        Ok(Some(Box::new(|inputs| {
            let [seed] = take(inputs)?;
            let (key, counter) = key_and_counter(&seed)?;
            let words = vec![counter as u64, (counter >> 64) as u64];
            Ok(smallvec![Tensor::vector(vec![key]), Tensor::vector(words), Tensor::scalar(PHILOX as i32)])
        }) as HostKernel))
    });
    ops.insert("StatelessShuffle", |node| {
        Ok(with_type!(input_dtype(node, 0)?, T => call(|[value, key, counter, algorithm]: [Tensor; 4]| {
            let philox = source(&[key, counter, algorithm])?;
            shuffled::<T>(value, |_| philox)
        })))
    });
    ops.insert("NonDeterministicInts", |node| {
        let dtype = output_dtype(node, 0)?;
        let is_held = matches!(dtype, DType::I32 | DType::I64 | DType::U32 | DType::U64);
        Ok(is_held.then(|| {
            call(move |[shape]: [Tensor; 1]| {
                let shape = shape_of(&shape)?;
                let n = shape.checked_elements(dtype)?;
                let (seed, seed2) = Dice::unpredictable_seeds();
                of_all(dtype, shape, n, Philox::from_seeds(seed, seed2))
            })
        }))
    });
    ops.insert("StatelessMultinomial", multinomial);
    ops.insert_all(["StatelessRandomUniform", "StatelessRandomUniformV2"], |node| floats(node, Distribution::Uniform));
    ops.insert_all(["StatelessRandomNormal", "StatelessRandomNormalV2"], |node| floats(node, Distribution::Normal));
    ops.insert_all(["StatelessTruncatedNormal", "StatelessTruncatedNormalV2"], |node| {
        floats(node, Distribution::TruncatedNormal)
    });
    ops.insert_all(["StatelessRandomUniformInt", "StatelessRandomUniformIntV2"], integers);
    ops.insert_all(["StatelessRandomUniformFullInt", "StatelessRandomUniformFullIntV2"], all_integers);
}

/// The number of inputs that specify the generator: one seed, or key, counter and algorithm.
fn source_inputs(node: &KernelNode) -> usize {
    if node.op.ends_with("V2") { 3 } else { 1 }
}

/// The generator specified by a seed, or by a key, a counter and an algorithm.
pub(super) fn source(inputs: &[Tensor]) -> Result<Philox> {
    match inputs {
        [seed] => key_and_counter(seed).map(|(key, counter)| Philox::new(key, counter)),
        [key, counter, algorithm] => {
            if algorithm.rank() != 0 {
                return Err(Failure::invalid(format!("algorithm must be of shape [], not {}", algorithm.shape())));
            }
            let algorithm = algorithm.to_i64()?;
            if algorithm != PHILOX && algorithm != AUTO_SELECT {
                return Err(Failure::invalid(format!(
                    "Unsupported algorithm id: {algorithm} (1 is Philox, 3 the device's own choice)"
                )));
            }
            let (&[key], 1) = (key.slice::<u64>()?, key.rank()) else {
                return Err(Failure::invalid(format!("key must have shape [1], not {}", key.shape())));
            };
            if counter.rank() != 1 || counter.len() < 2 {
                return Err(Failure::invalid(format!(
                    "counter must be a vector with length at least 2; got shape: {}",
                    counter.shape()
                )));
            }
            let counter = counter.slice::<u64>()?;
            Ok(Philox::new(key, u128::from(counter[1]) << 64 | u128::from(counter[0])))
        }
        _ => Err(Failure::invalid("a seed, or a key, a counter and an algorithm are needed")),
    }
}

/// Scrambles a seed, so that neither of its two numbers needs to be random.
///
/// # Errors
/// InvalidArgument if it is not two numbers.
pub fn key_and_counter(seed: &Tensor) -> Result<(u64, u128)> {
    if seed.dims() != [2] {
        return Err(Failure::invalid(format!("seed must have shape [2], not {}", seed.shape())));
    }
    let seed = seed.to_i64s()?;
    let counter = u128::from(seed[1] as u64) << 64 | u128::from(seed[0] as u64);
    let [a, b, c, d] = Philox::new(0x0246_1e29_3ec8_f720, counter).draw();
    Ok((u64::from(b) << 32 | u64::from(a), u128::from(d) << 96 | u128::from(c) << 64))
}

fn floats(node: &KernelNode, distribution: Distribution) -> Result<Option<HostKernel>> {
    let dtype = output_dtype(node, 0)?;
    if !dtype.is_float() {
        return Ok(None);
    }
    Ok(Some(Box::new(move |inputs| {
        let (shape, philox) = (shape_of(&inputs[0])?, source(&inputs[1..])?);
        let numbers = distribution.draw(dtype, shape, philox);
        Ok(smallvec![numbers.unwrap_or_else(|| Err(Failure::invalid("random numbers are floats")))?])
    })))
}

fn integers(node: &KernelNode) -> Result<Option<HostKernel>> {
    let (dtype, bounds) = (output_dtype(node, 0)?, 1 + source_inputs(node));
    if !matches!(dtype, DType::I32 | DType::I64 | DType::U32 | DType::U64) {
        return Ok(None);
    }
    Ok(Some(Box::new(move |inputs| {
        let (shape, philox) = (shape_of(&inputs[0])?, source(&inputs[1..bounds])?);
        for (name, bound) in [("minval", &inputs[bounds]), ("maxval", &inputs[bounds + 1])] {
            if bound.rank() != 0 {
                return Err(Failure::invalid(format!("{name} must be 0-D, got shape {}", bound.shape())));
            }
        }
        let n = shape.checked_elements(dtype)?;
        let (low, high) = (whole(&inputs[bounds])?, whole(&inputs[bounds + 1])?);
        if n == 0 {
            return Ok(smallvec![Tensor::zeros(dtype, shape)?]);
        }
        if low >= high {
            return Err(Failure::invalid(format!("Need minval < maxval, got {low} >= {high}")));
        }
        // Unsigned numbers have the same bits as those of the signed type.
        let signed = if matches!(dtype, DType::I32 | DType::U32) { DType::I32 } else { DType::I64 };
        let drawn = between(signed, shape, n, philox, low as i64, (high - low) as u64);
        Ok(smallvec![as_dtype(drawn, dtype)?])
    })))
}

/// An integer of any width.
fn whole(tensor: &Tensor) -> Result<i128> {
    Ok(match tensor.dtype() {
        DType::U32 => i128::from(tensor.item::<u32>()?),
        DType::U64 => i128::from(tensor.item::<u64>()?),
        _ => i128::from(tensor.to_i64()?),
    })
}

/// The same bits as an integer of the other signedness.
fn as_dtype(tensor: Tensor, dtype: DType) -> Result<Tensor> {
    if tensor.dtype() == dtype {
        return Ok(tensor);
    }
    let bytes = tensor.bytes().ok_or_else(|| Failure::invalid("integers have bytes"))?;
    Tensor::from_bytes(dtype, tensor.shape().clone(), bytes)
}

fn all_integers(node: &KernelNode) -> Result<Option<HostKernel>> {
    let dtype = output_dtype(node, 0)?;
    if !matches!(dtype, DType::I32 | DType::I64 | DType::U32 | DType::U64) {
        return Ok(None);
    }
    Ok(Some(Box::new(move |inputs| {
        let (shape, philox) = (shape_of(&inputs[0])?, source(&inputs[1..])?);
        let n = shape.checked_elements(dtype)?;
        Ok(smallvec![of_all(dtype, shape, n, philox)?])
    })))
}

fn multinomial(node: &KernelNode) -> Result<Option<HostKernel>> {
    let wide = output_dtype(node, 0)? == DType::I64;
    Ok(with_float!(input_dtype(node, 0)?, T => call(move |[logits, samples, seed]| {
        let (philox, samples) = (source(&[seed])?, samples.to_i64()?);
        let (&[batch, classes], Ok(samples)) = (logits.dims(), usize::try_from(samples)) else {
            return Err(Failure::invalid(format!(
                "logits should be a matrix and num_samples nonnegative, got shape {} and {samples}",
                logits.shape()
            )));
        };
        if classes == 0 && batch > 0 {
            return Err(Failure::invalid(format!("num_classes should be positive, got {classes}")));
        }
        let shape = Shape::from([batch, samples]);
        shape.checked_elements(DType::I64)?;
        let drawn = draw_classes::<T>(logits.slice()?, classes, samples, philox);
        Ok(if wide {
            Tensor::from_vec(shape, drawn)
        } else {
            Tensor::from_vec::<i32>(shape, drawn.into_iter().map(|class| class as i32).collect())
        })
    })))
}
