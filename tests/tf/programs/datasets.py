"""Input pipelines of tf.data on the mesh: fed, trained from, on another task, in one session and the next."""

import functools

import numpy as np

from client import check, near, raises, same, target, tf

CLUSTER = {"local": 2}

data = tf.data.Dataset
xs = np.random.RandomState(0).uniform(-1, 1, [12, 2]).astype(np.float32)
ys = xs @ np.float32([[2], [-3]]) + 1

# A model trained from a pipeline that lies on the other task, for as many epochs as it has.
with tf.Graph().as_default():
    with tf.device("/job:local/task:1"):
        pipeline = data.from_tensor_slices((xs, ys)).shuffle(12, seed=1).repeat(40).batch(4)
        iterator = tf.data.make_initializable_iterator(pipeline)
        x, y = iterator.get_next()
    w, b = tf.Variable(tf.zeros([2, 1])), tf.Variable(0.0)
    train = tf.train.GradientDescentOptimizer(0.3).minimize(tf.reduce_mean(tf.square(x @ w + b - y)))
    with tf.Session(target("local/0")) as session:
        session.run([tf.global_variables_initializer(), iterator.initializer])
        steps = 0
        try:
            while True:
                session.run(train)
                steps += 1
        except tf.errors.OutOfRangeError:
            pass
        check(steps == 120, steps)
        near(session.run(w), [[2], [-3]], relative=0.05)
        near(session.run(b), 1, relative=0.05)

# An iterator without a name is its session's own: another session begins anew.
with tf.Graph().as_default():
    following = tf.data.make_one_shot_iterator(data.range(3)).get_next()
    for _ in range(2):
        with tf.Session(target("local/1")) as session:
            same([session.run(following) for _ in range(3)], np.arange(3))
            with raises(tf.errors.OutOfRangeError):
                session.run(following)

# Two datasets by turns under one name that is fed.
with tf.Graph().as_default():
    name = tf.placeholder(tf.string, [])
    value = tf.data.Iterator.from_string_handle(name, tf.int64, []).get_next()
    first = tf.data.make_one_shot_iterator(data.range(0, 100, 10))
    second = tf.data.make_initializable_iterator(data.range(5).map(lambda x: -x))
    with tf.Session(target("local/0")) as session:
        session.run(second.initializer)
        handles = session.run([first.string_handle(), second.string_handle()])
        got = [session.run(value, {name: handles[i]}) for i in [0, 1, 0, 1, 1]]
        same(got, np.array([0, 0, 10, -1, -2]))
        with raises(tf.errors.InvalidArgumentError):
            session.run(value, {name: b"none"})

# A filter that never passes ends with its session's patience, and the node goes on.
with tf.Graph().as_default():
    never = tf.data.make_one_shot_iterator(data.range(1).repeat().filter(lambda x: x > 0)).get_next()
    config = tf.ConfigProto(operation_timeout_in_ms=1000)
    with tf.Session(target("local/0"), config=config) as session:
        with raises(tf.errors.DeadlineExceededError):
            session.run(never)
        same(session.run(tf.constant(1) + 1), np.int32(2))

# Random numbers of a function begin anew with each iterator.
with tf.Graph().as_default():
    tf.set_random_seed(7)
    drawn = data.range(4).map(lambda x: tf.random_uniform([], seed=3))
    iterator = tf.data.make_initializable_iterator(drawn)
    value = iterator.get_next()

    def round_of(session):
        session.run(iterator.initializer)
        return [session.run(value) for _ in range(4)]

    with tf.Session() as session:
        wanted = round_of(session), round_of(session)
    with tf.Session(target("local/0")) as session:
        near((round_of(session), round_of(session)), wanted)


