//! TLS between two PeerIds, as libp2p's specification requires it, on rustls.
//!
//! It identifies the peer and nothing else; [`admission`](crate::mesh::admission) decides whether it is admitted. No setting
//! makes this module write a session's secrets to a file.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};

use libp2p::PeerId;
use libp2p::identity::Keypair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::{BINDING_LABEL, ByteStream, Secured};
use crate::mesh::denied::Denied;
use crate::mesh::error::MeshError;

/// The protocol name that every libp2p node offers: an unauthenticated peer does not learn that this one is of meshtf.
const ALPN: &[u8] = b"libp2p";

/// Both ends of TLS, with one certificate.
pub struct Tls {
    provider: Arc<CryptoProvider>,
    certified: Arc<SingleCertAndKey>,
}

impl Tls {
    /// # Errors
    /// [`MeshError::Certificate`] if no certificate can be made for the identity.
    pub fn new(identity: &Keypair) -> Result<Self, MeshError> {
        let made = libp2p_tls::certificate::generate(identity);
        let (certificate, key) = made.map_err(|error| MeshError::Certificate(error.to_string()))?;
        Tls::with(certificate, &key)
    }

    fn with(certificate: CertificateDer<'static>, key: &PrivateKeyDer<'_>) -> Result<Self, MeshError> {
        let mut provider = aws_lc_rs::default_provider();
        // libp2p-tls prefers ChaCha20; with AES in the processor GCM takes three quarters of its time.
        provider.cipher_suites = vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        // Taken as it is: rustls's own check of a certificate rejects libp2p's extension.
        let signer = aws_lc_rs::sign::any_ecdsa_type(key).map_err(|error| MeshError::Certificate(error.to_string()))?;
        let certified = Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate], signer)));
        Ok(Tls { provider: Arc::new(provider), certified })
    }

    /// Secures a socket that this side dialled.
    ///
    /// # Errors
    /// If the handshake fails, or the certificate at the other end is not one of libp2p's.
    pub async fn connect<S: Socket>(&self, socket: S) -> io::Result<Met<S>> {
        let peer = Arc::new(PeerCertificate::default());
        // No name is sent; the certificate is judged by its PeerId alone.
        let name = ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into());
        let stream = self.connector(Arc::clone(&peer))?.connect(name, socket).await?;
        met(&peer, stream.into())
    }

    /// Secures a socket that was accepted.
    ///
    /// # Errors
    /// As [`Tls::connect`].
    pub async fn accept<S: Socket>(&self, socket: S) -> io::Result<Met<S>> {
        let peer = Arc::new(PeerCertificate::default());
        let stream = self.acceptor(Arc::clone(&peer))?.accept(socket).await?;
        met(&peer, stream.into())
    }

    fn connector(&self, peer: Arc<PeerCertificate>) -> io::Result<TlsConnector> {
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(peer)
            .with_client_cert_resolver(self.certified.clone());
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(client).into())
    }

    fn acceptor(&self, peer: Arc<PeerCertificate>) -> io::Result<TlsAcceptor> {
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(peer)
            .with_cert_resolver(self.certified.clone());
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        Ok(Arc::new(server).into())
    }
}

fn met<S>(certificate: &PeerCertificate, stream: TlsStream<S>) -> io::Result<Met<S>> {
    let peer = *certificate.peer.get().ok_or(Denied::UnauthenticatedPeer)?;
    let export = |bytes| match &stream {
        TlsStream::Client(stream) => stream.get_ref().1.export_keying_material(bytes, BINDING_LABEL, None),
        TlsStream::Server(stream) => stream.get_ref().1.export_keying_material(bytes, BINDING_LABEL, None),
    };
    let binding = export([0; 32]).map_err(io::Error::other)?;
    Ok(Met { peer, binding, stream })
}

/// The socket under TLS.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Socket for S {}

/// Two ends that have proven their PeerIds.
pub struct Met<S> {
    peer: PeerId,
    binding: [u8; 32],
    pub stream: TlsStream<S>,
}

impl<S: Socket> Met<S> {
    /// They continue in TLS.
    pub fn encrypted(self) -> Secured {
        Secured { peer: self.peer, binding: self.binding, stream: Box::new(self.stream) }
    }

