//! A cluster of devices in one process, and the small master that the tests run graphs with.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use meshtf_engine::Engine;
use meshtf_engine::host::HostEngine;
use meshtf_exec::{Beside, Device, Pushed, Resources, Sink};
use meshtf_graph::plan::{Mode, PlanOptions, Signature, plan};
use meshtf_graph::trace::DeviceTrace;
use meshtf_graph::{Attr, Graph, NodeDef};
use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

/// A step that is still under way after this hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A graph in one line a node: `name = Op input input ^control @task key=value`.
pub fn graph(text: &str) -> Graph {
    Graph::new(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(node).collect()).unwrap()
}

pub fn node(line: &str) -> NodeDef {
    let (name, rest) = line.split_once(" = ").unwrap();
    let mut words = rest.split_whitespace();
    let mut def = NodeDef { name: name.to_owned(), op: words.next().unwrap().to_owned(), ..NodeDef::default() };
    for word in words {
        if let Some(task) = word.strip_prefix('@') {
            def.device = format!("/job:local/task:{task}");
        } else if let Some((key, value)) = word.split_once('=') {
            let key = if key == "is" { "value" } else { key };
            def.attrs.set(key, attr(value));
        } else {
            def.inputs.push(word.to_owned());
        }
    }
    def
}

/// `int32`, `true`, `7`, `0.5`, `"text"`, `[]`, `[2,?]` (a shape), `(3)` (a tensor), `<int32,float32>` (dtypes).
pub fn attr(text: &str) -> Attr {
    let list = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let within = |open: char, close: char| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    if let Some(inner) = within('(', ')') {
        return Attr::Tensor(tensor(inner));
    }
    if let Some(inner) = within('<', '>') {
        return Attr::Types(list(inner).iter().map(|name| DType::from_name(name).unwrap()).collect());
    }
    if let Some(inner) = within('{', '}') {
        let shape = |text: String| match attr(&text.replace('x', ",")) {
            Attr::Shape(shape) => shape,
            other => panic!("{other:?}"),
        };
        return Attr::Shapes(inner.split(';').map(|text| shape(text.to_owned())).collect());
    }
    if let Some(inner) = within('[', ']') {
        return Attr::Shape(PartialShape(Some(list(inner).iter().map(|dim| dim.parse().ok()).collect())));
    }
    if let Some(inner) = within('"', '"') {
        return Attr::Str(inner.as_bytes().to_vec());
    }
    match text {
        "true" | "false" => Attr::Bool(text == "true"),
        _ if DType::from_name(text).is_some() => Attr::Type(DType::from_name(text).unwrap()),
        _ => text.parse().map(Attr::Int).unwrap_or_else(|_| Attr::Float(text.parse().unwrap())),
    }
}

/// `3`, `0.5`, `true`, `1,2,3` (a vector), `7l` (int64).
pub fn tensor(text: &str) -> Tensor {
    if text == "true" || text == "false" {
        return Tensor::scalar(text == "true");
    }
    if let Some(long) = text.strip_suffix('l') {
        return Tensor::scalar(long.parse::<i64>().unwrap());
    }
    let parts: Vec<&str> = text.split(',').filter(|part| !part.is_empty()).collect();
    let shape = if text.contains(',') { Shape::from([parts.len()]) } else { Shape::scalar() };
    match parts.iter().map(|part| part.parse()).collect::<Result<Vec<i32>, _>>() {
        Ok(ints) => Tensor::from_vec(shape, ints),
        Err(_) => Tensor::from_vec(shape, parts.iter().map(|part| part.parse().unwrap()).collect::<Vec<f32>>()),
    }
}

pub enum Event {
    Done { piece: PieceId, step: StepId, fetches: Vec<Tensor> },
    Failed { step: StepId, failure: Failure },
}

/// Devices in one process that push to each other.
pub struct Hub {
    pub devices: OnceLock<HashMap<DeviceName, Device>>,
    pub events: Mutex<Sender<Event>>,
}

impl Sink for Hub {
    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn push(&self, step: StepId, to: &DeviceName, values: Vec<Pushed>) {
        if let Some(device) = self.devices.get().and_then(|devices| devices.get(to)) {
            device.arrive(step, values);
        }
    }

    fn done(&self, piece: PieceId, step: StepId, fetches: Vec<Tensor>) {
        let _ = self.events.lock().unwrap().send(Event::Done { piece, step, fetches });
    }

    fn failed(&self, step: StepId, failure: Failure) {
        let _ = self.events.lock().unwrap().send(Event::Failed { step, failure });
    }
}

