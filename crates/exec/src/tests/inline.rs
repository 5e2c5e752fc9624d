//! Tests that quick steps, and only those, run on the thread that delivers their inputs.

use std::thread::{self, ThreadId};
use std::time::Instant;

use meshtf_engine::{Engine, EngineKernel, EngineOutcome, Value, Values};
use meshtf_graph::plan::Piece;
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_testing::means::{Means, missing};

use super::super::delivering;
use super::super::{Holds, program};
use super::*;

/// The behaviour of Neg, by the first number of its input, which it returns unchanged.
const AT_ONCE: f32 = 0.0;
/// Takes several milliseconds.
const A_WHILE: f32 = 1.0;
/// Never ends unless its step is cancelled.
const FOREVER: f32 = 2.0;

struct Timed {
    /// The thread on which an endless kernel has begun.
    begun_on: Arc<Mutex<Option<ThreadId>>>,
}

impl Engine for Timed {
    fn name(&self) -> &str {
        "timed"
    }

    fn compile(&self, node: &KernelNode) -> meshtf_tensor::failure::Result<Option<EngineKernel>> {
        let begun_on = Arc::clone(&self.begun_on);
        let run = move |inputs: Values| {
            let [Value::Host(tensor)] = inputs.as_slice() else { panic!("the test feeds one host tensor") };
            let how = tensor.slice::<f32>().unwrap()[0];
            let begun = Instant::now();
            while how == A_WHILE && begun.elapsed() < Duration::from_millis(5) {
                thread::yield_now();
            }
            if how == FOREVER {
                *begun_on.lock().unwrap() = Some(thread::current().id());
                loop {
                    turn::look();
                    thread::yield_now();
                }
            }
            Ok(EngineOutcome::Done(inputs))
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

/// A step that ended, the thread on which it did, and its fetches.
type Ended = (u64, ThreadId, Vec<Tensor>);

struct Ends(Mutex<Sender<Ended>>);

impl Sink for Ends {
    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn push(&self, _: StepId, _: &DeviceName, _: Vec<Pushed>) {}

    fn done(&self, _: PieceId, step: StepId, fetches: Vec<Tensor>) {
        self.0.lock().unwrap().send((step.number, thread::current().id(), fetches)).unwrap();
    }

    fn failed(&self, step: StepId, failure: Failure) {
        panic!("step {} failed: {failure}", step.number);
    }
}

/// One device and its piece.
struct Fixture {
    device: Device,
    ends: Receiver<Ended>,
    /// The fetches of the last step that was waited for.
    fetched: Vec<Tensor>,
    begun_on: Arc<Mutex<Option<ThreadId>>>,
    steps: u64,
}

const SESSION: SessionId = SessionId(7);
const PIECE: PieceId = PieceId { session: SESSION, number: 0 };
const OTHER: PieceId = PieceId { session: SESSION, number: 1 };

fn planned(graph: &Graph, feeds: &[&str], fetch: &str) -> Piece {
    let device = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let (feeds, fetches) = (feeds.iter().map(|&feed| feed.to_owned()).collect(), vec![fetch.to_owned()]);
    let signature = Signature { feeds, fetches, ..Signature::default() };
    let options = PlanOptions { default_device: device.clone(), soft_placement: false, by_cost: None };
    plan(graph, &[DeviceFacts::unknown(device)], &signature, &options).unwrap().pieces.remove(0)
}

impl Fixture {
    fn new() -> Fixture {
        let graph = graph("p = Placeholder dtype=float32\n x = Neg p\n y = Neg x");
        Fixture::of(&planned(&graph, &["p"], "y"))
    }

    fn of(piece: &Piece) -> Fixture {
        let (sender, ends) = mpsc::channel();
        let begun_on = Arc::<Mutex<Option<ThreadId>>>::default();
        let engine = Box::new(Timed { begun_on: Arc::clone(&begun_on) });
        let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
        let device =
            Device::open(name, engine, Arc::new(Resources::new()), Arc::new(Ends(Mutex::new(sender)))).unwrap();
        device.register(PIECE, piece.clone()).unwrap();
        Fixture { device, ends, fetched: Vec::new(), begun_on, steps: 0 }
    }

    fn start(&mut self, feed: Tensor) -> u64 {
        self.steps += 1;
        self.device.start(PIECE, self.steps, 1, false, vec![feed]);
        self.steps
    }

    /// Delivers a start; returns whether the step ran on this thread.
    fn is_inline(&mut self, feed: Tensor) -> bool {
        let step = delivering(|| self.start(feed));
        let (ended, on, fetched) = self.ends.recv_timeout(PATIENCE).expect("a step ends");
        assert_eq!(ended, step);
        self.fetched = fetched;
        on == thread::current().id()
    }

    /// Runs steps until one runs inline: the time that a step takes depends on the machine, too.
    fn warm_up(&mut self, feed: impl Fn() -> Tensor) {
        let begun = Instant::now();
        while !self.is_inline(feed()) {
            assert!(begun.elapsed() < PATIENCE, "quick steps do not run inline");
        }
    }
}

fn scalar(how: f32) -> Tensor {
    Tensor::scalar(how)
}

/// Whether the machine has a core in addition to the delivering one; without one, devices run no steps inline.
fn has_cores(test: &str) -> bool {
    let has = thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if !has {
        missing(Means::Cores, test);
    }
    has
}

#[test]
fn a_quick_step_runs_on_the_thread_that_delivers_it_once_it_was_quick() {
    if !has_cores("quick steps on the thread that delivers them") {
        return;
    }
    let mut fixture = Fixture::new();
    assert!(!fixture.is_inline(scalar(AT_ONCE)), "nothing is known of the first");
    fixture.warm_up(|| scalar(AT_ONCE));
    // Outside of a delivery, the device's thread runs it.
    fixture.start(scalar(AT_ONCE));
    assert_ne!(fixture.ends.recv_timeout(PATIENCE).unwrap().1, thread::current().id());
    // Other shapes may take longer.
    assert!(!fixture.is_inline(Tensor::from_vec([2], vec![AT_ONCE; 2])));
    assert_eq!(fixture.device.holds().steps, 0);
}

#[test]
fn denormals_are_zero_in_a_step_that_runs_inline_and_not_behind_it() {
    if !has_cores("denormals in steps that run inline") {
        return;
    }
    let tiny = std::hint::black_box(1e-20f32);
    let graph = graph("p = Placeholder dtype=float32\n y = Mul p p");
    let mut fixture = Fixture::of(&planned(&graph, &["p"], "y"));
    fixture.warm_up(|| scalar(tiny));
    assert_eq!(fixture.fetched, [Tensor::scalar(0f32)]);
    assert_ne!(tiny * tiny, 0.0);
}

#[test]
fn a_step_that_takes_long_after_all_goes_on_with_the_device_and_is_not_run_inline_again() {
    if !has_cores("a step that is not quick after all") {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.warm_up(|| scalar(AT_ONCE));
    // The first Neg takes longer than a delivery may; the second runs on the device's thread, and shows that it is slow.
    assert!(!fixture.is_inline(scalar(A_WHILE)));
    assert!(!fixture.is_inline(scalar(AT_ONCE)), "the turn before was slow");
}

#[test]
fn an_op_that_hangs_inline_keeps_nobody_else_waiting_and_ends_with_its_step() {
    if !has_cores("an op that hangs inline") {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.device.register(OTHER, planned(&graph("p = Placeholder dtype=float32"), &["p"], "p")).unwrap();
    // Whether the step that hangs runs inline depends on the time of the one before, and so on how busy the machine is.
    let was_inline = (0..100).any(|_| {
        fixture.warm_up(|| scalar(AT_ONCE));
        let hanging = fixture.steps + 1;
        let device = &fixture.device;
        let delivering_on = thread::scope(|scope| {
            let delivers = scope.spawn(|| delivering(|| device.start(PIECE, hanging, 1, false, vec![scalar(FOREVER)])));
            let id = delivers.thread().id();
            until(|| fixture.begun_on.lock().unwrap().is_some());
            for step in hanging + 1..hanging + 4 {
                device.start(OTHER, step, 1, false, vec![scalar(AT_ONCE)]);
                assert_eq!(fixture.ends.recv_timeout(PATIENCE).expect("others go on").0, step);
            }
            device.abort(StepId { session: SESSION, number: hanging });
            id
        });
        fixture.steps += 4;
        until(|| fixture.device.holds().steps == 0);
        fixture.begun_on.lock().unwrap().take() == Some(delivering_on)
    });
    assert!(was_inline);
    fixture.warm_up(|| scalar(AT_ONCE));
    fixture.device.release(SESSION);
    assert_eq!(fixture.device.holds(), Holds::default());
}

#[test]
fn nothing_runs_inline_while_a_slow_op_may_hold_what_it_needs() {
    if !has_cores("steps beside a slow op") {
        return;
    }
    let mut fixture = Fixture::of(&planned(&graph("p = Placeholder dtype=float32"), &["p"], "p"));
    fixture.device.register(OTHER, planned(&graph("p = Placeholder dtype=float32\n x = Neg p"), &["p"], "x")).unwrap();
    fixture.warm_up(|| scalar(AT_ONCE));
    fixture.steps += 1;
    let slow = StepId { session: SESSION, number: fixture.steps };
    fixture.device.start(OTHER, slow.number, 1, false, vec![scalar(FOREVER)]);
    until(|| fixture.begun_on.lock().unwrap().is_some());
    for _ in 0..10 {
        assert!(!fixture.is_inline(scalar(AT_ONCE)));
    }
    fixture.device.abort(slow);
    fixture.warm_up(|| scalar(AT_ONCE));
}

#[test]
fn a_piece_runs_inline_if_shapes_decide_how_long_it_takes() {
    let cases = [
        ("p = Placeholder dtype=string\n y = StringLength p", true),
        ("p = Placeholder dtype=string\n y = ReadFile p", false),
        ("q = FIFOQueueV2 component_types=<int32>\n y = QueueDequeueV2 q component_types=<int32>", false),
        ("x = Const is=(1)\n t = Const is=(true)\n s = Switch x t\n y = Merge s s:1", false),
        ("p = Placeholder dtype=string\n y = DecodeRaw p out_type=uint8", false),
        ("p = Placeholder dtype=string\n y = DecodeCompressed p", false),
        // The value of the input decides how many elements are made, or in which shape.
        ("p = Placeholder dtype=int32\n x = Const is=(1)\n y = Fill p x", false),
        ("p = Placeholder dtype=int32\n x = Const is=(1,2)\n y = Reshape x p", false),
        ("p = Placeholder dtype=int32\n s = Shape p\n x = Const is=(1)\n y = Fill s x", true),
        ("p = Placeholder dtype=int32\n y = Range p p p", false),
        ("p = Placeholder dtype=int32\n n = Size p\n one = Const is=(1)\n y = Range one n one", true),
        (
            "p = Placeholder dtype=int32\n s = Shape p\n one = Const is=(1)\n d = Add s one\n y = BroadcastTo one d",
            true,
        ),
        ("p = Placeholder dtype=float32\n y = Print p p", false),
        (
            "i = IteratorV2 shared_name=\"i\" container=\"\" output_types=<int32> output_shapes={[]}\n \
             y = IteratorGetNext i output_types=<int32> output_shapes={[]}",
            false,
        ),
    ];
    for (text, expected) in cases {
        let feeds: &[&str] = if text.starts_with("p =") { &["p"] } else { &[] };
        let piece = planned(&graph(text), feeds, "y");
        let compiled = program::compile(&piece, &site(Arc::new(Resources::new())), &HostEngine).unwrap();
        assert_eq!(compiled.code.may_run_inline, expected, "{text}");
    }
}
