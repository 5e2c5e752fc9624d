//! The options by which the files of `--feed` become numbers: for all images, or for one feed by its name.

use std::str::FromStr;

use meshtf_tensor::DType;
use meshtf_train::data::Resize;

use super::Trouble;

/// The heading of these options in the help.
const HEADING: &str = "Images and numbers of --feed";

/// How images, and other files of numbers, become values: (pixel * scale - mean) / std.
#[derive(Clone, Debug, Default, clap::Args)]
pub(in crate::cli) struct HowArgs {
    /// Factor of each pixel, such as 1/255. This and the options below are for all images; NAME=… is for one feed, and those
    /// without --layout, --size and --fit also for other files of numbers
    #[arg(long, value_name = "[NAME=]NUMBER", allow_negative_numbers = true, help_heading = HEADING)]
    scale: Vec<Named<Numbers>>,
    /// Numbers that are subtracted then: one, or one for each channel, as 0.485,0.456,0.406
    #[arg(long, value_name = "[NAME=]NUMBERS", allow_negative_numbers = true, help_heading = HEADING)]
    mean: Vec<Named<Numbers>>,
    /// Numbers that the result is divided by: one, or one for each channel
    #[arg(long, value_name = "[NAME=]NUMBERS", help_heading = HEADING)]
    std: Vec<Named<Numbers>>,
    /// Dtype that the result is cast to, with fractions cut off for integers [default: the input's, which has to hold the values]
    #[arg(long = "as", value_name = "[NAME=]DTYPE", help_heading = HEADING)]
    cast: Vec<Named<Cast>>,
    /// Order of the axes of images: NCHW (channels first) or NHWC (channels last) [default: by the axis of the input that has 1,
    /// 3 or 4 entries]
    #[arg(long, value_name = "[NAME=]ORDER", help_heading = HEADING)]
    layout: Vec<Named<Layout>>,
    /// Height and width that images get, as 224 or 480,640 [default: those of the input, else the image's own]
    #[arg(long, value_name = "[NAME=]SIZE", help_heading = HEADING)]
    size: Vec<Named<Size>>,
    /// Treatment of images with other proportions: stretch, crop (the middle) or pad (with black) [default: stretch]
    #[arg(long, value_name = "[NAME=]FIT", help_heading = HEADING)]
    fit: Vec<Named<Fit>>,
}

/// The options for one feed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct How {
    pub scale: Option<f64>,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
    pub cast: Option<DType>,
    pub layout: Option<Layout>,
    pub size: Option<[usize; 2]>,
    pub fit: Resize,
}

impl How {
    /// Whether numbers stay as they are.
    pub fn is_plain(&self) -> bool {
        self.scale.is_none() && self.mean.is_empty() && self.std.is_empty() && self.cast.is_none()
    }

    /// The value of a number in the channel with this index.
    pub fn value(&self, number: f64, channel: usize) -> f64 {
        let of = |all: &[f64], other: f64| match all {
            [] => other,
            [one] => *one,
            all => all[channel],
        };
        (number * self.scale.unwrap_or(1.0) - of(&self.mean, 0.0)) / of(&self.std, 1.0)
    }

    /// Refuses lists that have not one number, or one for each channel.
    pub fn check(&self, channels: usize) -> Result<(), String> {
        if self.std.contains(&0.0) {
            return Err("--std: a number is 0; expected others, by which the values are divided".to_owned());
        }
        for (flag, numbers) in [("mean", &self.mean), ("std", &self.std)] {
            if numbers.len() > 1 && numbers.len() != channels {
                return Err(format!(
                    "--{flag} has {} numbers for {channels} channels; expected one, or one for each",
                    numbers.len()
                ));
            }
        }
        Ok(())
    }
}

