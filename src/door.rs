//! Servers for clients of other systems. Each speaks another system's protocol to its clients, and is itself a client
//! of this node's sessions.

pub mod burn;
pub mod tensorflow;

use std::net::SocketAddr;

use tokio::net::TcpListener;

/// Why a door could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// The text of each says what its fields are.
#[allow(missing_docs)]
pub enum DoorError {
    /// Its address can be reached from other machines, and clients need no token.
    #[error(
        "{flag} {address} can be reached from other machines, and whoever reaches it can run graphs on the mesh: set a token \
         with {flag}-token-file, or listen on 127.0.0.1 and reach it through a mesh node on the client's own machine or \
         an SSH tunnel"
    )]
    Unguarded { flag: &'static str, address: SocketAddr },
    /// It cannot listen at its address.
    #[error("cannot listen on {flag} {address}: {source}")]
    Address { flag: &'static str, address: SocketAddr, source: std::io::Error },
}

/// Listens for the clients of a door, which is open to this machine alone unless it has a token; the address that it then has.
/// `flag` names the address on the command line.
async fn listen(
    flag: &'static str,
    address: SocketAddr,
    has_token: bool,
) -> Result<(TcpListener, SocketAddr), DoorError> {
    if !address.ip().is_loopback() && !has_token {
        return Err(DoorError::Unguarded { flag, address });
    }
    let cannot = |source| DoorError::Address { flag, address, source };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok((listener, address))
}
