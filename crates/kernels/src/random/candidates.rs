//! Candidate samplers and ComputeAccidentalHits.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use meshtf_loops::turn::Pace;
use meshtf_random::{DRAW, Philox, uniform_f64};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, Data, Shape, Tensor};

use super::super::call::take;
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::simple::below;
use super::stateful::{Generator, Generators};
use super::unigrams::{Learned, Unigrams, Weighted};

/// Counts that TensorFlow reserves for each candidate.
const COUNTS_PER_CANDIDATE: u64 = 512;

/// The maximum number of draws to find enough distinct classes.
const MAX_TRIES: usize = i32::MAX as usize;

/// The distribution of the classes.
#[derive(Clone)]
enum Classes {
    /// All classes are equally likely.
    Uniform,
    /// The lower the class, the likelier.
    Log,
    /// Each is drawn once, in order.
    All,
    /// In proportion to weights.
    Weighted(Arc<Weighted>),
    /// In proportion to how often each class was seen.
    Learned(Arc<Mutex<Learned>>),
}

/// A node's candidate sampler.
struct Sampler {
    classes: Classes,
    range: usize,
    count: usize,
    of_each: usize,
    unique: bool,
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert_drawing("UniformCandidateSampler", |node, generators| {
        Sampler::of(node, Classes::Uniform, generators).map(Some)
    });
    ops.insert_drawing("LogUniformCandidateSampler", |node, generators| {
        Sampler::of(node, Classes::Log, generators).map(Some)
    });
    ops.insert_drawing("AllCandidateSampler", |node, generators| Sampler::of(node, Classes::All, generators).map(Some));
    ops.insert_drawing("FixedUnigramCandidateSampler", |node, generators| {
        let stated = node.attrs.floats("unigrams")?;
        if stated.is_empty() {
            return Err(Failure::invalid("Must provide either vocab_file or unigrams."));
        }
        let unigrams = Unigrams::of(node.attrs)?;
        let own = stated.iter().enumerate().filter(|(place, _)| unigrams.takes(*place)).map(|(_, weight)| *weight);
        fixed(node, unigrams.weighted(own)?, generators).map(Some)
    });
    for op in ["LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler"] {
        ops.insert_drawing(op, |node, generators| {
            let range = usize::try_from(node.attrs.int("range_max")?).unwrap_or(0);
            let learned = generators.learned(node, || Learned::new(range))?;
            Sampler::of(node, Classes::Learned(learned), generators).map(Some)
        });
    }
    ops.insert("ComputeAccidentalHits", |node| {
        let of_each = usize::try_from(node.attrs.int("num_true")?).unwrap_or(0);
        Ok(Some(Box::new(move |inputs| {
            let [classes, sampled] = take(inputs)?;
            hits(&classes, &sampled, of_each)
        })))
    });
}

/// The kernel of a sampler of candidates in proportion to weights.
///
/// # Errors
/// InvalidArgument if the node requests more candidates than there are classes.
pub fn fixed(node: &KernelNode, weights: Weighted, generators: &Generators) -> Result<HostKernel> {
    Sampler::of(node, Classes::Weighted(Arc::new(weights)), generators)
}

impl Sampler {
    fn of(node: &KernelNode, classes: Classes, generators: &Generators) -> Result<HostKernel> {
        let number = |name: &str| Ok::<_, Failure>(usize::try_from(node.attrs.int(name)?).unwrap_or(0));
        let count = number("num_sampled")?;
        let range = if matches!(classes, Classes::All) { count } else { number("range_max")? };
        let unique = node.attrs.bool("unique")?;
        if unique && count > range {
            return Err(Failure::invalid("Sampler's range is too small."));
        }
        let sampler = Sampler { classes, range, count, of_each: number("num_true")?, unique };
        let generator = generators.of(node)?;
        Ok(Box::new(move |inputs| {
            let [classes] = take(inputs)?;
            sampler.sample(&classes, &generator)
        }))
    }

    fn sample(&self, classes: &Tensor, generator: &Generator) -> Result<Outputs> {
        self.check(classes)?;
        Shape::from([self.count]).checked_elements(DType::I64)?;
        let philox = generator.reserve((self.count as u64).saturating_mul(COUNTS_PER_CANDIDATE));
        let (candidates, tries) = self.draw(philox)?;
        let expected = |class: i64| self.expected(class, tries);
        let of_true: Vec<f32> = classes.to_i64s()?.into_iter().map(expected).collect();

        let of_sampled: Vec<f32> = candidates.iter().map(|&class| expected(class)).collect();
        if let Classes::Learned(learned) = &self.classes {
            lock(learned).see(classes.slice::<i64>()?);
        }
        Ok(Outputs::from_iter([
            Tensor::vector(candidates),
            Tensor::from_vec(classes.shape().clone(), of_true),
            Tensor::vector(of_sampled),
        ]))
    }

