"""Datasets by ops that tf.data of TensorFlow 2.21 does not make itself: those of its other versions, and their older names. Those
that TensorFlow 2.21 cannot run any more are in tests/tf/programs/older_names.py."""

from recorder.sessions import step, tf
from tensorflow.python.data.ops import structured_function

STEPS = []
raw = tf.raw_ops
RANGE = tf.data.Dataset.range
OF = {"output_types": [tf.int64], "output_shapes": [[]]}


def take_all(name, variant, count, types=(tf.int64,), shapes=((),)):
    """Steps that begin an iterator and ask for one element more than there are."""
    types, shapes = list(types), [tf.TensorShape(shape) for shape in shapes]
    iterator = raw.IteratorV2(shared_name=name, container="", output_types=types, output_shapes=shapes)
    begin = raw.MakeIterator(dataset=variant, iterator=iterator)
    values = raw.IteratorGetNext(iterator=iterator, output_types=types, output_shapes=shapes)
    STEPS.append(step(targets=[begin]))
    STEPS.extend(step(values) for _ in range(count + 1))


def of(dataset):
    return dataset._variant_tensor


def calls(function, dataset):
    """A function as an op takes it, and what it has of the graph."""
    made = structured_function.StructuredFunctionWrapper(function, "meshtf", dataset=dataset)
    return made.function, made.function.captured_inputs


def both(name):
    """An op under its name and under its older one."""
    return [(name, getattr(raw, name)), ("Experimental" + name, getattr(raw, "Experimental" + name))]


some = RANGE(2, 6)
number = lambda value: tf.constant(value, tf.int64)

# What changes how a dataset is run, and not what it has.
for op, make in both("BytesProducedStatsDataset") + both("LatencyStatsDataset"):
    take_all(op, make(input_dataset=of(some), tag="tag", **OF), 4)
for op, make in both("MaxIntraOpParallelismDataset"):
    take_all(op, make(input_dataset=of(some), max_intra_op_parallelism=number(2), **OF), 4)
for op, make in both("PrivateThreadPoolDataset"):
    take_all(op, make(input_dataset=of(some), num_threads=number(2), **OF), 4)
for op, make in both("NonSerializableDataset"):
    take_all(op, make(input_dataset=of(some), **OF), 4)
take_all("ModelDataset", raw.ModelDataset(input_dataset=of(some), **OF), 4)
nothing = tf.constant([], tf.string)
take_all("OptimizeDataset", raw.OptimizeDataset(input_dataset=of(some), optimizations=nothing, **OF), 4)
three = {"optimizations_enabled": nothing, "optimizations_disabled": nothing, "optimizations_default": nothing}
take_all("OptimizeDatasetV2", raw.OptimizeDatasetV2(input_dataset=of(some), **three, **OF), 4)
take_all("OptionsDataset", raw.OptionsDataset(input_dataset=of(some), serialized_options=b"", **OF), 4)

# Batches.
batch = {"batch_size": number(3), "num_parallel_calls": number(2), "output_types": [tf.int64], "output_shapes": [[None]]}
for drops, count in [(False, 2), (True, 1)]:
    variant = raw.ParallelBatchDataset(input_dataset=of(some), drop_remainder=tf.constant(drops), **batch)
    take_all(f"ParallelBatchDataset_{drops}", variant, count, shapes=[(None,)])

# Functions of elements.
weight = tf.constant(10, tf.int64)
f, captured = calls(lambda x: x * weight, some)
variant = raw.ParallelMapDataset(input_dataset=of(some), other_arguments=captured, num_parallel_calls=2, f=f, **OF)
take_all("ParallelMapDataset", variant, 4)
for op, make in both("MapAndBatchDataset"):
    sizes = {"batch_size": number(3), "num_parallel_calls": number(2), "drop_remainder": tf.constant(False)}
    variant = make(input_dataset=of(some), other_arguments=captured, f=f, output_types=[tf.int64], output_shapes=[[None]], **sizes)
    take_all(op, variant, 2, shapes=[(None,)])
