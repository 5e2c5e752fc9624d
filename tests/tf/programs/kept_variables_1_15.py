"""As `kept_variables.py`, with TensorFlow 1.15's client."""

import sys

from client import first_python, note, on_tensorflow
from kept_run import train

CLUSTER = None

if on_tensorflow():
    note("not run: TensorFlow's own servers keep no variables")
    sys.exit()

train(first_python())
