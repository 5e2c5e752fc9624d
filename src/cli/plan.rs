//! `meshtf plan`: the load of each device, the device of every node and why, and every transfer, without running anything; and
//! estimates for more tasks.

mod draw;
mod estimate;
mod expected;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use meshtf::Client;
use meshtf::protocol::SessionOptions;
use meshtf::trainer::weights::{At, check_weights};
use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::plan::{Plan, Total, Why, totals};
use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::memory::Bytes;
use serde_json::json;

use self::estimate::{Estimated, Step};
use super::inputs::{GraphArgs, MapArgs};
use super::paint::{Paint, Tone};
use super::place::PlaceArgs;
use super::reach::{Deadline, MeshArgs, Reached};
use super::table::wide_table;
use super::{Exit, Outcome, Trouble, complete, output, stages};

/// Rows of a table unless all are requested.
const MAX_LISTED: usize = 20;

/// Show placement and transfers of a graph without running it
///
/// Prints a table of the devices first: the number of nodes, the bytes of variables, the most bytes of values at a time (PEAK, if
/// nodes run one by one and each value lasts until its last use), the bytes that the device sends and receives in a step, and its
/// memory. Sizes that only a run determines are left out. Placeholders need no values.
///
/// A file with a training in mode pipeline has its stages, its micro-batches, and the share of a step in which a stage waits.
/// A plan by cost has the expected time of a step: what each device does, the critical path, and the next best choice of devices.
/// --estimate plans nothing: it prints the expected throughput of 1, 2, 4, ... 256 tasks with links of 1, 10 and 100 Gbit/s, by
/// the measured rates of the fastest device, or of --target's. A file with a section "train", or a step with ops that take
/// gradients (Apply..., SparseApply...) or rows to add (ScatterAdd, ScatterSub), counts as a training: of workers that sum
/// gradients around a ring (mode mirrored) or with a parameter server, with the batch divided among them and with a whole batch
/// for each. Any other step counts as replicas that answer requests.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf plan graph.json
  meshtf plan graph.json --nodes          every node and transfer
  meshtf plan graph.json --local          without a mesh, like `meshtf run`
  meshtf plan graph.json --place auto     by cost, with the expected time
  meshtf plan digits.json --estimate      where more workers stop paying
  meshtf plan model.onnx --estimate --batch 1
  meshtf plan graph.json --svg > plan.svg
  meshtf plan graph.json --dot | dot -Tpng > plan.png
  meshtf plan graph.json --fetch y --json | jq '.transfers[].bytes'")]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    /// Task of the master, which also runs nodes without a device [default: the first by name]
    #[arg(long, value_name = "TASK", add = complete::tasks())]
    target: Option<Task>,
    /// Host all tasks of the graph in this process, without a network
    #[arg(long)]
    local: bool,
    /// Use another device of the task if a requested device does not exist
    #[arg(long)]
    soft_placement: bool,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print the expected throughput of 1 to 256 tasks on networks of 1, 10 and 100 Gbit/s, and where more stop paying
    #[arg(long, conflicts_with_all = ["place", "nodes", "dot", "svg", "weights", "map", "soft_placement"])]
    estimate: bool,
    /// Number of examples at a time, where placeholders take any number [default: the training's]
    #[arg(long, value_name = "N", requires = "estimate", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// List every node and transfer, not only the first 20 of each
    #[arg(long)]
    nodes: bool,
    /// Print the plan for dot of Graphviz, with a box for each device
    #[arg(long, conflicts_with_all = ["json", "nodes"])]
    dot: bool,
    /// Print the plan as an SVG picture, with a lane for each device; in large plans, nodes share boxes
    #[arg(long, conflicts_with_all = ["json", "nodes", "dot"])]
    svg: bool,
    /// Weights for the variables, whose names, dtypes and shapes are compared with them
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    #[command(flatten)]
    map: MapArgs,
    /// Print JSON: devices, totals, nodes, transfers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn plan(args: Args) -> Outcome {
    if args.estimate {
        return estimated(args).await;
    }
    let map = args.map.rules()?;
    let weights = args.weights.as_deref().map(|path| At { map: map.as_ref(), ..At::path(path) });
    let mut job = args.graph.read(weights)?;
    if let Some(at) = weights {
        check_weights("--weights", &job.graph, at)?;
    }
    let (soft_placement, place_by) = (args.soft_placement, args.place.rule(&job.graph, args.target.is_some()));
    let options = SessionOptions { soft_placement, place_by, ..SessionOptions::default() };
    let reached = if args.local {
        Reached::local(job.tasks(), args.target.as_ref(), BackendChoice::default(), None, &Arc::default())?
    } else {
        args.mesh.reach_for(job.tasks(), args.target.as_ref(), Deadline::after(None), Arc::default()).await?
    };
    if let Err(trouble) = job.divide(place_by, &reached, false).await {
        reached.close().await;
        return Err(trouble);
    }
    let graph = job.graph_as_fed();
    // Without values, placeholders count as fed.
    let signature = job.signature().with_placeholders(&graph);
    let plan = reached.explain(&graph, None, signature, options).await;
    let plan = plan.map_err(|failure| {
        let trouble = job.explained(reached.explain_trouble(failure.into()));
        if args.local { trouble.without_mesh() } else { trouble }
    });
    let facts = reached.cluster().facts();
    reached.close().await;
    let plan = plan?;
    let pipeline = match args.graph.whole_training() {
        // A section that cannot be trained is `train`'s to report.
        Ok(Some((graph, sections))) => meshtf_train::job::in_pipeline(&graph, &sections).ok().flatten(),
        _ => None,
    };
    let totals = totals(&plan, &graph, &facts);
    if args.dot {
        output::line(draw::dot(&plan, &graph).trim_end())?
    } else if args.svg {
        output::line(plan.picture().svg().trim_end())?
    } else if args.json {
        let mut json = as_json(&plan, &totals);
        json["pipeline"] = json!(pipeline.as_ref().map(stages::as_json));
        output::json_value(&json)?
    } else {
        let most = if args.nodes { usize::MAX } else { MAX_LISTED };
        let mut text = as_text(Paint::stdout(), &plan, &totals, most);
        if let Some(pipeline) = &pipeline {
            text.push_str(&format!("\n\na training has {}", stages::as_lines(pipeline).join("\n")));
        }
        output::line(&text)?
    }
    Ok(Exit::Ok)
}

