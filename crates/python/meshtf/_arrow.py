"""Arrays and tables of Arrow as numpy has them, by Arrow's protocol for memory (the PyCapsule interface), without pyarrow.

Numbers without nulls are views of Arrow's memory. Floats that are null become NaN; nulls of other types are refused.
"""

from __future__ import annotations

import ctypes

from . import _errors
from ._lazy import np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy

_NUMBERS = {
    "c": "i1",
    "C": "u1",
    "s": "i2",
    "S": "u2",
    "i": "i4",
    "I": "u4",
    "l": "i8",
    "L": "u8",
    "e": "f2",
    "f": "f4",
    "g": "f8",
}
# Most levels of types within types.
_DEEPEST = 16


class _Schema(ctypes.Structure):
    """ArrowSchema of Arrow's C data interface."""


class _Array(ctypes.Structure):
    """ArrowArray."""


class _Stream(ctypes.Structure):
    """ArrowArrayStream."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.POINTER(_Array)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]
_Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema))),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))),
    ("private_data", ctypes.c_void_p),
]


def is_arrow(value: Any) -> bool:
    """Whether it is an array, a table or a stream of Arrow."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def array(value: Any, what: str) -> numpy.ndarray:
    """An array of Arrow as one of numpy; the columns of a table as those of an array with two dimensions."""
    schema, parts = _taken(value)
    found = _joined([_read(schema, part, what) for part in parts], schema, what)
    if not isinstance(found, dict):
        return found
    if not found:
        raise _errors.InvalidArgumentError(f"{what}: the table has no columns")
    return np.stack(list(found.values()), axis=1)


def columns(value: Any) -> dict[str, numpy.ndarray]:
    """The columns of a table of Arrow by their names."""
    schema, parts = _taken(value)
    if schema.format != b"+s":
        raise TypeError(f"expected a table of Arrow, whose columns have names, not {value!r:.60}")
    return _joined([_read(schema, part, "the table") for part in parts], schema, "the table")


class _Owned:
    """A structure whose memory is its capsule's, or its own; it is released when the last view of it ends."""

    def __init__(self, structure: Any, keep: Any) -> None:
        self.structure, self._keep = structure, keep

    def __del__(self) -> None:
        # A capsule releases its structure itself.
        if self._keep is None and self.structure.release:
            self.structure.release(ctypes.byref(self.structure))


def _taken(value: Any) -> tuple[_Schema, list[tuple[_Array, Any]]]:
    """The type, and the arrays with the owner of their memory."""
    if hasattr(value, "__arrow_c_array__"):
        schema, content = value.__arrow_c_array__()
        kind, found = _pointed(schema, b"arrow_schema", _Schema), _pointed(content, b"arrow_array", _Array)
        return _kept(kind, schema), [(found, _Owned(found, content))]
    capsule = value.__arrow_c_stream__()
    stream = _pointed(capsule, b"arrow_array_stream", _Stream)
    schema = _Schema()
    _checked(stream, stream.get_schema(ctypes.byref(stream), ctypes.byref(schema)))
    kind = _kept(schema, _Owned(schema, None))
    parts: list[tuple[_Array, Any]] = []
    while True:
        part = _Array()
        _checked(stream, stream.get_next(ctypes.byref(stream), ctypes.byref(part)))
        if not part.release:
            return kind, parts
        parts.append((part, _Owned(part, None)))


def _kept(schema: _Schema, owner: Any) -> _Schema:
    schema.owner = owner  # type: ignore[attr-defined]
    return schema


def _pointed(capsule: Any, name: bytes, kind: Any) -> Any:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return kind.from_address(pointer(capsule, name))


def _checked(stream: _Stream, status: int) -> None:
    if status:
        why = stream.get_last_error(ctypes.byref(stream))
        text = why.decode(errors="replace") if why else f"error {status}"
        raise _errors.InvalidArgumentError(f"the stream of Arrow has no more arrays: {text}")


class _Memory:
    """Memory of Arrow, for numpy, which keeps this object with its owner."""

    def __init__(self, address: int, dtype: str, count: int, owner: Any) -> None:
        self._owner = owner
        self.__array_interface__ = {"shape": (count,), "typestr": dtype, "data": (address, True), "version": 3}


def _buffer(part: tuple[_Array, Any], index: int, dtype: Any, count: int) -> numpy.ndarray:
    """Elements of a buffer, from its start."""
    found, owner = part
    address = found.buffers[index] if index < found.n_buffers else None
    if not address or not count:
        return np.zeros(0 if not count else count, dtype)
    return np.asarray(_Memory(address, np.dtype(dtype).str, count, owner))


