"""What makes, arranges and picks elements, and control flow, which hands them on."""

import itertools

import tensorflow as tf

from .nodes import N, c, every, f, p, raw, some, tf1


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
