//! Pools: the greatest element, the mean or a norm of the elements under each window.

use meshtf_graph::{Attr, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::window::{Window, all_sides, padded};
use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("AveragePool", 1, average_pool),
    onnx("GlobalAveragePool", 1, |cx, n| global(cx, n, "Mean")),
    onnx("GlobalLpPool", 1, global_lp_pool),
    onnx("GlobalMaxPool", 1, |cx, n| global(cx, n, "Max")),
    onnx("LpPool", 1, lp_pool),
    onnx("MaxPool", 1, max_pool),
    onnx("MaxUnpool", 9, max_unpool),
];

fn window(n: &Node) -> Result<Window> {
    let kernel = n.ints("kernel_shape").ok_or_else(|| Failure::invalid("it states no kernel_shape"))?;
    Window::of(n, kernel.to_vec())
}

/// Attributes of a pooling op over an image whose channels come second.
fn attrs(window: &Window) -> Vec<(&'static str, Attr)> {
    let format = if window.spatial() == 3 { "NCDHW" } else { "NCHW" };
    vec![
        ("ksize", Window::outer(&window.kernel)),
        ("strides", Window::outer(&window.stride)),
        ("data_format", format.into()),
    ]
}

/// The number that no element is less than.
fn least(dtype: DType) -> f64 {
    match dtype {
        DType::I8 => f64::from(i8::MIN),
        DType::U8 => 0.0,
        DType::I32 => f64::from(i32::MIN),
        DType::I64 => i64::MIN as f64,
        _ => f64::NEG_INFINITY,
    }
}

fn max_pool(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let window = window(n)?;
    let dtype = cx.em.dtype(x);
    if cx.em.rank(x)? != window.spatial() + 2 {
        return Err(Failure::invalid("kernel_shape and its input differ in rank"));
    }
    if n.has_output(1) {
        return with_places(cx, n, x, &window);
    }
    let (window, x) = window.closed(cx, x, Some(least(dtype)))?;
    let (sides, more) = window.sides(cx, x)?;
    let spatial = window.spatial();
    let three = spatial == 3 && matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if window.is_dilated() || (spatial > 2 && !three) {
        let padded = cx.pad(x, &all_sides(&sides, &more), Some(least(dtype)))?;
        let windows = window.windows(cx, padded)?;
        let axes: Vec<usize> = (0..spatial).map(|i| 3 + 2 * i).collect();
        return one(cx.reduce("Max", windows, &axes, false)?);
    }
    let image = if spatial == 1 { cx.unsqueeze(x, &[2])? } else { x };
    let window = window.lifted();
    let mut all = all_sides(&sides, &more);
    if spatial == 1 {
        all.insert(2, (0, 0));
    }
    let mut attrs = attrs(&window);
    let is_padded = all.iter().any(|&side| side != (0, 0));
    let y = if three {
        let image = cx.pad(image, &all, Some(least(dtype)))?;
        attrs.push(("padding", "VALID".into()));
        cx.em.add("MaxPool3D", vec![image.into()], &attrs)?
    } else {
        // The op refuses padding that is as large as its window.
        let is_large = all[2..].iter().zip(&window.kernel).any(|(side, &kernel)| side.0 >= kernel || side.1 >= kernel);
        let image = if is_large { cx.pad(image, &all, Some(least(dtype)))? } else { image };
        attrs.push(("padding", if is_padded && !is_large { "EXPLICIT" } else { "VALID" }.into()));
        if is_padded && !is_large {
            let flat: Vec<i64> = all.iter().flat_map(|side| [side.0, side.1]).collect();
            attrs.push(("explicit_paddings", flat.into()));
        }
        cx.em.add("MaxPool", vec![image.into()], &attrs)?
    };
    if spatial == 1 { one(cx.squeeze(y, &[2])?) } else { one(y) }
}

