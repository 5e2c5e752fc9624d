//! Tests of ops that take long: they delay no other step, and end when their step is cancelled. Panics outside of a step, and
//! the limit on a device's pieces.

use std::sync::atomic::{AtomicUsize, Ordering};

use meshtf_engine::{Engine, EngineKernel, EngineOutcome, Value, Values};
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use smallvec::SmallVec;

use super::deep::{chain, piece};
use super::*;
use meshtf_exec::{Holds, MAX_MESSAGES, MAX_PARKED_BYTES, MAX_PIECES, MAX_RUNS};

/// Has a kernel for Neg that never ends, and checks for cancellation.
struct Endless {
    /// Receives a message whenever a kernel has begun.
    begun: Mutex<Sender<()>>,
    /// Kernels under way.
    running: Arc<AtomicUsize>,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine for Endless {
    fn name(&self) -> &str {
        "endless"
    }

    fn compile(&self, node: &KernelNode) -> meshtf_tensor::failure::Result<Option<EngineKernel>> {
        let (begun, running) = (self.begun.lock().unwrap().clone(), self.running.clone());
        let run = move |_: Values| -> meshtf_tensor::failure::Result<EngineOutcome> {
            running.fetch_add(1, Ordering::SeqCst);
            let _until_it_ends = Running(running.clone());
            begun.send(()).unwrap();
            loop {
                turn::look();
                std::thread::yield_now();
            }
        };
        Ok((node.op == "Neg").then(|| EngineKernel { run: Box::new(run), host_up_to: 0, forms: 0 }))
    }

    fn upload(&self, tensor: Tensor) -> meshtf_tensor::failure::Result<Value> {
        Ok(Value::Host(tensor))
    }

    fn small(&self) -> usize {
        usize::MAX
    }
}

/// A device whose Neg never ends, the receiver of a message for each that begins, and the number under way.
fn endless() -> (Cluster, Receiver<()>, Arc<AtomicUsize>) {
    let (begun, told) = mpsc::channel();
    let running = Arc::new(AtomicUsize::new(0));
    let engine = || Box::new(Endless { begun: Mutex::new(begun.clone()), running: running.clone() }) as Box<dyn Engine>;
    (Cluster::with(&[Task::new("local", 0)], engine), told, running.clone())
}

#[test]
fn an_op_that_takes_long_keeps_nobody_waiting_and_ends_with_its_step() {
    let slow = graph("x = Const is=(1)\n y = Neg x");
    let small = graph("p = Placeholder dtype=int32\n q = Add p p");
    let (mut cluster, begun, running) = endless();
    // More at a time than one thread could take over from another.
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.push(cluster.start(&slow, &[], &["y"], 1).unwrap());
        begun.recv_timeout(PATIENCE).unwrap();
        for p in ["1", "2", "3"] {
            let sum = (2 * p.parse::<i32>().unwrap()).to_string();
            cluster.check(&small, &[("p", p)], &[("q", &sum)]);
        }
    }
    assert_eq!(running.load(Ordering::SeqCst), 3);
    // One is cancelled; the others run on.
    cluster.abort(steps[1]);
    until(|| running.load(Ordering::SeqCst) == 2);
    cluster.check(&small, &[("p", "5")], &[("q", "10")]);
    let device = cluster.device(&cluster.names[0]);
    until(|| device.holds().steps == 2);
    device.release(cluster.session);
    until(|| running.load(Ordering::SeqCst) == 0 && device.holds() == Holds::default());
}

#[test]
fn what_comes_for_a_step_during_an_op_that_takes_long_waits_for_it() {
    let (mut cluster, begun, running) = endless();
    let slow = graph("x = Const is=(1)\n y = Neg x");
    let step = cluster.start(&slow, &[], &["y"], 2).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    let (device, session) = (cluster.names[0].clone(), cluster.session);
    let arrive = |cluster: &Cluster, number: u64| {
        let value = Some(Tensor::scalar(1));
        let pushed = Pushed { transfer: 9, iterations: SmallVec::new(), value };
        cluster.device(&device).arrive(StepId { session, number }, vec![pushed]);
    };
    arrive(&cluster, step);
    let held = cluster.device(&device).holds();
    assert!(held.parked_bytes > 0, "{held:?}");
    cluster.abort(step);
    // Nothing remains of it, nor of the step that was to follow.
    until(|| running.load(Ordering::SeqCst) == 0);
    until(|| {
        let held = cluster.device(&device).holds();
        (held.steps, held.parked_bytes) == (0, 0)
    });
    arrive(&cluster, step);
    cluster.is_empty();
}

