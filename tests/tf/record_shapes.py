"""Records what TensorFlow infers of the shapes of one node of every op: tests/data/shapes/shapes.json.

Run with the Python of tests/tf/requirements.txt, from the root of the tree. The file is a GraphDef in JSON, a node a line, and
for each node the shapes of its outputs: a list with null for an unknown size, or null if not even the rank is known.
"""

import itertools
import json
import os
import re

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

tf1 = tf.compat.v1


class Raw:
    """tf.raw_ops, whose ops answer None if TensorFlow makes no new nodes of them any more."""

    def __getattr__(self, op):
        def make(**arguments):
            if arguments.get("handle", "") is None:
                return None
            try:
                return getattr(tf.raw_ops, op)(**arguments)
            except NotImplementedError:
                return None

        return make


raw = Raw()
tf1.disable_eager_execution()
tf1.disable_control_flow_v2()
graph = tf1.get_default_graph()

N = None
FILE = "tests/data/shapes/shapes.json"
TABLE = "src/graph/op/table.txt"


made_before = {}


def p(shape=None, dtype="float32"):
    """A tensor of which this shape is known."""
    key = ("p", str(shape), dtype)
    if key not in made_before:
        made_before[key] = tf1.placeholder(dtype, shape, name="p")
    return made_before[key]


def c(value, dtype="int32"):
    key = ("c", str(value), dtype)
    if key not in made_before:
        made_before[key] = tf.constant(value, dtype, name="c")
    return made_before[key]


def some(value):
    """A vector of the values, of which those that are None are unknown sizes."""
    parts = [c(v) if v is not None else p([], "int32") for v in value]
    return raw.Pack(values=parts, axis=0)


def every(op, *choices, **attrs):
    """The op over all combinations of its inputs, by the names of its arguments."""
    names = [name for name, _ in choices]
    for inputs in itertools.product(*(options for _, options in choices)):
        made = {name: make() for name, make in zip(names, inputs)}
        try:
            getattr(raw, op)(**made, **attrs)
        except ValueError as error:
            # Shapes that do not fit make no node.
            if "must be rank" not in str(error) and "Dimension" not in str(error) and "hape" not in str(error):
                raise


def f(*shapes, dtype="float32"):
    return [lambda shape=shape: p(shape, dtype) for shape in shapes]


def elementwise():
    shapes = ([N, 3], N)
    for op in ("Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Erf Erfc Exp Expm1 Floor IsFinite IsInf IsNan Lgamma"
               " Erfinv Ndtri Log Log1p Neg OnesLike ZerosLike Reciprocal Inv Rint Round Rsqrt Sigmoid Sign Sin Sinh Sqrt Square Tan Tanh"
               " Abs").split():
        every(op, ("x", f(*shapes)))
    for op in "Elu LeakyRelu Relu Relu6 Selu Softplus Softsign".split():
        every(op, ("features", f(*shapes)))
    every("PopulationCount", ("x", f(*shapes, dtype="int32"))), every("Bucketize", ("input", f(*shapes)), boundaries=[0.0])
    every("Invert", ("x", f(*shapes, dtype="int32")))
    every("LogicalNot", ("x", f(*shapes, dtype="bool")))
    both = ([2, 3], [N, 3], N)
    for op in "EluGrad SeluGrad".split():
        every(op, ("gradients", f(*both)), ("outputs", f(*both)))
    for op in "LeakyReluGrad ReluGrad Relu6Grad SoftplusGrad SoftsignGrad".split():
        every(op, ("gradients", f(*both)), ("features", f(*both)))
    for op in "RsqrtGrad SigmoidGrad SqrtGrad TanhGrad ReciprocalGrad InvGrad".split():
        every(op, ("y", f(*both)), ("dy", f(*both)))
    pairs = ([2, 3], [3], [N, 3], [1], [2, 1], [N, N], N, [], [1, N])
    every("AddV2", ("x", f(*pairs)), ("y", f(*pairs)))
    pairs = ([2, 3], [N, 1], N, [], [N, N])
    for op in ("Add Sub Mul Div DivNoNan FloorDiv FloorMod Greater GreaterEqual Less LessEqual Maximum Minimum MulNoNan"
               " Pow RealDiv SquaredDifference Xdivy Xlog1py Xlogy Equal NotEqual Mod").split():
        every(op, ("x", f(*pairs)), ("y", f(*pairs)))
    for op in "Igamma IgammaGradA Igammac NextAfter".split():
        every(op, *zip(("x1", "x2") if op == "NextAfter" else ("a", "x"), (f(*pairs[:3]), f(*pairs))))
    every("RandomGammaGrad", ("alpha", f(*pairs[:3])), ("sample", f(*pairs)))
    every("Polygamma", ("a", f(*pairs[:3])), ("x", f(*pairs))), every("Zeta", ("x", f(*pairs[:3])), ("q", f(*pairs)))
    every("Betainc", *((name, f([], [2, 3], [N, 3], N)) for name in "abx")), every("Cross", ("a", f([2, 3], [N, 3], N)), ("b", f([2, 3], N)))
    for op in "BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift TruncateDiv TruncateMod".split():
        every(op, ("x", f(*pairs[:3], dtype="int32")), ("y", f(*pairs, dtype="int32")))
    for op in "LogicalAnd LogicalOr".split():
        every(op, ("x", f(*pairs[:3], dtype="bool")), ("y", f(*pairs, dtype="bool")))
    every("Atan2", ("y", f(*pairs)), ("x", f(*pairs)))
    for op in "Equal NotEqual".split():
        every(op, ("x", f(*pairs)), ("y", f(*pairs)), incompatible_shape_error=False)
    for shapes in ([[2, 3]] * 3, [[N, 3], [2, N], N], [N, N], [[2]]):
        raw.AddN(inputs=[p(shape) for shape in shapes])
    three = ([2, 3], [N, 3], N, [])
    every("Select", ("condition", f([2, 3], [2], [], N, dtype="bool")), ("x", f(*three)), ("y", f(*three)))
    every("SelectV2", ("condition", f([2, 3], [3], [], N, [N, 1], dtype="bool")), ("t", f(*three)), ("e", f(*three)))
    for dtype in ("int32", "int64", "bool"):
        every("Cast", ("x", f(*three)), DstT=dtype)
    raw.CheckNumerics(tensor=p([2, N]), message="x")
    for op in "StringLower StringUpper StringLength".split():
        every(op, ("input", f(*three, dtype="string")))
    raw.AsString(input=p([2, N]))
    raw.StringToNumber(string_tensor=p([2, N], "string"))
    raw.StringToHashBucketFast(input=p([2, N], "string"), num_buckets=3)
    raw.StaticRegexFullMatch(input=p([2, N], "string"), pattern="a")
    raw.RegexFullMatch(input=p([2, N], "string"), pattern=c("a", "string"))
    every("Substr", ("input", f([2, 3], [N], N, dtype="string")), ("pos", f([], [3], N, dtype="int32")),
          ("len", f([], [3], N, dtype="int32")))
    for shapes in ([[2], []], [[], []], [[N], [3]], [N, []], [[2, N], [2, 3]]):
        raw.StringJoin(inputs=[p(shape, "string") for shape in shapes])
    raw.RandomShuffle(value=p([N, 3]))
    raw.Print(input=p([N, 3]), data=[p([])])
    for op in "Cumsum Cumprod".split():
        every(op, ("x", f(*three)), ("axis", [lambda: c(0)]))
    raw.ReverseV2(tensor=p([N, 3]), axis=c([0]))
    raw.Reverse(tensor=p([N, 3]), dims=c([True, False], "bool"))
    raw.ReverseSequence(input=p([N, 3, 4]), seq_lengths=p([N], "int32"), seq_dim=1, batch_dim=0)
    raw.Roll(input=p([N, 3]), shift=c(1), axis=c(0))
    for op in "Softmax LogSoftmax".split():
        every(op, ("logits", f([2, 3], [N, 4], N)))
    raw.MatrixBandPart(input=p([N, 3, 3]), num_lower=c(0, "int64"), num_upper=c(0, "int64"))
    raw.BatchMatrixBandPart(input=p([N, 3, 3]), num_lower=c(0, "int64"), num_upper=c(0, "int64"))
    for op in "TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate".split():
        getattr(raw, op)(tensor=p([N, 3]), indices=p([4, 1], "int32"), updates=p([4, 3]))
        getattr(raw, op)(tensor=p(N), indices=p([4, 1], "int32"), updates=p([4, 3]))
    for format in ("NHWC", "NCHW"):
        every("BiasAdd", ("value", f([2, 3], [N, N], [2, 3, 4, 5], [N, N, N, N], N)), ("bias", f([3], [5], [N])),
              data_format=format)
        every("BiasAddGrad", ("out_backprop", f([2, 3], [N, N], [2, 3, 4, 5], N)), data_format=format)
    raw.BiasAddV1(value=p([N, 3]), bias=p([3]))


def complex_numbers():
    some_shapes = ([2, N], N)
    for op in "Real Imag Angle Conj".split():
        every(op, ("input", f(*some_shapes, dtype="complex64")))
    every("ComplexAbs", ("x", f(*some_shapes, dtype="complex64")))
    pairs = ([2, 3], [3], [N, 1], N, [])
    every("Complex", ("real", f(*pairs)), ("imag", f(*pairs)))
    for order in (c([1, 0]), p([2], "int32"), p([N], "int32")):
        every("ConjugateTranspose", ("x", f([2, N], N, dtype="complex64")), ("perm", [lambda order=order: order]))
    volumes = ([2, N, 4, 5], [3, 4, 5], N)
    for i, suffix in enumerate(("", "2D", "3D")):
        every(f"FFT{suffix}", ("input", f(*volumes, dtype="complex64"))), every(f"IFFT{suffix}", ("input", f(*volumes, dtype="complex64")))
        lengths = [lambda: c([3, 6, 7][:i + 1]), lambda: c([2, 0, 0][:i + 1]), lambda: p([i + 1], "int32"), lambda: p(N, "int32")]
        every(f"RFFT{suffix}", ("input", f(*volumes)), ("fft_length", lengths))
        every(f"IRFFT{suffix}", ("input", f(*volumes, dtype="complex64")), ("fft_length", lengths))


def forwarding():
    for op in "Identity Snapshot StopGradient PreventGradient".split():
        every(op, ("input", f([2, N], N)))
    raw.IdentityN(input=[p([2, N]), p(N)])
    raw.Switch(data=p([2, N]), pred=p([], "bool"))
    for shapes in ([[2, 3], [2, 3]], [[2, 3], [N, 3]], [[2], [2, 3]], [N, [2]], [[2, 4], [2, 3]]):
        raw.Merge(inputs=[p(shape) for shape in shapes])
    raw.PlaceholderWithDefault(input=c([1, 2]), shape=[N])
    raw.PlaceholderWithDefault(input=p([N]), shape=[2])
    raw.PlaceholderV2(dtype="float32", shape=[2])
    raw.Placeholder(dtype="float32", shape=[2, 3])

    def body(i, x):
        return i + 1, x * 2.0

    tf1.while_loop(lambda i, x: i < 3, body, (c(0), p([2, N])))
    old = raw.VariableV2(shape=[2], dtype="float32")
    raw.RefIdentity(input=old)
    raw.RefSwitch(data=old, pred=p([], "bool"))
    raw.RefMerge(inputs=[old, old])
    inside = raw.RefEnter(data=old, frame_name="loop")
    raw.RefExit(data=raw.RefNextIteration(data=inside))
    raw.NoOp()
    raw.ControlTrigger()


