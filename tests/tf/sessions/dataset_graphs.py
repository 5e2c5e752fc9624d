"""Datasets as graphs: those of functions that touch state are refused unless the node says otherwise, and nodes of one device."""

from recorder.sessions import step, tf

raw = tf.raw_ops
data = tf.data.Dataset

numbers = data.range(4)
with tf.colocate_with(numbers._variant_tensor.op):
    doubled = numbers.map(lambda x: 2 * x)
again = raw.DatasetFromGraph(graph_def=raw.DatasetToGraph(input_dataset=doubled._variant_tensor))
made = raw.DatasetToSingleElement(
    dataset=raw.BatchDatasetV2(
        input_dataset=again, batch_size=tf.constant(4, tf.int64), drop_remainder=True, output_types=[tf.int64], output_shapes=[[4]]
    ),
    output_types=[tf.int64],
    output_shapes=[[4]],
)

counter = tf.get_variable("counter", (), tf.int32, tf.zeros_initializer(), use_resource=True)
counted = numbers.map(lambda x: counter.assign_add(1))._variant_tensor
random = numbers.map(lambda x: tf.random_uniform([]))._variant_tensor
shuffled = numbers.shuffle(4).map(lambda x: x + 1)._variant_tensor

STEPS = [
    step(made),
    step(targets=[raw.DatasetToGraph(input_dataset=counted).op]),
    step(targets=[raw.DatasetToGraph(input_dataset=random).op]),
    step(targets=[raw.DatasetToGraph(input_dataset=shuffled).op]),
    step(targets=[raw.DatasetToGraph(input_dataset=random, allow_stateful=True).op]),
    *(step(targets=[raw.DatasetToGraphV2(input_dataset=random, external_state_policy=policy).op]) for policy in (0, 1, 2)),
]
