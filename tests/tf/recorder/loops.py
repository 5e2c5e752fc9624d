"""Graphs with loops, whose gradients TensorFlow adds only where its Python has made the graph: `built` of a case names one.

Each function answers what is differentiated, given the tensors that are fed.
"""

import numpy as np
import tensorflow.compat.v1 as tf

GRAPHS = {}


def graph(shapes={}, **feeds):
    """Makes a function a graph that a case may name, with what is fed to it; `shapes` are what it knows of some of that."""

    def add(function):
        GRAPHS[function.__name__] = (function, shapes, {name: np.asarray(value) for name, value in feeds.items()})
        return function

    return add


def numbers(*shape, turn=1.0):
    count = int(np.prod(shape))
    return np.sin(turn * (1.0 + np.arange(count))).reshape(shape)


def build(name):
    """The feeds by their placeholders, and what is differentiated by what: `(feeds, ys, xs)`."""
    function, shapes, feeds = GRAPHS[name]
    tensors = {}
    for key, value in feeds.items():
        tensors[key] = tf.placeholder(value.dtype, shapes.get(key, value.shape), name=key)
    ys = function(**tensors)
    ys = [tf.identity(y, name="y") for y in (ys if isinstance(ys, (list, tuple)) else [ys])]
    xs = [tensor for tensor in tensors.values() if tensor.dtype.is_floating]
    return {tensors[key]: value for key, value in feeds.items()}, ys, xs


@graph(x=numbers(3), w=numbers(3, turn=1.7))
def a_power(x, w):
    return tf.while_loop(lambda i, a: i < 4, lambda i, a: [i + 1, a * w + tf.sin(a)], [0, x])[1]


@graph(x=numbers(2), n=np.int32(0))
def no_iteration(x, n):
    return tf.while_loop(lambda i, a: i < n, lambda i, a: [i + 1, a * a], [0, x])[1]


@graph(x=numbers(2, 3), w=numbers(3, 3, turn=0.7), b=numbers(3, turn=2.1))
def a_cell(x, w, b):
    body = lambda i, h: [i + 1, tf.tanh(tf.matmul(h, w) + b)]
    return tf.while_loop(lambda i, h: i < 3, body, [0, x], parallel_iterations=1)[1]


@graph(x=np.float64(0.4), limit=np.float64(5.0))
def until_it_is_large(x, limit):
    """How often depends on the values."""
    return tf.while_loop(lambda a, s: s < limit, lambda a, s: [a * 1.5, s + a * a], [x, x])[1]


@graph(x=numbers(2), y=numbers(2, turn=0.3))
def one_of_two(x, y):
    """What leaves the loop of the other variable is not used."""
    return tf.while_loop(lambda i, a, b: i < 3, lambda i, a, b: [i + 1, a + b * b, b * tf.cos(a)], [0, x, y])[1]


@graph(x=numbers(2), y=numbers(2, turn=0.3))
def not_from_itself(x, y):
    """A variable whose next value does not depend on the one before."""
    return tf.while_loop(lambda i, a, b: i < 3, lambda i, a, b: [i + 1, b * 3.0, b * b], [0, x, y])[1:]


@graph(x=numbers(2), w=numbers(2, turn=2.3))
def in_each_other(x, w):
    def outer(i, a):
        inner = tf.while_loop(lambda j, c: j <= i, lambda j, c: [j + 1, tf.sin(c) * w + a], [0, a * 0.5])
        return [i + 1, a + inner[1] * w]

    return tf.while_loop(lambda i, a: i < 3, outer, [0, x])[1]


@graph(x=numbers(2), w=numbers(2, turn=2.3))
def three_in_each_other(x, w):
    def innermost(c):
        return tf.while_loop(lambda k, d: k < 2, lambda k, d: [k + 1, tf.tanh(d * w + c)], [0, c])[1]

    def inner(a):
        return tf.while_loop(lambda j, c: j < 2, lambda j, c: [j + 1, c + innermost(c) * a], [0, a])[1]

    return tf.while_loop(lambda i, a: i < 2, lambda i, a: [i + 1, inner(a) * 0.5], [0, x])[1]


@graph(x=numbers(2), w=numbers(2, turn=2.3))
def a_conditional_inside(x, w):
    def body(i, a):
        return [i + 1, tf.cond(tf.equal(i % 2, 0), lambda: a * w * a, lambda: tf.sin(a) + w)]

    return tf.while_loop(lambda i, a: i < 5, body, [0, x])[1]


@graph(x=numbers(2), w=numbers(2, turn=2.3))
def conditionals_in_each_other_inside(x, w):
    def body(i, a):
        inner = lambda: tf.cond(tf.reduce_sum(a) > 0.5, lambda: tf.exp(-a * a), lambda: a * a * w)
        return [i + 1, tf.cond(i < 3, inner, lambda: tf.sin(a * w))]

    return tf.while_loop(lambda i, a: i < 5, body, [0, x])[1]


def inside_a_conditional(x, w, p):
    loop = lambda: tf.while_loop(lambda i, a: i < 3, lambda i, a: [i + 1, a * w + tf.sin(a)], [0, x])[1]
    return tf.cond(p, loop, lambda: x * 3.0)


