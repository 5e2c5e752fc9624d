//! Tests of steps in order, in parallel, failing and cancelled; and that nothing is left behind.

use meshtf_engine::{Engine, EngineKernel, EngineOutcome, Value, Values};
use meshtf_kernels::KernelNode;
use smallvec::SmallVec;

use super::*;
use meshtf_exec::{Holds, Pushed};

#[test]
fn steps_run_in_order_without_the_master() {
    let text = "
        v = VariableV2 dtype=int32 shape=[] @1
        one = Const is=(1) @0
        zero = Const is=(0) @1
        init = Assign v zero @1
        add = AssignAdd v one @1
        seen = Identity add @0";
    let graph = graph(text);
    let mut cluster = Cluster::new(2);
    cluster.check(&graph, &[], &[("init", "0")]);
    let first = cluster.start(&graph, &[], &["seen"], 200).unwrap();
    for i in 0..200 {
        let seen = cluster.wait(first + i).unwrap();
        assert_eq!(seen, [Tensor::scalar(i as i32 + 1)]);
    }
    cluster.is_empty();
}

#[test]
fn a_failure_ends_its_steps_on_every_device_and_leaves_nothing() {
    let text = "
        v = VariableV2 dtype=int32 shape=[] @1
        one = Const is=(1) @0
        ten = Const is=(10) @1
        zero = Const is=(0) @1
        init = Assign v zero @1
        add = AssignAdd v one @1
        fine = Less add ten @1
        guard = Assert fine add @1
        seen = Identity add ^guard @0";
    let graph = graph(text);
    let mut cluster = Cluster::new(2);
    cluster.check(&graph, &[], &[("init", "0")]);
    let first = cluster.start(&graph, &[], &["seen"], 1000).unwrap();
    for i in 0..9 {
        assert_eq!(cluster.wait(first + i).unwrap(), [Tensor::scalar(i as i32 + 1)]);
    }
    let failure = cluster.wait(first + 9).unwrap_err();
    assert_eq!((failure.node.as_deref(), failure.stage), (Some("guard"), Stage::InStep(first + 9)), "{failure}");
    assert_eq!(failure.device.as_deref(), Some("/job:local/task:1/device:CPU:0"));
    cluster.is_empty();
    cluster.check(&graph, &[], &[("init", "0")]);
    cluster.is_empty();
}

fn pushed(transfer: u32, value: Option<Tensor>) -> Pushed {
    Pushed { transfer, iterations: SmallVec::new(), value }
}

#[test]
fn values_may_come_before_their_step_and_too_late() {
    let graph = graph(flow::SPLIT_238);
    let mut cluster = Cluster::new(2);
    cluster.check(&graph, &[], &[("y", "238")]);
    // Step 2 of the piece on task 0, whose transfer comes first.
    let id = PieceId { session: cluster.session, number: 1 };
    let step = StepId { session: cluster.session, number: 2 };
    let device = cluster.names[0].clone();
    let transfer = cluster.transfer;
    let arrive = |cluster: &Cluster, value: i32| {
        cluster.device(&device).arrive(step, vec![pushed(transfer, Some(Tensor::scalar(value)))]);
    };
    arrive(&cluster, 0);
    assert!(cluster.device(&device).holds().parked_bytes > 0);
    cluster.device(&device).start(id, 2, 1, false, Vec::new());
    match cluster.events.recv().unwrap() {
        Event::Done { fetches, .. } => assert_eq!(fetches, [tensor("302")]),
        Event::Failed { failure, .. } => panic!("{failure}"),
    }
    arrive(&cluster, 7);
    cluster.is_empty();
}

#[test]
fn release_forgets_a_session_whatever_it_does() {
    let text = "
        q = FIFOQueueV2 component_types=<int32>
        get = QueueDequeueV2 q component_types=<int32>
        y = Identity get @1";
    let mut cluster = Cluster::new(2);
    cluster.start(&graph(text), &[], &["y"], 5).unwrap();
    for name in &cluster.names {
        cluster.device(name).release(cluster.session);
        let early = StepId { session: cluster.session, number: 99 };
        cluster.device(name).arrive(early, vec![pushed(0, None)]);
        assert_eq!(cluster.device(name).holds(), Holds::default());
    }
}

