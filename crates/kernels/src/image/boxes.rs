//! DrawBoundingBoxes and DrawBoundingBoxesV2: rectangles drawn over images.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::call::{input_dtype, no_kernel, one, owned};
use super::super::real::{narrow, widen};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::sizes_of;

/// The colours of boxes if the graph specifies none: yellow, blue, red, lime, purple, olive, maroon, navy, aqua, fuchsia.
const COLORS: [[f32; 4]; 10] = [
    [1.0, 1.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 1.0],
    [1.0, 0.0, 0.0, 1.0],
    [0.0, 1.0, 0.0, 1.0],
    [0.5, 0.0, 0.5, 1.0],
    [0.5, 0.5, 0.0, 1.0],
    [0.5, 0.0, 0.0, 1.0],
    [0.0, 0.0, 0.5, 1.0],
    [0.0, 1.0, 1.0, 1.0],
    [1.0, 0.0, 1.0, 1.0],
];

pub(super) fn register(ops: &mut Registry) {
    ops.insert_all(["DrawBoundingBoxes", "DrawBoundingBoxesV2"], kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 0)?;
    if !matches!(dtype, DType::F16 | DType::F32) {
        return no_kernel(node);
    }
    Ok(Some(Box::new(move |inputs| draw(inputs, dtype))))
}

fn draw(inputs: Inputs, dtype: DType) -> Result<Outputs> {
    let mut inputs = inputs.into_iter();
    let (Some(images), Some(boxes)) = (inputs.next(), inputs.next()) else {
        return Err(Failure::invalid("expected images and boxes"));
    };
    let [batch, height, width, depth] = sizes_of(&images, "The rank of the images")?;
    if !matches!(depth, 1 | 3 | 4) {
        return Err(Failure::invalid("Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA)"));
    }
    let &[own, count, 4] = boxes.dims() else {
        return Err(Failure::invalid(format!("The shape of boxes must be [batch, boxes, 4], got {}", boxes.shape())));
    };
    if own != batch {
        let why = format!("The batch sizes should be the same: {batch} images, and boxes for {own}");
        return Err(Failure::invalid(why));
    }
    let colors = colors(inputs.next(), depth)?;
    let mut images = owned(widen(images))?;
    let pixels = images.slice_mut::<f32>()?;
    let (last_row, last_column) = (height as i64 - 1, width as i64 - 1);
    let mut pace = Pace::new();
    for (i, sides) in boxes.slice::<f32>()?.as_chunks::<4>().0.iter().enumerate() {
        let image = &mut pixels[i / count * height * width * depth..][..height * width * depth];
        let color = &colors[i % count % colors.len()][..depth];
        let [top, left, bottom, right] = *sides;
        let (top, bottom) = ((top * last_row as f32) as i64, (bottom * last_row as f32) as i64);
        let (left, right) = ((left * last_column as f32) as i64, (right * last_column as f32) as i64);
        let is_beside = top > last_row || bottom < 0 || left > last_column || right < 0;
        if top > bottom || left > right || is_beside {
            continue;
        }
        let (rows, columns) = (top.max(0)..=bottom.min(last_row), left.max(0)..=right.min(last_column));
        pace.go(4 * depth * (height + width));
        let mut set = |row: i64, column: i64| {
            let at = (row as usize * width + column as usize) * depth;
            image[at..at + depth].copy_from_slice(color);
        };
        for row in [top, bottom].into_iter().filter(|row| (0..=last_row).contains(row)) {
            columns.clone().for_each(|column| set(row, column));
        }
        for column in [left, right].into_iter().filter(|column| (0..=last_column).contains(column)) {
            rows.clone().for_each(|row| set(row, column));
        }
    }
    Ok(one(narrow(images, dtype)?))
}

/// The given colours, or else the default ones.
fn colors(given: Option<Tensor>, depth: usize) -> Result<Vec<[f32; 4]>> {
    let mut colors = COLORS.to_vec();
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        let &[_, channels] = given.dims() else {
            return Err(Failure::invalid(format!("colors must be a 2-D matrix, got shape {}", given.shape())));
        };
        if channels < depth {
            let why = format!("colors must have equal or more channels than the image: {channels} of {depth}");
            return Err(Failure::invalid(why));
        }
        let row = |row: &[f32]| std::array::from_fn(|i| row.get(i).copied().unwrap_or(1.0));
        colors = given.slice::<f32>()?.chunks_exact(channels).map(row).collect();
    } else if depth == 1 {
        colors.iter_mut().for_each(|color| color[0] = 1.0);
    }
    Ok(colors)
}
