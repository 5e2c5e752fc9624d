//! ImageProjectiveTransformV2 and V3: images seen through a projective transform, which leads from a position of the output to
//! one of the input.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_number};

use super::super::call::{input_dtype, kernel as call};
use super::super::{HostKernel, KernelNode, Registry};
use super::{size_of, sizes_of};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ImageProjectiveTransformV2", |node| {
        let (form, dtype) = (Form::of(node)?, input_dtype(node, 0)?);
        form.kernel(dtype, call_two)
    });
    ops.insert("ImageProjectiveTransformV3", |node| {
        let (form, dtype) = (Form::of(node)?, input_dtype(node, 0)?);
        form.kernel(dtype, call_three)
    });
}

/// The values beyond the image.
#[derive(Clone, Copy, PartialEq)]
enum Fill {
    Constant,
    Reflect,
    Wrap,
    Nearest,
}

#[derive(Clone, Copy)]
struct Form {
    is_nearest: bool,
    fill: Fill,
}

type Compute = fn(Tensor, &Tensor, &Tensor, f32, Form) -> Result<Tensor>;

fn call_two(compute: Compute, form: Form) -> HostKernel {
    call(move |[images, transforms, size]| compute(images, &transforms, &size, 0.0, form))
}

fn call_three(compute: Compute, form: Form) -> HostKernel {
    call(move |[images, transforms, size, fill]| {
        if fill.rank() != 0 {
            return Err(Failure::invalid(format!("fill_value must be a scalar, got shape {}", fill.shape())));
        }
        let value = fill.item::<f32>()?;
        compute(images, &transforms, &size, value, form)
    })
}

impl Form {
    fn of(node: &KernelNode) -> Result<Form> {
        let interpolation = node.attrs.str("interpolation")?;
        let is_nearest = match interpolation {
            "NEAREST" => true,
            "BILINEAR" => false,
            other => {
                return Err(Failure::invalid(format!(
                    "Invalid interpolation {other}. Supported types: NEAREST, BILINEAR"
                )));
            }
        };
        let fill = match node.attrs.str("fill_mode")? {
            "CONSTANT" => Fill::Constant,
            "REFLECT" => Fill::Reflect,
            "WRAP" => Fill::Wrap,
            "NEAREST" => Fill::Nearest,
            other => {
                return Err(Failure::invalid(format!(
                    "Invalid mode {other}. Supported types: REFLECT, WRAP, CONSTANT, NEAREST"
                )));
            }
        };
        Ok(Form { is_nearest, fill })
    }

    fn kernel(self, dtype: DType, kernel: fn(Compute, Form) -> HostKernel) -> Result<Option<HostKernel>> {
        if !matches!(dtype, DType::U8 | DType::I32 | DType::I64) && !dtype.is_float() {
            return Ok(None);
        }
        Ok(with_number!(dtype, T => kernel(projected::<T>, self)))
    }

    /// The position in an image of `size` pixels on an axis that a position beyond it stands for.
    fn inside(self, at: f32, size: usize) -> f32 {
        let len = size as i64;
        let last = (len - 1) as f32;
        let mut at = at;
        match self.fill {
            Fill::Constant => return at,
            Fill::Nearest => {}
            Fill::Reflect => {
                let twice = 2 * len;
                if at < 0.0 && len > 1 {
                    if at < twice as f32 {
                        at += twice.saturating_mul((-at / twice as f32) as i64) as f32;
                    }
                    at = if at < -(len as f32) { at + twice as f32 } else { -at - 1.0 };
                } else if at > last && len > 1 {
                    at -= twice.saturating_mul((at / twice as f32) as i64) as f32;
                    if at >= len as f32 {
                        at = twice as f32 - at - 1.0;
                    }
                }
            }
            Fill::Wrap => {
                let shorter = last;
                if at < 0.0 && len > 1 {
                    at += len.saturating_mul(((-at / shorter) as i64).saturating_add(1)) as f32;
                } else if at > last && len > 1 {
                    at -= len.saturating_mul((at / shorter) as i64) as f32;
                }
            }
        }
        if len <= 1 && self.fill != Fill::Nearest { 0.0 } else { at.clamp(0.0, last.max(0.0)) }
    }
}

fn projected<T: Numeric>(images: Tensor, transforms: &Tensor, size: &Tensor, fill: f32, form: Form) -> Result<Tensor> {
    let [batch, rows, columns, channels] = sizes_of(&images, "input images")?;
    let &[count, 8] = transforms.dims() else {
        return Err(Failure::invalid(format!(
            "Input transform should be num_images x 8 or 1 x 8, got shape {}",
            transforms.shape()
        )));
    };
    if count != 1 && count != batch {
        return Err(Failure::invalid(format!("Input transform should be num_images x 8 or 1 x 8: {count} of {batch}")));
    }
    let [height, width] = size_of(size, "output shape")?;
    let shape = Shape::from([batch, height, width, channels]);
    let mut output: Vec<T> = Vec::with_capacity(shape.checked_elements(images.dtype())?);
    let fill = T::from_f64(f64::from(fill));
    let (pixels, transforms) = (images.slice::<T>()?, transforms.slice::<f32>()?);
    let mut pace = Pace::new();
    for image in 0..batch {
        let own = if count == 1 { 0 } else { 8 * image };
        let [a, b, c, d, e, f, g, h] = std::array::from_fn(|i| transforms[own + i]);
        let pixel = |row: f32, column: f32, channel: usize| {
            let is_inside = row >= 0.0 && column >= 0.0 && row < rows as f32 && column < columns as f32;
            if is_inside {
                pixels[((image * rows + row as usize) * columns + column as usize) * channels + channel]
            } else {
                fill
            }
        };
        for row in 0..height {
            pace.go(width * (12 + 8 * channels));
            for column in 0..width {
                let (x, y) = (column as f32, row as f32);
                let projection = g * x + h * y + 1.0;
                if projection == 0.0 {
                    output.extend(std::iter::repeat_n(fill, channels));
                    continue;
                }
                let at_x = form.inside((a * x + b * y + c) / projection, columns);
                let at_y = form.inside((d * x + e * y + f) / projection, rows);
                if form.is_nearest {
                    output.extend((0..channels).map(|channel| pixel(at_y.round(), at_x.round(), channel)));
                    continue;
                }
                let (left, top) = (at_x.floor(), at_y.floor());
                let (right, bottom) = (left + 1.0, top + 1.0);
                output.extend((0..channels).map(|channel| {
                    let value = |row: f32, column: f32| pixel(row, column, channel).to_f64() as f32;
                    let upper = (right - at_x) * value(top, left) + (at_x - left) * value(top, right);
                    let lower = (right - at_x) * value(bottom, left) + (at_x - left) * value(bottom, right);
                    truncated::<T>((bottom - at_y) * upper + (at_y - top) * lower)
                }));
            }
        }
    }
    Ok(Tensor::from_vec(shape, output))
}

/// A number as an element: an integer is cut off.
fn truncated<T: Numeric>(number: f32) -> T {
    if T::DTYPE.is_integer() { T::from_f64(f64::from(number.trunc())) } else { T::from_f64(f64::from(number)) }
}
