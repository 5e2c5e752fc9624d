//! TFRecords of `tensorflow.Example` messages, and a feature of each. The offset of each record is held in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf_kernels::feature;
use meshtf_kernels::files::{RecordFault, is_match, read_record};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{DType, Data, Tensor};
use meshtf_train::data::{Images, Resizing};

use super::lines::Starts;
use super::{DataFile, FileBytes, MAX_HELD, Pieces, Takes};

/// Bytes of a record before and after its contents: its length, and two checksums.
const HEAD: u64 = 12;
const TAIL: u64 = 4;
/// Maximum number of files that are kept open. Of more, each is opened when a record of it is read, as the number of descriptors
/// is limited; except packed ones, whose unpacked bytes are in files without names.
const MAX_OPEN: usize = 64;
/// Most features in a message.
const MAX_NAMES: usize = 12;

/// One file, or several whose records follow each other.
#[derive(Debug)]
pub(in super::super) struct RecordFiles {
    files: Vec<RecordFile>,
}

#[derive(Debug)]
struct RecordFile {
    /// Its name in messages, if there are several.
    name: Option<String>,
    bytes: FileBytes,
    starts: Starts,
}

impl RecordFiles {
    /// Finds the records of a file, or of all files whose names match a pattern with `*` or `?` after the last slash, by name.
    /// The checksums of all records are checked.
    ///
    /// # Errors
    /// The file cannot be read, or no file matches; names the record that is truncated or corrupted.
    pub fn open(path: &Path) -> std::result::Result<RecordFiles, String> {
        RecordFiles::open_holding(path, MAX_HELD)
    }

    /// As [`open`](RecordFiles::open), holding up to so many bytes in memory.
    pub(super) fn open_holding(path: &Path, mut held: u64) -> std::result::Result<RecordFiles, String> {
        let paths = shards(path)?;
        let mut files = Vec::with_capacity(paths.len());
        for own in &paths {
            let name = (paths.len() > 1).then(|| own.file_name().unwrap_or_default().to_string_lossy().into_owned());
            let mut file = RecordFile::open(own, name, held)?;
            held = held.saturating_sub(file.bytes.held());
            if paths.len() > MAX_OPEN {
                file.bytes = file.bytes.closed();
            }
            files.push(file);
        }
        Ok(RecordFiles { files })
    }

    pub fn count(&self) -> usize {
        self.files.iter().map(|file| file.starts.count()).sum()
    }

    /// Whether all of them are held in memory.
    pub fn are_held(&self) -> bool {
        self.files.iter().all(|file| file.bytes.file().is_none())
    }

    /// The file of a record, and the number of the record there.
    fn find(&self, mut place: usize) -> Result<(&RecordFile, usize)> {
        for file in &self.files {
            match place.checked_sub(file.starts.count()) {
                None => return Ok((file, place)),
                Some(rest) => place = rest,
            }
        }
        Err(Failure::invalid("there is no such record"))
    }
}

impl RecordFile {
    fn open(path: &Path, name: Option<String>, held: u64) -> std::result::Result<RecordFile, String> {
        let bytes = FileBytes::open(path, held).map_err(|why| within(name.as_deref(), &why))?;
        let mut file = RecordFile { name, bytes, starts: Starts::default() };
        let (mut starts, mut at) = (Starts::default(), 0);
        let mut reader = file.bytes.reader();
        loop {
            starts.push(at).map_err(|failure| failure.message)?;
            match read_record(&mut reader, b"it") {
                Ok(None) => break,
                Ok(Some(data)) => at += HEAD + data.len() as u64 + TAIL,
                Err(fault) => {
                    let why = match fault {
                        RecordFault::NoLength | RecordFault::Truncated => {
                            "is truncated: the file ends within it".to_owned()
                        }
                        RecordFault::Corrupted => {
                            "is corrupted: a checksum differs; is this a file of TFRecords?".to_owned()
                        }
                        RecordFault::Failed(failure) => format!("cannot be read: {}", failure.message),
                    };
                    let place = starts.count();
                    return Err(within(file.name.as_deref(), &format!("record {place}, at byte {at}, {why}")));
                }
            }
        }
        drop(reader);
        starts.complete();
        file.starts = starts;
        Ok(file)
    }

    fn record(&self, place: usize) -> Result<Vec<u8>> {
        self.bytes.bytes(self.starts.at(place) + HEAD, self.starts.at(place + 1) - TAIL)
    }
}

