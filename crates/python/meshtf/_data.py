"""The data of a training: arrays and tables, files, or batches of an iterator."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from . import _errors
from ._arrays import columns_of, is_iterator
from ._lazy import json, np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy

    from ._session import Names

# The keys by which the source of a placeholder names its file or folder.
_FILES = ("file", "images", "texts", "classes")
# The number of examples of an iterable: an epoch of it has no end, and a training that continues may have more steps.
_MANY = 1 << 48
# The usual number of examples of a batch.
BATCH = 32


class Source:
    """The data in the form of the native part, and the number of examples of a batch."""

    def __init__(self, names: Names, data: Any, held_out: Any, batch: int | None, steps: int | None) -> None:
        self.batch = BATCH if batch is None else batch
        #: Whether the examples come in the order of an iterator.
        self.is_stream = False
        self.native: Any
        self.held_out: Any
        # A reader of Arrow's batches is read as the training proceeds.
        table = None if is_iterator(data) else columns_of(data)
        given = data if table is None else table
        if isinstance(given, Mapping) and any(map(_is_file, given.values())):
            others = {} if held_out is None else _mapping(held_out)
            self.native, self.held_out = _files(names, given, others, self.batch)
            return
        self.held_out = None if held_out is None else names.fed(held_out)
        if isinstance(given, Mapping):
            self.native = names.fed(given)
            return
        if not isinstance(given, Iterable):
            raise TypeError(f"the data are a dict of arrays or files, a table, or an iterable of batches, not {data!r:.60}")
        if steps is None:
            raise _errors.InvalidArgumentError("the data are an iterable, whose length is not known: state steps=…")
        self.is_stream = True
        batches = _Batches(names, given)
        self.batch = batches.first_rows if batch is None else batch
        self.native = (batches.columns, _MANY, batches.next)


def _mapping(given: Any) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"the data are files, so the validation is a dict of files, too, not {given!r:.60}")
    return given


def _is_file(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) or isinstance(value, Mapping) and any(key in value for key in _FILES)


def _files(names: Names, data: Mapping[Any, Any], held_out: Mapping[Any, Any], batch: int) -> tuple[Any, Any]:
    """The sections `data` of a graph.json, whose files lie below one folder."""
    named: list[str] = []

    def absolute(name: str) -> str:
        path, colon, part = name.partition(":")
        named.append(os.path.abspath(path))
        return named[-1] + colon + part

    def source(key: Any, value: Any) -> Any:
        if isinstance(value, (str, os.PathLike)):
            return absolute(os.fspath(value))
        if isinstance(value, Mapping):
            return {name: absolute(os.fspath(one)) if name in _FILES else one for name, one in value.items()}
        if isinstance(value, (bool, int, float, np.generic)):
            return value.item() if isinstance(value, np.generic) else value
        raise _errors.InvalidArgumentError(
            f"the data for {names.of(key)} are an array, and those of others files: read these, or save the array by numpy.save"
        )

    feeds = [{names.meant(names.of(key))[0]: source(key, value) for key, value in one.items()} for one in (data, held_out)]
    folder = os.path.commonpath([os.path.dirname(path) for path in named])

    def below(value: Any, is_file: bool = True) -> Any:
        if isinstance(value, dict):
            return {name: below(one, name in _FILES) for name, one in value.items()}
        return os.path.relpath(value, folder) if is_file and isinstance(value, str) else value

    def section(feed: dict[str, Any]) -> tuple[str, str]:
        own = {name: below(value) for name, value in feed.items()}
        return json.dumps({"data": {"feed": own, "batch": batch}}), folder

    return section(feeds[0]), section(feeds[1]) if held_out else None


class _Batches:
    """The batches of an iterable, as arrays in the order of its first one's columns."""

    def __init__(self, names: Names, given: Iterable[Any]) -> None:
        self._names, self._given = names, given
        self._left: Iterator[Any] = iter(given)
        # An iterator ends once; a list or a loader begins again.
        self._again = self._left is not given
        self._read = 0
        try:
            first = next(self._left)
        except StopIteration:
            raise _errors.InvalidArgumentError("the data are an iterable without a batch") from None
        fed = names.fed(first)
        self._first: list[numpy.ndarray] | None = [array for _, array, _ in fed]
        self._order = [name for name, _, _ in fed]
        for name, array, _ in fed:
            if array.ndim == 0:
                raise _errors.InvalidArgumentError(f"the first batch has one value for {name}; expected an array of examples")
        #: The columns: placeholder, dtype, shape of an example.
        self.columns = [(name, dtype, list(array.shape[1:])) for name, array, dtype in fed]
        self.first_rows = self._rows(self._first)

    def next(self) -> list[numpy.ndarray] | None:
        """The arrays of the next batch; None at the end."""
        if self._first is not None:
            arrays, self._first, self._read = self._first, None, 1
            return arrays
        try:
            batch = next(self._left)
        except StopIteration:
            # One that is empty the second time has ended.
            if not self._again or not self._read:
                return None
            self._left, self._read = iter(self._given), 0
            return self.next()
        self._read += 1
        fed = {name: array for name, array, _ in self._names.fed(batch)}
        if set(fed) != set(self._order):
            raise _errors.InvalidArgumentError(
                f"a batch of the data has {', '.join(sorted(fed))}, and the first one {', '.join(sorted(self._order))}"
            )
        arrays = [fed[name] for name in self._order]
        for (name, _, shape), array in zip(self.columns, arrays, strict=True):
            if list(array.shape[1:]) != shape or array.ndim == 0:
                raise _errors.InvalidArgumentError(
                    f"a batch of the data has the shape {array.shape} for {name}; examples of the first one have {tuple(shape)}"
                )
        self._rows(arrays)
        return arrays

    def _rows(self, arrays: list[numpy.ndarray]) -> int:
        counts = {len(array) for array in arrays}
        if len(counts) != 1 or 0 in counts:
            each = ", ".join(f"{len(array)} for {name}" for name, array in zip(self._order, arrays, strict=True))
            raise _errors.InvalidArgumentError(
                f"a batch of the data has as many examples for each placeholder, at least 1: {each}"
            )
        return counts.pop()
