//! The section `data`: the examples, and their batches.

use meshtf_graph::json::{is_beside, wide_literal};
use meshtf_tensor::Tensor;
use meshtf_tensor::json::{Fault, Kind, Member, Path, Value};

use super::{Read, count, images, list, number, share, table, text, unknown, whole};
use crate::data::{
    FilePart, HoldOutBy, ImageOptions, SPREADSHEET, TableOptions, TextOptions, is_spreadsheet, is_table,
};

/// The files that placeholders are fed from, and the constants that other placeholders are fed with.
pub(super) type Fed = (Vec<(String, DataSource)>, Vec<(String, Tensor)>);

/// The section `data`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataSection {
    /// The source of each placeholder that takes examples.
    pub feed: Vec<(String, DataSource)>,
    /// The values of other placeholders in each step and, unless the section `evaluate` specifies others, in evaluations.
    /// Numbers are converted to the placeholder's dtype if none of them changes except by a float's rounding.
    pub constants: Vec<(String, Tensor)>,
    /// The number of examples of a step, on all workers together.
    pub batch: usize,
    /// The seed of the order of each epoch; without it, examples are taken in the order of the files.
    pub shuffle: Option<u64>,
    /// The share of the examples that is held out for evaluations, from 0 to below 1; 0: none.
    pub hold_out: f64,
    /// The choice of these examples.
    #[doc(hidden)]
    pub hold_out_by: HoldOutBy,
}

/// The source of the values of one placeholder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataSource {
    /// The file or folder, by its path from the folder of the graph's file.
    pub file: String,
    /// The array of a .npz file, the tensor of a .safetensors file, or the feature of TFRecords: the part after the file's name
    /// and a colon.
    pub part: Option<String>,
    /// The data that is taken.
    pub take: Take,
    /// The height and width that images are interpolated to.
    pub size: Option<[usize; 2]>,
    /// The other options of images.
    #[doc(hidden)]
    pub images: ImageOptions,
    /// The columns of a table, by name, by number from 0, or as ranges of either.
    pub columns: Vec<String>,
    /// The columns that are not taken, if all other columns are.
    pub except: Vec<String>,
    /// The options of a table.
    #[doc(hidden)]
    pub table: TableOptions,
    /// How a text becomes numbers; else its bytes do.
    #[doc(hidden)]
    pub text: Option<TextOptions>,
    /// The factor by which numbers are multiplied.
    pub scale: Option<f64>,
}

/// The data that is taken from a file, or from a folder of images or texts with a folder for each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Take {
    /// The numbers or the text of a file.
    #[default]
    Values,
    /// The images of a folder.
    Images,
    /// The texts of a folder.
    Texts,
    /// The classes of the images or texts of a folder: the indices of their folders' names in alphabetical order.
    Classes,
    /// The numbers of a .npy file that is stored on each worker, below the folder whose files graphs may use there.
    WorkerFile,
}

pub(super) fn data(value: &Value, path: Path) -> Read<DataSection> {
    let mut section = DataSection::default();
    for Member { key, at, value } in value.object(path, "data is an object")? {
        let path = path.key(key);
        match &**key {
            "feed" => (section.feed, section.constants) = feed(value, path)?,
            "batch" => section.batch = count(value, path)? as usize,
            "shuffle" => section.shuffle = Some(whole(value, path)?),
            "hold_out" => (section.hold_out, section.hold_out_by) = hold_out(value, path)?,
            _ => return Err(unknown(key, *at, path, &["feed", "batch", "shuffle", "hold_out"])),
        }
    }
    match (section.feed.is_empty(), section.constants.is_empty()) {
        (true, true) => return Err(Fault::content(value, path, "\"feed\" is missing: the file of each placeholder")),
        (true, false) => {
            return Err(Fault::content(
                value,
                path,
                "\"feed\" has no file: examples come from files, constants do not change",
            ));
        }
        _ => {}
    }
    if section.batch == 0 {
        return Err(Fault::content(value, path, "\"batch\" is missing: how many examples a step takes"));
    }
    Ok(section)
}

