//! Failures as Python exceptions: a class for each canonical code, in `meshtf/_errors.py`.

use meshtf::{Code, Failure, Stage};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception of a failure.
pub fn raised(py: Python<'_>, failure: Failure) -> PyErr {
    exception(py, failure).map_or_else(|error| error, PyErr::from_value)
}

/// The same with the class of the code and nothing known of the location.
pub fn refused(py: Python<'_>, code: Code, why: impl Into<String>) -> PyErr {
    raised(py, Failure::new(code, why))
}

/// An argument is wrong.
pub fn invalid(py: Python<'_>, why: impl Into<String>) -> PyErr {
    refused(py, Code::InvalidArgument, why)
}

fn exception<'py>(py: Python<'py>, failure: Failure) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("meshtf._errors")?.getattr(failure.code.class())?;
    let known = PyDict::new(py);
    known.set_item("node", failure.node)?;
    known.set_item("op", failure.op)?;
    known.set_item("device", failure.device)?;
    known.set_item("task", failure.task)?;
    if let Stage::InStep(step) = failure.stage {
        known.set_item("step", step)?;
    }
    class.call((failure.message,), Some(&known))
}

/// Results whose error becomes an exception.
pub trait OrRaise<T> {
    /// The value, or the exception of the failure.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Failure>> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, error.into()))
    }
}
