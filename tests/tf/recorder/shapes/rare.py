"""Ops that few programs have, of all families."""

from .nodes import N, c, every, f, p, raw


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
