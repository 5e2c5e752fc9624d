"""numpy's functions as ops of a graph."""

from __future__ import annotations

from . import _errors
from ._arrays import numpy_dtype
from ._lazy import np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ._tensor import Axis, Tensor

# numpy's functions of single elements, by the ops that compute them.
ELEMENTWISE = {
    "absolute": "Abs",
    "add": "AddV2",
    "arccos": "Acos",
    "arccosh": "Acosh",
    "arcsin": "Asin",
    "arcsinh": "Asinh",
    "arctan": "Atan",
    "arctan2": "Atan2",
    "arctanh": "Atanh",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "ceil": "Ceil",
    "conjugate": "Conj",
    "cos": "Cos",
    "cosh": "Cosh",
    "equal": "Equal",
    "exp": "Exp",
    "expm1": "Expm1",
    "fabs": "Abs",
    "floor": "Floor",
    "floor_divide": "FloorDiv",
    "greater": "Greater",
    "greater_equal": "GreaterEqual",
    "invert": "Invert",
    "isfinite": "IsFinite",
    "isinf": "IsInf",
    "isnan": "IsNan",
    "left_shift": "LeftShift",
    "less": "Less",
    "less_equal": "LessEqual",
    "log": "Log",
    "log1p": "Log1p",
    "logical_and": "LogicalAnd",
    "logical_not": "LogicalNot",
    "logical_or": "LogicalOr",
    "maximum": "Maximum",
    "minimum": "Minimum",
    "multiply": "Mul",
    "negative": "Neg",
    "nextafter": "NextAfter",
    "not_equal": "NotEqual",
    "positive": "Identity",
    "power": "Pow",
    "reciprocal": "Reciprocal",
    "remainder": "FloorMod",
    "right_shift": "RightShift",
    "rint": "Rint",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "square": "Square",
    "subtract": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
}
# Those that are operators of more than one op. The name of divide before numpy 1.23 is its second.
OPERATORS = {
    "divide": ("__truediv__", "__rtruediv__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "true_divide": ("__truediv__", "__rtruediv__"),
}
# numpy's functions of arrays that are methods.
METHODS = {
    name: name
    for name in (
        "all any argmax argmin clip cumprod cumsum expand_dims max mean min prod reshape round std sum swapaxes take transpose "
        "var"
    ).split()
} | {"amax": "max", "amin": "min", "around": "round", "permute_dims": "transpose", "round_": "round"}


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of a graph."""
    return hasattr(value, "graph") and hasattr(value, "_native")


def is_operand(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, str, bytes, list, tuple)) or hasattr(value, "__array__")


def operand_dtype(value: Any, beside: str) -> str:
    """The dtype of a value beside a tensor: the tensor's, if the value can have it without a loss."""
    if beside in ("string", "bool", "bfloat16"):
        return beside
    kind = np.asarray(value).dtype.kind
    if kind == "f" and numpy_dtype(beside).kind in "ui":
        raise _errors.InvalidArgumentError(
            f'a number with a fraction beside a tensor of {beside}: convert the tensor with .astype("float32")'
        )
    return beside


def _is_mask(key: Any) -> bool:
    if is_tensor(key):
        return key._native.dtype == "bool"
    return not isinstance(key, (slice, int)) and key is not None and key is not Ellipsis and np.asarray(key).dtype.kind == "b"


def sliced(tensor: Tensor, keys: tuple) -> Tensor:
    """Indices, slices, ``...`` and None as a StridedSlice; a tensor or a list of indices as a gather."""
    graph = tensor.graph
    if any(_is_mask(key) for key in keys):
        raise TypeError(
            'a tensor is not indexed by booleans, whose number of elements only a run knows: take the places of g.op("Where", mask)'
        )
    if len(keys) == 1 and (isinstance(keys[0], list) or is_tensor(keys[0]) or hasattr(keys[0], "__array__") and np.ndim(keys[0])):
        return tensor.take(keys[0], 0)
    begin: list[Any] = []
    end: list[Any] = []
    strides: list[int] = []
    masks: dict[str, Any] = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
    for i, key in enumerate(keys):
        bit = 1 << i
        first: Any = 0
        last: Any = 0
        stride = 1
        if key is Ellipsis:
            masks["ellipsis_mask"] |= bit
        elif key is None:
            masks["new_axis_mask"] |= bit
        elif isinstance(key, slice):
            stride = 1 if key.step is None else key.step
            if key.start is None:
                masks["begin_mask"] |= bit
            if key.stop is None:
                masks["end_mask"] |= bit
            first, last = key.start or 0, key.stop or 0
        elif is_tensor(key) or hasattr(key, "__index__") and not isinstance(key, bool):
            masks["shrink_axis_mask"] |= bit
            first = key
            last = key + 1 if is_tensor(key) else key.__index__() + 1
        else:
            raise TypeError(f"a tensor is indexed by integers, slices, ... and None, not by {key!r:.60}")
        begin.append(first)
        end.append(last)
        strides.append(stride)
    parts = [graph._numbers(part) for part in (begin, end, strides)]
    return graph.op("StridedSlice", tensor, *parts, **masks)


# Functions of numpy that are no methods. The first argument is a tensor among the others.


def _values(own: Tensor, values: Iterable[Any]) -> list[Tensor]:
    dtype = own._native.dtype
    return [one if is_tensor(one) else own.graph.constant(one, operand_dtype(one, dtype)) for one in values]


def _concatenate(own: Tensor, arrays: Sequence[Any], axis: int = 0) -> Tensor:
    parts = _values(own, arrays)
    return own.graph.op("ConcatV2", *parts, own.graph.constant(axis, "int32"))


def _stack(own: Tensor, arrays: Sequence[Any], axis: int = 0) -> Tensor:
    parts = _values(own, arrays)
    return own.graph.op("Pack", *parts, axis=axis)


def _where(own: Tensor, condition: Any, *both: Any) -> Tensor:
    graph = own.graph
    condition = condition if is_tensor(condition) else graph.constant(condition, "bool")
    if not both:
        raise TypeError('numpy.where of a tensor takes a condition and two values; g.op("Where", condition) has places')
    among = next((one for one in both if is_tensor(one)), None)
    values = _values(among, both) if among is not None else [graph.constant(one, "float32") for one in both]
    return graph.op("SelectV2", condition, *values)


def _broadcast_to(own: Tensor, array: Tensor, shape: Any) -> Tensor:
    sizes = [shape] if hasattr(shape, "__index__") else list(shape)
    return own.graph.op("BroadcastTo", array, own.graph.constant(np.array(sizes, dtype=np.int32)))


def _tile(own: Tensor, array: Tensor, reps: Any) -> Tensor:
    counts = [reps] if hasattr(reps, "__index__") else list(reps)
    rank = len(array._sizes("tile"))
    counts = [1] * (rank - len(counts)) + counts
    for _ in range(len(counts) - rank):
        array = array.expand_dims(0)
    return own.graph.op("Tile", array, own.graph.constant(np.array(counts, dtype=np.int32)))


def _einsum(own: Tensor, equation: str, *arrays: Any) -> Tensor:
    parts = _values(own, arrays)
    return own.graph.op("Einsum", *parts, equation=equation)


def _pad(own: Tensor, array: Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Tensor:
    if mode != "constant":
        raise TypeError('numpy.pad of a tensor has the mode "constant" alone; g.op("MirrorPad", …) has others')
    widths = np.broadcast_to(np.asarray(pad_width, dtype=np.int32), (array.ndim, 2))
    value = own.graph.constant(constant_values, array._native.dtype)
    return own.graph.op("PadV2", array, own.graph.constant(np.ascontiguousarray(widths)), value)


def _split(own: Tensor, array: Tensor, indices_or_sections: int, axis: int = 0) -> list[Tensor]:
    if not hasattr(indices_or_sections, "__index__"):
        raise TypeError("numpy.split of a tensor takes a number of equal parts; slices have others")
    place = own.graph.constant(axis, "int32")
    parts = own.graph.op("Split", place, array, num_split=indices_or_sections.__index__())
    return [parts] if is_tensor(parts) else list(parts)


def _norm(own: Tensor, x: Tensor, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    along = 0 if axis is None else 1 if hasattr(axis, "__index__") else len(axis)  # type: ignore[arg-type]
    if axis is None and ord is not None:
        along = x.ndim
    if along > 2:
        raise TypeError(f"numpy.linalg.norm: a norm is of one or two dimensions, not of {along}")
    # Without an order and an axis: of all elements.
    known = (None,) if along == 0 else (None, 1, 2, np.inf) if along == 1 else (None, "fro")
    if ord not in known:
        kind = "two dimensions has the order 'fro'" if along == 2 else "one dimension has the orders 1, 2 and inf"
        raise TypeError(f"numpy.linalg.norm of {x.name} along {kind}, not {ord!r}")
    if x._native.dtype.startswith("complex"):
        raise TypeError(f"numpy.linalg.norm of {x.name}: it is complex; a graph has norms of real numbers")
    x = x._fractional()
    if ord == 1:
        return abs(x).sum(axis, keepdims=keepdims)
    if ord == np.inf:
        return abs(x).max(axis, keepdims)
    return own.graph.op("Sqrt", (x * x).sum(axis, keepdims=keepdims))


#: numpy's functions of arrays that are no methods, by name.
ARRAYS: dict[str, Callable[..., Any]] = {
    "concatenate": _concatenate,
    "stack": _stack,
    "where": _where,
    "broadcast_to": _broadcast_to,
    "tile": _tile,
    "einsum": _einsum,
    "pad": _pad,
    "split": _split,
    "norm": _norm,
    "dot": lambda own, a, b: _values(own, [a])[0].dot(b),
    "outer": lambda own, a, b: _values(own, [a])[0].reshape(-1, 1) * _values(own, [b])[0].reshape(1, -1),
    "ravel": lambda own, a: a.ravel(),
    "zeros_like": lambda own, a: own.graph.op("ZerosLike", a),
    "ones_like": lambda own, a: own.graph.op("OnesLike", a),
    "shape": lambda own, a: a.shape,
    "ndim": lambda own, a: a.ndim,
    "size": lambda own, a: own.graph.op("Size", a),
    "squeeze": lambda own, a, axis=None: a.squeeze(axis),
    "flip": lambda own, a, axis=None: own.graph.op("ReverseV2", a, a._axes(axis, "flip")),
    "roll": lambda own, a, shift, axis: own.graph.op(
        "Roll", a, own.graph.constant(shift, "int32"), own.graph.constant(axis, "int32")
    ),
}
