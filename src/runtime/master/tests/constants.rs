//! Large constants: the receivers of each, and how often it is sent.

use meshtf_graph::{Attr, Attrs};

use super::*;
use crate::protocol::Content;
use crate::protocol::constants::TakenOut;

/// The client's name for the table.
const TABLE: Content = Content([7; 32]);
/// The largest and the sum of one table, on task 1, and the largest on task 0.
const GRAPH: &str = r#"{ "version": 1, "nodes": {
    "max_1": { "op": "Max", "inputs": ["table", 0], "device": "/job:t/task:1" },
    "sum_1": { "op": "Sum", "inputs": ["table", 0], "device": "/job:t/task:1" },
    "max_0": { "op": "Max", "inputs": ["table", 0], "device": "/job:t/task:0" },
    "table": 0 } }"#;

fn table() -> Tensor {
    Tensor::vector((0..2000).collect::<Vec<i32>>())
}

fn constant(name: &str, value: Tensor) -> NodeDef {
    let attrs = Attrs::from([("value", Attr::Tensor(value))]);
    NodeDef { name: name.to_owned(), op: "Const".to_owned(), attrs, ..NodeDef::default() }
}

/// The parts of a message with nodes, all of whose large constants are the table.
fn sent(mut nodes: Vec<NodeDef>, is_there: bool) -> (Vec<NodeDef>, Constants, Vec<Tensor>) {
    let (constants, tensors) = TakenOut::of(&mut [&mut nodes], |_, _, _| Some(TABLE)).without(|_| is_there);
    (nodes, constants, tensors)
}

impl Bench {
    fn open_with(&mut self, table: Tensor) {
        let mut nodes = read(GRAPH.as_bytes()).unwrap().nodes;
        *nodes.iter_mut().find(|node| node.name == "table").unwrap() = constant("table", table);
        let nodes = Graph::new(nodes).unwrap().to_defs();
        let (graph, constants, tensors) = sent(nodes, false);
        assert_eq!((constants.references.len(), tensors.len()), (1, 1));
        let (session, options) = (SessionId(1), SessionOptions::default());
        self.ask("client", Request::Open { session, graph, options, constants }, tensors);
        self.answer().2.unwrap();
    }

    fn extend(&mut self, name: &str, is_there: bool) -> Result<Reply> {
        let (nodes, constants, tensors) = sent(vec![constant(name, table())], is_there);
        self.ask("client", Request::Extend { session: SessionId(1), nodes, constants }, tensors);
        self.answer().2
    }

    /// Prepares a signature, and has its only worker answer: returns the worker, and how many bytes of constants it got.
    fn prepare_with(&mut self, fetch: &str, result: Result<()>) -> (String, usize) {
        let signature = Signature { fetches: vec![fetch.to_owned()], ..Signature::default() };
        self.ask("client", Request::Prepare { session: SessionId(1), signature }, vec![]);
        let (to, envelope) = loop {
            match self.next() {
                (_, Envelope { message: Message::ToWorker(ToWorker::Forget { .. }), .. }) => {}
                next => break next,
            }
        };
        let Message::ToWorker(ToWorker::Register { session, pieces, constants, .. }) = envelope.message else {
            panic!("{envelope:?}")
        };
        let [(piece, Piece { nodes, .. })] = &pieces[..] else { panic!("{pieces:?}") };
        let [reference] = &constants.references[..] else { panic!("{constants:?}") };
        assert_eq!((reference.piece, reference.attr.as_str(), reference.content), (0, "value", TABLE));
        let node = &nodes[reference.node as usize];
        assert!(node.attrs.get("value").is_none() && node.attrs.get("dtype").is_some(), "{node:?}");
        assert_eq!(constants.beside.len(), envelope.tensors.len());
        let is_ok = result.is_ok();
        self.master.deliver(&peer(&to), ToMaster::Registered { session, pieces: vec![*piece], result }, vec![]);
        assert_eq!(self.answer().2.is_ok(), is_ok);
        (to, envelope.tensors.iter().map(Tensor::byte_len).sum())
    }
}

fn to(worker: &str, bytes: usize) -> (String, usize) {
    (worker.to_owned(), bytes)
}

#[test]
fn a_constant_goes_to_each_worker_once_and_is_never_copied() {
    let mut bench = bench(limits(8, 8));
    let table = table();
    bench.open_with(table.clone());
    assert_eq!(bench.prepare_with("max_1", Ok(())), to("t1.0", 8000));
    assert_eq!(bench.prepare_with("sum_1", Ok(())), to("t1.0", 0));
    assert_eq!(bench.prepare_with("max_0", Ok(())), to("t0.0", 8000));
    // The same table under another name, in later nodes, is not sent to the master again, nor to the worker.
    bench.extend("again", true).unwrap();
    assert_eq!(bench.prepare_with("again", Ok(())), to("t0.0", 0));
    let session = bench.master.state.sessions.find(SessionId(1)).unwrap();
    let graph = Arc::clone(session.lock().machine.graph());
    for name in ["table", "again"] {
        let value = graph.node(graph.find(name).unwrap()).attrs.tensor("value").unwrap();
        assert_eq!(value.slice::<i32>().unwrap().as_ptr(), table.slice::<i32>().unwrap().as_ptr(), "{name}");
    }
}

