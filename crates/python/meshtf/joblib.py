"""The backend ``"meshtf"`` of joblib: jobs are threads of this process, and each has a task of a mesh for its estimators.

No code is pickled or sent, since a task runs graphs alone: a job's Python code runs here, and the graphs of the estimators of
`meshtf.sklearn` run on the job's task. Jobs of other code are as if the backend were joblib's own ``"threading"``.

>>> import joblib, meshtf, meshtf.joblib, numpy as np
>>> from sklearn.model_selection import cross_validate
>>> from meshtf.sklearn import MLPClassifier
>>> points = np.random.default_rng(0).normal(size=(60, 2))
>>> with meshtf.local({"worker": 2}) as m, joblib.parallel_backend("meshtf", mesh=m):
...     done = cross_validate(
...         MLPClassifier((8,), max_iter=300, solver="sgd", learning_rate_init=0.1, random_state=1),
...         points, points[:, 0] > 0, cv=4, return_estimator=True)
>>> sorted({one.task_ for one in done["estimator"]})
['worker/0', 'worker/1']
>>> bool(done["test_score"].mean() > 0.9)
True
"""

from __future__ import annotations

import collections
import threading

try:
    import joblib as _joblib
    from joblib._parallel_backends import SequentialBackend, ThreadingBackend
    from joblib.parallel import get_active_backend
except ImportError:
    raise ImportError("meshtf.joblib needs joblib: pip install joblib, or scikit-learn, which brings it") from None

from . import _errors
from ._mesh import Mesh, mesh
from ._place import Place, named, on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ._mesh import Task

__all__ = ["MeshBackend"]


class MeshBackend(ThreadingBackend):
    """joblib's backend ``"meshtf"``, which importing this module registers.

    `mesh` is the mesh; without one, `meshtf.mesh` joins that of this user. `tasks` are names of its tasks, which take jobs in
    turn; without them, those that are up. There are as many jobs at a time as tasks, unless ``n_jobs`` says otherwise: then tasks
    have several, or some have none. A task that is lost gets no more jobs, and another one repeats its job.
    """

    # That of joblib.parallel_config, which states no number: one job for each task.
    default_n_jobs = -1
    supports_sharedmem = True
    uses_threads = True

    def __init__(self, *args: Any, mesh: Mesh | None = None, tasks: Iterable[Task | str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(f"mesh: expected a mesh, such as meshtf.mesh() returns, not {mesh!r:.60}")
        self._mesh = mesh
        self._tasks = None if tasks is None else [named(task) for task in tasks]
        self._free = _Free([], 0)

    def _joined(self) -> Mesh:
        if self._mesh is None:
            self._mesh = mesh()
        return self._mesh

    def _names(self) -> list[str]:
        names = self._tasks if self._tasks is not None else [task.name for task in self._joined().tasks()]
        if not names:
            raise _errors.UnavailableError("no task of the mesh is up: start one, as with meshtf node --name worker/0")
        return names

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """The number of jobs at a time: for -1 that of the tasks."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(len(self._names()) + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Prepares for a call of joblib.Parallel; the number of jobs at a time."""
        count, names = self.effective_n_jobs(n_jobs), self._names()
        self._free = _Free(names, count)
        return super().configure(n_jobs=count, parallel=parallel, **options)

    def _placed(self, job: Callable[[], Any]) -> Callable[[], Any]:
        free, joined = self._free, self._joined()

        def placed() -> Any:
            # Each repetition has one task less.
            while True:
                task = free.take()
                failure = None
                try:
                    with on(joined, task) as here:
                        try:
                            result = job()
                        finally:
                            # A search takes the failure of a fit for a score, and does not raise it.
                            failure = here.loss()
                    if failure is None:
                        return result
                except Exception:
                    if failure is None:
                        raise
                finally:
                    free.give(task, failure)

        return placed

    def first_place(self) -> Place:
        """The first task that was not lost meanwhile."""
        names = [name for name in self._names() if name not in self._free.lost]
        return Place(self._joined(), (names or self._names())[0])

    # The name of `submit` before joblib 1.5.
    def apply_async(self, func: Callable[[], Any], callback: Any = None) -> Any:
        """Begins a job, on the next task that is free."""
        return super().apply_async(self._placed(func), callback)

    def submit(self, func: Callable[[], Any], callback: Any = None) -> Any:
        """Begins a job, on the next task that is free."""
        return super().submit(self._placed(func), callback)

    def get_nested_backend(self) -> Any:
        """Jobs of jobs run one after another, on the task of the job that has them."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None


class _Free:
    """The tasks of jobs that may begin, for some jobs at a time: a job takes one, and gives it back."""

    def __init__(self, names: list[str], jobs: int) -> None:
        self._tasks = collections.deque(names[job % len(names)] for job in range(jobs))
        # Those that take the places of others.
        self._spare = collections.deque(names[jobs:])
        self._taken: list[str] = []
        self._changed = threading.Condition()
        #: The failures of tasks that were lost, in the order of their loss.
        self.lost: dict[str, Exception] = {}

    def take(self) -> str:
        """A task that was not lost, as soon as there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or not self._taken)
            if not self._tasks:
                last = list(self.lost.values())[-1]
                raise _errors.UnavailableError(f"each task of the jobs was lost: {', '.join(self.lost)}: {last}")
            self._taken.append(self._tasks.popleft())
            return self._taken[-1]

    def give(self, task: str, failure: Exception | None) -> None:
        """Gives a task back, or the failure by which it was lost: then nobody takes it any more."""
        with self._changed:
            self._taken.remove(task)
            if failure is not None and task not in self.lost:
                self.lost[task] = failure
            self._tasks.append(self._spare.popleft() if task in self.lost and self._spare else task)
            self._tasks = collections.deque(one for one in self._tasks if one not in self.lost)
            self._changed.notify_all()


def active_place() -> Place | None:
    """The first task of this backend, if it is the one that joblib has in this thread."""
    backend, _ = get_active_backend()
    return backend.first_place() if isinstance(backend, MeshBackend) else None


_joblib.register_parallel_backend("meshtf", MeshBackend)
