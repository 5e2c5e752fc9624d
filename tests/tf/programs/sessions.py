"""Sessions: the graph grows between runs, several share a server, containers keep them apart, a reset clears,
devices are listed.
"""

import numpy as np

from client import check, raises, same, target, tf

CLUSTER = {"local": 2}

# A graph that grows between runs, and targets that are run without a value.
with tf.Graph().as_default():
    x = tf.placeholder(tf.int32, [], name="x")
    doubled = x * 2
    with tf.Session(target("local/0")) as session:
        check(session.run(doubled, {x: 3}) == 6)
        with tf.device("/job:local/task:1"):
            tripled = doubled + x
        check(session.run(tripled, {x: 3}) == 9)
        counter = tf.Variable(10, name="grown_counter")
        session.run(counter.initializer)
        more = tf.assign_add(counter, tripled)
        nothing = tf.group(more, name="nothing")
        check(session.run(nothing, {x: 1}) is None)
        check(session.run([nothing, counter], {x: 1})[0] is None)
        check(session.run(counter) == 16)
        check(session.run([more, doubled], {x: 2})[1] == 4)
        # A tensor that is no placeholder is fed; and one that is fetched and fed at once.
        check(session.run(tripled, {doubled: 100, x: 1}) == 101)
        check(session.run([doubled, tripled], {doubled: 100, x: 1}) == [100, 101])
        check(session.run("x:0", {"x:0": 5}) == 5)
        check(session.run([], {x: 1}) == [])
        for size in range(20):
            check(session.run(tf.add_n([tf.constant(1)] * (size + 1))) == size + 1)

# Two sessions on one server, from two graphs; each has nodes of the same names.
graphs = []
for start in [1.0, 2.0]:
    graph = tf.Graph()
    with graph.as_default():
        tf.add(tf.constant(start, name="start"), 0.5, name="sum")
    graphs.append((graph, start))
open_sessions = [(tf.Session(target("local/0"), graph=graph), start) for graph, start in graphs for _ in range(3)]
for _ in range(3):
    for session, start in open_sessions:
        check(session.run("sum:0") == start + 0.5)
for session, _ in open_sessions[::2]:
    session.close()
for session, start in open_sessions[1::2]:
    check(session.run("sum:0") == start + 0.5)
with raises(RuntimeError, "closed"):
    open_sessions[0][0].run("sum:0")

# Variables are shared by sessions, through either server, and kept apart by containers.
def variable_in(container, name="shared"):
    with tf.device("/job:local/task:1"), tf.container(container):
        return tf.Variable(np.zeros(2, np.float32), name=name)


graph = tf.Graph()
with graph.as_default():
    plain, first, second = variable_in(""), variable_in("first"), variable_in("second", "shared_2")
    for variable in [plain, first, second]:
        tf.add_to_collection("set", tf.assign(variable, tf.placeholder(tf.float32, [2], name="fed")))
set_plain, set_first, set_second = graph.get_collection("set")
fed = [node.outputs[0] for node in graph.get_operations() if node.type == "Placeholder"]
with tf.Session(target("local/0"), graph=graph) as session:
    session.run([set_plain, set_first, set_second], {fed[0]: [1, 1], fed[1]: [2, 2], fed[2]: [3, 3]})
with tf.Session(target("local/1"), graph=graph) as session:
    got = session.run([plain, first, second])
    for value, expected in zip(got, [[1, 1], [2, 2], [3, 3]]):
        same(value, np.float32(expected))

# A reset of one container takes what is in it and leaves the others.
tf.Session.reset(target("local/0"), ["first"])
with tf.Session(target("local/0"), graph=graph) as session:
    same(session.run(plain), np.float32([1, 1]))
    same(session.run(second), np.float32([3, 3]))
    with raises(tf.errors.FailedPreconditionError, "Attempting to use uninitialized value"):
        session.run(first)

# A reset of everything: the default container is empty, and sessions that were open are over.
session = tf.Session(target("local/0"), graph=graph)
same(session.run(plain), np.float32([1, 1]))
tf.Session.reset(target("local/0"))
try:
    session.run(plain)
    raise AssertionError("a session outlived a reset")
except tf.errors.OpError as error:
    check(isinstance(error, (tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.FailedPreconditionError)), repr(error))
with tf.Session(target("local/0"), graph=graph) as session:
    with raises(tf.errors.FailedPreconditionError, "Attempting to use uninitialized value"):
        session.run(plain)

# All devices of all tasks.
with tf.Session(target("local/1"), graph=graph) as session:
    devices = session.list_devices()
    names = [device.name for device in devices if device.device_type == "CPU"]
    check(sorted(names) == [f"/job:local/replica:0/task:{task}/device:CPU:0" for task in range(2)], names)
    check(all(device.memory_limit_bytes >= 0 for device in devices))

# Soft placement: a device that is not there gives way to one of the same task.
with tf.Graph().as_default():
    with tf.device("/job:local/task:1/gpu:3"):
        y = tf.constant(2) + 3
    with tf.Session(target("local/0")) as session:
        with raises(tf.errors.InvalidArgumentError, "/job:local/task:1/device:GPU:3"):
            session.run(y)
    soft = tf.ConfigProto(allow_soft_placement=True, log_device_placement=True)
    soft.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    soft.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Session(target("local/0"), config=soft) as session:
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        check(session.run(y, options=options, run_metadata=metadata) == 5)
        ran = {
            stats.node_name.split(":")[0]: device.device
            for device in metadata.step_stats.dev_stats
            for stats in device.node_stats
        }
        check(ran["add"].startswith("/job:local/replica:0/task:1/device:CPU:0"), ran)

# device_filters: a session that names one task does not know the other.
only = tf.ConfigProto(device_filters=["/job:local/task:0"])
with tf.Graph().as_default():
    with tf.device("/job:local/task:1"):
        hidden = tf.constant(1) + 1
    with tf.device("/job:local/task:0"):
        seen = tf.constant(1) + 1
    with tf.Session(target("local/0"), config=only) as session:
        check([device.name for device in session.list_devices()] == ["/job:local/replica:0/task:0/device:CPU:0"])
    with tf.Session(target("local/0"), config=only, graph=seen.graph) as session:
        with raises(tf.errors.InvalidArgumentError, "/job:local/task:1"):
            session.run(hidden)
