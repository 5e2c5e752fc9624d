//! The form of a file, by its first bytes; and for a file of no form that is read, its likely kind with the way that leads on.

use std::fmt;

use meshtf_tensor::failure::Result;

use super::archive::Archive;
use super::source::{Shared, bytes};

/// The forms of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One .safetensors file.
    Safetensors,
    /// `model.safetensors.index.json`.
    SafetensorsIndex,
    /// One array.
    Npy,
    /// Arrays in a zip archive.
    Npz,
    /// `torch.save`, since PyTorch 1.6.
    TorchZip,
    /// `torch.save`, before.
    TorchLegacy,
    /// A `.keras` file.
    KerasZip,
    /// A `.h5` file.
    Hdf5,
    /// `model.json` of TensorFlow.js.
    TfJs,
    /// llama.cpp's format.
    Gguf,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Safetensors => "safetensors",
            Form::SafetensorsIndex => "index of safetensors files",
            Form::Npy => "NumPy array (.npy)",
            Form::Npz => "NumPy arrays (.npz)",
            Form::TorchZip => "PyTorch state dict",
            Form::TorchLegacy => "PyTorch state dict (before 1.6)",
            Form::KerasZip => "Keras model (.keras)",
            Form::Hdf5 => "HDF5",
            Form::TfJs => "TensorFlow.js model",
            Form::Gguf => "GGUF",
        })
    }
}

/// The bytes by which a file is recognised.
const HEAD: u64 = 4096;
/// The pickle of PyTorch's number, with which its older files begin: LONG1, 10 bytes.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

impl Form {
    /// The form of a file; `None` if it is none of them, which a graph is, too.
    ///
    /// # Errors
    /// Those of the source.
    pub fn of(source: &Shared) -> Result<Option<Form>> {
        let length = source.length();
        let head = bytes(&**source, 0, length.min(HEAD))?;
        let starts = |magic: &[u8]| head.starts_with(magic);
        if starts(b"\x93NUMPY") {
            return Ok(Some(Form::Npy));
        }
        if starts(b"GGUF") {
            return Ok(Some(Form::Gguf));
        }
        if starts(b"\x89HDF\r\n\x1a\n") {
            return Ok(Some(Form::Hdf5));
        }
        if starts(b"PK\x03\x04") || starts(b"PK\x05\x06") {
            return zipped(source);
        }
        if head.len() > 2 && head[0] == 0x80 && head[2..].starts_with(LEGACY) {
            return Ok(Some(Form::TorchLegacy));
        }
        if is_safetensors(&head) {
            return Ok(Some(Form::Safetensors));
        }
        if head.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
            return json(source);
        }
        Ok(None)
    }
}

/// The most bytes that a header of safetensors can be meant to have: a file may state a length that is wrong, and is said so.
const MAX_STATED: u64 = 1 << 48;

/// Whether a file begins as safetensors do: the length of a header, and its brace. The length may exceed the file's, which the
/// reader refuses: such a file is cut off.
fn is_safetensors(head: &[u8]) -> bool {
    let stated = head.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let opens = head.get(8) == Some(&b'{') && head.get(9).is_none_or(|next| b"\"} \t\r\n".contains(next));
    opens && stated.is_some_and(|header| (2..=MAX_STATED).contains(&header))
}

/// The largest JSON text that is looked at.
const MAX_JSON: u64 = 256 << 20;

fn json(source: &Shared) -> Result<Option<Form>> {
    if source.length() > MAX_JSON {
        return Ok(None);
    }
    let text = bytes(&**source, 0, source.length())?;
    let has = |key: &[u8]| text.windows(key.len()).any(|part| part == key);
    // A graph may have these words as names: the keys are looked for at the top alone, once they occur at all.
    if !has(b"\"weight_map\"") && !has(b"\"weightsManifest\"") {
        return Ok(None);
    }
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(&text) else { return Ok(None) };
    Ok(match () {
        () if json.get("weight_map").is_some_and(serde_json::Value::is_object) => Some(Form::SafetensorsIndex),
        () if json.get("weightsManifest").is_some_and(serde_json::Value::is_array) => Some(Form::TfJs),
        () => None,
    })
}

fn zipped(source: &Shared) -> Result<Option<Form>> {
    let archive = Archive::open(source)?;
    let names = archive.names();
    let ends = |suffix: &str| names.iter().any(|name| name.ends_with(suffix));
    Ok(match () {
        () if names.contains(&"model.weights.h5") => Some(Form::KerasZip),
        // TorchScript has code next to its tensors.
        () if ends("/constants.pkl") && names.iter().any(|name| name.contains("/code/")) => None,
        () if ends("/data.pkl") || names.contains(&"data.pkl") => Some(Form::TorchZip),
        () if ends(".npy") => Some(Form::Npz),
        () => None,
    })
}

