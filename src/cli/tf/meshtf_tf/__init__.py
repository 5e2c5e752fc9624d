"""What `meshtf tf` changes in TensorFlow: its servers are nodes, and TensorFlow 2 has TensorFlow 1's API.

Works with TensorFlow 0.12 to 2 and Python from 3.5 on; nothing here is used before TensorFlow is imported.
"""

import contextlib
import importlib.util
import os
import sys


def before():
    """Called before TensorFlow is loaded."""
    # What is left of TensorFlow 1's layers and RNN cells in TensorFlow 2 is in this package, and used if this is set.
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def after(tensorflow):
    """Called once TensorFlow is loaded, before the program has it."""
    from meshtf_tf import exits, names, servers, sessions

    with silence():
        if version(tensorflow) >= (2, 0):
            names.restore_first_api(tensorflow)
        if version(tensorflow) >= (1, 0):
            names.add_older_names(tensorflow)
    servers.install()
    sessions.install()
    if version(tensorflow) < (1, 4):
        exits.install()


@contextlib.contextmanager
def silence():
    """Keeps back TensorFlow's warnings of old names, which it gives whenever one is looked up: the program has used none yet."""
    from tensorflow.python.platform import tf_logging

    before = tf_logging.get_verbosity()
    tf_logging.set_verbosity(tf_logging.ERROR)
    try:
        yield
    finally:
        tf_logging.set_verbosity(before)


def version(tensorflow):
    """TensorFlow's version, as far as it says what there is: (1, 15)."""
    return tuple(map(int, tensorflow.__version__.split(".")[:2]))


def check_contrib():
    """Says why `import tensorflow.contrib` fails, where it does."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and hasattr(tensorflow, "__version__") and version(tensorflow) >= (2, 0):
        raise ImportError(NO_CONTRIB)


NO_CONTRIB = (
    "tf.contrib is not in TensorFlow 2, and meshtf does not bring it back: run this program with TensorFlow 1.15 "
    "(pip install 'tensorflow<2' under Python 3.7), or replace what it uses of tf.contrib"
)
