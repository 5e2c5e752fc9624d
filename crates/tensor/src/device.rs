//! The names of tasks, of devices, and the partial device string of a node; the facts about a device.
//!
//! The grammar is TensorFlow's: `/job:NAME/replica:N/task:N/device:KIND:N`; every part is optional in a request.
//! `/cpu:0` and `/gpu:0` are older spellings of `/device:CPU:0` and `/device:GPU:0`; `*` leaves a part open. meshtf has
//! no replicas: `/replica:0` is accepted and has no meaning.

mod facts;

use std::fmt;
use std::str::FromStr;

pub use facts::{
    Capacity, DeviceFacts, DeviceMemory, MAX_CORES, MAX_MEMORY_BYTES, MAX_RATE, Rates, STREAMED_BYTES, Streamed,
};
use serde::{Deserialize, Serialize};

/// A task of a job: `/job:worker/task:1`, short form `worker/1`. At most one live node serves it at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Task {
    /// Name of the job: `worker`.
    pub job: String,
    /// Number of the task in its job, from 0.
    pub index: u32,
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceKind {
    /// The CPUs of the task's machine, with the memory of its process.
    Cpu,
    /// A GPU.
    Gpu,
}

/// One device of one task: `/job:worker/task:1/device:GPU:0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceName {
    /// The task whose node serves it.
    pub task: Task,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Number of the device among those of its kind on the task, from 0.
    pub index: u32,
}

/// The device request of a node: parts that are `None` are left to the placer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Name of the job, if requested.
    pub job: Option<String>,
    /// Number of the task in its job, if requested.
    pub task: Option<u32>,
    /// Kind of the device, if requested.
    pub kind: Option<DeviceKind>,
    /// Number of the device among those of its kind, if requested.
    pub index: Option<u32>,
}

/// A name or device string that violates the grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}: {why}; {right}")]
pub struct NameError {
    /// The text that was read.
    pub text: String,
    /// The kind of name that was expected, e.g. `task`.
    pub what: &'static str,
    /// The reason for the error.
    pub why: String,
    /// The expected form, with an example.
    pub right: &'static str,
}

const TASK_EXAMPLE: &str = "expected local/0 or /job:local/task:0";
const DEVICE_EXAMPLE: &str = "expected /job:local/task:0/device:GPU:0, from which any part may be omitted, or /gpu:0";

impl DeviceKind {
    /// Its name in device names: `CPU` or `GPU`.
    #[inline]
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "CPU",
            DeviceKind::Gpu => "GPU",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_uppercase().as_str() {
            "CPU" => Some(DeviceKind::Cpu),
            "GPU" => Some(DeviceKind::Gpu),
            _ => None,
        }
    }
}

impl Task {
    /// The task of that number in a job. Does not check the job's name; reading a task from text does.
    pub fn new(job: impl Into<String>, index: u32) -> Self {
        Task { job: job.into(), index }
    }

    /// The short form, `worker/1`, as used on the command line.
    pub fn short(&self) -> String {
        format!("{}/{}", self.job, self.index)
    }

    /// The device of this task.
    #[inline]
    pub fn device(&self, kind: DeviceKind, index: u32) -> DeviceName {
        DeviceName { task: self.clone(), kind, index }
    }
}

impl DeviceName {
    /// Whether this device satisfies the request.
    #[inline]
    pub fn matches(&self, spec: &DeviceSpec) -> bool {
        spec.job.as_ref().is_none_or(|job| *job == self.task.job)
            && spec.task.is_none_or(|task| task == self.task.index)
            && spec.kind.is_none_or(|kind| kind == self.kind)
            && spec.index.is_none_or(|index| index == self.index)
    }
}

impl DeviceSpec {
    /// Whether nothing is requested.
    #[inline]
    pub fn is_open(&self) -> bool {
        *self == DeviceSpec::default()
    }

    /// The combination of both requests; `None` if they contradict each other.
    pub fn merge(&self, other: &DeviceSpec) -> Option<DeviceSpec> {
        fn one<T: Clone + PartialEq>(a: &Option<T>, b: &Option<T>) -> Option<Option<T>> {
            match (a, b) {
                (Some(a), Some(b)) if a != b => None,
                (Some(a), _) => Some(Some(a.clone())),
                (None, b) => Some(b.clone()),
            }
        }
        Some(DeviceSpec {
            job: one(&self.job, &other.job)?,
            task: one(&self.task, &other.task)?,
            kind: one(&self.kind, &other.kind)?,
            index: one(&self.index, &other.index)?,
        })
    }

    /// The request without the kind and index of a device, to which soft placement falls back.
    #[inline]
    pub fn task_only(&self) -> DeviceSpec {
        DeviceSpec { job: self.job.clone(), task: self.task, kind: None, index: None }
    }
}

impl From<&DeviceName> for DeviceSpec {
    fn from(name: &DeviceName) -> Self {
        DeviceSpec {
            job: Some(name.task.job.clone()),
            task: Some(name.task.index),
            kind: Some(name.kind),
            index: Some(name.index),
        }
    }
}

/// The reason why a text is not the number of a task or device.
fn no_number(text: &str) -> String {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if is_number { format!("too large; the maximum is {}", u32::MAX) } else { "not a number".to_owned() }
}

