//! The output on stdout: values, tables, JSON. If its reader closes it, a command that only prints ends without a message, and
//! one that works continues without output ([`Lines`]).

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use meshtf_checkpoint::write_whole;
use meshtf_graph::plan::{DeviceSummary, Summary};
use meshtf_onnx::{Port, Shown};
use meshtf_tensor::failure::counted;
use meshtf_tensor::memory::Bytes;
use meshtf_tensor::render::to_json;
use meshtf_tensor::{DType, Tensor, npy};
use serde_json::{Map, Value, json};

use super::Trouble;
use super::inputs::StepRequest;
use super::paint::{Paint, Tone};

/// Whether this process was started with a standard output. Without one (`meshtf … >&-`) Rust replaces it by /dev/null before
/// `main`, and results would be lost without a message.
static HAS_STDOUT: AtomicBool = AtomicBool::new(true);

/// Makes every later [`bytes`] fail: there is no stdout to write to.
pub(super) fn has_no_stdout() {
    HAS_STDOUT.store(false, Ordering::Relaxed);
}

/// Writes to stdout and flushes.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Trouble> {
    if !HAS_STDOUT.load(Ordering::Relaxed) {
        return Err(Trouble::stdout(io::Error::other("it is closed")));
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Trouble::stdout)
}

/// One line, or several that belong together.
pub(super) fn line(text: &str) -> Result<(), Trouble> {
    bytes(format!("{text}\n").as_bytes())
}

/// Lines on stdout that accompany work. Output that ends does not end the work: from then on nothing is printed.
#[derive(Debug, Default)]
pub(super) struct Lines {
    ended: Option<Trouble>,
}

impl Lines {
    /// Prints one line, or several that belong together.
    pub fn line(&mut self, text: &str) {
        if self.ended.is_none() {
            self.ended = line(text).err();
        }
    }

    /// The error that ended the output, for work that is of no use without it.
    pub fn ended(&mut self) -> Option<Trouble> {
        self.ended.take()
    }

    /// The result of the output after the work: the error that ended it, unless its reader closed it.
    pub fn result(self) -> Result<(), Trouble> {
        match self.ended {
            Some(trouble) if !trouble.is_closed_pipe() => Err(trouble),
            _ => Ok(()),
        }
    }
}

/// A JSON value, indented on a terminal.
pub(super) fn json_value(value: &Value) -> Result<(), Trouble> {
    line(&json_text(value))
}

/// The text of a JSON value, indented on a terminal.
pub(super) fn json_text(value: &Value) -> String {
    if io::stdout().is_terminal() { format!("{value:#}") } else { value.to_string() }
}

/// The fetched values as text: a single one without its name, several as `name: value`. A value of rank 2 and more begins on a
/// new line.
pub(super) fn values_text(names: &[String], values: &[Tensor]) -> String {
    match values {
        [one] => one.to_string(),
        _ => {
            let lines: Vec<String> = names
                .iter()
                .zip(values)
                .map(|(name, value)| {
                    let text = value.to_string();
                    if text.contains('\n') { format!("{name}:\n{text}") } else { format!("{name}: {text}") }
                })
                .collect();
            lines.join("\n")
        }
    }
}

/// The fetched values as JSON: `{"y": {"dtype": "int32", "shape": [], "value": 238}}`.
pub(super) fn values_json(names: &[String], values: &[Tensor]) -> Value {
    let entries = names.iter().zip(values).map(|(name, value)| (name.clone(), tensor_json(value)));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// The values of one step of many, as JSON or as text: after the step's number, or below it if they take several lines.
pub(super) fn step_text(step: u64, names: &[String], values: &[Tensor], json: bool) -> String {
    if json {
        return json!({ "step": step, "values": values_json(names, values) }).to_string();
    }
    let text = values_text(names, values);
    let gap = if text.contains('\n') { '\n' } else { ' ' };
    format!("step {step}:{gap}{text}")
}

pub(super) fn tensor_json(value: &Tensor) -> Value {
    json!({ "dtype": value.dtype().name(), "shape": value.dims(), "value": to_json(value) })
}

/// Refuses a file of a flag that could not be written, before anything runs for it.
pub(super) fn check_file(flag: &str, path: &Path) -> Result<(), Trouble> {
    let refuse = |why: &str| Err(Trouble::input(format!("{flag} {}: {why}", path.display())));
    if path.is_dir() {
        return refuse("it is a folder; expected a file");
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => refuse("its folder does not exist"),
        _ => Ok(()),
    }
}

/// Refuses a file of `--out` that could not be written, before anything runs for it. Its folder is made with it if it is missing.
pub(super) fn check_out(path: &Path) -> Result<(), Trouble> {
    let refuse = |why: String| Err(Trouble::input(format!("--out {}: {why}", path.display())));
    if path.is_dir() {
        return refuse("it is a folder; expected a file".to_owned());
    }
    // The nearest that exists.
    match path.ancestors().skip(1).find(|above| above.exists() && !above.as_os_str().is_empty()) {
        Some(above) if !above.is_dir() => refuse(format!("{} is a file, not a folder", above.display())),
        _ => Ok(()),
    }
}

/// Makes the folder of a file of `--out`.
pub(super) fn make_folder_of(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::create_dir_all(folder),
        _ => Ok(()),
    }
}

