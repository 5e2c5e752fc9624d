//! The host of a participant: a client's end, and with a task a worker and a master. It receives all messages.

#[cfg(test)]
mod by_hand;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

#[cfg(test)]
pub(super) use self::by_hand::{Chore, ManualHost};
use meshtf_engine::adapters::{BackendChoice, Offer, gpus};
use meshtf_exec::{Device, Program, Resources, delivering, without_inline};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceName, Rates, Task};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::ids::StepId;
use meshtf_tensor::memory::Budget;
use tokio::sync::Notify;

use crate::events::Events;
use crate::protocol::inquiry::Inquiry;
use crate::protocol::{DeviceInfo, Envelope, Message, Peer, ToClient, ToHost, ToMaster, ToWorker};
use crate::runtime::capacity;
use crate::runtime::copies::Copies;
use crate::runtime::detached::Detached;
use crate::runtime::inspect::Inspector;
use crate::runtime::master::{Master, MasterLimits, Seat};
use crate::runtime::requests::Requests;
use crate::runtime::router::Router;
use crate::runtime::weights::{Fetch, Supply, Weights};
use crate::runtime::worker::{Marks, Worker};

pub(crate) struct Host {
    pub client: Arc<Requests>,
    pub events: Arc<Events>,
    task: Option<Task>,
    router: Arc<dyn Router>,
    resources: Arc<Resources>,
    worker: Option<Arc<Worker>>,
    /// Of a participant with a task, or of a client that masters its own sessions.
    master: OnceLock<Arc<Master>>,
    inspector: Arc<Inspector>,
    supply: Supply,
}

impl Host {
    /// A host for `task`, or for a client alone. `resources` are those that its graphs keep and may touch, `weights` the large
    /// constants that it has.
    pub fn new(task: Option<&Task>, router: &Arc<dyn Router>, resources: Resources, weights: Arc<Weights>) -> Self {
        let (resources, events) = (resources.watched(), Events::new());
        let client = Requests::new(Arc::clone(router), weights);
        let worker = task.map(|task| {
            let fetch = Fetch::new(Arc::clone(&client));
            Worker::new(task.clone(), Arc::clone(router), Arc::clone(&resources), fetch)
        });
        let master = task.map(|task| master_at(Seat::of_node(task.clone()), router, &events, resources.budget()));
        Host::of(task, router, (client, resources), worker, master, events)
    }

    fn of(
        task: Option<&Task>,
        router: &Arc<dyn Router>,
        (client, resources): (Arc<Requests>, Arc<Resources>),
        worker: Option<Worker>,
        master: Option<Master>,
        events: Arc<Events>,
    ) -> Self {
        let (worker, master) = (worker.map(Arc::new), master.map(Arc::new));
        let inspector = Inspector::new(
            task.cloned(),
            Arc::clone(router),
            Arc::clone(&resources),
            worker.as_ref(),
            master.as_ref(),
            Arc::clone(&events),
        );
        Host {
            task: task.cloned(),
            router: Arc::clone(router),
            supply: Supply::new(Arc::clone(&client), Arc::clone(router)),
            client,
            worker,
            master: master.map_or_else(OnceLock::new, OnceLock::from),
            inspector,
            events,
            resources,
        }
    }

    /// Has graphs call the functions of a Python program.
    pub fn set_program(&self, program: Arc<dyn Program>) {
        self.resources.set_program(program);
    }

    /// Has inquiries about detached runs answered.
    pub fn set_detached(&self, detached: Arc<dyn Detached>) {
        self.inspector.set_detached(detached);
    }

    /// The copies of other tasks' variables that it keeps.
    pub fn copies(&self) -> &Copies {
        self.inspector.copies()
    }

    /// The resources of its graphs.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// Is notified when containers are cleared; `None` for a participant without a task.
    pub fn cleared(&self) -> Option<&Arc<Notify>> {
        self.worker.as_ref().map(|worker| worker.cleared())
    }

    /// The marks on its variables; `None` for a participant without a task.
    pub fn marks(&self) -> Option<&Marks> {
        self.worker.as_ref().map(|worker| worker.marks())
    }

    /// The master, of a participant with a task, and of a client that masters its own sessions.
    pub fn master(&self) -> Option<&Arc<Master>> {
        self.master.get()
    }

    /// Gives a client a master for its own sessions, whose nodes without a task are on `default`. The first call counts.
    pub fn become_master(&self, own: &Peer, default: Task) {
        self.master.get_or_init(|| {
            let seat = Seat::of_client(own.clone(), default);
            let master = Arc::new(master_at(seat, &self.router, &self.events, self.budget()));
            self.inspector.set_master(&master);
            master
        });
    }

    /// The memory budget of this participant.
    pub fn budget(&self) -> &Arc<Budget> {
        self.resources.budget()
    }

    /// Opens a device and serves it from now on.
    pub fn serve(&self, task: &Task, offer: Offer) -> Result<DeviceInfo> {
        let info = info(task, &offer, self.budget());
        if let Some(worker) = &self.worker {
            let resources = Arc::clone(&self.resources);
            let device = Device::open(info.name.clone(), offer.open()?, resources, worker.sink())?;
            worker.add_device(info.clone(), device);
        }
        Ok(info)
    }