/// The message about one of several files.
fn within(name: Option<&str>, why: &str) -> String {
    name.map_or_else(|| why.to_owned(), |name| format!("{name}: {why}"))
}

/// The files of a pattern, by name.
fn shards(path: &Path) -> std::result::Result<Vec<PathBuf>, String> {
    let pattern = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !pattern.contains(['*', '?']) {
        return Ok(vec![path.to_owned()]);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        if is_match(&pattern, &entry.file_name().to_string_lossy()) && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err("no file has such a name".to_owned()),
        false => Ok(found),
    }
}

/// The form of a feature's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Form {
    /// Numbers, images, or strings for a placeholder of strings.
    Values,
    /// One text for each record.
    Texts,
}

/// A feature of each record.
#[derive(Debug)]
pub(in super::super) struct FeatureRows {
    pub files: Arc<RecordFiles>,
    key: String,
    form: Form,
    takes: Takes,
    /// The number of values of an example, if it is known.
    width: Option<usize>,
    images: std::result::Result<ImageForm, String>,
}

/// The channels of images, and the size that they get; `None`: that of the first.
pub(in super::super) type ImageForm = (usize, Option<Resizing>);

/// Values of some records.
enum Values {
    None,
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Strings(Vec<Vec<u8>>),
    Raw(Vec<u8>, DType),
    Images(Images),
}

impl FeatureRows {
    /// The feature of this name, or the only one. Images get a form, unless the placeholder takes no images.
    ///
    /// # Errors
    /// There is no record, or the first one has no such feature.
    pub fn of(
        files: Arc<RecordFiles>,
        key: Option<&str>,
        form: Form,
        takes: &Takes,
        images: std::result::Result<ImageForm, String>,
    ) -> std::result::Result<FeatureRows, String> {
        let said = |failure: Failure| failure.message;
        let (file, place) = files.find(0).map_err(|_| "it has no record".to_owned())?;
        let first = file.record(place).map_err(said)?;
        // No feature has the empty name, which asks for all names.
        let key = match (key, feature(&first, key.unwrap_or_default()).map_err(said)?) {
            (Some(key), _) => key.to_owned(),
            (None, Ok(_)) => String::new(),
            (None, Err(names)) => match &names[..] {
                [only] => only.clone(),
                [] => return Err("the first record has no feature".to_owned()),
                [one, ..] => {
                    return Err(format!(
                        "say which feature is meant, with \"feature\": {one:?}; there are {}",
                        listed(&names)
                    ));
                }
            },
        };
        let width = takes.width()?;
        let mut rows = FeatureRows { files, key, form, takes: takes.clone(), width, images };
        if rows.width.is_none() && form == Form::Values {
            // Then all have as many values as the first.
            rows.width = match feature(&first, &rows.key).map_err(said)? {
                Ok(Data::F32(all)) => Some(all.len()),
                Ok(Data::I64(all)) => Some(all.len()),
                Ok(Data::String(all)) if takes.dtype == DType::String => Some(all.len()),
                // The bytes of numbers, of one byte each.
                Ok(Data::String(all)) => all.first().filter(|bytes| !is_image(bytes)).map(Vec::len),
                _ => None,
            };
        }
        Ok(rows)
    }

    fn add(&self, values: &mut Values, data: Data) -> std::result::Result<(), String> {
        if self.form == Form::Texts {
            let Data::String(texts) = data else { return Err("it has numbers, and no text".to_owned()) };
            let text = String::from_utf8(texts.join(&b' ')).map_err(|error| format!("it is not UTF-8: {error}"))?;
            let Values::Strings(all) = values.or_insert(|| Values::Strings(Vec::new())) else { return mixed() };
            all.push(text.into_bytes());
            return Ok(());
        }
        match data {
            Data::String(strings) if self.takes.dtype == DType::String => {
                self.check_count(strings.len())?;
                let Values::Strings(all) = values.or_insert(|| Values::Strings(Vec::new())) else { return mixed() };
                all.extend(strings);
            }
            Data::String(strings) => self.add_bytes(values, strings)?,
            _ if self.takes.dtype == DType::String => {
                return Err("it has numbers, and the placeholder takes strings".to_owned());
            }
            Data::F32(numbers) => {
                self.check_count(numbers.len())?;
                let Values::Floats(all) = values.or_insert(|| Values::Floats(Vec::new())) else { return mixed() };
                all.extend(numbers);
            }
            Data::I64(numbers) => {
                self.check_count(numbers.len())?;
                let Values::Ints(all) = values.or_insert(|| Values::Ints(Vec::new())) else { return mixed() };
                all.extend(numbers);
            }
            _ => return Err("it has no values".to_owned()),
        }
        Ok(())
    }

