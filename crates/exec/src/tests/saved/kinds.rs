//! The state of resources whose contents come from elsewhere: files, other resources, datasets that cannot be made again.

use meshtf_checkpoint::DataDir;

use super::super::super::mailbox::DeviceMessage;
use super::super::super::resource::{Moment, Over, Stack, on_behalf};
use super::super::ops::Ops;
use super::*;

/// The next record of a reader, as a call that waited is answered.
fn record(ops: &mut Ops) -> Vec<u8> {
    assert!(ops.call("read", &[]).unwrap().done().is_none());
    match ops.inbox.take() {
        Some(DeviceMessage::Wake { result, .. }) => result.unwrap()[1].item().unwrap(),
        _ => panic!("there is a record"),
    }
}

#[test]
fn a_reader_continues_within_its_file() {
    let folder = temp_dir::TempDir::new().unwrap();
    std::fs::write(folder.path().join("a"), "head\none\ntwo\nthree\n").unwrap();
    std::fs::write(folder.path().join("b"), "head\nfour\n").unwrap();
    let task = || Arc::new(Resources::with_data(DataDir::new(folder.path()).unwrap()));
    let text = "
        q = FIFOQueueV2 component_types=<string> shapes={[]}
        file = Placeholder dtype=string
        put = QueueEnqueueV2 q file
        r = TextLineReaderV2 skip_header_lines=1
        read = ReaderReadV2 r q";
    let (one, two) = (task(), task());
    let mut first = Ops::on(Arc::clone(&one), text, Box::new(HostEngine));
    for name in ["a", "b"] {
        first.answers("put", &[("file", &Tensor::scalar(name.as_bytes().to_vec()))]);
    }
    assert_eq!(record(&mut first), b"one");
    let before = one.version(&key(&one, "reader"));
    assert_eq!(record(&mut first), b"two");
    assert_ne!(one.version(&key(&one, "reader")), before);
    for (key, saved) in one.save_all(|_, _| true) {
        two.load(&key, SessionId(1), &sent(&saved.unwrap())).unwrap();
    }
    let mut second = Ops::on(Arc::clone(&two), text, Box::new(HostEngine));
    for ops in [&mut first, &mut second] {
        assert_eq!([record(ops), record(ops)], [b"three".to_vec(), b"four".to_vec()]);
    }
    // A task without the folder has the state, and no file.
    let without = Arc::new(Resources::new());
    let saved = two.save(&key(&two, "reader")).unwrap();
    without.load(&key(&two, "reader"), SessionId(1), &saved).unwrap();
    assert_eq!(without.save(&key(&two, "reader")).unwrap(), saved);
}

/// An iterator that reports statistics to an aggregator, after two elements.
pub(super) fn counting() -> (Cluster, Graph) {
    let of_one = "output_types=<int64> output_shapes={[]}";
    let text = format!(
        "zero = Const is=(0l)
        one = Const is=(1l)
        four = Const is=(4l)
        five = Const is=(5)
        tag = AsString five
        some = RangeDataset zero four one {of_one}
        sized = BytesProducedStatsDataset some tag {of_one}
        to = StatsAggregatorHandle
        counted = SetStatsAggregatorDataset sized to tag tag {of_one}
        iterator = IteratorV2 {of_one} shared_name=\"i\" container=\"\"
        begin = MakeIterator counted iterator
        next = IteratorGetNext iterator {of_one}
        said = StatsAggregatorSummary to"
    );
    let (mut cluster, graph) = (Cluster::new(1), graph(&text));
    for fetch in ["^begin", "next", "next"] {
        cluster.run(&graph, &[], &[fetch]).unwrap();
    }
    (cluster, graph)
}

#[test]
fn statistics_are_saved_and_an_iterator_that_reports_them_is_not() {
    let (mut cluster, graph) = counting();
    let resources = Arc::clone(&cluster.resources[0]);
    let (iterator, aggregator) = (key(&resources, "iterator"), key(&resources, "aggregator of statistics"));
    let now = resources.version(&aggregator);
    cluster.run(&graph, &[], &["next"]).unwrap();
    assert_ne!(resources.version(&aggregator), now);
    let failure = resources.save(&iterator).unwrap_err();
    assert_eq!(failure.code, Code::FailedPrecondition);
    let words = "iterator 'i' cannot be saved: SetStatsAggregatorDatasetOp::Dataset does not support checkpointing";
    assert_eq!(failure.message, words);
    let mut other = Cluster::new(1);
    let saved = sent(&resources.save(&aggregator).unwrap());
    other.resources[0].load(&aggregator, other.session, &saved).unwrap();
    let said =
        |cluster: &mut Cluster| cluster.run(&graph, &[], &["said"]).unwrap().remove(0).item::<Vec<u8>>().unwrap();
    assert!(!said(&mut other).is_empty());
    assert_eq!(said(&mut other), said(&mut cluster));
    assert_eq!(other.resources[0].version(&aggregator), resources.version(&aggregator));
}

