//! Servers for clients of other systems. Each speaks another system's protocol to its clients, and is itself a client
//! of this node's sessions.

pub mod burn;
pub mod tensorflow;
pub mod web;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// How long sent bytes may stay unacknowledged before the connection is closed.
const MAX_UNANSWERED: Duration = Duration::from_secs(30);
/// How long a connection may be silent before the system asks whether the other end is there.
const ALIVE_AFTER: Duration = Duration::from_secs(20);

/// Why a door could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// The text of each says what its fields are.
#[allow(missing_docs)]
pub enum DoorError {
    /// Its address can be reached from other machines, and clients need no token.
    #[error(
        "{flag} {address} can be reached from other machines, and whoever reaches it can {may}: set a token \
         with {flag}-token-file, or listen on 127.0.0.1 and reach it through a mesh node on the client's own machine or \
         an SSH tunnel"
    )]
    Unguarded { flag: &'static str, address: SocketAddr, may: &'static str },
    /// It cannot listen at its address.
    #[error("cannot listen on {flag} {address}: {source}")]
    Address { flag: &'static str, address: SocketAddr, source: std::io::Error },
}

/// Listens for the clients of a door, which is open to this machine alone unless it has a token; the address that it then has.
/// `flag` names the address on the command line, `may` is what clients may do.
async fn listen(
    flag: &'static str,
    may: &'static str,
    address: SocketAddr,
    has_token: bool,
) -> Result<(TcpListener, SocketAddr), DoorError> {
    if !address.ip().is_loopback() && !has_token {
        return Err(DoorError::Unguarded { flag, address, may });
    }
    let cannot = |source| DoorError::Address { flag, address, source };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok((listener, address))
}

/// Answers leave at once, and an end that is gone is noticed.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(ALIVE_AFTER).with_interval(ALIVE_AFTER / 4))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(MAX_UNANSWERED))?;
    Ok(())
}
