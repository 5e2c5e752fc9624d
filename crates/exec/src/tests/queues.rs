//! Tests of the kinds of queues other than the plain one. The expected values are TensorFlow 2.21's.

use super::ops::Ops;
use super::*;

/// Runs each fetch in a step by itself, in order, and compares whole numbers.
fn check_each(cluster: &mut Cluster, graph: &Graph, what: &[(&str, &[i32])]) {
    for (fetch, want) in what {
        let got = cluster.run(graph, &[], &[fetch]).unwrap();
        assert_eq!(got[0].slice::<i32>().unwrap(), *want, "{fetch}");
    }
}

#[test]
fn a_shuffling_queue_draws_as_its_seeds_say_and_keeps_some_until_it_is_closed() {
    let graph = graph(
        "
        q = RandomShuffleQueueV2 component_types=<int32> shapes={[]} min_after_dequeue=2 seed=3 seed2=4
        x = Const is=(10,11,12,13,14,15,16,17)
        three = Const is=(3)
        five = Const is=(5)
        puts = QueueEnqueueManyV2 q x
        get = QueueDequeueV2 q component_types=<int32>
        gets = QueueDequeueManyV2 q three component_types=<int32>
        upto = QueueDequeueUpToV2 q five component_types=<int32>
        size = QueueSizeV2 q
        is_closed = QueueIsClosedV2 q
        close = QueueCloseV2 q",
    );
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("^puts", "")]);
    let drawn: [(&str, &[i32]); 5] =
        [("get", &[11]), ("get", &[13]), ("gets", &[15, 14, 16]), ("size", &[3]), ("get", &[17])];
    check_each(&mut cluster, &graph, &drawn);
    let waits = cluster.start(&graph, &[], &["get"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "2"), ("is_closed", "false")]);
    cluster.abort(waits);
    cluster.check(&graph, &[], &[("^close", "")]);
    cluster.check(&graph, &[], &[("is_closed", "true")]);
    let few = "RandomShuffleQueue 'q' is closed and has insufficient elements (requested 3, current size 2)";
    cluster.fails(&graph, &["gets"], Code::OutOfRange, few, "gets");
    cluster.fails(&graph, &["^puts"], Code::Cancelled, "RandomShuffleQueue 'q' is closed.", "puts");
    let mut rest = cluster.run(&graph, &[], &["upto"]).unwrap()[0].slice::<i32>().unwrap().to_vec();
    rest.sort_unstable();
    assert_eq!(rest, [10, 12]);
}

#[test]
fn a_priority_queue_gives_the_least_first() {
    let graph = graph(
        "
        q = PriorityQueueV2 component_types=<int32> shapes={[]}
        p = Placeholder dtype=int64
        x = Placeholder dtype=int32
        two = Const is=(2)
        put = QueueEnqueueV2 q p x
        get = QueueDequeueV2 q component_types=<int64,int32>
        gets = QueueDequeueManyV2 q two component_types=<int64,int32>
        close = QueueCloseV2 q",
    );
    let mut cluster = Cluster::new(1);
    for (p, x) in [("3l", "30"), ("-1l", "10"), ("2l", "20"), ("-1l", "11")] {
        cluster.check(&graph, &[("p", p), ("x", x)], &[("^put", "")]);
    }
    check_each(&mut cluster, &graph, &[("gets:1", &[10, 11])]);
    cluster.check(&graph, &[], &[("get", "2l"), ("get:1", "20")]);
    // A batch is sorted: with one element in the queue, the op waits for both, and takes the lesser one first though it came
    // later.
    let waits = cluster.start(&graph, &[], &["gets:1"], 1).unwrap();
    cluster.check(&graph, &[("p", "1l"), ("x", "12")], &[("^put", "")]);
    assert_eq!(cluster.wait(waits).unwrap(), [tensor("12,30")]);
    cluster.check(&graph, &[("p", "3l"), ("x", "30")], &[("^put", "")]);
    cluster.check(&graph, &[], &[("^close", "")]);
    let few = "PriorityQueue 'q' is closed and has insufficient elements (requested 2, current size 1)";
    cluster.fails(&graph, &["gets:1"], Code::OutOfRange, few, "gets");
    // Elements that a dequeue took and could not use return to their positions.
    cluster.check(&graph, &[], &[("get", "3l"), ("get:1", "30")]);
    let failure = cluster.run(&graph, &[("p", tensor("1")), ("x", tensor("1"))], &["^put"]).unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument);
}

