//! Tests that kernels that take long run in parallel, and that only the clock shows it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard};
use std::time::Instant;

use meshtf_engine::{Engine, EngineKernel, EngineOutcome, Value, Values};
use meshtf_graph::trace::NodeTrace;
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_testing::means::{Means, missing};

use super::*;
use meshtf_exec::Holds;

/// State shared by the kernels of a test: the number under way, and the number that have met.
#[derive(Default)]
struct Meeting {
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Meeting {
    /// Waits until another kernel has joined, too.
    fn join(&self) -> meshtf_tensor::failure::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        if state.0 == 2 {
            *state = (0, state.1 + 1);
            self.changed.notify_all();
            return Ok(());
        }
        let round = state.1;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| state.1 == round).unwrap();
        if waited.1.timed_out() { Err(Failure::invalid("nobody came")) } else { Ok(()) }
    }
}

/// The action of kernels on their first input before they pass it on.
type Does = fn(&Shared, f32) -> meshtf_tensor::failure::Result<()>;

#[derive(Default)]
struct Shared {
    meeting: Meeting,
    running: AtomicUsize,
}

/// An engine whose Neg, and no other op, is a kernel of the test.
struct Neg {
    shared: Arc<Shared>,
    does: Does,
}

impl Engine for Neg {
    fn name(&self) -> &str {
        "neg"
    }

