//! Tests of variables, queues, accumulators, tensor arrays, and of ops that wait for them.

use super::*;

const COUNTER: &str = "
    v = VariableV2 dtype=int32 shape=[]
    one = Const is=(1)
    init = Assign v one
    add = AssignAdd v one
    read = Identity v";

#[test]
fn a_variable_outlives_its_step() {
    let mut cluster = Cluster::new(1);
    let graph = graph(COUNTER);
    let message = "Attempting to use uninitialized value v";
    cluster.fails(&graph, &["read"], Code::FailedPrecondition, message, "read");
    cluster.fails(&graph, &["add"], Code::FailedPrecondition, message, "add");
    cluster.check(&graph, &[], &[("init", "1")]);
    cluster.check(&graph, &[], &[("add", "2")]);
    cluster.check(&graph, &[], &[("^add", "")]);
    cluster.check(&graph, &[], &[("read", "3")]);
}

#[test]
fn sessions_share_what_they_name_alike_unless_they_are_isolated() {
    let mut cluster = Cluster::new(1);
    let graph = graph(COUNTER);
    cluster.check(&graph, &[], &[("init", "1")]);
    cluster.session = SessionId(8);
    cluster.check(&graph, &[], &[("add", "2")]);
    cluster.session = SessionId(9);
    cluster.resources[0].isolate(cluster.session);
    assert_eq!(cluster.run(&graph, &[], &["read"]).unwrap_err().code, Code::FailedPrecondition);
    cluster.check(&graph, &[], &[("init", "1")]);
    cluster.device(&cluster.names[0]).release(cluster.session);
    cluster.session = SessionId(7);
    cluster.check(&graph, &[], &[("read", "2")]);
    cluster.resources[0].clear("");
    assert_eq!(cluster.run(&graph, &[], &["read"]).unwrap_err().code, Code::FailedPrecondition);
}

#[test]
fn assigning_checks_the_shape() {
    let text = "
        v = VariableV2 dtype=int32 shape=[2]
        two = Const is=(1,2)
        three = Const is=(1,2,3)
        good = Assign v two
        bad = Assign v three
        forced = Assign v three validate_shape=false
        h = VarHandleOp dtype=int32 shape=[2]
        set = AssignVariableOp h three
        value = ReadVariableOp h ^set dtype=int32";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    let message = "Assign requires shapes of both tensors to match. lhs shape= [2] rhs shape= [3]";
    cluster.check(&graph, &[], &[("good", "1,2")]);
    cluster.fails(&graph, &["bad"], Code::InvalidArgument, message, "bad");
    cluster.check(&graph, &[], &[("forced", "1,2,3")]);
    cluster.check(&graph, &[], &[("value", "1,2,3")]);
}

#[test]
fn counting_ends_at_the_limit() {
    let of_reference = "
        v = VariableV2 dtype=int64 shape=[]
        zero = Const is=(0l)
        init = Assign v zero
        next = CountUpTo v limit=2";
    let of_resource = "
        v = VarHandleOp dtype=int64 shape=[]
        zero = Const is=(0l)
        init = AssignVariableOp v zero
        next = ResourceCountUpTo v limit=2 T=int64";
    for text in [of_reference, of_resource] {
        let graph = graph(text);
        let mut cluster = Cluster::new(1);
        cluster.run(&graph, &[], &["^init"]).unwrap();
        cluster.check(&graph, &[], &[("next", "0l")]);
        cluster.check(&graph, &[], &[("next", "1l")]);
        cluster.fails(&graph, &["next"], Code::OutOfRange, "Reached limit of 2", "next");
    }
}

#[test]
fn what_was_read_of_a_reference_shows_a_later_update_and_what_was_read_of_a_resource_does_not() {
    let text = "
        start = Const is=(1.0,2.0)
        rate = Const is=(0.5)
        grad = Const is=(2.0,4.0)
        zero = Const is=(0.0)
        v = VariableV2 dtype=float32 shape=[2]
        init = Assign v start
        before = Identity v
        step = ApplyGradientDescent v rate grad ^before
        late = Add before zero ^step
        h = VarHandleOp dtype=float32 shape=[2]
        init2 = AssignVariableOp h start
        before2 = ReadVariableOp h dtype=float32
        step2 = ResourceApplyGradientDescent h rate grad ^before2
        late2 = Add before2 zero ^step2
        after2 = ReadVariableOp h dtype=float32 ^step2";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("init", "1.0,2.0"), ("^init2", "")]);
    cluster.check(&graph, &[], &[("late", "0.0,0.0"), ("before", "0.0,0.0")]);
    cluster.check(&graph, &[], &[("late2", "1.0,2.0"), ("before2", "1.0,2.0"), ("after2", "0.0,0.0")]);
}

