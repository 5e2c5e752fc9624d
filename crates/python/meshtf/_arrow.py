"""Arrays and tables of Arrow as numpy has them, by Arrow's protocol for memory (the PyCapsule interface), without pyarrow.

Numbers without nulls are views of Arrow's memory. Floats that are null become NaN; nulls of other types are refused.
"""

from __future__ import annotations

import ctypes

from . import _errors
from ._arrays import nulls_refused
from ._lazy import np

TYPE_CHECKING = False
if TYPE_CHECKING:
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
_TEXTS = ("u", "z", "U", "Z")
_VIEWS = ("vu", "vz")
# Of a dictionary that has this many entries for each element, those that are used are read one by one.
_FEW = 64
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


def array(value: Any, what: str) -> numpy.ndarray:
    """An array of Arrow as one of numpy; the columns of a table as those of an array with two dimensions."""
    schema, parts = _taken(value)
    if _form(schema) != "+s":
        return _joined([_read(schema, part, what) for part in parts], schema, what)
    found = list(_columns(schema, parts, what).values())
    if not found:
        raise _errors.InvalidArgumentError(f"{what}: the table has no columns")
    return np.stack(found, axis=1)


def columns(value: Any) -> dict[str, numpy.ndarray]:
    """The columns of a table of Arrow by their names."""
    schema, parts = _taken(value)
    if _form(schema) != "+s":
        raise TypeError(f"expected a table of Arrow, whose columns have names, not {value!r:.60}")
    return _columns(schema, parts, "the table")


def _form(schema: _Schema) -> str:
    """The type, as the C data interface writes it."""
    return (schema.format or b"").decode(errors="replace")


class _Owned:
    """A structure whose memory is its capsule's, or its own; it is released when the last view of it ends."""

    def __init__(self, structure: Any, keep: Any) -> None:
        self.structure, self._keep = structure, keep

    def __del__(self) -> None:
        # A capsule releases its structure itself.
        if self._keep is None and self.structure.release:
            self.structure.release(ctypes.byref(self.structure))


def _taken(value: Any) -> tuple[_Schema, list[_Part]]:
    """The type, and the arrays."""
    if hasattr(value, "__arrow_c_array__"):
        schema, content = value.__arrow_c_array__()
        kind, found = _pointed(schema, b"arrow_schema", _Schema), _pointed(content, b"arrow_array", _Array)
        return _kept(kind, schema), [_Part(found, _Owned(found, content))]
    capsule = value.__arrow_c_stream__()
    stream = _pointed(capsule, b"arrow_array_stream", _Stream)
    schema = _Schema()
    _checked(stream, stream.get_schema(ctypes.byref(stream), ctypes.byref(schema)))
    kind = _kept(schema, _Owned(schema, None))
    parts: list[_Part] = []
    while True:
        part = _Array()
        _checked(stream, stream.get_next(ctypes.byref(stream), ctypes.byref(part)))
        if not part.release:
            return kind, parts
        parts.append(_Part(part, _Owned(part, None)))


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