    /// They continue without TLS. Neither end may have read beyond the bytes that the other wrote in it.
    #[cfg(target_os = "linux")]
    pub fn bare(self) -> Secured
    where
        S: ByteStream,
    {
        let socket = match self.stream {
            TlsStream::Client(stream) => stream.into_inner().0,
            TlsStream::Server(stream) => stream.into_inner().0,
        };
        Secured { peer: self.peer, binding: self.binding, stream: Box::new(socket) }
    }
}

impl<S: Socket> ByteStream for TlsStream<S> {
    /// Chunks of this many bytes are encrypted before they are written to the socket.
    fn expect_writes_of(&mut self, bytes: usize) {
        match self {
            TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
            TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(bytes)),
        }
    }

    fn expect_bulk(&mut self) {}
}

/// The certificate of the other end of one handshake. Any certificate that proves a PeerId is accepted: whether that peer is
/// admitted is decided elsewhere.
///
/// TLS 1.3 asks for the certificate first and, always, for the signature that proves it then. Both are judged at the second
/// question, so that a certificate is parsed, and its own signatures are checked, once.
#[derive(Debug, Default)]
struct PeerCertificate {
    peer: OnceLock<PeerId>,
}

impl PeerCertificate {
    fn check_alone(others: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        if others.is_empty() {
            return Ok(());
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let certificate = libp2p_tls::certificate::parse(certificate)?;
        certificate.verify_signature(signed.scheme, message, signed.signature())?;
        let _once_a_handshake = self.peer.set(certificate.peer_id());
        Ok(HandshakeSignatureValid::assertion())
    }

    /// libp2p's certificates are ECDSA over P-256; the other schemes are those that its specification allows.
    fn schemes() -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ECDSA_NISTP384_SHA384, SignatureScheme::ED25519]
    }

    fn old_tls() -> rustls::Error {
        rustls::Error::General("only TLS 1.3 is spoken here".to_owned())
    }
}

impl ServerCertVerifier for PeerCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Self::check_alone(others).map(|()| ServerCertVerified::assertion())
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
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for PeerCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Self::check_alone(others).map(|()| ClientCertVerified::assertion())
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
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    impl Tls {
        /// TLS alone, for measurements and tests.
        pub fn bare(&self) -> (TlsConnector, TlsAcceptor) {
            let any = Arc::<PeerCertificate>::default;
            (self.connector(any()).expect("TLS 1.3 is there"), self.acceptor(any()).expect("TLS 1.3 is there"))
        }
    }

    /// The PeerId that each side finds at the other end.
    async fn meet(dialler: &Tls, listener: &Tls) -> [io::Result<PeerId>; 2] {
        let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dial = async { dialler.connect(TcpStream::connect(port.local_addr().unwrap()).await.unwrap()).await };
        let accept = async { listener.accept(port.accept().await.unwrap().0).await };
        let (dialled, accepted) = tokio::join!(dial, accept);
        if let (Ok(dialled), Ok(accepted)) = (&dialled, &accepted) {
            assert_eq!(dialled.binding, accepted.binding);
        }
        [dialled, accepted].map(|end| end.map(|secured| secured.peer))
    }

    #[tokio::test]
    async fn a_certificate_proves_its_peer_only_unchanged_and_with_its_key() {
        let identities = [(); 2].map(|()| Keypair::generate_ed25519());
        let peers = identities.each_ref().map(|identity| identity.public().to_peer_id());
        let [a, b] = identities.each_ref().map(|identity| Tls::new(identity).unwrap());
        let found = meet(&a, &b).await.map(Result::unwrap);
        assert_eq!(found, [peers[1], peers[0]]);

        let made = || libp2p_tls::certificate::generate(&identities[0]).unwrap();
        let ((certificate, key), (other_certificate, _)) = (made(), made());
        let mut changed = certificate.to_vec();
        // The last byte is of the signature.
        *changed.last_mut().unwrap() ^= 1;
        for wrong in [other_certificate, changed.into()] {
            let impostor = Tls::with(wrong, &key).unwrap();
            assert!(meet(&impostor, &b).await[1].is_err());
            assert!(meet(&b, &impostor).await[0].is_err());
        }
    }
}
