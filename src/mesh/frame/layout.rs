//! One frame of each kind, byte by byte, as docs/protocol.md defines them.

use meshtf_tensor::device::{Capacity, DeviceKind, DeviceMemory, Rates, Streamed};

use super::*;
use crate::protocol::constants::Reference;
use crate::protocol::inquiry::{Answer, Inquiry, VariableName};
use crate::protocol::{
    Constants, Content, DeviceInfo, Hello, Incarnation, Peer, PieceId, Reply, RequestId, SessionId, ToClient, ToHost,
    ToMaster, ToWorker,
};

/// The fields of a prefix, in their order.
#[rustfmt::skip]
fn prefix(kind: u8, header: u8, payload: u8) -> Vec<u8> {
    vec![
        kind,
        header, 0, 0, 0,
        payload, 0, 0, 0, 0, 0, 0, 0,
        5, 0, 0, 0, 0, 0, 0, 0,             // number
        0, 0, 0, 0, 0, 0, 0, 0,             // after
        0, 0, 0, 0, 0, 0, 0, 0,             // behind
        4, 3, 0, 0, 0, 0, 0, 0,             // frames taken: 0x304
        0, 0, 0, 0, 0, 1, 0, 0,             // bulk taken: 1 << 40
    ]
}

fn stamped(mut frame: Vec<u8>) -> Vec<u8> {
    stamp(&mut frame, 5, Taken { frames: 0x304, bulk: 1 << 40 });
    frame
}

#[test]
fn the_document_is_of_this_version() {
    let document = include_str!("../../../docs/protocol.md");
    let sentence = format!("The version of this protocol is {} (`protocol::VERSION`).", crate::protocol::VERSION);
    assert!(document.contains(&sentence), "docs/protocol.md does not say: {sentence}");
}

