"""MonitoredTrainingSession: it starts the variables, saves every so often by its hook, goes on from there, and
stops at its step.
"""

import os

import sandbox
import trainer
from client import check, data, note, target, tf

CLUSTER = {"ps": 2, "worker": 2}


def train(steps, logdir, sync):
    # The chief first: it overwrites what the servers hold with what was saved, and that must not be another's newer state.
    workers = [trainer.Worker(0, trainer.monitored, steps, logdir, sync)]
    trainer.watch(workers, lambda: workers[0].ready, 60, "the chief begins")
    workers.append(trainer.Worker(1, trainer.monitored, steps, logdir, sync))
    trainer.finish(workers, 200)
    saved = tf.train.latest_checkpoint(logdir)
    step = tf.train.load_checkpoint(saved).get_tensor("global_step")
    # The hook saves at the end, too; a worker may have been under way when the step was reached.
    check(steps <= step <= steps + 2, saved, step)
    check(1 < len(tf.train.get_checkpoint_state(logdir).all_model_checkpoint_paths) <= 3)
    return saved, step, workers


_, step, _ = train(700, data("async"), False)
# New clients go on from what was saved.
saved, last, workers = train(1500, data("async"), False)
taken = [worker.steps_said for worker in workers]
check(sum(taken) <= last - step + 2, taken, last, step)
accuracy = trainer.accuracy_of(saved)
note(f"asynchronous: accuracy {accuracy:.3f} after {last} steps")
check(accuracy >= 0.95, accuracy)

# The other kind of training starts anew. The reset is a process of its own: this one still has to fork.
reset = sandbox.Process.fork("reset", os.devnull, lambda: tf.Session.reset(target("worker/0")))
check(reset.wait(60) == 0)
saved, last, _ = train(400, data("sync"), True)
accuracy = trainer.accuracy_of(saved)
note(f"synchronous: accuracy {accuracy:.3f} after {last} steps")
check(accuracy >= 0.9, accuracy)
