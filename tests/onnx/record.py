#!/usr/bin/env python3
"""Records cases of ONNX's own test suite, and answers of onnxruntime for whole models, in tests/data/onnx.

    python3 -m venv target/onnx-venv
    target/onnx-venv/bin/pip install onnx onnxruntime numpy
    target/onnx-venv/bin/python tests/onnx/record.py

`cases.pb` is a message of cases: field 1, repeated; each has name (1), rtol (2), atol (3), model (4), inputs (5) and outputs (6),
the latter as TensorProto, SequenceProto or OptionalProto. `models.pb` has models with random weights of the architectures that onnx
ships; their input is computed by a formula that the test has, too. The cases that meshtf refuses by name are in `REFUSED` of
crates/onnx/tests/models/recorded.rs.
"""

import glob
import os
import struct

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "data", "onnx")

# Cases of one operator, those with the fewest bytes first, and the most bytes of one.
CASES_OF_OP = 4
BYTES_OF_CASE = 12_000
# Answers that no seed determines.
RANDOM = ("test_bernoulli", "test_random_", "test_multinomial", "test_training_dropout")
MODELS = ("light_squeezenet", "light_shufflenet")


def varint(n):
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def double(number, value):
    return varint(number << 3 | 1) + struct.pack("<d", value)


def message(value, info):
    kind = info.type
    if kind.HasField("optional_type"):
        return numpy_helper.from_optional(value, info.name).SerializeToString()
    if kind.HasField("sequence_type"):
        return numpy_helper.from_list(value, info.name).SerializeToString()
    if isinstance(value, onnx.TensorProto):
        return value.SerializeToString()
    return numpy_helper.from_array(np.asarray(value), info.name).SerializeToString()


def case(name, rtol, atol, model, inputs, outputs):
    parts = [field(1, name.encode()), double(2, rtol), double(3, atol), field(4, model)]
    parts += [field(5, value) for value in inputs] + [field(6, value) for value in outputs]
    return field(1, b"".join(parts))


def node_cases():
    by_op = {}
    for test in load_node_model_tests():
        graph = test.model.graph
        if len(graph.node) != 1 or test.name.startswith(RANDOM):
            continue
        try:
            inputs, outputs = test.data_sets[0]
            inputs = [message(value, info) for value, info in zip(inputs, graph.input)]
            outputs = [message(value, info) for value, info in zip(outputs, graph.output)]
        except Exception as error:
            print(test.name, error)
            continue
        model = test.model.SerializeToString()
        size = len(model) + sum(map(len, inputs + outputs))
        if size <= BYTES_OF_CASE:
            made = case(test.name, test.rtol, test.atol, model, inputs, outputs)
            by_op.setdefault(graph.node[0].op_type, []).append((size, test.name, made))
    for op in sorted(by_op):
        # The smallest, and others from the whole range.
        own = sorted(by_op[op])
        step = max(1, len(own) // CASES_OF_OP)
        for _, _, made in own[::step][:CASES_OF_OP]:
            yield made


def formula(shape):
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return ((i * 7919 % 1009).astype(np.float32) / np.float32(1009) - np.float32(0.5)).reshape(shape)


def models():
    folder = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
    for name in MODELS:
        [path] = glob.glob(os.path.join(folder, name + ".onnx"))
        session = onnxruntime.InferenceSession(path)
        [x] = session.get_inputs()
        values = session.run(None, {x.name: formula(x.shape)})
        infos = onnx.load(path).graph.output
        outputs = [message(value, info) for value, info in zip(values, infos)]
        with open(path, "rb") as file:
            yield case(name, 1e-4, 1e-6, file.read(), [], outputs)


os.makedirs(OUT, exist_ok=True)
for name, all in [("cases.pb", node_cases()), ("models.pb", models())]:
    content = b"".join(all)
    with open(os.path.join(OUT, name), "wb") as file:
        file.write(content)
    print(name, len(content))
