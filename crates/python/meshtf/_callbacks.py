"""Followers of a training."""

from __future__ import annotations

import math

from . import _errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._train import Trained


class Callback:
    """Follows a training: `train` calls these methods as it proceeds. The training stops if one of the first three returns True.

    >>> import meshtf, numpy as np
    >>> class Print(meshtf.Callback):
    ...     def on_evaluation(self, step, logs):
    ...         print(step, sorted(logs))
    ...     def on_end(self, trained):
    ...         print(trained.how)
    >>> g = meshtf.Graph()
    >>> x, y = g.placeholder("x", "float32", [None, 1]), g.placeholder("y", "float32", [None, 1])
    >>> loss = ((x.dense(1) - y) ** 2).mean().named("loss")
    >>> xs = np.linspace(-1, 1, 32, dtype="float32").reshape(32, 1)
    >>> done = meshtf.train(g, {"x": xs, "y": 3 * xs}, batch=8, epochs=2, validation=0.25, callbacks=[Print()])
    3 ['val_loss']
    6 ['val_loss']
    done
    """

    def on_begin(self, start: int, steps: int) -> Any:
        """The first step is about to run: `start` of all `steps` are done already, if the training continues."""

    def on_record(self, step: int, logs: dict[str, float]) -> Any:
        """A step was recorded: the loss and the metrics of its batch."""

    def on_evaluation(self, step: int, logs: dict[str, float]) -> Any:
        """Examples that are not trained with were evaluated: ``"val_loss"``, and ``"val_"`` before the names of the metrics."""

    def on_save(self, step: int, path: str) -> None:
        """The state was saved in a file."""

    def on_note(self, text: str) -> None:
        """A remark, such as the state from which the training continues."""

    def on_end(self, trained: Trained) -> None:
        """The training has ended without an error."""


class EarlyStopping(Callback):
    """Stops a training once a value has not improved by more than `min_delta` in `patience` records or evaluations of it.

    `monitor` is ``"loss"``, ``"val_loss"``, or a metric, with ``"val_"`` before its name for that of evaluations; `mode` is
    ``"min"`` or ``"max"``. `best` is the best value, and `best_step` its step. Steps that have begun are finished, for about half
    a second. The argument `patience` of `train` watches evaluations, and ends at the very one.

    >>> import meshtf
    >>> stop = meshtf.EarlyStopping("loss", patience=2)
    >>> [stop.on_record(step, {"loss": loss}) for step, loss in enumerate([3.0, 2.0, 2.5, 2.1], 1)]
    [False, False, False, True]
    >>> stop.best, stop.best_step
    (2.0, 2)
    """

    def __init__(self, monitor: str = "val_loss", *, patience: int = 0, min_delta: float = 0.0, mode: str = "min") -> None:
        if mode not in ("min", "max"):
            raise _errors.InvalidArgumentError(f'mode is {mode!r}; expected "min" or "max"')
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, min_delta, mode
        self.best: float | None = None
        self.best_step: int | None = None
        self._worse = 0

    def on_begin(self, start: int, steps: int) -> None:
        """Forgets an earlier training."""
        self.best, self.best_step, self._worse = None, None, 0

    def on_record(self, step: int, logs: dict[str, float]) -> bool:
        """Whether the value is worse for too long."""
        if self.monitor.startswith("val_") or self.monitor not in logs:
            self._check(logs, self.monitor.startswith("val_"))
            return False
        return self._judge(step, logs[self.monitor])

    def on_evaluation(self, step: int, logs: dict[str, float]) -> bool:
        """Whether the value is worse for too long."""
        if not self.monitor.startswith("val_"):
            return False
        self._check(logs, False)
        return self._judge(step, logs[self.monitor])

    def _check(self, logs: dict[str, float], is_other: bool) -> None:
        if not is_other and self.monitor not in logs:
            raise _errors.InvalidArgumentError(f"EarlyStopping: there is no {self.monitor}; there are {', '.join(logs)}")

    def _judge(self, step: int, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        improved = not math.isnan(value) and (self.best is None or sign * (value - self.best) > self.min_delta)
        if improved:
            self.best, self.best_step, self._worse = value, step, 0
        else:
            self._worse += 1
        return self._worse >= max(self.patience, 1)