#[test]
fn every_kind_of_frame_has_its_bytes() {
    let check = |frame: Vec<u8>, prefix: Vec<u8>, header: &[u8], payload: &[u8]| {
        assert_eq!(stamped(frame), [&prefix, header, payload].concat());
    };

    let (session, id) = (SessionId(1), RequestId(7));
    let done = ToMaster::Done { piece: PieceId { session, number: 4 }, step: 300, count: 2 };
    // To a master, variant 3: session, number of the piece, step, count; then no tensors.
    check(tests::whole(&done.into()), prefix(0, 8, 0), &[3, 3, 1, 4, 0xac, 2, 2, 0], &[]);

    let tensors =
        vec![Tensor::vector(vec![1.5f32, -2.0]), Tensor::vector(vec![b"a".to_vec(), vec![]]), Tensor::scalar(true)];
    let fetched = Envelope::new(ToClient::Fetched { id, step: 3 }, tensors);
    #[rustfmt::skip]
    let header = [
        2, 1, 7, 3,                         // to a client, variant 1: id, step
        3,                                  // tensors
        2, 1, 2, 0,                         // float32, shape [2], no strings
        13, 1, 2, 1, 2, 1, b'a', 0,         // string, shape [2], two strings: "a" and ""
        12, 0, 0,                           // bool, shape [], no strings
    ];
    let payload = [0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0, 1];
    check(tests::whole(&fetched), prefix(0, 20, 9), &header, &payload);

    let content = Content([9; 32]);
    let reference = Reference { piece: 2, node: 300, attr: "value".to_owned(), content };
    let kept = Reference { piece: 0, node: 1, attr: "v".to_owned(), content };
    let holder = Some(Peer::new("p"));
    let constants = Constants { references: vec![reference], beside: vec![content], kept: vec![kept], holder };
    let register = ToWorker::Register { session, isolated: true, pieces: vec![], constants, guarded: false };
    #[rustfmt::skip]
    let header = [
        &[4, 0, 1, 1][..],                  // to a worker, variant 0: session, isolated,
        &[0, 0, 1, 0],                      // no ids; not compressed, of one byte: no pieces
        &[1, 2, 0xac, 2, 5], b"value",      // one reference: piece, node, attribute,
        &[9; 32],                           // content
        &[1], &[9; 32],                     // one content beside the message
        &[1, 0, 1, 1, b'v'], &[9; 32],      // one that is kept: piece, node, attribute, content
        &[1, 1, b'p'],                      // the participant that has it
        &[0],                               // it is not guarded
        &[1, 2, 1, 2, 0],                   // one tensor: float32, shape [2], no strings
    ];
    let register = Envelope::new(register, vec![Tensor::vector(vec![1.5f32, -2.0])]);
    check(tests::whole(&register), prefix(0, 129, 8), &header.concat(), &payload[..8]);

    let ask = |inquiry| ToHost::Ask { id, inquiry }.into();
    // To a host, variant 0: id, and the inquiry, of which 0 has nothing more; no tensors.
    check(tests::whole(&ask(Inquiry::Status)), prefix(0, 5, 0), &[5, 0, 7, 0, 0], &[]);
    let device = Some((DeviceKind::Gpu, 1));
    let variable = VariableName { container: String::new(), name: "w".to_owned(), device };
    #[rustfmt::skip]
    let header = [
        5, 0, 7, 4,                         // inquiry 4
        0, 1, b'w', 1, 1, 1,                // variable: container "", name, a device: its kind, its index
        1, 0xac, 2,                         // expected: a version
        1, 2, 1, 2, 0,                      // one tensor
    ];
    let write = ToHost::Ask { id, inquiry: Inquiry::WriteVariable { variable, expected: Some(300) } };
    let write = Envelope::new(write, vec![Tensor::vector(vec![1.5f32, -2.0])]);
    check(tests::whole(&write), prefix(0, 18, 8), &header, &payload[..8]);
    let written = ToClient::Reply { id, result: Ok(Reply::Told(Answer::Written { version: 300 })) };
    // To a client, variant 0: id, a result that is Ok, reply 8, answer 4; no tensors.
    check(tests::whole(&written.into()), prefix(0, 9, 0), &[2, 0, 7, 0, 8, 4, 0xac, 2, 0], &[]);

    check(empty_frame(Kind::Ping).to_vec(), prefix(1, 0, 0), &[], &[]);

    let memory = Some(DeviceMemory { total: 300, free: 2 });
    let device = |index, memory| {
        let (name, capacity) =
            (Task::new("t", 0).device(DeviceKind::Cpu, index), Capacity { memory, cores: Some(4), rates: None });
        DeviceInfo { name, backend: "f".to_owned(), description: "d".to_owned(), capacity }
    };
    let hello = |devices| Hello {
        version: 4,
        mesh: "m".to_owned(),
        task: Some(Task::new("t", 0)),
        incarnation: Incarnation(1),
        devices,
        addresses: vec![],
        since_unix_ms: 2,
        claims_since_unix_ms: 3,
        settled: true,
        peers: vec![],
        out_of_reach: vec![],
        doors: vec![],
        is_spare: false,
    };
    let say = |devices| Message::Hello(Box::new(hello(devices))).into();
    #[rustfmt::skip]
    let header = [
        0, 4, 1, b'm', 1, 1, b't', 0, 1,    // to the link, variant 0: version, mesh, a task: job, index; incarnation
        2, 1, b't', 0, 0, 0, 1, b'f', 1, b'd', // two devices: job, index, kind, index, backend, description
        1, b't', 0, 0, 1, 1, b'f', 1, b'd',
        0, 2, 3, 1, 0, 0,                   // addresses, since, claims since, settled, peers, out of reach
        0,                                  // no tensors
        2, 1, 0xac, 2, 2, 1, 4,             // two capacities: a memory: total, free; cores
        0, 1, 4,                            // no memory; cores
    ];
    check(tests::whole(&say(vec![device(0, memory), device(1, None)])), prefix(0, header.len() as u8, 0), &header, &[]);
    // Rates follow the capacities, if any is known: none of the first device; multiply-adds, and bytes in caches and in memory,
    // of the second.
    let rates = Some(Rates { multiply_adds: 300, bytes: 7, streamed: Some(Streamed { kept: 9, memory: 8 }) });
    let measured = DeviceInfo { capacity: Capacity { rates, ..device(1, None).capacity }, ..device(1, None) };
    let with_rates = [&header[..], &[2, 0, 1, 0xac, 2, 7, 1, 9, 8]].concat();
    let said = tests::whole(&say(vec![device(0, memory), measured]));
    check(said, prefix(0, with_rates.len() as u8, 0), &with_rates, &[]);
    let unknown = |index| DeviceInfo { capacity: Capacity::default(), ..device(index, None) };
    let bare = &header[..header.len() - 10];
    check(tests::whole(&say(vec![unknown(0), unknown(1)])), prefix(0, bare.len() as u8, 0), bare, &[]);
    // Doors follow the rates; no capacities and no rates are known here.
    let open = Hello { doors: vec!["a:1".to_owned()], ..hello(vec![unknown(0), unknown(1)]) };
    let with_doors = [bare, &[0, 0, 1, 3, b'a', b':', b'1']].concat();
    let said = tests::whole(&Message::Hello(Box::new(open.clone())).into());
    check(said, prefix(0, with_doors.len() as u8, 0), &with_doors, &[]);
    assert_eq!(decode_header(&with_doors, 0).unwrap().message, Message::Hello(Box::new(open)));
    // The word of a spare follows its doors.
    let spare = Hello { is_spare: true, ..hello(vec![unknown(0), unknown(1)]) };
    let with_word = [bare, &[0, 0, 0, 1]].concat();
    let said = tests::whole(&Message::Hello(Box::new(spare.clone())).into());
    check(said, prefix(0, with_word.len() as u8, 0), &with_word, &[]);
    assert_eq!(decode_header(&with_word, 0).unwrap().message, Message::Hello(Box::new(spare)));

    let refusal = |refusal| encode_value(Kind::Refused, &refusal).unwrap();
    let holder = Holder { peer: crate::protocol::Peer::new("p"), addresses: vec!["/x".to_owned()], since_unix_ms: 128 };
    let taken = Refusal::TaskTaken { task: Task::new("ps", 2), holder };
    // Variant 0: job, index; peer, one address, 128.
    check(refusal(taken), prefix(2, 13, 0), &[0, 2, b'p', b's', 2, 1, b'p', 1, 2, b'/', b'x', 0x80, 1], &[]);
    check(refusal(Refusal::OtherMesh { mesh: "den".into() }), prefix(2, 5, 0), &[1, 3, b'd', b'e', b'n'], &[]);
    check(refusal(Refusal::OtherVersion { version: 2 }), prefix(2, 2, 0), &[2, 2], &[]);
    check(refusal(Refusal::Crowded { limit: 1024 }), prefix(2, 3, 0), &[3, 0x80, 8], &[]);

    check(empty_frame(Kind::Call).to_vec(), prefix(3, 0, 0), &[], &[]);

    check(encode_value(Kind::Echo, &300u64).unwrap(), prefix(5, 2, 0), &[0xac, 2], &[]);
    check(encode_value(Kind::Echoed, &300u64).unwrap(), prefix(6, 2, 0), &[0xac, 2], &[]);

    let standing = Standing {
        fresh: 9,
        link: Some(LinkNumbers { own: 1, theirs: 2 }),
        taken: Taken { frames: 300, bulk: 2 },
        bulk_beyond: vec![4, 5],
    };
    // The fresh number; the link; what was taken of it; two numbers beyond.
    let header = [9, 1, 1, 2, 0xac, 2, 2, 2, 4, 5];
    check(encode_value(Kind::Standing, &standing).unwrap(), prefix(4, 10, 0), &header, &[]);
}

