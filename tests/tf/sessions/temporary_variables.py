"""Temporary variables: changed, read and destroyed within a step."""

from recorder.sessions import step, tf

raw = tf.raw_ops


def made(name, dtype=tf.float32):
    return raw.TemporaryVariable(shape=[1, 2], dtype=dtype, var_name=name)


first = tf.assign(made("first"), [[4.0, 5.0]])
first = tf.assign_add(first, [[6.0, 7.0]])
second = tf.assign(made("second", tf.int64), [[1, 2]])
STEPS = [
    step([raw.DestroyTemporaryVariable(ref=first, var_name="first")]),
    step([raw.DestroyTemporaryVariable(ref=second, var_name="second")]),
    step([raw.DestroyTemporaryVariable(ref=tf.assign(made("third"), [[1.0, 2.0]]), var_name="bad")]),
    step([tf.identity(made("left"))], check="shape"),
    step([tf.assign(made("one"), [[1.0, 2.0]]) + tf.assign(made("other"), [[3.0, 4.0]])]),
]
