//! The files of a training's data, as tensors for their placeholders.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf_graph::Graph;
use meshtf_graph::op::Role;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::render::number_text;
use meshtf_tensor::{DType, Data, MAX_TEXT_BYTES, PartialShape, Shape, Tensor};
use meshtf_train::data::{
    Column, Examples, FilePart, Fit, HoldOutBy, ImageOptions, Layout, Missing, TableOptions, WorkerFile, is_table,
    read_tensor,
};
use meshtf_train::file::{DataSource, Sections, Take};

use super::folder::{FileKind, ImageFolder, is_image};
use super::rows::{
    DataFile, FeatureRows, FileBytes, FileRows, Form, MAX_HELD, RecordFiles, Takes, TextFiles, open_images, resizing,
};
use super::tables::{Held, Tables};
use super::texts::{self, Measured, Text};
use super::{Error, Found, TrainingData};

/// The largest file that is read.
const MAX_BYTES: u64 = MAX_TEXT_BYTES as u64;
/// The name of the classes of images among those of columns.
const CLASS: &str = "class";
/// The channels of images whose placeholder leaves them open.
const COLOURS: usize = 3;

/// Files that several placeholders are fed from, once read.
#[derive(Default)]
pub(super) struct Known {
    /// The files that are too large to be held in memory; `None` for those that are not.
    files: HashMap<String, Option<DataFile>>,
    pub folders: HashMap<String, ImageFolder>,
    /// Files of TFRecords.
    records: HashMap<String, Arc<RecordFiles>>,
    /// Remarks about the data, for the user.
    pub remarks: Vec<String>,
    /// The seed of the order of the examples.
    seed: u64,
    /// The measurements of tables to train with.
    fits: Fits,
    /// Whether a trained model is applied to the data. Then the table that was read last is noted.
    notes: bool,
    pub seen: Option<ReadTable>,
}

/// A table that was read, for the ids of its lines.
#[derive(Clone, Debug)]
pub(super) struct ReadTable {
    pub path: PathBuf,
    /// The file, if it is not held in memory.
    pub file: Option<DataFile>,
    pub layout: Layout,
    /// The names of all columns, and of those that are taken.
    pub names: Vec<String>,
    pub taken: Vec<String>,
    /// Which lines are rows; `None`: all.
    pub kept: Option<Vec<bool>>,
    /// The last row of each example, if examples are windows of rows; else each row is one.
    pub last_rows: Option<Vec<usize>>,
    /// The number of examples.
    pub count: usize,
}

/// The measurements of the columns of tables, by placeholder.
pub type Fits = BTreeMap<String, Fit>;

/// A placeholder that is fed with a source.
pub(super) struct Fed<'a> {
    pub name: &'a str,
    pub source: &'a DataSource,
    pub takes: Takes,
}

impl Fed<'_> {
    pub fn error(&self, why: impl std::fmt::Display) -> Error {
        let (file, why) = (&self.source.file, why.to_string());
        // The reason names a single image, too.
        let own = Path::new(file).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rest = why.strip_prefix(own).and_then(|rest| rest.strip_prefix(": ")).filter(|_| !own.is_empty());
        Error::input(format!("data for {}: {file}: {}", self.name, rest.unwrap_or(&why)))
    }

    /// Refuses random changes of examples that are no images, which would end the training at its first batch.
    fn check_changes(&self, column: &Column) -> Result<(), Error> {
        let (Some(_), Column::Elsewhere(rows)) = (&self.source.images.augment, column) else { return Ok(()) };
        if rows.count() == 0 {
            return Ok(());
        }
        let changed = rows.read_in(&[0], &[0]).map(|_| ());
        changed.map_err(|why| Error::Sections(format!("$.data.feed.{}.augment: {}", self.name, why.message)))
    }

    /// Whether it is fed from a table.
    pub fn is_table(&self) -> bool {
        self.source.take == Take::Values && is_table(&self.source.file)
    }
}

