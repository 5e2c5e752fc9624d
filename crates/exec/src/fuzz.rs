//! Runs single ops on a device, with attributes, dtypes, shapes and values chosen by bytes: all that an unauthenticated
//! client's graph can ask of a kernel. Whatever the bytes are, the op answers or refuses. It never panics, never hangs, and
//! never allocates memory because a number claims so.
//!
//! Sizes are a few elements or beyond every limit, so that nothing large is really computed.

mod choices;
mod fitting;
mod saved;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

use choices::Choices;
use fitting::{Fitting, Like};
use meshtf_engine::adapters::{BackendChoice, cpu};
use meshtf_graph::op::{self, ArgDef, ArgType, AttrKind, OpDef, Role};
use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_graph::{Attr, Attrs, Graph, NodeDef};
use meshtf_tensor::device::{DeviceFacts, DeviceKind, Task};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::{DType, PartialShape, Tensor, memory};

pub use saved::saved;

use super::device::Device;
use super::resource::Resources;
use super::sink::{Pushed, Sink};

/// An op that returns nothing for this long while its device is idle waits forever, as a dequeue does.
const QUIET: Duration = Duration::from_millis(5);
/// A device that does not answer for this long hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Makes an op and runs it, with choices from the remaining bytes. The first line names the op, or the first two bytes are its
/// number.
pub fn op(bytes: &[u8]) -> bool {
    if let Some(end) = bytes.iter().position(|&byte| byte == b'\n')
        && let Some(op) = std::str::from_utf8(&bytes[..end]).ok().and_then(op::lookup)
    {
        return one(op, &bytes[end + 1..]) == Reaction::Answered;
    }
    let (number, rest) = bytes.split_at_checked(2).unwrap_or((&[0, 0], &[]));
    let ops = ops();
    one(ops[usize::from(u16::from_le_bytes([number[0], number[1]])) % ops.len()], rest) == Reaction::Answered
}

/// The ops that can run alone.
pub fn ops() -> Vec<&'static OpDef> {
    use Role::{Enter, Exit, LoopCond, NextIteration, Placeholder};
    let holds_function = |op: &OpDef| op.attrs.iter().any(|attr| attr.kind == AttrKind::Func);
    // A frame begins and ends at other nodes, and a placeholder is fed.
    let is_alone = |op: &OpDef| !matches!(op.role, Enter | Exit | LoopCond | NextIteration | Placeholder);
    op::all().into_iter().filter(|op| is_alone(op) && !holds_function(op)).collect()
}

/// Arguments that are single numbers in every op.
const SCALARS: &[&str] = &[
    "alg",
    "alpha",
    "axis",
    "beta",
    "beta1",
    "beta1_power",
    "beta2",
    "beta2_power",
    "counter_prefix",
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
    "max_size",
    "maxval",
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
    "num_workers",
    "tag",
];

/// The outcome of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The graph was invalid and reached no device.
    NoGraph,
    Refused,
    Answered,
}

/// Runs one op twice, the second time with the state that the first run left.
///
/// # Panics
/// If the op breaks its promise, with the reason.
pub fn one(op: &'static OpDef, bytes: &[u8]) -> Reaction {
    let mut case = Case::new(op, Choices::new(bytes));
    let name = case.node();
    let Ok(graph) = Graph::new(std::mem::take(&mut case.nodes)) else { return Reaction::NoGraph };
    let bench = Bench::new();
    // Variables get their values from an initializer before the op runs. If that fails, the op finds them unset.
    if !case.init.is_empty() {
        let _ = bench.run(&graph, &case.feeds, &[], &case.init, op);
    }
    let outputs = graph.find(&name).map_or(0, |node| graph.node(node).outputs.len());
    let is_value = |port: &usize| {
        let node = graph.node(graph.find(&name).expect("counted above"));
        // The value of a variable is checked with other ops than the one that returns its handle. One output of a Switch is
        // dead.
        let is_handle = op.outputs.get(*port).is_some_and(|output| output.name.ends_with("handle"));
        let has_no_value = node.outputs[*port].dtype.is_handle() || op.inputs.is_empty() && node.outputs[*port].is_ref;
        !has_no_value && !is_handle && !op.name.ends_with("Switch")
    };
    let fetches: Vec<String> = (0..outputs).filter(is_value).map(|port| format!("{name}:{port}")).collect();
    let mut became = Reaction::Answered;
    for _ in 0..2 {
        let outcome = bench.run(&graph, &case.feeds, &fetches, std::slice::from_ref(&name), op);
        if let Err(failure) = outcome {
            let inputs: Vec<String> = case.feeds.iter().map(|(_, value)| format!("{value:?}")).collect();
            let node = graph.node(graph.find(&name).expect("counted above"));
            assert!(failure.code != Code::Internal, "{failure}\n{} {:?}\n{}", op.name, node.attrs, inputs.join("\n"));
            became = Reaction::Refused;
        }
    }
    became
}

