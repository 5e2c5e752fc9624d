//! Tensors by name in files of several forms: safetensors, NumPy's .npz, TensorFlow's checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use meshtf_checkpoint::{DataDir, Saved, Whole, save};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::safetensors::{self, Contents};
use meshtf_tensor::{DType, MAX_TENSOR_BYTES, Shape, Tensor};
use meshtf_train::AVERAGE;
use meshtf_train::data::write_npz;
use meshtf_weights::Entry;

use super::{Error, Fits};
use crate::weight_file::{self, Listed};

/// The key of a state's metadata for the number of steps after which it was saved.
pub const STEP: &str = "meshtf.step";
/// The key of a state that another program made, or that was converted to a form without metadata.
pub const IMPORTED: &str = "meshtf.imported";
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 4 * MAX_TENSOR_BYTES as u64;
/// Maximum number of tensors that are named in a message.
pub(super) const MAX_NAMED: usize = 8;

/// The beginning and the end of the names of states, which have the step between them.
const STATE: &str = "step-";
const ENDING: &str = ".safetensors";
/// The file of the best weights in a folder.
pub const BEST_FILE: &str = "best.safetensors";
/// The key of a state's metadata for the names of the model's own variables, as a list in JSON.
pub const MODEL: &str = "meshtf.model";

/// The key of a state's metadata for what was measured of tables, in JSON.
pub const FITS: &str = "meshtf.fits";

/// The measurements of the tables of a training, by the placeholders that they feed, if a file of weights has them.
pub fn fits(path: &Path, which: Which) -> Result<Fits, Error> {
    let path = match path.is_dir() {
        // The folder of a model without states of a training, which has no measurements.
        true => match of_folder(path, which) {
            Ok(state) => state,
            Err(_) => return Ok(Fits::new()),
        },
        false => path.to_owned(),
    };
    let at = |why: &dyn std::fmt::Display| Error::input(format!("{}: {why}", path.display()));
    if path.extension().is_none_or(|ending| ending != "safetensors") {
        return Ok(Fits::new());
    }
    let metadata = safetensors::metadata(&header(&path)?).map_err(|failure| at(&failure.message))?;
    let fits = metadata.get(FITS).map(|text| serde_json::from_str(text));
    Ok(fits.transpose().map_err(|error| at(&error))?.unwrap_or_default())
}

/// The header of a .safetensors file, which lies before the tensors.
fn header(path: &Path) -> Result<Vec<u8>, Error> {
    let at = |why: &dyn std::fmt::Display| Error::input(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| at(&error))?;
    let mut header = Vec::new();
    (&file).take(8).read_to_end(&mut header).map_err(|error| at(&error))?;
    let length = safetensors::header_bytes(&header).map_err(|failure| at(&failure.message))?;
    let text = length - header.len();
    (&file).take(text as u64).read_to_end(&mut header).map_err(|error| at(&error))?;
    Ok(header)
}

/// Lists the tensors of a file, a checkpoint of TensorFlow by its prefix, or a state of a training in a folder.
pub fn list(path: &Path, which: Which) -> Result<Listed, Error> {
    let path = match path.is_dir() && !path.join(weight_file::SAVED_MODEL).exists() {
        // A folder without states may be that of a model from a hub.
        true => match of_folder(path, which) {
            Err(no_state) => match weight_file::list(path) {
                Ok(None) => return Err(no_state),
                listed => return listed.map_err(refused).and_then(|listed| listed.ok_or(no_state)),
            },
            Ok(state) => state,
        },
        false => path.to_owned(),
    };
    let at = |why: &dyn std::fmt::Display| Error::input(format!("{}: {why}", path.display()));
    if weight_file::prefix(&path).is_none() && !path.exists() {
        let name = path.file_name().unwrap_or_default().display();
        return Err(at(&format!(
            "there is no such model: expected a folder of saved states, a file of weights, or the prefix of a TensorFlow checkpoint, \
             beside which {name}.index would lie"
        )));
    }
    weight_file::list(&path).map_err(refused)?.ok_or_else(|| at(&weight_file::refusal(&path)))
}

/// A failure to read weights as the trainer's error.
fn refused(failure: Failure) -> Error {
    match failure.refusal {
        Some(_) => Error::Failed(failure),
        None => Error::input(failure.message),
    }
}

