//! The events of a node, in one closed vocabulary, for logs, tests and followers of a node.
//!
//! Each fact has one form in this module, and one text: [`Event`]'s `Display`.

use std::fmt;

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Code;
use serde::{Deserialize, Serialize};

use super::status::shorten;
use super::{Peer, RequestId, SessionId};

/// An event of a node. Its text is a sentence for people.
///
/// ```
/// use meshtf::Task;
/// use meshtf::status::{Event, Peer};
///
/// let (task, why) = (Some(Task::new("ps", 0)), "it left".to_owned());
/// let event = Event::TaskLost { task, peer: Peer::new("12D3KooW"), why };
/// match &event {
///     Event::TaskLost { task: Some(task), .. } => assert_eq!(task.short(), "ps/0"),
///     Event::RunFailed { code, .. } => println!("{}", code.class()),
///     _ => {}
/// }
/// assert_eq!((event.name(), event.to_string().as_str()), ("task_lost", "ps/0 (12D3KooW) is gone: it left"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// A node or client is up: its link began.
    TaskMet {
        /// The task that it holds; `None`: it is a client.
        task: Option<Task>,
        /// The peer.
        peer: Peer,
    },
    /// It is gone: its link ended.
    TaskLost {
        /// The task that it held; `None`: it was a client.
        task: Option<Task>,
        /// The peer.
        peer: Peer,
        /// Why the link ended.
        why: String,
    },
    /// The connection that carried a link broke; the link waits for another.
    LinkDown {
        /// The peer at its other end.
        peer: Peer,
        /// Why it broke.
        why: String,
    },
    /// The link continues over another connection.
    LinkUp {
        /// The peer at its other end.
        peer: Peer,
    },
    /// A client opened a session whose master this node is.
    SessionOpened {
        /// Its id.
        session: SessionId,
        /// The client that opened it.
        client: Peer,
    },
    /// A session ended, and why: for example, its client closed it or is gone.
    SessionEnded {
        /// Its id.
        session: SessionId,
        /// Why it ended.
        why: String,
    },
    /// Steps of a run were sent to its workers.
    StepsBegun {
        /// The session that the run is of.
        session: SessionId,
        /// The request that the run answers.
        run: RequestId,
        /// The first of them, counted from 1 in the run.
        first: u64,
        /// Their number.
        count: u64,
    },
    /// Steps of a run are done on all of its workers.
    StepsDone {
        /// The session that the run is of.
        session: SessionId,
        /// The request that the run answers.
        run: RequestId,
        /// The first of them, counted from 1 in the run.
        first: u64,
        /// Their number.
        count: u64,
    },
    /// A run was given up.
    RunFailed {
        /// The session that the run was of.
        session: SessionId,
        /// The request that it was to answer.
        run: RequestId,
        /// The code of the failure.
        code: Code,
        /// Why it was given up.
        why: String,
    },
    /// The guard of a session: a task was lost and the session continues, or it is not guarded.
    Guarded {
        /// The session.
        session: SessionId,
        /// The event, as a sentence.
        what: String,
    },
    /// A plan of a session that is placed by cost has taken the place of another one.
    PlannedAnew {
        /// The session.
        session: SessionId,
        /// Where its steps run, and how long they are expected to take, as a sentence.
        what: String,
    },
    /// A request was refused because a limit is reached.
    LimitReached {
        /// The refused request, and the limit.
        what: String,
    },
}

/// The subject of an event, for filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// Nodes and clients that connect and disconnect, and the links with them.
    Peers,
    /// Sessions and runs of which this node is the master.
    Sessions,
    /// Steps of such runs.
    Steps,
    /// Limits that are reached.
    Limits,
}

impl Event {
    /// Its subject.
    pub fn subject(&self) -> Subject {
        match self {
            Event::TaskMet { .. } | Event::TaskLost { .. } | Event::LinkDown { .. } | Event::LinkUp { .. } => {
                Subject::Peers
            }
            Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::RunFailed { .. }
            | Event::Guarded { .. }
            | Event::PlannedAnew { .. } => Subject::Sessions,
            Event::StepsBegun { .. } | Event::StepsDone { .. } => Subject::Steps,
            Event::LimitReached { .. } => Subject::Limits,
        }
    }

    /// Whether a run ended in the usual way: its client cancelled it, or its input was at its end.
    pub fn is_usual_end(&self) -> bool {
        matches!(self, Event::RunFailed { code: Code::Cancelled | Code::OutOfRange, .. })
    }