/// The likely kind of a file that is of no form which is read, and the way that leads on; `None` if nothing is recognised.
///
/// # Errors
/// Those of the source.
pub fn other(source: &Shared) -> Result<Option<String>> {
    let head = bytes(&**source, 0, source.length().min(HEAD))?;
    if head.is_empty() {
        return Ok(Some("it is empty".to_owned()));
    }
    let text = String::from_utf8_lossy(&head);
    let begin = text.trim_start();
    let is = |magic: &[u8]| head.starts_with(magic);
    let has = |word: &[u8]| head.windows(word.len()).any(|part| part == word);
    let onnx = "convert it to ONNX, which `meshtf run` takes";
    Ok(Some(match () {
        () if head.get(4..8) == Some(b"TFL3") => format!(
            "it looks like a TensorFlow Lite model; {onnx} (`python -m tf2onnx.convert --tflite FILE --output model.onnx`), or use the \
             SavedModel that it was made of"
        ),
        () if is(b"version https://git-lfs") => {
            "it is a pointer of Git LFS, not the file itself: `git lfs pull` in its repository fetches it".to_owned()
        }
        () if ["<!doc", "<html"].iter().any(|tag| begin.get(..5).is_some_and(|own| own.eq_ignore_ascii_case(tag))) => {
            "it is a web page, perhaps an error of the site that it was loaded from; load the file itself".to_owned()
        }
        () if begin.starts_with("<?xml") && begin.contains("<net") => {
            format!("it looks like an OpenVINO model; use the model that it was made of, or {onnx}")
        }
        () if is(b"PK\x03\x04") || is(b"PK\x05\x06") => zip_of(source)?,
        () if is(b"\x80") && has(b"sklearn") => {
            format!("it looks like a pickle of scikit-learn, which runs code when it is read; {onnx} (skl2onnx)")
        }
        () if is(b"\x80") && head.get(1).is_some_and(|&version| version <= 5) => {
            "it is a pickle, which runs code when it is read, and not PyTorch's; save the arrays as .npz or safetensors".to_owned()
        }
        () if is(b"\x1f\x8b") => "it is packed by gzip; unpack it first".to_owned(),
        () if is(b"\x28\xb5\x2f\xfd") => "it is packed by zstd; unpack it first".to_owned(),
        () if is(b"BZh") || is(b"\xfd7zXZ") => "it is packed; unpack it first".to_owned(),
        () if head.get(257..262) == Some(b"ustar") => "it is a tar archive; unpack it first".to_owned(),
        () if is(b"ggml") || is(b"ggjt") || is(b"lmgg") || is(b"tjgg") => {
            "it is GGML, the format before GGUF; convert it with llama.cpp's script".to_owned()
        }
        () if is(b"ftrt") || is(b"ptrt") => {
            "it looks like a TensorRT engine, which only the GPU that it was built for runs; use the ONNX model that it was made of"
                .to_owned()
        }
        () if is(b"PAR1") => "it is a Parquet file: a table, not a model; a training reads it".to_owned(),
        () if is(b"\x89PNG") || is(b"\xff\xd8\xff") || is(b"GIF8") => "it is an image, not a model; `--feed NAME=@FILE` is for data".to_owned(),
        () if is(b"\x7fELF") || is(b"MZ") => "it is a program, not a model".to_owned(),
        () => return Ok(None),
    }))
}

/// The likely kind of a zip archive.
fn zip_of(source: &Shared) -> Result<String> {
    let archive = Archive::open(source)?;
    let names = archive.names();
    let has = |part: &str| names.iter().any(|name| name.contains(part));
    Ok(match () {
        () if has("/code/") && has("constants.pkl") => {
            "it is a TorchScript module, which is code; export it with torch.onnx.export, or \
             save its weights with torch.save(module.state_dict(), FILE)"
                .to_owned()
        }
        () if has("Manifest.json") && has(".mlmodel") => {
            "it looks like a Core ML package; use the model that it was made of".to_owned()
        }
        () if has("saved_model.pb") => "it is a packed SavedModel; unpack it, and name the folder".to_owned(),
        () => "it is a zip archive of no form that is read; unpack it".to_owned(),
    })
}
