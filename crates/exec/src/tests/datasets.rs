//! Tests of datasets beyond limits: of time, of memory, of depth, of the datasets after them. Their elements are recorded in
//! `tests/cases`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use meshtf_kernels::{OpenHistogram, SummaryProto};
use meshtf_loops::turn::{self, Signal};
use prost::Message;

use super::ops::Ops;
use super::*;

/// Endless numbers, and the declared shape of their elements.
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

/// The messages are those of TensorFlow 1.15.
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
        // The remaining datasets of a rewritten graph are TensorFlow's affair.
        check(op, &["MemoryCacheImpl", "Map"], &["noop_elimination"], "");
        let more = [&after[..], &["Zip[1]"]].concat();
        check(op, &more, &[], "Asserted next 5 transformations but encountered only 4.");
    }
}

/// Under the names that TensorFlow 1.15 has for them.
#[test]
fn datasets_say_something_of_their_elements_to_an_aggregator() {
    let names = "StatsAggregatorHandle SetStatsAggregatorDataset StatsAggregatorSummary";
    let older =
        "ExperimentalStatsAggregatorHandle ExperimentalSetStatsAggregatorDataset ExperimentalStatsAggregatorSummary";
    for (prefix, names) in [("", names), ("Experimental", older)] {
        let names: Vec<&str> = names.split(' ').collect();
        let &[makes, sets, says] = &names[..] else { unreachable!() };
        let of_one = "output_types=<int64> output_shapes={[]}";
        let text = format!(
            "zero = Const is=(0l)
            one = Const is=(1l)
            four = Const is=(4l)
            took = Placeholder dtype=string shape=[]
            size = Placeholder dtype=string shape=[]
            outer = Placeholder dtype=string shape=[]
            none = Placeholder dtype=string shape=[]
            some = RangeDataset zero four one {of_one}
            timed = {prefix}LatencyStatsDataset some took {of_one}
            sized = {prefix}BytesProducedStatsDataset timed size {of_one}
            ahead = PrefetchDataset sized four {of_one}
            to = {makes}
            counted = {sets} ahead to outer none {of_one}
            iterator = IteratorV2 {of_one} shared_name=\"i\" container=\"\"
            begin = MakeIterator counted iterator
            next = IteratorGetNext iterator {of_one}
            said = {says} to
            saved = SerializeIterator iterator"
        );
        let word = |word: &str| Tensor::scalar(word.as_bytes().to_vec());
        let feeds = [("took", word("took")), ("size", word("size")), ("outer", word("o")), ("none", word(""))];
        let (mut cluster, graph) = (Cluster::new(1), graph(&text));
        cluster.run(&graph, &feeds, &["^begin"]).unwrap();
        for i in 0..4 {
            assert_eq!(cluster.run(&graph, &[], &["next"]).unwrap(), [Tensor::scalar(i as i64)]);
        }
        assert_eq!(cluster.run(&graph, &[], &["next"]).unwrap_err().code, Code::OutOfRange);
        let said = cluster.run(&graph, &[], &["said"]).unwrap().remove(0).item::<Vec<u8>>().unwrap();
        let said = SummaryProto::decode(&said[..]).unwrap().value;
        let tags: Vec<&str> = said.iter().map(|value| &value.tag[..]).collect();
        let ahead = ["buffer_utilization", "buffer_capacity", "buffer_size"]
            .map(|what| format!("o::PrefetchDataset/_9::{what}"));
        assert_eq!(tags, [&ahead[0][..], "o::size", "o::took", &ahead[1], &ahead[2]]);
        let mut sizes = OpenHistogram::default();
        (0..4).for_each(|_| sizes.add(8.0));
        assert_eq!(said[1].histo, Some(sizes.histogram()));
        assert!(format!("{:?}", said[2].histo).contains("num: 4.0"), "{:?}", said[2]);
        assert_eq!((said[3].simple_value, said[4].simple_value), (Some(4.0), Some(0.0)));
        let refused = cluster.run(&graph, &[], &["^saved"]).unwrap_err();
        assert_eq!(refused.code, Code::Unimplemented, "{refused}");
    }
}

