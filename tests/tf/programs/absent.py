"""Missing tasks: clients that do not name them do not wait; those that do get their names within ten seconds."""

import os
import sys
import time

import sandbox
from client import check, meshtf_binary, note, on_tensorflow, server_kind, tf

CLUSTER = None

if on_tensorflow():
    note("not run: TensorFlow's session creation hangs as long as any task of the cluster is absent")
    sys.exit()


def session(servers, task, **more):
    return tf.Session("grpc://" + servers.addresses[task], **more)


def on(task):
    with tf.device(task):
        return tf.constant(2) + 3


with sandbox.Cluster(server_kind(), {"ps": 1, "worker": 2}, meshtf_binary()) as servers:
    servers.start(without=["worker/1"])
    with tf.Graph().as_default(), session(servers, "worker/0") as one:
        here = [on("/job:ps/task:0"), on("/job:worker/task:0")]
        began = time.monotonic()
        check(one.run(here) == [5, 5])
        check(time.monotonic() - began < 5)

    with tf.Graph().as_default() as graph:
        both = [on("/job:worker/task:0"), on("/job:worker/task:1")]
    for task in ["worker/0", "ps/0"]:
        began = time.monotonic()
        with session(servers, task, graph=graph) as one:
            try:
                one.run(both)
                raise AssertionError("a task that is not there answers")
            except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
                # The two that a MonitoredTrainingSession comes back from.
                check("/job:worker/task:1" in str(error) and "/job:ps" not in str(error).split("tasks that are up")[0], error)
        took = time.monotonic() - began
        check(took < 15, took)
    note(f"refused after {took:.1f} s")

    # A session that was open all the while finds the task once it is there.
    with tf.Graph().as_default(), session(servers, "worker/0") as one:
        check(one.run(on("/job:worker/task:0")) == 5)
        servers.restart("worker/1")
        check(one.run(on("/job:worker/task:1")) == 5)

    # A timeout of the client's own is shorter.
    servers.kill("worker/1")
    soon = tf.ConfigProto(operation_timeout_in_ms=500)
    began = time.monotonic()
    with session(servers, "ps/0", graph=graph, config=soon) as one:
        try:
            one.run(both)
            raise AssertionError("a task that was killed answers")
        except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
            check(time.monotonic() - began < 5, error)

    # The only task of a job may come back as well, where it was met before; the session that used it is over.
    with tf.Graph().as_default(), session(servers, "worker/0") as one:
        check(one.run(on("/job:ps/task:0")) == 5)
        servers.kill("ps/0")
        for graph in [tf.get_default_graph(), tf.Graph()]:
            with graph.as_default(), session(servers, "worker/0", graph=graph) as another:
                for asked in [one] * (graph is one.graph) + [another]:
                    try:
                        asked.run(on("/job:ps/task:0"))
                        raise AssertionError("a task that was killed answers")
                    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
                        check("/job:ps/task:0" in str(error), error)
