//! Runs of a session: feeds, fetches and targets by name, and the values by name.

use std::future::{Future, IntoFuture};
use std::ops::Index;
use std::pin::Pin;
use std::sync::Arc;

use meshtf_graph::plan::{Mode, Signature, Summary};
use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result, counted};

use super::{Session, Steps};
use crate::runtime::requests::StepEvent;

/// A run that is being described; awaiting it runs it.
///
/// Names are those of the graph: `y`, or `y:1` for a second output. A step feeds the feeds, runs the nodes that the fetches and
/// targets need, and returns the fetched values. Without another number it is one step.
///
/// ```
/// # use meshtf::graph::GraphBuilder;
/// # use meshtf::tensor::{DType, PartialShape};
/// # use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let mut graph = GraphBuilder::new();
/// # let x = graph.placeholder("x", DType::F32, PartialShape::UNKNOWN)?;
/// # graph.op("Mul").name("y").input(x).input(2f32).build()?;
/// # let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// # let session = cluster.session(graph.finish()?, None, SessionOptions::default()).await?;
/// let ran = session.run().feed("x", vec![1f32, 2.0]).fetch("y").await?;
/// assert_eq!(ran["y"].slice::<f32>()?, [2.0, 4.0]);
///
/// // A thousand steps without a return to this program between them.
/// let ran = session.run().feed("x", 3f32).fetch("y").steps(1000).await?;
/// assert_eq!(ran["y"].item::<f32>()?, 6.0);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// InvalidArgument for names that do not exist, a missing feed or one of the wrong type; the failure of a node of the graph,
/// with its step, counted from 1; Unavailable, naming the task, if one is gone.
///
/// # Cancellation
/// If the future is dropped before it is ready, the run is cancelled on its workers. Changes that its finished steps made to
/// variables and queues stay; the session remains usable.
#[must_use = "a run begins when it is awaited"]
pub struct Run<'s> {
    session: &'s Session,
    signature: Signature,
    feeds: Vec<Feed>,
    steps: Steps,
    on_event: Option<Box<dyn FnMut(StepEvent) + Send + 's>>,
    /// Whether events include progress.
    watched: bool,
}

/// The value of a feed.
enum Feed {
    /// In all steps.
    Same(Tensor),
    /// In each step.
    Steps(Vec<Tensor>),
}

impl<'s> Run<'s> {
    pub(super) fn new(session: &'s Session) -> Run<'s> {
        let signature = Signature { feeds: Vec::new(), fetches: Vec::new(), targets: Vec::new(), mode: Mode::Whole };
        Run { session, signature, feeds: Vec::new(), steps: Steps::ONE, on_event: None, watched: false }
    }

    /// Feeds a value, in place of the tensor that the graph would compute there.
    pub fn feed(mut self, name: impl Into<String>, value: impl Into<Tensor>) -> Self {
        self.signature.feeds.push(name.into());
        self.feeds.push(Feed::Same(value.into()));
        self
    }

    /// Feeds values by their names.
    pub fn feeds<'f, N: AsRef<str> + 'f>(self, feeds: impl IntoIterator<Item = &'f (N, Tensor)>) -> Self {
        feeds.into_iter().fold(self, |run, (name, value)| run.feed(name.as_ref(), value.clone()))
    }

    /// Feeds another value in each step: there are as many steps as values. Several such feeds have the same number of values.
    ///
    /// ```
    /// # use meshtf::graph::GraphBuilder;
    /// # use meshtf::tensor::{DType, PartialShape};
    /// # use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let mut graph = GraphBuilder::new();
    /// # let x = graph.placeholder("x", DType::F32, PartialShape::UNKNOWN)?;
    /// # graph.op("Mul").name("y").input(x).input(2f32).build()?;
    /// # let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
    /// # let session = cluster.session(graph.finish()?, None, SessionOptions::default()).await?;
    /// let mut all = Vec::new();
    /// let run = session.run().feed_steps("x", [1f32, 2.0, 3.0]).fetch("y");
    /// let last = run.each(1, |_, values| all.push(values[0].clone())).await?;
    /// assert_eq!((all[0].item::<f32>()?, all[1].item::<f32>()?, last["y"].item::<f32>()?), (2.0, 4.0, 6.0));
    /// # Ok::<(), meshtf::Failure>(())
    /// # }).unwrap();
    /// ```
    pub fn feed_steps<T: Into<Tensor>>(mut self, name: impl Into<String>, values: impl IntoIterator<Item = T>) -> Self {
        self.signature.feeds.push(name.into());
        let values: Vec<Tensor> = values.into_iter().map(Into::into).collect();
        self.steps.count = values.len() as u64;
        self.feeds.push(Feed::Steps(values));
        self
    }

    /// Fetches a value.
    pub fn fetch(mut self, name: impl Into<String>) -> Self {
        self.signature.fetches.push(name.into());
        self
    }

    /// Fetches values.
    pub fn fetches<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Self {
        names.into_iter().fold(self, |run, name| run.fetch(name.as_ref()))
    }

    /// Runs a node for its effect.
    pub fn target(mut self, name: impl Into<String>) -> Self {
        self.signature.targets.push(name.into());
        self
    }

    /// Runs nodes for their effects.
    pub fn targets<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Self {
        names.into_iter().fold(self, |run, name| run.target(name.as_ref()))
    }

    /// Runs this many steps, with the same feeds, without a return to the caller between them: the workers continue as their
    /// inputs arrive. The values are those of the last step.
    pub fn steps(mut self, count: u64) -> Self {
        self.steps.count = count;
        self
    }

    /// Traces the step on each device, of several the last: see [`RunOutput::traces`].
    pub fn traced(mut self) -> Self {
        self.signature.mode = Mode::Traced;
        self
    }

    /// Calls `on_fetch` with the number of every `every`-th step, counted from 1, and its fetches; not for the last step, whose
    /// values are returned.
    pub fn each(mut self, every: u64, mut on_fetch: impl FnMut(u64, Vec<Tensor>) + Send + 's) -> Self {
        self.steps.every = every;
        self.on_event = Some(Box::new(move |event| {
            if let StepEvent::Fetched { step, values } = event {
                on_fetch(step, values);
            }
        }));
        self
    }

    /// Calls `on_event` for every `every`-th step, or for none if that is 0, and for progress: about ten times a second it
    /// receives the number of steps that are done.
    pub fn watch(mut self, every: u64, on_event: impl FnMut(StepEvent) + Send + 's) -> Self {
        self.steps.every = every;
        self.watched = true;
        self.on_event = Some(Box::new(on_event));
        self
    }
}

impl<'s> IntoFuture for Run<'s> {
    type Output = Result<RunOutput>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<RunOutput>> + Send + 's>>;

