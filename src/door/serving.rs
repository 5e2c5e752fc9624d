//! The server for programs that want a model's answers over HTTP: TensorFlow Serving's REST interface below `/v1`, the Open
//! Inference Protocol (version 2) below `/v2`, and `/metrics` for Prometheus.
//!
//! A model is a session whose inputs and outputs have names. Requests wait for one of a few places; where it is asked for,
//! those that wait are computed together, as the examples of one step. A session that was lost is opened again.

mod batch;
mod http;
mod infer;
mod opened;
mod rest;
mod value;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, PartialShape, Tensor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use self::batch::Batches;
use self::opened::Opened;
use super::token::Token;
use super::web::{Process, StepTimes, Text, one};
use super::{Door, DoorConfig, DoorError, listen};
use crate::session::Session;
use crate::unauthenticated::UnauthenticatedPeers;

/// The flag of the command line that opens it.
const FLAG: &str = "--http";
/// Maximum number of connections of clients that need no token, or have presented it.
const MAX_CONNECTIONS: usize = 512;
/// Maximum size of a request's body in bytes, and of all bodies of stated lengths that are read or answered at a time.
const MAX_BODY: usize = 32 << 20;
const MAX_BODIES: usize = 4 * MAX_BODY;
/// Maximum number of bodies of unknown lengths that are read or answered at a time.
const MAX_UNSIZED: usize = 4;
/// The only version that a server has.
const VERSION: &str = "1";

/// A model as a server presents it.
///
/// ```
/// use meshtf::doors::{ServedModel, ServedPort};
/// use meshtf::tensor::{DType, PartialShape};
///
/// let port = |name: &str| ServedPort {
///     name: name.to_owned(),
///     tensor: format!("{name}:0"),
///     dtype: DType::F32,
///     shape: PartialShape(Some(vec![None, Some(2)])),
///     is_optional: false,
/// };
/// // Examples of several requests are computed together, up to 32.
/// let (name, inputs, outputs) = ("double".to_owned(), vec![port("x")], vec![port("y")]);
/// let model = ServedModel { signature: "serving_default".to_owned(), name, inputs, outputs, fixed: Vec::new(), batch: 32 };
/// assert_eq!(model.inputs[0].tensor, "x:0");
/// ```
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Its name in the addresses of requests: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// The name of its signature in TensorFlow Serving's interface, the only one that a request may name; of a model without
    /// signatures [`ServedModel::SIGNATURE`].
    pub signature: String,
    /// The tensors that requests give.
    pub inputs: Vec<ServedPort>,
    /// The tensors that they are answered with.
    pub outputs: Vec<ServedPort>,
    /// Values of other tensors, the same in all steps; of an optional input, they stand in where a request gives none.
    pub fixed: Vec<(String, Tensor)>,
    /// Maximum number of examples that are computed together for several requests. 1: each request has a step of its own.
    pub batch: usize,
}

impl ServedModel {
    /// The signature of a request that names none, and of a model that has none: TensorFlow's default.
    ///
    /// ```
    /// assert_eq!(meshtf::doors::ServedModel::SIGNATURE, "serving_default");
    /// ```
    pub const SIGNATURE: &str = "serving_default";
}

/// An input or an output of a model.
///
/// ```
/// use meshtf::doors::ServedPort;
/// use meshtf::tensor::{DType, PartialShape};
///
/// // Any number of images in RGB.
/// let shape = PartialShape(Some(vec![None, Some(224), Some(224), Some(3)]));
/// let (name, tensor) = ("image".to_owned(), "serving_default_image:0".to_owned());
/// let port = ServedPort { name, tensor, dtype: DType::U8, shape, is_optional: false };
/// assert_eq!(port.shape.to_string(), "[?,224,224,3]");
/// ```
#[derive(Clone, Debug)]
pub struct ServedPort {
    /// Its name in requests and answers.
    pub name: String,
    /// The tensor of the graph.
    pub tensor: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// The known part of its shape.
    pub shape: PartialShape,
    /// Whether a request may leave it out.
    pub is_optional: bool,
}

