//! The order of a graph's nodes, and those that are in loops.

use std::collections::BTreeSet;

use crate::op::Role;
use crate::{Graph, NodeId};

/// The nodes in topological order, those that are ready in the graph's order; nodes of a cycle that is no loop at the end.
pub(super) fn in_order(graph: &Graph) -> Vec<NodeId> {
    let mut open = vec![0u32; graph.len()];
    let mut consumers: Vec<Vec<u32>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        let values = node.inputs.iter().map(|input| input.node);
        for from in values
            .filter(|&from| !graph.node(from).op.role.leads_back(node.op.role))
            .chain(node.control.iter().copied())
        {
            open[id.index()] += 1;
            consumers[from.index()].push(id.0);
        }
    }
    let mut order = Vec::with_capacity(graph.len());
    let mut ready: BTreeSet<u32> = (0..graph.len() as u32).filter(|&id| open[id as usize] == 0).collect();
    let mut is_done = vec![false; graph.len()];
    while let Some(id) = ready.pop_first() {
        is_done[id as usize] = true;
        order.push(NodeId(id));
        for &to in &consumers[id as usize] {
            open[to as usize] -= 1;
            if open[to as usize] == 0 {
                ready.insert(to);
            }
        }
    }
    order.extend((0..graph.len() as u32).filter(|&id| !is_done[id as usize]).map(NodeId));
    order
}

/// Whether each node is in a loop of Enter and Exit, or at its border.
pub(super) fn in_loops(graph: &Graph, order: &[NodeId]) -> Vec<bool> {
    let mut inside = vec![false; graph.len()];
    // How deep the outputs of each node are in loops.
    let mut depth = vec![0u32; graph.len()];
    for &id in order {
        let node = graph.node(id);
        let before = node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied());
        let around = before.map(|from| depth[from.index()]).max().unwrap_or(0);
        depth[id.index()] = match node.op.role {
            Role::Enter => around + 1,
            Role::Exit => around.saturating_sub(1),
            _ => around,
        };
        inside[id.index()] = around > 0 || depth[id.index()] > 0;
    }
    inside
}
