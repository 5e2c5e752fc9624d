//! Tests of ops that wait in staging areas and in accumulators of sparse gradients. Immediate answers are compared with
//! TensorFlow in `tests/cases`.

use super::*;

const LINE: &str = "
    x = Placeholder dtype=int32
    at = Placeholder dtype=int32
    put = Stage x dtypes=<int32> capacity=2 memory_limit=20 shared_name=\"line\"
    get = Unstage dtypes=<int32> capacity=2 memory_limit=20 shared_name=\"line\"
    peek = StagePeek at dtypes=<int32> capacity=2 memory_limit=20 shared_name=\"line\"
    size = StageSize dtypes=<int32> capacity=2 memory_limit=20 shared_name=\"line\"
    clear = StageClear dtypes=<int32> capacity=2 memory_limit=20 shared_name=\"line\"";

#[test]
fn a_full_staging_area_lets_in_who_waits_when_something_is_taken() {
    let graph = graph(LINE);
    let mut cluster = Cluster::new(1);
    let early = cluster.start(&graph, &[("at", tensor("1"))], &["peek"], 1).unwrap();
    cluster.check(&graph, &[("x", "1")], &[("^put", "")]);
    cluster.check(&graph, &[("x", "2")], &[("^put", "")]);
    assert_eq!(cluster.wait(early).unwrap(), [tensor("2")]);
    let third = cluster.start(&graph, &[("x", tensor("3"))], &["^put"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "2")]);
    cluster.check(&graph, &[], &[("get", "1")]);
    cluster.wait(third).unwrap();
    cluster.check(&graph, &[], &[("size", "2")]);
    cluster.check(&graph, &[], &[("^clear", "")]);
    // 16 of 20 bytes leave no room for 8, but for 4.
    cluster.check(&graph, &[("x", "1,2,3,4")], &[("^put", "")]);
    let large = cluster.start(&graph, &[("x", tensor("5,6"))], &["^put"], 1).unwrap();
    cluster.check(&graph, &[("x", "7")], &[("^put", "")]);
    cluster.check(&graph, &[], &[("get", "1,2,3,4")]);
    cluster.wait(large).unwrap();
    cluster.check(&graph, &[], &[("get", "7")]);
    cluster.check(&graph, &[], &[("get", "5,6")]);
}

#[test]
fn who_waits_for_a_staging_area_is_cancelled_with_its_step() {
    let graph = graph(LINE);
    let mut cluster = Cluster::new(1);
    let waits = cluster.start(&graph, &[], &["get"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "0")]);
    cluster.abort(waits);
    cluster.check(&graph, &[("x", "1")], &[("^put", "")]);
    cluster.check(&graph, &[], &[("size", "1")]);
    cluster.check(&graph, &[("x", "2")], &[("^put", "")]);
    let full = cluster.start(&graph, &[("x", tensor("3"))], &["^put"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "2")]);
    cluster.abort(full);
    cluster.check(&graph, &[], &[("get", "1")]);
    cluster.check(&graph, &[], &[("get", "2")]);
    cluster.check(&graph, &[], &[("size", "0")]);
}

#[test]
fn who_wants_a_key_waits_until_its_tuple_is_complete() {
    let text = "
        key = Placeholder dtype=int64
        x = Placeholder dtype=int32
        first = Const is=(0,)
        second = Const is=(1,)
        both = Const is=(0,1)
        put = MapStage key first x dtypes=<int32,int32> shared_name=\"map\" fake_dtypes=<int32>
        complete = MapStage key second x dtypes=<int32,int32> shared_name=\"map\" fake_dtypes=<int32>
        get = MapUnstage key both dtypes=<int32,int32> shared_name=\"map\"
        any = MapUnstageNoKey both dtypes=<int32,int32> shared_name=\"map\"
        size = MapSize dtypes=<int32,int32> shared_name=\"map\"
        missing = MapIncompleteSize dtypes=<int32,int32> shared_name=\"map\"";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    let eight = cluster.start(&graph, &[("key", tensor("8l"))], &["get", "get:1"], 1).unwrap();
    cluster.check(&graph, &[("key", "7l"), ("x", "70")], &[("^put", "")]);
    cluster.check(&graph, &[("key", "8l"), ("x", "80")], &[("^put", "")]);
    cluster.check(&graph, &[], &[("size", "0"), ("missing", "2")]);
    cluster.check(&graph, &[("key", "7l"), ("x", "71")], &[("^complete", "")]);
    cluster.check(&graph, &[], &[("size", "1"), ("missing", "1")]);
    cluster.check(&graph, &[("key", "8l"), ("x", "81")], &[("^complete", "")]);
    assert_eq!(cluster.wait(eight).unwrap(), [tensor("80"), tensor("81")]);
    cluster.check(&graph, &[], &[("any", "7l"), ("any:1", "70"), ("any:2", "71")]);
    cluster.check(&graph, &[], &[("size", "0"), ("missing", "0")]);
}

#[test]
fn who_takes_a_sparse_gradient_waits_for_enough_of_them() {
    let text = "
        a = SparseConditionalAccumulator dtype=float32 shape=[4,1]
        s = Placeholder dtype=int64
        rows = Placeholder dtype=int64
        g = Placeholder dtype=float32
        none = Const is=(0l)
        n = Placeholder dtype=int32
        apply = SparseAccumulatorApplyGradient a s rows g none has_known_shape=false
        take = SparseAccumulatorTakeGradient a n dtype=float32
        dense = AccumulatorTakeGradient a n dtype=float32
        count = AccumulatorNumAccumulated a";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    let two = [("n", tensor("2"))];
    let given_up = cluster.start(&graph, &two, &["take"], 1).unwrap();
    let take = cluster.start(&graph, &two, &["take", "take:1", "take:2"], 1).unwrap();
    cluster.abort(given_up);
    let mut put = |rows: Tensor, g: Vec<f32>| {
        let g = Tensor::from_vec([g.len(), 1], g);
        cluster.run(&graph, &[("s", tensor("0l")), ("rows", rows), ("g", g)], &["^apply"]).unwrap();
    };
    put(Tensor::vector(vec![0i64, 2]), vec![1.0, 2.0]);
    put(Tensor::vector(vec![2i64, 3]), vec![4.0, 8.0]);
    let taken = cluster.wait(take).unwrap();
    assert_eq!(taken[0], Tensor::vector(vec![0i64, 2, 3]));
    assert_eq!((taken[1].dims(), taken[1].slice::<f32>().unwrap()), (&[3, 1][..], &[1.0, 3.0, 8.0][..]));
    assert_eq!(taken[2], Tensor::vector(vec![4i64, 1]));
    cluster.check(&graph, &[], &[("count", "0")]);
    let other = cluster.run(&graph, &two, &["dense"]).unwrap_err();
    assert_eq!(other.code, Code::InvalidArgument);
    assert!(other.message.contains("is of sparse gradients"), "{other}");
}
