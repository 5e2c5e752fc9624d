//! Sessions: runs, awaited or not, and the values of variables.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meshtf::graph::{Attr, NodeDef, ProgramFile};
use meshtf::plan::Timeline;
use meshtf::tensor::Tensor;
use meshtf::{Code, Failure, Init, RunOutput, Session as Opened};
use pyo3::prelude::*;
use pyo3::types::PyList;
use serde_json::json;
use tokio::task::AbortHandle;

use crate::array::{to_numpy, to_tensor};
use crate::client::Reached;
use crate::convert::seconds_of;
use crate::error::{OrRaise, raised, refused};
use crate::graph::{Graph, variables};
use crate::runtime::{runtime, wait};
use crate::steps::{Begun, Steps};

/// The feeds of a run: names of tensors, arrays in C order, and the names of their dtypes.
pub type Feeds<'py> = Vec<(String, Bound<'py, PyAny>, String)>;

/// A session, until it is closed.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Session {
    opened: Mutex<Option<Arc<Opened>>>,
    file: Mutex<Arc<ProgramFile>>,
    /// The nodes that were added for access to variables, by the variable's name.
    access: Mutex<Vec<Access>>,
    /// The session's way to its master; a cluster of this process exists as long.
    reached: Mutex<Option<Arc<Reached>>>,
}

/// The nodes that read and set a variable.
#[derive(Clone)]
struct Access {
    variable: String,
    /// The tensor that reads it.
    read: String,
    /// The placeholder of a new value, and its dtype.
    value: String,
    dtype: String,
    /// The node that assigns it.
    assign: String,
}

/// The fetches, targets and feeds of a run.
#[derive(Clone)]
pub struct Asked {
    pub fetches: Vec<String>,
    pub targets: Vec<String>,
    pub feeds: Vec<(String, Tensor)>,
}

impl Asked {
    pub fn of(file: &ProgramFile, fetches: Vec<String>, targets: Vec<String>, feeds: Feeds<'_>) -> PyResult<Asked> {
        let mut all = Vec::with_capacity(feeds.len());
        for (name, array, dtype) in feeds {
            all.push((name, to_tensor(&array, &dtype)?));
        }
        // The values that the file states, unless they are replaced.
        for (name, value) in &file.feed {
            if all.iter().all(|(own, _)| own != name) {
                all.push((name.clone(), value.clone()));
            }
        }
        Ok(Asked { fetches, targets, feeds: all })
    }

    /// Runs it: the values are passed on, so that a large one is not copied on its way into a variable.
    pub async fn run(
        self,
        session: &Opened,
        steps: u64,
        traced: bool,
        limit: Option<Duration>,
    ) -> meshtf::Result<RunOutput> {
        let mut run = session.run().fetches(self.fetches).targets(self.targets).steps(steps);
        for (name, value) in self.feeds {
            run = run.feed(name, value);
        }
        let run = if traced { run.traced() } else { run };
        match limit {
            None => run.await,
            // The steps that are under way are cancelled.
            Some(limit) => tokio::time::timeout(limit, run).await.unwrap_or_else(|_| {
                let why = format!("the run did not end within {} s", limit.as_secs_f64());
                Err(Failure::new(Code::DeadlineExceeded, why))
            }),
        }
    }
}

/// The values of a run as a list of arrays.
pub fn arrays(py: Python<'_>, values: Vec<Tensor>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for value in values {
        list.append(to_numpy(py, value)?)?;
    }
    Ok(list)
}

impl Session {
    pub fn of(session: Opened, file: Arc<ProgramFile>, reached: Arc<Reached>) -> Session {
        Session {
            opened: Mutex::new(Some(Arc::new(session))),
            file: Mutex::new(file),
            access: Mutex::default(),
            reached: Mutex::new(Some(reached)),
        }
    }

    fn opened(&self, py: Python<'_>) -> PyResult<Arc<Opened>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.ok_or_else(|| refused(py, Code::FailedPrecondition, "the session is closed"))
    }

