//! Restores from the older form: reads the files' lists of tensors, then the parts of the requested tensors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message;

use super::super::bundle::slice_from_proto;
use super::super::slice::{self, Slice};
use super::super::table::Table;
use super::super::{DataDir, MAX_SHARDS, data_loss, io_failure};
use super::{META_KEY, VERSION, elements, pattern, proto};

/// Most parts of one tensor, since each is compared with all others of that tensor.
pub const MAX_PARTS: usize = 4096;
/// Most bytes of the list of tensors in a file.
const MAX_META_BYTES: usize = 64 << 20;
/// Most bytes of memory that a byte of that list takes: an empty entry is two bytes there.
const MEMORY_PER_BYTE: usize = 64;

/// The files of a checkpoint and their contents.
#[derive(Debug)]
pub struct Files {
    name: String,
    tables: Vec<Table>,
    tensors: BTreeMap<Vec<u8>, Stored>,
}

/// A tensor as listed in the files.
#[derive(Debug)]
struct Stored {
    dtype: DType,
    shape: Shape,
    /// Its parts, each with the file that has it.
    parts: Vec<(Slice, usize)>,
}

impl Files {
    /// Opens the file of this name, or the files that match it as a pattern.
    ///
    /// # Errors
    /// NotFound if there is none; PermissionDenied if the name leads out of `dir`; DataLoss if a file is not a
    /// checkpoint.
    pub fn open(dir: &DataDir, name: &[u8]) -> Result<Files> {
        let paths = paths(dir, name)?;
        let name = String::from_utf8_lossy(name).into_owned();
        if paths.is_empty() {
            let why =
                format!("Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {name}");
            return Err(Failure::new(Code::NotFound, why));
        }
        let mut files = Files { name, tables: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            let said = |failure: Failure| {
                let (path, message) = (path.display(), failure.message);
                Failure::new(failure.code, format!("Unable to open table file {path}: {message}"))
            };
            let mut table = Table::open(path.clone()).map_err(said)?;
            let listed = listed(&mut table).map_err(said)?;
            files.tables.push(table);
            listed.into_iter().try_for_each(|tensor| files.add(tensor)).map_err(said)?;
        }
        Ok(files)
    }

    /// Adds a tensor that the last file lists.
    fn add(&mut self, listed: proto::Tensor) -> Result<()> {
        let name = String::from_utf8_lossy(&listed.name).into_owned();
        let bad = || data_loss(format!("its entry for {name} is invalid"));
        let (dtype, is_ref) = DType::from_proto(listed.dtype).ok_or_else(bad)?;
        let sizes = listed.shape.iter().flat_map(|shape| &shape.dim).map(|dim| usize::try_from(dim.size).ok());
        let shape = sizes.collect::<Option<Shape>>().filter(|_| !is_ref).ok_or_else(bad)?;
        let stored = self.tensors.entry(listed.name);
        let stored = stored.or_insert_with(|| Stored { dtype, shape: shape.clone(), parts: Vec::new() });
        if stored.dtype != dtype || stored.shape != shape {
            let (own, other) = (&stored.shape, stored.dtype);
            return Err(data_loss(format!("{name} is {dtype} {shape} in one file and {other} {own} in another")));
        }
        for slice in &listed.slice {
            let slice = slice_from_proto(slice).filter(|slice| slice.ranges(&shape).is_some()).ok_or_else(bad)?;
            if stored.parts.len() >= MAX_PARTS {
                return Err(data_loss(format!("{name} exceeds the limit of {MAX_PARTS} parts")));
            }
            stored.parts.push((slice, self.tables.len() - 1));
        }
        Ok(())
    }

