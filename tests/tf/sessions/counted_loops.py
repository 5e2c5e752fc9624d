"""Loops that count as one op (For), and calls of functions by the name of a device (RemoteCall)."""

from recorder.sessions import step, tf
from tensorflow.python.framework import function
from tensorflow.python.ops import functional_ops

STEPS = []
first, limit, by = (tf.placeholder(tf.int32, name=name) for name in ("first", "limit", "by"))
x = tf.placeholder(tf.float32, [2], name="x")
counts = lambda *three: dict(zip((first, limit, by), three))


@function.Defun(tf.int32, tf.float32, tf.float32)
def added(n, total, scale):
    return total + tf.cast(n, tf.float32), scale * 2.0


both = functional_ops.For(first, limit, by, [tf.constant(0.5), x], added)
for three in [(0, 5, 1), (5, 0, -1), (0, 5, 2), (1, 2, 5), (3, 3, 1), (5, 5, 0), (-2, 2, 1), (9, 1, -3)]:
    STEPS.append(step(both, {x: [1.0, -3.0], **counts(*three)}))
# Steps that do not lead to the limit, and numbers that are none.
for three in [(0, 5, 0), (5, 0, 1), (0, 5, -1), ([1], 3, 1), (1, [3, 3], 1)]:
    STEPS.append(step(both, {x: [1.0, -3.0], **counts(*three)}))


# An input that stays, of which only the body makes use; and effects in each round.
@function.Defun(tf.int32, tf.float32, tf.int32)
def scaled(n, by, product):
    return by, product * n


fixed = functional_ops.For(first, limit, by, [x, tf.constant(1)], scaled)
STEPS.append(step(fixed, {x: [2.0, 4.0], **counts(1, 6, 1)}))
variable = tf.get_variable("total", initializer=tf.constant([0.0, 0.0]), use_resource=True)
STEPS.append(step(targets=[variable.initializer]))


@function.Defun(tf.int32, tf.resource, tf.float32)
def counted(n, handle, rounds):
    add = tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.fill([2], tf.cast(n, tf.float32)))
    with tf.control_dependencies([add]):
        return handle, rounds + 1.0


effects = tf.raw_ops.For(start=first, limit=limit, delta=by, input=[variable.handle, tf.constant(0.0)], body=counted, name="effects")
with tf.control_dependencies([effects[1]]):
    now = variable.read_value()
STEPS += [step([effects[1], now], counts(1, 5, 1)), step([effects[1], now], counts(5, 1, -1))]


# Within each other, and within a conditional.
@function.Defun(tf.int32, tf.float32)
def inner(n, total):
    return total * 2.0 + tf.cast(n, tf.float32)


@function.Defun(tf.int32, tf.float32)
def outer(n, total):
    return functional_ops.For(0, n, 1, [total], inner)[0]


STEPS.append(step(functional_ops.For(0, 4, 1, [x], outer), {x: [1.0, 0.5]}))
is_taken = tf.placeholder(tf.bool, name="is_taken")
chosen = tf.cond(is_taken, lambda: functional_ops.For(first, limit, by, [x], inner)[0], lambda: x)
for taken in (True, False):
    STEPS.append(step([chosen], {is_taken: taken, x: [3.0, 1.0], **counts(0, 3, 1)}))
# Not taken, it is not looked at.
STEPS.append(step([chosen], {is_taken: False, x: [3.0, 1.0], **counts(0, 3, -1)}))

# A call by the name of a device.
named = functional_ops.remote_call(args=[first, x], Tout=[tf.float32], f=inner, target="/job:localhost/replica:0/task:0/device:CPU:0")
STEPS.append(step(named, {first: 7, x: [1.0, 2.0]}))


# Functions with constants of their own, called within a loop.
@function.Defun(tf.float32)
def grown(value):
    return value * 2.0 + tf.cast(tf.range(2), tf.float32)


again = lambda value: tf.reshape(grown(value), [2])
steps = lambda i, value: (i + 1, tf.cond(i < 2, lambda: again(value), lambda: again(value) - 1.0))
STEPS.append(step(tf.while_loop(lambda i, value: i < limit, steps, [first, x]), {x: [1.0, 2.0], **counts(0, 4, 1)}))
whole = lambda i, value: (i + 1, again(functional_ops.For(0, i, 1, [value], inner)[0]))
STEPS.append(step(tf.while_loop(lambda i, value: i < limit, whole, [first, x]), {x: [1.0, 2.0], **counts(0, 4, 1)}))
around = lambda i, value: (i + 1, tf.while_loop(lambda j, _: j < i, lambda j, inside: (j + 1, again(inside)), [0, again(value)])[1])
STEPS.append(step(tf.while_loop(lambda i, value: i < limit, around, [first, x]), {x: [1.0, 2.0], **counts(0, 3, 1)}))