def making():
    sizes = [lambda: c([2, 3]), lambda: p([2], "int32"), lambda: p([N], "int32"), lambda: raw.Shape(input=p([N, 4])),
             lambda: some([5, N]), lambda: raw.Shape(input=p(N))]
    every("Fill", ("dims", sizes), ("value", [lambda: p([])]))
    every("BroadcastTo", ("input", f([1])), ("shape", sizes))
    for op in "RandomUniform RandomStandardNormal TruncatedNormal".split():
        every(op, ("shape", sizes), dtype="float32")
    for op in ("RandomPoisson", "RandomPoissonV2", "RandomGamma"):
        every(op, ("shape", sizes), ("alpha" if op == "RandomGamma" else "rate", f([3], [N, 2], N)))
    between = [(name, f([])) for name in ("means", "stdevs", "minvals", "maxvals")]
    every("ParameterizedTruncatedNormal", ("shape", sizes), *between)
    every("RandomUniformInt", ("shape", sizes), ("minval", [lambda: c(0)]), ("maxval", [lambda: c(9)]))
    seed = [lambda: c([1, 2])]
    for op in "StatelessRandomNormal StatelessRandomUniform StatelessTruncatedNormal".split():
        every(op, ("shape", sizes), ("seed", seed))
    every("StatelessRandomUniformFullInt", ("shape", sizes), ("seed", seed), dtype="int32")
    every("StatelessRandomUniformInt", ("shape", sizes), ("seed", seed), ("minval", [lambda: c(0)]), ("maxval", [lambda: c(9)]))
    key = [("key", [lambda: p([1], "uint64")]), ("counter", [lambda: p([2], "uint64")]), ("alg", [lambda: c(1)])]
    for op in "StatelessRandomNormalV2 StatelessRandomUniformV2 StatelessTruncatedNormalV2".split():
        every(op, ("shape", sizes), *key)
    every("StatelessRandomUniformFullIntV2", ("shape", sizes), *key, dtype="int32")
    every("StatelessRandomUniformIntV2", ("shape", sizes), *key, ("minval", [lambda: c(0)]), ("maxval", [lambda: c(9)]))
    raw.StatelessRandomGetAlg()
    raw.StatelessRandomGetKeyCounter(seed=c([1, 2]))
    count = [lambda: c(5), lambda: p([], "int32")]
    every("Multinomial", ("logits", f([2, 3], [N, N], N)), ("num_samples", count))
    every("StatelessMultinomial", ("logits", f([2, 3], N)), ("num_samples", count), ("seed", seed))
    ends = [lambda: c(0), lambda: p([], "int32")]
    every("LinSpace", ("start", f([])), ("stop", f([])), ("num", [lambda: c(7), lambda: p([], "int32")]))
    every("SparseToDense", ("sparse_indices", f([N, 2], dtype="int32")), ("output_shape", [lambda: c([4, 5]), lambda: some([N, 5]), lambda: p([2], "int32"), lambda: p(N, "int32")]),
          ("sparse_values", f([N])), ("default_value", f([])))
    every("Range", ("start", ends), ("limit", [lambda: c(7), lambda: p([], "int32")]), ("delta", [lambda: c(2)]))
    raw.Range(start=c(9), limit=c(0), delta=c(-4))
    every("HistogramFixedWidth", ("values", f([N])), ("value_range", f([2])), ("nbins", count))
    every("Bincount", ("arr", f([N], dtype="int32")), ("size", count), ("weights", f([N])))
    every("DenseBincount", ("input", f([N], [2, N], N, dtype="int32")), ("size", count), ("weights", f([N])))
    every("OneHot", ("indices", f([2, N], [], N, dtype="int32")), ("depth", count), ("on_value", f([])), ("off_value", f([])))
    raw.OneHot(indices=p([2, N], "int32"), depth=c(5), on_value=p([]), off_value=p([]), axis=1)
    for op in "Shape Size Rank".split():
        every(op, ("input", f([2, N], [], N)))
    raw.ShapeN(input=[p([2, N]), p(N)])
    raw.StringSplit(input=p([N], "string"), delimiter=c(" ", "string"))
    raw.StringSplitV2(input=p([N], "string"), sep=c(" ", "string"))
    every("BroadcastArgs", ("s0", f([2], [N], [0], dtype="int32")), ("s1", f([3], [N], dtype="int32")))
    every("BroadcastGradientArgs", ("s0", sizes[:2]), ("s1", sizes[:2]))
    raw.ConcatOffset(concat_dim=c(0), shape=[p([2], "int32"), p([N], "int32")])
    c(1.5, "float32"), c([[1, 2, 3]]), c(b"text", "string")
    raw.ScatterNd(indices=p([N, 1], "int32"), updates=p([N, 3]), shape=c([8, 3]))
    raw.ScatterNd(indices=p([N, 1], "int32"), updates=p([N, 3]), shape=p([2], "int32"))
    for op in "HistogramSummary".split():
        raw.HistogramSummary(tag=c("t", "string"), values=p([N]))
    raw.ScalarSummary(tags=c("t", "string"), values=p([]))
    raw.MergeSummary(inputs=[p([], "string")])
    raw.ShardedFilename(basename=p([], "string"), shard=c(0), num_shards=c(2))
    raw.ShardedFilespec(basename=p([], "string"), num_shards=c(2))


def reducing():
    axes = [lambda: c([0]), lambda: c(-1), lambda: c([0, 1]), lambda: p([1], "int32"), lambda: c([], "int32")]
    for op in "Sum Mean Prod Max Min".split():
        for keep in (False, True):
            every(op, ("input", f([2, 3], [N, 4, 5], N)), ("axis", axes), keep_dims=keep)
    for op in "All Any".split():
        every(op, ("input", f([2, 3], [N, 4, 5], N, dtype="bool")), ("axis", axes))
    every("ReduceJoin", ("inputs", f([2, 3], [N, 4, 5], dtype="string")), ("reduction_indices", axes[:4]))
    for op in "ArgMax ArgMin".split():
        every(op, ("input", f([2, 3], [N, 4, 5], [3], N)), ("dimension", [lambda: c(0), lambda: c(-1), lambda: p([], "int32")]))
    for op in "SegmentSum SegmentMean SegmentMax SegmentMin SegmentProd".split():
        every(op, ("data", f([4, 3], [N, N], N)), ("segment_ids", f([4], [N], dtype="int32")))
    for op in "UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum".split():
        every(op, ("data", f([4, 3], [N, 5, N], N)), ("segment_ids", f([4], [N], [N, 5], N, dtype="int32")),
              ("num_segments", [lambda: c(7), lambda: p([], "int32")]))
    for a, b in itertools.product((False, True), repeat=2):
        every("MatMul", ("a", f([2, 3], [N, 3], [3, 2], N)), ("b", f([3, 4], [N, N], [4, 3], N)), transpose_a=a, transpose_b=b)
        for op in "BatchMatMul BatchMatMulV2".split():
            every(op, ("x", f([5, 2, 3], [N, 2, 3], [3, 2], N)), ("y", f([5, 3, 4], [N, N, N], [3, 2])), adj_x=a, adj_y=b)
    for equation, shapes in (("ij,jk->ik", ([2, 3], [3, N])), ("ij->ji", ([2, N],)), ("i,i->", ([N], [3])),
                             ("bij,bjk->bik", ([N, 2, 3], [5, 3, 4])), ("ij->ij", (N,)), ("...ij->...ji", ([2, 3, 4],))):
        raw.Einsum(inputs=[p(shape) for shape in shapes], equation=equation)
    for op in "Cholesky MatrixInverse MatrixDeterminant LogMatrixDeterminant BatchCholesky BatchMatrixInverse BatchMatrixDeterminant".split():
        every(op, ("input", f([3, 3], [5, N, 4], [N, N, N, N], N)))
    for op in "MatrixSolve MatrixTriangularSolve BatchMatrixSolve BatchMatrixTriangularSolve".split():
        every(op, ("matrix", f([3, 3], [5, 3, N], N)), ("rhs", f([3, 2], [5, N, 2], [N, N], N)))
    for full in (False, True):
        every("Qr", ("input", f([4, 3], [2, N, 5], [N, N], N)), full_matrices=full)
        for op in "Svd BatchSvd".split():
            for uv in (False, True):
                every(op, ("input", f([4, 3], [2, N, 5], [N, N], N)), compute_uv=uv, full_matrices=full)
    for op in "SelfAdjointEigV2 BatchSelfAdjointEigV2".split():
        for vectors in (False, True):
            every(op, ("input", f([3, 3], [5, N, 4], [N, N], N)), compute_v=vectors)
    every("Lu", ("input", f([3, 3], [5, N, 4], [N, N], N)))
    every("NthElement", ("input", f([4, 3], [N, N], N)), ("n", [lambda: c(1), lambda: p([], "int32")]))
    every("CumulativeLogsumexp", ("x", f([4, 3], [N, N], N)), ("axis", [lambda: c(1)]))
    triple = lambda prefix, last: [(f"{prefix}indices", f([4, 3], N, dtype="int64")), (f"{prefix}values", f([4], N)), (f"{prefix}{last}", [lambda: c([2, 5, 7], "int64"), lambda: p([3], "int64"), lambda: p(N, "int64")])]
    every("SparseReshape", ("input_indices", f([4, 3], N, dtype="int64")), ("input_shape", [lambda: c([2, 5, 7], "int64"), lambda: p([3], "int64")]), ("new_shape", [lambda: c([10, -1], "int64"), lambda: p([2], "int64"), lambda: p(N, "int64")]))
    every("SparseReorder", *triple("input_", "shape"))
    for split in (0, 1):
        raw.SparseConcat(indices=[p([4, 3], "int64"), p([2, 3], "int64")], values=[p([4]), p([2])], shapes=[c([2, 5, 7], "int64"), p([3], "int64")], concat_dim=split)
    raw.SparseConcat(indices=[p([N, 3], "int64"), p([2, N], "int64")], values=[p([N]), p([2])], shapes=[p([3], "int64"), p([3], "int64")], concat_dim=1)
    every("SparseSplit", *triple("", "shape"), ("split_dim", [lambda: c(1, "int64")]), num_split=2)
    every("SparseSlice", *triple("", "shape"), ("start", [lambda: c([0, 1, 1], "int64")]), ("size", [lambda: c([2, 2, 2], "int64")]))
    every("SparseAdd", *triple("a_", "shape"), *((f"b_{name}", choices[:1]) for name, choices in (("indices", f([4, 3], dtype="int64")), ("values", f([4])), ("shape", f([3], dtype="int64")))), ("thresh", f([])))
    for a, b in itertools.product((False, True), repeat=2):
        every("SparseTensorDenseMatMul", ("a_indices", f([4, 2], dtype="int64")), ("a_values", f([4])), ("a_shape", [lambda: c([5, 3], "int64"), lambda: p([2], "int64")]), ("b", f([3, 4], [5, N], [4, 3], N)), adjoint_a=a, adjoint_b=b)
    every("SparseTensorDenseAdd", *triple("a_", "shape")[:2], ("a_shape", [lambda: c([2, 5, 7], "int64")]), ("b", f([2, 5, 7], [N, N, 7], N)))
    for op in "SparseReduceSum SparseReduceMax".split():
        for keep in (False, True):
            every(op, *triple("input_", "shape"), ("reduction_axes", [lambda: c([1]), lambda: c([0, -1]), lambda: p([1], "int32")]), keep_dims=keep)
    every("SparseFillEmptyRows", *triple("", "shape")[:2], ("dense_shape", triple("", "shape")[2][1]), ("default_value", f([])))
    every("SparseFillEmptyRowsGrad", ("reverse_index_map", f([4], N, dtype="int64")), ("grad_values", f([6])))
    for op in "Sum Mean SqrtN".split():
        parts = (("data", f([6, 2, 3], [N, 3], N)), ("indices", f([4], N, dtype="int32")), ("segment_ids", f([4], dtype="int32")))
        every("SparseSegment" + op, *parts)
        every(f"SparseSegment{op}WithNumSegments", *parts, ("num_segments", [lambda: c(7), lambda: p([], "int32")]))
        every(f"SparseSegment{op}Grad", ("grad", parts[0][1]), *parts[1:], ("output_dim0", [lambda: c(7), lambda: p([], "int32")]))
    every("SparseSoftmax", *triple("sp_", "shape")[:2], ("sp_shape", f([3], dtype="int64")))
    for op in "Add Mul Div".split():
        every("SparseDenseCwise" + op, *triple("sp_", "shape")[:2], ("sp_shape", f([3], dtype="int64")), ("dense", f([5, 7], N)))
    every("SparseAddGrad", ("backprop_val_grad", f([6])), *((name, f([4, 3], N, dtype="int64")) for name in ("a_indices", "b_indices")), ("sum_indices", f([6, 3], dtype="int64")))
    every("SparseSliceGrad", ("backprop_val_grad", f([6])), ("input_indices", f([4, 3], N, dtype="int64")), ("input_start", f([3], dtype="int64")), ("output_indices", f([6, 3], dtype="int64")))
    of_sparse = lambda name, shape: [(f"{name}_indices", f([4, 3], N, dtype="int64")), (f"{name}_values", f([4], N)), (f"{name}_shape", shape)]
    every("EditDistance", *of_sparse("hypothesis", [lambda: c([2, 5, 7], "int64"), lambda: p([3], "int64")]),
          *of_sparse("truth", [lambda: c([3, 4, 9], "int64"), lambda: p([3], "int64")]))
    raw.L2Loss(t=p([2, N]))
    every("SoftmaxCrossEntropyWithLogits", ("features", f([2, 3], [N, 3], [1, 3], N)), ("labels", f([2, 3], [N, N], N)))
    every("SparseSoftmaxCrossEntropyWithLogits", ("features", f([2, 3], [N, N], N)), ("labels", f([2], [N], N, dtype="int32")))
    every("TopK", ("input", f([2, 3], [N, 5], N)), k=2)
    every("TopKV2", ("input", f([2, 3], [N, 5], N)), ("k", [lambda: c(2), lambda: p([], "int32")]))
    every("InTopK", ("predictions", f([2, 3], [N, N], N)), ("targets", f([2], [N], N, dtype="int32")), k=2)
    every("InTopKV2", ("predictions", f([2, 3], [N, N], N)), ("targets", f([2], [N], N, dtype="int32")), ("k", [lambda: c(2)]))


