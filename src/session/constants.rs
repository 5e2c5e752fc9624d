//! The large constants of a session's graph: those that are sent to the master once each, and those that are kept by their
//! contents, which tasks take from here as they lack them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use meshtf_graph::plan::Plan;
use meshtf_graph::{Attr, Graph, NodeDef};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, Tensor};

use crate::protocol::constants::{MAX_INLINE_CONSTANT_BYTES, Reference, TakenOut, is_kept, substitute};
use crate::protocol::{Constants, Content};
use crate::runtime::weights::{Weights, contents};

/// The constants of a session that tasks have from here, or may take.
#[derive(Default)]
pub struct SentConstants {
    /// Those that the master has.
    sent: Mutex<HashSet<Content>>,
    /// Those that tasks may take until the session ends.
    offered: Mutex<HashMap<Content, Tensor>>,
}

impl SentConstants {
    /// Takes the large constants out of nodes that are to be sent: their entries in the message, and the tensors that are sent
    /// with it because the master does not have them. Those that are kept by their contents are offered by `weights` for as long
    /// as this exists.
    pub fn take_out(&self, nodes: &mut [NodeDef], weights: &Weights) -> (Constants, Vec<Tensor>) {
        let kept = self.offer(nodes, weights);
        let mut taken = TakenOut::of(&mut [nodes], |_, _, constant| Some(Content::of(constant)));
        taken.kept = kept;
        let sent = self.lock();
        taken.without(|content| sent.contains(content))
    }

    /// Notes that the master has these now.
    pub fn came(&self, constants: Vec<Content>) {
        self.lock().extend(constants);
    }

    /// Replaces the constants that are kept by their contents by substitutes.
    fn offer(&self, nodes: &mut [NodeDef], weights: &Weights) -> Vec<Reference> {
        let (mut places, mut values) = (Vec::new(), Vec::new());
        for (def, node) in nodes.iter_mut().zip(0..) {
            for (attr, value) in &mut def.attrs.0 {
                if let Attr::Tensor(constant) = &*value
                    && is_kept(constant)
                    && let Ok(substitute) = substitute(constant)
                {
                    places.push((node, attr.clone()));
                    values.push(constant.clone());
                    *value = substitute;
                }
            }
        }
        let contents = contents(&values);
        lock(&self.offered).extend(weights.note(contents.iter().copied().zip(values)));
        let references = places.into_iter().zip(contents);
        references.map(|((node, attr), content)| Reference { piece: 0, node, attr, content }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Content>> {
        lock(&self.sent)
    }
}

/// Replaces the elements of large constants by a single value, since a plan depends on their dtype and shape alone.
pub fn leave_out_elements(nodes: &mut [NodeDef]) {
    for value in nodes.iter_mut().flat_map(|node| node.attrs.0.values_mut()) {
        if let Attr::Tensor(constant) = value
            && constant.byte_len() > MAX_INLINE_CONSTANT_BYTES
            && constant.dtype() != DType::String
            && let Ok(substitute) = substitute(constant)
        {
            *value = substitute;
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
    fn what_the_master_has_is_not_sent_again() {
        let sent = SentConstants::default();
        let mut nodes = vec![
            constant("small", vector(4, 1i32)),
            constant("one", vector(2000, 1i32)),
            constant("same", vector(2000, 1i32)),
            constant("other_type", vector(2000, 1u32)),
            constant("other_shape", vector(2000, 1i32).reshaped([40, 50]).unwrap()),
        ];
        let weights = Weights::in_memory();
        let (constants, tensors) = sent.take_out(&mut nodes.clone(), &weights);
        assert_eq!((constants.references.len(), tensors.len()), (4, 3));
        // It is not known yet whether the master took it.
        assert_eq!(sent.take_out(&mut nodes.clone(), &weights).1.len(), 3);
        sent.came(constants.beside);
        nodes.push(constant("new", vector(2000, 2i32)));
        let (constants, tensors) = sent.take_out(&mut nodes, &weights);
        assert_eq!((constants.references.len(), constants.beside.len()), (5, 1));
        assert_eq!(tensors, [vector(2000, 2i32)]);
    }

    #[test]
    fn equal_constants_of_separate_memory_are_offered_when_the_graph_is_gone() {
        let (sent, weights) = (SentConstants::default(), Weights::in_memory());
        let content = Content::of(&vector(20_000, 2.5f32));
        let mut nodes = ["a", "b"].map(|name| constant(name, vector(20_000, 2.5f32)));
        drop(sent.take_out(&mut nodes, &weights));
        assert!(weights.at_hand(&content).is_some());
        // Another session with a model of its own: it still offers when the first has ended.
        let other = SentConstants::default();
        drop(other.take_out(&mut [constant("a", vector(20_000, 2.5f32))], &weights));
        drop(sent);
        assert!(weights.at_hand(&content).is_some());
        drop(other);
        assert!(weights.at_hand(&content).is_none());
    }

    #[test]
    fn what_is_kept_by_its_content_is_offered_until_the_session_ends() {
        let (sent, weights) = (SentConstants::default(), Weights::in_memory());
        let large = vector(20_000, 1.5f32);
        let content = Content::of(&large);
        let mut nodes = vec![constant("a", large.clone()), constant("small", vector(16_000, 1.5f32))];
        nodes.push(constant("b", large));
        let (constants, tensors) = sent.take_out(&mut nodes, &weights);
        assert_eq!((constants.references.len(), tensors.len(), constants.kept.len()), (1, 1, 2));
        assert!(constants.kept.iter().map(|kept| (kept.node, kept.content)).eq([(0, content), (2, content)]));
        let kept = constants.all_kept(&mut [&mut nodes[..]]).unwrap();
        assert_eq!((kept.len(), kept[0].node.as_str(), kept[0].bytes()), (1, "a", 80_000));
        let offered = weights.at_hand(&content).unwrap();
        constants.fill(&mut [&mut nodes[..]], &[(content, offered)].into()).unwrap();
        assert_eq!(nodes[2].attrs.tensor("value").unwrap(), &vector(20_000, 1.5f32));
        drop((sent, nodes));
        assert!(weights.at_hand(&content).is_none());
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
