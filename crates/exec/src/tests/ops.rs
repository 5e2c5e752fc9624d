//! The state ops of a graph, called one by one on the thread of a test. Two threads may each do so, and only that thread is out
//! of memory.

use std::collections::HashMap;

use meshtf_engine::Engine;
use meshtf_graph::Output;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory::Budget;

use super::super::mailbox::{self, DeviceInbox};
use super::super::state::{self, OpContext, Outcome, Site, StateOp};
use super::super::token::Tokens;
use super::super::waiting::{WaitId, Wake};
use super::*;

/// The bytes of memory that remain when a test asks for little.
pub(super) const LITTLE: usize = 4000;

/// A graph's state ops, for one thread.
pub(super) struct Ops {
    graph: Graph,
    engine: Box<dyn Engine>,
    site: Site,
    compiled: HashMap<String, StateOp>,
    device: Arc<dyn Wake>,
    /// Answers to calls that waited.
    pub inbox: DeviceInbox,
    calls: u64,
}

impl Ops {
    pub fn new(text: &str, engine: Box<dyn Engine>) -> Ops {
        Ops::on(Arc::default(), text, engine)
    }

    /// The state ops of a graph on existing resources.
    pub fn on(resources: Arc<Resources>, text: &str, engine: Box<dyn Engine>) -> Ops {
        let (mailbox, inbox) = mailbox::open();
        let site = site(resources);
        Ops { graph: graph(text), engine, site, compiled: HashMap::new(), device: Arc::new(mailbox), inbox, calls: 0 }
    }

    /// Calls a node. Inputs with a name in `given` have that value; the others are the outputs of their nodes.
    pub fn call(&mut self, name: &str, given: &[(&str, &Tensor)]) -> Result<Outcome> {
        self.call_within(usize::MAX, name, given)
    }

    /// As [`Ops::call`], with at most this number of bytes left.
    pub fn call_within(&mut self, bytes: usize, name: &str, given: &[(&str, &Tensor)]) -> Result<Outcome> {
        let node = self.graph.node(self.graph.find(name).unwrap()).clone();
        let mut inputs = Tokens::new();
        for input in &node.inputs {
            let from = self.graph.node(input.node).name.clone();
            inputs.push(match given.iter().find(|(name, _)| *name == from) {
                Some(&(_, tensor)) => Some(tensor.clone().into()),
                None => match self.graph.node(input.node) {
                    constant if constant.op.name == "Const" => {
                        Some(constant.attrs.whole_tensor("value").unwrap().into())
                    }
                    _ => self.answers(&from, &[]).remove(0),
                },
            });
        }
        if !self.compiled.contains_key(name) {
            let typed = |input: &Output| self.graph.node(input.node).outputs[input.port as usize].dtype;
            let dtypes: Vec<DType> = node.inputs.iter().map(typed).collect();
            let op = node.op.runs_as().name;
            let kernel =
                KernelNode { name, op, attrs: &node.attrs, inputs: &dtypes, outputs: &node.outputs, constants: 0 };
            let op = state::compile(&kernel, &self.site, &*self.engine).unwrap().unwrap();
            self.compiled.insert(name.to_owned(), op);
        }
        self.calls += 1;
        let step = StepId { session: self.site.session, number: self.calls };
        let wait = WaitId { step, number: self.calls };
        let mut call = OpContext { engine: &*self.engine, device: &self.device, wait };
        let op = self.compiled.get_mut(name).unwrap();
        Budget::of(bytes).run(|| op(inputs, &mut call))
    }

    pub fn answers(&mut self, name: &str, given: &[(&str, &Tensor)]) -> Tokens {
        self.call(name, given).unwrap().done().unwrap()
    }

    /// The first output of a node, on the host.
    pub fn answer(&mut self, name: &str, given: &[(&str, &Tensor)]) -> Tensor {
        self.answers(name, given).remove(0).unwrap().host().unwrap()
    }

    /// Checks that the node is refused if there is little memory.
    pub fn is_refused(&mut self, name: &str, given: &[(&str, &Tensor)]) {
        let Err(failure) = self.call_within(LITTLE, name, given) else { panic!("{name} was let") };
        assert_eq!(failure.code, Code::ResourceExhausted, "{name}: {failure}");
    }
}