#[test]
fn a_padding_queue_fills_up_what_it_stacks() {
    let graph = graph(
        "
        q = PaddingFIFOQueueV2 component_types=<int32> shapes={[?]}
        x = Placeholder dtype=int32
        n = Placeholder dtype=int32
        put = QueueEnqueueV2 q x
        get = QueueDequeueV2 q component_types=<int32>
        gets = QueueDequeueManyV2 q n component_types=<int32>
        shape = Shape gets
        open = FIFOQueueV2 component_types=<int32>
        no = QueueDequeueManyV2 open n component_types=<int32>",
    );
    let mut cluster = Cluster::new(1);
    for x in ["1,", "2,3,4", "5,", "6,7"] {
        cluster.check(&graph, &[("x", x)], &[("^put", "")]);
    }
    cluster.check(&graph, &[], &[("get", "1,")]);
    let got = cluster.run(&graph, &[("n", tensor("3"))], &["gets"]).unwrap();
    assert_eq!(got[0], Tensor::from_vec(Shape::from([3, 3]), vec![2, 3, 4, 5, 0, 0, 6, 7, 0]));
    let none = cluster.run(&graph, &[("n", tensor("0"))], &["gets"]).unwrap();
    assert_eq!(none[0].dims(), [0, 0]);
    let failure = cluster.run(&graph, &[("x", tensor("1"))], &["^put"]).unwrap_err();
    assert_eq!(failure.message, "Shape mismatch in tuple component 0. Expected [?], got []");
    let failure = cluster.run(&graph, &[("n", tensor("1"))], &["no"]).unwrap_err();
    let unsaid = "FIFOQueue's DequeueMany and DequeueUpTo require the components to have specified shapes.";
    assert_eq!(failure.message, unsaid);
}

#[test]
fn a_shuffling_queue_must_keep_less_than_it_holds() {
    for (attrs, message) in [
        ("min_after_dequeue=5 capacity=5", "min_after_dequeue 5 must be < capacity 5"),
        ("min_after_dequeue=-1", "min_after_dequeue -1 must be >= 0"),
    ] {
        let graph = graph(&format!("q = RandomShuffleQueueV2 component_types=<int32> {attrs}\nsize = QueueSizeV2 q"));
        let failure = Cluster::new(1).run(&graph, &[], &["size"]).unwrap_err();
        assert_eq!(failure.message, message);
    }
}

#[test]
fn a_queue_is_closed_once_those_that_came_before_have_put_their_elements() {
    let graph = graph(
        "
        q = FIFOQueueV2 component_types=<int32> shapes={[]} capacity=1
        x = Const is=(1,2)
        puts = QueueEnqueueManyV2 q x
        get = QueueDequeueV2 q component_types=<int32>
        is_closed = QueueIsClosedV2 q
        close = QueueCloseV2 q",
    );
    let mut cluster = Cluster::new(1);
    let puts = cluster.start(&graph, &[], &["^puts"], 1).unwrap();
    let close = cluster.start(&graph, &[], &["^close"], 1).unwrap();
    check_each(&mut cluster, &graph, &[("get", &[1])]);
    assert_eq!(cluster.wait(puts).unwrap(), []);
    assert_eq!(cluster.wait(close).unwrap(), []);
    cluster.check(&graph, &[], &[("is_closed", "true")]);
    check_each(&mut cluster, &graph, &[("get", &[2])]);
}

#[test]
fn so_many_ops_wait_in_a_queue_and_no_more() {
    let text = "
        q = FIFOQueueV2 component_types=<int32> shapes={[]} capacity=1
        x = Placeholder dtype=int32
        put = QueueEnqueueV2 q x
        close = QueueCloseV2 q
        cancel = QueueCloseV2 q cancel_pending_enqueues=true";
    let mut ops = Ops::new(text, Box::new(HostEngine));
    let x = Tensor::scalar(1);
    let waiting = (0..2 << 16).take_while(|_| ops.call("put", &[("x", &x)]).is_ok()).count();
    assert_eq!(waiting, 1 + (1 << 16), "the first has room, and the limit wait");
    for name in ["put", "close"] {
        let failure = ops.call(name, &[("x", &x)]).map(|_| ()).unwrap_err();
        assert_eq!(failure.code, Code::ResourceExhausted, "{name}: {failure}");
        assert!(failure.message.contains("65536 ops wait for queue 'q' already"), "{name}: {failure}");
    }
    assert!(ops.call("cancel", &[]).unwrap().done().is_some());
}

#[test]
fn what_comes_first_in_the_graph_runs_first_once_an_element_has_come() {
    let graph = graph(
        "
        q = FIFOQueueV2 component_types=<float32> shapes={[]}
        p = Placeholder dtype=float32
        put = QueueEnqueueV2 q p
        x = QueueDequeueV2 q component_types=<float32>
        first = Neg x
        later = Neg x
        end = Add first later",
    );
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[("p", "1.5")], &[("^put", "")]);
    let (end, trace) = cluster.trace(&graph, &[], "end");
    assert_eq!(end, tensor("-3.0"));
    let ran: Vec<&str> = trace.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(ran[1..5], ["x", "first", "later", "end"]);
}
