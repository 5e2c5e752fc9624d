//! Trainings: tasks that share the work, and a function of Python that observes.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use meshtf::graph::Graph as CheckedGraph;
use meshtf::tensor::Tensor;
use meshtf::train::{
    Best, Ended, Error, EvaluateSection, Evaluated, Every, How, Observed, Observer, Options, Sections, Trainer,
    UpdateMode,
};
use meshtf::{BackendChoice, Failure, LocalCluster, SessionOptions, Task};
use meshtf_train::file::{SectionsError, read_local};
use meshtf_train::job::names_of_variables;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value as Json, json};

use crate::array::{to_numpy, to_tensor};
use crate::builder::training;
use crate::client::{Client, Reached};
use crate::error::{OrRaise, invalid, raised};
use crate::examples::{Origin, Prepared, Raised, Source};
use crate::graph::{Graph, variables};
use crate::runtime::wait_through;
use crate::session::Feeds;

/// The parameters, as Python's keyword arguments have them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Parameters<'py> {
    loss: String,
    optimizer: String,
    rate: f64,
    numbers: Vec<(String, f64)>,
    clip: Option<f64>,
    clip_norm: Option<f64>,
    weight_decay: f64,
    average: Option<f64>,
    batch: usize,
    steps: Option<u64>,
    epochs: Option<u64>,
    shuffle: Option<u64>,
    hold_out: f64,
    metrics: Vec<String>,
    workers: Option<usize>,
    ps: Option<usize>,
    mode: String,
    /// The rounds of mode local, in JSON.
    local: Option<String>,
    microbatches: Option<usize>,
    evaluate_every: Option<u64>,
    patience: Option<u64>,
    best: Option<String>,
    is_greatest: bool,
    record: Option<u64>,
    checkpoint: Option<PathBuf>,
    save_every: Option<u64>,
    resume: Option<bool>,
    /// A file of weights, or values of some variables.
    weights: Option<PathBuf>,
    values: Feeds<'py>,
    /// The variables that are trained, all if none is named.
    variables: Vec<String>,
    target: Option<String>,
}

/// Calls a function of Python with each event, as JSON, and its measured values, which JSON cannot have if they are not finite.
/// The function returns whether the training is to stop.
struct Watcher {
    observe: Py<PyAny>,
    /// The exception that the function raised.
    raised: Raised,
    stopped: Arc<tokio::sync::Notify>,
    /// The first example that an iterator's training takes, and the number of examples of a step.
    origin: Origin,
    drawn: usize,
}

impl Watcher {
    fn told(&self, event: Json, values: &[f64]) -> Observed {
        let called = Python::try_attach(|py| self.observe.call1(py, (event.to_string(), values))?.is_truthy(py));
        match called {
            Some(Ok(false)) => Ok(()),
            Some(Ok(true)) => {
                self.stopped.notify_one();
                Ok(())
            }
            Some(Err(error)) => {
                let is_interrupt = Python::attach(|py| error.is_instance_of::<PyKeyboardInterrupt>(py));
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                if is_interrupt {
                    // Ctrl-C while the function ran: the training ends as with Ctrl-C at any other moment.
                    self.stopped.notify_one();
                    return Ok(());
                }
                Err("a callback raised an exception".into())
            }
            None => Err("the interpreter has ended".into()),
        }
    }
}

impl Observer for Watcher {
    fn begins(&mut self, start: u64) -> Observed {
        let first = usize::try_from(start).unwrap_or(usize::MAX).saturating_mul(self.drawn);
        self.origin.store(first, Ordering::Relaxed);
        self.told(json!({ "event": "begins", "step": start }), &[])
    }

    fn noted(&mut self, text: &str) -> Observed {
        self.told(json!({ "event": "noted", "text": text }), &[])
    }

    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        self.told(json!({ "event": "trained", "step": step }), values)
    }

    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        self.told(json!({ "event": "evaluated", "step": step }), &evaluated.means)
    }

    fn saved(&mut self, step: u64, file: &std::path::Path) -> Observed {
        self.told(json!({ "event": "saved", "step": step, "file": file.display().to_string() }), &[])
    }

    fn enough(&mut self, step: u64, of: &str, best: f64, at: u64) -> Observed {
        self.told(json!({ "event": "enough", "step": step, "of": of, "best": best, "at": at }), &[])
    }
}

