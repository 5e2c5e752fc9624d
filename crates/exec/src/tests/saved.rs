//! Tests of the state of resources: saved, read as bytes, and loaded into another task, every kind continues with the answers
//! that the original gives.

mod examples;
mod kinds;
mod malformed;
mod trees;

use meshtf_graph::{Function, FunctionBody, NodeDef};

use super::super::{Edition, ResourceKey, Saved};
use super::*;

/// A session of one resource, or of some of which one is tested.
struct Case {
    kind: &'static str,
    nodes: Vec<NodeDef>,
    /// Fetches that each change the resource.
    fill: &'static [&'static str],
    /// Fetches that only read it.
    reads: &'static [&'static str],
    /// Fetches after the state was saved, with their answers, of which an empty one is not stated.
    then: &'static [(&'static str, &'static str)],
}

pub(super) fn nodes(text: &str) -> Vec<NodeDef> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(node).collect()
}

/// The key of the resource of a kind.
fn key(resources: &Resources, kind: &str) -> ResourceKey {
    let all = resources.after(None, 99);
    all.into_iter().find(|info| info.kind == kind).unwrap_or_else(|| panic!("there is no {kind}")).key
}

fn version(cluster: &Cluster, kind: &str) -> Edition {
    let resources = &cluster.resources[0];
    resources.version(&key(resources, kind)).expect("no op works on it")
}

/// A state that was sent somewhere.
fn sent(saved: &Saved) -> Saved {
    let got = postcard::from_bytes(&postcard::to_stdvec(saved).unwrap()).unwrap();
    assert_eq!(saved, &got);
    got
}

impl Case {
    /// A task in which it was filled.
    fn filled(&self) -> (Cluster, Graph) {
        let (mut cluster, graph) = (Cluster::new(1), Graph::new(self.nodes.clone()).unwrap());
        for fetch in self.fill {
            let before = cluster.resources[0].after(None, 99).iter().any(|info| info.kind == self.kind);
            let before = before.then(|| version(&cluster, self.kind));
            cluster.run(&graph, &[], &[fetch]).unwrap_or_else(|failure| panic!("{fetch}: {failure}"));
            assert_ne!(Some(version(&cluster, self.kind)), before, "{fetch} changes the {}", self.kind);
        }
        (cluster, graph)
    }

    fn check(&self) {
        let (mut first, graph) = self.filled();
        for fetch in self.reads {
            first.run(&graph, &[], &[fetch]).unwrap_or_else(|failure| panic!("{fetch}: {failure}"));
        }
        let now = version(&first, self.kind);
        for fetch in self.reads {
            first.run(&graph, &[], &[fetch]).unwrap();
            assert_eq!(version(&first, self.kind), now, "{fetch} only reads the {}", self.kind);
        }
        let mut second = Cluster::new(1);
        for (key, saved) in first.resources[0].save_all(|_, _| true) {
            let Ok(saved) = saved else { continue };
            second.resources[0].load(&key, second.session, &sent(&saved)).unwrap();
        }
        let key = key(&first.resources[0], self.kind);
        let saved = first.resources[0].save(&key).unwrap();
        assert_eq!((&saved.kind[..], saved.version), (self.kind, now));
        assert_eq!(second.resources[0].save(&key).unwrap(), saved, "the {} is the same", self.kind);
        assert_eq!(version(&first, self.kind), now, "saving changes nothing");
        for (fetch, want) in self.then {
            let run = |cluster: &mut Cluster| {
                cluster.run(&graph, &[], &[fetch]).map_err(|failure| (failure.code, failure.message))
            };
            let got = run(&mut first);
            assert_eq!(got, run(&mut second), "{fetch} of the loaded {}", self.kind);
            if !want.is_empty() {
                assert_eq!(got.as_deref(), Ok(&[tensor(want)][..]), "{fetch} of the {}", self.kind);
            }
        }
        // The state takes the place of what came after it, too.
        let now = version(&first, self.kind);
        for (key, saved) in second.resources[0].save_all(|_, _| true) {
            assert!(saved.is_ok(), "{key:?}: {saved:?}");
        }
        first.resources[0].load(&key, first.session, &saved).unwrap();
        assert!(version(&first, self.kind) > now || now.number == 0, "{now:?}");
        let again = first.resources[0].save(&key).unwrap();
        assert_eq!(Saved { version: saved.version, ..again }, saved);
    }
}