/// TensorFlow 2.21's values for `run(r)` and `run([r, c])` in turns: each continues where the other stopped. A new session
/// begins anew.
#[test]
fn the_random_numbers_of_a_node_go_on_from_plan_to_plan() {
    let text = "
        shape = Const is=(4,)
        r = RandomUniform shape dtype=float32 seed=87654321 seed2=7
        c = Const is=(1.0)";
    let drawn = [
        "0.48394096,0.50620306,0.25514376,0.12474227",
        "0.3056023,0.9769274,0.1292485,0.09471023",
        "0.42858732,0.91270113,0.36260653,0.43272328",
        "0.66456664,0.79164183,0.111200094,0.26179373",
    ];
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    for session in [7, 8] {
        cluster.session = SessionId(session);
        cluster.check(&graph, &[], &[("r", drawn[0])]);
        cluster.check(&graph, &[], &[("r", drawn[1]), ("c", "1.0")]);
        cluster.check(&graph, &[], &[("r", drawn[2])]);
        cluster.check(&graph, &[], &[("c", "1.0"), ("r", drawn[3])]);
    }
    cluster.device(&cluster.names[0]).release(SessionId(7));
    cluster.session = SessionId(7);
    cluster.check(&graph, &[], &[("r", drawn[0])]);
}

/// A variable that is read on another device shows the writes that the reader waited for, as it does on its own device.
#[test]
fn a_variable_read_elsewhere_shows_what_was_written_before() {
    let text = "
        v = VariableV2 dtype=int32 shape=[1]
        start = Const is=(5,)
        one = Const is=(1,)
        init = Assign v start
        more = AssignAdd v one
        here = Identity v ^more
        there = Identity v ^more @1
        twice = Identity v ^there @1
        again = AssignAdd v one ^there
        last = Identity v ^again @1";
    let graph = graph(text);
    let mut cluster = Cluster::new(2);
    cluster.check(&graph, &[], &[("^init", "")]);
    for step in 0..20 {
        let want = |more: i32| format!("{},", 5 + step + more);
        cluster.check(&graph, &[], &[("there", &want(1)), ("here", &want(1)), ("twice", &want(1))]);
    }
    cluster.check(&graph, &[], &[("there", "26,"), ("last", "27,")]);
}

const QUEUE: &str = "
    q = FIFOQueueV2 component_types=<int32> shapes={[]} capacity=3
    x = Placeholder dtype=int32
    n = Placeholder dtype=int32
    put = QueueEnqueueV2 q x
    puts = QueueEnqueueManyV2 q x
    get = QueueDequeueV2 q component_types=<int32>
    gets = QueueDequeueManyV2 q n component_types=<int32>
    upto = QueueDequeueUpToV2 q n component_types=<int32>
    size = QueueSizeV2 q
    close = QueueCloseV2 q
    cancel = QueueCloseV2 q cancel_pending_enqueues=true";

#[test]
fn a_queue_answers_in_order() {
    let graph = graph(QUEUE);
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[("x", "5")], &[("^put", "")]);
    cluster.check(&graph, &[("x", "6,7")], &[("^puts", "")]);
    cluster.check(&graph, &[], &[("size", "3")]);
    cluster.check(&graph, &[], &[("get", "5")]);
    cluster.check(&graph, &[("n", "2")], &[("gets", "6,7")]);
    cluster.check(&graph, &[("x", "8")], &[("^put", "")]);
    cluster.check(&graph, &[], &[("^close", "")]);
    let closed = "FIFOQueue 'q' is closed and has insufficient elements (requested 2, current size 1)";
    let failure = cluster.run(&graph, &[("n", tensor("2"))], &["gets"]).unwrap_err();
    assert_eq!((failure.code, failure.message.as_str()), (Code::OutOfRange, closed));
    cluster.check(&graph, &[("n", "2")], &[("upto", "8,")]);
    let failure = cluster.run(&graph, &[("x", tensor("1"))], &["^put"]).unwrap_err();
    assert_eq!((failure.code, failure.message.as_str()), (Code::Cancelled, "FIFOQueue 'q' is closed."));
    assert_eq!(cluster.run(&graph, &[], &["^close"]).unwrap_err().code, Code::Aborted);
    let failure = cluster.run(&graph, &[("x", tensor("1,2"))], &["^put"]).unwrap_err();
    assert_eq!(failure.message, "Shape mismatch in tuple component 0. Expected [], got [2]");
}

