//! Constants that are kept by their contents: how a worker comes by them.

use super::*;
use crate::protocol::constants::{TakenOut, nodes_of, substitute};
use crate::protocol::inquiry::{Answer, Inquiry};
use crate::protocol::{Content, Reply, RequestId, ToClient, ToHost};

const HOLDER: &str = "holder";

fn table(first: i32) -> Tensor {
    Tensor::vector((first..first + 20_000).collect::<Vec<i32>>())
}

impl Bench {
    /// Sends a piece that computes the maximum of a table of 80 kB, which the holder offers under this content.
    fn register_kept(&self, id: PieceId, content: Content) {
        let text = r#"{ "version": 1, "nodes": { "table": 0, "y": { "op": "Max", "inputs": ["table", 0] } } }"#;
        let mut defs = read(text.as_bytes()).unwrap().nodes;
        for def in defs.iter_mut().filter(|def| def.name == "table") {
            def.attrs.set("value", substitute(&table(5)).unwrap());
        }
        let signature = Signature { fetches: vec!["y".to_owned()], ..Signature::default() };
        let name = Task::new("t", 0).device(DeviceKind::Cpu, 0);
        let options = PlanOptions { default_device: name.clone(), soft_placement: false, by_cost: None };
        let plan = plan(&Graph::new(defs).unwrap(), &[DeviceFacts::unknown(name)], &signature, &options);
        let mut pieces: Vec<_> = plan.unwrap().pieces.into_iter().map(|piece| (id, piece)).collect();
        let mut taken = TakenOut::default();
        taken.note_kept(&mut nodes_of(&mut pieces), |node, _| (node == "table").then_some(content));
        let (mut constants, tensors) = taken.without(|_| false);
        assert_eq!((constants.kept.len(), tensors.len()), (1, 0));
        constants.holder = Some(Peer::new(HOLDER));
        self.tell(
            MASTER,
            ToWorker::Register { session: id.session, isolated: false, pieces, constants, guarded: false },
        );
    }

    /// The contents that the worker asks for next, and whom.
    fn asks(&self) -> (String, RequestId, Vec<Content>) {
        let (to, message) = self.next();
        let Message::ToHost(ToHost::Ask { id, inquiry: Inquiry::Constants { session, contents } }) = message else {
            panic!("{message:?}")
        };
        assert_eq!(session, SessionId(1));
        (to, id, contents)
    }

    fn reply(&self, from: &str, id: RequestId, result: Result<Reply>, values: Vec<Tensor>) {
        self.client.deliver(&Peer::new(from), ToClient::Reply { id, result }, values);
    }

    /// Answers with this table.
    fn supply(&self, from: &str, id: RequestId, table: Tensor) {
        self.reply(from, id, Ok(Reply::Told(Answer::Constants)), vec![table]);
    }
}

#[test]
fn it_asks_the_holder_and_then_the_master_and_shares_while_a_piece_uses_it() {
    let bench = bench();
    let content = Content::of(&table(5));
    bench.register_kept(id(1, 0), content);
    let (to, request, contents) = bench.asks();
    assert_eq!((to.as_str(), contents), (HOLDER, vec![content]));
    // A step of another session does not wait for it.
    bench.register(MASTER, id(2, 0));
    assert_eq!(bench.registered(), (MASTER.to_owned(), id(2, 0), Ok(())));
    bench.reply(HOLDER, request, Err(Failure::new(Code::NotFound, "not here")), vec![]);
    let (to, request, contents) = bench.asks();
    assert_eq!((to.as_str(), contents), (MASTER, vec![content]));
    let value = table(5);
    bench.supply(MASTER, request, value.clone());
    assert_eq!(bench.registered(), (MASTER.to_owned(), id(1, 0), Ok(())));
    bench.start(MASTER, id(1, 0), 1);
    assert_eq!(bench.next().1, Message::from(ToMaster::Done { piece: id(1, 0), step: 1, count: 1 }));
    // Another session's piece gets it from memory.
    bench.register_kept(id(3, 0), content);
    assert_eq!(bench.registered(), (MASTER.to_owned(), id(3, 0), Ok(())));
    for session in [1, 2, 3] {
        bench.tell(MASTER, ToWorker::Release { session: SessionId(session) });
    }
    assert_eq!(bench.worker.holds(), None);
    assert!(value.is_unique(), "nobody else has its elements");
    // Then it has to come again.
    drop(value);
    bench.register_kept(id(1, 0), content);
    assert_eq!(bench.asks().2, [content]);
}

