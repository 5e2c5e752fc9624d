//! One op at a time on a device, with attributes, dtypes, shapes and values that bytes choose: what a stranger's graph can
//! ask of a kernel. Whatever the bytes are, the op answers or refuses; it never panics, never hangs, and never takes
//! memory by what a number claims.
//!
//! Sizes are a few elements or beyond every limit, so that nothing large is really computed.

mod choices;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

use choices::Choices;

use super::{BackendChoice, Device, Pushed, Resources, Sink, cpu};
use crate::failure::{Code, Failure};
use crate::graph::op::{self, ArgDef, ArgType, OpDef};
use crate::graph::{Attr, Attrs, Graph, NodeDef};
use crate::ids::{PieceId, SessionId, StepId};
use crate::plan::{DeviceKind, PlanOptions, Signature, Task, plan};
use crate::tensor::{DType, PartialShape, Tensor};

/// An op that says nothing for so long while its device idles waits for what never comes, as a dequeue does.
const QUIET: Duration = Duration::from_millis(5);
/// A device that answers nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Ops that are no single node: their frames begin and end elsewhere.
const NOT_ALONE: &[&str] = &["Enter", "Exit", "NextIteration", "LoopCond", "Placeholder"];

/// The op that the first line names, or that its first two bytes are the number of, made and run as the other bytes say.
pub(crate) fn op(bytes: &[u8]) {
    if let Some(end) = bytes.iter().position(|&byte| byte == b'\n')
        && let Some(op) = std::str::from_utf8(&bytes[..end]).ok().and_then(op::lookup)
    {
        one(op, &bytes[end + 1..]);
        return;
    }
    let (number, rest) = bytes.split_at_checked(2).unwrap_or((&[0, 0], &[]));
    let ops = ops();
    one(ops[usize::from(u16::from_le_bytes([number[0], number[1]])) % ops.len()], rest);
}

/// The ops that can be asked for by themselves.
pub(crate) fn ops() -> Vec<&'static OpDef> {
    op::all().into_iter().filter(|op| !NOT_ALONE.contains(&op.name)).collect()
}

/// Arguments that are single numbers wherever they stand.
const SCALARS: &[&str] = &[
    "alpha",
    "alg",
    "axis",
    "beta",
    "beta1",
    "beta1_power",
    "beta2",
    "beta2_power",
    "delta",
    "depth",
    "dimension",
    "element_shape",
    "epsilon",
    "flow_in",
    "index",
    "input_handle",
    "k",
    "l1",
    "l2",
    "l2_shrinkage",
    "limit",
    "local_step",
    "logbase",
    "lr",
    "lr_power",
    "maxval",
    "max_size",
    "minval",
    "momentum",
    "n",
    "new_global_step",
    "num_elements",
    "num_required",
    "num_segments",
    "off_value",
    "on_value",
    "pred",
    "rho",
    "shift",
    "sign_decay",
    "size",
    "split_dim",
    "start",
];

/// What became of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The graph around it is none, and never came to a device.
    NoGraph,
    Refused,
    Answered,
}

/// Runs one op twice, the second time with what the first left behind.
///
/// # Panics
/// Where the op breaks its promise.
pub(crate) fn one(op: &'static OpDef, bytes: &[u8]) -> Outcome {
    let mut case = Case::new(op, Choices::new(bytes));
    let name = case.node();
    let Ok(graph) = Graph::new(std::mem::take(&mut case.nodes)) else { return Outcome::NoGraph };
    let bench = Bench::new();
    // Variables that an initializer sets are there for the op; whether they could be set, it will see.
    if !case.init.is_empty() {
        let _ = bench.run(&graph, &case.feeds, &[], &case.init, op);
    }
    let outputs = graph.find(&name).map_or(0, |node| graph.node(node).outputs.len());
    let is_value = |port: &usize| {
        let node = graph.node(graph.find(&name).expect("counted above"));
        !node.outputs[*port].dtype.is_handle()
    };
    let fetches: Vec<String> = (0..outputs).filter(is_value).map(|port| format!("{name}:{port}")).collect();
    let mut became = Outcome::Answered;
    for _ in 0..2 {
        let outcome = bench.run(&graph, &case.feeds, &fetches, std::slice::from_ref(&name), op);
        if let Err(failure) = outcome {
            let inputs: Vec<String> = case.feeds.iter().map(|(_, value)| format!("{value:?}")).collect();
            let node = graph.node(graph.find(&name).expect("counted above"));
            assert!(failure.code != Code::Internal, "{failure}\n{} {:?}\n{}", op.name, node.attrs, inputs.join("\n"));
            became = Outcome::Refused;
        }
    }
    became
}

