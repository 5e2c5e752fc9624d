//! The order of the turns of each stage: forward and backward computations of micro-batches, one after the other.
//!
//! 1F1B with a flush after each batch (PipeDream-Flush: Narayanan et al., 2021, arXiv:2006.09503): stage `s` of `S` begins with
//! `S - s` forward turns, and then a backward turn makes room for each further forward turn. So it has its own values of
//! `S - s` micro-batches at most. Control inputs keep the order: what begins a turn waits for what ends the one before.

use std::collections::{HashMap, HashSet};

use meshtf_graph::op::Role;
use meshtf_graph::variable::ops::on;
use meshtf_graph::{Graph, GraphBuilder, Node, NodeId, Output};
use meshtf_tensor::failure::Result;

use crate::numerics::within_flow;

/// A computation of a micro-batch in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The values of its nodes.
    Forward(usize),
    /// The gradients by its variables and by the values that it takes from the stages before.
    Backward(usize),
}

/// The turns of a stage.
pub(super) fn turns(stage: usize, stages: usize, microbatches: usize) -> Vec<Turn> {
    let ahead = (stages - stage).min(microbatches);
    let mut all: Vec<Turn> = (0..ahead).map(Turn::Forward).collect();
    for m in 0..microbatches {
        all.push(Turn::Backward(m));
        all.extend((ahead + m < microbatches).then_some(Turn::Forward(ahead + m)));
    }
    all
}

/// The stacks that a gradient adds around a loop: the loop of the forward turn puts its values into them, and may not wait for
/// the turns after it.
const STACKS: [&str; 2] = ["Stack", "StackV2"];

/// The nodes of a turn.
pub(super) type Nodes = Vec<NodeId>;

/// Adds nodes between the turns of a stage on this device, in their order. Returns which nodes must wait for which, by their
/// names.
///
/// An Identity is no end and no beginning of a turn: planning drops its waits, and it computes nothing. Nodes of loops are none
/// either, since they run more than once.
pub(super) fn in_order(g: &mut GraphBuilder, device: &str, turns: &[Nodes]) -> Result<Vec<(String, String)>> {
    g.settle()?;
    let graph = g.settled().clone();
    let inside = within_flow(&graph);
    let is_end = |id: NodeId| {
        let Node { op, .. } = graph.node(id);
        !inside[id.index()] && !matches!(op.role, Role::Forward | Role::Nothing | Role::Const)
    };
    let mut waits = Vec::new();
    let mut last: Option<Output> = None;
    for pair in turns.windows(2) {
        let ends = ends(&graph, &pair[0], is_end);
        let begins = begins(&graph, &pair[1], |id| {
            let op = graph.node(id).op;
            is_end(id) && !op.role.is_control_flow() && !STACKS.contains(&op.name)
        });
        let ended = on(g, device, |g| {
            let node = g.op("NoOp").name("train/turn_ended");
            let node = ends
                .into_iter()
                .chain(last.map(|last| last.node))
                .fold(node, |node, end| node.control(Output { node: end, port: 0 }));
            node.build()
        })?;
        let name = g.tensor_name(ended);
        waits.extend(begins.into_iter().map(|id| (graph.node(id).name.clone(), name.clone())));
        last = Some(ended);
    }
    Ok(waits)
}

/// The nodes of a turn that none of its other nodes takes a value of, or waits for.
fn ends(graph: &Graph, turn: &[NodeId], is_end: impl Fn(NodeId) -> bool) -> Nodes {
    let own: HashSet<NodeId> = turn.iter().copied().collect();
    let (mut open, mut followed): (Nodes, HashSet<NodeId>) =
        (turn.iter().copied().filter(|&id| is_end(id)).collect(), HashSet::new());
    while let Some(id) = open.pop() {
        for from in graph.node(id).sources().filter(|from| own.contains(from)) {
            if followed.insert(from) && !is_end(from) {
                open.push(from);
            }
        }
    }
    turn.iter().copied().filter(|id| is_end(*id) && !followed.contains(id)).collect()
}

