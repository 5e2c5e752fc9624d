"""The full trainer, asynchronous: 2 parameter servers, 2 workers, Supervisor, Saver, summaries."""

import glob

import numpy as np

import trainer
from client import check, data, near, note, tf

CLUSTER = {"ps": 2, "worker": 2}

STEPS = 2500

logdir = data("async")
workers = [trainer.Worker(index, trainer.supervised, STEPS, logdir, False) for index in range(2)]
trainer.finish(workers, 200)
accuracy = workers[0].said["accuracy"]
note(f"accuracy {accuracy:.3f} after {STEPS} steps; the workers took {workers[0].steps_said} and {workers[1].steps_said}")
check(accuracy >= 0.95, accuracy)
check(all(worker.steps_said > STEPS / 20 for worker in workers), [worker.steps_said for worker in workers])

# What was saved is a checkpoint for TensorFlow's own tools; the step in it is the step it was named for.
saved = workers[0].said["saved"]
reader = tf.train.load_checkpoint(saved)
check(reader.get_tensor("global_step") == int(saved.rsplit("-", 1)[1]) or reader.get_tensor("global_step") >= STEPS)
check(abs(trainer.accuracy_of(saved) - accuracy) < 0.01)
check(reader.get_tensor("hidden").shape == (64, 64))
check({"hidden/Adagrad", "output_bias/Adagrad"} <= set(reader.get_variable_to_shape_map()))
check(len(tf.train.get_checkpoint_state(logdir).all_model_checkpoint_paths) >= 1)

# The summaries can be read back, and the loss went down.
losses, histograms = [], 0
for events in glob.glob(logdir + "/events.out.*"):
    for event in tf.train.summary_iterator(events):
        for value in event.summary.value:
            if value.tag == "loss":
                losses.append((event.step, value.simple_value))
            histograms += value.tag == "weights" and value.histo.num == 64 * 64
check(len(losses) >= STEPS / 100 / 2 and histograms == len(losses), len(losses), histograms)
losses.sort()
check(np.mean([loss for _, loss in losses[-3:]]) < 0.3 * losses[0][1], losses)
