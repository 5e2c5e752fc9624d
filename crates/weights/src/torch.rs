//! PyTorch's state dicts, in both forms of `torch.save`: a zip archive, and the pickles in a row of versions before 1.6.

use std::collections::HashMap;
use std::sync::Arc;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor, memory};

use super::archive::Archive;
use super::pickle::{self, Id, Value, Values};
use super::source::{Cursor, Shared, bytes, part};
use super::{Entry, Form, Held, Load, MAX_TENSORS, limit, sizes, wrong};

/// The largest pickle.
const MAX_PICKLE: u64 = 64 << 20;
/// Most bytes of a tensor that repeats elements of its storage, as an expanded one does: more than that a file has to hold.
const MAX_REPEATED: u64 = 256 << 20;
/// Deepest nesting of dicts, and most values that are visited in them: a value may occur many times.
const MAX_DEPTH: usize = 32;
const MAX_VISITED: usize = 4 << 20;
/// The longest name of a tensor, in bytes: names are made of keys, and a key may lead to many tensors.
const MAX_NAME: usize = 4096;
/// The numbers at the beginning of an older file.
const MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;
const PROTOCOL: i128 = 1001;

/// The classes and functions that a state dict names.
const ALLOWED: &pickle::Allowed = &[
    "collections.OrderedDict",
    REBUILD,
    REBUILD_OLD,
    PARAMETER,
    "torch.Size",
    "torch.device",
    "torch.FloatStorage",
    "torch.DoubleStorage",
    "torch.HalfStorage",
    "torch.BFloat16Storage",
    "torch.LongStorage",
    "torch.IntStorage",
    "torch.ShortStorage",
    "torch.CharStorage",
    "torch.ByteStorage",
    "torch.BoolStorage",
    "torch.ComplexFloatStorage",
    "torch.ComplexDoubleStorage",
    "torch.float32",
    "torch.float64",
    "torch.float16",
    "torch.bfloat16",
    "torch.int64",
    "torch.int32",
];
const REBUILD: &str = "torch._utils._rebuild_tensor_v2";
const REBUILD_OLD: &str = "torch._utils._rebuild_tensor";
const PARAMETER: &str = "torch._utils._rebuild_parameter";

fn dtype(storage: &str) -> Option<DType> {
    Some(match storage.strip_prefix("torch.")?.strip_suffix("Storage")? {
        "Float" => DType::F32,
        "Double" => DType::F64,
        "Half" => DType::F16,
        "BFloat16" => DType::BF16,
        "Long" => DType::I64,
        "Int" => DType::I32,
        "Short" => DType::I16,
        "Char" => DType::I8,
        "Byte" => DType::U8,
        "Bool" => DType::Bool,
        "ComplexFloat" => DType::C64,
        "ComplexDouble" => DType::C128,
        _ => return None,
    })
}

pub fn zipped(file: &Shared) -> Result<Held> {
    let archive = Archive::open(file)?;
    let names = archive.names();
    let pickles: Vec<&&str> = names.iter().filter(|name| name.ends_with("/data.pkl") || **name == "data.pkl").collect();
    let &[pickle] = &pickles[..] else { return Err(wrong("the archive has more than one data.pkl")) };
    let root = pickle.strip_suffix("data.pkl").unwrap_or_default();
    if let Some(order) = names.iter().find(|name| **name == format!("{root}byteorder")) {
        let order = archive.beginning(order, 16)?;
        if order.trim_ascii() != b"little" {
            return Err(wrong("its elements are big-endian; save it again on another machine"));
        }
    }
    if archive.size(pickle).is_some_and(|size| size > MAX_PICKLE) {
        return Err(limit(format!("its data.pkl has more than {MAX_PICKLE} bytes")));
    }
    let read = pickle::read(&archive.beginning(pickle, MAX_PICKLE)?, ALLOWED)?;
    let storages = |key: &str| {
        let name = format!("{root}data/{key}");
        let size = archive.size(&name).ok_or_else(|| wrong(format!("the archive has no {name:?}")))?;
        let own = archive.clone();
        Ok(Storage { size, open: Arc::new(move || own.member(&name)) })
    };
    held(Form::TorchZip, &read, &storages)
}

