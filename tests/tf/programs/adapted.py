"""What `meshtf tf` changes in TensorFlow's Saver and QueueRunner, in this process: the queues fill in the node, in the same order and to
the same end; a relative checkpoint is the program's own. And the names of TensorFlow 0.x."""

import os
import sys
import threading

import numpy as np

from client import check, data, on_tensorflow, raises, same, target, tf

CLUSTER = {"ps": 1, "worker": 1}

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3, "src", "cli", "tf"))
from meshtf_tf import exits, names, sessions  # noqa: E402

sessions.install()
names.add_older_names(tf)

# How often the client runs what.
calls = {}
run = tf.Session.run


def counted(self, fetches, *arguments, **named):
    name = getattr(fetches, "name", "other")
    calls[name] = calls.get(name, 0) + 1
    return run(self, fetches, *arguments, **named)


tf.Session.run = counted


def fills(session, fetched, count):
    """What comes out of a pipeline until it ends."""
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    seen = []
    try:
        while True:
            seen.extend(session.run(fetched))
    except tf.errors.OutOfRangeError as error:
        check("is closed and has insufficient elements" in str(error), str(error))
    finally:
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=30)
    check(len(seen) == count, len(seen))
    return seen


# Every element once, in order, over the end of a call and the end of the input; the queue is on another task.
with tf.Graph().as_default(), tf.Session(target("worker/0")) as session:
    with tf.device("/job:ps/task:0"):
        number = tf.train.range_input_producer(1250, num_epochs=2, shuffle=False, shared_name="numbers").dequeue()
    with tf.device("/job:worker/task:0"):
        numbers = tf.train.batch([number], 50, capacity=100, shared_name="batched")
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    calls.clear()
    check(fills(session, numbers, 2500) == list(range(1250)) * 2)
    enqueues = {name: count for name, count in calls.items() if "enqueue" in name.lower()}
    check(len(enqueues) == 2, calls)
    check(max(enqueues.values()) <= (2501 if on_tensorflow() else 4), calls)

# An element that cannot be made ends the input with its error; what came before it is there.
with tf.Graph().as_default(), tf.Session(target("worker/0")) as session:
    with tf.device("/job:worker/task:0"):
        word = tf.train.string_input_producer(["1", "2", "x"], shuffle=False, shared_name="words").dequeue()
        value = tf.train.batch([tf.string_to_number(word)], 1, shared_name="values")
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    same(session.run(value), np.float32([1]))
    same(session.run(value), np.float32([2]))
    with raises(tf.errors.InvalidArgumentError, "x"):
        coordinator.join(threads, stop_grace_period_secs=30)

# A runner that waits in a full queue stops when it is asked to.
with tf.Graph().as_default(), tf.Session(target("worker/0")) as session:
    with tf.device("/job:worker/task:0"):
        same_one = tf.train.batch([tf.constant(7)], 2, capacity=5, shared_name="sevens")
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    check(session.run(same_one).tolist() == [7, 7])
    coordinator.request_stop()
    coordinator.join(threads, stop_grace_period_secs=30)

# The program moves to another folder than the node's.
with tf.Graph().as_default(), tf.Session(target("worker/0")) as session:
    os.makedirs(data("run", "deeper"))
    os.chdir(data("run", "deeper"))
    weights = tf.get_variable("weights", [2], initializer=tf.constant_initializer([1.0, 2.0]))
    saver = tf.train.Saver()
    session.run(tf.global_variables_initializer())
    for prefix in ("./m", "../m", data("run", "m")):
        check(saver.save(session, prefix, global_step=3) == prefix + "-3")
        check(tf.train.checkpoint_exists(prefix + "-3"), prefix)
        session.run(tf.assign(weights, [0.0, 0.0]))
        saver.restore(session, prefix + "-3")
        check(session.run(weights).tolist() == [1.0, 2.0], prefix)

# Names and orders of arguments of TensorFlow 0.x.
with tf.Graph().as_default(), tf.Session(target("worker/0")) as session:
    a, b = tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])
    values = {
        "pack": (tf.pack([a, b]), [[1, 2], [3, 5]]),
        "unpack": (tf.unpack(tf.pack([a, b]), axis=1)[1], [2, 5]),
        "mul": (tf.mul(a, b), [3, 10]),
        "sub": (tf.sub(a, b), [-2, -3]),
        "neg": (tf.neg(a), [-1, -2]),
        "inv": (tf.inv(a), [1, 0.5]),
        "select": (tf.select([True, False], a, b), [1, 5]),
        "batch_matmul": (tf.batch_matmul([[[1.0, 2.0]]], [[[3.0], [5.0]]]), [[[13]]]),
        "concat, axis first": (tf.concat(0, [a, b]), [1, 2, 3, 5]),
        "concat, axis last": (tf.concat([a, b], 0), [1, 2, 3, 5]),
        "concat, axis named": (tf.concat(concat_dim=0, values=[b, a]), [3, 5, 1, 2]),
        "split, axis first": (tf.split(0, 2, b)[1], [5]),
        "split, axis last": (tf.split(b, 2)[1], [5]),
        "split, sizes": (tf.split(tf.pack([a, b]), [1, 1], 1)[1], [[2], [5]]),
        "split, named": (tf.split(split_dim=0, num_split=2, value=b)[0], [3]),
        "logits first": (tf.nn.sigmoid_cross_entropy_with_logits([0.0], [1.0]), [np.log(2)]),
        "targets named": (tf.nn.sigmoid_cross_entropy_with_logits([0.0], targets=[1.0]), [np.log(2)]),
        "the axis fourth": (tf.nn.softmax_cross_entropy_with_logits([[0.0], [0.0]], [[1.0], [0.0]], 0), [np.log(2)]),
        "a sparse loss": (tf.nn.sparse_softmax_cross_entropy_with_logits([[0.0, 0.0]], [1], "n"), [np.log(2)]),
        "logits named": (tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0], logits=[0.0]), [np.log(2)]),
    }
    for name, (value, expected) in values.items():
        np.testing.assert_allclose(session.run(value), expected, rtol=1e-6, err_msg=name)
    tf.scalar_summary("the loss", a[0])
    tf.histogram_summary("weights", b)
    summary = tf.Summary.FromString(session.run(tf.merge_all_summaries()))
    check(len(summary.value) == 2, summary)
    check(tf.train.SummaryWriter is tf.summary.FileWriter)
    check(tf.initialize_all_variables().type == "NoOp")

# A program that ends while a thread waits in a session: the call ends with the session, and the thread goes no further.
calls_under_way = exits.Calls()
went_on = threading.Event()
with tf.Graph().as_default():
    with tf.device("/job:worker/task:0"):
        wanted = tf.FIFOQueue(1, [tf.float32], shared_name="empty").dequeue()
    waiting, idle = tf.Session(target("worker/0")), tf.Session(target("worker/0"))
    begun = threading.Event()

    def call(fn, *arguments):
        begun.set()
        return type(waiting)._do_call(waiting, fn, *arguments)

    waiting._do_call = calls_under_way.watched(lambda _, fn, *arguments: call(fn, *arguments)).__get__(waiting)

    def wait():
        try:
            waiting.run(wanted)
        except tf.errors.OpError:
            pass
        went_on.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    begun.wait()
    check(calls_under_way.sessions == [waiting], calls_under_way.sessions)
    calls_under_way.end()
    check(calls_under_way.sessions == [], calls_under_way.sessions)
    with raises(RuntimeError, "closed"):
        waiting.run(tf.constant(1))
    check(idle.run(tf.constant(2)) == 2)
    check(thread.is_alive() and not went_on.is_set())
