//! The server for TensorFlow's own clients: `tf.Session("grpc://host:port")` works on the mesh.
//!
//! Serves TensorFlow's `MasterService` over gRPC as one more client of the node's sessions: it plans, places and
//! computes nothing. Its clients can do what a member of the mesh can, so it is open to this machine only, and to
//! others only with a token.

mod budget;
mod connection;
mod feed;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod grpc;
mod lineage;
mod message;
mod names;
mod pieces;
mod readers;
mod recent;
mod rope;
mod service;
mod session;
mod sessions;
mod tasks;
mod tensor;
mod trace;
mod unproven;
mod wire;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::device::Task;

use self::connection::Connections;
use self::grpc::Calls;
use self::service::MasterService;
use self::wire::Incoming;
use super::listener::Listener;
use super::{Door, DoorConfig, DoorError, listen};
use crate::node::Node;

/// The flag of the command line that opens it.
const FLAG: &str = "--grpc";

/// The default limit of a message's size: protobuf's own limit.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = i32::MAX as usize;

/// Bytes that a client may have in flight in one call, and on one connection.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Largest HTTP/2 frame.
const FRAME: u32 = 1 << 20;
/// Maximum number of calls that one client may have under way: each thread of a program that waits for a queue is one.
const MAX_CALLS: u32 = 4096;
/// Maximum number of calls of one connection that were reset before they were processed; with more the connection ends.
const MAX_TAKEN_BACK_UNSEEN: usize = 20;
/// Maximum size of a call's headers in bytes.
const MAX_HEADERS: u32 = 8 << 10;
/// How often a client is pinged, and how long it may take to answer: whatever it runs ends with it.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
const ALIVE_WITHIN: Duration = Duration::from_secs(20);
/// How often sessions and connections of clients that went away are cleaned up.
const SWEEPS: Duration = Duration::from_secs(10);

/// Opens a door for TensorFlow's clients to a node. It takes messages of up to `max_message_bytes`. Sessions that are opened
/// through it end with it.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use meshtf::doors::{DoorConfig, open_tensorflow};
/// use meshtf::{Node, NodeConfig, Task};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let config = NodeConfig { task: Some(Task::new("worker", 0)), ..NodeConfig::default() };
/// let node = Arc::new(Node::start(config).await?);
/// let config = DoorConfig { address: "127.0.0.1:2222".parse()?, token: None };
/// // A program opens `tf.compat.v1.Session("grpc://127.0.0.1:2222")`. Its messages have at most 64 MiB.
/// let door = open_tensorflow(node, config, 64 << 20).await?;
/// std::future::pending::<()>().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// If the address is taken, or can be reached from other machines and there is no token.
///
/// # Cancellation
/// Nothing stays open if the future is dropped.
pub async fn open(node: Arc<Node>, config: DoorConfig, max_message_bytes: usize) -> Result<Door, DoorError> {
    open_in(node, config, max_message_bytes, OfCluster::default()).await
}

/// The ClusterSpec of a node, as far as its door needs it.
#[derive(Debug, Default)]
pub struct OfCluster {
    /// Its tasks.
    pub tasks: BTreeSet<Task>,
    /// The address that it gives to the door.
    pub address: Option<String>,
}

/// As [`open`], for a node of a ClusterSpec.
///
/// # Errors
/// As [`open`].
///
/// # Cancellation
/// As [`open`].
pub async fn open_in(
    node: Arc<Node>,
    config: DoorConfig,
    max_message_bytes: usize,
    cluster: OfCluster,
) -> Result<Door, DoorError> {
    let (listener, address) = listen(FLAG, "run graphs on the mesh", &config).await?;
    let connections = Connections::new(config.token.is_none());
    node.mesh().ports().add("unauthenticated peers at TensorFlow's door", connections.unauthenticated_peers());
    let OfCluster { tasks, address: stated } = cluster;
    let known = Stated::new(&node, stated.into_iter().chain(listener.addresses().iter().map(SocketAddr::to_string)));
    let service = Arc::new(MasterService::new(node, max_message_bytes, config.token.as_deref(), tasks));
    Ok(Door::new(address, async move {
        let _known = known;
        serve(service, listener, connections).await;
    }))
}

/// The addresses of a door, which the other nodes know while this exists.
struct Stated {
    node: Arc<Node>,
    addresses: Vec<String>,
}

impl Stated {
    fn new(node: &Arc<Node>, addresses: impl Iterator<Item = String>) -> Stated {
        let addresses: Vec<String> = addresses.collect();
        node.mesh().change_doors(|doors| doors.extend(addresses.iter().cloned()));
        Stated { node: Arc::clone(node), addresses }
    }
}

impl Drop for Stated {
    fn drop(&mut self) {
        self.node.mesh().change_doors(|doors| doors.retain(|door| !self.addresses.contains(door)));
    }
}

async fn serve(service: Arc<MasterService>, listener: Listener, connections: Connections) {
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
                tracing::error!("the server for TensorFlow clients failed: {error}");
            }
        }
        () = sweep => {}
    }
}

#[cfg(test)]
mod tests;
