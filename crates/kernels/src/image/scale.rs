//! ScaleAndTranslate, which resamples images by a kernel of one of several forms, and its gradient.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor, memory};

use super::super::call::kernel as call;
use super::super::{KernelNode, Registry, cast};
use super::{size_of, sizes_of};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ScaleAndTranslate", |node| {
        let (filter, smooths) = form(node)?;
        Ok(Some(call(move |[images, size, scale, translation]| {
            let sizes = sizes_of(&images, "input image")?;
            let [height, width] = size_of(&size, "output size")?;
            if sizes[1] == 0 || sizes[2] == 0 {
                return Err(Failure::invalid(format!("input image must be of non-zero size, got {}", images.shape())));
            }
            let (scale, translation) = (pair(&scale, "scale")?, pair(&translation, "translation")?);
            let rows = Spans::of(filter, height, sizes[1], scale[0], translation[0], smooths)?;
            let columns = Spans::of(filter, width, sizes[2], scale[1], translation[1], smooths)?;
            resampled(&cast(images, DType::F32)?, [&rows, &columns])
        })))
    });
    ops.insert("ScaleAndTranslateGrad", |node| {
        let (filter, smooths) = form(node)?;
        Ok(Some(call(move |[gradient, images, scale, translation]| {
            let (given, sizes) = (sizes_of(&gradient, "input grads")?, sizes_of(&images, "original image")?);
            if given[0] != sizes[0] || given[3] != sizes[3] {
                return Err(Failure::invalid(format!(
                    "grads of shape {} are not those of images of shape {}",
                    gradient.shape(),
                    images.shape()
                )));
            }
            let (scale, translation) = (pair(&scale, "scale")?, pair(&translation, "translation")?);
            let rows = Spans::of(filter, given[1], sizes[1], scale[0], translation[0], smooths)?.turned()?;
            let columns = Spans::of(filter, given[2], sizes[2], scale[1], translation[1], smooths)?.turned()?;
            resampled(&gradient, [&rows, &columns])
        })))
    });
}

#[derive(Clone, Copy)]
enum Filter {
    Lanczos(f32),
    Gaussian,
    Box,
    Triangle,
    KeysCubic,
    MitchellCubic,
}

fn form(node: &KernelNode) -> Result<(Filter, bool)> {
    let filter = match node.attrs.str("kernel_type")? {
        "lanczos1" => Filter::Lanczos(1.0),
        "lanczos3" => Filter::Lanczos(3.0),
        "lanczos5" => Filter::Lanczos(5.0),
        "gaussian" => Filter::Gaussian,
        "box" => Filter::Box,
        "triangle" => Filter::Triangle,
        "keyscubic" => Filter::KeysCubic,
        "mitchellcubic" => Filter::MitchellCubic,
        other => return Err(Failure::invalid(format!("Unrecognized kernel type: {other}"))),
    };
    Ok((filter, node.attrs.bool("antialias")?))
}

/// Two numbers, for the rows and for the columns.
fn pair(tensor: &Tensor, what: &str) -> Result<[f32; 2]> {
    match (tensor.rank(), tensor.slice::<f32>()?) {
        (1, &[first, second]) => {
            if what == "scale" && !(first > 0.0 && second > 0.0) {
                return Err(Failure::invalid(format!("Scale must be greater than zero, got {first} and {second}")));
            }
            Ok([first, second])
        }
        _ => Err(Failure::invalid(format!("{what} must be 1-dimensional with 2 elements, got {}", tensor.shape()))),
    }
}

impl Filter {
    fn radius(self) -> f32 {
        match self {
            Filter::Lanczos(radius) => radius,
            Filter::Gaussian => 1.5,
            Filter::Box | Filter::Triangle => 1.0,
            Filter::KeysCubic | Filter::MitchellCubic => 2.0,
        }
    }

    fn weight(self, at: f32) -> f32 {
        let x = at.abs();
        match self {
            Filter::Lanczos(radius) => {
                if x > radius {
                    return 0.0;
                }
                if x <= 1e-3 {
                    return 1.0;
                }
                let turn = std::f32::consts::PI * x;
                radius * turn.sin() * (turn / radius).sin() / (turn * turn)
            }
            Filter::Gaussian if x >= 1.5 => 0.0,
            Filter::Gaussian => {
                let sigma = 0.5f32;
                (-x * x / (2.0 * sigma * sigma)).exp()
            }
            Filter::Box if x < 0.5 => 1.0,
            Filter::Box if x == 0.5 => 0.5,
            Filter::Box => 0.0,
            Filter::Triangle => (1.0 - x).max(0.0),
            Filter::KeysCubic if x >= 2.0 => 0.0,
            Filter::KeysCubic if x >= 1.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Filter::KeysCubic => ((1.5 * x - 2.5) * x) * x + 1.0,
            Filter::MitchellCubic if x >= 2.0 => 0.0,
            Filter::MitchellCubic if x >= 1.0 => (((-7.0 / 18.0) * x + 2.0) * x - 10.0 / 3.0) * x + 16.0 / 9.0,
            Filter::MitchellCubic => (((7.0 / 6.0) * x - 2.0) * x) * x + 8.0 / 9.0,
        }
    }
}