/// Some tasks with a CPU each, and a small master.
pub struct Cluster {
    pub hub: Arc<Hub>,
    pub names: Vec<DeviceName>,
    pub events: Receiver<Event>,
    pub pieces: u32,
    pub steps: u64,
    pub running: BTreeMap<u64, Running>,
    pub default: usize,
    pub soft: bool,
    pub session: SessionId,
    #[allow(dead_code, reason = "the unit tests read it, those of whole devices do not")]
    pub resources: Vec<Arc<Resources>>,
    /// The first transfer of the last plan to the first device.
    pub transfer: u32,
}

/// A step under way: the indices of each piece's fetches, and the values that came.
pub struct Running {
    pub places: HashMap<PieceId, Vec<u32>>,
    pub fetches: Vec<Option<Tensor>>,
    pub waits: usize,
}

impl Cluster {
    pub fn new(tasks: u32) -> Cluster {
        Cluster::of(&(0..tasks).map(|i| Task::new("local", i)).collect::<Vec<_>>())
    }

    pub fn of(tasks: &[Task]) -> Cluster {
        Cluster::with(tasks, || Box::new(HostEngine))
    }

    pub fn with(tasks: &[Task], engine: impl Fn() -> Box<dyn Engine>) -> Cluster {
        Cluster::beside(tasks, engine, None)
    }

    /// With kernels in parallel as the test requests it, by default in the best way.
    pub fn beside(tasks: &[Task], engine: impl Fn() -> Box<dyn Engine>, beside: Option<Beside>) -> Cluster {
        Cluster::on(tasks, engine, beside, tasks.iter().map(|_| Resources::new()).collect())
    }

    /// A task for each memory budget.
    #[allow(dead_code, reason = "the unit tests call it, those of whole devices do not")]
    pub fn within(budgets: &[Arc<Budget>], beside: Beside) -> Cluster {
        let tasks: Vec<Task> = (0..).map(|i| Task::new("local", i)).take(budgets.len()).collect();
        let resources = budgets.iter().map(|budget| Resources::new().within(Arc::clone(budget))).collect();
        Cluster::on(&tasks, || Box::new(HostEngine), Some(beside), resources)
    }

    fn on(
        tasks: &[Task],
        engine: impl Fn() -> Box<dyn Engine>,
        beside: Option<Beside>,
        resources: Vec<Resources>,
    ) -> Cluster {
        let (sender, events) = mpsc::channel();
        let hub = Arc::new(Hub { devices: OnceLock::new(), events: Mutex::new(sender) });
        let names: Vec<DeviceName> = tasks.iter().map(|task| task.device(DeviceKind::Cpu, 0)).collect();
        let resources: Vec<Arc<Resources>> = resources.into_iter().map(Arc::new).collect();
        let open = |name: &DeviceName, resources: &Arc<Resources>| {
            let (name, resources, sink) = (name.clone(), Arc::clone(resources), Arc::clone(&hub) as Arc<dyn Sink>);
            match beside {
                None => Device::open(name, engine(), resources, sink),
                Some(beside) => Device::open_beside(name, engine(), resources, sink, beside),
            }
            .unwrap()
        };
        let devices = names.iter().zip(&resources).map(|(name, own)| (name.clone(), open(name, own))).collect();
        assert!(hub.devices.set(devices).is_ok());
        Cluster {
            hub,
            names,
            events,
            pieces: 0,
            steps: 0,
            running: BTreeMap::new(),
            default: 0,
            soft: false,
            session: SessionId(7),
            resources,
            transfer: 0,
        }
    }

    /// The devices, of which nothing else is known.
    pub fn facts(&self) -> Vec<DeviceFacts> {
        self.names.iter().cloned().map(DeviceFacts::unknown).collect()
    }

    pub fn device(&self, name: &DeviceName) -> &Device {
        &self.hub.devices.get().unwrap()[name]
    }

    /// Starts steps of `graph`; returns the number of the first.
    pub fn start(
        &mut self,
        graph: &Graph,
        feeds: &[(&str, Tensor)],
        wanted: &[&str],
        count: u64,
    ) -> Result<u64, Failure> {
        let signature = Signature {
            feeds: feeds.iter().map(|(name, _)| (*name).to_owned()).collect(),
            fetches: wanted.iter().filter(|name| !name.starts_with('^')).map(|&name| name.to_owned()).collect(),
            targets: wanted.iter().filter_map(|name| name.strip_prefix('^')).map(str::to_owned).collect(),
            ..Signature::default()
        };
        let options =
            PlanOptions { default_device: self.names[self.default].clone(), soft_placement: self.soft, by_cost: None };
        let plan =
            plan(graph, &self.facts(), &signature, &options).map_err(|e| Failure::new(e.code(), e.to_string()))?;
        self.transfer = plan.transfers.iter().position(|t| t.to == self.names[0]).unwrap_or(0) as u32;
        let first = self.steps + 1;
        self.steps += count;
        let mut ids = Vec::new();
        for piece in &plan.pieces {
            self.pieces += 1;
            let id = PieceId { session: self.session, number: self.pieces };
            self.device(&piece.device).register(id, piece.clone())?;
            ids.push(id);
        }
        for step in first..first + count {
            let places = ids.iter().zip(&plan.pieces).map(|(&id, piece)| (id, piece.fetches.clone())).collect();
            let fetches = vec![None; signature.fetches.len()];
            self.running.insert(step, Running { places, fetches, waits: ids.len() });
        }
        for (id, piece) in ids.iter().zip(&plan.pieces) {
            let feeds = piece.feeds.iter().map(|&i| feeds[i as usize].1.clone()).collect();
            self.device(&piece.device).start(*id, first, count, false, feeds);
        }
        Ok(first)
    }

