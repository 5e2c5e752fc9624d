//! Datasets that choose: distinct elements, elements of the dataset that another names, random ones.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meshtf_kernels::Dice;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Shape, Tensor};

use super::mapped::{Captured, checked, dataset_of};
use super::{Dataset, Element, Elements, INFINITE, Parts, Pull, Spec, UNKNOWN, arrange, given, tensors};
use crate::rows::row;
use crate::token::Token;

/// The elements, which have one component each, without repetitions.
pub(crate) fn unique(input: Arc<Dataset>) -> Result<Parts> {
    let types = &input.spec.types;
    if types.len() != 1 {
        return Err(Failure::invalid("UniqueDataset only supports inputs with a single component."));
    }
    if !matches!(types[0], DType::I32 | DType::I64 | DType::String) {
        let why = "UniqueDataset only supports inputs with a single `tf.int32`, `tf.int64`, or `tf.string` component.";
        return Err(Failure::invalid(why));
    }
    let cardinality = if input.cardinality == 0 { 0 } else { UNKNOWN };
    Ok(Parts::new(cardinality, move |pull| {
        Ok(Box::new(Unique { from: input.elements(pull)?, seen: HashSet::new(), bytes: 0 }))
    }))
}

struct Unique {
    from: Box<dyn Elements>,
    seen: HashSet<(Shape, Vec<Vec<u8>>)>,
    bytes: usize,
}

impl Elements for Unique {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        loop {
            turn::look();
            let Some(element) = self.from.next(pull)? else { return Ok(None) };
            let [tensor] = &tensors(element)?[..] else {
                return Err(Failure::invalid("UniqueDataset only supports inputs with a single component."));
            };
            let text = match tensor.data() {
                Data::String(strings) => strings.clone(),
                data => vec![data.bytes().unwrap_or_default().to_vec()],
            };
            memory::grow()?;
            if self.seen.insert((tensor.shape().clone(), text)) {
                self.bytes += tensor.heap_bytes();
                return Ok(Some(vec![tensor.clone().into()]));
            }
        }
    }

    fn bytes(&self) -> usize {
        self.from.bytes() + self.bytes
    }
}

/// The next element of the dataset whose number the next element of the selector is. If that dataset has ended, it is skipped,
/// or, if `stops`, ends the result.
pub(crate) fn directed(selector: Arc<Dataset>, inputs: Vec<Arc<Dataset>>, stops: bool) -> Parts {
    Parts::new(UNKNOWN, move |pull| {
        let from = inputs.iter().map(|input| input.elements(pull).map(Some)).collect::<Result<_>>()?;
        Ok(Box::new(Directed { selector: Some(selector.elements(pull)?), from, stops }))
    })
}

struct Directed {
    /// `None` after the end.
    selector: Option<Box<dyn Elements>>,
    from: Vec<Option<Box<dyn Elements>>>,
    stops: bool,
}

impl Elements for Directed {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        while let Some(selector) = &mut self.selector {
            turn::look();
            let Some(chosen) = selector.next(pull)? else { break };
            let chosen = match &tensors(chosen)?[..] {
                [number] => number.to_i64()?,
                _ => return Err(Failure::invalid("the selector must answer one number")),
            };
            let count = self.from.len();
            let place = usize::try_from(chosen).ok().and_then(|chosen| self.from.get_mut(chosen));
            let Some(place) = place else {
                return Err(Failure::invalid(format!("Selector index out of range: {chosen} >= {count}")));
            };
            if let Some(from) = place {
                if let Some(element) = from.next(pull)? {
                    return Ok(Some(element));
                }
                *place = None;
                if self.stops {
                    break;
                }
            }
            if self.from.iter().all(Option::is_none) {
                break;
            }
        }
        self.selector = None;
        Ok(None)
    }

    fn bytes(&self) -> usize {
        self.from.iter().flatten().map(|from| from.bytes()).sum()
    }
}

/// The elements of the fastest of several datasets, all of which have the same elements. It is the first: each makes its
/// elements on request, and none receives a request before it is chosen.
///
/// # Errors
/// InvalidArgument if they differ in types, shapes or size.
pub(crate) fn fastest(inputs: Vec<Arc<Dataset>>) -> Result<Parts> {
    let [first, others @ ..] = &inputs[..] else { return Err(Failure::invalid("there is no dataset to choose")) };
    for (i, other) in others.iter().enumerate() {
        let at = i + 1;
        if other.spec.types != first.spec.types {
            let why =
                format!("All inputs to ChooseFastestDataset must have the same output types. Input {at} differs.");
            return Err(Failure::invalid(why));
        }
        other.spec.check_against(&first.spec).map_err(|failure| {
            let message = format!(
                "All inputs to ChooseFastestDataset must have compatible output shapes. Input {at}: {}",
                failure.message
            );
            Failure { message, ..failure }
        })?;
        let (one, two) = (first.cardinality, other.cardinality);
        if one != two && one != UNKNOWN && two != UNKNOWN {
            return Err(Failure::invalid(format!(
                "All inputs to ChooseFastestDataset must have compatible cardinalities. Expected cardinality {one}, but input \
                 {at} has {two}."
            )));
        }
    }
    Ok(arrange::same(Arc::clone(first)))
}

