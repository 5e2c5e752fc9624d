//! The totals of a plan by device: nodes, memory, transfers.

use std::collections::BTreeMap;

use meshtf_tensor::DType;
use meshtf_tensor::device::{DeviceFacts, DeviceMemory, DeviceName};

use super::{Piece, PieceOp, Plan};
use crate::op::{Role, lookup};
use crate::{Attrs, Graph, Output};

/// The load of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The number of nodes.
    pub nodes: u64,
    /// Bytes of the variables on it.
    pub variables: u64,
    /// The number of variables whose size is not known.
    pub unknown_variables: u64,
    /// Peak size in bytes of the values that it has at once in a step.
    pub peak: u64,
    /// The number of values whose size is not known.
    pub unknown_values: u64,
    /// Bytes that it sends in a step.
    pub sends: u64,
    /// Bytes that it receives in a step.
    pub receives: u64,
    /// The number of transfers whose size is not known.
    pub unknown_transfers: u64,
    /// The memory that it has, in bytes.
    pub memory: Option<DeviceMemory>,
}

impl Total {
    /// The bytes of variables and values of known size, if they exceed the memory of the device.
    pub fn over(&self) -> Option<u64> {
        let needed = self.variables.saturating_add(self.peak);
        self.memory.is_some_and(|memory| needed > memory.total).then_some(needed)
    }
}

/// The load of each device by a plan of this graph, with the memory that `facts` name. Unknown sizes count as 0 bytes.
pub fn totals(plan: &Plan, graph: &Graph, facts: &[DeviceFacts]) -> BTreeMap<DeviceName, Total> {
    let mut totals: BTreeMap<DeviceName, Total> = BTreeMap::new();
    for piece in &plan.pieces {
        let total = totals.entry(piece.device.clone()).or_default();
        (total.peak, total.unknown_values) = peak(piece, plan, graph);
    }
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
    for DeviceFacts { name, capacity, .. } in facts {
        if let Some(total) = totals.get_mut(name) {
            total.memory = capacity.memory;
        }
    }
    totals
}

/// Bytes of a variable's elements, if its shape and the size of its elements are known.
fn variable_bytes(attrs: &Attrs) -> Option<u64> {
    elements_bytes(attrs.dtype("dtype").ok()?, attrs.shape("shape").ok()?.0.as_ref()?)
}

/// Bytes of elements, if every size is known. The machine that plans does not need the memory for them.
fn elements_bytes(dtype: DType, sizes: &[Option<usize>]) -> Option<u64> {
    sizes.iter().try_fold(dtype.size()? as u64, |bytes, size| bytes.checked_mul((*size)? as u64))
}

/// Peak size in bytes of the values that a piece has at once if its nodes run one after the other, each once, and a value
/// exists until its last use; and the number of values whose size is not known. Constants and fetches stay to the end. A node
/// that passes a value on, or reads a variable, has none of its own.
fn peak(piece: &Piece, plan: &Plan, graph: &Graph) -> (u64, u64) {
    let count = piece.nodes.len();
    let mut unknown = 0;
    // The node that owns the value of each node, the bytes of its own value, and the node after which they are released.
    let mut owner: Vec<usize> = (0..count).collect();
    let mut own = vec![0u64; count];
    let mut last: Vec<usize> = (0..count).collect();
    for (at, node) in piece.nodes.iter().enumerate() {
        let op = match &node.op {
            PieceOp::Op(op) => lookup(op),
            _ => None,
        };
        let passes_on = op.is_some_and(|op| op.role.forwards());
        let first = node.inputs.first().map(|&(from, _)| from as usize).filter(|&from| from < at);
        match first.filter(|_| passes_on) {
            Some(from) => owner[at] = owner[from],
            None if passes_on || op.is_some_and(|op| op.reads_variable) => {}
            None => {
                for bytes in outputs(piece, at, plan, graph) {
                    match bytes {
                        Some(bytes) => own[at] = own[at].saturating_add(bytes),
                        None => unknown += 1,
                    }
                }
            }
        }
        let stays = matches!(node.op, PieceOp::Fetch(_));
        // An edge to an earlier node is of a loop's next iteration.
        for &(from, _) in node.inputs.iter().filter(|&&(from, _)| (from as usize) < at) {
            let of = owner[from as usize];
            last[of] = last[of].max(if stays { count } else { at });
        }
        if op.is_some_and(|op| op.role == Role::Const) {
            last[at] = count;
        }
    }
    let mut going: BTreeMap<usize, u64> = BTreeMap::new();
    let (mut now, mut most) = (0u64, 0u64);
    for at in 0..count {
        now = now.saturating_add(own[at]);
        most = most.max(now);
        if own[at] > 0 {
            let goes = going.entry(last[at].max(at)).or_default();
            *goes = goes.saturating_add(own[at]);
        }
        now = now.saturating_sub(going.remove(&at).unwrap_or(0));
    }
    (most, unknown)
}