def arranging():
    every("Reshape", ("tensor", f([2, 6], [N, 4], N)),
          ("shape", [lambda: c([3, 4]), lambda: c([-1]), lambda: c([2, -1]), lambda: p([2], "int32"), lambda: p(N, "int32"),
                     lambda: some([4, N]), lambda: raw.Shape(input=p([N, 4]))]))
    every("ExpandDims", ("input", f([2, N], [], N)), ("axis", [lambda: c(0), lambda: c(-1), lambda: p([], "int32")]))
    for axes in ([], [0], [-1]):
        every("Squeeze", ("input", f([1, 3, 1], [1, 3, N], [N, N, N], N)), axis=axes)
    every("Transpose", ("x", f([2, 3, 4], [N, 3, 4], N)), ("perm", [lambda: c([2, 0, 1]), lambda: p([3], "int32"), lambda: p(N, "int32")]))
    every("Tile", ("input", f([2, 3], [N, 3], N)), ("multiples", [lambda: c([2, 1]), lambda: p([2], "int32"), lambda: p(N, "int32")]))
    pads = [lambda: c([[1, 2], [0, 0]]), lambda: p([2, 2], "int32"), lambda: p(N, "int32")]
    every("Pad", ("input", f([2, 3], [N, 3], N)), ("paddings", pads))
    every("PadV2", ("input", f([2, 3], N)), ("paddings", pads), ("constant_values", f([])))
    every("MirrorPad", ("input", f([5, 3], N)), ("paddings", pads), mode="REFLECT")
    parts = ([[2, 3], [2, 4]], [[N, 3], [2, 3]], [N, [2, 3]], [N, N], [[2], [N]])
    for shapes, axis in itertools.product(parts, (lambda: c(0), lambda: c(-1), lambda: p([], "int32"))):
        try:
            raw.ConcatV2(values=[p(shape) for shape in shapes], axis=axis())
            raw.Concat(values=[p(shape) for shape in shapes], concat_dim=axis())
        except ValueError:
            pass
    for shapes, axis in itertools.product(([[2, 3], [2, 3]], [[N, 3], [2, N]], [N, [2]], [[], []], [N, N]), (0, -1)):
        raw.Pack(values=[p(shape) for shape in shapes], axis=axis)
    every("Unpack", ("value", f([3, 4], [N, 4], N)), num=3)
    every("Unpack", ("value", f([4, 3], [4, N])), num=3, axis=-1)
    every("Split", ("axis", [lambda: c(0), lambda: c(-1), lambda: p([], "int32")]), ("value", f([4, 6], [N, N], N)), num_split=2)
    every("SplitV", ("value", f([4, 6], [N, 6], N)), ("size_splits", [lambda: c([1, -1]), lambda: c([1, 3]), lambda: p([2], "int32")]),
          ("axis", [lambda: c(0), lambda: p([], "int32")]), num_split=2)
    raw.ParallelConcat(values=[p([1, 3]), p([1, 3])], shape=[2, 3])
    for source, target in (("float32", "int32"), ("float32", "uint8"), ("uint8", "float32"), ("int64", "int32")):
        every("Bitcast", ("input", f([2, 4], N, dtype=source)), type=target)
    raw.InvertPermutation(x=p(N, "int32")), raw.InvertPermutation(x=p([3], "int32"))
    every("Diag", ("diagonal", f([2, 3], [N], N)))
    every("DiagPart", ("input", f([2, 3, 2, 3], [N, 4], N)))
    every("MatrixDiag", ("diagonal", f([2, 3], [N], N))), every("BatchMatrixDiag", ("diagonal", f([2, 3])))
    every("MatrixDiagPart", ("input", f([5, 2, 3], [N, N], N))), every("BatchMatrixDiagPart", ("input", f([5, 2, 3])))
    which = [lambda: c(0), lambda: c(1), lambda: c(-2), lambda: c([-1, 1]), lambda: p([], "int32")]
    for op in "MatrixDiagV2 MatrixDiagV3".split():
        every(op, ("diagonal", f([5, 3], [3], [3, 3], [N, N], N)), ("k", which), ("num_rows", [lambda: c(-1), lambda: c(6)]),
              ("num_cols", [lambda: c(-1), lambda: c(7)]), ("padding_value", f([])))
    every("MatrixSetDiag", ("input", f([5, 2, 3], [N, N], N)), ("diagonal", f([5, 2], [N], N)))
    every("BatchMatrixSetDiag", ("input", f([5, 2, 3])), ("diagonal", f([5, 2])))
    for op in "MatrixSetDiagV2 MatrixSetDiagV3".split():
        every(op, ("input", f([5, 4, 6], [N, N, 5], N)), ("diagonal", f([5, 4], N)), ("k", which[:1]))
    every("MirrorPadGrad", ("input", f([6, 9], [N, 9], N)), ("paddings", [lambda: c([[1, 1], [2, 0]]), lambda: p([2, 2], "int32")]), mode="SYMMETRIC")
    for op in "MatrixDiagPartV2 MatrixDiagPartV3".split():
        every(op, ("input", f([5, 4, 6], [4, 3], [N, N, 5], N)), ("k", which), ("padding_value", f([])))


def indexing():
    every("Slice", ("input", f([4, 6], [N, 6], N)), ("begin", [lambda: c([1, 0]), lambda: c([0, 0]), lambda: p([2], "int32")]),
          ("size", [lambda: c([2, -1]), lambda: c([-1, 3]), lambda: p([2], "int32"), lambda: p(N, "int32")]))
    for shape in ([4, 6], [N, 6, 5]):
        x = p(shape)
        x[1:3], x[:, 2], x[..., 1], x[::2, ::-1], x[tf.newaxis], x[1:, ..., tf.newaxis], x[-1], x[:p([], "int32")], x[p([], "int32")]
        x[3:1], x[0:0]
    raw.StridedSlice(input=p(N), begin=c([0]), end=c([2]), strides=c([1]))
    raw.StridedSlice(input=p([4, 5]), begin=p([1], "int32"), end=p([1], "int32"), strides=c([1]))
    raw.StridedSlice(input=p([4, 5]), begin=p([1], "int32"), end=p([1], "int32"), strides=p([1], "int32"))
    raw.StridedSliceGrad(shape=c([4, 6]), begin=c([0]), end=c([2]), strides=c([1]), dy=p([2, 6]))
    every("TensorStridedSliceUpdate", ("input", f([4, 6], [N, 6], N)), ("begin", [lambda: c([0]), lambda: p([1], "int32")]),
          ("end", [lambda: c([2])]), ("strides", [lambda: c([1])]), ("value", f([2, 6], [], N)))
    every("Gather", ("params", f([4, 6], [N, N], N)), ("indices", f([], [3], [2, N], N, dtype="int32")))
    every("GatherV2", ("params", f([4, 6], [N, N, 5], N)), ("indices", f([], [3], [2, N], N, dtype="int32")),
          ("axis", [lambda: c(0), lambda: c(1), lambda: p([], "int32")]))
    every("GatherV2", ("params", f([4, 6, 7], [N, N, 5])), ("indices", f([4, 3], [N, N], dtype="int32")), ("axis", [lambda: c(1)]),
          batch_dims=1)
    every("GatherNd", ("params", f([4, 6], N)), ("indices", f([3, 1], [3, 2], [N, 2], [3, N], N, dtype="int32")))
    every("Where", ("condition", f([2, 3], [N], N, dtype="bool")))
    every("Unique", ("x", f([3], [N], N)))
    every("UniqueWithCounts", ("x", f([3], [N])))
    raw.ListDiff(x=p([3]), y=p([N]))
    every("DynamicPartition", ("data", f([4, 3], [N, N, 5], N)), ("partitions", f([4], [N], [N, N], N, dtype="int32")), num_partitions=2)
    for op in "DynamicStitch ParallelDynamicStitch".split():
        stitch = getattr(raw, op)
        stitch(indices=[c([0, 2]), c([1])], data=[p([2, 5]), p([1, N])])
        stitch(indices=[p([2], "int32"), p([N], "int32")], data=[p([2, 5]), p([N, 5])])
        stitch(indices=[p(N, "int32")], data=[p(N)])
    every("LowerBound", ("sorted_inputs", f([2, 5])), ("values", f([2, 3], [N, N])))
    every("UpperBound", ("sorted_inputs", f([2, 5])), ("values", f([2, 3], [N, N])))