#[test]
fn who_finds_a_queue_empty_or_full_waits_and_others_go_on() {
    let graph = graph(QUEUE);
    let mut cluster = Cluster::new(1);
    let first = cluster.start(&graph, &[], &["get"], 1).unwrap();
    let both = cluster.start(&graph, &[("n", tensor("2"))], &["gets"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "0")]);
    cluster.check(&graph, &[("x", "1,2")], &[("^puts", "")]);
    assert_eq!(cluster.wait(first).unwrap(), [tensor("1")]);
    cluster.check(&graph, &[("x", "3,4,5")], &[("^puts", "")]);
    assert_eq!(cluster.wait(both).unwrap(), [tensor("2,3")]);
    let blocked = cluster.start(&graph, &[("x", tensor("6,7"))], &["^puts"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "3")]);
    cluster.check(&graph, &[("n", "3")], &[("gets", "4,5,6")]);
    cluster.wait(blocked).unwrap();
    cluster.check(&graph, &[], &[("get", "7")]);
}

#[test]
fn who_waits_is_cancelled_with_its_step_and_gives_back_what_it_took() {
    let graph = graph(QUEUE);
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[("x", "1,2")], &[("^puts", "")]);
    let waits = cluster.start(&graph, &[("n", tensor("3"))], &["gets"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "0")]);
    cluster.abort(waits);
    cluster.check(&graph, &[], &[("size", "2")]);
    cluster.check(&graph, &[("n", "2")], &[("gets", "1,2")]);
    let put = cluster.start(&graph, &[("x", tensor("1,2,3,4"))], &["^puts"], 1).unwrap();
    cluster.check(&graph, &[], &[("^cancel", "")]);
    assert_eq!(cluster.wait(put).unwrap_err().code, Code::Cancelled);
}

#[test]
fn an_accumulator_answers_when_enough_came_and_drops_what_is_stale() {
    let text = "
        a = ResourceConditionalAccumulator dtype=float32 shape=[2]
        s = Placeholder dtype=int64
        g = Placeholder dtype=float32
        n = Placeholder dtype=int32
        apply = ResourceAccumulatorApplyGradient a s g
        take = ResourceAccumulatorTakeGradient a n dtype=float32
        set = ResourceAccumulatorSetGlobalStep a s";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    let take = cluster.start(&graph, &[("n", tensor("2"))], &["take"], 1).unwrap();
    cluster.check(&graph, &[("s", "0l"), ("g", "1.0,2.0")], &[("^apply", "")]);
    cluster.check(&graph, &[("s", "0l"), ("g", "3.0,6.0")], &[("^apply", "")]);
    assert_eq!(cluster.wait(take).unwrap(), [tensor("2.0,4.0")]);
    // The global step is 1 now.
    cluster.check(&graph, &[("s", "0l"), ("g", "9.0,9.0")], &[("^apply", "")]);
    cluster.check(&graph, &[("s", "1l"), ("g", "5.0,5.0")], &[("^apply", "")]);
    cluster.check(&graph, &[("n", "1")], &[("take", "5.0,5.0")]);
    cluster.check(&graph, &[("s", "7l")], &[("^set", "")]);
    cluster.check(&graph, &[("s", "6l"), ("g", "9.0,9.0")], &[("^apply", "")]);
    cluster.check(&graph, &[("s", "7l"), ("g", "1.0,1.0")], &[("^apply", "")]);
    cluster.check(&graph, &[("n", "1")], &[("take", "1.0,1.0")]);
    let failure = cluster.run(&graph, &[("s", tensor("9l")), ("g", tensor("1.0,1.0,1.0"))], &["^apply"]).unwrap_err();
    assert_eq!(failure.message, "Shape mismatch: expected [2], got [3]");
}

#[test]
fn a_tensor_array_is_written_and_read_once() {
    let text = "
        two = Const is=(2)
        zero = Const is=(0)
        one = Const is=(1)
        x = Const is=(4,5)
        both = Const is=(1,0)
        ta = TensorArrayV3 two dtype=int32
        w0 = TensorArrayWriteV3 ta zero x ta:1
        w1 = TensorArrayWriteV3 ta one x w0
        all = TensorArrayGatherV3 ta both w1 dtype=int32
        shape = Shape all
        r = TensorArrayReadV3 ta one w1 dtype=int32
        again = TensorArrayReadV3 ta one w1 ^r dtype=int32
        twice = TensorArrayWriteV3 ta one x w1
        past = TensorArrayWriteV3 ta two x ta:1";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("shape", "2,2")]);
    cluster.check(&graph, &[], &[("r", "4,5")]);
    cluster.fails(&graph, &["again"], Code::InvalidArgument, "Could not read index 1 twice", "again");
    cluster.fails(&graph, &["twice"], Code::InvalidArgument, "it has already been written to", "twice");
    cluster.fails(&graph, &["past"], Code::InvalidArgument, "array is not resizeable and size is: 2", "past");
}

