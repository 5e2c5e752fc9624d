"""Training a model on arrays, files or iterators."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack

from . import _errors, _native
from ._arrays import array_of, own_dtype
from ._callbacks import Callback, EarlyStopping
from ._data import Source
from ._graph import Graph
from ._lazy import fnmatch, json, np, tempfile
from ._session import Names, progress_bar
from ._stored import read as read_state
from ._tensor import Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    import numpy

    from ._mesh import Mesh, Task

    #: Arrays or files by placeholder, a table, or an iterable of such batches.
    Data: TypeAlias = Mapping[str | Tensor, Any] | Mapping[str, Any] | Mapping[Tensor, Any] | Iterable[Any]
    Follower: TypeAlias = Callback | Callable[[int, dict[str, float]], Any]
    #: Arrays by the names of variables, or a file or folder of weights.
    Weights: TypeAlias = Mapping[str | Tensor, Any] | Mapping[str, Any] | str | os.PathLike[str]


class Trained:
    """The result of `train`."""

    def __init__(self, graph: Graph, history: dict[str, list], weights: dict[str, numpy.ndarray], ended: dict) -> None:
        #: The model.
        self.graph = graph
        #: What was measured: "step" with "loss" and the metrics of the batch; with validation, "val_step", "val_loss" and so on.
        self.history = history
        #: The values of the variables: after the last step, or with `restore_best` those of the best evaluation.
        self.weights = weights
        #: The step of these values.
        self.weights_step: int = ended["step"]
        #: The number of steps that are done.
        self.step: int = ended["step"]
        #: Why it ended: "done", "enough" (the validation did not improve any more) or "stopped" (by a callback).
        self.how: str = ended["how"]

    def __repr__(self) -> str:
        loss = next((name for name in self.history if name != "step"), None)
        last = f", {loss} {self.history[loss][-1]:.5g}" if loss and self.history[loss] else ""
        return f"<meshtf.Trained: {self.step} steps, {self.how}{last}>"

    def _repr_html_(self) -> str:
        from ._draw import curves

        return f"<p>{self.step} steps, {self.how}</p>{curves(self.history).svg}"


def train(
    model: Graph,
    data: Data,
    *,
    loss: str | Tensor = "loss",
    optimizer: str = "adam",
    rate: float = 0.001,
    batch: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    shuffle: int | None = 1,
    weights: Weights | None = None,
    variables: Iterable[str | Tensor] = (),
    metrics: Iterable[str | Tensor] = (),
    validation: float | Data | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    best: str | None = None,
    greatest: bool = False,
    restore_best: bool = False,
    workers: int | None = None,
    ps: int | None = None,
    mode: str = "sync",
    local: dict[str, Any] | None = None,
    microbatches: int | None = None,
    mesh: Mesh | None = None,
    target: Task | str | None = None,
    callbacks: Iterable[Follower] = (),
    record: int | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    resume: bool | None = None,
    progress: bool = False,
    clip: float | None = None,
    clip_norm: float | None = None,
    weight_decay: float = 0.0,
    average: float | None = None,
    **numbers: float,
) -> Trained:
    """Trains the variables of a model so that a loss becomes less, and returns what was measured and the weights.

    `data` has the examples: a dict of arrays by placeholder, examples first; a table of pandas or Arrow, whose columns have the
    names of placeholders; a dict of files, which are read as the section ``data`` of a graph.json reads them (``"x.npy"``,
    ``{"file": "table.csv", "columns": ["a", "b"]}``); or an iterable of batches, each a dict of arrays or a table.

    It is trained for `epochs`, or for `steps`, in batches of `batch` examples (32), which are drawn in the order of the seed
    `shuffle` (None: in their own). Batches of an iterable are taken in its order while the training proceeds, and from its
    beginning again if it can be iterated twice; `steps` is stated then, and `batch` is the size of its first batch.
    `validation` is a share of the examples that is not trained with, or other examples; it is evaluated after each epoch, or
    `evaluate_every` steps; with an iterable, which has no epochs, as often as there are records. The training ends once the loss,
    or the metric `best`, has not improved in `patience` evaluations (`greatest`: it improves as it grows). With `restore_best`,
    the weights that are returned are those of the best evaluation.

    All trainable variables of floats are trained, or those that `variables` names, by names that `Graph.variables` lists or
    patterns of them: ``*`` is any text, ``?`` any character. Weights of a model that was loaded are variables with
    `meshtf.load(…, trained=…)`.

    The variables begin with their initial values, or with `weights`: a dict of arrays by the names that `Graph.variables` lists,
    such as the `weights` of an earlier result, where variables that are left out keep their initial values; or the path of a
    file that has values for all of them: .safetensors, .npz, a PyTorch state dict, the prefix of a TensorFlow checkpoint, or
    the folder of another training, of which the best weights are taken, else those of the last state. A training that continues
    from a state of its `checkpoint` has that one's.

    The gradients are computed by `workers` tasks ``/job:worker``, and the variables are on `ps` tasks ``/job:ps``, of `mesh` or
    in this process. `mode` is ``"sync"``, ``"async"``, ``"mirrored"``, ``"local"`` or ``"pipeline"``. In mode ``"local"`` each
    worker takes whole batches and has all variables, and `local` has the rounds after which they average, such as ``{"steps":
    50, "exchange": "int8"}``; all intervals in steps or epochs are rounded up to whole rounds, and a stop comes after a round.
    In mode ``"pipeline"`` each worker has a stage of the model, with its variables, and a batch goes through the stages in
    `microbatches` parts (None: four for each worker). There is a record after each `record` steps, or after each ``"epoch"``:
    by default, 20 in all. Callbacks are each a `Callback`, or a function that is called with the step and the values of each
    record and evaluation; one that returns True stops the training. States are saved in the folder `checkpoint`, every
    `save_every` steps, and at the end, from which a later call continues (`resume`: True if there must be one, False if there
    must be none). Ctrl-C stops a training with a checkpoint after the step under way, saves that, and raises KeyboardInterrupt.
    `progress` shows a bar, tqdm's if that is installed. The optimizers and their numbers are those of `Graph.minimize`.

    >>> import meshtf, numpy as np
    >>> g = meshtf.Graph()
    >>> x, y = g.placeholder("x", "float32", [None, 1]), g.placeholder("y", "float32", [None, 1])
    >>> loss = ((x.dense(1, name="line") - y) ** 2).mean().named("loss")
    >>> xs = np.linspace(-1, 1, 64, dtype="float32").reshape(64, 1)
    >>> done = meshtf.train(g, {"x": xs, "y": 3 * xs + 1}, optimizer="sgd", rate=0.2, epochs=40, workers=2, ps=1)
    >>> done.how, done.weights["line/kernel"].round(2), done.weights["line/bias"].round(2)
    ('done', array([[3.]], dtype=float32), array([1.], dtype=float32))
    >>> g.variables
    ['line/kernel', 'line/bias']
    >>> again = meshtf.train(g, {"x": xs, "y": 3 * xs + 2}, weights=done.weights, optimizer="sgd", rate=0.2, epochs=40)
    >>> again.history["loss"][0] < done.history["loss"][0], again.weights["line/bias"].round(2)
    (True, array([2.], dtype=float32))
    """
    for name, value, least in (
        ("batch", batch, 1),
        ("epochs", epochs, 1),
        ("steps", steps, 1),
        ("workers", workers, 1),
        ("ps", ps, 0),
        ("evaluate_every", evaluate_every, 1),
        ("patience", patience, 1),
        ("save_every", save_every, 1),
    ):
        _check_whole(name, value, least)
    names = Names(Graph._of(model))
    share = float(validation) if isinstance(validation, (int, float)) else 0.0
    held_out = None if isinstance(validation, (int, float)) else validation
    source = Source(names, data, held_out, batch, steps)
    if source.is_stream and share:
        raise _errors.InvalidArgumentError("validation is a share of an iterable, which has no end: state other examples")
    if source.is_stream and (epochs is not None or record == "epoch"):
        stated = 'record="epoch"' if record == "epoch" else "epochs"
        raise _errors.InvalidArgumentError(f"{stated} is about epochs, and an iterable has none: state a number of steps")
    if isinstance(record, str) and record != "epoch":
        raise _errors.InvalidArgumentError(f'record is {record!r}; expected a number of steps, or "epoch"')
    if source.is_stream and evaluate_every is None and held_out is not None:
        # As often as there are records.
        evaluate_every = max(int(steps or 0) // 20 if record is None else int(record), 1)
    parameters = {
        "loss": names.of(loss),
        "optimizer": optimizer,
        "rate": float(rate),
        "numbers": [(key, _number(key, value)) for key, value in numbers.items()],
        "clip": clip,
        "clip_norm": clip_norm,
        "weight_decay": float(weight_decay),
        "average": average,
        "batch": source.batch,
        "steps": steps,
        "epochs": epochs if epochs is not None or steps is not None else 1,
        "shuffle": None if source.is_stream else shuffle,
        "hold_out": share,
        "metrics": [names.of(metric) for metric in metrics],
        "workers": workers,
        "ps": ps,
        "mode": mode,
        "local": None if local is None else json.dumps(local),
        "microbatches": microbatches,
        "evaluate_every": evaluate_every,
        "patience": patience,
        "best": best,
        "is_greatest": greatest,
        # 0: each epoch.
        "record": 0 if record == "epoch" else None if record is None else max(int(record), 1),
        "save_every": save_every,
        "resume": resume,
        **_begin(names, weights),
        "variables": _chosen(names, variables),
        "target": None if target is None else str(target),
    }
    has_evaluations = held_out is not None or share > 0
    if restore_best and not has_evaluations:
        raise _errors.InvalidArgumentError("restore_best is about evaluations: state validation, too")
    if isinstance(callbacks, Callback) or callable(callbacks):
        raise TypeError(f"callbacks are a list of them: [{callbacks!r:.60}]")
    watcher = _Watcher(list(callbacks), progress)
    for one in watcher.callbacks:
        if not has_evaluations and isinstance(one, EarlyStopping) and one.monitor.startswith("val_"):
            raise _errors.InvalidArgumentError(f"EarlyStopping watches {one.monitor}, of evaluations: state validation, too")
    if weights is not None and resume:
        raise _errors.InvalidArgumentError("weights cannot be used with resume=True, which has those of the last saved state")
    client = None if mesh is None else mesh._native
    states = None if checkpoint is None else os.fspath(checkpoint)
    with ExitStack() as ends:
        if restore_best and states is None:
            # The best weights are kept in the folder of the states.
            states = os.path.join(ends.enter_context(tempfile.TemporaryDirectory(prefix="meshtf-")), "states")
        parameters["checkpoint"] = states
        ends.callback(watcher.close)
        ended, weights = _native.train(client, names.complete, source.native, source.held_out, parameters, watcher)
        trained = Trained(model, watcher.history, weights, json.loads(ended))
        best_file = os.path.join(states or "", "best.safetensors")
        # None was better than the loss of not-a-number.
        if restore_best and os.path.exists(best_file):
            best_weights, notes = read_state(best_file, set(weights))
            trained.weights.update(best_weights)
            trained.weights_step = int(notes["meshtf.step"])
    return watcher.ended(trained)


def _begin(names: Names, weights: Weights | None) -> dict[str, Any]:
    """The parameters of the values with which variables begin."""
    if weights is None or isinstance(weights, (str, os.PathLike)):
        return {"weights": None if weights is None else os.fspath(weights), "values": []}
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights are a dict of arrays by the names of variables, or a path, not {weights!r:.60}")
    dtypes, values = names.complete.variable_dtypes(), []
    for key, value in weights.items():
        name = names.of(key)
        # What is no variable is refused with all others that are none.
        dtype = dtypes.get(name) or own_dtype(value)
        values.append((name, array_of(value, dtype, f"variable {name}"), dtype))
    return {"weights": None, "values": values}


def _chosen(names: Names, variables: Iterable[str | Tensor]) -> list[str]:
    """The names of the variables that are trained; none if all are."""
    chosen: dict[str, None] = {}
    own = names.complete.variables()
    for one in [variables] if isinstance(variables, (str, Tensor)) else variables:
        pattern = names.of(one)
        fitting = [name for name in own if name == pattern or fnmatch.fnmatchcase(name, pattern)]
        if not fitting:
            raise _errors.InvalidArgumentError(f"no variable has the name {pattern}; there are {', '.join(own[:8]) or 'none'}")
        chosen.update(dict.fromkeys(fitting))
    return list(chosen)


def _check_whole(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {value!r:.60}")
    if value < least:
        raise _errors.InvalidArgumentError(f"{name} is {value!r:.60}; expected at least {least}")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, (bool, int, float)) and not hasattr(value, "__float__"):
        raise TypeError(f"train has no argument {name!r}, and as one of the optimizer it would be a number, not {value!r:.60}")
    return float(value)


def _stops(answer: Any) -> bool:
    """Whether a callback's answer is True: Python's, or numpy's as of a comparison."""
    return isinstance(answer, (bool, np.bool_)) and bool(answer)


