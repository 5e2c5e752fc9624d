//! The mean of differences that several workers have made.
//!
//! In float32, they are summed around a ring (`ring.rs`). Quantized, each worker sends its own to every other: a byte for each
//! element, and a float32 for each block of them, by which the largest element is 127. What rounding took away is kept and added
//! to the difference of the next round: it is sent later, and never lost (error feedback: Karimireddy et al., 2019,
//! arXiv:1901.09847). All workers add up the same bytes in the same order.

use meshtf_graph::gradient::Gradient;
use meshtf_graph::variable::Variable;
use meshtf_graph::variable::ops::{binary, cast, on, unary};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};

use super::exchange::{parts, shaped};
use super::local::Worker;
use crate::clip::values;
use crate::file::{Exchange, LocalSection};
use crate::ring::{BucketLimits, all_reduce, join};

/// Most elements of a block.
const BLOCK: usize = 256;
/// A scale of at least this: a block of zeros has none.
const LEAST_SCALE: f32 = 1e-30;

/// Elements in blocks, of which the last may be filled up.
struct Blocks {
    count: usize,
    /// Elements of each.
    size: usize,
}

impl Blocks {
    /// As equal as can be.
    fn of(elements: usize) -> Blocks {
        let count = elements.div_ceil(BLOCK).max(1);
        Blocks { count, size: elements.div_ceil(count) }
    }

    /// The bytes of their elements and scales.
    fn bytes(&self) -> usize {
        self.count * (self.size + size_of::<f32>())
    }
}

/// Whether so many workers send differences of so many elements in int8: if that is less than float32 around the ring. Each sends
/// its bytes to every other worker, and a `workers`-th of its elements to the next one in each of the `2 (workers - 1)` steps of
/// the ring.
pub(super) fn is_quantized(section: &LocalSection, elements: usize, workers: usize) -> bool {
    let ring = 2 * elements * size_of::<f32>();
    section.exchange == Exchange::Int8 && workers > 1 && workers * Blocks::of(elements).bytes() < ring
}

/// The mean of the differences on a worker.
pub(super) struct Mean {
    /// For each variable, of its dtype.
    pub of_each: Vec<Output>,
    /// The nodes that keep what was not sent.
    pub kept: Vec<Output>,
}

/// Adds the mean of the differences, float32 of each worker's variables in their order, on each worker.
pub(super) fn mean(
    g: &mut GraphBuilder,
    workers: &[Worker],
    differences: Vec<Vec<Output>>,
    limits: BucketLimits,
) -> Result<Vec<Mean>> {
    let mut means = match workers {
        [_] => differences.into_iter().map(|of_each| Mean { of_each, kept: Vec::new() }).collect(),
        [first, ..] if first.residuals.is_empty() => {
            let variables: Vec<&[Variable]> = workers.iter().map(|worker| worker.trained.as_slice()).collect();
            let means = ring_means(g, &variables, &differences, limits)?;
            means.into_iter().map(|of_each| Mean { of_each, kept: Vec::new() }).collect()
        }
        _ => quantized(g, workers, &differences)?,
    };
    for (worker, mean) in workers.iter().zip(&mut means) {
        for (variable, own) in worker.trained.iter().zip(&mut mean.of_each) {
            *own = as_dtype_of(g, variable, *own)?;
        }
    }
    Ok(means)
}

/// Adds the means of the running variables, such as the averages of a batch normalization: of their values, float32, on each
/// worker, of the variables' dtypes there.
pub(super) fn running_means(
    g: &mut GraphBuilder,
    workers: &[Worker],
    values: &[Vec<Output>],
    limits: BucketLimits,
) -> Result<Vec<Vec<Output>>> {
    let variables: Vec<&[Variable]> = workers.iter().map(|worker| worker.running.as_slice()).collect();
    if variables.len() < 2 || variables[0].is_empty() {
        return Ok(vec![Vec::new(); workers.len()]);
    }
    let mut means = ring_means(g, &variables, values, limits)?;
    for (variable, mean) in variables.into_iter().flatten().zip(means.iter_mut().flatten()) {
        *mean = as_dtype_of(g, variable, *mean)?;
    }
    Ok(means)
}

fn as_dtype_of(g: &mut GraphBuilder, variable: &Variable, x: Output) -> Result<Output> {
    match variable.dtype {
        DType::F32 => Ok(x),
        dtype => on(g, &variable.device, |g| cast(g, x, dtype)),
    }
}

/// Adds the means of values, float32 of each worker's variables in their order, on each worker: by sums around a ring.
fn ring_means(
    g: &mut GraphBuilder,
    variables: &[&[Variable]],
    of_workers: &[Vec<Output>],
    limits: BucketLimits,
) -> Result<Vec<Vec<Output>>> {
    let float = |variable: &Variable| Variable { dtype: DType::F32, ..variable.clone() };
    let variables: Vec<Vec<Variable>> = variables.iter().map(|own| own.iter().map(float).collect()).collect();
    let sets: Vec<Vec<Gradient>> =
        of_workers.iter().map(|own| own.iter().copied().map(Gradient::Dense).collect()).collect();
    let sums = all_reduce(g, &variables, &sets, limits)?;
    let mut means = Vec::with_capacity(variables.len());
    for (own, sums) in variables.iter().zip(sums) {
        let mut of_each = Vec::with_capacity(sums.len());
        for (variable, sum) in own.iter().zip(sums) {
            let share = 1.0 / variables.len() as f32;
            of_each.push(on(g, &variable.device, |g| binary(g, "Mul", values(&sum), share))?);
        }
        means.push(of_each);
    }
    Ok(means)
}