#[test]
fn an_assertion_says_what_did_not_hold() {
    let text = "
        p = Placeholder dtype=bool
        x = Const is=(1,2,3,4)
        a = Assert p x
        y = Identity x ^a";
    let mut cluster = Cluster::new(1);
    cluster.check(&graph(text), &[("p", "true")], &[("y", "1,2,3,4")]);
    let failure = cluster.run(&graph(text), &[("p", tensor("false"))], &["y"]).unwrap_err();
    assert_eq!((failure.code, failure.message.as_str()), (Code::InvalidArgument, "assertion failed: [1 2 3...]"));
}

#[test]
fn names_of_containers_are_those_that_tensorflow_takes() {
    let check = |op: &str, name: &str, refused: Option<&str>| {
        let node = match op {
            "FIFOQueueV2" => format!("n = {op} component_types=<int32> {name}"),
            _ => format!("n = {op} dtype=int32 shape=[] {name}"),
        };
        let got = Cluster::new(1).run(&graph(&node), &[], &["^n"]).map(|_| ()).map_err(|failure| failure.message);
        assert_eq!(got, refused.map_or(Ok(()), |why| Err(why.to_owned())), "{node}");
    };
    for op in ["VariableV2", "FIFOQueueV2", "ResourceConditionalAccumulator"] {
        for name in ["a_b", "_a", "-a", "a/_b"] {
            let why = format!("container contains invalid characters: {name}");
            check(op, &format!("container=\"{name}\""), Some(&why));
        }
        check(op, "container=\"a/b-c.1\"", None);
        check(op, "shared_name=\"_a\"", Some("shared_name cannot start with '_':_a"));
        check(op, "shared_name=\"a_b\"", None);
    }
    // The handle of a variable is taken with every name.
    check("VarHandleOp", "container=\"a_b\" shared_name=\"_a\"", None);
}

#[test]
fn rows_are_gathered_without_a_copy_of_their_variable() {
    use super::ops::{LITTLE, Ops};
    use meshtf_engine::adapters::{BackendChoice, cpu};

    let text = "
        table = Placeholder dtype=float32
        rows = Placeholder dtype=int32
        v = VarHandleOp dtype=float32 shape=[?,?]
        set = AssignVariableOp v table
        gathered = ResourceGather v rows dtype=float32";
    let mut ops = Ops::new(text, cpu(BackendChoice::Flex).open().unwrap());
    let table = Tensor::from_vec([5000, 4], (0..20_000).map(|i| i as f32).collect::<Vec<_>>());
    ops.answers("set", &[("table", &table)]);
    let rows = Tensor::vector(vec![4999, 0, 7]);
    let answer = ops.call_within(LITTLE, "gathered", &[("rows", &rows)]).unwrap().done().unwrap().remove(0);
    let want = vec![19_996f32, 19_997., 19_998., 19_999., 0., 1., 2., 3., 28., 29., 30., 31.];
    assert_eq!(answer.unwrap().host().unwrap(), Tensor::from_vec([3, 4], want));
    let beyond = Tensor::vector(vec![1, 5000]);
    let Err(failure) = ops.call("gathered", &[("rows", &beyond)]) else { panic!("it was let") };
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (Code::InvalidArgument, "indices[1] = 5000 is not in [0, 5000)")
    );
}

#[test]
fn an_output_that_nobody_may_use_has_the_shape_that_its_node_states() {
    let graph = graph(
        "
        whole = FakeParam dtype=float32 shape=[2,3]
        open = FakeParam dtype=string shape=[?,3]
        a = Shape whole
        b = Shape open",
    );
    let mut cluster = Cluster::new(1);
    let got = cluster.run(&graph, &[], &["a", "b"]).unwrap();
    let sizes: Vec<Vec<i64>> = got.iter().map(|sizes| sizes.to_i64s().unwrap()).collect();
    assert_eq!(sizes, [[2, 3], [0, 3]]);
}

