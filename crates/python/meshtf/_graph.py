"""Graphs: those that Python builds, and those of files."""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import _errors, _native
from ._arrays import array_of, dtype_name, own_dtype
from ._draw import nodes_table, table
from ._lazy import fnmatch, json, np
from ._tensor import Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any


class _Within:
    """What is done before and after the body of ``with``."""

    def __init__(self, enter: Any, leave: Any) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *_: object) -> None:
        self._leave()


class Operation:
    """A node without outputs: a run takes it among its fetches, and runs it for its effect."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        #: Its name.
        self.name = name

    def __repr__(self) -> str:
        return f"<meshtf.Operation {self.name}>"


class Graph:
    """A graph: built node by node, or read by `load`. One that was read can be extended.

    >>> import meshtf
    >>> g = meshtf.Graph()
    >>> x = g.constant(2, name="x")
    >>> with g.device("/job:local/task:0"):
    ...     y1 = x + 300
    >>> with g.device("/job:local/task:1"):
    ...     y2 = x - 66
    >>> y = (y1 + y2).named("y")
    >>> with meshtf.local(g) as m, m.session(g) as s:
    ...     print(s.run("y"))
    238
    """

    def __init__(self, *, seed: int = 0) -> None:
        """`seed` is that of initial values and of dropout."""
        self._native: _native.Graph | None = None
        self._building: _native.Builder | None = _native.Builder(seed)
        self._scope = ""

    @classmethod
    def _read(cls, native: _native.Graph) -> Graph:
        graph = cls.__new__(cls)
        graph._native, graph._building, graph._scope = native, None, ""
        return graph

    @staticmethod
    def _of(graph: Any) -> Graph:
        if not isinstance(graph, Graph):
            raise TypeError(f"expected a meshtf.Graph, such as meshtf.load(path) returns, not {graph!r:.60}")
        return graph

    def _complete(self) -> _native.Graph:
        """The graph so far, checked."""
        if self._native is None:
            self._native = self._builder.finish()
        return self._native

    @property
    def _builder(self) -> _native.Builder:
        if self._building is None:
            self._building = _native.Builder.of(self._complete())
        return self._building

    def _change(self) -> _native.Builder:
        builder = self._builder
        self._native = None
        return builder

    # Nodes.

    def placeholder(self, name: str, dtype: Any = "float32", shape: Sequence[int | None] | None = None) -> Tensor:
        """A tensor that a run feeds. A size of None, or a shape of None, is known to the run alone."""
        if shape is not None and (not hasattr(shape, "__iter__") or any(size is not None and size < 0 for size in shape)):
            raise _errors.InvalidArgumentError(f"the shape of {name} is {shape!r:.60}: expected sizes, and None for an open one")
        sizes = None if shape is None else list(shape)
        return Tensor(self, self._change().placeholder(self._scope + name, dtype_name(dtype), sizes))

    def constant(self, value: Any, dtype: Any = None, *, name: str | None = None) -> Tensor:
        """A constant. Without a dtype, arrays and scalars of numpy keep theirs; Python's numbers are int32 and float32."""
        dtype = own_dtype(value) if dtype is None else dtype_name(dtype)
        array = array_of(value, dtype, f"constant {name}" if name else "the constant")
        return Tensor(self, self._change().constant(self._scope + (name or "Const"), array, dtype))

    def variable(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        *,
        dtype: Any = "float32",
        initial: Any = "glorot_uniform",
        seed: int = 0,
        trainable: bool = True,
    ) -> Tensor:
        """A new variable; its value at the start of a step.

        `initial` is an array, or the name of a rule: zeros, ones, glorot_uniform, glorot_normal, he_uniform, he_normal, or
        ("uniform", low, high), ("normal", mean, stddev), ("truncated_normal", mean, stddev). The shape is the array's if there
        is none. A session gives variables these values if none of them has one.
        """
        dtype = dtype_name(dtype)
        if isinstance(initial, str):
            rule: Any = (initial, [])
        elif isinstance(initial, tuple) and initial and isinstance(initial[0], str):
            rule = (initial[0], [float(number) for number in initial[1:]])
        else:
            rule = array_of(initial, dtype, f"variable {name}")
            shape = rule.shape if shape is None else shape
            if tuple(shape) != rule.shape:
                rule = np.ascontiguousarray(np.broadcast_to(rule, tuple(shape))).reshape(tuple(shape))
        if shape is None:
            raise _errors.InvalidArgumentError(f"variable {name}: state its shape")
        native = self._change().variable(self._scope + name, list(shape), dtype, rule, seed=seed, trainable=trainable)
        return Tensor(self, native)

    def op(self, op: str, /, *inputs: Any, name: str | None = None, **attrs: Any) -> Any:
        """A node of any op of the vocabulary (`meshtf ops` lists it), which is TensorFlow's; its output, or a tuple of several.

        Inputs that are no tensors become constants. The node's name is that of the op unless it is stated. Dtypes and counts
        that follow from the inputs need not be stated. A node without outputs is an `Operation`, which a run takes among its
        fetches.

        >>> import meshtf
        >>> g = meshtf.Graph()
        >>> values, places = g.op("TopKV2", [5.0, 7.0, 6.0], 2)
        >>> with meshtf.local() as m, m.session(g) as s:
        ...     s.run([values, places])
        [array([7., 6.], dtype=float32), array([1, 2], dtype=int32)]
        """
        tensors = [one if isinstance(one, Tensor) else self.constant(one) for one in inputs]
        for one in tensors:
            if one.graph is not self:
                raise _errors.InvalidArgumentError(f"{one.name} is a tensor of another graph")
        given = {key: _attr(value) for key, value in attrs.items()}
        name, made = self._change().node(op, self._scope + (name or op), [one._native for one in tensors], given)
        outputs = tuple(Tensor(self, one) for one in made)
        if not outputs:
            return Operation(name)
        return outputs[0] if len(outputs) == 1 else outputs

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name."""
        tensor = self._native.meant(name)[0] if self._native is not None else name
        return Tensor(self, self._builder.tensor(tensor))

    def handle(self, variable: str) -> Tensor:
        """The handle of a variable, for ops such as AssignAddVariableOp."""
        try:
            return self[f"{variable}/variable"]
        except _errors.Error:
            return self[variable]

    def _numbers(self, numbers: list[Any]) -> Tensor:
        """A vector of int32, some of whose elements may be tensors."""
        if not any(isinstance(one, Tensor) for one in numbers):
            return self.constant(np.array([one.__index__() for one in numbers], dtype=np.int32))
        return self.op("Pack", *(one if isinstance(one, Tensor) else self.constant(one, "int32") for one in numbers))

    def _layer(self, kind: str, name: str, of: Tensor, numbers: Iterable[float], padding: str) -> Tensor:
        native = self._change().layer(kind, self._scope + name, of._native, [float(one) for one in numbers], padding)
        return Tensor(self, native)

    def is_training(self) -> Tensor:
        """Whether the step trains, a bool: steps that do feed ``training`` with True."""
        return Tensor(self, self._change().own("is_training"))

    def global_step(self) -> Tensor:
        """The number of updates so far, before the step: an int64."""
        return Tensor(self, self._change().own("global_step"))

    def device(self, device: str) -> AbstractContextManager[None]:
        """Requests a device for the nodes that are added meanwhile: ``"/job:worker/task:1"``, ``"/device:GPU:0"``, or both parts.

        The parts that it leaves open come from the enclosing one.
        """
        builder = self._builder
        return _Within(lambda: builder.enter_device(device), builder.leave_device)

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Puts ``name/`` before the names of the nodes that are added meanwhile."""
        outer: list[str] = []

        def enter() -> None:
            outer.append(self._scope)
            self._scope = f"{self._scope}{name}/"

        def leave() -> None:
            self._scope = outer.pop()

        return _Within(enter, leave)

    def placed(self, devices: Mapping[str, str]) -> Graph:
        """A copy of the graph whose nodes request other devices: those of a loaded model, for example.

        `devices` has a device for each name of a node, or for a pattern of names: ``*`` is any text, ``?`` any character. The
        first one that fits counts; nodes that none fits keep their request.

        >>> import meshtf, numpy as np
        >>> g = meshtf.Graph()
        >>> y = np.tanh(g.placeholder("x", "float32", [None, 2]).dense(4, name="hidden")).dense(2, name="out").named("y")
        >>> split = g.placed({"hidden*": "/job:worker/task:0", "*": "/job:worker/task:1"})
        >>> with meshtf.local(split) as m:
        ...     m.plan(split, "y", ["x"]).devices["out/MatMul"]
        '/job:worker/task:1/device:CPU:0'
        """
        found: dict[str, str] = {}
        for pattern, device in devices.items():
            fitting = [name for name, _, _ in self.nodes if name == pattern or fnmatch.fnmatchcase(name, pattern)]
            if not fitting:
                raise _errors.InvalidArgumentError(f"no node has the name {pattern}")
            for name in fitting:
                found.setdefault(name, device)
        return Graph._read(self._complete().placed(list(found.items())))

    # Training.

    def gradients(self, of: Tensor | Sequence[Tensor], by: Tensor | Sequence[Tensor]) -> Any:
        """The gradients of the sum of the elements of `of` with respect to `by`: a tensor, or a list for a list.

        >>> import meshtf
        >>> g = meshtf.Graph()
        >>> x = g.placeholder("x", "float32", [])
        >>> slope = g.gradients(x * x, x)
        >>> with meshtf.local() as m, m.session(g) as s:
        ...     print(s.run(slope, {x: 3}))
        6.0
        """
        ys, xs = ([one] if isinstance(one, Tensor) else list(one) for one in (of, by))
        made = self._change().gradients([one._native for one in ys], [one._native for one in xs])
        found = [Tensor(self, one) for one in made]
        return found[0] if isinstance(by, Tensor) else found

    def minimize(
        self,
        loss: Tensor,
        optimizer: str = "adam",
        rate: float = 0.001,
        *,
        clip: float | None = None,
        clip_norm: float | None = None,
        weight_decay: float = 0.0,
        average: float | None = None,
        **numbers: float,
    ) -> Operation:
        """Adds the node that changes the variables so that a loss becomes less, and returns it: ``train/step``.

        The optimizers are sgd, momentum, nesterov, adagrad, adadelta, rmsprop, adam, adamw, ftrl and lion; `numbers` are theirs,
        such as beta1. `clip` limits each element of a gradient, `clip_norm` the norm of all.

        >>> import meshtf
        >>> g = meshtf.Graph()
        >>> w = g.variable("w", [], initial="zeros")
        >>> step = g.minimize((w - 1) ** 2, "sgd", 0.5)
        >>> with meshtf.local() as m, m.session(g) as s:
        ...     s.run(step)
        ...     print(s.variables["w"])
        1.0
        """
        given = [(name, float(value)) for name, value in numbers.items()]
        self._change().minimize(loss._native, optimizer, rate, given, clip, clip_norm, weight_decay, average)
        return Operation("train/step")

    # The graph as a whole.

    @property
    def nodes(self) -> list[tuple[str, str, str]]:
        """The nodes: name, op, requested device."""
        return self._complete().nodes()

    @property
    def inputs(self) -> dict[str, str]:
        """The tensors that a run feeds, by the names of a model's inputs; of other graphs, the placeholders."""
        named = json.loads(self._complete().defaults())["inputs"]
        return dict(named) if named else {name: name for name in self._complete().placeholders()}

    @property
    def outputs(self) -> dict[str, str]:
        """The tensors that a run fetches by default, by the names of a model's outputs."""
        return dict(json.loads(self._complete().defaults())["outputs"])

    @property
    def variables(self) -> list[str]:
        """The names of its variables, as `Session.variables`, `Trained.weights` and the `weights` of `train` have them."""
        return self._complete().variables()

    def to_json(self, fetch: str | Tensor | Iterable[str | Tensor] | None = None) -> str:
        """The graph as graph.json, which `meshtf run` and `meshtf submit` take. `fetch` is what they fetch by default."""
        if isinstance(fetch, (str, Tensor)):
            fetch = [fetch]
        names = None if fetch is None else [one if isinstance(one, str) else one.name for one in fetch]
        return self._complete().to_json(names)

    def to_graphdef(self) -> bytes:
        """The graph as TensorFlow's GraphDef."""
        return self._complete().to_graphdef()

    def save(self, path: str | os.PathLike[str], fetch: str | Tensor | Iterable[str | Tensor] | None = None) -> None:
        """Writes the graph: as graph.json for a name that ends so, as a GraphDef for .pb.

        >>> import meshtf, os, tempfile
        >>> g = meshtf.Graph()
        >>> y = (g.placeholder("x", "int32", []) + 1).named("y")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     g.save(os.path.join(folder, "graph.json"), fetch="y")
        ...     again = meshtf.load(os.path.join(folder, "graph.json"))
        >>> again.outputs
        {'y': 'y'}
        """
        name = os.fspath(path)
        if name.endswith(".json"):
            content = self.to_json(fetch).encode()
        elif name.endswith(".pb"):
            content = self.to_graphdef()
        else:
            raise _errors.InvalidArgumentError(f"{name}: the name of a graph's file ends in .json or .pb")
        with open(name, "wb") as file:
            file.write(content)

    def __reduce__(self) -> Any:
        return loads, (self.to_json().encode(),)

    def __len__(self) -> int:
        return len(self._complete())

    def __repr__(self) -> str:
        inputs = ", ".join(self.inputs) or "no inputs"
        return f"<meshtf.Graph of {len(self)} nodes: {inputs} -> {', '.join(self.outputs) or '?'}>"

    def _repr_html_(self) -> str:
        complete = self._complete()
        rows = []
        for what, named in (("input", self.inputs), ("output", self.outputs)):
            for name, tensor in named.items():
                dtype, shape = complete.meant(tensor)[1], complete.shape(tensor)
                sizes = "?" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
                rows.append([what, name, dtype, sizes])
        named_tensors = table(["", "name", "dtype", "shape"], rows) if rows else ""
        return named_tensors + nodes_table(complete.nodes())


