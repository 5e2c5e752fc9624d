//! The client's end: requests to a master, and their answers.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Reason, Result};
use meshtf_tensor::ids::RequestId;
use meshtf_tensor::lock::lock;
use tokio::sync::{mpsc, oneshot};

use crate::protocol::guard::GuardNote;
use crate::protocol::inquiry::Inquiry;
use crate::protocol::look::Fetched;
use crate::protocol::{Envelope, Message, Peer, Reply, Request, ToClient, ToHost, ToMaster};
use crate::runtime::router::Router;
use crate::runtime::weights::Weights;

/// Most events of one run that wait for the client to take them.
pub(crate) const EVENTS: usize = 1024;

/// Most requests of one client that wait for their answers at a time.
const MAX_PENDING: usize = 1 << 16;

/// Most lost tasks whose names are kept for messages.
const MAX_GONE: usize = 64;

/// An event of a run of many steps while it is under way. Steps are counted from 1.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, StepEvent, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// g.constant("x", 2)?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// let mut fetched = Vec::new();
/// let run = session.run().fetch("x").steps(25).watch(10, |event| match event {
///     StepEvent::Fetched { step, values } => fetched.push((step, values[0].item::<i32>().unwrap())),
///     StepEvent::Progress { steps, .. } => println!("{steps} steps are done"),
///     _ => {}
/// });
/// run.await?;
/// assert_eq!(fetched, [(10, 2), (20, 2)]);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StepEvent {
    /// The values that a step fetched, in the order of the request.
    Fetched {
        /// The step.
        step: u64,
        /// A value for each fetch.
        values: Vec<Tensor>,
    },
    /// A fetch of a partial run, by its index among the fetches.
    PartialFetch {
        /// The index, from 0.
        fetch: u32,
        /// Its value.
        value: Tensor,
    },
    /// The number of steps that are done. Sent from time to time, about ten times a second if steps are fast.
    Progress {
        /// The number of steps.
        steps: u64,
        /// The last values of some of the scalars among the fetches, floats first.
        fetched: Vec<Fetched>,
    },
    /// A notice about the guard of the session: a task was lost, and the run continues. Its text is a line for people.
    Guard(GuardNote),
}

impl StepEvent {
    /// The same event if so many steps precede those that it counts.
    pub(crate) fn after_steps(self, done: u64) -> StepEvent {
        match self {
            StepEvent::Fetched { step, values } => StepEvent::Fetched { step: done + step, values },
            StepEvent::Progress { steps, fetched } => StepEvent::Progress { steps: done + steps, fetched },
            StepEvent::Guard(note) => StepEvent::Guard(note.after_steps(done)),
            event @ StepEvent::PartialFetch { .. } => event,
        }
    }
}

/// Sends requests to masters and hosts, and passes their answers to the callers.
pub struct Requests {
    router: Arc<dyn Router>,
    /// The constants that this participant has, and so offers.
    weights: Arc<Weights>,
    next: AtomicU64,
    pending: Mutex<HashMap<RequestId, Pending>>,
    /// The last peers that were lost: their tasks, and why. A process that is started again is another peer.
    gone: Mutex<VecDeque<(Peer, Task, String)>>,
}

struct Pending {
    /// The peer that owes the answer.
    by: Peer,
    answer: oneshot::Sender<ReplyWithTensors>,
    events: Option<mpsc::Sender<StepEvent>>,
}

/// An answer, and its tensors: with a failure, the feeds that it gives back.
type ReplyWithTensors = (Result<Reply>, Vec<Tensor>);

/// A request under way. Dropping it forgets the answer.
pub struct Asked {
    pub id: RequestId,
    client: Arc<Requests>,
    answer: oneshot::Receiver<ReplyWithTensors>,
}

impl Requests {
    pub fn new(router: Arc<dyn Router>, weights: Arc<Weights>) -> Arc<Self> {
        Arc::new(Requests {
            router,
            weights,
            next: AtomicU64::new(1),
            pending: Mutex::default(),
            gone: Mutex::default(),
        })
    }

    /// The constants that this participant has.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Bytes that came from a peer so far; 0 if there is no link to it.
    pub fn received_from(&self, peer: &Peer) -> u64 {
        self.router.network().peers.iter().find(|one| one.peer == *peer).map_or(0, |one| one.received_bytes)
    }

    /// Sends a request with its tensors; the values fetched before the last step come through `events`.
    pub fn ask(
        self: &Arc<Self>,
        master: &Peer,
        request: Request,
        tensors: Vec<Tensor>,
        events: Option<mpsc::Sender<StepEvent>>,
    ) -> Result<Asked> {
        self.send(master, |id| ToMaster::Request { id, request }.into(), tensors, events)
    }

