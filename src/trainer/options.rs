//! The options of a training's sources that change its examples: the size of images and how they get it, their random changes,
//! factors. They are kept with each saved state, so that a training continues with the same ones.

use std::collections::{BTreeMap, BTreeSet};

use meshtf_graph::Graph;
use meshtf_train::data::{Augment, FilePart, Flip, ImageOptions, Interpolation, Resize, Resizing};
use meshtf_train::file::{DataSource, Sections, Take};
use serde_json::{Value, json};

use super::rows::resizing;

/// Most differences in a message.
const MAX_NAMED: usize = 8;

/// The options of each placeholder that has some, by the keys of a file: `{"x": {"size": [28, 28], "scale": 0.1}}`.
type Options = BTreeMap<String, BTreeMap<String, Value>>;

/// The options of the sources of the section `data`, in JSON.
pub(super) fn stated(graph: &Graph, sections: &Sections) -> String {
    let all = sections.data.feed.iter().map(|(name, source)| (name.clone(), of_source(graph, name, source)));
    let all: Options = all.filter(|(_, options)| !options.is_empty()).collect();
    json!(all).to_string()
}

fn of_source(graph: &Graph, name: &str, source: &DataSource) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut add = |key: &str, value: Value| _ = all.insert(key.to_owned(), value);
    let is_records = (FilePart { file: source.file.clone(), part: None }).is_records() && source.take == Take::Values;
    if source.take == Take::Images || is_records && source.text.is_none() {
        let shape = graph.find(name).and_then(|id| graph.node(id).attrs.shape("shape").ok());
        // The size is that of the placeholder unless it is stated. A fault was reported when the images were read.
        if let Some(Ok(Some(Resizing { size, resize, interpolation }))) = shape.map(|shape| resizing(source, shape)) {
            add("size", json!(size));
            add("resize", json!(name_in(&Resize::NAMES, &resize)));
            add("interpolation", json!(name_in(&Interpolation::NAMES, &interpolation)));
        }
    }
    if let Some(scale) = source.scale {
        add("scale", json!(scale));
    }
    all.extend(source.images.augment.iter().flat_map(of_augment));
    all
}

fn of_augment(augment: &Augment) -> [(String, Value); 7] {
    let Augment { flip, crop, rotate, translate, brightness, contrast, seed } = augment;
    let flip = flip.as_ref().map(|flip| name_in(&Flip::NAMES, flip));
    [
        ("flip", json!(flip)),
        ("crop", json!(crop)),
        ("rotate", json!([rotate.0, rotate.1])),
        ("translate", json!(translate)),
        ("brightness", json!([brightness.0, brightness.1])),
        ("contrast", json!(contrast)),
        ("seed", json!(seed)),
    ]
    .map(|(key, value)| (format!("augment.{key}"), value))
}

/// The values of options that are not stated. A state that was saved before an option existed has these.
fn defaults() -> BTreeMap<String, Value> {
    let ImageOptions { resize, interpolation, .. } = ImageOptions::default();
    let mut all = BTreeMap::from(of_augment(&Augment::default()));
    all.insert("resize".to_owned(), json!(name_in(&Resize::NAMES, &resize)));
    all.insert("interpolation".to_owned(), json!(name_in(&Interpolation::NAMES, &interpolation)));
    all
}

