//! A plan as a picture for people: boxes, each some nodes of one device, and arrows between them. Bounded in size for any plan.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use meshtf_tensor::device::DeviceName;
use serde::{Deserialize, Serialize};

use super::{PieceNode, PieceOp, Plan};

/// Most boxes of a picture; the nodes of a larger plan share boxes, first those whose names have most in common.
pub const MAX_BOXES: usize = 160;
/// Most arrows of a picture.
pub const MAX_ARROWS: usize = 480;
/// Most components of a name, `a/b/c`, by which nodes are distinguished.
const MAX_DEPTH: usize = 8;

/// The picture of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// The devices, in the order of the plan's pieces.
    pub devices: Vec<DeviceName>,
    /// The boxes, device by device; within one device, a box comes after those that it takes values from, unless there is a
    /// loop.
    pub boxes: Vec<NodeBox>,
    /// Nodes in no box, because there would be too many boxes.
    pub more_nodes: u64,
    /// The arrows: at most one between two boxes in each direction.
    pub arrows: Vec<Arrow>,
    /// The number of further arrows.
    pub more_arrows: u64,
}

/// Some nodes of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBox {
    /// The node's name, or the common beginning of the names of several.
    pub name: String,
    /// Their op; empty if the ops differ.
    pub op: String,
    /// The number of nodes.
    pub nodes: u64,
    /// An index into [`Picture::devices`].
    pub device: u32,
}

/// Values or control edges between the nodes of two boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrow {
    /// An index into [`Picture::boxes`].
    pub from: u32,
    /// An index into [`Picture::boxes`].
    pub to: u32,
    /// The bytes that a step transfers if the boxes are on two devices, counting transfers of known size.
    pub bytes: u64,
}

/// A node of the plan: the index of its piece, and its index in that piece.
type At = (usize, usize);

