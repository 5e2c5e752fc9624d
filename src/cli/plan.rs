//! `meshtf plan`: the device of every node and why, and every transfer, without running anything.

use serde_json::json;

use super::inputs::GraphArgs;
use super::reach::{Deadline, MeshArgs, Reached};
use super::table::wide_table;
use super::{Exit, Outcome, Trouble, output};
use crate::device::Task;
use crate::exec::BackendChoice;
use crate::memory::Bytes;
use crate::plan::{Plan, Why};
use crate::protocol::SessionOptions;

/// Show placement and transfers of a graph without running it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf plan graph.json
  meshtf plan graph.json --local          like `meshtf run`, without a mesh
  meshtf plan graph.json --fetch y --json | jq '.transfers[].bytes'")]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    /// Task whose node is the master [default: the first by name]
    #[arg(long, value_name = "TASK")]
    target: Option<Task>,
    /// Plan as for `meshtf run`: with every task that the graph names, in this process
    #[arg(long)]
    local: bool,
    /// If a requested device does not exist, use another one of its task
    #[arg(long)]
    soft_placement: bool,
    /// Print JSON: pieces, nodes, transfers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn plan(args: Args) -> Outcome {
    let job = args.graph.read()?;
    let options = SessionOptions { soft_placement: args.soft_placement, ..SessionOptions::default() };
    let reached = if args.local {
        Reached::local(job.tasks(), args.target.as_ref(), BackendChoice::default(), None)?
    } else {
        args.mesh.reach_for(job.tasks(), args.target.as_ref(), Deadline::after(None)).await?
    };
    let plan = reached.explain(&job.graph_as_fed(), job.signature(), options).await;
    reached.close().await;
    let plan = plan.map_err(|failure| {
        let trouble = Trouble::from(failure);
        if args.local { trouble.without_mesh() } else { trouble }
    })?;
    if args.json {
        output::json_value(&as_json(&plan))?
    } else {
        output::line(&as_text(&plan))?
    }
    Ok(Exit::Ok)
}

fn why(why: &Why) -> String {
    match why {
        Why::Requested => "requested".to_owned(),
        Why::Colocated { with } => format!("with {with}"),
        Why::Soft { requested } => format!("soft: no {requested}"),
        Why::Default => "default of the master".to_owned(),
    }
}

fn as_json(plan: &Plan) -> serde_json::Value {
    let nodes: Vec<_> = plan
        .placements
        .iter()
        .map(|placement| {
            json!({
                "node": placement.node,
                "op": placement.op,
                "device": placement.device.to_string(),
                "why": why(&placement.why),
            })
        })
        .collect();
    let transfers: Vec<_> = plan
        .transfers
        .iter()
        .map(|transfer| {
            json!({
                "tensor": transfer.tensor,
                "dtype": transfer.dtype.map(|dtype| dtype.name()),
                "from": transfer.from.to_string(),
                "to": transfer.to.to_string(),
                "bytes": transfer.bytes,
            })
        })
        .collect();
    let devices: Vec<_> = plan.pieces.iter().map(|piece| piece.device.to_string()).collect();
    json!({ "devices": devices, "nodes": nodes, "transfers": transfers })
}

fn as_text(plan: &Plan) -> String {
    let nodes = plan.placements.iter().map(|placement| {
        vec![placement.node.clone(), placement.op.clone(), placement.device.to_string(), why(&placement.why)]
    });
    let mut text = wide_table(&["NODE", "OP", "DEVICE", "WHY"], nodes);
    if plan.transfers.is_empty() {
        text.push_str("\n\nno transfers");
        return text;
    }
    let mut transfers = Vec::new();
    let mut known = 0;
    let mut unknown = 0;
    for transfer in &plan.transfers {
        let bytes = match (transfer.bytes, transfer.dtype) {
            (Some(bytes), _) => {
                known += bytes;
                Bytes(bytes as usize).to_string()
            }
            (None, None) => "control only".to_owned(),
            (None, Some(_)) => {
                unknown += 1;
                "?".to_owned()
            }
        };
        transfers.push(vec![transfer.tensor.clone(), transfer.from.to_string(), transfer.to.to_string(), bytes]);
    }
    let rest = match unknown {
        0 => String::new(),
        1 => ", and 1 transfer of unknown size".to_owned(),
        n => format!(", and {n} transfers of unknown size"),
    };
    text.push_str(&format!(
        "\n\n{}\n\n{} per step{rest}",
        wide_table(&["TRANSFER", "FROM", "TO", "BYTES"], transfers),
        Bytes(known as usize)
    ));
    text
}
