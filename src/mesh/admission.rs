//! Who gets in: TLS between two PeerIds, then the proof of the mesh key, before a single byte of anything else.
//!
//! The dialler proves first, and until it has, the listener says nothing, whatever it is sent: it answers a proof or closes
//! the connection. So a stranger learns that a libp2p node is there and nothing of its mesh, not even which version of the
//! protocol it speaks. A proof is keyed BLAKE3 over the role, both PeerIds and a secret that TLS exports from this one
//! session, to which both sides gave fresh randomness; it is worth nothing on any other connection. The key is never sent.

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzz;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use libp2p::identity::Keypair;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::Admission;
use super::certificate::{self, peer_of};
use super::error::MeshError;
use super::handshakes::Handshakes;
use crate::protocol::VERSION;
use crate::strangers::{Progress, Stranger};

/// How long TLS and the proof may take together.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long whoever connects may take to its first byte, which comes at once from one that means to speak.
const FIRST_BYTE_LIMIT: Duration = Duration::from_secs(2);
const EXPORTER_LABEL: &[u8] = b"meshtf mesh proof 2";
const PROOF_BYTES: usize = 32;
/// What either side says of itself once the other has proven the key: its version of the protocol, and a hash of the
/// mesh's name.
const CARD_BYTES: usize = 2 + 32;
/// What the listener answers to a proof: its own, and its card.
const ANSWER_BYTES: usize = PROOF_BYTES + CARD_BYTES;
/// What the dialler says then: its card, and what the socket is for.
const ERRAND_BYTES: usize = CARD_BYTES + 1;

/// An admitted socket.
pub type Secured = TlsStream<TcpStream>;

/// What the proofs go over, which is TLS but where the fuzzer stands at the other end.
trait Socket: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket for S {}

/// What a socket is for; the dialler says.
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

/// Why a socket was not admitted, on either side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("it is no node of a mesh")]
    Stranger,
    #[error(
        "it speaks version {theirs} of the protocol, this program version {ours}; run the same meshtf on both sides"
    )]
    OtherVersion { theirs: u16, ours: u16 },
    #[error("it is of another mesh")]
    OtherMesh,
    #[error(
        "it has another mesh key; `meshtf ticket` on a machine of the mesh and `meshtf join` here bring the key over"
    )]
    WrongKey,
    #[error("it wants a mesh key and this side runs open, without one")]
    KeyWanted,
    #[error("it runs open, without a mesh key, and this side has one")]
    Open,
    #[error("the handshake took longer than {} s", HANDSHAKE_LIMIT.as_secs())]
    Slow,
    #[error("nothing came from it within {} s", FIRST_BYTE_LIMIT.as_secs())]
    Silent,
    #[error("too many others came that had not proven anything either")]
    Crowded,
    #[error("another peer is there than the one that was dialled")]
    OtherPeer,
}

impl Denied {
    /// Whether the next try is bound to end the same way.
    pub fn is_final(self) -> bool {
        !matches!(self, Denied::Slow | Denied::Silent | Denied::Crowded)
    }
}

impl From<Denied> for io::Error {
    fn from(denied: Denied) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, denied)
    }
}

/// Admits sockets to one mesh, in this participant's name.
pub struct Gate {
    me: PeerId,
    admission: Admission,
    version: u16,
    mesh_id: [u8; 32],
    client: TlsConnector,
    server: TlsAcceptor,
    handshakes: Handshakes,
}

/// What the two proofs on one connection are made of.
struct Ground {
    dialler: PeerId,
    listener: PeerId,
    exported: [u8; 32],
}

impl Gate {
    /// # Errors
    /// [`MeshError::Certificate`] where no certificate can be made for the identity.
    pub fn new(identity: &Keypair, mesh: &str, admission: Admission) -> Result<Self, MeshError> {
        let (client, server) = certificate::ends(identity)?;
        let mesh_id = blake3::derive_key("meshtf 2026 mesh name", mesh.as_bytes());
        let (me, handshakes) = (identity.public().to_peer_id(), Handshakes::default());
        Ok(Gate { me, admission, version: VERSION, mesh_id, client, server, handshakes })
    }

    /// TLS alone, to measure against.
    #[cfg(test)]
    pub fn bare(&self) -> (&TlsConnector, &TlsAcceptor) {
        (&self.client, &self.server)
    }

