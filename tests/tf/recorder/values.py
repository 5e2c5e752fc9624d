"""Tensors as the recorded files write them, and when two of them are the same."""

import base64
import math

import numpy as np
import tensorflow.compat.v1 as tf

# How far an answer may be from a recorded one where the record does not say: as in crates/cases/src/lib.rs.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12}
COMPLEX = {"complex64": 2e-6, "complex128": 1e-12}
DIFFERENTIABLE = {*TOLERANCE, *COMPLEX}


def numpy_type(dtype):
    return tf.as_dtype(dtype).as_numpy_dtype


def dtype_name(array):
    """TensorFlow's name for what an array holds."""
    return "string" if array.dtype == object or array.dtype.kind in "SU" else tf.as_dtype(array.dtype).name


def shaped(values, dtype, shape):
    """An array of a flat list."""
    array = np.empty(len(values), numpy_type(dtype))
    array[:] = values
    return array.reshape(shape)


def array_of(value, dtype=None):
    """What a session answered, as an array: numpy takes the zeros from the end of a single string. Quantized numbers, which come
    as integers, have their own dtype again."""
    if not isinstance(value, bytes):
        array = np.asarray(value)
        return array.view(numpy_type(dtype)) if dtype is not None and tf.as_dtype(dtype).is_quantized else array
    array = np.empty((), object)
    array[()] = value
    return array


def plain(array):
    """Quantized numbers as the integers that they are."""
    return array[array.dtype.names[0]] if array.dtype.names else array


def number(value):
    """A number as JSON has it: what JSON lacks becomes a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


# Of a file of single ops: [dtype, shape, values], strings with one character a byte, complex numbers as pairs.


def from_triple(triple):
    dtype, shape, values = triple
    if dtype == "string":
        values = [value.encode("latin-1") for value in values]
    elif dtype in TOLERANCE:
        values = [float(value) for value in values]
    elif dtype in COMPLEX:
        values = [complex(float(re), float(im)) for re, im in values]
    return shaped(values, dtype, shape)


def to_triple(array):
    dtype = dtype_name(array)
    if dtype == "string":
        values = [text.decode("latin-1") for text in array.ravel()]
    elif dtype in TOLERANCE:
        values = [number(float(value)) for value in array.ravel()]
    elif dtype in COMPLEX:
        values = [[number(float(value.real)), number(float(value.imag))] for value in array.ravel()]
    else:
        values = plain(array).ravel().tolist()
    return [dtype, list(array.shape), values]


# Of a session: {"name", "dtype", "shape"} and either "data", nested, or "b64", flat.


def from_named(tensor, folder):
    if "npy" in tensor:
        return np.load(f"{folder}/{tensor['npy']}", allow_pickle=False)
    dtype, shape = tensor["dtype"], tensor["shape"]
    if "b64" in tensor:
        return shaped([base64.b64decode(text) for text in tensor["b64"]], dtype, shape)
    flat = flattened(tensor["data"])
    return shaped([float(value) for value in flat] if dtype in TOLERANCE else flat, dtype, shape)


def flattened(data):
    return [item for part in data for item in flattened(part)] if isinstance(data, list) else [data]


def to_named(name, array):
    dtype = dtype_name(array)
    tensor = {"name": name, "dtype": dtype, "shape": list(array.shape)}
    if dtype == "string":
        tensor["b64"] = [base64.b64encode(text).decode() for text in array.ravel()]
    elif dtype in ("float16", "bfloat16"):
        tensor["data"] = array.astype(np.float64).tolist()
    else:
        tensor["data"] = plain(array).tolist()
    return tensor


def difference(got, recorded, rtol=None, atol=None):
    """What is not the same about two arrays, or None. Without tolerances those of the dtype hold."""
    kinds = [(dtype_name(array), array.shape) for array in (got, recorded)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0][0]} of shape {kinds[0][1]}, recorded {kinds[1][0]} of shape {kinds[1][1]}"
    dtype = kinds[0][0]
    if dtype in COMPLEX:
        return difference_of_complex(got, recorded, rtol, atol)
    if dtype in TOLERANCE:
        rtol = TOLERANCE[dtype] if rtol is None else rtol
        atol = TOLERANCE[dtype] / 10 if atol is None else atol
        x, y = got.astype(np.float64).ravel(), recorded.astype(np.float64).ravel()
        with np.errstate(invalid="ignore"):
            same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= atol + rtol * np.abs(y))
    else:
        x, y = plain(got).ravel(), plain(recorded).ravel()
        same = x == y
    where = np.flatnonzero(~np.asarray(same, bool))
    if len(where):
        return f"element {where[0]} is {x[where[0]]!r}, recorded {y[where[0]]!r} ({len(where)} of {len(x)} differ)"
    return None


def difference_of_complex(got, recorded, rtol, atol):
    """As `difference`: a part may be as far off as the whole number allows."""
    tolerance = COMPLEX[dtype_name(got)]
    rtol = tolerance if rtol is None else rtol
    atol = tolerance / 10 if atol is None else atol
    got, recorded = (array.astype(np.complex128).ravel() for array in (got, recorded))
    with np.errstate(invalid="ignore"):
        size = np.abs(recorded)
        size[~np.isfinite(size)] = 0.0
        same = np.ones(len(got), bool)
        for x, y in ((got.real, recorded.real), (got.imag, recorded.imag)):
            same &= (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= atol + rtol * size)
    where = np.flatnonzero(~same)
    if len(where):
        return f"element {where[0]} is {got[where[0]]!r}, recorded {recorded[where[0]]!r} ({len(where)} of {len(got)} differ)"
    return None