/// The name of a value among all.
fn name_in<T: PartialEq>(all: &[(&'static str, T)], value: &T) -> &'static str {
    all.iter().find(|(_, own)| own == value).map_or("", |(name, _)| name)
}

/// The differences between the options of a saved state and those of a training; `None` if they are the same.
pub(super) fn differences(saved: &str, own: &str) -> Option<String> {
    let [Ok(saved), Ok(own)] = [saved, own].map(serde_json::from_str::<Options>) else {
        return Some("those of the state cannot be read".to_owned());
    };
    let (none, defaults) = (BTreeMap::new(), defaults());
    let mut differ = Vec::new();
    for name in saved.keys().chain(own.keys()).collect::<BTreeSet<_>>() {
        let [before, now] = [&saved, &own].map(|all| all.get(name).unwrap_or(&none));
        for key in before.keys().chain(now.keys()).collect::<BTreeSet<_>>() {
            let [before, now] = [before, now].map(|options| options.get(key).unwrap_or(&Value::Null));
            let text = |value: &Value| if value.is_null() { "not stated".to_owned() } else { value.to_string() };
            let effective = |value: &Value| match value.is_null() {
                true => defaults.get(key).cloned().unwrap_or_default(),
                false => value.clone(),
            };
            if effective(before) != effective(now) {
                differ.push(format!("\"{key}\" of {name} was {} and is {}", text(before), text(now)));
            }
        }
    }
    let more = differ.len().saturating_sub(MAX_NAMED);
    differ.truncate(MAX_NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!differ.is_empty()).then(|| format!("{}{more}", differ.join(", ")))
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::DType;
    use meshtf_train::Training;
    use meshtf_train::model::Model;

    use super::*;

    /// The options of `x`, whose images have one channel and this size.
    fn of(size: Option<usize>, source: &DataSource) -> String {
        let m = Model::new();
        m.placeholder("x", DType::F32, [None, size, size, Some(1)]);
        let mut sections = Sections::new("loss", Training::new(meshtf_train::Optimizer::Sgd, 0.1), 1);
        sections.data.feed = vec![("x".to_owned(), source.clone()), ("y".to_owned(), DataSource::default())];
        stated(&m.finish().unwrap(), &sections)
    }

    #[test]
    fn the_options_that_differ_are_named() {
        let source = DataSource { file: "photos".to_owned(), take: Take::Images, ..DataSource::default() };
        let sized = |size| DataSource { size: Some(size), ..source.clone() };
        let known = of(Some(8), &source);
        assert_eq!(known, r#"{"x":{"interpolation":"bilinear","resize":"stretch","size":[8,8]}}"#);
        // The size of the placeholder, whether it is stated or not.
        assert_eq!(of(None, &sized([8, 8])), known);
        assert_eq!(of(None, &source), "{}");
        assert_eq!(differences(&known, &known), None);
        let said = |other: &str| differences(&known, other).unwrap();
        assert_eq!(said(&of(None, &sized([8, 9]))), "\"size\" of x was [8,8] and is [8,9]");
        let cropped = ImageOptions { resize: Resize::CropToAspectRatio, ..ImageOptions::default() };
        let cropped = DataSource { images: cropped, ..source.clone() };
        assert_eq!(said(&of(Some(8), &cropped)), "\"resize\" of x was \"stretch\" and is \"crop_to_aspect_ratio\"");
        let scaled = DataSource { scale: Some(0.1), ..source.clone() };
        assert_eq!(said(&of(Some(8), &scaled)), "\"scale\" of x was not stated and is 0.1");
        let flipped = Augment { flip: Some(Flip::Both), ..Augment::default() };
        let augmented = |augment: Augment| {
            let images = ImageOptions { augment: Some(augment), ..ImageOptions::default() };
            of(Some(8), &DataSource { images, ..source.clone() })
        };
        let (one, other) = (augmented(flipped.clone()), augmented(Augment { crop: 0.25, ..flipped }));
        assert_eq!(differences(&one, &other).unwrap(), "\"augment.crop\" of x was 0.0 and is 0.25");
        // Without augmentation, none of its options is stated.
        let removed = differences(&one, &known).unwrap();
        assert!(removed.contains("\"augment.flip\" of x was \"both\" and is not stated"), "{removed}");
        // A state that was saved before an option existed had its default.
        let older = r#"{"x":{"resize":"stretch","size":[8,8]}}"#;
        assert_eq!(differences(older, &known), None);
        assert_eq!(differences("cut", &known).unwrap(), "those of the state cannot be read");
        // A factor of other data counts, too.
        let file = DataSource { file: "x.npy".to_owned(), scale: Some(0.5), ..DataSource::default() };
        assert_eq!(of(Some(8), &file), r#"{"x":{"scale":0.5}}"#);
    }
}
