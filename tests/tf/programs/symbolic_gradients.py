"""Gradients through functions of Defun, which ask the server to differentiate a function (SymbolicGradient)."""

import numpy as np

from client import check, near, on_tensorflow, same, target, tf
from tensorflow.python.framework import function

CLUSTER = {"local": 2}


def run(session, tensors, feeds=None):
    return session.run(tensors, feeds or {})


@function.Defun(tf.float32, tf.float32)
def cubic(x, y):
    return x * x * x + tf.sin(y) * x


@function.Defun(tf.float32, tf.float32)
def two(x, y):
    return tf.reduce_sum(x * y), x - 2 * y


@function.Defun(tf.float32, tf.float32, tf.float32)
def layer(x, w, b):
    return tf.nn.relu(tf.matmul(x, w) + b)


@function.Defun(tf.float32, tf.int32)
def gathered(x, i):
    return tf.gather(x, i) * 3.0


@function.Defun(tf.float32, tf.float32)
def ignores(x, y):
    return x * 2.0


@function.Defun(tf.float32)
def nested(x):
    return cubic(x, x + 1.0) * 2.0


@function.Defun(tf.float32)
def descent(x):
    return tf.gradients(cubic(x, x), x)[0]


@function.Defun(tf.float32, tf.float32)
def stated_gradient(x, dy):
    return dy * 100.0 + x


@function.Defun(tf.float32, grad_func=stated_gradient)
def stated(x):
    return x * 2.0


@function.Defun(tf.float32, shape_func=lambda op: [op.inputs[0].get_shape()])
def passed_on(x):
    return x


x = tf.placeholder(tf.float32, [3])
y = tf.placeholder(tf.float32, [3])
feeds = {x: [0.5, -1.0, 2.0], y: [1.0, 0.25, -2.0]}
a, b = np.float32(feeds[x]), np.float32(feeds[y])
with tf.device("/job:local/task:1"):
    out = cubic(x, y)
    first = tf.gradients(out, [x, y])
    slope = descent(x)
    total, rest = two(x, y)
    both = tf.gradients([total, rest], [x, y])
    weighed = tf.gradients(total, [x, y], grad_ys=3.0)
    unused = tf.gradients(ignores(x, y), [x, y])
    inner = tf.gradients(nested(x), x)[0]
    own = tf.gradients(stated(x), x)[0]
    same_one = tf.gradients(passed_on(x) * y, x)[0]
    picked = tf.gradients(gathered(x, [2, 2, 0]), x)[0]
types = {node.type for node in tf.get_default_graph().get_operations()}
check("SymbolicGradient" in types)
with tf.Session(target("local/0")) as session:
    near(run(session, out, feeds), a**3 + np.sin(b) * a)
    got = run(session, first, feeds)
    near(got[0], 3 * a**2 + np.sin(b))
    near(got[1], np.cos(b) * a)
    near(run(session, slope, feeds), 3 * a**2 + np.sin(a) + a * np.cos(a))
    got = run(session, both, feeds)
    near(got[0], b + 1)
    near(got[1], a - 2)
    got = run(session, weighed, feeds)
    near(got[0], 3 * b)
    near(got[1], 3 * a)
    got = run(session, unused, feeds)
    same(got[0], np.full(3, 2, np.float32))
    same(got[1], np.zeros(3, np.float32))
    near(run(session, inner, feeds), 2 * (3 * a**2 + np.sin(a + 1) + a * np.cos(a + 1)))
    near(run(session, own, feeds), 100 + a)
    near(run(session, same_one, feeds), b)
    if not on_tensorflow():
        # TensorFlow has no gradient of Gather for functions.
        near(run(session, picked, feeds), [3, 0, 6])

# Training through a function whose weights are variables of the other task.
tf.reset_default_graph()
rows = np.linspace(-1, 1, 12).reshape(6, 2).astype(np.float32)
with tf.device("/job:local/task:0"):
    w = tf.Variable([[1.0, -1.0, 0.5], [0.5, 2.0, -0.25]])
    bias = tf.Variable([0.1, 0.2, 0.3])
with tf.device("/job:local/task:1"):
    loss = tf.reduce_mean(tf.square(layer(rows, w, bias) - 1.0))
    plain = tf.reduce_mean(tf.square(tf.nn.relu(tf.matmul(rows, w) + bias) - 1.0))
through, straight = tf.gradients(loss, [w, bias]), tf.gradients(plain, [w, bias])
step = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(through, [w, bias]))
with tf.Session(target("local/1")) as session:
    session.run(tf.global_variables_initializer())
    before = session.run(loss)
    for _ in range(5):
        got, want = session.run([through, straight])
        near(got[0], want[0])
        near(got[1], want[1])
        session.run(step)
    check(session.run(loss) < before)


# A loop within a function.
@function.Defun(tf.float32)
def power(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), [0, x])[1]


# What has no gradient is refused when it runs, by name.
@function.Defun(tf.float32)
def rough(x):
    return tf.raw_ops.TruncateMod(x=x, y=x)


tf.reset_default_graph()
x = tf.placeholder(tf.float32, [])
bad = tf.gradients(rough(x), x)[0]
steep = tf.gradients(power(x), x)[0]
good = tf.gradients(cubic(x, x), x)[0]
with tf.Session(target("local/0")) as session:
    near(session.run(good, {x: 2.0}), 12 + np.sin(2.0) + 2 * np.cos(2.0))
    if not on_tensorflow():
        near(session.run(steep, {x: 2.0}), 32.0)
    try:
        session.run(bad, {x: 2.0})
    except tf.errors.OpError as error:
        check(on_tensorflow() or "TruncateMod" in error.message, error.message)
    else:
        check(False, "TruncateMod has no gradient")
