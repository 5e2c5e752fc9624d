//! Servers for clients of other systems. Each speaks another system's protocol to its clients, and is itself a client
//! of this node's sessions.

mod browser;
pub mod burn;
mod listener;
pub mod serving;
pub mod tensorflow;
mod token;
pub mod web;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::failure::Failure;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

use self::listener::Listener;
use crate::unauthenticated::{UnauthenticatedPeer, UnauthenticatedPeers};

/// How long sent bytes may stay unacknowledged before the connection is closed.
const MAX_UNANSWERED: Duration = Duration::from_secs(30);
/// How long a connection may be silent before the system probes whether the other end is alive.
const ALIVE_AFTER: Duration = Duration::from_secs(20);
/// How long accepting pauses after an error, such as a lack of descriptors.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The address of a door, and its token.
///
/// ```
/// use meshtf::doors::DoorConfig;
///
/// // For clients of this machine, on a free port.
/// let own = DoorConfig { address: "127.0.0.1:0".parse()?, token: None };
/// // For all that know the token.
/// let token = Some("correct horse battery staple".to_owned());
/// let shared = DoorConfig { address: "0.0.0.0:8080".parse()?, token };
/// assert!(own.address.ip().is_loopback() && !shared.address.ip().is_loopback());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Port 0 picks a free one.
    pub address: SocketAddr,
    /// The token that clients must present; required if the address can be reached from other machines.
    pub token: Option<String>,
}

/// An open door. Dropping it closes it and ends the calls of its clients.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use meshtf::doors::{DoorConfig, open_web};
/// use meshtf::{Node, NodeConfig};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let node = Arc::new(Node::start(NodeConfig::default()).await?);
/// let door = open_web(node, DoorConfig { address: "127.0.0.1:0".parse()?, token: None }).await?;
/// println!("the mesh is shown at http://{}", door.address());
/// drop(door);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Door {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Door {
    /// A door that is open for as long as `serving` runs.
    fn new(address: SocketAddr, serving: impl Future<Output = ()> + Send + 'static) -> Door {
        Door { address, serving: tokio::spawn(serving) }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The reason why a door could not be opened.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use meshtf::doors::{DoorConfig, DoorError, open_burn};
/// use meshtf::{Node, NodeConfig};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let node = Arc::new(Node::start(NodeConfig::default()).await?);
/// match open_burn(node, DoorConfig { address: "0.0.0.0:7777".parse()?, token: None }).await {
///     Ok(door) => println!("burn's programs connect to {}", door.address()),
///     Err(DoorError::Unguarded { address, .. }) => eprintln!("{address} needs a token"),
///     Err(error) => eprintln!("{error}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// The text of each explains its fields.
#[allow(missing_docs)]
pub enum DoorError {
    /// Its address can be reached from other machines, and clients need no token.
    #[error(
        "{flag} {address} can be reached from other machines, and anyone who reaches it can {may}: set a token \
         with {flag}-token-file, or listen on 127.0.0.1 and reach it through a mesh node on the client's own machine or \
         an SSH tunnel"
    )]
    Unguarded { flag: &'static str, address: SocketAddr, may: &'static str },
    /// It cannot listen at its address.
    #[error("cannot listen on {flag} {address}: {source}")]
    Address { flag: &'static str, address: SocketAddr, source: std::io::Error },
    /// The session of a model could not be opened.
    #[error("{0}")]
    Session(Failure),
}

/// Listens for the clients of a door, at both loopback addresses if at one, and returns its actual address. The door is open to
/// this machine alone unless it has a token. `flag` names the address on the command line; `may` states the rights of clients.
async fn listen(
    flag: &'static str,
    may: &'static str,
    config: &DoorConfig,
) -> Result<(Listener, SocketAddr), DoorError> {
    let address = config.address;
    if !address.ip().is_loopback() && config.token.is_none() {
        return Err(DoorError::Unguarded { flag, address, may });
    }
    let cannot = |source| DoorError::Address { flag, address, source };
    let listener = Listener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok((listener, address))
}

/// Accepts clients until it is dropped, which ends all connections. `whom` names the clients in the log entry of a failed
/// accept; `serve` receives a connection and its slot among the unauthenticated clients.
async fn accept<F: Future<Output = ()> + Send + 'static>(
    mut listener: Listener,
    unauthenticated_peers: &Arc<UnauthenticatedPeers>,
    whom: &str,
    serve: impl Fn(TcpStream, IpAddr, UnauthenticatedPeer) -> F,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    if let Some(unauthenticated) = unauthenticated_peers.admit(from.ip())
                        && prepare(&stream).is_ok()
                    {
                        connections.spawn(serve(stream, from.ip(), unauthenticated));
                    }
                }
                Err(error) => {
                    tracing::debug!("cannot accept {whom}: {error}");
                    unauthenticated_peers.could_not_accept(&error);
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Sends answers without delay, and detects an end that is gone.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(ALIVE_AFTER).with_interval(ALIVE_AFTER / 4))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(MAX_UNANSWERED))?;
    Ok(())
}
