//! Fill, ZerosLike, Range, LinSpace, OneHot and Tile: tensors generated from a few values.

use meshtf_loops::turn::paced;
use meshtf_loops::vector::one_hot as one_hot_floats;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{
    DType, Data, Float, Moved, Numeric, Ring, Shape, Tensor, with_float, with_moved, with_number, with_ring,
};

use super::super::Registry;
use super::super::call::{self, input_dtype, kernel as call, vector};
use super::view::{View, not_held};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Fill", |_| Ok(Some(call(|[dims, value]| fill(&dims, &value)))));
    ops.insert("ZerosLike", |_| Ok(Some(call(|[x]| Tensor::zeros(x.dtype(), x.shape().clone())))));
    ops.insert("OnesLike", |node| {
        let dtype = input_dtype(node, 0)?;
        let made = with_ring!(dtype, T => call(|[x]: [Tensor; 1]| {
            Ok(Tensor::from_vec(x.shape().clone(), vec![<T as Ring>::ONE; x.len()]))
        }));
        let bools = || call(|[x]: [Tensor; 1]| Ok(Tensor::from_vec(x.shape().clone(), vec![true; x.len()])));
        Ok(made.or_else(|| (dtype == DType::Bool).then(bools)))
    });
    ops.insert("Range", |node| {
        let dtype = input_dtype(node, 0)?;
        Ok(with_number!(dtype, T => call(|[start, limit, delta]| range::<T>(&start, &limit, &delta))))
    });
    ops.insert("LinSpace", |node| {
        let dtype = input_dtype(node, 0)?;
        Ok(with_float!(dtype, T => call(|[start, stop, count]| lin_space::<T>(&start, &stop, &count))))
    });
    ops.insert("OneHot", |node| {
        let axis = node.attrs.int("axis")?;
        Ok(Some(call(move |[indices, depth, on, off]: [Tensor; 4]| {
            with_moved!(on.dtype(), T => one_hot::<T>(&indices, &depth, &on, &off, axis))
                .unwrap_or_else(|| not_held(on.dtype()))
        })))
    });
    ops.insert("Tile", |_| Ok(Some(call(|[x, multiples]| tile(x, &multiples)))));
}

fn fill(dims: &Tensor, value: &Tensor) -> Result<Tensor> {
    let sizes = vector(dims, "dims", true)?;
    if value.rank() > 1 || value.len() != 1 {
        return Err(Failure::invalid(format!("value must be a scalar, got shape {}", value.shape())));
    }
    let shape = Shape::from_i64s(&sizes)?;
    View { offset: 0, dims: shape.dims().iter().map(|&size| (size, 0)).collect() }.read(value, shape)
}

fn range<T: Numeric>(start: &Tensor, limit: &Tensor, delta: &Tensor) -> Result<Tensor> {
    let (start, limit, delta) = (start.item::<T>()?, limit.item::<T>()?, delta.item::<T>()?);
    let text = |x: T| x.to_f64().to_string();
    if delta == T::ZERO {
        return Err(Failure::invalid("Requires delta != 0: 0"));
    }
    if delta > T::ZERO && start > limit {
        return Err(Failure::invalid(format!(
            "Requires start <= limit when delta > 0: {}/{}",
            text(start),
            text(limit)
        )));
    }
    if delta < T::ZERO && start < limit {
        return Err(Failure::invalid(format!(
            "Requires start >= limit when delta < 0: {}/{}",
            text(start),
            text(limit)
        )));
    }
    let n = if T::DTYPE.is_float() {
        // Saturating, so that a number that is too large is rejected below; NaN gives no elements.
        ((limit.to_f64() - start.to_f64()) / delta.to_f64()).abs().ceil() as usize
    } else {
        let exact = |x: T| if T::DTYPE == DType::U64 { i128::from(x.to_i64() as u64) } else { i128::from(x.to_i64()) };
        usize::try_from((exact(limit) - exact(start)).unsigned_abs().div_ceil(exact(delta).unsigned_abs()))
            .unwrap_or(usize::MAX)
    };
    let shape = Shape::from([n]);
    shape.checked_elements(T::DTYPE)?;
    let elements = paced(0..n, 1).map(|i| start.add(delta.mul(T::from_i64(i as i64)))).collect();
    Ok(Tensor::from_vec(shape, elements))
}