    fn check(&self, classes: &Tensor) -> Result<()> {
        let outside = |class: &i64| !(0..self.range as i64).contains(class);
        match *classes.dims() {
            [_, columns] if columns == self.of_each => match classes.to_i64s()?.into_iter().find(outside) {
                None => Ok(()),
                Some(class) => {
                    let why = format!("`true_candidate` out of range [0, {}), received {class}", self.range);
                    Err(Failure::invalid(why))
                }
            },
            [_, columns] => {
                let why = format!("true_classes must have num_true columns, expected: {columns} was: {}", self.of_each);
                Err(Failure::invalid(why))
            }
            _ => Err(Failure::invalid(format!("true_classes must be a matrix, got shape {}", classes.shape()))),
        }
    }

    /// The candidates, and the number of draws.
    fn draw(&self, philox: Philox) -> Result<(Vec<i64>, usize)> {
        if let Classes::All = self.classes {
            return Ok(((0..self.count as i64).collect(), self.count));
        }
        let mut words = philox.words();
        let mut pace = Pace::new();
        let mut one = || {
            pace.go(4 * DRAW);
            match &self.classes {
                Classes::Weighted(weighted) => weighted.draw(&mut words),
                Classes::Learned(learned) => lock(learned).draw(&mut words),
                Classes::Uniform => below(&mut words, self.range as u64) as i64,
                _ => {
                    let at = uniform_f64([words.draw(), words.draw()]) * (self.range as f64).ln_1p();
                    (at.exp() as i64 - 1) % self.range.max(1) as i64
                }
            }
        };
        if !self.unique {
            return Ok(((0..self.count).map(|_| one()).collect(), self.count));
        }
        let (mut picked, mut used, mut tries) = (Vec::new(), HashSet::new(), 0);
        while picked.len() < self.count {
            tries += 1;
            if tries == MAX_TRIES {
                let why = format!("{tries} classes were drawn, and fewer than {} of them differ", self.count);
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            let class = one();
            if used.insert(class) {
                picked.push(class);
            }
        }
        Ok((picked, tries))
    }

    /// The expected count of a class among the candidates.
    fn expected(&self, class: i64, tries: usize) -> f32 {
        let likely = match &self.classes {
            Classes::Weighted(weighted) => weighted.likely(class),
            Classes::Learned(learned) => lock(learned).likely(class),
            Classes::All => return 1.0,
            Classes::Uniform => 1.0 / self.range as f32,
            Classes::Log => {
                let class = class as f64;
                (((class + 2.0) / (class + 1.0)).ln() / (self.range as f64).ln_1p()) as f32
            }
        };
        if tries == self.count {
            return likely * self.count as f32;
        }
        -(tries as f32 * (-likely).ln_1p()).exp_m1()
    }
}

/// The true classes that are candidates: the row of each, the candidate's position, and a weight that outweighs every
/// score.
fn hits(classes: &Tensor, sampled: &Tensor, of_each: usize) -> Result<Outputs> {
    let &[rows, columns] = classes.dims() else {
        let why = format!("true_candidates must be a batch_size * num_true matrix, got shape {}", classes.shape());
        return Err(Failure::invalid(why));
    };
    if columns != of_each {
        return Err(Failure::invalid(format!(
            "true_candidates must be a batch_size * num_true matrix: {columns} columns for {of_each}"
        )));
    }
    if sampled.rank() != 1 {
        let why = format!(
            "sampled_candidates must be a vector, which is typically an output from CandidateSampler, got shape {}",
            sampled.shape()
        );
        return Err(Failure::invalid(why));
    }
    let places: HashMap<i64, i64> = sampled.to_i64s()?.into_iter().zip(0..).collect();
    let (mut indices, mut ids) = (Vec::new(), Vec::new());
    let mut pace = Pace::new();
    let classes = classes.to_i64s()?;
    for row in 0..rows {
        for class in &classes[row * columns..(row + 1) * columns] {
            pace.go(50);
            if let Some(&place) = places.get(class) {
                indices.push(row as i32);
                ids.push(place);
            }
        }
    }
    let weights = vec![-f32::MAX; ids.len()];
    let indices = Tensor::new([indices.len()], Data::I32(indices))?;
    Ok(Outputs::from_iter([indices, Tensor::vector(ids), Tensor::vector(weights)]))
}
