//! The options of images in a file of the section `data`.

use meshtf_tensor::json::{Fault, Kind, Member, Path, Value};

use super::{Read, list, number, one_of, unknown, whole};
use crate::data::{Augment, Flip, ImageOptions, Interpolation, Resize};

/// The keys of a source of images; the last ones are options.
const KEYS: [&str; 6] = ["images", "size", "scale", "resize", "interpolation", "augment"];
/// The options that images of TFRecords have, too.
pub(super) const OF_FEATURES: [&str; 3] = ["resize", "interpolation", "augment"];
/// The keys of other sources, which are refused with a reason.
const OTHERS: [&str; 5] = ["file", "classes", "on_workers", "columns", "except"];
/// The keys of augmentation.
const CHANGES: [&str; 7] = ["flip", "crop", "rotate", "translate", "brightness", "contrast", "seed"];

/// Reads an option; `false` if the key is none.
pub(super) fn option(options: &mut ImageOptions, key: &str, at: usize, value: &Value, path: Path) -> Read<bool> {
    match key {
        "resize" => options.resize = one_of(&Resize::NAMES, value, path)?,
        "interpolation" => options.interpolation = one_of(&Interpolation::NAMES, value, path)?,
        "augment" => options.augment = Some(augment(value, path)?),
        _ if KEYS.contains(&key) || OTHERS.contains(&key) => return Ok(false),
        _ => return Err(unknown(key, at, path, &KEYS)),
    }
    Ok(true)
}

fn augment(value: &Value, path: Path) -> Read<Augment> {
    let mut augment = Augment::default();
    let members = value.object(path, "augment is an object: {\"flip\": \"horizontal\", \"crop\": 0.1, …}")?;
    for Member { key, at, value } in members {
        let path = path.key(key);
        match &**key {
            "flip" => augment.flip = Some(one_of(&Flip::NAMES, value, path)?),
            "crop" => augment.crop = share(value, path, "the window has 1 minus this share of the sides")?,
            "contrast" => augment.contrast = share(value, path, "the factor is 1 minus this to 1 plus this")?,
            "rotate" => augment.rotate = range(value, path, "in full turns, such as 0.05")?,
            "brightness" => augment.brightness = range(value, path, "a share of 255, such as 0.2")?,
            "translate" => augment.translate = shares(value, path)?,
            "seed" => augment.seed = Some(whole(value, path)?),
            _ => return Err(unknown(key, *at, path, &CHANGES)),
        }
    }
    match augment == (Augment { seed: augment.seed, ..Augment::default() }) {
        true => Err(Fault::content(value, path, format!("it changes nothing; there are {}", CHANGES.join(", ")))),
        false => Ok(augment),
    }
}

/// A number from 0 to below 1.
fn share(value: &Value, path: Path, meaning: &str) -> Read<f64> {
    let share = number(value, path)?;
    match (0.0..1.0).contains(&share) {
        true => Ok(share),
        false => Err(Fault::content(value, path, format!("expected a number from 0 to below 1: {meaning}"))),
    }
}

/// A number for the range from minus this to this, or the least and the greatest; all from -1 to 1.
fn range(value: &Value, path: Path, meaning: &str) -> Read<(f64, f64)> {
    let (least, most) = match &value.kind {
        Kind::List(_) => match list(value, path, number)?[..] {
            [least, most] => (least, most),
            _ => (f64::NAN, f64::NAN),
        },
        _ => number(value, path).map(|most| (-most, most))?,
    };
    match -1.0 <= least && least <= most && most <= 1.0 {
        true => Ok((least, most)),
        false => {
            let why = format!("expected a number from 0 to 1, or [LEAST, GREATEST] from -1 to 1: {meaning}");
            Err(Fault::content(value, path, why))
        }
    }
}