    /// Cuts its texts to `MAX_NAME_BYTES`, for an answer.
    pub fn shorten(&mut self) {
        match self {
            Event::TaskLost { why, .. }
            | Event::LinkDown { why, .. }
            | Event::SessionEnded { why, .. }
            | Event::RunFailed { why, .. }
            | Event::Guarded { what: why, .. }
            | Event::PlannedAnew { what: why, .. }
            | Event::LimitReached { what: why } => shorten(why),
            Event::TaskMet { .. }
            | Event::LinkUp { .. }
            | Event::SessionOpened { .. }
            | Event::StepsBegun { .. }
            | Event::StepsDone { .. } => {}
        }
    }

    /// Its stable name, such as `task_met`.
    pub fn name(&self) -> &'static str {
        match self {
            Event::TaskMet { .. } => "task_met",
            Event::TaskLost { .. } => "task_lost",
            Event::LinkDown { .. } => "link_down",
            Event::LinkUp { .. } => "link_up",
            Event::SessionOpened { .. } => "session_opened",
            Event::SessionEnded { .. } => "session_ended",
            Event::StepsBegun { .. } => "steps_begun",
            Event::StepsDone { .. } => "steps_done",
            Event::RunFailed { .. } => "run_failed",
            Event::Guarded { .. } => "guarded",
            Event::PlannedAnew { .. } => "planned_anew",
            Event::LimitReached { .. } => "limit_reached",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = |task: &Option<Task>, peer: &Peer| match task {
            Some(task) => format!("{} ({peer})", task.short()),
            None => format!("client {peer}"),
        };
        let steps = |first: u64, count: u64| match count {
            1 => format!("step {first}"),
            _ => format!("steps {first} to {}", first.saturating_add(count).saturating_sub(1)),
        };
        match self {
            Event::TaskMet { task, peer } => write!(f, "{} is connected", who(task, peer)),
            Event::TaskLost { task, peer, why } => write!(f, "{} is gone: {why}", who(task, peer)),
            Event::LinkDown { peer, why } => write!(f, "the connection with {peer} broke: {why}"),
            Event::LinkUp { peer } => write!(f, "the link to {peer} continues over another connection"),
            Event::SessionOpened { session, client } => write!(f, "session {session} of {client} is open"),
            Event::SessionEnded { session, why } => write!(f, "session {session} ended: {why}"),
            Event::StepsBegun { session, first, count, .. } => {
                write!(f, "session {session}: {} began", steps(*first, *count))
            }
            Event::StepsDone { session, first, count, .. } => {
                write!(f, "session {session}: done with {}", steps(*first, *count))
            }
            Event::RunFailed { session, why, .. } => write!(f, "session {session}: a run failed: {why}"),
            Event::Guarded { session, what } | Event::PlannedAnew { session, what } => {
                write!(f, "session {session}: {what}")
            }
            Event::LimitReached { what } => write!(f, "a limit is reached: {what}"),
        }
    }
}

/// An event, with its number and its time.
///
/// ```
/// use meshtf::graph::Graph;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(Graph::default(), None, SessionOptions::default()).await?;
/// let noted = cluster.events_of(None, 0, false).await?;
/// assert_eq!((noted[0].number, noted[0].event.name()), (1, "session_opened"));
/// // The number of the last event that was seen is where the next request begins.
/// let newer = cluster.events_of(None, noted[0].number, false).await?;
/// assert!(newer.is_empty());
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// Counts the events of the node that were noted, from 1: to a follower, a gap shows how many it missed.
    pub number: u64,
    /// When it happened, in milliseconds since 1970 by the clock of the node.
    pub unix_ms: u64,
    /// The event.
    pub event: Event,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_happened() {
        let check = |event: Event, name: &str, text: &str| {
            assert_eq!((event.name(), event.to_string().as_str()), (name, text));
        };
        let (peer, session, run) = (Peer::new("12D3"), SessionId(7), RequestId(1));
        let task = Some(Task::new("ps", 0));
        check(Event::TaskMet { task: task.clone(), peer: peer.clone() }, "task_met", "ps/0 (12D3) is connected");
        let lost = Event::TaskLost { task, peer: peer.clone(), why: "it left".into() };
        check(lost, "task_lost", "ps/0 (12D3) is gone: it left");
        check(Event::TaskMet { task: None, peer }, "task_met", "client 12D3 is connected");
        let failed = |code| Event::RunFailed { session, run, code, why: "why".into() };
        for (code, is_usual) in [(Code::Cancelled, true), (Code::OutOfRange, true), (Code::InvalidArgument, false)] {
            assert_eq!(failed(code).is_usual_end(), is_usual, "{code:?}");
        }
        check(failed(Code::Internal), "run_failed", "session 0000000000000007: a run failed: why");
        let begun = |count| Event::StepsBegun { session, run, first: 3, count };
        check(begun(1), "steps_begun", "session 0000000000000007: step 3 began");
        check(begun(4), "steps_begun", "session 0000000000000007: steps 3 to 6 began");
    }
}