/// An iterator over batches of two rounds of numbers, shuffled with `seeds`: the names of two constants.
fn shuffled(seeds: &str) -> String {
    format!(
        "zero = Const is=(0l)
        one = Const is=(1l)
        two = Const is=(2l)
        four = Const is=(4l)
        many = Const is=(30l)
        some = RangeDataset zero many one output_types=<int64> output_shapes={{[]}}
        shuffled = ShuffleDataset some four {seeds} output_types=<int64> output_shapes={{[]}}
        twice = RepeatDataset shuffled two output_types=<int64> output_shapes={{[]}}
        batch = BatchDataset twice four output_types=<int64> output_shapes={{[?]}}
        iterator = IteratorV2 output_types=<int64> output_shapes={{[?]}} shared_name=\"i\" container=\"\"
        begin = MakeIterator batch iterator
        next = IteratorGetNext iterator output_types=<int64> output_shapes={{[?]}}
        state = IteratorToStringHandle iterator"
    )
}

fn cases() -> Vec<Case> {
    let case = |kind, text: &str, fill, reads, then| Case { kind, nodes: nodes(text), fill, reads, then };
    let mut all = vec![
        case(
            "variable",
            "v = VarHandleOp dtype=float32 shape=[2]
            x = Const is=(1.0,2.0)
            init = AssignVariableOp v x
            add = AssignAddVariableOp v x
            read = ReadVariableOp v dtype=float32",
            &["^init", "^add"],
            &["read"],
            &[("read", "2.0,4.0"), ("^add", ""), ("read", "3.0,6.0")],
        ),
        case(
            "variable",
            "v = VariableV2 dtype=int32 shape=[]
            one = Const is=(1)
            init = Assign v one
            add = AssignAdd v one
            is = IsVariableInitialized v
            read = Identity v",
            &[],
            &["is"],
            &[("is", "false"), ("read", ""), ("init", "1"), ("add", "2")],
        ),
        case(
            "queue",
            "q = FIFOQueueV2 component_types=<int32> shapes={[]} capacity=4
            x = Const is=(10,11,12)
            three = Const is=(3)
            puts = QueueEnqueueManyV2 q x
            get = QueueDequeueV2 q component_types=<int32>
            gets = QueueDequeueManyV2 q three component_types=<int32>
            upto = QueueDequeueUpToV2 q three component_types=<int32>
            close = QueueCloseV2 q
            closed = QueueIsClosedV2 q
            size = QueueSizeV2 q",
            &["^puts", "get"],
            &["size", "closed"],
            &[
                ("size", "2"),
                ("get", "11"),
                ("^puts", ""),
                ("gets", "12,10,11"),
                ("^close", ""),
                ("upto", "12,"),
                ("get", ""),
            ],
        ),
        case(
            "queue",
            "q = FIFOQueueV2 component_types=<int32> shapes={[]}
            x = Const is=(10,11,12)
            puts = QueueEnqueueManyV2 q x
            get = QueueDequeueV2 q component_types=<int32>
            close = QueueCloseV2 q
            closed = QueueIsClosedV2 q",
            &["^puts", "^close"],
            &["closed"],
            &[("closed", "true"), ("^puts", ""), ("get", "10"), ("get", "11"), ("get", "12"), ("get", "")],
        ),
        // The values that TensorFlow 2.21 draws.
        case(
            "queue",
            "q = RandomShuffleQueueV2 component_types=<int32> shapes={[]} min_after_dequeue=2 seed=3 seed2=4
            x = Const is=(10,11,12,13,14,15,16,17)
            three = Const is=(3)
            puts = QueueEnqueueManyV2 q x
            get = QueueDequeueV2 q component_types=<int32>
            gets = QueueDequeueManyV2 q three component_types=<int32>
            size = QueueSizeV2 q",
            &["^puts", "get", "get"],
            &["size"],
            &[("gets", "15,14,16"), ("size", "3"), ("get", "17"), ("^puts", ""), ("gets", ""), ("gets", "")],
        ),
        case(
            "queue",
            "q = PriorityQueueV2 component_types=<int32> shapes={[]}
            p = Const is=(3,1,2)
            ps = Cast p DstT=int64
            x = Const is=(30,10,20)
            puts = QueueEnqueueManyV2 q ps x
            get = QueueDequeueV2 q component_types=<int64,int32>
            size = QueueSizeV2 q",
            &["^puts", "get:1"],
            &["size"],
            &[("get:1", "20"), ("^puts", ""), ("get:1", "10"), ("get:1", "20"), ("get:1", "30")],
        ),
        case(
            "queue",
            "q = PaddingFIFOQueueV2 component_types=<int32> shapes={[?]}
            x = Const is=(1,)
            y = Const is=(2,3)
            two = Const is=(2)
            all = Const is=(4,)
            put_x = QueueEnqueueV2 q x
            put_y = QueueEnqueueV2 q y
            gets = QueueDequeueManyV2 q two component_types=<int32>
            flat = Reshape gets all
            size = QueueSizeV2 q",
            &["^put_x", "^put_y"],
            &["size"],
            &[("flat", "1,0,2,3"), ("size", "0")],
        ),
        case(
            "barrier",
            "b = Barrier component_types=<int32,float32> shapes={[];[]}
            k = Const is=(1,2,3)
            keys = AsString k
            k2 = Const is=(2,1)
            keys2 = AsString k2
            k3 = Const is=(3,)
            keys3 = AsString k3
            i = Const is=(10,11,12)
            f = Const is=(0.5,1.5)
            f3 = Const is=(9.5,)
            one = Const is=(1)
            put = BarrierInsertMany b keys i component_index=0
            put2 = BarrierInsertMany b keys2 f component_index=1
            put3 = BarrierInsertMany b keys3 f3 component_index=1
            take = BarrierTakeMany b one component_types=<int32,float32>
            close = BarrierClose b
            lacks = BarrierIncompleteSize b
            ready = BarrierReadySize b",
            &["^put", "^put2", "take:2"],
            &["lacks", "ready"],
            &[
                ("lacks", "1"),
                ("ready", "1"),
                ("take:3", "1.5,"),
                ("^put2", ""),
                ("^close", ""),
                ("^put", ""),
                ("^put3", ""),
                ("take:3", "9.5,"),
                ("take:3", ""),
            ],
        ),
        case(
            "accumulator",
            "r = ResourceConditionalAccumulator dtype=float32 shape=[2]
            step = Const is=(1l)
            old = Const is=(0l)
            two = Const is=(2)
            g = Const is=(1.0,4.0)
            h = Const is=(3.0,8.0)
            late = ResourceAccumulatorSetGlobalStep r step
            put = ResourceAccumulatorApplyGradient r step g
            put_h = ResourceAccumulatorApplyGradient r step h
            drops = ResourceAccumulatorApplyGradient r old h
            take = ResourceAccumulatorTakeGradient r two dtype=float32
            count = ResourceAccumulatorNumAccumulated r",
            &["^late", "^put"],
            &["count", "^drops"],
            &[("count", "1"), ("^put_h", ""), ("take", "2.0,6.0"), ("^put", ""), ("count", "0")],
        ),
        case(
            "accumulator",
            "r = SparseConditionalAccumulator dtype=float32 shape=[4]
            step = Const is=(0l)
            two = Const is=(2)
            at = Const is=(0,2)
            rows = Cast at DstT=int64
            at2 = Const is=(2,3)
            rows2 = Cast at2 DstT=int64
            all = Const is=(4,)
            sizes = Cast all DstT=int64
            g = Const is=(1.0,4.0)
            h = Const is=(2.0,8.0)
            put = SparseAccumulatorApplyGradient r step rows g sizes has_known_shape=true
            put_h = SparseAccumulatorApplyGradient r step rows2 h sizes has_known_shape=true
            take = SparseAccumulatorTakeGradient r two dtype=float32",
            &["^put"],
            &[],
            &[("^put_h", ""), ("take:1", "1.0,3.0,8.0")],
        ),
        case(
            "staging area",
            "x = Const is=(7)
            y = Const is=(8)
            put = Stage x dtypes=<int32> shared_name=\"s\"
            put_y = Stage y dtypes=<int32> shared_name=\"s\"
            get = Unstage dtypes=<int32> shared_name=\"s\"
            size = StageSize dtypes=<int32> shared_name=\"s\"",
            &["^put", "^put_y", "^put", "get"],
            &["size"],
            &[("get", "8"), ("^put_y", ""), ("get", "7"), ("get", "8"), ("size", "0")],
        ),
        case(
            "staging area",
            "x = Const is=(7)
            y = Const is=(8)
            k = Const is=(5l)
            other = Const is=(3l)
            i = Const is=(0,)
            j = Const is=(1,)
            both = Const is=(0,1)
            put = OrderedMapStage k both x y dtypes=<int32,int32> fake_dtypes=<int32,int32> shared_name=\"s\"
            part = OrderedMapStage other i y dtypes=<int32,int32> fake_dtypes=<int32> shared_name=\"s\"
            rest = OrderedMapStage other j x dtypes=<int32,int32> fake_dtypes=<int32> shared_name=\"s\"
            get = OrderedMapUnstageNoKey both dtypes=<int32,int32> shared_name=\"s\"
            lacks = OrderedMapIncompleteSize dtypes=<int32,int32> shared_name=\"s\"
            size = OrderedMapSize dtypes=<int32,int32> shared_name=\"s\"",
            &["^put", "^part"],
            &["size", "lacks"],
            &[("lacks", "1"), ("^rest", ""), ("get:1", "8"), ("get:1", "7"), ("size", "0")],
        ),
        case(
            "map of sparse tensors",
            "four = Const is=(0,0,1,0)
            square = Const is=(2,2)
            flat = Cast four DstT=int64
            indices = Reshape flat square
            values = Const is=(5,6)
            sizes = Cast square DstT=int64
            add = AddManySparseToTensorsMap indices values sizes shared_name=\"m\"
            at = Const is=(0,1)
            handles = Cast at DstT=int64
            take = TakeManySparseFromTensorsMap handles dtype=int32 shared_name=\"m\"",
            &["add"],
            &[],
            &[("add", ""), ("take:1", "5,6"), ("take:1", ""), ("add", "")],
        ),
        case(
            "lookup table",
            "t = HashTableV2 key_dtype=int64 value_dtype=int32
            k = Const is=(1,2,3)
            keys = Cast k DstT=int64
            values = Const is=(10,20,30)
            none = Const is=(-1)
            fill = InitializeTableV2 t keys values
            others = Const is=(3,4)
            other = Cast others DstT=int64
            find = LookupTableFindV2 t other none
            size = LookupTableSizeV2 t",
            &["^fill"],
            &["find", "size"],
            &[("find", "30,-1"), ("size", "3l"), ("^fill", "")],
        ),
        case(
            "lookup table",
            "t = MutableHashTableV2 key_dtype=string value_dtype=int32
            k = Const is=(1,2,3)
            keys = AsString k
            values = Const is=(10,20,30)
            none = Const is=(-1)
            put = LookupTableInsertV2 t keys values
            others = Const is=(1,4)
            other = AsString others
            drop = LookupTableRemoveV2 t other
            find = LookupTableFindV2 t other none
            all = LookupTableExportV2 t Tkeys=string Tvalues=int32
            size = LookupTableSizeV2 t",
            &["^put", "^drop"],
            &["find", "size", "all:1"],
            &[("find", "-1,-1"), ("size", "2l"), ("all:1", "20,30"), ("^put", ""), ("all:1", "10,20,30")],
        ),
        case(
            "lookup table",
            "t = MutableDenseHashTableV2 empty deleted key_dtype=int64 value_dtype=int32 initial_num_buckets=4
            empty = Const is=(-1l)
            deleted = Const is=(-2l)
            k = Const is=(1,2,3,4,5)
            keys = Cast k DstT=int64
            values = Const is=(10,20,30,40,50)
            none = Const is=(-1)
            put = LookupTableInsertV2 t keys values
            others = Const is=(1,9)
            other = Cast others DstT=int64
            drop = LookupTableRemoveV2 t other
            find = LookupTableFindV2 t other none
            all = LookupTableExportV2 t Tkeys=int64 Tvalues=int32
            size = LookupTableSizeV2 t",
            &["^put", "^drop"],
            &["find", "size", "all:1"],
            &[("find", "-1,-1"), ("size", "4l"), ("all:1", ""), ("^put", ""), ("find", "10,-1"), ("all", "")],
        ),
        case(
            "reader",
            "q = FIFOQueueV2 component_types=<string> shapes={[]}
            n = Const is=(1,2,3,4)
            names = AsString n
            puts = QueueEnqueueManyV2 q names
            r = IdentityReaderV2
            read = ReaderReadV2 r q
            count = ReaderNumRecordsProducedV2 r
            files = ReaderNumWorkUnitsCompletedV2 r
            number = StringToNumber value out_type=int32
            value = Identity read:1
            fills = NoOp ^puts ^read
            all = NoOp ^puts",
            &["^fills", "number"],
            &["count", "files"],
            &[("number", ""), ("count", "3l"), ("files", "3l"), ("number", "")],
        ),
        // Seeds that nobody can foresee, drawn before the state was saved.
        case(
            "iterator",
            &shuffled("zero zero"),
            &["^begin", "next", "next"],
            &["state"],
            &[("next", ""), ("next", ""), ("next", ""), ("^begin", "")],
        ),
        // The second round is shuffled after the state was saved.
        case(
            "iterator",
            &shuffled("two four"),
            &["^begin", "next", "next", "next", "next", "next", "next"],
            &["state"],
            &[("next", ""); 9],
        ),
        case(
            "iterator",
            "iterator = IteratorV2 output_types=<int64> output_shapes={[?]} shared_name=\"i\" container=\"\"
            next = IteratorGetNext iterator output_types=<int64> output_shapes={[?]}
            state = IteratorToStringHandle iterator",
            &[],
            &["state"],
            &[("next", "")],
        ),
        Case {
            kind: "iterator",
            nodes: one_shot(),
            fill: &["next", "next"],
            reads: &["state"],
            then: &[("next", "4l"), ("next", "6l"), ("next", "")],
        },
        case(
            "mutex",
            "m = MutexV2 shared_name=\"m\" container=\"\"
            lock = MutexLock m",
            &["^lock"],
            &[],
            &[("^lock", "")],
        ),
    ];
    all.extend(trees::cases());
    all
}

