"""A monitored session continues with the variables of a ps that was killed, which come back, and not from a checkpoint."""

import sys

from client import note, on_tensorflow
from kept_run import train

CLUSTER = None

if on_tensorflow():
    note("not run: TensorFlow's own servers keep no variables")
    sys.exit()

train(sys.executable)