/// The elements of a worker's differences, and what it sends of them.
struct Sent {
    blocks: Output,
    bytes: Output,
    scales: Output,
}

fn quantized(g: &mut GraphBuilder, workers: &[Worker], differences: &[Vec<Output>]) -> Result<Vec<Mean>> {
    let mut sizes: Vec<usize> = workers[0].trained.iter().map(|one| one.shape.elements().unwrap_or(0)).collect();
    let elements: usize = sizes.iter().sum();
    let blocks = Blocks::of(elements);
    // The elements that fill up the last block are dropped at the end.
    sizes.extend(Some(blocks.count * blocks.size - elements).filter(|&rest| rest > 0));
    let mut sent = Vec::with_capacity(workers.len());
    for (worker, own) in workers.iter().zip(differences) {
        sent.push(send(g, worker, own, &blocks, elements)?);
    }
    let mut means = Vec::with_capacity(workers.len());
    for (i, worker) in workers.iter().enumerate() {
        let (means_of, rest) = on(g, worker.home(), |g| {
            let mut received = Vec::with_capacity(sent.len());
            for Sent { bytes, scales, .. } in &sent {
                let numbers = cast(g, *bytes, DType::F32)?;
                received.push(binary(g, "Mul", numbers, *scales)?);
            }
            let rest = binary(g, "Sub", sent[i].blocks, received[i])?;
            let sum = g.op("AddN").inputs(received).build()?;
            let mean = binary(g, "Mul", sum, 1.0 / workers.len() as f32)?;
            Ok((parts(g, mean, &sizes)?, parts(g, rest, &sizes)?))
        })?;
        let mut mean = Mean { of_each: Vec::with_capacity(sizes.len()), kept: Vec::with_capacity(sizes.len()) };
        for (((variable, residual), own), rest) in worker.trained.iter().zip(&worker.residuals).zip(means_of).zip(rest)
        {
            on(g, &variable.device, |g| {
                mean.of_each.push(shaped(g, own, &variable.shape)?);
                let rest = shaped(g, rest, &variable.shape)?;
                mean.kept.push(binary(g, "AssignVariableOp", residual.handle, rest)?);
                Ok(())
            })?;
        }
        means.push(mean);
    }
    Ok(means)
}

/// Adds what a worker sends: its differences with what it has not sent before, in blocks.
fn send(
    g: &mut GraphBuilder,
    worker: &Worker,
    differences: &[Output],
    blocks: &Blocks,
    elements: usize,
) -> Result<Sent> {
    let mut flat = Vec::with_capacity(differences.len() + 1);
    for ((variable, residual), &difference) in worker.trained.iter().zip(&worker.residuals).zip(differences) {
        flat.push(on(g, &variable.device, |g| {
            let all = binary(g, "AddV2", difference, residual.value)?;
            binary(g, "Reshape", all, Tensor::vector(vec![-1i64]))
        })?);
    }
    on(g, worker.home(), |g| {
        let (count, size) = (blocks.count, blocks.size);
        if count * size > elements {
            flat.push(g.constant("filling", Tensor::vector(vec![0f32; count * size - elements]))?);
        }
        let flat = join(g, flat)?;
        let blocks = binary(g, "Reshape", flat, Tensor::vector(vec![count as i64, size as i64]))?;
        let absolute = unary(g, "Abs", blocks)?;
        let most = g.op("Max").input(absolute).input([1]).attr("keep_dims", true).build()?;
        let scales = binary(g, "Mul", most, 1.0 / 127f32)?;
        let scales = binary(g, "Maximum", scales, LEAST_SCALE)?;
        let numbers = binary(g, "RealDiv", blocks, scales)?;
        let whole = unary(g, "Round", numbers)?;
        let bytes = cast(g, whole, DType::I8)?;
        Ok(Sent { blocks, bytes, scales })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_sent_where_they_are_fewer() {
        // The most workers with which they are: of 256 elements, 7 · 260 bytes are fewer than 8 · 256, and 8 · 260 are not.
        for (elements, count, size, most) in [
            (0, 1, 0, 0),
            (1, 1, 1, 0),
            (2, 1, 2, 2),
            (16, 1, 16, 6),
            (256, 1, 256, 7),
            (257, 2, 129, 7),
            (1000, 4, 250, 7),
        ] {
            let blocks = Blocks::of(elements);
            assert_eq!((blocks.count, blocks.size), (count, size), "{elements}");
            let float = LocalSection { exchange: Exchange::Float32, ..LocalSection::default() };
            for workers in 1..20 {
                let is_fewer = (2..=most).contains(&workers);
                assert_eq!(is_quantized(&LocalSection::default(), elements, workers), is_fewer, "{elements} {workers}");
                assert!(!is_quantized(&float, elements, workers));
            }
        }
    }
}
