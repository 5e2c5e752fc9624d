//! Mfcc: the energies of a spectrogram in bands that are evenly spaced for the ear, and their cosine transform.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor, memory};

use super::super::Registry;
use super::super::call::kernel as call;

/// The least energy of a band.
const FLOOR: f64 = 1e-12;
/// Most bands, and most coefficients.
const MAX_BANDS: i64 = 1 << 11;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Mfcc", |node| {
        let count = |name: &str| {
            let count = node.attrs.int(name)?;
            if (1..=MAX_BANDS).contains(&count) {
                return Ok(count as usize);
            }
            Err(Failure::invalid(format!("Mfcc initialization failed: {name} must be in [1, {MAX_BANDS}], got {count}")))
        };
        let (bands, coefficients) = (count("filterbank_channel_count")?, count("dct_coefficient_count")?);
        let limits = [node.attrs.float("lower_frequency_limit")?, node.attrs.float("upper_frequency_limit")?];
        if coefficients > bands {
            return Err(Failure::invalid(format!(
                "Mfcc initialization failed: dct_coefficient_count {coefficients} must be at most filterbank_channel_count {bands}"
            )));
        }
        Ok(Some(call(move |[spectrogram, rate]| cepstrum(&spectrogram, &rate, limits, bands, coefficients))))
    });
}

fn cepstrum(
    spectrogram: &Tensor,
    rate: &Tensor,
    limits: [f32; 2],
    bands: usize,
    coefficients: usize,
) -> Result<Tensor> {
    let &[channels, slices, bins] = spectrogram.dims() else {
        return Err(Failure::invalid(format!("spectrogram must be 3-dimensional, got shape {}", spectrogram.shape())));
    };
    if rate.rank() != 0 {
        return Err(Failure::invalid(format!("Input sample_rate should be a scalar tensor, got {}", rate.shape())));
    }
    let shape = Shape::from([channels, slices, coefficients]);
    let mut output = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    let bank = Bank::of(bins, f64::from(rate.item::<i32>()?), bands, limits.map(f64::from))?;
    memory::admit(8 * coefficients.saturating_mul(bands))?;
    let scale = (2.0 / bands as f64).sqrt();
    let turn = std::f64::consts::PI / bands as f64;
    let cosines: Vec<f64> = (0..coefficients)
        .flat_map(|i| (0..bands).map(move |j| scale * (i as f64 * turn * (j as f64 + 0.5)).cos()))
        .collect();
    let mut pace = Pace::new();
    for line in spectrogram.slice::<f32>()?.chunks_exact(bins.max(1)) {
        pace.go(4 * bins + coefficients * bands);
        if bank.last >= bins {
            // As in TensorFlow: the frequencies of the spectrogram end below the upper limit.
            output.resize(output.len() + coefficients, 0.0);
            continue;
        }
        let energies: Vec<f64> = bank.energies(line).into_iter().map(|energy| energy.max(FLOOR).ln()).collect();
        output.extend(cosines.chunks_exact(bands).map(|row| {
            let sum: f64 = row.iter().zip(&energies).map(|(cosine, energy)| cosine * energy).sum();
            sum as f32
        }));
    }
    Ok(Tensor::from_vec(shape, output))
}

/// Triangular bands whose centres are evenly spaced on the mel scale.
struct Bank {
    /// The bins that count.
    first: usize,
    last: usize,
    /// By bin: the band on whose falling side it is, if on one, and its weight there. The remainder goes to the next band.
    bins: Vec<(Option<usize>, f64)>,
    bands: usize,
}

fn mel(frequency: f64) -> f64 {
    1127.0 * (frequency / 700.0).ln_1p()
}

impl Bank {
    fn of(bins: usize, rate: f64, bands: usize, [lower, upper]: [f64; 2]) -> Result<Bank> {
        let wrong = |why: String| Err(Failure::invalid(format!("Mfcc initialization failed: {why}")));
        if bins < 2 {
            return wrong(format!("the spectrogram has {bins} channels, and needs at least 2"));
        }
        if rate <= 0.0 {
            return wrong(format!("the sample rate must be positive, got {rate}"));
        }
        if lower < 0.0 || upper <= lower {
            return wrong(format!("the frequency limits must be in order and not negative, got {lower} and {upper}"));
        }
        memory::admit(24 * bins)?;
        let (low, high) = (mel(lower), mel(upper));
        let spacing = (high - low) / (bands + 1) as f64;
        let centre = |band: usize| low + spacing * (band + 1) as f64;
        let width = 0.5 * rate / (bins - 1) as f64;
        let (first, last) = ((1.5 + lower / width) as usize, (upper / width) as usize);
        let mut next = 0;
        let bin = |i: usize| {
            if i < first || i > last {
                return (None, 0.0);
            }
            let at = mel(i as f64 * width);
            while next < bands && centre(next) < at {
                next += 1;
            }
            match next.checked_sub(1) {
                Some(band) => (Some(band), (centre(band + 1) - at) / (centre(band + 1) - centre(band))),
                None => (None, (centre(0) - at) / (centre(0) - low)),
            }
        };
        Ok(Bank { first, last, bins: (0..bins).map(bin).collect(), bands })
    }

    fn energies(&self, line: &[f32]) -> Vec<f64> {
        let mut energies = vec![0.0; self.bands];
        for (bin, &power) in self.bins.iter().zip(line).take(self.last + 1).skip(self.first) {
            let magnitude = f64::from(power).sqrt();
            let falling = magnitude * bin.1;
            if let Some(band) = bin.0 {
                energies[band] += falling;
            }
            let next = bin.0.map_or(0, |band| band + 1);
            if next < self.bands {
                energies[next] += magnitude - falling;
            }
        }
        energies
    }
}
