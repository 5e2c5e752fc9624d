"""MonitoredTrainingSession: it starts the variables, saves every so often by its hook, goes on from there, and stops at its step."""

import os

import house
import trainer
from client import check, data, note, target, tf

CLUSTER = {"ps": 2, "worker": 2}


def train(steps, logdir, sync):
    workers = [trainer.Worker(index, trainer.monitored, steps, logdir, sync) for index in range(2)]
    trainer.finish(workers, 100)
    saved = tf.train.latest_checkpoint(logdir)
    step = tf.train.load_checkpoint(saved).get_tensor("global_step")
    # The hook saves at the end, too; a worker may have been under way when the step was reached.
    check(steps <= step <= steps + 2, saved, step)
    check(1 < len(tf.train.get_checkpoint_state(logdir).all_model_checkpoint_paths) <= 3)
    return saved, step, workers


_, step, _ = train(700, data("async"), False)
# New clients go on from what was saved.
saved, last, workers = train(1500, data("async"), False)
check(sum(worker.steps_said for worker in workers) <= last - step + 2, last, step)
accuracy = trainer.accuracy_of(saved)
note(f"asynchronous: accuracy {accuracy:.3f} after {last} steps")
check(accuracy >= 0.95, accuracy)

# The other kind of training starts anew. The reset is a process of its own: this one still has to fork.
reset = house.Process.fork("reset", os.devnull, lambda: tf.Session.reset(target("worker/0")))
check(reset.wait(60) == 0)
saved, last, _ = train(400, data("sync"), True)
accuracy = trainer.accuracy_of(saved)
note(f"synchronous: accuracy {accuracy:.3f} after {last} steps")
check(accuracy >= 0.9, accuracy)
