//! WAV files of 16-bit samples.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::Registry;
use super::super::call::{check_text_bytes, kernel as call, take};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("EncodeWav", |_| {
        Ok(Some(call(|[sound, rate]| {
            let &[frames, channels] = sound.dims() else {
                return Err(Failure::invalid(format!("audio must be 2-dimensional but got shape {}", sound.shape())));
            };
            if rate.rank() != 0 {
                let why = format!("Input sample_rate should be a scalar tensor, got {}", rate.shape());
                return Err(Failure::invalid(why));
            }
            let rate = rate.to_i64()?;
            let rate = u32::try_from(rate).ok().filter(|&rate| rate > 0);
            let rate = rate.ok_or_else(|| Failure::invalid("sample_rate must be positive"))?;
            check_text_bytes(frames.saturating_mul(channels).saturating_mul(2).saturating_add(64))?;
            Ok(Tensor::scalar(wave(sound.slice::<f32>()?, rate, channels)?))
        })))
    });
    ops.insert("DecodeWav", |node| {
        let (channels, samples) = (node.attrs.int("desired_channels")?, node.attrs.int("desired_samples")?);
        Ok(Some(Box::new(move |inputs| {
            let [contents] = take(inputs)?;
            if contents.rank() != 0 {
                let why = format!("contents must be scalar but got shape {}", contents.shape());
                return Err(Failure::invalid(why));
            }
            let bytes = &contents.slice::<Vec<u8>>()?[0];
            let (sound, rate) = decoded(bytes, channels, samples)?;
            Ok([sound, Tensor::scalar(rate)].into_iter().collect())
        })))
    });
}

/// A WAV file of 16-bit samples.
///
/// # Errors
/// InvalidArgument if there are too many samples or channels.
pub fn wave(samples: &[f32], rate: u32, channels: usize) -> Result<Vec<u8>> {
    let too_large =
        |_| Failure::invalid(format!("{} samples of {channels} channels are too many for a WAV file", samples.len()));
    let bytes = u32::try_from(2 * samples.len()).map_err(too_large)?;
    let channels = u16::try_from(channels).ok().filter(|&channels| (1..=1024).contains(&channels));
    let channels = channels.ok_or_else(|| Failure::invalid("num_channels must be in (0, 1024]"))?;
    let mut file = Vec::with_capacity(44 + 2 * samples.len());
    file.extend(b"RIFF");
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend(1u16.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend(rate.wrapping_mul(2 * u32::from(channels)).to_le_bytes());
    file.extend((2 * channels).to_le_bytes());
    file.extend(16u16.to_le_bytes());
    file.extend(b"data");
    file.extend(bytes.to_le_bytes());
    file.extend(samples.iter().flat_map(|x| ((x * 32768.0).round() as i16).to_le_bytes()));
    Ok(file)
}

/// The parts of a file, one after the other.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((part, rest)) = self.0.split_at_checked(count) else {
            return Err(Failure::invalid("Data too short when trying to read the WAV file"));
        };
        self.0 = rest;
        Ok(part)
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        match self.take(text.len())? {
            got if got == text.as_bytes() => Ok(()),
            got => Err(Failure::invalid(format!(
                "Header mismatch: Expected {text} but found {}",
                String::from_utf8_lossy(got)
            ))),
        }
    }

    fn long(&mut self) -> Result<u32> {
        Ok(self.take(4)?.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte)))
    }

    fn short(&mut self) -> Result<u16> {
        Ok(self.take(2)?.iter().rev().fold(0, |number, &byte| number << 8 | u16::from(byte)))
    }
}

/// The samples of a file, with its rate; the numbers of channels and samples are those wanted, if they are not negative.
fn decoded(bytes: &[u8], channels: i64, samples: i64) -> Result<(Tensor, i32)> {
    let mut parts = Parts(bytes);
    parts.expect("RIFF")?;
    parts.long()?;
    parts.expect("WAVE")?;
    parts.expect("fmt ")?;
    let size = parts.long()?;
    if size != 16 && size != 18 {
        return Err(Failure::invalid(format!("Bad format chunk size for WAV: Expected 16 or 18, but got {size}")));
    }
    let format = parts.short()?;
    if format != 1 {
        return Err(Failure::invalid(format!("Bad audio format for WAV: Expected 1 (PCM), but got {format}")));
    }
    let (own, rate) = (usize::from(parts.short()?), parts.long()?);
    let (bytes_a_second, bytes_a_sample, bits) = (parts.long()?, parts.short()?, parts.short()?);
    if bits != 16 {
        return Err(Failure::invalid(format!("Can only read 16-bit WAV files, but received {bits}")));
    }
    let wanted = 2 * own as u64;
    if u64::from(bytes_a_sample) != wanted {
        return Err(Failure::invalid(format!(
            "Bad bytes per sample in WAV header: Expected {wanted} but got {bytes_a_sample}"
        )));
    }
    if u64::from(bytes_a_second) != wanted * u64::from(rate) {
        return Err(Failure::invalid(format!(
            "Bad bytes per second in WAV header: Expected {} but got {bytes_a_second} (sample_rate={rate}, \
             bytes_per_sample={bytes_a_sample})",
            wanted * u64::from(rate)
        )));
    }
    if own == 0 {
        return Err(Failure::invalid("a WAV file has one channel at least"));
    }
    if size == 18 && parts.short()? > 22 {
        return Err(Failure::invalid("Bad extensible format chunk size in WAV header"));
    }
    let data = loop {
        if parts.0.is_empty() {
            return Err(Failure::invalid("the WAV file has no chunk of data"));
        }
        let id = parts.take(4)?;
        let size = parts.long()? as usize;
        if id == b"data" {
            // A file that is cut off within its last frame has the whole ones.
            break parts.take(size)?;
        }
        parts.take(size)?;
    };
    let frames = data.len() / (2 * own);
    let width = usize::try_from(channels).ok().filter(|&width| width > 0).unwrap_or(own);
    let count = usize::try_from(samples).unwrap_or(frames);
    let shape = Shape::from([count, width]);
    let mut sound = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    let mut pace = Pace::new();
    for frame in 0..count {
        pace.go(4 * width);
        for channel in 0..width {
            // A channel that the file lacks repeats its last one; after its end there is silence.
            let at = (frame * own + channel.min(own - 1)) * 2;
            let sample = if frame < frames { i16::from_le_bytes([data[at], data[at + 1]]) } else { 0 };
            sound.push(f32::from(sample) / 32768.0);
        }
    }
    Ok((Tensor::from_vec(shape, sound), i32::try_from(rate).unwrap_or(i32::MAX)))
}
