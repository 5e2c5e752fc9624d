//! Keras' weights: HDF5 files, alone or in a `.keras` archive. The crate hdf5-reader reads HDF5.

use std::collections::BTreeSet;
use std::sync::Arc;

use hdf5_reader::error::Error;
use hdf5_reader::group::Group;
use hdf5_reader::storage::{Storage, StorageBuffer};
use hdf5_reader::{Dataset, Datatype, Hdf5File, OpenOptions};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, MAX_TENSOR_BYTES, Shape, Tensor, memory};

use super::archive::Archive;
use super::source::{Shared, bytes};
use super::{Entry, Form, Held, Load, MAX_TENSORS, limit, sizes, wrong};

/// Deepest nesting of groups, and most of them.
const MAX_DEPTH: usize = 32;
const MAX_GROUPS: usize = 1 << 16;
/// Most bytes of a chunk, packed or not, and of the chunks that are kept.
const MAX_CHUNK: usize = 256 << 20;
const KEPT_CHUNKS: usize = 16 << 20;
/// Most bytes that are read at once.
const MAX_RANGE: usize = MAX_TENSOR_BYTES;
/// The weights in a `.keras` archive.
const WEIGHTS: &str = "model.weights.h5";
/// The group with the weights of a whole model in one file.
const WHOLE_MODEL: &str = "model_weights";

/// A source as hdf5-reader takes it.
struct File(Shared);

impl Storage for File {
    fn len(&self) -> u64 {
        self.0.length()
    }

    fn read_range(&self, offset: u64, length: usize) -> hdf5_reader::error::Result<StorageBuffer> {
        if length > MAX_RANGE {
            return Err(Error::OffsetOutOfBounds(offset));
        }
        let read = bytes(&*self.0, offset, length as u64);
        read.map(StorageBuffer::from_vec).map_err(|failure| Error::Io(std::io::Error::other(failure.message)))
    }
}

pub fn zipped(file: &Shared) -> Result<Held> {
    read(&Archive::open(file)?.member(WEIGHTS)?, Form::KerasZip)
}

pub fn read(file: &Shared, form: Form) -> Result<Held> {
    let options = OpenOptions::default()
        .with_chunk_cache_bytes(KEPT_CHUNKS)
        .with_max_chunk_bytes(MAX_CHUNK)
        .with_max_read_bytes(MAX_TENSOR_BYTES);
    let hdf5 = Hdf5File::from_storage_with_options(Arc::new(File(Arc::clone(file))), options)
        .map_err(|error| failure(&error))?;
    let root = hdf5.root_group().map_err(|error| failure(&error))?;
    let mut found = Found { tensors: Vec::new(), above: BTreeSet::new(), groups: 0 };
    found.walk(&root, &Path::default())?;
    let mut held = Held::new(form, named(found.tensors));
    for key in ["keras_version", "backend"] {
        if let Some(text) = root.attribute(key).ok().and_then(|attribute| attribute.read_string().ok()) {
            held.notes.push((key.to_owned(), text.chars().take(80).collect()));
        }
    }
    Ok(held)
}

fn failure(error: &Error) -> Failure {
    wrong(error.to_string())
}

/// The way to a group.
#[derive(Clone, Default)]
struct Path {
    parts: Vec<String>,
    /// The name that a Keras layer stores at the group of its variables, whose own names are numbers.
    layer: Option<String>,
}

struct Found {
    /// Each with its path, and the name of its layer and its number there.
    tensors: Vec<(Path, Entry)>,
    /// The addresses of the groups that contain the one at hand.
    above: BTreeSet<u64>,
    groups: usize,
}

