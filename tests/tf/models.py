"""Writes the models of benches/tf/models.py as GraphDefs, compressed, for tests that have no TensorFlow.

    models.py                   into tests/data/models, each as NAME.pb.gz

The loss is `loss`, an update of all variables `step`, their first values `start`.
"""

import gzip
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "benches", "tf"))

import tensorflow  # noqa: E402

import models  # noqa: E402


def main():
    tf = tensorflow.compat.v1
    tf.disable_v2_behavior()
    folder = os.path.join(ROOT, "tests", "data", "models")
    os.makedirs(folder, exist_ok=True)
    for build in models.MODELS:
        graph = tf.Graph()
        with graph.as_default():
            loss, step = build(tf)
            start = tf.global_variables_initializer()
            tf.identity(loss, name="loss")
            tf.group(step, name="step")
            tf.group(start, name="start")
        with open(os.path.join(folder, build.__name__ + ".pb.gz"), "wb") as file:
            file.write(gzip.compress(graph.as_graph_def().SerializeToString(), 9, mtime=0))


if __name__ == "__main__":
    main()
