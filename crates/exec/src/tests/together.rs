//! Tests of steps that work on the same state at the same time.

use std::collections::BTreeSet;

use super::super::resource::{DEFAULT_CONTAINER, Resource, ResourceKey, Variable};
use super::ops::Ops;
use super::*;

/// A resource that a step has made: seen by all sessions, or by its own session alone.
fn resource(cluster: &Cluster, name: &str, is_shared: bool) -> Arc<dyn Resource> {
    let key = ResourceKey {
        session: (!is_shared).then_some(cluster.session),
        device: (DeviceKind::Cpu, 0),
        container: DEFAULT_CONTAINER.to_owned(),
        name: name.to_owned(),
    };
    let missing = || panic!("nothing made {name}");
    cluster.resources[0].find_or_make(&key, cluster.session, missing).unwrap()
}

#[test]
fn each_number_is_counted_once() {
    const EACH: usize = 10_000;
    let text = "
        v = VariableV2 dtype=int64 shape=[]
        x = Placeholder dtype=int64
        init = Assign v x
        next = CountUpTo v limit=20000";
    let resources = Arc::new(Resources::new());
    let ops = || Ops::on(Arc::clone(&resources), text, Box::new(HostEngine));
    ops().answers("init", &[("x", &Tensor::scalar(0i64))]);
    let count = |mut ops: Ops| -> Vec<i64> { (0..EACH).map(|_| ops.answer("next", &[]).to_i64().unwrap()).collect() };
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| count(ops()));
        (count(ops()), other.join().unwrap())
    });
    let all: BTreeSet<i64> = one.into_iter().chain(other).collect();
    assert!(all.iter().copied().eq(0..2 * EACH as i64), "{} different numbers", all.len());
    let failure = ops().call("next", &[]).map(|_| ()).unwrap_err();
    assert_eq!((failure.code, failure.message.as_str()), (Code::OutOfRange, "Reached limit of 20000"));
}

/// Two updates that name two variables in opposite orders never wait for each other.
#[test]
fn updates_hold_their_variables_in_one_order() {
    let text = "
        one = Const is=(1.0)
        two = Const is=(2.0)
        a = VariableV2 dtype=float32 shape=[]
        b = VariableV2 dtype=float32 shape=[]
        init_a = Assign a one
        init_b = Assign b two
        train_a = ApplyMomentum a b one one one
        train_b = ApplyMomentum b a one one one";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("init_a", "1.0"), ("init_b", "2.0")]);
    let variable = |name: &str| resource(&cluster, name, true).typed::<Variable>().unwrap();
    let (a, b) = (variable("a"), variable("b"));
    let a_is_first = Arc::as_ptr(&a) < Arc::as_ptr(&b);
    let (first, last, trains) =
        if a_is_first { (&a, &b, ["^train_b", "^train_a"]) } else { (&b, &a, ["^train_a", "^train_b"]) };
    let held = last.hold();
    let one = cluster.start(&graph, &[], &trains[..1], 1).unwrap();
    // It names the last variable first, and holds the first while it waits for the last.
    until(|| first.bytes() == 0);
    let other = cluster.start(&graph, &[], &trains[1..], 1).unwrap();
    drop(held);
    cluster.wait(one).unwrap();
    cluster.wait(other).unwrap();
    // The first update makes `accum += 1; var -= accum` of the current values, and then the second one, with the variables
    // swapped.
    let number = |variable: &Variable| variable.read().unwrap().into_host().unwrap();
    let (first_value, last_value) = if a_is_first { ("1.0", "1.0") } else { ("4.0", "-1.0") };
    assert_eq!([number(first), number(last)], [tensor(first_value), tensor(last_value)]);
}

/// An op that works on a queue or an accumulator may take long; the device does not wait for it to cancel one that waits there.
#[test]
fn who_waits_is_given_up_at_once_whatever_others_do_there() {
    let queue = "
        r = FIFOQueueV2 component_types=<float32> shapes={[]}
        g = Placeholder dtype=float32
        put = QueueEnqueueV2 r g
        get = QueueDequeueV2 r component_types=<float32>
        size = QueueSizeV2 r";
    let accumulator = "
        r = ResourceConditionalAccumulator dtype=float32 shape=[]
        zero = Const is=(0l)
        one = Const is=(1)
        g = Placeholder dtype=float32
        put = ResourceAccumulatorApplyGradient r zero g
        get = ResourceAccumulatorTakeGradient r one dtype=float32
        size = ResourceAccumulatorNumAccumulated r";
    let other = graph("p = Placeholder dtype=int32\n q = Add p p");
    for text in [queue, accumulator] {
        let graph = graph(text);
        let mut cluster = Cluster::new(1);
        let waits = cluster.start(&graph, &[], &["get"], 1).unwrap();
        cluster.check(&graph, &[], &[("size", "0")]);
        let resource = resource(&cluster, "r", false);
        cluster.check(&other, &[("p", "3")], &[("q", "6")]);
        let busy = resource.occupy();
        cluster.abort(waits);
        let id = PieceId { session: cluster.session, number: cluster.pieces };
        cluster.device(&cluster.names[0]).start(id, 99, 1, false, vec![tensor("4")]);
        match cluster.events.recv_timeout(PATIENCE).expect("the device waits for nobody") {
            Event::Done { fetches, .. } => assert_eq!(fetches, [tensor("8")]),
            Event::Failed { failure, .. } => panic!("{failure}"),
        }
        drop(busy);
        // The cancelled op does not get the element that comes now.
        cluster.check(&graph, &[("g", "7.0")], &[("^put", "")]);
        cluster.check(&graph, &[], &[("size", "1")]);
        cluster.check(&graph, &[], &[("get", "7.0")]);
        cluster.is_empty();
    }
}
