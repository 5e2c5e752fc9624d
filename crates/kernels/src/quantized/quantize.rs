//! QuantizeV2 and Dequantize: between float32 and quantised numbers, in three modes.

use half::bf16;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Stored, Tensor, with_quantized};
use smallvec::smallvec;

use super::super::call::{input_dtype, kernel as call, output_dtype, take};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::scale::{FromReal, Range, ToReal, least, most, truncated};
use super::{Channels, with_range};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("QuantizeV2", |node| {
        let form = Form::of(node)?;
        let (to_even, least_width) =
            (node.attrs.str("round_mode")? == "HALF_TO_EVEN", node.attrs.float("ensure_minimum_range")?);
        if to_even && form.mode != Mode::Scaled {
            let why = format!(
                "Round mode 'HALF_TO_EVEN' is only supported for mode 'SCALED', not for '{}'",
                node.attrs.str("mode")?
            );
            return Err(Failure::invalid(why));
        }
        let dtype = output_dtype(node, 0)?;
        Ok(with_quantized!(dtype, T => {
            let rounding = Rounding { form, to_even, least_width };
            Box::new(move |inputs| rounding.quantize::<T>(dtype, inputs)) as HostKernel
        }))
    });
    ops.insert("Dequantize", |node| {
        let (form, to) = (Form::of(node)?, output_dtype(node, 0)?);
        if to == DType::BF16 && form.mode != Mode::Combined {
            let why = format!(
                "When output type is bfloat16, Mode string must be 'MIN_COMBINED', is '{}'",
                node.attrs.str("mode")?
            );
            return Err(Failure::invalid(why));
        }
        Ok(with_quantized!(input_dtype(node, 0)?, T => {
            call(move |[x, min, max]| form.dequantize::<T>(&x, &min, &max, to))
        }))
    });
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// The ends of the range are the least and the greatest integer.
    Combined,
    /// As `Combined`, with the lower end shifted so that 0 is an integer.
    First,
    /// Integers are multiples of a scale.
    Scaled,
}

/// The attributes that both ops have.
#[derive(Clone, Copy)]
struct Form {
    mode: Mode,
    /// Whether the least integer is not used.
    is_narrow: bool,
    /// The axis along which each slice has a range.
    axis: Option<usize>,
}

impl Form {
    fn of(node: &KernelNode) -> Result<Form> {
        let mode = match node.attrs.str("mode")? {
            "MIN_COMBINED" => Mode::Combined,
            "MIN_FIRST" => Mode::First,
            _ => Mode::Scaled,
        };
        // An older graph states neither.
        let has = |name: &str| node.attrs.get(name).is_some();
        let is_narrow = has("narrow_range") && node.attrs.bool("narrow_range")?;
        let axis = if has("axis") { node.attrs.int("axis")? } else { -1 };
        if axis < -1 {
            return Err(Failure::invalid(format!("axis must be at least -1, got {axis}")));
        }
        Ok(Form { mode, is_narrow, axis: usize::try_from(axis).ok() })
    }

    /// The channels of the numbers, once both ends are known to have as many elements.
    fn channels(self, x: &Tensor, min: &Tensor, max: &Tensor) -> Result<Channels> {
        if let Some(axis) = self.axis
            && axis >= x.rank()
        {
            let why = format!("Axis must be less than the number of dimensions of the input, {}, got {axis}", x.rank());
            return Err(Failure::invalid(why));
        }
        let channels = Channels::along(self.axis, x.dims());
        for (name, end) in [("min_range", min), ("max_range", max)] {
            if end.len() != channels.depth || (self.axis.is_some() && end.rank() != 1) {
                let wanted = match self.axis {
                    Some(axis) => format!(
                        "must be a vector with an element for each of the {} slices of axis {axis}",
                        channels.depth
                    ),
                    None => "must contain a single float element, since no axis is specified".to_owned(),
                };
                return Err(Failure::invalid(format!("{name} {wanted}; its shape is {}", end.shape())));
            }
        }
        if channels.depth > 1 && self.mode == Mode::First {
            let why = "MIN_FIRST mode is not implemented with an axis";
            return Err(Failure::new(Code::Unimplemented, why));
        }
        Ok(channels)
    }

    /// The least integer in use.
    fn lowest<T: Stored>(self) -> i64 {
        T::LOWEST.to_i64() + i64::from(self.is_narrow)
    }

