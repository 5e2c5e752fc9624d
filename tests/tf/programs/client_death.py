"""A client that is killed while it waits takes nothing and leaves nothing behind; other clients are not affected."""

import os
import signal
import tempfile

import sandbox
from client import check, target, tf

CLUSTER = {"local": 2}


def waiting_client(task, say):
    """Blocks in an empty queue, after it has said that the run before was answered."""
    with tf.device("/job:local/task:1"):
        queue = tf.FIFOQueue(10, tf.int32, shapes=[()], shared_name="waited_for")
        taken, size = queue.dequeue(), queue.size()
        # What says that the step with the dequeue has begun: it counts before it waits.
        begun = tf.Variable(0, name="begun")
        with tf.control_dependencies([tf.assign_add(begun, 1)]):
            counted = queue.dequeue()
    with tf.Session(target(task)) as session:
        check(session.run(size) == 0)
        session.run(counted)


def observe():
    """A client that sees the waiting ones, and what they leave."""
    with tf.device("/job:local/task:1"):
        queue = tf.FIFOQueue(10, tf.int32, shapes=[()], shared_name="waited_for")
        taken, put, size = queue.dequeue(), queue.enqueue(tf.placeholder(tf.int32, [], name="value")), queue.size()
        begun = tf.Variable(0, name="begun")
    with tf.Session(target("local/1")) as session:
        session.run(begun.initializer)
        os.write(ready_to, b".")
        # The others start now.
        while session.run(begun) < len(victims_at):
            pass
        os.write(ready_to, b".")
        check(os.read(killed_from, 1) == b".")
        # The server learns of a death from the connection; until then a value may go to the dead. It must end soon.
        lost = 0
        while True:
            session.run(put, {"value:0": lost})
            try:
                got = session.run(taken, options=tf.RunOptions(timeout_in_ms=2000))
                break
            except tf.errors.DeadlineExceededError:
                lost += 1
                check(lost <= len(victims_at), "the dead still take values")
        check(got == lost, got, lost)
        check(session.run(size) == 0)


victims_at = ["local/0", "local/1", "local/0"]
ready_from, ready_to = os.pipe()
killed_from, killed_to = os.pipe()
folder = tempfile.mkdtemp()
watcher = sandbox.Process.fork("observer", os.path.join(folder, "observer"), observe)
check(os.read(ready_from, 1) == b".")
victims = [
    sandbox.Process.fork(f"victim {i}", os.path.join(folder, f"victim-{i}"), lambda task=task: waiting_client(task, ready_to))
    for i, task in enumerate(victims_at)
]
check(os.read(ready_from, 1) == b".")
check(all(victim.alive() for victim in victims))
for victim in victims:
    victim.signal(signal.SIGKILL)
    check(victim.wait(30) == -signal.SIGKILL)
os.write(killed_to, b".")
check(watcher.wait(60) == 0, watcher.output())
