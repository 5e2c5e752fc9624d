//! Evaluations: on another worker than the first, where a training continues without workers that are lost; and of examples that
//! are stored on the worker.
//!
//! In mode async, each worker's replica evaluates as that of the first does. With `backup`, a replica reads the variables once
//! its worker has a token, so each further worker has more copies of the nodes that evaluations need. Replicas take examples from
//! their queues, so for files on the workers each that may evaluate has copies of the nodes that depend on examples, which
//! take them from the files.

use std::collections::HashSet;

use meshtf_graph::{NodeDef, NodeId, split_tensor_name};
use meshtf_tensor::failure::Result;

use super::replicas::{Replicas, dependent, output_of, pass_on, prefix_of, rename};
use super::worker_file::Held;
use crate::file::UpdateMode;

/// The names of what evaluations feed and fetch.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere {
    /// The nodes of which each further worker has a copy.
    copied: HashSet<String>,
    is_apart: bool,
    /// The nodes of which each worker has a copy that takes examples from its files.
    reading: HashSet<String>,
}

impl Elsewhere {
    /// The name of a tensor of the model on a worker.
    pub fn named(&self, tensor: &str, worker: usize) -> String {
        let (name, port) = split_tensor_name(tensor);
        let prefix = match worker {
            _ if self.reading.contains(name) => apart(worker),
            1.. if self.copied.contains(name) && self.is_apart => apart(worker),
            1.. if self.copied.contains(name) => prefix_of(worker),
            _ => return tensor.to_owned(),
        };
        let name = prefix + name;
        output_of(name, port)
    }
}

/// The prefix of the names of nodes that evaluate on a worker, and do nothing else.
fn apart(worker: usize) -> String {
    format!("train/evaluation_{worker}/")
}

impl Replicas<'_> {
    /// The names for evaluations of some tensors of the model, and the nodes to be added for them. `held`: the examples that
    /// are stored on each worker, part by part.
    ///
    /// # Errors
    /// InvalidArgument for a device that cannot be read.
    pub fn elsewhere(&self, tensors: &[&str], held: &[Vec<Option<Held>>]) -> Result<(Elsewhere, Vec<NodeDef>)> {
        let is_apart = self.train.backup > 0;
        let is_anywhere = is_apart || self.train.mode == UpdateMode::Async;
        let needed = self.needed(tensors);
        let is_copied = |id: NodeId| is_anywhere && self.is_copied[id.index()] && (needed[id.index()] || !is_apart);
        let are_there = held.iter().flatten().any(Option::is_some);
        let parts = self.parts.iter().filter(|_| are_there).filter_map(|part| self.graph.find(&part.name));
        let depends = dependent(self.graph, &[], parts.collect());
        let reads = |id: NodeId| depends[id.index()] && needed[id.index()];
        let names = |is_one: &dyn Fn(NodeId) -> bool| -> HashSet<String> {
            self.graph.nodes().filter(|(id, _)| is_one(*id)).map(|(_, node)| node.name.clone()).collect()
        };
        let elsewhere = Elsewhere { copied: names(&is_copied), is_apart, reading: names(&reads) };
        let (all, mut defs) = (self.graph.to_defs(), Vec::new());
        for worker in 0..if is_anywhere { self.count() } else { 1 } {
            let named = |tensor: &str| elsewhere.named(tensor, worker);
            let is_own = |id: NodeId| reads(id) || is_apart && worker > 0 && is_copied(id);
            for ((_, node), def) in self.graph.nodes().zip(&all).filter(|((id, _), _)| is_own(*id)) {
                let mut def = NodeDef { name: named(&def.name), ..def.clone() };
                if self.train.workers > 0 {
                    def.device = self.on_worker(&def.device, worker)?;
                }
                rename(&mut def, named);
                let part = self.parts.iter().zip(held.get(worker).into_iter().flatten());
                let mut part = part.filter_map(|(part, held)| Some((part, held.as_ref()?)));
                if let Some((part, held)) = part.find(|(part, _)| part.name == node.name) {
                    pass_on(&mut def, held.all.clone(), part.dtype);
                }
                defs.push(def);
            }
        }
        Ok((elsewhere, defs))
    }

    /// By node: whether some tensors need it.
    fn needed(&self, tensors: &[&str]) -> Vec<bool> {
        let mut needed = vec![false; self.graph.len()];
        let mut open: Vec<NodeId> =
            tensors.iter().filter_map(|name| Some(self.graph.output(name).ok()?.node)).collect();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut needed[id.index()], true) {
                open.extend(self.graph.node(id).sources());
            }
        }
        needed
    }
}
