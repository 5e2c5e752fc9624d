"""Threads of a client that run the same fetches in one session: the step of one lets that of another continue."""

import threading

import numpy as np

from client import check, same, target, tf

CLUSTER = {"ps": 1, "worker": 1}


def in_threads(count, work):
    """Runs `work(i)` in a thread each; the answers by their numbers."""
    answers, failures = [None] * count, []

    def run(i):
        try:
            answers[i] = work(i)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=run, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    check(not failures, failures)
    check(not any(thread.is_alive() for thread in threads), "a thread waits for ever")
    return answers


# A barrier: each step puts its number into a queue of the ps and goes on when all have.
COUNT = 8
with tf.Graph().as_default():
    mine = tf.placeholder(tf.int32, [])
    with tf.device("/job:ps/task:0"):
        there = tf.FIFOQueue(100, [tf.int32], [[]], shared_name="there")
        leave = tf.FIFOQueue(100, [tf.int32], [[]], shared_name="leave")
        arrive = there.enqueue(mine)
        with tf.control_dependencies([arrive]):
            left = leave.dequeue()
        open_all = leave.enqueue_many([there.dequeue_many(COUNT)])
    with tf.device("/job:worker/task:0"):
        doubled = left * 2
    with tf.Session(target("worker/0")) as session:
        for _ in range(2):
            # One thread more opens the way, with a step of its own.
            got = in_threads(COUNT + 1, lambda i: session.run(open_all) if i == COUNT else session.run(doubled, {mine: i}))
            check(sorted(got[:COUNT]) == [2 * i for i in range(COUNT)], got)

# Updates of a parameter server without locks: none is lost.
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        weight = tf.get_variable("weight", initializer=tf.zeros([3]), use_resource=True)
        steps = tf.get_variable("steps", initializer=tf.constant(0, tf.int64), use_resource=True)
    with tf.device("/job:worker/task:0"):
        gradient = tf.ones([3]) * -0.5
    with tf.device("/job:ps/task:0"):
        train = tf.group(weight.assign_add(-gradient), steps.assign_add(1))
    with tf.Session(target("worker/0")) as session:
        session.run(tf.global_variables_initializer())
        in_threads(4, lambda _: [session.run(train) for _ in range(25)])
        same(session.run(weight), np.full(3, 50, np.float32))
        check(session.run(steps) == 100)