f, captured = calls(lambda x: RANGE(x, x + 2), some)
cycle = {"input_dataset": of(some), "other_arguments": captured, "f": f, "cycle_length": number(2), "block_length": number(1)}
ahead = {"buffer_output_elements": number(1), "prefetch_input_elements": number(1)}
for op, make in both("ParallelInterleaveDataset"):
    take_all(op, make(sloppy=tf.constant(False), **cycle, **ahead, **OF), 8)
for op, make in [("V2", raw.ParallelInterleaveDatasetV2), ("V3", raw.ParallelInterleaveDatasetV3)]:
    take_all("ParallelInterleaveDataset" + op, make(num_parallel_calls=number(2), **cycle, **OF), 8)
predicate, captured = calls(lambda x: x < 4, some)
for op, make in both("TakeWhileDataset"):
    take_all(op, make(input_dataset=of(some), other_arguments=captured, predicate=predicate, **OF), 2)
two = tf.data.Dataset.from_tensors((number(0), number(0)))
f, captured = calls(lambda total, x: (total + x, total * x), two)
for op, make in both("ScanDataset"):
    take_all(op, make(input_dataset=of(some), initial_state=[number(1)], other_arguments=captured, f=f, **OF), 4)

# By keys.
key, _ = calls(lambda x: x % 2, some)
first, _ = calls(lambda key: key * 100, some)
add, _ = calls(lambda total, x: total + x, two)
end, _ = calls(lambda total: total, some)
functions = {"key_func": key, "init_func": first, "reduce_func": add, "finalize_func": end}
none = {name + "_other_arguments": [] for name in functions}
for op, make in both("GroupByReducerDataset"):
    take_all(op, make(input_dataset=of(some), **functions, **none, **OF), 2)
windows = tf.data.Dataset.from_tensors((number(0), RANGE(1)))
size, _ = calls(lambda key: number(2), some)
of_key, _ = calls(lambda key, window: window.batch(2), windows)
functions = {"key_func": key, "reduce_func": of_key, "window_size_func": size}
none = {name + "_other_arguments": [] for name in functions}
for op, make in both("GroupByWindowDataset"):
    variant = make(input_dataset=of(some), output_types=[tf.int64], output_shapes=[[None]], **functions, **none)
    take_all(op, variant, 2, shapes=[(None,)])

# Of others.
choices = tf.data.Dataset.from_tensor_slices(tf.constant([1, 0, 0, 1], tf.int64))
for op, make in both("DirectedInterleaveDataset"):
    take_all(op, make(selector_input_dataset=of(choices), data_input_datasets=[of(some), of(RANGE(90, 99))], **OF), 4)
for op, make in both("UniqueDataset"):
    take_all(op, make(input_dataset=of(RANGE(6).map(lambda x: x % 3)), **OF), 3)
for op, make in both("IgnoreErrorsDataset"):
    with_check = RANGE(4).map(lambda x: 6 // x)
    take_all(op, make(input_dataset=of(with_check), **OF), 3)

# A dataset that is no dataset for a while.
wrapped = raw.WrapDatasetVariant(input_handle=of(some))
take_all("UnwrapDatasetVariant", raw.UnwrapDatasetVariant(input_handle=wrapped), 4)
take_all("not_wrapped", raw.UnwrapDatasetVariant(input_handle=of(some)), 0)

# An iterator by its older names: made, named, found by that and asked.
iterator = raw.Iterator(shared_name="older", container="", **OF)
STEPS.append(step(targets=[raw.MakeIterator(dataset=of(some), iterator=iterator)]))
handle = raw.IteratorToStringHandle(resource_handle=iterator)
found = raw.IteratorFromStringHandle(string_handle=handle, **OF)
STEPS.extend(step(raw.IteratorGetNextSync(iterator=found, **OF)) for _ in range(5))
