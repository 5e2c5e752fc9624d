"""Sparse tensors as elements of datasets, and as strings; a dataset as a graph."""

from recorder.sessions import step, tf

raw = tf.raw_ops

indices = tf.constant([[0, 1], [1, 0], [1, 2], [3, 1]], tf.int64)
values = tf.constant([5.0, 6.0, 7.0, 8.0])
shape = tf.constant([4, 3], tf.int64)
STEPS = []
for form in (tf.string, tf.variant):
    name = form.name
    one = raw.SerializeSparse(sparse_indices=indices, sparse_values=values, sparse_shape=shape, out_type=form)
    many = raw.SerializeManySparse(sparse_indices=indices, sparse_values=values, sparse_shape=shape, out_type=form)
    whole = raw.DeserializeSparse(serialized_sparse=one, dtype=tf.float32, name=f"{name}/whole")
    rows = raw.DeserializeSparse(serialized_sparse=many, dtype=tf.float32, name=f"{name}/rows")
    STEPS += [step(list(whole)), step(list(rows))]
    wrong = raw.DeserializeSparse(serialized_sparse=one, dtype=tf.int32, name=f"{name}/wrong")
    STEPS.append(step([wrong.sparse_values]))
    spec = {"output_types": [form], "output_shapes": [[3]]}
    slices = raw.TensorSliceDataset(components=[many], output_shapes=[[3]])
    batches = raw.BatchDatasetV2(
        input_dataset=slices, batch_size=tf.constant(3, tf.int64), drop_remainder=False, output_types=[form],
        output_shapes=[[None, 3]],
    )
    for kind, dataset, of in [("row", slices, [3]), ("batch", batches, [None, 3])]:
        like = {"output_types": [form], "output_shapes": [of]}
        handle = raw.IteratorV2(shared_name=f"{name}/{kind}", container="", **like)
        begin = raw.MakeIterator(dataset=dataset, iterator=handle, name=f"{name}/{kind}/begin")
        (element,) = raw.IteratorGetNext(iterator=handle, name=f"{name}/{kind}/next", **like)
        parts = raw.DeserializeSparse(serialized_sparse=element, dtype=tf.float32, name=f"{name}/{kind}/parts")
        STEPS.append(step(targets=[begin]))
        STEPS += [step(list(parts)) for _ in range(5 if kind == "row" else 3)]

strings = raw.SerializeManySparse(sparse_indices=indices, sparse_values=values, sparse_shape=shape, out_type=tf.string)
STEPS.append(step(list(raw.DeserializeManySparse(serialized_sparse=strings, dtype=tf.float32, name="many"))))
flat = raw.DeserializeManySparse(serialized_sparse=strings[:0], dtype=tf.float32, name="none")
STEPS.append(step([flat.sparse_values]))

numbers = raw.RangeDataset(
    start=tf.constant(0, tf.int64), stop=tf.constant(3, tf.int64), step=tf.constant(1, tf.int64), output_types=[tf.int64],
    output_shapes=[[]],
)
graphs = [raw.DatasetToGraph(input_dataset=numbers), raw.DatasetToGraphV2(input_dataset=numbers)]
STEPS.append(step([tf.strings.regex_full_match(graph, "(?s).*RangeDataset.*_Retval.*") for graph in graphs]))
