"""Perceptrons of several layers as graphs: a training whose examples are on its task, and the outputs of one that is trained."""

from __future__ import annotations

from ._graph import Graph
from ._lazy import np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy

    from ._place import Place
    from ._tensor import Tensor

ACTIVATIONS = {
    "identity": lambda x: x,
    "logistic": lambda x: x.sigmoid(),
    "tanh": lambda x: np.tanh(x),
    "relu": lambda x: x.relu(),
    "softmax": lambda x: x.softmax(),
}
# The rows whose outputs are computed at a time: their hidden layers are in memory.
_ROWS = 1 << 14


class Net:
    """The weights of a perceptron, and its functions: of the hidden layers, and of the last."""

    def __init__(self, coefs: list[numpy.ndarray], intercepts: list[numpy.ndarray], hidden: str, last: str) -> None:
        self.coefs, self.intercepts = coefs, intercepts
        self.hidden, self.last = hidden, last

    def logits(self, x: Tensor, coefs: list[Tensor], intercepts: list[Tensor]) -> Tensor:
        """The values of the last layer before its function."""
        for i, (coef, intercept) in enumerate(zip(coefs, intercepts, strict=True)):
            x = x @ coef + intercept
            if i + 1 < len(coefs):
                x = ACTIVATIONS[self.hidden](x)
        return x

    def outputs(self, place: Place, x: numpy.ndarray) -> numpy.ndarray:
        """The outputs for some rows, computed on a task."""
        g = Graph()
        dtype = np.result_type(x, self.coefs[0])
        feeds: dict[Tensor, numpy.ndarray] = {}

        def fed(name: str, weights: list[numpy.ndarray]) -> list[Tensor]:
            tensors = [g.placeholder(f"{name}_{i}", dtype, one.shape) for i, one in enumerate(weights)]
            feeds.update(zip(tensors, weights, strict=True))
            return tensors

        rows = g.placeholder("x", dtype, [None, x.shape[1]])
        logits = self.logits(rows, fed("coef", self.coefs), fed("intercept", self.intercepts))
        outputs = ACTIVATIONS[self.last](logits)
        with place.noting(), place.session(g) as s:
            parts = [s.run(outputs, {rows: x[i : i + _ROWS], **feeds}) for i in range(0, max(len(x), 1), _ROWS)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Training:
    """A session that trains a perceptron on examples, epoch by epoch, as scikit-learn does.

    The examples are sent once. A step takes the next ones of an order that is fed, so that the steps of an epoch run without a
    return to Python. `scale_by` are the weights of examples. `slots` are those of an optimizer that continues.
    """

    def __init__(
        self,
        place: Place,
        net: Net,
        examples: tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray | None],
        *,
        batch: int,
        alpha: float,
        optimizer: str,
        rate: float,
        numbers: dict[str, float],
        slots: dict[str, numpy.ndarray] | None,
    ) -> None:
        x, y, weights = examples
        self._count, self._batch = len(x), batch
        self._net = net
        self._feeds: dict[Tensor, numpy.ndarray] = {}
        self._sets: list[Any] = []
        g = self._graph = Graph()
        dtype = net.coefs[0].dtype
        at = g.variable("at", [], dtype="int32", initial=0, trainable=False)
        total = g.variable("total", [], dtype="float64", initial=0, trainable=False)
        self._order = g.placeholder("order", "int32", [None])
        size = np.minimum(self._count - at, batch)
        chosen = g.op("Slice", self._order, at.reshape(1), size.reshape(1))
        take = lambda name, array: g.op("ResourceGather", self._held(name, array), chosen, dtype=dtype)
        self._coefs = [g.variable(f"coef_{i}", initial=one, dtype=dtype) for i, one in enumerate(net.coefs)]
        self._intercepts = [g.variable(f"intercept_{i}", initial=one, dtype=dtype) for i, one in enumerate(net.intercepts)]
        logits = net.logits(take("x", x), self._coefs, self._intercepts)
        truth = take("y", y)
        of_each, reported = _losses(logits, truth, net.last)
        if weights is None:
            share = 1 / size.astype(dtype)
        else:
            own = take("weights", weights)
            of_each, reported = of_each * own, reported * own
            share = g.op("DivNoNan", g.constant(1, dtype), own.sum())
        squares = sum((one * one).sum() for one in self._coefs[1:]) + (self._coefs[0] * self._coefs[0]).sum()
        penalty = squares * share * (0.5 * alpha)
        own_variables = set(g.variables)
        step = g.minimize((of_each.sum() * share + penalty).named("loss"), optimizer, rate, **numbers)
        loss = (reported.sum() * share + penalty).astype("float64") * size.astype("float64")
        # The first step of an epoch begins a sum, and the last one its order anew.
        end = at + size
        summed = np.where(at > 0, total + loss, loss)
        self._step = [
            summed,
            step,
            g.op("AssignVariableOp", g.handle("total"), summed),
            g.op("AssignVariableOp", g.handle("at"), np.where(end < self._count, end, 0)),
        ]
        self._slots = [name for name in g.variables if name not in own_variables]
        rows = self._rows = g.placeholder("rows", dtype, [None, x.shape[1]])
        self._outputs = ACTIVATIONS[net.last](net.logits(rows, self._coefs, self._intercepts))
        self._session = place.session(g)
        try:
            self._session.run(self._sets, self._feeds)
            if slots is not None:
                self._session.variables.update(slots)
        except BaseException:
            self._session.close()
            raise
        self._feeds.clear()

    def _held(self, name: str, array: numpy.ndarray) -> Tensor:
        """A variable with the values of all examples, which is set when the session is open: its handle."""
        g = self._graph
        handle = g.op("VarHandleOp", name=name, shared_name=name, dtype=array.dtype, shape=list(array.shape))
        value = g.placeholder(f"{name}/value", array.dtype, array.shape)
        self._feeds[value] = array
        self._sets.append(g.op("AssignVariableOp", handle, value))
        return handle

    def epoch(self, order: numpy.ndarray) -> float:
        """Trains with all examples in an order, and returns the mean of the losses of its batches."""
        steps = -(-self._count // self._batch)
        return float(self._session.run(self._step, {self._order: order}, steps=steps)[0]) / self._count

    def outputs(self, rows: numpy.ndarray) -> numpy.ndarray:
        """The outputs for other rows, with the weights so far."""
        return self._session.run(self._outputs, {self._rows: rows})

    def weights(self) -> Net:
        """The weights so far."""
        coefs, intercepts = self._session.run([self._coefs, self._intercepts])
        return Net(coefs, intercepts, self._net.hidden, self._net.last)

    def slots(self) -> dict[str, numpy.ndarray]:
        """The variables of the optimizer."""
        return {name: self._session.variables[name] for name in self._slots}

    def close(self) -> None:
        """Ends the session, and with it its variables."""
        self._session.close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _losses(logits: Tensor, truth: Tensor, last: str) -> tuple[Tensor, Tensor]:
    """The loss of each example that is minimized, and that which is reported: [n]."""
    if last == "softmax":
        of_each = logits.graph.op("SoftmaxCrossEntropyWithLogits", logits, truth)[0]
    elif last == "logistic":
        of_each = (logits.graph.op("Softplus", logits) - logits * truth).sum(axis=1)
    else:
        squares = 0.5 * (logits - truth) ** 2
        return squares.sum(axis=1), squares.mean(axis=1)
    return of_each, of_each


def initial(units: list[int], hidden: str, draw: Any, dtype: Any) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """Glorot's first weights of each layer, drawn by a numpy.random.RandomState in scikit-learn's order."""
    factor = 2.0 if hidden == "logistic" else 6.0
    for of, to in zip(units, units[1:], strict=False):
        bound = np.sqrt(factor / (of + to))
        coef, intercept = draw.uniform(-bound, bound, (of, to)), draw.uniform(-bound, bound, to)
        yield coef.astype(dtype, copy=False), intercept.astype(dtype, copy=False)
