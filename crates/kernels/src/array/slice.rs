//! Slice, StridedSlice with its gradient and its update, Split, SplitV and Unpack: parts of a tensor.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Data, Shape, Tensor};

use super::super::call::{self, kernel as call, vector};
use super::super::update::Update;
use super::super::{Inputs, KernelNode, Outputs, Registry};
use super::view::View;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_update(["StridedSliceAssign", "ResourceStridedSliceAssign"], |node| assign(node).map(Some));
    ops.insert("Slice", |_| Ok(Some(call(|[x, begin, size]| slice(x, &begin, &size)))));
    ops.insert("StridedSlice", |node| {
        let masks = Masks::of(node)?;
        Ok(Some(call(move |[x, begin, end, strides]| {
            let (view, shape) = masks.resolve(x.shape(), &begin, &end, &strides)?;
            if shape == *x.shape() && view.offset == 0 && view.dims == View::all(x.shape()).dims {
                return Ok(x);
            }
            view.read(&x, shape)
        })))
    });
    ops.insert("StridedSliceGrad", |node| {
        let masks = Masks::of(node)?;
        Ok(Some(call(move |[shape, begin, end, strides, dy]| {
            let shape = Shape::from_i64s(&vector(&shape, "shape", false)?)?;
            let (view, wanted) = masks.resolve(&shape, &begin, &end, &strides)?;
            if wanted != *dy.shape() {
                return Err(Failure::invalid(format!("shape of dy was {} instead of {wanted}", dy.shape())));
            }
            let mut data = Data::zeros(dy.dtype(), shape.checked_elements(dy.dtype())?);
            view.write(&mut data, &dy)?;
            Tensor::new(shape, data)
        })))
    });
    ops.insert("TensorStridedSliceUpdate", |node| {
        let masks = Masks::of(node)?;
        Ok(Some(call(move |[x, begin, end, strides, value]| masks.update(x, &[begin, end, strides], &value))))
    });
    ops.insert("Split", |node| {
        let count = node.outputs.len();
        Ok(Some(Box::new(move |inputs| split(inputs, count))))
    });
    ops.insert("SplitV", |node| {
        let count = node.outputs.len();
        Ok(Some(Box::new(move |inputs| split_v(inputs, count))))
    });
    ops.insert("Unpack", |node| {
        let (count, axis) = (node.outputs.len(), node.attrs.int("axis")?);
        Ok(Some(Box::new(move |inputs| unpack(inputs, count, axis))))
    });
}

/// The change of a variable by StridedSliceAssign.
fn assign(node: &KernelNode) -> Result<Update> {
    let masks = Masks::of(node)?;
    Ok(Update::new(1, move |variables, rest| match (variables, rest) {
        ([var], [begin, end, strides, value]) => {
            masks.assign(var, &[begin.clone(), end.clone(), strides.clone()], value)
        }
        _ => Err(Failure::invalid("a slice is assigned to a variable, by begin, end and strides")),
    }))
}

fn slice(x: Tensor, begin: &Tensor, size: &Tensor) -> Result<Tensor> {
    if begin.dims() != [x.rank()] || size.dims() != [x.rank()] {
        return Err(Failure::invalid(format!(
            "Expected begin and size arguments to be 1-D tensors of size {}, but got shapes {} and {} instead.",
            x.rank(),
            begin.shape(),
            size.shape()
        )));
    }
    let (begin, size) = (begin.to_i64s()?, size.to_i64s()?);
    let (mut begins, mut sizes) = (Vec::with_capacity(x.rank()), Vec::with_capacity(x.rank()));
    for (i, &dim) in x.dims().iter().enumerate() {
        let at = usize::try_from(begin[i])
            .ok()
            .filter(|&at| at <= dim)
            .ok_or_else(|| Failure::invalid(format!("Expected begin[{i}] in [0, {dim}], but got {}", begin[i])))?;
        let most = dim - at;
        let take = if size[i] == -1 { Some(most) } else { usize::try_from(size[i]).ok().filter(|&n| n <= most) };
        begins.push(at);
        sizes.push(
            take.ok_or_else(|| Failure::invalid(format!("Expected size[{i}] in [0, {most}], but got {}", size[i])))?,
        );
    }
    if sizes == x.dims() {
        return Ok(x);
    }
    View::block(x.shape(), &begins, &sizes).read(&x, sizes.into())
}

/// The masks of a strided slice, a bit for each entry.
struct Masks {
    begin: u64,
    end: u64,
    ellipsis: u64,
    new_axis: u64,
    shrink_axis: u64,
}

impl Masks {
    fn of(node: &KernelNode) -> Result<Masks> {
        let mask = |name| node.attrs.int(name).map(|bits| bits as u64);
        let masks = Masks {
            begin: mask("begin_mask")?,
            end: mask("end_mask")?,
            ellipsis: mask("ellipsis_mask")?,
            new_axis: mask("new_axis_mask")?,
            shrink_axis: mask("shrink_axis_mask")?,
        };
        if masks.ellipsis.count_ones() > 1 {
            return Err(Failure::invalid("Multiple ellipses in slice spec not allowed"));
        }
        Ok(masks)
    }

