//! `meshtf cache add`: nodes of this machine read the weights of a model in its file.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use meshtf::program_file::{self, Tuning};
use meshtf::protocol::Content;
use meshtf::protocol::constants::{MIN_KEPT_BYTES, is_kept};
use meshtf::weight_cache::WeightCache;
use meshtf::weight_cache::place::Place;
use meshtf::weight_file;
use meshtf_graph::{Attr, Graph};
use meshtf_tensor::failure::{Failure, counted};
use meshtf_tensor::{Tensor, safetensors};
use meshtf_weights::Form;
use serde_json::json;

use super::super::inputs::read_noting;
use super::super::paint::{complain, mention};
use super::super::{Trouble, output};
use super::fields::fields;
use super::{CacheArgs, shown};

/// Bytes that are compared at first, and then at a time.
const FIRST: usize = 1 << 10;
const AT_ONCE: usize = 1 << 20;
/// The ends of the names of models in a folder, and those of them that files of other kinds have, too.
const MODELS: [&str; 5] = ["onnx", "pb", "meta", "json", "safetensors"];
const OTHERS_TOO: [&str; 2] = ["pb", "json"];

/// Make nodes of this machine read the weights of models in their files
///
/// A node that is asked to run such a model then has its weights already, and they are not sent. Those that lie in the file as
/// the graph needs them are read there; others, such as filters that are stored in another order, are copied into the folder of
/// `meshtf cache`, within its limit. A weight that is read is compared with its content: a file may change or go, and the weight
/// is sent then. A node with --cache off reads none. Of a folder, all models are read that can be: a line names each other.
///
/// A file of weights alone, for --weights, is taken as it is: values that --map turns, or that are widened for their variables,
/// are sent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf cache add model.onnx
  meshtf cache add ~/models          the models of a folder
  meshtf cache add bert.safetensors  a file for --weights
  meshtf cache add saved_model/ --json | jq .[0].copied_bytes")]
pub(super) struct Args {
    /// Model (ONNX, GraphDef, MetaGraph, graph.json), file of weights, folder of a SavedModel, or folder of models
    #[arg(required = true, value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// Signature of a SavedModel, as for `meshtf run`
    #[arg(long, value_name = "NAME")]
    signature: Option<String>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Print JSON: for each model its file, the weights and bytes that are read in it or beside it, those that were copied, and
    /// those that exceed the limit
    #[arg(long)]
    json: bool,
}

/// The outcome for the weights of a model.
#[derive(Default)]
struct Added {
    file: PathBuf,
    /// Numbers and bytes.
    there: (usize, u64),
    copied: (usize, u64),
    too_large: (usize, u64),
}

pub(super) fn add(args: &Args) -> Result<(), Trouble> {
    let cache =
        args.cache.cache().ok_or_else(|| Trouble::input("--cache off keeps no weights, and no places of them"))?;
    let mut all: Vec<Added> = Vec::new();
    let mut copies = Copies::default();
    let mut failed = None;
    for file in &args.files {
        let models = models(file)?;
        let (is_one, before) = (models.len() == 1, all.len());
        let mut no_model = None;
        for path in models {
            match read_model(&path, args.signature.as_deref()) {
                Ok(model) => {
                    let added = add_model(&path, model, &cache, (all.len(), &mut copies))?;
                    all.push(added);
                }
                Err(trouble) if is_one => return Err(trouble),
                Err(trouble) if may_be_another(&path) => {
                    mention(format_args!("left out, since it is read as no model: {trouble}"));
                    no_model = no_model.or(Some(trouble));
                }
                Err(trouble) => {
                    complain(&trouble);
                    failed = failed.or(Some(trouble.exit));
                }
            }
        }
        if let Some(trouble) = no_model.filter(|_| all.len() == before && failed.is_none()) {
            return Err(trouble);
        }
    }
    copies.settle(&cache, &mut all);
    if args.json {
        output::json_value(&all.iter().map(described).collect())?;
    } else {
        all.iter().try_for_each(|one| output::line(&line(one, cache.folder())))?;
    }
    match failed {
        Some(exit) => Err(Trouble::new(exit, "not all models were read")),
        None => Ok(()),
    }
}

