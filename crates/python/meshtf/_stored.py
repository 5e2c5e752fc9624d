"""Saved states of trainings: files of safetensors."""

from __future__ import annotations

from . import _errors
from ._arrays import numpy_dtype
from ._lazy import json, np

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy

_DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "C64": "complex64",
    "F32": "float32",
    "F64": "float64",
}


def read(path: str, names: set[str]) -> tuple[dict[str, numpy.ndarray], dict[str, str]]:
    """The tensors of these names in a file, and its notes."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        begin = 8 + int.from_bytes(content[:8], "little")
        entries = json.loads(content[8:begin])
        notes = entries.pop("__metadata__", {})
        found = {}
        for name, entry in entries.items():
            if name in names:
                first, last = entry["data_offsets"]
                flat = np.frombuffer(content[begin + first : begin + last], numpy_dtype(_DTYPES[entry["dtype"]]))
                found[name] = flat.reshape(entry["shape"]).copy()
    except (KeyError, TypeError, ValueError) as error:
        raise _errors.DataLossError(f"{path}: it is no file of safetensors, or is damaged: {error}") from error
    return found, notes