/// A share of the height and of the width, or one for both.
fn shares(value: &Value, path: Path) -> Read<[f64; 2]> {
    const MEANING: &str = "the share of the height and width by which an image is moved at most";
    match &value.kind {
        Kind::List(_) => {
            let both = list(value, path, |value, path| share(value, path, MEANING))?;
            let wrong = || Fault::content(value, path, "expected a number, or [OF_HEIGHT, OF_WIDTH]");
            both.try_into().map_err(|_| wrong())
        }
        _ => share(value, path, MEANING).map(|share| [share; 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DataSource, SectionsError, read};
    use super::*;

    fn with(options: &str) -> Result<DataSource, SectionsError> {
        let text = format!(
            r#"{{"data": {{"feed": {{"x": {{"images": "photos", {options}}}}}, "batch": 1}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}}}"#
        );
        read(&text).map(|sections| sections.data.feed.into_iter().next().unwrap().1)
    }

    #[test]
    fn images_have_options() {
        let source = with(
            r#""resize": "pad_to_aspect_ratio", "interpolation": "nearest", "size": [4, 6], "scale": 0.5, "augment": {
            "flip": "both", "crop": 0.1, "rotate": 0.05, "translate": [0.1, 0.2], "brightness": [-0.1, 0.3], "contrast": 0.2,
            "seed": 4}"#,
        );
        let source = source.unwrap();
        let augment = Augment {
            flip: Some(Flip::Both),
            crop: 0.1,
            rotate: (-0.05, 0.05),
            translate: [0.1, 0.2],
            brightness: (-0.1, 0.3),
            contrast: 0.2,
            seed: Some(4),
        };
        let wanted = ImageOptions {
            resize: Resize::PadToAspectRatio,
            interpolation: Interpolation::Nearest,
            augment: Some(augment),
        };
        assert_eq!((source.images, source.size, source.scale), (wanted, Some([4, 6]), Some(0.5)));
        let both = with(r#""augment": {"translate": 0.1, "flip": "horizontal_and_vertical"}"#).unwrap();
        let augment = both.images.augment.unwrap();
        assert_eq!((augment.translate, augment.flip), ([0.1; 2], Some(Flip::Both)));
    }

    #[test]
    fn wrong_options_say_what_would_be_right() {
        for (options, why) in [
            (
                r#""resize": "crop""#,
                r#"x.resize (line 1, column 56): "crop" is none of "stretch", "crop_to_aspect_ratio""#,
            ),
            (r#""interpolation": "linear""#, r#"is none of "nearest", "bilinear", "bicubic", "lanczos3""#),
            (r#""augment": {}"#, "it changes nothing; there are flip, crop, rotate"),
            (r#""augment": {"seed": 1}"#, "it changes nothing"),
            (r#""augment": {"flip": true}"#, "$.data.feed.x.augment.flip"),
            (r#""augment": {"flip": "left"}"#, r#""left" is none of "horizontal", "vertical", "both""#),
            (r#""augment": {"crop": 1}"#, "expected a number from 0 to below 1: the window"),
            (r#""augment": {"crop": -0.1}"#, "expected a number from 0 to below 1"),
            (r#""augment": {"rotate": 90}"#, "in full turns, such as 0.05"),
            (r#""augment": {"brightness": [0.2, 0.1]}"#, "or [LEAST, GREATEST]"),
            (r#""augment": {"brightness": [0.2]}"#, "or [LEAST, GREATEST]"),
            (r#""augment": {"translate": [0.1]}"#, "[OF_HEIGHT, OF_WIDTH]"),
            (r#""augment": {"zoom": 0.1}"#, "there are flip, crop, rotate, translate, brightness, contrast, seed"),
            (r#""augmnt": {"flip": "both"}"#, r#"did you mean "augment"?"#),
            (r#""delimiter": ";""#, r#"unknown key "delimiter"; there are images, size, scale, resize"#),
        ] {
            let error = with(options).unwrap_err().to_string();
            assert!(error.contains(why), "{options}: {error}");
        }
        let text = r#"{"data": {"feed": {"x": "x.npy"}, "batch": 1}, "evaluate": {"every": 1, "feed": {"x": {"images": "p",
            "augment": {"flip": "both"}}}}, "train": {"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1}}"#;
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains("x has \"augment\", which is for \"data\""), "{error}");
    }
}
