//! Graphs run on devices in one process, held against values computed by hand.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};

use super::{Device, HostEngine, Resources, Sink};
use crate::failure::{Code, Failure};
use crate::graph::{Attr, Graph, NodeDef};
use crate::ids::{PieceId, SessionId, StepId};
use crate::plan::{DeviceName, PlanOptions, Signature, Task, plan};
use crate::tensor::{DType, PartialShape, Shape, Tensor};

/// A graph in one line a node: `name = Op input input ^control @task key=value`.
fn graph(text: &str) -> Graph {
    Graph::new(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(node).collect()).unwrap()
}

fn node(line: &str) -> NodeDef {
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
fn attr(text: &str) -> Attr {
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
fn tensor(text: &str) -> Tensor {
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

enum Event {
    Done { piece: PieceId, step: StepId, fetches: Vec<Tensor> },
    Failed { step: StepId, failure: Failure },
}

/// Devices in one process that push to each other.
struct Hub {
    devices: OnceLock<HashMap<DeviceName, Device>>,
    events: Mutex<Sender<Event>>,
}

impl Sink for Hub {
    fn push(&self, step: StepId, to: &DeviceName, transfer: u32, iterations: &[u32], value: Option<Tensor>) {
        if let Some(device) = self.devices.get().and_then(|devices| devices.get(to)) {
            device.arrive(step, transfer, iterations.to_vec(), value);
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
struct Cluster {
    hub: Arc<Hub>,
    names: Vec<DeviceName>,
    events: Receiver<Event>,
    pieces: u32,
    steps: u64,
    running: BTreeMap<u64, Running>,
}

/// A step under way: where each piece's fetches go, and what came.
struct Running {
    places: HashMap<PieceId, Vec<u32>>,
    fetches: Vec<Option<Tensor>>,
    waits: usize,
}

const SESSION: SessionId = SessionId(7);

impl Cluster {
    fn new(tasks: u32) -> Cluster {
        let (sender, events) = mpsc::channel();
        let hub = Arc::new(Hub { devices: OnceLock::new(), events: Mutex::new(sender) });
        let names: Vec<DeviceName> =
            (0..tasks).map(|i| Task::new("local", i).device(crate::plan::DeviceKind::Cpu, 0)).collect();
        let open = |name: &DeviceName| {
            Device::open(name.clone(), Box::new(HostEngine), Arc::new(Resources::new()), hub.clone()).unwrap()
        };
        let devices = names.iter().map(|name| (name.clone(), open(name))).collect();
        assert!(hub.devices.set(devices).is_ok());
        Cluster { hub, names, events, pieces: 0, steps: 0, running: BTreeMap::new() }
    }

    fn device(&self, name: &DeviceName) -> &Device {
        &self.hub.devices.get().unwrap()[name]
    }

    /// Starts steps of `graph`; answers the number of the first.
    fn start(&mut self, graph: &Graph, feeds: &[(&str, Tensor)], wanted: &[&str], count: u64) -> Result<u64, Failure> {
        let signature = Signature {
            feeds: feeds.iter().map(|(name, _)| (*name).to_owned()).collect(),
            fetches: wanted.iter().filter(|name| !name.starts_with('^')).map(|&name| name.to_owned()).collect(),
            targets: wanted.iter().filter_map(|name| name.strip_prefix('^')).map(str::to_owned).collect(),
        };
        let options = PlanOptions { default_device: self.names[0].clone(), soft_placement: false };
        let plan = plan(graph, &self.names, &signature, &options).map_err(|e| Failure::new(e.code(), e.to_string()))?;
        let first = self.steps + 1;
        self.steps += count;
        let mut ids = Vec::new();
        for piece in &plan.pieces {
            self.pieces += 1;
            let id = PieceId { session: SESSION, number: self.pieces };
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
            self.device(&piece.device).start(*id, first, count, feeds);
        }
        Ok(first)
    }

    /// Waits until a step is done or has failed.
    fn wait(&mut self, step: u64) -> Result<Vec<Tensor>, Failure> {
        loop {
            if let Some(running) = self.running.get_mut(&step) {
                if running.waits == 0 {
                    return Ok(self.running.remove(&step).unwrap().fetches.into_iter().map(Option::unwrap).collect());
                }
            }
            match self.events.recv().unwrap() {
                Event::Done { piece, step, fetches } => {
                    let Some(running) = self.running.get_mut(&step.number) else { continue };
                    running.waits -= 1;
                    for (place, tensor) in running.places[&piece].clone().into_iter().zip(fetches) {
                        running.fetches[place as usize] = Some(tensor);
                    }
                }
                Event::Failed { step: id, failure } => {
                    for name in &self.names {
                        self.device(name).abort(id, failure.clone());
                    }
                    self.running.remove(&id.number);
                    if id.number == step {
                        return Err(failure);
                    }
                }
            }
        }
    }

    fn run(&mut self, graph: &Graph, feeds: &[(&str, Tensor)], wanted: &[&str]) -> Result<Vec<Tensor>, Failure> {
        let step = self.start(graph, feeds, wanted, 1)?;
        self.wait(step)
    }

    /// Runs a step and checks its fetches.
    fn check(&mut self, graph: &Graph, feeds: &[(&str, &str)], expected: &[(&str, &str)]) {
        let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|&(name, value)| (name, tensor(value))).collect();
        let wanted: Vec<&str> = expected.iter().map(|&(name, _)| name).collect();
        let got = self.run(graph, &feeds, &wanted).unwrap_or_else(|failure| panic!("{failure}"));
        let expected: Vec<Tensor> =
            expected.iter().filter(|(name, _)| !name.starts_with('^')).map(|&(_, value)| tensor(value)).collect();
        assert_eq!(got, expected, "{wanted:?} fed {feeds:?}");
    }

    fn fails(&mut self, graph: &Graph, wanted: &[&str], code: Code, message: &str, node: &str) {
        let failure = self.run(graph, &[], wanted).unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.message.contains(message), "{failure}");
        assert_eq!(failure.node.as_deref(), Some(node), "{failure}");
        assert!(failure.device.is_some() && failure.step.is_some(), "{failure}");
    }
}

const SPLIT_238: &str = "
    x = Const is=(2)
    a = Const is=(300) @0
    b = Const is=(66) @1
    y2 = Sub x b @1
    y1 = Add x a @0
    y = Add y1 y2 @0";

#[test]
fn a_sum_on_one_task_and_over_two() {
    let mut cluster = Cluster::new(2);
    cluster.check(&graph(SPLIT_238), &[], &[("y", "238")]);
    cluster.check(&graph(&SPLIT_238.replace("@1", "@0")), &[], &[("y", "238"), ("y2", "-64")]);
    cluster.check(&graph(SPLIT_238), &[("x", "5")], &[("y2", "-61"), ("y", "244")]);
}

#[test]
fn a_branch_not_taken_is_dead_as_far_as_its_merge() {
    for task in [0, 1] {
        let text = "
            p = Placeholder dtype=bool shape=[]
            x = Const is=(10)
            s = Switch x p
            five = Const is=(5) ^s
            t = Add s:1 five @TASK
            f = Sub s five
            m = Merge f t";
        let graph = graph(&text.replace("TASK", &task.to_string()));
        let mut cluster = Cluster::new(2);
        cluster.check(&graph, &[("p", "true")], &[("m", "15"), ("m:1", "1")]);
        cluster.check(&graph, &[("p", "false")], &[("m", "5"), ("m:1", "0")]);
        let step = cluster.start(&graph, &[("p", tensor("false"))], &["t"], 1).unwrap();
        let failure = cluster.wait(step).unwrap_err();
        assert_eq!((failure.code, failure.step), (Code::InvalidArgument, Some(3)), "{failure}");
    }
}

/// i < n; i + 1, x * 2.
fn doubling(body: u32) -> Graph {
    graph(
        &"
        n = Placeholder dtype=int32 shape=[]
        zero = Const is=(0)
        x = Const is=(1)
        ei = Enter zero frame_name=\"w\"
        ex = Enter x frame_name=\"w\"
        en = Enter n frame_name=\"w\" is_constant=true
        mi = Merge ei ni
        mx = Merge ex nx
        less = Less mi en
        cond = LoopCond less
        si = Switch mi cond
        sx = Switch mx cond
        ii = Identity si:1
        one = Const is=(1) ^ii
        two = Const is=(2) ^ii @BODY
        ai = Add ii one
        ax = Mul sx:1 two @BODY
        ni = NextIteration ai
        nx = NextIteration ax
        i = Exit si
        y = Exit sx"
            .replace("BODY", &body.to_string()),
    )
}

#[test]
fn a_loop_on_one_task_and_over_two() {
    for body in [0, 1] {
        let graph = doubling(body);
        let mut cluster = Cluster::new(2);
        cluster.check(&graph, &[("n", "0")], &[("y", "1"), ("i", "0")]);
        cluster.check(&graph, &[("n", "1")], &[("y", "2"), ("i", "1")]);
        cluster.check(&graph, &[("n", "20")], &[("y", "1048576"), ("i", "20")]);
        cluster.check(&graph, &[("n", "1000")], &[("i", "1000")]);
    }
}

/// for i in 0..n { for j in 0..i { s += 1 } }
const NESTED: &str = "
    n = Placeholder dtype=int32 shape=[]
    zero = Const is=(0)
    ei = Enter zero frame_name=\"outer\" parallel_iterations=PAR
    es = Enter zero frame_name=\"outer\" parallel_iterations=PAR
    en = Enter n frame_name=\"outer\" is_constant=true parallel_iterations=PAR
    mi = Merge ei ni
    ms = Merge es ns
    less = Less mi en
    cond = LoopCond less
    si = Switch mi cond
    ss = Switch ms cond
    one = Const is=(1) ^si2
    si2 = Identity si:1
    start = Const is=(0) ^si2
    ej = Enter start frame_name=\"inner\"
    et = Enter ss:1 frame_name=\"inner\"
    ek = Enter si2 frame_name=\"inner\" is_constant=true
    eone = Enter one frame_name=\"inner\" is_constant=true
    mj = Merge ej nj
    mt = Merge et nt
    less2 = Less mj ek
    cond2 = LoopCond less2
    sj = Switch mj cond2
    st = Switch mt cond2
    aj = Add sj:1 eone
    at = Add st:1 eone @INNER
    nj = NextIteration aj
    nt = NextIteration at
    xt = Exit st
    ai = Add si2 one
    ni = NextIteration ai
    ns = NextIteration xt
    i = Exit si
    s = Exit ss";

#[test]
fn loops_within_loops() {
    for inner in ["0", "1"] {
        for parallel in ["1", "10"] {
            let graph = graph(&NESTED.replace("PAR", parallel).replace("INNER", inner));
            let mut cluster = Cluster::new(2);
            cluster.check(&graph, &[("n", "0")], &[("s", "0")]);
            cluster.check(&graph, &[("n", "1")], &[("s", "0")]);
            cluster.check(&graph, &[("n", "5")], &[("s", "10"), ("i", "5")]);
            cluster.check(&graph, &[("n", "40")], &[("s", "780")]);
        }
    }
}

#[test]
fn a_loop_on_a_branch_not_taken_is_dead_as_a_whole() {
    let text = "
        p = Placeholder dtype=bool shape=[]
        zero = Const is=(0)
        ten = Const is=(10)
        z = Switch zero p
        t = Switch ten p
        ei = Enter z:1 frame_name=\"w\"
        en = Enter t:1 frame_name=\"w\" is_constant=true
        mi = Merge ei ni
        less = Less mi en
        cond = LoopCond less
        si = Switch mi cond
        one = Const is=(1) ^ii
        ii = Identity si:1
        ai = Add ii one @1
        ni = NextIteration ai
        x = Exit si
        m = Merge t x";
    let mut cluster = Cluster::new(2);
    cluster.check(&graph(text), &[("p", "true")], &[("m", "10"), ("m:1", "1")]);
    cluster.check(&graph(text), &[("p", "false")], &[("m", "10"), ("m:1", "0")]);
}