/// Prints what a step would take on more tasks.
async fn estimated(args: Args) -> Outcome {
    let batch = args.batch.map(|batch| batch as usize);
    let step = match args.graph.training()? {
        Some((graph, sections)) => Step::of_training(graph, &sections, batch)?,
        None => {
            let job = args.graph.read(None)?;
            Step::new(&job.graph_as_fed(), job.signature(), batch)?
        }
    };
    let target = args.target.as_ref();
    let reached = if args.local {
        Reached::local(Vec::new(), target, BackendChoice::default(), None, &Arc::default())?
    } else {
        args.mesh.reach_for(Vec::new(), target, Deadline::after(None), Arc::default()).await?
    };
    let mut devices = reached.cluster().facts();
    reached.close().await;
    devices.retain(|device| target.is_none_or(|target| device.name.task == *target));
    let estimated = Estimated::of(&step, &devices)?;
    if args.json {
        output::json_value(&estimated.as_json())?
    } else {
        output::line(&estimated.as_text(Paint::stdout()))?
    }
    Ok(Exit::Ok)
}

fn why(why: &Why) -> String {
    match why {
        Why::Requested => "requested".to_owned(),
        Why::Colocated { with } => format!("with {with}"),
        Why::Soft { requested } => format!("soft: no {requested}"),
        Why::Default => "default of the master".to_owned(),
        Why::Cost => "by cost".to_owned(),
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
                "peak_bytes": total.peak,
                "unknown_values": total.unknown_values,
                "sent_bytes": total.sends,
                "received_bytes": total.receives,
                "unknown_transfers": total.unknown_transfers,
                "memory_bytes": total.memory.map(|memory| memory.total),
                "free_bytes": total.memory.map(|memory| memory.free),
            })
        })
        .collect();
    let expected = plan.estimate.as_ref().map(expected::as_json);
    json!({ "devices": devices, "totals": totals, "nodes": nodes, "transfers": transfers, "expected": expected })
}

