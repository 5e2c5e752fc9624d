"""Special functions, matrices and their spectra, distributions, sparse matrices."""

from .nodes import N, c, every, f, p, raw


def special_functions():
    for op in ("BesselI0 BesselI1 BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1"
               " Dawsn Expint FresnelCos FresnelSin Spence").split():  # fmt: skip
        every(op, ("x", f([N, 3], N)))
    ids = (("indices", f([5], N, dtype="int32")), ("segment_ids", f([5], N, dtype="int32")))
    for kind in "Sum Mean SqrtN".split():
        every(f"SparseSegment{kind}GradV2", ("grad", f([4, 3], [N, 3], N)), *ids,
              ("dense_output_dim0", [lambda: c(7), lambda: p([], "int32")]))  # fmt: skip


def matrices():
    square = f([2, 3, 3], [N, 3, N], N)
    every("SelfAdjointEig", ("input", square)), every("MatrixExponential", ("input", square))
    every("CholeskyGrad", ("l", square), ("grad", square))
    for wants in (True, False):
        every("Eig", ("input", square), Tout="complex64", compute_v=wants)
    every("IsotonicRegression", ("input", f([2, 3], [N, 3], N)))
    every("BandedTriangularSolve", ("matrix", f([2, 3, 4], [4, 2, N], [N, N, N], N)), ("rhs", f([4, 5], [2, 4, 5], [1, N, 5], N)))
    every("BatchMatMulV3", ("x", f([2, 3, 4], [N, 4], N)), ("y", f([4, 5], [2, 4, N], N)), Tout="float32")


def distributions():
    sizes = [lambda: c([2, 3]), lambda: p([2], "int32"), lambda: p([N], "int32"), lambda: p(N, "int32")]
    long = [lambda: c([2, 3], "int64"), lambda: p([2], "int64"), lambda: p(N, "int64")]
    seed = ("seed", [lambda: c([1, 2])])
    source = [("key", [lambda: p([1], "uint64")]), ("counter", [lambda: p([2], "uint64")]), ("alg", [lambda: c(1)])]
    every("StatelessRandomGammaV2", ("shape", sizes), seed, ("alpha", f([3], [])))
    every("StatelessRandomGammaV3", ("shape", sizes), *source, ("alpha", f([3], [])))
    every("StatelessRandomPoisson", ("shape", sizes), seed, ("lam", f([3], [])), dtype="float32")
    every("StatelessRandomBinomial", ("shape", sizes), seed, ("counts", f([3], [])), ("probs", f([3])))
    every("StatelessParameterizedTruncatedNormal", ("shape", sizes), seed, *((name, f([3])) for name in ("means", "stddevs", "minvals", "maxvals")))
    every("StatelessShuffle", ("value", f([2, N], N)), *source)
    raw.StatelessRandomGetKeyCounterAlg(seed=c([1, 2]))
    every("NonDeterministicInts", ("shape", long))
    every("RandomIndexShuffle", ("index", f([], [5], N, dtype="int32")), ("seed", f([3], [5, 3], dtype="uint32")), ("max_index", f([], [5], dtype="int32")))
    every("SobolSample", ("dim", [lambda: c(3), lambda: p([], "int32")]), ("num_results", [lambda: c(5), lambda: p([], "int32")]), ("skip", [lambda: c(0)]))
    generator = raw.VarHandleOp(dtype="int64", shape=[3])
    algorithm = ("algorithm", [lambda: c(1, "int64")])
    state = ("resource", [lambda: generator])
    for op in "StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt".split():
        every(op, state, algorithm, ("shape", long))
    every("StatefulUniformInt", state, algorithm, ("shape", long), ("minval", [lambda: c(0, "int64")]), ("maxval", [lambda: c(9, "int64")]))
    every("StatefulRandomBinomial", state, algorithm, ("shape", sizes), ("counts", f([3])), ("probs", f([3])))
    raw.RngReadAndSkip(resource=generator, alg=c(1), delta=c(3, "uint64"))
    raw.RngSkip(resource=generator, algorithm=c(1, "int64"), delta=c(3, "int64"))


def sparse_counts():
    size = ("size", [lambda: c(5), lambda: p([], "int32")])
    values = ("values", f([4], N, dtype="int32"))
    weights = ("weights", f([4], [0]))
    indices = ("indices", f([4, 2], [N, 1], N, dtype="int64"))
    shape = ("dense_shape", [lambda: c([3, 5], "int64"), lambda: p([2], "int64"), lambda: p([1], "int64"), lambda: p(N, "int64")])
    every("SparseBincount", indices, values, shape, size, weights)
    every("RaggedBincount", ("splits", f([4], N, dtype="int64")), values, size, weights)
    every("DenseCountSparseOutput", ("values", f([4], [2, N], N, dtype="int32")), weights, binary_output=False)
    every("SparseCountSparseOutput", indices, values, shape, weights, binary_output=False)
    every("RaggedCountSparseOutput", ("splits", f([4], N, dtype="int64")), values, weights, binary_output=False)
    every("RaggedFillEmptyRows", ("value_rowids", f([4], N, dtype="int64")), ("values", f([4], N)),
          ("nrows", [lambda: c(5, "int64"), lambda: p([], "int64")]), ("default_value", f([])))  # fmt: skip
    every("RaggedFillEmptyRowsGrad", ("reverse_index_map", f([4], N, dtype="int64")), ("grad_values", f([6])))
    first = [("a_indices", f([4, 2], N, dtype="int64")), ("a_values", f([4], N)), ("a_shape", f([2], dtype="int64"))]
    second = [("b_indices", f([3, 2], dtype="int64")), ("b_values", f([3])), ("b_shape", f([2], dtype="int64"))]
    for op in "SparseSparseMaximum SparseSparseMinimum".split():
        every(op, *first, *second)
    for op in "SparseReduceSumSparse SparseReduceMaxSparse".split():
        every(op, ("input_indices", f([4, 2], dtype="int64")), ("input_values", f([4])), ("input_shape", [lambda: c([3, 5], "int64")]),
              ("reduction_axes", [lambda: c([1])]))  # fmt: skip
    columns = dict(indices=[p([N, 2], "int64")], values=[p([N], "string")], shapes=[p([2], "int64")], dense_inputs=[p([N, 3], "string")])
    raw.SparseCrossV2(sep=c("_", "string"), **columns)
    for axis in (-1, 0):
        every("ApproxTopK", ("input", f([5, 6], [N, 6], N)), k=3, reduction_dimension=axis)
