//! Saves in the older form: one file, written under a temporary name and renamed when it is on the disk.

use std::collections::BTreeMap;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Shape, Tensor};
use prost::Message;

use super::super::bundle::{proto as bundle, slice_to_proto};
use super::super::files::{Beside, Error, make_folder, remove_abandoned, sync_folder};
use super::super::slice::Slice;
use super::super::write::Saved;
use super::super::{DataDir, table};
use super::read::MAX_PARTS;
use super::{META_KEY, VERSION, elements, proto};

/// Most bytes of a part with its elements, as in TensorFlow: protobuf reads no longer messages.
const MAX_PART_BYTES: usize = i32::MAX as usize;
/// Most bytes that an encoded number takes: a negative int8 takes ten.
const MAX_NUMBER_BYTES: usize = 10;

/// Writes tensors to the file `name`, replacing an existing one.
///
/// The new file is on the disk when this returns; until then the old one stays.
///
/// # Errors
/// PermissionDenied if the name leads out of `dir`; InvalidArgument if parts of a tensor overlap, disagree or do not
/// fit; Unimplemented for a dtype that the form lacks; the file system's errors.
pub fn save(dir: &DataDir, name: &[u8], tensors: &[Saved]) -> Result<()> {
    let path = dir.resolve(name)?;
    let mut meta =
        proto::Tensors { tensor: Vec::new(), versions: Some(bundle::Version { producer: VERSION, min_consumer: 0 }) };
    let mut wholes: BTreeMap<&[u8], Whole> = BTreeMap::new();
    // Entries are sorted by key.
    let mut parts: BTreeMap<Vec<u8>, (&[u8], Slice, &Tensor)> = BTreeMap::new();
    // The order in which TensorFlow lists them.
    let mut sorted: Vec<&Saved> = tensors.iter().collect();
    sorted.sort_by_key(|saved| saved.name);
    for saved in sorted {
        let slice = add(&mut meta, &mut wholes, saved)?;
        parts.insert(slice.key(saved.name), (saved.name, slice, saved.tensor));
    }
    let folder = make_folder(&path)?;
    let (file, ()) = Beside::write(&path, "v1", |file| {
        let mut table = table::Writer::new(file);
        table.add(META_KEY, &proto::Meta { meta: Some(meta) }.encode_to_vec())?;
        for (key, (name, slice, tensor)) in &parts {
            table.add(key, &value(name, slice, tensor)?)?;
        }
        table.finish()?;
        Ok::<(), Error>(())
    })?;
    file.put(&path)?;
    sync_folder(&folder)?;
    remove_abandoned(&folder);
    Ok(())
}

/// A tensor saved in parts: its shape, its index in the list of tensors, and its parts.
struct Whole {
    shape: Shape,
    place: usize,
    parts: Vec<Slice>,
}

/// Adds a tensor, or a part of one, to the list; returns the part that it is.
fn add<'a>(meta: &mut proto::Tensors, wholes: &mut BTreeMap<&'a [u8], Whole>, saved: &Saved<'a>) -> Result<Slice> {
    let (tensor, name) = (saved.tensor, String::from_utf8_lossy(saved.name));
    if !elements::has_field(tensor.dtype()) {
        return Err(elements::not_supported("Saving", tensor.dtype()));
    }
    let (shape, slice) = match saved.part {
        Some((shape, slice)) => (shape.clone(), slice.clone()),
        None => (tensor.shape().clone(), Slice::full(tensor.rank())),
    };
    if slice.shape(&shape)? != *tensor.shape() {
        return Err(Failure::invalid(format!(
            "Slice in shape_and_slice specification does not match the shape of the tensor to save: {name}, tensor: {}",
            tensor.shape()
        )));
    }
    let dtype = tensor.dtype().proto_number();
    let whole = wholes.entry(saved.name).or_insert_with(|| {
        let dims = shape.dims().iter().map(|&size| bundle::Dim { size: size as i64 }).collect();
        let shape_proto = bundle::Shape { dim: dims };
        let name = saved.name.to_vec();
        meta.tensor.push(proto::Tensor { name, shape: Some(shape_proto), dtype, slice: Vec::new() });
        Whole { shape: shape.clone(), place: meta.tensor.len() - 1, parts: Vec::new() }
    });
    let listed = &mut meta.tensor[whole.place];
    if whole.shape != shape || listed.dtype != dtype {
        return Err(Failure::invalid(format!("{name}: its parts disagree on the shape or dtype of the whole tensor")));
    }
    if let Some(other) = whole.parts.iter().find(|other| other.overlaps(&slice, &shape) || **other == slice) {
        return Err(Failure::invalid(format!("{name}: Overlapping slices: {other:?} and {slice:?}")));
    }
    if whole.parts.len() >= MAX_PARTS {
        let why = format!("{name} exceeds the limit of {MAX_PARTS} parts");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    listed.slice.push(slice_to_proto(&slice));
    whole.parts.push(slice.clone());
    Ok(slice)
}

/// The value of a part's entry.
pub fn value(name: &[u8], slice: &Slice, tensor: &Tensor) -> Result<Vec<u8>> {
    let own: usize = match tensor.slice::<Vec<u8>>() {
        Ok(strings) => strings.iter().map(|string| string.len() + MAX_NUMBER_BYTES).sum(),
        Err(_) => tensor.len() * tensor.dtype().size().unwrap_or(0).max(MAX_NUMBER_BYTES),
    };
    // As elements, as a part, as the value, and as the block that is written.
    memory::admit(own.saturating_mul(4))?;
    let mut part = proto::Part { name: name.to_vec(), slice: Some(slice_to_proto(slice)) }.encode_to_vec();
    elements::put(&mut part, tensor)?;
    if part.len() > MAX_PART_BYTES {
        let (name, bytes) = (String::from_utf8_lossy(name), part.len());
        let why = format!(
            "Tensor slice is too large to serialize: {name} takes {bytes} bytes, the limit is {MAX_PART_BYTES}"
        );
        return Err(Failure::invalid(why));
    }
    let mut value = vec![elements::PART_TAG];
    table::put_varint(&mut value, part.len() as u64);
    value.append(&mut part);
    Ok(value)
}