#[test]
fn a_worker_gets_a_constant_again_that_it_does_not_hold_any_more() {
    let mut bench = bench(limits(8, 1));
    bench.open_with(table());
    assert_eq!(bench.prepare_with("max_1", Ok(())), to("t1.0", 8000));
    // There is room for one plan: while none of its pieces uses the constant, a worker does not keep it.
    assert_eq!(bench.prepare_with("max_0", Ok(())), to("t0.0", 8000));
    assert_eq!(bench.prepare_with("sum_1", Ok(())), to("t1.0", 8000));
    // Another process has the task.
    *bench.network.cluster.lock().unwrap() = cluster(&[0, 1]);
    bench.master.down(&peer("t1.0"), Some(&Task::new("t", 1)), "it died");
    bench.next();
    assert_eq!(bench.prepare_with("sum_1", Ok(())), to("t1.1", 8000));
}

#[test]
fn what_a_worker_refused_it_does_not_hold() {
    let mut bench = bench(limits(8, 8));
    bench.open_with(table());
    let too_little = || Err(Failure::new(Code::ResourceExhausted, "no memory for it"));
    assert_eq!(bench.prepare_with("max_1", too_little()), to("t1.0", 8000));
    assert_eq!(bench.prepare_with("max_1", Ok(())), to("t1.0", 8000));
    // Whatever the reason is, its constants are unknown then.
    assert_eq!(bench.prepare_with("sum_1", too_little()), to("t1.0", 0));
    assert_eq!(bench.prepare_with("sum_1", Ok(())), to("t1.0", 8000));
}

#[test]
fn a_constant_that_never_came_is_refused() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    let failure = bench.extend("later", true).unwrap_err();
    assert_eq!(failure.code, Code::FailedPrecondition, "{failure}");
    assert!(failure.message.contains("constant 0707070707070707 of node later was not sent"), "{failure}");
    // The graph is as it was.
    bench.extend("later", false).unwrap();
    assert_eq!(bench.prepare_with("later", Ok(())), to("t0.0", 8000));
}

#[test]
fn a_graph_of_its_own_keeps_its_constants_apart_and_goes_with_its_plan() {
    const OTHER: Content = Content([9; 32]);
    let mut bench = bench(limits(8, 2));
    bench.open_with(table());
    let other = Tensor::vector((0..3000).collect::<Vec<i32>>());
    // Its nodes are named as those of the session's graph, and one more.
    let mut nodes = read(GRAPH.as_bytes()).unwrap().nodes;
    *nodes.iter_mut().find(|node| node.name == "table").unwrap() = constant("table", other.clone());
    let own = NodeDef { op: "Identity".to_owned(), inputs: vec!["max_1".to_owned()], ..constant("own", other.clone()) };
    nodes.push(NodeDef { attrs: Attrs::default(), ..own });
    let mut nodes = Graph::new(nodes).unwrap().to_defs();
    let (constants, tensors) = TakenOut::of(&mut [&mut nodes], |_, _, _| Some(OTHER)).without(|_| false);
    let signature = Signature { fetches: vec!["max_1".to_owned()], ..Signature::default() };
    let (session, prepared) = (SessionId(1), signature.clone());
    for bytes in [12_000, 12_000] {
        let (nodes, signature, constants) = (nodes.clone(), signature.clone(), constants.clone());
        bench.ask("client", Request::PrepareAlone { session, nodes, signature, constants }, tensors.clone());
        let (to, envelope) = bench.next();
        let Message::ToWorker(ToWorker::Register { session, pieces, constants, .. }) = envelope.message else {
            panic!("a registration")
        };
        assert_eq!((to.as_str(), constants.references[0].content), ("t1.0", OTHER));
        assert_eq!(envelope.tensors.iter().map(Tensor::byte_len).sum::<usize>(), bytes);
        let pieces = pieces.into_iter().map(|(id, _)| id).collect();
        bench.master.deliver(&peer(&to), ToMaster::Registered { session, pieces, result: Ok(()) }, vec![]);
        bench.answer().2.unwrap();
    }
    // A look shows the last of them, though its graph is not kept.
    let look = |known| bench.master.look(session, known, None).unwrap();
    let boxes = look(None).picture.map(|picture| picture.boxes).unwrap_or_default();
    let names: Vec<&str> = boxes.iter().map(|one| &one.name[..]).collect();
    assert_eq!((look(None).plan, &names[..]), (Some(1), &["max_1/reduction_indices", "table", "max_1"][..]));
    assert_eq!(look(Some(1)).picture, None);
    // A request for the same signature of the session's graph gets that plan, in place of the first of them.
    assert_eq!(bench.prepare_with("max_1", Ok(())), to("t1.0", 8000));
    bench.ask("client", Request::Run { session, plan: 0, steps: 1, every: 0, watched: false }, vec![]);
    let failure = bench.answer().2.unwrap_err();
    assert_eq!(failure.reason, Some(Reason::PlanGone), "{failure}");
    bench.ask("client", Request::Run { session, plan: 1, steps: 1, every: 0, watched: false }, vec![]);
    assert!(matches!(bench.next().1.message, Message::ToWorker(ToWorker::Start { .. })));
    bench.ask("client", Request::Prepare { session, signature: prepared }, vec![]);
    assert!(matches!(bench.answer().2, Ok(Reply::Prepared { plan: 2, .. })));
    let signature = Signature { fetches: vec!["own".to_owned()], ..Signature::default() };
    bench.ask("client", Request::Prepare { session, signature }, vec![]);
    assert!(bench.answer().2.unwrap_err().message.contains("own"));
}