/// Whether a file in a folder may be of another kind than a model, though its name ends as one's.
fn may_be_another(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|end| OTHERS_TOO.iter().any(|own| end == *own))
}

/// The constants that were copied, by the place of their model, with their bytes.
#[derive(Default)]
struct Copies {
    all: Vec<(usize, Content, u64)>,
    bytes: u64,
}

impl Copies {
    fn has(&self, content: &Content) -> bool {
        self.all.iter().any(|(_, known, _)| known == content)
    }

    /// Those that are not there any more were none: each copy may have taken the room of one before, or another process may have.
    fn settle(&self, cache: &WeightCache, all: &mut [Added]) {
        for (place, _, bytes) in self.all.iter().filter(|(_, content, _)| !cache.has(content)) {
            let Some(Added { copied, too_large, .. }) = all.get_mut(*place) else { continue };
            *copied = (copied.0 - 1, copied.1 - bytes);
            *too_large = (too_large.0 + 1, too_large.1 + bytes);
        }
    }
}

/// The models that an argument denotes.
fn models(path: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", path.display()));
    let path = std::path::absolute(path).map_err(|error| at(&error))?;
    if !path.is_dir() || program_file::file_of(&path) != path {
        return Ok(vec![path]);
    }
    let mut models = Vec::new();
    for entry in path.read_dir().map_err(|error| at(&error))? {
        let path = entry.map_err(|error| at(&error))?.path();
        let is_model = path.extension().is_some_and(|end| MODELS.iter().any(|own| end == *own)) && path.is_file();
        if is_model || path.is_dir() && program_file::file_of(&path) != path {
            models.push(path);
        }
    }
    models.sort();
    if models.is_empty() {
        return Err(at(&format!(
            "no file in it ends in .{}, and no folder is a SavedModel; name the file",
            MODELS.join(", .")
        )));
    }
    Ok(models)
}

/// Constants with the names of their nodes or tensors, and the parts of files in which they may lie.
type Constants = (Box<dyn Iterator<Item = Result<(String, Tensor), Failure>>>, Places);

/// The constants of a model, or of a file of weights alone.
fn read_model(path: &Path, signature: Option<&str>) -> Result<Constants, Trouble> {
    let at = |failure: Failure| Trouble::input(format!("{}: {}", path.display(), failure.message));
    if path.is_file()
        && let Some(weights) = read_weights(path).map_err(at)?
    {
        return Ok(weights);
    }
    let (graph, places) = read_graph(path, signature)?;
    let tensors = |attr: &Attr| match attr {
        Attr::Tensor(constant) => Some(constant.clone()),
        _ => None,
    };
    let of_node = |node: &meshtf_graph::Node| -> Vec<Result<(String, Tensor), Failure>> {
        node.attrs.0.values().filter_map(tensors).map(|constant| Ok((node.name.clone(), constant))).collect()
    };
    let all: Vec<_> = graph.nodes().flat_map(|(_, node)| of_node(node)).collect();
    Ok((Box::new(all.into_iter()), places))
}

/// The large tensors of a file of weights, read one after the other; `None` for another file.
fn read_weights(path: &Path) -> Result<Option<Constants>, Failure> {
    if Form::of(&weight_file::source(path)?)?.is_none() {
        return Ok(None);
    }
    let Some(listed) = weight_file::list(path)? else { return Ok(None) };
    let mut parts = Vec::new();
    if listed.is_safetensors {
        let cannot = |error: std::io::Error| Failure::invalid(error.to_string());
        let mut file = File::open(path).map_err(cannot)?;
        let mut header = vec![0; 8];
        file.read_exact(&mut header).map_err(cannot)?;
        header.resize(safetensors::header_bytes(&header)?, 0);
        file.read_exact(&mut header[8..]).map_err(cannot)?;
        let begin = header.len() as u64;
        let part = |info: safetensors::Info| (path.to_owned(), begin + info.begin, (info.end - info.begin) as usize);
        parts = safetensors::entries(&header)?.into_iter().map(part).collect();
    }
    let is_large = |entry: &meshtf_weights::Entry| entry.bytes >= MIN_KEPT_BYTES as u64 && entry.dtype.is_some();
    let large = listed.tensors.into_iter().filter(is_large);
    let loaded = large.map(|entry| entry.load().map(|value| (entry.name.clone(), value)));
    Ok(Some((Box::new(loaded), Places::of(parts))))
}