    /// The graph with its defaults.
    fn file(&self) -> Arc<ProgramFile> {
        Arc::clone(&self.file.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The nodes that access a variable, which are added to the graph when they are first needed.
    fn access(&self, py: Python<'_>, name: &str) -> PyResult<Access> {
        let known = |all: &[Access]| all.iter().find(|one| one.variable == name).cloned();
        if let Some(access) = known(&self.access.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(access);
        }
        let (access, nodes) = self.nodes_for(name).or_raise(py)?;
        let session = self.opened(py)?;
        wait(py, async move { session.extend(nodes).await })?.or_raise(py)?;
        let mut all = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        if known(&all).is_none() {
            all.push(access.clone());
        }
        Ok(access)
    }

    fn nodes_for(&self, name: &str) -> meshtf::Result<(Access, Vec<NodeDef>)> {
        let file = self.file();
        let graph = &file.graph;
        let all = variables(graph);
        let made = all.iter().find(|(own, node)| own == name || node == name);
        let node = made.and_then(|(_, node)| graph.find(node)).map(|id| graph.node(id)).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|(own, _)| own.as_str()).collect();
            let known = match known.len() {
                0 => "it has none".to_owned(),
                count if count > 16 => format!("it has {count}, among them {}", known[..8].join(", ")),
                _ => format!("it has {}", known.join(", ")),
            };
            Failure::new(Code::NotFound, format!("the graph has no variable {name}; {known}"))
        })?;
        let dtype = node.attrs.dtype("dtype")?;
        let shape = node.attrs.shape("shape").cloned().unwrap_or_default();
        let (is_ref, handle) = (node.outputs[0].is_ref, node.name.clone());
        let free = |wanted: String| {
            let names = std::iter::once(wanted.clone()).chain((1..).map(move |n| format!("{wanted}_{n}")));
            names.into_iter().find(|name| graph.find(name).is_none()).unwrap_or_default()
        };
        let (read, value, assign) =
            (free(format!("_read/{name}")), free(format!("_value/{name}")), free(format!("_assign/{name}")));
        let def = |name: &str, op: &str, inputs: Vec<String>, attrs: Vec<(&str, Attr)>| NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            inputs,
            attrs: attrs.into_iter().fold(Default::default(), |mut all: meshtf::graph::Attrs, (name, value)| {
                all.set(name, value);
                all
            }),
            ..NodeDef::default()
        };
        let (reads, assigns) = if is_ref { ("Identity", "Assign") } else { ("ReadVariableOp", "AssignVariableOp") };
        let kind = if is_ref { "T" } else { "dtype" };
        let nodes = vec![
            def(&read, reads, vec![handle.clone()], vec![(kind, dtype.into())]),
            def(&value, "Placeholder", Vec::new(), vec![("dtype", dtype.into()), ("shape", shape.into())]),
            def(&assign, assigns, vec![handle, value.clone()], vec![(kind, dtype.into())]),
        ];
        let access = Access { variable: name.to_owned(), read, value, dtype: dtype.name().to_owned(), assign };
        Ok((access, nodes))
    }
}

