//! Sessions: runs, awaited or not, and the values of variables.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meshtf::graph::ProgramFile;
use meshtf::plan::Timeline;
use meshtf::tensor::Tensor;
use meshtf::{Code, Failure, RunOutput, Session as Opened};
use pyo3::prelude::*;
use pyo3::types::PyList;
use serde_json::json;
use tokio::task::AbortHandle;

use crate::array::{to_numpy, to_tensor};
use crate::client::Reached;
use crate::convert::seconds_of;
use crate::error::{OrRaise, raised, refused};
use crate::graph::Graph;
use crate::growth::{Access, Growth};
use crate::runtime::{released, runtime, wait};
use crate::steps::{Begun, Running, Steps};

/// The feeds of a run: names of tensors, arrays in C order, and the names of their dtypes.
pub type Feeds<'py> = Vec<(String, Bound<'py, PyAny>, String)>;

/// A session, until it is closed.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Session {
    opened: Mutex<Option<Arc<Opened>>>,
    growth: Arc<Growth>,
    /// Steps that are taken one by one.
    steps: Mutex<Vec<Running>>,
    /// The session's way to its master; a cluster of this process exists as long.
    reached: Mutex<Option<Arc<Reached>>>,
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
            growth: Arc::new(Growth::of(file)),
            steps: Mutex::default(),
            reached: Mutex::new(Some(reached)),
        }
    }

    fn opened(&self, py: Python<'_>) -> PyResult<Arc<Opened>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.ok_or_else(|| refused(py, Code::FailedPrecondition, "the session is closed"))
    }

    /// The nodes that access a variable, which are added to the graph when they are first needed.
    fn access(&self, py: Python<'_>, name: &str) -> PyResult<Access> {
        if let Some(access) = self.growth.access(name) {
            return Ok(access);
        }
        let (growth, session, name) = (Arc::clone(&self.growth), self.opened(py)?, name.to_owned());
        noted(py, async move { growth.add_access(&session, &name).await })
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
        let asked = Asked::of(&self.growth.file(), fetches, targets, feeds)?;
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
        let asked = Asked::of(&self.growth.file(), fetches, targets, feeds)?;
        let session = self.opened(py)?;
        let work = async move {
            let ran = asked.run(&session, steps, false, None).await;
            drop(session);
            let tell = |py: Python<'_>| {
                let called = match ran.or_raise(py).and_then(|ran| arrays(py, ran.values)) {
                    Ok(values) => done.call1(py, (values, py.None())),
                    Err(error) => done.call1(py, (py.None(), error.into_value(py))),
                };
                if let Err(error) = called {
                    error.write_unraisable(py, Some(done.bind(py)));
                }
            };
            // Without an interpreter, nobody waits any more. A thread that waits for Python's lock is replaced meanwhile.
            let _nobody = tokio::task::block_in_place(|| Python::try_attach(tell));
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
        let asked = Asked::of(&self.growth.file(), fetches, targets, feeds)?;
        let (begun, running) = Steps::begin(self.opened(py)?, Begun { asked, steps, every })?;
        let mut all = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| !one.has_ended());
        all.push(running);
        Ok(begun)
    }

    /// Adds the nodes of a graph that has grown since, and gives new variables their first values if none of them has one.
    fn extend(&self, py: Python<'_>, graph: &Graph) -> PyResult<()> {
        let (growth, session, grown) = (Arc::clone(&self.growth), self.opened(py)?, Arc::clone(&graph.file));
        noted(py, async move { growth.extend(&session, grown).await })
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

    /// Ends the session and the steps that are taken one by one; returns once its master has released it, unless another thread
    /// still runs steps.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // A process that was forked has no session to end.
        if runtime().is_err() {
            return Ok(());
        }
        let steps = std::mem::take(&mut *self.steps.lock().unwrap_or_else(PoisonError::into_inner));
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(opened) = opened else { return Ok(()) };
        let closed = wait(py, async move {
            for one in steps {
                one.end().await;
            }
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
        released(self.reached.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let opened = self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if runtime().is_ok() {
            drop(opened);
        } else {
            std::mem::forget(opened);
        }
        self.forget();
    }
}

/// Waits for work whose effect is noted even if a signal ends the wait.
fn noted<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = meshtf::Result<T>> + Send + 'static,
) -> PyResult<T> {
    let task = runtime()?.spawn(work);
    let done = wait(py, task)?;
    done.unwrap_or_else(|error| Err(Failure::new(Code::Internal, error.to_string()))).or_raise(py)
}

/// A timeline of a traced step, in the format of Chrome's trace viewer, and its duration.
fn timeline(ran: &RunOutput) -> String {
    let timeline = Timeline::of(&ran.traces);
    let picture = timeline.picture();
    let devices: Vec<String> = picture.devices.iter().map(ToString::to_string).collect();
    let bars = picture.bars.iter().map(|bar| json!([bar.device, bar.name, bar.op, bar.start_us, bar.took_us]));
    let ways = picture.ways.iter().map(|way| json!([way.from, way.sent_us, way.to, way.received_us]));
    json!({
        "took_us": picture.took_us, "devices": devices, "bars": bars.collect::<Vec<_>>(), "more": picture.more_bars,
        "ways": ways.collect::<Vec<_>>(), "chrome": timeline.chrome_trace(),
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
