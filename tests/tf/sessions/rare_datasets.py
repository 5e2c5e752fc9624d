"""Datasets of few programs: sliding windows, samples, lists, batches of other sizes, stated numbers of elements; iterators without names."""

from recorder.sessions import step, tf
from tensorflow.python.framework import function

raw = tf.raw_ops
STEPS = []
LONG = dict(output_types=[tf.int64], output_shapes=[[]])
ROWS = dict(output_types=[tf.int64], output_shapes=[[None]])


def numbers(stop):
    return raw.RangeDataset(start=tf.constant(0, tf.int64), stop=tf.constant(stop, tf.int64), step=tf.constant(1, tf.int64), **LONG)


def look(dataset, shape, times, name, types=(tf.int64,)):
    """An iterator over it, and so many elements."""
    kind = dict(output_types=list(types), output_shapes=shape)
    iterator = raw.IteratorV2(shared_name=name, container="", name=f"{name}_iterator", **kind)
    STEPS.append(step(targets=[raw.MakeIterator(dataset=dataset, iterator=iterator, name=f"{name}_make")]))
    following = raw.IteratorGetNext(iterator=iterator, name=f"{name}_next", **kind)
    STEPS.extend(step(list(following)) for _ in range(times))


long = lambda value: tf.constant(value, tf.int64)
sliding = lambda op, size, shift, stride, **more: op(input_dataset=numbers(7), window_size=long(size), window_shift=long(shift), window_stride=long(stride), **ROWS, **more)
look(sliding(raw.SlidingWindowDataset, 3, 2, 1), [[None]], 4, "three_by_two")
look(sliding(raw.SlidingWindowDataset, 2, 5, 2, drop_remainder=False), [[None]], 3, "two_by_five")
look(sliding(raw.SlidingWindowDataset, 3, 1, 2, drop_remainder=False), [[None]], 8, "rest")
look(sliding(raw.ExperimentalSlidingWindowDataset, 2, 3, 1), [[None]], 3, "older")
look(sliding(raw.SlidingWindowDataset, 0, 1, 1), [[None]], 0, "no_window")
look(raw.AssertCardinalityDataset(input_dataset=numbers(2), cardinality=long(2), **LONG), [[]], 3, "right")
look(raw.AssertCardinalityDataset(input_dataset=numbers(2), cardinality=long(3), **LONG), [[]], 3, "fewer")
look(raw.AssertCardinalityDataset(input_dataset=numbers(2), cardinality=long(1), **LONG), [[]], 2, "more")
look(raw.AssertCardinalityDataset(input_dataset=numbers(1), cardinality=long(-1), **LONG), [[]], 2, "endless")
STEPS.append(step([raw.DatasetCardinality(input_dataset=raw.AssertCardinalityDataset(input_dataset=numbers(2), cardinality=long(2), **LONG), name="stated")]))
look(raw.SamplingDataset(input_dataset=numbers(20), rate=0.4, seed=long(3), seed2=long(5), **LONG), [[]], 6, "sampled")
look(raw.SamplingDataset(input_dataset=numbers(3), rate=1.0, seed=long(3), seed2=long(5), **LONG), [[]], 4, "every")
look(raw.SleepDataset(input_dataset=numbers(2), sleep_microseconds=long(1000), **LONG), [[]], 3, "slow")
look(raw.ExperimentalSleepDataset(input_dataset=numbers(1), sleep_microseconds=long(0), **LONG), [[]], 2, "slow_older")
look(raw.SleepDataset(input_dataset=numbers(2), sleep_microseconds=long(-1), **LONG), [[]], 0, "backwards")
pool = raw.ThreadPoolHandle(num_threads=2, display_name="pool", container="", shared_name="pool", name="pool")
look(raw.ThreadPoolDataset(input_dataset=numbers(2), thread_pool=pool, **LONG), [[]], 3, "pooled")
old_pool = raw.ExperimentalThreadPoolHandle(num_threads=2, display_name="pool", container="", shared_name="old_pool", name="old_pool")
look(raw.ExperimentalThreadPoolDataset(input_dataset=numbers(1), thread_pool=old_pool, **LONG), [[]], 2, "pooled_older")
pairs = dict(output_types=[tf.int32, tf.string], output_shapes=[[], []])
look(raw.ListDataset(tensors=[tf.constant(1), tf.constant("a"), tf.constant(2), tf.constant("b")], **pairs), [[], []], 3, "listed", (tf.int32, tf.string))
batches = raw.BatchDatasetV2(input_dataset=numbers(11), batch_size=long(4), drop_remainder=False, parallel_copy=False, metadata="", **ROWS)
rebatch = lambda sizes, drops: raw.RebatchDatasetV2(input_dataset=batches, batch_sizes=tf.constant(sizes, tf.int64), drop_remainder=drops, **ROWS)
look(rebatch([3], False), [[None]], 5, "threes")
look(rebatch([1, 5, 2], False), [[None]], 6, "turns")
look(rebatch([3], True), [[None]], 4, "whole")
look(rebatch([6, 2], True), [[None]], 3, "whole_turns")
look(rebatch(5, False), [[None]], 4, "fives")
at = tf.placeholder(tf.int64, name="at")
element = raw.GetElementAtIndex(dataset=numbers(3), index=at, name="element", **LONG)
STEPS += [step(list(element), {at: i}) for i in (2, 0, 3)]
table = raw.HashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name="t", container="", name="table")
entries = raw.TensorSliceDataset(components=[tf.constant([4, 5, 6], tf.int64), tf.constant(["d", "e", "f"])], output_shapes=[[], []])
STEPS.append(step(targets=[raw.InitializeTableFromDataset(table_handle=table, dataset=entries, name="fill")]))
STEPS.append(step([raw.LookupTableFindV2(table_handle=table, keys=tf.constant([5, 7, 4], tf.int64), default_value="?", name="found")]))
packed = raw.CompressElement(components=[tf.constant([1, 2]), tf.constant("text")], name="packed")
STEPS.append(step(list(raw.UncompressElement(compressed=packed, output_types=[tf.int32, tf.string], output_shapes=[[2], []], name="unpacked"))))
for op, name in ((raw.AnonymousIterator, "a1"), (raw.AnonymousIteratorV3, "a3")):
    iterator = op(name=name, **LONG)
    with tf.control_dependencies([raw.MakeIterator(dataset=numbers(3), iterator=iterator, name=f"{name}_make")]):
        first = raw.IteratorGetNext(iterator=iterator, name=f"{name}_next", **LONG)
    STEPS += [step(list(first)), step(list(first))]