def _bits(part: tuple[_Array, Any], index: int) -> numpy.ndarray:
    """The bits of the array's elements in a buffer, as bools."""
    found, _ = part
    end = found.offset + found.length
    packed = _buffer(part, index, np.uint8, -(-end // 8))
    return np.unpackbits(packed, count=end, bitorder="little")[found.offset :].astype(bool)


def _nulls(part: tuple[_Array, Any]) -> numpy.ndarray | None:
    """Which elements are null, if any is."""
    found, _ = part
    if found.null_count == 0 or found.n_buffers == 0 or not found.buffers[0]:
        return None
    nulls = ~_bits(part, 0)
    return nulls if nulls.any() else None


def _read(schema: _Schema, part: tuple[_Array, Any], what: str, depth: int = 0) -> Any:
    """The elements of an array; for a struct a dict of its columns."""
    found, owner = part
    form = (schema.format or b"").decode(errors="replace")
    if depth > _DEEPEST:
        raise _errors.InvalidArgumentError(f"{what}: types within types are at most {_DEEPEST} levels deep")

    def child(i: int, name: str) -> Any:
        return _read(schema.children[i].contents, (found.children[i].contents, owner), name, depth + 1)

    begin, end = found.offset, found.offset + found.length
    if schema.dictionary:
        indices = _of_type(form, part, what)
        _refuse_nulls(part, what)
        values = _read(schema.dictionary.contents, (found.dictionary.contents, owner), what, depth + 1)
        return values[indices]
    if form == "+s":
        _refuse_nulls(part, what)
        names = [(schema.children[i].contents.name or b"").decode(errors="replace") for i in range(schema.n_children)]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise _errors.InvalidArgumentError(f"{what}: several columns have the name {sorted(repeated)[0]!r}")
        return {name: child(i, f"column {name!r}")[begin:end] for i, name in enumerate(names)}
    if form.startswith("+w:"):
        _refuse_nulls(part, what)
        width = int(form[3:])
        values = child(0, what)[begin * width : end * width]
        return values.reshape(found.length, width, *values.shape[1:])
    values = _of_type(form, part, what)
    nulls = _nulls(part)
    if nulls is None:
        return values
    if values.dtype.kind != "f":
        _refuse_nulls(part, what)
    values = values.copy()
    values[nulls] = np.nan
    return values


def _refuse_nulls(part: tuple[_Array, Any], what: str) -> None:
    nulls = _nulls(part)
    if nulls is not None:
        raise _errors.InvalidArgumentError(
            f"{what} has {int(nulls.sum())} nulls: fill them, or make it floats, whose nulls are NaN"
        )


def _of_type(form: str, part: tuple[_Array, Any], what: str) -> numpy.ndarray:
    found, _ = part
    begin, end = found.offset, found.offset + found.length
    if form in _NUMBERS:
        return _buffer(part, 1, _NUMBERS[form], end)[begin:]
    if form == "b":
        return _bits(part, 1)
    if form in ("u", "z", "U", "Z"):
        offsets = _buffer(part, 1, "i4" if form in "uz" else "i8", end + 1)[begin:]
        return _texts(part, lambda i: (2, int(offsets[i]), int(offsets[i + 1])), int(offsets[-1]) if found.length else 0)
    if form in ("vu", "vz"):
        return _views(part)
    if form.startswith("w:"):
        width = int(form[2:])
        return _texts(part, lambda i: (1, (begin + i) * width, (begin + i + 1) * width), end * width, index=1)
    raise _errors.InvalidArgumentError(
        f"{what} has the type {form!r} of Arrow's C interface, for which meshtf has no dtype: cast it to numbers, bools, strings "
        "or lists of fixed size"
    )


def _texts(part: tuple[_Array, Any], span: Callable[[int], tuple[int, int, int]], size: int, index: int = 2) -> numpy.ndarray:
    """Strings as bytes in an array of objects, from their spans in a buffer."""
    found, _ = part
    content = _buffer(part, index, np.uint8, size).tobytes()
    texts = np.empty(found.length, dtype=object)
    for i in range(found.length):
        _, first, last = span(i)
        texts[i] = content[first:last]
    return texts


def _views(part: tuple[_Array, Any]) -> numpy.ndarray:
    """Strings as views: each has its length and 12 bytes, or its length, 4 bytes, a buffer and an offset."""
    found, _ = part
    views = _buffer(part, 1, np.uint8, 16 * (found.offset + found.length)).reshape(-1, 16)[found.offset :]
    # The last buffer has the sizes of the others.
    others = found.n_buffers - 3
    sizes = _buffer(part, found.n_buffers - 1, "i8", others)
    contents = [_buffer(part, 2 + i, np.uint8, int(sizes[i])).tobytes() for i in range(others)]
    numbers = np.ascontiguousarray(views).view("<i4").reshape(-1, 4)
    texts = np.empty(found.length, dtype=object)
    for i, (length, _, buffer, offset) in enumerate(numbers.tolist()):
        texts[i] = views[i, 4 : 4 + length].tobytes() if length <= 12 else contents[buffer][offset : offset + length]
    return texts


def _joined(parts: list[Any], schema: _Schema, what: str) -> Any:
    """The parts of a stream as one."""
    if schema.format == b"+s":
        names = [(schema.children[i].contents.name or b"").decode(errors="replace") for i in range(schema.n_children)]
        return {
            name: _joined([part[name] for part in parts], schema.children[i].contents, f"column {name!r}")
            for i, name in enumerate(names)
        }
    if len(parts) == 1:
        return parts[0]
    if not parts:
        form = (schema.format or b"").decode(errors="replace")
        kind = "?" if form == "b" else _NUMBERS.get(form, "O")
        return np.zeros(0, kind)
    return np.concatenate(parts)