def images():
    shapes = ([2, 8, 9, 3], [N, N, 9, 3], N)
    for padding, stride in itertools.product(("SAME", "VALID"), (1, 2)):
        for dilation in (1, 2):
            attrs = dict(strides=[1, stride, stride, 1], dilations=[1, dilation, dilation, 1], padding=padding)
            every("Conv2D", ("input", f(*shapes)), ("filter", f([3, 2, 3, 7], [N, N, 3, N], N)), **attrs)
            every("DepthwiseConv2dNative", ("input", f(*shapes)), ("filter", f([3, 2, 3, 7], [N, N, 3, N], N)), **attrs)
        window = dict(ksize=[1, 3, 2, 1], strides=[1, stride, stride, 1], padding=padding)
        every("AvgPool", ("value", f(*shapes)), **window)
        every("MaxPool", ("input", f(*shapes)), **window)
        every("MaxPoolWithArgmax", ("input", f(*shapes)), **window)
        for rate in (1, 2):
            every("ExtractImagePatches", ("images", f(*shapes, [2, 8, 9, N])), ksizes=[1, 3, 2, 1], strides=[1, stride, stride, 1],
                  rates=[1, rate, rate, 1], padding=padding)
        five = dict(strides=[1, stride, stride, stride, 1], padding=padding)
        volumes = ([2, 8, 9, 10, 3], [N, N, 9, 10, 3], N)
        every("Conv3D", ("input", f(*volumes)), ("filter", f([3, 2, 3, 3, 7], [N, 2, 3, 3, N])), **five)
        every("AvgPool3D", ("input", f(*volumes)), ksize=[1, 2, 3, 2, 1], **five)
        every("MaxPool3D", ("input", f(*volumes)), ksize=[1, 2, 3, 2, 1], **five)
    first = dict(strides=[1, 1, 2, 2], padding="VALID", data_format="NCHW")
    raw.Conv2D(input=p([2, 3, 8, N]), filter=p([3, 2, 3, 7]), **first)
    raw.MaxPool(input=p([2, 3, 8, N]), ksize=[1, 1, 3, 2], **first)
    raw.AvgPool(value=p([2, 3, 8, N]), ksize=[1, 1, 3, 2], **first)
    raw.Conv2D(input=p([2, 8, N, 3]), filter=p([3, 2, 3, 7]), strides=[1, 2, 1, 1], padding="EXPLICIT",
               explicit_paddings=[0, 0, 1, 2, 0, 3, 0, 0])
    one = dict(strides=[1, 1, 1, 1], padding="SAME")
    sizes = [lambda: c([2, 8, 9, 3]), lambda: p([4], "int32"), lambda: some([N, 8, 9, 3])]
    kernels = [lambda: c([3, 2, 3, 7]), lambda: p([4], "int32"), lambda: p(N, "int32")]
    every("Conv2DBackpropInput", ("input_sizes", sizes), ("filter", f([3, 2, 3, 7])), ("out_backprop", f([2, 8, 9, 7])), **one)
    every("Conv2DBackpropFilter", ("input", f([2, 8, 9, 3])), ("filter_sizes", kernels), ("out_backprop", f([2, 8, 9, 7])), **one)
    every("DepthwiseConv2dNativeBackpropInput", ("input_sizes", sizes), ("filter", f([3, 2, 3, 7])), ("out_backprop", f([2, 8, 9, 21])), **one)
    every("DepthwiseConv2dNativeBackpropFilter", ("input", f([2, 8, 9, 3])), ("filter_sizes", kernels), ("out_backprop", f([2, 8, 9, 21])), **one)
    every("AvgPoolGrad", ("orig_input_shape", sizes), ("grad", f([2, 8, 9, 3])), ksize=[1, 2, 2, 1], **one)
    every("MaxPoolGrad", ("orig_input", f(*shapes)), ("orig_output", f(N)), ("grad", f(N)), ksize=[1, 2, 2, 1], **one)
    every("MaxPoolGradWithArgmax", ("input", f(*shapes)), ("grad", f(N)), ("argmax", f(N, dtype="int64")), ksize=[1, 2, 2, 1], **one)
    three = dict(strides=[1] * 5, padding="SAME")
    volume, kernel = lambda: p([2, 8, 9, N, 3]), lambda: p([3, 3, 3, 3, 7])
    raw.Conv3DBackpropInput(input=volume(), filter=kernel(), out_backprop=p(N), **three)
    raw.Conv3DBackpropFilter(input=volume(), filter=kernel(), out_backprop=p(N), **three)
    every("Conv3DBackpropInputV2", ("input_sizes", [lambda: c([2, 8, 9, 4, 3]), lambda: p([5], "int32")]), ("filter", [kernel]), ("out_backprop", f(N)), **three)
    every("Conv3DBackpropFilterV2", ("input", [volume]), ("filter_sizes", [lambda: c([3, 3, 3, 3, 7]), lambda: p([5], "int32")]), ("out_backprop", f(N)), **three)
    raw.MaxPool3DGrad(orig_input=volume(), orig_output=p(N), grad=p(N), ksize=[1, 2, 2, 2, 1], **three)
    raw.MaxPool3DGradGrad(orig_input=volume(), orig_output=p(N), grad=p(N), ksize=[1, 2, 2, 2, 1], **three)
    raw.AvgPool3DGrad(orig_input_shape=c([2, 8, 9, 4, 3]), grad=p(N), ksize=[1, 2, 2, 2, 1], **three)
    every("LRN", ("input", f(*shapes)))
    every("LRNGrad", ("input_grads", f(*shapes)), ("input_image", f(*shapes)), ("output_image", f(*shapes)))
    for op in "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3".split():
        for format in ("NHWC", "NCHW"):
            every(op, ("x", f([2, 8, 9, 3], [N, N, N, N], N)), ("scale", f([3], [N])), ("offset", f([N])), ("mean", f([0])),
                  ("variance", f([0])), data_format=format) if format == "NHWC" else every(
                  op, ("x", f([2, 3, 8, 9], N)), ("scale", f([N])), ("offset", f([N])), ("mean", f([0])), ("variance", f([0])), data_format=format)
    raw.FusedBatchNormV3(x=p([2, 4, 8, 9, 3]), scale=p([N]), offset=p([N]), mean=p([0]), variance=p([0]), data_format="NDHWC")
    for op in "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3".split():
        more = {"reserve_space_3": p(N)} if op.endswith("V3") else {}
        for shape in ([2, 8, 9, 3], [N, N, N, N], N):
            getattr(raw, op)(y_backprop=p(shape), x=p([N, 8, N, N]), scale=p([N]), reserve_space_1=p([N]), reserve_space_2=p([N]), **more)
    size = [lambda: c([5, 6]), lambda: p([2], "int32")]
    for op in "ResizeBilinear ResizeNearestNeighbor".split():
        every(op, ("images", f(*shapes)), ("size", size))
    every("ResizeNearestNeighborGrad", ("grads", f(*shapes)), ("size", size))
    raw.ResizeBilinearGrad(grads=p([2, 5, 6, 3]), original_image=p([2, 8, N, 3]))
    edges = [lambda: c([[0, 0], [1, 2]]), lambda: p([2, 2], "int32")]
    every("SpaceToBatch", ("input", f([2, 8, 9, 3], [N, N, N, 3], N)), ("paddings", edges), block_size=2)
    every("BatchToSpace", ("input", f([8, 8, 9, 3], [N, N, N, 3], N)), ("crops", edges), block_size=2)
    block = [lambda: c([2, 3]), lambda: p([2], "int32")]
    every("SpaceToBatchND", ("input", f([2, 8, 9, 3], [N, N, N, 3], N)), ("block_shape", block), ("paddings", edges))
    every("BatchToSpaceND", ("input", f([12, 8, 9, 3], [N, N, N, 3], N)), ("block_shape", block), ("crops", edges))
    for format in ("NHWC", "NCHW"):
        every("SpaceToDepth", ("input", f([2, 4, 8, 12], [N, N, 4, N], N)), block_size=2, data_format=format)
        every("DepthToSpace", ("input", f([2, 4, 8, 12], [N, 4, N, N], N)), block_size=2, data_format=format)