pub fn legacy(file: &Shared) -> Result<Held> {
    let head = bytes(&**file, 0, file.length().min(MAX_PICKLE))?;
    let mut at = 0;
    let mut next = || {
        let read = pickle::read(head.get(at..).unwrap_or_default(), ALLOWED);
        at += read.as_ref().map_or(0, |read| read.length);
        read
    };
    for wanted in [MAGIC, PROTOCOL] {
        let read = next()?;
        if !matches!(read.values.get(read.root), Value::Int(own) if *own == wanted) {
            return Err(wrong("its first numbers are not those of PyTorch"));
        }
    }
    // Of the machine that wrote it; elements are little-endian in any case.
    next()?;
    let read = next()?;
    let keys = next()?;
    let widths = widths(&read.values);
    let mut cursor = Cursor::new(file);
    cursor.skip(at as u64)?;
    let mut places = HashMap::new();
    for &key in keys.values.items(keys.root).ok_or_else(|| wrong("it has no list of storages"))? {
        let key = keys.values.text(key).ok_or_else(|| wrong("the key of a storage is no text"))?;
        let count = cursor.u64()?;
        let &width = widths.get(key).ok_or_else(|| wrong(format!("storage {key:?} belongs to no tensor")))?;
        let size = count.checked_mul(width).filter(|&size| size <= cursor.left());
        let size = size.ok_or_else(|| wrong(format!("storage {key:?} of {count} elements ends after the file")))?;
        places.insert(key.to_owned(), (cursor.at(), size));
        cursor.skip(size)?;
    }
    let storages = |key: &str| {
        let &(at, size) = places.get(key).ok_or_else(|| wrong(format!("it has no storage {key:?}")))?;
        let file = Arc::clone(file);
        Ok(Storage { size, open: Arc::new(move || part(&file, at, size)) })
    };
    held(Form::TorchLegacy, &read, &storages)
}

/// The bytes of an element of each storage.
fn widths(values: &Values) -> HashMap<String, u64> {
    let all = values.persistent().filter_map(|id| stated(values, id).ok());
    all.map(|stated| (stated.key.to_owned(), stated.dtype.size().unwrap_or(1) as u64)).collect()
}

/// The elements of several tensors.
struct Storage {
    size: u64,
    open: Arc<dyn Fn() -> Result<Shared> + Send + Sync>,
}

/// Finds a storage by its key.
type Storages<'a> = dyn Fn(&str) -> Result<Storage> + 'a;

/// A storage as a pickle names it.
struct Stated<'v> {
    key: &'v str,
    dtype: DType,
    count: u64,
}

fn stated(values: &Values, id: Id) -> Result<Stated<'_>> {
    let not = || wrong("a persistent id that is no storage");
    let items = values.items(id).ok_or_else(not)?;
    let [kind, class, key, _device, count] = *items.first_chunk::<5>().ok_or_else(not)?;
    let (Some("storage"), Value::Class(class), Some(key), Some(count)) =
        (values.text(kind), values.get(class), values.text(key), values.size(count))
    else {
        return Err(not());
    };
    if items.get(5).is_some_and(|&view| !matches!(values.get(view), Value::None)) {
        return Err(wrong(format!("storage {key:?} is a view of another, which is not read")));
    }
    let dtype = dtype(class).ok_or_else(|| wrong(format!("storage {key:?} is a {class}")))?;
    Ok(Stated { key, dtype, count })
}

fn held(form: Form, read: &pickle::Read, storages: &Storages) -> Result<Held> {
    let mut found = Found { values: &read.values, storages, tensors: Vec::new(), visited: 0, others: 0 };
    found.walk(read.root, String::new(), 0)?;
    let mut held = Held::new(form, found.tensors);
    if found.others > 0 {
        held.notes.push(("values that are no tensors".to_owned(), found.others.to_string()));
    }
    if held.tensors.is_empty() {
        return Err(wrong("it has no tensors"));
    }
    Ok(held)
}

struct Found<'a> {
    values: &'a Values,
    storages: &'a Storages<'a>,
    tensors: Vec<Entry>,
    visited: usize,
    others: usize,
}

