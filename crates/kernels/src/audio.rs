//! Sounds: DecodeWav and EncodeWav, AudioSpectrogram, and Mfcc, the cepstral coefficients of a spectrogram.

mod cepstrum;
mod wave;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor, memory};
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

use super::Registry;
use super::call::kernel as call;
pub use wave::wave;

/// The longest window of a spectrogram.
const MAX_WINDOW: i64 = 1 << 24;

/// Registers the ops on sounds.
pub(super) fn register(ops: &mut Registry) {
    wave::register(ops);
    cepstrum::register(ops);
    ops.insert("AudioSpectrogram", |node| {
        let (window, stride) = (node.attrs.int("window_size")?, node.attrs.int("stride")?);
        let is_squared = node.attrs.bool("magnitude_squared")?;
        if !(2..=MAX_WINDOW).contains(&window) {
            return Err(Failure::invalid(format!("Spectrogram window size {window} must be in [2, {MAX_WINDOW}]")));
        }
        if stride < 1 {
            return Err(Failure::invalid(format!("Spectrogram stride {stride} must be at least 1")));
        }
        let (window, stride) = (window as usize, usize::try_from(stride).unwrap_or(usize::MAX));
        Ok(Some(call(move |[sound]| spectrogram(&sound, window, stride, is_squared))))
    });
}

fn spectrogram(sound: &Tensor, window: usize, stride: usize, is_squared: bool) -> Result<Tensor> {
    let &[samples, channels] = sound.dims() else {
        return Err(Failure::invalid(format!("input must be 2-dimensional, got shape {}", sound.shape())));
    };
    let length = window.next_power_of_two();
    let (slices, width) = (if samples < window { 0 } else { 1 + (samples - window) / stride }, 1 + length / 2);
    let shape = Shape::from([channels, slices, width]);
    let mut output = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    if slices == 0 || channels == 0 {
        return Ok(Tensor::from_vec(shape, output));
    }
    memory::admit(length.saturating_mul(64))?;
    let hann: Vec<f64> =
        (0..window).map(|i| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / window as f64).cos()).collect();
    let fft = FftPlanner::<f64>::new().plan_fft_forward(length);
    let mut line = vec![Complex::new(0.0, 0.0); length];
    let mut scratch = vec![Complex::new(0.0, 0.0); fft.get_inplace_scratch_len()];
    let elements = sound.slice::<f32>()?;
    for channel in 0..channels {
        for slice in 0..slices {
            turn::look();
            line.fill(Complex::new(0.0, 0.0));
            for (i, (number, weight)) in line.iter_mut().zip(&hann).enumerate() {
                number.re = f64::from(elements[(slice * stride + i) * channels + channel]) * weight;
            }
            fft.process_with_scratch(&mut line, &mut scratch);
            output.extend(line[..width].iter().map(|bin| {
                let power = bin.norm_sqr();
                if is_squared { power as f32 } else { power.sqrt() as f32 }
            }));
        }
    }
    Ok(Tensor::from_vec(shape, output))
}