    /// The part of a tensor of `shape` that the slice selects, and the part's shape.
    fn resolve(&self, shape: &Shape, begin: &Tensor, end: &Tensor, strides: &Tensor) -> Result<(View, Shape)> {
        let [begin, end, strides] = [begin, end, strides].map(indices);
        let (begin, end, strides) = (begin?, end?, strides?);
        let n = begin.len();
        if end.len() != n || strides.len() != n || n > 63 {
            return Err(Failure::invalid(format!(
                "Expected begin, end, and strides to be 1D equal size tensors, but got shapes [{n}], [{}], and [{}] instead.",
                end.len(),
                strides.len()
            )));
        }
        let has = |mask: u64, i: usize| mask >> i & 1 == 1;
        let takes_axis = |i: &usize| !has(self.ellipsis, *i) && !has(self.new_axis, *i);
        let stated = (0..n).filter(takes_axis).count();
        if stated > shape.rank() {
            return Err(Failure::invalid(format!(
                "Index out of range using input dim {}; input has only {} dims",
                shape.rank(),
                shape.rank()
            )));
        }
        let all = View::all(shape);
        let mut view = View { offset: 0, dims: Vec::with_capacity(shape.rank()) };
        let mut result = Vec::with_capacity(shape.rank());
        let mut axis = 0;
        let whole = |count: usize, axis: &mut usize, view: &mut View, result: &mut Vec<usize>| {
            for dim in &all.dims[*axis..*axis + count] {
                view.dims.push(*dim);
                result.push(dim.0);
            }
            *axis += count;
        };
        for i in 0..n {
            if has(self.ellipsis, i) {
                whole(shape.rank() - stated, &mut axis, &mut view, &mut result);
                continue;
            }
            if has(self.new_axis, i) {
                result.push(1);
                continue;
            }
            let (size, distance) = all.dims[axis];
            let (dim, stride) = (size as i64, strides[i]);
            let from_front = |x: i64| if x < 0 { x.saturating_add(dim) } else { x };
            if stride == 0 {
                return Err(Failure::invalid(format!("strides[{i}] must be non-zero")));
            }
            if has(self.shrink_axis, i) {
                let at = from_front(begin[i]);
                if stride < 0 {
                    return Err(Failure::invalid("only stride 1 allowed on non-range indexing."));
                }
                if !(0..dim).contains(&at) {
                    return Err(Failure::invalid(format!("slice index {at} of dimension {axis} out of bounds.")));
                }
                view.offset += at as isize * distance;
            } else {
                let (least, most) = if stride > 0 { (0, dim) } else { (-1, dim - 1) };
                let (first, last) = if stride > 0 { (least, most) } else { (most, least) };
                let from = if has(self.begin, i) { first } else { from_front(begin[i]).clamp(least, most) };
                let to = if has(self.end, i) { last } else { from_front(end[i]).clamp(least, most) };
                let span = if stride > 0 { to - from } else { from - to };
                let count = if span <= 0 { 0 } else { (span as u64).div_ceil(stride.unsigned_abs()) as usize };
                if count > 0 {
                    view.offset += from as isize * distance;
                }
                view.dims.push((count, if count > 1 { distance * stride as isize } else { 0 }));
                result.push(count);
            }
            axis += 1;
        }
        whole(shape.rank() - axis, &mut axis, &mut view, &mut result);
        Ok((view, result.into()))
    }

    /// The tensor with `value` written to the part that begin, end and strides select. The value is broadcast to the
    /// part's shape; it may have more dimensions if the leading ones are 1.
    fn update(&self, x: Tensor, places: &[Tensor; 3], value: &Tensor) -> Result<Tensor> {
        let mut x = call::owned(x)?;
        self.assign(&mut x, places, value)?;
        Ok(x)
    }

    /// Writes the value to the part. On an error nothing has changed.
    fn assign(&self, x: &mut Tensor, [begin, end, strides]: &[Tensor; 3], value: &Tensor) -> Result<()> {
        let (view, part) = self.resolve(x.shape(), begin, end, strides)?;
        if part.dims().contains(&0) {
            return Ok(());
        }
        let extra = value.rank().saturating_sub(part.rank());
        let own = &value.dims()[extra..];
        let sizes = &part.dims()[part.rank() - own.len()..];
        let fits = value.dims()[..extra].iter().all(|&size| size == 1)
            && own.iter().zip(sizes).all(|(&own, &size)| own == size || own == 1);
        if !fits {
            let message = format!("Cannot broadcast input shape {} into final shape {part}", value.shape());
            return Err(Failure::invalid(message));
        }
        let count = call::product(part.dims());
        if let (Data::String(strings), true) = (value.data(), count > value.len()) {
            let longest = strings.iter().map(Vec::len).max().unwrap_or(0);
            call::check_text_bytes(longest.saturating_mul(count))?;
        }
        // The strides of the value, 0 in a dimension in which it is repeated. Dimensions of size 1 do not affect an
        // element's position, so those that only the view or only the part has are left out of both.
        let mut repeated: Vec<(usize, isize)> =
            part.dims()[..part.rank() - own.len()].iter().map(|&size| (size, 0)).collect();
        let strides = &value.shape().strides()[extra..];
        let repeats = own.iter().zip(strides).zip(sizes);
        repeated.extend(repeats.map(|((&own, &stride), &size)| (size, if own == 1 { 0 } else { stride as isize })));
        let larger = |dims: Vec<(usize, isize)>| dims.into_iter().filter(|dim| dim.0 != 1).collect();
        let from = View { offset: 0, dims: larger(repeated) };
        let to = View { offset: view.offset, dims: larger(view.dims) };
        to.write_from(x.data_mut(), value, &from)
    }
}

