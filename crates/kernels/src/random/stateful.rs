//! Random ops with state: the node's generator, which every step advances, regardless of its plan.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex};

use meshtf_loops::turn::{Pace, paced};
use meshtf_random::{DRAW, Distribution, Philox, Words, between, uniform_f64};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, Element, Float, Shape, Tensor, with_float, with_type};
use serde::{Deserialize, Serialize};

use super::super::call::{input_dtype, kernel as call, output_dtype};
use super::super::{HostKernel, KernelNode, Registry};
use super::unigrams::Learned;

/// Counts that TensorFlow reserves for each number, whether or not they are used.
pub(super) const COUNTS_PER_NUMBER: u64 = 256;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_drawing("RandomUniform", |node, generators| floats(node, generators.of(node)?, Distribution::Uniform));
    ops.insert_drawing("RandomStandardNormal", |node, generators| {
        floats(node, generators.of(node)?, Distribution::Normal)
    });
    ops.insert_drawing("TruncatedNormal", |node, generators| {
        floats(node, generators.of(node)?, Distribution::TruncatedNormal)
    });
    ops.insert_drawing("RandomUniformInt", |node, generators| integers(node, generators.of(node)?));
    ops.insert_drawing("Multinomial", |node, generators| multinomial(node, generators.of(node)?));
    ops.insert_drawing("RandomShuffle", |node, generators| {
        let generator = generators.of(node)?;
        Ok(with_type!(input_dtype(node, 0)?, T => shuffle::<T>(generator)))
    });
}

/// A position in a sequence of [`Dice`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DicePosition {
    key: u64,
    count: u128,
    used: u64,
}

/// A sequence of random numbers from a node's seeds, for callers other than kernels.
#[derive(Clone)]
pub struct Dice(Words);

impl Dice {
    /// # Errors
    /// InvalidArgument if the node has no seeds.
    pub fn of(node: &KernelNode) -> Result<Dice> {
        Ok(Dice(start(node)?.words()))
    }

    /// TensorFlow's sequence for these seeds.
    #[inline]
    pub fn seeded(seed: u64, seed2: u64) -> Dice {
        Dice(Philox::from_seeds(seed, seed2).words())
    }

    /// As [`seeded`](Dice::seeded), after the first `blocks` of four numbers.
    #[inline]
    pub fn seeded_after(seed: u64, seed2: u64, blocks: u64) -> Dice {
        let mut philox = Philox::from_seeds(seed, seed2);
        philox.skip(blocks);
        Dice(philox.words())
    }

    /// The position in the sequence, for [`Dice::at`].
    #[inline]
    pub fn position(&self) -> DicePosition {
        let (key, count, used) = self.0.position();
        DicePosition { key, count, used: used as u64 }
    }

    /// The sequence from a position on; `None` if there is no such position.
    #[inline]
    pub fn at(position: &DicePosition) -> Option<Dice> {
        let used = usize::try_from(position.used).ok()?;
        Words::at((position.key, position.count, used)).map(Dice)
    }

    /// Unpredictable seeds.
    #[inline]
    pub fn unpredictable_seeds() -> (u64, u64) {
        (entropy(), entropy())
    }

    /// The next 32 bits.
    #[inline]
    pub fn draw(&mut self) -> u32 {
        self.0.draw()
    }

    /// A number in [0, 1).
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        let [first, second] = [self.draw(), self.draw()];
        uniform_f64([first, second])
    }

    /// A number below `sides`, which must not be 0.
    #[inline]
    pub fn throw(&mut self, sides: usize) -> usize {
        self.0.draw() as usize % sides
    }
}

/// A position in a sequence of random numbers: its key and its counter.
pub type Position = (u64, u128);

/// The generators of one session's nodes on one device, by node name. A node has one generator for all plans, so that an
/// evaluation of a model between two training steps continues the sequence.
#[derive(Default)]
pub struct Generators {
    positions: Mutex<HashMap<String, Generator>>,
    learned: Mutex<HashMap<String, Arc<Mutex<Learned>>>>,
}

impl Generators {
    /// The node's generator, in the state in which the session's plans left it.
    pub(super) fn of(&self, node: &KernelNode) -> Result<Generator> {
        let mut generators = lock(&self.positions);
        if let Some(known) = generators.get(node.name) {
            return Ok(known.clone());
        }
        let generator = Generator(Arc::new(Mutex::new(start(node)?)));
        generators.insert(node.name.to_owned(), generator.clone());
        Ok(generator)
    }

