//! The server for burn programs: a program whose device is `ws://host:port` computes on the mesh.
//!
//! Speaks the protocol of burn's own remote backend. Requests of a program are queued. When a client waits for the result of a
//! part of the queue, that part becomes one graph over all devices of the program, which is planned once and run as one step of
//! the node's sessions. Device index i of the door is the i-th device of the mesh by name. Clients of the door have the rights
//! of a member of the mesh, so the door is open to this machine only, and to other machines only with a token.

mod form;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod graph;
mod http;
mod known;
mod message;
mod messagepack;
mod plans;
mod process;
mod program;
mod relative;
mod run;
mod session;
mod slots;
mod socket;
mod step;
mod websocket;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use self::message::TaskResponse;
use self::process::Process;
use self::program::SessionNo;
use self::run::Running;
use crate::Client as _;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;
use tokio::sync::mpsc;

use super::token::Token;
use super::{Door, DoorConfig, DoorError, listen};
use crate::node::Node;
use crate::unauthenticated::UnauthenticatedPeers;

/// The flag of the command line that opens it.
const FLAG: &str = "--burn";
/// Maximum number of sessions of all connected programs; a program has one for each of its devices.
const MAX_SESSIONS: usize = 1024;
/// For this long after a client has requested the devices, their indices do not change.
const NUMBERED_FOR: Duration = Duration::from_secs(10);

/// Opens a door for burn's programs to a node. Clients present the token as their credential. The connected programs end with
/// the door.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use meshtf::doors::{DoorConfig, open_burn};
/// use meshtf::{Node, NodeConfig, Task};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let config = NodeConfig { task: Some(Task::new("worker", 0)), ..NodeConfig::default() };
/// let node = Arc::new(Node::start(config).await?);
/// let door = open_burn(node, DoorConfig { address: "127.0.0.1:7777".parse()?, token: None }).await?;
/// // burn's programs connect to ws://127.0.0.1:7777.
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
pub async fn open(node: Arc<Node>, config: DoorConfig) -> Result<Door, DoorError> {
    let (listener, address) = listen(FLAG, "run graphs on the mesh", &config).await?;
    let serving = Arc::new(Serving::new(node, config.token.as_deref()));
    Ok(Door::new(address, http::serve(serving, listener)))
}

/// The state that the connections of a door share.
struct Serving {
    node: Arc<Node>,
    /// The memory budget for messages: the node's.
    budget: Arc<Budget>,
    token: Token,
    unauthenticated_peers: Arc<UnauthenticatedPeers>,
    programs: Mutex<Programs>,
}

/// The connected programs, and the devices that they know by index.
#[derive(Default)]
struct Programs {
    all: Vec<Connected>,
    /// None of these is renumbered while a program is connected.
    devices: Vec<DeviceName>,
    /// The time of the last request for them.
    asked: Option<Instant>,
}

struct Connected {
    client: Client,
    running: Arc<Running>,
    sessions: usize,
}

/// The identity of a client, as far as its sessions show it: those of one program are at one address and have one credential.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    address: IpAddr,
    /// The process of this machine at the other end, as far as the system shows it.
    process: Process,
    credential: blake3::Hash,
}

impl Serving {
    fn new(node: Arc<Node>, token: Option<&str>) -> Serving {
        let token = Token::new(token);
        let unauthenticated_peers = UnauthenticatedPeers::new();
        node.mesh().ports().add("unauthenticated peers at burn's door", &unauthenticated_peers);
        let budget = Arc::clone(node.budget());
        Serving { node, budget, token, unauthenticated_peers, programs: Mutex::default() }
    }

    /// Whether the door accepts a client with this credential. The credential may end in `#` and a name, by which a program
    /// distinguishes its sessions from those of other programs.
    fn knows(&self, credential: &[u8]) -> bool {
        let token = credential.split(|byte| *byte == b'#').next().unwrap_or_default();
        self.token.accepts(token)
    }

    /// The devices of the mesh by their index at this door.
    fn devices(&self) -> Vec<DeviceName> {
        let now = self.node.cluster().devices();
        let mut programs = lock(&self.programs);
        let is_new = programs.asked.replace(Instant::now()).is_none_or(|asked| asked.elapsed() > NUMBERED_FOR);
        if programs.all.is_empty() && is_new {
            programs.devices = now;
        } else {
            let new: Vec<DeviceName> = now.into_iter().filter(|name| !programs.devices.contains(name)).collect();
            programs.devices.extend(new);
        }
        programs.devices.clone()
    }

    /// Opens a session of a client's program on a device; `None` if there are too many.
    fn open(
        self: &Arc<Self>,
        client: Client,
        device: u32,
        replies: mpsc::Sender<TaskResponse>,
    ) -> Option<(Arc<Running>, SessionNo)> {
        let mut programs = lock(&self.programs);
        if programs.all.iter().map(|known| known.sessions).sum::<usize>() >= MAX_SESSIONS {
            return None;
        }
        // A program has one session for each device: a second one is another program's, unless the system names the process.
        let is_same =
            |known: &Connected| known.client == client && (client.process.id.is_some() || !known.running.has(device));
        if let Some(known) = programs.all.iter_mut().find(|known| is_same(known)) {
            known.sessions += 1;
            let session = known.running.open(device, replies);
            return Some((known.running.clone(), session));
        }
        let running = Arc::new(Running::new(Arc::clone(&self.budget)));
        let session = running.open(device, replies);
        programs.all.push(Connected { client, running: running.clone(), sessions: 1 });
        let (serving, running_on) = (Arc::clone(self), running.clone());
        tokio::spawn(async move { running_on.run(&serving.node, || serving.devices()).await });
        Some((running, session))
    }

    /// Ends a session of a program.
    fn close(&self, running: &Arc<Running>, session: SessionNo) {
        let mut programs = lock(&self.programs);
        running.close(session);
        for known in &mut programs.all {
            if Arc::ptr_eq(&known.running, running) {
                known.sessions -= 1;
            }
        }
        programs.all.retain(|known| known.sessions > 0);
    }
}

#[cfg(test)]
mod tests;
