//! Steps whose values are taken one by one, while the next ones run.

use std::sync::Arc;

use meshtf::tensor::Tensor;
use meshtf::{Failure, Session};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use crate::error::raised;
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
    run: AbortHandle,
}

impl Steps {
    pub fn begin(session: Arc<Session>, begun: Begun) -> PyResult<Steps> {
        let (sender, values) = mpsc::channel(WAITING);
        let run = runtime()?.spawn(async move {
            let Begun { asked, steps, every } = begun;
            let each = sender.clone();
            // If nobody takes them, the run has been aborted. A thread that waits here is replaced by another one meanwhile.
            let on_fetch = move |step, values| {
                let _nobody = tokio::task::block_in_place(|| each.blocking_send(Ok((step, values))));
            };
            let mut run =
                session.run().fetches(asked.fetches).targets(asked.targets).steps(steps).each(every, on_fetch);
            for (name, value) in asked.feeds {
                run = run.feed(name, value);
            }
            let last = run.await.map(|ran| (steps, ran.values));
            let _nobody = sender.send(last).await;
        });
        Ok(Steps { values: Mutex::new(values), run: run.abort_handle() })
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
            None => Ok(None),
            Some(Ok((step, values))) => Ok(Some((step, arrays(py, values)?))),
            Some(Err(failure)) => Err(raised(py, failure)),
        }
    }

    /// Cancels the steps that have not run.
    fn close(&self) {
        self.run.abort();
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.run.abort();
    }
}