fn function(name: &str, text: &str, args: &[(&str, DType)], result: (&str, DType)) -> Attr {
    let named = |&(name, dtype): &(&str, DType)| (name.to_owned(), dtype);
    let args = args.iter().map(named).collect();
    Attr::Func(Function::new(FunctionBody {
        name: name.to_owned(),
        nodes: nodes(text),
        args,
        results: vec![named(&result)],
        effects: Vec::new(),
    }))
}

/// An iterator over a dataset that a function makes, and whose elements another function makes.
fn one_shot() -> Vec<NodeDef> {
    let double =
        function("double", "x = Placeholder dtype=int64\ny = Add x x", &[("x", DType::I64)], ("y", DType::I64));
    let mut factory = nodes(
        "zero = Const is=(0l)
        one = Const is=(1l)
        four = Const is=(4l)
        some = RangeDataset zero four one output_types=<int64> output_shapes={[]}
        doubled = MapDataset some output_types=<int64> output_shapes={[]} Targuments=<>",
    );
    factory[4].attrs.set("f", double);
    let body = FunctionBody {
        name: "factory".to_owned(),
        nodes: factory,
        results: vec![("doubled".to_owned(), DType::Variant)],
        ..FunctionBody::default()
    };
    let mut all = nodes(
        "iterator = OneShotIterator output_types=<int64> output_shapes={[]} shared_name=\"i\" container=\"\"
        next = IteratorGetNext iterator output_types=<int64> output_shapes={[]}
        state = IteratorToStringHandle iterator",
    );
    all[0].attrs.set("dataset_factory", Attr::Func(Function::new(body)));
    all
}