fn as_text(paint: Paint, plan: &Plan, totals: &BTreeMap<DeviceName, Total>, most: usize) -> String {
    let size = |bytes: u64, unknown: u64| match (Bytes(bytes as usize).to_string(), unknown) {
        (bytes, 0) => bytes,
        (bytes, unknown) => format!("{bytes} and {unknown} unknown"),
    };
    let rows = totals.iter().map(|(device, total)| {
        vec![
            device.to_string(),
            total.nodes.to_string(),
            size(total.variables, total.unknown_variables),
            size(total.peak, total.unknown_values),
            size(total.sends, 0),
            size(total.receives, 0),
            total.memory.map_or_else(|| "?".to_owned(), |memory| Bytes(memory.total as usize).to_string()),
        ]
    });
    let mut text = wide_table(paint, &["DEVICE", "NODES", "VARIABLES", "PEAK", "SENDS", "RECEIVES", "MEMORY"], rows);
    for (device, total) in totals {
        if let (Some(needed), Some(memory)) = (total.over(), total.memory) {
            let (has, needed) = (Bytes(memory.total as usize), Bytes(needed as usize));
            let why = format!("{device} has {has} of memory, less than its variables and values: {needed}");
            text.push_str(&format!("\n{}", paint.tone(Tone::Bad, why)));
        }
    }
    if let Some(estimate) = &plan.estimate {
        text.push_str(&format!("\n\n{}", expected::as_text(paint, plan, estimate)));
    }
    text.push_str("\n\n");
    let nodes = plan.placements.iter().take(most).map(|placement| {
        vec![placement.node.clone(), placement.op.clone(), placement.device.to_string(), why(&placement.why)]
    });
    text.push_str(&wide_table(paint, &["NODE", "OP", "DEVICE", "WHY"], nodes));
    text.push_str(&left_out(paint, plan.placements.len(), most));
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
        "\n\n{}{}\n\n{}",
        wide_table(paint, &["TRANSFER", "FROM", "TO", "BYTES"], transfers),
        left_out(paint, plan.transfers.len(), most),
        paint.tone(Tone::Strong, format_args!("{} per step{rest}", Bytes(known as usize)))
    ));
    text
}

/// The number of rows that a table omits, and the flag that shows them.
fn left_out(paint: Paint, all: usize, most: usize) -> String {
    match all.saturating_sub(most) {
        0 => String::new(),
        more => format!("\n{}", paint.tone(Tone::Dim, format_args!("and {more} more (--nodes)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_graph::plan::{PlanOptions, Signature, plan};
    use meshtf_graph::{Graph, read};
    use meshtf_tensor::device::{Capacity, DeviceFacts, DeviceKind, DeviceMemory};

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
        let options = PlanOptions { default_device: device(0), soft_placement: false, by_cost: None };
        let plan = plan(&graph, &[0, 1].map(|task| DeviceFacts::unknown(device(task))), &signature, &options).unwrap();
        let facts = [0, 1].map(|task| {
            let memory = Some(DeviceMemory { total: [119, 240][task as usize], free: 7 });
            DeviceFacts { capacity: Capacity { memory, ..Capacity::default() }, ..DeviceFacts::unknown(device(task)) }
        });
        let totals = totals(&plan, &graph, &facts);
        // 10 x 3 elements of 4 bytes are kept, and sent in each step.
        // The sent values are the variables' own.
        let here = Total {
            nodes: 4,
            variables: 120,
            unknown_variables: 1,
            sends: 120,
            unknown_transfers: 1,
            memory: facts[0].capacity.memory,
            ..Total::default()
        };
        assert_eq!(totals[&device(0)], here);
        // Each is received, and negated into a second value.
        let memory = facts[1].capacity.memory;
        let there = Total {
            nodes: 2,
            peak: 240,
            unknown_values: 2,
            receives: 120,
            unknown_transfers: 1,
            memory,
            ..Total::default()
        };
        assert_eq!(totals[&device(1)], there);
        let text = as_text(Paint::OFF, &plan, &totals, 3);
        for part in [
            "120 B and 1 unknown",
            "240 B",
            "\n/job:t/task:0/device:CPU:0 has 119 B of memory, less than its variables and values: 120 B",
            "and 3 more (--nodes)",
            "120 B per step, and 1 transfer of unknown size",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        // 240 bytes are enough for 240.
        assert_eq!(text.matches("less than").count(), 1, "{text}");
        assert!(!as_text(Paint::OFF, &plan, &totals, usize::MAX).contains("more"));
    }
}
