//! Who gets in: TLS between two PeerIds, then the proof of the mesh key, before a single byte of anything else.
//!
//! The dialer proves first, so a port scan learns nothing. A proof is keyed BLAKE3 over the role, both PeerIds, a nonce of
//! each side and the TLS session's own exported secret, so it is worth nothing on any other connection. The key itself is
//! never sent, and nothing here can be made to write a session's secrets to a file.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use libp2p::identity::Keypair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::Admission;
use super::error::MeshError;
use crate::protocol::VERSION;

/// How long TLS and the proof may take together.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
const ALPN: &[u8] = b"meshtf";
const MARK: [u8; 4] = *b"mtf1";
const EXPORTER_LABEL: &[u8] = b"meshtf mesh proof";
const INTRODUCTION_BYTES: usize = 4 + 2 + 1 + 1 + 32 + 32;

/// An admitted socket.
pub type Secured = TlsStream<TcpStream>;

/// What a socket is for; the dialer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// The connection with the control stream.
    Control = 0,
    /// The dialer sends bulk.
    Send = 1,
    /// The dialer takes bulk.
    Receive = 2,
}

/// Why a socket was not admitted, on either side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("it is no node of a mesh, or speaks another version")]
    Stranger,
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
    #[error("another peer is there than the one that was dialled")]
    OtherPeer,
}

impl Denied {
    fn from_byte(byte: u8) -> Denied {
        match byte {
            1 => Denied::OtherMesh,
            2 => Denied::WrongKey,
            3 => Denied::KeyWanted,
            4 => Denied::Open,
            _ => Denied::Stranger,
        }
    }

    /// What the side that denies tells the other; the other's view of it.
    fn to_byte(self) -> u8 {
        match self {
            Denied::OtherMesh => 1,
            Denied::WrongKey => 2,
            Denied::Open => 3,
            Denied::KeyWanted => 4,
            _ => 255,
        }
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
    mesh_id: [u8; 32],
    client: TlsConnector,
    server: TlsAcceptor,
}

impl Gate {
    /// # Errors
    /// [`MeshError::Certificate`] where no certificate can be made for the identity.
    pub fn new(identity: &Keypair, mesh: &str, admission: Admission) -> Result<Self, MeshError> {
        let fail = |error: &dyn std::fmt::Display| MeshError::Certificate(error.to_string());
        let (certificate, key) = libp2p_tls::certificate::generate(identity).map_err(|e| fail(&e))?;
        let mut provider = aws_lc_rs::default_provider();
        // libp2p-tls prefers ChaCha20; with AES in the processor GCM takes three quarters of its time.
        provider.cipher_suites = vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        let provider = Arc::new(provider);
        // Taken as it is: rustls's own check of a certificate stumbles over libp2p's extension.
        let signer = aws_lc_rs::sign::any_ecdsa_type(&key).map_err(|e| fail(&e))?;
        let certified = Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate], signer)));
        let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| fail(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PeerCertificates))
            .with_client_cert_resolver(certified.clone());
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| fail(&e))?
            .with_client_cert_verifier(Arc::new(PeerCertificates))
            .with_cert_resolver(certified);
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        Ok(Gate {
            me: identity.public().to_peer_id(),
            mesh_id: blake3::derive_key("meshtf 2026 mesh name", mesh.as_bytes()),
            admission,
            client: Arc::new(client).into(),
            server: Arc::new(server).into(),
        })
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
            self.prove_first(&mut stream, peer, purpose).await?;
            Ok((peer, stream))
        };
        tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await.unwrap_or_else(|_| Err(Denied::Slow.into()))
    }

    /// Secures a socket that was accepted, has the other side prove the key, and proves it in turn.
    ///
    /// # Errors
    /// [`Denied`] inside, where the two are not of one mesh.
    pub async fn accepted(&self, socket: TcpStream) -> io::Result<(PeerId, Secured, Purpose)> {
        let handshake = async {
            let mut stream = TlsStream::from(self.server.accept(socket).await?);
            let peer = peer_of(&stream)?;
            let purpose = self.prove_second(&mut stream, peer).await?;
            Ok((peer, stream, purpose))
        };
        tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await.unwrap_or_else(|_| Err(Denied::Slow.into()))
    }

    async fn prove_first(&self, stream: &mut Secured, peer: PeerId, purpose: Purpose) -> io::Result<()> {
        let mine = self.introduction(purpose)?;
        stream.write_all(&mine).await?;
        stream.flush().await?;
        let mut theirs = [0; INTRODUCTION_BYTES];
        stream.read_exact(&mut theirs).await.map_err(closed_early)?;
        if let Err(denied) = self.judge(&theirs) {
            return Err(denied.into());
        }
        let [first, second] = self.proofs(stream, self.me, peer, &mine, &theirs)?;
        stream.write_all(&first).await?;
        stream.flush().await?;
        let mut answer = [0; 33];
        stream.read_exact(&mut answer[..1]).await.map_err(closed_early)?;
        if answer[0] != 0 {
            return Err(Denied::from_byte(answer[0]).into());
        }
        stream.read_exact(&mut answer[1..]).await.map_err(closed_early)?;
        if !same(&answer[1..], &second) {
            return Err(Denied::WrongKey.into());
        }
        Ok(())
    }

    async fn prove_second(&self, stream: &mut Secured, peer: PeerId) -> io::Result<Purpose> {
        let mut theirs = [0; INTRODUCTION_BYTES];
        stream.read_exact(&mut theirs).await?;
        let mine = self.introduction(Purpose::Control)?;
        stream.write_all(&mine).await?;
        stream.flush().await?;
        let judged = self.judge(&theirs);
        let [first, second] = self.proofs(stream, peer, self.me, &theirs, &mine)?;
        let mut proof = [0; 32];
        // A dialer that judged the introduction itself has hung up.
        let read = stream.read_exact(&mut proof).await;
        let judged = judged.and_then(|purpose| {
            read.map_err(|_| Denied::Stranger)?;
            if same(&proof, &first) { Ok(purpose) } else { Err(Denied::WrongKey) }
        });
        match judged {
            Ok(purpose) => {
                let mut answer = [0; 33];
                answer[1..].copy_from_slice(&second);
                stream.write_all(&answer).await?;
                stream.flush().await?;
                Ok(purpose)
            }
            Err(denied) => {
                let _ = stream.write_all(&[denied.to_byte()]).await;
                let _ = stream.shutdown().await;
                Err(denied.into())
            }
        }
    }

    fn introduction(&self, purpose: Purpose) -> io::Result<[u8; INTRODUCTION_BYTES]> {
        let nonce: [u8; 32] = crate::random::bytes()?;
        let mut bytes = [0; INTRODUCTION_BYTES];
        bytes[..4].copy_from_slice(&MARK);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = matches!(self.admission, Admission::Key(_)).into();
        bytes[7] = purpose as u8;
        bytes[8..40].copy_from_slice(&self.mesh_id);
        bytes[40..].copy_from_slice(&nonce);
        Ok(bytes)
    }

    fn judge(&self, theirs: &[u8; INTRODUCTION_BYTES]) -> Result<Purpose, Denied> {
        let purpose = match theirs[7] {
            0 => Purpose::Control,
            1 => Purpose::Send,
            2 => Purpose::Receive,
            _ => return Err(Denied::Stranger),
        };
        if theirs[..4] != MARK {
            return Err(Denied::Stranger);
        }
        if theirs[8..40] != self.mesh_id {
            return Err(Denied::OtherMesh);
        }
        match (&self.admission, theirs[6]) {
            (Admission::Key(_), 1) | (Admission::Open, 0) => Ok(purpose),
            (Admission::Key(_), _) => Err(Denied::Open),
            (Admission::Open, _) => Err(Denied::KeyWanted),
        }
    }

    /// The dialer's proof and the listener's.
    fn proofs(
        &self,
        stream: &Secured,
        dialer: PeerId,
        listener: PeerId,
        dialer_said: &[u8; INTRODUCTION_BYTES],
        listener_said: &[u8; INTRODUCTION_BYTES],
    ) -> io::Result<[[u8; 32]; 2]> {
        let exported = match stream {
            TlsStream::Client(stream) => stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None),
            TlsStream::Server(stream) => stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None),
        }
        .map_err(io::Error::other)?;
        let key = match &self.admission {
            Admission::Key(key) => *key.bytes(),
            // An open mesh proves with a key that everybody knows: one handshake for both.
            Admission::Open => blake3::derive_key("meshtf 2026 open mesh", &[]),
        };
        Ok([b"dialer...", b"listener."]
            .map(|role| proof(&key, role, dialer, listener, dialer_said, listener_said, &exported)))
    }
}

