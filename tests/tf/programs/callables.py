"""Callables by options: MakeCallable, RunCallable, ReleaseCallable."""

import numpy as np

from client import check, raises, same, target, tf
from tensorflow.core.protobuf import config_pb2

CLUSTER = {"local": 2}

x = tf.placeholder(tf.float32, [None], name="x")
with tf.device("/job:local/task:1"):
    y = tf.multiply(x, 2.0, name="y")
counter = tf.Variable(0, name="called")
more = tf.assign_add(counter, 1, name="more")

with tf.Session(target("local/0")) as session:
    session.run(counter.initializer)
    options = config_pb2.CallableOptions(feed=["x:0"], fetch=["y:0"], target=["more"])
    run = session._make_callable_from_options(options)
    for i in range(5):
        (got,) = run(np.float32([i, 1]))
        same(got, np.float32([2 * i, 2]))
    check(session.run(counter) == 5)
    other = session._make_callable_from_options(config_pb2.CallableOptions(fetch=["called:0"]))
    check(other() == [5])
    del run
    check(other() == [5])
    check(session.run(counter) == 5)
    # The shape of a placeholder binds the client's `run` alone: a server takes any value of the dtype.
    scalar = session._make_callable_from_options(config_pb2.CallableOptions(feed=["x:0"], fetch=["y:0"]))
    (got,) = scalar(np.float32(3))
    same(got, np.float32(6))
    (got,) = scalar(np.float32([[1, 2]]))
    same(got, np.float32([[2, 4]]))
    with raises(tf.errors.NotFoundError, "nosuch"):
        session._make_callable_from_options(config_pb2.CallableOptions(fetch=["nosuch:0"]))()
