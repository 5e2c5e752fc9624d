//! A bound of the distance between workers that make their own updates, as in stale synchronous parallel training (Ho et al.,
//! "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013).
//!
//! A worker gives each other worker a token once it has made its update, and its step ends once it has taken one from each. At
//! first there are `staleness` tokens of each worker for each, so a worker is at most as many steps ahead of the slowest when
//! its next step reads the variables.

use meshtf_graph::variable::Variable;
use meshtf_graph::variable::ops::on;
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;

use super::queue::tokens;
use super::updates::all_of;
use super::{Beside, Team};

/// Most steps that a worker may be ahead: the queues of tokens have room for more than twice as many.
pub(crate) const MOST_STALE: usize = 1024;

/// A node that makes the number of tokens of one worker for another that of the beginning.
#[derive(Clone, Debug)]
pub struct Level {
    /// The worker that gives them.
    pub from: usize,
    /// The worker that takes them.
    pub to: usize,
    /// The node to run.
    pub run: String,
}

/// Makes the step of each team, which is a worker alone, wait for the others. The tokens are with the first variable, whose
/// device takes part in each step anyway.
pub(super) fn bound(
    g: &mut GraphBuilder,
    teams: &mut [Team],
    variables: &[Variable],
    staleness: usize,
) -> Result<Beside> {
    let home = variables.first().map(|variable| variable.device.clone()).unwrap_or_default();
    let workers = teams.len();
    for (from, to) in pairs(workers) {
        g.extend(tokens(&token(from, to), &home))?;
    }
    let mut levels = Vec::with_capacity(workers * workers);
    let mut absent = vec![Vec::new(); workers];
    let first = Tensor::from_vec([staleness], vec![0i64; staleness]);
    on(g, &home, |g| {
        for (from, to) in pairs(workers) {
            let (queue, drop) = (of_queue(g, from, to, "/queue")?, of_queue(g, from, to, "/drain")?);
            let level = g.op("QueueEnqueueManyV2").input(queue).input(first.clone()).control(drop).build()?;
            levels.push(Level { from, to, run: g.tensor_name(level) });
            absent[from].push(give(g, queue)?);
            // Nobody else takes what it is given.
            absent[to].push(of_queue(g, from, to, "")?);
        }
        Ok(())
    })?;
    let mut homes: Vec<&str> = variables.iter().map(|variable| variable.device.as_str()).collect();
    homes.sort_unstable();
    homes.dedup();
    for (i, team) in teams.iter_mut().enumerate() {
        let mut all = vec![team.run];
        on(g, &home, |g| {
            for other in others(workers, i) {
                let queue = of_queue(g, i, other, "/queue")?;
                all.push(g.with_control(&[team.run], |g| give(g, queue))?);
                all.push(of_queue(g, other, i, "")?);
            }
            Ok(())
        })?;
        let ended = all_of(g, "train/step_and_tokens", &home, all)?;
        // A device begins its part of the next step when it has done that of this one.
        let mut ends = Vec::with_capacity(homes.len());
        for home in &homes {
            ends.push(all_of(g, "train/step_ended", home, [ended])?);
        }
        team.run = all_of(g, "train/step_of_bounded_staleness", &home, ends)?;
    }
    let names = |outputs: Vec<Output>| outputs.into_iter().map(|output| g.tensor_name(output)).collect();
    let absent = absent.into_iter().map(names).collect();
    Ok(Beside { levels, absent, ..Beside::default() })
}

/// Pairs of different workers: one that gives tokens, and one that takes them.
fn pairs(workers: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..workers).flat_map(move |from| others(workers, from).map(move |to| (from, to)))
}

/// The workers but one.
fn others(workers: usize, but: usize) -> impl Iterator<Item = usize> {
    (0..workers).filter(move |&other| other != but)
}

/// The name of the node that takes a token that worker `from` gave worker `to`.
fn token(from: usize, to: usize) -> String {
    format!("train/token_of_{from}_for_{to}")
}

/// A node of the queue of these tokens.
fn of_queue(g: &GraphBuilder, from: usize, to: usize, node: &str) -> Result<Output> {
    Ok(g.settled().output(&(token(from, to) + node))?)
}

/// Adds a node that gives a token.
fn give(g: &mut GraphBuilder, queue: Output) -> Result<Output> {
    g.op("QueueEnqueueV2").input(queue).input(Tensor::scalar(0i64)).build()
}
