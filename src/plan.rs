//! Plans: a graph, pruned for a run, placed on devices and split into pieces. [`Client::explain`](crate::Client::explain) returns
//! one.

/// The expected work of a device in a step of a plan that was placed by cost.
///
/// ```
/// use std::time::Duration;
///
/// use meshtf::plan::DeviceEstimate;
///
/// /// Whether faster memory would help more than a faster processor.
/// fn is_bound_by_memory(of: &DeviceEstimate) -> bool {
///     of.memory > of.arithmetic + of.calls
/// }
/// let device = "/job:worker/task:0/device:CPU:0".parse()?;
/// let [arithmetic, memory, calls, receives] = [2, 5, 1, 0].map(Duration::from_millis);
/// let of = DeviceEstimate { device, arithmetic, memory, calls, receives };
/// assert!(is_bound_by_memory(&of));
/// assert_eq!(of.computes(), Duration::from_millis(8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::DeviceEstimate;
/// The expectation of a plan that was placed by cost.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::plan::{PlaceBy, Signature};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// g.op("Neg").name("y").input(2f32).build()?;
/// let tasks = [Task::new("local", 0), Task::new("local", 1)];
/// let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
/// let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
/// let options = SessionOptions { place_by: PlaceBy::Cost, ..SessionOptions::default() };
/// let plan = cluster.explain(&g.finish()?, &tasks[1], signature, options).await?;
/// // One node is not divided: it stays on the master's device.
/// let estimate = plan.estimate.unwrap();
/// assert_eq!(estimate.alone, Some((plan.pieces[0].device.clone(), estimate.step)));
/// assert_eq!(plan.pieces[0].device.task, tasks[1]);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Estimate;
/// The choice between a step that only computes, and one that is traced or fed value by value.
///
/// ```
/// use meshtf::plan::{Mode, Signature};
///
/// // The plan of a traced step: the same nodes on the same devices.
/// let signature = Signature { fetches: vec!["y".into()], mode: Mode::Traced, ..Signature::default() };
/// assert!(!signature.mode.is_partial());
/// assert_eq!(Signature::default().mode, Mode::Whole);
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Mode;
/// Another choice of devices than that of a plan that was placed by cost.
///
/// ```
/// use std::time::Duration;
///
/// use meshtf::plan::{Estimate, NextBest, PathEstimate};
///
/// /// The factor by which the next best plan is slower.
/// fn gain(estimate: &Estimate) -> Option<f64> {
///     Some(estimate.next.as_ref()?.step.as_secs_f64() / estimate.step.as_secs_f64())
/// }
/// let devices = vec!["/job:worker/task:0/device:CPU:0".parse()?];
/// let next = Some(NextBest { devices, step: Duration::from_millis(30) });
/// let path = PathEstimate { computes: Duration::from_millis(20), ..PathEstimate::default() };
/// let estimate = Estimate { step: path.computes, interval: None, alone: None, before: None, devices: Vec::new(), path, next };
/// assert_eq!(gain(&estimate), Some(1.5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::NextBest;
/// The parts of the chain of nodes and transfers that ends last in a step.
///
/// ```
/// use std::time::Duration;
///
/// use meshtf::plan::PathEstimate;
///
/// /// The share of a step in which a faster network would help.
/// fn in_transfers(path: &PathEstimate) -> f64 {
///     path.transfers.as_secs_f64() / (path.computes + path.transfers).as_secs_f64()
/// }
/// let [computes, transfers] = [30, 10].map(Duration::from_millis);
/// assert_eq!(in_transfers(&PathEstimate { computes, transfers, crossings: 2 }), 0.25);
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::PathEstimate;
/// The nodes of a plan on one device.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::plan::Signature;
/// use meshtf::tensor::DType;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let x = g.placeholder("x", DType::F32, [2])?;
/// g.op("Neg").name("y").input(x).build()?;
/// g.op("Exp").name("unused").input(x).build()?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let signature = Signature { feeds: vec!["x".into()], fetches: vec!["y".into()], ..Signature::default() };
/// let plan = cluster.explain(&g.finish()?, None, signature, SessionOptions::default()).await?;
/// let names: Vec<&str> = plan.pieces[0].nodes.iter().map(|node| node.name.as_str()).collect();
/// assert_eq!(names, ["_Feed/x", "y", "_Fetch/y"]);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Piece;
/// The rule for nodes whose requests several devices satisfy: an option of a session.
///
/// ```
/// use meshtf::plan::PlaceBy;
/// use meshtf::SessionOptions;
///
/// let options = SessionOptions { place_by: PlaceBy::Cost, ..SessionOptions::default() };
/// assert_ne!(options.place_by, PlaceBy::default());
/// assert_eq!(SessionOptions::default().place_by, PlaceBy::Names);
/// // For many requests that overlap, rather than one that is to be answered soon.
/// assert_ne!(PlaceBy::Throughput, PlaceBy::Cost);
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::PlaceBy;
/// The device of a node, and the reason.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::plan::{Signature, Why};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// g.op("NoOp").name("here").device("/job:local/task:1").build()?;
/// let tasks = [Task::new("local", 0), Task::new("local", 1)];
/// let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
/// let signature = Signature { targets: vec!["here".into()], ..Signature::default() };
/// let plan = cluster.explain(&g.finish()?, &tasks[0], signature, SessionOptions::default()).await?;
/// let placement = &plan.placements[0];
/// assert_eq!((placement.node.as_str(), &placement.device.task), ("here", &tasks[1]));
/// assert_eq!(placement.why, Why::Requested);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Placement;
/// The answer of [`Client::explain`](crate::Client::explain), from which a program sees where a graph would run.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::plan::Signature;
/// use meshtf::tensor::DType;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let x = g.placeholder("x", DType::F32, [2])?;
/// let tripled = g.op("Mul").name("tripled").input(x).input(3f32).device("/job:local/task:0").build()?;
/// g.op("Neg").name("y").input(tripled).device("/job:local/task:1").build()?;
///
/// let tasks = [Task::new("local", 0), Task::new("local", 1)];
/// let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
/// let signature = Signature { feeds: vec!["x".into()], fetches: vec!["y".into()], ..Signature::default() };
/// let plan = cluster.explain(&g.finish()?, &tasks[0], signature, SessionOptions::default()).await?;
/// assert_eq!(plan.pieces.len(), 2);
/// // One value crosses: two numbers of four bytes.
/// assert_eq!((plan.transfers[0].tensor.as_str(), plan.transfers[0].bytes), ("tripled", Some(8)));
/// assert_eq!(plan.fetch_types, [DType::F32]);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Plan;
/// The names for which a graph is planned.
///
/// ```
/// use meshtf::plan::Signature;
///
/// // The second output of node `top`, from a fed `x`; and `saved` runs for its effect.
/// let signature = Signature {
///     feeds: vec!["x".into()],
///     fetches: vec!["top:1".into()],
///     targets: vec!["saved".into()],
///     ..Signature::default()
/// };
/// assert!(!signature.mode.is_partial());
///
/// // A plan needs no values: the placeholders that `y` needs count as fed.
/// let mut g = meshtf::graph::GraphBuilder::new();
/// let x = g.placeholder("x", meshtf::tensor::DType::F32, [2])?;
/// g.op("Neg").name("y").input(x).build()?;
/// let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
/// assert_eq!(signature.with_placeholders(&g.finish()?).feeds, ["x"]);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Signature;
/// The devices that took part in a run, with the first names on each: short enough to be printed.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let x = g.op("RandomUniform").name("x").input([2]).attr("dtype", meshtf::tensor::DType::F32).build()?;
/// g.op("Neg").name("y").input(x).build()?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// let summary = session.run().fetch("y").await?.summary;
/// assert_eq!(summary.devices[0].device.task, Task::new("local", 0));
/// assert!(summary.devices[0].nodes.contains(&"y".to_owned()));
/// assert!(summary.transfers.is_empty());
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Summary;
/// The bytes that a plan needs on one device, compared with those that the device has.
///
/// ```
/// use meshtf::plan::Total;
///
/// /// A warning, if a plan needs more memory than a device is known to have.
/// fn warning(device: &str, total: &Total) -> Option<String> {
///     Some(format!("{device} needs {} bytes, more than it has", total.over()?))
/// }
///
/// // The memory of this device is not known.
/// let total = Total { variables: 1 << 30, peak: 1 << 20, ..Total::default() };
/// assert_eq!(warning("/job:local/task:0/device:CPU:0", &total), None);
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Total;
/// The cost of a split: a value that one device sends to another in each step.
///
/// ```
/// use meshtf::plan::Transfer;
/// use meshtf::status::DeviceName;
/// use meshtf::tensor::DType;
///
/// /// The bytes that a device receives in a step; transfers of an unknown size do not count.
/// fn received(transfers: &[Transfer], device: &DeviceName) -> u64 {
///     transfers.iter().filter(|one| one.to == *device).filter_map(|one| one.bytes).sum()
/// }
///
/// let (from, to): (DeviceName, DeviceName) = ("/job:ps/task:0/cpu:0".parse()?, "/job:worker/task:0/gpu:0".parse()?);
/// let weights = Transfer { tensor: "w".into(), dtype: Some(DType::F32), from, to: to.clone(), bytes: Some(400) };
/// assert_eq!(received(&[weights], &to), 400);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Transfer;
/// The answer to the question why a node runs where it does.
///
/// ```
/// use meshtf::plan::Why;
///
/// fn reason(why: &Why) -> String {
///     match why {
///         Why::Requested => "its device string says so".to_owned(),
///         Why::Colocated { with } => format!("it must be where {with} is"),
///         Why::Soft { requested } => format!("there is no {requested}"),
///         Why::Default => "it names no device".to_owned(),
///         Why::Cost => "a step is expected to end soonest so".to_owned(),
///     }
/// }
/// assert_eq!(reason(&Why::Soft { requested: "/device:GPU:0".into() }), "there is no /device:GPU:0");
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::Why;
/// The bytes that a plan needs on each device, before it runs.
///
/// ```
/// use meshtf::model::{Initializer, Model};
/// use meshtf::plan::{Signature, totals};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// let norm = m.variable("w", [1000, 10], Initializer::GlorotUniform).square().sum().named("norm");
/// let (graph, task) = (m.finish()?, Task::new("local", 0));
/// let cluster = LocalCluster::start(&[task.clone()], BackendChoice::Flex)?;
/// let signature = Signature { fetches: vec![norm.name()], ..Signature::default() };
/// let plan = cluster.explain(&graph, &task, signature, SessionOptions::default()).await?;
/// let totals = totals(&plan, &graph, &cluster.cluster().facts());
/// let total = &totals[&cluster.cluster().devices()[0]];
/// assert_eq!((total.variables, total.sends), (1000 * 10 * 4, 0));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::plan::totals;
/// The times of a step's nodes on one device.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::{DType, PartialShape};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let x = g.placeholder("x", DType::F32, PartialShape::UNKNOWN)?;
/// g.op("MatMul").name("y").input(x).input(x).build()?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// let ran = session.run().feed("x", [[2f32]]).fetch("y").traced().await?;
/// let trace = &ran.traces[0];
/// assert_eq!(trace.device, Task::new("local", 0).device(meshtf::status::DeviceKind::Cpu, 0));
/// assert!(trace.nodes.iter().any(|node| (node.name.as_str(), node.op.as_str()) == ("y", "MatMul")));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::trace::DeviceTrace;
/// The time that a node took in a step.
///
/// ```
/// use meshtf::plan::{DeviceTrace, NodeTrace};
///
/// /// The node that took longest, without those that planning added.
/// fn slowest(trace: &DeviceTrace) -> Option<&NodeTrace> {
///     trace.nodes.iter().filter(|node| !node.name.starts_with('_')).max_by_key(|node| node.took_ns)
/// }
///
/// let node = |name: &str, took_ns| NodeTrace { name: name.into(), took_ns, ..NodeTrace::default() };
/// let device = "/job:worker/task:0/device:CPU:0".parse()?;
/// let trace = DeviceTrace { device, nodes: vec![node("a", 900), node("b", 1200), node("_Recv/x/0", 5000)] };
/// assert_eq!(slowest(&trace).unwrap().name, "b");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::trace::NodeTrace;
/// The traces of a step as one timeline, with the clocks of their machines aligned.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::plan::Timeline;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let x = g.placeholder("x", meshtf::tensor::DType::F32, [None])?;
/// g.op("Exp").name("y").input(x).build()?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// let ran = session.run().feed("x", [0f32, 1.0]).fetch("y").traced().await?;
/// // For ui.perfetto.dev.
/// let trace = Timeline::of(&ran.traces).chrome_trace();
/// assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["name"] == "y"));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_graph::trace::Timeline;
