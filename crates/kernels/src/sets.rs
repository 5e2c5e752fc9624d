//! Sets: the last axis of a dense or sparse tensor contains the elements of one set. The ops SetSize,
//! DenseToDenseSetOperation, DenseToSparseSetOperation and SparseToSparseSetOperation.

use std::collections::{BTreeMap, BTreeSet};

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Element, Shape, Tensor, with_type};

use super::call::input_dtype;
use super::{HostKernel, Inputs, KernelNode, Outputs, Registry};

/// Registers the set ops.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("SetSize", |node| {
        let (dtype, validates) = (input_dtype(node, 1)?, node.attrs.bool("validate_indices")?);
        Ok(with_type!(dtype, T => Box::new(move |inputs: Inputs| {
            let mut inputs = inputs.into_iter();
            sizes(&Sets::<T>::read(&mut inputs, true, validates)?)
        }) as HostKernel; I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, String Vec<u8>))
    });
    ops.insert("DenseToDenseSetOperation", |node| operation(node, false, false));
    ops.insert("DenseToSparseSetOperation", |node| operation(node, false, true));
    ops.insert("SparseToSparseSetOperation", |node| operation(node, true, true));
}

/// An operation on two sets, each of which is sparse or dense.
fn operation(node: &KernelNode, first: bool, second: bool) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, usize::from(first))?;
    let validates = node.attrs.bool("validate_indices")?;
    let operation = match node.attrs.str("set_operation")?.to_ascii_lowercase().as_str() {
        "a-b" => Operation::FirstLess,
        "b-a" => Operation::SecondLess,
        "intersection" => Operation::Intersection,
        "union" => Operation::Union,
        other => return Err(Failure::invalid(format!("Invalid set_operation {other}."))),
    };
    let kernel: Option<HostKernel> = with_type!(dtype, T => Box::new(move |inputs: Inputs| {
        let mut inputs = inputs.into_iter();
        let a = Sets::<T>::read(&mut inputs, first, validates)?;
        let b = Sets::<T>::read(&mut inputs, second, validates)?;
        operation.of(a, b)
    }) as HostKernel; I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, String Vec<u8>);
    Ok(kernel)
}

#[derive(Clone, Copy)]
enum Operation {
    FirstLess,
    SecondLess,
    Intersection,
    Union,
}

/// Sets by their positions; empty ones may be missing.
struct Sets<T> {
    /// The shape of the positions.
    groups: Vec<usize>,
    sets: BTreeMap<Vec<i64>, BTreeSet<T>>,
}

impl<T: Element + Ord> Sets<T> {
    /// Reads the inputs of one operand: a dense tensor, or indices, values and shape of a sparse one.
    fn read(inputs: &mut impl Iterator<Item = Tensor>, is_sparse: bool, validates: bool) -> Result<Sets<T>> {
        let mut next = || inputs.next().ok_or_else(|| Failure::invalid("an input is missing"));
        if is_sparse {
            return Sets::sparse(&next()?, &next()?, &next()?, validates);
        }
        let dense = next()?;
        let Some((&size, groups)) = dense.dims().split_last().filter(|(_, groups)| !groups.is_empty()) else {
            return Err(Failure::invalid(format!("Invalid input rank {}: a set has at least two.", dense.rank())));
        };
        memory::admit(dense.len().saturating_mul(64).saturating_add(dense.byte_len()))?;
        let mut sets = BTreeMap::new();
        let mut pace = Pace::new();
        if size > 0 {
            for (i, set) in dense.slice::<T>()?.chunks_exact(size).enumerate() {
                pace.go(100 * size);
                sets.insert(position(i, groups), set.iter().cloned().collect());
            }
        }
        Ok(Sets { groups: groups.to_vec(), sets })
    }