    /// Each node's position in its random numbers, by name and in the order of the names. Not among them are the counts that
    /// nodes keep of the classes that they have seen.
    pub fn positions(&self) -> Vec<(String, Position)> {
        let generators = lock(&self.positions);
        let mut all: Vec<_> = generators.iter().map(|(name, one)| (name.clone(), lock(&one.0).position())).collect();
        all.sort_unstable();
        all
    }

    /// Sets the positions of nodes, compiled already or not.
    pub fn set_positions(&self, positions: Vec<(String, Position)>) {
        let mut generators = lock(&self.positions);
        for (name, (key, counter)) in positions {
            let philox = Philox::new(key, counter);
            match generators.get(&name) {
                Some(known) => *lock(&known.0) = philox,
                None => drop(generators.insert(name, Generator(Arc::new(Mutex::new(philox))))),
            }
        }
    }

    /// Reserves, in each step, the next numbers of the node: as many counts as it is called with.
    ///
    /// # Errors
    /// InvalidArgument if the node has no seeds.
    pub(crate) fn reserves(&self, node: &KernelNode) -> Result<impl Fn(u64) -> Philox + Send + use<>> {
        let generator = self.of(node)?;
        Ok(move |counts| generator.reserve(counts))
    }

    /// The node's counts of its classes.
    pub(super) fn learned(
        &self,
        node: &KernelNode,
        make: impl FnOnce() -> Result<Learned>,
    ) -> Result<Arc<Mutex<Learned>>> {
        let mut learned = lock(&self.learned);
        if let Some(known) = learned.get(node.name) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(Mutex::new(make()?));
        learned.insert(node.name.to_owned(), Arc::clone(&made));
        Ok(made)
    }
}

/// The first position of a node's random numbers.
fn start(node: &KernelNode) -> Result<Philox> {
    let (seed, seed2) = (node.attrs.int("seed")? as u64, node.attrs.int("seed2")? as u64);
    Ok(match (seed, seed2) {
        (0, 0) => Philox::from_seeds(entropy(), entropy()),
        _ => Philox::from_seeds(seed, seed2),
    })
}

/// A node's position in its random numbers.
#[derive(Clone)]
pub(super) struct Generator(Arc<Mutex<Philox>>);

impl Generator {
    /// The generator for this step, with `counts` reserved for it.
    #[inline]
    pub(super) fn reserve(&self, counts: u64) -> Philox {
        let mut next = lock(&self.0);
        let now = *next;
        next.skip(counts);
        now
    }

    #[inline]
    fn reserve_numbers(&self, numbers: usize) -> Philox {
        self.reserve(numbers as u64 * COUNTS_PER_NUMBER)
    }
}

/// An unpredictable number: the standard library keys its hash maps with the system's entropy.
#[inline]
fn entropy() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The shape that a shape tensor specifies.
///
/// # Errors
/// InvalidArgument if the tensor is not a vector or has a negative size.
pub(super) fn shape_of(tensor: &Tensor) -> Result<Shape> {
    if tensor.rank() != 1 {
        return Err(Failure::invalid(format!(
            "shape must be a vector of {{int32,int64}}, got shape {}",
            tensor.shape()
        )));
    }
    let sizes = tensor.to_i64s()?;
    if let Some((i, size)) = sizes.iter().enumerate().find(|(_, size)| **size < 0) {
        return Err(Failure::invalid(format!("Dimension {size} must be >= 0 (size {i} of the shape)")));
    }
    Shape::from_i64s(&sizes)
}

fn floats(node: &KernelNode, generator: Generator, distribution: Distribution) -> Result<Option<HostKernel>> {
    let dtype = output_dtype(node, 0)?;
    if !dtype.is_float() {
        return Ok(None);
    }
    Ok(Some(call(move |[shape]| {
        let shape = shape_of(&shape)?;
        let philox = generator.reserve_numbers(shape.checked_elements(dtype)?);
        distribution.draw(dtype, shape, philox).unwrap_or_else(|| Err(Failure::invalid("random numbers are floats")))
    })))
}

