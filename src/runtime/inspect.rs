//! The answers of a node to [inquiries](crate::protocol::inquiry) about its condition and the values of its variables.
//!
//! Each is answered on a separate thread, up to [`MAX_INQUIRIES`] at a time, since it waits: for a device, for a variable that
//! an op changes, for the time over which a rate is measured. So no connection and no step waits for one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use meshtf_exec::{MAX_RESOURCES, ResourceInfo, Resources};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{RequestId, SessionId};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;

use crate::events::Events;
use crate::protocol::inquiry::{Answer, Inquiry, MAX_EVENTS, MAX_PAGE, MAX_PAGE_BYTES, ResourceId};
use crate::protocol::look::SessionLook;
use crate::protocol::runs::RunsStatus;
use crate::protocol::status::{
    Counters, Identity, LimitStatus, Listed, MAX_LISTED, NodeStatus, ResourceStatus, Totals,
};
use crate::protocol::{Envelope, Peer, Reply, ToClient};
use crate::runtime::copies::Copies;
use crate::runtime::detached::Detached;
use crate::runtime::master::Master;
use crate::runtime::reports::Reports;
use crate::runtime::router::Router;
use crate::runtime::worker::Worker;

/// Most inquiries that are answered at a time.
const MAX_INQUIRIES: usize = 16;
/// Shortest and longest time over which rates are measured.
const SHORTEST_WINDOW: Duration = Duration::from_millis(250);
const LONGEST_WINDOW: Duration = Duration::from_secs(5);
/// How long peers have to return an echo if the window has begun before.
const ECHOES_WITHIN: Duration = Duration::from_millis(50);
/// Most earlier snapshots of the counters that are kept.
const MAX_LOOKS: usize = 16;

/// Answers the inquiries of one node.
pub(crate) struct Inspector {
    task: Option<Task>,
    router: Arc<dyn Router>,
    resources: Arc<Resources>,
    worker: Option<Weak<Worker>>,
    master: OnceLock<Weak<Master>>,
    events: Arc<Events>,
    /// The reports of clients on their runs.
    reports: Reports,
    /// The runs that the node makes by itself.
    detached: OnceLock<Arc<dyn Detached>>,
    /// The copies of other tasks' variables.
    copies: Copies,
    started: Instant,
    /// Earlier snapshots of the counters, the oldest first.
    looks: Mutex<VecDeque<(Instant, Counters)>>,
    under_way: AtomicUsize,
}