#[test]
fn feeds_that_wait_are_counted_and_too_many_fail_their_step() {
    let (mut cluster, begun, _) = endless();
    let slow = graph("p = Placeholder dtype=float32\n y = Neg p");
    // The elements are shared; their full size counts.
    let large = Tensor::zeros(DType::F32, [64 << 20]).unwrap();
    cluster.start(&slow, &[("p", large.clone())], &["y"], 1).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    let (session, fits) = (cluster.session, MAX_PARKED_BYTES / large.byte_len());
    let device = cluster.device(&cluster.names[0]);
    let start = |number: usize, count: u64| {
        device.start(PieceId { session, number: 1 }, 1 + number as u64, count, false, vec![large.clone()]);
    };
    (1..=fits).for_each(|number| start(number, 1));
    assert_eq!(device.holds().parked_bytes, MAX_PARKED_BYTES);
    start(fits + 1, 3);
    match cluster.events.recv_timeout(PATIENCE).unwrap() {
        Event::Failed { step, failure } => {
            assert_eq!((step.number, failure.code), (2 + fits as u64, Code::ResourceExhausted), "{failure}");
            assert!(failure.message.contains("MAX_PARKED_BYTES"), "{failure}");
        }
        Event::Done { .. } => panic!("it never ends"),
    }
    // Nothing is kept for the later steps of that start.
    cluster.abort(1);
    begun.recv_timeout(PATIENCE).expect("the next begins");
    let device = cluster.device(&cluster.names[0]);
    let before = device.holds();
    let late = Pushed { transfer: 9, iterations: SmallVec::new(), value: Some(Tensor::scalar(1)) };
    device.arrive(StepId { session, number: 4 + fits as u64 }, vec![late]);
    assert_eq!(device.holds(), before);
    device.release(session);
    until(|| device.holds() == Holds::default());
}

#[test]
fn so_many_runs_of_a_piece_wait_and_nothing_for_the_steps_of_one_more() {
    let (mut cluster, begun, _) = endless();
    cluster.start(&graph("x = Const is=(1)\n y = Neg x"), &[], &["y"], 1).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    let (session, device) = (cluster.session, cluster.device(&cluster.names[0]));
    let start =
        |number: u64, count: u64| device.start(PieceId { session, number: 1 }, number, count, false, Vec::new());
    // The first of them runs, and stays in the queue until it is done.
    for number in 2..=MAX_RUNS as u64 {
        start(number, 1);
        if number % 1024 == 0 {
            // So that no more messages wait than the limit allows.
            device.holds();
        }
    }
    let (before, first) = (device.holds(), MAX_RUNS as u64 + 1);
    let arrive = |number: u64| {
        let value = Some(Tensor::scalar(1));
        let pushed = Pushed { transfer: 9, iterations: SmallVec::new(), value };
        device.arrive(StepId { session, number }, vec![pushed]);
    };
    arrive(first + 1);
    start(first, 3);
    match cluster.events.recv_timeout(PATIENCE).unwrap() {
        Event::Failed { step, failure } => {
            assert_eq!((step.number, failure.code), (first, Code::ResourceExhausted), "{failure}");
            assert!(failure.message.contains("MAX_RUNS"), "{failure}");
        }
        Event::Done { .. } => panic!("it never ends"),
    }
    arrive(first + 2);
    assert_eq!(device.holds(), before);
    device.release(session);
    until(|| device.holds() == Holds::default());
}

/// Blocks on each finished step until it is released.
struct Slow {
    go_on: Mutex<Receiver<()>>,
    events: Mutex<Sender<Result<u64, Failure>>>,
}

impl Sink for Slow {
    fn push(&self, _: StepId, _: &DeviceName, _: Vec<Pushed>) {}

    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn done(&self, _: PieceId, step: StepId, _: Vec<Tensor>) {
        self.events.lock().unwrap().send(Ok(step.number)).unwrap();
        self.go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
    }

    fn failed(&self, _: StepId, failure: Failure) {
        self.events.lock().unwrap().send(Err(failure)).unwrap();
    }
}

#[test]
fn nothing_waits_for_the_steps_of_a_start_that_found_no_room() {
    let (go, go_on) = mpsc::channel();
    let (sender, events) = mpsc::channel();
    let sink = Arc::new(Slow { go_on: Mutex::new(go_on), events: Mutex::new(sender) });
    let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let device = Device::open(name, Box::new(HostEngine), Arc::default(), sink).unwrap();
    let id = PieceId { session: SessionId(1), number: 1 };
    device.register(id, chain(1)).unwrap();
    device.start(id, 1, 1, false, Vec::new());
    assert_eq!(events.recv_timeout(PATIENCE).unwrap().unwrap(), 1);
    // The device takes no messages now, and they accumulate.
    let arrive = |number: u64| {
        let pushed = Pushed { transfer: 9, iterations: SmallVec::new(), value: Some(Tensor::scalar(1)) };
        device.arrive(StepId { session: SessionId(1), number }, vec![pushed]);
    };
    arrive(11);
    for _ in 1..MAX_MESSAGES {
        // Of an unknown session: it has no effect.
        device.arrive(StepId { session: SessionId(2), number: 1 }, Vec::new());
    }
    device.start(id, 10, 3, false, Vec::new());
    let failure = events.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!((failure.code, failure.stage), (Code::ResourceExhausted, Stage::InStep(10)), "{failure}");
    assert!(failure.message.contains("MAX_MESSAGES"), "{failure}");
    go.send(()).unwrap();
    device.holds();
    arrive(12);
    let held = device.holds();
    assert_eq!((held.steps, held.parked_bytes), (0, 0), "{held:?}");
}

