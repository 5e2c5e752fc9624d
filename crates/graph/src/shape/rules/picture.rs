//! Shapes of ops on pictures: their colours, parts and boxes, and their encoded files.

use super::super::call::{known, merge_sizes};
use super::super::{Dims, Extent, Fact, Size};
use super::{Call, Entry, one};

pub(super) const RULES: &[Entry] = &[
    ("colors", colors, Extent::Unknown),
    ("at_least_3", at_least_3, Extent::Unknown),
    ("glimpse", glimpse, Extent::Unknown),
    ("crop_and_resize", crop_and_resize, Extent::Unknown),
    ("sized_fourth", sized_fourth, Extent::Unknown),
    ("box_gradient", box_gradient, Extent::Unknown),
    ("suppression", suppression, Extent::Unknown),
    ("decoded", decoded, Extent::Unknown),
    ("decoded_part", decoded_part, Extent::Unknown),
    ("decoded_frames", decoded_frames, Extent::Unknown),
    ("transformed", transformed, Extent::Unknown),
    ("sampled_box", |_| Some(vec![known(&[3]).into(), known(&[3]).into(), known(&[1, 1, 4]).into()]), Extent::Unknown),
    ("combined_suppression", combined_suppression, Extent::Unknown),
    ("spectrogram", spectrogram, Extent::Unknown),
    ("cepstrum", cepstrum, Extent::Unknown),
    ("decoded_wave", decoded_wave, Extent::Unknown),
    ("three", three, Extent::Unknown),
    ("encoded", encoded, Extent::Unknown),
];

/// Pixels of three channels.
fn colors(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    *dims.last_mut()? = Size::Known(3);
    one(dims)
}

fn at_least_3(call: &Call) -> Option<Vec<Fact>> {
    one(call.dims(0).filter(|dims| dims.len() >= 3)?)
}

/// A height and a width, if both are known.
pub(super) fn stated_size(call: &Call, input: usize) -> Option<Dims> {
    if call.sizes(input).is_some_and(|size| size.len() != 2) {
        return None;
    }
    Some(call.counts(input).map_or_else(|| call.unknown(2), |size| known(&size)))
}

/// A part of an image for each box, of the size in the last input.
fn crop_and_resize(call: &Call) -> Option<Vec<Fact>> {
    let (image, boxes) = (call.of_rank(0, 4)?, call.of_rank(1, 2)?);
    let size = stated_size(call, 3)?;
    one(vec![boxes[0], size[0], size[1], image[3]])
}

/// A window of each image, of the size in the second input.
fn glimpse(call: &Call) -> Option<Vec<Fact>> {
    let (image, offsets) = (call.of_rank(0, 4)?, call.of_rank(2, 2)?);
    let (size, batch) = (stated_size(call, 1)?, merge_sizes(image[0], offsets[0])?);
    one(vec![batch, size[0], size[1], image[3]])
}

/// Images of the shape in the last input.
fn sized_fourth(call: &Call) -> Option<Vec<Fact>> {
    one(call.sizes(3).filter(|dims| dims.len() == 4).unwrap_or_else(|| call.unknown(4)))
}

fn box_gradient(call: &Call) -> Option<Vec<Fact>> {
    one(call.dims(2).filter(|dims| dims.len() == 2)?)
}

/// Images of the size in the third input.
fn transformed(call: &Call) -> Option<Vec<Fact>> {
    let (image, size) = (call.of_rank(0, 4)?, stated_size(call, 2)?);
    one(vec![image[0], size[0], size[1], image[3]])
}

/// The selected boxes of all classes of each image, their scores, their classes, and their number.
fn combined_suppression(call: &Call) -> Option<Vec<Fact>> {
    let (boxes, scores) = (call.of_rank(0, 4)?, call.of_rank(1, 3)?);
    let mut count = call.size_in(3)?;
    if call.bool("pad_per_class")? {
        let each = call
            .value(2)
            .and_then(|each| usize::try_from(each).ok())
            .zip(scores[2].known())
            .map(|(each, classes)| each.saturating_mul(classes));
        count = each.map_or_else(|| call.size(None), |most| call.map(count, |count| Some(count.min(most))));
    }
    let batch = boxes[0];
    Some(vec![
        vec![batch, count, Size::Known(4)].into(),
        vec![batch, count].into(),
        vec![batch, count].into(),
        vec![batch].into(),
    ])
}

/// The spectra of the windows of each channel.
fn spectrogram(call: &Call) -> Option<Vec<Fact>> {
    let sound = call.of_rank(0, 2)?;
    let window = usize::try_from(call.int("window_size")?).ok().filter(|&window| (2..1 << 30).contains(&window))?;
    let stride = usize::try_from(call.int("stride")?).ok().filter(|&stride| stride > 0)?;
    let slices = call.map(sound[0], |samples| Some(samples.checked_sub(window).map_or(0, |rest| 1 + rest / stride)));
    one(vec![sound[1], slices, Size::Known(1 + window.next_power_of_two() / 2)])
}

/// Coefficients in place of the frequencies of a spectrogram.
fn cepstrum(call: &Call) -> Option<Vec<Fact>> {
    let spectrogram = call.of_rank(0, 3)?;
    let count = usize::try_from(call.int("dct_coefficient_count")?).ok()?;
    one(vec![spectrogram[0], spectrogram[1], Size::Known(count)])
}

/// The samples of a file by channel, and their rate.
fn decoded_wave(call: &Call) -> Option<Vec<Fact>> {
    let stated = |name: &str| call.size(call.int(name).and_then(|size| usize::try_from(size).ok()));
    Some(vec![vec![stated("desired_samples"), stated("desired_channels")].into(), Dims::new().into()])
}

/// The selected boxes, or as many as requested; the number of selected ones is a scalar.
fn suppression(call: &Call) -> Option<Vec<Fact>> {
    let count = if call.bool("pad_to_max_output_size").unwrap_or(false) { call.size_in(2)? } else { call.size(None) };
    let outputs = call.node.outputs.len();
    let dims = |port: usize| -> Dims { if port > 0 && port + 1 == outputs { Dims::new() } else { vec![count] } };
    Some((0..outputs).map(|port| dims(port).into()).collect())
}

fn channels(call: &Call) -> Option<Size> {
    Some(match call.int("channels")? {
        0 => call.size(None),
        channels => Size::Known(usize::try_from(channels).ok()?),
    })
}

fn decoded(call: &Call) -> Option<Vec<Fact>> {
    one(vec![call.size(None), call.size(None), channels(call)?])
}

/// The part of an image specified by the second input.
fn decoded_part(call: &Call) -> Option<Vec<Fact>> {
    let window = call.sizes(1).filter(|window| window.len() == 4);
    let side = |i: usize| window.as_ref().map_or_else(|| call.size(None), |window| window[i]);
    one(vec![side(2), side(3), channels(call)?])
}

fn decoded_frames(call: &Call) -> Option<Vec<Fact>> {
    one(vec![call.size(None), call.size(None), call.size(None), Size::Known(3)])
}

fn three(_: &Call) -> Option<Vec<Fact>> {
    one(known(&[3]))
}

/// An encoded file for each image.
fn encoded(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    one(dims[..dims.len().checked_sub(3)?].to_vec())
}
