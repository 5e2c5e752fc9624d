//! `meshtf plan`: what each device would do, the device of every node and why, and every transfer, without running anything.

mod draw;

use std::collections::BTreeMap;

use serde_json::json;

use super::inputs::GraphArgs;
use super::reach::{Deadline, MeshArgs, Reached};
use super::table::wide_table;
use super::{Exit, Outcome, Trouble, output};
use crate::device::{DeviceName, Task};
use crate::exec::BackendChoice;
use crate::graph::{Attrs, Graph};
use crate::memory::Bytes;
use crate::plan::{Plan, Why};
use crate::protocol::SessionOptions;

/// Rows of a table unless all are asked for.
const MAX_LISTED: usize = 20;

/// Show placement and transfers of a graph without running it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf plan graph.json
  meshtf plan graph.json --nodes          every node and transfer, however many
  meshtf plan graph.json --local          like `meshtf run`, without a mesh
  meshtf plan graph.json --dot | dot -Tsvg > plan.svg
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
    /// List every node and transfer; otherwise the first 20 of each
    #[arg(long)]
    nodes: bool,
    /// Print the plan for Graphviz's dot, with a box for each device
    #[arg(long, conflicts_with_all = ["json", "nodes"])]
    dot: bool,
    /// Print JSON: devices, totals, nodes, transfers
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
    let graph = job.graph_as_fed();
    let plan = reached.explain(&graph, job.signature(), options).await;
    reached.close().await;
    let plan = plan.map_err(|failure| {
        let trouble = Trouble::from(failure);
        if args.local { trouble.without_mesh() } else { trouble }
    })?;
    let totals = totals(&plan, &graph);
    if args.dot {
        output::line(draw::dot(&plan, &graph).trim_end())?
    } else if args.json {
        output::json_value(&as_json(&plan, &totals))?
    } else {
        let most = if args.nodes { usize::MAX } else { MAX_LISTED };
        output::line(&as_text(&plan, &totals, most))?
    }
    Ok(Exit::Ok)
}

/// What one device has to do.
#[derive(Debug, Default, PartialEq)]
struct Total {
    nodes: u64,
    /// Bytes of the variables on it, and how many have a size that is not known.
    variables: u64,
    unknown_variables: u64,
    /// Bytes that it sends and receives in a step, and how many transfers have a size that is not known.
    sends: u64,
    receives: u64,
    unknown_transfers: u64,
}

fn totals(plan: &Plan, graph: &Graph) -> BTreeMap<DeviceName, Total> {
    let mut totals: BTreeMap<DeviceName, Total> =
        plan.pieces.iter().map(|piece| (piece.device.clone(), Total::default())).collect();
    for placement in &plan.placements {
        let total = totals.entry(placement.device.clone()).or_default();
        total.nodes += 1;
        let node = graph.find(&placement.node).map(|id| graph.node(id));
        if let Some(node) = node.filter(|node| node.op.makes_variable) {
            match variable_bytes(&node.attrs) {
                Some(bytes) => total.variables = total.variables.saturating_add(bytes),
                None => total.unknown_variables += 1,
            }
        }
    }
    for transfer in plan.transfers.iter().filter(|transfer| transfer.dtype.is_some()) {
        let (bytes, unknown) = (transfer.bytes.unwrap_or(0), u64::from(transfer.bytes.is_none()));
        let from = totals.entry(transfer.from.clone()).or_default();
        (from.sends, from.unknown_transfers) = (from.sends.saturating_add(bytes), from.unknown_transfers + unknown);
        let to = totals.entry(transfer.to.clone()).or_default();
        (to.receives, to.unknown_transfers) = (to.receives.saturating_add(bytes), to.unknown_transfers + unknown);
    }
    totals
}

/// Bytes of a variable's elements, if its shape and the size of its elements are known.
fn variable_bytes(attrs: &Attrs) -> Option<u64> {
    let shape = attrs.shape("shape").ok()?.0.as_ref()?;
    let element = attrs.dtype("dtype").ok()?.size()?;
    // The machine that plans need not be one that could hold it.
    shape.iter().try_fold(element as u64, |bytes, size| bytes.checked_mul((*size)? as u64))
}

fn why(why: &Why) -> String {
    match why {
        Why::Requested => "requested".to_owned(),
        Why::Colocated { with } => format!("with {with}"),
        Why::Soft { requested } => format!("soft: no {requested}"),
        Why::Default => "default of the master".to_owned(),
    }
}

