//! `meshtf node --spare`: waits until a task of the mesh is lost, and serves it.

use std::collections::BTreeSet;
use std::sync::Arc;

use meshtf::mesh::MeshError;
use meshtf::node::{Node, NodeConfig, NodeError};
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;

use super::{Args, LEAVE_LIMIT, LOG, Stop, named};
use crate::cli::signals::Signals;
use crate::cli::{Exit, Outcome, output};

/// Takes the name of one lost task after another: as long as it holds one, it is a node like any other. If somebody else takes
/// the name first, it waits for the next.
pub(super) async fn spare(args: &Args, budget: Arc<Budget>, signals: &mut Signals) -> Outcome {
    let mut others = BTreeSet::new();
    loop {
        let Some((task, rest)) = lost_task(args, &budget, signals, others).await? else { return Ok(Exit::Ok) };
        others = rest;
        tracing::warn!(target: LOG, "{} was lost; this spare takes its name", task.short());
        match named(args, &task, Arc::clone(&budget), signals).await {
            Err(Stop::Node(NodeError::Mesh(error @ MeshError::TaskTaken { .. }))) => {
                tracing::warn!(target: LOG, "{error}; this node is a spare again");
            }
            other => return Ok(other?),
        }
    }
}

/// Waits for the loss of a task, unless one of those `before` is still lost; returns the others, too. `None`: a signal came
/// first.
async fn lost_task(
    args: &Args,
    budget: &Arc<Budget>,
    signals: &mut Signals,
    before: BTreeSet<Task>,
) -> Result<Option<(Task, BTreeSet<Task>)>, Stop> {
    if !args.mesh.open {
        args.mesh.own_key()?;
    }
    let config = NodeConfig { backend: args.backend, ..args.mesh.client() };
    let node = tokio::select! {
        node = Node::start_spare(config, Arc::clone(budget)) => node?,
        _ = signals.next() => return Ok(None),
    };
    output::line(&format!("spare peer={} waits for a task that is lost", node.peer()))?;
    let lost = tokio::select! {
        lost = node.lost_task(before) => Some(lost?),
        _ = signals.next() => None,
    };
    // The name is free for this process only once nobody takes it for a client that is still there.
    let _late = tokio::time::timeout(LEAVE_LIMIT, node.close()).await;
    Ok(lost)
}