/// Trains a model; how it ended, and the values of its variables.
#[pyfunction]
#[pyo3(signature = (client, graph, data, held_out, parameters, observe))]
pub fn train<'py>(
    py: Python<'py>,
    client: Option<&Client>,
    graph: &Graph,
    data: Source<'py>,
    held_out: Option<Source<'py>>,
    parameters: Parameters<'py>,
    observe: Py<PyAny>,
) -> PyResult<(String, Bound<'py, PyDict>)> {
    let reached = client.map(|client| client.reached(py)).transpose()?;
    let target = parameters.target.as_deref().map(|name| crate::convert::task_named(py, name)).transpose()?;
    let has_evaluations = held_out.is_some() || parameters.hold_out > 0.0;
    let (mut sections, mut options) = settings(py, &parameters, has_evaluations, graph.file.init.clone())?;
    let (raised_there, origin) = (Raised::default(), Origin::default());
    let prepared = Prepared::of(py, data, held_out, &mut sections, (&raised_there, &origin))?;
    let model = graph.file.graph.clone();
    options.values = values(&model, &parameters.values)?;
    let to_known = known_names(&model);
    sections.train.variables = parameters.variables.iter().map(to_known).collect();
    // Without the optimizer's.
    let own: Vec<String> = variables(&model).into_iter().map(|(name, _)| name).collect();
    let record = parameters.record;
    let stopped = Arc::new(tokio::sync::Notify::new());
    let drawn = sections.train.drawn(sections.data.batch).or_raise(py)?;
    let mut watcher =
        Watcher { observe, raised: Arc::clone(&raised_there), stopped: Arc::clone(&stopped), origin, drawn };
    let stops = Arc::clone(&stopped);
    let work = async move {
        let (data, remarks) = prepared.read(&sections, &model)?;
        for remark in remarks {
            watcher.noted(&remark)?;
        }
        let mut trainer = Trainer::new(model, sections, data, &options)?;
        match record {
            // The last step of each epoch.
            Some(0) => trainer.record_every(trainer.steps_per_epoch()),
            Some(steps) => trainer.record_every(steps),
            None => {}
        }
        let (names, steps) = (trainer.names(), trainer.steps());
        watcher.told(
            json!({ "event": "prepared", "names": names, "steps": steps, "epoch": trainer.steps_per_epoch() }),
            &[],
        )?;
        let trained = run(&trainer, &own, reached, target, &mut watcher, &stops).await;
        trained.map(|(ended, values)| (names, ended, values))
    };
    let saves = parameters.checkpoint.is_some();
    // At the first Ctrl-C, a training with a checkpoint stops after the step under way and saves it; the second ends the wait.
    let ended: Result<_, Error> = wait_through(py, work, |error| {
        let mut raised = raised_there.lock().unwrap_or_else(PoisonError::into_inner);
        if !saves || raised.is_some() {
            return Err(error);
        }
        *raised = Some(error);
        stopped.notify_one();
        Ok(())
    })?;
    if let Some(error) = raised_there.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    let (names, ended, values) = ended.map_err(|error| raised(py, Failure::from(error)))?;
    let weights = PyDict::new(py);
    for (name, value) in values {
        weights.set_item(name, to_numpy(py, value)?)?;
    }
    let how = match ended.how {
        How::Done => "done",
        How::Enough => "enough",
        How::Stopped => "stopped",
        _ => return Err(PyRuntimeError::new_err("the training ended in an unknown way")),
    };
    Ok((json!({ "names": names, "start": ended.start, "step": ended.step, "how": how }).to_string(), weights))
}

/// Trains on the tasks of a client, or on those that the training needs, in this process; returns the values of the model's `own`
/// variables.
async fn run(
    trainer: &Trainer,
    own: &[String],
    reached: Option<Arc<Reached>>,
    target: Option<Task>,
    watcher: &mut Watcher,
    stopped: &tokio::sync::Notify,
) -> Result<(Ended, Vec<(String, Tensor)>), Error> {
    let tasks = trainer.tasks();
    let reached = match reached {
        Some(reached) => reached,
        None => {
            let own = if tasks.is_empty() { vec![Task::new("localhost", 0)] } else { tasks.clone() };
            Arc::new(Reached::Local(LocalCluster::start(&own, BackendChoice::Auto)?))
        }
    };
    reached.wait_for(&tasks).await;
    let graph = trainer.graph().clone();
    let mut readers = readers(&graph);
    readers.retain(|(name, _)| own.contains(name));
    let session = reached.session(graph, target.as_ref(), SessionOptions::default()).await?;
    let ended = trainer.run_until(&session, watcher, stopped.notified()).await?;
    let fetched = session.run().fetches(readers.iter().map(|(_, reader)| reader)).await?;
    let values = readers.into_iter().map(|(name, _)| name).zip(fetched.values).collect();
    session.close().await?;
    // The devices of a cluster end on a thread that may wait for them.
    let _ended = tokio::task::spawn_blocking(move || drop(reached)).await;
    Ok((ended, values))
}

