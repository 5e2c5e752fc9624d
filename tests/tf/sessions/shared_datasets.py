"""Datasets whose elements are dealt to several devices in turn, and datasets made of the graph of another."""

from recorder.sessions import step, tf
from tensorflow.python.data.ops import multi_device_iterator_ops

raw = tf.raw_ops
STEPS = []
count = tf.placeholder(tf.int64, [], name="count")


def dealt(dataset, devices, **more):
    """Fetches for each device, and what begins the dataset."""
    iterator = multi_device_iterator_ops.MultiDeviceIterator(dataset, ["/cpu:0"] * devices, max_buffer_size=8, source_device="/cpu:0", **more)
    return [one.get_next() for one in iterator._device_iterators], iterator.initializer


# In turn, whichever device asks first.
(one, two), begin = dealt(tf.data.Dataset.range(count).map(lambda i: (i, i * i)), 2, prefetch_buffer_size=0)
STEPS.append(step(targets=[begin], feeds={count: 5}))
STEPS += [step([*two]), step([*one]), step([*one]), step([*one])]
# Each device has its own end.
STEPS += [step([*one]), step([*two]), step([*two]), step([*one])]
# It begins anew.
STEPS += [step(targets=[begin], feeds={count: 2}), step([*one, *two]), step([*two])]
# Elements are made ahead.
(first, second, third), begin = dealt(tf.data.Dataset.range(7).batch(1), 3)
STEPS.append(step(targets=[begin]))
STEPS += [step([first]), step([first]), step([second]), step([third]), step([second]), step([third]), step([first]), step([first])]
# An element that fails is that of its device.
(fine, wrong), begin = dealt(tf.data.Dataset.range(6).map(lambda i: tf.debugging.check_numerics(tf.cast(i, tf.float32) / tf.cast(3 - i, tf.float32), "it")), 2,
                             prefetch_buffer_size=0)
STEPS.append(step(targets=[begin]))
STEPS += [step([fine]), step([wrong]), step([fine]), step([wrong]), step([fine]), step([wrong])]

# The ops themselves.
signature = dict(output_types=[tf.int64], output_shapes=[[]])
handle = raw.MultiDeviceIterator(devices=["/cpu:0", "/cpu:0"], shared_name="", container="", name="several", **signature)
incarnation = raw.MultiDeviceIteratorInit(dataset=tf.data.Dataset.range(count)._variant_tensor, multi_device_iterator=handle, max_buffer_size=8, name="begun")
shard, known = tf.placeholder(tf.int32, [], name="shard"), tf.placeholder(tf.int64, [], name="known")
text = raw.MultiDeviceIteratorToStringHandle(multi_device_iterator=handle, name="text")
again = raw.MultiDeviceIteratorFromStringHandle(string_handle=text, name="again", **signature)
element = raw.MultiDeviceIteratorGetNextFromShard(multi_device_iterator=again, shard_num=shard, incarnation_id=known, name="element", **signature)
STEPS.append(step([incarnation], {count: 3}))
STEPS += [step(element, {shard: at, known: 1}) for at in (1, 0, 0, 1, 0)]
# A dataset that it is not over any more.
STEPS += [step([incarnation], {count: 3}), step(element, {shard: 0, known: 1}), step(element, {shard: 0, known: 2})]

# A dataset of the graph of another.
base = tf.data.Dataset.range(6).map(lambda i: i * 10).filter(lambda i: tf.not_equal(i, 30)).batch(2)
graph = raw.DatasetToGraphV2(input_dataset=base._variant_tensor, name="graph")
copied = raw.DatasetFromGraph(graph_def=graph, name="copied")
form = dict(output_types=[tf.int64], output_shapes=[[None]])
iterator = raw.IteratorV2(shared_name="", container="", name="iterator", **form)
STEPS.append(step(targets=[raw.MakeIterator(dataset=copied, iterator=iterator, name="make")]))
numbers = raw.IteratorGetNext(iterator=iterator, name="numbers", **form)
STEPS += [step(numbers) for _ in range(4)]
broken = tf.placeholder(tf.string, [], name="broken")
STEPS.append(step([raw.DatasetCardinality(input_dataset=raw.DatasetFromGraph(graph_def=broken, name="none"), name="cardinality")], {broken: b""}))

# Two iterators that would write one file: the first that asks for an element does.
kept = [tf.data.make_initializable_iterator(tf.data.Dataset.range(3).map(lambda i: i + plus).cache("kept")) for plus in (10, 20)]
numbers = [iterator.get_next() for iterator in kept]
STEPS.append(step(targets=[iterator.initializer for iterator in kept]))
STEPS += [step([numbers[at]]) for at in (0, 1, 0, 1, 0, 0)]
# Once it has all elements, others read them. (Whether one that began before writes the file anew depends on TensorFlow's threads.)
STEPS += [step(targets=[kept[1].initializer]), step([numbers[1]])]
