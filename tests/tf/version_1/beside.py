"""Parts of TensorFlow 1.15's programs that run twice, with their sessions in the process itself and on a server: they answer the same.

Run by programs in `../programs` that have `_1_15` in their names, with the Python that the environment variable TF1_CLIENT names.
"""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

tf.logging.set_verbosity(tf.logging.ERROR)


def told():
    return json.loads(os.environ["TF_TEST_CLUSTER"])


def flat(answer):
    """The arrays and numbers of an answer, in an order."""
    if isinstance(answer, dict):
        return [one for key in sorted(answer) for one in flat(answer[key])]
    if isinstance(answer, (list, tuple)):
        return [one for part in answer for one in flat(part)]
    return [np.asarray(answer)]


def hold(parts, begin):
    """Runs each part in both places, after `begin(place)`; a part is given a folder of its own."""
    server = "grpc://" + told()["cluster"]["local"][0]
    for part in parts:
        answers = []
        for place in "", server:
            if place:
                tf.Session.reset(place)
            np.random.seed(3)
            begin(place)
            answers.append(flat(part(tempfile.mkdtemp(dir=told()["data"]))))
        here, there = answers
        assert len(here) == len(there) > 1, part.__name__
        for wanted, got in zip(here, there):
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=part.__name__)
            else:
                np.testing.assert_array_equal(got, wanted, part.__name__)
        print("note:", part.__name__, "gives %d answers as TensorFlow's own session does" % len(here), flush=True)
