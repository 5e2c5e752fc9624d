//! `--feed`: values of tensors, typed or in files, as the inputs of a graph take them.

mod image;
mod options;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use meshtf::program_file::Ports;
use meshtf::trainer::Fits;
use meshtf::trainer::folder::other_image;
use meshtf::trainer::reads_alike;
use meshtf::trainer::stored::fits;
use meshtf::trainer::unseen::Unseen;
use meshtf::trainer::weights::{At, check_weights};
use meshtf_graph::op::Role;
use meshtf_graph::{self as graph, Graph, NodeId, Output};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor, literal, safetensors};
use meshtf_train::data::{FilePart, names_in_npz, read_numbers, read_tensor, unpacked, utf8};
use meshtf_train::file::{DataSection, DataSource, Take, read_data};

use self::options::{How, HowArgs};
use super::Trouble;
use super::inputs::{feed_error, read};
use super::paint::mention;

/// Values of tensors, and the way from their files.
#[derive(Debug, clap::Args)]
pub(super) struct FeedArgs {
    /// Value of a tensor: NAME=2.5, NAME=[[1,2],[3,4]], NAME='"text"' or NAME=@FILE; repeatable. FILE is an image (.png, .jpg,
    /// .gif, .bmp) or a folder of images, x.npy, x.npz:ARRAY, x.safetensors:TENSOR, x.csv, x.csv:COLUMN,COLUMN, x.json,
    /// x.json:MEMBER, x.txt (numbers, or lines for strings) or MNIST's idx, packed by gzip or not. For an input of an ONNX model
    /// it may also be ONNX's proto, x.pb. @FILE without a name feeds the only input that is needed, and @x.npz, @x.json and
    /// @x.safetensors feed each of their arrays to the input of its name. Text that begins with @ is quoted, NAME='"@text"'
    #[arg(long, value_name = "[NAME=]VALUE", value_parser = feed)]
    feed: Vec<Feed>,
    #[command(flatten)]
    how: HowArgs,
}

/// `--feed NAME=VALUE` or `--feed @FILE`, parsed.
#[derive(Clone, Debug, PartialEq)]
struct Feed {
    /// Absent in a file that says by itself which inputs it is for.
    tensor: Option<String>,
    value: String,
}

fn feed(text: &str) -> Result<Feed, String> {
    if text.starts_with('@') && text.len() > 1 {
        return Ok(Feed { tensor: None, value: text.to_owned() });
    }
    match text.split_once('=') {
        Some((tensor, value)) if !tensor.is_empty() && !value.is_empty() => {
            Ok(Feed { tensor: Some(tensor.to_owned()), value: value.to_owned() })
        }
        Some((tensor, "")) if !tensor.is_empty() => {
            Err(format!("the value is missing; for an empty string use {tensor}='\"\"'"))
        }
        _ => Err("expected NAME=VALUE, e.g. x=2.5, x=[[1,2],[3,4]] or x=@x.npy, or @FILE".to_owned()),
    }
}

/// A value on the command line as a tensor of `dtype`.
pub(super) fn fed(value: &str, dtype: DType) -> Result<Tensor, String> {
    if let Some(file) = value.strip_prefix('@') {
        return of_file(file, dtype, &How::default());
    }
    graph::read_literal(value, dtype).map_err(|failure| {
        let mut why = failure.message;
        let list = format!("[{value}]");
        if value.contains(',') && graph::read_literal(&list, dtype).is_ok() {
            why.push_str(&format!("; for a list use {list}"));
        } else if Path::new(value).is_file() {
            why.push_str(&format!("; for the content of the file use @{value}"));
        } else if !value.starts_with('{') && !why.contains(dtype.name()) {
            why.push_str(&format!("; expected {dtype}"));
        }
        why
    })
}

/// The content of a file as a tensor of `dtype`.
fn of_file(file: &str, dtype: DType, how: &How) -> Result<Tensor, String> {
    let named = FilePart::of(file);
    let bytes = read(named.file.as_ref()).map_err(|trouble| trouble.to_string())?;
    let wrong = |why: String| format!("{file}: {why}");
    let array = if named.ends_with(".json") {
        let bytes = unpacked(bytes).map_err(|failure| wrong(failure.message))?;
        let text = utf8(&bytes).map_err(|why| wrong(format!("it is {why}")))?;
        // Numbers that are changed then may have any size before.
        let before = if how.is_plain() { dtype } else { DType::F64 };
        graph::read_json(text, named.part.as_deref(), before)
    } else if named.is_text() && dtype != DType::String {
        unpacked(bytes).and_then(|bytes| read_numbers(&bytes))
    } else {
        read_tensor(&named, bytes)
    };
    let array = array.map_err(|failure| wrong(failure.message))?;
    let array = changed(array, how).map_err(wrong)?;
    literal::convert_feed(array, dtype).map_err(|failure| wrong(failure.message))
}

