"""The task on which an estimator's graphs run: one of this process, one that `on` names, or one of joblib's backend."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading

from . import _errors
from ._mesh import Mesh, Task, local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ._graph import Graph
    from ._session import Session

# Each thread has its own.
_chosen = threading.local()
# The mesh of estimators that nobody placed, with the process that has it, and the lock of whoever makes it.
_own: tuple[int, Mesh] | None = None
_making = threading.Lock()


class Place:
    """A task of a mesh."""

    __slots__ = ("mesh", "task", "failure")

    def __init__(self, mesh: Mesh, task: str) -> None:
        self.mesh, self.task = mesh, task
        #: The last failure of a graph there. Whoever runs a job may take the exception itself for a score of NaN.
        self.failure: _errors.Error | None = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Notes a failure within ``with``."""
        try:
            yield
        except _errors.Error as error:
            self.failure = error
            raise

    def loss(self) -> _errors.Error | None:
        """The failure of a graph there, if it failed because the task has ended, or cannot be reached."""
        if self.failure is None or isinstance(self.failure, _errors.UnavailableError):
            return self.failure
        return None if any(one.name == self.task for one in self.mesh.tasks()) else self.failure

    def session(self, graph: Graph) -> Session:
        """A session on the task, whose variables nobody else sees."""
        return self.mesh.session(graph, target=self.task, isolated=True, init=True if graph.variables else None)


class on:
    """Runs the graphs of estimators on a task of a mesh, in this thread and until the end of ``with``.

    Without a task, it is the first of the mesh by name.

    >>> import meshtf, meshtf.sklearn
    >>> with meshtf.local({"worker": 2}) as m, meshtf.sklearn.on(m, "worker/1"):
    ...     model = meshtf.sklearn.MLPRegressor((4,), max_iter=2, random_state=1, solver="sgd", tol=0)
    ...     model.partial_fit([[0.0], [1.0]], [0.0, 1.0]).task_
    'worker/1'
    """

    def __init__(self, mesh: Mesh, task: Task | str | None = None) -> None:
        if not isinstance(mesh, Mesh):
            raise TypeError(f"expected a mesh, such as meshtf.mesh() returns, not {mesh!r:.60}")
        self._place = Place(mesh, first_of(mesh) if task is None else named(task))

    def __enter__(self) -> Place:
        _places().append(self._place)
        return self._place

    def __exit__(self, *_: object) -> None:
        _places().pop()


def _places() -> list[Place]:
    """The places that are chosen in this thread, the innermost last."""
    try:
        return _chosen.places
    except AttributeError:
        _chosen.places = []
        return _chosen.places


def named(task: Task | str) -> str:
    """The short name of a task."""
    return task.name if isinstance(task, Task) else task


def first_of(mesh: Mesh) -> str:
    """The first task of a mesh by name."""
    tasks = mesh.tasks()
    if not tasks:
        raise _errors.UnavailableError("no task of the mesh is up: start one, as with meshtf node --name worker/0")
    return tasks[0].name


def place() -> Place:
    """The task that is chosen in this thread: by `on`, by joblib's backend, or the one of this process."""
    chosen = _places()[-1] if _places() else _of_backend()
    return chosen if chosen is not None else Place(_own_mesh(), "localhost/0")


def _of_backend() -> Place | None:
    """The first task of joblib's backend, outside of the jobs that it has placed: the last fit of a search, for example."""
    own: Any = sys.modules.get("meshtf.joblib")
    return own.active_place() if own is not None else None


def _own_mesh() -> Mesh:
    global _own
    with _making:
        if _own is None or _own[0] != os.getpid():
            mesh = local()
            atexit.register(mesh.close)
            _own = os.getpid(), mesh
        return _own[1]