    /// Bytes for a placeholder of numbers: an image, or the numbers themselves.
    fn add_bytes(&self, values: &mut Values, strings: Vec<Vec<u8>>) -> std::result::Result<(), String> {
        let [bytes] = &strings[..] else {
            let count = strings.len();
            return Err(format!("it has {count} strings; expected one, of an image or of the bytes of numbers"));
        };
        let (element, count) = (self.takes.dtype.size().unwrap_or(1), bytes.len());
        let is_raw = |size: usize| self.width.map_or(size == 1, |width| width.checked_mul(size) == Some(count));
        let dtype = match () {
            // An image could not be mistaken for numbers, but the two bytes with which a BMP begins can be numbers.
            () if is_image(bytes) || bytes.starts_with(b"BM") && !is_raw(1) && !is_raw(element) => {
                let (channels, resizing) = self.images.clone()?;
                let images = values.or_insert(|| Values::Images(Images::resized(channels, resizing)));
                let Values::Images(images) = images else { return mixed() };
                return images.add(bytes).map_err(|failure| failure.message);
            }
            () if is_raw(1) => DType::U8,
            () if is_raw(element) => self.takes.dtype,
            () => {
                let width = self.width.unwrap_or(0);
                let or = if element > 1 { format!(" or {}", width.saturating_mul(element)) } else { String::new() };
                return Err(format!("it has {count} bytes, which are no image, and {width} numbers take {width}{or}"));
            }
        };
        let Values::Raw(all, own) = values.or_insert(|| Values::Raw(Vec::new(), dtype)) else { return mixed() };
        if *own != dtype {
            return mixed();
        }
        all.extend_from_slice(bytes);
        Ok(())
    }

    fn check_count(&self, own: usize) -> std::result::Result<(), String> {
        match self.width {
            Some(width) if width != own => Err(format!("it has {own} values, and an example {width}")),
            _ => Ok(()),
        }
    }

    fn tensor(&self, values: Values, count: usize) -> Result<Tensor> {
        let shape = |all: usize| [count, all.checked_div(count).unwrap_or(0)];
        match values {
            Values::None => Err(Failure::invalid("there is no record")),
            Values::Floats(all) => Tensor::new(shape(all.len()), Data::F32(all)),
            Values::Ints(all) => Tensor::new(shape(all.len()), Data::I64(all)),
            Values::Strings(all) if self.form == Form::Texts => Ok(Tensor::vector(all)),
            Values::Strings(all) => Tensor::new(shape(all.len()), Data::String(all)),
            Values::Raw(all, dtype) => {
                let elements = all.len() / dtype.size().unwrap_or(1);
                Tensor::from_bytes(dtype, shape(elements), &all)
            }
            Values::Images(images) => images.finish(),
        }
    }
}

impl Values {
    /// Begins with a form, if there is none yet.
    fn or_insert(&mut self, begin: impl FnOnce() -> Values) -> &mut Values {
        if matches!(self, Values::None) {
            *self = begin();
        }
        self
    }
}

fn mixed() -> std::result::Result<(), String> {
    Err("its values have another form than those of the records before".to_owned())
}

/// Whether bytes begin as an image of one of the kinds that are decoded, BMP excepted.
fn is_image(bytes: &[u8]) -> bool {
    let starts: [&[u8]; 4] = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"];
    starts.iter().any(|start| bytes.starts_with(start))
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let shown = names[..names.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

impl Pieces for FeatureRows {
    fn count(&self) -> usize {
        self.files.count()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let (mut values, key) = (Values::None, &self.key);
        for &place in places {
            let (file, own) = self.files.find(place)?;
            let at = |why: String| Failure::invalid(within(file.name.as_deref(), &format!("record {own}: {why}")));
            let record = file.record(own)?;
            file.bytes.file().map_or(Ok(()), DataFile::check)?;
            let found = feature(&record, key).map_err(|_| at("it is no tensorflow.Example".to_owned()))?;
            let data = found.map_err(|names| {
                let near = nearest(key, names.iter().map(String::as_str));
                let hint = near
                    .first()
                    .map_or_else(|| format!("there are {}", listed(&names)), |near| format!("did you mean {near}?"));
                at(format!("there is no feature {key}; {hint}"))
            })?;
            self.add(&mut values, data).map_err(|why| at(format!("feature {key}: {why}")))?;
        }
        self.tensor(values, places.len())
    }
}
