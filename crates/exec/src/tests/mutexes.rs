//! Tests of mutexes, and of tensors that a session keeps.

use super::*;

/// A step that holds the mutex until it gets an element of the queue.
const HOLDS: &str = "
    m = MutexV2 shared_name=\"m\" container=\"\"
    lock = MutexLock m
    q = FIFOQueueV2 component_types=<int32> shapes={[]}
    got = QueueDequeueV2 q component_types=<int32> ^lock
    free = ConsumeMutexLock lock ^got
    after = Identity got ^free
    x = Placeholder dtype=int32
    put = QueueEnqueueV2 q x";

#[test]
fn ops_that_wait_for_a_mutex_get_it_in_their_order() {
    let graph = graph(HOLDS);
    let mut cluster = Cluster::new(1);
    let steps: Vec<u64> = (0..3).map(|_| cluster.start(&graph, &[], &["after"], 1).unwrap()).collect();
    for (x, &step) in ["1", "2", "3"].into_iter().zip(&steps) {
        cluster.check(&graph, &[("x", x)], &[("^put", "")]);
        assert_eq!(cluster.wait(step).unwrap(), [tensor(x)]);
    }
    cluster.is_empty();
}

#[test]
fn a_step_that_is_aborted_frees_its_lock_and_leaves_the_line() {
    let graph = graph(HOLDS);
    let mut cluster = Cluster::new(1);
    let [holds, waits, last] = [0; 3].map(|_| cluster.start(&graph, &[], &["after"], 1).unwrap());
    // One that waits for the lock, and then the one that has it.
    cluster.abort(waits);
    cluster.abort(holds);
    cluster.check(&graph, &[("x", "7")], &[("^put", "")]);
    assert_eq!(cluster.wait(last).unwrap(), [tensor("7")]);
    cluster.is_empty();
}

#[test]
fn a_lock_is_taken_by_one_op_alone() {
    let graph = graph(
        "
        m = MutexV2 shared_name=\"m\" container=\"\"
        lock = MutexLock m
        none = EmptyTensorMap
        wrong = ConsumeMutexLock none
        zeros = ZerosLike lock",
    );
    let mut cluster = Cluster::new(1);
    cluster.fails(&graph, &["^wrong"], Code::InvalidArgument, "Expected input to be a mutex lock", "wrong");
    cluster.fails(&graph, &["^zeros"], Code::InvalidArgument, "lock of a mutex", "zeros");
    // The step that failed does not have it any more.
    cluster.check(&graph, &[], &[("^lock", "")]);
}

#[test]
fn a_session_keeps_tensors_by_their_handles() {
    let graph = graph(
        "
        x = Placeholder dtype=int32
        keep = GetSessionHandle x
        h = Placeholder dtype=string
        get = GetSessionTensor h dtype=int32
        wrong = GetSessionTensor h dtype=float32
        drop = DeleteSessionTensor h",
    );
    let mut cluster = Cluster::new(1);
    let keep = |cluster: &mut Cluster, x: &str| {
        let handle = cluster.run(&graph, &[("x", tensor(x))], &["keep"]).unwrap().remove(0);
        (String::from_utf8(handle.item::<Vec<u8>>().unwrap()).unwrap(), handle)
    };
    let ((first, one), (second, two)) = (keep(&mut cluster, "1,2"), keep(&mut cluster, "3"));
    assert!(first.starts_with("keep;0;/job:") && first.ends_with("/device:CPU:0"), "{first}");
    assert!(second.starts_with("keep;1;/job:"), "{second}");
    let mut of = |what: &str, handle: &Tensor| {
        let got = cluster.run(&graph, &[("h", handle.clone())], &[what]);
        got.map_err(|failure| failure.code)
    };
    assert_eq!(of("get", &one), Ok(vec![tensor("1,2")]));
    assert_eq!(of("get", &two), Ok(vec![tensor("3")]));
    assert_eq!(of("wrong", &one), Err(Code::InvalidArgument));
    assert_eq!(of("^drop", &one), Ok(vec![]));
    assert_eq!(of("get", &one), Err(Code::InvalidArgument));
    assert_eq!(of("^drop", &one), Err(Code::InvalidArgument));
    assert_eq!(of("get", &two), Ok(vec![tensor("3")]));
}