fn as_json(plan: &Plan, totals: &BTreeMap<DeviceName, Total>) -> serde_json::Value {
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
    let totals: Vec<_> = totals
        .iter()
        .map(|(device, total)| {
            json!({
                "device": device.to_string(),
                "nodes": total.nodes,
                "variable_bytes": total.variables,
                "unknown_variables": total.unknown_variables,
                "sent_bytes": total.sends,
                "received_bytes": total.receives,
                "unknown_transfers": total.unknown_transfers,
            })
        })
        .collect();
    json!({ "devices": devices, "totals": totals, "nodes": nodes, "transfers": transfers })
}

fn as_text(plan: &Plan, totals: &BTreeMap<DeviceName, Total>, most: usize) -> String {
    let size = |bytes: u64, unknown: u64| match (Bytes(bytes as usize).to_string(), unknown) {
        (bytes, 0) => bytes,
        (bytes, unknown) => format!("{bytes} and {unknown} unknown"),
    };
    let rows = totals.iter().map(|(device, total)| {
        vec![
            device.to_string(),
            total.nodes.to_string(),
            size(total.variables, total.unknown_variables),
            size(total.sends, 0),
            size(total.receives, 0),
        ]
    });
    let mut text = wide_table(&["DEVICE", "NODES", "VARIABLES", "SENDS", "RECEIVES"], rows);
    text.push_str("\n\n");
    let nodes = plan.placements.iter().take(most).map(|placement| {
        vec![placement.node.clone(), placement.op.clone(), placement.device.to_string(), why(&placement.why)]
    });
    text.push_str(&wide_table(&["NODE", "OP", "DEVICE", "WHY"], nodes));
    text.push_str(&left_out(plan.placements.len(), most));
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
        if transfers.len() == most {
            continue;
        }
        transfers.push(vec![transfer.tensor.clone(), transfer.from.to_string(), transfer.to.to_string(), bytes]);
    }
    let rest = match unknown {
        0 => String::new(),
        1 => ", and 1 transfer of unknown size".to_owned(),
        n => format!(", and {n} transfers of unknown size"),
    };
    text.push_str(&format!(
        "\n\n{}{}\n\n{} per step{rest}",
        wide_table(&["TRANSFER", "FROM", "TO", "BYTES"], transfers),
        left_out(plan.transfers.len(), most),
        Bytes(known as usize)
    ));
    text
}

/// How many rows of a table are left out, and how to see them.
fn left_out(all: usize, most: usize) -> String {
    match all.saturating_sub(most) {
        0 => String::new(),
        more => format!("\nand {more} more (--nodes)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceKind;
    use crate::graph::read;
    use crate::plan::{PlanOptions, Signature, plan};

    #[test]
    fn a_device_is_told_by_its_totals() {
        let text = r#"{"version": 1, "nodes": {
            "w": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [10, 3]}, "device": "/job:t/task:0"},
            "v": {"op": "VarHandleOp", "attrs": {"dtype": "float64", "shape": [null]}, "device": "/job:t/task:0"},
            "read": {"op": "ReadVariableOp", "inputs": ["w"], "attrs": {"dtype": "float32"}, "device": "/job:t/task:0"},
            "rest": {"op": "ReadVariableOp", "inputs": ["v"], "attrs": {"dtype": "float64"}, "device": "/job:t/task:0"},
            "y": {"op": "Neg", "inputs": ["read"], "device": "/job:t/task:1"},
            "z": {"op": "Neg", "inputs": ["rest"], "device": "/job:t/task:1"}}}"#;
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let device = |task: u32| Task::new("t", task).device(DeviceKind::Cpu, 0);
        let signature = Signature { fetches: vec!["y".into(), "z".into()], ..Signature::default() };
        let options = PlanOptions { default_device: device(0), soft_placement: false };
        let plan = plan(&graph, &[device(0), device(1)], &signature, &options).unwrap();
        let totals = totals(&plan, &graph);
        // 10 x 3 elements of 4 bytes are kept, and go out in each step.
        let here =
            Total { nodes: 4, variables: 120, unknown_variables: 1, sends: 120, receives: 0, unknown_transfers: 1 };
        assert_eq!(totals[&device(0)], here);
        let there = Total { nodes: 2, receives: 120, unknown_transfers: 1, ..Total::default() };
        assert_eq!(totals[&device(1)], there);
        let text = as_text(&plan, &totals, 3);
        for part in ["120 B and 1 unknown", "and 3 more (--nodes)", "120 B per step, and 1 transfer of unknown size"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!as_text(&plan, &totals, usize::MAX).contains("more"));
    }
}
