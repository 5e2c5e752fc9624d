//! `meshtf burn`: runs a burn program whose default device is the mesh.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use meshtf::door::{self, DoorConfig};
use meshtf::node::{Node, NodeConfig};
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::memory::MemoryArgs;
use super::reach::MeshArgs;
use super::signals::Signals;
use super::{Exit, Outcome, Trouble};

/// How long it searches for a node before it starts one.
const SEARCH: Duration = Duration::from_secs(2);
/// How long it then waits for the nodes that the first one announces, so that the order of devices is the same each time.
const EVERYBODY: Duration = Duration::from_millis(500);

/// Run a burn program on the mesh
///
/// Runs a command with BURN_DEVICE and BURN_REMOTE_ADDRESS in its environment, so that the default device of a program with
/// burn 0.22 and burn's feature `remote-websocket` is the first device of the mesh. If no node is up, this process serves
/// local/0 while the program runs. The exit code is the program's.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf burn -- cargo run --release
  meshtf burn --peer 10.0.0.7:4001 -- ./train --epochs 10

The program runs unchanged. A program that names devices, or uses several, finds
them at the address in BURN_REMOTE_ADDRESS, ws://127.0.0.1:PORT: index 0 is the
first device that `meshtf ps` lists.")]
pub struct Args {
    /// Compute backend; auto selects the best one available; of the node that starts if none is up
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    mesh: MeshArgs,
    /// Program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) async fn burn(args: Args, budget: Arc<Budget>) -> Outcome {
    // Ctrl-C reaches the program, too, which decides how it ends.
    let mut signals = Signals::listen()?;
    let node = Arc::new(reach(&args, budget).await?);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let door = door::burn::open(Arc::clone(&node), DoorConfig { address, token: None }).await;
    let door = door.map_err(|error| Trouble::input(error.to_string()))?;

    let [program, arguments @ ..] = &args.command[..] else { return Err(Trouble::input("there is no command")) };
    let child = Command::new(program)
        .args(arguments)
        .env("BURN_DEVICE", "remote")
        .env("BURN_REMOTE_ADDRESS", format!("ws://{}", door.address()))
        .spawn();
    let mut child = child.map_err(|error| Trouble::input(format!("cannot run {program}: {error}")))?;
    let id = child.id();
    let mut waited = tokio::task::spawn_blocking(move || child.wait());
    let status = loop {
        tokio::select! {
            status = &mut waited => break status,
            request = signals.next() => if request.exit != Exit::Interrupted { end(id) },
        }
    };
    drop(door);
    let _ = tokio::time::timeout(super::node::LEAVE_LIMIT, node.close()).await;
    let cannot = |error: std::io::Error| Trouble::input(format!("cannot wait for {program}: {error}"));
    let status = status.map_err(|error| cannot(error.into()))?.map_err(cannot)?;
    Ok(Exit::Program(code(status)))
}

/// A client of the mesh, or a node if no other is up.
async fn reach(args: &Args, budget: Arc<Budget>) -> Result<Node, Trouble> {
    // A key is made if none exists: this may be the first node on this machine.
    if !args.mesh.open {
        args.mesh.own_key()?;
    }
    let client = Node::start_within(args.mesh.client(), Arc::clone(&budget)).await?;
    if client.wait_for(&[], SEARCH).await {
        client.wait_for_all(EVERYBODY).await;
        return Ok(client);
    }
    if !args.mesh.peer.is_empty() {
        let tried = super::reach::tried(&client);
        client.close().await;
        return Err(Trouble::mesh(format!("no node of mesh {:?} was found. Tried:\n{tried}", args.mesh.mesh)));
    }
    client.close().await;
    let task = Task::new("local", 0);
    super::paint::complain(format_args!(
        "no node of mesh {:?} is up, so this process serves {} itself",
        args.mesh.mesh,
        task.short()
    ));
    let config = NodeConfig { task: Some(task), backend: args.backend, ..args.mesh.client() };
    Ok(Node::start_within(config, budget).await?)
}

/// Asks the program to end. It has not been waited for, so its id cannot belong to another process.
fn end(id: u32) {
    let _ = kill(Pid::from_raw(id as i32), Signal::SIGTERM);
}

/// The exit code of the program, as a shell reports it.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128u8.saturating_add(signal.unwrap_or(0) as u8),
    }
}
