//! The front door for TensorFlow's own clients: `tf.Session("grpc://host:port")` works on the mesh.
//!
//! Serves TensorFlow's `MasterService` over gRPC as one more client of the node's sessions: it plans nothing, places
//! nothing and computes nothing. Whoever passes it can do what a member of the mesh can; so it stands open to this
//! machine alone, and to others only with a token.

mod budget;
mod connection;
mod feed;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod grpc;
mod message;
mod pieces;
mod readers;
mod recent;
mod rope;
mod service;
mod session;
mod sessions;
mod tensor;
mod trace;
mod unproven;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::connection::Connections;
use self::grpc::Calls;
use self::service::MasterService;
use self::wire::Incoming;
use crate::node::Node;

/// Largest message that is taken where nothing else is said: protobuf's own limit.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = i32::MAX as usize;

/// Bytes that a client may have on their way in one call, and on one connection.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Largest piece of a message.
const FRAME: u32 = 1 << 20;
/// Most calls that one client has under way: each thread of a program that waits for a queue is one.
const MAX_CALLS: u32 = 4096;
/// Most calls of one connection that were taken back before they were looked at; with more the connection ends.
const MAX_TAKEN_BACK_UNSEEN: usize = 20;
/// Most bytes of a call's headers.
const MAX_HEADERS: u32 = 8 << 10;
/// How often a client is asked whether it is still there, and how long it may take to say so: what it runs ends with it.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
const ALIVE_WITHIN: Duration = Duration::from_secs(20);
/// How often sessions and connections are looked for whose clients went away.
const SWEEPS: Duration = Duration::from_secs(10);

/// Where the door is and who may pass.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Port 0 takes a free one.
    pub address: SocketAddr,
    /// What a client must show. Needed for an address that others than this machine reach.
    pub token: Option<String>,
    /// Largest message that is taken.
    pub max_message_bytes: usize,
}

/// Why a door does not open.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error(
        "--grpc {0} can be reached from other machines, and who reaches it can run graphs on the mesh: give it a token with \
         --grpc-token-file, or let it listen on 127.0.0.1 and reach it through a node of the mesh on the client's own machine, \
         or an SSH tunnel"
    )]
    Unguarded(SocketAddr),
    #[error("--grpc {address} cannot be listened on: {source}")]
    Address { address: SocketAddr, source: std::io::Error },
}

/// An open door. Dropping it closes it, and ends the sessions that came in through it.
#[derive(Debug)]
pub struct Door {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Door {
    /// Opens a door to a node.
    ///
    /// # Errors
    /// Where the address is taken, or open to other machines without a token.
    pub async fn open(node: Arc<Node>, config: DoorConfig) -> Result<Door, DoorError> {
        let DoorConfig { address, token, max_message_bytes } = config;
        if !address.ip().is_loopback() && token.is_none() {
            return Err(DoorError::Unguarded(address));
        }
        let cannot = |source| DoorError::Address { address, source };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let connections = Connections::new(token.is_none());
        let service = Arc::new(MasterService::new(node, max_message_bytes, token.as_deref()));
        let serving = tokio::spawn(serve(service, listener, connections));
        Ok(Door { address, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(service: Arc<MasterService>, listener: TcpListener, connections: Connections) {
    let server = tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(MAX_CALLS)
        .http2_max_pending_accept_reset_streams(Some(MAX_TAKEN_BACK_UNSEEN))
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_keepalive_interval(Some(ALIVE_EVERY))
        .http2_keepalive_timeout(Some(ALIVE_WITHIN))
        .serve_with_incoming(Calls { service: Arc::clone(&service) }, Incoming::new(listener, connections.clone()));
    let sweep = async {
        let mut turns = tokio::time::interval(SWEEPS);
        loop {
            turns.tick().await;
            service.sweep();
            connections.sweep();
        }
    };
    tokio::select! {
        ended = server => {
            if let Err(error) = ended {
                tracing::error!("the door for TensorFlow's clients is closed: {error}");
            }
        }
        () = sweep => {}
    }
}

#[cfg(test)]
mod tests;
