"""The mean of fed numbers: whole, in two halves, in unequal slices, and in slices whose sizes the graph finds out
itself.
"""

import numpy as np

from client import check, near, on_tensorflow, raises, target, tf

CLUSTER = {"local": 2}

numbers = np.random.RandomState(1).random_sample(100)
expected = numbers.astype(np.float32).mean(dtype=np.float64)


def slices(x, *bounds):
    """The slices of `x` and their means, on the two tasks in turn."""
    parts, means = [], []
    for i, (begin, size) in enumerate(bounds):
        with tf.device(f"/job:local/task:{(i + 1) % 2}"):
            parts.append(tf.slice(x, [begin], [size]))
            means.append(tf.reduce_mean(parts[-1]))
    return parts, means


with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, 100)
    mean = tf.reduce_mean(x)
    with tf.Session(target("local/0")) as session:
        near(session.run(mean, {x: numbers}), expected)

with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, 100)
    _, (mean1, mean2) = slices(x, (0, 50), (50, -1))
    with tf.device("/job:local/task:0"):
        mean = (mean1 + mean2) / 2
    with tf.Session(target("local/0")) as session:
        near(session.run(mean, {x: numbers}), expected)

# Unequal slices: the plain mean of the means is wrong, the weighted one is right.
with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, 100)
    _, (mean1, mean2) = slices(x, (0, 20), (20, -1))
    with tf.device("/job:local/task:0"):
        plain = (mean1 + mean2) / 2
        weighted = (20 * mean1 + 80 * mean2) / 100
    with tf.Session(target("local/0")) as session:
        values = session.run([plain, weighted], {x: numbers})
    near(values[0], (numbers[:20].mean() + numbers[20:].mean()) / 2)
    check(abs(values[0] - expected) > 1e-3)
    near(values[1], expected)

# The sizes come from the graph, and the number of numbers is open.
with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, [None])
    with tf.device("/job:local/task:0"):
        third = tf.size(x) // 3
    parts, means = slices(x, (0, third), (third, third), (2 * third, -1))
    with tf.device("/job:local/task:0"):
        sizes = [tf.cast(tf.size(part), tf.float32) for part in parts]
        mean = tf.add_n([size * mean for size, mean in zip(sizes, means)]) / tf.add_n(sizes)
    with tf.Session(target("local/0")) as session:
        for count in [3, 10, 100]:
            near(session.run(mean, {x: numbers[:count]}), numbers[:count].mean())

# A slice that reaches past the end says so.
with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, [None])
    _, (late,) = slices(x, (50, 60))
    with tf.Session(target("local/0")) as session:
        with raises(tf.errors.InvalidArgumentError, "Slice" if on_tensorflow() else "lice"):
            session.run(late, {x: numbers})
