"""Values of Python as the arrays that a run takes."""

from __future__ import annotations

from . import _errors
from ._lazy import np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy

# What Python's own numbers and texts are, as in TensorFlow.
_OF_PYTHON = {"b": "bool", "i": "int32", "f": "float32", "c": "complex64"}
# Numbers of a kind may become numbers of a later one.
_ORDER = "buifc"
_NUMBERS = set("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split())
_OTHERS = {"string", "bfloat16", "resource", "variant"}
_QUANTIZED = {"qint8": "int8", "quint8": "uint8", "qint16": "int16", "quint16": "uint16", "qint32": "int32"}


def bfloat16() -> Any:
    """The dtype of the package ml_dtypes."""
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        why = "numpy has no bfloat16: install the package ml_dtypes, or cast to float32"
        raise _errors.UnimplementedError(why) from None
    return np.dtype(ml_dtypes.bfloat16)


def numpy_dtype(name: str) -> Any:
    """The dtype that numpy has for one of meshtf's."""
    if name == "bfloat16":
        return bfloat16()
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(_QUANTIZED.get(name, name))
    except TypeError:
        raise _errors.InvalidArgumentError(f"numpy has no arrays of {name}") from None


def dtype_name(dtype: Any) -> str:
    """The name that meshtf has for a dtype: of numpy, of ml_dtypes, of Python, or such a name already."""
    if isinstance(dtype, str) and (dtype in _NUMBERS or dtype in _OTHERS or dtype in _QUANTIZED):
        return dtype
    if dtype is str or dtype is bytes:
        return "string"
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise _errors.InvalidArgumentError(f"{dtype!r} is no dtype of numpy, and none of meshtf's own") from None
    return "string" if found.kind in "SUO" else found.name


def own_dtype(value: Any) -> str:
    """The dtype of a constant that states none: numpy's for its arrays and scalars, TensorFlow's for numbers of Python."""
    try:
        array = np.asarray(value)
    except UnicodeDecodeError:
        # Some are str and some bytes, which need not be text.
        return "string"
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        return dtype_name(array.dtype)
    if array.dtype.kind == "O":
        other = next((one for one in array.ravel() if not isinstance(one, (str, bytes))), "")
        if isinstance(other, int):
            raise TypeError(f"an integer of a tensor has at most 64 bits: {other!r:.60}")
        if not isinstance(other, str):
            raise TypeError(f"a tensor has rows of equal length, of numbers or strings: {value!r:.60}")
    name = _OF_PYTHON.get(array.dtype.kind)
    if name == "int32" and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
        return "int64"
    return name or dtype_name(array.dtype)


def is_iterator(value: Any) -> bool:
    """Whether it provides its items once, one after another: a generator, or a reader of Arrow's batches."""
    return hasattr(value, "__next__") and iter(value) is value


def columns_of(value: Any) -> dict[str, Any] | None:
    """The columns of a table of pandas or Arrow by their names; None if it is no table."""
    if hasattr(value, "iloc") and hasattr(value, "columns"):
        return {str(name): value[name] for name in value.columns}
    if isinstance(value, dict) or not (hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")):
        return None
    from . import _arrow

    return _arrow.columns(value)


def _plain(value: Any, what: str) -> Any:
    """A column or a table of pandas or Arrow as an array; anything else as it is."""
    if hasattr(value, "mask") and hasattr(value, "filled"):
        return _of_masked(value, what)
    if isinstance(value, (np.ndarray, np.generic, list, tuple, str, bytes, int, float)):
        return value
    if hasattr(value, "iloc"):
        return _of_pandas(value, what)
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
        from . import _arrow

        return _arrow.array(value, what)
    return value


def _of_masked(value: Any, what: str) -> numpy.ndarray:
    """A masked array of numpy, whose masked elements become NaN."""
    masked = int(np.count_nonzero(value.mask))
    if masked and value.dtype.kind not in "fc":
        raise _errors.InvalidArgumentError(
            f"{what} has {_counted(masked, 'masked element')}: fill them, or make it floats, whose masked elements become NaN"
        )
    return value.filled(np.nan) if masked else np.asarray(value)


def nulls_refused(number: int, what: str) -> _errors.InvalidArgumentError:
    """The exception for nulls of a dtype that has none."""
    return _errors.InvalidArgumentError(f"{what} has {_counted(number, 'null')}: fill them, or make it floats, whose nulls are NaN")


def _counted(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 's'}"


def _of_pandas(value: Any, what: str) -> numpy.ndarray:
    """A Series as an array of numbers or strings, a DataFrame as an array with a column for each."""
    if hasattr(value, "columns"):
        own = [_of_pandas(value.iloc[:, i], f"column {name!r}") for i, name in enumerate(value.columns)]
        if not own:
            raise _errors.InvalidArgumentError(f"{what}: the table has no columns")
        return np.stack(own, axis=1)
    # pandas' own dtypes have nulls besides the numbers.
    plain = getattr(value.dtype, "numpy_dtype", None)
    if plain is None or plain.kind not in _ORDER:
        return np.asarray(value)
    if not value.isna().any():
        return value.to_numpy(dtype=plain)
    if plain.kind != "f":
        raise nulls_refused(int(value.isna().sum()), what)
    return value.to_numpy(dtype=plain, na_value=np.nan)


def array_of(value: Any, dtype: str, what: str) -> numpy.ndarray:
    """An array in C order of a dtype, without a copy if it is one; `what` is named if it cannot be one."""
    if type(value) is not np.ndarray:
        value = _plain(value, what)
    if dtype == "string":
        return _strings(value, what)
    wanted = numpy_dtype(dtype)
    array = value if type(value) is np.ndarray else _asarray(value, what)
    if array.dtype != wanted:
        array = _converted(array, wanted, dtype, what)
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    return array.view(np.uint16) if dtype == "bfloat16" else array


def _asarray(value: Any, what: str, dtype: Any = None) -> numpy.ndarray:
    try:
        return np.asarray(value, dtype=dtype)
    except ValueError:
        raise _errors.InvalidArgumentError(f"{what}: rows of unequal length, or of other than numbers and strings") from None


def _converted(array: numpy.ndarray, wanted: Any, name: str, what: str) -> numpy.ndarray:
    kind, to = array.dtype.kind, wanted.kind
    if array.dtype.newbyteorder("=") == wanted:
        return array.astype(wanted)
    # Those of ml_dtypes are not among numpy's kinds.
    kind, to = (("f" if one == "V" else one) for one in (kind, to))
    if array.size == 0 and kind == "f":
        return array.astype(wanted)
    if kind == "O":
        other = next((one for one in array.ravel() if not isinstance(one, (bool, int, float)) or abs(one) >= 2**63), array)
        raise _errors.InvalidArgumentError(f"{what} is {name}, and cannot take {other!r:.60}")
    if kind not in _ORDER or to not in _ORDER:
        raise _errors.InvalidArgumentError(f"{what} is {name}, and cannot take {array.dtype}")
    if to == "b" and kind != "b" or kind in "fc" and _ORDER.index(kind) > _ORDER.index(to):
        why = f"{what} is {name}, and cannot take {array.dtype} without a loss: convert it with .astype({name!r})"
        raise _errors.InvalidArgumentError(why)
    converted = array.astype(wanted)
    if kind in "ui" and to in "ui" and not (converted == array).all():
        raise _errors.InvalidArgumentError(f"{what} is {name}, and a number of {array.dtype} is out of its range")
    return converted


def _strings(value: Any, what: str) -> numpy.ndarray:
    array = value if hasattr(value, "dtype") else _asarray(value, what, object)
    if array.dtype.kind in "OSUT":
        array = np.asarray(array, dtype=object)
        others = [one for one in array.ravel() if not isinstance(one, (str, bytes))]
        nulls = [one for one in others if one is None or type(one).__name__ == "NAType" or isinstance(one, float) and one != one]
        if nulls:
            raise _errors.InvalidArgumentError(f"{what} has {_counted(len(nulls), 'null')}, and is string: fill them")
        if others:
            raise _errors.InvalidArgumentError(f"{what} is string, and cannot take {others[0]!r:.60}: expected str or bytes")
        return array
    raise _errors.InvalidArgumentError(f"{what} is string, and cannot take {array.dtype}: expected str or bytes")