    /// Sends an inquiry with its tensors to the host of a node.
    pub fn inquire(self: &Arc<Self>, node: &Peer, inquiry: Inquiry, tensors: Vec<Tensor>) -> Result<Asked> {
        self.send(node, |id| ToHost::Ask { id, inquiry }.into(), tensors, None)
    }

    fn send(
        self: &Arc<Self>,
        to: &Peer,
        message: impl FnOnce(RequestId) -> Message,
        tensors: Vec<Tensor>,
        events: Option<mpsc::Sender<StepEvent>>,
    ) -> Result<Asked> {
        let id = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        let pending = Pending { by: to.clone(), answer: sender, events };
        {
            let mut waiting = lock(&self.pending);
            if waiting.len() >= MAX_PENDING {
                let why = format!("{MAX_PENDING} requests of this client wait for their answers; send fewer at a time");
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            waiting.insert(id, pending);
        }
        // Made before sending, so that a failed send removes the request.
        let asked = Asked { id, client: Arc::clone(self), answer };
        self.router.send(to, Envelope::new(message(id), tensors)).map_err(|failure| self.of_gone(to, failure))?;
        Ok(asked)
    }

    /// The failure to send to a peer, by the name of its task if it was lost.
    fn of_gone(&self, peer: &Peer, failure: Failure) -> Failure {
        let gone = lock(&self.gone);
        match gone.iter().find(|(own, ..)| own == peer).filter(|_| failure.code == Code::Unavailable) {
            Some((_, task, why)) => master_is_gone(&task.to_string(), why),
            None => failure,
        }
    }

    /// A channel for the steps of a run.
    pub fn events() -> (mpsc::Sender<StepEvent>, mpsc::Receiver<StepEvent>) {
        mpsc::channel(EVENTS)
    }

    /// Takes a master's or a host's message.
    pub fn deliver(&self, from: &Peer, message: ToClient, tensors: Vec<Tensor>) {
        match message {
            ToClient::Reply { id, result } => {
                if let Some(pending) = self.take(id, from) {
                    let _forgotten = pending.answer.send((result, tensors));
                }
            }
            ToClient::Fetched { id, step } => {
                let Some(sender) = self.events_of(id, from) else { return };
                let event = StepEvent::Fetched { step, values: tensors };
                if let Err(mpsc::error::TrySendError::Full(_)) = sender.try_send(event) {
                    let why = format!("{EVENTS} fetched steps wait for the client; fetch less often");
                    if let Some(pending) = self.take(id, from) {
                        let failure = Failure::new(Code::ResourceExhausted, why);
                        let _forgotten = pending.answer.send((Err(failure), Vec::new()));
                    }
                }
            }
            ToClient::PartialFetch { id, fetch } => {
                // A run has fewer fetches than events may wait.
                if let (Some(sender), Some(value)) = (self.events_of(id, from), tensors.into_iter().next()) {
                    let _gone = sender.try_send(StepEvent::PartialFetch { fetch, value });
                }
            }
            ToClient::Progress { id, steps, fetched } => {
                // If there is no room, it is dropped: the next one supersedes it.
                if let Some(sender) = self.events_of(id, from) {
                    let _dropped = sender.try_send(StepEvent::Progress { steps, fetched });
                }
            }
            ToClient::Guard { id, note } => {
                if let Some(sender) = self.events_of(id, from) {
                    let _dropped = sender.try_send(StepEvent::Guard(note));
                }
            }
        }
    }

    fn events_of(&self, id: RequestId, from: &Peer) -> Option<mpsc::Sender<StepEvent>> {
        let pending = lock(&self.pending);
        pending.get(&id).filter(|p| p.by == *from).and_then(|p| p.events.clone())
    }

    /// A peer is gone, and with it every answer it owes.
    pub fn down(&self, peer: &Peer, task: Option<&Task>, why: &str) {
        let owed: Vec<Pending> = {
            let mut pending = lock(&self.pending);
            let ids: Vec<RequestId> = pending.iter().filter(|(_, p)| p.by == *peer).map(|(&id, _)| id).collect();
            ids.iter().filter_map(|id| pending.remove(id)).collect()
        };
        if let Some(task) = task {
            let mut gone = lock(&self.gone);
            gone.truncate(MAX_GONE - 1);
            gone.push_front((peer.clone(), task.clone(), why.to_owned()));
        }
        let name = task.map_or_else(|| peer.to_string(), Task::to_string);
        for pending in owed {
            let _forgotten = pending.answer.send((Err(master_is_gone(&name, why)), Vec::new()));
        }
    }

    fn take(&self, id: RequestId, from: &Peer) -> Option<Pending> {
        let mut pending = lock(&self.pending);
        if pending.get(&id)?.by == *from { pending.remove(&id) } else { None }
    }
}

fn master_is_gone(name: &str, why: &str) -> Failure {
    let failure = Failure::new(Code::Unavailable, format!("the master {name} is gone: {why}"));
    failure.on_task(name).because(Reason::MasterGone)
}

impl Asked {
    /// The answer.
    ///
    /// # Errors
    /// The answer of the master or host; Unavailable if it is gone.
    ///
    /// # Cancellation
    /// If the future is dropped, the answer is forgotten when it comes.
    pub async fn answer(self) -> Result<(Reply, Vec<Tensor>)> {
        let (result, tensors) = self.answer_with_feeds().await;
        result.map(|reply| (reply, tensors))
    }

