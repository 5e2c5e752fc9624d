//! Pad, PadV2, MirrorPad and its gradient, ReverseV2, ReverseSequence and Roll: borders and direction.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Ring, Shape, Tensor, with_ring};

use super::super::call::{self, input_dtype, kernel as call, vector};
use super::super::{KernelNode, Registry};
use super::join::join;
use super::view::View;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Pad", |_| {
        Ok(Some(call(|[x, paddings]| {
            let zero = Tensor::zeros(x.dtype(), Shape::scalar())?;
            pad(x, &paddings, &zero)
        })))
    });
    ops.insert("PadV2", |_| {
        Ok(Some(call(|[x, paddings, value]: [Tensor; 3]| {
            if value.rank() != 0 {
                return Err(Failure::invalid(format!("constant_values must be a scalar. Found: {}", value.shape())));
            }
            pad(x, &paddings, &value)
        })))
    });
    ops.insert("MirrorPad", |node| {
        let border = border_of(node)?;
        Ok(Some(call(move |[x, paddings]| mirror_pad(x, &paddings, border))))
    });
    ops.insert("MirrorPadGrad", |node| {
        let border = border_of(node)?;
        Ok(with_ring!(input_dtype(node, 0)?, T => call(move |[x, paddings]: [Tensor; 2]| {
            folded::<T>(x, &paddings, border)
        })))
    });
    ops.insert("ReverseV2", |_| Ok(Some(call(|[x, axes]| reverse(x, &axes)))));
    ops.insert("ReverseSequence", |node| {
        let (sequence, batch) = (node.attrs.int("seq_dim")?, node.attrs.int("batch_dim")?);
        Ok(Some(call(move |[x, lengths]| reverse_sequence(x, &lengths, sequence, batch))))
    });
    ops.insert("Roll", |_| Ok(Some(call(|[x, shift, axes]| roll(x, &shift, &axes)))));
}

/// The number of elements to add before and after each dimension.
fn paddings_of(paddings: &Tensor, rank: usize) -> Result<Vec<(usize, usize)>> {
    match paddings.dims() {
        [rows, 2] if *rows == rank => {}
        [rows, 2] => {
            let why = format!(
                "The first dimension of paddings must be the rank of inputs: paddings have {rows} rows for rank {rank}"
            );
            return Err(Failure::invalid(why));
        }
        _ if rank == 0 && paddings.is_empty() => {}
        _ => {
            let why = format!("paddings must be a matrix with 2 columns: {}", paddings.shape());
            return Err(Failure::invalid(why));
        }
    }
    paddings
        .to_i64s()?
        .chunks_exact(2)
        .map(|pair| match (usize::try_from(pair[0]), usize::try_from(pair[1])) {
            (Ok(before), Ok(after)) => Ok((before, after)),
            _ => Err(Failure::invalid(format!("Paddings must be non-negative: {} {}", pair[0], pair[1]))),
        })
        .collect()
}

pub(super) fn pad(x: Tensor, paddings: &Tensor, value: &Tensor) -> Result<Tensor> {
    let paddings = paddings_of(paddings, x.rank())?;
    if paddings.iter().all(|&padding| padding == (0, 0)) {
        return Ok(x);
    }
    let shape: Shape = x
        .dims()
        .iter()
        .zip(&paddings)
        .map(|(&size, &(before, after))| size.saturating_add(before).saturating_add(after))
        .collect();
    let everywhere = View { offset: 0, dims: shape.dims().iter().map(|&size| (size, 0)).collect() };
    let mut out = everywhere.read(value, shape.clone())?;
    let begin: Vec<usize> = paddings.iter().map(|&(before, _)| before).collect();
    View::block(&shape, &begin, x.dims()).write(out.data_mut(), &x)?;
    Ok(out)
}

/// Pads with the mirrored contents, one axis after another; `border` elements at the edge are not repeated.
fn mirror_pad(mut x: Tensor, paddings: &Tensor, border: usize) -> Result<Tensor> {
    let paddings = paddings_of(paddings, x.rank())?;
    for (axis, (&(before, after), &size)) in paddings.iter().zip(x.dims()).enumerate() {
        if before.max(after) + border > size && before.max(after) > 0 {
            let rule = if border == 0 { "no greater" } else { "less" };
            return Err(Failure::invalid(format!(
                "paddings must be {rule} than the dimension size: {before}, {after} for dimension {axis} of size {size}"
            )));
        }
    }
    for (axis, (before, after)) in paddings.into_iter().enumerate().filter(|(_, padding)| *padding != (0, 0)) {
        let size = x.dims()[axis];
        // The elements from `first` backwards.
        let mirrored = |first: usize, count: usize| {
            let mut view = View::all(x.shape());
            let stride = view.dims[axis].1;
            view.offset = first as isize * stride;
            view.dims[axis] = (count, -stride);
            let mut dims = x.dims().to_vec();
            dims[axis] = count;
            view.read(&x, dims.into())
        };
        let mut dims = x.dims().to_vec();
        dims[axis] = size.saturating_add(before).saturating_add(after);
        let left = mirrored((before + border).saturating_sub(1), before)?;
        let right = mirrored((size - border.min(size)).saturating_sub(1), after)?;
        x = join(&[left, x, right], axis, dims.into())?.remove(0);
    }
    Ok(x)
}

/// The number of elements at an edge that are not mirrored.
fn border_of(node: &KernelNode) -> Result<usize> {
    Ok(if node.attrs.str("mode")? == "SYMMETRIC" { 0 } else { 1 })
}

