//! `meshtf plan`: every node with its device and why, and every transfer, without running anything.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::json;

use super::inputs::GraphArgs;
use super::reach::{Deadline, MeshArgs, Reached};
use super::{Exit, Outcome, Trouble, output};
use crate::device::Task;
use crate::exec::BackendChoice;
use crate::memory::Bytes;
use crate::plan::{Plan, Why};
use crate::protocol::SessionOptions;

/// Show what would run where and what would travel, without running
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf plan graph.json
  meshtf plan graph.json --local                 as `meshtf run` would, without a mesh
  meshtf plan graph.json --fetch y --json | jq '.transfers[].bytes'")]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    /// Task whose node is the master [default: the first by name]
    #[arg(long, value_name = "TASK")]
    target: Option<Task>,
    /// Plan as `meshtf run` would: every task that the graph names, in this process
    #[arg(long)]
    local: bool,
    /// Place a node on another device of its task where the requested one is not there
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
        Why::Soft { requested } => format!("soft: there is no {requested}"),
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
    let mut nodes = plain_table(["NODE", "OP", "DEVICE", "WHY"]);
    for placement in &plan.placements {
        nodes.add_row([&placement.node, &placement.op, &placement.device.to_string(), &why(&placement.why)]);
    }
    let mut text = lines(&nodes);
    if plan.transfers.is_empty() {
        text.push_str("\n\nnothing travels");
        return text;
    }
    let mut transfers = plain_table(["TRANSFER", "FROM", "TO", "BYTES"]);
    let mut known = 0;
    let mut unknown = 0;
    for transfer in &plan.transfers {
        let bytes = match (transfer.bytes, transfer.dtype) {
            (Some(bytes), _) => {
                known += bytes;
                Bytes(bytes as usize).to_string()
            }
            (None, None) => "order only".to_owned(),
            (None, Some(_)) => {
                unknown += 1;
                "?".to_owned()
            }
        };
        transfers.add_row([&transfer.tensor, &transfer.from.to_string(), &transfer.to.to_string(), &bytes]);
    }
    let rest = match unknown {
        0 => String::new(),
        1 => ", and 1 transfer whose size only a run tells".to_owned(),
        n => format!(", and {n} transfers whose size only a run tells"),
    };
    text.push_str(&format!("\n\n{}\n\n{} a step{rest}", lines(&transfers), Bytes(known as usize)));
    text
}

fn plain_table(header: [&str; 4]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    table
}

fn lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
