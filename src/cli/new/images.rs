//! A model for a folder of images with a folder for each class.

use std::path::Path;

use meshtf::trainer::folder::ImageFolder;
use meshtf_train::data::read_image;

use super::{Length, Model, classifier, document, object, quoted};

/// Images whose sizes and colours are looked at.
const MAX_LOOKED_AT: usize = 64;
/// The longest side that images get.
const SIDE: usize = 128;
/// Maps of at most this many pixels on a side are flattened.
const SMALLEST: usize = 8;

pub(super) fn model(path: &Path, name: &str) -> Result<Model, String> {
    let folder = ImageFolder::list(path)?;
    let (classes, count) = (folder.classes.len(), folder.images.len());
    if classes < 2 {
        return Err("a classifier needs two folders of images or more, one for each class".to_owned());
    }
    // Some of each class.
    let step = count.div_ceil(MAX_LOOKED_AT);
    let (mut sizes, mut is_grey) = (Vec::new(), true);
    for (file, _) in folder.images.iter().step_by(step) {
        let at = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
        let bytes = std::fs::read(file).map_err(|error| at(&error))?;
        let image = read_image(&bytes, 3, None).map_err(|failure| at(&failure.message))?;
        sizes.push([image.dims()[0], image.dims()[1]]);
        let pixels = image.slice::<u8>().map_err(|failure| at(&failure.message))?;
        is_grey &= pixels.chunks(3).all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2]);
    }
    let sides = [0, 1].map(|axis| Sides::of(sizes.iter().map(|size| size[axis]).collect()));
    let middle = sides.map(|sides| sides.median);
    let longer = middle[0].max(middle[1]);
    let size = middle.map(|side| (side * longer.min(SIDE) / longer.max(1)).max(1));
    let [height, width] = size;
    let channels = if is_grey { 1 } else { 3 };
    let colour = if is_grey { "grey" } else { "red, green and blue" };
    let is_one_size = sides.iter().all(|sides| sides.least == sides.most);
    let from = match is_one_size {
        true if size == middle => String::new(),
        true => format!(" The files have {} by {}; no side is longer than {SIDE} here.", middle[0], middle[1]),
        false => format!(
            " The files have {} by {} pixels, of which this is the median{}. They are stretched to it; \"resize\" in data.feed.x may \
             be \"crop_to_aspect_ratio\" or \"pad_to_aspect_ratio\" instead.",
            sides[0].range(),
            sides[1].range(),
            if size == middle { String::new() } else { format!(", with no side longer than {SIDE}") }
        ),
    };
    let augment = "\"augment\" in data.feed.x changes the images to train with at random, each time anew: add \"flip\": \
                   \"horizontal\" if a mirrored image is of the same class, unlike letters and digits, or remove it to train with \
                   the files as they are.";
    let pixels = quoted(&format!("Images of {height} by {width} pixels ({colour}), from 0 to 1.{from} {augment}"));
    let in_order = quoted(&format!("The class, by the name of its folder: {}.", shown(&folder.classes)));
    let mut nodes = vec![
        (
            "x".to_owned(),
            format!(
                "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"float32\", \"shape\": [null, {height}, {width}, \
                 {channels}] }},\n           \"description\": {pixels} }}"
            ),
        ),
        (
            "y".to_owned(),
            format!(
                "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"int32\", \"shape\": [null] }},\n           \
                 \"description\": {in_order} }}"
            ),
        ),
    ];
    let (mut sides, mut filters, mut block, mut before) = (size, 16, 1, "x".to_owned());
    loop {
        let conv = format!("conv{block}");
        nodes.push((
            conv.clone(),
            format!(
                r#"{{ "layer": "conv", "inputs": [{}], "filters": {filters}, "size": 3, "padding": "SAME", "activation": "relu" }}"#,
                quoted(&before)
            ),
        ));
        before = format!("pool{block}");
        nodes.push((
            before.clone(),
            format!(r#"{{ "layer": "max_pool", "inputs": ["{conv}"], "size": 2, "padding": "SAME" }}"#),
        ));
        sides = sides.map(|side| side.div_ceil(2));
        if block == 4 || sides[0].max(sides[1]) <= SMALLEST {
            break;
        }
        filters = (filters * 2).min(64);
        block += 1;
    }
    let mut add = |name: &str, node: String| nodes.push((name.to_owned(), node));
    add("flat", format!(r#"{{ "layer": "flatten", "inputs": ["{before}"] }}"#));
    add("h", r#"{ "layer": "dense", "inputs": ["flat"], "units": 64, "activation": "relu" }"#.to_owned());
    add("kept", r#"{ "layer": "dropout", "inputs": ["h"], "rate": 0.2, "description": "Drops a fifth in steps that train, and none otherwise." }"#.to_owned());
    add(
        "logits",
        format!(
            r#"{{ "layer": "dense", "inputs": ["kept"], "units": {classes}, "description": "A number for each class; the greatest wins." }}"#
        ),
    );
    nodes.extend(classifier());
    let length = Length::of(count, 32, 600);
    let file = quoted(name);
    let augment = r#""augment": { "translate": 0.1, "brightness": 0.1 }"#;
    let feeds = [
        ("x", format!("{{ \"images\": {file}, \"scale\": 0.00392156862745098,\n             {augment} }}")),
        ("y", format!("{{ \"classes\": {file} }}")),
    ];
    let mut sections = vec![
        ("version", "1".to_owned()),
        ("description", quoted(&format!("Tells {classes} classes of images in {name}."))),
        ("nodes", object(&nodes)),
        ("data", length.data_of_classes(&feeds, "y")),
        ("train", length.train(0.002, r#", "metrics": ["accuracy"]"#)),
    ];
    sections.extend(
        length.evaluate(r#", "metrics": ["accuracy"], "confusion": { "labels": "y", "predictions": "class" }"#),
    );
    let summary = vec![format!("{count} images of {classes} classes, as {height} by {width} pixels ({colour})")];
    Ok(Model { text: document(&sections), summary })
}

/// The heights of images, or the widths.
#[derive(Clone, Copy, Debug)]
struct Sides {
    least: usize,
    median: usize,
    most: usize,
}

impl Sides {
    /// Of images that were looked at, at least one.
    fn of(mut all: Vec<usize>) -> Sides {
        all.sort_unstable();
        Sides { least: all[0], median: all[all.len() / 2], most: all[all.len() - 1] }
    }

    fn range(self) -> String {
        match self.least == self.most {
            true => self.least.to_string(),
            false => format!("{} to {}", self.least, self.most),
        }
    }
}

/// The first names of classes.
fn shown(classes: &[String]) -> String {
    const MOST: usize = 12;
    let more = if classes.len() > MOST { ", …" } else { "" };
    format!("{}{more}", classes[..classes.len().min(MOST)].join(", "))
}
