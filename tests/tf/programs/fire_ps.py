"""The trainer under fire: the server of a ps is killed with -9 and comes back; both clients recover by themselves,
from the newest checkpoint, and no client process ends.
"""

import os
import time

import trainer
from client import check, meshtf_binary, note, on_tensorflow, server_kind, tf
from sandbox import Cluster

CLUSTER = None

STEPS = 3000


def start(servers, index, logdir):
    return trainer.Worker(index, trainer.monitored, STEPS, logdir, False, environment=servers.environment(), save_steps=200)


for lost in ["ps/1", "ps/0"]:
    with Cluster(server_kind(), {"ps": 2, "worker": 2}, meshtf_binary()) as servers:
        servers.start()
        logdir = os.path.join(servers.data, "train")
        both = chief, other = [start(servers, index, logdir) for index in range(2)]
        trainer.watch(both, lambda: min(chief.step or 0, other.steps_said) >= 450, 60, "both have worked")
        servers.kill(lost)
        # All that was under way when it died is told.
        saved = tf.train.load_checkpoint(tf.train.latest_checkpoint(logdir)).get_tensor("global_step")
        servers.restart(lost)
        began, had = time.monotonic(), [worker.steps_said for worker in both]
        # Steps that were answered before the kill may still be read; these are more than can have been.
        trainer.watch(both, lambda: all(w.steps_said >= n + 300 for w, n in zip(both, had)), 60, f"both go on without {lost}")
        note(f"{lost}: both clients go on; 300 steps each were taken {time.monotonic() - began:.1f} s after its return")
        check(min(worker.step for worker in both) > saved, saved)
        trainer.finish(both, 150)
        newest = tf.train.latest_checkpoint(logdir)
        last = tf.train.load_checkpoint(newest).get_tensor("global_step")
        check(STEPS <= last <= STEPS + 2, last)
        accuracy = trainer.accuracy_of(newest)
        note(f"{lost}: accuracy {accuracy:.3f}")
        check(accuracy >= 0.95, accuracy)