def elements(make, where):
    """The elements of a dataset, with what failed on the way."""
    with tf.Graph().as_default():
        tf.set_random_seed(11)
        iterator = tf.data.make_initializable_iterator(make())
        value, got = iterator.get_next(), []
        with tf.Session(where) as session:
            session.run(iterator.initializer)
            while len(got) < 40:
                try:
                    got.append(session.run(value))
                except tf.errors.OutOfRangeError:
                    return got
                except tf.errors.OpError as error:
                    got.append(type(error).__name__)
    return got


more, R = tf.data.experimental, data.range
words = {"a": [1.0, 2.0, 3.0], "b": {"c": ["x", "y", "z"]}}
# Held against the same on TensorFlow itself.
PIPELINES = {
    "padded": lambda: data.from_tensor_slices([3, 1, 2, 4])
    .map(lambda n: (tf.fill([n], n), tf.as_string(tf.range(n))))
    .padded_batch(2, padded_shapes=([None], [5]), padding_values=(-1, "x")),
    "padded_drop": lambda: data.from_tensor_slices([3, 1, 2])
    .map(lambda n: tf.fill([n, 2], n))
    .padded_batch(2, padded_shapes=[None, None], drop_remainder=True),
    "nested": lambda: data.from_tensor_slices(words).map(lambda d: {"s": d["a"] * 2, "t": d["b"]["c"] + "!"}).batch(2),
    "zip": lambda: data.zip((R(3), data.zip((R(5), R(9).shuffle(3, seed=2))))),
    "shuffle_repeat": lambda: R(6).shuffle(10, seed=4).repeat(3),
    "shuffle_and_repeat": lambda: R(6).apply(more.shuffle_and_repeat(3, 2, seed=9)),
    "cache": lambda: R(4).map(lambda x: tf.random_uniform([], seed=1)).cache().repeat(2),
    "reduce_within": lambda: R(3).map(lambda x: R(10).reduce(x, lambda a, b: a + b)),
    "while": lambda: R(4).map(lambda x: tf.while_loop(lambda i: i < 100, lambda i: i * 2 + 1, [x])),
    "map_fn": lambda: R(3).map(lambda x: tf.map_fn(lambda y: y * x, tf.range(3, dtype=tf.int64))),
    "scan": lambda: R(3).map(lambda x: tf.scan(lambda a, y: a + y, tf.ones([4], tf.int64) * x)),
    "fails": lambda: R(4).map(lambda x: tf.check_numerics(1.0 / tf.cast(x - 2, tf.float32), "bad")),
    "flat_batch": lambda: R(3).flat_map(lambda x: data.from_tensor_slices([x, x + 1]).map(lambda y: y * 2).batch(2)),
    "resampled": lambda: R(20)
    .map(lambda x: (tf.cast(x % 2, tf.int32), x))
    .apply(more.rejection_resample(lambda c, x: c, [0.5, 0.5], [0.5, 0.5], seed=3))
    .take(5),
    "split": lambda: data.from_tensor_slices(["1,2", "3"]).flat_map(
        lambda s: data.from_tensor_slices(tf.string_split([s], ",").values)
    ),
    "optional": lambda: R(3).map(lambda x: more.Optional.from_value(x)).map(lambda o: o.get_value()),
    "pictures": lambda: data.from_tensor_slices(np.arange(48, dtype=np.float32).reshape(3, 4, 4, 1))
    .map(lambda i: tf.image.random_flip_left_right(i, seed=3))
    .batch(2),
    "buckets": lambda: data.from_tensor_slices([1, 5, 2, 6, 3])
    .map(lambda n: tf.fill([n], n))
    .apply(more.bucket_by_sequence_length(lambda x: tf.shape(x)[0], [4], [2, 2])),
    "enumerated": lambda: data.from_tensor_slices(["a", "b"]).enumerate(start=5),
    "many": lambda: functools.reduce(lambda d, i: d.concatenate(R(i, i + 1)), range(150), R(1)).batch(200),
}
for name, make in PIPELINES.items():
    got, wanted = elements(make, target("local/0")), elements(make, "")
    check(repr(got) == repr(wanted), name, got, wanted)
