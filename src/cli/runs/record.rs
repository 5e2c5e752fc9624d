//! The record of a run, as its file has it: the inputs, the machine, the course and the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meshtf_tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::curve::Curve;
use super::origin::{Git, Machine, Process};

/// Maximum number of bytes of the command line and of a message, of one section, and of all curves' number.
const MAX_TEXT_BYTES: usize = 8 << 10;
const MAX_SECTION_BYTES: usize = 32 << 10;
const MAX_CURVES: usize = 16;
/// Maximum number of saved states and of tasks that are named.
const MAX_SAVED: usize = 16;
const MAX_TASKS: usize = 64;
/// A run on another machine whose record is older than this is lost; a running one writes its record more often.
pub const LOST_AFTER_MS: u64 = 5 * 60 * 1000;

/// The command of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    #[default]
    Train,
    Submit,
    Run,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Train, Kind::Submit, Kind::Run];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Train => "train",
            Kind::Submit => "submit",
            Kind::Run => "run",
        }
    }
}

/// A run. A field that an older release did not write has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub id: String,
    pub kind: Kind,
    /// The file of the graph, and the hash of its nodes: two files with the same nodes and other sections have the same.
    pub graph: PathBuf,
    pub graph_hash: String,
    /// The sections `data`, `train` and `evaluate`, as the file has them.
    pub sections: Map<String, Value>,
    /// The command line, and the folder in which it was given.
    pub command: Vec<String>,
    pub folder: PathBuf,
    /// The state of the repository that has the graph, if there is one.
    pub git: Option<Git>,
    pub machine: Machine,
    pub process: Process,
    /// The tasks of the graph.
    pub tasks: Vec<String>,
    /// Milliseconds since 1970.
    pub began_ms: u64,
    pub updated_ms: u64,
    pub ended_ms: Option<u64>,
    pub steps: Steps,
    /// How often the run continued after the loss of a task.
    pub retries: u32,
    pub curves: Vec<Curve>,
    /// The criterion for the best evaluation, if there are evaluations.
    pub best: Option<Best>,
    /// The last saved states.
    pub checkpoints: Vec<Saved>,
    /// Other files and folders that the run wrote, by the flags that name them.
    pub files: BTreeMap<String, PathBuf>,
    /// Notices of the training, such as the state from which it continued.
    pub notices: Vec<String>,
    pub end: Option<End>,
}

/// The steps of a run: done before it, done now, and of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Steps {
    pub start: u64,
    pub done: u64,
    pub total: u64,
}

/// The metric that decides which evaluation is the best.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Best {
    pub of: String,
    pub is_greatest: bool,
}

/// A saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub step: u64,
    pub file: PathBuf,
}

/// The end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    pub how: How,
    /// The reason, for all but the plain end.
    pub message: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    #[default]
    Done,
    /// Before its last step, since the watched value did not improve any more.
    Enough,
    /// By a signal.
    Stopped,
    Failed,
}

/// The state of a run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    /// Its process is gone, and did not write an end: it was killed, or this machine stopped.
    Killed,
    /// The same on another machine, as far as is known here.
    Lost,
    Ended(How),
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Killed => "killed",
            State::Lost => "lost",
            State::Ended(How::Done) => "done",
            State::Ended(How::Enough) => "enough",
            State::Ended(How::Stopped) => "stopped",
            State::Ended(How::Failed) => "failed",
        }
    }
}

impl Record {
    /// The record of a run of this process that begins now.
    pub fn new(kind: Kind, graph: &Path, graph_hash: String) -> Record {
        let mut left = MAX_TEXT_BYTES;
        let words = std::env::args().map(|word| {
            let word = cut(&word, left);
            left -= word.len().min(left);
            word
        });
        Record {
            kind,
            graph: std::path::absolute(graph).unwrap_or_else(|_| graph.to_owned()),
            graph_hash,
            command: words.filter(|word| !word.is_empty()).collect(),
            folder: std::env::current_dir().unwrap_or_default(),
            machine: Machine::here(),
            process: Process::own(),
            began_ms: now_ms(),
            updated_ms: now_ms(),
            ..Record::default()
        }
    }

    pub fn named_tasks(mut self, tasks: impl IntoIterator<Item = String>) -> Record {
        self.tasks = tasks.into_iter().take(MAX_TASKS).collect();
        self
    }

