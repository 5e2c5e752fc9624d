//! Tests of the older op on a generator's state, of which TensorFlow's client makes no nodes any more. The other ops are compared
//! with TensorFlow in `tests/cases/generators`.

use super::*;

#[test]
fn a_state_that_names_its_algorithm_gives_the_numbers_of_one_without() {
    let graph = graph(
        "
        state = VarHandleOp shape=[4] dtype=int64 shared_name=\"state\"
        new = Placeholder dtype=int64
        set = AssignVariableOp state new dtype=int64
        now = ReadVariableOp state dtype=int64
        shape = Placeholder dtype=int32
        keys = Placeholder dtype=uint64
        counter = Placeholder dtype=uint64
        alg = Placeholder dtype=int32
        drawn = StatefulStandardNormal state shape dtype=float32
        wanted = StatelessRandomNormalV2 shape keys counter alg dtype=float32",
    );
    let mut cluster = Cluster::new(1);
    let wide = |words: Vec<u64>| Tensor::vector(words);
    let state = Tensor::vector(vec![1i64, 7, 9, 5]);
    cluster.run(&graph, &[("new", state)], &["^set"]).unwrap();
    let drawn = cluster.run(&graph, &[("shape", Tensor::vector(vec![2i32, 3]))], &["drawn"]).unwrap();
    let shape = Tensor::vector(vec![2i32, 3]);
    let alg = Tensor::scalar(1i32);
    let feeds = [("shape", shape), ("alg", alg), ("keys", wide(vec![5])), ("counter", wide(vec![7, 9]))];
    assert_eq!(drawn, cluster.run(&graph, &feeds, &["wanted"]).unwrap());
    // Six numbers take 256 counts each.
    assert_eq!(cluster.run(&graph, &[], &["now"]).unwrap(), [Tensor::vector(vec![1i64, 7 + 6 * 256, 9, 5])]);
    let state = Tensor::vector(vec![2i64, 7, 9, 5]);
    cluster.run(&graph, &[("new", state)], &["^set"]).unwrap();
    assert_eq!(
        cluster.run(&graph, &[("shape", Tensor::vector(vec![2i32, 3]))], &["drawn"]).unwrap_err().code,
        Code::InvalidArgument
    );
}