    /// A tensor, or the given `part` of it.
    ///
    /// # Errors
    /// NotFound if there is no such tensor; InvalidArgument if it has another dtype or shape than requested, or elements are
    /// missing; DataLoss if parts overlap, or a part is corrupt.
    pub fn tensor(&mut self, name: &[u8], dtype: DType, part: Option<&(Shape, Slice)>) -> Result<Tensor> {
        let shown = String::from_utf8_lossy(name);
        let stored = self.tensors.get(name).ok_or_else(|| {
            let why = format!("Tensor name \"{shown}\" not found in checkpoint files {}", self.name);
            Failure::new(Code::NotFound, why)
        })?;
        if stored.dtype != dtype {
            return Err(Failure::invalid(format!(
                "Expected to restore a tensor of type {dtype}, got a tensor of type {} instead: tensor_name = {shown}",
                stored.dtype
            )));
        }
        if let Some((shape, _)) = part
            && *shape != stored.shape
        {
            return Err(Failure::invalid(format!(
                "Shape in shape_and_slice spec does not match the shape in the save file: {shape}, save file shape: {}",
                stored.shape
            )));
        }
        if !elements::has_field(dtype) {
            return Err(elements::not_supported("Restoring", dtype));
        }
        for (i, (own, _)) in stored.parts.iter().enumerate() {
            if let Some((other, _)) = stored.parts[..i].iter().find(|(other, _)| other.overlaps(own, &stored.shape)) {
                return Err(data_loss(format!("{shown}: Overlapping slices: {other:?} and {own:?}")));
            }
        }
        let all = Slice::full(stored.shape.rank());
        let wanted = part.map_or(&all, |(_, slice)| slice);
        let mut tensor = Tensor::zeros(dtype, wanted.shape(&stored.shape)?)?;
        let mut found = 0;
        for (own, file) in stored.parts.iter().filter(|(own, _)| own.overlaps(wanted, &stored.shape)) {
            let missing = || data_loss(format!("a listed part of {shown} is missing"));
            let value = self.tables[*file].get(&own.key(name))?.ok_or_else(missing)?;
            memory::admit(value.as_ref().len().saturating_mul(elements::memory_per_byte(dtype)))?;
            let part = elements::take(value.as_ref(), dtype, own.shape(&stored.shape)?)
                .map_err(|failure| Failure::new(failure.code, format!("{shown}: {}", failure.message)))?;
            found += slice::copy(&stored.shape, (own, &part), (wanted, &mut tensor))?;
        }
        if found < tensor.len() {
            let why = format!("Error copying slice data: {found} of {} elements of {shown} were found", tensor.len());
            return Err(Failure::invalid(why));
        }
        Ok(tensor)
    }
}

/// The files that match a name, sorted by name.
fn paths(dir: &DataDir, name: &[u8]) -> Result<Vec<PathBuf>> {
    let (folder, last) = name.split_at(name.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1));
    if !pattern::is_pattern(last) {
        let path = dir.resolve(name)?;
        return Ok(if path.is_file() { vec![path] } else { Vec::new() });
    }
    let root = dir.resolve(if folder.is_empty() { b"." } else { folder })?;
    let io = |error: std::io::Error| io_failure("cannot list", &root, &error);
    let entries = match std::fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let file = entry.map_err(io)?.file_name();
        let Some(file) = file.to_str().filter(|file| pattern::matches(last, file.as_bytes())) else { continue };
        if paths.len() >= MAX_SHARDS as usize {
            let why = format!("{} matches more than {MAX_SHARDS} files, the limit", String::from_utf8_lossy(name));
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        // Each is resolved by itself: one may be a link that leads elsewhere.
        paths.push(dir.resolve(&[folder, file.as_bytes()].concat())?);
    }
    paths.sort();
    Ok(paths)
}

/// The tensors that a file lists.
fn listed(table: &mut Table) -> Result<Vec<proto::Tensor>> {
    let value =
        table.get(META_KEY)?.ok_or_else(|| data_loss("it has no list of tensors, so it is not a checkpoint"))?;
    let value = value.as_ref();
    if value.len() > MAX_META_BYTES {
        let why = format!("its list of tensors exceeds the limit of {MAX_META_BYTES} bytes");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    memory::admit(value.len() * MEMORY_PER_BYTE)?;
    let meta = proto::Meta::decode(value).ok().and_then(|meta| meta.meta);
    let meta = meta.ok_or_else(|| data_loss("its list of tensors cannot be read"))?;
    let wanted = meta.versions.unwrap_or_default().min_consumer;
    if wanted > VERSION {
        return Err(data_loss(format!(
            "the checkpoint needs a reader of version {wanted}, but this is version {VERSION}"
        )));
    }
    Ok(meta.tensor)
}
