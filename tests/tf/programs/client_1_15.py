"""TensorFlow 1.15's client trains as 2.21's does: the guides' trainer, each role with the Python that TF1_CLIENT names."""

import os
import sys

from client import check, note, on_tensorflow, tf
from guides import train

CLUSTER = None

if on_tensorflow():
    note("not run: each role starts a server of its own")
    sys.exit()

python = os.environ.get("TF1_CLIENT")
if not python:
    may_skip = os.environ.get("MESHTF_TEST_MAY_SKIP", "").replace(" ", "").split(",")
    missing = "there is no TensorFlow 1.15 (`make tensorflow-1.15` installs it, with Python 3.7)"
    check(not os.environ.get("CI") or "tensorflow-1.15" in may_skip, missing)
    note(f"NOT RUN: {missing}")
    sys.exit()

logs = train("older", python)
# What it saved, 2.21 reads.
reader = tf.train.load_checkpoint(os.path.join(logs, "final"))
check(reader.get_variable_to_shape_map()["Variable"] == [10, 1])
weights = reader.get_tensor("Variable")
check(abs(weights - 0.1).max() < 0.1, weights)
