"""Sessions: runs of a graph, and its variables."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sized

from . import _errors
from ._arrays import array_of, columns_of, is_iterator
from ._draw import Trace
from ._lazy import asyncio, json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeAlias

    import numpy

    from . import _native
    from ._graph import Graph, Operation, Tensor

    #: A name, a tensor, an operation, or lists, tuples and dicts of them.
    Fetches: TypeAlias = str | Tensor | Operation | list[Any] | tuple[Any, ...] | dict[Any, Any] | None
    Feeds: TypeAlias = Mapping[str | Tensor, Any] | Mapping[str, Any] | Mapping[Tensor, Any]


class Names:
    """The names by which runs of a graph fetch, feed and run."""

    def __init__(self, graph: Graph, grow: Callable[[_native.Graph], None] | None = None) -> None:
        self.graph = graph
        self.complete = graph._complete()
        # Called with the graph if it has grown.
        self._grow = grow
        self._known: dict[str, tuple[str, str | None]] = {}

    def meant(self, name: str) -> tuple[str, str | None]:
        """The tensor that a name means, and its dtype; no dtype for a node without outputs."""
        known = self._known.get(name)
        if known is None:
            # Another thread may replace it meanwhile.
            before = self.complete
            try:
                known = before.meant(name)
            except _errors.Error:
                complete = self.graph._complete()
                if complete is before or self._grow is None:
                    raise
                known = complete.meant(name)
                self._grow(complete)
                self.complete = complete
            self._known[name] = known
        return known

    def of(self, one: Any) -> str:
        """The name of a fetch or a feed."""
        if type(one) is str:
            return one
        if getattr(one, "graph", self.graph) is not self.graph:
            raise _errors.InvalidArgumentError(f"{one!r} is of another graph than the session")
        name = getattr(one, "name", one)
        if not isinstance(name, str):
            raise TypeError(f"expected a name or a tensor of a graph, not {one!r:.60}")
        return name

    def asked(self, fetches: Fetches) -> Asked:
        """Fetches; those of the file if there are none."""
        if fetches is not None:
            return Asked(self, fetches)
        defaults = json.loads(self.complete.defaults())
        if not defaults["fetch"] and not defaults["targets"]:
            raise _errors.InvalidArgumentError('the graph does not say what to fetch: name it, as in run("y")')
        asked = Asked(self, dict(defaults["outputs"]))
        asked.targets += defaults["targets"]
        return asked

    def fed(self, feeds: Any) -> list[tuple[str, numpy.ndarray, str]]:
        """Feeds as arrays of the dtypes of their tensors."""
        fed = []
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            feeds = _by_name(feeds)
        for key, value in feeds.items():
            name = self.of(key)
            tensor, dtype = self.meant(name)
            if dtype is None:
                raise _errors.InvalidArgumentError(f"{name} has no output: it cannot be fed")
            fed.append((tensor, array_of(value, dtype, name), dtype))
        return fed


def _by_name(feeds: Any) -> Mapping[Any, Any]:
    """The feeds of a table, whose columns have the names of tensors."""
    if feeds is None:
        return {}
    columns = columns_of(feeds)
    if columns is None:
        raise TypeError(f"feeds are a dict by names or tensors, or a table, not {feeds!r:.60}")
    return columns


class Asked:
    """Fetches as flat lists, and the way back to their form."""

    __slots__ = ("fetches", "targets", "form")

    def __init__(self, names: Names, fetches: Fetches) -> None:
        self.fetches: list[str] = []
        self.targets: list[str] = []
        self.form = self._flat(names, fetches)

    def _flat(self, names: Names, fetch: Any) -> Any:
        if isinstance(fetch, dict):
            return {key: self._flat(names, one) for key, one in fetch.items()}
        if isinstance(fetch, tuple) and hasattr(fetch, "_fields"):
            return type(fetch)(*(self._flat(names, one) for one in fetch))
        if isinstance(fetch, (list, tuple)):
            return type(fetch)(self._flat(names, one) for one in fetch)
        tensor, dtype = names.meant(names.of(fetch))
        if dtype is None:
            self.targets.append(tensor)
            return _NOTHING
        self.fetches.append(tensor)
        return _At(len(self.fetches) - 1)

    def values(self, values: list) -> Any:
        return _filled(self.form, values)


class _At(int):
    """The place of a value."""


#: The value of a node without outputs.
_NOTHING = _At(-1)


def _filled(form: Any, values: list) -> Any:
    if type(form) is _At:
        return None if form < 0 else values[form]
    if isinstance(form, dict):
        return {key: _filled(one, values) for key, one in form.items()}
    if hasattr(form, "_fields"):
        return type(form)(*(_filled(one, values) for one in form))
    return type(form)(_filled(one, values) for one in form)


class Session:
    """A session of a graph on a master: see `Mesh.session`. It is closed by ``with`` or by `close`.

    >>> import meshtf
    >>> g = meshtf.Graph()
    >>> x = g.placeholder("x", "float32", [None])
    >>> y = (x * 2).named("y")
    >>> with meshtf.local() as m, m.session(g) as s:
    ...     s.run("y", {"x": [1, 2]})
    array([2., 4.], dtype=float32)
    """

    def __init__(self, native: _native.Session, graph: Graph) -> None:
        self._native = native
        self._names = Names(graph, native.extend)
        #: The graph that it runs. If it has grown, the session has the new nodes when a run names one.
        self.graph = graph
        #: The variables of the graph, by their names.
        self.variables = Variables(self)

    def run(self, fetches: Fetches = None, feeds: Feeds | None = None, *, steps: int = 1, timeout: float | None = None) -> Any:
        """Runs one step, or several with the same feeds, and returns the values of the last.

        `fetches` is the name of a tensor, ``"y"`` or ``"y:1"``, a tensor of a graph that was built, or a list, tuple or dict of
        these; the values come in the same form. A node without outputs is run for its effect; its value is None. Without
        fetches, those that the graph's file names are fetched, as a dict. `feeds` has values by name or tensor.

        Values are arrays of numpy, and scalars of numpy for rank 0; strings are bytes. Ctrl-C cancels the steps, and so does
        the end of `timeout` seconds: a DeadlineExceededError.
        """
        if type(fetches) is str and steps == 1 and timeout is None:
            # The usual case without the lists of the others.
            tensor, dtype = self._names.meant(fetches)
            if dtype is not None:
                return self._native.run([tensor], [], self._names.fed(feeds))[0][0]
        asked = self._names.asked(fetches)
        if not asked.fetches and not asked.targets:
            return asked.values([])
        fed = self._names.fed(feeds)
        values, _ = self._native.run(asked.fetches, asked.targets, fed, _count(steps), False, timeout)
        return asked.values(values)

    async def run_async(self, fetches: Fetches = None, feeds: Feeds | None = None, *, steps: int = 1) -> Any:
        """As `run`, awaited. If the task that awaits it is cancelled, the steps are.

        >>> import asyncio, meshtf
        >>> g = meshtf.Graph()
        >>> y = (g.placeholder("x", "int32", []) * 2).named("y")
        >>> async def doubled(s, numbers):
        ...     return await asyncio.gather(*(s.run_async("y", {"x": x}) for x in numbers))
        >>> with meshtf.local() as m, m.session(g) as s:
        ...     [int(y) for y in asyncio.run(doubled(s, [1, 2, 3]))]
        [2, 4, 6]
        """
        asked, loop = self._names.asked(fetches), asyncio.get_running_loop()
        future: Future[list] = loop.create_future()

        def settle(values: list | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(values or [])

        def done(values: list | None, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(settle, values, error)
            except RuntimeError:
                # The loop was closed: nobody waits.
                pass

        pending = self._native.begin(asked.fetches, asked.targets, self._names.fed(feeds), _count(steps), done)
        try:
            return asked.values(await future)
        finally:
            pending.cancel()

    def run_steps(
        self,
        fetches: Fetches = None,
        feeds: Feeds | Iterable[Feeds] | None = None,
        *,
        steps: int | None = None,
        every: int = 1,
        progress: bool = False,
    ) -> Iterator[tuple[int, Any]]:
        """Runs steps, and yields the number of each, from 1, with its values.

        With the same feeds in each step, or none, `steps` run without a return to Python between them, and the values of every
        `every`-th and of the last are yielded while the next ones run. With an iterable of feeds there is a step for each.
        `progress` shows a bar, tqdm's if that is installed.

        >>> import meshtf
        >>> g = meshtf.Graph()
        >>> n = g.variable("n", [], dtype="int64", initial=0)
        >>> up = g.op("AssignAddVariableOp", g.handle("n"), g.constant(1, "int64"))
        >>> with meshtf.local() as m, m.session(g) as s:
        ...     for step, _ in s.run_steps(up, steps=100, every=50):
        ...         print(step)
        ...     print(s.run("n"))
        50
        100
        100
        """
        asked, every = self._names.asked(fetches), _count(every)
        if feeds is not None and not isinstance(feeds, Mapping):
            # A stream of Arrow can be read once.
            columns = None if is_iterator(feeds) else columns_of(feeds)
            if columns is None:
                if steps is not None:
                    raise TypeError("steps is the number of feeds if there are several")
                return self._fed_steps(asked, feeds, every, progress)
            feeds = columns
        if steps is None:
            raise TypeError("run_steps takes steps=N, or an iterable of feeds")
        steps = _count(steps)
        native = self._native.steps(asked.fetches, asked.targets, self._names.fed(feeds), steps, every)
        return self._same_steps(asked, native, progress_bar(progress, steps))

    def _same_steps(self, asked: Asked, native: _native.Steps, bar: Any) -> Iterator[tuple[int, Any]]:
        before = 0
        try:
            for step, values in native:
                if bar is not None:
                    bar.update(step - before)
                    before = step
                yield step, asked.values(values)
        finally:
            native.close()
            if bar is not None:
                bar.close()

    def _fed_steps(self, asked: Asked, feeds: Iterable[Feeds], every: int, progress: bool) -> Iterator[tuple[int, Any]]:
        bar = progress_bar(progress, len(feeds) if isinstance(feeds, Sized) else None)
        step, last = 0, None
        try:
            for step, own in enumerate(feeds, 1):
                last = self._native.run(asked.fetches, asked.targets, self._names.fed(own))[0]
                if bar is not None:
                    bar.update(1)
                if step % every == 0:
                    yield step, asked.values(last)
                    last = None
            if last is not None:
                yield step, asked.values(last)
        finally:
            if bar is not None:
                bar.close()

    def trace(self, fetches: Fetches = None, feeds: Feeds | None = None) -> Trace:
        """Runs one step and records when each device ran which node: see `Trace`."""
        asked = self._names.asked(fetches)
        values, timeline = self._native.run(asked.fetches, asked.targets, self._names.fed(feeds), 1, True)
        return Trace(asked.values(values), json.loads(timeline))

    def close(self) -> None:
        """Ends the session. Its variables stay on their tasks."""
        self._native.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a session belongs to the process that opened it: pickle its graph, and the values of its variables")

    def __repr__(self) -> str:
        state = "closed" if self._native.is_closed else "open"
        return f"<meshtf.Session of {len(self._names.complete)} nodes, {state}>"


class Variables(MutableMapping):
    """The variables of a session's graph: their values, read and set by name.

    >>> import meshtf
    >>> g = meshtf.Graph()
    >>> twice = g.variable("w", [2], initial="zeros") * 2
    >>> with meshtf.local() as m, m.session(g) as s:
    ...     s.variables["w"] = [3, 4]
    ...     print(list(s.variables), s.variables["w"], s.run(twice))
    ['w'] [3. 4.] [6. 8.]
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getitem__(self, name: str) -> numpy.ndarray:
        return self._session._native.read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        native = self._session._native
        native.write(name, array_of(value, native.dtype(name), f"variable {name}"))

    def __delitem__(self, name: str) -> None:
        raise TypeError("a variable of a graph cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._session._names.complete.variables())

    def __len__(self) -> int:
        return len(self._session._names.complete.variables())

    def __contains__(self, name: object) -> bool:
        return name in self._session._names.complete.variables()

    def copy(self) -> dict[str, numpy.ndarray]:
        """The values of all variables."""
        return dict(self.items())

    def __repr__(self) -> str:
        return f"<variables {', '.join(self)}>"


def _count(number: Any) -> int:
    if isinstance(number, bool) or not hasattr(number, "__index__") or number.__index__() < 1:
        raise _errors.InvalidArgumentError(f"a number of steps is at least 1, not {number!r}")
    return number.__index__()


def progress_bar(wanted: bool, steps: int | None) -> Any:
    if not wanted:
        return None
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        from ._bar import Bar

        return Bar(steps)
    return tqdm(total=steps, unit="step")
