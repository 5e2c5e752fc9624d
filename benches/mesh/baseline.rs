//! The baselines: an echo on raw TCP, and sinks behind TLS with AES-GCM and behind a Unix socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use libp2p::identity::Keypair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme};

use crate::measure::{Spread, time_each};

const ECHO: &str = "--serve-echo";
const SINK: &str = "--serve-sink";
const UNIX_SINK: &str = "--serve-unix-sink";
/// Maximum number of bytes that a sink takes at a time.
const SINK_BYTES: usize = 64 << 20;

/// Plays a role in a child process; returns whether `role` is one.
pub fn serve(role: &str) -> bool {
    match role {
        ECHO => echo(),
        SINK => sink(),
        UNIX_SINK => unix_sink(),
        _ => return false,
    }
    true
}

/// Moves bytes to another process.
pub trait Bare {
    /// The process at the other end.
    fn peer(&self) -> u32;

    /// Sends the payload, and waits until the other side has received it.
    fn move_once(&mut self);
}

/// A copy of this program in `role`, and the port or the socket where it listens. It ends with its connection.
fn spawn(role: &str) -> (Child, String) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut child =
        Command::new(program).arg(role).stdout(Stdio::piped()).spawn().expect("a copy of this program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("it says its port");
    (child, line.trim().to_owned())
}

fn accept() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    println!("{}", listener.local_addr().expect("an address"));
    let (stream, _) = listener.accept().expect("the bench connects");
    stream.set_nodelay(true).expect("a socket");
    stream
}

fn echo() {
    let mut stream = accept();
    let mut buffer = [0; 64];
    while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
}

/// Round trips of 64 bytes on raw TCP between two processes.
pub fn tcp_round_trip(rounds: usize) -> Spread {
    let (mut child, address) = spawn(ECHO);
    let mut stream = TcpStream::connect(address).expect("the echo listens");
    stream.set_nodelay(true).expect("a socket");
    let mut buffer = [7; 64];
    let spread = time_each(rounds, || {
        stream.write_all(&buffer).expect("the echo reads");
        stream.read_exact(&mut buffer).expect("the echo answers");
    });
    drop(stream);
    child.wait().expect("the echo ends");
    spread
}

fn sink() {
    let mut stream = accept();
    let mut tls = ServerConnection::new(Arc::new(server_config())).expect("a TLS server");
    take_all(&mut rustls::Stream::new(&mut tls, &mut stream));
}

fn unix_sink() {
    let path = std::env::temp_dir().join(format!("meshtf-bench-sink-{}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("a socket in the folder of temporary files");
    println!("{}", path.display());
    let (mut stream, _) = listener.accept().expect("the bench connects");
    std::fs::remove_file(&path).expect("the socket's file is there");
    take_all(&mut stream);
}

/// Reads chunks that are preceded by their length, always into the same memory, and answers each with one byte.
fn take_all(stream: &mut (impl Read + Write)) {
    let mut buffer = vec![0; SINK_BYTES];
    let mut length = [0; 8];
    while stream.read_exact(&mut length).is_ok() {
        let length = u64::from_le_bytes(length) as usize;
        if stream.read_exact(&mut buffer[..length]).is_err() || stream.write_all(&[1]).is_err() {
            return;
        }
    }
}

fn move_through(stream: &mut (impl Read + Write), payload: &[u8]) {
    stream.write_all(&(payload.len() as u64).to_le_bytes()).expect("the sink reads");
    stream.write_all(payload).expect("the sink reads");
    stream.read_exact(&mut [0]).expect("the sink answers");
}

/// TLS with AES-GCM on a plain TcpStream to another process.
pub struct BareTls {
    child: Child,
    socket: TcpStream,
    connection: ClientConnection,
    payload: Vec<u8>,
}

impl BareTls {
    /// A connection that moves `bytes` at a time.
    pub fn connect(bytes: usize) -> BareTls {
        let (child, address) = spawn(SINK);
        let socket = TcpStream::connect(address).expect("the sink listens");
        socket.set_nodelay(true).expect("a socket");
        let name = ServerName::try_from("bench").expect("a name");
        let connection = ClientConnection::new(Arc::new(client_config()), name).expect("a TLS client");
        BareTls { child, socket, connection, payload: vec![3; bytes] }
    }
}

impl Bare for BareTls {
    fn peer(&self) -> u32 {
        self.child.id()
    }

    fn move_once(&mut self) {
        move_through(&mut rustls::Stream::new(&mut self.connection, &mut self.socket), &self.payload);
    }
}

impl Drop for BareTls {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// A Unix socket to another process.
pub struct BareUnix {
    child: Child,
    socket: UnixStream,
    payload: Vec<u8>,
}

impl BareUnix {
    /// A connection that moves `bytes` at a time.
    pub fn connect(bytes: usize) -> BareUnix {
        let (child, path) = spawn(UNIX_SINK);
        let socket = UnixStream::connect(path).expect("the sink listens");
        BareUnix { child, socket, payload: vec![3; bytes] }
    }
}

impl Bare for BareUnix {
    fn peer(&self) -> u32 {
        self.child.id()
    }

    fn move_once(&mut self) {
        move_through(&mut self.socket, &self.payload);
    }
}

impl Drop for BareUnix {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn provider() -> rustls::crypto::CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = vec![rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    provider
}

fn server_config() -> ServerConfig {
    let (certificate, key) =
        libp2p_tls::certificate::generate(&Keypair::generate_ed25519()).expect("a certificate of its own");
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).expect("a key that signs");
    let certified = CertifiedKey::new(vec![certificate], key);
    ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
}

fn client_config() -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth()
}

/// A baseline on loopback authenticates no peer, which makes no difference once the connection is open.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
    }
}