/// Refuses an `--out` that is one of the files that the run reads.
pub(super) fn check_is_no_input<'p>(out: &Path, inputs: impl IntoIterator<Item = &'p Path>) -> Result<(), Trouble> {
    // Only a file that exists can be an input.
    let Ok(own) = out.canonicalize() else { return Ok(()) };
    match inputs.into_iter().find(|input| input.canonicalize().is_ok_and(|input| input == own)) {
        None => Ok(()),
        Some(_) => Err(Trouble::input(format!("--out {}: it is an input of this run; name another", out.display()))),
    }
}

/// Refuses an `--out` that could not be written, before anything runs for it.
pub(super) fn check_save(folder: &Path, values: &[(&str, DType, bool)]) -> Result<(), Trouble> {
    if folder.exists() && !folder.is_dir() {
        return Err(Trouble::input(format!(
            "--out {}: it is a file; expected a folder, or a file that ends in .npy, .npz, .csv, .json or .jsonl",
            folder.display()
        )));
    }
    match values.iter().find(|(_, dtype, is_proto)| *dtype == DType::String && !is_proto) {
        None => Ok(()),
        Some((fetch, ..)) => Err(Trouble::input(format!(
            "--out: {fetch} is a string tensor, and strings are not written as .npy; leave it out of --fetch, or print it \
             (without --out, or with --json)"
        ))),
    }
}

/// The files of fetches in a folder: `DIR/NAME.npy`, or for an output of an ONNX model that NumPy has no dtype for `DIR/NAME.pb`.
/// Characters that a file name cannot contain become `_`.
pub(super) fn files_of(folder: &Path, job: &StepRequest) -> Vec<PathBuf> {
    let mut taken = std::collections::BTreeSet::new();
    let mut file = |(name, tensor): (&String, &String)| {
        let stem: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
        let ending = if job.ports.output(tensor).is_some_and(Port::is_proto) { "pb" } else { "npy" };
        (1..)
            .map(|n| if n == 1 { format!("{stem}.{ending}") } else { format!("{stem}-{n}.{ending}") })
            .find(|file| taken.insert(file.to_lowercase()))
            .expect("there are more numbers than names")
    };
    job.names.iter().zip(&job.fetches).map(|own| folder.join(file(own))).collect()
}

/// Writes each value to its file ([`files_of`]), each whole or not at all, and returns the files.
pub(super) fn save(folder: &Path, job: &StepRequest, values: &[Tensor]) -> Result<Vec<PathBuf>, Trouble> {
    let cannot = |path: &Path, why: &dyn std::fmt::Display| Trouble::input(format!("--out {}: {why}", path.display()));
    let files = files_of(folder, job);
    let mut arrays = Vec::with_capacity(values.len());
    for ((path, tensor), value) in files.iter().zip(&job.fetches).zip(values) {
        let bytes = match job.ports.output(tensor).map(|port| port.shown(value)) {
            Some(Ok(Shown::Proto(bytes))) => Ok(bytes),
            Some(Err(failure)) => Err(failure),
            Some(Ok(Shown::Tensor(_))) | None => npy::write(value),
        };
        arrays.push(bytes.map_err(|failure| cannot(path, &failure.message))?);
    }
    std::fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
    for (path, array) in files.iter().zip(&arrays) {
        write_whole(path, array).map_err(|error| cannot(path, &error))?;
    }
    Ok(files)
}

/// The device of each part, one line per device, and the transfers.
pub(super) fn where_it_ran(paint: Paint, summary: &Summary) -> String {
    let mut lines = Vec::new();
    for DeviceSummary { device, nodes, more_nodes } in &summary.devices {
        // A device without nodes only passes on a fed or fetched value.
        if nodes.is_empty() {
            continue;
        }
        let more = if *more_nodes > 0 { format!(" and {more_nodes} more") } else { String::new() };
        lines.push(format!("{}: {}{more}", paint.tone(Tone::Accent, device), nodes.join(", ")));
    }
    for transfer in &summary.transfers {
        let bytes = transfer.bytes.map_or_else(String::new, |bytes| format!(", {}", Bytes(bytes as usize)));
        let [from, to] = [&transfer.from, &transfer.to].map(|device| paint.tone(Tone::Accent, device));
        lines.push(format!("{from} -> {to}: {}{bytes}", transfer.tensor));
    }
    if summary.more_transfers > 0 {
        lines.push(format!("and {}", counted(summary.more_transfers as usize, "more transfer")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_never_written_over() {
        let folder = temp_dir::TempDir::new().unwrap();
        let (one, other) = (folder.child("x.csv"), folder.child("y.csv"));
        std::fs::write(&one, "a").unwrap();
        let again = folder.path().join("./x.csv");
        assert!(
            check_is_no_input(&again, [other.as_path(), &one]).unwrap_err().to_string().contains("input of this run")
        );
        assert!(check_is_no_input(&other, [one.as_path(), &other]).is_ok(), "it does not exist");
        assert!(check_is_no_input(&one, [other.as_path()]).is_ok());
    }

    #[test]
    fn one_value_is_alone_and_several_have_names() {
        let names = ["y".to_owned(), "z:1".to_owned()];
        let values = [Tensor::scalar(238i32), Tensor::vector(vec![1.5f32, 2.0])];
        assert_eq!(values_text(&names[..1], &values[..1]), "238");
        assert_eq!(
            values_json(&names, &values),
            json!({
                "y": { "dtype": "int32", "shape": [], "value": 238 },
                "z:1": { "dtype": "float32", "shape": [2], "value": [1.5, 2.0] }
            })
        );
    }
}
