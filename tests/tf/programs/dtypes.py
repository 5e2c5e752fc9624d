"""Every dtype fed, fetched, held by a variable and moved between tasks; scalars, empty tensors, many dimensions,
special values.
"""

import ml_dtypes
import numpy as np

from client import check, raises, same, target, tf

CLUSTER = {"local": 2}

WHOLE = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOAT = [np.complex64, np.complex128, np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def values(dtype):
    """A few tensors of that dtype: at its limits, of no elements, of no dimensions, of five."""
    if dtype in WHOLE:
        limits = np.iinfo(dtype)
        yield np.array([limits.min, 0, 1, limits.max], dtype)
    elif dtype in FLOAT:
        yield np.array([0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan], dtype)
    elif dtype == np.bool_:
        yield np.array([[True, False, True]])
    yield np.array(1, dtype)
    yield np.zeros([0], dtype)
    yield np.zeros([3, 0, 2], dtype)
    yield (np.arange(2 * 3 * 1 * 2 * 2) % 2).astype(dtype).reshape([2, 3, 1, 2, 2])


for dtype in WHOLE + FLOAT + [np.bool_]:
    with tf.Graph().as_default():
        # The first task, where it is fed, sends it to the other, which sends it back.
        fed = tf.placeholder(dtype)
        with tf.device("/job:local/task:1"):
            there = tf.identity(fed)
        with tf.device("/job:local/task:0"):
            back = tf.identity(there)
        with tf.Session(target("local/0")) as session:
            for value in values(dtype):
                for got in session.run([fed, there, back], {fed: value}):
                    same(got, value)
                    check(np.array_equal(np.signbit(np.real(got)), np.signbit(np.real(value))) if dtype in FLOAT else True)
                # As a constant it lies in the graph instead.
        with tf.Session(target("local/1")) as session:
            for value in values(dtype):
                same(session.run(tf.constant(value)), value)

# Values that repeat are written down once in a GraphDef.
with tf.Graph().as_default(), tf.Session(target("local/0")) as session:
    same(session.run(tf.zeros([4, 5], tf.int16)), np.zeros([4, 5], np.int16))
    same(session.run(tf.fill([2, 3], 7.5)), np.full([2, 3], 7.5, np.float32))
    same(session.run(tf.constant(2.5, tf.float64, [3])), np.full([3], 2.5))

# Strings: bytes that are no text, none, very many, and long ones.
words = [b"", b"plain", "분산".encode(), bytes(range(256)), b"x" * 100_000]
with tf.Graph().as_default():
    fed = tf.placeholder(tf.string)
    with tf.device("/job:local/task:1"):
        there = tf.identity(fed)
        length = tf.strings.length(there)
    with tf.Session(target("local/0")) as session:
        for value in [words, [words[:2], words[2:4]], [], [[]], b"alone", [b"%d" % i for i in range(10_000)]]:
            expected = np.array(value, object)
            got, lengths = session.run([there, length], {fed: expected})
            check(np.array_equal(np.array(got, object), expected), "strings differ")
            check(np.shape(got) == expected.shape, np.shape(got))
            check(np.array_equal(lengths, np.vectorize(len, otypes=[np.int32])(expected)) if expected.size else True)
        check(session.run(tf.constant(words[:4])).tolist() == words[:4])

# Variables of every dtype, on the other task.
with tf.Graph().as_default():
    with tf.device("/job:local/task:1"):
        initial = [np.array([1, 0], dtype) for dtype in WHOLE + FLOAT + [np.bool_]] + [np.array([b"a", b"bc"], object)]
        held = [
            tf.Variable(value, use_resource=kind, name=f"held_{i}_{kind}")
            for kind in (False, True)
            for i, value in enumerate(initial)
        ]
    with tf.Session(target("local/0")) as session:
        session.run(tf.global_variables_initializer())
        for got, value in zip(session.run(held), initial * 2):
            check(np.array_equal(got, value), got, value)

# What does not fit is refused before it leaves the client, or by the server.
with tf.Graph().as_default():
    fed = tf.placeholder(tf.int32, [2])
    with tf.Session(target("local/0")) as session:
        with raises(ValueError, "shape"):
            session.run(fed, {fed: [1, 2, 3]})
    open_ended = tf.placeholder(tf.float32)
    with tf.Session(target("local/0")) as session:
        unfed = "You must feed a value for placeholder tensor 'Placeholder_1' with dtype float"
        with raises(tf.errors.InvalidArgumentError, unfed):
            session.run(open_ended + 1)
