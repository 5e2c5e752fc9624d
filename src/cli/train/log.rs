//! `--log DIR`: the data for TensorBoard (scalars, histograms of weights, the graph), and one object of JSON per line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use meshtf_graph::{Graph, graphdef};
use meshtf_kernels::{Event, Histogram, SummaryProto, SummaryValue, cast};
use meshtf_tensor::failure::counted;
use meshtf_tensor::{DType, Tensor};
use prost::Message;
use serde_json::Value;

use crate::cli::Trouble;
use crate::cli::paint::{mention, warn};

/// The file of lines.
const LINES: &str = "log.jsonl";
/// Maximum number of runs whose folders are beside each other by themselves.
const MAX_RUNS: u32 = 10_000;
/// The largest graph that is written, since a browser must draw it.
const MAX_GRAPH_BYTES: usize = 32 << 20;

/// The files of a training's log. Writing computes and waits for a disk: it must run where a thread may block. An entry that
/// cannot be written, such as on a full disk, is left out; the first one with a warning. So is one for which the files cannot be
/// made, which is tried again for the next.
pub(super) struct Log {
    folder: PathBuf,
    /// The graph as bytes, for the beginning of the events.
    graph: Vec<u8>,
    files: Option<Files>,
    missing: Option<Missing>,
}

/// The files: events for TensorBoard, and lines of JSON.
struct Files {
    events: Growing,
    lines: Growing,
}

/// The entries that could not be written.
struct Missing {
    count: u64,
    first: u64,
    last: u64,
}

/// A file to which whole pieces are appended: a piece that cannot be written leaves no part behind.
struct Growing {
    file: File,
    length: u64,
}

