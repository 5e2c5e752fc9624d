//! A lower bound of the number of nodes that a call expands to, counted without making one: a few functions that call each
//! other twice are a few bytes and, expanded, more nodes than any graph has.

use std::collections::HashMap;

use prost::Message as _;

use super::expand::MAX_DEPTH;
use super::function::{FunctionCall, Functions, fill, is_caller};
use super::proto::{NameAttrList, NodeDef};

/// Most distinct calls of functions, by name and attributes, that are followed for the calls of one piece of a graph, and most
/// bytes of their messages.
const MAX_WAYS: usize = 1 << 16;
const MAX_WAY_BYTES: usize = 16 << 20;

/// Counts the nodes that calls expand to; each function once for each distinct call.
pub(super) struct Counter<'a> {
    functions: &'a Functions,
    /// The finished counts, by name and attributes.
    known: HashMap<Vec<u8>, usize>,
    known_bytes: usize,
    /// The number of body nodes that may still be visited.
    left: usize,
}

impl<'a> Counter<'a> {
    pub fn new(functions: &'a Functions, limit: usize) -> Self {
        Counter { functions, known: HashMap::new(), known_bytes: 0, left: limit }
    }

    /// The number of nodes that a call expands to, or a lower bound; `None` if that cannot be determined within the limits, and
    /// is therefore too many. An invalid call counts nothing: its expansion reports it.
    pub fn nodes(&mut self, call: &FunctionCall) -> Option<usize> {
        self.call(call, 0)
    }

    fn call(&mut self, call: &FunctionCall, depth: usize) -> Option<usize> {
        let functions: Vec<&NameAttrList> = match call {
            FunctionCall::Function(function)
            | FunctionCall::Remote(function)
            | FunctionCall::For(function)
            | FunctionCall::Gradient(function) => vec![function],
            FunctionCall::If { then, other } => vec![then, other],
            FunctionCall::While { cond, body } => vec![cond, body],
            FunctionCall::Case(branches) => branches.iter().collect(),
        };
        functions
            .into_iter()
            .try_fold(1usize, |sum, function| Some(sum.saturating_add(self.function(function, depth)?)))
    }

    fn function(&mut self, call: &NameAttrList, depth: usize) -> Option<usize> {
        let Some(function) = self.functions.get(&call.name).filter(|_| depth < MAX_DEPTH).cloned() else {
            return Some(0);
        };
        let way = call.encode_to_vec();
        if let Some(&known) = self.known.get(&way) {
            return Some(known);
        }
        self.known_bytes += way.len();
        self.left = self.left.checked_sub(function.node_def.len())?;
        if self.known.len() >= MAX_WAYS || self.known_bytes > MAX_WAY_BYTES {
            return None;
        }
        // While it is being counted, a recursive call counts nothing.
        self.known.insert(way.clone(), 0);
        let mut sum = 0usize;
        for node in &function.node_def {
            sum = sum.saturating_add(self.node(node, call, depth)?);
        }
        self.known.insert(way, sum);
        Some(sum)
    }

    fn node(&mut self, node: &NodeDef, within: &NameAttrList, depth: usize) -> Option<usize> {
        if !is_caller(&node.op, self.functions) {
            return Some(1);
        }
        let Ok(attr) = fill(&node.attr, &within.attr) else { return Some(0) };
        let filled = NodeDef { op: node.op.clone(), attr, ..NodeDef::default() };
        match FunctionCall::of(&filled, self.functions) {
            Ok(Some(call)) => self.call(&call, depth + 1),
            Ok(None) => Some(1),
            Err(_) => Some(0),
        }
    }
}
