"""Map and reduce: over tasks, by Python that builds a graph; and inside of one graph, by TensorFlow's own map_fn
and foldl.
"""

from functools import reduce

import numpy as np

from client import check, same, target, tf

CLUSTER = {"local": 3}


def with_five_more(x):
    return x + 5


def placed(numbered):
    i, x = numbered
    with tf.device(f"/job:local/task:{i % 3}"):
        return with_five_more(x)


with tf.Graph().as_default():
    mapped = list(map(placed, enumerate(tf.constant(n) for n in [1, 2, 3, 4, 5, 6])))
    with tf.device("/job:local/task:0"):
        total = reduce(tf.add, mapped)
    with tf.Session(target("local/0")) as session:
        check(session.run(mapped) == [6, 7, 8, 9, 10, 11])
        check(session.run(total) == 51)

# The words of a text, counted: lines are mapped on two tasks and reduced on a third.
lines = ["to be or not to be", "not to know", "be it so"]
with tf.Graph().as_default():
    fed = tf.placeholder(tf.string, [None])
    counts = []
    for i, task in enumerate([1, 2]):
        with tf.device(f"/job:local/task:{task}"):
            words = tf.string_split(fed[i::2]).values
            counts.append([tf.reduce_sum(tf.cast(tf.equal(words, word), tf.int32)) for word in ["to", "be", "not"]])
    with tf.device("/job:local/task:0"):
        sums = [tf.add_n(list(column)) for column in zip(*counts)]
    with tf.Session(target("local/0")) as session:
        check(session.run(sums, {fed: lines}) == [3, 3, 2])

# TensorFlow's own, which are loops in the graph.
with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, [None])
    with tf.device("/job:local/task:1"):
        mapped = tf.map_fn(with_five_more, x)
    with tf.device("/job:local/task:2"):
        # A copy: TensorFlow puts a loop's arrays where the value that they take apart is.
        arrived = tf.identity(mapped)
        total = tf.foldl(tf.add, arrived)
        running = tf.scan(tf.add, arrived)
    with tf.Session(target("local/0")) as session:
        values = session.run([mapped, total, running], {x: [1, 2, 3]})
    same(values[0], np.float32([6, 7, 8]))
    same(values[1], np.float32(21))
    same(values[2], np.float32([6, 13, 21]))