#[pymethods]
impl Session {
    /// Runs steps with the same feeds; the values of the last, and for a traced one its timeline.
    #[pyo3(signature = (fetches, targets, feeds, steps=1, traced=false, timeout=None))]
    #[allow(clippy::too_many_arguments)]
    fn run<'py>(
        &self,
        py: Python<'py>,
        fetches: Vec<String>,
        targets: Vec<String>,
        feeds: Feeds<'py>,
        steps: u64,
        traced: bool,
        timeout: Option<f64>,
    ) -> PyResult<(Bound<'py, PyList>, Option<String>)> {
        let asked = Asked::of(&self.file(), fetches, targets, feeds)?;
        let (session, limit) = (self.opened(py)?, timeout.map(|seconds| seconds_of(py, seconds)).transpose()?);
        let ran = wait(py, async move { asked.run(&session, steps, traced, limit).await })?.or_raise(py)?;
        let timeline = traced.then(|| timeline(&ran));
        Ok((arrays(py, ran.values)?, timeline))
    }

    /// Begins a run; `done` is called with its values or its exception, on a thread of meshtf.
    #[pyo3(signature = (fetches, targets, feeds, steps, done))]
    fn begin(
        &self,
        py: Python<'_>,
        fetches: Vec<String>,
        targets: Vec<String>,
        feeds: Feeds<'_>,
        steps: u64,
        done: Py<PyAny>,
    ) -> PyResult<Pending> {
        let asked = Asked::of(&self.file(), fetches, targets, feeds)?;
        let session = self.opened(py)?;
        let work = async move {
            let ran = asked.run(&session, steps, false, None).await;
            drop(session);
            // Without an interpreter, nobody waits any more.
            let _nobody = Python::try_attach(|py| {
                let called = match ran.or_raise(py).and_then(|ran| arrays(py, ran.values)) {
                    Ok(values) => done.call1(py, (values, py.None())),
                    Err(error) => done.call1(py, (py.None(), error.into_value(py))),
                };
                if let Err(error) = called {
                    error.write_unraisable(py, Some(done.bind(py)));
                }
            });
        };
        Ok(Pending(spawned(work)?))
    }

    /// Begins steps whose values are returned one by one.
    #[pyo3(signature = (fetches, targets, feeds, steps, every))]
    fn steps(
        &self,
        py: Python<'_>,
        fetches: Vec<String>,
        targets: Vec<String>,
        feeds: Feeds<'_>,
        steps: u64,
        every: u64,
    ) -> PyResult<Steps> {
        let asked = Asked::of(&self.file(), fetches, targets, feeds)?;
        Steps::begin(self.opened(py)?, Begun { asked, steps, every })
    }

    /// Adds the nodes of a graph that has grown since, and gives new variables their first values if none of them has one.
    fn extend(&self, py: Python<'_>, graph: &Graph) -> PyResult<()> {
        let (session, known, grown) = (self.opened(py)?, self.file(), Arc::clone(&graph.file));
        let added = wait(py, async move {
            // Those that initialize the new variables.
            let is_new = |name: &&String| known.graph.find(name).is_none();
            let init = grown.init.iter().filter_map(|name| grown.graph.find(name)).map(|id| grown.graph.node(id));
            let parts = init.flat_map(|node| &node.control).map(|&id| &grown.graph.node(id).name);
            let fresh: Vec<String> = parts.filter(is_new).cloned().collect();
            let (whole, due) = Init::of(grown.graph.clone(), &fresh);
            let mut nodes = whole.to_defs();
            nodes.retain(|node| is_new(&&node.name));
            session.extend(nodes).await?;
            if !fresh.is_empty() && due.is_due(&session).await? {
                session.run().feeds(&grown.feed).targets(&fresh).await?;
            }
            Ok::<_, Failure>(grown)
        });
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = added?.or_raise(py)?;
        Ok(())
    }

    /// The value of a variable.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let access = self.access(py, name)?;
        let session = self.opened(py)?;
        let mut ran = wait(py, async move { session.run().fetch(access.read).await })?.or_raise(py)?;
        to_numpy(py, ran.values.swap_remove(0))
    }

    /// The dtype of a variable.
    fn dtype(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        self.access(py, name).map(|access| access.dtype)
    }

    /// Gives a variable a value: an array in C order of its dtype.
    fn write(&self, py: Python<'_>, name: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let access = self.access(py, name)?;
        let value = to_tensor(array, &access.dtype)?;
        let session = self.opened(py)?;
        wait(py, async move { session.run().feed(access.value, value).target(access.assign).await })?.or_raise(py)?;
        Ok(())
    }

    /// Ends the session; returns once its master has released it, unless another thread still runs steps.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(opened) = opened else { return Ok(()) };
        let closed = wait(py, async move {
            match Arc::try_unwrap(opened) {
                Ok(session) => session.close().await,
                Err(_shared) => Ok(()),
            }
        });
        self.forget();
        // A master that is gone has no session any more.
        match closed? {
            Err(failure) if failure.code != Code::Unavailable => Err(raised(py, failure)),
            _ => Ok(()),
        }
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Session {
    /// The client may end now. Its threads end on another one, as one of a cluster may be this.
    fn forget(&self) {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(reached), Ok(runtime)) = (reached, runtime()) {
            runtime.spawn_blocking(move || drop(reached));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        self.forget();
    }
}

/// A timeline of a traced step, in the format of Chrome's trace viewer, and its duration.
fn timeline(ran: &RunOutput) -> String {
    let timeline = Timeline::of(&ran.traces);
    let picture = timeline.picture();
    let devices: Vec<String> = picture.devices.iter().map(ToString::to_string).collect();
    let bars = picture.bars.iter().map(|bar| json!([bar.device, bar.name, bar.op, bar.start_us, bar.took_us]));
    json!({
        "took_us": picture.took_us, "devices": devices, "bars": bars.collect::<Vec<_>>(), "chrome": timeline.chrome_trace(),
    })
    .to_string()
}

/// A run that nobody waits for in Rust.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Pending(AbortHandle);

#[pymethods]
impl Pending {
    /// Ends the run; its callback is not called any more, unless it is being called.
    fn cancel(&self) {
        self.0.abort();
    }
}

fn spawned(work: impl Future<Output = ()> + Send + 'static) -> PyResult<AbortHandle> {
    Ok(runtime()?.spawn(work).abort_handle())
}
