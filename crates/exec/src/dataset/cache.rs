//! Datasets that cache the elements of others: in memory, or in a file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use meshtf_graph::graphdef::{TensorProto, tensor_from_proto, tensor_to_proto};
use meshtf_kernels::files::{Compression, Folder, Format, Records, Whole, write_record};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use prost::Message as _;

use super::component::{hosted, tensor};
use super::{Dataset, Element, Elements, Parts, Pull, bytes_of};

/// The elements, which are kept once all have been asked for, and then come from memory.
pub(crate) fn in_memory(input: Arc<Dataset>) -> Parts {
    let kept: Arc<Mutex<Option<Arc<Vec<Element>>>>> = Arc::default();
    Parts::new(input.cardinality, move |pull| {
        let from = match &*lock(&kept) {
            Some(all) => From::Memory { all: Arc::clone(all), at: 0 },
            None => From::Input { from: input.elements(pull)?, seen: Vec::new() },
        };
        Ok(Box::new(Cache { kept: Arc::clone(&kept), from }))
    })
}

struct Cache {
    kept: Arc<Mutex<Option<Arc<Vec<Element>>>>>,
    from: From,
}

enum From {
    Memory { all: Arc<Vec<Element>>, at: usize },
    Input { from: Box<dyn Elements>, seen: Vec<Element> },
}

impl Elements for Cache {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        match &mut self.from {
            From::Memory { all, at } => {
                let element = all.get(*at).cloned();
                *at += usize::from(element.is_some());
                Ok(element)
            }
            From::Input { from, seen } => {
                memory::grow()?;
                if let Some(element) = from.next(pull)? {
                    seen.push(element.clone());
                    return Ok(Some(element));
                }
                let all = Arc::new(std::mem::take(seen));
                *lock(&self.kept) = Some(Arc::clone(&all));
                let at = all.len();
                self.from = From::Memory { all, at };
                Ok(None)
            }
        }
    }

    fn bytes(&self) -> usize {
        match &self.from {
            From::Memory { all, .. } => bytes_of(&**all),
            From::Input { from, seen } => from.bytes() + bytes_of(seen),
        }
    }
}

/// The elements, which are written to a file while they are asked for. Once the file has all of them, they are read from it, by
/// this and any later dataset that names the same file. The file is `NAME.elements`: a TFRecord for each component of each
/// element, a TensorProto.
///
/// # Errors
/// As [`Folder::get`], and Unimplemented for elements that are not tensors.
pub(crate) fn in_file(input: Arc<Dataset>, name: Vec<u8>, folder: Folder) -> Result<Parts> {
    if input.spec.types.iter().any(|dtype| dtype.is_handle()) {
        let why =
            "a file keeps tensors alone, not sparse tensors, datasets or handles: cache without the name of a file";
        return Err(Failure::new(Code::Unimplemented, why));
    }
    let name = [&name, b".elements".as_slice()].concat();
    folder.get()?.resolve(&name)?;
    Ok(Parts::new(input.cardinality, move |pull| {
        let path = folder.get()?.resolve(&name)?;
        if path.exists() {
            let records = Records::open(&Format::TfRecord(Compression::None), &folder, name.clone())?;
            let (types, name) = (input.spec.types.clone(), name.clone());
            return Ok(Box::new(Kept { records, types, name }));
        }
        Ok(Box::new(Writing { from: input.elements(pull)?, path, name: name.clone(), output: Output::Unbegun }))
    }))
}

/// Elements that are read from their file.
struct Kept {
    records: Records,
    types: Vec<DType>,
    name: Vec<u8>,
}

impl Elements for Kept {
    fn next(&mut self, _: &Pull) -> Result<Option<Element>> {
        let mut element = Element::new();
        for &dtype in &self.types {
            let Some((_, record)) = self.records.next()? else {
                return if element.is_empty() { Ok(None) } else { Err(self.wrong("its last element is cut off")) };
            };
            let proto = TensorProto::decode(&*record).map_err(|error| self.wrong(&error.to_string()))?;
            let tensor = tensor_from_proto(proto)?;
            if tensor.dtype() != dtype {
                return Err(self.wrong(&format!("it has a component of {}, not {dtype}", tensor.dtype())));
            }
            element.push(tensor.into());
        }
        Ok(Some(element))
    }
}

impl Kept {
    fn wrong(&self, why: &str) -> Failure {
        let name = String::from_utf8_lossy(&self.name);
        Failure::new(Code::DataLoss, format!("{name} does not hold the elements of this dataset: {why}"))
    }
}

/// Elements that are written to their file.
struct Writing {
    from: Box<dyn Elements>,
    path: PathBuf,
    name: Vec<u8>,
    output: Output,
}

enum Output {
    /// No element was asked for.
    Unbegun,
    Open(Whole, Writer),
    /// The last element was asked for.
    Over,
}

/// The files that iterators of this process write.
static WRITTEN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// An iterator that writes a file, alone.
struct Writer(PathBuf);

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&WRITTEN).remove(&self.0);
    }
}

impl Writing {
    /// # Errors
    /// AlreadyExists if the file exists by now, or another iterator writes it.
    fn begin(&self) -> Result<Output> {
        let exists = |why: &str| {
            let name = String::from_utf8_lossy(&self.name);
            Failure::new(Code::AlreadyExists, format!("{why}: {name}"))
        };
        if !lock(&WRITTEN).insert(self.path.clone()) {
            return Err(exists("There appears to be a concurrent caching iterator running, which writes this file"));
        }
        let writer = Writer(self.path.clone());
        if self.path.exists() {
            return Err(exists("Existing cache files found, to continue initialize the iterator again"));
        }
        Ok(Output::Open(Whole::begin(self.path.clone(), self.name.clone())?, writer))
    }
}

impl Elements for Writing {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        if matches!(self.output, Output::Unbegun) {
            self.output = self.begin()?;
        }
        let Output::Open(output, _) = &mut self.output else { return Ok(None) };
        let Some(element) = self.from.next(pull)? else {
            let Output::Open(output, _writer) = std::mem::replace(&mut self.output, Output::Over) else {
                return Ok(None);
            };
            return output.end().map(|()| None);
        };
        let element = hosted(element)?;
        for component in &element {
            write_record(|part| output.write(part), &tensor_to_proto(tensor(component)?).encode_to_vec())?;
        }
        Ok(Some(element))
    }

    fn bytes(&self) -> usize {
        self.from.bytes()
    }
}
