"""The trainer under fire: a worker, server and client, is killed with -9 and comes back. Asynchronous, then
synchronous.
"""

import time

import trainer
from client import check, meshtf_binary, note, server_kind
from sandbox import Cluster

CLUSTER = None


def start(servers, index, logdir, sync, steps):
    return trainer.Worker(index, trainer.monitored, steps, logdir, sync, environment=servers.environment(), save_steps=200)


with Cluster(server_kind(), {"ps": 2, "worker": 2}, meshtf_binary()) as servers:
    servers.start()
    logdir = servers.data + "/async"
    stays, dies = (start(servers, index, logdir, False, 2500) for index in range(2))
    trainer.watch([stays, dies], lambda: min(stays.step or 0, dies.steps_said) >= 200, 60, "both have worked")
    servers.kill("worker/1")
    dies.kill()
    # Nobody else stops.
    had, began = stays.steps_said, time.monotonic()
    trainer.watch([stays], lambda: stays.steps_said >= had + 300, 30, "the other goes on")
    note(f"asynchronous: 300 steps in {time.monotonic() - began:.2f} s beside a dead worker")
    servers.restart("worker/1")
    came = start(servers, 1, logdir, False, 2500)
    trainer.watch([stays, came], lambda: came.steps_said >= 50, 30, "the worker is back")
    check(came.step > stays.steps_said, "the returned worker began anew")
    trainer.finish([stays, came], 150)

with Cluster(server_kind(), {"ps": 2, "worker": 2}, meshtf_binary()) as servers:
    servers.start()
    logdir = servers.data + "/sync"
    stays, dies = (start(servers, index, logdir, True, 600) for index in range(2))
    trainer.watch([stays, dies], lambda: min(stays.step or 0, dies.step or 0) >= 100, 60, "both have worked")
    servers.kill("worker/1")
    dies.kill()
    servers.restart("worker/1")
    came = start(servers, 1, logdir, True, 600)
    trainer.watch([stays, came], lambda: came.ready, 30, "the worker is back")
    had, began = stays.steps_said, time.monotonic()
    trainer.watch([stays, came], lambda: stays.steps_said >= had + 3, 30, "the synchronous run goes on")
    took = time.monotonic() - began
    note(f"synchronous: goes on {took:.2f} s after the worker's return")
    check(took < 15, took)
    trainer.finish([stays, came], 150)
