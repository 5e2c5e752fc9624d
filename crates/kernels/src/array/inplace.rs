//! The ops InplaceUpdate, InplaceAdd and InplaceSub, which change rows of a tensor; DeepCopy; Empty; EnsureShape;
//! UnravelIndex; DataFormatDimMap and DataFormatVecPermute.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Ring, Shape, Tensor, with_moved, with_ring};

use super::super::call::{self, input_dtype, kernel as call, output_dtype, vector};
use super::super::math::cast;
use super::super::{HostKernel, KernelNode, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("InplaceUpdate", |node| {
        Ok(with_moved!(input_dtype(node, 0)?, T => call(|inputs| {
            rows(inputs, |x, v, rows| change(x.moved_mut::<T>(), v.moved(), rows, T::clone_from))
        })))
    });
    ops.insert("InplaceAdd", |node| {
        Ok(with_ring!(input_dtype(node, 0)?, T => call(|inputs| {
            rows(inputs, |x, v, rows| change(x.slice_mut::<T>(), v.slice(), rows, |old, new| *old = old.add(*new)))
        })))
    });
    ops.insert("InplaceSub", |node| {
        Ok(with_ring!(input_dtype(node, 0)?, T => call(|inputs| {
            rows(inputs, |x, v, rows| change(x.slice_mut::<T>(), v.slice(), rows, |old, new| *old = old.sub(*new)))
        })))
    });
    ops.insert("DeepCopy", |_| Ok(Some(call(|[x]: [Tensor; 1]| Ok(x)))));
    ops.insert("Empty", |node| {
        let dtype = output_dtype(node, 0)?;
        Ok(Some(call(move |[shape]: [Tensor; 1]| {
            Tensor::zeros(dtype, Shape::from_i64s(&vector(&shape, "shape", false)?)?)
        })))
    });
    ops.insert("EnsureShape", |node| {
        let wanted = node.attrs.shape("shape")?.clone();
        Ok(Some(call(move |[x]: [Tensor; 1]| match wanted.admits(x.shape()) {
            true => Ok(x),
            false => {
                let got = x.shape();
                Err(Failure::invalid(format!("Shape of tensor {got} is not compatible with expected shape {wanted}.")))
            }
        })))
    });
    ops.insert("UnravelIndex", |node| {
        let dtype = input_dtype(node, 0)?;
        Ok(Some(call(move |[indices, dims]: [Tensor; 2]| cast(unravel(&indices, &dims)?, dtype))))
    });
    ops.insert("DataFormatDimMap", |node| between_formats(node, true));
    ops.insert("DataFormatVecPermute", |node| between_formats(node, false));
}

/// Dimensions by number, or a vector of them, from one data format to another.
fn between_formats(node: &KernelNode, is_map: bool) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 0)?;
    let format = |name: &str| node.attrs.str(name).map(|format| format.as_bytes().to_vec());
    let (from, to) = (format("src_format")?, format("dst_format")?);
    let places = permutation(&from, &to)?;
    Ok(Some(call(move |[x]: [Tensor; 1]| {
        let moved = if is_map { mapped(&x, &places) } else { permuted(&x, &from, &to) };
        cast(moved?, dtype)
    })))
}

/// The indices of rows of a tensor, and the number of elements of each.
struct NamedRows {
    places: Vec<usize>,
    width: usize,
}

/// Changes the rows of the first input that the second names by the rows of the third; `change` receives the first and
/// the third.
fn rows([x, i, v]: [Tensor; 3], change: fn(&mut Tensor, &Tensor, &NamedRows) -> Result<()>) -> Result<Tensor> {
    let wrong = |why: String| Err(Failure::invalid(why));
    let (own, given) = (x.shape(), v.shape());
    if i.rank() != 1 {
        return wrong(format!("i must be a vector. {}", i.shape()));
    }
    if own.rank() == 0 || own.rank() != given.rank() {
        return wrong(format!("x and v shape doesn't match (ranks differ): {own} vs. {given}"));
    }
    if let Some(axis) = (1..own.rank()).find(|&axis| own.dims()[axis] != given.dims()[axis]) {
        return wrong(format!("x and v shape doesn't match at index {axis} : {own} vs. {given}"));
    }
    if i.len() != given.dims()[0] {
        return wrong(format!("i and x shape doesn't match at index 0: {} vs. {given}", i.shape()));
    }
    let (count, width) = (own.dims()[0] as i64, call::product(&own.dims()[1..]));
    if width == 0 || i.is_empty() {
        return Ok(x);
    }
    if count == 0 {
        return wrong(format!("there are no rows to change in x of shape {own}"));
    }
    let mut x = call::owned(x)?;
    // The indices wrap around at the number of rows.
    let places = i.to_i64s()?.into_iter().map(|row| row.rem_euclid(count) as usize).collect();
    change(&mut x, &v, &NamedRows { places, width })?;
    Ok(x)
}

