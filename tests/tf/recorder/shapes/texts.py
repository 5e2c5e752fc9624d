"""Strings, sets, ragged tensors, and what is serialized."""

import tensorflow as tf

from .nodes import N, c, every, f, p, raw, some


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
