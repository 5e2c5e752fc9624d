"""Exceptions: one for each canonical code, with the place of the failure."""

from __future__ import annotations


class Error(Exception):
    """A failed request: the message, and the place as far as it is known.

    >>> import meshtf, pickle
    >>> g = meshtf.Graph()
    >>> x = g.placeholder("x", "float32")
    >>> y = (x + [1.0, 2.0, 3.0]).named("y")
    >>> with meshtf.local() as m, m.session(g) as s:
    ...     try:
    ...         s.run("y", {"x": [1.0, 2.0]})
    ...     except meshtf.InvalidArgumentError as error:
    ...         print(error.message, error.op, error.device)
    Incompatible shapes: [2] vs. [3] AddV2 /job:localhost/task:0/device:CPU:0
    """

    #: The canonical number of the class, as gRPC has it.
    code = 2

    #: The node of the graph that failed, its op, the device that it ran on, the task to blame if no device is, and the step.
    node: str | None
    op: str | None
    device: str | None
    task: str | None
    step: int | None

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        op: str | None = None,
        device: str | None = None,
        task: str | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node, self.op, self.device, self.task, self.step = node, op, device, task, step

    def __str__(self) -> str:
        node = self.node and f"node {self.node}" + (f" ({self.op})" if self.op else "")
        place = " on ".join(part for part in (node, self.device or self.task) if part)
        return f"{self.message} [{place}]" if place else self.message

    def __reduce__(self):
        return _again, (type(self), self.message, self.node, self.op, self.device, self.task, self.step)


def _again(kind, message, node, op, device, task, step):
    return kind(message, node=node, op=op, device=device, task=task, step=step)


class CancelledError(Error):
    """The client cancelled the request, or the work that it belonged to has ended."""

    code = 1


class UnknownError(Error):
    """A failure of no known class."""

    code = 2


class InvalidArgumentError(Error, ValueError):
    """An argument, a graph or a name is wrong, whatever the state of the system."""

    code = 3


class DeadlineExceededError(Error, TimeoutError):
    """A time limit was exceeded."""

    code = 4


class NotFoundError(Error, LookupError):
    """Something named does not exist."""

    code = 5


class AlreadyExistsError(Error):
    """Something of that name exists already."""

    code = 6


class PermissionDeniedError(Error):
    """The caller may not do this."""

    code = 7


class ResourceExhaustedError(Error):
    """A limit is reached: memory, a queue, a count."""

    code = 8


class FailedPreconditionError(Error):
    """The system is not in the required state: a variable has no value, for example."""

    code = 9


class AbortedError(Error):
    """The request was aborted because of another event; a retry from an earlier point may help."""

    code = 10


class OutOfRangeError(Error):
    """A valid range was left: a queue is closed and empty, for example."""

    code = 11


class UnimplementedError(Error, NotImplementedError):
    """meshtf has no implementation of it."""

    code = 12


class InternalError(Error):
    """An invariant is violated: a bug of meshtf."""

    code = 13


class UnavailableError(Error):
    """A task cannot be reached. A retry may help."""

    code = 14


class DataLossError(Error):
    """Data is lost or damaged."""

    code = 15


class UnauthenticatedError(Error):
    """The caller has not authenticated itself."""

    code = 16


ALL = [
    Error,
    CancelledError,
    UnknownError,
    InvalidArgumentError,
    DeadlineExceededError,
    NotFoundError,
    AlreadyExistsError,
    PermissionDeniedError,
    ResourceExhaustedError,
    FailedPreconditionError,
    AbortedError,
    OutOfRangeError,
    UnimplementedError,
    InternalError,
    UnavailableError,
    DataLossError,
    UnauthenticatedError,
]
for _one in ALL:
    _one.__module__ = "meshtf"