/// Numbers after scale, mean, std and cast.
fn changed(array: Tensor, how: &How) -> Result<Tensor, String> {
    if how.is_plain() {
        return Ok(array);
    }
    let is_as_before = How { cast: None, ..how.clone() }.is_plain();
    if is_as_before {
        return cast(array, how.cast);
    }
    let channels = array.dims().last().copied().unwrap_or(1);
    how.check(channels)?;
    let numbers =
        array.numbers().ok_or_else(|| format!("it is {}, and no numbers that can be scaled", array.dtype()))?;
    let numbers: Vec<f64> = (0..).zip(numbers).map(|(i, number)| how.value(number, i % channels)).collect();
    cast(Tensor::from_vec(array.shape().clone(), numbers), how.cast)
}

/// A tensor cast as graphs do it.
fn cast(array: Tensor, to: Option<DType>) -> Result<Tensor, String> {
    to.map_or(Ok(array.clone()), |to| meshtf_kernels::cast(array, to).map_err(|failure| failure.message))
}

/// A tensor that is fed: the dtype and the shape that it takes.
struct Want {
    dtype: DType,
    shape: PartialShape,
    /// Whether it takes no other shape. A tensor that a node computes is replaced by one of any shape.
    is_strict: bool,
}

impl Want {
    fn of(graph: &Graph, output: Output) -> Want {
        let node = graph.node(output.node);
        let is_strict = node.op.role == Role::Placeholder;
        let shape = match node.attrs.shape("shape") {
            Ok(shape) if is_strict => shape.clone(),
            _ => graph.shapes().of(output),
        };
        Want { dtype: graph.output_type(output).dtype, shape, is_strict }
    }

    /// A vector of a file as a matrix of one column or one row, if the input takes only that.
    fn fitted(&self, fed: Tensor) -> Result<Tensor, String> {
        if fed.rank() != 1 || self.admits(fed.shape()) {
            return Ok(fed);
        }
        let shapes = [[fed.len(), 1], [1, fed.len()]].map(Shape::from);
        match shapes.into_iter().find(|shape| self.shape.admits(shape)) {
            Some(shape) => fed.reshaped(shape).map_err(|failure| failure.message),
            None => Ok(fed),
        }
    }

    fn admits(&self, shape: &Shape) -> bool {
        !self.is_strict || self.shape.admits(shape)
    }

    /// Refuses a value of another shape.
    fn check(&self, fed: &Tensor) -> Result<(), String> {
        if self.admits(fed.shape()) {
            return Ok(());
        }
        let one: Shape = std::iter::once(1).chain(fed.dims().iter().copied()).collect();
        let hint = match self.shape.admits(&one) {
            true => format!("; it lacks the first axis: a value of shape {one} would fit"),
            false => String::new(),
        };
        Err(format!(
            "the value, {} of shape {}, does not fit the input, {} of shape {}{hint}",
            fed.dtype(),
            fed.shape(),
            self.dtype,
            self.shape
        ))
    }
}

/// All values that are fed.
#[derive(Default)]
pub(super) struct Fed {
    pub feeds: BTreeMap<String, Tensor>,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// The measurements of the training whose file the graph is.
    pub fits: Fits,
    /// The first file that was read as that training reads its own.
    pub unseen: Option<Unseen>,
}

/// The graph that is fed.
pub(super) struct Of<'a> {
    pub path: &'a Path,
    /// The content of its file, which may have the sections of a training.
    pub text: &'a [u8],
    pub graph: &'a Graph,
    pub ports: &'a Ports,
    /// The fetches and targets.
    pub wanted: Vec<NodeId>,
    /// The measurements for the training of the model.
    pub weights: Option<At<'a>>,
}