#[test]
fn a_forgotten_piece_takes_its_steps_with_it_and_no_other() {
    let waits = "
        q = FIFOQueueV2 component_types=<int32>
        get = QueueDequeueV2 q component_types=<int32>
        y = Identity get @1";
    let other = "
        one = Const is=(1)
        y = Neg one @1";
    let (waits, other) = (graph(waits), graph(other));
    let mut cluster = Cluster::new(2);
    let step = cluster.start(&waits, &[], &["y"], 5).unwrap();
    let pieces: Vec<PieceId> = cluster.running[&step].places.keys().copied().collect();
    cluster.check(&other, &[], &[("y", "-1")]);
    let before = cluster.device(&cluster.names[1]).holds();
    for name in &cluster.names {
        cluster.device(name).forget(pieces.clone());
    }
    cluster.is_empty();
    let after = cluster.device(&cluster.names[1]).holds();
    assert_eq!((before.pieces, after.pieces, after.sessions), (2, 1, 1));
    cluster.check(&other, &[], &[("y", "-1")]);
}

/// Has kernels for Neg, which panics on 13 and leaves 0 to the host, and for Square, which squares nothing and is not called
/// for values of up to two elements.
struct Odd;

impl Engine for Odd {
    fn name(&self) -> &str {
        "odd"
    }

    fn compile(&self, node: &KernelNode) -> meshtf_tensor::failure::Result<Option<EngineKernel>> {
        let run = |mut values: Values| match values[0].clone().into_host()?.to_i64()? {
            13 => panic!("thirteen"),
            0 => Ok(EngineOutcome::Declined(values)),
            x => {
                values[0] = Value::Host(Tensor::scalar(1000 - x as i32));
                Ok(EngineOutcome::Done(values))
            }
        };
        Ok(match node.op {
            "Neg" => Some(EngineKernel { run: Box::new(run), host_up_to: 0, forms: 0 }),
            "Square" => {
                Some(EngineKernel { run: Box::new(|values| Ok(EngineOutcome::Done(values))), host_up_to: 2, forms: 0 })
            }
            _ => None,
        })
    }

    fn upload(&self, tensor: Tensor) -> meshtf_tensor::failure::Result<Value> {
        Ok(Value::Host(tensor))
    }

    fn small(&self) -> usize {
        usize::MAX
    }
}

#[test]
fn an_engine_comes_first_and_its_panic_fails_the_step_only() {
    let graph = graph("x = Placeholder dtype=int32\n y = Neg x\n z = Abs y");
    let mut cluster = Cluster::with(&[Task::new("local", 0)], || Box::new(Odd));
    cluster.check(&graph, &[("x", "2")], &[("z", "998")]);
    cluster.check(&graph, &[("x", "0")], &[("z", "0")]);
    let failure = cluster.run(&graph, &[("x", tensor("13"))], &["z"]).unwrap_err();
    assert_eq!((failure.code, failure.node.as_deref()), (Code::Internal, Some("y")), "{failure}");
    assert!(failure.message.contains("thirteen"), "{failure}");
    cluster.check(&graph, &[("x", "5")], &[("z", "995")]);
    cluster.is_empty();
}

#[test]
fn an_engine_is_not_asked_for_what_is_small() {
    let graph = graph("x = Placeholder dtype=int32\n y = Square x");
    let mut cluster = Cluster::with(&[Task::new("local", 0)], || Box::new(Odd));
    cluster.check(&graph, &[("x", "2,3")], &[("y", "4,9")]);
    cluster.check(&graph, &[("x", "2,3,4")], &[("y", "2,3,4")]);
    cluster.is_empty();
}

#[test]
fn nor_for_a_small_variable_that_it_would_be_given_by_reference() {
    let graph = graph(
        "x = Placeholder dtype=int32
        v = VariableV2 dtype=int32 shape=[2]
        set = Assign v x
        y = Square v ^set",
    );
    let mut cluster = Cluster::with(&[Task::new("local", 0)], || Box::new(Odd));
    cluster.check(&graph, &[("x", "2,3")], &[("y", "4,9")]);
    cluster.is_empty();
}

