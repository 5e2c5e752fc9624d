//! Steps that work on the same state at the same time.

use std::collections::BTreeSet;

use super::ops::Ops;
use super::*;

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