/// The bytes of each output of a node of a piece that is a value; `None` of one whose size is not known.
fn outputs(piece: &Piece, at: usize, plan: &Plan, graph: &Graph) -> Vec<Option<u64>> {
    let node = &piece.nodes[at];
    let of = |tensor: Option<Output>, dtype: DType| match tensor {
        Some(output) => graph.shapes().of(output).0.and_then(|sizes| elements_bytes(dtype, &sizes)),
        None => None,
    };
    let is_value = |dtype: DType| !matches!(dtype, DType::Resource | DType::Variant);
    let outputs = node.outputs.iter().enumerate().filter(|(_, ty)| !ty.is_ref && is_value(ty.dtype));
    match &node.op {
        PieceOp::Fetch(_) | PieceOp::Send { .. } => Vec::new(),
        PieceOp::Recv { transfer, .. } => outputs.map(|_| plan.transfers[*transfer as usize].bytes).collect(),
        PieceOp::Feed(_) => {
            let fed = node.name.strip_prefix("_Feed/").and_then(|tensor| graph.output(tensor).ok());
            outputs.map(|(_, ty)| of(fed, ty.dtype)).collect()
        }
        PieceOp::Op(_) => {
            let id = graph.find(&node.name);
            outputs.map(|(port, ty)| of(id.map(|node| Output { node, port: port as u32 }), ty.dtype)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlanOptions, Signature, plan};
    use crate::read;
    use meshtf_tensor::device::{DeviceKind, Task};

    #[test]
    fn values_are_there_until_their_last_use() {
        // 1000 floats are fed; each of the chain is released when the next exists, except the fed ones, which the sum takes
        // last; the fetch stays.
        let text = r#"{"version": 1, "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [1000]}},
            "a": {"op": "Neg", "inputs": ["x"]}, "same": {"op": "Identity", "inputs": ["a"]},
            "b": {"op": "Exp", "inputs": ["same"]}, "c": {"op": "Neg", "inputs": ["b"]},
            "y": {"op": "Add", "inputs": ["c", "x"]},
            "s": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null]}}, "t": {"op": "Neg", "inputs": ["s"]}}}"#;
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let device = Task::new("t", 0).device(DeviceKind::Cpu, 0);
        let of = |feed: &str, fetch: &str| {
            let signature = Signature { feeds: vec![feed.into()], fetches: vec![fetch.into()], ..Signature::default() };
            let options = PlanOptions { default_device: device.clone(), soft_placement: false, by_cost: None };
            let plan = plan(&graph, &[DeviceFacts::unknown(device.clone())], &signature, &options).unwrap();
            let total = totals(&plan, &graph, &[]).remove(&device).unwrap();
            (total.peak, total.unknown_values)
        };
        // x, and two of the chain while one is computed of the other.
        assert_eq!(of("x", "y"), (12_000, 0));
        // x and a.
        assert_eq!(of("x", "a"), (8_000, 0));
        assert_eq!(of("s", "t"), (0, 2));
    }
}
