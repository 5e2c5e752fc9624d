"""Tensor graphs on named tasks that find each other: numpy arrays in, numpy arrays out.

>>> import meshtf
>>> g = meshtf.Graph()
>>> x = g.placeholder("x", "float32", [None])
>>> with g.device("/job:worker/task:1"):
...     y = (3 * x + 1).named("y")
>>> with meshtf.local({"worker": 2}) as m, m.session(g) as s:
...     s.run("y", {"x": [1, 2]})
array([4., 7.], dtype=float32)

`mesh` joins the nodes that are up, `local` starts some on this machine. `load` reads a graph or a model, `Graph` builds one,
`Mesh.session` runs it, and `train` trains it. Failures are exceptions, a class for each canonical code, below `Error`.
"""

from __future__ import annotations

from . import _native
from ._callbacks import Callback, EarlyStopping
from ._draw import Curves, Plan, Trace, curves
from ._errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from ._graph import Graph, Operation, load, loads
from ._mesh import Device, Mesh, Task, local, mesh
from ._session import Session, Variables
from ._tensor import Tensor
from ._train import Trained, train


def binary() -> str:
    """The path of the command ``meshtf``: ``MESHTF_BINARY``, that of this installation, or the first one of the PATH."""
    from ._processes import binary

    return binary()


def __getattr__(name: str) -> object:
    # Modules that need a package other than numpy are imported when they are first used.
    if name in ("joblib", "sklearn", "tf", "torch"):
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = _native.VERSION

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "Callback",
    "CancelledError",
    "Curves",
    "DataLossError",
    "DeadlineExceededError",
    "Device",
    "EarlyStopping",
    "Error",
    "FailedPreconditionError",
    "Graph",
    "InternalError",
    "InvalidArgumentError",
    "Mesh",
    "NotFoundError",
    "Operation",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Plan",
    "ResourceExhaustedError",
    "Session",
    "Task",
    "Tensor",
    "Trace",
    "Trained",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "Variables",
    "binary",
    "curves",
    "load",
    "loads",
    "local",
    "mesh",
    "train",
]
