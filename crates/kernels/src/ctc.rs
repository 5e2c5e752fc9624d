//! Connectionist temporal classification: CTCLoss, CTCGreedyDecoder and CTCBeamSearchDecoder. Scores are `[time, batch,
//! classes]`; one class is the blank.

mod beam;
mod loss;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Float, Shape, Tensor, with_type};

use super::call::input_dtype;
use super::{HostKernel, Inputs, Outputs, Registry};

/// Registers the CTC ops.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("CTCLoss", |node| {
        let (dtype, rules) = (input_dtype(node, 0)?, loss::Rules::of(node)?);
        Ok(with_type!(dtype, T => Box::new(move |inputs: Inputs| loss::loss::<T>(inputs, rules)) as HostKernel;
            F32 f32, F64 f64))
    });
    ops.insert("CTCGreedyDecoder", |node| {
        let dtype = input_dtype(node, 0)?;
        let (merges, blank) = (node.attrs.bool("merge_repeated")?, node.attrs.int("blank_index")?);
        Ok(with_type!(dtype, T => Box::new(move |inputs: Inputs| greedy::<T>(&inputs, merges, blank)) as HostKernel;
            F32 f32, F64 f64))
    });
    ops.insert("CTCBeamSearchDecoder", |node| {
        let dtype = input_dtype(node, 0)?;
        let width = usize::try_from(node.attrs.int("beam_width")?).unwrap_or(0);
        let (paths, merges) = (node.attrs.int("top_paths")?, node.attrs.bool("merge_repeated")?);
        let paths = usize::try_from(paths).unwrap_or(0);
        Ok(with_type!(dtype, T => {
            Box::new(move |inputs: Inputs| beam::decode::<T>(&inputs, width, paths, merges)) as HostKernel
        }; F32 f32, F64 f64))
    });
}

/// Scores, and the number of valid steps of each example.
struct Scores<'a, T> {
    batch: usize,
    classes: usize,
    scores: &'a [T],
    lengths: Vec<usize>,
}

impl<'a, T: Float> Scores<'a, T> {
    fn of(inputs: &'a Tensor, lengths: &Tensor) -> Result<Self> {
        let &[time, batch, classes] = inputs.dims() else {
            return Err(Failure::invalid(format!("inputs is not a 3-Tensor, got shape {}", inputs.shape())));
        };
        if lengths.rank() != 1 {
            return Err(Failure::invalid(format!("sequence_length is not a vector, got shape {}", lengths.shape())));
        }
        if lengths.len() != batch {
            let why = format!(
                "len(sequence_length) != batch_size.  len(sequence_length):  {} batch_size: {batch}",
                lengths.len()
            );
            return Err(Failure::invalid(why));
        }
        if classes == 0 {
            return Err(Failure::invalid("there is no class"));
        }
        let length = |(b, length): (usize, i64)| {
            let fits = usize::try_from(length).ok().filter(|&length| length <= time);
            fits.ok_or_else(|| Failure::invalid(format!("sequence_length({b}) must be in [0, {time}], got {length}")))
        };
        let lengths = lengths.to_i64s()?.into_iter().enumerate().map(length).collect::<Result<_>>()?;
        Ok(Scores { batch, classes, scores: inputs.slice::<T>()?, lengths })
    }

    /// The scores of all classes at one step of one example.
    #[inline]
    fn at(&self, t: usize, b: usize) -> &'a [T] {
        &self.scores[(t * self.batch + b) * self.classes..][..self.classes]
    }
}

/// The logarithm of the sum of two numbers given by their logarithms. As in TensorFlow, the added term is computed in 32
/// bits.
#[inline]
fn log_sum<T: Float>(a: T, b: T) -> T {
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    if low == T::LOWEST || high == T::LOWEST {
        return high;
    }
    high + (low - high).map(|x| x.exp().ln_1p(), |x| f64::from((x as f32).exp().ln_1p()))
}

/// The logarithm of the sum of the exponentials of some scores.
fn norm<T: Float>(scores: &[T]) -> T {
    let most = scores.iter().copied().fold(T::LOWEST, |a, b| if b > a { b } else { a });
    let sum = scores.iter().fold(T::ZERO, |sum, &x| sum + (x - most).map(f32::exp, f64::exp));
    most + sum.map(f32::ln, f64::ln)
}

/// Sequences of labels as indices, values and shape of a sparse matrix.
fn sparse(sequences: &[Vec<i64>]) -> Result<[Tensor; 3]> {
    let total: usize = sequences.iter().map(Vec::len).sum();
    let shape = Shape::from([total, 2]);
    shape.checked_elements(DType::I64)?;
    let indices =
        sequences.iter().enumerate().flat_map(|(b, labels)| (0..labels.len() as i64).flat_map(move |i| [b as i64, i]));
    let most = sequences.iter().map(Vec::len).max().unwrap_or(0);
    Ok([
        Tensor::new(shape, Data::I64(indices.collect()))?,
        Tensor::vector(sequences.concat()),
        Tensor::vector(vec![sequences.len() as i64, most as i64]),
    ])
}

/// The best class at each step.
fn greedy<T: Float>(inputs: &Inputs, merges: bool, blank: i64) -> Result<Outputs> {
    let [scores, lengths] = inputs.as_slice() else { return Err(Failure::invalid("expected two inputs")) };
    let scores = Scores::<T>::of(scores, lengths)?;
    let classes = scores.classes as i64;
    let blank = if blank < 0 { blank + classes } else { blank };
    if !(0..classes).contains(&blank) {
        return Err(Failure::invalid(format!("blank_index expected to be between {} and {}", -classes, classes - 1)));
    }
    let mut pace = Pace::new();
    let (mut sequences, mut sums) = (Vec::with_capacity(scores.batch), Vec::with_capacity(scores.batch));
    for b in 0..scores.batch {
        let (mut labels, mut sum, mut last) = (Vec::new(), T::ZERO, -1);
        for t in 0..scores.lengths[b] {
            pace.go(scores.classes);
            let row = scores.at(t, b);
            let best = row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best });
            sum = sum - row[best];
            let best = best as i64;
            if best != blank && !(merges && best == last) {
                labels.push(best);
            }
            last = best;
        }
        sequences.push(labels);
        sums.push(sum);
    }
    let [indices, values, shape] = sparse(&sequences)?;
    Ok(Outputs::from_iter([indices, values, shape, Tensor::from_vec([scores.batch, 1], sums)]))
}
