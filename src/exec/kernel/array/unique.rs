//! Unique, UniqueWithCounts and ListDiff: which values there are.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::super::call::{self, input_dtype, no_kernel, output_dtype};
use super::super::{HostKernel, KernelNode, Outputs};
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Element, Tensor, with_type};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let counts = match node.op {
        "Unique" => Some(false),
        "UniqueWithCounts" => Some(true),
        "ListDiff" => None,
        _ => return Ok(None),
    };
    let (dtype, index) = (input_dtype(node, 0)?, output_dtype(node, 1)?);
    let found: Option<HostKernel> = with_type!(dtype, T => match counts {
        Some(counts) => Box::new(move |inputs| {
            let [x] = call::take(inputs)?;
            unique::<T>(&x, index, counts)
        }),
        None => Box::new(move |inputs| {
            let [x, y] = call::take(inputs)?;
            difference::<T>(&x, &y, index)
        }),
    });
    found.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

/// An element as a hash table can hold it: equal keys for equal elements.
trait Keyed: Element {
    type Key<'a>: Hash + Eq;
    fn key(&self) -> Self::Key<'_>;
}

macro_rules! keyed {
    ($($type:ty => $key:ty, $of:expr;)*) => {
        $(impl Keyed for $type {
            type Key<'a> = $key;
            fn key(&self) -> Self::Key<'_> { $of(self) }
        })*
    };
}

/// Both zeros are one value.
fn bits(x: f64) -> u64 {
    if x == 0.0 { 0 } else { x.to_bits() }
}

keyed! {
    half::f16 => u64, |x: &half::f16| bits(x.to_f64());
    half::bf16 => u64, |x: &half::bf16| bits(x.to_f64());
    f32 => u64, |x: &f32| bits(f64::from(*x));
    f64 => u64, |x: &f64| bits(*x);
    i8 => i8, |x: &i8| *x;
    i16 => i16, |x: &i16| *x;
    i32 => i32, |x: &i32| *x;
    i64 => i64, |x: &i64| *x;
    u8 => u8, |x: &u8| *x;
    u16 => u16, |x: &u16| *x;
    u32 => u32, |x: &u32| *x;
    u64 => u64, |x: &u64| *x;
    bool => bool, |x: &bool| *x;
}

impl Keyed for Vec<u8> {
    type Key<'a> = &'a [u8];
    fn key(&self) -> &[u8] {
        self
    }
}

/// Each value once, in the order of its first place; where each element's value stands; how often it came.
fn unique<T: Keyed>(x: &Tensor, index: DType, counts: bool) -> Result<Outputs> {
    if x.rank() != 1 {
        return Err(Failure::invalid(format!("unique expects a 1D vector, got shape {}", x.shape())));
    }
    let elements = x.slice::<T>()?;
    let mut seen = HashMap::new();
    let (mut values, mut places, mut numbers) = (Vec::new(), Vec::with_capacity(elements.len()), Vec::new());
    for element in elements {
        // A NaN equals nothing, itself included.
        #[allow(clippy::eq_op)]
        let place = if element == element { *seen.entry(element.key()).or_insert(values.len()) } else { values.len() };
        if place == values.len() {
            values.push(element.clone());
            numbers.push(0);
        }
        places.push(place);
        numbers[place] += 1;
    }
    let mut outputs: Outputs =
        [Tensor::vector(values), call::ints(index, [places.len()], &places)?].into_iter().collect();
    if counts {
        outputs.push(call::ints(index, [numbers.len()], &numbers)?);
    }
    Ok(outputs)
}

/// The elements of `x` that are not in `y`, and where they stand in `x`.
fn difference<T: Keyed>(x: &Tensor, y: &Tensor, index: DType) -> Result<Outputs> {
    for (name, tensor) in [("x", x), ("y", y)] {
        if tensor.rank() != 1 {
            return Err(Failure::invalid(format!("{name} should be a 1D vector, got shape {}", tensor.shape())));
        }
    }
    #[allow(clippy::eq_op)]
    let without: HashSet<_> = y.slice::<T>()?.iter().filter(|y| y == y).map(Keyed::key).collect();
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for (i, element) in x.slice::<T>()?.iter().enumerate() {
        if !without.contains(&element.key()) {
            values.push(element.clone());
            places.push(i);
        }
    }
    Ok([Tensor::vector(values), call::ints(index, [places.len()], &places)?].into_iter().collect())
}