def _attr(value: Any) -> Any:
    """An attribute as the native part takes it: names of dtypes, lists, pairs of an array and its dtype."""
    if isinstance(value, Mapping):
        raise TypeError("an attribute is a number, a string, a dtype, a shape, an array, or a list of these")
    if isinstance(value, np.ndarray):
        dtype = dtype_name(value.dtype)
        return (array_of(value, dtype, "the attribute"), dtype)
    if isinstance(value, (np.dtype, type)):
        return dtype_name(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_attr(one) for one in value]
    return value


def load(path: str | os.PathLike[str], *, signature: str | None = None, trained: Iterable[str] = ()) -> Graph:
    """Reads everything that `meshtf run` takes: graph.json, a GraphDef, a MetaGraph, an ONNX model, the folder of a SavedModel.

    `signature` chooses one of a SavedModel; by default ``serving_default``, or the only one. `trained` names weights that are
    variables, so that `train` changes them: initializers of an ONNX model, or constants of a graph without variables, such as a
    frozen GraphDef. It has names or patterns of them: ``*`` is any text, ``?`` any character, ``[12]`` one of a set. Only floats
    are weights, and of constants those with a dimension.

    InvalidArgumentError if one of `trained` matches no weight that the outputs need.

    >>> import meshtf, tempfile
    >>> g = meshtf.Graph()
    >>> y = (g.placeholder("x", "float32", [None, 2]) @ g.constant([[1.0], [2.0]], name="w")).named("y")
    >>> with tempfile.NamedTemporaryFile(suffix=".pb") as file:
    ...     g.save(file.name)
    ...     meshtf.load(file.name).variables, meshtf.load(file.name, trained=["w*"]).variables
    ([], ['w'])
    """
    return Graph._read(_native.load(os.fspath(path), signature=signature, trained=_patterns(trained)))


def loads(content: bytes | str, *, trained: Iterable[str] = ()) -> Graph:
    """Reads the content of such a file."""
    content = content.encode() if isinstance(content, str) else content
    return Graph._read(_native.read(content, trained=_patterns(trained)))


def _patterns(given: Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)