#[test]
fn the_order_that_a_message_asks_for_stands_in_its_prefix() {
    let prefix = Prefix {
        kind: Kind::Message,
        header_bytes: 0x0102_0304,
        payload_bytes: 0x0a_0000_000b,
        number: 1,
        after: 0x0203,
        behind: u64::MAX,
        taken: Taken::default(),
    };
    #[rustfmt::skip]
    let bytes = [
        0,
        4, 3, 2, 1,
        0x0b, 0, 0, 0, 0x0a, 0, 0, 0,
        1, 0, 0, 0, 0, 0, 0, 0,
        3, 2, 0, 0, 0, 0, 0, 0,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(prefix.encode(), bytes);
}

#[test]
fn the_capacities_after_a_hello_may_be_missing_or_wrong() {
    let task = Task::new("t", 0);
    let of = |index, cores| {
        let name = task.device(DeviceKind::Cpu, index);
        let capacity = Capacity { memory: None, cores, rates: None };
        DeviceInfo { name, backend: String::new(), description: String::new(), capacity }
    };
    let hello = Hello {
        version: crate::protocol::VERSION,
        mesh: String::new(),
        task: Some(task.clone()),
        incarnation: Incarnation(1),
        devices: vec![of(0, None), of(1, None)],
        addresses: vec![],
        since_unix_ms: 0,
        claims_since_unix_ms: 0,
        settled: false,
        peers: vec![],
        out_of_reach: vec![],
        doors: vec![],
        is_spare: false,
    };
    let (prefix, head) = encode_head(&Message::Hello(Box::new(hello)).into()).unwrap();
    let bare = &head[PREFIX_BYTES..][..prefix.header_bytes];
    let check = |after: &[u8], want: [Option<u32>; 2]| {
        let Message::Hello(hello) = decode_header(&[bare, after].concat(), 0).unwrap().message else { panic!() };
        assert_eq!(hello.devices.iter().map(|device| device.capacity.cores).collect::<Vec<_>>(), want, "{after:?}");
    };
    check(&[], [None, None]);
    check(&[2, 0, 1, 4, 0, 1, 8], [Some(4), Some(8)]);
    // Rates behind them, for one device of two; and a field that a later release adds behind those.
    check(&[2, 0, 1, 4, 0, 1, 8, 2, 0, 1, 5, 6, 0], [Some(4), Some(8)]);
    check(&[2, 0, 1, 4, 0, 1, 8, 2, 0, 1, 5, 6, 0, 77], [Some(4), Some(8)]);
    check(&[2, 0, 1, 4, 0, 1, 8, 77], [Some(4), Some(8)]);
    // One for each device, or they cannot be assigned; and numbers that no device has.
    check(&[1, 0, 1, 4], [None, None]);
    check(&[3, 0, 1, 4, 0, 1, 8, 0, 0], [None, None]);
    check(&[2, 0, 1, 0, 0, 1, 8], [None, Some(8)]);
    check(&[2, 0, 1], [None, None]);
    check(&[0xff, 0xff, 0xff, 0xff, 0xff], [None, None]);
}