/// Like [`vector`], but accepts int16, too.
fn indices(tensor: &Tensor) -> Result<Vec<i64>> {
    match tensor.data() {
        Data::I16(values) if tensor.rank() == 1 => Ok(values.iter().map(|&x| i64::from(x)).collect()),
        _ => vector(tensor, "begin, end and strides", false),
    }
}

fn split(inputs: Inputs, count: usize) -> Result<Outputs> {
    let [axis, x] = call::take(inputs)?;
    let at = split_axis(&axis, &x)?;
    let dim = x.dims()[at];
    if count == 0 || dim % count != 0 {
        return Err(Failure::invalid(format!(
            "Number of ways to split should evenly divide the split dimension, but got split_dim {at} (size = {dim}) and \
             num_split {count}"
        )));
    }
    parts(x, at, &vec![dim / count; count])
}

fn split_v(inputs: Inputs, count: usize) -> Result<Outputs> {
    let [x, sizes, axis] = call::take(inputs)?;
    let at = split_axis(&axis, &x)?;
    let dim = x.dims()[at];
    let stated = match sizes.data() {
        Data::I8(values) => values.iter().map(|&n| i64::from(n)).collect(),
        _ => sizes.to_i64s()?,
    };
    let wrong = || {
        Failure::invalid(format!(
            "Determined shape must either match input shape along split_dim exactly if fully specified, or be less than the \
             size of the input along split_dim if not fully specified.  Got: {stated:?} for a dimension of size {dim}"
        ))
    };
    if stated.len() != count {
        return Err(Failure::invalid(format!("size of the split_sizes tensor must be {count}, got {}", stated.len())));
    }
    let known: i64 = stated.iter().filter(|&&n| n != -1).fold(0, |sum, &n| sum.saturating_add(n));
    let rest = dim as i64 - known;
    let unknown = stated.iter().filter(|&&n| n == -1).count();
    if unknown > 1 {
        return Err(Failure::invalid("There can only be one -1 in the input."));
    }
    if rest < 0 || (unknown == 0 && rest != 0) {
        return Err(wrong());
    }
    let sizes: Vec<usize> = stated
        .iter()
        .enumerate()
        .map(|(i, &n)| {
            usize::try_from(if n == -1 { rest } else { n })
                .map_err(|_| Failure::invalid(format!("Split size at index {i} must be >= 0. Got: {n}")))
        })
        .collect::<Result<_>>()?;
    parts(x, at, &sizes)
}

fn split_axis(axis: &Tensor, x: &Tensor) -> Result<usize> {
    if axis.len() != 1 {
        return Err(Failure::invalid(format!("split_dim must have exactly one element, got shape {}", axis.shape())));
    }
    let axis = axis.to_i64()?;
    let rank = x.rank() as i64;
    call::axis(axis, x.rank()).map_err(|_| {
        Failure::invalid(format!("-input rank({}) <= split_dim < input rank ({rank}), but got {axis}", -rank))
    })
}

/// `x` cut along an axis into parts of these sizes, whose sum is the size of the axis.
fn parts(x: Tensor, axis: usize, sizes: &[usize]) -> Result<Outputs> {
    if sizes.len() == 1 {
        return Ok(call::one(x));
    }
    let mut begin = vec![0; x.rank()];
    let mut dims = x.dims().to_vec();
    sizes
        .iter()
        .map(|&size| {
            dims[axis] = size;
            let part = View::block(x.shape(), &begin, &dims).read(&x, dims.as_slice().into());
            begin[axis] += size;
            part
        })
        .collect()
}

fn unpack(inputs: Inputs, count: usize, axis: i64) -> Result<Outputs> {
    let [x] = call::take(inputs)?;
    let at = call::axis(axis, x.rank())?;
    if x.dims()[at] != count {
        return Err(Failure::invalid(format!("Input shape axis {at} must equal {count}, got shape {}", x.shape())));
    }
    let mut shape = x.dims().to_vec();
    shape.remove(at);
    parts(x, at, &vec![1; count])?.into_iter().map(|part| part.reshaped(shape.as_slice())).collect()
}
