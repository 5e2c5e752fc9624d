//! The input from a peer, before and after its admission, as functions of bytes, for [`crate::fuzz`].

pub use super::admission::fuzz::handshake;
use super::frame::{
    Kind, MAX_CONTROL_FRAME_BYTES, PREFIX_BYTES, Prefix, Refusal, Standing, TELLING_BYTES, decode, encode_head,
    stand_in,
};
use super::ticket::Ticket;
use crate::protocol::{Message, ToHost, ToMaster, ToWorker};

/// A frame of the control stream: prefix, header and payload.
pub fn frame(bytes: &[u8]) -> bool {
    let Some((prefix, body)) = bytes.split_first_chunk::<PREFIX_BYTES>() else { return false };
    let Ok(prefix) = Prefix::decode(prefix, MAX_CONTROL_FRAME_BYTES) else { return false };
    let (header, payload) = body.split_at(prefix.header_bytes.min(body.len()));
    match prefix.kind {
        Kind::Message => {
            let _ = stand_in(&header[..header.len().min(TELLING_BYTES)]);
            let Ok(envelope) = decode(header, payload) else { return false };
            let (again, _) = encode_head(&envelope).expect("what was read can be written");
            assert_eq!(again.payload_bytes, payload.len());
            // A header may have been written at greater length than it need be, and nodes be compressed to less.
            assert!(again.header_bytes <= header.len() || has_nodes(&envelope.message));
            true
        }
        Kind::Standing => postcard::from_bytes::<Standing>(header).is_ok(),
        Kind::Refused => postcard::from_bytes::<Refusal>(header).is_ok_and(|refusal| !refusal.to_string().is_empty()),
        Kind::Echo | Kind::Echoed => postcard::from_bytes::<u64>(header).is_ok(),
        Kind::Ping | Kind::Call => body.is_empty(),
    }
}

/// Whether a message may have nodes of graphs, which travel compressed.
fn has_nodes(message: &Message) -> bool {
    use crate::protocol::inquiry::Inquiry;
    match message {
        Message::ToWorker(ToWorker::Register { .. }) => true,
        Message::ToMaster(message) => matches!(message, ToMaster::Request { .. } | ToMaster::Inherit { .. }),
        Message::ToHost(ToHost::Ask { inquiry, .. }) => matches!(inquiry, Inquiry::Detached(_)),
        _ => false,
    }
}

pub fn ticket(line: &str) -> bool {
    let Ok(ticket) = line.parse::<Ticket>() else { return false };
    assert_eq!(ticket.to_string().parse::<Ticket>().ok(), Some(ticket));
    true
}

