"""Ragged tensors as variants and as elements of datasets; zeros and sums of them."""

from recorder.sessions import step, tf

raw = tf.raw_ops


def parts(variant, rank, name, given=-1, values=tf.float32, splits=tf.int64):
    made = raw.RaggedTensorFromVariant(
        encoded_ragged=variant, input_ragged_rank=given, output_ragged_rank=rank, Tvalues=values, Tsplits=splits, name=name
    )
    return [*made.output_nested_splits, made.output_dense_values]


outer, inner = tf.constant([0, 2, 2, 3], tf.int64), tf.constant([0, 1, 4, 6], tf.int64)
values = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
STEPS = []
for dtype in (tf.float32, tf.int32, tf.string, tf.bool):
    name = dtype.name
    own = tf.as_string(values) if dtype == tf.string else tf.cast(values, dtype)
    whole = raw.RaggedTensorToVariant(rt_nested_splits=[outer, inner], rt_dense_values=own, batched_input=False)
    rows = raw.RaggedTensorToVariant(rt_nested_splits=[outer, inner], rt_dense_values=own, batched_input=True)
    STEPS.append(step(parts(whole, 2, f"{name}/whole", values=dtype)))
    STEPS.append(step(parts(rows, 2, f"{name}/rows", values=dtype)))
    STEPS.append(step(parts(rows, 2, f"{name}/given", given=1, values=dtype)))

narrow = raw.RaggedTensorToVariant(
    rt_nested_splits=[tf.constant([0, 3, 3, 5], tf.int32)], rt_dense_values=tf.reshape(tf.range(10), [5, 2]), batched_input=True
)
STEPS.append(step(parts(narrow, 1, "narrow", values=tf.int32, splits=tf.int32)))
flat = raw.RaggedTensorToVariant(rt_nested_splits=[], rt_dense_values=values, batched_input=True)
STEPS.append(step(parts(flat, 0, "flat")))
one = raw.RaggedTensorToVariant(rt_nested_splits=[], rt_dense_values=values, batched_input=False)
STEPS.append(step(parts(one, 0, "one", given=0)))

# What does not fit.
whole = raw.RaggedTensorToVariant(rt_nested_splits=[outer, inner], rt_dense_values=values, batched_input=False)
rows = raw.RaggedTensorToVariant(rt_nested_splits=[outer, inner], rt_dense_values=values, batched_input=True)
STEPS.append(step(parts(whole, 1, "wrong/rank")[-1:]))
STEPS.append(step(parts(rows, 2, "wrong/values", values=tf.int32)[-1:]))
STEPS.append(step(parts(rows, 2, "wrong/splits", splits=tf.int32)[-1:]))
STEPS.append(step(parts(raw.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=tf.float32), 1, "wrong/list")[-1:]))

# As elements of datasets.
slices = raw.TensorSliceDataset(components=[rows], output_shapes=[[]])
batches = raw.BatchDatasetV2(
    input_dataset=slices, batch_size=tf.constant(2, tf.int64), drop_remainder=False, output_types=[tf.variant], output_shapes=[[None]]
)
for kind, dataset, rank, shape in [("row", slices, 1, []), ("batch", batches, 2, [None])]:
    like = {"output_types": [tf.variant], "output_shapes": [shape]}
    handle = raw.IteratorV2(shared_name=kind, container="", **like)
    begin = raw.MakeIterator(dataset=dataset, iterator=handle, name=f"{kind}/begin")
    (element,) = raw.IteratorGetNext(iterator=handle, name=f"{kind}/next", **like)
    STEPS.append(step(targets=[begin]))
    taken = parts(element, rank, f"{kind}/parts")
    STEPS += [step(taken) for _ in range(4 if kind == "row" else 3)]

# Gradients.
zeros, twice = raw.ZerosLike(x=whole), raw.AddN(inputs=[whole, whole])
STEPS += [step(parts(zeros, 2, "zeros")), step(parts(twice, 2, "twice"))]
back = raw.RaggedTensorToVariantGradient(encoded_ragged_grad=twice, row_splits=outer, dense_values_shape=[6], Tvalues=tf.float32)
STEPS.append(step([back]))