/// A request: values of inputs, by their places, and the places of the outputs.
struct Asked {
    feeds: Vec<(usize, Tensor)>,
    fetches: Vec<usize>,
}

/// The place of a body among those that may be in memory.
type Held = Option<OwnedSemaphorePermit>;

/// The state that the connections share.
struct Serving {
    opened: Opened,
    model: Arc<ServedModel>,
    token: Token,
    unauthenticated_peers: Arc<UnauthenticatedPeers>,
    connections: Arc<Semaphore>,
    /// KiB of bodies.
    bodies: Arc<Semaphore>,
    unsized_bodies: Arc<Semaphore>,
    batches: Batches,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// From a whole request to its whole answer.
    times: StepTimes,
    failed: u64,
    refused: u64,
    /// Steps, and the requests that shared one.
    steps: u64,
    together: u64,
}

/// Opens a server for a model. `sessions` opens its session, in which the variables have their values: at once, and again each
/// time that the session was lost; until then requests fail. If there is a token, requests present it as `authorization: Bearer
/// TOKEN`.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use meshtf::doors::{DoorConfig, ServedModel, ServedPort, open_serving};
/// use meshtf::graph::{Graph, GraphBuilder};
/// use meshtf::tensor::{DType, PartialShape};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let mut graph = GraphBuilder::new();
/// let x = graph.placeholder("x", DType::F32, PartialShape(Some(vec![None])))?;
/// graph.op("Mul").name("y").input(x).input(2f32).build()?;
/// let cluster = Arc::new(LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?);
/// let graph = Arc::new(graph.finish()?);
/// let sessions = move || {
///     let (cluster, graph) = (Arc::clone(&cluster), Arc::clone(&graph));
///     async move { cluster.session(Graph::clone(&graph), None, SessionOptions::default()).await }
/// };
///
/// let port = |name: &str| ServedPort {
///     name: name.to_owned(),
///     tensor: name.to_owned(),
///     dtype: DType::F32,
///     shape: PartialShape(Some(vec![None])),
///     is_optional: false,
/// };
/// let (name, inputs, outputs) = ("double".to_owned(), vec![port("x")], vec![port("y")]);
/// let signature = ServedModel::SIGNATURE.to_owned();
/// let model = ServedModel { name, signature, inputs, outputs, fixed: Vec::new(), batch: 1 };
/// let door = open_serving(sessions, model, DoorConfig { address: "127.0.0.1:8000".parse()?, token: None }).await?;
/// // curl -d '{"instances": [1, 2]}' http://127.0.0.1:8000/v1/models/double:predict
/// std::future::pending::<()>().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// If the address is taken, or can be reached from other machines and there is no token; the failure of `sessions`.
///
/// # Cancellation
/// Nothing stays open if the future is dropped.
pub async fn open<F: Future<Output = Result<Session>> + Send + 'static>(
    sessions: impl Fn() -> F + Send + Sync + 'static,
    model: ServedModel,
    config: DoorConfig,
) -> std::result::Result<Door, DoorError> {
    let (listener, address) = listen(FLAG, "use the model", &config).await?;
    let (batches, waiting) = Batches::new(model.batch);
    let serving = Arc::new(Serving {
        opened: Opened::new(sessions().await.map_err(DoorError::Session)?),
        model: Arc::new(model),
        token: Token::new(config.token.as_deref()),
        unauthenticated_peers: UnauthenticatedPeers::new(),
        connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        bodies: Arc::new(Semaphore::new(MAX_BODIES >> 10)),
        unsized_bodies: Arc::new(Semaphore::new(MAX_UNSIZED)),
        batches,
        counts: Mutex::default(),
    });
    Ok(Door::new(address, async move {
        let mut batching = JoinSet::new();
        batching.spawn(batch::work(Arc::clone(&serving), waiting));
        batching.spawn(opened::keep(Arc::clone(&serving), sessions));
        http::serve(serving, listener).await;
    }))
}

impl Serving {
    /// The values of the outputs that a request asks for.
    async fn answer(&self, asked: Asked, held: Held) -> Result<Vec<Tensor>> {
        self.check(&asked)?;
        self.batches.answer(self, asked, held).await
    }