    /// Secures a socket that this side dialled, and proves the key on it.
    ///
    /// # Errors
    /// [`Denied`] inside, where the two are not of one mesh.
    pub async fn dialled(
        &self,
        socket: TcpStream,
        purpose: Purpose,
        expected: Option<PeerId>,
    ) -> io::Result<(PeerId, Secured)> {
        let handshake = async {
            // No name is sent; the certificate is judged by its PeerId alone.
            let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
            let mut stream = TlsStream::from(self.client.connect(name, socket).await?);
            let peer = peer_of(&stream)?;
            if expected.is_some_and(|expected| expected != peer) {
                return Err(Denied::OtherPeer.into());
            }
            let ground = Ground::of(&stream, self.me, peer)?;
            self.prove_first(&mut stream, &ground, purpose).await?;
            Ok((peer, stream))
        };
        timeout(HANDSHAKE_LIMIT, handshake).await.unwrap_or_else(|_| Err(Denied::Slow.into()))
    }

    /// Secures a socket that was accepted, has the other side prove the key, and proves it in turn. Until something comes,
    /// the socket costs its place among the strangers and no more; what it costs then is done by the thread for that.
    ///
    /// # Errors
    /// [`Denied`] inside, where the two are not of one mesh, or the stranger had to make room for another.
    pub async fn accepted(
        self: &Arc<Self>,
        socket: TcpStream,
        stranger: Stranger,
    ) -> io::Result<(PeerId, Secured, Purpose)> {
        let (gate, told_to_go) = (Arc::clone(self), stranger.told_to_go());
        let handshake = async move {
            // Looked at and left there: that a socket is readable may be a false alarm.
            timeout(FIRST_BYTE_LIMIT, socket.peek(&mut [0])).await.unwrap_or_else(|_| Err(Denied::Silent.into()))?;
            stranger.is_at(Progress::Spoke);
            let proof = async move {
                let mut stream = TlsStream::from(gate.server.accept(socket).await?);
                stranger.is_at(Progress::Secured);
                let peer = peer_of(&stream)?;
                let ground = Ground::of(&stream, peer, gate.me)?;
                let purpose = gate.prove_second(&mut stream, &ground).await?;
                stranger.proved();
                Ok((peer, stream, purpose))
            };
            self.handshakes.run(proof).await
        };
        tokio::select! {
            biased;
            done = timeout(HANDSHAKE_LIMIT, handshake) => done.unwrap_or_else(|_| Err(Denied::Slow.into())),
            () = told_to_go => Err(Denied::Crowded.into()),
        }
    }

    async fn prove_first(&self, stream: &mut impl Socket, ground: &Ground, purpose: Purpose) -> io::Result<()> {
        let key = self.key();
        stream.write_all(&ground.proof(&key, DIALLER)).await?;
        stream.flush().await?;
        let mut answer = [0; ANSWER_BYTES];
        if !read_whole(stream, &mut answer).await? {
            return Err(match self.admission {
                Admission::Key(_) => Denied::WrongKey.into(),
                Admission::Open => Denied::KeyWanted.into(),
            });
        }
        let (proof, card) = answer.split_at(PROOF_BYTES);
        if !same(proof, &ground.proof(&key, LISTENER)) {
            let runs_open = same(proof, &ground.proof(&open_key(), LISTENER));
            return Err(if runs_open { Denied::Open } else { Denied::Stranger }.into());
        }
        stream.write_all(&self.card()).await?;
        stream.write_all(&[purpose as u8]).await?;
        stream.flush().await?;
        self.is_of_mine(card)
    }

    async fn prove_second(&self, stream: &mut impl Socket, ground: &Ground) -> io::Result<Purpose> {
        let key = self.key();
        let mut proof = [0; PROOF_BYTES];
        if !read_whole(stream, &mut proof).await? {
            return Err(Denied::Stranger.into());
        }
        let admitted = same(&proof, &ground.proof(&key, DIALLER));
        // An open mesh keeps no secret: whoever has a key is told that none is wanted here.
        if admitted || matches!(self.admission, Admission::Open) {
            stream.write_all(&ground.proof(&key, LISTENER)).await?;
            stream.write_all(&self.card()).await?;
            stream.flush().await?;
        }
        if !admitted {
            // An orderly end is the answer: a connection that breaks is none, and is tried again.
            let _ = stream.shutdown().await;
            let denied = match self.admission {
                Admission::Open => Denied::KeyWanted,
                Admission::Key(_) if same(&proof, &ground.proof(&open_key(), DIALLER)) => Denied::Open,
                Admission::Key(_) => Denied::WrongKey,
            };
            return Err(denied.into());
        }
        let mut errand = [0; ERRAND_BYTES];
        if !read_whole(stream, &mut errand).await? {
            return Err(Denied::Stranger.into());
        }
        let [card @ .., purpose] = errand;
        self.is_of_mine(&card)?;
        match purpose {
            0 => Ok(Purpose::Control),
            1 => Ok(Purpose::Send),
            2 => Ok(Purpose::Receive),
            _ => Err(Denied::Stranger.into()),
        }
    }