iterator = raw.AnonymousIteratorV2(name="a2", **LONG).handle
with tf.control_dependencies([raw.MakeIterator(dataset=numbers(3), iterator=iterator, name="a2_make")]):
    STEPS.append(step(list(raw.IteratorGetNext(iterator=iterator, name="a2_next", **LONG))))
cache = raw.AnonymousMemoryCache(name="cache")
cached = raw.CacheDatasetV2(input_dataset=numbers(2), filename="", cache=cache.handle, metadata="", **LONG)
STEPS.append(step([raw.DatasetCardinality(input_dataset=cached, name="cached")]))
seeds = raw.AnonymousSeedGenerator(seed=long(1), seed2=long(2), reshuffle=False, name="seeds")
STEPS.append(step([raw.DatasetCardinality(input_dataset=raw.ShuffleDatasetV3(input_dataset=numbers(4), buffer_size=long(3), seed=long(1), seed2=long(2), seed_generator=seeds.handle,
                                                                             reshuffle_each_iteration=False, metadata="", **LONG), name="shuffled")]))
generator = raw.DummySeedGenerator(name="generator")
look(raw.RandomDatasetV2(seed=long(4), seed2=long(2), seed_generator=generator, rerandomize_each_iteration=False, metadata="", **LONG), [[]], 3, "random")
named = raw.IteratorV2(shared_name="device", container="", name="named", **LONG)
STEPS.append(step([raw.IteratorGetDevice(resource=named, name="device"), raw.ExperimentalIteratorGetDevice(resource=named, name="device_older")], check="shape"))
STEPS.append(step(targets=[raw.StatsAggregatorHandleV2(shared_name="statistics", container="", name="statistics").op]))
