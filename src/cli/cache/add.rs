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
use meshtf_graph::Attr;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::counted;
use serde_json::json;

use super::super::inputs::read_noting;
use super::super::{Trouble, output};
use super::fields::fields;
use super::{CacheArgs, shown};

/// Bytes that are compared at first, and then at a time.
const FIRST: usize = 1 << 10;
const AT_ONCE: usize = 1 << 20;
/// The ends of the names of models in a folder.
const MODELS: [&str; 4] = ["onnx", "pb", "meta", "json"];

/// Make nodes of this machine read the weights of models in their files
///
/// A node that is asked to run such a model then has its weights already, and they are not sent. Those that lie in the file as
/// the graph needs them are read there; others, such as filters that are stored in another order, are copied into the folder of
/// `meshtf cache`, within its limit. A weight that is read is compared with its content: a file may change or go, and the weight
/// is sent then. A node with --cache off reads none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf cache add model.onnx
  meshtf cache add ~/models          the models of a folder
  meshtf cache add saved_model/ --json | jq .[0].copied_bytes")]
pub(super) struct Args {
    /// Model (ONNX, GraphDef, MetaGraph, graph.json), folder of a SavedModel, or folder of models
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
    let mut all = Vec::new();
    for file in &args.files {
        let models = models(file)?;
        let is_one = models.len() == 1;
        let (mut added, mut failed) = (0, None);
        for model in models {
            match add_model(&model, args.signature.as_deref(), &cache) {
                Ok(one) => {
                    all.push(one);
                    added += 1;
                }
                // A folder may have other files of such names.
                Err(trouble) if !is_one => failed = failed.or(Some(trouble)),
                Err(trouble) => return Err(trouble),
            }
        }
        if let Some(trouble) = failed.filter(|_| added == 0) {
            return Err(trouble);
        }
    }
    if args.json {
        return output::json_value(&all.iter().map(described).collect());
    }
    all.iter().try_for_each(|one| output::line(&line(one, cache.folder())))
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

fn add_model(path: &Path, signature: Option<&str>, cache: &WeightCache) -> Result<Added, Trouble> {
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
    let mut places = Places::of(parts);
    let mut added = Added { file: path.to_owned(), ..Added::default() };
    let mut known: HashSet<Content> = HashSet::new();
    for (_, node) in graph.nodes() {
        for value in node.attrs.0.values() {
            let Attr::Tensor(constant) = value else { continue };
            let Some(elements) = constant.bytes().filter(|_| is_kept(constant)) else { continue };
            let content = Content::of(constant);
            if known.insert(content) {
                let place = places.of_elements(elements);
                keep(cache, (&content, &node.name, constant), place, &mut added)?;
            }
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
) -> Result<(), Trouble> {
    let count = match &place {
        Some(place) => cache.put_place(content, node, constant, place).map(|()| &mut added.there),
        None => cache.put(content, node, constant).map(|()| match cache.has(content) {
            true => &mut added.copied,
            false => &mut added.too_large,
        }),
    };
    let count = count.map_err(|error| Trouble::input(format!("{}: {error}", cache.folder().display())))?;
    count.0 += 1;
    count.1 += constant.byte_len() as u64;
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
