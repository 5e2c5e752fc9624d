//! Evaluations on another worker than the first, where a training continues without workers that are lost.
//!
//! In mode async, each worker's replica evaluates as that of the first does. With `backup`, a replica reads the variables once
//! its worker has a token, so each further worker has more copies of the nodes that evaluations need.

use std::collections::HashSet;

use meshtf_graph::{NodeDef, NodeId, split_tensor_name};
use meshtf_tensor::failure::Result;

use super::replicas::{Replicas, prefix_of, renamed_classes};
use crate::file::UpdateMode;

/// The names of what evaluations feed and fetch, on workers other than the first.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere {
    /// The nodes of which each worker has a copy.
    copied: HashSet<String>,
    is_apart: bool,
}

impl Elsewhere {
    /// The name of a tensor of the model on a worker.
    pub fn named(&self, tensor: &str, worker: usize) -> String {
        let (name, port) = split_tensor_name(tensor);
        if worker == 0 || !self.copied.contains(name) {
            return tensor.to_owned();
        }
        let name = prefix(self.is_apart, worker) + name;
        if port == 0 { name } else { format!("{name}:{port}") }
    }
}

fn prefix(is_apart: bool, worker: usize) -> String {
    if is_apart { format!("train/evaluation_{worker}/") } else { prefix_of(worker) }
}

impl Replicas<'_> {
    /// The names for evaluations of some tensors of the model, and the nodes to be added for them.
    ///
    /// # Errors
    /// InvalidArgument for a device that cannot be read.
    pub fn elsewhere(&self, tensors: &[&str]) -> Result<(Elsewhere, Vec<NodeDef>)> {
        let nodes = || self.graph.nodes();
        let is_apart = self.train.backup > 0;
        if !is_apart {
            let is_any = self.train.mode == UpdateMode::Async;
            let copied = nodes().filter(|(id, _)| is_any && self.is_copied[id.index()]);
            let copied = copied.map(|(_, node)| node.name.clone()).collect();
            return Ok((Elsewhere { copied, is_apart }, Vec::new()));
        }
        let mut needed = vec![false; self.graph.len()];
        let mut open: Vec<NodeId> =
            tensors.iter().filter_map(|name| Some(self.graph.output(name).ok()?.node)).collect();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut needed[id.index()], true) {
                open.extend(self.graph.node(id).sources());
            }
        }
        let is_own = |id: NodeId| needed[id.index()] && self.is_copied[id.index()];
        let copied = nodes().filter(|(id, _)| is_own(*id)).map(|(_, node)| node.name.clone()).collect();
        let elsewhere = Elsewhere { copied, is_apart };
        let (all, mut defs) = (self.graph.to_defs(), Vec::new());
        for worker in 1..self.count() {
            let named = |tensor: &str| elsewhere.named(tensor, worker);
            for (_, def) in nodes().zip(&all).filter(|((id, _), _)| is_own(*id)) {
                let mut def = NodeDef { name: named(&def.name), ..def.clone() };
                def.device = self.on_worker(&def.device, worker)?;
                for input in &mut def.inputs {
                    *input = match input.strip_prefix('^') {
                        Some(name) => format!("^{}", named(name)),
                        None => named(input),
                    };
                }
                renamed_classes(&mut def, named);
                defs.push(def);
            }
        }
        Ok((elsewhere, defs))
    }
}