#[test]
fn a_piece_with_an_op_that_nothing_here_computes_is_refused() {
    let graph = graph("x = Placeholder dtype=int32\n y = Neg x");
    let options = PlanOptions {
        default_device: Task::new("local", 0).device(DeviceKind::Cpu, 0),
        soft_placement: false,
        by_cost: None,
    };
    let signature = Signature { feeds: vec!["x".into()], fetches: vec!["y".into()], ..Signature::default() };
    let cluster = Cluster::new(1);
    let plan = plan(&graph, &cluster.facts(), &signature, &options).unwrap();
    let id = PieceId { session: cluster.session, number: 1 };
    let check = |change: &dyn Fn(&mut meshtf_graph::plan::Piece), code: Code| {
        let mut piece = plan.pieces[0].clone();
        change(&mut piece);
        let failure = cluster.device(&cluster.names[0]).register(id, piece).unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
    };
    let neg = plan.pieces[0].nodes.iter().position(|node| node.name == "y").unwrap();
    check(&|piece| piece.nodes[neg].op = meshtf_graph::plan::PieceOp::Op("Nag".into()), Code::Unimplemented);
    check(&|piece| piece.nodes[neg].inputs[0].0 = 99, Code::InvalidArgument);
    check(&|piece| piece.nodes[neg].inputs[0] = (neg as u32, 0), Code::InvalidArgument);
    check(&|piece| piece.nodes[neg].frame = 3, Code::InvalidArgument);
    check(&|piece| piece.frames.clear(), Code::InvalidArgument);
    check(&|piece| piece.feeds.clear(), Code::InvalidArgument);
    cluster.is_empty();
}

/// The next steps that were done, in order.
fn done(cluster: &Cluster, count: usize) -> Vec<u64> {
    let next = || match cluster.events.recv_timeout(PATIENCE).unwrap() {
        Event::Done { step, .. } => step.number,
        Event::Failed { failure, .. } => panic!("{failure}"),
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn a_step_that_was_given_up_before_its_start_came_does_not_run() {
    let graph = graph("x = Const is=(1)\n y = Neg x");
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("y", "-1")]);
    let id = PieceId { session: cluster.session, number: 1 };
    let device = cluster.device(&cluster.names[0]);
    let step = |number: u64| StepId { session: cluster.session, number };
    device.abort(step(2));
    device.start(id, 2, 1, false, Vec::new());
    device.start(id, 3, 1, false, Vec::new());
    assert_eq!(done(&cluster, 1), [3]);
    // Nor do the later ones of its start; those before it do.
    device.abort(step(6));
    device.start(id, 4, 10, false, Vec::new());
    device.start(id, 14, 2, false, Vec::new());
    assert_eq!(done(&cluster, 4), [4, 5, 14, 15]);
    device.arrive(step(7), vec![pushed(0, Some(Tensor::scalar(7)))]);
    cluster.is_empty();
}

#[test]
fn many_steps_that_were_given_up_keep_no_other_from_its_start() {
    let graph = graph("x = Const is=(1)\n y = Neg x");
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("y", "-1")]);
    let id = PieceId { session: cluster.session, number: 1 };
    let device = cluster.device(&cluster.names[0]);
    for i in 1..5000 {
        device.abort(StepId { session: cluster.session, number: 2 * i });
    }
    device.start(id, 3, 1, false, Vec::new());
    device.start(id, 9998, 1, false, Vec::new());
    device.start(id, 9999, 1, false, Vec::new());
    assert_eq!(done(&cluster, 2), [3, 9999]);
    cluster.is_empty();
}

#[test]
fn nothing_waits_for_the_steps_of_a_start_that_was_refused() {
    let graph = graph("x = Const is=(1)\n y = Neg x");
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("y", "-1")]);
    let device = cluster.device(&cluster.names[0]);
    let arrive = |number: u64| {
        let step = StepId { session: cluster.session, number };
        device.arrive(step, vec![pushed(0, Some(Tensor::scalar(7)))]);
    };
    // One value that came before it, and one that comes after.
    arrive(12);
    device.start(PieceId { session: cluster.session, number: 99 }, 10, 5, false, Vec::new());
    match cluster.events.recv_timeout(PATIENCE).unwrap() {
        Event::Failed { step, failure } => assert_eq!((step.number, failure.code), (10, Code::NotFound), "{failure}"),
        Event::Done { .. } => panic!("there is no such piece"),
    }
    arrive(14);
    cluster.is_empty();
    arrive(15);
    assert_eq!(device.holds().steps, 1, "that is none of them");
}
