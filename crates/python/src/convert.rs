//! Small values of Python as meshtf's: dtypes, shapes, tasks, attributes.

use std::time::Duration;

use meshtf::graph::{Attr, AttrKind, Attrs, op};
use meshtf::tensor::{DType, PartialShape, Shape};
use meshtf::{BackendChoice, Task};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::array::to_tensor;
use crate::error::{OrRaise, invalid};

/// The dtype of a name: `float32`.
pub fn dtype_named(py: Python<'_>, name: &str) -> PyResult<DType> {
    DType::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = DType::all().map(DType::name).collect();
        invalid(py, format!("there is no dtype {name:?}; there are {}", known.join(", ")))
    })
}

/// The task of a name: `worker/1` or `/job:worker/task:1`.
pub fn task_named(py: Python<'_>, name: &str) -> PyResult<Task> {
    name.parse().map_err(|error| invalid(py, format!("{error}")))
}

/// A duration in seconds.
pub fn seconds_of(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| invalid(py, format!("a time of {seconds} seconds: {error}")))
}

/// The backend of a name.
pub fn backend_named(py: Python<'_>, name: &str) -> PyResult<BackendChoice> {
    name.parse().map_err(|error| invalid(py, format!("{error}")))
}

/// A shape with unknown sizes; `None` is an unknown rank.
pub fn partial_shape(sizes: Option<Vec<Option<usize>>>) -> PartialShape {
    PartialShape(sizes)
}

/// A shape as a tuple with `None` for unknown sizes, or `None` for an unknown rank.
pub fn shape_to_python<'py>(py: Python<'py>, shape: &PartialShape) -> PyResult<Bound<'py, PyAny>> {
    match &shape.0 {
        None => Ok(py.None().into_bound(py)),
        Some(sizes) => Ok(PyTuple::new(py, sizes)?.into_any()),
    }
}

/// The attributes of a node of an op, by the kinds that the op states.
pub fn attrs(py: Python<'_>, of: &str, given: &Bound<'_, PyDict>) -> PyResult<Attrs> {
    let mut all = Attrs::default();
    let def = op(of);
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        let stated = def.and_then(|def| def.attrs.iter().find(|attr| attr.name == name));
        let attr = match stated {
            Some(stated) => attr(&value, stated.kind, stated.is_list),
            None if name.starts_with('_') => untyped(&value),
            None => {
                let known: Vec<&str> = def.iter().flat_map(|def| &def.attrs).map(|attr| attr.name).collect();
                let known =
                    if known.is_empty() { "it has none".into() } else { format!("it has {}", known.join(", ")) };
                return Err(invalid(py, format!("{of} has no attribute {name}; {known}")));
            }
        };
        let attr = attr.map_err(|error| match error.is_instance_of::<PyTypeError>(py) {
            true => PyTypeError::new_err(format!("attribute {name} of {of}: {}", error.value(py))),
            false => error,
        })?;
        all.set(name, attr);
    }
    Ok(all)
}

fn attr(value: &Bound<'_, PyAny>, kind: AttrKind, is_list: bool) -> PyResult<Attr> {
    let py = value.py();
    Ok(match (kind, is_list) {
        (AttrKind::Int, false) => Attr::Int(value.extract()?),
        (AttrKind::Int, true) => Attr::Ints(value.extract()?),
        (AttrKind::Float, false) => Attr::Float(value.extract()?),
        (AttrKind::Float, true) => Attr::Floats(value.extract()?),
        (AttrKind::Bool, false) => Attr::Bool(value.extract()?),
        (AttrKind::Bool, true) => Attr::Bools(value.extract()?),
        (AttrKind::Str, false) => Attr::Str(text(value)?),
        (AttrKind::Str, true) => Attr::Strs(items(value)?.iter().map(text).collect::<PyResult<_>>()?),
        (AttrKind::Type, false) => Attr::Type(dtype(value)?),
        (AttrKind::Type, true) => Attr::Types(items(value)?.iter().map(dtype).collect::<PyResult<_>>()?),
        (AttrKind::Shape, false) => Attr::Shape(shape(value)?),
        (AttrKind::Shape, true) => Attr::Shapes(items(value)?.iter().map(shape).collect::<PyResult<_>>()?),
        (AttrKind::Tensor, false) => {
            let (array, dtype) = value.extract::<(Bound<'_, PyAny>, String)>()?;
            Attr::Tensor(to_tensor(&array, &dtype)?)
        }
        (AttrKind::Func, _) | (AttrKind::Tensor, true) => {
            return Err(invalid(py, "an attribute that is a function is stated in a file of a graph alone"));
        }
    })
}

/// An attribute that no op states, such as `_class`.
fn untyped(value: &Bound<'_, PyAny>) -> PyResult<Attr> {
    if value.is_instance_of::<PyBool>() {
        Ok(Attr::Bool(value.extract()?))
    } else if value.is_instance_of::<PyInt>() {
        Ok(Attr::Int(value.extract()?))
    } else if value.is_instance_of::<PyFloat>() {
        Ok(Attr::Float(value.extract()?))
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        Ok(Attr::Strs(items(value)?.iter().map(text).collect::<PyResult<_>>()?))
    } else {
        text(value).map(Attr::Str)
    }
}

fn items<'py>(value: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    value.try_iter()?.collect()
}

fn text(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    Ok(value.cast::<PyString>()?.to_cow()?.as_bytes().to_vec())
}

fn dtype(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    dtype_named(value.py(), &value.extract::<String>()?)
}

fn shape(value: &Bound<'_, PyAny>) -> PyResult<PartialShape> {
    value.extract().map(partial_shape)
}

/// A shape whose sizes are all known.
pub fn whole_shape(py: Python<'_>, sizes: Vec<usize>, dtype: DType) -> PyResult<Shape> {
    let shape = Shape::from(sizes);
    shape.checked_elements(dtype).or_raise(py)?;
    Ok(shape)
}
