"""A cluster of the session's own (`ConfigProto.cluster_def`): the tasks have the names that it gives to their addresses."""

import time

from client import check, cluster, on_tensorflow, raises, target, tf

CLUSTER = {"worker": 3}

addresses = cluster()["worker"]


def named(jobs, **more):
    config = tf.ConfigProto(**more)
    config.cluster_def.CopyFrom(tf.train.ClusterSpec(jobs).as_cluster_def())
    return config


sparse = {"elastic": {7: addresses[0], 9: addresses[2]}}


def split(job, first, second):
    x = tf.placeholder_with_default(2, [])
    with tf.device(f"/job:{job}/task:{second}"):
        y2 = x - 66
    with tf.device(f"/job:{job}/task:{first}"):
        return x + 300 + y2


with tf.Graph().as_default():
    y = split("elastic", 7, 9)
    with tf.Session(target("worker/0"), config=named(sparse)) as session:
        check(session.run(y) == 238)
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        check(session.run(y, options=options, run_metadata=metadata) == 238)
        devices = {stats.device for stats in metadata.step_stats.dev_stats if stats.node_stats}
        check(any("/job:elastic/replica:0/task:9" in device for device in devices), devices)
        check(not any("/job:worker" in device for device in devices), devices)
        listed = {device.name for device in session.list_devices() if device.device_type == "CPU"}
        check(listed == {f"/job:elastic/replica:0/task:{index}/device:CPU:0" for index in (7, 9)}, listed)
        # The graph grows by a node of a task that it has not named yet, and by one without a device, which is the master's.
        with tf.device("/job:elastic/task:9/cpu:0"):
            z = tf.constant(5) + y
        check(session.run([z, tf.constant(1) + z]) == [243, 244])

# The same servers under other names, from another master.
with tf.Graph().as_default():
    y = split("b", 0, 1)
    jobs = {"a": {3: addresses[2]}, "b": [addresses[0], addresses[1]]}
    with tf.Session(target("worker/2"), config=named(jobs)) as session:
        check(session.run(y) == 238)

# Functions of datasets, loops and variables are on the tasks that the session names.
with tf.Graph().as_default():
    with tf.device("/job:elastic/task:9"):
        total = tf.get_variable("total", initializer=tf.zeros([2]))
        added = total.assign_add(tf.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t + total + 1.0), [0, tf.zeros([2])])[1])
    with tf.Session(target("worker/0"), config=named(sparse)) as session:
        session.run(total.initializer)
        check(session.run(added).tolist() == [3.0, 3.0])
    with tf.Session(target("worker/0"), config=named(sparse)) as session:
        check(session.run(total).tolist() == [3.0, 3.0])
    with tf.Session(target("worker/0"), config=named(sparse, isolate_session_state=True)) as session:
        with raises(tf.errors.FailedPreconditionError, "total"):
            session.run(total)

# The names of the servers' own cluster are none of the session's.
with tf.Graph().as_default():
    y = split("worker", 0, 2)
    with tf.Session(target("worker/0"), config=named(sparse)) as session:
        with raises(tf.errors.InvalidArgumentError, "/job:worker/task:", "/job:elastic/replica:0/task:9"):
            session.run(y)

# A cluster that the master does not belong to.
with tf.Graph().as_default():
    y = tf.constant(1)
    with tf.Session(target("worker/1"), config=named(sparse)) as session:
        with raises(tf.errors.InvalidArgumentError, "not included in the provided cluster_def"):
            session.run(y)

if not on_tensorflow():
    # TensorFlow waits forever for a task that is not there.
    with tf.Graph().as_default():
        y = split("elastic", 7, 8)
        there = named({"elastic": {7: addresses[0], 8: "127.0.0.1:1"}}, operation_timeout_in_ms=2000)
        began = time.monotonic()
        with tf.Session(target("worker/0"), config=there) as session:
            with raises(tf.errors.DeadlineExceededError, "limit of 2000 ms"):
                session.run(y)
        check(time.monotonic() - began < 10)
    with tf.Graph().as_default():
        y = split("elastic", 7, 8)
        with tf.Session(target("worker/0"), config=named({"elastic": {7: addresses[0], 8: "127.0.0.1:1"}})) as session:
            with raises(tf.errors.AbortedError, "/job:elastic/task:8 at 127.0.0.1:1", "worker/2 at " + addresses[2]):
                session.run(y)
    # A failure names the session's task.
    with tf.Graph().as_default():
        with tf.device("/job:elastic/task:9"):
            y = tf.constant(1) // tf.placeholder_with_default(0, [], name="zero")
        with tf.Session(target("worker/0"), config=named(sparse)) as session:
            with raises(tf.errors.InvalidArgumentError, "Integer division by zero", "/job:elastic/task:9"):
                session.run(y)