/// Values of variables under the names that a training has for them.
fn values(graph: &CheckedGraph, given: &Feeds<'_>) -> PyResult<Vec<(String, Tensor)>> {
    let to_known = known_names(graph);
    given.iter().map(|(name, array, dtype)| Ok((to_known(name), to_tensor(array, dtype)?))).collect()
}

/// The name that a training has for a variable.
fn known_names(graph: &CheckedGraph) -> impl Fn(&String) -> String + use<> {
    let (known, own) = (names_of_variables(graph), variables(graph));
    move |name| {
        // That of the node, if a training has another one for the variable.
        let node = own.iter().find(|(own, _)| own == name).filter(|_| !known.contains(name));
        node.map_or_else(|| name.clone(), |(_, node)| node.clone())
    }
}

/// The variables of a graph with the tensors that read them.
fn readers(graph: &CheckedGraph) -> Vec<(String, String)> {
    let reads = |node: &str| {
        let id = graph.find(node)?;
        if graph.node(id).outputs.first().is_some_and(|output| output.is_ref) {
            return Some(node.to_owned());
        }
        let reader =
            graph.nodes().find(|(_, node)| node.op.reads_variable && node.inputs.iter().any(|input| input.node == id));
        reader.map(|(_, node)| node.name.clone())
    };
    variables(graph).into_iter().filter_map(|(name, node)| Some((name, reads(&node)?))).collect()
}

fn settings(
    py: Python<'_>,
    given: &Parameters<'_>,
    has_evaluations: bool,
    init: Vec<String>,
) -> PyResult<(Sections, Options)> {
    let Parameters { clip, clip_norm, weight_decay, average, .. } = *given;
    let training =
        training(py, &given.optimizer, given.rate, given.numbers.clone(), clip, clip_norm, weight_decay, average)?;
    let mut sections = Sections::new(&given.loss, training, given.batch);
    sections.init = init;
    sections.data.shuffle = given.shuffle;
    sections.data.hold_out = given.hold_out;
    (sections.train.steps, sections.train.epochs) = (given.steps, given.epochs);
    sections.train.metrics = given.metrics.clone();
    if let Some(workers) = given.workers {
        sections.train.workers = workers;
    }
    if let Some(ps) = given.ps {
        sections.train.ps = ps;
    }
    sections.train.mode = match given.mode.as_str() {
        "sync" => UpdateMode::Sync,
        "async" => UpdateMode::Async,
        "mirrored" => UpdateMode::Mirrored,
        "local" => UpdateMode::Local,
        "pipeline" => UpdateMode::Pipeline,
        other => {
            let why =
                format!("mode is {other:?}; expected \"sync\", \"async\", \"mirrored\", \"local\" or \"pipeline\"");
            return Err(invalid(py, why));
        }
    };
    if let Some(local) = &given.local {
        if sections.train.mode != UpdateMode::Local {
            return Err(invalid(
                py,
                format!("local is about the rounds of mode \"local\", and mode is {:?}", given.mode),
            ));
        }
        let wrong =
            |error: SectionsError| invalid(py, format!("local{}: {}", error.path.trim_start_matches('$'), error.why));
        sections.train.local = read_local(local).map_err(wrong)?;
    }
    if given.microbatches.is_some() && sections.train.mode != UpdateMode::Pipeline {
        let why = format!("microbatches are the parts of a batch in mode \"pipeline\", and mode is {:?}", given.mode);
        return Err(invalid(py, why));
    }
    sections.train.microbatches = given.microbatches;
    if sections.train.mode == UpdateMode::Pipeline && (given.workers.is_none() || given.ps.is_some_and(|ps| ps > 0)) {
        return Err(invalid(
            py,
            "in mode \"pipeline\" each worker has a stage with its variables: state workers, and no ps",
        ));
    }
    if sections.train.mode == UpdateMode::Local && (given.workers.is_none() || given.ps.is_some_and(|ps| ps > 0)) {
        return Err(invalid(py, "in mode \"local\" each worker has all variables: state workers, and no ps"));
    }
    if has_evaluations {
        let every = given.evaluate_every;
        sections.evaluate = Some(EvaluateSection {
            every: every.unwrap_or(0),
            epochs: if every.is_none() { Some(1) } else { None },
            metrics: given.metrics.clone(),
            best: Best { of: given.best.clone(), is_greatest: given.is_greatest },
            patience: given.patience,
            ..EvaluateSection::default()
        });
    } else if given.patience.is_some() || given.best.is_some() {
        return Err(invalid(py, "patience and best watch examples that are not trained with: state validation, too"));
    }
    let options = Options {
        checkpoint: given.checkpoint.clone(),
        every: given.save_every.map(Every::Steps),
        resume: given.resume == Some(true),
        resume_if_any: given.resume.is_none() && given.checkpoint.is_some(),
        weights: given.weights.clone(),
        ..Options::default()
    };
    Ok((sections, options))
}