    /// Waits until a step is done or has failed.
    pub fn wait(&mut self, step: u64) -> Result<Vec<Tensor>, Failure> {
        loop {
            if self.running.get(&step).is_some_and(|running| running.waits == 0) {
                return Ok(self.running.remove(&step).unwrap().fetches.into_iter().map(Option::unwrap).collect());
            }
            match self.events.recv_timeout(PATIENCE).expect("a step that waits for nothing ends") {
                Event::Done { piece, step, fetches } => {
                    let Some(running) = self.running.get_mut(&step.number) else { continue };
                    running.waits -= 1;
                    for (place, tensor) in running.places[&piece].clone().into_iter().zip(fetches) {
                        running.fetches[place as usize] = Some(tensor);
                    }
                }
                Event::Failed { step: id, failure } => {
                    self.abort(id.number);
                    if id.number == step {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Cancels a step, and those that were to follow it.
    pub fn abort(&mut self, step: u64) {
        let id = StepId { session: self.session, number: step };
        for name in &self.names {
            self.device(name).abort(id);
        }
        self.running.remove(&step);
    }

    /// Checks that no device holds a step or a value.
    pub fn is_empty(&self) {
        for name in &self.names {
            let held = self.device(name).holds();
            assert_eq!((held.steps, held.parked_bytes), (0, 0), "{name} {held:?}");
        }
    }

    pub fn run(&mut self, graph: &Graph, feeds: &[(&str, Tensor)], wanted: &[&str]) -> Result<Vec<Tensor>, Failure> {
        let step = self.start(graph, feeds, wanted, 1)?;
        self.wait(step)
    }

    /// Runs a step and checks its fetches.
    pub fn check(&mut self, graph: &Graph, feeds: &[(&str, &str)], expected: &[(&str, &str)]) {
        let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|&(name, value)| (name, tensor(value))).collect();
        let wanted: Vec<&str> = expected.iter().map(|&(name, _)| name).collect();
        let got = self.run(graph, &feeds, &wanted).unwrap_or_else(|failure| panic!("{failure}"));
        let expected: Vec<Tensor> =
            expected.iter().filter(|(name, _)| !name.starts_with('^')).map(|&(_, value)| tensor(value)).collect();
        assert_eq!(got, expected, "{wanted:?} fed {feeds:?}");
    }

    /// Runs a step on the first device, which must have all of the graph; returns the fetch and the trace.
    pub fn trace(&mut self, graph: &Graph, feeds: &[(&str, Tensor)], fetch: &str) -> (Tensor, DeviceTrace) {
        let signature = Signature {
            feeds: feeds.iter().map(|(name, _)| (*name).to_owned()).collect(),
            fetches: vec![fetch.to_owned()],
            mode: Mode::Traced,
            ..Signature::default()
        };
        let options = PlanOptions { default_device: self.names[0].clone(), soft_placement: false, by_cost: None };
        let plan = plan(graph, &self.facts(), &signature, &options).unwrap();
        self.pieces += 1;
        self.steps += 1;
        let id = PieceId { session: self.session, number: self.pieces };
        let device = self.device(&self.names[0]);
        device.register(id, plan.pieces[0].clone()).unwrap();
        device.start(id, self.steps, 1, false, feeds.iter().map(|(_, value)| value.clone()).collect());
        let Event::Done { fetches, .. } = self.events.recv_timeout(PATIENCE).unwrap() else { panic!("it failed") };
        (fetches[0].clone(), DeviceTrace::from_tensor(&fetches[1]).unwrap())
    }

    pub fn fails(&mut self, graph: &Graph, wanted: &[&str], code: Code, message: &str, node: &str) {
        let failure = self.run(graph, &[], wanted).unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.message.contains(message), "{failure}");
        assert_eq!(failure.node.as_deref(), Some(node), "{failure}");
        assert!(failure.device.is_some() && failure.is_in_step(), "{failure}");
    }
}

/// Polls until the answer is true.
pub fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it never comes");
        std::thread::yield_now();
    }
}
