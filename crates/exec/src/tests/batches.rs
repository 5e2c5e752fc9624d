//! Tests of batches over several steps: steps that fill one together, and steps that give up.

use super::*;

/// A call of a batch of three rows, and its part of the doubled batch.
const PART: &str = "
    x = Placeholder dtype=int32
    b = Batch x T=<int32> num_batch_threads=1 max_batch_size=3 batch_timeout_micros=600000000 grad_timeout_micros=0 \
shared_name=\"b\" container=\"\"
    sum = Add b:0 b:0
    part = Unbatch sum b:1 b:2 T=int32 timeout_micros=600000000 shared_name=\"u\" container=\"\"";

#[test]
fn steps_fill_a_batch_together_and_each_gets_its_part() {
    let graph = graph(PART);
    let mut cluster = Cluster::new(1);
    let start = |cluster: &mut Cluster, x: &str| {
        let feeds = [("x", tensor(x))];
        cluster.start(&graph, &feeds, &["part"], 1).unwrap()
    };
    let (first, second) = (start(&mut cluster, "1,"), start(&mut cluster, "2,3"));
    assert_eq!(cluster.wait(second).unwrap(), [tensor("4,6")]);
    assert_eq!(cluster.wait(first).unwrap(), [tensor("2,")]);
    cluster.is_empty();
}

#[test]
fn a_step_that_is_aborted_leaves_its_batch() {
    let graph = graph(PART);
    let mut cluster = Cluster::new(1);
    let start = |cluster: &mut Cluster, x: &str| {
        let feeds = [("x", tensor(x))];
        cluster.start(&graph, &feeds, &["part"], 1).unwrap()
    };
    let (gone, one) = (start(&mut cluster, "1,9"), start(&mut cluster, "2,"));
    // Both filled a batch; these two fill the next.
    assert_eq!(cluster.wait(one).unwrap(), [tensor("4,")]);
    assert_eq!(cluster.wait(gone).unwrap(), [tensor("2,18")]);
    let gone = start(&mut cluster, "7,8");
    cluster.abort(gone);
    let (two, three) = (start(&mut cluster, "3,4"), start(&mut cluster, "5,"));
    assert_eq!(cluster.wait(two).unwrap(), [tensor("6,8")]);
    assert_eq!(cluster.wait(three).unwrap(), [tensor("10,")]);
    cluster.is_empty();
}