/// The nodes of a turn that take no value of its other nodes, and wait for none.
fn begins(graph: &Graph, turn: &[NodeId], is_begin: impl Fn(NodeId) -> bool) -> Nodes {
    let mut users: HashMap<NodeId, Nodes> = turn.iter().map(|&id| (id, Nodes::new())).collect();
    for &id in turn {
        for from in graph.node(id).sources() {
            if let Some(users) = users.get_mut(&from) {
                users.push(id);
            }
        }
    }
    let (mut open, mut follows): (Nodes, HashSet<NodeId>) =
        (turn.iter().copied().filter(|&id| is_begin(id)).collect(), HashSet::new());
    while let Some(id) = open.pop() {
        for &to in &users[&id] {
            if follows.insert(to) && !is_begin(to) {
                open.push(to);
            }
        }
    }
    turn.iter().copied().filter(|id| is_begin(*id) && !follows.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in Figure 2 of the paper, for 4 stages and 4 micro-batches, and by hand.
    #[test]
    fn a_backward_turn_makes_room_for_a_forward_turn() {
        let shown = |turns: Vec<Turn>| {
            let one = |turn: Turn| match turn {
                Turn::Forward(m) => format!("F{m}"),
                Turn::Backward(m) => format!("B{m}"),
            };
            turns.into_iter().map(one).collect::<Vec<_>>().join(" ")
        };
        for (stage, stages, microbatches, wanted) in [
            (0, 4, 4, "F0 F1 F2 F3 B0 B1 B2 B3"),
            (1, 4, 4, "F0 F1 F2 B0 F3 B1 B2 B3"),
            (2, 4, 4, "F0 F1 B0 F2 B1 F3 B2 B3"),
            (3, 4, 4, "F0 B0 F1 B1 F2 B2 F3 B3"),
            (0, 2, 5, "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"),
            (0, 3, 2, "F0 F1 B0 B1"),
            (0, 1, 2, "F0 B0 F1 B1"),
        ] {
            assert_eq!(shown(turns(stage, stages, microbatches)), wanted, "{stage} of {stages}, {microbatches}");
        }
    }

    /// Played by hand: each turn takes one tick, and waits for the turn before and for those of the neighbours. The share of
    /// ticks in which a stage waits is the bubble.
    #[test]
    fn no_turn_waits_forever_and_the_bubble_is_that_of_the_formula() {
        for (stages, microbatches) in [(1, 1), (1, 4), (2, 1), (2, 4), (3, 2), (4, 8), (5, 3)] {
            let orders: Vec<Vec<Turn>> = (0..stages).map(|stage| turns(stage, stages, microbatches)).collect();
            let (mut next, mut done): (Vec<usize>, Vec<(usize, Turn)>) = (vec![0; stages], Vec::new());
            let (mut ticks, mut under_way) = (0, vec![0i64; stages]);
            while next.iter().zip(&orders).any(|(&at, order)| at < order.len()) {
                ticks += 1;
                assert!(ticks <= 2 * (microbatches + stages), "{stages} {microbatches}");
                let mut now = Vec::new();
                for stage in 0..stages {
                    let Some(&turn) = orders[stage].get(next[stage]) else { continue };
                    let is_ready = match turn {
                        Turn::Forward(_) => stage == 0 || done.contains(&(stage - 1, turn)),
                        Turn::Backward(m) if stage + 1 == stages => done.contains(&(stage, Turn::Forward(m))),
                        Turn::Backward(_) => done.contains(&(stage + 1, turn)),
                    };
                    if is_ready {
                        next[stage] += 1;
                        under_way[stage] += if matches!(turn, Turn::Forward(_)) { 1 } else { -1 };
                        assert!(under_way[stage] <= (stages - stage) as i64);
                        now.push((stage, turn));
                    }
                }
                done.extend(now);
            }
            let idle = 1.0 - 2.0 * microbatches as f64 / f64::from(ticks as u32);
            assert!(
                (idle - crate::file::bubble(stages, microbatches)).abs() < 1e-12,
                "{stages} {microbatches}: {ticks}"
            );
        }
    }
}
