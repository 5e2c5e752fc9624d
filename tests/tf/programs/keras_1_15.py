"""tf.keras of TensorFlow 1.15 with its session on a node; `../version_1` has the programs."""

from client import first_python, run_with_first

CLUSTER = {"local": 1}

run_with_first(first_python(), "keras_models")
run_with_first(first_python(), "keras_files")