/// The dataset that the first of some functions makes from another; all make the same one. It may read the other once.
///
/// # Errors
/// InvalidArgument if the ratio of elements in and out does not fit the number of them that TensorFlow tries each function
/// with.
pub(crate) fn branch(
    input: Arc<Dataset>,
    function: Captured,
    spec: Spec,
    ratio: [i64; 2],
    tried: i64,
) -> Result<Parts> {
    for (name, number) in ["ratio_numerator", "ratio_denominator"].iter().zip(ratio) {
        if number <= 0 {
            return Err(Failure::invalid(format!("`{name}` must be greater than zero.")));
        }
    }
    if tried % ratio[1] != 0 {
        let why = "`num_elements_per_branch` must be divisible by `ratio_denominator`.";
        return Err(Failure::invalid(why));
    }
    let cardinality = match input.cardinality {
        all @ (INFINITE | UNKNOWN) => all,
        all => i64::try_from(i128::from(all) * i128::from(ratio[0]) / i128::from(ratio[1])).unwrap_or(INFINITE),
    };
    Ok(Parts::new(cardinality, move |pull| {
        let (input, is_asked) = (Arc::clone(&input), AtomicBool::new(false));
        let given = input.spec.clone();
        let once = Parts::new(input.cardinality, move |pull| {
            if is_asked.swap(true, Ordering::Relaxed) {
                return Err(Failure::invalid(
                    "Cannot create more than one WrapperIterator per WrapperDataset. Make sure the branches to \
                     ChooseFastestDataset do not expect the input to repeat.",
                ));
            }
            input.elements(pull)
        });
        let once = Arc::new(Dataset::new(given, Vec::new(), once)?);
        let made = function.instance(pull)?.call(vec![once.into()], pull)?;
        checked(dataset_of(made)?, &spec)?.elements(pull)
    }))
}

/// Random numbers of 32 bits without end, as int64.
pub(crate) fn random(seed: i64, seed2: i64) -> Parts {
    let (seed, seed2) = match (seed as u64, seed2 as u64) {
        (0, 0) => Dice::unpredictable_seeds(),
        stated => stated,
    };
    Parts::new(INFINITE, move |pull| {
        let [seed, seed2, _] = pull.drawn(|again| again.unwrap_or([seed, seed2, 0]));
        let mut dice = Dice::seeded(seed, seed2);
        given(move |_| Ok(Some(vec![Tensor::scalar(i64::from(dice.draw())).into()])))
    })
}

/// For each row of a sparse tensor its indices, values and shape.
///
/// # Errors
/// InvalidArgument if the indices are not in the order of the rows, or the parts do not fit together.
pub(crate) fn sparse_slices(indices: &Tensor, values: Tensor, shape: &Tensor) -> Result<Parts> {
    let sizes = shape.to_i64s()?;
    let (Some(&count), [entries, rank]) = (sizes.first(), indices.dims()) else {
        return Err(Failure::invalid(
            "Input indices must be a matrix, and the dense shape a vector of one size at least",
        ));
    };
    let (entries, rank) = (*entries, *rank);
    if rank != sizes.len() || values.dims() != [entries] {
        return Err(Failure::invalid(format!(
            "Number of values must match first dimension of indices. Got {} values, indices shape: {}",
            values.len(),
            indices.shape()
        )));
    }
    let indices = indices.to_i64s()?;
    let rows: Vec<i64> = indices.chunks_exact(rank).map(|index| index[0]).collect();
    if !rows.is_sorted() || rows.iter().any(|row| !(0..count).contains(row)) {
        let why = "the SparseTensor must be ordered in the batch dimension; handling arbitrarily ordered input is not currently \
                   supported.";
        return Err(Failure::invalid(why));
    }
    let (rows, indices) = (Arc::new(rows), Arc::new(indices));
    Ok(Parts::new(count.max(0), move |_| {
        let (rows, indices, values) = (Arc::clone(&rows), Arc::clone(&indices), values.clone());
        let shape = Tensor::vector(sizes[1..].to_vec());
        let (mut at, mut next) = (0, 0);
        given(move |_| {
            if at >= count {
                return Ok(None);
            }
            let first = next;
            while rows.get(next) == Some(&at) {
                next += 1;
            }
            at += 1;
            let own: Vec<i64> = (first..next).flat_map(|i| &indices[i * rank + 1..(i + 1) * rank]).copied().collect();
            let own = Tensor::new([next - first, rank - 1], Data::I64(own))?;
            let parts = (first..next).map(|i| row(&values, i)).collect::<Result<Vec<_>>>()?;
            let parts = crate::rows::stack(values.dtype(), &Shape::scalar(), &parts.iter().collect::<Vec<_>>())?;
            Ok(Some([own, parts, shape.clone()].map(Token::from).to_vec()))
        })
    }))
}
