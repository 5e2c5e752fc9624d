//! `meshtf ticket`: prints the ticket with which another machine joins this mesh, on one line.

use std::time::Duration;

use meshtf::Client;
use meshtf::mesh::{Multiaddr, Ticket, is_loopback, parse_address};
use meshtf::node::{Node, NodeError};

use super::reach::MeshArgs;
use super::{Exit, Outcome, Trouble, output};

/// How long to search for nodes of this machine, whose addresses go into the ticket.
const LOOK_FOR_NODES: Duration = Duration::from_millis(700);

/// Print a ticket that lets another machine join this mesh
///
/// The ticket contains the mesh key and the addresses of the nodes that are up. Keep it secret: anyone who has it can join.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf ticket                           then, on the host: meshtf join TICKET
  meshtf ticket | ssh host meshtf join -  without showing the ticket")]
pub struct Args {
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn ticket(args: Args) -> Outcome {
    let name = &args.mesh.mesh;
    if args.mesh.open {
        return Err(Trouble::input(
            "an open mesh has no key and needs no ticket: start nodes with --open and --peer instead",
        ));
    }
    let key = args.mesh.own_key()?;
    let given = args.mesh.peer.iter().filter(|peer| !peer.is_empty()).map(|text| parse_address(text));
    let mut addresses = given.collect::<Result<Vec<Multiaddr>, _>>().map_err(NodeError::from)?;
    addresses.extend(addresses_of_nodes(&args.mesh).await);
    addresses.retain(|address| !is_loopback(address));
    addresses.sort();
    addresses.dedup();
    if addresses.is_empty() {
        eprintln!(
            "no node of mesh {name:?} with an address that other machines can reach is up; on the same local network \
 they find each other nevertheless, elsewhere use --peer on the other machine"
        );
    }
    let ticket = Ticket { mesh: name.clone(), key, addresses };
    output::line(&ticket.to_string())?;
    eprintln!("anyone who has this line can join mesh {name:?}; on the other machine: meshtf join TICKET");
    Ok(Exit::Ok)
}

/// The addresses of the nodes that are up. A ticket without addresses is valid, so errors are ignored.
async fn addresses_of_nodes(mesh: &MeshArgs) -> Vec<Multiaddr> {
    let Ok(node) = Node::start(mesh.client()).await else { return Vec::new() };
    node.wait_for(&[], LOOK_FOR_NODES).await;
    let cluster = node.cluster();
    let told = cluster.members().flat_map(|member| &member.addresses);
    let addresses = told.filter_map(|text| text.parse().ok()).collect();
    node.close().await;
    addresses
}
