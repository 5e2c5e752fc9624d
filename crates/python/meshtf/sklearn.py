"""Estimators of scikit-learn's protocol, whose trainings and predictions are graphs that run on a task.

`MLPClassifier` and `MLPRegressor` take the arguments of scikit-learn's classes of these names, and train as they do: with the
same `random_state`, the weights are the same but for rounding. They differ in that

- a fit and a prediction run on a task: one of this process, the one that `on` names, or that of the job, within
  ``joblib.parallel_backend("meshtf")`` (`meshtf.joblib`), so that a search has several tasks fit at a time;
- `solver` is ``"adam"``, ``"sgd"``, or any other optimizer of `meshtf.Graph.minimize`, and never ``"lbfgs"``;
- the learning rate is constant, and sparse matrices are refused.

>>> import numpy as np
>>> from meshtf.sklearn import MLPClassifier
>>> rng = np.random.default_rng(0)
>>> X = rng.uniform(-1, 1, (200, 2))
>>> model = MLPClassifier((16,), solver="sgd", learning_rate_init=0.5, max_iter=1000, random_state=1)
>>> model.fit(X, np.where(X[:, 0] > X[:, 1], "below", "above")).predict([[0.9, 0.1], [-0.5, 0.5]])
array(['below', 'above'], dtype='<U5')
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real

try:
    from sklearn.utils.validation import validate_data
except ImportError as _error:
    raise ImportError("meshtf.sklearn needs scikit-learn 1.6 or later: pip install -U scikit-learn") from _error

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
    is_classifier,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import check_random_state, shuffle
from sklearn.utils.multiclass import type_of_target, unique_labels
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
)

from . import joblib as _joblib  # noqa: F401 (registers joblib's backend)
from ._mlp import ACTIVATIONS, Net, Training, initial
from ._place import on, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MLPClassifier", "MLPRegressor", "on"]

# The arguments that are numbers: the kind, the least and the greatest value, and whether these are allowed.
_NUMBERS: dict[str, tuple[Any, int, int | None, bool]] = {
    "alpha": (Real, 0, None, True),
    "learning_rate_init": (Real, 0, None, False),
    "max_iter": (Integral, 1, None, True),
    "tol": (Real, 0, None, True),
    "momentum": (Real, 0, 1, True),
    "beta_1": (Real, 0, 1, True),
    "beta_2": (Real, 0, 1, True),
    "epsilon": (Real, 0, None, False),
    "n_iter_no_change": (Real, 1, None, True),
    "validation_fraction": (Real, 0, 1, True),
}


class _MLP(BaseEstimator):
    """The common part of both estimators."""

    if TYPE_CHECKING:
        # What a fit finds.
        loss_curve_: list[float]
        validation_scores_: Any
        best_loss_: Any
        best_validation_score_: Any
        # The optimizer's state after the last training, by its name.
        _slots: dict[str, Any]
        _label_binarizer: Any

    def __init__(
        self,
        hidden_layer_sizes=(100,),
        activation="relu",
        *,
        solver="adam",
        alpha=0.0001,
        batch_size="auto",
        learning_rate_init=0.001,
        max_iter=200,
        shuffle=True,
        random_state=None,
        tol=1e-4,
        verbose=False,
        warm_start=False,
        momentum=0.9,
        nesterovs_momentum=True,
        early_stopping=False,
        validation_fraction=0.1,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        n_iter_no_change=10,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.momentum = momentum
        self.nesterovs_momentum = nesterovs_momentum
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.n_iter_no_change = n_iter_no_change

    def fit(self, X, y, sample_weight=None):
        """Trains the model anew, or with `warm_start` from the weights that it has. Returns itself."""
        return self._fit(X, y, sample_weight, incremental=False)

    def _check(self) -> list[int]:
        """Refuses arguments that are out of range; the sizes of the hidden layers."""
        own = type(self).__name__
        for name, (kind, least, greatest, with_ends) in _NUMBERS.items():
            value = getattr(self, name)
            is_kind = isinstance(value, kind) and not isinstance(value, bool)
            inside = is_kind and ((least <= value if with_ends else least < value) and (greatest is None or value <= greatest))
            if not inside:
                noun = "a whole number" if kind is Integral else "a number"
                limits = f"{'at least' if with_ends else 'more than'} {least}" + (f", at most {greatest}" if greatest else "")
                raise ValueError(f"{name} of {own} is {value!r}; expected {noun}, {limits}")
        if self.activation not in ACTIVATIONS or self.activation == "softmax":
            raise ValueError(f"activation of {own} is {self.activation!r}; expected identity, logistic, tanh or relu")
        if self.batch_size != "auto" and not (isinstance(self.batch_size, Integral) and int(self.batch_size) > 0):
            raise ValueError(f"batch_size of {own} is {self.batch_size!r}; expected 'auto' or a whole number, at least 1")
        if self.solver == "lbfgs":
            raise ValueError(f"solver of {own} is 'lbfgs', which is no optimizer of a graph; expected adam, sgd, rmsprop, …")
        sizes: Any = self.hidden_layer_sizes
        sizes = list(sizes) if hasattr(sizes, "__iter__") else [sizes]
        if not all(isinstance(size, Integral) and int(size) > 0 for size in sizes):
            raise ValueError(f"hidden_layer_sizes must be > 0, got {sizes}: expected whole numbers")
        return [int(size) for size in sizes]

    def _optimizer(self) -> tuple[str, dict[str, float]]:
        """The optimizer of a graph for the solver, and its numbers."""
        if self.solver == "adam":
            return "adam", {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": self.epsilon}
        if self.solver != "sgd":
            return self.solver, {}
        if self.momentum == 0:
            return "sgd", {}
        return "nesterov" if self.nesterovs_momentum else "momentum", {"momentum": self.momentum}

    def _fit(self, X, y, sample_weight, incremental):
        sizes = self._check()
        if self.early_stopping and incremental:
            raise ValueError("partial_fit does not support early_stopping=True")
        anew = not hasattr(self, "coefs_") or not (self.warm_start or incremental)
        X, y = self._validated(X, y, incremental, anew)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=X.dtype)
        y = np.ascontiguousarray(y.reshape(len(y), -1), dtype=X.dtype)
        draw = check_random_state(self.random_state)
        units = [X.shape[1], *sizes, y.shape[1]]
        if anew:
            self._begin(units, draw, X.dtype)
        own = [len(self.coefs_[0]), *(len(one) for one in self.intercepts_)]
        if own != units:
            raise ValueError(f"the model has layers of the sizes {own}, and cannot continue with {units}: fit it anew")
        self._begin_history()
        held_out, examples = None, (X, y, sample_weight)
        if self.early_stopping:
            examples, held_out = self._divided(X, y, sample_weight, draw)
        self._train(examples, held_out, draw, incremental)
        if not all(np.isfinite(one).all() for one in (*self.coefs_, *self.intercepts_)):
            raise ValueError(
                "Solver produced non-finite parameter weights. The input data may contain large values and need to be "
                "preprocessed."
            )
        return self

    def _begin(self, units, draw, dtype) -> None:
        """First weights, and no history."""
        self.n_layers_, self.n_outputs_ = len(units), units[-1]
        self.t_ = 0
        if not is_classifier(self):
            self.out_activation_ = "identity"
        else:
            self.out_activation_ = "softmax" if self._label_binarizer.y_type_ == "multiclass" else "logistic"
        self.coefs_, self.intercepts_ = (list(one) for one in zip(*initial(units, self.activation, draw, dtype), strict=True))
        self._slots = {}
        self.loss_curve_ = []
        self._unimproved = 0
        self.best_loss_ = self.validation_scores_ = self.best_validation_score_ = None

    def _begin_history(self) -> None:
        """What is measured: losses of the training, or scores of examples that are held out. A warm start may change which."""
        if self.early_stopping and self.validation_scores_ is None:
            self.best_loss_, self.validation_scores_, self.best_validation_score_ = None, [], -np.inf
        elif not self.early_stopping and self.best_loss_ is None:
            self.best_loss_, self.validation_scores_, self.best_validation_score_ = np.inf, None, None

    def _divided(self, X, y, sample_weight, draw):
        """The examples of the training, and those that are held out."""
        stratify = y if is_classifier(self) and self.n_outputs_ == 1 else None
        arrays = (X, y) if sample_weight is None else (X, y, sample_weight)
        parts = train_test_split(*arrays, random_state=draw, test_size=self.validation_fraction, stratify=stratify)
        train, held = parts[0::2], parts[1::2]
        if len(held[0]) < 2:
            raise ValueError("The validation set is too small. Increase 'validation_fraction' or the size of your dataset.")
        # The truth in the form of predictions.
        truth = self._answers(held[1])
        weights = (None, None) if sample_weight is None else (train[2], held[2])
        return (train[0], train[1], weights[0]), (held[0], truth, weights[1])

    def _train(self, examples, held_out, draw, incremental) -> None:
        count = len(examples[0])
        batch = min(200, count) if self.batch_size == "auto" else self.batch_size
        if batch > count:
            warnings.warn("Got `batch_size` less than 1 or larger than sample size. It is going to be clipped", stacklevel=4)
            batch = count
        # Those of a training that continues have the dtype of its weights.
        x, y = (np.ascontiguousarray(one, dtype=self.coefs_[0].dtype) for one in examples[:2])
        weights = None if examples[2] is None else np.ascontiguousarray(examples[2], dtype=x.dtype)
        optimizer, numbers = self._optimizer()
        net, here = self._net(), place()
        self.task_, self.n_iter_ = here.task, 0
        best = net
        slots = self._slots.get(optimizer) if incremental else None
        with (
            here.noting(),
            Training(
                here,
                net,
                (x, y, weights),
                batch=int(batch),
                alpha=float(self.alpha),
                optimizer=optimizer,
                rate=float(self.learning_rate_init),
                numbers=numbers,
                slots=slots,
            ) as training,
        ):
            order = np.arange(count, dtype=np.int32)
            try:
                for _ in range(1 if incremental else self.max_iter):
                    if self.shuffle:
                        order = shuffle(order, random_state=draw)
                    self.loss_ = training.epoch(order)
                    self.n_iter_ += 1
                    self.t_ += count
                    self.loss_curve_.append(self.loss_)
                    if self.verbose:
                        print(f"Iteration {self.n_iter_}, loss = {self.loss_:.8f}")
                    if held_out is None:
                        self._note_loss()
                    elif self._note_score(training, held_out):
                        best = training.weights()
                    if self._unimproved > self.n_iter_no_change:
                        self._say_why()
                        break
                else:
                    if not incremental:
                        why = f"Stochastic Optimizer: Maximum iterations ({self.max_iter}) reached and the optimization hasn't"
                        warnings.warn(f"{why} converged yet.", ConvergenceWarning, stacklevel=4)
            except KeyboardInterrupt:
                warnings.warn("Training interrupted by user.", stacklevel=4)
            if held_out is None:
                best = training.weights()
            # Those of another optimizer would not be its own.
            self._slots = {optimizer: training.slots()}
        self.coefs_, self.intercepts_ = best.coefs, best.intercepts

    def _note_loss(self) -> None:
        self._unimproved = self._unimproved + 1 if self.loss_ > self.best_loss_ - self.tol else 0
        self.best_loss_ = min(self.best_loss_, self.loss_)

    def _note_score(self, training, held_out) -> bool:
        """Notes the score of the examples that are held out; whether it is the best."""
        rows, truth, weights = held_out
        outputs = training.outputs(rows)
        measure = accuracy_score if is_classifier(self) else r2_score
        score = measure(truth, self._answers(outputs), sample_weight=weights) if np.isfinite(outputs).all() else np.nan
        self.validation_scores_.append(score)
        if self.verbose:
            print(f"Validation score: {score:f}")
        self._unimproved = self._unimproved + 1 if score < self.best_validation_score_ + self.tol else 0
        is_best = score > self.best_validation_score_
        if is_best:
            self.best_validation_score_ = score
        return bool(is_best)

    def _say_why(self) -> None:
        if self.verbose:
            what = "Validation score" if self.early_stopping else "Training loss"
            print(f"{what} did not improve more than tol={self.tol:f} for {self.n_iter_no_change} consecutive epochs. Stopping.")

    def _net(self) -> Net:
        return Net(self.coefs_, self.intercepts_, self.activation, self.out_activation_)

    def _outputs(self, X) -> Any:
        """The outputs of the last layer for some rows."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return self._net().outputs(place(), X)

    def predict(self, X):
        """The classes, or the values, of some rows."""
        return self._answers(self._outputs(X))