impl FeedArgs {
    /// Reads all values; they override those of the file, `feeds`.
    pub fn read(&self, of: &Of, feeds: BTreeMap<String, Tensor>) -> Result<Fed, Trouble> {
        let named = self.named(of, &feeds)?;
        let files = named.iter().filter_map(|(_, value)| value.strip_prefix('@'));
        let files: BTreeSet<PathBuf> = files.map(|file| PathBuf::from(FilePart::of(file).file)).collect();
        let mut all = Fed { feeds, files: files.into_iter().collect(), ..Fed::default() };
        let (mut seen, mut kinds, mut outputs) = (BTreeSet::new(), Vec::new(), Vec::new());
        for (own, value) in &named {
            let tensor = of.ports.tensor(own).to_owned();
            let output = of.graph.output(&tensor).map_err(|error| feed_error(of.graph, &tensor, &error))?;
            if !seen.insert(output) {
                return Err(Trouble::input(format!(
                    "--feed {tensor}: {} is fed more than once",
                    of.graph.tensor_name(output)
                )));
            }
            if let Some(file) = value.strip_prefix('@') {
                kinds.push((vec![own.clone(), tensor.clone()], image::is_image(file)));
            }
            outputs.push((tensor, output));
        }
        self.how.check(&kinds)?;
        let mut trained = None;
        for ((own, value), (tensor, output)) in named.iter().zip(outputs) {
            let is_own = |name: &str| name == own || name == tensor;
            let value = self.one(of, (&tensor, output), value, &is_own, &mut trained, &mut all.unseen)?;
            // The file may have another name for the same tensor, `x:0`.
            all.feeds.retain(|name, _| of.graph.output(name).ok() != Some(output));
            all.feeds.insert(tensor, value);
        }
        all.fits = trained.map(|trained| trained.fits).unwrap_or_default();
        Ok(all)
    }

    fn one(
        &self,
        of: &Of,
        (tensor, output): (&str, Output),
        value: &str,
        is_own: &dyn Fn(&str) -> bool,
        trained: &mut Option<Trained>,
        first: &mut Option<Unseen>,
    ) -> Result<Tensor, Trouble> {
        let at = |why: String| Trouble::input(format!("--feed {tensor}: {why}"));
        let want = Want::of(of.graph, output);
        let port = of.ports.input(tensor);
        let Some(file) = value.strip_prefix('@') else {
            let value = match port.filter(|port| port.is_list()) {
                Some(port) => {
                    let dtype = port.dtype().map_err(|failure| at(failure.message))?;
                    fed(value, dtype).map(|value| port.fed_tensor(value))
                }
                None => fed(value, want.dtype),
            };
            let value = value.map_err(at)?;
            want.check(&value).map_err(at)?;
            return Ok(value);
        };
        let as_it_is = || match self.how.of(is_own, image::is_image(file)) == How::default() {
            true => Ok(()),
            false => Err(at(format!("{file} {}", image::AS_IT_IS))),
        };
        let value = if let Some(port) = port.filter(|_| file.ends_with(".pb")) {
            as_it_is()?;
            let bytes = read(Path::new(file)).map_err(|trouble| at(trouble.to_string()))?;
            port.fed(&bytes).map_err(|failure| at(format!("{file}: {}", failure.message)))?
        } else if let Some(unseen) = trained_of(trained, of)?.examples(of.graph, output, file)? {
            if self.how.of(is_own, image::is_image(file)) != How::default() {
                let why = "the file is read as the section \"data\" of the model says: the options for images are those of that section";
                return Err(at(format!("{file}: {why}")));
            }
            let whole = unseen.whole()?;
            unseen.remarks.iter().for_each(mention);
            first.get_or_insert(unseen);
            whole
        } else if let Some(port) = port.filter(|port| port.is_list()) {
            as_it_is()?;
            let dtype = port.dtype().map_err(|failure| at(failure.message))?;
            port.fed_tensor(of_file(file, dtype, &How::default()).map_err(at)?)
        } else if image::is_image(file) {
            let (value, remark) = image::read(file, &want, &self.how.of(is_own, true)).map_err(at)?;
            remark.iter().for_each(mention);
            value
        } else {
            of_file(file, want.dtype, &self.how.of(is_own, false)).and_then(|value| want.fitted(value)).map_err(at)?
        };
        want.check(&value).map_err(|why| at(format!("{file}: {why}")))?;
        Ok(value)
    }

    /// The values with the names of their tensors, those of files with several arrays one by one.
    fn named(&self, of: &Of, feeds: &BTreeMap<String, Tensor>) -> Result<Vec<(String, String)>, Trouble> {
        let mut named = Vec::new();
        for Feed { tensor, value } in &self.feed {
            match tensor {
                Some(tensor) => named.push((tensor.clone(), value.clone())),
                None => {
                    let arrays = arrays(value.trim_start_matches('@'))?;
                    named.extend(arrays.into_iter().flatten().map(|name| (name.clone(), format!("{value}:{name}"))));
                }
            }
        }
        for Feed { value, .. } in self.feed.iter().filter(|feed| feed.tensor.is_none()) {
            if arrays(value.trim_start_matches('@'))?.is_some() {
                continue;
            }
            let taken: Vec<Output> = named
                .iter()
                .map(|(name, _)| of.ports.tensor(name))
                .chain(feeds.keys().map(String::as_str))
                .filter_map(|tensor| of.graph.output(tensor).ok())
                .collect();
            match &inputs(of, &taken)[..] {
                [only] => named.push((only.clone(), value.clone())),
                [] => return Err(Trouble::input(format!("--feed {value}: no input is left for it"))),
                [first, ..] => {
                    return Err(Trouble::input(format!(
                        "--feed {value}: say which input it is for, as in {first}={value}; {}",
                        super::inputs::placeholders(of.graph, first)
                    )));
                }
            }
        }
        Ok(named)
    }
}