#[test]
fn a_loaded_resource_continues_as_the_saved_one_does() {
    cases().iter().for_each(Case::check);
}

#[test]
fn every_kind_that_is_in_the_table_has_a_case() {
    let tested: Vec<&str> = cases().iter().map(|case| case.kind).chain(["aggregator of statistics"]).collect();
    for kind in super::super::resource::lasting_kinds() {
        assert!(tested.contains(&kind), "{kind}");
    }
}

#[test]
fn a_state_of_another_kind_or_description_is_refused_and_changes_nothing() {
    let other_queue = Case {
        kind: "queue",
        nodes: nodes(
            "q = FIFOQueueV2 component_types=<int64> shapes={[]}
            x = Const is=(1l)
            put = QueueEnqueueV2 q x",
        ),
        fill: &["^put"],
        reads: &[],
        then: &[],
    };
    let state = |case: &Case| {
        let (cluster, _) = case.filled();
        let key = key(&cluster.resources[0], case.kind);
        cluster.resources[0].save(&key).unwrap()
    };
    let cases = cases();
    let (variable, queue) = (&cases[0], &cases[2]);
    let (cluster, _) = queue.filled();
    let resources = &cluster.resources[0];
    let key = key(resources, "queue");
    let before = resources.save(&key).unwrap();
    for (saved, words) in [
        (state(variable), "'q' is a queue, and cannot be loaded with the state of a variable"),
        (state(&other_queue), "types: [I64]"),
        (Saved { kind: "stack".to_owned(), ..before.clone() }, "with the state of a stack"),
        (Saved { form: Vec::new(), ..before.clone() }, "malformed"),
        (Saved { tensors: vec![tensor("1.0")], ..before.clone() }, "malformed"),
    ] {
        let failure = resources.load(&key, cluster.session, &saved).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
        assert!(failure.message.contains(words), "{failure}");
        assert_eq!(resources.save(&key).unwrap(), before);
    }
    let absent = ResourceKey { name: "absent".to_owned(), ..key.clone() };
    let unknown = Saved { kind: "stack".to_owned(), ..before };
    assert_eq!(resources.load(&absent, cluster.session, &unknown).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(resources.save(&absent).unwrap_err().code, Code::NotFound);
    assert_eq!(resources.version(&absent), None);
}

/// A step waits for an element that the saved state has.
#[test]
fn an_op_that_waits_continues_with_a_loaded_state() {
    let queue = &cases()[2];
    let (mut cluster, graph) = queue.filled();
    let resources = Arc::clone(&cluster.resources[0]);
    let key = key(&resources, "queue");
    let saved = resources.save(&key).unwrap();
    cluster.check(&graph, &[], &[("get", "11")]);
    // It takes the last element, and waits for two more: one that waits is saved as if it had been cancelled.
    let waits = cluster.start(&graph, &[], &["gets"], 1).unwrap();
    cluster.check(&graph, &[], &[("size", "0")]);
    let held = resources.save(&key).unwrap();
    assert_eq!(held.tensors, [tensor("12")]);
    resources
        .load(&key, cluster.session, &Saved { tensors: vec![tensor("1"), tensor("2"), tensor("3")], ..saved })
        .unwrap();
    assert_eq!(cluster.wait(waits).unwrap(), [tensor("1,2,3")]);
}

#[test]
fn a_resource_that_only_its_session_sees_ends_with_it_though_it_was_loaded() {
    let queue = &cases()[2];
    let (cluster, _) = queue.filled();
    let key = key(&cluster.resources[0], "queue");
    let saved = cluster.resources[0].save(&key).unwrap();
    let other = Cluster::new(1);
    assert_eq!(key.session, Some(other.session));
    other.resources[0].load(&key, other.session, &saved).unwrap();
    assert_eq!(other.resources[0].count(), 1);
    other.resources[0].release(other.session);
    assert_eq!(other.resources[0].count(), 0);
}
