"""What the programs share: the cluster they were given, and checks that say what they saw.

The programs are written as for TensorFlow 1, so its behaviour is asked for here: sessions, variables that are
references, control flow of the first kind. A program that wants otherwise says so.
"""

import contextlib
import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def _told():
    return json.loads(os.environ["TF_TEST_CLUSTER"])


def cluster():
    """`{"ps": ["127.0.0.1:4001", …], "worker": […]}`"""
    return _told()["cluster"]


def target(task):
    """`target("worker/0")` is what `tf.Session` takes."""
    job, index = task.split("/")
    return "grpc://" + cluster()[job][int(index)]


def data(*names):
    """A path in the folder that the servers may write to."""
    return os.path.join(_told()["data"], *names)


def written(name, contents):
    """A file below the data folder: its path."""
    path = data(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(contents)
    return path


def tf_records(name, records, kind=""):
    """A file of TFRecords below the data folder, packed if `kind` says how: its path."""
    path = data(name)
    with tf.io.TFRecordWriter(path, kind) as writer:
        for record in records:
            writer.write(record)
    return path


def on_tensorflow():
    """Whether TensorFlow's own servers answer: where meshtf does better, a program asks."""
    return _told()["kind"] == "tensorflow"


def server_kind():
    return _told()["kind"]


def meshtf_binary():
    return _told()["meshtf"]


def server_pid(task):
    return _told()["pids"][task]


def note(text):
    """Something to be said even where all went well."""
    print("note:", text, flush=True)


def check(holds, *seen):
    if not holds:
        raise AssertionError(" ".join(map(str, seen)) or "does not hold")


def same(actual, expected):
    """Equal in value, dtype and shape; NaN equals NaN."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    check(actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}")
    check(actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}")
    if actual.dtype == ml_dtypes.bfloat16:
        # numpy does not know that this NaN is one.
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


def near(actual, expected, relative=1e-6, absolute=0.0):
    np.testing.assert_allclose(actual, expected, rtol=relative, atol=absolute)


@contextlib.contextmanager
def raises(kind, *parts):
    """The block must raise exactly `kind`, saying each of `parts`. Answers a list that then holds the exception."""
    caught = []
    try:
        yield caught
    except Exception as error:
        if type(error) is not kind:
            raise
        caught.append(error)
        for part in parts:
            check(part in str(error), f"{part!r} is not in: {error}")
    if not caught:
        raise AssertionError(f"no {kind.__name__}")


def first_python():
    """The Python that has TensorFlow 1.15; ends the program where there is none and there need not be one."""
    python = os.environ.get("TF1_CLIENT")
    if not python:
        may_skip = os.environ.get("MESHTF_TEST_MAY_SKIP", "").replace(" ", "").split(",")
        missing = "there is no TensorFlow 1.15 (`make tensorflow-1.15` installs it, with Python 3.7)"
        check(not os.environ.get("CI") or "tensorflow-1.15" in may_skip, missing)
        note(f"NOT RUN: {missing}")
        sys.exit()
    return python


def run_with_first(python, *names):
    """Runs programs of `version_1`, all at once, as processes of that Python, and passes on what they note."""
    # What TensorFlow 2 leaves for those that it starts makes TensorFlow 1.15 eager.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF2_")}
    environment.update(TF_CPP_MIN_LOG_LEVEL="2", PYTHONWARNINGS="ignore")
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "version_1")
    all_of_them = [
        subprocess.Popen(
            [python, os.path.join(folder, name + ".py")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    ]
    for name, process in zip(names, all_of_them):
        said = process.communicate()[0]
        check(process.returncode == 0, name, "ended with", process.returncode, said)
        print("\n".join(line for line in said.splitlines() if line.startswith("note: ")), flush=True)


def digits():
    """scikit-learn's digits: (1500 images, labels) to learn from and 297 to test with, shuffled by a fixed seed."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(7).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])