/// A table that the function of a dataset looks up is not a part of the dataset.
#[test]
fn an_iterator_whose_dataset_takes_a_handle_is_not_saved() {
    let of_one = "output_types=<int64> output_shapes={[]}";
    let mut all = nodes(&format!(
        "zero = Const is=(0l)
        one = Const is=(1l)
        four = Const is=(4l)
        table = MutableHashTableV2 key_dtype=int64 value_dtype=int64
        some = RangeDataset zero four one {of_one}
        found = MapDataset some table {of_one} Targuments=<resource>
        iterator = IteratorV2 {of_one} shared_name=\"i\" container=\"\"
        begin = MakeIterator found iterator
        next = IteratorGetNext iterator {of_one}"
    ));
    let find = "x = Placeholder dtype=int64
        t = Placeholder dtype=resource
        none = Const is=(7l)
        y = LookupTableFindV2 t x none Tin=int64 Tout=int64";
    let args = [("x", DType::I64), ("t", DType::Resource)];
    all[5].attrs.set("f", function("find", find, &args, ("y", DType::I64)));
    let (mut cluster, graph) = (Cluster::new(1), Graph::new(all).unwrap());
    cluster.check(&graph, &[], &[("^begin", "")]);
    cluster.check(&graph, &[], &[("next", "7l")]);
    let failure = cluster.resources[0].save(&key(&cluster.resources[0], "iterator")).unwrap_err();
    assert_eq!(failure.code, Code::FailedPrecondition, "{failure}");
    assert!(failure.message.starts_with("iterator 'i' cannot be saved: "), "{failure}");
}

#[test]
fn a_handle_of_another_kind_is_refused_with_both_names() {
    for case in cases() {
        let (mut cluster, graph) = case.filled();
        for fetch in case.reads {
            cluster.run(&graph, &[], &[fetch]).unwrap();
        }
        let found = cluster.resources[0].find(&key(&cluster.resources[0], case.kind)).unwrap();
        let failure = found.typed::<Stack>().map(|_| ()).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument);
        assert!(failure.message.ends_with(&format!("expected a stack, got a {}", case.kind)), "{failure}");
    }
}

#[test]
fn a_device_loads_its_own_resources() {
    let case = &cases()[0];
    let ((first, graph), mut second) = (case.filled(), Cluster::new(1));
    let key = key(&first.resources[0], case.kind);
    let saved = first.resources[0].save(&key).unwrap();
    let elsewhere = ResourceKey { device: (DeviceKind::Gpu, 1), ..key.clone() };
    let device = second.device(&second.names[0]);
    let failure = device.load_saved(&elsewhere, second.session, &saved).unwrap_err();
    assert!(failure.message.contains("on another device"), "{failure}");
    device.load_saved(&key, second.session, &saved).unwrap();
    assert_eq!(version(&second, case.kind), saved.version);
    second.check(&graph, &[], &[("read", "2.0,4.0")]);
}

/// A copier looks at versions, and takes what has changed since.
#[test]
fn only_resources_of_other_versions_are_saved() {
    let text = "
        one = Const is=(1)
        v = VariableV2 dtype=int32 shape=[]
        w = VariableV2 dtype=int32 shape=[]
        init = Assign v one
        init_w = Assign w one
        add = AssignAdd v one";
    let (mut cluster, graph) = (Cluster::new(1), graph(text));
    cluster.check(&graph, &[], &[("^init", ""), ("^init_w", "")]);
    let resources = Arc::clone(&cluster.resources[0]);
    let copies: Vec<_> = resources.save_all(|_, _| true).map(|(key, saved)| (key, saved.unwrap().version)).collect();
    assert_eq!(copies.len(), 2);
    let stale = || {
        let is_stale =
            |key: &ResourceKey, version| !copies.iter().any(|(of, copied)| of == key && version == Some(*copied));
        resources.save_all(is_stale).map(|(key, saved)| (key.name, saved.unwrap().tensors)).collect::<Vec<_>>()
    };
    assert_eq!(stale(), []);
    cluster.check(&graph, &[], &[("^add", "")]);
    assert_eq!(stale(), [("v".to_owned(), vec![tensor("2")])]);
}

/// Another session's change is as safe between the look at the resource and its new state as before.
#[test]
fn no_kind_is_put_back_over_the_changes_of_another_session() {
    // A mutex has no contents.
    for case in cases().iter().filter(|case| !case.fill.is_empty() && case.kind != "mutex") {
        let (cluster, _) = case.filled();
        let resources = &cluster.resources[0];
        let key = key(resources, case.kind);
        let saved = resources.save(&key).unwrap();
        let now = resources.version(&key);
        let over = |session| Over::Own { session, since: Moment::default(), name: &key.name };
        let other = SessionId(cluster.session.0 + 1);
        let refused = resources.load_over(&key, other, &saved, over(other)).expect_err(case.kind);
        assert_eq!(refused.code, Code::FailedPrecondition, "{}: {refused}", case.kind);
        let named = format!("{} '{}'", case.kind, key.name);
        assert!(refused.message.contains(&named), "{named}: {refused}");
        assert_eq!(resources.version(&key), now, "{named}");
        assert_eq!(resources.save(&key).unwrap(), saved, "{named}");
        let own = cluster.session;
        on_behalf(own, || resources.load_over(&key, own, &saved, over(own))).unwrap();
    }
}