    fn card(&self) -> [u8; CARD_BYTES] {
        let mut card = [0; CARD_BYTES];
        card[..2].copy_from_slice(&self.version.to_le_bytes());
        card[2..].copy_from_slice(&self.mesh_id);
        card
    }

    /// Judges the other side by its card. Of another version, nothing but the number is looked at.
    fn is_of_mine(&self, card: &[u8]) -> io::Result<()> {
        let [a, b, mesh_id @ ..] = card else { return Err(Denied::Stranger.into()) };
        let (theirs, ours) = (u16::from_le_bytes([*a, *b]), self.version);
        if theirs != ours {
            return Err(Denied::OtherVersion { theirs, ours }.into());
        }
        if *mesh_id == self.mesh_id { Ok(()) } else { Err(Denied::OtherMesh.into()) }
    }

    /// What is proven: the mesh's key, or, of an open mesh, a key that everybody knows: one handshake for both.
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

impl Ground {
    fn of(stream: &Secured, dialler: PeerId, listener: PeerId) -> io::Result<Self> {
        let exported = match stream {
            TlsStream::Client(stream) => stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None),
            TlsStream::Server(stream) => stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None),
        };
        Ok(Ground { dialler, listener, exported: exported.map_err(io::Error::other)? })
    }

    fn proof(&self, key: &[u8; 32], role: &[u8]) -> [u8; PROOF_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(key);
        for part in [role, &self.dialler.to_bytes(), &self.listener.to_bytes(), &self.exported] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

/// Compares in a time that does not tell where two proofs differ.
fn same(a: &[u8], b: &[u8; PROOF_BYTES]) -> bool {
    <[u8; PROOF_BYTES]>::try_from(a).is_ok_and(|a| blake3::Hash::from_bytes(a) == blake3::Hash::from_bytes(*b))
}

/// Fills `bytes`; false where the other side ended the connection in order before that. One that breaks is an error.
async fn read_whole(stream: &mut impl Socket, bytes: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]).await? {
            0 => return Ok(false),
            count => filled += count,
        }
    }
    Ok(true)
}