#[test]
fn closing_a_device_ends_what_takes_long() {
    let (begun, told) = mpsc::channel();
    let running = Arc::new(AtomicUsize::new(0));
    let engine = Endless { begun: Mutex::new(begun), running: running.clone() };
    let (events, _) = mpsc::channel();
    let (none, events) = (AtomicUsize::new(0), Mutex::new(events));
    let sink = Arc::new(Clumsy { done: none, failed: AtomicUsize::new(0), events });
    let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let device = Device::open(name, Box::new(engine), Arc::default(), sink).unwrap();
    for number in 0..2 {
        let id = PieceId { session: SessionId(1), number };
        device.register(id, piece(0, [("Neg", [0, 0])])).unwrap();
        device.start(id, u64::from(number), 1, false, Vec::new());
        told.recv_timeout(PATIENCE).unwrap();
    }
    drop(device);
    assert_eq!(running.load(Ordering::SeqCst), 0);
}

/// Panics for the first `done` finished steps, and for the first `failed` failed ones.
struct Clumsy {
    done: AtomicUsize,
    failed: AtomicUsize,
    events: Mutex<Sender<Result<u64, Failure>>>,
}

/// Takes one of the remaining ones; whether there was one.
fn take_one(of: &AtomicUsize) -> bool {
    of.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Sink for Clumsy {
    fn push(&self, _: StepId, _: &DeviceName, _: Vec<Pushed>) {}

    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn done(&self, _: PieceId, step: StepId, _: Vec<Tensor>) {
        assert!(!take_one(&self.done), "clumsy with what is done");
        self.events.lock().unwrap().send(Ok(step.number)).unwrap();
    }

    fn failed(&self, _: StepId, failure: Failure) {
        assert!(!take_one(&self.failed), "clumsy with what has failed");
        self.events.lock().unwrap().send(Err(failure)).unwrap();
    }
}

#[test]
fn a_panic_outside_of_a_step_leaves_nobody_waiting() {
    let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let open = |done, failed| {
        let (sender, events) = mpsc::channel();
        let (done, failed) = (AtomicUsize::new(done), AtomicUsize::new(failed));
        let sink = Arc::new(Clumsy { done, failed, events: Mutex::new(sender) });
        (Device::open(name.clone(), Box::new(HostEngine), Arc::default(), sink).unwrap(), events)
    };
    let id = |number| PieceId { session: SessionId(1), number };
    let next = |events: &Receiver<Result<u64, Failure>>| events.recv_timeout(PATIENCE).expect("an answer");

    // The step that it was about fails, and the device continues with all others.
    let (device, events) = open(1, 0);
    device.register(id(1), chain(1)).unwrap();
    device.register(id(2), chain(1)).unwrap();
    device.start(id(1), 1, 1, false, Vec::new());
    let failure = next(&events).unwrap_err();
    assert_eq!((failure.code, failure.stage), (Code::Internal, Stage::InStep(1)), "{failure}");
    assert!(failure.message.contains("clumsy") && failure.device.is_some(), "{failure}");
    device.start(id(2), 2, 1, false, Vec::new());
    device.start(id(1), 3, 1, false, Vec::new());
    assert_eq!([next(&events).unwrap(), next(&events).unwrap()], [2, 3]);
    assert_eq!(device.holds().steps, 0);

    // If not even the failure can be reported, the device is lost, and every request to it is answered with that.
    let (device, events) = open(1, 1);
    device.register(id(1), chain(1)).unwrap();
    device.start(id(1), 1, 1, false, Vec::new());
    for step in [2, 3] {
        device.start(id(1), step, 1, false, Vec::new());
        let failure = next(&events).unwrap_err();
        assert_eq!((failure.code, failure.stage), (Code::Internal, Stage::InStep(step)), "{failure}");
        assert!(failure.message.contains(&name.to_string()) && failure.message.contains("clumsy"), "{failure}");
    }
    let failure = device.register(id(2), chain(1)).unwrap_err();
    assert_eq!(failure.code, Code::Internal, "{failure}");
    assert_eq!(device.holds(), Holds::default());
}

#[test]
fn a_device_holds_so_many_pieces_and_no_more() {
    let cluster = Cluster::new(1);
    let device = cluster.device(&cluster.names[0]);
    let piece = chain(0);
    let id = |number| PieceId { session: cluster.session, number };
    for number in 0..MAX_PIECES as u32 {
        device.register(id(number), piece.clone()).unwrap();
    }
    let failure = device.register(id(MAX_PIECES as u32), piece.clone()).unwrap_err();
    assert_eq!(failure.code, Code::ResourceExhausted, "{failure}");
    assert!(failure.message.contains("MAX_PIECES"), "{failure}");
    device.release(cluster.session);
    device.register(id(0), piece).unwrap();
}
