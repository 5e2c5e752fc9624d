//! EditDistance: the number of insertions, deletions and replacements that turn one sequence into another.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Shape, Tensor, with_type};

use crate::call::{input_dtype, kernel as call, vector};
use crate::{HostKernel, KernelNode, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("EditDistance", kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let normalize = node.attrs.bool("normalize")?;
    let found = with_type!(input_dtype(node, 1)?, T => {
        call(move |[at, values, shape, truth_at, truth, truth_shape]: [Tensor; 6]| {
            let hypothesis = Sequences::<T>::of("hypothesis", &at, &values, &shape)?;
            distances(&hypothesis, &Sequences::of("truth", &truth_at, &truth, &truth_shape)?, normalize)
        })
    });
    Ok(found)
}

/// The rows of a sparse tensor: its elements in order, grouped by all but the last index.
struct Sequences<'a, T> {
    /// The index and the elements of each row that is not empty.
    rows: Vec<(Vec<usize>, &'a [T])>,
    /// The dense shape without its last dimension.
    groups: Vec<usize>,
}

impl<'a, T: Element> Sequences<'a, T> {
    fn of(name: &str, at: &Tensor, values: &'a Tensor, shape: &Tensor) -> Result<Sequences<'a, T>> {
        let wrong = |why: String| Failure::invalid(format!("{name}_{why}"));
        let shape = Shape::from_i64s(&vector(shape, &format!("{name}_shape"), false)?)?;
        let ([rows, width], [count]) = (at.dims(), values.dims()) else {
            return Err(wrong(format!(
                "indices should be a matrix and {name}_values a vector, got {} and {}",
                at.shape(),
                values.shape()
            )));
        };
        if rows != count || *width != shape.rank() {
            let why = format!("indices should have shape [{count}, {}], but is {}", shape.rank(), at.shape());
            return Err(wrong(why));
        }
        if *width < 2 {
            return Err(wrong(format!("shape must have at least two elements, got {shape}")));
        }
        let indices = at.to_i64s()?;
        let elements = values.slice::<T>()?;
        let mut sequences = Sequences { rows: Vec::new(), groups: shape.dims()[..width - 1].to_vec() };
        let (mut first, mut before): (usize, Option<&[i64]>) = (0, None);
        for (i, index) in indices.chunks_exact(*width).enumerate() {
            let is_inside = index.iter().zip(shape.dims()).all(|(&at, &size)| at >= 0 && (at as u64) < size as u64);
            if !is_inside || before.is_some_and(|before| before >= index) {
                let why = format!("indices[{i}] = {index:?} is out of order, repeated or outside of the shape {shape}");
                return Err(wrong(why));
            }
            let group = |index: &[i64]| index[..width - 1].iter().map(|&at| at as usize).collect::<Vec<_>>();
            match sequences.rows.last_mut() {
                Some((last, own)) if *last == group(index) => *own = &elements[first..=i],
                _ => {
                    first = i;
                    sequences.rows.push((group(index), &elements[i..=i]));
                }
            }
            before = Some(index);
        }
        Ok(sequences)
    }

    fn row(&self, group: &[usize]) -> &'a [T] {
        self.rows.binary_search_by(|(own, _)| own.as_slice().cmp(group)).map_or(&[], |at| self.rows[at].1)
    }
}

fn distances<T: Element>(hypothesis: &Sequences<T>, truth: &Sequences<T>, normalize: bool) -> Result<Tensor> {
    if hypothesis.groups.len() != truth.groups.len() {
        let why = "truth_shape and hypothesis_shape must have the same number of elements";
        return Err(Failure::invalid(format!("{why}: {} and {}", truth.groups.len() + 1, hypothesis.groups.len() + 1)));
    }
    let dims: Vec<usize> = hypothesis.groups.iter().zip(&truth.groups).map(|(&a, &b)| a.max(b)).collect();
    let shape = Shape::from(dims.as_slice());
    let mut out = vec![0f32; shape.checked_elements(DType::F32)?];
    // If neither has a row, the distance is 0.
    let mut pace = Pace::new();
    for (group, _) in hypothesis.rows.iter().chain(&truth.rows) {
        let (own, wanted) = (hypothesis.row(group), truth.row(group));
        let distance = levenshtein(own, wanted, &mut pace) as f32;
        let place = group.iter().zip(&dims).fold(0, |at, (&i, &size)| at * size + i);
        out[place] = match (normalize, wanted.len()) {
            (true, 0) if own.is_empty() => 0.0,
            (true, 0) => f32::INFINITY,
            (true, length) => distance / length as f32,
            (false, _) => distance,
        };
    }
    Ok(Tensor::from_vec(shape, out))
}

/// The Levenshtein distance. Keeps one row of the table of the distances between prefixes of both.
fn levenshtein<T: PartialEq>(from: &[T], to: &[T], pace: &mut Pace) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        pace.go(to.len() + 1);
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}
