//! Members that violate the protocol, byte by byte, and the node's reaction.

use std::io;

use libp2p::PeerId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::admission::Purpose;
use super::super::frame::{self, Kind, MAX_CONTROL_FRAME_BYTES, PREFIX_BYTES, Prefix, Refusal, Standing, Taken};
use super::super::transport::PeerStream;
use super::super::transport::memory::{Memory, Network};
use super::in_memory::join;
use super::*;
use crate::protocol::MAX_MESSAGE_BYTES;

/// A member whose every byte the test decides.
struct Raw {
    port: Port,
    me: PeerId,
    control: PeerStream,
    /// The node's standing, its first frame.
    standing: Standing,
}

impl Raw {
    /// Connects with the node at the first address, and receives its first frames.
    async fn connect(network: &Arc<Network>, node: &Someone) -> Raw {
        let node: PeerId = node.peer().as_str().parse().unwrap();
        // The lower of the two opens the control stream.
        let ids = std::iter::repeat_with(|| Keypair::generate_ed25519().public().to_peer_id());
        let me = ids.into_iter().find(|id| *id < node).unwrap();
        let gate = Gate::new(me, "lab", Admission::Key(MeshKey::from_bytes([1; 32])), Speaks::own());
        let port = Port::new(vec![Arc::new(Memory { network: network.clone(), me })], gate);
        let address = "/memory/1".parse().unwrap();
        let mut control = port.dial(&address, Some(node), Purpose::Control).await.unwrap().stream;
        // multistream-select: each line after its length, and the other side sends the same.
        let lines: Vec<u8> = ["/multistream/1.0.0\n", "/meshtf/control/1\n"]
            .into_iter()
            .flat_map(|line| [&[line.len() as u8], line.as_bytes()].concat())
            .collect();
        control.write_all(&lines).await.unwrap();
        control.flush().await.unwrap();
        let mut answer = vec![0; lines.len()];
        control.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, lines);
        let (prefix, body) = frame_of(&mut control).await.unwrap();
        assert_eq!(prefix.kind, Kind::Standing);
        Raw { port, me, control, standing: postcard::from_bytes(&body).unwrap() }
    }

    async fn say(&mut self, frame: &[u8]) {
        // A node that hangs up early need not take all of it.
        let _ = self.control.write_all(frame).await;
        let _ = self.control.flush().await;
    }

    /// Its own standing and Hello.
    async fn greet(&mut self, change: impl FnOnce(&mut Hello)) {
        let mut hello = Hello {
            version: VERSION,
            mesh: "lab".into(),
            task: None,
            incarnation: Incarnation(7),
            devices: vec![],
            addresses: vec![],
            since_unix_ms: 1,
            claims_since_unix_ms: u64::MAX,
            settled: false,
            peers: vec![],
            out_of_reach: vec![],
            doors: vec![],
            is_spare: false,
        };
        change(&mut hello);
        let standing = Standing { fresh: 9, link: None, taken: Taken::default(), bulk_beyond: vec![] };
        self.say(&frame::encode_value(Kind::Standing, &standing).unwrap()).await;
        self.say(&message(Message::Hello(Box::new(hello)), 0)).await;
    }

    /// All frames until the node hangs up, by their kinds; and why it refused, if it did.
    async fn rest(&mut self) -> (Vec<Kind>, Option<Refusal>) {
        let (mut kinds, mut refusal) = (Vec::new(), None);
        while let Ok((prefix, body)) = frame_of(&mut self.control).await {
            if prefix.kind == Kind::Refused {
                refusal = Some(postcard::from_bytes(&body).unwrap());
            }
            kinds.push(prefix.kind);
        }
        (kinds, refusal)
    }
}

async fn frame_of(stream: &mut PeerStream) -> io::Result<(Prefix, Vec<u8>)> {
    let mut prefix = [0; PREFIX_BYTES];
    let read = async {
        stream.read_exact(&mut prefix).await?;
        let prefix = Prefix::decode(&prefix, MAX_CONTROL_FRAME_BYTES).unwrap();
        let mut body = vec![0; prefix.body_bytes()];
        stream.read_exact(&mut body).await?;
        Ok((prefix, body))
    };
    tokio::time::timeout(PATIENCE, read).await.expect("in time")
}

fn message(message: impl Into<Envelope>, number: u64) -> Vec<u8> {
    let (_, mut frame) = frame::encode_head(&message.into()).unwrap();
    frame::stamp(&mut frame, number, Taken::default());
    frame
}

/// A prefix of a message that claims these lengths.
fn claim(header_bytes: usize, payload_bytes: usize) -> [u8; PREFIX_BYTES] {
    let taken = Taken::default();
    let kind = Kind::Message;
    Prefix { kind, header_bytes, payload_bytes, number: 1, after: 0, behind: 0, taken }.encode()
}