class _Part:
    """Some elements of an array: those of a slice, whose buffers may have many more before and after them."""

    __slots__ = ("found", "owner", "begin", "count")

    def __init__(self, found: _Array, owner: Any, begin: int = 0, count: int | None = None) -> None:
        self.found, self.owner = found, owner
        # In its buffers.
        self.begin = found.offset + begin
        self.count = found.length if count is None else count

    def child(self, index: int, width: int = 1) -> _Part:
        """The elements of a child, of which each of these has `width`."""
        return _Part(self.found.children[index].contents, self.owner, self.begin * width, self.count * width)

    def buffer(self, index: int, dtype: Any, begin: int, count: int) -> numpy.ndarray:
        """Elements of a buffer, without a copy."""
        address = self.found.buffers[index] if index < self.found.n_buffers else None
        if not address or not count:
            return np.zeros(count, dtype)
        kind = np.dtype(dtype)
        return np.asarray(_Memory(address + begin * kind.itemsize, kind.str, count, self.owner))

    def bits(self, index: int) -> numpy.ndarray:
        """The bits of the elements in a buffer, as bools."""
        first, before = divmod(self.begin, 8)
        packed = self.buffer(index, np.uint8, first, -(-(before + self.count) // 8))
        return np.unpackbits(packed, count=before + self.count, bitorder="little")[before:].astype(bool)

    def nulls(self) -> numpy.ndarray | None:
        """Which elements are null, if any is."""
        if self.found.null_count == 0 or self.found.n_buffers == 0 or not self.found.buffers[0]:
            return None
        nulls = ~self.bits(0)
        return nulls if nulls.any() else None

    def refuse_nulls(self, what: str) -> None:
        nulls = self.nulls()
        if nulls is not None:
            raise nulls_refused(int(nulls.sum()), what)


def _columns(schema: _Schema, parts: list[_Part], what: str) -> dict[str, numpy.ndarray]:
    """The columns of a table."""
    kinds = [schema.children[i].contents for i in range(schema.n_children)]
    names = [(kind.name or b"").decode(errors="replace") for kind in kinds]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise _errors.InvalidArgumentError(f"{what}: several columns have the name {sorted(repeated)[0]!r}")
    for part in parts:
        part.refuse_nulls(what)
    return {
        name: _joined([_read(kind, part.child(i), f"column {name!r}") for part in parts], kind, f"column {name!r}")
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }


def _read(schema: _Schema, part: _Part, what: str, depth: int = 0) -> numpy.ndarray:
    """The elements of an array that is no table."""
    form = _form(schema)
    if depth > _DEEPEST:
        raise _errors.InvalidArgumentError(f"{what}: types within types are at most {_DEEPEST} levels deep")
    if schema.dictionary:
        part.refuse_nulls(what)
        indices = _of_type(form, part, what)
        dictionary = part.found.dictionary.contents
        entries = lambda *own: _read(schema.dictionary.contents, _Part(dictionary, part.owner, *own), what, depth + 1)
        if part.count * _FEW >= dictionary.length:
            return entries()[indices]
        used, indices = np.unique(indices, return_inverse=True)
        return np.concatenate([entries(0, 0), *(entries(int(place), 1) for place in used)])[indices]
    if form.startswith("+w:"):
        part.refuse_nulls(what)
        width = int(form[3:])
        values = _read(schema.children[0].contents, part.child(0, width), what, depth + 1)
        return values.reshape(part.count, width, *values.shape[1:])
    is_float = form in ("e", "f", "g")
    if not is_float:
        part.refuse_nulls(what)
    values = _of_type(form, part, what)
    nulls = part.nulls() if is_float else None
    if nulls is None:
        return values
    values = values.copy()
    values[nulls] = np.nan
    return values


def _of_type(form: str, part: _Part, what: str) -> numpy.ndarray:
    begin, count = part.begin, part.count
    if form in _NUMBERS:
        return part.buffer(1, _NUMBERS[form], begin, count)
    if form == "b":
        return part.bits(1)
    if form in _TEXTS:
        offsets = part.buffer(1, "i4" if form in "uz" else "i8", begin, count + 1)
        return _texts(part, 2, offsets)
    if form in _VIEWS:
        return _views(part)
    if form.startswith("w:"):
        width = int(form[2:])
        return _texts(part, 1, np.arange(begin, begin + count + 1) * width)
    raise _refused(form, what)


def _refused(form: str, what: str) -> _errors.InvalidArgumentError:
    """The error for a type that has no dtype."""
    if form == "+s":
        return _errors.InvalidArgumentError(
            f"{what} is a struct: make columns of its fields, as with flatten of pyarrow's tables"
        )
    return _errors.InvalidArgumentError(
        f"{what} has the type {form!r} of Arrow's C interface, for which meshtf has no dtype: cast it to numbers, bools, strings "
        "or lists of fixed size"
    )


def _texts(part: _Part, index: int, offsets: numpy.ndarray) -> numpy.ndarray:
    """Strings as bytes in an array of objects: each from its offset in a buffer to the next one."""
    texts = np.empty(part.count, dtype=object)
    if not part.count:
        return texts
    begin = int(offsets[0])
    content = part.buffer(index, np.uint8, begin, int(offsets[-1]) - begin).tobytes()
    ends = (offsets - begin).tolist()
    for i in range(part.count):
        texts[i] = content[ends[i] : ends[i + 1]]
    return texts


def _views(part: _Part) -> numpy.ndarray:
    """Strings as views: each has its length and 12 bytes, or its length, 4 bytes, a buffer and an offset."""
    views = part.buffer(1, np.uint8, 16 * part.begin, 16 * part.count).reshape(-1, 16)
    # The last buffer has the sizes of the others.
    others = part.found.n_buffers - 3
    sizes = part.buffer(part.found.n_buffers - 1, "i8", 0, others)
    contents = [part.buffer(2 + i, np.uint8, 0, int(sizes[i])) for i in range(others)]
    numbers = np.ascontiguousarray(views).view("<i4").reshape(-1, 4)
    texts = np.empty(part.count, dtype=object)
    for i, (length, _, buffer, offset) in enumerate(numbers.tolist()):
        own = views[i, 4 : 4 + length] if length <= 12 else contents[buffer][offset : offset + length]
        texts[i] = own.tobytes()
    return texts


def _joined(parts: list[numpy.ndarray], schema: _Schema, what: str) -> numpy.ndarray:
    """The parts of a stream as one."""
    if len(parts) == 1:
        return parts[0]
    if parts:
        return np.concatenate(parts)
    shape = [0]
    while schema.dictionary or _form(schema).startswith("+w:"):
        if not schema.dictionary:
            shape.append(int(_form(schema)[3:]))
        schema = schema.dictionary.contents if schema.dictionary else schema.children[0].contents
    form = _form(schema)
    if form in _NUMBERS or form == "b":
        return np.zeros(shape, _NUMBERS.get(form, "?"))
    if form not in _TEXTS + _VIEWS and not form.startswith("w:"):
        raise _refused(form, what)
    return np.zeros(shape, "O")
