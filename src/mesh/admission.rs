//! Admission: the proof of the mesh key, on a stream that a [transport](super::transport) has secured, before a single byte of
//! anything else.
//!
//! The dialler proves first. Until it has, the listener sends nothing, whatever it receives: it answers a proof or closes the
//! connection. So an unauthenticated peer learns that a libp2p node exists and nothing of its mesh, not even which version of
//! the protocol it speaks. A proof is keyed BLAKE3 over the role, both PeerIds and a secret of this one connection, to which
//! both sides contributed fresh randomness; it is worth nothing on any other connection. The key is never sent.

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzz;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::Admission;
use super::denied::{Denied, FIRST_BYTE_LIMIT, HANDSHAKE_LIMIT};
use super::handshakes::Handshakes;
use super::release::{MAX_RELEASE_BYTES, Release, Speaks};
use super::transport::{Arrival, PeerStream, Secured};
use crate::unauthenticated::{Progress, UnauthenticatedPeer};

/// How long to wait for the release of a participant of another version of the protocol.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
const PROOF_BYTES: usize = 32;
/// The identification that either side sends once the other has proven the key: its version of the protocol, and a hash of the
/// mesh's name.
const CARD_BYTES: usize = 2 + 32;
/// The listener's answer to a proof: its own proof, and its card.
const ANSWER_BYTES: usize = PROOF_BYTES + CARD_BYTES;
/// The dialler's last message: its card, and the purpose of the stream.
const ERRAND_BYTES: usize = CARD_BYTES + 1;

/// The stream that carries the proofs: a [`PeerStream`], or bytes of the fuzzer.
trait ProofStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ProofStream for S {}

/// A stream on which both sides have proven the mesh key.
pub struct Admitted {
    pub peer: PeerId,
    pub purpose: Purpose,
    pub stream: PeerStream,
}

/// The purpose of a stream; the dialler chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// The connection with the control stream.
    Control = 0,
    /// The dialler sends bulk.
    Send = 1,
    /// The dialler takes bulk.
    Receive = 2,
}

/// Admits streams to one mesh, in this participant's name.
pub struct Gate {
    me: PeerId,
    admission: Admission,
    speaks: Speaks,
    mesh_id: [u8; 32],
    handshakes: Handshakes,
}

/// The input of the two proofs on one connection, in addition to the key.
struct ProofInput {
    dialler: PeerId,
    listener: PeerId,
    binding: [u8; 32],
}

impl Gate {
    pub fn new(me: PeerId, mesh: &str, admission: Admission, speaks: Speaks) -> Self {
        let mesh_id = blake3::derive_key("meshtf 2026 mesh name", mesh.as_bytes());
        Gate { me, admission, speaks, mesh_id, handshakes: Handshakes::default() }
    }

    /// Proves the key on a stream that this side dialled.
    ///
    /// # Errors
    /// [`Denied`] inside, if the two are not of one mesh.
    pub async fn prove(&self, secured: Secured, purpose: Purpose) -> io::Result<Admitted> {
        let Secured { peer, binding, mut stream } = secured;
        let input = ProofInput { dialler: self.me, listener: peer, binding };
        let proven = self.prove_first(&mut stream, &input, purpose).await;
        Self::with_release(&mut stream, proven).await?;
        Ok(Admitted { peer, purpose, stream })
    }