impl Found<'_> {
    /// The tensors in a value, which are named by the keys that lead to them.
    fn walk(&mut self, id: Id, name: String, depth: usize) -> Result<()> {
        self.visited += 1;
        if depth > MAX_DEPTH || self.visited > MAX_VISITED || self.tensors.len() > MAX_TENSORS {
            return Err(limit(format!("{name:.80}: its dicts have too many values, or contain themselves")));
        }
        if name.len() > MAX_NAME {
            return Err(limit(format!("{name:.80}…: the name of a tensor has more than {MAX_NAME} bytes")));
        }
        let inside = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        match self.values.get(id) {
            Value::Dict(items) => {
                for &(key, value) in items {
                    let key = match self.values.get(key) {
                        Value::Text(text) if text.len() <= MAX_NAME => inside(text),
                        Value::Text(_) => {
                            return Err(limit(format!("{name:.80}: a key has more than {MAX_NAME} bytes")));
                        }
                        Value::Int(int) => inside(&int.to_string()),
                        _ => return Err(wrong(format!("{name}: a key is neither text nor an integer"))),
                    };
                    self.walk(value, key, depth + 1)?;
                }
            }
            Value::List(items) | Value::Tuple(items) => {
                for (place, &item) in items.iter().enumerate() {
                    self.walk(item, inside(&place.to_string()), depth + 1)?;
                }
            }
            Value::Called(function, args) => {
                let args = self.values.items(*args).unwrap_or_default();
                match (&**function, args) {
                    (PARAMETER, &[tensor, ..]) => self.walk(tensor, name, depth + 1)?,
                    (REBUILD | REBUILD_OLD, args) => {
                        let entry = self.tensor(&name, args);
                        let entry = entry.map_err(|failure| meshtf_tensor::failure::Failure {
                            message: format!("tensor {name}: {}", failure.message),
                            ..failure
                        })?;
                        self.tensors.push(entry);
                    }
                    _ => self.others += 1,
                }
            }
            _ => self.others += 1,
        }
        Ok(())
    }

    fn tensor(&self, name: &str, args: &[Id]) -> Result<Entry> {
        let not = || wrong("its arguments are not those of a tensor");
        let [storage, offset, size, stride] = *args.first_chunk::<4>().ok_or_else(not)?;
        let Value::Persistent(id) = self.values.get(storage) else { return Err(not()) };
        let stated = stated(self.values, *id)?;
        let numbers = |id| {
            let items = self.values.items(id).ok_or_else(not)?;
            items.iter().map(|&item| self.values.size(item).ok_or_else(not)).collect::<Result<Vec<u64>>>()
        };
        let (offset, strides) = (self.values.size(offset).ok_or_else(not)?, numbers(stride)?);
        let width = stated.dtype.size().unwrap_or(1);
        let (shape, n) = sizes(numbers(size)?, width)?;
        if strides.len() != shape.len() {
            return Err(not());
        }
        let own = (self.storages)(stated.key)?;
        // The last element that the strides lead to.
        let steps = shape.iter().zip(&strides).map(|(&size, &stride)| (size.max(1) as u64 - 1).checked_mul(stride));
        let last = steps.into_iter().try_fold(offset, |sum, step| sum.checked_add(step?));
        let end = if n == 0 { Some(0) } else { last.and_then(|last| last.checked_add(1)) };
        let end_bytes = end.and_then(|end| end.checked_mul(width as u64));
        if end.is_none_or(|end| end > stated.count) || end_bytes.is_none_or(|bytes| bytes > own.size) {
            return Err(wrong(format!(
                "its elements lie outside of storage {:?}, which has {} bytes",
                stated.key, own.size
            )));
        }
        let taken = n as u64 * width as u64;
        if taken > own.size.max(MAX_REPEATED) {
            return Err(limit(format!(
                "its elements repeat to {taken} bytes, of a storage of {}; {MAX_REPEATED} is the limit of a tensor that repeats elements",
                own.size
            )));
        }
        let begin = if n == 0 { 0 } else { offset * width as u64 };
        // The step along an axis of one element is never taken.
        let strides: Vec<u64> =
            shape.iter().zip(strides).map(|(&size, stride)| if size > 1 { stride } else { 0 }).collect();
        if let Some(&meta) = args.get(6)
            && let Value::Dict(items) = self.values.get(meta)
            && items.iter().any(|(key, _)| matches!(self.values.text(*key), Some("conj" | "neg")))
        {
            return Err(wrong("it is a conjugated or negated view; save it after .resolve_conj().resolve_neg()"));
        }
        let (open, dims, bytes_in_file) = (own.open, shape.clone(), (n * width) as u64);
        let span = end_bytes.unwrap_or(0).saturating_sub(begin);
        let load: Load = Arc::new(move || {
            let file = open()?;
            let elements = bytes(&*file, begin.min(file.length()), if n == 0 { 0 } else { span })?;
            in_rows(stated.dtype, &dims, &strides, elements)
        });
        let mut entry = Entry::new(name, stated.dtype, shape, bytes_in_file, load);
        entry.stored = stated.dtype.to_string();
        Ok(entry)
    }
}

/// The tensor of elements that lie apart by strides.
fn in_rows(dtype: DType, dims: &[usize], strides: &[u64], elements: Vec<u8>) -> Result<Tensor> {
    let shape = Shape::from(dims.to_vec());
    let mut expected = 1u64;
    let mut is_in_rows = true;
    for (&size, &stride) in dims.iter().zip(strides).rev() {
        is_in_rows &= size <= 1 || stride == expected;
        expected = expected.saturating_mul(size as u64);
    }
    if is_in_rows {
        return Tensor::from_bytes(dtype, shape, &elements);
    }
    let width = dtype.size().unwrap_or(1);
    let n: usize = dims.iter().product();
    memory::admit(n * width)?;
    let mut rows = Vec::with_capacity(n * width);
    let mut index = vec![0usize; dims.len()];
    let mut at = 0u64;
    for _ in 0..n {
        let from = at as usize * width;
        rows.extend_from_slice(
            elements.get(from..from + width).ok_or_else(|| wrong("its strides lead out of its storage"))?,
        );
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < dims[axis] {
                break;
            }
            at -= strides[axis] * dims[axis] as u64;
            index[axis] = 0;
        }
    }
    Tensor::from_bytes(dtype, shape, &rows)
}