/// Rounds of five numbers that are shuffled and repeated, with TensorFlow 1.15's elements for these seeds, for clients that
/// request its default optimizations and for others.
#[test]
fn what_is_shuffled_and_then_repeated_is_drawn_as_in_tensorflow_1() {
    let check = |from: &str, asked: &[&str], wanted: &str| {
        let of_one = "output_types=<int64> output_shapes={[]}";
        let text = format!(
            "zero = Const is=(0l)
            all = Const is=(-1l)
            one = Const is=(1l)
            two = Const is=(2l)
            three = Const is=(3l)
            four = Const is=(4l)
            five = Const is=(5l)
            nine = Const is=(9l)
            asked = Placeholder dtype=string shape=[?]
            some = RangeDataset zero five one {of_one}
            shuffled = ShuffleDataset some three four two reshuffle_each_iteration=true {of_one}
            same = ShuffleDataset some three four two reshuffle_each_iteration=false {of_one}
            taken = TakeDataset shuffled all {of_one}
            repeated = RepeatDataset shuffled two {of_one}
            {}
            batch = BatchDataset optimized nine output_types=<int64> output_shapes={{[?]}}
            first = TakeDataset batch one output_types=<int64> output_shapes={{[?]}}
            only = DatasetToSingleElement first output_types=<int64> output_shapes={{[?]}}",
            from.replace("OF_ONE", of_one)
        );
        let asked = Tensor::vector(asked.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>());
        match Cluster::new(1).run(&graph(&text), &[("asked", asked)], &["only"]) {
            Ok(got) => {
                let got: Vec<String> = got[0].slice::<i64>().unwrap().iter().map(i64::to_string).collect();
                assert_eq!(got.concat(), wanted, "{from}");
            }
            Err(failure) => assert_eq!((failure.code, &failure.message[..]), (Code::InvalidArgument, wanted), "{from}"),
        }
    };
    let optimized = |dataset: &str| format!("{dataset}\noptimized = OptimizeDataset repeats asked OF_ONE");
    let defaults = ["map_and_batch_fusion", "noop_elimination", "shuffle_and_repeat_fusion"];
    let twice = optimized("repeats = RepeatDataset shuffled two OF_ONE");
    check(&twice, &defaults, "104320321");
    check(&twice, &["noop_elimination"], "230141043");
    let idle = optimized("repeats = RepeatDataset taken two OF_ONE");
    check(&idle, &defaults, "104320321");
    check(&idle, &["shuffle_and_repeat_fusion"], "230141043");
    check(&optimized("repeats = RepeatDataset shuffled one OF_ONE"), &defaults, "23014");
    check(&optimized("repeats = RepeatDataset same two OF_ONE"), &defaults, "104321043");
    check(
        &optimized("zipped = ZipDataset repeated N=1 OF_ONE\nrepeats = RepeatDataset zipped all OF_ONE"),
        &defaults,
        "104320321",
    );
    let none = optimized("repeats = RepeatDataset shuffled zero OF_ONE");
    check(&none, &defaults, "count must be greater than zero or equal to -1.");
    let one_op = |mark: &str| format!("optimized = ShuffleAndRepeatDataset some three four two two {mark} OF_ONE");
    check(&one_op("_draws_go_on=true"), &[], "104320321");
    check(&one_op(""), &[], "230141043");
}

/// The messages and names are those of TensorFlow 1.15.
#[test]
fn optimizations_are_as_tensorflows_where_they_show() {
    let of_one = "output_types=<int64> output_shapes={[]}";
    let text = format!(
        "zero = Const is=(0l)
        one = Const is=(1l)
        four = Const is=(4l)
        none = Placeholder dtype=string shape=[]
        asked = Placeholder dtype=string shape=[?]
        nothing = Placeholder dtype=string shape=[0]
        some = RangeDataset zero four one {of_one}
        ahead = PrefetchDataset some one {of_one}
        taken = TakeDataset ahead one {of_one}
        batch = BatchDataset taken one output_types=<int64> output_shapes={{[?]}}
        optimized = OptimizeDataset taken asked {of_one}
        newer = OptimizeDatasetV2 taken asked nothing nothing {of_one}
        wrong = OptimizeDataset batch asked output_types=<int64> output_shapes={{[?]}}
        to = StatsAggregatorHandle
        counted = SetStatsAggregatorDataset optimized to none none {of_one}
        counted_newer = SetStatsAggregatorDataset newer to none none {of_one}
        first = DatasetToSingleElement counted {of_one}
        second = DatasetToSingleElement counted_newer {of_one}
        third = DatasetToSingleElement wrong output_types=<int64> output_shapes={{[?]}}
        said = StatsAggregatorSummary to"
    );
    let (mut cluster, graph) = (Cluster::new(1), graph(&text));
    let mut run = |asked: &str, fetch: &str| {
        let feeds = [
            ("none", Tensor::scalar(Vec::<u8>::new())),
            ("nothing", Tensor::vector(Vec::<Vec<u8>>::new())),
            ("asked", Tensor::vector(vec![asked.as_bytes().to_vec()])),
        ];
        cluster.run(&graph, if fetch == "said" { &[] } else { &feeds }, &[fetch])
    };
    for asked in ["slack", "latency_all_edges", "map_fusion"] {
        for fetch in ["first", "second"] {
            assert_eq!(run(asked, fetch).unwrap(), [Tensor::scalar(0i64)], "{asked}");
        }
    }
    let wrong = run("slack", "third").unwrap_err();
    let words = "Encountered unsupported op \"BatchDataset\" when rewriting the input pipeline graph to use slack in its final \
                 prefetch transformation.";
    assert_eq!((wrong.code, &wrong.message[..]), (Code::InvalidArgument, words));
    let said = run("", "said").unwrap().remove(0).item::<Vec<u8>>().unwrap();
    let said = SummaryProto::decode(&said[..]).unwrap().value;
    let timed = said.iter().filter(|value| value.tag.starts_with("record_latency"));
    let timed: Vec<(&str, bool)> =
        timed.map(|value| (&value.tag[..], format!("{:?}", value.histo).contains("num: 2.0"))).collect();
    let name = |name| (name, true);
    assert_eq!(
        timed,
        [
            name("record_latency::PrefetchDataset/_5"),
            name("record_latency::RangeDataset/_3"),
            name("record_latency::TakeDataset/_7")
        ]
    );
}