/// The data of the sections.
///
/// ```
/// use meshtf::train::Loaded;
///
/// fn show(loaded: &Loaded) {
///     for (folder, images, classes) in &loaded.folders {
///         println!("{folder}: {images} images of {}", classes.join(", "));
///     }
///     println!("{} examples", loaded.data.train.len());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The examples, by the placeholders that they are fed to.
    pub data: TrainingData,
    /// The folders of images, by their names in the sections, with how many images each has, and the names of its classes in the
    /// order of their numbers.
    pub folders: Vec<(String, usize, Vec<String>)>,
    /// Remarks about the data, for the user.
    #[doc(hidden)]
    pub remarks: Vec<String>,
}

/// Reads the files that the sections `data` and `evaluate` name, relative to `folder`, and fits them to a graph's placeholders:
/// the dtype and the shape of an example are those of the placeholder. Large files are read as their examples are taken. Files
/// on the workers are described by `found`, the result of a [`Lookup`](super::Lookup).
///
/// ```
/// use meshtf::model::Model;
/// use meshtf::tensor::DType;
/// use meshtf::train::{DataSource, Found, Optimizer, Sections, Training, load};
///
/// # let folder = temp_dir::TempDir::new()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("points.csv"), "a,b\n1,2\n3,4\n5,6\n")?;
/// let m = Model::new();
/// m.placeholder("x", DType::F32, [None, Some(2)]);
/// let mut sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.01), 1);
/// let source = DataSource { file: "points.csv".into(), ..DataSource::default() };
/// sections.data.feed = vec![("x".into(), source)];
/// let loaded = load(&sections, &m.finish()?, folder, &Found::default())?;
/// assert_eq!(loaded.data.train.len(), 3);
/// assert_eq!(loaded.data.train.take(&[1], &[1])?[0].slice::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Input`], with the placeholder and the file: a file cannot be read, or its examples do not fit. [`Error::Sections`] if
/// an option does not fit the examples. [`Error::Failed`] if the sections name no file, or the files have different numbers of
/// examples.
pub fn load(sections: &Sections, graph: &Graph, folder: &Path, found: &Found) -> Result<Loaded, Error> {
    let own = sections.evaluate.as_ref().map(|section| &section.feed).filter(|feed| !feed.is_empty());
    let mut known = Known::default();
    let share = if own.is_some() { 0.0 } else { sections.data.hold_out };
    let (by, seed) = (&sections.data.hold_out_by, sections.data.shuffle.unwrap_or(0));
    let train = known.examples(&sections.data.feed, graph, folder, found, Held { by, share, seed })?;
    let evaluate = own.map(|feed| {
        let feed = as_trained(feed, &sections.data.feed);
        known.examples(&feed, graph, folder, found, Held::none_of(by, &feed))
    });
    let evaluate = evaluate.transpose()?;
    own.map_or(Ok(()), |own| known.check_classes(&sections.data.feed, own))?;
    // The classes of images are kept as those of a table.
    let classes = sections.data.feed.iter().filter(|(_, source)| source.take == Take::Classes);
    for (name, source) in classes {
        let labels = known.folders.get(&source.file).map(|folder| (CLASS.to_owned(), folder.classes.clone()));
        let fit = Fit { columns: vec![CLASS.to_owned()], labels: labels.into_iter().collect(), ..Fit::default() };
        known.fits.insert(name.clone(), fit);
    }
    let are_texts = |file: &String| {
        let evaluated = own.into_iter().flatten();
        sections.data.feed.iter().chain(evaluated).any(|(_, one)| one.take == Take::Texts && one.file == *file)
    };
    let mut remarks = known.remarks;
    let (texts, images): (Vec<_>, Vec<_>) = known.folders.into_iter().partition(|(file, _)| are_texts(file));
    for (file, folder) in texts {
        let classes: Vec<String> = folder.classes.iter().enumerate().map(|(i, class)| format!("{i} {class}")).collect();
        remarks.push(format!("{file}: {} texts; classes: {}", folder.images.len(), classes.join(", ")));
    }
    let folders = images.into_iter().map(|(file, folder)| (file, folder.images.len(), folder.classes)).collect();
    Ok(Loaded { data: TrainingData { train, evaluate, fits: known.fits }, folders, remarks })
}

