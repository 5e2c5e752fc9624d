"""Nodes of the graph whose shapes are recorded: inputs of any shape, and an op over all combinations of its inputs."""

import itertools
import os

import tensorflow as tf

tf1 = tf.compat.v1
N = None
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../crates/graph/src/op/table.txt")


class Raw:
    """tf.raw_ops, whose ops answer None if TensorFlow makes no new nodes of them any more."""

    def __getattr__(self, op):
        def make(**arguments):
            if arguments.get("handle", "") is None:
                return None
            try:
                return getattr(tf.raw_ops, op)(**arguments)
            except NotImplementedError:
                return None

        return make


raw = Raw()
made_before = {}


def p(shape=None, dtype="float32"):
    """A tensor of which this shape is known."""
    key = ("p", str(shape), dtype)
    if key not in made_before:
        made_before[key] = tf1.placeholder(dtype, shape, name="p")
    return made_before[key]


def c(value, dtype="int32"):
    """A constant."""
    key = ("c", str(value), dtype)
    if key not in made_before:
        made_before[key] = tf.constant(value, dtype, name="c")
    return made_before[key]


def some(value):
    """A vector of the values, of which those that are None are unknown sizes."""
    parts = [c(v) if v is not None else p([], "int32") for v in value]
    return raw.Pack(values=parts, axis=0)


def f(*shapes, dtype="float32"):
    """For each shape, what makes a tensor of which it is known."""
    return [lambda shape=shape: p(shape, dtype) for shape in shapes]


def every(op, *choices, **attrs):
    """The op over all combinations of its inputs, by the names of its arguments."""
    names = [name for name, _ in choices]
    for inputs in itertools.product(*(options for _, options in choices)):
        made = {name: make() for name, make in zip(names, inputs)}
        try:
            getattr(raw, op)(**made, **attrs)
        except ValueError as error:
            # Shapes that do not fit make no node.
            if "must be rank" not in str(error) and "Dimension" not in str(error) and "hape" not in str(error):
                raise