/// How many bytes TLS encrypts before it writes them to the socket.
pub fn write_in_steps_of(stream: &mut Secured, bytes: usize) {
    match stream {
        TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
        TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

    use super::*;
    use crate::mesh::cause::find_cause;
    use crate::mesh::{Keypair, MeshKey};
    use crate::strangers::Strangers;

    fn key(byte: u8) -> Admission {
        Admission::Key(MeshKey::from_bytes([byte; 32]))
    }

    fn gate(admission: Admission, version: u16) -> Gate {
        Gate { version, ..Gate::new(&Keypair::generate_ed25519(), "lab", admission).unwrap() }
    }

    /// Two ends of a socket, the second with its place among the strangers.
    async fn sockets() -> (TcpStream, TcpStream, Stranger) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (here, there) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (there, from) = there.unwrap();
        (here.unwrap(), there, Strangers::new().admit(from.ip()).unwrap())
    }

    fn denied<T>(result: &io::Result<T>) -> Option<Denied> {
        result.as_ref().err().map(|error| *find_cause(error).unwrap_or_else(|| panic!("{error}")))
    }

    #[tokio::test]
    async fn two_of_one_mesh_are_let_in_and_others_hear_why() {
        let check = async |dialler: Gate, listener: Gate, hears: Option<Denied>, logs: Option<Denied>| {
            let (here, there, stranger) = sockets().await;
            let listener = Arc::new(listener);
            let (dialled, accepted) =
                tokio::join!(dialler.dialled(here, Purpose::Send, None), listener.accepted(there, stranger));
            assert_eq!((denied(&dialled), denied(&accepted)), (hears, logs));
            if let (Ok((listened, _)), Ok((came, _, purpose))) = (dialled, accepted) {
                assert_eq!((listened, came, purpose), (listener.me, dialler.me, Purpose::Send));
            }
        };
        let of = |admission| gate(admission, VERSION);
        check(of(key(1)), of(key(1)), None, None).await;
        check(of(Admission::Open), of(Admission::Open), None, None).await;
        check(of(key(1)), of(key(2)), Some(Denied::WrongKey), Some(Denied::WrongKey)).await;
        check(of(key(1)), of(Admission::Open), Some(Denied::Open), Some(Denied::KeyWanted)).await;
        check(of(Admission::Open), of(key(1)), Some(Denied::KeyWanted), Some(Denied::Open)).await;
        let other = |theirs, ours| Some(Denied::OtherVersion { theirs, ours });
        check(gate(key(1), 7), gate(key(1), 8), other(8, 7), other(7, 8)).await;
        let of_den = || Gate::new(&Keypair::generate_ed25519(), "den", key(1)).unwrap();
        check(of_den(), of(key(1)), Some(Denied::OtherMesh), Some(Denied::OtherMesh)).await;
        // Without the key, nobody hears of versions.
        check(gate(key(1), 7), gate(key(2), 8), Some(Denied::WrongKey), Some(Denied::WrongKey)).await;
    }

    #[tokio::test]
    async fn whoever_has_no_proof_hears_nothing() {
        let check = async |sent: &[u8]| {
            let (listener, (here, there, stranger)) = (Arc::new(gate(key(1), VERSION)), sockets().await);
            let scan = async {
                let tls = gate(key(2), VERSION).client;
                let mut stream =
                    tls.connect(ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()), here).await.unwrap();
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"libp2p"[..]));
                stream.write_all(sent).await.unwrap();
                stream.shutdown().await.unwrap();
                let mut heard = Vec::new();
                let _broken = stream.read_to_end(&mut heard).await;
                heard
            };
            let (heard, accepted) = tokio::join!(scan, listener.accepted(there, stranger));
            assert!(heard.is_empty(), "{} bytes sent, heard {heard:?}", sent.len());
            assert!(denied(&accepted).is_some());
        };
        check(b"").await;
        check(&[0; PROOF_BYTES - 1]).await;
        check(&[0; PROOF_BYTES]).await;
        check(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        // What the version before this one began with.
        check(&[&b"mtf1\x01\x00\x01\x00"[..], &[7; 64]].concat()).await;
    }

    #[tokio::test]
    async fn a_proof_is_worth_nothing_on_another_connection() {
        let (dialler, listener) = (gate(key(1), VERSION), gate(key(1), VERSION));
        let proof = async || {
            let (here, there, _place) = sockets().await;
            let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
            let (here, there) = tokio::join!(dialler.client.connect(name, here), listener.server.accept(there));
            let (here, there) = (TlsStream::from(here.unwrap()), TlsStream::from(there.unwrap()));
            let grounds = [&here, &there].map(|stream| Ground::of(stream, dialler.me, listener.me).unwrap());
            let [mine, theirs] = grounds.map(|ground| ground.proof(&dialler.key(), DIALLER));
            assert_eq!(mine, theirs);
            mine
        };
        assert_ne!(proof().await, proof().await);
        let ground =
            |dialler: &Gate, listener: &Gate| Ground { dialler: dialler.me, listener: listener.me, exported: [3; 32] };
        let all = [
            ground(&dialler, &listener).proof(&[1; 32], DIALLER),
            ground(&dialler, &listener).proof(&[1; 32], LISTENER),
            ground(&dialler, &listener).proof(&[2; 32], DIALLER),
            ground(&listener, &dialler).proof(&[1; 32], DIALLER),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[tokio::test]
    async fn one_that_has_to_make_room_goes_and_may_try_again() {
        let (mut here, there, _place) = sockets().await;
        let strangers = Strangers::new();
        let from = there.peer_addr().unwrap().ip();
        let first = strangers.admit(from).unwrap();
        let listener = Arc::new(gate(key(1), VERSION));
        let crowd = async {
            // As many as it takes until the first has to go; no address has a thousand places.
            let others: Vec<_> = std::iter::from_fn(|| strangers.admit(from)).take(1000).collect();
            let mut nothing = Vec::new();
            here.read_to_end(&mut nothing).await.unwrap();
            drop(others);
            nothing
        };
        let (accepted, heard) = tokio::join!(listener.accepted(there, first), crowd);
        assert_eq!(denied(&accepted), Some(Denied::Crowded));
        assert!(!Denied::Crowded.is_final() && heard.is_empty());
    }
}