class _Watcher:
    """Takes the events of a training: into the history, to the callbacks, and to a bar."""

    def __init__(self, callbacks: list[Follower], progress: bool) -> None:
        self.history: dict[str, list] = {}
        self.callbacks = callbacks
        self._progress = progress
        for one in callbacks:
            if not isinstance(one, Callback) and not callable(one):
                raise TypeError(f"callbacks are functions, or each a meshtf.Callback, not {one!r:.60}")
        self._names: list[str] = []
        self._bar: Any = None
        self._before = self._steps = 0

    def __call__(self, text: str, values: list[float]) -> bool:
        event = json.loads(text)
        kind = event["event"]
        if kind == "prepared":
            self._names, self._steps = event["names"], event["steps"]
            self._bar = progress_bar(self._progress, event["steps"])
        elif kind == "begins":
            self._before = event["step"]
            if self._bar is not None:
                self._bar.update(self._before)
            return self._each("on_begin", event["step"], self._steps)
        elif kind in ("trained", "evaluated"):
            return self._measured(kind == "evaluated", event["step"], values)
        elif kind == "saved":
            self._each("on_save", event["step"], event["file"])
        elif kind == "noted":
            self._each("on_note", event["text"])
        return False

    def _each(self, method: str, *args: Any) -> bool:
        """Calls a method of each callback that has methods; whether one returns True."""
        return any([_stops(getattr(one, method)(*args)) for one in self.callbacks if isinstance(one, Callback)])

    def _measured(self, is_evaluation: bool, step: int, values: list[float]) -> bool:
        prefix = "val_" if is_evaluation else ""
        logs = {f"{prefix}{name}": value for name, value in zip(self._names, values, strict=False)}
        for name, value in {f"{prefix}step": step, **logs}.items():
            self.history.setdefault(name, []).append(value)
        if self._bar is not None and not is_evaluation:
            self._bar.update(step - self._before)
            self._bar.set_postfix(logs, refresh=False)
            self._before = step
        stops = self._each("on_evaluation" if is_evaluation else "on_record", step, logs)
        return any([_stops(one(step, logs)) for one in self.callbacks if not isinstance(one, Callback)]) or stops

    def ended(self, trained: Trained) -> Trained:
        """Tells the callbacks, and returns the result."""
        self._each("on_end", trained)
        return trained

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
