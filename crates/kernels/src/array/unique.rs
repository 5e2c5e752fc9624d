//! Unique and UniqueWithCounts, of a vector or of slices along an axis, and ListDiff: distinct values.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use meshtf_loops::turn::{blocks, paced};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Element, Tensor};

use super::super::call::{self, input_dtype, no_kernel, output_dtype};
use super::super::math::cast;
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::gather::gather;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Unique", |node| of_vector(node, false));
    ops.insert("UniqueWithCounts", |node| of_vector(node, true));
    ops.insert("UniqueV2", |node| along_kernel(node, false));
    ops.insert("UniqueWithCountsV2", |node| along_kernel(node, true));
    ops.insert("ListDiff", |node| {
        let index = index_dtype(node)?;
        Ok(Some(Box::new(move |inputs| {
            let [x, y] = call::take(inputs)?;
            difference(&x, &y, index)
        })))
    });
}

fn of_vector(node: &KernelNode, counts: bool) -> Result<Option<HostKernel>> {
    let index = index_dtype(node)?;
    Ok(Some(Box::new(move |inputs| {
        let [x] = call::take(inputs)?;
        unique(&x, index, counts)
    })))
}

/// The dtype of the indices among the outputs of an op that compares elements.
fn index_dtype(node: &KernelNode) -> Result<DType> {
    let dtype = input_dtype(node, 0)?;
    if dtype.is_handle() || dtype.is_complex() { no_kernel(node) } else { output_dtype(node, 1) }
}

fn along_kernel(node: &KernelNode, counts: bool) -> Result<Option<HostKernel>> {
    let (dtype, index) = (input_dtype(node, 0)?, output_dtype(node, 1)?);
    if dtype.is_handle() || dtype.is_complex() {
        return no_kernel(node);
    }
    Ok(Some(Box::new(move |inputs| {
        let [x, axis] = call::take(inputs)?;
        match call::vector(&axis, "axis", false)?[..] {
            [] => unique(&x, index, counts),
            [axis] => {
                let at = call::axis(axis, x.rank())
                    .map_err(|_| Failure::invalid(format!("axis has to be between [0, {})", x.rank())))?;
                if x.rank() == 1 { unique(&x, index, counts) } else { unique_along(&x, at, index, counts) }
            }
            _ => Err(Failure::invalid("axis does not support input tensors larger than 1 elements")),
        }
    })))
}

/// As [`unique`], for the slices across an axis.
fn unique_along(x: &Tensor, axis: usize, index: DType, counts: bool) -> Result<Outputs> {
    memory::admit(x.len() * KEY_BYTES)?;
    let (size, inner) = (x.dims()[axis], call::product(&x.dims()[axis + 1..]));
    let outer = call::product(&x.dims()[..axis]);
    let places = |i: usize| (0..outer).flat_map(move |o| (0..inner).map(move |k| (o * size + i) * inner + k));
    let (firsts, at, numbers) = match Keys::of(x)? {
        // A slice with a NaN is equal to no other slice.
        Keys::Numbers(keys) => {
            first_places((0..size).map(|i| places(i).map(|at| keys[at]).collect::<Option<Vec<_>>>()))
        }
        Keys::Strings(keys) => first_places((0..size).map(|i| Some(places(i).map(|at| &keys[at]).collect::<Vec<_>>()))),
    };
    distinct(gather(x, &Tensor::vector(firsts), axis as i64, 0)?, index, &at, counts.then_some(&numbers[..]))
}

/// The outputs of an op for distinct values.
fn distinct(values: Tensor, index: DType, places: &[usize], numbers: Option<&[usize]>) -> Result<Outputs> {
    let mut outputs: Outputs = [values, call::ints(index, [places.len()], places)?].into_iter().collect();
    if let Some(numbers) = numbers {
        outputs.push(call::ints(index, [numbers.len()], numbers)?);
    }
    Ok(outputs)
}

/// Elements as keys of a hash table: equal keys for equal elements, `None` for NaN, which is equal to nothing.
enum Keys<'a> {
    Numbers(Vec<Option<u64>>),
    Strings(&'a [Vec<u8>]),
}