/// The share that is held out, and the choice of its examples.
fn hold_out(value: &Value, path: Path) -> Read<(f64, HoldOutBy)> {
    let Kind::Object(members) = &value.kind else { return Ok((share(value, path)?, HoldOutBy::Random)) };
    let (mut own, mut by) = (None, None);
    for Member { key, at, value } in members {
        let path = path.key(key);
        let column = || table::column(value, path);
        let is_second = match &**key {
            "share" => own.replace(share(value, path)?).is_some(),
            "last" => own.replace(share(value, path)?).is_some() || by.replace(HoldOutBy::Last).is_some(),
            "group" => by.replace(HoldOutBy::Group(column()?)).is_some(),
            "stratify" => by.replace(HoldOutBy::Stratified(column()?)).is_some(),
            _ => return Err(unknown(key, *at, path, &["share", "last", "group", "stratify"])),
        };
        if is_second {
            let why = "use \"last\", or \"share\" with \"group\" or \"stratify\"";
            return Err(Fault::content(value, path, why));
        }
    }
    let missing = || Fault::content(value, path, "\"share\" is missing, or \"last\" for the last part of the examples");
    Ok((own.ok_or_else(missing)?, by.unwrap_or_default()))
}

/// The sources of placeholders: examples, and constants.
pub(super) fn feed(value: &Value, path: Path) -> Read<Fed> {
    let (mut files, mut constants) = (Vec::new(), Vec::new());
    for Member { key, value, .. } in
        value.object(path, "feed is an object of files and values by the names of placeholders")?
    {
        let path = path.key(key);
        let is_constant = match &value.kind {
            Kind::Object(_) => value.get("value").is_some(),
            kind => !matches!(kind, Kind::String(_)),
        };
        match is_constant {
            true => constants.push((key.to_string(), wide_literal(value, path)?)),
            false => files.push((key.to_string(), source(value, path)?)),
        }
    }
    Ok((files, constants))
}

