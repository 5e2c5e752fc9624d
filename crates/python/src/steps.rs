//! Steps whose values are taken one by one, while the next ones run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meshtf::tensor::Tensor;
use meshtf::{Code, Failure, Session};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::error::{raised, refused};
use crate::runtime::{runtime, wait};
use crate::session::{Asked, arrays};

/// Values that may wait for Python.
const WAITING: usize = 16;

/// A run, its number of steps, and the distance between two whose values are returned.
pub struct Begun {
    pub asked: Asked,
    pub steps: u64,
    pub every: u64,
}

/// The values of a step with its number, or the failure that ended the steps.
type Taken = Result<(u64, Vec<Tensor>), Failure>;

/// An iterator over the values of steps.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Steps {
    values: Mutex<mpsc::Receiver<Taken>>,
    /// Whether the steps are to end: said by this iterator or by its session.
    over: Arc<watch::Sender<bool>>,
    run: AbortHandle,
    /// Whether the last value, or a failure, was taken.
    has_ended: AtomicBool,
    steps: u64,
}

/// The steps of an iterator, as their session knows them.
pub struct Running {
    over: Arc<watch::Sender<bool>>,
    run: JoinHandle<()>,
}

impl Running {
    pub fn has_ended(&self) -> bool {
        self.run.is_finished()
    }

    /// Cancels the steps that have not run, and waits until they are.
    pub async fn end(self) {
        self.over.send_replace(true);
        self.run.abort();
        let _cancelled = self.run.await;
    }
}

impl Steps {
    pub fn begin(session: Arc<Session>, begun: Begun) -> PyResult<(Steps, Running)> {
        let (sender, values) = mpsc::channel(WAITING);
        let (over, ends) = watch::channel(false);
        let over = Arc::new(over);
        let Begun { asked, steps, every } = begun;
        let run = runtime()?.spawn(async move {
            let each = sender.clone();
            // A thread that waits here is replaced by another one meanwhile.
            let on_fetch = move |step, values| {
                let mut ends = ends.clone();
                let sent = async {
                    tokio::select! {
                        biased;
                        _ = ends.wait_for(|over| *over) => {}
                        _ = each.send(Ok((step, values))) => {}
                    }
                };
                tokio::task::block_in_place(|| Handle::current().block_on(sent));
            };
            let mut run =
                session.run().fetches(asked.fetches).targets(asked.targets).steps(steps).each(every, on_fetch);
            for (name, value) in asked.feeds {
                run = run.feed(name, value);
            }
            let last = run.await.map(|ran| (steps, ran.values));
            let _nobody = sender.send(last).await;
        });
        let abort = run.abort_handle();
        let begun = Steps {
            values: Mutex::new(values),
            over: Arc::clone(&over),
            run: abort,
            has_ended: AtomicBool::new(false),
            steps,
        };
        Ok((begun, Running { over, run }))
    }
}

#[pymethods]
impl Steps {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// The number of the next step that was asked for, and its values.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Bound<'py, PyList>)>> {
        let taken = wait(py, async { self.values.lock().await.recv().await })?;
        match taken {
            None if *self.over.borrow() && !self.has_ended.load(Ordering::Relaxed) => {
                Err(refused(py, Code::FailedPrecondition, "the session is closed, or its steps: not all of them ran"))
            }
            None => Ok(None),
            Some(Ok((step, values))) => {
                self.has_ended.fetch_or(step == self.steps, Ordering::Relaxed);
                Ok(Some((step, arrays(py, values)?)))
            }
            Some(Err(failure)) => {
                self.has_ended.store(true, Ordering::Relaxed);
                Err(raised(py, failure))
            }
        }
    }

    /// Cancels the steps that have not run.
    fn close(&self) {
        // A process that was forked has no steps that run.
        if runtime().is_ok() {
            self.over.send_replace(true);
            self.run.abort();
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.close();
    }
}