/// A slot among the inquiries that are being answered; dropping it frees it.
struct Place(Arc<Inspector>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

type Answered = Result<(Answer, Vec<Tensor>)>;

impl Inspector {
    pub fn new(
        task: Option<Task>,
        router: Arc<dyn Router>,
        resources: Arc<Resources>,
        worker: Option<&Arc<Worker>>,
        master: Option<&Arc<Master>>,
        events: Arc<Events>,
    ) -> Arc<Self> {
        Arc::new(Inspector {
            task,
            router,
            resources,
            worker: worker.map(Arc::downgrade),
            master: master.map(Arc::downgrade).map_or_else(OnceLock::new, OnceLock::from),
            events,
            reports: Reports::default(),
            detached: OnceLock::new(),
            copies: Copies::default(),
            started: Instant::now(),
            looks: Mutex::default(),
            under_way: AtomicUsize::new(0),
        })
    }

    /// The master of a participant that had none. The first that is set counts.
    pub fn set_master(&self, master: &Arc<Master>) {
        let _first = self.master.set(Arc::downgrade(master));
    }

    /// The copies of other tasks' variables.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Has inquiries about detached runs answered. The first that is set counts.
    pub fn set_detached(&self, detached: Arc<dyn Detached>) {
        let _first = self.detached.set(detached);
    }

    /// Answers an inquiry, soon and on another thread.
    pub fn take(self: &Arc<Self>, from: &Peer, id: RequestId, inquiry: Inquiry, tensors: Vec<Tensor>) {
        let is_full = self.under_way.fetch_add(1, Ordering::Relaxed) >= MAX_INQUIRIES;
        let place = Place(Arc::clone(self));
        if is_full {
            let why = format!("{MAX_INQUIRIES} inquiries are already being answered, which is the limit");
            return self.reply(from, id, Err(Failure::new(Code::ResourceExhausted, why)));
        }
        let asker = from.clone();
        let work = move || {
            let inspector = &place.0;
            let answer = || inspector.resources.budget().run(|| inspector.answer(&asker, inquiry, tensors));
            let answered = catch_unwind(AssertUnwindSafe(answer));
            let answered = answered.unwrap_or_else(|panic| Err(Failure::panicked("an inquiry", &*panic)));
            inspector.reply(&asker, id, answered);
            drop(place);
            memory::tell_all();
        };
        if let Err(error) = thread::Builder::new().name("meshtf-inquiry".into()).spawn(work) {
            let failure =
                Failure::new(Code::ResourceExhausted, format!("cannot start a thread for an inquiry: {error}"));
            self.reply(from, id, Err(failure));
        }
    }

    fn reply(&self, to: &Peer, id: RequestId, answered: Answered) {
        let envelope = |result, tensors| Envelope::new(ToClient::Reply { id, result }, tensors);
        let on_task = |failure: Failure| match &self.task {
            Some(task) => failure.on_task(&task.to_string()),
            None => failure,
        };
        let sent = match answered {
            Ok((answer, tensors)) => self.router.send(to, envelope(Ok(Reply::Told(answer)), tensors)),
            Err(failure) => self.router.send(to, envelope(Err(on_task(failure)), Vec::new())),
        };
        if let Err(failure) = sent
            && failure.code != Code::Unavailable
        {
            let _gone = self.router.send(to, envelope(Err(on_task(failure)), Vec::new()));
        }
    }

    fn answer(&self, from: &Peer, inquiry: Inquiry, tensors: Vec<Tensor>) -> Answered {
        let without_tensors = |answer| Ok((answer, Vec::new()));
        match inquiry {
            Inquiry::Status => without_tensors(Answer::Status(Box::new(self.status()))),
            Inquiry::Resources { after } => without_tensors(self.page(after.as_ref())),
            Inquiry::Events { after, steps } => without_tensors(self.events(after, steps)),
            Inquiry::Session { session, plan, traced } => {
                without_tensors(Answer::Session(Box::new(self.session(session, plan, traced)?.cut())))
            }
            Inquiry::Runs => {
                let master = self.master()?;
                let runs = self.reports.all(|session| master.has(session));
                without_tensors(Answer::Runs(Box::new(RunsStatus { runs, step_times: master.step_times() })))
            }
            Inquiry::Report(report) => {
                let master = self.master()?;
                self.reports.take(*report, |session| master.has(session));
                without_tensors(Answer::Reported)
            }
            // The host answers these, without a thread.
            Inquiry::Cache => {
                let worker = self.worker.as_ref().and_then(Weak::upgrade);
                let none = || Failure::new(Code::NotFound, "this participant has no task, and so keeps no weights");
                without_tensors(Answer::Cache(Box::new(worker.ok_or_else(none)?.weights().on_disk()?)))
            }
            Inquiry::Constants { .. } => Err(Failure::new(Code::NotFound, "this participant offers no constants")),
            Inquiry::Detached(ask) => {
                let none = || Failure::new(Code::NotFound, "only a node with a task makes detached runs");
                let (told, tensors) = self.detached.get().ok_or_else(none)?.answer(from, ask, tensors)?;
                Ok((Answer::Detached(told), tensors))
            }
            Inquiry::SetMark { process, mark } => {
                without_tensors(Answer::Mark(self.worker()?.marks().set(process, mark)))
            }
            Inquiry::HasMark(mark) => without_tensors(Answer::Mark(self.worker()?.marks().has(mark))),
            Inquiry::Copies(ask) => {
                self.worker()?;
                let holds = |task: &Task| self.router.cluster().member(task).is_some_and(|own| own.peer == *from);
                let (told, tensors) = self.copies.answer(ask, tensors, holds, self.resources.budget())?;
                Ok((Answer::Copies(told), tensors))
            }
            Inquiry::ReadVariable(variable) => {
                let (value, version) = self.worker()?.read_variable(&variable)?;
                Ok((Answer::Variable { version }, vec![value]))
            }
            Inquiry::WriteVariable { variable, expected } => {
                let [value] = <[Tensor; 1]>::try_from(tensors).map_err(|tensors| {
                    Failure::invalid(format!("a variable is set to one value, not {}", tensors.len()))
                })?;
                let version = self.worker()?.write_variable(&variable, value, expected)?;
                without_tensors(Answer::Written { version })
            }
        }
    }

    /// The events after that number, as many as one answer may contain. A number that this node has not reached yet is from an
    /// earlier process that held its task.
    fn events(&self, after: u64, with_steps: bool) -> Answer {
        if with_steps {
            self.events.keep_steps();
        }
        let after = if after > self.events.last() { 0 } else { after };
        let mut events = self.events.since(after, with_steps);
        events.truncate(MAX_EVENTS);
        events.iter_mut().for_each(|noted| noted.event.shorten());
        Answer::Events { events }
    }

    fn master(&self) -> Result<Arc<Master>> {
        let master = self.master.get().and_then(Weak::upgrade);
        master.ok_or_else(|| Failure::new(Code::NotFound, "only a node with a task has sessions"))
    }

    /// The activity of a session. Where its client reports values, these have the names of its file, and they stay after the
    /// session's end.
    fn session(&self, session: SessionId, plan: Option<u32>, traced: Option<u64>) -> Result<SessionLook> {
        let curves = self.reports.curves(session);
        let mut look = match (self.master()?.look(session, plan, traced), &curves) {
            (Err(_), Some(_)) => SessionLook { is_over: true, ..SessionLook::default() },
            (look, _) => look?,
        };
        if let Some(curves) = curves.filter(|curves| !curves.is_empty()) {
            look.curves = curves;
        }
        Ok(look)
    }

    fn worker(&self) -> Result<Arc<Worker>> {
        let worker = self.worker.as_ref().and_then(Weak::upgrade);
        worker.ok_or_else(|| Failure::new(Code::NotFound, "only a node with a task has variables"))
    }

    fn status(&self) -> NodeStatus {
        self.router.probe();
        let (began, earlier) = self.earlier_look().unwrap_or_else(|| {
            let look = (Instant::now(), self.look().counters());
            thread::sleep(SHORTEST_WINDOW);
            look
        });
        if began.elapsed() >= SHORTEST_WINDOW + ECHOES_WITHIN {
            thread::sleep(ECHOES_WITHIN);
        }
        let mut status = self.look();
        let now = Instant::now();
        status.measure(&earlier, (now - began).as_micros() as u64);
        self.keep_look(now, status.counters());
        let largest = self.resources.largest(MAX_LISTED);
        let items = largest.into_iter().filter_map(|info| self.resource(info)).collect();
        status.resources = Listed { items, total: self.resources.count() as u64 };
        status.cut()
    }

    /// The oldest snapshot of the counters that is recent enough, unless even that is too recent.
    fn earlier_look(&self) -> Option<(Instant, Counters)> {
        let mut looks = lock(&self.looks);
        looks.retain(|(at, _)| at.elapsed() <= LONGEST_WINDOW);
        looks.front().filter(|(at, _)| at.elapsed() >= SHORTEST_WINDOW).cloned()
    }

    fn keep_look(&self, at: Instant, counters: Counters) {
        let mut looks = lock(&self.looks);
        if looks.len() < MAX_LOOKS && looks.back().is_none_or(|(last, _)| at > *last + SHORTEST_WINDOW) {
            looks.push_back((at, counters));
        }
    }

    /// The status of the node, except its resources: complete, without rates.
    fn look(&self) -> NodeStatus {
        let cluster = self.router.cluster();
        let network = self.router.network();
        let own = self.task.as_ref().and_then(|task| cluster.member(task));
        let (sessions, of_master) =
            self.master.get().and_then(Weak::upgrade).map(|master| master.status()).unwrap_or_default();
        let worker = self.worker.as_ref().and_then(Weak::upgrade).map(|worker| worker.status()).unwrap_or_default();
        let mut limits = vec![
            LimitStatus::new("memory", memory::in_use(), self.resources.budget().limit()),
            LimitStatus::new("resources", self.resources.count(), MAX_RESOURCES),
        ];
        limits.extend(of_master.into_iter().chain(worker.limits).chain(network.limits));
        NodeStatus {
            identity: Identity {
                task: self.task.clone(),
                incarnation: own.map(|own| own.incarnation),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                mesh: network.mesh,
                up_ms: self.started.elapsed().as_millis() as u64,
            },
            window_ms: 0,
            sessions: Listed::all(sessions),
            pieces: worker.pieces,
            devices: Listed::all(worker.devices),
            resources: Listed::default(),
            peers: Listed::all(network.peers),
            limits,
            totals: Totals {
                steps: self.master.get().and_then(Weak::upgrade).map_or(0, |master| master.steps()),
                failed_runs: self.events.failed_runs(),
                sent_bytes: network.traffic.0,
                received_bytes: network.traffic.1,
            },
        }
    }

    fn page(&self, after: Option<&ResourceId>) -> Answer {
        let mut found = self.resources.after(after.map(of_exec).as_ref(), MAX_PAGE + 1);
        let mut bytes = 0;
        let fits = |info: &&ResourceInfo| {
            bytes += info.key.container.len() + info.key.name.len();
            bytes <= MAX_PAGE_BYTES
        };
        let listed = found.iter().take(MAX_PAGE).take_while(fits).count().max(1);
        let is_last = found.len() <= listed;
        found.truncate(listed);
        let next = found.last().filter(|_| !is_last).map(|info| of_protocol(&info.key));
        let page = found.into_iter().filter_map(|info| self.resource(info)).collect();
        Answer::Resources { page, next, total: self.resources.count() as u64 }
    }

    /// `None` on a participant without a task, which has no resources.
    fn resource(&self, info: ResourceInfo) -> Option<ResourceStatus> {
        let ResourceInfo { key, kind, session, dtypes, shape, bytes, length, version } = info;
        let (kind_of_device, index) = key.device;
        Some(ResourceStatus {
            kind: kind.to_owned(),
            device: DeviceName { task: self.task.clone()?, kind: kind_of_device, index },
            container: key.container,
            name: key.name,
            session,
            is_isolated: key.session.is_some(),
            dtypes,
            shape,
            bytes: bytes.map(|bytes| bytes as u64),
            length: length.map(|length| length as u64),
            version,
        })
    }
}

fn of_exec(key: &ResourceId) -> meshtf_exec::ResourceKey {
    let ResourceId { session, device, container, name } = key.clone();
    meshtf_exec::ResourceKey { session, device, container, name }
}

fn of_protocol(key: &meshtf_exec::ResourceKey) -> ResourceId {
    let meshtf_exec::ResourceKey { session, device, container, name } = key.clone();
    ResourceId { session, device, container, name }
}
