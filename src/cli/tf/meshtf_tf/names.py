"""TensorFlow 1's API under TensorFlow 2, and the names that TensorFlow 0.x had for what version 1 calls otherwise."""

import functools
import sys
import types

from meshtf_tf import NO_CONTRIB


def restore_first_api(tensorflow):
    """Makes the module `tensorflow` TensorFlow 1's: its names, its sessions, its variables and its control flow."""
    from tensorflow.python.util import deprecation

    first = tensorflow.compat.v1

    # That it will go some day is known.
    with deprecation.silence():
        first.disable_v2_behavior()
    for name in dir(first):
        if name.startswith("_") or name == "compat":
            continue
        try:
            value = getattr(first, name)
        except (ImportError, AttributeError):
            # What TensorFlow loads when it is used, from a package that is not installed.
            continue
        setattr(tensorflow, name, value)
        if type(value) is types.ModuleType or type(value).__name__ == "TFModuleWrapper":
            sys.modules["tensorflow." + name] = value
    tensorflow.contrib = Contrib("contrib")


class Contrib(types.ModuleType):
    """What TensorFlow 2 has no more. That is said when it is used: many a program imports it and does without."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(NO_CONTRIB)


def add_older_names(tensorflow):
    """Adds the names of TensorFlow 0.x that this version does not have."""
    for path, older in sorted(older_names(tensorflow).items()):
        module = tensorflow
        *parts, name = path.split(".")
        for part in parts:
            module = getattr(module, part, None)
        if module is not None and older is not None and not hasattr(module, name):
            setattr(module, name, older)
    for name in ("concat", "split"):
        setattr(tensorflow, name, AXIS_FIRST[name](getattr(tensorflow, name)))
    for name, parameters in LOGITS_FIRST.items():
        setattr(tensorflow.nn, name, logits_first(getattr(tensorflow.nn, name), parameters))


def older_names(tf):
    """By its path in TensorFlow 0.x: what it is now."""
    def now(*paths):
        for path in paths:
            found = tf
            for part in path.split("."):
                found = getattr(found, part, None)
                if found is None:
                    break
            if found is not None:
                return found
        return None

    names = {
        "VERSION": now("version.VERSION", "__version__"),
        "all_variables": now("global_variables"),
        "batch_cholesky": now("cholesky", "linalg.cholesky"),
        "batch_matmul": now("matmul"),
        "batch_matrix_band_part": now("matrix_band_part", "linalg.band_part"),
        "batch_matrix_determinant": now("matrix_determinant", "linalg.det"),
        "batch_matrix_diag": now("matrix_diag", "linalg.diag"),
        "batch_matrix_diag_part": now("matrix_diag_part", "linalg.diag_part"),
        "batch_matrix_inverse": now("matrix_inverse", "linalg.inv"),
        "batch_matrix_set_diag": now("matrix_set_diag", "linalg.set_diag"),
        "batch_matrix_solve": now("matrix_solve", "linalg.solve"),
        "batch_matrix_transpose": now("matrix_transpose", "linalg.transpose"),
        "batch_matrix_triangular_solve": now("matrix_triangular_solve", "linalg.triangular_solve"),
        "batch_svd": now("svd", "linalg.svd"),
        "complex_abs": now("abs"),
        "image.per_image_whitening": now("image.per_image_standardization"),
        "image.random_crop": now("random_crop"),
        "initialize_all_tables": now("tables_initializer"),
        "initialize_all_variables": now("global_variables_initializer"),
        "initialize_local_variables": now("local_variables_initializer"),
        "initialize_variables": now("variables_initializer"),
        "inv": now("reciprocal", "math.reciprocal"),
        "listdiff": now("setdiff1d", "compat.v1.setdiff1d"),
        "merge_all_summaries": now("summary.merge_all"),
        "merge_summary": now("summary.merge"),
        "mul": now("multiply"),
        "neg": now("negative"),
        "nn.bidirectional_rnn": now("nn.static_bidirectional_rnn"),
        "nn.rnn": now("nn.static_rnn"),
        "nn.state_saving_rnn": now("nn.static_state_saving_rnn"),
        "pack": now("stack"),
        "select": now("where"),
        "sub": now("subtract"),
        "train.SummaryWriter": now("summary.FileWriter"),
        "train.summary_iterator": now("train.summary_iterator", "python_io.summary_iterator"),
        "unpack": now("unstack"),
    }
    for name in ("scalar", "histogram", "image", "audio"):
        new = now("summary." + name)
        if new is not None:
            names[name + "_summary"] = tagged(new)
    return names


def tagged(new):
    """A summary with its tag first, which may be any text; the new one makes a name of it."""

    @functools.wraps(new)
    def summary(tag, *arguments, **more):
        return new(str(tag), *arguments, **more)

    return summary


def takes_axis(value):
    """Whether an argument is an axis, as it was the first one in TensorFlow 0.x."""
    return isinstance(value, int) and not isinstance(value, bool)


def concat_of(new):
    @functools.wraps(new)
    def concat(values=None, axis=None, name="concat", concat_dim=None):
        if concat_dim is not None:
            axis = concat_dim
        elif takes_axis(values) and not takes_axis(axis):
            values, axis = axis, values
        return new(values, axis, name=name)

    return concat


def split_of(new):
    @functools.wraps(new)
    def split(value=None, num_or_size_splits=None, axis=0, num=None, name="split", split_dim=None, num_split=None):
        if split_dim is not None or num_split is not None:
            axis = axis if split_dim is None else split_dim
            num_or_size_splits = num_or_size_splits if num_split is None else num_split
        elif takes_axis(value) and takes_axis(num_or_size_splits) and not takes_axis(axis):
            value, axis = axis, value
        return new(value, num_or_size_splits, axis=axis, num=num, name=name)

    return split


AXIS_FIRST = {"concat": concat_of, "split": split_of}


# The losses of logits and labels, and what TensorFlow 0.12 called their parameters, in its order.
LOGITS_FIRST = {
    "softmax_cross_entropy_with_logits": ("logits", "labels", "dim", "name"),
    "sparse_softmax_cross_entropy_with_logits": ("logits", "labels", "name"),
    "sigmoid_cross_entropy_with_logits": ("logits", "targets", "name"),
}


def logits_first(new, parameters):
    """A loss that takes its arguments in the order of `parameters`, if they are not named; `targets` is now `labels`."""

    @functools.wraps(new)
    def loss(*arguments, **named):
        def add(parameter, value):
            parameter = "labels" if parameter == "targets" else parameter
            if parameter in named:
                raise TypeError("%s() got multiple values for argument '%s'" % (new.__name__, parameter))
            named[parameter] = value

        # Since version 1.0 there is None in the first place.
        if arguments and arguments[0] is not None:
            if len(arguments) > len(parameters):
                counts = (new.__name__, len(parameters), len(arguments))
                raise TypeError("%s() takes at most %d arguments (%d given)" % counts)
            for parameter, value in zip(parameters, arguments):
                add(parameter, value)
            arguments = ()
        if "targets" in parameters and "targets" in named:
            add("targets", named.pop("targets"))
        return new(*arguments, **named)

    return loss