def state():
    one = lambda: raw.VariableV2(shape=[4, 3], dtype="float32")
    handle = lambda: raw.VarHandleOp(shape=[N, 3], dtype="float32")
    raw.Variable(shape=[], dtype="float32"), raw.Variable(shape=[2], dtype="float32")
    raw.ReadVariableOp(resource=handle(), dtype="float32"), raw.VariableShape(input=handle())
    raw.ReadVariableOp(resource=raw.Identity(input=handle()), dtype="float32")
    raw.IsVariableInitialized(ref=one()), raw.VarIsInitializedOp(resource=handle())
    open_ = raw.VariableV2(shape=tf.TensorShape(None), dtype="float32")
    for ref in (one, lambda: open_):
        for value in ([4, 3], [N, 3], N):
            raw.Assign(ref=ref(), value=p(value)), raw.AssignAdd(ref=ref(), value=p(value)), raw.AssignSub(ref=ref(), value=p(value))
            raw.Assign(ref=ref(), value=p(value), validate_shape=False)
    raw.CountUpTo(ref=raw.VariableV2(shape=[], dtype="int32"), limit=3)
    raw.ResourceCountUpTo(resource=raw.VarHandleOp(shape=[], dtype="int32"), limit=3, T="int32")
    for op in "Add Max Min Sub Update".split():
        getattr(raw, "ScatterNd" + op)(ref=one(), indices=p([2, 1], "int32"), updates=p([2, 3]))
        getattr(raw, "ResourceScatterNd" + op)(ref=handle(), indices=p([2, 1], "int32"), updates=p([2, 3]))
    ends = dict(begin=c([0]), end=c([2]), strides=c([1]), value=p([2, 3]))
    raw.StridedSliceAssign(ref=one(), **ends), raw.ResourceStridedSliceAssign(ref=handle(), **ends)
    for op in "Add Div Max Min Mul Sub Update".split():
        getattr(raw, "Scatter" + op)(ref=one(), indices=p([2], "int32"), updates=p([2, 3]))
        getattr(raw, "ResourceScatter" + op)(resource=handle(), indices=p([2], "int32"), updates=p([2, 3]))
    every("ResourceGather", ("resource", [handle]), ("indices", f([], [2, N], N, dtype="int32")), dtype="float32")
    s = lambda: p([])
    slot = lambda **more: dict(var=one(), lr=s(), grad=p([4, 3]), **more)
    raw.ApplyGradientDescent(var=one(), alpha=s(), delta=p([4, 3]))
    raw.ApplyProximalGradientDescent(var=one(), alpha=s(), l1=s(), l2=s(), delta=p([4, 3]))
    raw.ApplyAdaMax(m=one(), v=one(), beta1_power=s(), beta1=s(), beta2=s(), epsilon=s(), **slot())
    both = lambda: dict(gradient_accumulator=one(), gradient_squared_accumulator=one(), l1=s(), l2=s(), global_step=p([], "int64"))
    raw.ApplyAdagradDA(**both(), **slot())
    raw.ApplyAdadelta(accum=one(), accum_update=one(), rho=s(), epsilon=s(), **slot())
    raw.ApplyAdagrad(accum=one(), **slot()), raw.ApplyAdagradV2(accum=one(), epsilon=s(), **slot())
    raw.ApplyAdam(m=one(), v=one(), beta1_power=s(), beta2_power=s(), beta1=s(), beta2=s(), epsilon=s(), **slot())
    raw.ApplyAddSign(m=one(), alpha=s(), sign_decay=s(), beta=s(), **slot())
    raw.ApplyPowerSign(m=one(), logbase=s(), sign_decay=s(), beta=s(), **slot())
    raw.ApplyCenteredRMSProp(mg=one(), ms=one(), mom=one(), rho=s(), momentum=s(), epsilon=s(), **slot())
    raw.ApplyRMSProp(ms=one(), mom=one(), rho=s(), momentum=s(), epsilon=s(), **slot())
    raw.ApplyFtrl(accum=one(), linear=one(), l1=s(), l2=s(), lr_power=s(), **slot())
    raw.ApplyFtrlV2(accum=one(), linear=one(), l1=s(), l2=s(), l2_shrinkage=s(), lr_power=s(), **slot())
    raw.ApplyMomentum(accum=one(), momentum=s(), **slot())
    raw.ApplyProximalAdagrad(accum=one(), l1=s(), l2=s(), **slot())
    sparse = lambda **more: dict(var=one(), lr=s(), grad=p([2, 3]), indices=p([2], "int32"), **more)
    raw.SparseApplyAdagrad(accum=one(), **sparse()), raw.SparseApplyAdagradV2(accum=one(), epsilon=s(), **sparse())
    raw.SparseApplyAdagradDA(**both(), **sparse())
    raw.SparseApplyFtrl(accum=one(), linear=one(), l1=s(), l2=s(), lr_power=s(), **sparse())
    raw.SparseApplyFtrlV2(accum=one(), linear=one(), l1=s(), l2=s(), l2_shrinkage=s(), lr_power=s(), **sparse())
    raw.SparseApplyMomentum(accum=one(), momentum=s(), **sparse())
    raw.SparseApplyProximalAdagrad(accum=one(), l1=s(), l2=s(), **sparse())
    raw.SparseApplyProximalGradientDescent(var=one(), alpha=s(), l1=s(), l2=s(), grad=p([2, 3]), indices=p([2], "int32"))
    raw.SparseApplyRMSProp(ms=one(), mom=one(), rho=s(), momentum=s(), epsilon=s(), **sparse())

    types = dict(dtypes=["float32", "int32"], shapes=[[2, 3], []])
    for queue in (tf.queue.FIFOQueue(9, **types), tf.queue.RandomShuffleQueue(9, 1, **types), tf.queue.FIFOQueue(9, ["float32"]),
                  tf.queue.PaddingFIFOQueue(9, dtypes=["float32", "int32"], shapes=[[N, 3], []]),
                  tf.queue.PriorityQueue(9, types=["float32"], shapes=[[2]])):
        queue.dequeue(), queue.dequeue_many(5), queue.dequeue_many(p([], "int32")), queue.dequeue_up_to(5)
        queue.size(), queue.is_closed()
    old = dict(component_types=["float32"], shapes=[[2]])
    raw.FIFOQueue(**old), raw.PaddingFIFOQueue(**old), raw.RandomShuffleQueue(**old), raw.PriorityQueue(component_types=["float32"], shapes=[[2]])
    queue = raw.FIFOQueue(**old)
    raw.QueueSize(handle=queue), raw.QueueIsClosed(handle=queue)
    accumulator = tf1.ConditionalAccumulator("float32", shape=[2, N])
    accumulator.take_grad(2), accumulator.num_accumulated()
    sparse_accumulator = tf1.SparseConditionalAccumulator("float32", shape=[2, N])
    sparse_accumulator.take_grad(2), raw.SparseConditionalAccumulator(dtype="float32", shape=[2])
    raw.ResourceConditionalAccumulator(dtype="float32", shape=[2]), raw.ConditionalAccumulator(dtype="float32", shape=[2])
    file, name = c("file", "string"), c("name", "string")
    raw.Restore(file_pattern=file, tensor_name=name, dt="float32")
    raw.RestoreSlice(file_pattern=file, tensor_name=name, shape_and_slice=p([], "string"), dt="float32")
    raw.RestoreV2(prefix=file, tensor_names=p([1], "string"), shape_and_slices=p([1], "string"), dtypes=["float32"])
    types = dict(dtypes=["float32", "int32"])
    raw.StageSize(**types), raw.StagePeek(index=c(0), **types), raw.Unstage(**types)
    for kind in ("", "Ordered"):
        of_map = lambda what, **inputs: getattr(raw, f"{kind}Map{what}")(**inputs, **types)
        of_map("Size"), of_map("IncompleteSize"), of_map("UnstageNoKey", indices=c([0, 1]))
        of_map("Peek", key=c(0, "int64"), indices=c([0, 1])), of_map("Unstage", key=c(0, "int64"), indices=c([0, 1]))
    stack = raw.StackV2(max_size=c(-1), elem_type="float32")
    raw.StackPushV2(handle=stack, elem=p([2, N])), raw.StackPopV2(handle=stack, elem_type="float32")
    stack = raw.Stack(elem_type="float32")
    raw.StackPush(handle=stack, elem=p([2, N])), raw.StackPop(handle=stack, elem_type="float32")
    for identical, shape in itertools.product((False, True), ([2, N], N)):
        handle, flow = raw.TensorArrayV3(size=c(3), dtype="float32", element_shape=shape, identical_element_shapes=identical)
        for array in (handle, raw.TensorArrayGradV3(handle=handle, flow_in=flow, source="s")[0]):
            raw.TensorArrayReadV3(handle=array, index=c(0), flow_in=flow, dtype="float32")
            raw.TensorArrayGatherV3(handle=array, indices=c([0, 1]), flow_in=flow, dtype="float32")
            raw.TensorArrayGatherV3(handle=array, indices=p([N], "int32"), flow_in=flow, dtype="float32", element_shape=[2, 4])
        raw.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype="float32"), raw.TensorArraySizeV3(handle=handle, flow_in=flow)
        raw.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype="float32", element_shape_except0=[3])
        raw.TensorArrayWriteV3(handle=handle, index=c(0), value=p([2, 4]), flow_in=flow)
        raw.TensorArrayScatterV3(handle=handle, indices=c([0]), value=p([1, 2, 4]), flow_in=flow)
        raw.TensorArraySplitV3(handle=handle, value=p([3, 4]), lengths=p([2], "int64"), flow_in=flow)
    array, flow = raw.TensorArrayV2(size=c(3), dtype="float32", element_shape=[2]), p([])
    raw.TensorArrayReadV2(handle=array, index=c(0), flow_in=flow, dtype="float32")
    raw.TensorArrayGatherV2(handle=array, indices=c([0]), flow_in=flow, dtype="float32")
    raw.TensorArrayConcatV2(handle=array, flow_in=flow, dtype="float32"), raw.TensorArraySizeV2(handle=array, flow_in=flow)
    raw.TensorArrayGradV2(handle=array, flow_in=flow, source="s")
    raw.TensorArrayWriteV2(handle=array, index=c(0), value=p([2]), flow_in=flow)
    raw.TensorArrayScatterV2(handle=array, indices=c([0]), value=p([1, 2]), flow_in=flow)
    raw.TensorArraySplitV2(handle=array, value=p([3, 4]), lengths=p([2], "int64"), flow_in=flow)


def strings():
    texts = f([], [2, N], N, dtype="string")
    for op in "DecodeBase64 EncodeBase64 StringStrip".split():
        every(op, ("input", texts))
    every("DecodeRaw", ("bytes", texts), out_type="int32"), every("DecodeCompressed", ("bytes", texts))
    every("DecodePaddedRaw", ("input_bytes", texts), ("fixed_length", [lambda: c(8)]), out_type="int32")
    every("RegexReplace", ("input", texts), ("pattern", [lambda: c("a", "string")]), ("rewrite", [lambda: c("b", "string")]))
    every("StaticRegexReplace", ("input", texts), pattern="a", rewrite="b")
    every("StringToHashBucket", ("string_tensor", texts), num_buckets=3)
    every("StringToHashBucketStrong", ("input", texts), num_buckets=3, key=[1, 2])
    every("ParseTensor", ("serialized", texts), out_type="int32")
    every("SerializeTensor", ("tensor", f([2, N], N)))
    raw.StringFormat(inputs=[p([2])], template="%s")
    splits = ("data_splits", f([3], [N], dtype="int64"))
    pads = dict(separator=" ", left_pad="", right_pad="", pad_width=0, preserve_short_sequences=False)
    every("StringNGrams", ("data", f([5], [N], dtype="string")), splits, ngram_widths=[2], **pads)
    every("UnicodeTranscode", ("input", texts), input_encoding="UTF-8", output_encoding="UTF-8")
    for op in ("UnicodeDecode", "UnicodeDecodeWithOffsets"):
        every(op, ("input", f([], [2, 3], [2, N], N, dtype="string")), input_encoding="UTF-8")
    codes = ("input_values", f([5], [N], dtype="int32"))
    every("UnicodeEncode", codes, ("input_splits", f([3], [N], dtype="int64")), output_encoding="UTF-8")
    every("Fingerprint", ("data", f([2, N], [N, 3], N)), ("method", [lambda: p([], "string")]))
    every("UnsortedSegmentJoin", ("inputs", f([4], [N, 2], N, dtype="string")), ("segment_ids", f([4], [N], N, dtype="int32")),
          ("num_segments", [lambda: c(3), lambda: p([], "int32")]))
    every("DecodeCSV", ("records", texts), ("record_defaults", [lambda: [c([1]), p(N, "float32")]]))
    for batch in f([4], [N], N, dtype="string"):
        columns = dict(sparse_keys=["a", "b"], sparse_types=["int64", "string"], dense_keys=["c", "d"], dense_defaults=[p([2]), p([])], dense_shapes=[[2], [N, 3]])
        raw.ParseExample(serialized=batch(), names=c([], "string"), **columns)
        sequence = dict(context_sparse_keys=["a"], context_sparse_types=["int64"], context_dense_keys=["b"], context_dense_defaults=[p([2])],
                        context_dense_shapes=[[2]], feature_list_sparse_keys=["c"], feature_list_sparse_types=["string"], feature_list_dense_keys=["d"],
                        feature_list_dense_types=["int64"], feature_list_dense_shapes=[[3]])
        raw.ParseSequenceExample(serialized=batch(), debug_name=c([], "string"), feature_list_dense_missing_assumed_empty=[], Ncontext_sparse=1, Ncontext_dense=1, Nfeature_list_sparse=1, Nfeature_list_dense=1, **sequence)
    for batch in f([], [4], [N], N, dtype="string"):
        names = dict(names=c([], "string"), sparse_keys=c(["a", "b"], "string"), dense_keys=c(["c", "d"], "string"), ragged_keys=c(["e"], "string"))
        raw.ParseExampleV2(serialized=batch(), dense_defaults=[p([2]), p([])], num_sparse=2, sparse_types=["int64", "string"], dense_shapes=[[2], [N, 3]],
                           ragged_value_types=["int64"], ragged_split_types=["int32"], **names)
    raw.ParseSingleExample(serialized=p([], "string"), num_sparse=2, **columns)
    raw.ParseSingleSequenceExample(serialized=p([], "string"), feature_list_dense_missing_assumed_empty=c([], "string"), debug_name=c("n", "string"), **sequence)