    /// Secures a connection that came in, has the other side prove the key, and proves it in turn. Until the first byte
    /// arrives, the connection costs only its slot among the unauthenticated peers; the work after that is done by the
    /// handshake thread.
    ///
    /// # Errors
    /// [`Denied`] inside, if the two are not of one mesh, or the unauthenticated peer had to make room for another.
    pub async fn admit(
        self: &Arc<Self>,
        mut arrival: Box<dyn Arrival>,
        unauthenticated: UnauthenticatedPeer,
    ) -> io::Result<Admitted> {
        let (gate, told_to_go) = (Arc::clone(self), unauthenticated.told_to_go());
        let handshake = async move {
            timeout(FIRST_BYTE_LIMIT, arrival.first_byte()).await.unwrap_or_else(|_| Err(Denied::Silent.into()))?;
            unauthenticated.is_at(Progress::Spoke);
            let proof = async move {
                let Secured { peer, binding, mut stream } = arrival.secure().await?;
                unauthenticated.is_at(Progress::Secured);
                let input = ProofInput { dialler: peer, listener: gate.me, binding };
                let proven = gate.prove_second(&mut stream, &input).await;
                if proven.is_ok() {
                    unauthenticated.proved();
                }
                Ok((peer, stream, proven))
            };
            self.handshakes.run(proof).await
        };
        let (peer, mut stream, proven) = tokio::select! {
            biased;
            done = timeout(HANDSHAKE_LIMIT, handshake) => done.unwrap_or_else(|_| Err(Denied::Slow.into())),
            () = told_to_go => Err(Denied::Crowded.into()),
        }?;
        let purpose = Self::with_release(&mut stream, proven).await?;
        Ok(Admitted { peer, purpose, stream })
    }

    async fn prove_first(&self, stream: &mut impl ProofStream, input: &ProofInput, purpose: Purpose) -> io::Result<()> {
        let key = self.key();
        stream.write_all(&input.proof(&key, DIALLER)).await?;
        stream.flush().await?;
        let mut answer = [0; ANSWER_BYTES];
        if !read_whole(stream, &mut answer).await? {
            return Err(match self.admission {
                Admission::Key(_) => Denied::WrongKey.into(),
                Admission::Open => Denied::KeyWanted.into(),
            });
        }
        let (proof, card) = answer.split_at(PROOF_BYTES);
        if !same(proof, &input.proof(&key, LISTENER)) {
            let runs_open = same(proof, &input.proof(&open_key(), LISTENER));
            return Err(if runs_open { Denied::Open } else { Denied::UnauthenticatedPeer }.into());
        }
        stream.write_all(&self.card()).await?;
        stream.write_all(&[purpose as u8]).await?;
        stream.flush().await?;
        self.is_of_mine(card)
    }

    async fn prove_second(&self, stream: &mut impl ProofStream, input: &ProofInput) -> io::Result<Purpose> {
        let key = self.key();
        let mut proof = [0; PROOF_BYTES];
        if !read_whole(stream, &mut proof).await? {
            return Err(Denied::UnauthenticatedPeer.into());
        }
        let admitted = same(&proof, &input.proof(&key, DIALLER));
        // An open mesh keeps no secret: a dialler with a key learns that none is wanted.
        if admitted || matches!(self.admission, Admission::Open) {
            stream.write_all(&input.proof(&key, LISTENER)).await?;
            stream.write_all(&self.card()).await?;
            stream.flush().await?;
        }
        if !admitted {
            // An orderly end shows the dialler that it is denied: after a connection that breaks it would try again.
            let _ = stream.shutdown().await;
            let denied = match self.admission {
                Admission::Open => Denied::KeyWanted,
                Admission::Key(_) if same(&proof, &input.proof(&open_key(), DIALLER)) => Denied::Open,
                Admission::Key(_) => Denied::WrongKey,
            };
            return Err(denied.into());
        }
        let mut errand = [0; ERRAND_BYTES];
        if !read_whole(stream, &mut errand).await? {
            return Err(Denied::UnauthenticatedPeer.into());
        }
        let [card @ .., purpose] = errand;
        self.is_of_mine(&card)?;
        match purpose {
            0 => Ok(Purpose::Control),
            1 => Ok(Purpose::Send),
            2 => Ok(Purpose::Receive),
            _ => Err(Denied::UnauthenticatedPeer.into()),
        }
    }

    fn card(&self) -> [u8; CARD_BYTES] {
        let mut card = [0; CARD_BYTES];
        card[..2].copy_from_slice(&self.speaks.protocol.to_le_bytes());
        card[2..].copy_from_slice(&self.mesh_id);
        card
    }

