"""Tensors of a graph under construction: operators, methods, and numpy's functions."""

from __future__ import annotations

import operator

from . import _errors
from . import _functions as functions
from ._arrays import dtype_name, numpy_dtype
from ._lazy import np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    from . import _native
    from ._graph import Graph

    Axis: TypeAlias = int | Sequence[int] | None


class Tensor:
    """A tensor of a graph: an output of a node.

    It takes Python's operators, numpy's functions and the methods of numpy's arrays, of which each adds nodes to the graph.
    ``==`` compares identity, so that tensors are keys of feeds; ``numpy.equal`` compares elements.

    >>> import meshtf, numpy as np
    >>> g = meshtf.Graph()
    >>> x = g.placeholder("x", "float32", [None, 2])
    >>> y = np.sqrt((x * x).sum(axis=1)) - 1
    >>> y
    <meshtf.Tensor Sub: float32 [?]>
    >>> with meshtf.local() as m, m.session(g) as s:
    ...     s.run(y, {x: [[3, 4], [0, 2]]})
    array([4., 1.], dtype=float32)
    """

    __slots__ = ("_native", "graph", "name", "__weakref__")

    def __init__(self, graph: Graph, native: _native.Value) -> None:
        self._native = native
        #: The graph that it belongs to.
        self.graph = graph
        #: The name by which a run fetches or feeds it.
        self.name: str = native.name

    @property
    def dtype(self) -> Any:
        """The dtype of its elements, as numpy has it."""
        return numpy_dtype(self._native.dtype)

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The size of each dimension, None if a run determines it; None if a run determines their number."""
        return self._native.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions. InvalidArgumentError if a run determines it."""
        return len(self._sizes("ndim"))

    @property
    def T(self) -> Tensor:
        """The dimensions in reverse order."""
        return self.transpose()

    def named(self, name: str) -> Tensor:
        """The same value under a name; if another node has it, a number is appended."""
        return self.graph.op("Identity", self, name=name)

    def __repr__(self) -> str:
        sizes = self.shape
        shape = "of any shape" if sizes is None else f"[{','.join('?' if one is None else str(one) for one in sizes)}]"
        return f"<meshtf.Tensor {self.name}: {self._native.dtype} {shape}>"

    def __reduce__(self) -> Any:
        # With its graph: tensors that are pickled together belong to the same one.
        return operator.getitem, (self.graph, self.name)

    def __bool__(self) -> bool:
        raise TypeError("the value of a tensor is not known before a run: use numpy.where for a choice in the graph")

    def __iter__(self) -> Any:
        raise TypeError('the elements of a tensor are not known before a run: index it, or use g.op("Unpack", …)')

    def __len__(self) -> int:
        first = (self._sizes("len") or [None])[0]
        if first is None:
            raise TypeError(f"the length of {self.name} is not known before a run")
        return first

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.name} is a tensor of a graph; a session's run returns its value")

    # Operators.

    def _with(self, op: str, other: Any, reflected: bool = False) -> Tensor:
        if not isinstance(other, Tensor):
            if not functions.is_operand(other):
                return NotImplemented
            other = self.graph.constant(other, functions.operand_dtype(other, self._native.dtype), name=None)
        return self.graph.op(op, *((other, self) if reflected else (self, other)))

    def _divided(self, other: Any, reflected: bool = False) -> Tensor:
        """A quotient: float64 for integers, as in numpy."""
        if not isinstance(other, Tensor):
            return self._fractional()._with("RealDiv", other, reflected)
        one, two = self._fractional(), other._fractional()
        # An integer beside a float keeps its dtype, which the op refuses, as all of them do.
        are_integers = one is not self and two is not other
        return one._with("RealDiv", two) if are_integers else self._with("RealDiv", other)

    def __add__(self, other: Any) -> Tensor:
        return self._with("AddV2", other)

    def __radd__(self, other: Any) -> Tensor:
        return self._with("AddV2", other, True)

    def __sub__(self, other: Any) -> Tensor:
        return self._with("Sub", other)

    def __rsub__(self, other: Any) -> Tensor:
        return self._with("Sub", other, True)

    def __mul__(self, other: Any) -> Tensor:
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> Tensor:
        return self._with("Mul", other, True)

    def __truediv__(self, other: Any) -> Tensor:
        return self._divided(other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._divided(other, True)

    def __floordiv__(self, other: Any) -> Tensor:
        return self._with("FloorDiv", other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return self._with("FloorDiv", other, True)

    def __mod__(self, other: Any) -> Tensor:
        return self._with("FloorMod", other)

    def __rmod__(self, other: Any) -> Tensor:
        return self._with("FloorMod", other, True)

    def __pow__(self, other: Any) -> Tensor:
        return self._with("Pow", other)

    def __rpow__(self, other: Any) -> Tensor:
        return self._with("Pow", other, True)

    def __matmul__(self, other: Any) -> Tensor:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return self.graph.constant(other, functions.operand_dtype(other, self._native.dtype)).matmul(self)

    def __neg__(self) -> Tensor:
        return self.graph.op("Neg", self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return self.graph.op("Abs", self)

    def __lt__(self, other: Any) -> Tensor:
        return self._with("Less", other)

    def __le__(self, other: Any) -> Tensor:
        return self._with("LessEqual", other)

    def __gt__(self, other: Any) -> Tensor:
        return self._with("Greater", other)

    def __ge__(self, other: Any) -> Tensor:
        return self._with("GreaterEqual", other)

    def __and__(self, other: Any) -> Tensor:
        return self._with("LogicalAnd" if self._native.dtype == "bool" else "BitwiseAnd", other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Tensor:
        return self._with("LogicalOr" if self._native.dtype == "bool" else "BitwiseOr", other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Tensor:
        return self._with("NotEqual" if self._native.dtype == "bool" else "BitwiseXor", other)

    __rxor__ = __xor__

    def __invert__(self) -> Tensor:
        return self.graph.op("LogicalNot" if self._native.dtype == "bool" else "Invert", self)

    def __getitem__(self, key: Any) -> Tensor:
        return functions.sliced(self, key if isinstance(key, tuple) else (key,))

    # Methods of numpy's arrays.

    def _sizes(self, what: str) -> list[int | None]:
        sizes = self.shape
        if sizes is None:
            raise _errors.InvalidArgumentError(f"{what}: a run determines the number of dimensions of {self.name}")
        return list(sizes)

    def _axes(self, axis: Axis, what: str) -> Tensor:
        if axis is None:
            if self.shape is None:
                rank = self.graph.op("Rank", self)
                zero, one = (self.graph.constant(number, "int32") for number in (0, 1))
                return self.graph.op("Range", zero, rank, one)
            axis = range(len(self.shape))
        axes = [axis] if hasattr(axis, "__index__") else list(axis)  # type: ignore[arg-type]
        return self.graph.constant(np.array(axes, dtype=np.int32))

    def _reduced(self, op: str, axis: Axis, keepdims: bool) -> Tensor:
        return self.graph.op(op, self, self._axes(axis, op), keep_dims=bool(keepdims))

    def _fractional(self) -> Tensor:
        """Integers and truths as float64, as numpy has them where a result has fractions."""
        return self.astype("float64") if self._native.dtype.startswith(("bool", "int", "uint")) else self

    def _of(self, dtype: Any) -> Tensor:
        """Of another dtype, if one is asked for."""
        return self if dtype is None else self.astype(dtype)

    def sum(self, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
        """The sum along some dimensions, or of all elements; computed in `dtype`, or in that of the elements.

        numpy computes sums of int8 to int32 in int64. A graph keeps the dtype, since its ops take operands of one dtype: where a
        sum of int32 may be above 2,147,483,647, use ``dtype="int64"``. Of booleans, it is their number: int64.
        """
        if dtype is None and self._native.dtype == "bool":
            dtype = "int64"
        return self._of(dtype)._reduced("Sum", axis, keepdims)

    def mean(self, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
        """The mean along some dimensions, or of all elements: float64 for integers."""
        return self._of(dtype)._fractional()._reduced("Mean", axis, keepdims)

    def prod(self, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
        """The product along some dimensions, or of all elements: see `sum` for its dtype."""
        return self._of(dtype)._reduced("Prod", axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The greatest element along some dimensions, or of all."""
        return self._reduced("Max", axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The least element along some dimensions, or of all."""
        return self._reduced("Min", axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether all bools along some dimensions are true."""
        return self._reduced("All", axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether any bool along some dimensions is true."""
        return self._reduced("Any", axis, keepdims)

    def var(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The variance along some dimensions, or of all elements: float64 for integers."""
        if self._native.dtype.startswith("complex"):
            raise TypeError(f"the variance of {self.name}: it is complex; a graph has variances of real numbers")
        of = self._fractional()
        centered = of - of.mean(axis, keepdims=True)
        return (centered * centered).mean(axis, keepdims=keepdims)

    def std(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The standard deviation along some dimensions, or of all elements."""
        return self.graph.op("Sqrt", self.var(axis, keepdims))

    def argmax(self, axis: int | None = None) -> Tensor:
        """The index of the greatest element along a dimension, or of all elements in C order: int64."""
        return self._place("ArgMax", axis)

    def argmin(self, axis: int | None = None) -> Tensor:
        """The index of the least element along a dimension, or of all elements in C order: int64."""
        return self._place("ArgMin", axis)

    def _place(self, op: str, axis: int | None) -> Tensor:
        of = self.reshape(-1) if axis is None else self
        return self.graph.op(op, of, self.graph.constant(axis or 0, "int32"))

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Tensor:
        """The sums of the elements up to each one along a dimension: see `sum` for their dtype."""
        of = (self.reshape(-1) if axis is None else self)._of(dtype)
        return self.graph.op("Cumsum", of, self.graph.constant(axis or 0, "int32"))

    def cumprod(self, axis: int | None = None, dtype: Any = None) -> Tensor:
        """The products of the elements up to each one along a dimension: see `sum` for their dtype."""
        of = (self.reshape(-1) if axis is None else self)._of(dtype)
        return self.graph.op("Cumprod", of, self.graph.constant(axis or 0, "int32"))

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1, which is computed from the others."""
        sizes = shape[0] if len(shape) == 1 and not hasattr(shape[0], "__index__") else shape
        if isinstance(sizes, Tensor):
            return self.graph.op("Reshape", self, sizes)
        return self.graph.op("Reshape", self, self.graph.constant(np.array(list(sizes), dtype=np.int32)))

    def ravel(self) -> Tensor:
        """The elements in one dimension, in C order."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Tensor:
        """The dimensions in another order, or in reverse order."""
        order = axes[0] if len(axes) == 1 and not hasattr(axes[0], "__index__") else axes
        if not order:
            order = range(len(self._sizes("transpose")))[::-1]
        count = len(order)
        order = [one % count if -count <= one < count else one for one in order]
        return self.graph.op("Transpose", self, self.graph.constant(np.array(order, dtype=np.int32)))

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two dimensions exchanged."""
        order = list(range(len(self._sizes("swapaxes"))))
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return self.transpose(order)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Without the dimensions of size 1, or without these of them."""
        axes = [] if axis is None else [axis] if hasattr(axis, "__index__") else list(axis)  # type: ignore[arg-type]
        return self.graph.op("Squeeze", self, squeeze_dims=axes)

    def expand_dims(self, axis: int) -> Tensor:
        """With another dimension of size 1."""
        return self.graph.op("ExpandDims", self, self.graph.constant(axis, "int32"))

    def astype(self, dtype: Any) -> Tensor:
        """The elements as another dtype."""
        name = dtype_name(dtype)
        return self if name == self._native.dtype else self.graph.op("Cast", self, DstT=name)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        """The elements, where they are outside of the limits replaced by these."""
        clipped = self if min is None else self._with("Maximum", min)
        return clipped if max is None else clipped._with("Minimum", max)

    def round(self) -> Tensor:
        """The nearest whole numbers; halves become even."""
        return self.graph.op("Round", self)

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """The parts at these indices of a dimension, or the elements at these places of all in C order."""
        of = self.reshape(-1) if axis is None else self
        indices = indices if isinstance(indices, Tensor) else self.graph.constant(indices)
        return self.graph.op("GatherV2", of, indices, self.graph.constant(axis or 0, "int32"))

    def matmul(self, other: Any) -> Tensor:
        """The matrix product, as numpy's: of the last two dimensions, where the others broadcast, and of vectors."""
        if not isinstance(other, Tensor):
            other = self.graph.constant(other, functions.operand_dtype(other, self._native.dtype))
        left, right = self, other
        ranks = [2 if one.shape is None else len(one.shape) for one in (left, right)]
        if 0 in ranks:
            raise _errors.InvalidArgumentError(f"matmul: {(left, right)[ranks.index(0)].name} is a scalar")
        left = left.expand_dims(0) if ranks[0] == 1 else left
        right = right.expand_dims(1) if ranks[1] == 1 else right
        op = "BatchMatMulV2" if max(ranks) > 2 else "MatMul"
        product = self.graph.op(op, left, right)
        product = product.squeeze(-1) if ranks[1] == 1 else product
        return product.squeeze(-1 if ranks[1] == 1 else -2) if ranks[0] == 1 else product

    def dot(self, other: Any) -> Tensor:
        """The product of two vectors or matrices. numpy's of more dimensions is another than `matmul`: einsum computes it."""
        if not isinstance(other, Tensor):
            other = self.graph.constant(other, functions.operand_dtype(other, self._native.dtype))
        for one in (self, other):
            if one.shape is not None and len(one.shape) > 2:
                raise _errors.InvalidArgumentError(
                    f"dot: {one.name} has {len(one.shape)} dimensions; of more than 2, matmul and einsum have products"
                )
        return self.matmul(other)

    # Functions of neural networks.

    def relu(self) -> Tensor:
        """Each element, or 0 if it is negative."""
        return self.graph.op("Relu", self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + e^-x) of each element."""
        return self.graph.op("Sigmoid", self)

    def softmax(self) -> Tensor:
        """e^x of each element, divided by their sum along the last dimension."""
        return self.graph.op("Softmax", self)

    def log_softmax(self) -> Tensor:
        """The logarithm of `softmax`."""
        return self.graph.op("LogSoftmax", self)

    def stop_gradient(self) -> Tensor:
        """The same, through which no gradient passes."""
        return self.graph.op("StopGradient", self)

    def sparse_cross_entropy(self, classes: Any) -> Tensor:
        """The cross-entropy of these logits [n, classes] and the true classes [n]: [n]."""
        classes = classes if isinstance(classes, Tensor) else self.graph.constant(classes)
        return self.graph.op("SparseSoftmaxCrossEntropyWithLogits", self, classes)[0]

    def accuracy(self, classes: Tensor) -> Tensor:
        """The share of rows of these logits whose greatest element is the true class: a float32 scalar."""
        return self.graph.op("Equal", self.argmax(-1), classes.astype("int64")).astype("float32").mean()

    # Layers: functions with variables, below the layer's name.

    def _layer(self, kind: str, name: str, numbers: Iterable[float] = (), padding: str = "same") -> Tensor:
        return self.graph._layer(kind, name, self, numbers, padding)

    def dense(self, units: int, *, name: str = "dense") -> Tensor:
        """x @ kernel + bias along the last dimension; variables NAME/kernel and NAME/bias."""
        return self._layer("dense", name, [units])

    def conv(self, filters: int, size: int, *, stride: int = 1, padding: str = "same", name: str = "conv") -> Tensor:
        """A convolution of images [n, height, width, channels]; variables NAME/kernel and NAME/bias."""
        return self._layer("conv", name, [filters, size, stride], padding)

    def max_pool(self, size: int, *, stride: int | None = None, padding: str = "valid") -> Tensor:
        """The greatest element of each window of images [n, height, width, channels]."""
        return self._layer("max_pool", "", [size, stride or size], padding)

    def avg_pool(self, size: int, *, stride: int | None = None, padding: str = "valid") -> Tensor:
        """The mean of each window of images [n, height, width, channels]."""
        return self._layer("avg_pool", "", [size, stride or size], padding)

    def flatten(self) -> Tensor:
        """All dimensions but the first merged into one."""
        return self._layer("flatten", "")

    def layer_norm(self, *, name: str = "layer_norm") -> Tensor:
        """Normalises along the last dimension; variables NAME/gamma and NAME/beta."""
        return self._layer("layer_norm", name)

    def batch_norm(self, *, name: str = "batch_norm") -> Tensor:
        """Normalises each feature over the batch in steps that train, else by averages; variables below NAME/."""
        return self._layer("batch_norm", name)

    def dropout(self, share: float, *, name: str = "dropout") -> Tensor:
        """In steps that train, sets that share of the elements to 0 and scales the others up."""
        return self._layer("dropout", name, [share])

    def lstm(self, units: int, *, name: str = "lstm") -> Tensor:
        """The outputs of an LSTM over sequences [n, time, features]; variables below NAME/."""
        return self._layer("lstm", name, [units])

    def gru(self, units: int, *, name: str = "gru") -> Tensor:
        """The outputs of a GRU over sequences [n, time, features]; variables below NAME/."""
        return self._layer("gru", name, [units])

    def self_attention(self, heads: int, *, causal: bool = False, name: str = "attention") -> Tensor:
        """Attention of sequences [n, time, features] to themselves; variables below NAME/."""
        return self._layer("self_attention", name, [heads, int(causal)])

    def embedding(self, rows: int, width: int, *, name: str = "embedding") -> Tensor:
        """The rows of a table for these indices; variable NAME/table."""
        return self._layer("embedding", name, [rows, width])

    # numpy's protocols.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = ufunc.__name__
        if method != "__call__" or options or name not in functions.ELEMENTWISE and name not in functions.OPERATORS:
            return NotImplemented
        if name in functions.OPERATORS:
            own, reflected = functions.OPERATORS[name]
            left, right = inputs
            return getattr(left, own)(right) if isinstance(left, Tensor) else getattr(right, reflected)(left)
        dtype = self._native.dtype
        tensors = [
            one if isinstance(one, Tensor) else self.graph.constant(one, functions.operand_dtype(one, dtype)) for one in inputs
        ]
        op = functions.ELEMENTWISE[name]
        if dtype == "bool" and op.startswith("Bitwise"):
            op = op.replace("BitwiseXor", "NotEqual").replace("Bitwise", "Logical")
        elif dtype == "bool" and op == "Invert":
            op = "LogicalNot"
        return self.graph.op(op, *tensors)

    def __array_function__(self, function: Any, types: Any, args: tuple, options: dict) -> Any:
        name = function.__name__
        own = functions.ARRAYS.get(name)
        if own is not None:
            return own(self, *args, **options)
        method = functions.METHODS.get(name)
        if method is not None and args and isinstance(args[0], Tensor):
            return getattr(args[0], method)(*args[1:], **options)
        return NotImplemented