#[test]
fn another_constant_than_that_of_the_content_is_refused_with_its_node() {
    let bench = bench();
    let content = Content::of(&table(5));
    bench.register_kept(id(1, 0), content);
    let (_, request, _) = bench.asks();
    bench.supply(HOLDER, request, table(6));
    let failure = bench.registered().2.unwrap_err();
    assert_eq!((failure.code, failure.task.as_deref()), (Code::DataLoss, Some("/job:t/task:0")), "{failure}");
    for part in ["int32 of shape [20000]", "holder sent", "of node table has another content"] {
        assert!(failure.message.contains(part), "{part}: {failure}");
    }
    // One of the content that the message names, but of another shape than it announces.
    let other = table(5).reshaped([2, 10_000]).unwrap();
    bench.register_kept(id(1, 1), Content::of(&other));
    let (_, request, _) = bench.asks();
    bench.supply(HOLDER, request, other);
    let failure = bench.registered().2.unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
    assert!(failure.message.contains("was announced as int32 of shape [20000]"), "{failure}");
    // Nobody has it.
    bench.register_kept(id(1, 2), content);
    for _ in 0..2 {
        let (to, request, _) = bench.asks();
        bench.reply(&to, request, Err(Failure::new(Code::NotFound, "not here any more")), vec![]);
    }
    let failure = bench.registered().2.unwrap_err();
    assert_eq!((failure.code, failure.message.as_str()), (Code::NotFound, "not here any more"));
    assert_eq!(bench.worker.holds(), None);
}

#[test]
fn a_session_that_ends_meanwhile_and_a_holder_that_goes_leave_nothing() {
    let bench = bench();
    let content = Content::of(&table(5));
    bench.register_kept(id(1, 0), content);
    let (_, request, _) = bench.asks();
    bench.tell(MASTER, ToWorker::Release { session: SessionId(1) });
    bench.supply(HOLDER, request, table(5));
    assert_eq!(bench.registered().2.unwrap_err().code, Code::Cancelled);
    bench.register_kept(id(1, 1), content);
    assert_eq!(bench.asks().0, HOLDER);
    bench.client.down(&Peer::new(HOLDER), None, "it left");
    let (to, request, _) = bench.asks();
    assert_eq!(to, MASTER);
    bench.supply(MASTER, request, table(5));
    bench.registered().2.unwrap();
    bench.tell(MASTER, ToWorker::Forget { pieces: vec![id(1, 1)] });
    bench.tell(MASTER, ToWorker::Release { session: SessionId(1) });
    assert_eq!(bench.worker.holds(), None);
}

#[test]
fn a_holder_that_is_connected_and_silent_is_given_up_for_the_next_one() {
    let soon = Duration::from_millis(30);
    let (bench, ()) = bench_of(|task, router, resources, fetch| {
        (Worker::new(task, router, resources, fetch.with_max_silence(soon)), ())
    });
    let content = Content::of(&table(5));
    // The master may wait for the client, which it gives up itself: it has far longer.
    let since = std::time::Instant::now();
    bench.register_kept(id(1, 0), content);
    let (to, late, _) = bench.asks();
    assert_eq!(to, HOLDER);
    assert_eq!(bench.asks().0, MASTER);
    let failure = bench.registered().2.unwrap_err();
    assert!(since.elapsed() >= 25 * soon, "{:?}", since.elapsed());
    assert_eq!(failure.code, Code::Unavailable, "{failure}");
    assert!(failure.message.contains("master is connected, and did not send the constants"), "{failure}");
    // An answer that comes after all is nobody's.
    bench.supply(HOLDER, late, table(5));
    assert_eq!((bench.worker.holds(), bench.client.waits()), (None, 0));
}