    /// The answer, and the feeds that a master gives back with a failure.
    ///
    /// # Cancellation
    /// As [`Asked::answer`].
    pub async fn answer_with_feeds(mut self) -> ReplyWithTensors {
        (&mut self.answer).await.unwrap_or_else(|_| closing())
    }

    /// The answer, for which the thread waits: a thread that serves no async task.
    ///
    /// # Errors
    /// As [`Asked::answer`].
    pub fn wait(mut self) -> Result<(Reply, Vec<Tensor>)> {
        // The channel in its place only fails.
        let answer = std::mem::replace(&mut self.answer, oneshot::channel().1);
        let (result, tensors) = answer.blocking_recv().unwrap_or_else(|_| closing());
        result.map(|reply| (reply, tensors))
    }

    /// As [`Asked::wait`], but every so often the thread looks whether to wait on; `None` once it is not to.
    pub fn wait_while(
        mut self,
        often: Duration,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<Result<(Reply, Vec<Tensor>)>> {
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let mut look = Instant::now() + often;
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(&mut Context::from_waker(&waker)) {
                let (result, tensors) = answer.unwrap_or_else(|_| closing());
                return Some(result.map(|reply| (reply, tensors)));
            }
            let now = Instant::now();
            if now < look {
                thread::park_timeout(look - now);
            } else if goes_on() {
                look = Instant::now() + often;
            } else {
                return None;
            }
        }
    }
}

/// Wakes a thread that waits for an answer.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The answer to requests that are dropped with this participant.
fn closing() -> ReplyWithTensors {
    (Err(Failure::new(Code::Unavailable, "this node is closing")), Vec::new())
}

impl Drop for Asked {
    fn drop(&mut self) {
        lock(&self.client.pending).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Cluster;

    impl Requests {
        /// How many requests wait for their answer.
        pub fn waits(&self) -> usize {
            lock(&self.pending).len()
        }
    }

    /// Sends nothing, so that no request is ever answered.
    struct Silent;

    impl Router for Silent {
        fn send(&self, _: &Peer, _: Envelope) -> Result<()> {
            Ok(())
        }

        fn cluster(&self) -> Arc<Cluster> {
            Arc::default()
        }
    }

    /// Reaches nobody.
    struct Cut;

    impl Router for Cut {
        fn send(&self, to: &Peer, _: Envelope) -> Result<()> {
            Err(Failure::new(Code::Unavailable, format!("{to} is not connected")))
        }

        fn cluster(&self) -> Arc<Cluster> {
            Arc::default()
        }
    }

    #[test]
    fn a_request_to_a_lost_node_names_its_task() {
        let client = Requests::new(Arc::new(Cut), Weights::in_memory());
        let of = |i: usize| Peer::from(format!("12D3Koo{i}"));
        let why = |i: usize| client.inquire(&of(i), Inquiry::Status, Vec::new()).err().expect("it is not sent").message;
        assert_eq!(why(0), "12D3Koo0 is not connected", "no task of it is known");
        client.down(&of(1), Some(&Task::new("worker", 1)), "the connection was lost");
        assert_eq!(why(1), "the master /job:worker/task:1 is gone: the connection was lost");
        // The names of the oldest are forgotten.
        for i in 2..=1 + MAX_GONE {
            client.down(&of(i), Some(&Task::new("worker", 2)), "it left");
        }
        assert_eq!(why(2), "the master /job:worker/task:2 is gone: it left");
        assert_eq!(why(1), "12D3Koo1 is not connected");
        assert_eq!(client.waits(), 0);
    }

    #[test]
    fn requests_that_wait_have_a_limit_and_make_room_when_they_are_dropped() {
        let client = Requests::new(Arc::new(Silent), Weights::in_memory());
        let node = Peer::from("a node".to_owned());
        let ask = || client.inquire(&node, Inquiry::Status, Vec::new());
        let mut asked: Vec<Asked> = (0..MAX_PENDING).map(|_| ask().expect("there is room")).collect();
        let failure = ask().err().expect("there is no room");
        assert_eq!(failure.code, Code::ResourceExhausted);
        assert!(failure.message.contains("65536 requests"), "{failure}");
        asked.pop();
        assert!(ask().is_ok());
    }
}