/// `count` equidistant numbers, including both ends.
fn lin_space<T: Float>(start: &Tensor, stop: &Tensor, count: &Tensor) -> Result<Tensor> {
    for (input, name) in [(start, "start"), (stop, "stop"), (count, "num")] {
        if input.rank() > 0 {
            return Err(Failure::invalid(format!("{name} must be a scalar, not shape {}", input.shape())));
        }
    }
    let (start, stop, count) = (start.item::<T>()?, stop.item::<T>()?, count.to_i64()?);
    let n = usize::try_from(count).ok().filter(|&n| n > 0);
    let n = n.ok_or_else(|| Failure::invalid(format!("Requires num > 0: {count}")))?;
    let shape = Shape::from([n]);
    shape.checked_elements(T::DTYPE)?;
    let step = (stop - start) / T::from_i64((n as i64 - 1).max(1));
    let at = |i: usize| {
        if i == 0 {
            start
        } else if i + 1 == n {
            stop
        } else {
            start + step * T::from_i64(i as i64)
        }
    };
    Ok(Tensor::from_vec(shape, paced(0..n, 1).map(at).collect()))
}

fn one_hot<T: Moved>(
    indices: &Tensor,
    depth: &Tensor,
    on_value: &Tensor,
    off_value: &Tensor,
    axis: i64,
) -> Result<Tensor> {
    let depth = call::size(depth, "depth")?;
    for (value, name) in [(on_value, "on_value"), (off_value, "off_value")] {
        if value.rank() != 0 {
            return Err(Failure::invalid(format!("{name} must be a scalar, but got: {}", value.shape())));
        }
    }
    let (dtype, on, off) = (on_value.dtype(), on_value.moved_item::<T>()?, off_value.moved_item::<T>()?);
    let at = if axis == -1 { indices.rank() } else { call::axis(axis, indices.rank() + 1)? };
    let indices_i64 = match indices.data() {
        Data::U8(values) => values.iter().map(|&x| i64::from(x)).collect(),
        Data::I8(values) => values.iter().map(|&x| i64::from(x)).collect(),
        _ => indices.to_i64s()?,
    };
    let mut dims = indices.dims().to_vec();
    dims.insert(at, depth);
    let shape = Shape::from(dims);
    let elements = shape.checked_elements(dtype)?;
    let inner = call::product(&indices.dims()[at..]);
    if let (1, Data::F32(on), Data::F32(off)) = (inner, on_value.data(), off_value.data()) {
        return Ok(Tensor::from_vec(shape, one_hot_floats(&indices_i64, depth, [on[0], off[0]])));
    }
    let mut out = vec![off; elements];
    for (i, &hot) in paced(indices_i64.iter(), 8).enumerate() {
        if let Some(hot) = usize::try_from(hot).ok().filter(|&hot| hot < depth) {
            out[(i / inner * depth + hot) * inner + i % inner] = on.clone();
        }
    }
    Ok(Tensor::from_moved(dtype, shape, out))
}

fn tile(x: Tensor, multiples: &Tensor) -> Result<Tensor> {
    if multiples.rank() != 1 {
        let why = format!("Expected multiples to be 1-D, but got shape {}", multiples.shape());
        return Err(Failure::invalid(why));
    }
    let counts = multiples.to_i64s()?;
    if counts.len() != x.rank() {
        return Err(Failure::invalid(format!(
            "Expected multiples argument to be a vector of length {} but got length {}",
            x.rank(),
            counts.len()
        )));
    }
    let counts = counts
        .iter()
        .enumerate()
        .map(|(i, &n)| {
            usize::try_from(n).map_err(|_| Failure::invalid(format!("Expected multiples[{i}] >= 0, but got {n}")))
        })
        .collect::<Result<Vec<usize>>>()?;
    if counts.iter().all(|&n| n == 1) {
        return Ok(x);
    }
    let shape: Shape = x.dims().iter().zip(&counts).map(|(&size, &n)| size.saturating_mul(n)).collect();
    let dims = View::all(x.shape()).dims.iter().zip(&counts).flat_map(|(&own, &n)| [(n, 0), own]).collect();
    View { offset: 0, dims }.read(&x, shape)
}