/// The names of the arrays of a file that has several by name; `None` for a file of one value.
fn arrays(file: &str) -> Result<Option<Vec<String>>, Trouble> {
    let named = FilePart::of(file);
    let is_archive = named.ends_with(".npz") || named.ends_with(".safetensors");
    if named.part.is_some() || !is_archive && !named.ends_with(".json") {
        return Ok(None);
    }
    let at = |why: String| Trouble::input(format!("--feed @{file}: {why}"));
    let bytes = unpacked(read(named.file.as_ref())?).map_err(|failure| at(failure.message))?;
    if named.ends_with(".json") {
        return Ok(graph::json_members(&String::from_utf8_lossy(&bytes)));
    }
    let names = match named.ends_with(".npz") {
        true => names_in_npz(&bytes),
        false => safetensors::read(&bytes).map(|all| all.tensors.into_iter().map(|(name, _)| name).collect()),
    };
    names.map(Some).map_err(|failure| at(failure.message))
}

/// The placeholders that the step needs, without those that are fed.
fn inputs(of: &Of, taken: &[Output]) -> Vec<String> {
    let (mut open, mut seen) = (of.wanted.clone(), BTreeSet::new());
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        let node = of.graph.node(id);
        if !seen.insert(id) || taken.iter().any(|output| output.node == id) {
            continue;
        }
        if node.op.role == Role::Placeholder {
            found.push(node.name.clone());
        }
        open.extend(node.sources());
    }
    found.sort();
    found
}

/// How the training of a model reads its data.
struct Trained {
    data: DataSection,
    fits: Fits,
}

/// The training whose file the graph is, read once.
fn trained_of<'t>(trained: &'t mut Option<Trained>, of: &Of) -> Result<&'t Trained, Trouble> {
    Ok(match trained {
        Some(trained) => trained,
        None => trained.insert(Trained::read(of)?),
    })
}

impl Trained {
    fn read(of: &Of) -> Result<Trained, Trouble> {
        let data = read_data(std::str::from_utf8(of.text).unwrap_or_default());
        let data = data.map_err(|why| Trouble::input(format!("{}: {why}", of.path.display())))?;
        let fits = match of.weights {
            Some(at) => {
                check_weights("--weights", of.graph, at)?;
                fits(at.path, at.which)?
            }
            None => Fits::default(),
        };
        Ok(Trained { data, fits })
    }

    /// The examples of a file as the training reads it; `None` if it reads other kinds of files for this placeholder.
    fn examples(&self, graph: &Graph, output: Output, file: &str) -> Result<Option<Unseen>, Trouble> {
        let name = &graph.node(output.node).name;
        let source = self.data.feed.iter().find(|(own, _)| own == name).map(|(_, source)| source);
        let named = FilePart::of(file);
        if let (None, true, None, true) = (source, self.fits.contains_key(name), &named.part, named.is_table()) {
            return Err(Trouble::input(format!(
                "--feed {name}: the model was trained with a table that is described in the section \"data\" of a file; name that \
                 file in place of this graph, or the columns in {file}:COLUMN,COLUMN"
            )));
        }
        let takes_images = source.is_some_and(|source| source.take == Take::Images);
        if let Some(why) = other_image(&named.file, Path::new(&named.file)).filter(|_| takes_images) {
            return Err(Trouble::input(format!("--feed {name}: {why}")));
        }
        let is_alike = |source: &&DataSource| {
            // The part of a table is its columns as they are; that of TFRecords is a feature, which is read as in training.
            (named.part.is_none() || named.is_records()) && reads_alike(source, named.file.as_ref())
        };
        let Some(source) = source.filter(is_alike) else { return Ok(None) };
        let part = named.part.clone().or_else(|| source.part.clone());
        let source = DataSource { part, file: named.file, ..source.clone() };
        let sources = [(name.clone(), source)];
        Ok(Some(Unseen::read(graph, &sources, &self.data.hold_out_by, &self.fits, false)?))
    }
}
