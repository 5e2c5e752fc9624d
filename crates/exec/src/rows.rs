//! Tensors as the rows of a larger one, and back.

use meshtf_kernels::call::check_text_bytes;
use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Moved, Shape, Tensor, with_moved};

/// Bytes of the strings among some elements, without the fixed size of each element.
fn text_bytes(data: &Data, from: usize, count: usize) -> usize {
    match data {
        Data::String(texts) => texts[from..from + count].iter().map(Vec::len).sum(),
        _ => 0,
    }
}

/// Admits a copy of the strings of some tensors, and of `more` bytes of strings.
///
/// # Errors
/// ResourceExhausted if they exceed the limit of a tensor, or the memory budget.
pub(super) fn check_texts(parts: &[&Tensor], more: usize) -> Result<()> {
    let bytes = parts.iter().map(|part| text_bytes(part.data(), 0, part.len())).fold(more, usize::saturating_add);
    if bytes > 0 { check_text_bytes(bytes) } else { Ok(()) }
}

/// Row `i` of a tensor.
pub(super) fn row(tensor: &Tensor, i: usize) -> Result<Tensor> {
    let shape = Shape::from(&tensor.dims()[1..]);
    let first = i * shape.elements().unwrap_or(0);
    part(tensor, shape, first)
}

/// The rows of a tensor from `first` to before `end`.
pub(super) fn between(tensor: &Tensor, first: usize, end: usize) -> Result<Tensor> {
    let shape: Shape = std::iter::once(end - first).chain(tensor.dims()[1..].iter().copied()).collect();
    part(tensor, shape, first * tensor.dims()[1..].iter().product::<usize>())
}

/// The elements of a tensor from `first` on, as a tensor of that shape.
fn part(tensor: &Tensor, shape: Shape, first: usize) -> Result<Tensor> {
    let dtype = tensor.dtype();
    let count = shape.checked_elements(dtype)?;
    let text = text_bytes(tensor.data(), first, count);
    if text > 0 {
        check_text_bytes(text)?;
    }
    with_moved!(dtype, T => {
        Ok(Tensor::from_moved(dtype, shape, tensor.moved::<T>()?[first..first + count].to_vec()))
    })
    .unwrap_or_else(no_elements)
}

fn no_elements() -> Result<Tensor> {
    Err(Failure::invalid("a handle is not a tensor"))
}

/// Tensors of one shape and dtype as the rows of one.
pub(super) fn stack(dtype: DType, shape: &Shape, rows: &[&Tensor]) -> Result<Tensor> {
    joined(dtype, std::iter::once(rows.len()).chain(shape.dims().iter().copied()).collect(), rows)
}

/// The elements of tensors of one dtype concatenated, as a tensor of that shape.
pub(super) fn joined(dtype: DType, shape: Shape, parts: &[&Tensor]) -> Result<Tensor> {
    check_dtype(dtype, parts)?;
    let elements = shape.checked_elements(dtype)?;
    check_texts(parts, 0)?;
    with_moved!(dtype, T => {
        let mut all: Vec<T> = Vec::with_capacity(elements);
        for part in paced(parts.iter(), 100) {
            all.extend_from_slice(part.moved::<T>()?);
        }
        Tensor::new(shape, T::into_data_of(dtype, all).expect("the dtype's own"))
    })
    .unwrap_or_else(no_elements)
}

fn check_dtype(dtype: DType, parts: &[&Tensor]) -> Result<()> {
    match parts.iter().find(|part| part.dtype() != dtype) {
        Some(other) => Err(Failure::invalid(format!("expected {dtype}, got {}", other.dtype()))),
        None => Ok(()),
    }
}

/// As [`stack`], for tensors of one rank whose sizes differ: each is padded at the end with zeros or empty strings, to the
/// largest size of each dimension. `least` is the shape if there is none.
pub(super) fn stack_padded(dtype: DType, least: &Shape, rows: &[&Tensor]) -> Result<Tensor> {
    let mut dims = least.dims().to_vec();
    for row in rows {
        dims.iter_mut().zip(row.dims()).for_each(|(most, &size)| *most = (*most).max(size));
    }
    let shape = Shape::from(&dims[..]);
    let whole: Shape = std::iter::once(rows.len()).chain(dims.iter().copied()).collect();
    check_dtype(dtype, rows)?;
    let elements = whole.checked_elements(dtype)?;
    check_texts(rows, 0)?;
    let size = shape.elements().unwrap_or(0);
    with_moved!(dtype, T => {
        let mut all = vec![T::default(); elements];
        for (i, row) in rows.iter().enumerate() {
            place(&mut all[i * size..], &dims, row.moved::<T>()?, row.dims());
        }
        Ok(Tensor::from_moved(dtype, whole, all))
    })
    .unwrap_or_else(no_elements)
}

/// Copies a tensor into the corner of a larger one of the same rank.
pub(super) fn place<T: Clone>(into: &mut [T], dims: &[usize], from: &[T], from_dims: &[usize]) {
    let ([_, rest @ ..], [count, from_rest @ ..]) = (dims, from_dims) else {
        into[..from.len()].clone_from_slice(from);
        return;
    };
    let (stride, from_stride) = (rest.iter().product::<usize>(), from_rest.iter().product::<usize>());
    for i in 0..*count {
        place(&mut into[i * stride..], rest, &from[i * from_stride..(i + 1) * from_stride], from_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_different_sizes_are_filled_up() {
        let check = |rows: &[Tensor], least: &[usize], want: Tensor| {
            let rows: Vec<&Tensor> = rows.iter().collect();
            assert_eq!(stack_padded(want.dtype(), &Shape::from(least), &rows).unwrap(), want);
        };
        let ints = |dims: &[usize], values: &[i32]| Tensor::from_vec(Shape::from(dims), values.to_vec());
        check(&[ints(&[1], &[1]), ints(&[3], &[2, 3, 4])], &[0], ints(&[2, 3], &[1, 0, 0, 2, 3, 4]));
        check(&[ints(&[0], &[]), ints(&[0], &[])], &[0], ints(&[2, 0], &[]));
        check(&[], &[0, 2], ints(&[0, 0, 2], &[]));
        check(&[ints(&[], &[5]), ints(&[], &[6])], &[], ints(&[2], &[5, 6]));
        check(
            &[ints(&[2, 1], &[1, 2]), ints(&[1, 3], &[3, 4, 5])],
            &[0, 0],
            ints(&[2, 2, 3], &[1, 0, 0, 2, 0, 0, 3, 4, 5, 0, 0, 0]),
        );
        let text = |dims: &[usize], values: &[&str]| {
            Tensor::from_vec(Shape::from(dims), values.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>())
        };
        check(&[text(&[1], &["a"]), text(&[2], &["b", "c"])], &[0], text(&[2, 2], &["a", "", "b", "c"]));
    }

    #[test]
    fn copies_of_strings_are_admitted_first() {
        let text = Tensor::from_vec([1, 1], vec![vec![b'a'; 10_000]]);
        let least = Shape::from([0, 0]);
        type Make<'a> = &'a dyn Fn() -> Result<Tensor>;
        let makes: [Make; 3] = [&|| row(&text, 0), &|| stack(DType::String, text.shape(), &[&text, &text]), &|| {
            stack_padded(DType::String, &least, &[&text, &text])
        }];
        for make in makes {
            let refused = meshtf_tensor::memory::Budget::of(5_000).run(make).unwrap_err();
            assert_eq!(refused.code, meshtf_tensor::failure::Code::ResourceExhausted, "{refused}");
            make().unwrap();
        }
    }
}