    /// Judges the other side by its card. Of another version of the protocol, nothing but the number is read.
    fn is_of_mine(&self, card: &[u8]) -> io::Result<()> {
        let [a, b, mesh_id @ ..] = card else { return Err(Denied::UnauthenticatedPeer.into()) };
        let protocol = u16::from_le_bytes([*a, *b]);
        if protocol != self.speaks.protocol {
            let theirs = Speaks { protocol, release: None };
            return Err(Denied::OtherVersion { theirs, ours: self.speaks }.into());
        }
        if *mesh_id == self.mesh_id { Ok(()) } else { Err(Denied::OtherMesh.into()) }
    }

    /// The outcome of a proof. Two participants that found each other to be of two versions of the protocol exchange their
    /// releases first.
    async fn with_release<T>(stream: &mut impl ProofStream, proven: io::Result<T>) -> io::Result<T> {
        let Err(error) = proven else { return proven };
        let denied = error.get_ref().and_then(|inner| inner.downcast_ref::<Denied>());
        let Some(Denied::OtherVersion { theirs, ours }) = denied else { return Err(error) };
        let told = timeout(RELEASE_LIMIT, exchange_releases(stream, ours.release)).await;
        // A participant that does not know releases hangs up.
        let theirs = Speaks { release: told.ok().and_then(Result::ok).flatten(), ..*theirs };
        Err(Denied::OtherVersion { theirs, ours: *ours }.into())
    }

    /// The key to prove: the mesh's, or a publicly known key if the mesh is open. So there is one handshake for both.
    fn key(&self) -> [u8; 32] {
        match &self.admission {
            Admission::Key(key) => *key.bytes(),
            Admission::Open => open_key(),
        }
    }
}

const DIALLER: &[u8] = b"dialler";
const LISTENER: &[u8] = b"listener";

fn open_key() -> [u8; 32] {
    blake3::derive_key("meshtf 2026 open mesh", &[])
}

impl ProofInput {
    fn proof(&self, key: &[u8; 32], role: &[u8]) -> [u8; PROOF_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(key);
        for part in [role, &self.dialler.to_bytes(), &self.listener.to_bytes(), &self.binding] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8; PROOF_BYTES]) -> bool {
    <[u8; PROOF_BYTES]>::try_from(a).is_ok_and(|a| blake3::Hash::from_bytes(a) == blake3::Hash::from_bytes(*b))
}

/// Sends the own release and reads the other side's: each after its length, one byte, 0 if it has none. This must remain the
/// same in every version of the protocol.
async fn exchange_releases(stream: &mut impl ProofStream, own: Option<Release>) -> io::Result<Option<Release>> {
    let own = own.as_ref().map_or("", Release::as_str);
    stream.write_all(&[&[own.len() as u8], own.as_bytes()].concat()).await?;
    stream.flush().await?;
    let mut bytes = [0; 1 + MAX_RELEASE_BYTES];
    let (length, name) = bytes.split_at_mut(1);
    stream.read_exact(length).await?;
    let Some(name) = name.get_mut(..usize::from(length[0])) else { return Ok(None) };
    stream.read_exact(name).await?;
    Ok(std::str::from_utf8(name).ok().and_then(Release::new))
}

