//! Datasets that ask for more than there is: of time, of memory, of depth, of datasets after them. What they give is recorded in
//! `tests/cases`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::super::turn::{self, Signal};
use super::ops::Ops;
use super::*;

/// Endless numbers, and what is asked of them: elements of a shape.
fn ops(of: &str, shape: &str) -> Ops {
    let text = format!(
        "
        zero = Const is=(0l)
        one = Const is=(1l)
        most = Const is=(4611686018427387904l)
        endless = Const is=(-1l)
        thousand = Const is=(1000l)
        some = RangeDataset zero most one output_types=<int64> output_shapes={{[]}}
        numbers = RepeatDataset some endless output_types=<int64> output_shapes={{[]}}
        {of}
        iterator = IteratorV2 output_types=<int64> output_shapes={{{shape}}} shared_name=\"i\" container=\"\"
        begin = MakeIterator dataset iterator
        next = IteratorGetNext iterator output_types=<int64> output_shapes={{{shape}}}"
    );
    Ops::new(&text, Box::new(HostEngine))
}

#[test]
fn what_asks_for_elements_without_end_is_given_up_with_its_step() {
    let check = |of: &str| {
        let mut ops = ops(of, "[]");
        ops.answers("begin", &[]);
        let signal = Arc::new(Signal::default());
        signal.stop();
        let next = || turn::within(&signal, || turn::whole(|| drop(ops.call("next", &[]))));
        let ended = catch_unwind(AssertUnwindSafe(next));
        assert!(ended.is_err_and(|panic| turn::is_stop(&*panic)), "{of}");
    };
    check("dataset = SkipDataset numbers most output_types=<int64> output_shapes={[]}");
    check("dataset = ShardDataset numbers most one output_types=<int64> output_shapes={[]}");
    check(
        "none = RangeDataset zero zero one output_types=<int64> output_shapes={[]}
        dataset = RepeatDataset none most output_types=<int64> output_shapes={[]}",
    );
}

#[test]
fn a_batch_is_refused_before_it_is_made() {
    let mut ops = ops("dataset = BatchDataset numbers thousand output_types=<int64> output_shapes={[?]}", "[?]");
    ops.answers("begin", &[]);
    ops.is_refused("next", &[]);
}

#[test]
fn datasets_are_within_each_other_only_so_deep() {
    let chain = |length: usize| {
        let line = |i: usize, from: &str| {
            format!("d{i} = SkipDataset {from} zero output_types=<int64> output_shapes={{[]}}\n")
        };
        let lines: String =
            (0..length).map(|i| line(i, &if i == 0 { "some".to_owned() } else { format!("d{}", i - 1) })).collect();
        format!(
            "zero = Const is=(0l)
            one = Const is=(1l)
            some = RangeDataset zero one one output_types=<int64> output_shapes={{[]}}
            {lines}only = DatasetToSingleElement d{} output_types=<int64> output_shapes={{[]}}",
            length - 1
        )
    };
    let mut cluster = Cluster::new(1);
    cluster.check(&graph(&chain(190)), &[], &[("only", "0l")]);
    let failure = cluster.run(&graph(&chain(260)), &[], &["only"]).unwrap_err();
    assert_eq!(failure.code, Code::ResourceExhausted, "{failure}");
}

/// The words are those of TensorFlow 1.15.
#[test]
fn a_dataset_asserts_which_others_come_after_it() {
    let of_one = "output_types=<int64> output_shapes={[]}";
    let check = |op: &str, asserted: &[&str], optimized: &[&str], wanted: &str| {
        let text = format!(
            "zero = Const is=(0l)
            one = Const is=(1l)
            endless = Const is=(-1l)
            asserted = Placeholder dtype=string shape=[?]
            optimizations = Placeholder dtype=string shape=[?]
            nothing = Placeholder dtype=string shape=[]
            some = RangeDataset zero one one {of_one}
            asserts = {op} some asserted {of_one}
            kept = CacheDataset asserts nothing {of_one}
            again = RepeatDataset kept endless {of_one}
            taken = TakeDataset again one {of_one}
            optimized = OptimizeDataset taken optimizations {of_one}
            both = ZipDataset some optimized N=2 output_types=<int64,int64> output_shapes={{[];[]}}
            only = DatasetToSingleElement both output_types=<int64,int64> output_shapes={{[];[]}}"
        );
        let words =
            |words: &[&str]| Tensor::vector(words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>());
        let feeds = [
            ("asserted", words(asserted)),
            ("optimizations", words(optimized)),
            ("nothing", Tensor::scalar(Vec::<u8>::new())),
        ];
        match Cluster::new(1).run(&graph(&text), &feeds, &["only"]) {
            Ok(got) => assert_eq!((&got[..], wanted), (&[Tensor::scalar(0i64)][..], ""), "{asserted:?}"),
            Err(failure) => {
                assert_eq!((failure.code, &failure.message[..]), (Code::InvalidArgument, wanted), "{asserted:?}");
            }
        }
    };
    let after = ["MemoryCacheImpl", "ForeverRepeat", "FiniteTake", "Zip[1]"];
    for op in ["AssertNextDataset", "ExperimentalAssertNextDataset"] {
        check(op, &[], &[], "");
        check(op, &after[..1], &[], "");
        check(op, &after, &[], "");
        let wrong = "Asserted Map transformation at offset 1 but encountered ForeverRepeat transformation instead.";
        check(op, &["MemoryCacheImpl", "Map"], &[], wrong);
        // What is left when a graph was rewritten is TensorFlow's affair.
        check(op, &["MemoryCacheImpl", "Map"], &["noop_elimination"], "");
        let more = [&after[..], &["Zip[1]"]].concat();
        check(op, &more, &[], "Asserted next 5 transformations but encountered only 4.");
    }
}