    /// The rates of its devices, measured now, on the caller's thread; those of memory, too, if it `streams`. A device that fails
    /// has none.
    pub fn measure_rates(&self, streams: bool) -> BTreeMap<DeviceName, Rates> {
        let Some(worker) = &self.worker else { return BTreeMap::new() };
        let measured =
            |(name, device): (DeviceName, Arc<Device>)| Some((name, device.measure_rates(streams).ok().flatten()?));
        self.budget().run(|| worker.named_devices().into_iter().filter_map(measured).collect())
    }

    /// Delivers a message, and runs quick steps that follow from it.
    pub fn deliver(&self, from: &Peer, envelope: Envelope) {
        self.budget().run(|| delivering(|| self.hand_over(from, envelope)));
    }

    fn hand_over(&self, from: &Peer, envelope: Envelope) {
        let Envelope { message, tensors } = envelope;
        match message {
            Message::ToClient(message) => self.client.deliver(from, message, tensors),
            Message::ToMaster(message) => self.to_master(from, message, tensors),
            Message::ToWorker(message) => {
                if let Some(worker) = &self.worker {
                    worker.deliver(from, message, tensors);
                }
            }
            Message::ToHost(ToHost::Ask { id, inquiry: Inquiry::Constants { session, contents } }) => {
                let client_of = |session| self.master().and_then(|master| master.client_of(session));
                self.supply.answer(from, id, (session, contents), client_of);
            }
            Message::ToHost(ToHost::Ask { id, inquiry }) => self.inspector.take(from, id, inquiry, tensors),
            // The link has read them.
            Message::Hello(_) | Message::Goodbye { .. } => {}
            Message::Refused { message, failure } => self.refuse(from, *message, failure),
        }
    }

    fn to_master(&self, from: &Peer, message: ToMaster, tensors: Vec<Tensor>) {
        if let Some(master) = self.master() {
            master.deliver(from, message, tensors);
        }
    }

    /// Fails the requests and steps that wait for a message for which there was no memory.
    fn refuse(&self, from: &Peer, message: Message, failure: Failure) {
        let failure = match &self.task {
            Some(task) => failure.on_task(&task.to_string()),
            None => failure,
        };
        if let Message::ToWorker(ToWorker::Push { step, to, .. }) = message {
            // Only the device knows what waits for the value.
            return self.worker.iter().for_each(|worker| worker.refuse(step, &to, failure.clone()));
        }
        let failure = failure.with_holder();
        let answer = |message: Message| {
            let _gone = self.router.send(from, message.into());
        };
        match message {
            Message::ToClient(message) => match message {
                ToClient::Reply { id, .. } | ToClient::Fetched { id, .. } | ToClient::PartialFetch { id, .. } => {
                    self.client.deliver(from, ToClient::Reply { id, result: Err(failure) }, Vec::new());
                }
                ToClient::Progress { .. } | ToClient::Guard { .. } => {}
            },
            Message::ToMaster(message) => match message {
                ToMaster::Request { id, .. } => answer(ToClient::Reply { id, result: Err(failure) }.into()),
                ToMaster::PartialFetch { piece, step, .. } | ToMaster::Done { piece, step, .. } => {
                    let step = StepId { session: piece.session, number: step };
                    self.to_master(from, ToMaster::Failed { step, failure }, Vec::new());
                }
                // A substitute for a registration; see `frame::stand_in`.
                ToMaster::Registered { session, pieces, .. } => {
                    answer(ToMaster::Registered { session, pieces, result: Err(failure) }.into());
                }
                // These come without tensors.
                ToMaster::Failed { .. }
                | ToMaster::PeerLost { .. }
                | ToMaster::Confirmed { .. }
                | ToMaster::Guard { .. }
                | ToMaster::Inherit { .. } => {}
            },
            Message::ToWorker(message) => match message {
                ToWorker::Start { pieces, first, .. } => {
                    if let Some(piece) = pieces.first() {
                        let step = StepId { session: piece.session, number: first };
                        answer(ToMaster::Failed { step, failure }.into());
                    }
                }
                ToWorker::Register { session, pieces, .. } => {
                    let pieces = pieces.into_iter().map(|(id, _)| id).collect();
                    answer(ToMaster::Registered { session, pieces, result: Err(failure) }.into());
                }
                ToWorker::Guard(message) => {
                    self.worker.iter().for_each(|worker| worker.refuse_guard(from, &message, failure.clone()));
                }
                // These come without tensors, except Push, of which the device was notified.
                ToWorker::Push { .. }
                | ToWorker::Abort { .. }
                | ToWorker::Forget { .. }
                | ToWorker::Release { .. }
                | ToWorker::Confirm { .. }
                | ToWorker::Clear { .. } => {}
            },
            Message::ToHost(ToHost::Ask { id, .. }) => answer(ToClient::Reply { id, result: Err(failure) }.into()),
            Message::Hello(_) | Message::Goodbye { .. } | Message::Refused { .. } => {}
        }
    }