/// The gradient of [`mirror_pad`]: mirrored elements are added to their sources, one axis after another.
fn folded<T: Ring>(mut x: Tensor, paddings: &Tensor, border: usize) -> Result<Tensor> {
    let paddings = paddings_of(paddings, x.rank())?;
    for (axis, (before, after)) in paddings.into_iter().enumerate().filter(|(_, padding)| *padding != (0, 0)) {
        let whole = x.dims()[axis];
        let size = whole.checked_sub(before).and_then(|size| size.checked_sub(after)).unwrap_or(0);
        if before.max(after) + border > size {
            return Err(Failure::invalid(format!(
                "paddings {before}, {after} are more than dimension {axis} of size {whole} can have been padded by"
            )));
        }
        let inner = call::product(&x.dims()[axis + 1..]);
        let mut dims = x.dims().to_vec();
        dims[axis] = size;
        let shape = Shape::from(dims);
        let mut out = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
        for block in paced(x.slice::<T>()?.chunks_exact((whole * inner).max(1)), whole * inner) {
            let row = |i: usize| &block[i * inner..][..inner];
            for i in 0..size {
                let at = out.len();
                out.extend_from_slice(row(before + i));
                let mut add = |from: usize| out[at..].iter_mut().zip(row(from)).for_each(|(sum, &x)| *sum = sum.add(x));
                // Element i appears again `i + 1 - border` before the first and after the last.
                if (border..before + border).contains(&i) {
                    add(before + border - 1 - i);
                }
                let back = size - 1 - i;
                if (border..after + border).contains(&back) {
                    add(before + size + back - border);
                }
            }
        }
        x = Tensor::from_vec(shape, out);
    }
    Ok(x)
}

fn reverse(x: Tensor, axes: &Tensor) -> Result<Tensor> {
    let mut view = View::all(x.shape());
    let mut seen = vec![false; x.rank()];
    for axis in vector(axes, "'dims'", false)? {
        let at = call::axis(axis, x.rank())?;
        if std::mem::replace(&mut seen[at], true) {
            return Err(Failure::invalid(format!("axis {at} specified more than once.")));
        }
        let (size, stride) = view.dims[at];
        view.offset += (size as isize - 1).max(0) * stride;
        view.dims[at] = (size, -stride);
    }
    if x.is_empty() { Ok(x) } else { view.read(&x, x.shape().clone()) }
}

/// Reverses the first elements along one axis; `lengths` contains their number for each batch entry.
fn reverse_sequence(x: Tensor, lengths: &Tensor, sequence: i64, batch: i64) -> Result<Tensor> {
    let (sequence, batch) = (call::axis(sequence, x.rank())?, call::axis(batch, x.rank())?);
    if sequence == batch {
        return Err(Failure::invalid(format!("batch_dim == seq_dim == {sequence}")));
    }
    let lengths = vector(lengths, "seq_lens", false)?;
    let (batches, most) = (x.dims()[batch], x.dims()[sequence]);
    if lengths.len() != batches {
        return Err(Failure::invalid(format!(
            "Length of seq_lengths != input.dims({batch}), ({} vs. {batches})",
            lengths.len()
        )));
    }
    let mut out = x.clone();
    for (i, &length) in lengths.iter().enumerate() {
        let length = usize::try_from(length).ok().filter(|&length| length <= most).ok_or_else(|| {
            Failure::invalid(format!(
                "seq_lens({i}) = {length} is not in [0, {most}], the size of dimension {sequence}"
            ))
        })?;
        if length < 2 || x.is_empty() {
            continue;
        }
        let (mut begin, mut sizes) = (vec![0; x.rank()], x.dims().to_vec());
        (begin[batch], sizes[batch], sizes[sequence]) = (i, 1, length);
        let forward = View::block(x.shape(), &begin, &sizes);
        let mut backward = forward.clone();
        let stride = backward.dims[sequence].1;
        backward.offset += (length as isize - 1) * stride;
        backward.dims[sequence].1 = -stride;
        forward.write(out.data_mut(), &backward.read(&x, sizes.into())?)?;
    }
    Ok(out)
}

fn roll(mut x: Tensor, shifts: &Tensor, axes: &Tensor) -> Result<Tensor> {
    for (what, tensor) in [("shift", shifts), ("axis", axes)] {
        if tensor.rank() > 1 {
            let why = format!("{what} must be a scalar or a 1-D vector. Found: {}", tensor.shape());
            return Err(Failure::invalid(why));
        }
    }
    let (shifts, axes) = (vector(shifts, "shift", true)?, vector(axes, "axis", true)?);
    if x.rank() == 0 {
        return Err(Failure::invalid("input must be 1-D or higher"));
    }
    if shifts.len() != axes.len() {
        return Err(Failure::invalid(format!(
            "shift and axis must have the same size, got {} and {}",
            shifts.len(),
            axes.len()
        )));
    }
    for (&shift, &axis) in shifts.iter().zip(&axes) {
        let at = call::axis(axis, x.rank()).map_err(|_| Failure::invalid(format!("axis {axis} is out of range")))?;
        let size = x.dims()[at];
        if x.is_empty() || shift.rem_euclid(size as i64) == 0 {
            continue;
        }
        // The last elements come first.
        let wrapped = shift.rem_euclid(size as i64) as usize;
        let part = |from: usize, count: usize| {
            let (mut begin, mut sizes) = (vec![0; x.rank()], x.dims().to_vec());
            (begin[at], sizes[at]) = (from, count);
            View::block(x.shape(), &begin, &sizes).read(&x, sizes.into())
        };
        let parts = [part(size - wrapped, wrapped)?, part(0, size - wrapped)?];
        x = join(&parts, at, x.shape().clone())?.remove(0);
    }
    Ok(x)
}
