"""Datasets that call functions, as tf.data's own Python makes them, with every kind of iterator."""

import numpy as np
from recorder.sessions import step, tf

STEPS = []
RANGE = tf.data.Dataset.range


def take_all(name, dataset, count, rounds=1):
    """Steps that begin an iterator and ask for one element more than there are."""
    iterator = tf.data.make_initializable_iterator(dataset, shared_name=name)
    values = iterator.get_next()
    fetches = list(values) if isinstance(values, tuple) else [values]
    for _ in range(rounds):
        STEPS.append(step(targets=[iterator.initializer]))
        STEPS.extend(step(fetches) for _ in range(count + 1))


offset = tf.placeholder_with_default(tf.constant(10, tf.int64), [], name="offset")
weights = tf.Variable([1.5, 2.5, 3.5], use_resource=True, name="weights")
STEPS.append(step(targets=[weights.initializer]))

take_all("map", RANGE(4).map(lambda x: x * x), 4, rounds=2)
take_all("captured", RANGE(3).map(lambda x: (x + offset, tf.cast(x, tf.float32))), 3)
take_all("variable", RANGE(4).map(lambda x: tf.gather(weights, x)), 3)
take_all("parallel", RANGE(5).map(lambda x: -x, num_parallel_calls=2).batch(2).prefetch(1), 3)
take_all("filter", RANGE(9).filter(lambda x: tf.equal(x % 3, 1)), 3)
take_all("flat", RANGE(4).flat_map(lambda x: RANGE(x).map(lambda y: 10 * x + y)), 6)
take_all(
    "interleaved", RANGE(5).interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(x), cycle_length=2, block_length=2), 10
)
take_all("scanned", RANGE(1, 6).apply(tf.data.experimental.scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s * x))), 5)
take_all("while", RANGE(9).apply(tf.data.experimental.take_while(lambda x: x < 3)), 3)
take_all("windows", RANGE(7).window(3, shift=2).flat_map(lambda window: window.batch(3)), 4)
take_all("ignored", RANGE(4).map(lambda x: tf.debugging.check_numerics(1 / x, "none")).apply(tf.data.experimental.ignore_errors()), 3)


def branches(x):
    """Loops and branches within a function."""
    total = tf.while_loop(lambda i, s: i < x, lambda i, s: (i + 1, s + i), [tf.constant(0, tf.int64), tf.constant(0, tf.int64)])[1]
    return tf.cond(total > 3, lambda: total, lambda: -x)


take_all("branches", RANGE(6).map(branches), 6)

features = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "y": np.array([b"a", b"b", b"c", b"d", b"e", b"f"])}
pipeline = tf.data.Dataset.from_tensor_slices(features)
pipeline = pipeline.map(lambda one: (one["x"] * 2, tf.strings.length(one["y"]))).shuffle(4, seed=5).repeat(2).batch(5)
tf.set_random_seed(3)
take_all("pipeline", pipeline, 3)

# One that begins by itself, with the first element that is asked for.
once = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices([[1, 2], [3, 4]]).map(lambda pair: pair + 1))
following = once.get_next()
STEPS.extend(step([following]) for _ in range(3))

# One over datasets by turns, and one that is chosen by a name that is fed.
either = tf.data.Iterator.from_structure(tf.int64, [])
begin = [either.make_initializer(RANGE(2)), either.make_initializer(RANGE(5, 8).map(lambda x: x * offset))]
value = either.get_next()
for place in [0, 1]:
    STEPS.append(step(targets=[begin[place]]))
    STEPS.extend(step([value], feeds={offset: 100}) for _ in range(4))
handle = either.string_handle()
chosen = tf.data.Iterator.from_string_handle(handle, tf.int64, [])
STEPS.extend([step(targets=[begin[0]]), step([chosen.get_next()])])

# Elements that may be absent, and what a whole dataset comes to.
perhaps = tf.data.experimental.get_next_as_optional(either)
STEPS.extend([step([perhaps.has_value()]), step([perhaps.has_value()])])
STEPS.append(step([RANGE(5).reduce(tf.constant(1, tf.int64), lambda s, x: s * (x + 1))]))
STEPS.append(step([tf.data.experimental.get_single_element(RANGE(4).batch(4))]))

# What the experimental transformations of TensorFlow 1 are made of.
more = tf.data.experimental
take_all("unique", RANGE(9).map(lambda x: x * x % 5).apply(more.unique()), 3)
choices = tf.data.Dataset.from_tensor_slices(tf.constant([2, 0, 0, 1, 2, 1, 0], tf.int64))
take_all("choices", more.choose_from_datasets([RANGE(2), RANGE(10, 19), RANGE(20, 21)], choices), 5)
take_all("samples", more.sample_from_datasets([RANGE(4), RANGE(10, 14)], [0.3, 0.7], seed=4), 8)
take_all("random", more.RandomDataset(seed=6).take(4), 4)
take_all("at_once", RANGE(7).apply(more.map_and_batch(lambda x: x + offset, 3, drop_remainder=True)), 2)
readers = more.parallel_interleave(lambda x: RANGE(x, x + 3), cycle_length=2, block_length=1, sloppy=False)
take_all("readers", RANGE(0, 30, 10).apply(readers), 9)
take_all("turns", RANGE(3).interleave(lambda x: RANGE(x * 10, x * 10 + x), cycle_length=2, num_parallel_calls=2), 3)
take_all("some", RANGE(8).filter(lambda x: x > offset - 6).filter(lambda x: x < 7), 2)

by_rest = more.group_by_window(lambda x: x % 3, lambda key, window: window.batch(4).map(lambda all: (key, all)), window_size=3)
take_all("windows_by_key", RANGE(10).apply(by_rest), 4)
sums = more.Reducer(lambda key: key * 100, lambda state, x: state + x, lambda state: state)
take_all("sums_by_key", RANGE(10).apply(more.group_by_reducer(lambda x: x % 3, sums)), 3)

rows = tf.SparseTensor(tf.constant([[0, 1], [2, 0], [2, 2]], tf.int64), [b"a", b"b", b"c"], tf.constant([4, 3], tf.int64))
parts = tf.data.make_initializable_iterator(tf.data.Dataset.from_sparse_tensor_slices(rows))
part = list(parts.get_next())
STEPS.append(step(targets=[parts.initializer]))
STEPS.extend(step(part) for _ in range(5))