/// The state of a folder that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The best weights of an evaluation, if there are some; else the last state.
    Best,
    Last,
}

/// The form of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Safetensors,
    Npz,
    /// `PREFIX.index` and `PREFIX.data-…`.
    Checkpoint,
}

impl Form {
    /// The prefix of a checkpoint has no extension, or one of TensorFlow's, such as `model.ckpt-7`, or ends in a number.
    fn of(path: &Path) -> Result<Form, Error> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("safetensors") => Ok(Form::Safetensors),
            Some("npz") => Ok(Form::Npz),
            Some(ending)
                if !ending.starts_with("ckpt") && !ending.starts_with(|letter: char| letter.is_ascii_digit()) =>
            {
                Err(Error::input(format!(
                    "{}: .{ending} is not a form that is written; expected .safetensors, .npz, the prefix of a TensorFlow \
                     checkpoint (without an extension or with .ckpt), and for a graph with weights .onnx or a SavedModel (a folder, \
                     with / at its end)",
                    path.display()
                )))
            }
            _ => Ok(Form::Checkpoint),
        }
    }
}

/// Refuses a path to which [`write`] would not write.
pub fn check_form(path: &Path) -> Result<(), Error> {
    Form::of(path).map(|_| ())
}

/// Reads a file, a checkpoint of TensorFlow by its prefix, or a state of a training in a folder; returns the path, too.
pub fn read(path: &Path, which: Which) -> Result<(PathBuf, Contents), Error> {
    load(list(path, which)?)
}

/// Reads the tensors of a list; returns the path, too.
pub fn load(listed: Listed) -> Result<(PathBuf, Contents), Error> {
    let bytes = listed.tensors.iter().fold(0u64, |bytes, entry| bytes.saturating_add(entry.bytes));
    let at = |why: &dyn std::fmt::Display| Error::input(format!("{}: {why}", listed.path.display()));
    if bytes > MAX_FILE_BYTES {
        return Err(at(&format!("its tensors exceed the limit of {MAX_FILE_BYTES} bytes per file")));
    }
    let load = |entry: &Entry| match entry.load() {
        Ok(tensor) => Ok((entry.name.clone(), tensor)),
        Err(failure) if failure.refusal.is_some() => Err(Error::Failed(failure)),
        Err(failure) => Err(at(&failure.message)),
    };
    let tensors = listed.tensors.iter().map(load).collect::<Result<_, _>>()?;
    let metadata = listed.metadata();
    Ok((listed.path, Contents { tensors, metadata }))
}

/// The folder of a file, and its name.
fn split(path: &Path) -> Result<(&Path, &str), Error> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Error::input(format!("{}: this is not the name of a file", path.display())))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok((folder.unwrap_or(Path::new(".")), name))
}

/// Writes a file in the form that its extension states, whole or not at all.
pub fn write(path: &Path, contents: &Contents) -> Result<(), Error> {
    let at = |why: &dyn std::fmt::Display| Error::input(format!("cannot write {}: {why}", path.display()));
    let (folder, name) = split(path)?;
    let form = Form::of(path)?;
    fs::create_dir_all(folder).map_err(|error| at(&error))?;
    if form == Form::Checkpoint {
        let dir = DataDir::new(folder).map_err(|error| at(&error))?;
        let tensors = contents.tensors.iter();
        let tensors: Vec<Saved> = tensors.map(|(name, tensor)| Saved::new(name.as_bytes(), tensor, None)).collect();
        return save(&dir, name.as_bytes(), &tensors).map_err(|failure| at(&failure.message));
    }
    let mut file = Whole::begin(path).map_err(|error| at(&error))?;
    match form {
        Form::Npz => write_npz(&mut file, &contents.tensors).map_err(|failure| at(&failure.message))?,
        _ => safetensors::write(&mut file, contents).map_err(|error| at(&error))?,
    }
    let ended = file.sync().and_then(|()| file.end());
    ended.and_then(|_| File::open(folder)?.sync_all()).map_err(|error| at(&error))
}