impl Found {
    fn walk(&mut self, group: &Group, path: &Path) -> Result<()> {
        let at = |error: &Error| wrong(format!("group /{}: {error}", path.parts.join("/")));
        self.groups += 1;
        if path.parts.len() > MAX_DEPTH || self.groups > MAX_GROUPS || self.tensors.len() > MAX_TENSORS {
            return Err(limit(format!("group /{:.80}: too many groups, or too deep", path.parts.join("/"))));
        }
        if !self.above.insert(group.address()) {
            return Err(wrong(format!("group /{:.80} contains itself", path.parts.join("/"))));
        }
        let layer = group.attribute("name").ok().and_then(|attribute| attribute.read_string().ok());
        let (groups, datasets) = group.members().map_err(|error| at(&error))?;
        let inside = |name: &str| {
            let mut parts = path.parts.clone();
            parts.push(name.to_owned());
            Path { parts, layer: layer.clone() }
        };
        for dataset in datasets {
            let path = inside(dataset.name());
            let entry = entry(dataset, &path.parts.join("/"))?;
            self.tensors.push((path, entry));
        }
        for group in groups {
            self.walk(&group, &inside(group.name()))?;
        }
        self.above.remove(&group.address());
        Ok(())
    }
}

/// Tensors under the names that Keras shows: those of variables in a file of a whole model, `LAYER/NUMBER` where a layer's
/// variables have numbers. Where that is ambiguous, all have their paths.
fn named(tensors: Vec<(Path, Entry)>) -> Vec<Entry> {
    let shown: Vec<String> = tensors.iter().map(|(path, _)| shown(path)).collect();
    let is_unique = shown.iter().collect::<BTreeSet<_>>().len() == shown.len();
    let paths = tensors.iter().map(|(path, _)| path.parts.join("/")).collect::<Vec<_>>();
    let names = if is_unique { shown } else { paths };
    tensors.into_iter().zip(names).map(|((_, entry), name)| Entry { name, ..entry }).collect()
}

fn shown(path: &Path) -> String {
    let parts: Vec<&str> = path.parts.iter().map(String::as_str).collect();
    match (&path.layer, &parts[..]) {
        (Some(layer), [.., "vars", number]) => format!("{layer}/{number}"),
        // The group of the layer, and below it the names of its variables.
        (_, [WHOLE_MODEL, _, rest @ ..]) if !rest.is_empty() => rest.join("/").trim_end_matches(":0").to_owned(),
        _ => parts.join("/").trim_end_matches(":0").to_owned(),
    }
}

fn dtype(of: &Datatype) -> std::result::Result<DType, String> {
    Ok(match of {
        Datatype::FloatingPoint { size: 2, .. } => DType::F16,
        Datatype::FloatingPoint { size: 4, .. } => DType::F32,
        Datatype::FloatingPoint { size: 8, .. } => DType::F64,
        Datatype::FixedPoint { size, signed, .. } => match (size, signed) {
            (1, true) => DType::I8,
            (2, true) => DType::I16,
            (4, true) => DType::I32,
            (8, true) => DType::I64,
            (1, false) => DType::U8,
            (2, false) => DType::U16,
            (4, false) => DType::U32,
            (8, false) => DType::U64,
            _ => return Err(format!("integers of {size} bytes")),
        },
        // The form of NumPy's bool.
        Datatype::Enum { base, members }
            if members.len() == 2 && matches!(**base, Datatype::FixedPoint { size: 1, .. }) =>
        {
            DType::Bool
        }
        Datatype::String { .. } | Datatype::VarLen { .. } => return Err("strings".to_owned()),
        _ => return Err("HDF5 records".to_owned()),
    })
}

fn entry(dataset: Dataset, path: &str) -> Result<Entry> {
    let at = |why: &str| wrong(format!("dataset /{path}: {why}"));
    let dims = dataset.shape().to_vec();
    let dtype = match dtype(dataset.dtype()) {
        Ok(dtype) => dtype,
        Err(stored) => {
            let (shape, _) = sizes(dims, 1).map_err(|failure| at(&failure.message))?;
            return Ok(Entry::unread(path, stored, shape, 0));
        }
    };
    let (shape, n) = sizes(dims, dtype.size().unwrap_or(1)).map_err(|failure| at(&failure.message))?;
    let length = n * dtype.size().unwrap_or(1);
    let of = shape.clone();
    let load: Load = Arc::new(move || {
        memory::admit(2 * length)?;
        let elements = dataset.read_native_bytes().map_err(|error| failure(&error))?;
        Tensor::from_bytes(dtype, Shape::from(of.clone()), &elements)
    });
    Ok(Entry::new(path, dtype, shape, length as u64, load))
}