#[tokio::test]
async fn one_that_breaks_the_protocol_loses_its_link() {
    let network = Arc::new(Network::default());
    let mut node = join(&network, "local/0").await.unwrap();
    let mut acknowledging = frame::empty_frame(Kind::Ping).to_vec();
    frame::stamp(&mut acknowledging, 0, Taken { frames: 5, bulk: 0 });
    let mut nothing = frame::empty_frame(Kind::Ping);
    nothing[0] = 99;
    let cases = [
        (claim(MAX_CONTROL_FRAME_BYTES + 1, 0).to_vec(), "a frame of 1048577 bytes exceeds the limit of 1048576"),
        (claim(1, MAX_CONTROL_FRAME_BYTES).to_vec(), "a frame of 1048577 bytes exceeds the limit of 1048576"),
        (claim(u32::MAX as usize, usize::MAX).to_vec(), "exceeds the limit of 1048576"),
        (nothing.to_vec(), "unknown kind of frame: 99"),
        (acknowledging, "it acknowledges message 5 of 0"),
        (message(number(1), 3), "message 3"),
        ([&claim(4, 0)[..], &[0xff; 4]].concat(), "the header of a message does not decode"),
    ];
    for (frame, wanted) in cases {
        let mut member = Raw::connect(&network, &node).await;
        member.greet(|_| {}).await;
        assert_eq!(node.up().await.as_str(), member.me.to_string());
        // The messages before it are accepted.
        member.say(&message(number(1), 1)).await;
        assert_eq!(node.got().await.1, number(1));
        member.say(&frame).await;
        let (peer, why) = node.down().await;
        assert_eq!(peer.as_str(), member.me.to_string());
        assert!(why.contains(wanted), "{why}, not {wanted}");
        assert_eq!(member.rest().await.1, None, "the connection ends with it");
    }
}

#[tokio::test]
async fn one_that_speaks_before_its_hello_is_never_up() {
    let network = Arc::new(Network::default());
    let mut node = join(&network, "local/0").await.unwrap();
    for early in [message(number(1), 1), frame::empty_frame(Kind::Call).to_vec(), claim(1 << 21, 0).to_vec()] {
        let mut member = Raw::connect(&network, &node).await;
        member.say(&early).await;
        assert_eq!(member.rest().await.1, None);
    }
    assert!(node.heard.try_recv().is_err(), "the node heard of none of them");
}

#[tokio::test]
async fn a_hello_that_does_not_fit_is_refused_with_the_reason() {
    let network = Arc::new(Network::default());
    let mut node = join(&network, "local/0").await.unwrap();
    let other = join(&network, "local/1").await.unwrap();
    assert_eq!(node.up().await, *other.peer());
    // The first to connect has it, and the member that sends this claims to come last.
    let taken = |index: u32, holder: &Someone| {
        let since_unix_ms = holder.mesh.roster.own_hello().since_unix_ms;
        let holder = crate::mesh::error::Holder {
            peer: holder.peer().clone(),
            addresses: holder.mesh.addresses(),
            since_unix_ms,
        };
        Refusal::TaskTaken { task: Task::new("local", index), holder }
    };
    type Change = Box<dyn FnOnce(&mut Hello)>;
    let cases: [(Change, Refusal); 5] = [
        (Box::new(|hello| hello.mesh = "den".into()), Refusal::OtherMesh { mesh: "lab".into() }),
        (Box::new(|hello| hello.mesh = String::new()), Refusal::OtherMesh { mesh: "lab".into() }),
        (Box::new(|hello| hello.version += 1), Refusal::OtherVersion { version: VERSION }),
        (Box::new(|hello| hello.task = Some(Task::new("local", 0))), taken(0, &node)),
        (Box::new(|hello| hello.task = Some(Task::new("local", 1))), taken(1, &other)),
    ];
    for (change, wanted) in cases {
        let mut member = Raw::connect(&network, &node).await;
        member.greet(change).await;
        assert_eq!(member.rest().await.1, Some(wanted));
    }
    assert!(node.heard.try_recv().is_err(), "none of them was up");
    assert_eq!(node.mesh.cluster().len(), 2);
    assert!(node.mesh.roster.lost().borrow().is_none(), "the node kept its task");
}

#[tokio::test]
async fn a_link_keeps_its_name() {
    let network = Arc::new(Network::default());
    let mut node = join(&network, "local/0").await.unwrap();
    let changes: [fn(&mut Hello); 3] = [
        |hello| hello.mesh = "den".into(),
        |hello| hello.incarnation = Incarnation(8),
        |hello| hello.task = Some(Task::new("local", 3)),
    ];
    for change in changes {
        let mut member = Raw::connect(&network, &node).await;
        member.greet(|_| {}).await;
        node.up().await;
        member.greet(change).await;
        assert_eq!(node.down().await.1, "its task, incarnation or mesh changed while it was connected");
        member.rest().await;
    }
}

#[tokio::test]
async fn bulk_over_the_limit_ends_the_link() {
    let network = Arc::new(Network::default());
    let mut node = join(&network, "local/0").await.unwrap();
    let cases = [
        (claim(1, MAX_MESSAGE_BYTES).to_vec(), "exceeds the limit of"),
        (frame::empty_frame(Kind::Ping).to_vec(), "a bulk stream carries messages only"),
        ([&claim(4, 9)[..], &[0xff; 13]].concat(), "the header of a message does not decode"),
    ];
    for (frame, wanted) in cases {
        let mut member = Raw::connect(&network, &node).await;
        member.greet(|_| {}).await;
        node.up().await;
        let address = "/memory/1".parse().unwrap();
        let mut bulk = member.port.dial(&address, None, Purpose::Send).await.unwrap().stream;
        bulk.write_all(&member.standing.fresh.to_le_bytes()).await.unwrap();
        bulk.write_all(&frame).await.unwrap();
        bulk.flush().await.unwrap();
        let (peer, why) = node.down().await;
        assert_eq!(peer.as_str(), member.me.to_string());
        assert!(why.starts_with("its bulk data cannot be accepted: ") && why.contains(wanted), "{why}");
        member.rest().await;
    }
}