/// Replaces variables by their moving averages.
///
/// # Errors
/// Bad input if there are no averages.
pub fn average(tensors: &mut [Entry]) -> Result<(), Error> {
    let averages: BTreeMap<String, Entry> = tensors
        .iter()
        .filter_map(|entry| Some((entry.name.strip_suffix(AVERAGE)?.to_owned(), entry.clone())))
        .collect();
    let mut is_any = false;
    for entry in tensors {
        if let Some(average) = averages.get(&entry.name) {
            let name = std::mem::take(&mut entry.name);
            *entry = average.clone();
            entry.name = name;
            is_any = true;
        }
    }
    match is_any {
        true => Ok(()),
        false => Err(Error::input(
            "it has no moving averages of its tensors, which a training keeps if its section train has \"average\"",
        )),
    }
}

/// The state of a folder.
fn of_folder(folder: &Path, which: Which) -> Result<PathBuf, Error> {
    let best = folder.join(BEST_FILE);
    if which == Which::Best && best.exists() {
        return Ok(best);
    }
    let at = |why: &dyn std::fmt::Display| Error::input(format!("{}: {why}", folder.display()));
    let last = states(folder).map_err(|error| at(&error))?.pop();
    last.ok_or_else(|| at(&"it contains no saved training state, step-….safetensors"))
}

/// The files of states that a training saved in a folder, the oldest first.
pub fn states(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_state = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(STATE) && name.ends_with(ENDING)
    };
    let entries = fs::read_dir(folder)?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_state).collect();
    files.sort();
    Ok(files)
}

/// The file of a state in a folder.
pub fn state(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{STATE}{step:012}{ENDING}"))
}

/// The number of steps behind a state, by the name of its file.
pub fn step_of(file: &Path) -> Option<u64> {
    file.file_name()?.to_str()?.strip_prefix(STATE)?.strip_suffix(ENDING)?.parse().ok()
}

/// Whether a name begins as that of a state, or of the best weights, and has their ending somewhere: a part of a file that is
/// written has more behind it.
pub(super) fn is_of_state(name: &str) -> bool {
    name.contains(ENDING) && (name.starts_with(STATE) || name.starts_with(BEST_FILE))
}

/// The values of variables among tensors, in their order. `extra`: whether tensors of no variable count as a difference, too.
///
/// # Errors
/// The tensors that differ, if they are of another model.
pub(crate) fn values(
    tensors: &[(String, Tensor)],
    variables: &[meshtf_train::Variable],
    extra: bool,
) -> Result<Vec<Tensor>, String> {
    let shapes: Vec<(&str, DType, &Shape)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.dtype(), tensor.shape())).collect();
    compare(&shapes, variables, extra)?;
    let saved: BTreeMap<&str, &Tensor> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let value = |variable: &meshtf_train::Variable| saved.get(variable.name.as_str()).map(|&tensor| tensor.clone());
    Ok(variables.iter().filter_map(value).collect())
}