/// A graph around one node.
struct Case<'a> {
    op: &'static OpDef,
    choices: Choices<'a>,
    nodes: Vec<NodeDef>,
    /// Names of placeholders with what they are fed.
    feeds: Vec<(String, Tensor)>,
    /// Nodes that give variables their values.
    init: Vec<String>,
    /// The shape of the first value, which others are often made to fit.
    shape: Option<Vec<usize>>,
}

impl<'a> Case<'a> {
    fn new(op: &'static OpDef, choices: Choices<'a>) -> Self {
        Case { op, choices, nodes: Vec::new(), feeds: Vec::new(), init: Vec::new(), shape: None }
    }

    /// The node, after what it takes; its name.
    fn node(&mut self) -> String {
        let mut attrs = Attrs::default();
        for def in &self.op.attrs {
            if let Some(attr) = self.choices.attr(def) {
                attrs.set(def.name, attr);
            }
        }
        let is_byte = |attr: &Attr| matches!(attr, Attr::Type(dtype) if dtype.size() == Some(1));
        if attrs.0.values().any(is_byte) {
            self.choices.most = 7;
        }
        let mut inputs = Vec::new();
        for arg in &self.op.inputs {
            for dtype in self.dtypes(arg, &mut attrs) {
                let is_scalar = SCALARS.contains(&arg.name) && self.choices.below(8) != 0;
                let input = if is_scalar && !dtype.is_handle() {
                    let value = self.choices.scalar(dtype);
                    self.feed(value)
                } else {
                    self.input(dtype, arg.is_ref)
                };
                inputs.push(input);
            }
        }
        self.add(self.op.name, inputs, attrs)
    }

    fn add(&mut self, op: &str, inputs: Vec<String>, attrs: Attrs) -> String {
        let name = format!("n{}", self.nodes.len());
        self.nodes.push(NodeDef { name: name.clone(), op: op.into(), inputs, attrs, ..NodeDef::default() });
        name
    }

    /// The dtypes of the tensors that an argument stands for, by attributes that are set for it where they were not.
    fn dtypes(&mut self, arg: &ArgDef, attrs: &mut Attrs) -> Vec<DType> {
        let mut count = |attrs: &mut Attrs, name: &'static str| match attrs.get(name) {
            Some(Attr::Int(n)) => usize::try_from(*n).unwrap_or(0).min(4),
            _ => {
                let n = self.choices.below(4);
                attrs.set(name, Attr::Int(n as i64));
                n
            }
        };
        let one = |attrs: &mut Attrs, choices: &mut Choices, op: &OpDef, name: &'static str| match attrs.get(name) {
            Some(Attr::Type(dtype)) => *dtype,
            _ => {
                let dtype = choices.dtype(op.attr(name).map_or(&[][..], |def| &def.types));
                attrs.set(name, Attr::Type(dtype));
                dtype
            }
        };
        match arg.ty {
            ArgType::Fixed(dtype) => vec![dtype],
            ArgType::Attr(name) => vec![one(attrs, &mut self.choices, self.op, name)],
            ArgType::ManyFixed(number, dtype) => vec![dtype; count(attrs, number)],
            ArgType::Many(number, name) => {
                let count = count(attrs, number);
                vec![one(attrs, &mut self.choices, self.op, name); count]
            }
            ArgType::List(name) => match attrs.get(name) {
                Some(Attr::Types(dtypes)) => dtypes.iter().copied().take(4).collect(),
                _ => {
                    let dtypes: Vec<DType> = (0..self.choices.below(4)).map(|_| self.choices.dtype(&[])).collect();
                    attrs.set(name, Attr::Types(dtypes.clone()));
                    dtypes
                }
            },
        }
    }

    /// What makes an input of that dtype.
    fn input(&mut self, dtype: DType, is_ref: bool) -> String {
        match dtype {
            DType::Resource => self.resource(),
            DType::Variant => self.list(),
            _ if is_ref => {
                let value = self.fed(dtype);
                let shape = PartialShape(self.shape.as_ref().map(|dims| dims.iter().map(|&d| Some(d)).collect()));
                let attrs = Attrs::from([("dtype", Attr::Type(dtype)), ("shape", Attr::Shape(shape))]);
                let variable = self.add("VariableV2", Vec::new(), attrs);
                let assign = self.add("Assign", vec![variable.clone(), value], Attrs::default());
                self.init.push(assign);
                variable
            }
            _ => self.fed(dtype),
        }
    }

    fn fed(&mut self, dtype: DType) -> String {
        let value = self.choices.tensor(dtype, self.shape.as_deref());
        if self.shape.is_none() {
            self.shape = Some(value.dims().to_vec());
        }
        self.feed(value)
    }

    fn feed(&mut self, value: Tensor) -> String {
        let name = self.add("Placeholder", Vec::new(), Attrs::from([("dtype", Attr::Type(value.dtype()))]));
        self.feeds.push((name.clone(), value));
        name
    }

    /// A handle: mostly of what the op is for.
    fn resource(&mut self) -> String {
        let of = |prefix: &str| self.op.name.starts_with(prefix);
        let maker = match self.choices.below(8) {
            0 => ["VarHandleOp", "FIFOQueueV2", "TensorArrayV3", "StackV2"][self.choices.below(4)],
            _ if of("Queue") => {
                ["FIFOQueueV2", "RandomShuffleQueueV2", "PaddingFIFOQueueV2", "PriorityQueueV2"][self.choices.below(4)]
            }
            _ if of("Stack") => "StackV2",
            _ if of("TensorArray") => "TensorArrayV3",
            _ if of("ResourceAccumulator") => "ResourceConditionalAccumulator",
            _ => "VarHandleOp",
        };
        let maker = op::lookup(maker).expect("it is in the vocabulary");
        let own = std::mem::replace(&mut self.op, maker);
        let handle = self.node();
        if maker.name == "VarHandleOp"
            && let Some(node) = self.nodes.last_mut()
            && let Some(Attr::Type(dtype)) = node.attrs.get("dtype").cloned()
        {
            node.attrs.set("shape", Attr::Shape(PartialShape(None)));
            let value = self.input(dtype, false);
            let assign = self.add("AssignVariableOp", vec![handle.clone(), value], Attrs::default());
            self.init.push(assign);
        }
        self.op = own;
        handle
    }

    /// A list of tensors or an optional.
    fn list(&mut self) -> String {
        let makers = ["EmptyTensorList", "TensorListReserve", "OptionalNone", "TensorListFromTensor"];
        let maker = op::lookup(makers[self.choices.below(4)]).expect("it is in the vocabulary");
        let own = std::mem::replace(&mut self.op, maker);
        let list = self.node();
        self.op = own;
        list
    }
}

