"""Numbers, one by one: functions of them, comparisons, strings of them; complex numbers; arithmetic on shapes."""

import tensorflow as tf

from .nodes import N, c, every, f, p, raw


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