    fn compile(&self, node: &KernelNode) -> meshtf_tensor::failure::Result<Option<EngineKernel>> {
        let (shared, does) = (Arc::clone(&self.shared), self.does);
        let run = move |values: Values| -> meshtf_tensor::failure::Result<EngineOutcome> {
            let number = values[0].clone().into_host()?.item::<f32>()?;
            does(&shared, number)?;
            Ok(EngineOutcome::Done(Values::from_iter([Tensor::scalar(-number).into()])))
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

/// A device with the engine, all of whose kernels run in parallel if they can. Kernels that wait in the pool leave no room in
/// it for those of another test. `None` if the pool has a single thread.
fn device(does: Does) -> Option<(Cluster, Arc<Shared>, MutexGuard<'static, ()>)> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if Beside::by_cores(true) == Beside::Never {
        missing(Means::Cores, "kernels beside each other");
        return None;
    }
    let alone = meshtf_tensor::lock::lock(&ONE_AT_A_TIME);
    let shared = Arc::new(Shared::default());
    let engine = || Box::new(Neg { shared: Arc::clone(&shared), does }) as Box<dyn Engine>;
    let cluster = Cluster::beside(&[Task::new("local", 0)], engine, Some(Beside::Always));
    Some((cluster, Arc::clone(&shared), alone))
}

const TWO: &str = "
    x = Placeholder dtype=float32
    y = Placeholder dtype=float32
    a = Neg x
    b = Neg y
    c = Sub a b";

#[test]
fn two_kernels_are_under_way_at_once() {
    let Some((mut cluster, _shared, _alone)) = device(|shared, _| shared.meeting.join()) else { return };
    for _ in 0..20 {
        cluster.check(&graph(TWO), &[("x", "1.0"), ("y", "3.0")], &[("c", "2.0"), ("a", "-1.0")]);
    }
    cluster.is_empty();
}

#[test]
fn more_kernels_than_threads_answer_the_same() {
    // They do not meet: between two that go to the pool one by one, the device may turn to a message first.
    let Some((mut cluster, _shared, _alone)) = device(|_, _| Ok(())) else { return };
    let graph = graph(
        "x = Placeholder dtype=float32
         y = Placeholder dtype=float32
         z = Add x y
         w = Sub x y
         a = Neg x
         b = Neg y
         c = Neg z
         d = Neg w
         e = AddN a b c d N=4",
    );
    for _ in 0..20 {
        cluster.check(&graph, &[("x", "1.5"), ("y", "4.0")], &[("e", "-8.5"), ("c", "-5.5"), ("d", "2.5")]);
    }
    cluster.is_empty();
}

#[test]
fn a_trace_shows_kernels_beside_each_other() {
    let Some((mut cluster, _shared, _alone)) = device(|shared, _| shared.meeting.join()) else { return };
    // Drawn numbers are waited for, and nodes that request a device are not bypassed.
    let text = format!(
        "{TWO}
        n = Const is=(1,1)
        drawn = RandomUniform n dtype=float32
        other = RandomUniform n dtype=float32
        same = Identity c ^drawn @0
        nothing = NoOp ^same ^other ^drawn ^a ^b
        end = Identity same ^nothing @0"
    );
    let (end, trace) = cluster.trace(&graph(&text), &[("x", tensor("1.0")), ("y", tensor("3.0"))], "end");
    assert_eq!(end, tensor("2.0"));
    let of = |name: &str| trace.nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("no {name}"));
    let begins_by_the_end = |one: &NodeTrace, other: &NodeTrace| {
        assert!(one.start_ns <= other.start_ns + other.took_ns, "{one:?} {other:?}");
    };
    begins_by_the_end(of("a"), of("b"));
    begins_by_the_end(of("b"), of("a"));
    // Nodes that do nothing and nodes that only pass a value on are traced, too, in the order in which each ended.
    for name in ["same", "nothing", "end"] {
        begins_by_the_end(of("a"), of(name));
    }
    let place = |name: &str| trace.nodes.iter().position(|node| node.name == name);
    assert!(place("a") < place("c") && place("b") < place("c") && place("same") < place("nothing"), "{trace:?}");
    cluster.is_empty();
}

#[test]
fn the_first_that_fails_is_named_and_the_device_goes_on() {
    // 2 fails, 3 panics, both in parallel with another kernel.
    let does: Does = |shared, number| {
        shared.meeting.join()?;
        match number {
            2.0 => Err(Failure::invalid("two is refused")),
            3.0 => panic!("three is too much"),
            _ => Ok(()),
        }
    };
    let Some((mut cluster, _shared, _alone)) = device(does) else { return };
    let graph = graph(TWO);
    let cases = [
        ("2.0", "1.0", Code::InvalidArgument, "two is refused", "a"),
        ("1.0", "2.0", Code::InvalidArgument, "two is refused", "b"),
        ("2.0", "3.0", Code::InvalidArgument, "two is refused", "a"),
        ("3.0", "2.0", Code::Internal, "three is too much", "a"),
        ("1.0", "3.0", Code::Internal, "three is too much", "b"),
    ];
    for (x, y, code, message, node) in cases.into_iter().cycle().take(20) {
        let feeds = [("x", tensor(x)), ("y", tensor(y))];
        let failure = cluster.run(&graph, &feeds, &["c"]).unwrap_err();
        assert_eq!((failure.code, failure.node.as_deref()), (code, Some(node)), "{failure}");
        assert!(failure.message.contains(message) && failure.device.is_some() && failure.is_in_step(), "{failure}");
        cluster.check(&graph, &[("x", "1.0"), ("y", "4.0")], &[("c", "3.0")]);
    }
    cluster.is_empty();
}

#[test]
fn two_that_run_end_with_their_step() {
    struct Running<'a>(&'a AtomicUsize);
    impl Drop for Running<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let does: Does = |shared, number| {
        if number < 100.0 {
            return Ok(());
        }
        shared.running.fetch_add(1, Ordering::SeqCst);
        let _until_it_ends = Running(&shared.running);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            turn::look();
            std::thread::yield_now();
        }
        Err(Failure::invalid("it was never given up"))
    };
    let Some((mut cluster, shared, _alone)) = device(does) else { return };
    let graph = graph(TWO);
    let other = super::graph("p = Placeholder dtype=int32\n q = Square p");
    let running = |count: usize| until(|| shared.running.load(Ordering::SeqCst) == count);
    for _ in 0..5 {
        let step = cluster.start(&graph, &[("x", tensor("100.0")), ("y", tensor("101.0"))], &["c"], 3).unwrap();
        running(2);
        // They do not delay other steps.
        cluster.check(&other, &[("p", "5")], &[("q", "25")]);
        cluster.abort(step);
        running(0);
        cluster.check(&graph, &[("x", "1.0"), ("y", "4.0")], &[("c", "3.0")]);
    }
    let device = cluster.device(&cluster.names[0]);
    until(|| device.holds().steps == 0);
    device.release(cluster.session);
    until(|| device.holds() == Holds::default());
}

/// Whether kernels are held back or not, answers are the same.
fn both(check: impl Fn(&mut Cluster)) {
    for beside in [Beside::Never, Beside::Always] {
        check(&mut Cluster::beside(&[Task::new("local", 0)], || Box::new(HostEngine), Some(beside)));
    }
}

#[test]
fn a_kernel_sees_a_reference_as_it_is_in_its_own_turn() {
    let graph = graph(
        "v = VariableV2 dtype=float32 shape=[]
         one = Const is=(1.0)
         ten = Const is=(10.0)
         init = Assign v ten
         before = Neg v
         other = Square v
         add = AssignAdd v one ^before
         between = Neg v ^add
         last = AssignAdd v between
         after = Square v ^last
         sum = AddN before other between after N=4",
    );
    both(|cluster| {
        cluster.check(&graph, &[], &[("init", "10.0")]);
        // 10, 11 and then 0.
        cluster.check(&graph, &[], &[("before", "-10.0"), ("other", "100.0"), ("between", "-11.0"), ("after", "0.0")]);
        cluster.check(&graph, &[], &[("sum", "-1.0"), ("other", "0.0"), ("between", "-1.0")]);
        cluster.is_empty();
    });
}