@graph(x=numbers(2), w=numbers(2, turn=2.3), p=np.bool_(True))
def inside_a_conditional_that_holds(x, w, p):
    return inside_a_conditional(x, w, p)


@graph(x=numbers(2), w=numbers(2, turn=2.3), p=np.bool_(False))
def inside_a_conditional_that_does_not_hold(x, w, p):
    return inside_a_conditional(x, w, p)


@graph(x=numbers(2), w=numbers(2, turn=2.3))
def a_loop_in_a_conditional_in_a_loop(x, w):
    def body(i, a):
        inner = lambda: tf.while_loop(lambda j, c: j < i, lambda j, c: [j + 1, tf.sin(c * w) + a], [0, a])[1]
        return [i + 1, tf.cond(tf.equal(i % 2, 0), inner, lambda: a * w)]

    return tf.while_loop(lambda i, a: i < 5, body, [0, x])[1]


@graph(table=numbers(5, 2), w=numbers(2, turn=0.9))
def rows_of_a_table(table, w):
    ids = tf.constant([3, 1, 3, 0])
    return tf.while_loop(lambda i, a: i < 4, lambda i, a: [i + 1, a * w + tf.gather(table, ids[i])], [0, w])[1]


@graph(table=numbers(5, 2), w=numbers(2, turn=0.9))
def rows_of_a_table_in_both(table, w):
    ids = tf.constant([[3, 1], [3, 0], [4, 4]])

    def inner(i, a):
        body = lambda j, c: [j + 1, tf.sin(c) * tf.reduce_sum(tf.gather(table, ids[j]), 0)]
        return tf.while_loop(lambda j, c: j < i, body, [0, a])[1]

    return tf.while_loop(lambda i, a: i < 4, lambda i, a: [i + 1, a * w + inner(i, a)], [0, w])[1]


@graph(x=numbers(1, 2), w=numbers(2, turn=0.9), shapes={"x": [None, 2]})
def a_variable_that_grows(x, w):
    body = lambda i, a: [i + 1, tf.concat([a, tf.reduce_sum(a * w, 0, keepdims=True)], 0)]
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 2])]
    return tf.while_loop(lambda i, a: i < 3, body, [0, x], shape_invariants=shapes)[1]


@graph(x=numbers(4, 2))
def a_map(x):
    return tf.map_fn(lambda row: tf.sin(row) * tf.reduce_sum(row), x)


@graph(x=numbers(4, 2), w=numbers(2, 2, turn=1.1))
def a_scan(x, w):
    step = lambda a, row: tf.tanh(tf.squeeze(tf.matmul(a[None], w), 0) + row)
    return tf.scan(step, x, initializer=tf.zeros([2], tf.float64))


@graph(x=numbers(4, 2), w=numbers(2, turn=1.1))
def a_scan_backwards(x, w):
    return tf.scan(lambda a, row: a * w + tf.cos(row), x, initializer=w, reverse=True)


@graph(x=numbers(4, 2))
def a_fold(x):
    return tf.foldl(lambda a, row: a * row + tf.sin(a), x)


@graph(x=numbers(3, 2, 2), w=numbers(2, turn=0.8))
def a_scan_in_a_map(x, w):
    return tf.map_fn(lambda rows: tf.scan(lambda a, row: tf.sin(a * row) + w, rows, initializer=w), x)


@graph(x=numbers(6))
def parts_of_an_array(x):
    """What a tensor array does outside of loops, and reads of it inside."""
    array = tf.TensorArray(tf.float64, 3, clear_after_read=False, infer_shape=False).split(x, [1, 2, 3])
    whole = array.concat()
    gathered = tf.TensorArray(tf.float64, 6, clear_after_read=False).unstack(x).gather([0, 2, 2])
    other = tf.TensorArray(tf.float64, 6, clear_after_read=False).scatter([5, 0, 1, 2, 3, 4], x)
    body = lambda i, a: [i + 1, a * other.read(i) + other.read(5 - i)]
    return [whole * whole, gathered, tf.while_loop(lambda i, a: i < 4, body, [0, x[0]])[1]]


class Cell(tf.nn.rnn_cell.RNNCell if hasattr(tf.nn.rnn_cell, "RNNCell") else object):
    """A gated cell whose weights are tensors."""

    def __init__(self, w, u):
        self.w, self.u = w, u
        self.output_size = self.state_size = int(u.shape[0])

    def zero_state(self, batch, dtype):
        return tf.zeros([batch, self.state_size], dtype)

    def __call__(self, inputs, state, scope=None):
        gates = tf.matmul(inputs, self.w) + tf.matmul(state, self.u)
        gate, update = tf.split(gates, 2, 1)
        new = tf.sigmoid(gate) * state + (1.0 - tf.sigmoid(gate)) * tf.tanh(update)
        return new, new


@graph(x=numbers(2, 4, 3), w=numbers(3, 4, turn=0.6), u=numbers(2, 4, turn=1.9), lengths=np.int32([4, 2]))
def a_recurrent_network(x, w, u, lengths):
    outputs, last = tf.nn.dynamic_rnn(Cell(w, u), x, lengths, dtype=tf.float64)
    return [outputs, last]