/// A device with nothing on it.
struct Bench {
    device: Device,
    events: mpsc::Receiver<(StepId, Result<(), Failure>)>,
}

/// Tells what became of a step.
struct Teller(Sender<(StepId, Result<(), Failure>)>);

impl Sink for Teller {
    fn push(&self, _: StepId, _: &crate::plan::DeviceName, _: Vec<Pushed>) {}

    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn done(&self, _: PieceId, step: StepId, _: Vec<Tensor>) {
        let _ = self.0.send((step, Ok(())));
    }

    fn failed(&self, step: StepId, failure: Failure) {
        let _ = self.0.send((step, Err(failure)));
    }
}

const SESSION: SessionId = SessionId(7);

impl Bench {
    fn new() -> Bench {
        let (sender, events) = mpsc::channel();
        let engine = cpu(BackendChoice::Flex).open().expect("the CPU is always there");
        let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
        let device = Device::open(name, engine, Arc::new(Resources::new()), Arc::new(Teller(sender)));
        Bench { device: device.expect("there is a thread for it"), events }
    }

    /// Runs one step of the graph; an error is what the op answers, or what refuses the graph before it runs.
    fn run(
        &self,
        graph: &Graph,
        feeds: &[(String, Tensor)],
        fetches: &[String],
        targets: &[String],
        op: &OpDef,
    ) -> Result<(), Failure> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
        let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
        let signature = Signature {
            feeds: feeds.iter().map(|(name, _)| name.clone()).collect(),
            fetches: fetches.to_vec(),
            targets: targets.to_vec(),
            ..Signature::default()
        };
        let options = PlanOptions { default_device: name.clone(), soft_placement: false };
        let plan = plan(graph, &[name], &signature, &options).map_err(|e| Failure::new(e.code(), e.to_string()))?;
        for piece in plan.pieces {
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let id = PieceId { session: SESSION, number };
            let values = piece.feeds.iter().map(|&place| feeds[place as usize].1.clone()).collect();
            self.device.register(id, piece)?;
            let step = StepId { session: SESSION, number: number.into() };
            self.device.start(id, step.number, 1, values);
            self.wait(step, op)?;
        }
        Ok(())
    }

    /// What became of the step; nothing where it waits for what another step would have to do.
    fn wait(&self, step: StepId, op: &OpDef) -> Result<(), Failure> {
        for _ in 0..3 {
            // An answer to this comes between two ops: the device is at none that goes on for ever.
            self.idle(op);
            match self.events.recv_timeout(QUIET) {
                Ok((told, outcome)) if told == step => return outcome,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("{}: the device's thread is gone", op.name),
            }
        }
        self.device.abort(step);
        Ok(())
    }

    fn idle(&self, op: &OpDef) {
        let device = &self.device;
        std::thread::scope(|scope| {
            let (answered, answer): (SyncSender<()>, _) = mpsc::sync_channel(1);
            scope.spawn(move || {
                device.holds();
                let _ = answered.send(());
            });
            if answer.recv_timeout(PATIENCE).is_err() {
                // The scope would wait for the device, which hangs.
                eprintln!("{} does not come to an end", op.name);
                std::process::abort();
            }
        });
    }
}
