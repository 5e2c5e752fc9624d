"""y = e^x as a small network, on one task, cut in two over two workers, or copied onto workers that share its
parameters.
"""

import numpy as np

from client import tf

BATCH = 100
RATE = 0.005


def initial(shape, seed):
    return tf.constant_initializer(np.random.RandomState(seed).uniform(0, 1, shape).astype(np.float32))


def layer(x, size_in, size_out, number):
    w = tf.get_variable(f"W{number}", [size_in, size_out], initializer=initial((size_in, size_out), 10 + number))
    b = tf.get_variable(f"b{number}", [size_out], initializer=initial((size_out,), 20 + number))
    return tf.matmul(x, w) + b


def leaky(x):
    return tf.maximum(0.1 * x, x)


def inputs():
    return tf.placeholder(tf.float32, [None, 1]), tf.placeholder(tf.float32, [None, 1])


def loss_of(out, y):
    return tf.nn.l2_loss(out - y) * (2.0 / BATCH)


def single():
    with tf.device("/job:master/task:0"):
        x, y = inputs()
        out = layer(leaky(layer(leaky(layer(x, 1, 16, 1)), 16, 32, 2)), 32, 1, 3)
        loss = loss_of(out, y)
        return [(x, y)], loss, tf.train.AdamOptimizer(RATE).minimize(loss)


def model_parallel():
    with tf.device("/job:worker/task:0"):
        x, y = inputs()
        hidden = leaky(layer(x, 1, 16, 1))
    with tf.device("/job:worker/task:1"):
        hidden = leaky(layer(hidden, 16, 32, 2))
    with tf.device("/job:master/task:0"):
        loss = loss_of(layer(hidden, 32, 1, 3), y)
        return [(x, y)], loss, tf.train.AdamOptimizer(RATE).minimize(loss)


def data_parallel(workers=2):
    optimizer = tf.train.AdamOptimizer(RATE)
    with tf.device("/job:master/task:0"), tf.variable_scope("ps"):
        layer(tf.zeros([1, 1]), 1, 16, 1), layer(tf.zeros([1, 16]), 16, 32, 2), layer(tf.zeros([1, 32]), 32, 1, 3)
    for task in range(workers):
        with tf.device(f"/job:worker/task:{task}"), tf.variable_scope("ps", reuse=True):
            x, y = inputs()
            out = layer(leaky(layer(leaky(layer(x, 1, 16, 1)), 16, 32, 2)), 32, 1, 3)
            # Each worker sees its share of the batch.
            loss = loss_of(out, y) * workers
            tf.add_to_collection("inputs", (x, y))
            tf.add_to_collection("losses", loss)
            tf.add_to_collection("gradients", optimizer.compute_gradients(loss, tf.trainable_variables()))
    with tf.device("/job:master/task:0"):
        averaged = []
        for pairs in zip(*tf.get_collection("gradients")):
            averaged.append((tf.reduce_mean(tf.stack([gradient for gradient, _ in pairs]), 0), pairs[0][1]))
        loss = tf.add_n(tf.get_collection("losses")) / workers
        return tf.get_collection("inputs"), loss, optimizer.apply_gradients(averaged)


def feed(places, numbers):
    """A batch, shared out to the placeholders of the workers."""
    x = numbers.uniform(0, 1, (BATCH, 1)).astype(np.float32)
    y = np.exp(x)
    share = BATCH // len(places)
    values = {}
    for i, (place_x, place_y) in enumerate(places):
        values[place_x], values[place_y] = x[i * share : (i + 1) * share], y[i * share : (i + 1) * share]
    return values