impl Growing {
    fn open(path: &Path) -> io::Result<Growing> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Growing { length: file.metadata()?.len(), file })
    }

    fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        let end = self.length + piece.len() as u64;
        match self.file.write_all(piece) {
            Ok(()) => self.length = end,
            Err(error) => {
                // Unless another process has written to it, too.
                if self.file.metadata().is_ok_and(|file| file.len() <= end) {
                    let _ = self.file.set_len(self.length);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Log {
    /// Begins a file of events in a folder, with the graph, and appends to the folder's `log.jsonl`.
    pub fn begin(folder: &Path, graph: &Graph) -> Log {
        let graph = graphdef::to_binary(&graph.to_defs());
        let mut log = Log { folder: folder.to_owned(), graph, files: None, missing: None };
        let begun = log.files().map(|_| ());
        log.check(0, begun);
        log
    }

    /// The files, which are made if there are none yet.
    fn files(&mut self) -> io::Result<&mut Files> {
        if self.files.is_none() {
            fs::create_dir_all(&self.folder)?;
            // TensorBoard reads the files of a folder in the order of their names.
            let name = format!("events.out.tfevents.{:010}.{}.meshtf", now() as u64, std::process::id());
            let path = self.folder.join(name);
            let (mut events, lines) = (Growing::open(&path)?, Growing::open(&self.folder.join(LINES))?);
            let mut start = Event::first(now()).record();
            if self.graph.len() <= MAX_GRAPH_BYTES {
                let graph_def = Some(self.graph.clone());
                start.extend(Event { graph_def, ..Event::at(now(), 0) }.record());
            }
            if events.length == 0 {
                events.append(&start)?;
            }
            self.graph = Vec::new();
            self.files = Some(Files { events, lines });
        }
        self.files.as_mut().ok_or_else(|| io::Error::other("there are no files"))
    }

    /// Numbers after a step, and the same as a line of JSON. `what` is the prefix of their names: `held_out/`, for example.
    pub fn numbers(&mut self, step: u64, what: &str, numbers: &[(&str, f64)], line: &Value) {
        let value = |(name, number): &(&str, f64)| SummaryValue {
            tag: format!("{what}{name}"),
            simple_value: Some(*number as f32),
            histo: None,
        };
        let record = summary(step, numbers.iter().map(value).collect());
        let mut line = line.clone();
        line["time"] = now().into();
        let written = self.files().and_then(|files| {
            files.events.append(&record)?;
            files.lines.append(format!("{line}\n").as_bytes())
        });
        self.check(step, written);
    }

    /// The histograms of weights after a step: of their finite elements.
    pub fn weights(&mut self, step: u64, weights: &[(String, Tensor)]) -> Result<(), Trouble> {
        let mut values = Vec::with_capacity(weights.len());
        for (name, tensor) in weights {
            let numbers = cast(tensor.clone(), DType::F64)?;
            let finite: Vec<f64> =
                numbers.slice::<f64>()?.iter().copied().filter(|number| number.is_finite()).collect();
            if !finite.is_empty() {
                let histo = Some(Histogram::of(&finite));
                values.push(SummaryValue { tag: format!("weights/{name}"), simple_value: None, histo });
            }
        }
        let written = self.files().and_then(|files| files.events.append(&summary(step, values)));
        self.check(step, written);
        Ok(())
    }

    /// Notes an entry that could not be written.
    fn check(&mut self, step: u64, written: io::Result<()>) {
        let Err(error) = written else { return };
        let missing = self.missing.get_or_insert_with(|| {
            warn(format_args!(
                "--log {}: {error}; the training continues, and so does its log as soon as it can be written",
                self.folder.display()
            ));
            Missing { count: 0, first: step, last: step }
        });
        // Step 0 is the beginning, which has no record.
        if step > 0 {
            missing.first = if missing.count == 0 { step } else { missing.first };
            (missing.count, missing.last) = (missing.count + 1, step);
        }
    }

    /// Reports the entries that are missing.
    pub fn end(&self) {
        if let Some(Missing { count: count @ 1.., first, last }) = self.missing {
            let records = counted(usize::try_from(count).unwrap_or(usize::MAX), "record");
            warn(format_args!(
                "--log {}: {records} of steps {first} to {last} could not be written",
                self.folder.display()
            ));
        }
    }
}

/// The folder for the log of a run: this one, or, if it has the log of another run, a new one beside it (`runs/1-2`, `runs/1-3`,
/// …). A run that continues one takes the newest of these.
pub(super) fn folder_for(named: &Path, continues: bool) -> PathBuf {
    // Without a slash at the end.
    let named: PathBuf = named.components().collect();
    let beside = |number: u32| {
        let mut name = named.as_os_str().to_owned();
        name.push(format!("-{number}"));
        PathBuf::from(name)
    };
    let all = std::iter::once(named.clone()).chain((2..=MAX_RUNS).map(beside));
    let (mut newest, mut free) = (None, None);
    for folder in all {
        if !folder.join(LINES).exists() {
            free = Some(folder);
            break;
        }
        newest = Some(folder);
    }
    match (continues, newest, free) {
        (true, Some(newest), _) => newest,
        (_, Some(_), Some(free)) => {
            mention(format_args!(
                "--log: {} has the log of another run; this one is in {}",
                named.display(),
                free.display()
            ));
            free
        }
        (_, newest, free) => free.or(newest).unwrap_or(named),
    }
}

/// The summary of a step, as a record.
fn summary(step: u64, value: Vec<SummaryValue>) -> Vec<u8> {
    let step = i64::try_from(step).unwrap_or(i64::MAX);
    let summary = Some(SummaryProto { value }.encode_to_vec());
    Event { summary, ..Event::at(now(), step) }.record()
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_events_and_lines() {
        let folder = temp_dir::TempDir::new().unwrap();
        let nodes = meshtf_graph::read(br#"{"version": 1, "nodes": {"y": 2.5}}"#).unwrap().nodes;
        let graph = Graph::new(nodes).unwrap();
        let mut log = Log::begin(&folder.child("log"), &graph);
        log.numbers(7, "held_out/", &[("loss", 0.5)], &serde_json::json!({ "step": 7 }));
        let w = Tensor::vector(vec![half::bf16::ONE, half::bf16::NAN, half::bf16::NEG_ONE]);
        log.weights(7, &[("w".to_owned(), w), ("nan".to_owned(), Tensor::scalar(f32::NAN))]).unwrap();
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder.child("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files[0].file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."), "{files:?}");
        let line: Value = serde_json::from_str(fs::read_to_string(&files[1]).unwrap().trim()).unwrap();
        assert!(line["step"] == 7 && line["time"].as_f64().unwrap() > 1.7e9, "{line}");
        let bytes = fs::read(&files[0]).unwrap();
        let (mut rest, mut events) = (&bytes[..], Vec::new());
        while let Some((length, _)) = rest.split_first_chunk::<8>() {
            let length = u64::from_le_bytes(*length) as usize;
            let event = Event::decode(&rest[12..length + 12]).unwrap();
            assert_eq!(rest[..length + 16], event.record());
            events.push(event);
            rest = &rest[length + 16..];
        }
        let [version, first, numbers, weights] = &events[..] else { panic!("{events:?}") };
        assert_eq!(version.file_version.as_deref(), Some("brain.Event:2"));
        assert!(first.graph_def.as_ref().is_some_and(|graph| meshtf_graph::read(graph).unwrap().nodes.len() == 1));
        let values = |event: &Event| SummaryProto::decode(event.summary.as_deref().unwrap()).unwrap().value;
        assert_eq!((numbers.step, weights.step), (7, 7));
        let number = SummaryValue { tag: "held_out/loss".to_owned(), simple_value: Some(0.5), histo: None };
        assert_eq!(values(numbers), [number]);
        let histo = Some(Histogram::of(&[1.0, -1.0]));
        assert_eq!(values(weights), [SummaryValue { tag: "weights/w".to_owned(), simple_value: None, histo }]);
        // Another run has a folder of its own; a run that continues has the newest one.
        let named = PathBuf::from(format!("{}/", folder.child("log").display()));
        assert_eq!(folder_for(&named, true), folder.child("log"));
        let other = folder_for(&named, false);
        assert_eq!(other, folder.child("log-2"));
        Log::begin(&other, &graph);
        assert_eq!(folder_for(&named, true), other);
        assert_eq!(folder_for(&folder.child("new"), true), folder.child("new"));
    }
}