/// A graph around one node.
struct Case<'a> {
    op: &'static OpDef,
    choices: Choices<'a>,
    nodes: Vec<NodeDef>,
    /// Names of placeholders, with the values fed to them.
    feeds: Vec<(String, Tensor)>,
    /// Nodes that give variables their values.
    init: Vec<String>,
    /// The shape of the first value. Other values are often made to fit it.
    shape: Option<Vec<usize>>,
    /// A handle for the next node, which then makes no new one.
    given: Option<String>,
    /// Names of the nodes that run before the next node.
    before: Vec<String>,
}

impl<'a> Case<'a> {
    fn new(op: &'static OpDef, choices: Choices<'a>) -> Self {
        Case {
            op,
            choices,
            nodes: Vec::new(),
            feeds: Vec::new(),
            init: Vec::new(),
            shape: None,
            given: None,
            before: Vec::new(),
        }
    }

    /// Adds the node after its inputs; returns its name.
    fn node(&mut self) -> String {
        let fitting = Fitting::of(self.op).filter(|_| self.choices.below(2) == 0);
        let mut attrs = Attrs::default();
        for def in &self.op.attrs {
            let attr = match fitting {
                Some(fitting) if self.choices.below(8) != 1 => {
                    let is_chosen = def.default.is_none() || def.kind == AttrKind::Type;
                    fitting.attr(def).or_else(|| if is_chosen { self.choices.attr(def) } else { None })
                }
                _ => self.choices.attr(def),
            };
            if let Some(attr) = attr {
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
                let is_variable = arg.is_ref || dtype == DType::Resource;
                let like = fitting.and_then(|fitting| fitting.input(arg.name, is_variable));
                let like = like.filter(|_| self.choices.below(16) != 1);
                let handle = self.given.take().or_else(|| self.handle(arg, dtype));
                inputs.push(match handle {
                    Some(handle) => handle,
                    None => self.argument(arg, dtype, like),
                });
            }
        }
        inputs.append(&mut self.before);
        self.add(self.op.name, inputs, attrs)
    }

    fn argument(&mut self, arg: &ArgDef, dtype: DType, like: Option<Like>) -> String {
        let is_scalar = like.is_none() && SCALARS.contains(&arg.name) && self.choices.below(8) != 0;
        if is_scalar && !dtype.is_handle() {
            let value = self.choices.scalar(dtype);
            return self.feed(value);
        }
        self.input(dtype, arg.is_ref, like.as_ref())
    }

    fn add(&mut self, op: &str, inputs: Vec<String>, attrs: Attrs) -> String {
        let name = format!("n{}", self.nodes.len());
        self.nodes.push(NodeDef { name: name.clone(), op: op.into(), inputs, attrs, ..NodeDef::default() });
        name
    }

    /// The dtypes of the tensors of an argument, from attributes, which are chosen if they are not set yet.
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

    /// Adds a node that makes an input of that dtype.
    fn input(&mut self, dtype: DType, is_ref: bool, like: Option<&Like>) -> String {
        match dtype {
            DType::Resource => self.variable(like),
            DType::Variant => self.list(),
            _ if is_ref => {
                let value = self.fed(dtype, like);
                let shape = PartialShape(self.shape.as_ref().map(|dims| dims.iter().map(|&d| Some(d)).collect()));
                let attrs = Attrs::from([("dtype", Attr::Type(dtype)), ("shape", Attr::Shape(shape))]);
                let variable = self.add("VariableV2", Vec::new(), attrs);
                let assign = self.add("Assign", vec![variable.clone(), value], Attrs::default());
                self.init.push(assign);
                variable
            }
            _ => self.fed(dtype, like),
        }
    }