impl<'a> Keys<'a> {
    fn of(x: &'a Tensor) -> Result<Keys<'a>> {
        if let Data::String(strings) = x.data() {
            return Ok(Keys::Strings(strings));
        }
        let numbers = if x.dtype().is_float() {
            keyed(&cast(x.clone(), DType::F64)?, |x: f64| (!x.is_nan()).then(|| bits(x)))?
        } else {
            keyed(&cast(x.clone(), DType::U64)?, Some)?
        };
        Ok(Keys::Numbers(numbers))
    }
}

fn keyed<T: Element + Copy>(x: &Tensor, key: impl Fn(T) -> Option<u64>) -> Result<Vec<Option<u64>>> {
    let mut keys = Vec::with_capacity(x.len());
    blocks(x.slice::<T>()?).for_each(|block| keys.extend(block.iter().map(|&x| key(x))));
    Ok(keys)
}

/// The work of a lookup, in elements: a key may be anywhere in memory.
const LOOKUP: usize = 128;

/// The bits of a number; both zeros have the same key.
#[inline]
fn bits(x: f64) -> u64 {
    if x == 0.0 { 0 } else { x.to_bits() }
}

/// Memory of a lookup per element: its key, its slot in a half-empty hash table, and its numbers.
const KEY_BYTES: usize = 96;

/// Each value once, in the order of first occurrence; the index of each element's value; the number of occurrences of
/// each value.
fn unique(x: &Tensor, index: DType, counts: bool) -> Result<Outputs> {
    if x.rank() != 1 {
        return Err(Failure::invalid(format!("unique expects a 1D vector, got shape {}", x.shape())));
    }
    memory::admit(x.len() * KEY_BYTES)?;
    let (firsts, places, numbers) = match Keys::of(x)? {
        Keys::Numbers(keys) => first_places(keys.into_iter()),
        Keys::Strings(keys) => first_places(keys.iter().map(Some)),
    };
    let values = gather(x, &Tensor::vector(firsts), 0, 0)?;
    distinct(values, index, &places, counts.then_some(&numbers[..]))
}

/// The first position of each distinct key; the index of each key among these; the number of occurrences of each.
fn first_places<K: Hash + Eq>(keys: impl Iterator<Item = Option<K>>) -> (Vec<i64>, Vec<usize>, Vec<usize>) {
    let mut seen = HashMap::new();
    let (mut firsts, mut places, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for (i, key) in paced(keys, LOOKUP).enumerate() {
        let place = key.map_or(firsts.len(), |key| *seen.entry(key).or_insert(firsts.len()));
        if place == firsts.len() {
            firsts.push(i as i64);
            numbers.push(0);
        }
        places.push(place);
        numbers[place] += 1;
    }
    (firsts, places, numbers)
}

/// The elements of `x` that are not in `y`, and their positions in `x`.
fn difference(x: &Tensor, y: &Tensor, index: DType) -> Result<Outputs> {
    for (name, tensor) in [("x", x), ("y", y)] {
        if tensor.rank() != 1 {
            return Err(Failure::invalid(format!("{name} should be a 1D vector, got shape {}", tensor.shape())));
        }
    }
    memory::admit((x.len() + y.len()) * KEY_BYTES)?;
    let places = match (Keys::of(x)?, Keys::of(y)?) {
        (Keys::Numbers(x), Keys::Numbers(y)) => without(x.into_iter(), y.into_iter()),
        (Keys::Strings(x), Keys::Strings(y)) => without(x.iter().map(Some), y.iter().map(Some)),
        _ => {
            return Err(Failure::invalid(format!(
                "x and y must have the same dtype, got {} and {}",
                x.dtype(),
                y.dtype()
            )));
        }
    };
    let values = gather(x, &Tensor::vector(places.iter().map(|&i| i as i64).collect()), 0, 0)?;
    Ok([values, call::ints(index, [places.len()], &places)?].into_iter().collect())
}

fn without<K: Hash + Eq>(keys: impl Iterator<Item = Option<K>>, others: impl Iterator<Item = Option<K>>) -> Vec<usize> {
    let others: HashSet<K> = paced(others, LOOKUP).flatten().collect();
    let is_new = |key: &Option<K>| key.as_ref().is_none_or(|key| !others.contains(key));
    paced(keys, LOOKUP).enumerate().filter(|(_, key)| is_new(key)).map(|(i, _)| i).collect()
}
