"""What makes fewer of many: reductions, products of matrices, decompositions, sparse tensors, losses."""

import itertools

from .nodes import N, c, every, f, p, raw


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