    fn fed(&mut self, dtype: DType, like: Option<&Like>) -> String {
        let value = match like {
            Some(like) => like.tensor(dtype).unwrap_or_else(|| self.choices.filled(dtype, like.dims.clone())),
            None => self.choices.tensor(dtype, self.shape.as_deref()),
        };
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

    /// A handle other than a variable's: mostly of the kind that the op takes, of a resource with contents.
    fn handle(&mut self, arg: &ArgDef, dtype: DType) -> Option<String> {
        let name = self.op.name;
        let form = match dtype {
            DType::Resource => 2,
            DType::String if arg.name.ends_with("handle") => usize::from(!arg.is_ref),
            _ => return None,
        };
        let queues = ["FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue"];
        let family = if name.starts_with("Queue") {
            queues[self.choices.below(queues.len())]
        } else if name.starts_with("Stack") {
            "Stack"
        } else if name.starts_with("TensorArray") {
            "TensorArray"
        } else if name.starts_with("Accumulator") || name.starts_with("ResourceAccumulator") {
            "ConditionalAccumulator"
        } else if name.starts_with("SparseAccumulator") {
            "SparseConditionalAccumulator"
        } else if name.starts_with("Reader") {
            if arg.name == "queue_handle" { "FIFOQueue" } else { "IdentityReader" }
        } else if name.starts_with("InitializeTable") {
            "HashTable"
        } else if name.starts_with("LookupTable") {
            "MutableHashTable"
        } else if form == 2 && (name.starts_with("Iterator") || name == "MakeIterator") {
            "Iterator"
        } else if name.starts_with("MultiDeviceIterator") && name != "MultiDeviceIterator" {
            "MultiDeviceIterator"
        } else if form == 2 && name.contains("StatsAggregator") {
            "StatsAggregatorHandle"
        } else if name.contains("BoostedTrees") {
            if name.contains("Quantile") { "BoostedTreesQuantileStream" } else { "BoostedTreesEnsemble" }
        } else {
            return None;
        };
        let family = if self.choices.below(16) == 1 { queues[self.choices.below(queues.len())] } else { family };
        // The same resources in the forms of three generations of clients: a reference, a string, a resource.
        let maker = match (family, form) {
            ("TensorArray", form) => ["TensorArray", "TensorArrayV2", "TensorArrayV3"][form].to_owned(),
            ("ConditionalAccumulator", 2) => format!("Resource{family}"),
            ("StatsAggregatorHandle" | "MultiDeviceIterator", _) => family.to_owned(),
            ("BoostedTreesQuantileStream" | "BoostedTreesEnsemble", _) => format!("{family}ResourceHandleOp"),
            (_, 2) => format!("{family}V2"),
            _ => family.to_owned(),
        };
        let handle = self.made_by(&maker);
        let filler = match name {
            "TensorArrayRead" | "TensorArrayGather" | "TensorArrayConcat" | "TensorArrayPack" => "TensorArrayScatter",
            "TensorArrayReadV2" | "TensorArrayGatherV2" | "TensorArrayConcatV2" => "TensorArrayScatterV2",
            "TensorArrayReadV3" | "TensorArrayGatherV3" | "TensorArrayConcatV3" => "TensorArrayScatterV3",
            "StackPop" => "StackPush",
            "StackPopV2" => "StackPushV2",
            "QueueDequeue" | "QueueDequeueMany" | "QueueDequeueUpTo" => "QueueEnqueueMany",
            "QueueDequeueV2" | "QueueDequeueManyV2" | "QueueDequeueUpToV2" => "QueueEnqueueManyV2",
            "MultiDeviceIteratorGetNextFromShard" => "MultiDeviceIteratorInit",
            "BoostedTreesCreateEnsemble" | "BoostedTreesCreateQuantileStreamResource" => return Some(handle),
            _ if family == "BoostedTreesEnsemble" => "BoostedTreesCreateEnsemble",
            _ if family == "BoostedTreesQuantileStream" => "BoostedTreesCreateQuantileStreamResource",
            _ => return Some(handle),
        };
        self.given = Some(handle.clone());
        let filled = self.made_by(filler);
        self.before.push(format!("^{filled}"));
        Some(handle)
    }

    /// A node of that op, with new inputs.
    fn made_by(&mut self, op: &str) -> String {
        let maker = op::lookup(op).expect("it is in the vocabulary");
        let own = std::mem::replace(&mut self.op, maker);
        let node = self.node();
        self.op = own;
        node
    }

    /// The handle of a variable that has a value; now and then of something else.
    fn variable(&mut self, like: Option<&Like>) -> String {
        let others = ["FIFOQueueV2", "TensorArrayV3", "StackV2"];
        if self.choices.below(16) == 1 {
            let other = others[self.choices.below(others.len())];
            return self.made_by(other);
        }
        let handle = self.made_by("VarHandleOp");
        if let Some(node) = self.nodes.last_mut()
            && let Some(Attr::Type(dtype)) = node.attrs.get("dtype").cloned()
        {
            node.attrs.set("shape", Attr::Shape(PartialShape(None)));
            let value = self.input(dtype, false, like);
            let assign = self.add("AssignVariableOp", vec![handle.clone(), value], Attrs::default());
            self.init.push(assign);
        }
        handle
    }

    /// A list of tensors, an optional or a dataset.
    fn list(&mut self) -> String {
        if self.op.name == "UnwrapDatasetVariant" && self.choices.below(4) != 0 {
            return self.made_by("WrapDatasetVariant");
        }
        if self.op.name.contains("Dataset") || self.op.name == "MakeIterator" {
            let makers = ["RangeDataset", "TensorDataset", "TensorSliceDataset"];
            let chosen = self.choices.below(makers.len());
            return self.made_by(makers[chosen]);
        }
        let makers =
            ["TensorListFromTensor", "EmptyTensorList", "TensorListReserve", "OptionalNone", "OptionalFromValue"];
        let own = if self.op.name.starts_with("Optional") { 4 } else { 0 };
        let chosen = if self.choices.below(2) == 0 { own } else { self.choices.below(makers.len()) };
        self.made_by(makers[chosen])
    }
}

/// A device without sessions.
struct Bench {
    device: Device,
    events: mpsc::Receiver<(StepId, Result<(), Failure>)>,
}

/// Sends on the outcome of a step.
struct Teller(Sender<(StepId, Result<(), Failure>)>);

impl Sink for Teller {
    fn push(&self, _: StepId, _: &meshtf_tensor::device::DeviceName, _: Vec<Pushed>) {}

    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn done(&self, _: PieceId, step: StepId, _: Vec<Tensor>) {
        let _ = self.0.send((step, Ok(())));
    }