/// The greatest elements and their places in the input, counted over all of its elements.
fn with_places(cx: &mut Cx, n: &Node, x: Output, window: &Window) -> Result<Vec<Value>> {
    let (spatial, dtype) = (window.spatial(), cx.em.dtype(x));
    let (sides, more) = window.sides(cx, x)?;
    let all = all_sides(&sides, &more);
    let sizes = cx.sizes(x)?;
    let count = cx.product(&sizes)?;
    let numbers = cx.range(count)?;
    // Numbers of the elements in the order of their axes, or with the last axes exchanged.
    let numbers = if n.int("storage_order", 0) == 1 {
        let mut swapped = sizes.clone();
        swapped[2..].reverse();
        let numbers = cx.reshape(numbers, &swapped)?;
        let order: Vec<usize> = [0, 1].into_iter().chain((2..spatial + 2).rev()).collect();
        cx.transpose(numbers, &order)?
    } else {
        cx.reshape(numbers, &sizes)?
    };
    let padded = cx.pad(x, &all, Some(least(dtype)))?;
    let numbers = cx.pad(numbers, &all, None)?;
    // [batch, channels, positions…, elements of a window]
    let order: Vec<usize> =
        [0, 1].into_iter().chain((0..spatial).map(|i| 2 + 2 * i)).chain((0..spatial).map(|i| 3 + 2 * i)).collect();
    let inner: i64 = window.kernel.iter().product();
    let mut flat = Vec::new();
    for part in [padded, numbers] {
        let windows = window.windows(cx, part)?;
        let moved = cx.transpose(windows, &order)?;
        let mut sizes = cx.sizes(moved)?;
        sizes.truncate(2 + spatial);
        sizes.push(Size::Known(inner));
        flat.push(cx.reshape(moved, &sizes)?);
    }
    let last = 2 + spatial;
    let y = cx.reduce("Max", flat[0], &[last], false)?;
    let at = op!(cx.em, "ArgMax", flat[0], last as i32; "output_type" => DType::I64)?;
    let places = op!(cx.em, "GatherV2", flat[1], at, last as i64; "batch_dims" => last as i64)?;
    Ok(vec![y.into(), places.into()])
}

/// The means under windows of a padded image.
fn means(cx: &mut Cx, window: &Window, padded: Output) -> Result<Output> {
    let spatial = window.spatial();
    if window.is_dilated() || spatial > 3 {
        let windows = window.windows(cx, padded)?;
        let axes: Vec<usize> = (0..spatial).map(|i| 3 + 2 * i).collect();
        return cx.reduce("Mean", windows, &axes, false);
    }
    let image = if spatial == 1 { cx.unsqueeze(padded, &[2])? } else { padded };
    let lifted = window.clone().lifted();
    let mut attrs = attrs(&lifted);
    attrs.push(("padding", "VALID".into()));
    let y = cx.em.add(if spatial == 3 { "AvgPool3D" } else { "AvgPool" }, vec![image.into()], &attrs)?;
    if spatial == 1 { cx.squeeze(y, &[2]) } else { Ok(y) }
}

fn average_pool(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let window = window(n)?;
    let sides = window.open_sides(cx, x)?;
    // The share of each window that is counted: of the image alone, or of its padding, too.
    let counts_padding = n.flag("count_include_pad", false);
    let mut sizes = vec![Size::Known(1); 2];
    let (mut all, mut rest) = (Vec::new(), Vec::new());
    for (i, &[before, after, more]) in sides.iter().enumerate() {
        let end = cx.compute("AddV2", after, more)?;
        all.push([before, end]);
        let mut size = cx.size(x, i + 2)?;
        if counts_padding {
            size = cx.compute("AddV2", size, before)?;
            size = cx.compute("AddV2", size, after)?;
        }
        sizes.push(size);
        rest.push(if counts_padding { [Size::Known(0), more] } else { [before, end] });
    }
    let image = padded(cx, x, &all, None)?;
    let y = means(cx, &window, image)?;
    if rest.iter().flatten().all(|size| matches!(size, Size::Known(0))) {
        return one(y);
    }
    let shape = cx.packed(&sizes)?;
    let ones = cx.fill(shape, 1.0, cx.em.dtype(x))?;
    let ones = padded(cx, ones, &rest, None)?;
    let share = means(cx, &window, ones)?;
    one(op!(cx.em, "RealDiv", y, share)?)
}

