"""Restores after a loss: one that would only take living variables back is not made, and every other one is.

The variables are on ps/0, and ps/1 is what is lost: so it is certain what they are. Then it is another ps, whose variables
come back as they were before the checkpoint was saved; and at the end one whose variable has not changed since.
"""

import re
import signal
import sys
import tempfile
import time

import sandbox
from client import check, meshtf_binary, note, on_tensorflow, tf

CLUSTER = None

if on_tensorflow():
    note("not run: TensorFlow's own servers keep no variables")
    sys.exit()

with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
    weight = tf.get_variable("weight", [], tf.float32, tf.zeros_initializer())
    train = tf.group(tf.assign_add(step, 1), tf.assign_add(weight, 0.5))
    back = tf.group(tf.assign(step, 15), tf.assign(weight, 7.5))
with tf.device("/job:ps/task:1"):
    probe = tf.random_uniform([])
saver = tf.train.Saver(sharded=True)
init = tf.global_variables_initializer()


def at(session):
    """The step of the variables, all of which are of one step."""
    now, value = session.run([step, weight])
    check(value == now / 2, now, value)
    return now


def steps(session, count):
    for _ in range(count):
        session.run(train)
    session.run(probe)


folder = tempfile.mkdtemp()
flags = ["--keep-variables", "100ms"]
with sandbox.Cluster("meshtf", {"ps": 2, "worker": 1}, meshtf_binary(), flags=flags, folder=folder) as nodes:
    nodes.start()
    target = "grpc://" + nodes.addresses["worker/0"]

    def lose(session, closes=True):
        """The session ends because ps/1 is lost, which comes back. A program that is killed then closes no session."""
        nodes.kill("ps/1")
        for _ in range(1000):
            try:
                session.run(probe)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                break
        else:
            check(False, "the loss of a task ends no session")
        nodes.restart("ps/1")
        if closes:
            session.close()

    session = tf.Session(target)
    session.run(init)
    steps(session, 10)
    first = saver.save(session, nodes.data + "/model", 10)
    steps(session, 10)
    last = saver.save(session, nodes.data + "/model", 20)
    steps(session, 5)
    check(at(session) == 25)
    session.close()

    def opened(path, before=None, expected=None):
        session = tf.Session(target)
        if before is not None:
            session.run(before)
        saver.restore(session, path)
        now = at(session)
        check(now == expected, path, now, expected)
        session.run(probe)
        return session

    # Nothing was lost.
    session = opened(last, expected=20)
    steps(session, 5)
    lose(session)
    # An older checkpoint than the last one is meant.
    session = opened(first, expected=10)
    steps(session, 5)
    lose(session)
    # It was the one with which the session before had begun.
    session = opened(first, expected=15)
    steps(session, 15)
    lose(session)
    # The last one that was saved, but not the last that was restored.
    session = opened(last, expected=20)
    # The checkpoint is newer than the variables.
    session.run(back)
    lose(session)
    session = opened(last, expected=20)
    steps(session, 5)
    lose(session, closes=False)
    # The program was started again.
    session = opened(last, expected=20)
    steps(session, 5)
    lose(session)
    # The session has done something else before.
    session = opened(last, before=train, expected=20)
    steps(session, 5)
    lose(session)
    # Now it is certain.
    session = opened(last, expected=25)
    steps(session, 5)
    # Once only: a session later, nothing was lost.
    session.close()
    session = opened(last, expected=20)
    steps(session, 5)
    lose(session)
    # Again and again, if tasks are.
    session = opened(last, expected=25)
    steps(session, 5)
    lose(session)
    session = opened(last, expected=30)
    steps(session, 5)
    lose(session)
    # Another graph.
    tf.identity(weight, name="another")
    session = opened(last, expected=20)
    steps(session, 5)
    lose(session)
    # No session of this graph has saved that checkpoint, but one has restored it.
    session = opened(last, expected=25)
    session.close()
    said = nodes.servers["worker/0"].output()
    check(said.count("a session continues at step") == 5, said)

tf.reset_default_graph()
with tf.device("/job:ps/task:2"):
    step = tf.train.get_or_create_global_step()
with tf.device("/job:ps/task:0"):
    weight = tf.get_variable("weight", [], tf.float32, tf.zeros_initializer())
train = tf.group(tf.assign_add(step, 1), tf.assign_add(weight, 0.5))
saver = tf.train.Saver(sharded=True)
init = tf.global_variables_initializer()
with sandbox.Cluster("meshtf", {"ps": 3, "worker": 1}, meshtf_binary(), flags=[*flags, "-vv"], folder=folder) as nodes:
    nodes.start()
    session = tf.Session("grpc://" + nodes.addresses["worker/0"])
    session.run(init)
    session.run(train)
    copied = re.compile("copy .* of ps/0 is at ps/1, with 2 changes")
    check(any(copied.search(nodes.servers["ps/0"].output()) or time.sleep(0.02) for _ in range(3000)), "no copy")
    # The copies come to nothing from now on.
    nodes.servers["ps/1"].signal(signal.SIGSTOP)
    began = time.monotonic()
    while time.monotonic() < began + 1:
        session.run(train)
    saved = at(session)
    path = saver.save(session, nodes.data + "/model")
    session.run(train)
    nodes.kill("ps/0")
    try:
        session.run(train)
        check(False, "the loss of a task ends no session")
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        pass
    nodes.servers["ps/1"].signal(signal.SIGCONT)
    nodes.restart("ps/0")
    session.close()
    check("ps/0 has its variables back" in nodes.servers["ps/0"].output(), nodes.servers["ps/0"].output())
    session = tf.Session("grpc://" + nodes.addresses["worker/0"])
    saver.restore(session, path)
    check(at(session) == saved, saved)
    session.close()

tf.reset_default_graph()
with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
with tf.device("/job:ps/task:1"):
    fixed = tf.get_variable("fixed", [], tf.float32, tf.ones_initializer())
train = tf.group(tf.assign_add(step, 1))
saver = tf.train.Saver(sharded=True)
init = tf.global_variables_initializer()
with sandbox.Cluster("meshtf", {"ps": 2, "worker": 1}, meshtf_binary(), flags=[*flags, "-vv"], folder=folder) as nodes:
    nodes.start()

    def copied(count):
        copies = lambda: nodes.servers["ps/1"].output().count(" of ps/1 is at ")
        check(any(copies() >= count or time.sleep(0.02) for _ in range(3000)), "no copy", count)

    session = tf.Session("grpc://" + nodes.addresses["worker/0"])
    session.run(init)
    copied(1)
    path = saver.save(session, nodes.data + "/model")
    # It has what was saved, which nobody changes.
    copied(2)
    for _ in range(5):
        session.run([train, fixed])
    nodes.kill("ps/1")
    try:
        session.run(fixed)
        check(False, "the loss of a task ends no session")
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        pass
    nodes.restart("ps/1")
    session.close()
    session = tf.Session("grpc://" + nodes.addresses["worker/0"])
    saver.restore(session, path)
    now = session.run([step, fixed])
    check(now == [5, 1], now)
    session.close()