    fn failed(&self, step: StepId, failure: Failure) {
        let _ = self.0.send((step, Err(failure)));
    }
}

const SESSION: SessionId = SessionId(7);
/// The memory of the device: what the limit of a tensor admits is more than a machine that fuzzes may have.
const MEMORY: usize = 1 << 30;

impl Bench {
    fn new() -> Bench {
        let (sender, events) = mpsc::channel();
        let engine = cpu(BackendChoice::Flex).open().expect("the CPU is always there");
        let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
        let device = Device::open(
            name,
            engine,
            Arc::new(Resources::new().within(memory::Budget::of(MEMORY))),
            Arc::new(Teller(sender)),
        );
        Bench { device: device.expect("there is a thread for it"), events }
    }

    /// Runs one step of the graph. The error is the op's answer, or the refusal of the graph before it runs.
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
        let options = PlanOptions { default_device: name.clone(), soft_placement: false, by_cost: None };
        let plan = plan(graph, &[DeviceFacts::unknown(name)], &signature, &options)
            .map_err(|e| Failure::new(e.code(), e.to_string()))?;
        for piece in plan.pieces {
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let id = PieceId { session: SESSION, number };
            let values = piece.feeds.iter().map(|&place| feeds[place as usize].1.clone()).collect();
            self.device.register(id, piece)?;
            let step = StepId { session: SESSION, number: number.into() };
            self.device.start(id, step.number, 1, false, values);
            self.wait(step, op)?;
        }
        Ok(())
    }

    /// The outcome of the step; `Ok` if it waits for something that only another step would do.
    fn wait(&self, step: StepId, op: &OpDef) -> Result<(), Failure> {
        for _ in 0..3 {
            // The device answers `idle` between two ops, so no op runs forever.
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