def sets():
    shape = [lambda: c([2, 3], "int64"), lambda: p([3], "int64"), lambda: p(N, "int64")]
    text = lambda *shapes: f(*shapes, dtype="int32")
    sparse = lambda name: ((name + "_indices", f([N, 2], dtype="int64")), (name + "_values", text([N])), (name + "_shape", shape))
    every("SetSize", *sparse("set"))
    every("SparseToSparseSetOperation", *sparse("set1"), *sparse("set2"), set_operation="union")
    every("DenseToSparseSetOperation", ("set1", text([2, 3], N)), *sparse("set2"), set_operation="union")
    every("DenseToDenseSetOperation", ("set1", text([2, 3], N)), ("set2", text([2, 4], N)), set_operation="union")
    scores = ("inputs", f([6, 2, 5], [N, N, 5], N))
    lengths = ("sequence_length", f([2], [N], dtype="int32"))
    every("CTCLoss", scores, ("labels_indices", f([N, 2], dtype="int64")), ("labels_values", f([N], dtype="int32")), lengths)
    every("CTCGreedyDecoder", scores, lengths), every("CTCBeamSearchDecoder", scores, lengths, beam_width=4, top_paths=2)
    classes = f([4, 2], [N, 2], N, dtype="int64")
    for op in ("UniformCandidateSampler", "LogUniformCandidateSampler", "AllCandidateSampler"):
        range_max = dict() if op == "AllCandidateSampler" else dict(range_max=9)
        every(op, ("true_classes", classes), num_true=2, num_sampled=3, unique=True, **range_max)
    for op in ("FixedUnigramCandidateSampler", "LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler"):
        every(op, ("true_classes", classes), num_true=2, num_sampled=3, unique=True, range_max=9)
    every("ComputeAccidentalHits", ("true_classes", classes), ("sampled_candidates", f([3], [N], dtype="int64")), num_true=2)
    tag = c("tag", "string")
    raw.AudioSummary(tag=tag, tensor=p([N, 5]), sample_rate=8.0), raw.AudioSummaryV2(tag=tag, tensor=p([N, 5]), sample_rate=p([]))
    raw.ImageSummary(tag=tag, tensor=p([N, 3, 3, 1])), raw.TensorSummary(tensor=p([3])), raw.TensorSummaryV2(tag=tag, tensor=p([3]), serialized_summary_metadata=tag)


def pictures():
    shapes = f([2, 8, 9, 3], [N, N, 9, N], N)
    every("RGBToHSV", ("images", shapes)), every("HSVToRGB", ("images", shapes))
    every("AdjustContrastv2", ("images", shapes), ("contrast_factor", f([])))
    every("AdjustHue", ("images", shapes), ("delta", f([]))), every("AdjustSaturation", ("images", shapes), ("scale", f([])))
    every("DrawBoundingBoxes", ("images", shapes), ("boxes", f([2, N, 4])))
    every("DrawBoundingBoxesV2", ("images", shapes), ("boxes", f([2, N, 4])), ("colors", f([N, 3])))
    size = [lambda: c([4, 5]), lambda: p([2], "int32"), lambda: some([N, 3]), lambda: p(N, "int32")]
    every("ResizeArea", ("images", shapes), ("size", size)), every("ResizeBicubic", ("images", shapes), ("size", size))
    every("ResizeBicubicGrad", ("grads", f([2, 4, 4, 3])), ("original_image", shapes))
    every("CropAndResize", ("image", shapes), ("boxes", f([5, 4], [N, 4], N)), ("box_ind", [lambda: p([N], "int32")]), ("crop_size", size))
    every("CropAndResizeGradImage", ("grads", shapes), ("boxes", f([5, 4])), ("box_ind", [lambda: p([5], "int32")]),
          ("image_size", [lambda: c([2, 3, 4, 5]), lambda: some([N, 3, 4, N]), lambda: p(N, "int32")]), T="float32")
    every("CropAndResizeGradBoxes", ("grads", shapes), ("image", shapes), ("boxes", f([5, 4], [N, 4], N)), ("box_ind", [lambda: p([N], "int32")]))
    scored = (("boxes", f([N, 4])), ("scores", f([N])), ("max_output_size", [lambda: c(3), lambda: p([], "int32")]))
    number = lambda *names: tuple((name, f([])) for name in names)
    every("NonMaxSuppression", *scored), every("NonMaxSuppressionV2", *scored, *number("iou_threshold"))
    every("NonMaxSuppressionV3", *scored, *number("iou_threshold", "score_threshold"))
    every("NonMaxSuppressionWithOverlaps", ("overlaps", f([N, N])), *scored[1:], *number("overlap_threshold", "score_threshold"))
    for pads in (False, True):
        every("NonMaxSuppressionV4", *scored, *number("iou_threshold", "score_threshold"), pad_to_max_output_size=pads)
        every("NonMaxSuppressionV5", *scored, *number("iou_threshold", "score_threshold", "soft_nms_sigma"), pad_to_max_output_size=pads)
    file = p([], "string")
    for op in ("DecodeJpeg", "DecodePng", "DecodeBmp"):
        getattr(raw, op)(contents=file), getattr(raw, op)(contents=file, channels=3)
    raw.DecodeAndCropJpeg(contents=file, crop_window=c([1, 2, 3, 4])), raw.DecodeAndCropJpeg(contents=file, crop_window=p([4], "int32"), channels=1)
    raw.DecodeGif(contents=file), raw.DecodeImage(contents=file), raw.ExtractJpegShape(contents=file), raw.EncodeJpeg(image=p([N, N, 3], "uint8"))
    every("EncodePng", ("image", f([3, 4, 3], [5, N, N, N], N, dtype="uint8")))


def files():
    raw.ReadFile(filename=p([], "string")), raw.MatchingFiles(pattern=p([], "string")), raw.MatchingFiles(pattern=p([3], "string"))
    old_queue, queue = raw.FIFOQueue(component_types=["string"]), raw.FIFOQueueV2(component_types=["string"])
    raw.WholeFileReaderV2(), raw.IdentityReaderV2(), raw.TFRecordReaderV2()
    raw.FixedLengthRecordReaderV2(record_bytes=3)
    old, reader = raw.WholeFileReader(), raw.TextLineReaderV2()
    raw.ReaderRead(reader_handle=old, queue_handle=old_queue), raw.ReaderReadV2(reader_handle=reader, queue_handle=queue)
    raw.ReaderReadUpTo(reader_handle=old, queue_handle=old_queue, num_records=p([], "int64"))
    raw.ReaderReadUpToV2(reader_handle=reader, queue_handle=queue, num_records=p([], "int64"))
    raw.ReaderNumRecordsProduced(reader_handle=old), raw.ReaderNumRecordsProducedV2(reader_handle=reader)
    raw.ReaderNumWorkUnitsCompleted(reader_handle=old), raw.ReaderNumWorkUnitsCompletedV2(reader_handle=reader)
    raw.ReaderSerializeState(reader_handle=old), raw.ReaderSerializeStateV2(reader_handle=reader)


def tables():
    keys = lambda *shapes: [lambda shape=shape: p(shape, "int64") for shape in shapes]
    held = dict(key_dtype="int64", value_dtype="float32")
    empty = lambda value: dict(empty_key=value(0), deleted_key=value(1), value_dtype="float32")
    made = [
        (raw.HashTableV2(**held), []), (raw.MutableHashTableV2(**held), []), (raw.MutableHashTableOfTensorsV2(value_shape=[N], **held), [2]),
        (raw.MutableDenseHashTableV2(**empty(lambda key: c(key, "int64"))), []),
        (raw.MutableDenseHashTableV2(value_shape=[3], **empty(lambda key: c([key, key], "int64"))), [3]),
        (raw.MutableDenseHashTableV2(value_shape=[3], **empty(lambda key: p(N, "int64"))), [3]),
    ]
    for table, shape in made:
        every("LookupTableFindV2", ("table_handle", [lambda: table]), ("keys", keys([4, 2], [N, 2], N)), ("default_value", f(shape)))
        raw.LookupTableExportV2(table_handle=table, Tkeys="int64", Tvalues="float32"), raw.LookupTableSizeV2(table_handle=table)
    old = raw.HashTable(**held)
    raw.MutableHashTable(**held), raw.MutableHashTableOfTensors(**held), raw.MutableDenseHashTable(empty_key=c(0, "int64"), value_dtype="float32")
    raw.LookupTableFind(table_handle=old, keys=p([2], "int64"), default_value=p([]))
    raw.LookupTableExport(table_handle=old, Tkeys="int64", Tvalues="float32"), raw.LookupTableSize(table_handle=old)