    fn sparse(indices: &Tensor, values: &Tensor, shape: &Tensor, validates: bool) -> Result<Sets<T>> {
        let sizes = shape.to_i64s()?;
        let (&[count, rank], 1) = (indices.dims(), shape.rank()) else {
            return Err(Failure::invalid(format!("indices must be a matrix, got shape {}", indices.shape())));
        };
        if values.dims() != [count] || sizes.len() != rank {
            let (values, shape) = (values.shape(), shape.shape());
            let why =
                format!("indices of shape {} do not fit values of {values} and a shape of {shape}", indices.shape());
            return Err(Failure::invalid(why));
        }
        if rank < 2 {
            return Err(Failure::invalid(format!("Invalid input rank {rank}: a set has at least two.")));
        }
        let all = indices.to_i64s()?;
        memory::admit(count.saturating_mul(64 + 8 * rank).saturating_add(values.byte_len()))?;
        let mut sets: BTreeMap<Vec<i64>, BTreeSet<T>> = BTreeMap::new();
        let mut pace = Pace::new();
        let mut last: Option<&[i64]> = None;
        for (index, value) in all.chunks_exact(rank).zip(values.slice::<T>()?) {
            pace.go(200 + rank);
            if index.iter().zip(&sizes).any(|(index, size)| !(0..*size).contains(index)) {
                return Err(Failure::invalid(format!("index {index:?} is out of bounds: need 0 <= index < {sizes:?}")));
            }
            if validates && last.is_some_and(|last| last >= index) {
                return Err(Failure::invalid(format!("index {index:?} is out of order or repeated")));
            }
            last = Some(index);
            sets.entry(index[..rank - 1].to_vec()).or_default().insert(value.clone());
        }
        Ok(Sets { groups: Shape::from_i64s(&sizes[..rank - 1])?.dims().to_vec(), sets })
    }
}

/// The position of group `i`.
fn position(mut i: usize, groups: &[usize]) -> Vec<i64> {
    let mut position = vec![0; groups.len()];
    for (at, &size) in position.iter_mut().zip(groups).rev() {
        (*at, i) = ((i % size) as i64, i / size);
    }
    position
}

/// The number of elements of each set.
fn sizes<T: Element + Ord>(sets: &Sets<T>) -> Result<Outputs> {
    let shape = Shape::from(&sets.groups[..]);
    let mut sizes = vec![0i32; shape.checked_elements(DType::I32)?];
    let strides = shape.strides();
    for (position, set) in &sets.sets {
        let at: usize = position.iter().zip(&strides).map(|(&at, stride)| at as usize * stride).sum();
        sizes[at] = i32::try_from(set.len()).unwrap_or(i32::MAX);
    }
    Ok(Outputs::from_iter([Tensor::from_vec(shape, sizes)]))
}

impl Operation {
    /// The indices, values and shape of the results.
    fn of<T: Element + Ord>(self, mut a: Sets<T>, mut b: Sets<T>) -> Result<Outputs> {
        if a.groups != b.groups {
            let (a, b) = (Shape::from(&a.groups[..]), Shape::from(&b.groups[..]));
            return Err(Failure::invalid(format!("Mismatched group shapes {a} and {b}")));
        }
        let positions: BTreeSet<Vec<i64>> = a.sets.keys().chain(b.sets.keys()).cloned().collect();
        let rank = a.groups.len() + 1;
        let (mut indices, mut values, mut most) = (Vec::new(), Vec::<T>::new(), 0);
        let mut pace = Pace::new();
        for position in positions {
            let (x, y) = (a.sets.remove(&position).unwrap_or_default(), b.sets.remove(&position).unwrap_or_default());
            pace.go(100 * (x.len() + y.len()));
            let result: Vec<T> = match self {
                Operation::FirstLess => x.difference(&y).cloned().collect(),
                Operation::SecondLess => y.difference(&x).cloned().collect(),
                Operation::Intersection => x.intersection(&y).cloned().collect(),
                Operation::Union => x.union(&y).cloned().collect(),
            };
            most = most.max(result.len());
            for (i, value) in result.into_iter().enumerate() {
                indices.extend_from_slice(&position);
                indices.push(i as i64);
                values.push(value);
            }
        }
        let count = values.len();
        let shape = a.groups.iter().map(|&size| size as i64).chain([most as i64]).collect();
        let indices = Tensor::new([count, rank], Data::I64(indices))?;
        Ok(Outputs::from_iter([indices, Tensor::from_vec([count], values), Tensor::vector::<i64>(shape)]))
    }
}
