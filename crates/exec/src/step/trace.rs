//! The trace of a step: when each of its nodes ran.

use std::collections::HashMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use meshtf_graph::trace::{DeviceTrace, NodeTrace, OutputTrace};
use meshtf_tensor::device::DeviceName;

use crate::program::{CONTROL, PieceCode};
use crate::token::Token;

/// Most runs of nodes that one step records; the later iterations of a loop may be missing.
const MOST_RUNS: usize = 1 << 20;

/// The records of one step.
pub(super) struct Trace {
    /// The same moment by both clocks.
    began: (Instant, SystemTime),
    runs: Vec<NodeRun>,
    /// The tensors that the runs made.
    outputs: usize,
    /// When each op that waits began, by the number of its wait.
    waiting: HashMap<u64, Instant>,
}

/// One run of a node: its times, the number of bytes that it sent, and the tensors that it made.
struct NodeRun {
    node: u32,
    since: Instant,
    until: Instant,
    sent_bytes: usize,
    outputs: Vec<OutputTrace>,
}

impl Trace {
    pub fn begin() -> Trace {
        Trace { began: (Instant::now(), SystemTime::now()), runs: Vec::new(), outputs: 0, waiting: HashMap::new() }
    }

    /// Records that the node has run.
    pub fn ran(&mut self, node: u32, since: Instant, until: Instant, outputs: Vec<OutputTrace>) {
        self.add(NodeRun { node, since, until, sent_bytes: 0, outputs });
    }

    /// Records that the node has sent a value of `sent_bytes`, or received one if that is 0.
    pub fn passed(&mut self, node: u32, sent_bytes: usize) {
        let now = Instant::now();
        self.add(NodeRun { node, since: now, until: now, sent_bytes, outputs: Vec::new() });
    }

    fn add(&mut self, mut run: NodeRun) {
        if self.runs.len() < MOST_RUNS {
            if self.outputs + run.outputs.len() > MOST_RUNS {
                run.outputs = Vec::new();
            }
            self.outputs += run.outputs.len();
            self.runs.push(run);
        }
    }

    /// Records that an op waits.
    pub fn waits(&mut self, wait: u64, since: Instant) {
        self.waiting.insert(wait, since);
    }

    /// Records that an op has the answer it waited for.
    pub fn woke(&mut self, wait: u64, node: u32) {
        if let Some(since) = self.waiting.remove(&wait) {
            self.ran(node, since, Instant::now(), Vec::new());
        }
    }

    pub fn finish(mut self, code: &PieceCode, device: &DeviceName) -> DeviceTrace {
        self.runs.sort_by_key(|run| run.until);
        let mut inputs: Vec<Vec<(u32, u32)>> = vec![Vec::new(); code.nodes.len()];
        for (from, node) in code.nodes.iter().enumerate() {
            for edge in &code.edges[node.first_edge as usize..node.end_edge as usize] {
                inputs[edge.to as usize].push((edge.input, from as u32));
            }
        }
        inputs.iter_mut().for_each(|inputs| inputs.sort_unstable());
        // Control edges come last.
        let name = |&(input, from): &(u32, u32)| match (input, &code.nodes[from as usize].name) {
            (CONTROL, name) => format!("^{name}"),
            (_, name) => name.clone(),
        };
        let (instant, time) = self.began;
        let began_ns = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let run = |NodeRun { node, since, until, sent_bytes, outputs }: NodeRun| {
            let of = &code.nodes[node as usize];
            NodeTrace {
                name: of.name.clone(),
                op: of.op.clone(),
                inputs: inputs[node as usize].iter().map(name).collect(),
                start_ns: began_ns + since.saturating_duration_since(instant).as_nanos() as u64,
                took_ns: until.saturating_duration_since(since).as_nanos() as u64,
                sent_bytes: sent_bytes as u64,
                outputs,
            }
        };
        DeviceTrace { device: device.clone(), nodes: self.runs.into_iter().map(run).collect() }
    }
}

/// The tensors among the outputs of a node.
pub(super) fn made(tokens: &[Option<Token>]) -> Vec<OutputTrace> {
    let one = |(port, token): (usize, &Option<Token>)| match token {
        Some(Token::Value(value)) => Some(OutputTrace {
            port: port as u32,
            dtype: value.dtype(),
            shape: value.shape().clone(),
            bytes: value.byte_len() as u64,
        }),
        _ => None,
    };
    tokens.iter().enumerate().filter_map(one).collect()
}
