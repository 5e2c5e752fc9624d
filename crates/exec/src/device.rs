//! A device as its owner sees it: pieces are registered, steps are started, values arrive.

mod variable;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_engine::Engine;
use meshtf_graph::plan::Piece;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceName, Rates};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::lock::lock;

use super::busy::Busy;
use super::function;
use super::inner::Inner;
use super::mailbox::{self, DeviceInbox, DeviceMessage, Holds, Load};
use super::parked::{self, Claim, MAX_PARKED_BYTES};
use super::program::{self, Source};
use super::resource::Resources;
use super::sink::{Pushed, Sink};
use super::state::Site;
use super::step::{Beside, Body};
use super::thread::{Table, Threads, inline};

/// A device: the handle of its threads. Dropping it ends them, once the ops under way on them have ended. An op that another
/// thread runs inline is cancelled.
pub struct Device {
    place: Arc<Inner>,
    threads: Arc<Threads>,
}

impl Device {
    /// Starts the threads of a device. `resources` are its task's, shared by the task's devices.
    ///
    /// # Errors
    /// ResourceExhausted if the system refuses a thread.
    pub fn open(
        name: DeviceName,
        engine: Box<dyn Engine>,
        resources: Arc<Resources>,
        sink: Arc<dyn Sink>,
    ) -> Result<Device, Failure> {
        let beside = Beside::by_cores(engine.computes_here());
        Device::with(name, engine, resources, sink, beside, Threads::start)
    }