fn is_job(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl FromStr for DeviceSpec {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let error =
            |why: String| NameError { text: text.to_owned(), what: "device string", why, right: DEVICE_EXAMPLE };
        let mut spec = DeviceSpec::default();
        if text.is_empty() {
            return Ok(spec);
        }
        let Some(parts) = text.strip_prefix('/') else {
            return Err(error("it does not begin with /".into()));
        };
        let number = |key: &str, value: &str| match value {
            "*" => Ok(None),
            _ => value.parse::<u32>().map(Some).map_err(|_| error(format!("{key}:{value} is {}", no_number(value)))),
        };
        for part in parts.split('/') {
            let (key, value) = part.split_once(':').ok_or_else(|| error(format!("{part:?} has no colon")))?;
            match key.to_ascii_lowercase().as_str() {
                "job" if value == "*" => spec.job = None,
                "job" if is_job(value) => spec.job = Some(value.to_owned()),
                "job" => {
                    return Err(error(format!("{value:?} is not a job name (a letter, then letters, digits and _)")));
                }
                "task" => spec.task = number(key, value)?,
                "replica" => match number(key, value)? {
                    None | Some(0) => {}
                    Some(n) => return Err(error(format!("replica {n} does not exist, only replica 0"))),
                },
                "device" => {
                    let (kind, index) = value.split_once(':').unwrap_or((value, "*"));
                    spec.kind = match kind {
                        "*" => None,
                        _ => Some(
                            DeviceKind::parse(kind)
                                .ok_or_else(|| error(format!("the device kind {kind:?} is neither CPU nor GPU")))?,
                        ),
                    };
                    spec.index = number(key, index)?;
                }
                old => match DeviceKind::parse(old) {
                    Some(kind) => {
                        spec.kind = Some(kind);
                        spec.index = number(key, value)?;
                    }
                    None => return Err(error(format!("{key:?} is not job, replica, task or device"))),
                },
            }
        }
        Ok(spec)
    }
}

impl FromStr for Task {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let error =
            |why: &str| NameError { text: text.to_owned(), what: "task name", why: why.into(), right: TASK_EXAMPLE };
        if !text.starts_with('/') {
            let (job, index) = text.split_once('/').ok_or_else(|| error("it has no /"))?;
            let index = index.parse().map_err(|_| error(&format!("the part after / is {}", no_number(index))))?;
            return if is_job(job) {
                Ok(Task::new(job, index))
            } else {
                Err(error("the job is not a letter followed by letters, digits and _"))
            };
        }
        let spec: DeviceSpec =
            text.parse().map_err(|e: NameError| NameError { what: "task name", right: TASK_EXAMPLE, ..e })?;
        match spec {
            DeviceSpec { job: Some(job), task: Some(index), kind: None, index: None } => Ok(Task { job, index }),
            DeviceSpec { kind: Some(_), .. } | DeviceSpec { index: Some(_), .. } => {
                Err(error("it names a device, not a task"))
            }
            _ => Err(error("it needs both a job and a task number")),
        }
    }
}

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.parse::<DeviceSpec>()? {
            DeviceSpec { job: Some(job), task: Some(task), kind: Some(kind), index: Some(index) } => {
                Ok(Task::new(job, task).device(kind, index))
            }
            _ => Err(NameError {
                text: text.to_owned(),
                what: "full device name",
                why: "a part is missing".into(),
                right: DEVICE_EXAMPLE,
            }),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/job:{}/task:{}", self.job, self.index)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/device:{}:{}", self.task, self.kind.name(), self.index)
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (self.kind, self.index) {
            (Some(kind), Some(index)) => write!(f, "/device:{}:{index}", kind.name()),
            (Some(kind), None) => write!(f, "/device:{}:*", kind.name()),
            (None, Some(index)) => write!(f, "/device:*:{index}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_strings_in_every_spelling() {
        let check = |text: &str, want: Option<&str>| {
            let got = text.parse::<DeviceSpec>().ok().map(|spec| spec.to_string());
            assert_eq!(got.as_deref(), want, "{text:?}");
        };
        check("", Some(""));
        check("/job:local/task:1", Some("/job:local/task:1"));
        check("/gpu:0", Some("/device:GPU:0"));
        check("/CPU:0", Some("/device:CPU:0"));
        check("/job:worker_/replica:0/task:1/device:gpu:2", Some("/job:worker_/task:1/device:GPU:2"));
        check("/job:ps/task:*/device:CPU:*", Some("/job:ps/device:CPU:*"));
        check("/device:CPU", Some("/device:CPU:*"));
        check("job:local", None);
        check("/job:lo-cal", None);
        check("/task:x", None);
        check("/replica:1", None);
        check("/device:TPU:0", None);
        check("/tpu:0", None);
    }

    #[test]
    fn tasks_in_both_spellings() {
        let local = Task::new("local", 0);
        assert_eq!("local/0".parse(), Ok(local.clone()));
        assert_eq!("/job:local/task:0".parse(), Ok(local.clone()));
        assert_eq!(local.to_string().parse(), Ok(local));
        for bad in ["local", "local/x", "/job:local", "/job:local/task:0/gpu:0", "9/0", "a b/0", ""] {
            let error = bad.parse::<Task>().unwrap_err().to_string();
            assert!(error.contains(TASK_EXAMPLE), "{error}");
        }
    }

    #[test]
    fn requests_merge_unless_they_contradict() {
        let spec = |text: &str| text.parse::<DeviceSpec>().unwrap();
        assert_eq!(spec("/job:a").merge(&spec("/task:1/gpu:0")), Some(spec("/job:a/task:1/gpu:0")));
        assert_eq!(spec("/job:a").merge(&spec("/job:b")), None);
    }
}