/// Sources for evaluations: without options of their own, they have those of the training.
pub(super) fn as_trained(feed: &[(String, DataSource)], trained: &[(String, DataSource)]) -> Vec<(String, DataSource)> {
    let mut feed = feed.to_vec();
    for (name, source) in &mut feed {
        let trained = trained.iter().find(|(own, _)| own == name).map(|(_, trained)| trained);
        if let (Some(trained), true) = (trained, source.images == ImageOptions::default()) {
            source.images = ImageOptions { augment: None, ..trained.images.clone() };
            source.size = source.size.or(trained.size);
        }
        source.scale = source.scale.or(trained.and_then(|trained| trained.scale));
        if let (Some(trained), true) = (trained, source.table == TableOptions::default()) {
            source.table = trained.table.clone();
        }
        if let (Some(trained), None) = (trained, &source.text) {
            source.text.clone_from(&trained.text);
        }
    }
    feed
}

/// Whether a training that reads `source` reads this file, or folder, in the same way.
pub fn reads_alike(source: &DataSource, path: &Path) -> bool {
    let named = |file: &str| FilePart { file: file.to_owned(), part: None };
    let (own, other) = (named(&source.file), named(&path.to_string_lossy()));
    match source.take {
        Take::Values if own.is_table() => other.is_table(),
        Take::Values if own.is_records() || other.is_records() => own.is_records() && other.is_records(),
        Take::Texts => path.is_dir() || other.is_text(),
        Take::Values => {
            own.is_text() == other.is_text() && !other.is_table() && (own.is_text() || source.scale.is_some())
        }
        Take::Images => path.is_dir() || is_image(path),
        Take::WorkerFile => source.scale.is_some(),
        Take::Classes => false,
    }
}

/// The examples of files for placeholders, as the sources of a training's data read them: `sources` with the names of these
/// files, and the measurements of the training. No window crosses the groups of `by`. `drops`: whether lines with missing fields
/// are left out if the training left them out.
///
/// # Errors
/// Bad input: a file cannot be read, or does not fit.
pub(super) fn unseen(
    graph: &Graph,
    sources: &[(String, DataSource)],
    by: &HoldOutBy,
    fits: &Fits,
    drops: bool,
) -> Result<(Examples, Known), Error> {
    let mut sources = sources.to_vec();
    for (name, source) in &mut sources {
        if source.take == Take::WorkerFile {
            source.take = Take::Values;
        }
        let fit = fits.get(name);
        let has_text = source.text.as_ref().is_none_or(|text| !text.is_measured())
            || fit.is_some_and(|fit| !fit.vocabulary.is_empty());
        // The columns are those of the training, by name.
        if let (Some(fit), true) = (fit, has_text) {
            (source.columns, source.except) = (fit.columns.clone(), Vec::new());
        } else if source.table.is_measured() || !has_text {
            return Err(Error::input(format!(
                "{}: its {} measured when the model was trained, and these weights have no measurements of {name}: name the \
                 folder, or the .safetensors file, of that training",
                source.file,
                if has_text { "columns were" } else { "vocabulary was" }
            )));
        }
        if source.table.missing == Some(Missing::Drop) && !drops {
            source.table.missing = None;
        }
    }
    let mut known = Known { fits: fits.clone(), notes: true, ..Known::default() };
    let held = Held::none_of(by, &sources);
    let examples = known.examples(&sources, graph, Path::new(""), &Found::default(), held)?;
    Ok((examples, known))
}