class MLPClassifier(ClassifierMixin, _MLP):
    """A classifier: a perceptron of several layers, which minimizes the cross-entropy.

    The arguments and attributes are those of `sklearn.neural_network.MLPClassifier`, and `task_` is the task of the last fit.
    """

    def _validated(self, X, y, incremental, anew):
        X, y = validate_data(self, X, y, multi_output=True, dtype=(np.float64, np.float32), reset=anew)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if not hasattr(self, "classes_") or not (self.warm_start or incremental):
            self._label_binarizer = LabelBinarizer().fit(y)
            self.classes_ = self._label_binarizer.classes_
        else:
            classes = unique_labels(y)
            if self.warm_start and not incremental and set(classes) != set(self.classes_):
                raise ValueError(
                    "warm_start can only be used where `y` has the same classes as in the previous call to fit. Previously "
                    f"got {self.classes_}, `y` has {classes}"
                )
            if len(np.setdiff1d(classes, self.classes_)):
                raise ValueError(
                    f"`y` has classes not in `self.classes_`. `self.classes_` has {self.classes_}. 'y' has {classes}."
                )
        return X, self._label_binarizer.transform(y)

    def partial_fit(self, X, y, sample_weight=None, classes=None):
        """Trains with some examples once, from the weights and the optimizer's state so far. Returns itself.

        The first call states all `classes`, or its `y` has them as labels of several classes.
        """
        known = getattr(self, "classes_", None)
        if known is None and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if classes is not None:
            stated = unique_labels(classes)
            if known is None:
                self._label_binarizer = LabelBinarizer().fit(y if type_of_target(y).startswith("multilabel") else stated)
                self.classes_ = stated
            elif not np.array_equal(known, stated):
                raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {known!r}")
        return self._fit(X, y, sample_weight, incremental=True)

    def _answers(self, outputs):
        return self._label_binarizer.inverse_transform(outputs.ravel() if outputs.shape[1] == 1 else outputs)

    def predict_proba(self, X):
        """The probability of each class, in the order of `classes_`, for some rows."""
        outputs = self._outputs(X)
        return np.hstack([1 - outputs, outputs]) if self.n_outputs_ == 1 else outputs

    def predict_log_proba(self, X):
        """The logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class MLPRegressor(RegressorMixin, MultiOutputMixin, _MLP):
    """A regressor: a perceptron of several layers, which minimizes half the squared error.

    The arguments and attributes are those of `sklearn.neural_network.MLPRegressor`, and `task_` is the task of the last fit.
    """

    def _validated(self, X, y, incremental, anew):
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=(np.float64, np.float32), reset=anew)
        return X, column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y

    def partial_fit(self, X, y, sample_weight=None):
        """Trains with some examples once, from the weights and the optimizer's state so far. Returns itself."""
        return self._fit(X, y, sample_weight, incremental=True)

    def _answers(self, outputs):
        return outputs.ravel() if outputs.shape[1] == 1 else outputs