    /// A while after a task's peer went down: every other node that lost it knows by now.
    pub fn peer_lost(&self, peer: &Peer, why: &str) {
        if let Some(worker) = &self.worker {
            worker.report_lost(peer, why);
        }
    }

    pub fn down(&self, peer: &Peer, task: Option<&Task>, why: &str) {
        // Peers come and go one at a time: no step runs meanwhile.
        without_inline(|| {
            if let Some(master) = self.master() {
                master.down(peer, task, why);
            }
            if let Some(worker) = &self.worker {
                worker.down(peer, task);
            }
            self.client.down(peer, task, why);
        });
    }
}

fn master_at(seat: Seat, router: &Arc<dyn Router>, events: &Arc<Events>, budget: &Arc<Budget>) -> Master {
    Master::new(seat, Arc::clone(router), MasterLimits::default(), Arc::clone(events), budget)
}

/// The GPUs of this machine for that choice. May take half a second.
///
/// # Errors
/// InvalidArgument if a GPU's backend is requested by name, and there is no GPU.
pub fn requested_gpus(choice: BackendChoice) -> Result<Vec<Offer>> {
    let found = gpus(choice);
    if found.is_empty() && choice == BackendChoice::Wgpu {
        let why = match cfg!(feature = "wgpu") {
            true => "neither Vulkan nor Metal nor DirectX 12 finds a GPU on this machine; install its driver, or use",
            false => "this meshtf was built without GPUs (the feature wgpu); use",
        };
        return Err(Failure::invalid(format!("backend wgpu: {why} auto, which computes on the processor")));
    }
    Ok(found)
}

/// A task's device as it is advertised.
fn info(task: &Task, offer: &Offer, budget: &Budget) -> DeviceInfo {
    let name = task.device(offer.kind, offer.index);
    let (backend, description) = (offer.backend.to_owned(), offer.description.clone());
    DeviceInfo { name, backend, description, capacity: capacity::now(offer.kind, budget) }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::protocol::inquiry::VariableName;
    use crate::protocol::{Cluster, Constants, Request, SessionOptions};
    use meshtf_graph::plan::{Mode, Piece};
    use meshtf_tensor::device::DeviceKind;
    use meshtf_tensor::failure::Code;
    use meshtf_tensor::ids::{PieceId, RequestId, SessionId};

    /// Keeps the sent messages.
    #[derive(Default)]
    struct Sent(Mutex<Vec<(Peer, Message)>>);

    impl Router for Sent {
        fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
            self.0.lock().unwrap().push((to.clone(), envelope.message));
            Ok(())
        }

        fn cluster(&self) -> Arc<Cluster> {
            Arc::default()
        }
    }

    #[test]
    fn a_gpu_that_is_requested_by_name_is_there_or_refused() {
        match requested_gpus(BackendChoice::Wgpu) {
            Ok(found) => assert!(!found.is_empty()),
            Err(failure) => {
                let why = failure.to_string();
                assert!(why.starts_with("InvalidArgument: backend wgpu: ") && why.contains("use auto"), "{why}");
                assert!(requested_gpus(BackendChoice::Auto).unwrap().is_empty());
            }
        }
        assert!(requested_gpus(BackendChoice::Flex).unwrap().is_empty());
    }

    #[test]
    fn who_sent_tensors_that_there_is_no_memory_for_is_told() {
        let task = Task::new("t", 0);
        let sent = Arc::new(Sent::default());
        let router: Arc<dyn Router> = sent.clone();
        let host = Host::new(Some(&task), &router, Resources::new(), Weights::in_memory());
        let (id, session, constants) = (RequestId(3), SessionId(1), Constants::default());
        let device = task.device(DeviceKind::Cpu, 0);
        let (nodes, frames, feeds, fetches) = (vec![], vec![], vec![], vec![]);
        let piece = Piece { device, nodes, frames, feeds, fetches, mode: Mode::Whole };
        let ids = [0, 1].map(|number| PieceId { session, number });
        let pieces = ids.iter().map(|&id| (id, piece.clone())).collect();
        let open =
            Request::Open { session, graph: vec![], options: SessionOptions::default(), constants: constants.clone() };
        let failure = Failure::new(Code::ResourceExhausted, "this takes 2 GB");
        let expected = failure.clone().on_task("/job:t/task:0");
        let told = || ToClient::Reply { id, result: Err(expected.clone()) }.into();
        let inquiry = Inquiry::WriteVariable { variable: VariableName::default(), expected: None };
        let refused: [(Message, Message); 3] = [
            (
                ToWorker::Register { session, isolated: false, pieces, constants, guarded: false }.into(),
                ToMaster::Registered { session, pieces: ids.to_vec(), result: Err(expected.clone()) }.into(),
            ),
            (ToMaster::Request { id, request: open }.into(), told()),
            (ToHost::Ask { id, inquiry }.into(), told()),
        ];
        let from = Peer::new("sender");
        for (message, answer) in refused {
            let message = Message::Refused { message: Box::new(message), failure: failure.clone() };
            host.deliver(&from, message.into());
            assert_eq!(sent.0.lock().unwrap().pop(), Some((from.clone(), answer)));
        }
    }
}