/// Changes each element of the rows by the corresponding element of `new`.
fn change<T>(
    old: Result<&mut [T]>,
    new: Result<&[T]>,
    NamedRows { places, width }: &NamedRows,
    change: impl Fn(&mut T, &T),
) -> Result<()> {
    let (old, new) = (old?, new?);
    for (row, new) in paced(places.iter().zip(new.chunks_exact(*width)), *width) {
        old[row * width..][..*width].iter_mut().zip(new).for_each(|(old, new)| change(old, new));
    }
    Ok(())
}

/// The coordinates, a row for each dimension, of flat indices into a tensor of these sizes.
fn unravel(indices: &Tensor, dims: &Tensor) -> Result<Tensor> {
    if indices.rank() > 1 {
        return Err(Failure::invalid(format!("The indices can only be scalar or vector, got \"{}\"", indices.shape())));
    }
    if dims.rank() != 1 {
        return Err(Failure::invalid(format!("The indices can only be 1-D, got \"{}\"", dims.shape())));
    }
    let sizes = Shape::from_i64s(&dims.to_i64s()?)?;
    let places = indices.to_i64s()?;
    let count = sizes.elements().and_then(|count| i64::try_from(count).ok()).unwrap_or(i64::MAX);
    if let Some(outside) = places.iter().find(|&&place| !(0..count).contains(&place)) {
        return Err(Failure::invalid(format!("index is out of bound as with dims: {outside} and {sizes}")));
    }
    let strides = sizes.strides();
    let shape = if indices.rank() == 0 { Shape::from([sizes.rank()]) } else { [sizes.rank(), places.len()].into() };
    let mut out = Vec::with_capacity(shape.checked_elements(meshtf_tensor::DType::I64)?);
    for (&size, &stride) in sizes.dims().iter().zip(&strides) {
        out.extend(paced(places.iter(), 8).map(|&place| place / stride as i64 % size as i64));
    }
    Ok(Tensor::from_vec(shape, out))
}

/// The position of each dimension of one format in the other.
fn permutation(from: &[u8], to: &[u8]) -> Result<Vec<usize>> {
    let wrong = || {
        let [from, to] = [from, to].map(String::from_utf8_lossy);
        Failure::invalid(format!("Destination and source format must determine a permutation, got {from} and {to}"))
    };
    if from.len() != 4 && from.len() != 5 {
        return Err(wrong());
    }
    let is_permutation = to.len() == from.len() && to.iter().all(|name| from.contains(name));
    let places = from.iter().map(|name| to.iter().position(|other| other == name));
    places.collect::<Option<Vec<_>>>().filter(|_| is_permutation).ok_or_else(wrong)
}

/// The new positions of the dimensions with these numbers; negative numbers count from the end.
fn mapped(x: &Tensor, places: &[usize]) -> Result<Tensor> {
    let rank = places.len() as i64;
    let place = |dim: i64| {
        let at = if dim < 0 { dim + rank } else { dim };
        usize::try_from(at)
            .ok()
            .and_then(|at| places.get(at))
            .map(|&at| at as i64)
            .ok_or_else(|| Failure::invalid(format!("Dimension index must be in [-{rank}, {rank}), got {dim}")))
    };
    let out = x.to_i64s()?.into_iter().map(place).collect::<Result<Vec<i64>>>()?;
    Ok(Tensor::from_vec(x.shape().clone(), out))
}

/// A number, or a pair, for each dimension (or for each spatial one, if there are two fewer), reordered for the other
/// format.
fn permuted(x: &Tensor, from: &[u8], to: &[u8]) -> Result<Tensor> {
    let (all, space) = (from.len(), from.len() - 2);
    let shape = x.shape();
    if shape.rank() != 1 && shape.rank() != 2 {
        return Err(Failure::invalid(format!("input must be a vector or 2D tensor, but got shape {shape}")));
    }
    let count = shape.dims()[0];
    if count != all && count != space {
        let what = if shape.rank() == 1 { "1D input" } else { "First dimension of 2D input" };
        return Err(Failure::invalid(format!("{what} must be of size {space} or {all}, but got shape {shape}")));
    }
    if shape.rank() == 2 && shape.dims()[1] != 2 {
        return Err(Failure::invalid(format!("Second dimension of 2D input must be of size 2, but got shape {shape}")));
    }
    let is_kept = |name: &&u8| count == all || !matches!(name, b'N' | b'C');
    let named: Vec<&u8> = from.iter().filter(is_kept).collect();
    let order = to.iter().filter(is_kept).map(|name| named.iter().position(|other| *other == name));
    let order = order.collect::<Option<Vec<usize>>>().filter(|order| order.len() == count);
    let order = order.ok_or_else(|| Failure::invalid("the formats name different spatial dimensions"))?;
    let (values, width) = (x.to_i64s()?, if shape.rank() == 2 { 2 } else { 1 });
    let out = order.iter().flat_map(|&at| &values[at * width..][..width]).copied().collect();
    Ok(Tensor::from_vec(shape.clone(), out))
}