    fn dequantize<T: Stored>(self, x: &Tensor, min: &Tensor, max: &Tensor, to: DType) -> Result<Tensor> {
        let channels = self.channels(x, min, max)?;
        x.shape().checked_elements(DType::F32)?;
        let ranges: Vec<Range> = ranges(min, max)?;
        let elements = x.stored::<T>()?;
        let (lowest, highest) = (T::LOWEST.to_i64() as f32, T::HIGHEST.to_i64() as f32);
        let numbers: Vec<f32> = match self.mode {
            Mode::Combined => {
                let half = if lowest == 0.0 { 0.0 } else { (highest - lowest + 1.0) / 2.0 };
                let scales: Vec<f32> =
                    ranges.iter().map(|range| (range.max - range.min) / (highest - lowest)).collect();
                channels.mapped(elements, |i, x| (x.to_i64() as f32 + half) * scales[i] + ranges[i].min)
            }
            Mode::First => {
                let real: Vec<ToReal> = ranges.iter().map(|&range| ToReal::new::<T>(range)).collect();
                channels.mapped(elements, |i, x| real[i].real(x))
            }
            Mode::Scaled => {
                let scale = |range: &Range| match lowest == 0.0 {
                    true => range.max / highest,
                    false => most(range.min / self.lowest::<T>() as f32, range.max / highest),
                };
                let scales: Vec<f32> = ranges.iter().map(scale).collect();
                channels.mapped(elements, |i, x| x.to_i64() as f32 * scales[i])
            }
        };
        Ok(match to {
            DType::F32 => Tensor::from_vec(x.shape().clone(), numbers),
            _ => Tensor::from_vec(x.shape().clone(), numbers.into_iter().map(bf16::from_f32).collect()),
        })
    }
}

/// The range of each channel.
fn ranges(min: &Tensor, max: &Tensor) -> Result<Vec<Range>> {
    let ends = min.slice::<f32>()?.iter().zip(max.slice::<f32>()?);
    Ok(ends.map(|(&min, &max)| Range { min, max }).collect())
}

/// The attributes of QuantizeV2.
#[derive(Clone, Copy)]
struct Rounding {
    form: Form,
    /// Whether halves are rounded to even numbers, rather than away from 0.
    to_even: bool,
    /// The least width of a range, as a share of its greatest end.
    least_width: f32,
}

impl Rounding {
    fn quantize<T: Stored>(self, dtype: DType, inputs: Inputs) -> Result<Outputs> {
        let [x, min, max] = take(inputs)?;
        let channels = self.form.channels(&x, &min, &max)?;
        x.shape().checked_elements(dtype)?;
        let given = ranges(&min, &max)?;
        if given.iter().any(|range| range.max < range.min) {
            return Err(Failure::invalid("input_max_range must be larger than input_min_range."));
        }
        let mut ranges: Vec<Range> = given.into_iter().map(|range| self.widened(range)).collect();
        let elements = x.slice::<f32>()?;
        let (lowest, highest) = (T::LOWEST.to_i64(), T::HIGHEST.to_i64());
        let clamped = |x: f32, range: Range| most(least(x, range.max), range.min);
        let numbers: Vec<T> = match self.form.mode {
            Mode::Combined => {
                let width = (highest - lowest) as f64;
                let scales: Vec<f32> =
                    ranges.iter().map(|range| (width / f64::from(range.max - range.min)) as f32).collect();
                let half = if lowest == 0 { 0.0 } else { ((width + 1.0) / 2.0) as f32 };
                channels.mapped(elements, |i, x| {
                    let steps = (clamped(x, ranges[i]) - ranges[i].min) * scales[i];
                    truncated(if lowest == 0 { steps + 0.5 } else { (steps - half).round() })
                })
            }
            Mode::First => {
                let whole: Vec<FromReal<T>> = ranges.iter().map(|&range| FromReal::new(range)).collect();
                channels.mapped(elements, |i, x| whole[i].quantized(x))
            }
            Mode::Scaled => {
                let (lowest, highest) = (self.form.lowest::<T>() as f32, highest as f32);
                let by = |end: f32, of: f32| if end * of > 0.0 { end / of } else { f32::MAX };
                let scales: Vec<f32> =
                    ranges.iter().map(|range| least(by(lowest, range.min), by(highest, range.max))).collect();
                for (range, scale) in ranges.iter_mut().zip(&scales) {
                    *range = Range { min: lowest / scale, max: highest / scale };
                }
                channels.mapped(elements, |i, x| {
                    let steps = clamped(x, ranges[i]) * scales[i];
                    truncated(if self.to_even { steps.round_ties_even() } else { steps.round() })
                })
            }
        };
        let numbers = Tensor::from_stored(dtype, x.shape().clone(), numbers);
        Ok(match &ranges[..] {
            [range] => with_range(numbers, *range),
            ranges => smallvec![
                numbers,
                Tensor::vector(ranges.iter().map(|range| range.min).collect::<Vec<f32>>()),
                Tensor::vector(ranges.iter().map(|range| range.max).collect::<Vec<f32>>()),
            ],
        })
    }

    /// A range that contains 0, and is not so narrow that ops on the integers lose it.
    fn widened(self, range: Range) -> Range {
        let min = least(0.0, range.min);
        let width = most(1.0, most(range.min.abs(), range.max.abs())) * self.least_width;
        Range { min, max: most(0.0, most(range.max, min + width)) }
    }
}