    fn into_future(self) -> Self::IntoFuture {
        let Run { session, signature, feeds, steps, on_event, watched } = self;
        let on_event = on_event.unwrap_or_else(|| Box::new(|_| ()));
        if feeds.iter().all(|feed| matches!(feed, Feed::Same(_))) {
            let same = |feed| match feed {
                Feed::Same(value) => Some(value),
                Feed::Steps(_) => None,
            };
            let feeds = feeds.into_iter().filter_map(same).collect();
            return Box::pin(session.run_same(signature, feeds, steps, watched, on_event));
        }
        let sets = sets(&signature, feeds, steps.count);
        Box::pin(async move { session.run_fed_steps(signature, sets?, steps.every, watched, on_event).await })
    }
}

/// The feeds of each step.
fn sets(signature: &Signature, feeds: Vec<Feed>, count: u64) -> Result<Vec<Vec<Tensor>>> {
    for (name, feed) in signature.feeds.iter().zip(&feeds) {
        if let Feed::Steps(values) = feed
            && values.len() as u64 != count
        {
            return Err(Failure::invalid(format!(
                "{name} has {}, and the run {count} steps",
                counted(values.len(), "value")
            )));
        }
    }
    let mut feeds: Vec<_> = feeds
        .into_iter()
        .map(|feed| match feed {
            Feed::Same(value) => (Some(value), Vec::new().into_iter()),
            Feed::Steps(values) => (None, values.into_iter()),
        })
        .collect();
    let set = |_| feeds.iter_mut().filter_map(|(same, steps)| same.clone().or_else(|| steps.next())).collect();
    Ok((0..count).map(set).collect())
}

/// The result of a run. Indexed by the name of a fetch, or by its index, it is the value.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", [5f32, 7.0, 6.0])?;
/// g.op("TopKV2").name("top").input(x).input(1).build()?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// let ran = session.run().fetches(["top", "top:1"]).await?;
/// assert_eq!((ran["top"].item::<f32>()?, ran["top:1"].item::<i32>()?), (7.0, 1));
/// assert_eq!((ran[0].item::<f32>()?, ran.get("x")), (7.0, None));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutput {
    /// The names of the fetches, in the order of the request.
    pub names: Vec<String>,
    /// The fetches of the last step, in the order of the request.
    pub values: Vec<Tensor>,
    /// The trace of each device, after [`Run::traced`]; else empty.
    pub traces: Vec<DeviceTrace>,
    /// A summary of the plan that ran: the devices that took part, and the transfers between them.
    pub summary: Arc<Summary>,
}

impl RunOutput {
    /// The value of a fetch, by the name by which it was requested. `None` if it was not.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.names.iter().position(|one| one == name).map(|i| &self.values[i])
    }
}

impl Index<&str> for RunOutput {
    type Output = Tensor;

    /// # Panics
    /// If no fetch was requested by this name.
    fn index(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| panic!("{name} was not fetched, but {}", self.names.join(", ")))
    }
}

impl Index<usize> for RunOutput {
    type Output = Tensor;

    /// # Panics
    /// If there are fewer fetches.
    fn index(&self, index: usize) -> &Tensor {
        &self.values[index]
    }
}
