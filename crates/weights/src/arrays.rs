//! Arrays as they are in memory: safetensors, an index of several such files, .npy and .npz.

use std::collections::BTreeMap;
use std::sync::Arc;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Data, Shape, Tensor, npy, safetensors as format};
use serde_json::Value;

use super::archive::Archive;
use super::source::{self, Beside, Shared, bytes};
use super::{Entry, Form, Held, Load, limit, wrong};

/// The largest index of several files.
const MAX_INDEX: u64 = 64 << 20;
/// Most files that an index names.
const MAX_FILES: usize = 4096;
/// The suffix of an array in a .npz file.
const ENDING: &str = ".npy";
/// The most bytes of a header of a .npy file, with some of its elements.
const MAX_NPY_HEADER: u64 = 128 << 10;

/// Reads elements that lie as a tensor has them, into the memory that they keep.
pub fn plain(source: &Shared, at: u64, (dtype, shape): (DType, Shape), length: u64) -> Load {
    let source = Arc::clone(source);
    Arc::new(move || {
        let needed = shape.limited_elements(dtype)?.saturating_mul(dtype.size().unwrap_or(usize::MAX)) as u64;
        // Bytes that are no truth values, and parts of another size, are refused where bytes become a tensor.
        if dtype == DType::Bool || needed != length {
            return Tensor::from_bytes(dtype, shape.clone(), &bytes(&*source, at, length)?);
        }
        source::check(at, length, source.length())?;
        let mut data = Data::zeros(dtype, shape.checked_elements(dtype)?);
        let elements = data.bytes_mut().ok_or_else(|| wrong(format!("a {dtype} is not kept as bytes")))?;
        source.read(at, elements)?;
        Tensor::new(shape.clone(), data)
    })
}

pub fn safetensors(file: &Shared) -> Result<Held> {
    let start = bytes(&**file, 0, file.length().min(8))?;
    let begin = format::header_bytes(&start)? as u64;
    if begin > file.length() {
        let (stated, whole) = (begin - start.len() as u64, file.length());
        return Err(wrong(format!(
            "its header has {stated} bytes by its own account, and the file has {whole}: it is cut off"
        )));
    }
    let header = bytes(&**file, 0, begin)?;
    let mut held = Held::new(Form::Safetensors, Vec::new());
    for tensor in format::entries(&header)? {
        let at = begin + tensor.begin;
        let length = tensor.end - tensor.begin;
        if at.checked_add(length).is_none_or(|end| end > file.length()) {
            return Err(wrong(format!("tensor {}: its elements end after the file", tensor.name)));
        }
        held.tensors.push(match tensor.dtype {
            Some(dtype) => {
                let shape = Shape::from(tensor.shape.clone());
                Entry::new(tensor.name, dtype, tensor.shape, length, plain(file, at, (dtype, shape), length))
            }
            None => Entry::unread(tensor.name, tensor.stored, tensor.shape, length),
        });
    }
    held.notes = format::metadata(&header)?.into_iter().collect();
    Ok(held)
}

/// `model.safetensors.index.json`: the file of each tensor.
pub fn index(file: &Shared, beside: &Beside) -> Result<Held> {
    let text = source::text(&**file, MAX_INDEX)?;
    let json: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let map = json.get("weight_map").and_then(Value::as_object).ok_or_else(|| wrong("it has no weight_map"))?;
    let mut files: BTreeMap<&str, BTreeMap<String, Entry>> = BTreeMap::new();
    let mut held = Held::new(Form::SafetensorsIndex, Vec::new());
    for (name, file) in map {
        let file = file.as_str().ok_or_else(|| wrong(format!("weight_map: the file of {name} is no text")))?;
        if !files.contains_key(file) {
            if files.len() == MAX_FILES {
                return Err(limit(format!("it names more than {MAX_FILES} files")));
            }
            let own = source::named(beside, file).and_then(|own| shard(&own));
            let own = own.map_err(|failure| wrong(format!("{file}: {}", failure.message)))?;
            files.insert(file, own.tensors.into_iter().map(|entry| (entry.name.clone(), entry)).collect());
        }
        let entry = files[file].get(name);
        held.tensors.push(entry.cloned().ok_or_else(|| wrong(format!("{file} has no tensor {name}")))?);
    }
    held.notes.push(("files".to_owned(), files.len().to_string()));
    Ok(held)
}

/// A file that an index names: of any form, but no other index.
fn shard(file: &Shared) -> Result<Held> {
    match Form::of(file)? {
        Some(form) if form != Form::SafetensorsIndex => {
            super::open(form, file, &|name| Err(wrong(format!("it names {name:?}, a file of another"))))
        }
        _ => Err(wrong("it is no file of weights")),
    }
}

pub fn npy(file: &Shared) -> Result<Held> {
    let start = bytes(&**file, 0, file.length().min(MAX_NPY_HEADER))?;
    Ok(Held::new(Form::Npy, vec![array("array", &start, file.length(), whole(file))?]))
}

/// Reads a whole .npy file.
fn whole(file: &Shared) -> Load {
    let file = Arc::clone(file);
    Arc::new(move || npy::read(&bytes(&*file, 0, file.length())?))
}

fn array(name: &str, start: &[u8], length: u64, load: Load) -> Result<Entry> {
    let (dtype, shape) = npy::described(start)?;
    let begin = npy::begin(start)? as u64;
    Ok(Entry::new(name, dtype, shape, length.saturating_sub(begin), load))
}

pub fn npz(file: &Shared) -> Result<Held> {
    let archive = Archive::open(file)?;
    let mut held = Held::new(Form::Npz, Vec::new());
    for member in archive.names() {
        let Some(name) = member.strip_suffix(ENDING) else { continue };
        let start = archive.beginning(member, MAX_NPY_HEADER)?;
        let (own, named) = (archive.clone(), member.to_owned());
        let load: Load = Arc::new(move || {
            let file = own.member(&named)?;
            npy::read(&bytes(&*file, 0, file.length())?)
        });
        let entry = array(name, &start, archive.size(member).unwrap_or(0), load);
        held.tensors.push(entry.map_err(|failure| wrong(format!("array {name}: {}", failure.message)))?);
    }
    Ok(held)
}
