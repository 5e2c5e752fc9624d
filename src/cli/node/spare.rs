//! `meshtf node --spare` and `--take-over`: waits until a task of the mesh is lost, and serves it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf::mesh::MeshError;
use meshtf::node::{Node, NodeConfig, NodeError};
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;
use tokio::sync::oneshot;

use super::{Args, Doors, LEAVE_LIMIT, LOG, Serving, Stop, named, serve_until};
use crate::cli::signals::Signals;
use crate::cli::{Exit, Outcome, Trouble, output};

/// The pause after a failure before the next lost task is looked for: doubled each time, up to the second.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Takes the name of one lost task after another: as long as it holds one, it is a node like any other. If somebody else takes
/// the name first, it waits for the next.
pub(super) async fn spare(args: &Args, budget: Arc<Budget>, signals: &mut Signals) -> Outcome {
    let says = |peer: &dyn Display| output::line(&format!("spare peer={peer} waits for a task that is lost"));
    let serves =
        async |task: &Task, signals: &mut Signals| named(args, task, Arc::clone(&budget), signals, async || {}).await;
    take_names(args, &budget, signals, says, serves).await
}

/// Serves a task, and beside it takes the name of a lost one, as a spare does.
pub(super) async fn beside(args: &Args, name: &Task, budget: Arc<Budget>, signals: &mut Signals) -> Outcome {
    let mut own_signals = Signals::listen()?;
    let (up, is_up) = oneshot::channel();
    let second = async {
        // Without it, the task does not serve.
        if is_up.await.is_err() {
            return;
        }
        let serves = async |task: &Task, signals: &mut Signals| {
            let listen = args.listen.iter().map(|address| at_free_port(address)).collect();
            let (backend, data) = (args.backend, args.data.clone());
            let config = NodeConfig { task: Some(task.clone()), backend, listen, data, ..args.mesh.client() };
            let (mesh, cache, budget) = (&args.mesh, args.cache.cache(), Arc::clone(&budget));
            let keeps = args.keep.every();
            let serving = Serving { task, mesh, budget, cache, keeps, config, expects_others: true };
            serve_until(serving, signals, async |_: &Arc<Node>| Ok(Doors::default()), std::future::pending()).await
        };
        let says = |_: &dyn Display| Ok(());
        let mut pause = None;
        loop {
            let since = Instant::now();
            // Without a failure, a signal came.
            let Err(trouble) = take_names(args, &budget, &mut own_signals, says, serves).await else { return };
            let next = pause_after(pause, since.elapsed());
            pause = Some(next);
            let name = name.short();
            tracing::warn!(target: LOG, "{name} takes no lost task over for {} s: {trouble}", next.as_secs());
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                _ = own_signals.next() => return,
            }
        }
    };
    let own = named(args, name, Arc::clone(&budget), signals, async || {
        let _gone = up.send(());
    });
    tokio::pin!(own, second);
    let mut is_over = false;
    let ended = loop {
        tokio::select! {
            ended = &mut own => break ended,
            () = &mut second, if !is_over => is_over = true,
        }
    };
    // The same signal ends both.
    if ended.is_ok() && !is_over {
        let _late = tokio::time::timeout(LEAVE_LIMIT, second).await;
    }
    Ok(ended?)
}

/// Takes the name of one lost task after another, and serves it.
async fn take_names(
    args: &Args,
    budget: &Arc<Budget>,
    signals: &mut Signals,
    says: impl Fn(&dyn Display) -> Result<(), Trouble>,
    serves: impl AsyncFn(&Task, &mut Signals) -> Result<Exit, Stop>,
) -> Outcome {
    let mut others = BTreeSet::new();
    loop {
        let Some((task, rest)) = lost_task(args, budget, signals, others, &says).await? else { return Ok(Exit::Ok) };
        others = rest;
        tracing::warn!(target: LOG, "{} was lost; this node takes its name", task.short());
        match serves(&task, signals).await {
            Err(Stop::Node(NodeError::Mesh(error @ MeshError::TaskTaken { .. }))) => {
                tracing::warn!(target: LOG, "{error}; this node waits for another lost task");
            }
            other => return Ok(other?),
        }
    }
}

/// The pause after a failure that came after this time, and the pause before it.
fn pause_after(before: Option<Duration>, lasted: Duration) -> Duration {
    let [first, longest] = PAUSES;
    before.filter(|_| lasted < longest).map_or(first, |before| longest.min(2 * before))
}

/// An address at the same host, at a port that is free: `HOST:PORT` or a multiaddr.
fn at_free_port(address: &str) -> String {
    if !address.starts_with('/') {
        return address.rsplit_once(':').map_or_else(|| address.to_owned(), |(host, _)| format!("{host}:0"));
    }
    let mut follows_protocol = false;
    let parts = address.split('/').map(|part| {
        let is_port = std::mem::replace(&mut follows_protocol, matches!(part, "tcp" | "udp"));
        if is_port { "0" } else { part }
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Waits for the loss of a task, unless one of those `before` is still lost; returns the others, too. `None`: a signal came
/// first.
async fn lost_task(
    args: &Args,
    budget: &Arc<Budget>,
    signals: &mut Signals,
    before: BTreeSet<Task>,
    says: impl Fn(&dyn Display) -> Result<(), Trouble>,
) -> Result<Option<(Task, BTreeSet<Task>)>, Stop> {
    if !args.mesh.open {
        args.mesh.own_key()?;
    }
    let config = NodeConfig { backend: args.backend, ..args.mesh.client() };
    let node = tokio::select! {
        node = Node::start_spare(config, Arc::clone(budget)) => node?,
        _ = signals.next() => return Ok(None),
    };
    says(&node.peer())?;
    let lost = tokio::select! {
        lost = node.lost_task(before) => Some(lost?),
        _ = signals.next() => None,
    };
    // The name is free for this process only once nobody takes it for a client that is still there.
    let _late = tokio::time::timeout(LEAVE_LIMIT, node.close()).await;
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_minute_and_begin_anew_after_one_that_held() {
        let mut pause = None;
        let seconds = [0, 0, 59, 1, 1, 1, 60, 0].map(|lasted| {
            let next = pause_after(pause, Duration::from_secs(lasted));
            pause = Some(next);
            next.as_secs()
        });
        assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 2, 4]);
    }

    #[test]
    fn a_second_task_listens_at_the_same_host_at_a_free_port() {
        for (given, free) in [
            ("127.0.0.1:4001", "127.0.0.1:0"),
            ("[::1]:4001", "[::1]:0"),
            ("a.example:4001", "a.example:0"),
            ("/ip4/10.0.0.7/tcp/4001", "/ip4/10.0.0.7/tcp/0"),
            ("/ip4/10.0.0.7/udp/4001/quic-v1", "/ip4/10.0.0.7/udp/0/quic-v1"),
        ] {
            assert_eq!(at_free_port(given), free);
        }
    }
}
