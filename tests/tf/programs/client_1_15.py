"""TensorFlow 1.15's client trains as 2.21's does: the guides' trainer, each role with the Python that TF1_CLIENT names."""

import os
import sys

from client import check, first_python, note, on_tensorflow, tf
from guides import train

CLUSTER = None

if on_tensorflow():
    note("not run: each role starts a server of its own")
    sys.exit()

logs = train("older", first_python())
# What it saved, 2.21 reads.
reader = tf.train.load_checkpoint(os.path.join(logs, "final"))
check(reader.get_variable_to_shape_map()["Variable"] == [10, 1])
weights = reader.get_tensor("Variable")
check(abs(weights - 0.1).max() < 0.1, weights)
