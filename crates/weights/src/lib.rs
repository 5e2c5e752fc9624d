//! Files of weights that other programs write, listed without reading their elements, and read tensor by tensor.
//!
//! - **Is**: the readers of safetensors (one file, or an index of several), NumPy's .npy and .npz, PyTorch's state dicts, Keras'
//!   HDF5, TensorFlow.js weights and GGUF; the function that recognises them by their content ([`Form::of`]); the rules that
//!   rename tensors ([`map`]).
//! - **Knows**: tensors; bytes only through [`Source`], and other files only through a function that opens them.
//! - **Never** opens a file, runs a pickle, or believes a size: all are compared with the length of the file first.
//!
//! | file | |
//! |---|---|
//! | `source` | bytes at an offset, parts of files, names within a folder |
//! | `form` | the form of a file by its first bytes; the remedy for a file that is none of them |
//! | `archive` | zip archives: .npz, PyTorch, Keras |
//! | `arrays` | safetensors, .npy, .npz |
//! | `pickle`, `torch` | pickles as data; state dicts |
//! | `keras`, `tfjs` | HDF5 as Keras writes it; model.json and its shards |
//! | `gguf`, `blocks` | GGUF; its blocks of quantised numbers as float32 |
//! | `map` | rules for names, axes and dtypes |

mod archive;
mod arrays;
mod blocks;
mod form;
#[doc(hidden)]
pub mod fuzz;
mod gguf;
mod keras;
pub mod map;
mod pickle;
mod source;
mod tfjs;
mod torch;

use std::fmt;
use std::sync::Arc;

pub use form::{Form, other};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, MAX_TENSOR_BYTES, Shape, Tensor};
pub use source::{Beside, Shared, Source, is_within};

/// Most tensors of a file.
pub const MAX_TENSORS: usize = 1 << 20;
/// Most dimensions of a tensor.
const MAX_RANK: usize = 64;

/// A tensor of a file, not yet read.
#[derive(Clone)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type in the file: that of NumPy where there is one, else the format's own, as `Q4_K`.
    pub stored: String,
    /// The dtype with which it is read; `None` if meshtf has none for it.
    pub dtype: Option<DType>,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// The bytes that its elements take in the file.
    pub bytes: u64,
    load: Load,
}

type Load = Arc<dyn Fn() -> Result<Tensor> + Send + Sync>;

impl Entry {
    fn new(name: impl Into<String>, dtype: DType, shape: Vec<usize>, bytes: u64, load: Load) -> Entry {
        Entry { name: name.into(), stored: dtype.to_string(), dtype: Some(dtype), shape, bytes, load }
    }

    /// A tensor that is listed alone, with the reason.
    fn unread(name: impl Into<String>, stored: impl Into<String>, shape: Vec<usize>, bytes: u64) -> Entry {
        let stored = stored.into();
        let why = format!("its elements are {stored}, for which meshtf has no dtype");
        let load: Load = Arc::new(move || Err(Failure::new(Code::Unimplemented, why.clone())));
        Entry { name: name.into(), stored, dtype: None, shape, bytes, load }
    }

    /// Reads it.
    ///
    /// # Errors
    /// The failure, with the name of the tensor: damage, a dtype that meshtf lacks, or no memory.
    pub fn load(&self) -> Result<Tensor> {
        (self.load)()
            .map_err(|failure| Failure { message: format!("tensor {}: {}", self.name, failure.message), ..failure })
    }

    /// An entry for a tensor that the caller has.
    pub fn of(name: &str, tensor: Tensor) -> Entry {
        let bytes = tensor.byte_len() as u64;
        Entry::new(name, tensor.dtype(), tensor.dims().to_vec(), bytes, Arc::new(move || Ok(tensor.clone())))
    }

    /// An entry that `load` reads.
    pub fn from_fn(
        name: &str,
        (dtype, shape): (DType, &Shape),
        bytes: u64,
        load: impl Fn() -> Result<Tensor> + Send + Sync + 'static,
    ) -> Entry {
        Entry::new(name, dtype, shape.dims().to_vec(), bytes, Arc::new(load))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{:?}", self.name, self.stored, self.shape)
    }
}

/// The content of a file of weights.
#[derive(Clone, Debug)]
pub struct Held {
    /// The form of the file.
    pub form: Form,
    /// Its tensors, in its order.
    pub tensors: Vec<Entry>,
    /// The file's statements on itself: named texts, shortened.
    pub notes: Vec<(String, String)>,
}

impl Held {
    fn new(form: Form, tensors: Vec<Entry>) -> Held {
        Held { form, tensors, notes: Vec::new() }
    }
}

/// Lists the tensors of a file of a known form. `beside` opens files of the same folder, by names relative to it.
///
/// # Errors
/// InvalidArgument with what is wrong and where; ResourceExhausted for a limit, or if there is no memory.
pub fn open(form: Form, source: &Shared, beside: &Beside) -> Result<Held> {
    let held = match form {
        Form::Safetensors => arrays::safetensors(source),
        Form::SafetensorsIndex => arrays::index(source, beside),
        Form::Npy => arrays::npy(source),
        Form::Npz => arrays::npz(source),
        Form::TorchZip => torch::zipped(source),
        Form::TorchLegacy => torch::legacy(source),
        Form::KerasZip => keras::zipped(source),
        Form::Hdf5 => keras::read(source, Form::Hdf5),
        Form::TfJs => tfjs::read(source, beside),
        Form::Gguf => gguf::read(source),
    };
    let held = held.map_err(|failure| Failure { message: format!("{form}: {}", failure.message), ..failure })?;
    if held.tensors.len() > MAX_TENSORS {
        return Err(limit(format!("{form}: it has more than {MAX_TENSORS} tensors")));
    }
    Ok(held)
}

/// The sizes of a tensor, and the number of its elements, if it can be held with elements of `size` bytes.
fn sizes(dims: impl IntoIterator<Item = u64>, size: usize) -> Result<(Vec<usize>, usize)> {
    let mut shape = Vec::new();
    for dim in dims {
        shape.push(usize::try_from(dim).map_err(|_| Failure::invalid(format!("a size of {dim} is too large")))?);
        if shape.len() > MAX_RANK {
            return Err(limit(format!("it has more than {MAX_RANK} dimensions")));
        }
    }
    let n = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    match n.filter(|n| n.checked_mul(size.max(1)).is_some_and(|bytes| bytes <= MAX_TENSOR_BYTES)) {
        Some(n) => Ok((shape, n)),
        None => Err(limit(format!(
            "shape {} takes more than {MAX_TENSOR_BYTES} bytes, the limit of a tensor",
            Shape::from(shape)
        ))),
    }
}

fn limit(why: impl Into<String>) -> Failure {
    Failure::new(Code::ResourceExhausted, why.into())
}

fn wrong(why: impl Into<String>) -> Failure {
    Failure::invalid(why.into())
}

#[cfg(test)]
mod tests;