impl Known {
    /// The feeds of the placeholders, of which `held` are held out.
    fn examples(
        &mut self,
        feed: &[(String, DataSource)],
        graph: &Graph,
        folder: &Path,
        found: &Found,
        held: Held<'_>,
    ) -> Result<Examples, Error> {
        self.seed = held.seed;
        let mut fed = Vec::with_capacity(feed.len());
        for (name, source) in feed {
            let id = graph.find_or_nearest(name).map_err(|error| Error::input(format!("data for {name}: {error}")))?;
            let node = graph.node(id);
            if node.op.role != Role::Placeholder {
                return Err(Error::input(format!("data for {name}: its op is {}, not Placeholder", node.op.name)));
            }
            let (dtype, shape) = (node.outputs[0].dtype, node.attrs.shape("shape")?.clone());
            fed.push(Fed { name, source, takes: Takes { dtype, shape, scale: source.scale } });
        }
        let mut tables = Tables::read(&fed, folder, held, &self.fits)?;
        let mut texts = Vec::new();
        for (place, one) in fed.iter().enumerate().filter(|(_, one)| one.is_text()) {
            texts.push(self.text(place, one, folder).map_err(|why| one.error(why))?);
        }
        let mut others = Vec::with_capacity(fed.len());
        for one in fed.iter().filter(|one| !one.is_table() && !one.is_text()) {
            let column = self.column(one.source, folder, &one.takes, found).map_err(|why| one.error(why))?;
            one.check_changes(&column)?;
            others.push((one.name, column));
        }
        let is_held = tables.divide(&fed, &others, held)?;
        let is_held = texts::divide(&mut texts, &fed, held, is_held)?;
        let (fits, remarks, are_unseen) = (&mut self.fits, &mut self.remarks, self.notes);
        let mut measured = Measured { folder, fits, is_held: is_held.as_deref(), remarks, are_unseen };
        let (columns, seen) = tables.columns(&fed, &mut measured)?;
        let mut named = others.into_iter().chain(columns).collect::<Vec<_>>();
        for text in texts {
            let one = &fed[text.place()];
            named.push((one.name, text.column(one, &mut measured).map_err(|why| one.error(why))?));
        }
        self.seen = seen.filter(|_| self.notes);
        let order = |name: &str| fed.iter().position(|one| one.name == name);
        named.sort_by_key(|(name, _)| order(name));
        let examples = Examples::of(named.into_iter().map(|(name, column)| (name.to_owned(), column)).collect())?;
        Ok(match is_held {
            Some(is_held) => examples.with_held_out(is_held)?,
            None => examples,
        })
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
        if (FilePart { file: source.file.clone(), part: None }).is_records() && source.take == Take::Values {
            let rows = self.feature(source, takes, folder, Form::Values)?;
            let are_held = rows.files.are_held();
            return FileRows::of_source(source, Box::new(rows), takes, self.seed)?.column(are_held);
        }
        if let Some(rows) = self.large(source, folder, takes)? {
            return Ok(Column::Elsewhere(Arc::new(rows)));
        }
        let raw = self.raw(source, folder, shape)?;
        fitted(raw, *dtype, shape, *scale).map(Column::Held)
    }

    /// The examples of a file that is read as they are taken; `None` if it is held in memory.
    fn large(&mut self, source: &DataSource, at: &Path, takes: &Takes) -> Result<Option<FileRows>, String> {
        let path = at.join(&source.file);
        match source.take {
            Take::Values => {
                let file = self.file(source, &path)?;
                file.map_or(Ok(None), |file| FileRows::open(file, source, takes))
            }
            Take::Images => {
                let seed = self.seed;
                open_images(self.folder(source, &path)?, source, takes, seed, MAX_HELD)
            }
            _ => Ok(None),
        }
    }