    /// As [`Device::open`], with kernels in parallel as `beside` specifies.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_beside(
        name: DeviceName,
        engine: Box<dyn Engine>,
        resources: Arc<Resources>,
        sink: Arc<dyn Sink>,
        beside: Beside,
    ) -> Result<Device, Failure> {
        Device::with(name, engine, resources, sink, beside, Threads::start)
    }

    /// A device without threads, for a program that runs it turn by turn ([`Device::run_turn`]) on its own thread and by its
    /// own clock: a simulation. It never runs kernels in parallel.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn by_hand(
        name: DeviceName,
        engine: Box<dyn Engine>,
        resources: Arc<Resources>,
        sink: Arc<dyn Sink>,
    ) -> Result<Device, Failure> {
        let by_hand = |place, inbox| Ok(Threads::by_hand(place, inbox));
        Device::with(name, engine, resources, sink, Beside::Never, by_hand)
    }

    fn with(
        name: DeviceName,
        engine: Box<dyn Engine>,
        resources: Arc<Resources>,
        sink: Arc<dyn Sink>,
        beside: Beside,
        start: impl FnOnce(Arc<Inner>, DeviceInbox<Table>) -> Result<Arc<Threads>, Failure>,
    ) -> Result<Device, Failure> {
        let (mailbox, inbox) = mailbox::open();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let place = Arc::new(Inner {
            runs_inline: engine.computes_here() && cores > 1,
            name,
            engine,
            resources,
            sink,
            wake: Arc::new(mailbox.clone()),
            mailbox,
            parked: Arc::new(AtomicUsize::new(0)),
            generators: Mutex::default(),
            busy: Busy::default(),
            beside,
        });
        let threads = start(Arc::clone(&place), inbox)?;
        Ok(Device { place, threads })
    }

    /// Measures its rates, on the caller's thread: [`meshtf_engine::rates::measure`].
    ///
    /// # Errors
    /// As the engine's kernels.
    pub fn measure_rates(&self, streams: bool) -> Result<Option<Rates>, Failure> {
        meshtf_engine::rates::measure(&*self.place.engine, streams)
    }

    /// Its name.
    pub fn name(&self) -> &DeviceName {
        &self.place.name
    }

    /// Whether a device without threads has something to do.
    pub fn has_work(&self) -> bool {
        self.threads.has_work()
    }

    /// Has a device without threads take its messages and run one turn.
    pub fn run_turn(&self) {
        self.threads.run_turn();
    }

    /// Queries the thread that drives the device; `None` if the device is closed.
    fn query<T>(&self, message: impl FnOnce(SyncSender<T>) -> DeviceMessage) -> Option<T> {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        self.place.mailbox.send(message(reply));
        self.threads.take_messages();
        answer.recv().ok()
    }

    /// Compiles a piece, on the caller's thread, and holds it until it is forgotten or its session released. Waits for the
    /// device.
    ///
    /// # Errors
    /// The failure of the first node that cannot be compiled; AlreadyExists if the id is taken, ResourceExhausted if the device
    /// holds [`MAX_PIECES`](crate::MAX_PIECES).
    pub fn register(&self, id: PieceId, piece: Piece) -> Result<(), Failure> {
        let Inner { name, engine, resources, .. } = &*self.place;
        let site = Site {
            session: id.session,
            device: (name.kind, name.index),
            place: name.to_string().into(),
            resources: Arc::clone(resources),
            generators: lock(&self.place.generators).entry(id.session).or_default().clone(),
            callee: function::callee,
        };
        let compile = || resources.budget().run(|| program::compile(&piece, &site, &**engine));
        let compiled = catch_unwind(AssertUnwindSafe(compile))
            .unwrap_or_else(|panic| Err(Failure::panicked("the compiler", &*panic)));
        let result = compiled.and_then(|compiled| {
            let source = Source::of(piece, site, &compiled);
            let body = Box::new(Body::new(compiled));
            let registered = self.query(|reply| DeviceMessage::Register { id, body, source, reply });
            registered.unwrap_or_else(|| Err(Failure::new(Code::Unavailable, "the device is closed")))
        });
        let largest = || self.query(|reply| DeviceMessage::Largest { reply }).flatten();
        result.map_err(|failure| failure.with_holder_among(|_| largest()).on_device(&name.to_string()))
    }

    /// Runs the piece for the steps `first..first + count`, each when the one before it has run on this device. `continues`: they
    /// are of the same run as the step before the first, and come after it. While all steps of the piece that are under way
    /// wait, another run begins, up to [`MAX_OVERLAP`](crate::MAX_OVERLAP). `feeds` come in the piece's order and are the same
    /// for each step. If more than [`MAX_PARKED_BYTES`] of them and of other values would
    /// wait, the step fails with ResourceExhausted.
    pub fn start(&self, id: PieceId, first: u64, count: u64, continues: bool, feeds: Vec<Tensor>) {
        let step = StepId { session: id.session, number: first };
        let bytes = feeds.iter().map(Tensor::byte_len).sum();
        let is_asked = match Claim::of(&self.place.parked, bytes) {
            Some(claim) => self.ask(step, DeviceMessage::Start { id, first, count, continues, feeds, claim }),
            None => self.ask(step, DeviceMessage::Overflow { step, count, failure: self.too_much() }),
        };
        if !is_asked {
            // If this finds no room either, the values for those steps are dropped as the master cancels each of them.
            self.place.mailbox.follow_up(DeviceMessage::Unwanted { step, count });
        }
    }

    /// Takes values that another device pushed. They may come before their step has started. If more than [`MAX_PARKED_BYTES`]
    /// would wait for the nodes that take them, or the waiting values fill the memory budget, the step fails with
    /// ResourceExhausted.
    pub fn arrive(&self, step: StepId, values: Vec<Pushed>) {
        let (parked, budget) = (&self.place.parked, self.place.resources.budget());
        let cost = values.iter().map(|pushed| parked::cost(&pushed.value)).sum();
        let waiting = parked.fetch_add(cost, Ordering::Relaxed) + cost;
        let failure = if waiting > MAX_PARKED_BYTES {
            self.too_much()
        } else if budget.is_crowded_by(waiting) {
            budget.refusal()
        } else {
            if !self.ask(step, DeviceMessage::Arrive { step, values }) {
                parked.fetch_sub(cost, Ordering::Relaxed);
            }
            return;
        };
        parked.fetch_sub(cost, Ordering::Relaxed);
        self.refuse(step, failure);
    }

    /// Fails a step, begun or not, whose values cannot be taken.
    pub fn refuse(&self, step: StepId, failure: Failure) {
        self.ask(step, DeviceMessage::Overflow { step, count: 1, failure });
    }

    fn too_much(&self) -> Failure {
        let why = format!(
            "more than {MAX_PARKED_BYTES} bytes of values (MAX_PARKED_BYTES) wait on {} for the nodes that take them",
            self.place.name
        );
        Failure::new(Code::ResourceExhausted, why)
    }

    /// Sends a request for a step, which fails if the device is closed or has [`MAX_MESSAGES`] waiting.
    fn ask(&self, step: StepId, message: DeviceMessage) -> bool {
        let Inner { name, sink, mailbox, runs_inline, .. } = &*self.place;
        let asked = if *runs_inline && inline::will_visit(&self.threads) {
            mailbox.offer_quietly(message)
        } else {
            mailbox.offer(message)
        };
        let is_asked = asked.is_ok();
        if let Err(failure) = asked {
            sink.failed(step, failure.on_device(&name.to_string()).in_step(step.number));
            sink.flush();
        }
        is_asked
    }

    /// Forgets a step, and the later ones of its [`Device::start`], without notifying the sink. It may come before that start,
    /// and still cuts it short.
    pub fn abort(&self, step: StepId) {
        self.place.mailbox.send(DeviceMessage::Abort { step });
    }

    /// Forgets these pieces and their steps, without notifying the sink.
    pub fn forget(&self, pieces: Vec<PieceId>) {
        self.place.mailbox.send(DeviceMessage::Forget { pieces });
    }

    /// Forgets the session's pieces, steps, parked values and private resources.
    pub fn release(&self, session: SessionId) {
        // At once, as pieces are compiled: pieces registered from now on get new generators.
        lock(&self.place.generators).remove(&session);
        self.place.mailbox.send(DeviceMessage::Release { session });
    }

    /// The device's counts, after every message sent to it before. Waits for its threads; zero when those have ended.
    pub fn holds(&self) -> Holds {
        self.query(|reply| DeviceMessage::Count { most: 0, reply }).unwrap_or_default().holds
    }

    /// The device's counts and work, with the `most` pieces that ran most steps. Waits for its threads, up to `limit`: `None`
    /// if they do not answer by then.
    pub fn load(&self, most: usize, limit: Duration) -> Option<Load> {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        self.place.mailbox.send(DeviceMessage::Count { most, reply });
        self.threads.take_messages();
        answer.recv_timeout(limit).ok()
    }

    /// How long the device has had work since it was opened.
    pub fn busy(&self) -> Duration {
        self.place.busy.total()
    }

    /// Bytes in use of the device's own memory; `None` if that is the process's, or is not known.
    pub fn memory_in_use(&self) -> Option<u64> {
        self.place.engine.memory_in_use()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.place.mailbox.send(DeviceMessage::Close);
        self.threads.join();
    }
}
