//! The failure type of the mesh: a class known to every client of TensorFlow, a message, and the location of the failure.
//!
//! A [`Failure`] is the one error that crosses a boundary of the mesh: planning, a kernel, a worker and
//! the master all answer with it. It never holds a backtrace or an address of this process.

use std::any::Any;
use std::fmt;
use std::sync::Weak;

use serde::{Deserialize, Serialize};

use crate::memory::Budget;

/// The canonical gRPC codes, with TensorFlow's names for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Code {
    /// The client cancelled the request, or the work that it belonged to has ended.
    Cancelled = 1,
    /// A failure of no known class.
    Unknown = 2,
    /// An argument, a graph or a name is wrong, whatever the state of the system.
    InvalidArgument = 3,
    /// The deadline was exceeded.
    DeadlineExceeded = 4,
    /// A named object does not exist.
    NotFound = 5,
    /// An object of that name exists already.
    AlreadyExists = 6,
    /// The caller is not permitted to do it.
    PermissionDenied = 7,
    /// A limit is reached: memory, a queue, a count.
    ResourceExhausted = 8,
    /// The system is not in the required state: a variable has no value, for example.
    FailedPrecondition = 9,
    /// It was aborted because of another event; a retry from an earlier point may help.
    Aborted = 10,
    /// It went past a valid range: a queue is closed and empty, for example.
    OutOfRange = 11,
    /// meshtf has no implementation of it.
    Unimplemented = 12,
    /// An invariant is violated: a bug.
    Internal = 13,
    /// A task cannot be reached. A retry may help.
    Unavailable = 14,
    /// Data is lost or damaged.
    DataLoss = 15,
    /// The caller has not authenticated itself.
    Unauthenticated = 16,
}

/// A count with its noun: `1 input`, `2 inputs`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

impl Code {
    /// The canonical number, as gRPC writes it.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The code of that number; `None` for 0, which is success, and for numbers that are not codes.
    pub const fn from_number(number: u8) -> Option<Code> {
        Some(match number {
            1 => Code::Cancelled,
            2 => Code::Unknown,
            3 => Code::InvalidArgument,
            4 => Code::DeadlineExceeded,
            5 => Code::NotFound,
            6 => Code::AlreadyExists,
            7 => Code::PermissionDenied,
            8 => Code::ResourceExhausted,
            9 => Code::FailedPrecondition,
            10 => Code::Aborted,
            11 => Code::OutOfRange,
            12 => Code::Unimplemented,
            13 => Code::Internal,
            14 => Code::Unavailable,
            15 => Code::DataLoss,
            16 => Code::Unauthenticated,
            _ => return None,
        })
    }

    /// The name of the exception class that TensorFlow's Python client raises for this code.
    pub const fn class(self) -> &'static str {
        match self {
            Code::Cancelled => "CancelledError",
            Code::Unknown => "UnknownError",
            Code::InvalidArgument => "InvalidArgumentError",
            Code::DeadlineExceeded => "DeadlineExceededError",
            Code::NotFound => "NotFoundError",
            Code::AlreadyExists => "AlreadyExistsError",
            Code::PermissionDenied => "PermissionDeniedError",
            Code::ResourceExhausted => "ResourceExhaustedError",
            Code::FailedPrecondition => "FailedPreconditionError",
            Code::Aborted => "AbortedError",
            Code::OutOfRange => "OutOfRangeError",
            Code::Unimplemented => "UnimplementedError",
            Code::Internal => "InternalError",
            Code::Unavailable => "UnavailableError",
            Code::DataLoss => "DataLossError",
            Code::Unauthenticated => "UnauthenticatedError",
        }
    }
}

/// A reason more specific than the class, for programs that react to it: a client that retries, a command that chooses its exit
/// code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A named task is not up, and its name does not look like a typo of one that is.
    TaskDown,
    /// The requested plan no longer exists, or one of its tasks is another process now; it must be prepared again. No step has
    /// begun, and the answer returns the feeds.
    PlanGone,
    /// The partial run to be fed does not exist or has ended. The answer to the run itself states why.
    RunOver,
    /// The session was ended by a later session that claimed one of its names.
    Superseded,
    /// A fetch is a handle of state on a device, which no client can have. No step has begun.
    HandleFetched,
    /// The session has ended, since its master is gone.
    MasterGone,
}

/// The progress of a request when it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// No step failed: the request was refused before a step began, or was ended from outside, for example because its client
    /// cancelled it or a task was lost.
    #[default]
    Refused,
    /// This step failed. Steps count from 1: to a client, those of its run; between nodes, those of its session.
    InStep(u64),
}