fn proof(
    key: &[u8; 32],
    role: &[u8],
    dialer: PeerId,
    listener: PeerId,
    dialer_said: &[u8],
    listener_said: &[u8],
    exported: &[u8],
) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in [role, &dialer.to_bytes(), &listener.to_bytes(), dialer_said, listener_said, exported] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    *hasher.finalize().as_bytes()
}

/// Compares in a time that does not tell where two proofs differ.
fn same(a: &[u8], b: &[u8; 32]) -> bool {
    <[u8; 32]>::try_from(a).is_ok_and(|a| blake3::Hash::from_bytes(a) == blake3::Hash::from_bytes(*b))
}

/// How many bytes TLS encrypts before it writes them to the socket.
pub fn write_in_steps_of(stream: &mut Secured, bytes: usize) {
    match stream {
        TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
        TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
    }
}

fn closed_early(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { Denied::Stranger.into() } else { error }
}

fn peer_of(stream: &Secured) -> io::Result<PeerId> {
    let [certificate] = stream.get_ref().1.peer_certificates().unwrap_or_default() else {
        return Err(Denied::Stranger.into());
    };
    Ok(libp2p_tls::certificate::parse(certificate).map_err(io::Error::other)?.peer_id())
}

/// Takes any certificate that proves a PeerId: who it is, is for the mesh key to say.
#[derive(Debug)]
struct PeerCertificates;

impl PeerCertificates {
    fn check(certificate: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        if !others.is_empty() {
            return Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        libp2p_tls::certificate::parse(certificate)?;
        Ok(())
    }

    fn check_signature(
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        libp2p_tls::certificate::parse(certificate)?.verify_signature(signed.scheme, message, signed.signature())?;
        Ok(HandshakeSignatureValid::assertion())
    }

    /// libp2p's certificates are ECDSA over P-256; the others are what its specification allows.
    fn schemes() -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ECDSA_NISTP384_SHA384, SignatureScheme::ED25519]
    }

    fn old_tls() -> rustls::Error {
        rustls::Error::General("only TLS 1.3 is spoken here".to_owned())
    }
}

impl ServerCertVerifier for PeerCertificates {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Self::check(certificate, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(Self::old_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for PeerCertificates {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Self::check(certificate, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(Self::old_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}
