//! Weights on the disk: a file of any form that `meshtf-weights` reads, a checkpoint of TensorFlow by its prefix, a SavedModel's
//! variables, or the folder of a model from a hub.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use meshtf_checkpoint::{Checkpoint, DataDir};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_weights::{Entry, Form, Held, Shared, Source};

/// The text with which TensorFlow 2 ends the names of variables in a checkpoint.
const VALUE: &str = "/.ATTRIBUTES/VARIABLE_VALUE";
/// The entry of such a checkpoint that describes objects.
const OBJECTS: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";
/// The file that makes a folder a SavedModel, and the prefix of its variables.
pub const SAVED_MODEL: &str = "saved_model.pb";
const VARIABLES: &str = "variables/variables";
/// Files of weights in the folder of a model, those that are read first in front.
const OF_A_FOLDER: &[&str] = &[
    "model.safetensors.index.json",
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "model.weights.h5",
    "tf_model.h5",
];

/// A file of the disk as a source.
struct Disk {
    file: Mutex<File>,
    length: u64,
    path: PathBuf,
}

impl Source for Disk {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let mut file = lock(&self.file);
        let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(into));
        read.map_err(|error| Failure::invalid(format!("{}: {error}", self.path.display())))
    }
}

/// Opens a file.
///
/// # Errors
/// The reason of the system.
pub fn source(path: &Path) -> Result<Shared> {
    let cannot = |error: std::io::Error| Failure::invalid(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(cannot)?;
    let length = file.metadata().map_err(cannot)?.len();
    Ok(Arc::new(Disk { file: Mutex::new(file), length, path: path.to_owned() }))
}

/// Weights, listed.
pub struct Listed {
    /// The file, or the prefix of a checkpoint.
    pub path: PathBuf,
    /// The form, in words.
    pub form: String,
    /// Whether it is one safetensors file, whose notes are all of its metadata.
    pub is_safetensors: bool,
    /// The tensors.
    pub tensors: Vec<Entry>,
    /// The file's statements on itself.
    pub notes: Vec<(String, String)>,
}

impl Listed {
    /// The metadata of a safetensors file; none of other files.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        if self.is_safetensors { self.notes.iter().cloned().collect() } else { BTreeMap::new() }
    }
}

/// Lists the tensors at a path; `None` if it has no weights of a form that is read.
///
/// # Errors
/// The error in them, and its location.
pub fn list(path: &Path) -> Result<Option<Listed>> {
    if let Some(prefix) = prefix(path) {
        return checkpoint(&prefix).map(Some);
    }
    let file = match path.is_dir() {
        false => path.to_owned(),
        true => match OF_A_FOLDER.iter().map(|name| path.join(name)).find(|file| file.exists()) {
            Some(file) => file,
            None => return Ok(None),
        },
    };
    let at = |failure: Failure| Failure { message: format!("{}: {}", file.display(), failure.message), ..failure };
    let source = source(&file)?;
    let Some(form) = Form::of(&source).map_err(at)? else { return Ok(None) };
    let folder = file.parent().unwrap_or(Path::new(""));
    let beside = |name: &str| self::source(&inside(folder, name)?);
    let Held { form, tensors, notes } = meshtf_weights::open(form, &source, &beside).map_err(at)?;
    let is_safetensors = form == Form::Safetensors;
    Ok(Some(Listed { path: file, form: form.to_string(), is_safetensors, tensors, notes }))
}

/// The path of a file in a folder, which its name must not leave; a link in the folder may.
pub fn inside(folder: &Path, name: &str) -> Result<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let path = folder.join(name);
    let cannot = |error: std::io::Error| Failure::invalid(format!("{}: {error}", path.display()));
    // A link in the folder is its owner's: hubs' clients keep files in a cache, and link to them.
    if !meshtf_weights::is_within(name) {
        return Err(Failure::invalid(format!("{name:?} is not in the folder {}", folder.display())));
    }
    path.metadata().map_err(cannot)?;
    Ok(path)
}

/// The prefix of the checkpoint that a path denotes: the prefix itself, its index, one of its shards, or a SavedModel.
pub fn prefix(path: &Path) -> Option<PathBuf> {
    let has_index = |prefix: &Path| prefix.with_added_extension("index").is_file();
    if path.join(SAVED_MODEL).is_file() {
        return Some(path.join(VARIABLES)).filter(|prefix| has_index(prefix));
    }
    if !path.is_dir() && has_index(path) {
        return Some(path.to_owned());
    }
    let name = path.file_name()?.to_str()?;
    let cut = name.strip_suffix(".index").or_else(|| name.split_once(".data-").map(|(prefix, _)| prefix))?;
    Some(path.with_file_name(cut)).filter(|prefix| has_index(prefix))
}

/// Opens the checkpoint with a prefix.
///
/// # Errors
/// That there is none, or that it is damaged.
pub fn open_checkpoint(prefix: &Path) -> Result<Checkpoint<'static>> {
    let at = |why: &dyn std::fmt::Display| Failure::invalid(format!("{}: {why}", prefix.display()));
    let name =
        prefix.file_name().and_then(|name| name.to_str()).ok_or_else(|| at(&"this is not the name of a file"))?;
    let folder = prefix.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = DataDir::new(folder).map_err(|error| at(&error))?;
    Checkpoint::open(&folder, name.as_bytes()).map(Checkpoint::into_owned).map_err(|failure| at(&failure.message))
}

fn checkpoint(prefix: &Path) -> Result<Listed> {
    let opened = Arc::new(open_checkpoint(prefix)?);
    let mut tensors = Vec::new();
    for (key, dtype, shape) in opened.tensors() {
        let name = String::from_utf8_lossy(key);
        if name == OBJECTS || dtype == DType::Variant {
            continue;
        }
        let bytes = dtype.size().and_then(|size| shape.elements()?.checked_mul(size)).unwrap_or(0) as u64;
        let (own, key) = (Arc::clone(&opened), key.to_vec());
        let load = move || own.tensor(&key, dtype, None);
        tensors.push(Entry::from_fn(name.strip_suffix(VALUE).unwrap_or(&name), (dtype, shape), bytes, load));
    }
    let form = "TensorFlow checkpoint".to_owned();
    Ok(Listed { path: prefix.to_owned(), form, is_safetensors: false, tensors, notes: Vec::new() })
}

/// The reason why there are no weights at a path, with the way that leads on.
pub fn refusal(path: &Path) -> String {
    if path.is_dir() {
        return format!(
            "this folder has neither {SAVED_MODEL} with variables nor a file of weights such as {}; name the file",
            OF_A_FOLDER[1]
        );
    }
    let other = source(path).and_then(|source| meshtf_weights::other(&source));
    match other {
        Ok(Some(other)) => other,
        Ok(None) => "it is of no form of weights that is read: safetensors (or its index), .npz, .npy, a PyTorch state dict, Keras' .h5 or \
             .keras, model.json of TensorFlow.js, GGUF, the prefix of a TensorFlow checkpoint, a SavedModel"
            .to_owned(),
        Err(failure) => failure.message,
    }
}
