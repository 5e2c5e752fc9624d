//! `meshtf join`: accepts a ticket, and with it the mesh key of another machine.

use std::io::Read;

use meshtf::mesh::{Accepted, MeshKey, Ticket, count_running, home};

use super::{Exit, Outcome, Trouble};

/// Longest input that is parsed as a ticket.
const MAX_TICKET_BYTES: u64 = 64 << 10;

/// Join a mesh with a ticket of another machine
///
/// Stores the key and the addresses of the mesh in this user's folder. Nodes and commands on this machine then find the mesh
/// without flags.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf join meshtf-ticket-1.AbCd…
  ssh other-machine meshtf ticket | meshtf join -")]
pub struct Args {
    /// Ticket, the line that `meshtf ticket` prints; - is stdin
    ticket: String,
    /// Replace the key that this machine has for a mesh of this name
    #[arg(long)]
    replace: bool,
}

pub(super) async fn join(args: Args) -> Outcome {
    let mut text = args.ticket;
    if text == "-" {
        text.clear();
        std::io::stdin()
            .lock()
            .take(MAX_TICKET_BYTES)
            .read_to_string(&mut text)
            .map_err(|error| Trouble::input(format!("stdin: {error}")))?;
    }
    let ticket: Ticket = text.parse().map_err(|error| Trouble::input(format!("{error}")))?;
    let home = home().map_err(|error| Trouble::input(error.to_string()))?;
    let before = MeshKey::load(&home, &ticket.mesh).ok();
    let accepted = ticket.accept(&home, args.replace).map_err(|error| {
        let hint = if args.replace { "" } else { " (--replace replaces it)" };
        Trouble::input(format!("{error}{hint}"))
    })?;
    let done = match accepted {
        Accepted::Stored => "joined",
        Accepted::Known => "already had the key of",
        Accepted::Replaced => "replaced the key of",
    };
    let addresses = match ticket.addresses.len() {
        0 => "no address".to_owned(),
        1 => "1 address".to_owned(),
        count => format!("{count} addresses"),
    };
    eprintln!("{done} mesh {:?}, with {addresses} to dial", ticket.mesh);
    let left_behind = before.filter(|key| *key != ticket.key);
    match left_behind.map_or(0, |key| count_running(&home, &ticket.mesh, &key)) {
        0 => {}
        1 => eprintln!("a node of this mesh runs on this machine with the old key: restart it"),
        count => eprintln!("{count} nodes of this mesh run on this machine with the old key: restart them"),
    }
    let mesh =
        if ticket.mesh == meshtf::node::DEFAULT_MESH { String::new() } else { format!(" --mesh {}", ticket.mesh) };
    eprintln!("to serve a task: meshtf node --name local/1{mesh}; to list those that are up: meshtf ps{mesh}");
    Ok(Exit::Ok)
}
