"""Restores after a loss: one that would only take living variables back is not made, and every other one is.

The variables are on ps/0, and ps/1 is what is lost: so it is certain what they are.
"""

import sys
import tempfile

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

    def lose(session):
        """The session ends because ps/1 is lost, which comes back."""
        nodes.kill("ps/1")
        for _ in range(1000):
            try:
                session.run(probe)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                break
        else:
            check(False, "the loss of a task ends no session")
        session.close()
        nodes.restart("ps/1")

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
        return session

    # Nothing was lost.
    session = opened(last, expected=20)
    steps(session, 5)
    lose(session)
    # An older checkpoint than the last one is meant.
    session = opened(first, expected=10)
    steps(session, 5)
    lose(session)
    # The checkpoint is newer than the variables.
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
    # A checkpoint that no session of this graph has saved.
    session = opened(last, expected=20)
    session.close()
    said = nodes.servers["worker/0"].output()
    check(said.count("a session continues at step") == 3, said)