/// A failed request: its class, a message for a person, and its location as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Canonical class.
    pub code: Code,
    /// One or two sentences: the problem and its remedy. The location is not part of it; the fields below hold that.
    pub message: String,
    /// Name of the node that failed.
    pub node: Option<String>,
    /// Its op type.
    pub op: Option<String>,
    /// Full name of the device it ran on, e.g. `/job:local/task:1/device:CPU:0`.
    pub device: Option<String>,
    /// Full name of the task, e.g. `/job:local/task:1`, if no single device is to blame.
    pub task: Option<String>,
    /// Whether a step failed, or the request as a whole.
    pub stage: Stage,
    /// The reason for programs; the message states it for people.
    pub reason: Option<Reason>,
    /// Set if a memory budget of this process refused the request and the message does not name the largest holder yet. Stays in
    /// this process.
    #[serde(skip)]
    pub refusal: Option<Refusal>,
}

/// The details of a refusal known at its origin.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The largest item that was being worked on, if that is large.
    pub(crate) worked_on: Option<Held>,
    /// The budget that refused, which knows the holders.
    pub(crate) budget: Weak<Budget>,
}

impl PartialEq for Refusal {
    fn eq(&self, other: &Refusal) -> bool {
        self.worked_on == other.worked_on && Weak::ptr_eq(&self.budget, &other.budget)
    }
}

impl Eq for Refusal {}

/// A holder of memory, and its size in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// A description of the holder and its owner.
    pub what: String,
    pub bytes: usize,
}

/// The result of everything that can fail with a [`Failure`].
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure of class `code` without a location.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure {
            code,
            message: message.into(),
            node: None,
            op: None,
            device: None,
            task: None,
            stage: Stage::Refused,
            reason: None,
            refusal: None,
        }
    }

    /// The failure for a panic of `who` that was caught with `catch_unwind`.
    pub fn panicked(who: &str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Failure::new(Code::Internal, format!("{who} panicked: {}", text.unwrap_or("no message")))
    }

    /// Shorthand for the most common class: the caller's graph, feed or argument is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Failure::new(Code::InvalidArgument, message)
    }

    /// Names the node and its op type, unless an inner call already did.
    #[must_use]
    pub fn at_node(mut self, node: &str, op: &str) -> Self {
        if self.node.is_none() {
            self.node = Some(node.to_owned());
            self.op = Some(op.to_owned());
        }
        self
    }

    /// Names the device, unless an inner call already did.
    #[must_use]
    pub fn on_device(mut self, device: &str) -> Self {
        self.device.get_or_insert_with(|| device.to_owned());
        self
    }

    /// Names the task, unless an inner call already did.
    #[must_use]
    pub fn on_task(mut self, task: &str) -> Self {
        self.task.get_or_insert_with(|| task.to_owned());
        self
    }

    /// Sets the reason for programs.
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Names the step, unless an inner call already did.
    #[must_use]
    pub fn in_step(mut self, step: u64) -> Self {
        if self.stage == Stage::Refused {
            self.stage = Stage::InStep(step);
        }
        self
    }

    /// The same failure if so many steps precede those that its step is counted among.
    #[must_use]
    pub fn after_steps(mut self, done: u64) -> Self {
        if let Stage::InStep(step) = &mut self.stage {
            *step = step.saturating_add(done);
        }
        self
    }

    /// Whether a step failed, and not the request as a whole.
    pub fn is_in_step(&self) -> bool {
        matches!(self.stage, Stage::InStep(_))
    }
}

impl fmt::Display for Failure {
    /// `InvalidArgument: Incompatible shapes: [2,3] vs. [4,5] (node add, op AddV2, on /job:…/device:CPU:0, step 3)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.class().trim_end_matches("Error"), self.message)?;
        let mut place = Vec::new();
        if let Some(node) = &self.node {
            place.push(format!("node {node}"));
        }
        if let Some(op) = &self.op {
            place.push(format!("op {op}"));
        }
        match (&self.device, &self.task) {
            (Some(device), _) => place.push(format!("on {device}")),
            (None, Some(task)) => place.push(format!("on {task}")),
            (None, None) => {}
        }
        if let Stage::InStep(step) = self.stage {
            place.push(format!("step {step}"));
        }
        if place.is_empty() { Ok(()) } else { write!(f, " ({})", place.join(", ")) }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_place_is_kept_and_shown() {
        let failure = Failure::invalid("Incompatible shapes: [2,3] vs. [4,5]")
            .at_node("add", "AddV2")
            .at_node("outer", "While")
            .on_device("/job:local/task:1/device:CPU:0")
            .in_step(3);
        assert_eq!(
            failure.to_string(),
            "InvalidArgument: Incompatible shapes: [2,3] vs. [4,5] \
             (node add, op AddV2, on /job:local/task:1/device:CPU:0, step 3)"
        );
    }
}
