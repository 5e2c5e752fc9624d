"""Graphs with functions: cond, while_loop, case of control flow v2, functions of tf.function, gradients through them."""

import numpy as np

from client import check, near, same, target, tf

CLUSTER = {"local": 2}

tf.enable_control_flow_v2()

with tf.Graph().as_default() as graph:
    x = tf.placeholder(tf.float32, [], name="x")
    with tf.device("/job:local/task:1"):
        chosen = tf.cond(x > 0, lambda: x * 2, lambda: x - 10)
        count, power = tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * x), [tf.constant(0), tf.constant(1.0)])
        tens = [lambda value=value: tf.constant(value) for value in (10, 20, 30)]
        which = tf.switch_case(tf.cast(x, tf.int32), tens)
        slope = tf.gradients(chosen, x)[0]
        steepness = tf.gradients(power, x)[0]
    types = {node.type for node in graph.get_operations()}
    check(types & {"If", "StatelessIf"} and types & {"While", "StatelessWhile"}, types)
    with tf.Session(target("local/0")) as session:
        for value in [-3.0, 0.5, 1.0, 2.0]:
            got = session.run([chosen, count, power, slope, steepness], {x: value})
            expected = [value * 2 if value > 0 else value - 10, 5, value**5, 2.0 if value > 0 else 1.0, 5 * value**4]
            near(got, expected)
        check([session.run(which, {x: i}) for i in range(3)] == [10, 20, 30])

# Loops within loops, and a condition that depends on data of the other task.
with tf.Graph().as_default():
    n = tf.placeholder(tf.int32, [])
    with tf.device("/job:local/task:1"):
        limit = n * 2

    def outer(i, total):
        _, inner = tf.while_loop(lambda j, t: j < i, lambda j, t: (j + 1, t + j), [0, 0])
        return i + 1, total + inner

    with tf.device("/job:local/task:0"):
        _, total = tf.while_loop(lambda i, t: i < limit, outer, [0, 0])
    with tf.Session(target("local/0")) as session:
        for value in [0, 1, 3, 6]:
            check(session.run(total, {n: value}) == sum(sum(range(i)) for i in range(2 * value)))


# Functions that are called by name, from each other, with variables inside.
@tf.function
def squared_sum(values, offset):
    return tf.reduce_sum(values * values) + offset


@tf.function
def twice(values):
    return squared_sum(values, 1.0) + squared_sum(values + 1, 2.0)


with tf.Graph().as_default() as graph:
    values = tf.placeholder(tf.float32, [3])
    with tf.device("/job:local/task:1"):
        held = tf.Variable([1.0, 1.0, 1.0], use_resource=True)
        answer = twice(values + held)
        pull = tf.gradients(answer, values)[0]
    check({node.type for node in graph.get_operations()} & {"PartitionedCall", "StatefulPartitionedCall"})
    with tf.Session(target("local/0")) as session:
        session.run(tf.global_variables_initializer())
        got = session.run([answer, pull], {values: [1, 2, 3]})
        v = np.array([2, 3, 4], np.float32)
        near(got[0], (v * v).sum() + 1 + ((v + 1) ** 2).sum() + 2)
        near(got[1], 2 * v + 2 * (v + 1))

# A function that comes with an extension of the graph.
with tf.Graph().as_default():
    x = tf.constant(3.0)
    with tf.Session(target("local/0")) as session:
        same(session.run(x), np.float32(3))
        branch = tf.cond(tf.placeholder_with_default(True, []), lambda: x + 1, lambda: x - 1)
        same(session.run(branch), np.float32(4))
        again = tf.function(lambda z: z * 10)(branch)
        same(session.run(again), np.float32(40))

# Training through a loop: the steepest descent in the graph.
with tf.Graph().as_default():
    w = tf.Variable(5.0, use_resource=True)
    _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5 + w), [0, 0.0])
    step = tf.train.GradientDescentOptimizer(0.1).minimize((y - 7.0) ** 2)
    with tf.Session(target("local/1")) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(60):
            session.run(step)
        near(session.run(w), 4.0, relative=1e-4)
