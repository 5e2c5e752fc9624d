//! The files of a training's data, as tensors for their placeholders.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use meshtf_graph::Graph;
use meshtf_graph::op::Role;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Data, MAX_TENSOR_BYTES, PartialShape, Shape, Tensor};
use meshtf_train::data::{Column, Csv, Examples, FilePart, Lines, WorkerFile, read_tensor, unpacked};
use meshtf_train::file::{DataSource, Sections, Take};

use super::folder::ImageFolder;
use super::rows::{DataFile, FileRows, ImageRows, MAX_HELD, Takes};
use super::{Error, Found, TrainingData};

/// The largest file that is read.
const MAX_BYTES: u64 = MAX_TENSOR_BYTES as u64;
/// The channels of images whose placeholder leaves them open.
const COLOURS: usize = 3;

/// Files that several placeholders are fed from, once read.
#[derive(Default)]
struct Known {
    /// The files that are too large to be held in memory; `None` for those that are not.
    files: HashMap<String, Option<DataFile>>,
    tables: HashMap<String, Csv>,
    folders: HashMap<String, ImageFolder>,
}

/// The data of the sections.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The examples, by the placeholders that they are fed to.
    pub data: TrainingData,
    /// The folders of images, by their names in the sections, with how many images each has, and the names of its classes in the
    /// order of their numbers.
    pub folders: Vec<(String, usize, Vec<String>)>,
}

/// Reads the files that the sections `data` and `evaluate` name, relative to `folder`, and fits them to a graph's placeholders:
/// the dtype and the shape of an example are those of the placeholder. Large files are read as their examples are taken. Files
/// on the workers are described by `found`, the result of a [`Lookup`](super::Lookup).
///
/// # Errors
/// [`Error::Input`], with the placeholder and the file: a file cannot be read, or its examples do not fit.
pub fn load(sections: &Sections, graph: &Graph, folder: &Path, found: &Found) -> Result<Loaded, Error> {
    let mut known = Known::default();
    let train = known.examples(&sections.data.feed, graph, folder, found)?;
    let own = sections.evaluate.as_ref().map(|section| &section.feed).filter(|feed| !feed.is_empty());
    let evaluate = own.map(|feed| known.examples(feed, graph, folder, found)).transpose()?;
    own.map_or(Ok(()), |own| known.check_classes(&sections.data.feed, own))?;
    let folders = known.folders.into_iter().map(|(file, folder)| (file, folder.images.len(), folder.classes));
    Ok(Loaded { data: TrainingData { train, evaluate }, folders: folders.collect() })
}

impl Known {
    /// The feeds of the placeholders.
    fn examples(
        &mut self,
        feed: &[(String, DataSource)],
        graph: &Graph,
        folder: &Path,
        found: &Found,
    ) -> Result<Examples, Error> {
        let mut columns = Vec::with_capacity(feed.len());
        for (name, source) in feed {
            let id = graph.find_or_nearest(name).map_err(|error| Error::input(format!("data for {name}: {error}")))?;
            let node = graph.node(id);
            if node.op.role != Role::Placeholder {
                return Err(Error::input(format!("data for {name}: its op is {}, not Placeholder", node.op.name)));
            }
            let (dtype, shape) = (node.outputs[0].dtype, node.attrs.shape("shape")?.clone());
            let at = |why: String| Error::input(format!("data for {name}: {}: {why}", source.file));
            let takes = Takes { dtype, shape, scale: source.scale };
            columns.push((name.clone(), self.column(source, folder, &takes, found).map_err(at)?));
        }
        Ok(Examples::of(columns)?)
    }

    /// Refuses folders of images whose classes would have other numbers than in the training data.
    fn check_classes(&self, train: &[(String, DataSource)], own: &[(String, DataSource)]) -> Result<(), Error> {
        let classes = |source: &DataSource| {
            self.folders.get(&source.file).filter(|_| source.take == Take::Classes).map(|folder| &folder.classes)
        };
        for (name, source) in own {
            let trained = train.iter().find(|(of, _)| of == name).and_then(|(_, source)| classes(source));
            if let (Some(classes), Some(trained)) = (classes(source), trained)
                && classes != trained
            {
                let (classes, trained) = (classes.join(", "), trained.join(", "));
                return Err(Error::input(format!(
                    "data for {name}: {} has the classes {classes}; to train with, there are {trained}",
                    source.file
                )));
            }
        }
        Ok(())
    }

