//! Summaries of sounds, images and tensors: AudioSummary, AudioSummaryV2, TensorSummary, TensorSummaryV2 and, if images
//! can be encoded, ImageSummary.

use meshtf_graph::graphdef::{TensorProto, tensor_to_proto};
use meshtf_loops::turn::Pace;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use prost::Message;

use super::super::audio::wave;
use super::super::call::{check_text_bytes, kernel as call};
use super::super::{KernelNode, Registry};

/// `tensorflow.Summary`, the fields used in this module.
#[derive(Clone, PartialEq, Message)]
struct MediaSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<MediaValue>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct MediaValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(message, optional, tag = "6")]
    audio: Option<Audio>,
    #[prost(string, tag = "7")]
    node_name: String,
    #[prost(message, optional, tag = "8")]
    tensor: Option<TensorProto>,
    /// `SummaryMetadata`, whose bytes are passed on unchanged.
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(int32, tag = "1")]
    height: i32,
    #[prost(int32, tag = "2")]
    width: i32,
    #[prost(int32, tag = "3")]
    colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    encoded: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Audio {
    #[prost(float, tag = "1")]
    sample_rate: f32,
    #[prost(int64, tag = "2")]
    channels: i64,
    #[prost(int64, tag = "3")]
    frames: i64,
    #[prost(bytes = "vec", tag = "4")]
    encoded: Vec<u8>,
    #[prost(string, tag = "5")]
    content_type: String,
}

/// `tensorflow.SummaryMetadata`.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
    #[prost(string, tag = "2")]
    display_name: String,
    #[prost(string, tag = "3")]
    description: String,
    #[prost(int32, tag = "4")]
    data_class: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    content: Vec<u8>,
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("AudioSummary", |node| {
        let (most, rate) = (most(node, "max_outputs")?, node.attrs.float("sample_rate")?);
        Ok(Some(call(move |[tag, tensor]| audio(&tag, &tensor, rate, most))))
    });
    ops.insert("AudioSummaryV2", |node| {
        let most = most(node, "max_outputs")?;
        Ok(Some(call(move |[tag, tensor, rate]| audio(&tag, &tensor, rate.item::<f32>()?, most))))
    });
    ops.insert("TensorSummary", |node| {
        let name = node.name.to_owned();
        Ok(Some(call(move |[tensor]| {
            let value = MediaValue { node_name: name.clone(), tensor: Some(proto(&tensor)?), ..MediaValue::default() };
            Ok(Tensor::scalar(MediaSummary { value: vec![value] }.encode_to_vec()))
        })))
    });
    ops.insert("TensorSummaryV2", |_| {
        Ok(Some(call(|[tag, tensor, metadata]| {
            let bytes = metadata.item::<Vec<u8>>()?;
            let unreadable = |_| Failure::invalid("serialized_summary_metadata is not a SummaryMetadata");
            let metadata = Metadata::decode(bytes.as_slice()).map_err(unreadable)?;
            let (tag, tensor) = (tag_of(&tag)?, Some(proto(&tensor)?));
            let value = MediaValue { tag, tensor, metadata: Some(metadata), ..MediaValue::default() };
            Ok(Tensor::scalar(MediaSummary { value: vec![value] }.encode_to_vec()))
        })))
    });
    ops.insert("ImageSummary", |node| {
        let (most, bad) = (most(node, "max_images")?, node.attrs.tensor("bad_color")?);
        let bad = bad.slice::<u8>()?.to_vec();
        Ok(Some(call(move |[tag, tensor]| images(&tag, &tensor, most, &bad))))
    });
}

/// An attribute that is the greatest number of something.
fn most(node: &KernelNode, name: &str) -> Result<usize> {
    Ok(usize::try_from(node.attrs.int(name)?).unwrap_or(0))
}

/// The serialised form of a tensor: its elements as bytes, or one by one if they are strings.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for it.
pub(super) fn proto(tensor: &Tensor) -> Result<TensorProto> {
    check_text_bytes(tensor.byte_len().saturating_add(64))?;
    let Some(bytes) = tensor.bytes() else { return Ok(tensor_to_proto(tensor)) };
    let shape = Some(meshtf_graph::graphdef::shape_proto(&tensor.shape().into()));
    let (dtype, tensor_content) = (tensor.dtype().proto_number(), bytes.to_vec());
    Ok(TensorProto { dtype, tensor_shape: shape, tensor_content, ..TensorProto::default() })
}

fn tag_of(tag: &Tensor) -> Result<String> {
    match (tag.rank(), tag.slice::<Vec<u8>>()?) {
        (0, [tag]) => Ok(String::from_utf8_lossy(tag).into_owned()),
        _ => Err(Failure::invalid(format!("Tag must be a scalar, got shape {}", tag.shape()))),
    }
}

/// The tag of item `i` of at most `most`.
fn tag_at(base: &str, what: &str, i: usize, most: usize) -> String {
    if most > 1 { format!("{base}/{what}/{i}") } else { format!("{base}/{what}") }
}

