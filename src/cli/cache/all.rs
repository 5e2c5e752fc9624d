//! `meshtf cache --all`: the weights that the nodes of the mesh keep on their disks.

use meshtf::protocol::cached::{CacheStatus, CachedWeight};
use meshtf::{Client as _, Node};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::counted;
use serde_json::{Value, json};

use super::super::paint::{Paint, Tone, complain, mention};
use super::super::table::{duration, table};
use super::super::{Exit, Outcome, Trouble, output};
use super::shown;

pub(super) async fn show(node: &Node, as_json: bool) -> Outcome {
    let tasks: Vec<Task> = node.cluster().tasks().cloned().collect();
    let asked = futures::future::join_all(tasks.iter().map(|task| node.cache(Some(task)))).await;
    let (mut told, mut troubles): (Vec<(&Task, CacheStatus)>, Vec<Trouble>) = Default::default();
    for (task, answer) in tasks.iter().zip(asked) {
        match answer {
            Ok(status) => told.push((task, status)),
            Err(failure) => troubles.push(failure.into()),
        }
    }
    if as_json {
        output::json_value(&told.iter().map(|(task, status)| described(task, status)).collect())?;
    } else if !told.is_empty() {
        let texts: Vec<String> = told.iter().map(|(task, status)| text(Paint::stdout(), task, status)).collect();
        output::line(&texts.join("\n\n"))?;
    }
    node.mesh().beyond().iter().for_each(|one| mention(one.unasked()));
    // If one node does not answer, the others are still shown.
    let last = troubles.pop();
    troubles.iter().for_each(complain);
    last.map_or(Ok(Exit::Ok), Err)
}

fn text(paint: Paint, task: &Task, status: &CacheStatus) -> String {
    let CacheStatus { limit, kept_bytes, elsewhere_bytes, weights } = status;
    let title = match limit {
        None => format!("{task}: it keeps no weights (--cache off)"),
        Some(limit) => format!(
            "{task}: {}, {} of {} in its folder, {} in files of models",
            counted(weights.total as usize, "weight"),
            shown(*kept_bytes),
            shown(*limit),
            shown(*elsewhere_bytes)
        ),
    };
    let mut text = paint.tone(Tone::Strong, title);
    if !weights.items.is_empty() {
        let row = |weight: &CachedWeight| {
            vec![
                weight.node.clone(),
                format!("{}{}", weight.dtype, weight.shape),
                shown(weight.bytes),
                format!("{} ago", duration(weight.used_ms / 1000)),
                if weight.is_elsewhere { "a model's" } else { "its folder's" }.to_owned(),
            ]
        };
        text.push('\n');
        text.push_str(&table(paint, &["NODE", "TYPE", "SIZE", "USED", "FILE"], weights.items.iter().map(row)));
    }
    if weights.left_out() > 0 {
        text.push_str(&format!("\nand {} more", weights.left_out()));
    }
    text
}

fn described(task: &Task, status: &CacheStatus) -> Value {
    let weight = |weight: &CachedWeight| {
        json!({
            "node": weight.node,
            "dtype": weight.dtype.name(),
            "shape": weight.shape.dims(),
            "bytes": weight.bytes,
            "used_ms_ago": weight.used_ms,
            "in_model": weight.is_elsewhere,
        })
    };
    json!({
        "task": task.to_string(),
        "limit": status.limit,
        "kept_bytes": status.kept_bytes,
        "in_models_bytes": status.elsewhere_bytes,
        "total": status.weights.total,
        "weights": status.weights.items.iter().map(weight).collect::<Vec<_>>(),
    })
}
