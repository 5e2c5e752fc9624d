//! Tensors as numpy arrays and back.
//!
//! An array that meshtf returns has the memory of its tensor, without a copy. A tensor that it takes has memory of its own, which
//! may be sent and kept while the caller changes the array: that is one copy.

// The memory of an array is known by its address, which Python states in `__array_interface__`.
#![allow(unsafe_code)]

use meshtf::Code;
use meshtf::tensor::{DType, Element, Shape, Tensor};
use meshtf_loops::vector::copied;
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::convert::dtype_named;
use crate::error::{OrRaise, invalid, refused};

/// The memory of a tensor, for numpy.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Array {
    /// Owns the memory.
    _tensor: Tensor,
    address: usize,
    kind: &'static str,
    shape: Vec<usize>,
}

#[pymethods]
impl Array {
    /// Numpy's protocol for memory that is described by its address.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", self.kind)?;
        interface.set_item("data", (self.address, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

/// The type of numpy's elements; `None` for strings and handles. That of bfloat16 is a view of it.
fn kind(dtype: DType) -> Option<&'static str> {
    Some(match dtype.stored_as() {
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 | DType::BF16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
        DType::C64 => "<c8",
        DType::C128 => "<c16",
        _ => return None,
    })
}

/// A tensor as numpy has it: a scalar of numpy for rank 0, strings as Python's bytes in an array of objects.
pub fn to_numpy<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (dtype, rank) = (tensor.dtype(), tensor.rank());
    let array = match kind(dtype) {
        Some(kind) => {
            let array = memory(py, tensor, kind)?;
            let array = ASARRAY.import(py, "numpy", "asarray")?.call1((Bound::new(py, array)?,))?;
            if dtype == DType::BF16 { array.call_method1("view", (bfloat16(py)?,))? } else { array }
        }
        None if dtype == DType::String => strings(py, &tensor)?,
        None => return Err(refused(py, Code::Unimplemented, format!("a value of {dtype} has no array of numpy"))),
    };
    if rank == 0 { array.get_item(PyTuple::empty(py)) } else { Ok(array) }
}

/// The memory of a tensor, which is copied if something else of this process holds it: the caller may write to it.
fn memory(py: Python<'_>, mut tensor: Tensor, kind: &'static str) -> PyResult<Array> {
    tensor.admit_writing().or_raise(py)?;
    let shape = tensor.dims().to_vec();
    let address = match tensor.dtype() {
        DType::Bool => tensor.slice_mut::<bool>().or_raise(py)?.as_mut_ptr() as usize,
        _ => tensor.data_mut().bytes_mut().map_or(0, |bytes| bytes.as_mut_ptr() as usize),
    };
    Ok(Array { _tensor: tensor, address, kind, shape })
}

fn strings<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let elements = tensor.slice::<Vec<u8>>().or_raise(py)?;
    let array = numpy.call_method1("empty", (elements.len(), "O"))?;
    for (i, element) in elements.iter().enumerate() {
        array.set_item(i, PyBytes::new(py, element))?;
    }
    array.call_method1("reshape", (PyTuple::new(py, tensor.dims())?,))
}

/// The dtype bfloat16, which numpy lacks and the package ml_dtypes has.
pub fn bfloat16(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    match py.import("ml_dtypes") {
        Ok(module) => module.getattr("bfloat16"),
        Err(error) if error.is_instance_of::<PyImportError>(py) => Err(refused(
            py,
            Code::Unimplemented,
            "numpy has no bfloat16: install the package ml_dtypes, or have the graph cast the value to float32",
        )),
        Err(error) => Err(error),
    }
}

/// A tensor of a numpy array that is in C order, of the machine's byte order, and of the dtype of that name.
pub fn to_tensor(array: &Bound<'_, PyAny>, dtype: &str) -> PyResult<Tensor> {
    let py = array.py();
    let dtype = dtype_named(py, dtype)?;
    if dtype == DType::String {
        return of_strings(array);
    }
    let Some(kind) = kind(dtype) else {
        return Err(invalid(py, format!("{dtype} cannot be fed: it is a handle of state on a device")));
    };
    let interface = array.getattr("__array_interface__")?.cast_into::<PyDict>()?;
    let field =
        |name: &str| interface.get_item(name)?.ok_or_else(|| invalid(py, format!("the array states no {name}")));
    let shape: Vec<usize> = field("shape")?.extract()?;
    let own: String = field("typestr")?.extract()?;
    let (address, _): (usize, bool) = field("data")?.extract()?;
    if interface.get_item("strides")?.is_some_and(|strides| !strides.is_none()) {
        return Err(invalid(py, "the array is not in C order: pass numpy.ascontiguousarray of it"));
    }
    if own != kind {
        return Err(invalid(py, format!("the array has elements {own:?}; {dtype} takes {kind:?}")));
    }
    let shape = Shape::from(shape);
    let count = shape.checked_elements(dtype).or_raise(py)?;
    if count == 0 {
        return Tensor::zeros(dtype, shape).or_raise(py);
    }
    // SAFETY: the array holds that many elements of the dtype from that address on, in C order, and exists until this returns.
    // Nothing can resize it meanwhile, since Python's lock is held.
    let taken = unsafe {
        match dtype {
            DType::F32 => elements::<f32>(address, count),
            DType::F64 => elements::<f64>(address, count),
            DType::I32 => elements::<i32>(address, count),
            DType::I64 => elements::<i64>(address, count),
            DType::U8 => elements::<u8>(address, count),
            _ => None,
        }
    };
    if let Some(taken) = taken {
        return taken.reshaped(shape).or_raise(py);
    }
    // SAFETY: as above, for the bytes of the elements.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, count * dtype.size().unwrap_or(0)) };
    Tensor::from_bytes(dtype, shape, bytes).or_raise(py)
}

/// A copy of the elements at an address, if they are aligned, by all threads if it is large: one thread alone copies at a part
/// of the memory's rate. The usual dtypes need no zeros before they are copied.
///
/// # Safety
/// That many elements are readable there, and do not change meanwhile.
unsafe fn elements<T: Element + Copy + Send + Sync>(address: usize, count: usize) -> Option<Tensor> {
    let first = address as *const T;
    // SAFETY: the caller's guarantee, and the alignment that is checked.
    first.is_aligned().then(|| Tensor::vector(copied(unsafe { std::slice::from_raw_parts(first, count) })))
}

fn of_strings(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = array.py();
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    let elements = array.call_method0("ravel")?.call_method0("tolist")?.cast_into::<PyList>()?;
    let mut strings = Vec::with_capacity(elements.len());
    for element in elements.iter() {
        strings.push(if let Ok(bytes) = element.cast::<PyBytes>() {
            bytes.as_bytes().to_vec()
        } else if let Ok(text) = element.cast::<PyString>() {
            text.to_cow()?.as_bytes().to_vec()
        } else {
            let name = element.get_type().name()?;
            return Err(PyTypeError::new_err(format!("an element of strings is bytes or str, not {name}")));
        });
    }
    Tensor::vector(strings).reshaped(shape).or_raise(py)
}