/// Compares the names, dtypes and shapes of tensors with those of variables. `extra`: whether tensors of no variable count as a
/// difference, too.
///
/// # Errors
/// The tensors that differ.
pub(crate) fn compare(
    tensors: &[(&str, DType, &Shape)],
    variables: &[meshtf_train::Variable],
    extra: bool,
) -> Result<(), String> {
    let saved: BTreeMap<&str, (DType, &Shape)> =
        tensors.iter().map(|&(name, dtype, shape)| (name, (dtype, shape))).collect();
    let own: BTreeSet<&str> = variables.iter().map(|variable| variable.name.as_str()).collect();
    let others: Vec<&str> = saved.keys().copied().filter(|name| !own.contains(name)).collect();
    let (mut differ, mut is_advised) = (Vec::new(), false);
    for variable in variables {
        let wanted = format!("{}{}", variable.dtype, variable.shape);
        match saved.get(variable.name.as_str()) {
            None => {
                let near = nearest(&variable.name, others.iter().copied());
                let hint =
                    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) };
                differ.push(format!("variable {} ({wanted}) is not there{hint}", variable.name));
            }
            Some(&(dtype, shape)) if dtype == variable.dtype && *shape == variable.shape => {}
            Some(&(dtype, shape)) => {
                let name = &variable.name;
                let is_turned = shape.rank() > 1 && shape.dims().iter().rev().eq(variable.shape.dims());
                let hint = match dtype != variable.dtype && *shape == variable.shape {
                    true if !is_advised => {
                        is_advised = true;
                        let rule = format!("[{{\"prefix\": \"\", \"dtype\": \"{}\"}}]", variable.dtype);
                        format!(" (--map casts tensors by rules such as {rule})")
                    }
                    _ if is_turned => " (--map has rules that turn tensors: \"transpose\")".to_owned(),
                    _ => String::new(),
                };
                differ.push(format!("variable {name} is {dtype}{shape} there and {wanted} in the graph{hint}"));
            }
        }
    }
    if extra {
        differ.extend(others.iter().map(|name| format!("{name} is not in the graph")));
    }
    if differ.is_empty() {
        return Ok(());
    }
    let more = differ.len().saturating_sub(MAX_NAMED);
    differ.truncate(MAX_NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Err(format!("{}{more}", differ.join(", ")))
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::*;

    #[test]
    fn the_names_of_states_say_after_which_step() {
        let folder = Path::new("run");
        for step in [0, 7, 1_234_567_890_123] {
            assert_eq!(step_of(&state(folder, step)), Some(step));
        }
        for (name, step) in [
            ("step-000000000012.safetensors", Some(12)),
            ("step-12.safetensors", Some(12)),
            ("step-12.npz", None),
            ("step-x.safetensors", None),
            ("best.safetensors", None),
            ("step-12.safetensors.part", None),
        ] {
            assert_eq!(step_of(&folder.join(name)), step, "{name}");
        }
        let is_of_state =
            ["step-000000000012.safetensors.7", BEST_FILE, "steps.safetensors", "step-12"].map(is_of_state);
        assert_eq!(is_of_state, [true, true, false, false]);
    }

    #[test]
    fn what_is_written_in_any_form_is_read() {
        let folder = TempDir::new().unwrap();
        let tensors = vec![
            ("layer/w".to_owned(), Tensor::from_vec([2, 1], vec![1f32, -0.0])),
            ("n".to_owned(), Tensor::scalar(-3i64)),
        ];
        let contents = Contents { tensors, metadata: BTreeMap::new() };
        for name in ["a/m.safetensors", "a/m.npz", "a/m", "a/m-7.ckpt"] {
            write(&folder.child(name), &contents).unwrap();
            assert_eq!(read(&folder.child(name), Which::Last).unwrap().1, contents, "{name}");
        }
        let files = fs::read_dir(folder.child("a")).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(files.into_iter().all(|name| !name.to_string_lossy().contains("part")));
        // Averages replace the variables that they are the averages of.
        let value = |name: &str, value: f32| (name.to_owned(), Tensor::scalar(value));
        let tensors = vec![value("w", 1.0), value("b", 2.0), value("w/ExponentialMovingAverage", 3.0)];
        let mut averaged: Vec<Entry> = tensors.into_iter().map(|(name, tensor)| Entry::of(&name, tensor)).collect();
        average(&mut averaged).unwrap();
        let loaded = |entry: &Entry| (entry.name.clone(), entry.load().unwrap());
        assert_eq!(averaged[..2].iter().map(loaded).collect::<Vec<_>>(), [value("w", 3.0), value("b", 2.0)]);
        averaged.truncate(2);
        assert!(average(&mut averaged).unwrap_err().to_string().contains("no moving averages"));
        // The form is known before anything is written.
        assert!(write(&folder.child("c/m.onnx"), &contents).unwrap_err().to_string().contains(".onnx is not a form"));
        assert!(!folder.child("c").exists());
        // A name that occurs twice cannot be written; no partial file is left.
        let twice = Contents { tensors: [&contents.tensors[..1], &contents.tensors[..1]].concat(), ..contents };
        for name in ["b/m.safetensors", "b/m.npz", "b/m"] {
            assert!(write(&folder.child(name), &twice).unwrap_err().to_string().contains("layer/w"), "{name}");
        }
        assert_eq!(fs::read_dir(folder.child("b")).unwrap().count(), 0);
        for (name, why) in [
            ("a/none", "beside which none.index would lie"),
            ("none.npz", "none.npz: "),
            ("a/m.h5", "there is no such model"),
            ("b", "no saved training state"),
        ] {
            let trouble = read(&folder.child(name), Which::Best).unwrap_err().to_string();
            assert!(trouble.contains(why), "{trouble}");
        }
    }
}