    /// Adds a file or a folder that the run writes.
    pub fn file(mut self, flag: &str, path: Option<&Path>) -> Record {
        if let Some(path) = path {
            self.files.insert(flag.to_owned(), std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        }
        self
    }

    /// Takes the sections of a file that trains; a section that is too long is left out.
    pub fn with_sections(mut self, text: &str) -> Record {
        #[derive(Deserialize)]
        struct File {
            data: Option<Value>,
            train: Option<Value>,
            evaluate: Option<Value>,
        }
        let Ok(File { data, train, evaluate }) = serde_json::from_str::<File>(text) else { return self };
        for (name, section) in [("data", data), ("train", train), ("evaluate", evaluate)] {
            let Some(section) = section else { continue };
            let bytes = section.to_string().len();
            let kept = if bytes <= MAX_SECTION_BYTES { section } else { format!("{bytes} bytes, left out").into() };
            self.sections.insert(name.to_owned(), kept);
        }
        self
    }

    /// Adds a value of a step to the curve of its name.
    pub fn value(&mut self, name: &str, is_held_out: bool, step: u64, value: f64) {
        let is_own = |curve: &Curve| curve.name == name && curve.is_held_out == is_held_out;
        let at = self.curves.iter().position(is_own).unwrap_or(self.curves.len());
        if at == self.curves.len() && at < MAX_CURVES {
            self.curves.push(Curve::new(cut(name, 256), is_held_out));
        }
        if let Some(curve) = self.curves.get_mut(at) {
            curve.add(step, value);
        }
    }

    /// Adds the numbers among the values that a step fetched.
    pub fn values(&mut self, step: u64, names: &[String], values: &[Tensor]) {
        self.steps.done = self.steps.done.max(step);
        for (name, value) in names.iter().zip(values).filter(|(_, value)| value.len() == 1) {
            let number = meshtf_kernels::cast(value.clone(), DType::F64);
            if let Some(number) = number.ok().and_then(|number| number.slice::<f64>().ok()?.first().copied()) {
                self.value(name, false, step, number);
            }
        }
    }

    /// A state was saved.
    pub fn saved(&mut self, step: u64, file: &Path) {
        self.checkpoints.retain(|saved| saved.file != file);
        self.checkpoints.push(Saved { step, file: std::path::absolute(file).unwrap_or_else(|_| file.to_owned()) });
        let more = self.checkpoints.len().saturating_sub(MAX_SAVED);
        self.checkpoints.drain(..more);
    }

    pub fn noted(&mut self, text: &str) {
        if self.notices.len() < MAX_SAVED {
            self.notices.push(cut(text, 1024));
        }
    }

    pub fn ended(&mut self, how: How, message: Option<String>) {
        self.ended_ms = Some(now_ms());
        self.end = Some(End { how, message: message.map(|text| cut(&text, MAX_TEXT_BYTES)) });
    }

    /// The first curve: the loss of a training, or the first number that a run fetches.
    pub fn first_curve(&self, is_held_out: bool) -> Option<&Curve> {
        self.curves.iter().find(|curve| curve.is_held_out == is_held_out)
    }

    /// The state; `host` and `is_alive` are of this machine.
    pub fn state(&self, now_ms: u64, here: &Machine, is_alive: impl Fn(&Process) -> bool) -> State {
        match &self.end {
            Some(end) => State::Ended(end.how),
            None if self.machine.host == here.host && is_alive(&self.process) => State::Running,
            None if self.machine.host == here.host => State::Killed,
            None if now_ms.saturating_sub(self.updated_ms) < LOST_AFTER_MS => State::Running,
            None => State::Lost,
        }
    }

    pub fn state_now(&self) -> State {
        self.state(now_ms(), &Machine::here(), Process::is_alive)
    }

    /// How long it took, or takes so far, or took until its last sign of life.
    pub fn seconds(&self, state: State) -> u64 {
        let until = match state {
            State::Running => now_ms(),
            _ => self.ended_ms.unwrap_or(self.updated_ms),
        };
        until.saturating_sub(self.began_ms) / 1000
    }
}

/// Text of at most so many bytes.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most.saturating_sub('…'.len_utf8())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    if most < '…'.len_utf8() { String::new() } else { format!("{}…", &text[..end]) }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::new(Kind::Train, Path::new("graph.json"), "ab".into())
    }

    #[test]
    fn a_run_without_an_end_is_running_killed_or_lost() {
        let (mut run, here) = (record(), Machine::here());
        let state = |run: &Record, later: u64, alive: bool| run.state(run.updated_ms + later, &here, |_| alive);
        assert_eq!(state(&run, 0, true), State::Running);
        assert_eq!(state(&run, 0, false), State::Killed);
        // The processes of another machine are unknown here.
        run.machine.host = format!("{}-other", here.host);
        assert_eq!(state(&run, 1000, false), State::Running);
        assert_eq!(state(&run, LOST_AFTER_MS, false), State::Lost);
        run.ended(How::Failed, Some("no".into()));
        assert_eq!(state(&run, LOST_AFTER_MS, false), State::Ended(How::Failed));
    }

    #[test]
    fn a_record_is_bounded_and_reads_as_it_was_written() {
        let mut run = record().with_sections(&format!(
            r#"{{"nodes": {{"y": 1}}, "data": {{"x": "{}"}}, "train": {{"rate": 0.5}}}}"#,
            "z".repeat(MAX_SECTION_BYTES)
        ));
        assert_eq!(run.sections["train"], serde_json::json!({ "rate": 0.5 }));
        assert!(run.sections["data"].as_str().unwrap().ends_with("left out") && !run.sections.contains_key("nodes"));
        for step in 1..=10_000 {
            run.value("loss", false, step, if step == 7 { f64::NAN } else { (step % 8) as f64 / 8.0 });
            run.value(&format!("metric {step}"), true, step, 1.0);
            run.saved(step, &PathBuf::from(format!("run/step-{step}")));
            run.noted("a notice");
        }
        run.ended(How::Stopped, Some("ä".repeat(MAX_TEXT_BYTES)));
        assert_eq!((run.curves.len(), run.checkpoints.len(), run.notices.len()), (MAX_CURVES, MAX_SAVED, MAX_SAVED));
        let text = serde_json::to_string(&run).unwrap();
        assert!(text.len() < 256 << 10, "{} bytes", text.len());
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), run);
        // A record of another release.
        let read: Record = serde_json::from_str(r#"{"id": "1a", "later": [1], "steps": {"done": 5}}"#).unwrap();
        assert_eq!((read.id.as_str(), read.steps.done, read.steps.total), ("1a", 5, 0));
    }

    #[test]
    fn a_text_is_cut_between_letters() {
        for (text, most, want) in
            [("abc", 3, "abc"), ("abcd", 3, "…"), ("äöü", 5, "ä…"), ("abc", 0, ""), ("abcde", 4, "a…")]
        {
            assert_eq!(cut(text, most), want, "{text} in {most}");
        }
    }
}