impl Plan {
    /// The picture of the plan.
    pub fn picture(&self) -> Picture {
        let all = || {
            let of_piece = |(p, piece): (usize, &'_ super::Piece)| (0..piece.nodes.len()).map(move |n| (p, n));
            self.pieces.iter().enumerate().flat_map(of_piece)
        };
        let drawn: Vec<At> = all().filter(|&at| self.words(at).is_some()).collect();
        let keys = self.keys(&drawn);
        let mut picture =
            Picture { devices: self.pieces.iter().map(|piece| piece.device.clone()).collect(), ..Picture::default() };
        let mut places: HashMap<(usize, &str), u32> = HashMap::new();
        let mut box_of: HashMap<At, u32> = HashMap::new();
        for (&at, key) in drawn.iter().zip(&keys) {
            let (_, op) = self.words(at).unwrap_or_default();
            if let Some(&place) = places.get(&(at.0, *key)) {
                let of = &mut picture.boxes[place as usize];
                of.nodes += 1;
                if of.op != op {
                    of.op.clear();
                }
                box_of.insert(at, place);
            } else if picture.boxes.len() < MAX_BOXES {
                let place = picture.boxes.len() as u32;
                places.insert((at.0, key), place);
                box_of.insert(at, place);
                let (name, op) = ((*key).to_owned(), op.to_owned());
                picture.boxes.push(NodeBox { name, op, nodes: 1, device: at.0 as u32 });
            } else {
                picture.more_nodes += 1;
            }
        }
        let arrows = self.arrows(&drawn, &box_of);
        picture.more_arrows = arrows.len().saturating_sub(MAX_ARROWS) as u64;
        let arrows = arrows.into_iter().take(MAX_ARROWS);
        picture.arrows = arrows.map(|((from, to), bytes)| Arrow { from, to, bytes }).collect();
        picture
    }

    fn node(&self, (piece, node): At) -> &PieceNode {
        &self.pieces[piece].nodes[node]
    }

    /// The name and the op of a node in the picture.
    fn words(&self, at: At) -> Option<(&str, &str)> {
        let PieceNode { name, op, .. } = self.node(at);
        match op {
            PieceOp::Op(op) => Some((name, op)),
            PieceOp::Feed(_) => Some((name.strip_prefix("_Feed/").unwrap_or(name), "Feed")),
            PieceOp::Fetch(_) | PieceOp::Send { .. } | PieceOp::Recv { .. } => None,
        }
    }

    /// The key of each node's box: the longest beginning of its name that leaves few enough boxes; its op, if even the first
    /// component leaves too many.
    fn keys(&self, drawn: &[At]) -> Vec<&str> {
        let words = |&at: &At| self.words(at).unwrap_or_default();
        let keys = |depth: usize| -> Vec<&str> { drawn.iter().map(|at| beginning(words(at).0, depth)).collect() };
        let count = |keys: &[&str]| drawn.iter().map(|at| at.0).zip(keys).collect::<BTreeSet<_>>().len();
        let found = (1..=MAX_DEPTH).rev().map(keys).find(|keys| count(keys) <= MAX_BOXES);
        found.unwrap_or_else(|| drawn.iter().map(|at| words(at).1).collect())
    }

    /// The arrows from box to box, with the transferred bytes.
    fn arrows(&self, drawn: &[At], box_of: &HashMap<At, u32>) -> BTreeMap<(u32, u32), u64> {
        let mut sent: HashMap<u32, At> = HashMap::new();
        for (p, piece) in self.pieces.iter().enumerate() {
            for (n, node) in piece.nodes.iter().enumerate() {
                if let PieceOp::Send { transfer, .. } = node.op {
                    sent.insert(transfer, (p, n));
                }
            }
        }
        let before = |at: At| {
            let node = self.node(at);
            node.inputs.iter().map(|input| input.0).chain(node.control.iter().copied()).map(move |n| (at.0, n as usize))
        };
        let mut arrows = BTreeMap::new();
        let mut counted = BTreeSet::new();
        for &at in drawn {
            let Some(&to) = box_of.get(&at) else { continue };
            for from in before(at) {
                let transfer = match self.node(from).op {
                    PieceOp::Recv { transfer, .. } => Some(transfer),
                    _ => None,
                };
                let sources: Vec<At> = match transfer.and_then(|transfer| sent.get(&transfer)) {
                    Some(&send) => before(send).collect(),
                    None => vec![from],
                };
                for from in sources.iter().filter_map(|from| box_of.get(from)).filter(|&&from| from != to) {
                    let bytes = arrows.entry((*from, to)).or_insert(0u64);
                    if let Some(transfer) = transfer.filter(|&transfer| counted.insert((transfer, *from, to))) {
                        *bytes += self.transfers[transfer as usize].bytes.unwrap_or(0);
                    }
                }
            }
        }
        arrows
    }
}

/// The first components of a name: of `a/b/c` and 2, `a/b`.
fn beginning(name: &str, depth: usize) -> &str {
    name.match_indices('/').nth(depth - 1).map_or(name, |(end, _)| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::super::{PlanOptions, Signature, plan};
    use super::*;
    use crate::{Graph, read};
    use meshtf_tensor::device::{DeviceFacts, DeviceKind, Task};

    fn picture(nodes: &str, feed: &str, fetch: &str) -> Picture {
        let text = format!(r#"{{"version": 1, "nodes": {{{nodes}}}}}"#);
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let device = |task: u32| Task::new("t", task).device(DeviceKind::Cpu, 0);
        let signature = Signature { feeds: vec![feed.into()], fetches: vec![fetch.into()], ..Signature::default() };
        let options = PlanOptions { default_device: device(0), soft_placement: false, by_cost: None };
        let devices = [0, 1].map(|task| DeviceFacts::unknown(device(task)));
        plan(&graph, &devices, &signature, &options).unwrap().picture()
    }

    const X: &str =
        r#""x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [3]}, "device": "/job:t/task:0"}"#;

    #[test]
    fn a_small_plan_has_a_box_for_each_node_and_arrows_across_devices() {
        let rest = r#""y": {"op": "Neg", "inputs": ["x"], "device": "/job:t/task:0"},
            "z": {"op": "Mul", "inputs": ["y", "y"], "control": ["x"], "device": "/job:t/task:1"}"#;
        let picture = picture(&format!("{X}, {rest}"), "x", "z");
        let boxes: Vec<_> =
            picture.boxes.iter().map(|one| (&one.name[..], &one.op[..], one.nodes, one.device)).collect();
        assert_eq!(boxes, [("x", "Feed", 1, 0), ("y", "Neg", 1, 0), ("z", "Mul", 1, 1)]);
        let arrow = |from, to, bytes| Arrow { from, to, bytes };
        // Three numbers of four bytes leave the device; z waits for nothing that y did not wait for.
        assert!(picture.arrows.contains(&arrow(0, 1, 0)), "{:?}", picture.arrows);
        assert!(picture.arrows.contains(&arrow(1, 2, 12)), "{:?}", picture.arrows);
        assert_eq!((picture.more_nodes, picture.more_arrows), (0, 0));
    }

    #[test]
    fn the_nodes_of_a_large_plan_share_boxes() {
        let chain = |name: fn(usize) -> String, count: usize| {
            let node = |i: usize| {
                let input = if i == 0 { "x".to_owned() } else { name(i - 1) };
                format!(
                    r#""{}": {{"op": "{}", "inputs": ["{input}"]}}"#,
                    name(i),
                    if i.is_multiple_of(2) { "Neg" } else { "Exp" }
                )
            };
            let nodes: Vec<String> = (0..count).map(node).collect();
            picture(&format!("{X}, {}", nodes.join(", ")), "x", &name(count - 1))
        };
        // Ten layers of a hundred nodes are ten boxes, and the feed.
        let layers = chain(|i| format!("layer{}/n{i}", i / 100), 1000);
        let boxes: Vec<_> = layers.boxes.iter().map(|one| (&one.name[..], one.nodes)).collect();
        assert_eq!((boxes.len(), boxes[1], boxes[10]), (11, ("layer0", 100), ("layer9", 100)));
        assert_eq!(layers.arrows.len(), 10);
        // If the names do not distinguish the nodes, the ops do.
        let flat = chain(|i| format!("n{i}"), 1000);
        let boxes: Vec<_> = flat.boxes.iter().map(|one| (&one.name[..], &one.op[..], one.nodes)).collect();
        assert_eq!(boxes, [("Feed", "Feed", 1), ("Neg", "Neg", 500), ("Exp", "Exp", 500)]);
    }

    #[test]
    fn a_name_has_components() {
        for (depth, want) in [(1, "a"), (2, "a/b"), (3, "a/b/c"), (4, "a/b/c")] {
            assert_eq!(beginning("a/b/c", depth), want);
        }
    }
}