/// The graph of a model, and the parts of files in which its constants may lie.
fn read_graph(path: &Path, signature: Option<&str>) -> Result<(Graph, Places), Trouble> {
    let mut parts: Vec<(PathBuf, u64, usize)> = Vec::new();
    let mut note = |file: &Path, from: u64, bytes: usize| {
        if bytes >= MIN_KEPT_BYTES {
            parts.push((file.to_owned(), from, bytes));
        }
    };
    let (program, graph, bytes, _) = read_noting(path, signature, Tuning::default(), &mut note)?;
    drop(program);
    let file = program_file::file_of(path);
    parts.extend(
        fields(&bytes, MIN_KEPT_BYTES).into_iter().map(|field| (file.clone(), field.start as u64, field.len())),
    );
    drop(bytes);
    Ok((graph, Places::of(parts)))
}

fn add_model(
    path: &Path,
    (constants, mut places): Constants,
    cache: &WeightCache,
    (number, copies): (usize, &mut Copies),
) -> Result<Added, Trouble> {
    let mut added = Added { file: path.to_owned(), ..Added::default() };
    let mut known: HashSet<Content> = HashSet::new();
    for constant in constants {
        let (name, constant) =
            constant.map_err(|failure| Trouble::input(format!("{}: {}", path.display(), failure.message)))?;
        let Some(elements) = constant.bytes().filter(|_| is_kept(&constant)) else { continue };
        let content = Content::of(&constant);
        if known.insert(content) {
            let place = places.of_elements(elements);
            keep(cache, (&content, &name, &constant), place, &mut added, (number, copies))?;
        }
    }
    Ok(added)
}

/// Notes the place of a constant, or copies it.
fn keep(
    cache: &WeightCache,
    (content, node, constant): (&Content, &str, &Tensor),
    place: Option<Place>,
    added: &mut Added,
    (number, copies): (usize, &mut Copies),
) -> Result<(), Trouble> {
    let bytes = constant.byte_len() as u64;
    let count = match &place {
        Some(place) => cache.put_place(content, node, constant, place).map(|()| &mut added.there),
        // Others would take the room of those that were copied just now.
        None if !copies.has(content) && copies.bytes.saturating_add(bytes) > cache.limit() => Ok(&mut added.too_large),
        None => cache.put(content, node, constant).map(|()| match cache.has(content) {
            true => {
                copies.bytes += if copies.has(content) { 0 } else { bytes };
                copies.all.push((number, *content, bytes));
                &mut added.copied
            }
            false => &mut added.too_large,
        }),
    };
    let count = count.map_err(|error| Trouble::input(format!("{}: {error}", cache.folder().display())))?;
    count.0 += 1;
    count.1 += bytes;
    Ok(())
}

/// The parts of files in which constants may lie.
struct Places {
    /// By their length.
    parts: HashMap<usize, Vec<(PathBuf, u64)>>,
    /// All of them: a large constant is read in several parts, and lies at the first.
    all: Vec<(PathBuf, u64)>,
    /// Whole files, at whose ends arrays lie, and their lengths.
    files: Vec<(PathBuf, usize)>,
    open: HashMap<PathBuf, File>,
}

impl Places {
    fn of(all: Vec<(PathBuf, u64, usize)>) -> Places {
        let mut places = Places { parts: HashMap::new(), all: Vec::new(), files: Vec::new(), open: HashMap::new() };
        for (file, from, bytes) in all {
            if from == 0 {
                places.files.push((file.clone(), bytes));
            }
            places.all.push((file.clone(), from));
            places.parts.entry(bytes).or_default().push((file, from));
        }
        places
    }