    /// Counts a request that was read at this time.
    fn count(&self, read: Instant, failure: Option<Code>) {
        let mut counts = lock(&self.counts);
        match failure {
            None => counts.times.add(1, read.elapsed().as_nanos() as u64),
            Some(Code::InvalidArgument) => counts.refused += 1,
            Some(_) => counts.failed += 1,
        }
    }

    /// Refuses values that do not fit the model, and a request without one that it needs.
    fn check(&self, Asked { feeds, .. }: &Asked) -> Result<()> {
        for (place, value) in feeds {
            let port = &self.model.inputs[*place];
            if !port.shape.admits(value.shape()) {
                let why = format!(
                    "input {}: the value has the shape {}, and the model takes {}",
                    port.name,
                    value.shape(),
                    port.shape
                );
                return Err(Failure::invalid(why));
            }
        }
        let is_given = |place: usize, port: &ServedPort| port.is_optional || feeds.iter().any(|(own, _)| *own == place);
        match self.model.inputs.iter().enumerate().find(|(place, port)| !is_given(*place, port)) {
            Some((_, port)) => Err(Failure::invalid(format!(
                "input {} is missing; the model takes {}",
                port.name,
                names(&self.model.inputs)
            ))),
            None => Ok(()),
        }
    }

    /// One step.
    async fn step(&self, feeds: &[(usize, Tensor)], fetches: &[usize]) -> Result<Vec<Tensor>> {
        let ServedModel { inputs, outputs, fixed, .. } = &*self.model;
        let session = self.opened.session()?;
        let mut run = session.run().fetches(fetches.iter().map(|place| &outputs[*place].tensor));
        for (place, value) in feeds {
            run = run.feed(&inputs[*place].tensor, value.clone());
        }
        let is_fed = |tensor: &str| feeds.iter().any(|(place, _)| inputs[*place].tensor == tensor);
        run = run.feeds(fixed.iter().filter(|(tensor, _)| !is_fed(tensor)));
        lock(&self.counts).steps += 1;
        match run.await {
            Ok(ran) => Ok(ran.values),
            Err(failure) => Err(self.opened.failed(&session, failure)),
        }
    }

    /// The metrics in the text format of Prometheus.
    fn metrics(&self) -> String {
        let mut text = Text::new();
        text.of_process(&Process::own());
        let counts = lock(&self.counts);
        let help = "How long requests took that were answered, from the whole request to its answer.";
        text.histogram("meshtf_serve_request_seconds", help, &counts.times);
        let refused = "Requests that could not be read, or did not fit the model.";
        text.counter("meshtf_serve_refused_total", refused, one(counts.refused as f64));
        text.counter(
            "meshtf_serve_failed_total",
            "Requests that failed for another reason.",
            one(counts.failed as f64),
        );
        text.counter("meshtf_serve_steps_total", "Steps of the model.", one(counts.steps as f64));
        let together = "Requests that were computed together with others.";
        text.counter("meshtf_serve_batched_total", together, one(counts.together as f64));
        text.into_string()
    }
}

/// The names of inputs or outputs, for a message.
fn names(ports: &[ServedPort]) -> String {
    ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// A reader of what clients send.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    use super::*;

    /// A request of either interface for a model with an input of each kind. Whether it could be read.
    pub fn request(text: &str) -> bool {
        let port = |name: &str, dtype: DType| ServedPort {
            name: name.to_owned(),
            tensor: name.to_owned(),
            dtype,
            shape: PartialShape::UNKNOWN,
            is_optional: dtype != DType::F32,
        };
        let inputs = vec![port("x", DType::F32), port("n", DType::I64), port("tag", DType::String)];
        let outputs = vec![port("y", DType::F32)];
        let signature = ServedModel::SIGNATURE.to_owned();
        let model = ServedModel { name: "m".to_owned(), signature, inputs, outputs, fixed: Vec::new(), batch: 1 };
        rest::asked(&model, text).is_ok()
            || infer::asked(&model, text, &[0; 8]).is_ok()
            || infer::asked(&model, text, &[]).is_ok()
    }
}