def lists():
    shapes = [lambda: c([2, 3]), lambda: c(-1), lambda: p([2], "int32"), lambda: some([N, 3])]
    for shape in shapes:
        made = lambda: raw.EmptyTensorList(element_shape=c(-1), max_num_elements=c(-1), element_dtype="float32")
        raw.TensorListReserve(element_shape=shape(), num_elements=c(2), element_dtype="float32")
        raw.TensorListPopBack(input_handle=made(), element_shape=shape(), element_dtype="float32")
        raw.TensorListGetItem(input_handle=made(), index=c(0), element_shape=shape(), element_dtype="float32")
        raw.TensorListStack(input_handle=made(), element_shape=shape(), element_dtype="float32")
        raw.TensorListStack(input_handle=made(), element_shape=shape(), element_dtype="float32", num_elements=4)
        raw.TensorListGather(input_handle=made(), indices=c([0, 1]), element_shape=shape(), element_dtype="float32")
        raw.TensorListConcatV2(input_handle=made(), element_shape=shape(), leading_dims=p([N], "int64"), element_dtype="float32")
        raw.TensorListFromTensor(tensor=p([5, 2, 3]), element_shape=shape())
        raw.TensorListScatter(tensor=p([5, 2, 3]), indices=p([5], "int32"), element_shape=shape())
        raw.TensorListScatterV2(tensor=p([5, 2, 3]), indices=p([5], "int32"), element_shape=shape(), num_elements=c(-1))
    raw.TensorListConcat(input_handle=made(), element_dtype="float32"), raw.TensorListConcat(input_handle=made(), element_dtype="float32", element_shape=[N, 3])
    raw.TensorListPushBack(input_handle=made(), tensor=p([2])), raw.TensorListLength(input_handle=made())
    raw.TensorListSetItem(input_handle=made(), index=c(0), item=p([2])), raw.TensorListResize(input_handle=made(), size=c(3))
    raw.TensorListConcatLists(input_a=made(), input_b=made(), element_dtype="float32")
    raw.TensorListElementShape(input_handle=made(), shape_type="int32")
    raw.TensorListScatterIntoExistingList(input_handle=made(), tensor=p([1, 2]), indices=c([0]))
    raw.TensorListSplit(tensor=p([4, 2]), element_shape=c(-1), lengths=p([2], "int64"))
    optional = raw.OptionalFromValue(components=[p([2]), p([])])
    raw.OptionalHasValue(optional=optional), raw.OptionalNone()
    raw.OptionalGetValue(optional=optional, output_types=["float32", "float32"], output_shapes=[[2], N])


def datasets():
    """Each op of datasets and iterators, with whatever its definition asks for."""
    attrs = {
        "output_types": ["float32", "int64"], "Toutput_types": ["float32", "int64"], "output_shapes": [[2, N], N], "shared_name": "",
        "container": "", "serialized_options": "", "metadata": "", "num_experiments": 1, "sparse_keys": [], "sparse_types": [],
        "dense_keys": ["a", "b"], "dense_shapes": [[2], [3]],
    }
    dataset = raw.RangeDataset(start=c(0, "int64"), stop=c(3, "int64"), step=c(1, "int64"), output_types=["int64"], output_shapes=[[]])
    iterator = raw.IteratorV2(shared_name="", container="", output_types=["int64"], output_shapes=[[]])
    given = {types_pb2.DT_VARIANT: dataset, types_pb2.DT_RESOURCE: iterator, types_pb2.DT_STRING: c("", "string"), types_pb2.DT_BOOL: c(True, "bool")}
    with open(TABLE) as table:
        names = [line.split("(")[0] for line in table if re.match(r"\w*(Dataset|Iterator|Dummy)", line) and ": func" not in line]
    for name in names:
        definition = op_def_registry.get(name)
        inferred = [arg.type_list_attr for arg in definition.input_arg]
        arguments = {attr.name: attrs[attr.name] for attr in definition.attr if attr.name in attrs and attr.name not in inferred}
        for arg in definition.input_arg:
            if arg.type_list_attr:
                arguments[arg.name] = [p([5, 2, N]), c(0, "int64") if name.startswith("PaddedBatch") else p([5, 3], "int64")]
            elif arg.number_attr:
                arguments[arg.name] = [dataset] * 2 if arg.type == types_pb2.DT_VARIANT else [c([-1], "int64")] * 2
            else:
                arguments[arg.name] = given.get(arg.type, c(1, "int64"))
        if "CSV" in name:
            arguments["record_defaults"] = [c([0.0], "float32"), c([0], "int64")]
            arguments.update({each: c([0, 1], "int64") for each in ("select_cols", "exclude_cols") if each in arguments})
        if "transformations" in arguments:
            arguments["transformations"] = c(["Map"], "string")
        if "row_shape" in arguments:
            arguments["row_shape"] = c([2, -1], "int64")
        if name.startswith("PaddedBatch"):
            arguments["padding_values"] = [c(0.0, "float32"), c(0, "int64")]
        getattr(raw, name)(**arguments)