/// For each position of an axis of the output, the first position of the input that it is made of, and their weights.
struct Spans {
    input: usize,
    spans: Vec<(usize, Vec<f32>)>,
}

impl Spans {
    fn of(filter: Filter, output: usize, input: usize, scale: f32, translation: f32, smooths: bool) -> Result<Spans> {
        let inverse = 1.0 / scale;
        let shift = -inverse * translation;
        let wide = if smooths { inverse.max(1.0) } else { 1.0 };
        let reach = filter.radius() * wide;
        let most = (reach.ceil() as usize).saturating_mul(2).saturating_add(1).min(input);
        memory::admit(output.saturating_mul(most.saturating_mul(4) + std::mem::size_of::<(usize, Vec<f32>)>()))?;
        let last = input as i64 - 1;
        let mut pace = Pace::new();
        let span = |x: usize| {
            let at = (x as f32 + 0.5) * inverse + shift;
            if at < 0.0 || at > input as f32 || at.is_nan() {
                return (0, Vec::new());
            }
            let begin = ((at - reach - 0.5).ceil() as i64).clamp(0, last);
            let end = ((at + reach - 0.5).floor() as i64).clamp(0, last) + 1;
            pace.go(20 * (end - begin).max(0) as usize);
            let weight = |source: i64| filter.weight((source as f32 + 0.5 - at) / wide);
            let mut weights: Vec<f32> = (begin..end).map(weight).collect();
            let total: f32 = weights.iter().sum();
            if total.abs() >= 1000.0 * f32::MIN_POSITIVE {
                weights.iter_mut().for_each(|weight| *weight *= 1.0 / total);
            } else {
                weights.fill(0.0);
            }
            (begin as usize, weights)
        };
        Ok(Spans { input, spans: (0..output).map(span).collect() })
    }

    /// The spans of the other direction.
    fn turned(&self) -> Result<Spans> {
        let output = self.spans.len();
        let mut bounds = vec![(usize::MAX, 0usize); self.input];
        for (x, (begin, weights)) in self.spans.iter().enumerate() {
            for bound in &mut bounds[*begin..*begin + weights.len()] {
                *bound = (bound.0.min(x), bound.1.max(x + 1));
            }
        }
        memory::admit(bounds.iter().map(|&(begin, end)| end.saturating_sub(begin) * 4 + 32).sum())?;
        let mut spans: Vec<(usize, Vec<f32>)> = bounds
            .iter()
            .map(|&(begin, end)| if begin < end { (begin, vec![0.0; end - begin]) } else { (0, Vec::new()) })
            .collect();
        for (x, (begin, weights)) in self.spans.iter().enumerate() {
            for (i, &weight) in weights.iter().enumerate() {
                let (first, own) = &mut spans[begin + i];
                own[x - *first] = weight;
            }
        }
        Ok(Spans { input: output, spans })
    }
}

/// Images resampled along their rows, and then along their columns.
fn resampled(images: &Tensor, [rows, columns]: [&Spans; 2]) -> Result<Tensor> {
    let [batch, _, width, channels] = sizes_of(images, "input image")?;
    let shape = Shape::from([batch, rows.spans.len(), columns.spans.len(), channels]);
    let mut output = vec![0f32; shape.checked_elements(DType::F32)?];
    let line = width * channels;
    memory::admit(4 * line)?;
    let mut tall = vec![0f32; line];
    let pixels = images.slice::<f32>()?;
    let size = rows.input * line;
    let out_line = columns.spans.len() * channels;
    let mut pace = Pace::new();
    for image in 0..batch {
        for (y, (first, weights)) in rows.spans.iter().enumerate() {
            tall.fill(0.0);
            for (i, &weight) in weights.iter().enumerate() {
                pace.go(line);
                let source = &pixels[image * size + (first + i) * line..][..line];
                tall.iter_mut().zip(source).for_each(|(sum, &x)| *sum += weight * x);
            }
            let own = &mut output[(image * rows.spans.len() + y) * out_line..][..out_line];
            for (x, (first, weights)) in columns.spans.iter().enumerate() {
                pace.go(weights.len() * channels);
                let sums = &mut own[x * channels..(x + 1) * channels];
                for (i, &weight) in weights.iter().enumerate() {
                    let source = &tall[(first + i) * channels..][..channels];
                    sums.iter_mut().zip(source).for_each(|(sum, &x)| *sum += weight * x);
                }
            }
        }
    }
    Ok(Tensor::from_vec(shape, output))
}