fn powers(cx: &mut Cx, x: Output, p: f64) -> Result<Output> {
    let x = op!(cx.em, "Abs", x)?;
    if p == 1.0 { Ok(x) } else { op!(cx.em, "Pow", x, p) }
}

fn lp_pool(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let window = window(n)?;
    let p = if n.version < 2 { f64::from(n.float("p", 2.0)) } else { n.int("p", 2) as f64 };
    let (window, x) = window.closed(cx, x, None)?;
    let (sides, more) = window.sides(cx, x)?;
    let x = powers(cx, x, p)?;
    let padded = cx.pad(x, &all_sides(&sides, &more), None)?;
    let y = means(cx, &window, padded)?;
    let y = op!(cx.em, "Mul", y, window.kernel.iter().product::<i64>() as f64)?;
    one(op!(cx.em, "Pow", y, 1.0 / p)?)
}

fn global(cx: &mut Cx, n: &Node, reduction: &str) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    one(cx.reduce(reduction, x, &(2..rank).collect::<Vec<_>>(), true)?)
}

fn global_lp_pool(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let p = if n.version < 2 { f64::from(n.float("p", 2.0)) } else { n.int("p", 2) as f64 };
    let x = powers(cx, x, p)?;
    let rank = cx.em.rank(x)?;
    let y = cx.reduce("Sum", x, &(2..rank).collect::<Vec<_>>(), true)?;
    one(op!(cx.em, "Pow", y, 1.0 / p)?)
}

/// Elements are put back to the places that MaxPool found.
fn max_unpool(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, places) = (n.input(0)?, n.input(1)?);
    let window = window(n)?;
    let (sides, _) = window.sides(cx, x)?;
    let sizes = cx.sizes(x)?;
    let mut inferred = vec![sizes[0], sizes[1]];
    for i in 0..window.spatial() {
        let steps = cx.compute("Sub", sizes[i + 2], Size::Known(1))?;
        let steps = cx.compute("Mul", steps, Size::Known(window.stride[i]))?;
        inferred.push(cx.compute("AddV2", steps, Size::Known(window.kernel[i] - sides[i].0 - sides[i].1))?);
    }
    let mut out = inferred.clone();
    if let Some(shape) = n.maybe(2)? {
        let shape = cx.long(shape)?;
        for (i, size) in out.iter_mut().enumerate() {
            *size = match cx.em.some_ints(shape).and_then(|all| all.get(i).copied().flatten()) {
                Some(size) => Size::Known(size),
                None => Size::Of(op!(cx.em, "GatherV2", shape, i as i64, 0i64)?),
            };
        }
    }
    // The places are those of the inferred shape; a larger output has the elements at the same coordinates.
    let count = cx.product(&inferred)?;
    let count = cx.packed(&[count])?;
    let flat = op!(cx.em, "Reshape", x, [-1i64])?;
    let at = cx.long(places)?;
    let at = op!(cx.em, "Reshape", at, Tensor::vector(vec![-1i64, 1]))?;
    let y = op!(cx.em, "ScatterNd", at, flat, count)?;
    let mut y = cx.reshape(y, &inferred)?;
    for axis in 2..out.len() {
        let more = cx.compute("Sub", out[axis], inferred[axis])?;
        if matches!(more, Size::Known(0)) {
            continue;
        }
        if matches!(more, Size::Known(less) if less < 0) {
            return Err(unsupported("unsupported: an output_shape that is smaller than the pool's input"));
        }
        let pairs: Vec<Size> =
            (0..out.len()).flat_map(|own| [Size::Known(0), if own == axis { more } else { Size::Known(0) }]).collect();
        let pairs = cx.packed(&pairs)?;
        let pairs = cx.reshape(pairs, &[out.len().into(), Size::Known(2)])?;
        y = op!(cx.em, "Pad", y, pairs)?;
    }
    one(y)
}