/// Fills `bytes`; false if the other side closed the connection in order before that. A broken connection is an error.
async fn read_whole(stream: &mut impl ProofStream, bytes: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]).await? {
            0 => return Ok(false),
            count => filled += count,
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use rustls::pki_types::ServerName;
    use tokio::net::TcpStream;

    use super::*;
    use crate::mesh::cause::find_cause;
    use crate::mesh::transport::tcp::{Tcp, socket_address};
    use crate::mesh::transport::tls::Tls;
    use crate::mesh::transport::{ListenEvent, Transport};
    use crate::mesh::{Keypair, MeshKey};
    use crate::unauthenticated::UnauthenticatedPeers;

    fn key(byte: u8) -> Admission {
        Admission::Key(MeshKey::from_bytes([byte; 32]))
    }

    /// A participant on TCP, with one stream that comes in from another.
    struct Side {
        gate: Arc<Gate>,
        tcp: Tcp,
    }

    impl Side {
        fn new(mesh: &str, admission: Admission, speaks: Speaks) -> Side {
            let identity = Keypair::generate_ed25519();
            let gate = Gate::new(identity.public().to_peer_id(), mesh, admission, speaks);
            Side { gate: Arc::new(gate), tcp: Tcp::new(Arc::new(Tls::new(&identity).unwrap())) }
        }

        /// Its listen address, and the first connection that it takes.
        async fn listen(&self) -> (libp2p::Multiaddr, impl Future<Output = Box<dyn Arrival>> + use<>) {
            let mut events = self.tcp.listen(&"/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
            let Some(ListenEvent::Opened(address)) = events.next().await else { panic!("it does not listen") };
            let arrival = async move {
                match events.next().await {
                    Some(ListenEvent::Arrived { arrival, .. }) => arrival,
                    _ => panic!("nobody came"),
                }
            };
            (address, arrival)
        }
    }

    fn place() -> UnauthenticatedPeer {
        UnauthenticatedPeers::new().admit("127.0.0.1".parse().unwrap()).unwrap()
    }

    fn denied<T>(result: &io::Result<T>) -> Option<Denied> {
        result.as_ref().err().map(|error| *find_cause(error).unwrap_or_else(|| panic!("{error}")))
    }

    #[tokio::test]
    async fn two_of_one_mesh_are_let_in_and_others_hear_why() {
        let check = async |dialler: Side, listener: Side, hears: Option<Denied>, logs: Option<Denied>| {
            let (address, arrival) = listener.listen().await;
            let dial = async { dialler.gate.prove(dialler.tcp.dial(&address).await?, Purpose::Send).await };
            let (dialled, accepted) = tokio::join!(dial, async { listener.gate.admit(arrival.await, place()).await });
            assert_eq!((denied(&dialled), denied(&accepted)), (hears, logs));
            if let (Ok(dialled), Ok(accepted)) = (dialled, accepted) {
                let who = (dialled.peer, accepted.peer, accepted.purpose);
                assert_eq!(who, (listener.gate.me, dialler.gate.me, Purpose::Send));
            }
        };
        let gate = |admission, speaks| Side::new("lab", admission, speaks);
        let of = |admission| gate(admission, Speaks::own());
        check(of(key(1)), of(key(1)), None, None).await;
        check(of(Admission::Open), of(Admission::Open), None, None).await;
        check(of(key(1)), of(key(2)), Some(Denied::WrongKey), Some(Denied::WrongKey)).await;
        check(of(key(1)), of(Admission::Open), Some(Denied::Open), Some(Denied::KeyWanted)).await;
        check(of(Admission::Open), of(key(1)), Some(Denied::KeyWanted), Some(Denied::Open)).await;
        let other = |theirs, ours| Some(Denied::OtherVersion { theirs, ours });
        let speaks = |protocol, release: &str| Speaks { protocol, release: Release::new(release) };
        let (old, new, nameless) = (speaks(7, "0.7.1"), speaks(8, "0.8.0-rc.1"), speaks(9, ""));
        check(gate(key(1), old), gate(key(1), new), other(new, old), other(old, new)).await;
        check(gate(key(1), nameless), gate(key(1), new), other(new, nameless), other(nameless, new)).await;
        let of_den = || Side::new("den", key(1), Speaks::own());
        check(of_den(), of(key(1)), Some(Denied::OtherMesh), Some(Denied::OtherMesh)).await;
        // Without the key, no version is disclosed.
        check(gate(key(1), old), gate(key(2), new), Some(Denied::WrongKey), Some(Denied::WrongKey)).await;
    }

    /// A peer of a version that does not know releases: it hangs up once both sides have sent their version of the protocol.
    #[tokio::test]
    async fn one_that_does_not_tell_its_release_is_told_by_its_number() {
        let listener = Side::new("lab", key(1), Speaks::own());
        let dialler = Side::new("lab", key(1), Speaks { protocol: 3, release: None });
        let (address, arrival) = listener.listen().await;
        let dial = async {
            let Secured { peer, binding, mut stream } = dialler.tcp.dial(&address).await?;
            let input = ProofInput { dialler: dialler.gate.me, listener: peer, binding };
            stream.write_all(&input.proof(&dialler.gate.key(), DIALLER)).await?;
            stream.flush().await?;
            let mut answer = [0; ANSWER_BYTES];
            stream.read_exact(&mut answer).await?;
            stream.write_all(&dialler.gate.card()).await?;
            stream.write_all(&[Purpose::Control as u8]).await?;
            stream.flush().await
        };
        let (dialled, accepted) = tokio::join!(dial, async { listener.gate.admit(arrival.await, place()).await });
        dialled.unwrap();
        let theirs = Speaks { protocol: 3, release: None };
        assert_eq!(denied(&accepted), Some(Denied::OtherVersion { theirs, ours: Speaks::own() }));
    }

    #[tokio::test]
    async fn an_unauthenticated_peer_without_a_proof_hears_nothing() {
        let check = async |sent: &[u8]| {
            let listener = Side::new("lab", key(1), Speaks::own());
            let (address, arrival) = listener.listen().await;
            let scan = async {
                let tls = Tls::new(&Keypair::generate_ed25519()).unwrap().bare().0;
                let socket = TcpStream::connect(socket_address(&address).unwrap()).await.unwrap();
                let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
                let mut stream = tls.connect(name, socket).await.unwrap();
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"libp2p"[..]));
                stream.write_all(sent).await.unwrap();
                stream.shutdown().await.unwrap();
                let mut heard = Vec::new();
                let _broken = stream.read_to_end(&mut heard).await;
                heard
            };
            let (heard, accepted) = tokio::join!(scan, async { listener.gate.admit(arrival.await, place()).await });
            assert!(heard.is_empty(), "{} bytes sent, heard {heard:?}", sent.len());
            assert!(denied(&accepted).is_some());
        };
        check(b"").await;
        check(&[0; PROOF_BYTES - 1]).await;
        check(&[0; PROOF_BYTES]).await;
        check(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        // The first bytes of the version before this one.
        check(&[&b"mtf1\x01\x00\x01\x00"[..], &[7; 64]].concat()).await;
    }

    #[tokio::test]
    async fn a_proof_is_worth_nothing_on_another_connection() {
        let [dialler, listener] = [(); 2].map(|()| Side::new("lab", key(1), Speaks::own()));
        let proof = async || {
            let (address, arrival) = listener.listen().await;
            let (here, there) = tokio::join!(dialler.tcp.dial(&address), async { arrival.await.secure().await });
            let proofs = [here, there].map(|end| {
                let binding = end.unwrap().binding;
                let input = ProofInput { dialler: dialler.gate.me, listener: listener.gate.me, binding };
                input.proof(&dialler.gate.key(), DIALLER)
            });
            assert_eq!(proofs[0], proofs[1]);
            proofs[0]
        };
        assert_ne!(proof().await, proof().await);
        let input = |dialler: &Side, listener: &Side| ProofInput {
            dialler: dialler.gate.me,
            listener: listener.gate.me,
            binding: [3; 32],
        };
        let all = [
            input(&dialler, &listener).proof(&[1; 32], DIALLER),
            input(&dialler, &listener).proof(&[1; 32], LISTENER),
            input(&dialler, &listener).proof(&[2; 32], DIALLER),
            input(&listener, &dialler).proof(&[1; 32], DIALLER),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[tokio::test]
    async fn one_that_has_to_make_room_goes_and_may_try_again() {
        let listener = Side::new("lab", key(1), Speaks::own());
        let (address, arrival) = listener.listen().await;
        let mut here = TcpStream::connect(socket_address(&address).unwrap()).await.unwrap();
        let there = arrival.await;
        let unauthenticated_peers = UnauthenticatedPeers::new();
        let from = "127.0.0.1".parse().unwrap();
        let first = unauthenticated_peers.admit(from).unwrap();
        let crowd = async {
            // As many as it takes until the first has to leave; no address has a thousand slots.
            let others: Vec<_> = std::iter::from_fn(|| unauthenticated_peers.admit(from)).take(1000).collect();
            let mut nothing = Vec::new();
            here.read_to_end(&mut nothing).await.unwrap();
            drop(others);
            nothing
        };
        let (accepted, heard) = tokio::join!(listener.gate.admit(there, first), crowd);
        assert_eq!(denied(&accepted), Some(Denied::Crowded));
        assert!(!Denied::Crowded.is_final() && heard.is_empty());
    }
}
