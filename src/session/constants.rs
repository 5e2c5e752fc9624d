//! The large constants of a session's graph, which are sent to the master once each.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use meshtf_graph::plan::Plan;
use meshtf_graph::{Attr, Filled, Graph, NodeDef};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{Data, Tensor};

use crate::protocol::constants::{MAX_INLINE_CONSTANT_BYTES, TakenOut};
use crate::protocol::{Constants, Content};

/// Goes into each hash first, so that no other use of the same hash function yields the same hashes.
const CONTEXT: &str = "meshtf 2026 constant";

/// The constants of a session that the master has.
#[derive(Default)]
pub struct SentConstants(Mutex<HashSet<Content>>);

impl SentConstants {
    /// Takes the large constants out of nodes that are to be sent: their entries in the message, and the tensors that are sent
    /// with it because the master does not have them.
    pub fn take_out(&self, nodes: &mut [NodeDef]) -> (Constants, Vec<Tensor>) {
        let taken = TakenOut::of(&mut [nodes], |_, _, constant| Some(content(constant)));
        let sent = self.lock();
        taken.without(|content| sent.contains(content))
    }

    /// Notes that the master has these now.
    pub fn came(&self, constants: Vec<Content>) {
        self.lock().extend(constants);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Content>> {
        lock(&self.0)
    }
}

/// The identity of a constant: the hash of its dtype, shape and elements.
fn content(constant: &Tensor) -> Content {
    let mut hash = blake3::Hasher::new_derive_key(CONTEXT);
    let mut number = |number: usize| {
        hash.update(&(number as u64).to_le_bytes());
    };
    number(constant.dtype() as usize);
    number(constant.rank());
    constant.dims().iter().for_each(|&size| number(size));
    match constant.data() {
        Data::String(strings) => strings.iter().for_each(|string| {
            hash.update(&(string.len() as u64).to_le_bytes());
            hash.update(string);
        }),
        elements => {
            hash.update(elements.bytes().unwrap_or_default());
        }
    }
    Content(*hash.finalize().as_bytes())
}

/// Replaces the elements of large constants by a single value, since a plan depends on their dtype and shape alone.
pub fn leave_out_elements(nodes: &mut [NodeDef]) {
    for value in nodes.iter_mut().flat_map(|node| node.attrs.0.values_mut()) {
        if let Attr::Tensor(constant) = value
            && constant.byte_len() > MAX_INLINE_CONSTANT_BYTES
            && !matches!(constant.data(), Data::String(_))
            && let Ok(filled) = Filled::new(constant.element(0), constant.shape().clone())
        {
            *value = Attr::Filled(filled);
        }
    }
}

/// Restores the elements of the graph's constants in a plan that was made without them.
pub fn put_back_elements(plan: &mut Plan, graph: &Graph) {
    for node in plan.pieces.iter_mut().flat_map(|piece| &mut piece.nodes) {
        let Some(id) = graph.find(&node.name) else { continue };
        for (name, value) in &mut node.attrs.0 {
            if let (Attr::Filled(_), Some(stated @ Attr::Tensor(_))) = (&*value, graph.node(id).attrs.get(name)) {
                *value = stated.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;
    use crate::LocalCluster;
    use crate::protocol::SessionOptions;
    use meshtf_engine::adapters::BackendChoice;
    use meshtf_graph::plan::{PlanOptions, Signature, plan};
    use meshtf_graph::{Attrs, read};
    use meshtf_tensor::Element;
    use meshtf_tensor::device::{DeviceKind, Task};

    fn constant(name: &str, value: Tensor) -> NodeDef {
        let attrs = Attrs::from([("value", Attr::Tensor(value))]);
        NodeDef { name: name.to_owned(), op: "Const".to_owned(), attrs, ..NodeDef::default() }
    }

    fn vector<T: Element>(count: usize, value: T) -> Tensor {
        Tensor::vector(vec![value; count])
    }

    #[test]
    fn a_content_is_the_hash_of_type_shape_and_elements() {
        let number = |number: u64| number.to_le_bytes().to_vec();
        let hash = |parts: &[Vec<u8>]| Content(blake3::derive_key(CONTEXT, &parts.concat()));
        let value = Tensor::from_vec([2, 1], vec![1i16, -2]);
        // int16 is the sixth dtype; its rank, its sizes, its elements.
        assert_eq!(content(&value), hash(&[number(5), number(2), number(2), number(1), vec![1, 0, 0xfe, 0xff]]));
        let strings = Tensor::vector(vec![b"ab".to_vec(), vec![]]);
        let parts = [number(13), number(1), number(2), number(2), b"ab".to_vec(), number(0)];
        assert_eq!(content(&strings), hash(&parts));
    }

    #[test]
    fn what_the_master_has_is_not_sent_again() {
        let sent = SentConstants::default();
        let mut nodes = vec![
            constant("small", vector(4, 1i32)),
            constant("one", vector(2000, 1i32)),
            constant("same", vector(2000, 1i32)),
            constant("other_type", vector(2000, 1u32)),
            constant("other_shape", vector(2000, 1i32).reshaped([40, 50]).unwrap()),
        ];
        let (constants, tensors) = sent.take_out(&mut nodes.clone());
        assert_eq!((constants.references.len(), tensors.len()), (4, 3));
        // It is not known yet whether the master took it.
        assert_eq!(sent.take_out(&mut nodes.clone()).1.len(), 3);
        sent.came(constants.beside);
        nodes.push(constant("new", vector(2000, 2i32)));
        let (constants, tensors) = sent.take_out(&mut nodes);
        assert_eq!((constants.references.len(), constants.beside.len()), (5, 1));
        assert_eq!(tensors, [vector(2000, 2i32)]);
    }

    #[tokio::test]
    async fn a_plan_is_explained_without_elements_as_it_is_made_with_them() {
        // One that is copied to each device that uses it, and one that is too large for that.
        let text = r#"{ "version": 1, "nodes": {
            "sum_0": { "op": "AddV2", "inputs": ["copied", "sent"], "device": "/job:local/task:0" },
            "sum_1": { "op": "AddV2", "inputs": ["copied", "sent"], "device": "/job:local/task:1" },
            "copied": 1.0, "sent": 2.0 } }"#;
        let mut nodes = read(text.as_bytes()).unwrap().nodes;
        for node in &mut nodes {
            match node.name.as_str() {
                "copied" => node.attrs.set("value", vector(3000, 1.5f32).into()),
                "sent" => node.attrs.set("value", Tensor::from_vec([10, 3000], vec![0.5f32; 30_000]).into()),
                _ => {}
            }
        }
        let mut left_out = nodes.clone();
        leave_out_elements(&mut left_out);
        let count = |nodes: &[NodeDef]| nodes.iter().filter(|node| node.attrs.tensor("value").is_ok()).count();
        assert_eq!((count(&nodes), count(&left_out)), (2, 0));

        let tasks = [Task::new("local", 0), Task::new("local", 1)];
        let cluster = LocalCluster::start(&tasks, BackendChoice::Flex).unwrap();
        let graph = Graph::new(nodes).unwrap();
        let fetches = vec!["sum_0".to_owned(), "sum_1".to_owned()];
        let signature = Signature { fetches, ..Signature::default() };
        let explained = cluster.explain(&graph, &tasks[0], signature.clone(), SessionOptions::default()).await.unwrap();
        let options =
            PlanOptions { default_device: tasks[0].device(DeviceKind::Cpu, 0), soft_placement: false, by_cost: None };
        assert_eq!(explained, plan(&graph, &cluster.cluster().facts(), &signature, &options).unwrap());
        assert_eq!(explained.transfers.len(), 1, "only the large one crosses");
    }
}