    /// A file that is too large to be held in memory; `None` if it is not.
    fn file(&mut self, source: &DataSource, path: &Path) -> Result<Option<&DataFile>, String> {
        let file = match self.files.entry(source.file.clone()) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(free) => free.insert(DataFile::open(path, MAX_HELD).map_err(|failure| failure.message)?),
        };
        Ok(file.as_ref())
    }

    fn folder(&mut self, source: &DataSource, path: &Path) -> Result<&ImageFolder, String> {
        // Texts are listed before their classes are.
        let kind = if source.take == Take::Texts { FileKind::Texts } else { FileKind::Images };
        Ok(match self.folders.entry(source.file.clone()) {
            Entry::Occupied(folder) => folder.into_mut(),
            Entry::Vacant(free) => free.insert(ImageFolder::of(path, kind)?),
        })
    }

    /// A feature of TFRecords.
    fn feature(
        &mut self,
        source: &DataSource,
        takes: &Takes,
        folder: &Path,
        form: Form,
    ) -> Result<FeatureRows, String> {
        let files = match self.records.entry(source.file.clone()) {
            Entry::Occupied(files) => files.into_mut(),
            Entry::Vacant(free) => free.insert(Arc::new(RecordFiles::open(&folder.join(&source.file))?)),
        };
        let shape = &takes.shape;
        let images = channels(shape).and_then(|channels| Ok((channels, resizing(source, shape)?)));
        FeatureRows::of(Arc::clone(files), source.part.as_deref(), form, takes, images)
    }

    /// The text that feeds a placeholder.
    fn text(&mut self, place: usize, one: &Fed<'_>, folder: &Path) -> Result<Text, String> {
        let (source, path) = (one.source, folder.join(&one.source.file));
        if source.take == Take::Texts {
            let files = self.folder(source, &path)?.named_images();
            return Ok(Text::each(place, texts::folder(TextFiles { files })?));
        }
        if source.text.is_some() && (FilePart { file: source.file.clone(), part: None }).is_records() {
            let rows = self.feature(source, &one.takes, folder, Form::Texts)?;
            let are_held = rows.files.are_held();
            return Ok(Text::each(place, texts::strings(rows, are_held)?));
        }
        let large = self.file(source, &path)?;
        match (source.table.window, large) {
            (None, large) => Ok(Text::each(place, texts::lines(&path, large)?)),
            (Some(window), Some(file)) => Text::windows(place, one, window, FileBytes::Large(file.clone())),
            (Some(window), None) => Text::windows(place, one, window, FileBytes::open(&path, MAX_HELD)?),
        }
    }

    /// The tensor of a source for a placeholder, examples first.
    fn raw(&mut self, source: &DataSource, at: &Path, shape: &PartialShape) -> Result<Tensor, String> {
        let said = |failure: Failure| failure.message;
        let path = at.join(&source.file);
        if source.take != Take::Values {
            let folder = self.folder(source, &path)?;
            return match source.take {
                Take::Classes => folder.labels(),
                _ => folder.read(channels(shape)?, resizing(source, shape)?),
            };
        }
        let named = FilePart { file: source.file.clone(), part: source.part.clone() };
        read_tensor(&named, read(&path)?).map_err(said)
    }
}

/// The channels of the images that a placeholder takes.
pub(super) fn channels(shape: &PartialShape) -> Result<usize, String> {
    match shape.0.as_deref() {
        None => Ok(COLOURS),
        Some([_, _, _, channels]) => Ok(channels.unwrap_or(COLOURS)),
        Some(_) => Err(format!("images are [IMAGES, HEIGHT, WIDTH, CHANNELS], and the placeholder takes {shape}")),
    }
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
    let wanted = shaped(own, shape)?;
    let whole: Shape = std::iter::once(count).chain(wanted).collect();
    if (raw.dtype() == DType::String) != (dtype == DType::String) {
        return Err(format!("it is {}, and the placeholder takes {dtype}", raw.dtype()));
    }
    let converted =
        if raw.dtype() == dtype && scale.is_none() { raw } else { converted(&raw, dtype, scale.unwrap_or(1.0))? };
    converted.reshaped(whole).map_err(|failure| failure.message)
}

/// The shape of an example for a placeholder of this shape, if it has the shape `own` in the file.
pub(super) fn shaped(own: &[usize], shape: &PartialShape) -> Result<Vec<usize>, String> {
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
    Ok(wanted)
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
        Some(number) => Err(format!("the placeholder takes {dtype}, which cannot hold {}", number_text(number))),
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