/// Rows of a sparse matrix as variants, of which a slice takes two.
#[test]
fn an_array_of_variants_is_sliced() {
    let graph = graph(
        "
        indices = Placeholder dtype=int64
        values = Placeholder dtype=float32
        shape = Placeholder dtype=int64
        rows = SerializeManySparse indices values shape out_type=variant
        begin = Placeholder dtype=int32
        end = Placeholder dtype=int32
        step = Placeholder dtype=int32
        part = StridedSlice rows begin end step
        out = DeserializeSparse part dtype=float32",
    );
    let mut cluster = Cluster::new(1);
    let feeds = [
        ("indices", Tensor::from_vec([3, 2], vec![0i64, 0, 1, 1, 2, 0])),
        ("values", Tensor::vector(vec![1f32, 2.0, 3.0])),
        ("shape", Tensor::vector(vec![3i64, 2])),
        ("begin", Tensor::vector(vec![1])),
        ("end", Tensor::vector(vec![3])),
        ("step", Tensor::vector(vec![1])),
    ];
    let sparse = cluster.run(&graph, &feeds, &["out", "out:1", "out:2"]).unwrap();
    let indices = Tensor::from_vec([2, 2], vec![0i64, 1, 1, 0]);
    assert_eq!(sparse, [indices, Tensor::vector(vec![2f32, 3.0]), Tensor::vector(vec![2i64, 2])]);
}

/// A variable shares the elements of a large constant until its first change.
#[test]
fn a_change_of_a_variable_leaves_the_constant_that_it_was_given() {
    use meshtf_engine::adapters::{BackendChoice, cpu};

    let elements = (0..20_000).map(|i| format!("{i}.5")).collect::<Vec<_>>().join(",");
    let text = format!(
        "
        c = Const is=({elements})
        rate = Const is=(0.5)
        given = Identity c
        ones = OnesLike c
        v = VariableV2 dtype=float32 shape=[20000]
        init = Assign v c
        add = AssignAdd v ones
        step = ApplyGradientDescent v rate ones
        read = Identity v
        h = VarHandleOp dtype=float32 shape=[20000]
        init_h = AssignVariableOp h c
        add_h = AssignAddVariableOp h ones
        step_h = ResourceApplyGradientDescent h rate ones
        read_h = ReadVariableOp h dtype=float32"
    );
    let graph = graph(&text);
    let at = |more: f32| Tensor::vector((0..20_000).map(|i| i as f32 + 0.5 + more).collect::<Vec<_>>());
    let mut cluster = Cluster::with(&[Task::new("local", 0)], || cpu(BackendChoice::Flex).open().unwrap());
    for [init, add, step, read] in [["init", "add", "step", "read"], ["init_h", "add_h", "step_h", "read_h"]] {
        // It is assigned again over its own changes, and the second change finds elements that are its own.
        for (node, more) in [(init, 0.0), (add, 1.0), (add, 2.0), (init, 0.0), (step, -0.5), (step, -1.0), (init, 0.0)]
        {
            cluster.run(&graph, &[], &[&format!("^{node}")]).unwrap();
            let got = cluster.run(&graph, &[], &[read, "given"]).unwrap();
            assert!(got[0] == at(more), "{node} makes it {more} more");
            assert!(got[1] == at(0.0), "{node} leaves the constant");
        }
    }
}

#[test]
fn the_first_change_of_a_variable_that_shares_a_constant_needs_memory_for_a_copy() {
    use super::ops::{LITTLE, Ops};
    use meshtf_engine::adapters::{BackendChoice, cpu};

    let elements = "1.0,".repeat(20_000);
    let text = format!(
        "
        c = Const is=({elements})
        d = Placeholder dtype=float32
        rate = Const is=(0.5)
        v = VariableV2 dtype=float32 shape=[20000]
        init = Assign v c
        add = AssignAdd v d
        step = ApplyGradientDescent v rate d
        h = VarHandleOp dtype=float32 shape=[20000]
        init_h = AssignVariableOp h c
        add_h = AssignAddVariableOp h d
        step_h = ResourceApplyGradientDescent h rate d
        read_h = ReadVariableOp h dtype=float32"
    );
    let mut ops = Ops::new(&text, cpu(BackendChoice::Flex).open().unwrap());
    let given = Tensor::vector(vec![2f32; 20_000]);
    let given = [("d", &given)];
    ops.answers("init", &[]);
    ops.answers("init_h", &[]);
    for change in ["add", "step", "add_h", "step_h"] {
        ops.is_refused(change, &given);
    }
    // It has kept its value. Its second change is of elements that are its own.
    assert!(ops.answer("read_h", &[]) == Tensor::vector(vec![1f32; 20_000]));
    for [add, step] in [["add", "step"], ["add_h", "step_h"]] {
        ops.answers(add, &given);
        assert!(ops.call_within(LITTLE, step, &given).is_ok(), "{step} copies");
    }
    assert!(ops.answer("read_h", &[]) == Tensor::vector(vec![2f32; 20_000]));
}