    /// The examples of a source for a placeholder.
    fn column(&mut self, source: &DataSource, folder: &Path, takes: &Takes, found: &Found) -> Result<Column, String> {
        let Takes { dtype, shape, scale } = takes;
        if source.take == Take::WorkerFile {
            let head = found.0.get(&source.file).ok_or("the workers were not asked for it")?;
            let there = WorkerFile::of(&source.file, head, *scale, *dtype, shape);
            return there.map(|there| Column::WorkerFile(Arc::new(there))).map_err(|failure| failure.message);
        }
        if let Some(rows) = self.large(source, folder, takes)? {
            return Ok(Column::Elsewhere(Arc::new(rows)));
        }
        let raw = self.raw(source, folder, *dtype, shape)?;
        fitted(raw, *dtype, shape, *scale).map(Column::Held)
    }

    /// The examples of a file that is read as they are taken; `None` if it is held in memory.
    fn large(&mut self, source: &DataSource, at: &Path, takes: &Takes) -> Result<Option<FileRows>, String> {
        let path = at.join(&source.file);
        match source.take {
            Take::Values => {
                let file = match self.files.entry(source.file.clone()) {
                    Entry::Occupied(file) => file.into_mut(),
                    Entry::Vacant(free) => {
                        free.insert(DataFile::open(&path, MAX_HELD).map_err(|failure| failure.message)?)
                    }
                };
                file.as_ref().map_or(Ok(None), |file| FileRows::open(file, source, takes))
            }
            Take::Images => {
                let files = self.folder(source, &path)?.named_images();
                let images = ImageRows::of(files, channels(&takes.shape)?, source.size, MAX_HELD)?;
                images.map(|images| FileRows::of_images(&source.file, images, takes)).transpose()
            }
            _ => Ok(None),
        }
    }

    fn folder(&mut self, source: &DataSource, path: &Path) -> Result<&ImageFolder, String> {
        Ok(match self.folders.entry(source.file.clone()) {
            Entry::Occupied(folder) => folder.into_mut(),
            Entry::Vacant(free) => free.insert(ImageFolder::list(path)?),
        })
    }

    /// The tensor of a source for a placeholder, examples first.
    fn raw(&mut self, source: &DataSource, at: &Path, dtype: DType, shape: &PartialShape) -> Result<Tensor, String> {
        let said = |failure: Failure| failure.message;
        let path = at.join(&source.file);
        if source.take != Take::Values {
            let folder = self.folder(source, &path)?;
            return match source.take {
                Take::Classes => Ok(folder.labels()),
                _ => folder.read(channels(shape)?, source.size),
            };
        }
        let named = FilePart { file: source.file.clone(), part: source.part.clone() };
        if named.is_table() {
            let table = match self.tables.entry(source.file.clone()) {
                Entry::Occupied(table) => table.into_mut(),
                Entry::Vacant(free) => {
                    let bytes = unpacked(read(&path)?).map_err(said)?;
                    free.insert(Csv::read(&bytes).map_err(said)?)
                }
            };
            return table.numbers(&columns(table.columns(), source)?).map_err(said);
        }
        if !source.columns.is_empty() || !source.except.is_empty() {
            return Err("only a .csv file has columns".to_owned());
        }
        let bytes = read(&path)?;
        if named.is_text() && dtype != DType::String {
            let lines = Lines::read(&unpacked(bytes).map_err(said)?).map_err(said)?;
            let width = Takes { dtype, shape: shape.clone(), scale: None }.width()?;
            return lines.bytes(width).map_err(said);
        }
        read_tensor(&named, bytes).map_err(said)
    }
}

/// The channels of the images that a placeholder takes.
fn channels(shape: &PartialShape) -> Result<usize, String> {
    match shape.0.as_deref() {
        None => Ok(COLOURS),
        Some([_, _, _, channels]) => Ok(channels.unwrap_or(COLOURS)),
        Some(_) => Err(format!("images are [IMAGES, HEIGHT, WIDTH, CHANNELS], and the placeholder takes {shape}")),
    }
}

/// The names of the columns that are taken, out of all.
pub(super) fn columns(names: &[String], source: &DataSource) -> Result<Vec<String>, String> {
    if let Some(part) = &source.part {
        return match source.columns.is_empty() && source.except.is_empty() {
            true => Ok(part.split(',').map(|name| name.trim().to_owned()).collect()),
            false => Err("name the columns after the file's name, or in \"columns\" or \"except\"".to_owned()),
        };
    }
    if let Some(unknown) = source.except.iter().find(|name| !names.contains(name)) {
        return Err(format!("there is no column {unknown}"));
    }
    if !source.columns.is_empty() {
        return Ok(source.columns.clone());
    }
    Ok(names.iter().filter(|name| !source.except.contains(name)).cloned().collect())
}

/// The bytes of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length > MAX_BYTES {
        return Err(format!("it exceeds the limit of {MAX_BYTES} bytes per file"));
    }
    meshtf_tensor::memory::admit(length as usize).map_err(|failure| failure.message)?;
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// The number of elements of an example of these sizes.
pub(super) fn elements(sizes: &[usize]) -> Result<usize, String> {
    let shape = Shape::from(sizes.to_vec());
    shape.elements().ok_or_else(|| format!("an example of shape {shape} has too many elements"))
}