def arithmetic():
    """What is computed from shapes, and becomes one."""
    x = p([6, N, 4])
    shape = raw.Shape(input=x)
    fill = lambda dims: raw.Fill(dims=dims, value=p([]))
    fill(shape[1:]), fill(raw.Slice(input=shape, begin=c([1]), size=c([2])))
    fill(raw.ConcatV2(values=[shape[:1], c([7])], axis=c(0))), fill(raw.Pack(values=[shape[0], shape[1], shape[2]], axis=0))
    fill(raw.Pack(values=[shape[0] * 2, shape[2] - 1], axis=0)), fill(raw.Pack(values=[shape[2] // 3, shape[0] + 1], axis=0))
    fill(raw.GatherV2(params=shape, indices=c([2, 0]), axis=c(0)))
    fill(tf.cast(shape, "int64")), fill(raw.ExpandDims(input=shape[2], axis=c(0)))
    whole = raw.Shape(input=p([6, 5, 4]))
    fill(raw.Pack(values=[raw.Prod(input=whole, axis=c([0]), keep_dims=False), whole[1]], axis=0))
    fill(raw.Maximum(x=whole, y=c(5))), fill(raw.Minimum(x=whole, y=c([1, 2, 9])))
    fill(raw.Unpack(value=whole, num=3)[0:1]), fill(raw.Range(start=c(2), limit=c(5), delta=c(1)))
    fill(raw.Pack(values=[raw.Size(input=p([3, 4])), raw.Rank(input=p([3, 4]))], axis=0))
    fill(raw.Reshape(tensor=whole, shape=c([-1]))), fill(raw.Squeeze(input=raw.ExpandDims(input=whole, axis=c(0)), axis=[0]))
    raw.Reshape(tensor=p([N, 4]), shape=raw.Pack(values=[raw.Shape(input=p([N]))[0], c(-1)], axis=0))
    raw.Reshape(tensor=x, shape=raw.Fill(dims=c([1]), value=c(-1)))
    tf.reduce_sum(x, axis=tf.range(1, tf.rank(x)))
    tf.reduce_mean(p([N, 7])), tf.transpose(p([2, N, 4])), tf.squeeze(p([1, 3]))


def uncommon():
    rows = [p([N, 3]), p([2], "int32"), p([2, 3])]
    for op in "InplaceUpdate InplaceAdd InplaceSub".split():
        getattr(raw, op)(x=rows[0], i=rows[1], v=rows[2])
    raw.Empty(shape=c([2, 3]), dtype="float32"), raw.Empty(shape=p([2], "int32"), dtype="float32")
    every("EnsureShape", ("input", f([2, N], N, [N, 3])), shape=[2, 3]), every("EnsureShape", ("input", f([2, N])), shape=[N, 3])
    every("UnravelIndex", ("indices", f([], [5], N, dtype="int32")), ("dims", f([3], [N], dtype="int32")))
    raw.DataFormatDimMap(x=p([N], "int32")), raw.DataFormatVecPermute(x=p([4, 2], "int32"))
    every("ApproximateEqual", ("x", f([2, 3], [N, 3], N)), ("y", f([2, 3], [2, N], N)))
    every("ClipByValue", ("t", f([2, N], N)), ("clip_value_min", f([])), ("clip_value_max", f([], [2, 3])))
    every("BesselI0e", ("x", f([2, N], N))), every("BesselI1e", ("x", f([2, N], N)))
    for padding in ("SAME", "VALID"):
        some = dict(strides=[1, 2, 1, 1], rates=[1, 1, 2, 1], padding=padding)
        every("Dilation2D", ("input", f([2, 8, 9, 3], [N, 8, N, N], N)), ("filter", f([3, 2, 3], [N, 2, 3], N)), **some)
        for op in "Dilation2DBackpropInput Dilation2DBackpropFilter".split():
            every(op, ("input", f([2, 8, 9, 3], N)), ("filter", f([3, 2, 3], N)), ("out_backprop", f(N)), **some)
        every("ExtractVolumePatches", ("input", f([2, 8, 9, 7, 3], [N, 8, 9, N, 3], [2, 8, 9, 7, N])), ksizes=[1, 2, 3, 1, 1],
              strides=[1, 2, 1, 3, 1], padding=padding)
        sizes = [lambda: c([1, 2, 3, 1]), lambda: p([4], "int32")]
        every("MaxPoolV2", ("input", f([2, 8, 9, 3], [N, 8, N, 3])), ("ksize", sizes), ("strides", sizes), padding=padding)
        three = (("orig_input", f([2, 8, 9, 3], [N, 8, N, 3])), ("orig_output", f(N)), ("grad", f(N)))
        for op in "MaxPoolGradV2 MaxPoolGradGradV2".split():
            every(op, *three, ("ksize", sizes), ("strides", sizes), padding=padding)
        every("MaxPoolGradGrad", *three, ksize=[1, 2, 3, 1], strides=[1, 2, 2, 1], padding=padding)
    for op in "FractionalMaxPool FractionalAvgPool".split():
        every(op, ("value", f([2, 8, 9, 3], [N, 8, N, 3])), pooling_ratio=[1.0, 1.4, 1.5, 1.0])
    sequences = (("row_pooling_sequence", f([5], dtype="int64")), ("col_pooling_sequence", f([5], dtype="int64")))
    every("FractionalMaxPoolGrad", ("orig_input", f([2, 8, N, 3])), ("orig_output", f(N)), ("out_backprop", f(N)), *sequences)
    every("FractionalAvgPoolGrad", ("orig_input_tensor_shape", [lambda: c([2, 8, 9, 3], "int64"), lambda: p([4], "int64")]),
          ("out_backprop", f(N)), *sequences)
    every("DeepCopy", ("x", f([2, N], N)))
    raw.GenerateVocabRemapping(new_vocab_file=c("", "string"), old_vocab_file=c("", "string"), new_vocab_offset=0, num_new_vocab=4)
    every("LoadAndRemapMatrix", ("ckpt_path", [lambda: c("", "string")]), ("old_tensor_name", [lambda: c("", "string")]),
          ("row_remapping", f([4], [N], dtype="int64")), ("col_remapping", f([0], [3], dtype="int64")),
          ("initializing_values", f([N])), num_rows=4, num_cols=3)
    every("MatrixSolveLs", ("matrix", f([2, 4, 3], [N, 4, N])), ("rhs", f([2, 4, 5], [2, N, 5])), ("l2_regularizer", [lambda: p([], "float64")]))
    every("SparseMatMul", ("a", f([2, 3], [N, 3], N)), ("b", f([3, 4], [N, N], N)))
    every("EuclideanNorm", ("input", f([2, N, 3], N)), ("axis", [lambda: c([1]), lambda: p([1], "int32")]))
    every("UniqueV2", ("x", f([2, 3], N)), ("axis", [lambda: p([1], "int64")])), every("UniqueWithCountsV2", ("x", f([2, 3], N)), ("axis", [lambda: p([1], "int64")]))
    raw.SparseCross(indices=[p([N, 2], "int64")], values=[p([N], "string")], shapes=[p([2], "int64")], dense_inputs=[p([N, 3], "string")],
                    hashed_output=True, num_buckets=5, hash_key=1, out_type="int64", internal_type="int64")
    raw.ScatterNdNonAliasingAdd(input=p([N, 3]), indices=p([4, 1], "int32"), updates=p([4, 3]))
    barrier = raw.Barrier(component_types=["float32"], shapes=[[]])
    raw.BarrierTakeMany(handle=barrier, num_elements=c(2), component_types=["float32"])
    raw.BarrierReadySize(handle=barrier), raw.BarrierIncompleteSize(handle=barrier)
    old = [raw.VariableV2(shape=[4, 3], dtype="float32") for _ in range(4)]
    given = dict(lr=p([]), rho=p([]), epsilon=p([]), grad=p([2, 3]), indices=p([2], "int32"))
    raw.SparseApplyAdadelta(var=old[0], accum=old[1], accum_update=old[2], **given)
    raw.SparseApplyCenteredRMSProp(var=old[0], mg=old[1], ms=old[2], mom=old[3], momentum=p([]), **given)


def serialized():
    """Sparse tensors as one tensor, datasets as graphs, and the scripts of characters."""
    every("UnicodeScript", ("input", f([N, 3], N, dtype="int32")))
    for op in "SerializeSparse", "SerializeManySparse":
        every(op, ("sparse_indices", f([4, 3], N, dtype="int64")), ("sparse_values", f([4], N)), ("sparse_shape", f([3], N, dtype="int64")))
    every("DeserializeSparse", ("serialized_sparse", f([3], [5, 3], N, dtype="string")), dtype=tf.float32)
    every("DeserializeManySparse", ("serialized_sparse", f([5, 3], N, dtype="string")), dtype=tf.float32)
    for op in "AddSparseToTensorsMap", "AddManySparseToTensorsMap":
        every(op, ("sparse_indices", f([4, 3], N, dtype="int64")), ("sparse_values", f([4], N)), ("sparse_shape", f([3], N, dtype="int64")))
    every("TakeManySparseFromTensorsMap", ("sparse_handles", f([5], N, dtype="int64")), dtype=tf.float32)
    dataset = raw.RangeDataset(start=c(0, "int64"), stop=c(3, "int64"), step=c(1, "int64"), output_types=["int64"], output_shapes=[[]])
    raw.DatasetToGraph(input_dataset=dataset), raw.DatasetToGraphV2(input_dataset=dataset)
    for make, look in ((raw.StatsAggregatorHandle, raw.StatsAggregatorSummary), (raw.ExperimentalStatsAggregatorHandle, raw.ExperimentalStatsAggregatorSummary)):
        look(iterator=make())


def ragged():
    splits = f([4], [N], N, dtype="int64")
    every("RaggedRange", *((name, f([], [3], [N], N)) for name in ("starts", "limits", "deltas")))
    for nested in (1, 2):
        given = [splits[0]] * nested
        for values in f([6, 3], [N, 3], [6], N):
            for indices, rank in ((p([5], "int64"), 1), (p([2, N], "int64"), 2), (p([], "int64"), 0)):
                raw.RaggedGather(
                    params_nested_splits=[one() for one in given], params_dense_values=values(), indices=indices,
                    OUTPUT_RAGGED_RANK=nested + rank - 1,
                )
            raw.RaggedTensorToSparse(rt_nested_splits=[one() for one in given], rt_dense_values=values())
            for batched in (False, True):
                raw.RaggedTensorToVariant(rt_nested_splits=[one() for one in given], rt_dense_values=values(), batched_input=batched)
        asked = [c(-1), p(N, "int32"), c([-1] * (nested + 1)), c([3] + [-1] * nested), p([nested + 1], "int32"), p([nested + 2], "int32")]
        for shape in [*asked, c([-1] * (nested + 2)), c([2] * (nested + 1) + [3]), some([3] + [None] * nested)]:
            for values in f([6], [N, 3], [6, N], N):
                try:
                    raw.RaggedTensorToTensor(
                        shape=shape, values=values(), default_value=p([]), row_partition_tensors=[one() for one in given],
                        row_partition_types=["ROW_SPLITS"] * nested,
                    )
                except ValueError as error:
                    if "are incompatible" not in str(error):
                        raise
    for one in splits:
        raw.RaggedTensorToVariant(rt_nested_splits=[one()], rt_dense_values=p([N, 3]), batched_input=True)
    for values in f([6, 3], [N], N):
        raw.RaggedTensorToVariant(rt_nested_splits=[], rt_dense_values=values(), batched_input=True)
    rows = [p([4], "int64"), p([6], "int64")]
    raw.RaggedTensorToTensor(
        shape=c(-1), values=p([6]), default_value=p([]), row_partition_tensors=[p([], "int64"), rows[1]],
        row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
    )
    for given in (-1, 0, 1):
        variant = p(N, "variant")
        raw.RaggedTensorFromVariant(encoded_ragged=variant, input_ragged_rank=given, output_ragged_rank=2, Tvalues="float32", Tsplits="int64")
    for shape in (c([6, 3]), p([2], "int32"), p(N, "int32")):
        raw.RaggedTensorToVariantGradient(encoded_ragged_grad=p(N, "variant"), row_splits=rows[0], dense_values_shape=shape, Tvalues="float32")


def less_common():
    """Windows of images, functions of matrices, clusters, temporary variables."""
    sizes = [lambda: c([2, 3]), lambda: p([2], "int32"), lambda: p(N, "int32")]
    for op in "ExtractGlimpse ExtractGlimpseV2".split():
        every(op, ("input", f([2, 8, 9, 3], [N, 8, N, N], N)), ("size", sizes), ("offsets", f([2, 2], [N, 2], N)))
    matrices = f([2, 3, 3], [N, 3, N], N)
    every("MatrixSquareRoot", ("input", matrices)), every("MatrixLogarithm", ("input", f([2, 3, 3], [N, 3, N], N, dtype="complex64")))
    rhs = ("rhs", f([2, 5, 4], [2, N, 4], [N, N, N], N))
    every("TridiagonalSolve", ("diagonals", f([2, 3, 5], [N, 3, N], N)), rhs)
    every("TridiagonalMatMul", *((name, f([2, 1, 5], N)) for name in ("superdiag", "maindiag", "subdiag")), rhs)
    raw.NearestNeighbors(points=p([4, 2]), centers=p([3, 2]), k=c(2, "int64"))
    raw.KMC2ChainInitialization(distances=p([4]), seed=c(2, "int64"))
    raw.KmeansPlusPlusInitialization(points=p([4, 2]), num_to_sample=c(2, "int64"), seed=c(2, "int64"), num_retries_per_sample=c(2, "int64"))
    temporary = raw.TemporaryVariable(shape=[2, 3], dtype="float32", var_name="t")
    raw.DestroyTemporaryVariable(ref=temporary, var_name="t")
def recurrent():
    """Recurrent cells, and numbers that are rounded as quantization would."""
    every("FakeQuantWithMinMaxArgs", ("inputs", f([2, N], N)))
    every("FakeQuantWithMinMaxArgsGradient", ("gradients", f([2, 3], N)), ("inputs", f([2, N])))
    for kind, ends in (("", f([])), ("PerChannel", f([3], [N], N))):
        ends = [("min", ends), ("max", ends[:1])]
        every(f"FakeQuantWithMinMaxVars{kind}", ("inputs", f([2, 3], [2, N], N)), *ends)
        every(f"FakeQuantWithMinMaxVars{kind}Gradient", ("gradients", f([2, 3], N)), ("inputs", f([2, N], N)), *ends)
    ends = [("input_min", f([])), ("input_max", f([]))]
    every("QuantizeAndDequantize", ("input", f([2, N], N))), every("QuantizeAndDequantizeV2", ("input", f([2, N], N)), *ends)
    every("QuantizeAndDequantizeV3", ("input", f([2, N], N)), *ends, ("num_bits", f([], dtype="int32")))
    weights = [("w", f([6, 8])), ("wci", f([2])), ("wcf", f([2])), ("wco", f([2]))]
    inputs = [("x", f([3, 4], [N, 4], N)), ("cs_prev", f([3, 2], [N, N], N)), ("h_prev", f([3, 2])), *weights, ("b", f([8]))]
    every("LSTMBlockCell", *inputs)
    after = [(name, f([3, 2])) for name in "i cs f o ci co cs_grad h_grad".split()]
    every("LSTMBlockCellGrad", *inputs, *after, use_peephole=False)
    inputs = [("seq_len_max", f([], dtype="int64")), ("x", f([5, 3, 4], [N, 3, N], N)), ("cs_prev", f([3, 2], N)), ("h_prev", f([3, 2]))]
    inputs += [*weights, ("b", f([8], [N], N))]
    after = [(name, f([5, 3, 2])) for name in "i cs f o ci co h cs_grad h_grad".split()]
    for version in ("", "V2"):
        every(f"BlockLSTM{version}", *inputs), every(f"BlockLSTMGrad{version}", *inputs, *after, use_peephole=False)
    inputs = [("x", f([3, 4], [N, 4], N)), ("h_prev", f([3, 2], [N, N], N)), ("w_ru", f([6, 4], N)), ("w_c", f([6, 2])), ("b_ru", f([4])), ("b_c", f([2]))]
    every("GRUBlockCell", *inputs), every("GRUBlockCellGrad", *inputs, *((name, f([3, 2])) for name in ("r", "u", "c", "d_h")))


groups = (
    elementwise, forwarding, making, reducing, arranging, indexing, images, state, strings, pictures, sets, files, tables, lists, arithmetic,
    datasets, complex_numbers, uncommon, serialized,
    ragged, less_common,
    datasets, complex_numbers, uncommon, serialized, recurrent,
)  # fmt: skip
for group in groups:
    group()

nodes, lines = graph.as_graph_def().node, []
for node in nodes:
    outputs = graph.get_operation_by_name(node.name).outputs
    shapes = [None if output.shape.rank is None else output.shape.as_list() for output in outputs]
    for name in [name for name in node.attr if name.startswith("_")]:
        del node.attr[name]
    text = json.dumps(json_format.MessageToDict(node), separators=(",", ":"), sort_keys=True)
    lines.append(f'{{"node":{text},"shapes":{json.dumps(shapes, separators=(",", ":"))}}}')
os.makedirs(os.path.dirname(FILE), exist_ok=True)
with open(FILE, "w") as file:
    file.write("[\n" + ",\n".join(lines) + "\n]\n")
print(len(lines), "nodes")