    /// The place of these elements, if they lie somewhere as they are.
    fn of_elements(&mut self, elements: &[u8]) -> Option<Place> {
        let parts = self.parts.get(&elements.len()).into_iter().flatten();
        let candidates: Vec<(PathBuf, u64)> = parts.chain(&self.all).cloned().collect();
        // An array of a .npy file follows its header.
        let end = |(file, bytes): &(PathBuf, usize)| Some((file.clone(), bytes.checked_sub(elements.len())? as u64));
        let ends: Vec<(PathBuf, u64)> = self.files.iter().filter_map(end).collect();
        let mut candidates = candidates.into_iter().chain(ends);
        let (file, offset) = candidates.find(|(file, offset)| self.lie_at(elements, file, *offset))?;
        Some(Place { file, offset })
    }

    /// Whether a file has these elements at an offset.
    fn lie_at(&mut self, elements: &[u8], path: &Path, offset: u64) -> bool {
        if !self.open.contains_key(path) {
            let Ok(file) = File::open(path) else { return false };
            self.open.insert(path.to_owned(), file);
        }
        let Some(file) = self.open.get_mut(path) else { return false };
        // Most places differ in the first bytes.
        let (first, rest) = elements.split_at(FIRST.min(elements.len()));
        let mut read = vec![0; AT_ONCE.min(elements.len())];
        file.seek(SeekFrom::Start(offset)).is_ok()
            && std::iter::once(first).chain(rest.chunks(AT_ONCE)).all(|chunk| {
                let read = &mut read[..chunk.len()];
                file.read_exact(read).is_ok() && read == chunk
            })
    }
}

fn described(added: &Added) -> serde_json::Value {
    json!({
        "file": added.file.display().to_string(),
        "read_there": added.there.0, "read_there_bytes": added.there.1,
        "copied": added.copied.0, "copied_bytes": added.copied.1,
        "too_large": added.too_large.0, "too_large_bytes": added.too_large.1,
    })
}

fn line(added: &Added, folder: &Path) -> String {
    let counted = |(count, bytes): (usize, u64)| format!("{}, {}", counted(count, "weight"), shown(bytes));
    let mut parts = Vec::new();
    if added.there.0 > 0 {
        parts.push(format!("{}, read where they lie", counted(added.there)));
    }
    if added.copied.0 > 0 {
        parts.push(format!("{}, copied into {}", counted(added.copied), folder.display()));
    }
    if added.too_large.0 > 0 {
        parts.push(format!("{}, left out: they exceed the limit of --cache", counted(added.too_large)));
    }
    if parts.is_empty() {
        parts.push(format!("no weights of {} or more", shown(MIN_KEPT_BYTES as u64)));
    }
    format!("{}: {}", added.file.display(), parts.join("; "))
}

#[cfg(test)]
mod tests {
    use meshtf::weight_cache::clear;
    use temp_dir::TempDir;

    use super::*;

    #[test]
    fn a_copy_takes_the_room_of_no_other() {
        let folder = TempDir::new().unwrap();
        let cache = WeightCache::at(folder.child("cache"), 200_000);
        let (mut added, mut copies) = (Added::default(), Copies::default());
        for value in 0..3u8 {
            let value = Tensor::vector(vec![value; 80_000]);
            let content = Content::of(&value);
            keep(&cache, (&content, "w", &value), None, &mut added, (0, &mut copies)).unwrap();
        }
        let mut all = [added];
        copies.settle(&cache, &mut all);
        assert_eq!((all[0].copied, all[0].too_large), ((2, 160_000), (1, 80_000)));
        // Others have removed them meanwhile.
        clear(cache.folder()).unwrap();
        copies.settle(&cache, &mut all);
        assert_eq!((all[0].copied, all[0].too_large), ((0, 0), (3, 240_000)));
    }
}
