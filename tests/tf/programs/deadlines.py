"""Waiting ends: by an operation timeout, by the client closing its session, by the client's death."""

import os
import signal
import threading

from client import check, raises, target, tf

CLUSTER = {"local": 2}

with tf.device("/job:local/task:1"):
    queue = tf.FIFOQueue(10, tf.int32, shapes=[()], shared_name="waited_for")
    taken, size = queue.dequeue(), queue.size()
    put = queue.enqueue(7)

# A timeout of the session, and one of the run.
soon = tf.ConfigProto(operation_timeout_in_ms=300)
with tf.Session(target("local/0"), config=soon) as session:
    for _ in range(3):
        with raises(tf.errors.DeadlineExceededError):
            session.run(taken)
    check(session.run(size) == 0)
with tf.Session(target("local/0")) as session:
    with raises(tf.errors.DeadlineExceededError):
        session.run(taken, options=tf.RunOptions(timeout_in_ms=300))
    # What was given up takes nothing: the next value is there for the next.
    session.run(put)
    check(session.run(taken) == 7)

    # Two at once in one session: one waits for what the other puts.
    got = []
    waiter = threading.Thread(target=lambda: got.append(session.run(taken)))
    waiter.start()
    session.run(put)
    waiter.join(60)
    check(got == [7], got)

# A session that is closed ends what runs in it.
session = tf.Session(target("local/0"))
session.run(size)
ended = []
started = threading.Event()


def blocked():
    started.set()
    try:
        session.run(taken)
    except (tf.errors.CancelledError, tf.errors.AbortedError, RuntimeError) as error:
        ended.append(error)


waiter = threading.Thread(target=blocked)
waiter.start()
started.wait(60)
session.close()
waiter.join(60)
check(not waiter.is_alive(), "a run outlived its session")
with tf.Session(target("local/0")) as session:
    session.run(put)
    check(session.run(taken) == 7, "a run that was over took a value")