impl HowArgs {
    /// The options for one feed. Those without a name are for images.
    pub fn of(&self, is_own: impl Fn(&str) -> bool, is_image: bool) -> How {
        fn last<'a, T>(all: &'a [Named<T>], is_own: &dyn Fn(&str) -> bool, is_image: bool) -> Option<&'a T> {
            let own = all.iter().rev().find(|one| one.name.as_deref().is_some_and(is_own));
            let common = all.iter().rev().find(|one| one.name.is_none()).filter(|_| is_image);
            own.or(common).map(|one| &one.value)
        }
        How {
            scale: last(&self.scale, &is_own, is_image).map(|own| own.0[0]),
            mean: last(&self.mean, &is_own, is_image).map_or_else(Vec::new, |own| own.0.clone()),
            std: last(&self.std, &is_own, is_image).map_or_else(Vec::new, |own| own.0.clone()),
            cast: last(&self.cast, &is_own, is_image).map(|own| own.0),
            layout: last(&self.layout, &is_own, is_image).copied(),
            size: last(&self.size, &is_own, is_image).map(|own| own.0),
            fit: last(&self.fit, &is_own, is_image).map_or(Resize::Stretch, |own| own.0),
        }
    }

    /// Refuses a scale of several numbers, and options for which there is no feed: `fed` has the names of all, and whether each
    /// is an image.
    pub fn check(&self, fed: &[(Vec<String>, bool)]) -> Result<(), Trouble> {
        if let Some(scale) = self.scale.iter().find(|scale| scale.value.0.len() != 1) {
            let count = scale.value.0.len();
            return Err(Trouble::input(format!("--scale: {count} numbers; expected one factor for all channels")));
        }
        fn named<'a, T>(
            flag: &'static str,
            all: &'a [Named<T>],
            of_images: bool,
        ) -> impl Iterator<Item = (&'static str, Option<&'a String>, bool)> {
            all.iter().map(move |one| (flag, one.name.as_ref(), of_images))
        }
        let all = named("scale", &self.scale, false)
            .chain(named("mean", &self.mean, false))
            .chain(named("std", &self.std, false))
            .chain(named("as", &self.cast, false))
            .chain(named("layout", &self.layout, true))
            .chain(named("size", &self.size, true))
            .chain(named("fit", &self.fit, true));
        for (flag, name, of_images) in all {
            let Some(name) = name else {
                match fed.iter().any(|(_, is_image)| *is_image) {
                    true => continue,
                    false => {
                        let other = if of_images { "" } else { "; for another feed, write NAME=…" };
                        return Err(Trouble::input(format!("--{flag}: no file of --feed is an image{other}")));
                    }
                }
            };
            match fed.iter().find(|(names, _)| names.contains(name)) {
                None => {
                    let all: Vec<&str> =
                        fed.iter().filter_map(|(names, _)| names.first().map(String::as_str)).collect();
                    let fed = if all.is_empty() {
                        "no file is".to_owned()
                    } else {
                        format!("files are for {}", all.join(", "))
                    };
                    return Err(Trouble::input(format!("--{flag} {name}=…: no file is fed to {name}; {fed}")));
                }
                Some((_, false)) if of_images => {
                    return Err(Trouble::input(format!(
                        "--{flag} {name}=…: the file that is fed to {name} is no image"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// A value, for all feeds or for one.
#[derive(Clone, Debug, PartialEq)]
struct Named<T> {
    name: Option<String>,
    value: T,
}

impl<T: FromStr<Err = String>> FromStr for Named<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.rsplit_once('=') {
            Some(("", _)) => return Err("the name before = is missing".to_owned()),
            Some((name, value)) => (Some(name.to_owned()), value),
            None => (None, text),
        };
        Ok(Named { name, value: value.parse()? })
    }
}

/// Numbers, each perhaps a fraction.
#[derive(Clone, Debug, PartialEq)]
struct Numbers(Vec<f64>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |text: &str| {
            let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
            let value = match text.split_once('/') {
                Some((above, below)) => number(above).zip(number(below)).map(|(above, below)| above / below),
                None => number(text),
            };
            let value = value.filter(|value| value.is_finite());
            value.ok_or_else(|| format!("{text:?} is not a number; expected one such as 0.5 or 1/255"))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Numbers)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cast(DType);

impl FromStr for Cast {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let dtype = DType::from_name(text).filter(|dtype| dtype.is_float() || dtype.is_integer());
        dtype.map(Cast).ok_or_else(|| format!("{text:?} is no dtype of numbers; expected one such as float32 or uint8"))
    }
}

/// The order of the axes of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// NCHW, or CHW.
    ChannelsFirst,
    /// NHWC, or HWC.
    ChannelsLast,
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_uppercase().as_str() {
            "NCHW" => Ok(Layout::ChannelsFirst),
            "NHWC" => Ok(Layout::ChannelsLast),
            _ => Err(format!("{text:?} is not one of NCHW and NHWC")),
        }
    }
}

/// Height and width.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size([usize; 2]);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = |text: &str| text.trim().parse().ok().filter(|side: &usize| *side > 0);
        let sides: Option<Vec<usize>> = text.split(',').map(side).collect();
        match sides.as_deref() {
            Some([side]) => Ok(Size([*side, *side])),
            Some([height, width]) => Ok(Size([*height, *width])),
            _ => Err(format!("{text:?} is no size; expected HEIGHT,WIDTH or one number for both")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Fit(Resize);

impl FromStr for Fit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stretch" => Ok(Fit(Resize::Stretch)),
            "crop" => Ok(Fit(Resize::CropToAspectRatio)),
            "pad" => Ok(Fit(Resize::PadToAspectRatio)),
            _ => Err(format!("{text:?} is not one of stretch, crop and pad")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_for_all_images_or_for_one_feed() {
        let args = HowArgs {
            scale: vec!["1/255".parse().unwrap(), "a=2".parse().unwrap()],
            mean: vec!["0.5,0.25,0".parse().unwrap()],
            size: vec!["224".parse().unwrap(), "b=3,4".parse().unwrap()],
            ..HowArgs::default()
        };
        let how = |name: &str, is_image| args.of(|own| own == name, is_image);
        assert_eq!(how("a", true).scale, Some(2.0));
        assert_eq!(how("b", true).scale, Some(1.0 / 255.0));
        assert_eq!((how("b", true).size, how("c", true).size), (Some([3, 4]), Some([224, 224])));
        assert_eq!(how("c", false), How::default());
        assert_eq!(how("a", false).value(3.0, 0), 6.0);
        assert_eq!(how("c", true).value(255.0, 1), 0.75);
        assert!(how("c", true).check(3).is_ok());
        assert!(how("c", true).check(1).unwrap_err().contains("3 numbers for 1 channels"));
        let check = |fed: &[(Vec<String>, bool)]| args.check(fed).map_err(|trouble| trouble.to_string());
        let names = |name: &str| vec![name.to_owned()];
        check(&[(names("a"), false), (names("b"), true)]).unwrap();
        assert!(check(&[(names("a"), false), (names("b"), false)]).unwrap_err().contains("--scale: no file of --feed"));
        assert!(check(&[(names("a"), true)]).unwrap_err().contains("--size b=…: no file is fed to b"));
        assert!("1/0".parse::<Named<Numbers>>().unwrap_err().contains("1/255"));
        assert!("=1".parse::<Named<Numbers>>().is_err());
        assert!("x=NCWH".parse::<Named<Layout>>().unwrap_err().contains("NCHW and NHWC"));
        assert!("0,3".parse::<Named<Size>>().is_err() && "1,2,3".parse::<Named<Size>>().is_err());
    }
}
