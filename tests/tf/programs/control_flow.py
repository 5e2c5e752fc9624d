"""Control flow of the first kind (Switch, Merge, Enter, Exit), and loops whose body runs on another task than their
condition.
"""

import numpy as np

from client import check, near, same, target, tf

CLUSTER = {"local": 2}

with tf.Graph().as_default() as graph:
    x = tf.placeholder(tf.float32, [], name="x")
    with tf.device("/job:local/task:1"):
        chosen = tf.cond(x > 0, lambda: x * 2, lambda: x - 10)
        power = tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * x), [tf.constant(0), tf.constant(1.0)])[1]
        slope, steepness = tf.gradients(chosen, x)[0], tf.gradients(power, x)[0]
        words = {text: lambda text=text: tf.constant(text) for text in ("below", "low", "high")}
        case = tf.case([(x < 0, words["below"]), (x < 1, words["low"])], default=words["high"])
    check({"Switch", "Merge", "Enter", "Exit"} <= {node.type for node in graph.get_operations()})
    with tf.Session(target("local/0")) as session:
        for value in [-3.0, 0.5, 2.0]:
            got = session.run([chosen, power, slope, steepness], {x: value})
            near(got, [value * 2 if value > 0 else value - 10, value**5, 2.0 if value > 0 else 1.0, 5 * value**4])
        check([session.run(case, {x: v}) for v in [-1, 0.5, 3]] == [b"below", b"low", b"high"])

# The body is on the other task: values go back and forth in every round.
with tf.Graph().as_default():
    n = tf.placeholder(tf.int32, [])

    def body(i, total):
        with tf.device("/job:local/task:1"):
            more = total + i * i
        return i + 1, more

    with tf.device("/job:local/task:0"):
        _, total = tf.while_loop(lambda i, _: i < n, body, [0, 0])
    with tf.Session(target("local/0")) as session:
        for value in [0, 1, 10, 50]:
            check(session.run(total, {n: value}) == sum(i * i for i in range(value)))

# An array that a loop fills and another reads.
with tf.Graph().as_default(), tf.Session(target("local/1")) as session:
    array = tf.TensorArray(tf.float32, size=4)
    filled = tf.while_loop(lambda i, _: i < 4, lambda i, a: (i + 1, a.write(i, tf.cast(i, tf.float32) ** 2)), [0, array])[1]
    same(session.run(filled.stack()), np.float32([0, 1, 4, 9]))