fn source(value: &Value, path: Path) -> Read<DataSource> {
    let mut source = DataSource::default();
    if let Kind::String(file) = &value.kind {
        named(&mut source, file, value, path)?;
        return Ok(source);
    }
    let are_images = value.get("images").is_some() && value.get("file").is_none();
    // The classes of a file's column, or a folder.
    let is_file = value.get("file").is_some();
    let is_text = is_file || value.get("texts").is_some();
    let mut feature = None;
    for Member { key, at, value } in value.object(path, "this is a file's name, or an object with a \"file\"")? {
        let path = path.key(key);
        let is_of_image = is_file && images::OF_FEATURES.contains(&&**key);
        if (are_images || is_of_image) && images::option(&mut source.images, key, *at, value, path)? {
            continue;
        }
        if is_file && table::option(&mut source.table, key, value, path)? {
            continue;
        }
        if is_text && text::option(&mut source.text, key, value, path)? {
            continue;
        }
        match &**key {
            "file" | "images" | "texts" | "classes" | "on_workers" if !source.file.is_empty() => {
                return Err(Fault::content(
                    value,
                    path,
                    "use only one of \"file\", \"images\", \"texts\", \"classes\" and \"on_workers\"",
                ));
            }
            "file" => named(&mut source, value.text(path)?, value, path)?,
            "images" => (source.file, source.take) = (beside(value.text(path)?, value, path)?, Take::Images),
            "texts" => (source.file, source.take) = (beside(value.text(path)?, value, path)?, Take::Texts),
            "feature" if is_file => feature = Some(value.text(path)?.to_owned()),
            "classes" => (source.file, source.take) = (beside(value.text(path)?, value, path)?, Take::Classes),
            "on_workers" => (source.file, source.take) = (below(value.text(path)?, value, path)?, Take::WorkerFile),
            "size" => {
                let sides = list(value, path, count)?;
                let [height, width] = sides[..] else {
                    return Err(Fault::content(value, path, "expected [HEIGHT, WIDTH], in pixels"));
                };
                source.size = Some([height as usize, width as usize]);
            }
            "columns" => source.columns = table::columns(value, path)?,
            "except" => source.except = table::columns(value, path)?,
            "scale" => source.scale = Some(number(value, path)?),
            _ => {
                let known = ["file", "columns", "except", "scale", "images", "texts", "classes", "on_workers", "size"];
                let of_file = table::KEYS.iter().chain(&images::OF_FEATURES).chain(&["feature"]).filter(|_| is_file);
                let of_text = text::KEYS.iter().filter(|_| is_text);
                let known: Vec<&str> = known.iter().chain(of_file).chain(of_text).copied().collect();
                return Err(unknown(key, *at, path, &known));
            }
        }
    }
    let wrong = |why: &str| Err(Fault::content(value, path, why));
    if source.file.is_empty() {
        return wrong(
            "\"file\" is missing, or \"on_workers\", or \"images\", \"texts\" or \"classes\" for a folder, or \"value\" for a \
             constant",
        );
    }
    if !source.columns.is_empty() && !source.except.is_empty() {
        return wrong("use \"columns\" for those to take or \"except\" for those to leave out, not both");
    }
    let named = FilePart { file: source.file.clone(), part: None };
    let is_of = |is: bool| source.take == Take::Values && is;
    let has_images = source.take == Take::Images || is_of(named.is_records());
    if (source.size.is_some() || source.images != ImageOptions::default()) && !has_images {
        return wrong(
            "\"size\", \"resize\", \"interpolation\" and \"augment\" are only for \"images\", or a feature of TFRecords",
        );
    }
    // Windows are for texts, too.
    let window = source.table.window.filter(|_| is_of(named.is_text()));
    let of_table = TableOptions { window, ..TableOptions::default() };
    let has_columns = !source.columns.is_empty() || !source.except.is_empty() || source.table != of_table;
    if has_columns && is_spreadsheet(&source.file) {
        return wrong(SPREADSHEET);
    }
    if has_columns && !is_of(is_table(&source.file)) {
        return wrong("only a table (.csv, .tsv, .jsonl, .parquet) has columns and options of a table");
    }
    if let Some(options) = &source.text {
        if source.take != Take::Texts && !is_of(named.is_text() || named.is_table() || named.is_records()) {
            return wrong(
                "only a text has \"tokens\": a .txt file, a folder of \"texts\", a column of a table or a feature",
            );
        }
        let TableOptions { layout, missing_values, .. } = source.table.clone();
        if named.is_table() && source.table != (TableOptions { layout, missing_values, ..TableOptions::default() }) {
            return wrong("a column of \"tokens\" is a text, and takes no options of numbers, classes or windows");
        }
        if source.size.is_some() || source.images != ImageOptions::default() {
            return wrong("a feature with \"tokens\" is a text, and takes no options of images");
        }
        text::check(options, value, path)?;
    }
    match (feature, &source.part) {
        (None, _) => {}
        (Some(_), _) if !named.is_records() => return wrong("only TFRecords (.tfrecord) have a \"feature\""),
        (Some(_), Some(_)) => return wrong("name the feature in \"feature\" or after the file's name, not in both"),
        (feature, None) => source.part = feature,
    }
    Ok(source)
}

/// `FILE` or `FILE:PART`.
fn named(source: &mut DataSource, text: &str, value: &Value, path: Path) -> Read<()> {
    let (file, part) = text.split_once(':').map_or((text, None), |(file, part)| (file, Some(part.to_owned())));
    source.file = beside(file, value, path)?;
    source.part = part;
    Ok(())
}

/// A file below the folder of each worker.
fn below(file: &str, value: &Value, path: Path) -> Read<String> {
    match is_beside(file) && file.ends_with(".npy") {
        true => Ok(file.to_owned()),
        false => {
            let why = "a .npy file on the workers is named from their folder (meshtf node --data), in it or below it: \"data/x.npy\"";
            Err(Fault::content(value, path, why))
        }
    }
}

fn beside(file: &str, value: &Value, path: Path) -> Read<String> {
    match is_beside(file) {
        true => Ok(file.to_owned()),
        false => {
            let why = "a file is named from the folder of this one, in that folder or below it: \"data/x.npy\"";
            Err(Fault::content(value, path, why))
        }
    }
}