/// Examples of a peer's messages in their present form, as `(target, name, bytes)`: those in `fuzz/seeds/` must equal them.
#[cfg(test)]
pub fn examples() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    use super::frame::tests::{example, whole};
    use super::frame::{LinkNumbers, Taken, empty_frame, encode_value, stamp};
    use crate::protocol::constants::{Constants, Content, Reference};
    use crate::protocol::copies::{AskCopies, Mark, Stamp};
    use crate::protocol::detached::AskDetached;
    use crate::protocol::guard::{SentResource, SentState as StateOf};
    use crate::protocol::inquiry::{Answer, Inquiry, VariableName};
    use crate::protocol::training::{
        ColumnForm, RowsForm, SavedEvery, SentExamples, SentState, Training, TrainingOptions,
    };
    use crate::protocol::{Envelope, Reply, Request, ToClient, ToHost, ToMaster, ToWorker};
    use meshtf_exec::Edition;
    use meshtf_tensor::Tensor;
    use meshtf_tensor::device::{DeviceKind, Task};
    use meshtf_tensor::failure::Failure;
    use meshtf_tensor::ids::{PieceId, RequestId, SessionId, StepId};

    let stamped = |envelope: Envelope| {
        let mut bytes = whole(&envelope);
        stamp(&mut bytes, 5, Taken { frames: 4, bulk: 3 });
        bytes
    };
    let session = SessionId(1);
    let request = Request::Run { session, plan: 2, steps: 100, every: 10, watched: true };
    let standing = Standing {
        fresh: 9,
        link: Some(LinkNumbers { own: 1, theirs: 2 }),
        taken: Taken { frames: 300, bulk: 2 },
        bulk_beyond: vec![4, 5],
    };
    let content = Content([7; 32]);
    let reference = Reference { piece: 0, node: 1, attr: "value".to_owned(), content };
    let constants = Constants {
        references: vec![reference.clone()],
        beside: vec![content],
        kept: vec![reference],
        holder: Some(crate::protocol::Peer::new("p")),
    };
    let register = ToWorker::Register { session, isolated: false, pieces: vec![], constants, guarded: false };
    let id = RequestId(7);
    let variable = VariableName { name: "w".to_owned(), ..VariableName::default() };
    let write = ToHost::Ask { id, inquiry: Inquiry::WriteVariable { variable, expected: Some(3) } };
    let told = ToClient::Reply { id, result: Ok(Reply::Told(Answer::Variable { version: 3 })) };
    let examples = SentExamples { columns: vec![("x".to_owned(), ColumnForm::Rows(RowsForm::Fed))], has_held: true };
    let training = Training {
        title: "m.json".to_owned(),
        graph: vec![],
        constants: Constants::default(),
        init: vec!["init".to_owned()],
        variables: vec![],
        train: examples,
        evaluate: None,
        weights: vec!["w".to_owned()],
        state: Some(SentState { step: 3, has_best: true }),
        options: TrainingOptions { every: Some(SavedEvery::Steps(5)), ..TrainingOptions::default() },
    };
    let train = Inquiry::Detached(AskDetached::Train { run: session, training: Box::new(training) });
    let train = Envelope::new(ToHost::Ask { id, inquiry: train }, vec![Tensor::vector(vec![true, false])]);
    let of = SentResource {
        container: "c".to_owned(),
        name: "w".to_owned(),
        is_own: false,
        device: (DeviceKind::Cpu, 0),
        state: Some(StateOf { kind: "variable".to_owned(), version: Edition { number: 3, mark: 7 }, tensors: 1 }),
    };
    let (task, stamp) = (Task::new("ps", 0), Stamp { life: 9, number: 2 });
    let base = Some(Stamp { number: 1, ..stamp });
    let marks = vec![Mark { line: 4, number: 1 }];
    let keep = AskCopies::Keep { task, stamp, base, age_ms: 5, chunk: 0, chunks: 1, marks, resources: vec![of] };
    let keep = ToHost::Ask { id, inquiry: Inquiry::Copies(keep) };
    let keep = Envelope::new(keep, vec![Tensor::vector(vec![1u8, 2]), Tensor::vector(vec![1.5f32, -2.0])]);
    let messages: [(&str, Envelope); 10] = [
        ("ask", Envelope::new(write, vec![Tensor::vector(vec![1.5f32, -2.0])])),
        ("ask_status", ToHost::Ask { id, inquiry: Inquiry::Status }.into()),
        ("abort", ToWorker::Abort { step: StepId { session, number: 9 }, failure: Failure::invalid("no") }.into()),
        ("copies", keep),
        ("done", ToMaster::Done { piece: PieceId { session, number: 4 }, step: 0, count: 1 }.into()),
        ("register", Envelope::new(register, vec![Tensor::vector(vec![1i32, 2, 3])])),
        ("request", ToMaster::Request { id, request }.into()),
        ("train", train),
        ("told", Envelope::new(told, vec![Tensor::vector(vec![1.5f32, -2.0])])),
        ("values", example()),
    ];
    let other = Refusal::OtherMesh { mesh: Task::new("den", 0).to_string() };
    let mut all: Vec<_> = messages.into_iter().map(|(name, message)| ("frame", name, stamped(message))).collect();
    all.push(("frame", "echo", encode_value(Kind::Echo, &300u64).expect("it is small")));
    all.push(("frame", "ping", empty_frame(Kind::Ping).to_vec()));
    all.push(("frame", "refused", encode_value(Kind::Refused, &other).expect("it is small")));
    all.push(("frame", "standing", encode_value(Kind::Standing, &standing).expect("it is small")));
    all.extend(super::admission::fuzz::examples().into_iter().map(|(name, bytes)| ("handshake", name, bytes)));
    all
}