/// The examples as elements of a dtype, multiplied, in the shape that a placeholder has for them.
pub(super) fn fitted(raw: Tensor, dtype: DType, shape: &PartialShape, scale: Option<f64>) -> Result<Tensor, String> {
    let Some((&count, own)) = raw.dims().split_first() else {
        return Err("it is one value; expected a tensor of examples".to_owned());
    };
    let size = elements(own)?;
    let wanted: Vec<usize> = match &shape.0 {
        // One column is a number per example by default.
        None if own == [1] => Vec::new(),
        None => own.to_vec(),
        Some(sizes) if sizes.is_empty() => return Err("the placeholder is one value, and takes no examples".to_owned()),
        Some(sizes) => match sizes[1..].iter().copied().collect::<Option<Vec<usize>>>() {
            Some(sizes) => sizes,
            None if sizes.len() == own.len() + 1 => own.to_vec(),
            None => {
                return Err(format!("an example has shape {}, and the placeholder {shape}", Shape::from(own.to_vec())));
            }
        },
    };
    if elements(&wanted)? != size {
        let (own, wanted) = (Shape::from(own.to_vec()), Shape::from(wanted));
        return Err(format!("an example has shape {own}, and the placeholder takes {wanted}"));
    }
    let whole: Shape = std::iter::once(count).chain(wanted).collect();
    if (raw.dtype() == DType::String) != (dtype == DType::String) {
        return Err(format!("it is {}, and the placeholder takes {dtype}", raw.dtype()));
    }
    let converted =
        if raw.dtype() == dtype && scale.is_none() { raw } else { converted(&raw, dtype, scale.unwrap_or(1.0))? };
    converted.reshaped(whole).map_err(|failure| failure.message)
}

fn converted(raw: &Tensor, dtype: DType, scale: f64) -> Result<Tensor, String> {
    whole_enough(raw, dtype)?;
    let shape = raw.shape().clone();
    shape.checked_elements(dtype).map_err(|failure| failure.message)?;
    let numbers = numbers(raw)?.map(|number| number * scale);
    let least_and_most: Option<(f64, f64)> = match dtype {
        DType::U8 => Some((0.0, 255.0)),
        DType::I32 => Some((i32::MIN.into(), i32::MAX.into())),
        // The range in which a double holds every whole number.
        DType::I64 => Some((-9_007_199_254_740_992.0, 9_007_199_254_740_992.0)),
        _ => None,
    };
    let mut wrong = None;
    let mut integer = |number: f64| {
        let (least, most) = least_and_most.unwrap_or_default();
        if number.fract() != 0.0 || !(least..=most).contains(&number) {
            wrong.get_or_insert(number);
        }
        number
    };
    let made = match dtype {
        DType::F32 => Tensor::from_vec(shape, numbers.map(|number| number as f32).collect::<Vec<_>>()),
        DType::F64 => Tensor::from_vec(shape, numbers.collect::<Vec<_>>()),
        DType::F16 => Tensor::from_vec(shape, numbers.map(half::f16::from_f64).collect::<Vec<_>>()),
        DType::BF16 => Tensor::from_vec(shape, numbers.map(half::bf16::from_f64).collect::<Vec<_>>()),
        DType::U8 => Tensor::from_vec(shape, numbers.map(|number| integer(number) as u8).collect::<Vec<_>>()),
        DType::I32 => Tensor::from_vec(shape, numbers.map(|number| integer(number) as i32).collect::<Vec<_>>()),
        DType::I64 => Tensor::from_vec(shape, numbers.map(|number| integer(number) as i64).collect::<Vec<_>>()),
        other => return Err(format!("a placeholder of {other} cannot be fed from files")),
    };
    match wrong {
        Some(number) => Err(format!("the placeholder takes {dtype}, which cannot hold {number}")),
        None => Ok(made),
    }
}

/// Numbers are converted through a double, which does not hold every large int64.
fn whole_enough(raw: &Tensor, dtype: DType) -> Result<(), String> {
    let is_above = match raw.data() {
        Data::I64(values) => values.iter().any(|value| value.unsigned_abs() > 1 << 53),
        Data::U64(values) => values.iter().any(|&value| value > 1 << 53),
        _ => false,
    };
    match is_above && dtype != DType::F32 {
        true => {
            Err("it has whole numbers above 2^53, which are taken for an int64 placeholder without a scale only"
                .to_owned())
        }
        false => Ok(()),
    }
}

fn numbers(raw: &Tensor) -> Result<Box<dyn Iterator<Item = f64> + '_>, String> {
    raw.numbers().ok_or_else(|| format!("it has elements of {}, which are not taken", raw.dtype()))
}