fn integers(node: &KernelNode, generator: Generator) -> Result<Option<HostKernel>> {
    let dtype = output_dtype(node, 0)?;
    if !matches!(dtype, DType::I32 | DType::I64) {
        return Ok(None);
    }
    Ok(Some(call(move |[shape, low, high]| {
        let shape = shape_of(&shape)?;
        for (name, bound) in [("minval", &low), ("maxval", &high)] {
            if bound.rank() != 0 {
                return Err(Failure::invalid(format!("{name} must be 0-D, got shape {}", bound.shape())));
            }
        }
        let n = shape.checked_elements(dtype)?;
        if n == 0 {
            return Tensor::zeros(dtype, shape);
        }
        let (low, high) = (low.to_i64()?, high.to_i64()?);
        if low >= high {
            return Err(Failure::invalid(format!("Need minval < maxval, got {low} >= {high}")));
        }
        let philox = generator.reserve_numbers(n);
        Ok(between(dtype, shape, n, philox, low, high.wrapping_sub(low) as u64))
    })))
}

fn multinomial(node: &KernelNode, generator: Generator) -> Result<Option<HostKernel>> {
    let wide = output_dtype(node, 0)? == DType::I64;
    Ok(with_float!(input_dtype(node, 0)?, T => call(move |[logits, samples]| {
        let &[batch, classes] = logits.dims() else {
            return Err(Failure::invalid(format!("logits should be a matrix, got shape {}", logits.shape())));
        };
        if samples.rank() != 0 {
            return Err(Failure::invalid(format!("num_samples should be a scalar, got shape {}", samples.shape())));
        }
        let samples = samples.to_i64()?;
        let Ok(samples) = usize::try_from(samples) else {
            return Err(Failure::invalid(format!("num_samples should be non-negative, got {samples}")));
        };
        if classes == 0 && batch > 0 {
            return Err(Failure::invalid(format!("num_classes should be positive, got {classes}")));
        }
        let shape = Shape::from([batch, samples]);
        shape.checked_elements(DType::I64)?;
        let philox = generator.reserve_numbers(batch * samples.next_multiple_of(4) * 2);
        let classes = draw_classes::<T>(logits.slice()?, classes, samples, philox);
        Ok(if wide {
            Tensor::from_vec(shape, classes)
        } else {
            Tensor::from_vec::<i32>(shape, classes.into_iter().map(|class| class as i32).collect())
        })
    })))
}

/// `samples` classes for each row of `logits`, with the probabilities of the row's softmax.
pub(super) fn draw_classes<T: Float>(logits: &[T], classes: usize, samples: usize, philox: Philox) -> Vec<i64> {
    let mut words = philox.words();
    let mut drawn = Vec::new();
    let mut cumulative = Vec::with_capacity(classes);
    let mut pace = Pace::new();
    for row in logits.chunks_exact(classes.max(1)) {
        pace.go(DRAW * classes);
        let finite = |x: &T| Some(x.to_f64()).filter(|x| x.is_finite());
        let max = row.iter().filter_map(finite).fold(f64::MIN, f64::max);
        let mut total = 0.0;
        cumulative.clear();
        cumulative.extend(row.iter().map(|x| {
            total += finite(x).map_or(0.0, |x| (x - max).exp());
            total
        }));
        for _ in 0..samples {
            pace.go(4 * DRAW);
            let at = uniform_f64([words.draw(), words.draw()]) * total;
            drawn.push(cumulative.partition_point(|&sum| sum <= at) as i64);
        }
    }
    drawn
}

fn shuffle<T: Element>(generator: Generator) -> HostKernel {
    call(move |[value]| shuffled::<T>(value, |counts| generator.reserve(counts)))
}

/// The rows in another order, which is that of the generator that `philox` makes, given the counts that are needed.
pub(super) fn shuffled<T: Element>(mut value: Tensor, philox: impl FnOnce(u64) -> Philox) -> Result<Tensor> {
    let rows = value.dims().first().copied().unwrap_or(1);
    if rows <= 1 || value.len() <= 1 {
        return Ok(value);
    }
    let mut words = philox((rows as u64 - 1).div_ceil(4)).words();
    let width = value.len() / rows;
    let elements = value.slice_mut::<T>()?;
    for row in paced(0..rows - 1, width + DRAW) {
        let other = row + words.draw() as usize % (rows - row);
        if other != row {
            let (before, from) = elements.split_at_mut(other * width);
            before[row * width..][..width].swap_with_slice(&mut from[..width]);
        }
    }
    Ok(value)
}
