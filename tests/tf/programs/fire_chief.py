"""The trainer under fire: the chief, its server and its client, is killed with -9 and comes back."""

import time

import trainer
from client import check, meshtf_binary, note, server_kind, tf
from sandbox import Cluster

CLUSTER = None

STEPS = 3000


def start(servers, index, logdir):
    return trainer.Worker(index, trainer.monitored, STEPS, logdir, False, environment=servers.environment(), save_steps=200)


with Cluster(server_kind(), {"ps": 2, "worker": 2}, meshtf_binary()) as servers:
    servers.start()
    logdir = servers.data + "/train"
    chief, other = (start(servers, index, logdir) for index in range(2))
    trainer.watch([chief, other], lambda: min(chief.step or 0, other.steps_said) >= 450, 60, "both have worked")
    servers.kill("worker/0")
    chief.kill()
    had, began = other.steps_said, time.monotonic()
    trainer.watch([other], lambda: other.steps_said >= had + 300, 30, "the other goes on")
    note(f"300 steps in {time.monotonic() - began:.2f} s beside a dead chief")
    # The stock client's chief always restores the newest checkpoint, which a torn save must not be.
    newest = tf.train.latest_checkpoint(logdir)
    saved = tf.train.load_checkpoint(newest).get_tensor("global_step")
    check(saved >= 200, newest)
    servers.restart("worker/0")
    chief = start(servers, 0, logdir)
    trainer.watch([chief, other], lambda: chief.steps_said >= 50, 30, "the chief is back")
    check(chief.step > saved, chief.step, saved)
    had = other.steps_said
    trainer.watch([chief, other], lambda: other.ended or other.steps_said >= had + 50, 30, "the other goes on beside it")
    trainer.finish([chief, other], 150)
    accuracy = trainer.accuracy_of(tf.train.latest_checkpoint(logdir))
    note(f"accuracy {accuracy:.3f}")
    check(accuracy >= 0.95, accuracy)