fn audio(tag: &Tensor, tensor: &Tensor, rate: f32, most: usize) -> Result<Tensor> {
    let base = tag_of(tag)?;
    let (batch, frames, channels) = match *tensor.dims() {
        [batch, frames] => (batch, frames, 1),
        [batch, frames, channels] => (batch, frames, channels),
        _ => {
            return Err(Failure::invalid(format!("Tensor must be 3-D or 2-D, got: {}", tensor.shape())));
        }
    };
    if !(rate > 0.0 && rate.is_finite()) {
        return Err(Failure::invalid("sample_rate must be > 0"));
    }
    let (count, length) = (batch.min(most), frames * channels);
    check_text_bytes((2 * length).saturating_add(64).saturating_mul(count))?;
    let samples = tensor.slice::<f32>()?;
    let mut pace = Pace::new();
    let value = (0..count).map(|i| {
        pace.go(4 * length);
        let encoded = wave(&samples[i * length..(i + 1) * length], rate as u32, channels)?;
        let (tag, content_type) = (tag_at(&base, "audio", i, most), "audio/wav".to_owned());
        let (channels, frames) = (channels as i64, frames as i64);
        let audio = Audio { sample_rate: rate, channels, frames, encoded, content_type };
        Ok(MediaValue { tag, audio: Some(audio), ..MediaValue::default() })
    });
    let value = value.collect::<Result<_>>()?;
    Ok(Tensor::scalar(MediaSummary { value }.encode_to_vec()))
}

fn images(tag: &Tensor, tensor: &Tensor, most: usize, bad: &[u8]) -> Result<Tensor> {
    use super::super::image::coded::encode::png;

    let base = tag_of(tag)?;
    let &[batch, height, width, depth] = tensor.dims() else {
        let why = format!("Tensor must be 4-D with last dim 1, 3, or 4, not {}", tensor.shape());
        return Err(Failure::invalid(why));
    };
    if !matches!(depth, 1 | 3 | 4) {
        let why = format!("Tensor must be 4-D with last dim 1, 3, or 4, not {}", tensor.shape());
        return Err(Failure::invalid(why));
    }
    if bad.len() < depth {
        return Err(Failure::invalid(format!("expected depth <= bad_color.size, got depth = {depth}")));
    }
    let (count, length) = (batch.min(most), height * width * depth);
    check_text_bytes(length.saturating_mul(count))?;
    let tensor = super::super::real::widen(tensor.clone());
    let mut value = Vec::with_capacity(count);
    for i in 0..count {
        meshtf_loops::turn::look();
        let range = i * length..(i + 1) * length;
        let encoded = match tensor.slice::<u8>() {
            Ok(bytes) => png(&bytes[range], [height, width, depth], false, -1)?,
            Err(_) => {
                let bytes = match tensor.slice::<f32>() {
                    Ok(floats) => {
                        visible(&floats[range], depth, bad, |x| x, |x, scale, offset| (x * scale + offset) as u8)
                    }
                    Err(_) => visible(
                        &tensor.slice::<f64>()?[range],
                        depth,
                        bad,
                        |x| x as f32,
                        |x, scale, offset| (x * f64::from(scale) + f64::from(offset)) as u8,
                    ),
                };
                png(&bytes, [height, width, depth], false, -1)?
            }
        };
        let side = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        let image = Image { height: side(height), width: side(width), colorspace: depth as i32, encoded };
        value.push(MediaValue { tag: tag_at(&base, "image", i, most), image: Some(image), ..MediaValue::default() });
    }
    Ok(Tensor::scalar(MediaSummary { value }.encode_to_vec()))
}

/// Floats scaled to bytes, with a given colour for pixels that are not finite. `scaled` multiplies, adds and truncates in
/// the precision of the floats, as TensorFlow does.
fn visible<T: Copy>(
    floats: &[T],
    depth: usize,
    bad: &[u8],
    single: fn(T) -> f32,
    scaled: fn(T, f32, f32) -> u8,
) -> Vec<u8> {
    let is_finite = |pixel: &&[T]| pixel.iter().all(|&x| single(x).is_finite());
    let finite = || floats.chunks_exact(depth).filter(is_finite).flatten().map(|&x| single(x));
    let (least, most) = finite().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), x: f32| (a.min(x), b.max(x)));
    const ZERO: f32 = 1e-6;
    let (scale, offset) = if least < 0.0 {
        let largest = least.abs().max(most.abs());
        (if largest < ZERO { 0.0 } else { 127.0 / largest }, 128.0)
    } else {
        (if most < ZERO { 0.0 } else { 255.0 / most }, 0.0)
    };
    let mut bytes = Vec::with_capacity(floats.len());
    for pixel in floats.chunks_exact(depth) {
        if is_finite(&pixel) {
            bytes.extend(pixel.iter().map(|&x| scaled(x, scale, offset)));
        } else {
            bytes.extend_from_slice(&bad[..depth]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_scaled_in_their_own_precision() {
        // The float32 result of -3.55 * (127 / 3.55) + 128, by numpy; in float64 it is a little less than 1.
        let bytes =
            visible(&[0.62f32, 1.51, -3.55], 3, &[255; 3], |x| x, |x, scale, offset| (x * scale + offset) as u8);
        assert_eq!(bytes, [150, 182, 1]);
    }
}