#[test]
fn what_comes_after_a_kernel_that_fails_is_not_done() {
    // An index out of bounds; by an edge, by a node that does nothing, and on the way of a value, which waits for kernels that
    // read variables.
    let graph = graph(
        "v = VariableV2 dtype=float32 shape=[]
         i = Placeholder dtype=int32
         zero = Const is=(0)
         one = Const is=(1.0)
         two = Const is=(2.0,3.0)
         start = Const is=(5.0)
         init = Assign v start
         good = Neg one
         t = VariableV2 dtype=float32 shape=[2]
         fill = Assign t two
         table = Identity t
         bad = GatherV2 table i zero
         by_edge = AssignAdd v one ^bad
         group = NoOp ^good ^bad
         by_group = AssignAdd v one ^group
         same = Identity good ^group
         again = Identity same
         by_value = AssignAdd v again
         read = Identity v",
    );
    both(|cluster| {
        cluster.check(&graph, &[], &[("init", "5.0"), ("^fill", "")]);
        for target in ["by_edge", "by_group", "by_value"] {
            // Fetched, too: planning leaves out nodes without consumers.
            let failure = cluster.run(&graph, &[("i", tensor("7"))], &[target, "bad"]).unwrap_err();
            assert_eq!(failure.node.as_deref(), Some("bad"), "{failure}");
            cluster.check(&graph, &[], &[("read", "5.0")]);
        }
        cluster.check(&graph, &[("i", "1")], &[("by_value", "4.0"), ("good", "-1.0")]);
        cluster.is_empty();
    });
}

/// Two layers with their gradients and updates, where every node has others that it could run in parallel with.
#[test]
fn a_training_step_answers_the_same_to_the_last_bit() {
    use meshtf_engine::adapters::{self, BackendChoice};

    let graph = graph(
        "x = Placeholder dtype=float32
         w1 = VariableV2 dtype=float32 shape=[96,160]
         w2 = VariableV2 dtype=float32 shape=[160,224]
         p1 = Placeholder dtype=float32
         p2 = Placeholder dtype=float32
         init1 = Assign w1 p1
         init2 = Assign w2 p2
         rate = Const is=(0.01)
         h = MatMul x w1 transpose_a=false transpose_b=false
         t = Tanh h
         s = Sigmoid h
         m = Mul t s
         y = MatMul m w2 transpose_a=false transpose_b=false
         dm = MatMul y w2 transpose_a=false transpose_b=true
         dw2 = MatMul m y transpose_a=true transpose_b=false
         both = NoOp ^dm ^dw2
         dm2 = Identity dm ^both
         dw22 = Identity dw2 ^both
         ds = Mul dm2 t
         dt = Mul dm2 s
         gs = SigmoidGrad s ds
         gt = TanhGrad t dt
         dh = AddV2 gs gt
         dw1 = MatMul x dh transpose_a=true transpose_b=false
         u1 = ApplyGradientDescent w1 rate dw1
         u2 = ApplyGradientDescent w2 rate dw22
         axes = Const is=(0,1) dtype=int32
         loss = Sum y axes",
    );
    let numbers = |dims: [usize; 2]| {
        let all = (0..dims[0] * dims[1]).map(|i| (i * 7919 % 1000) as f32 / 5e3 - 0.1).collect::<Vec<_>>();
        Tensor::from_vec(dims, all)
    };
    let run = |beside: Beside| {
        let engine = || adapters::cpu(BackendChoice::Flex).open().unwrap();
        let mut cluster = Cluster::beside(&[Task::new("local", 0)], engine, Some(beside));
        let of = [("p1", numbers([96, 160])), ("p2", numbers([160, 224]))];
        cluster.run(&graph, &of, &["^init1", "^init2"]).unwrap();
        // One piece, so that its later steps know the costs from earlier ones.
        let step = cluster.start(&graph, &[("x", numbers([64, 96]))], &["loss", "u1", "u2", "dm"], 70).unwrap();
        let bits = |tensor: &Tensor| tensor.slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        (0..70).flat_map(|i| cluster.wait(step + i).unwrap().iter().map(bits).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let wanted = run(Beside::Never);
    for beside in [Beside::by_cores(true), Beside::Always] {
        let got = run(beside);
        let differs = got.iter().zip(&wanted).position(|(one, other)| one != other);
        assert_eq!((got.len(), differs), (wanted.len(), None), "{beside:?}");
    }
}
