//! TLS between two PeerIds: what libp2p's specification asks for, on rustls.
//!
//! It says who is there and nothing else. Whether that one is let in is for [`admission`](super::admission) to find out.
//! Nothing here can be made to write a session's secrets to a file.

use std::io;
use std::sync::Arc;

use libp2p::PeerId;
use libp2p::identity::Keypair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::admission::{Denied, Secured};
use super::error::MeshError;

/// What every libp2p node offers: a stranger is not told that this one is of meshtf.
const ALPN: &[u8] = b"libp2p";

/// Both ends of TLS, with one certificate.
///
/// # Errors
/// [`MeshError::Certificate`] where no certificate can be made for the identity.
pub fn ends(identity: &Keypair) -> Result<(TlsConnector, TlsAcceptor), MeshError> {
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
    Ok((Arc::new(client).into(), Arc::new(server).into()))
}

/// Who is at the other end.
///
/// # Errors
/// Where its certificate is not one of libp2p's.
pub fn peer_of(stream: &Secured) -> io::Result<PeerId> {
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
