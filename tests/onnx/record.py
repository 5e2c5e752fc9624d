#!/usr/bin/env python3
"""Records cases of ONNX's own test suite, and answers of onnxruntime for whole models, in tests/data/onnx.

    python3 -m venv target/onnx-venv
    target/onnx-venv/bin/pip install onnx onnxruntime numpy
    target/onnx-venv/bin/python tests/onnx/record.py [FILE…]

`cases.pb` is a message of cases: field 1, repeated; each has name (1), rtol (2), atol (3), model (4), inputs (5) and outputs (6),
the latter as TensorProto, SequenceProto or OptionalProto. `models.pb` has models with random weights of the architectures that onnx
ships; their input is computed by a formula that the test has, too. `contrib.pb` has operators of onnxruntime's own, `classical.pb`
those of ai.onnx.ml. The cases that meshtf refuses by name are in `REFUSED` of crates/onnx/tests/models/recorded.rs.
"""

import glob
import os
import struct
import sys

import classical
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
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


def quantised(random, rows, columns, by_column):
    """Weights of integers for each direction, with scales and zero points for a direction or for each of its columns."""
    per = [2, columns] if by_column else [2]
    dtype = np.int8 if by_column else np.uint8
    weights = random.integers(-120, 120, [2, rows, columns]).astype(np.int64)
    zeros = np.zeros(per, np.int64) if by_column else random.integers(110, 140, per)
    stored = weights + (zeros[:, None, :] if by_column else zeros[:, None, None])
    stored = np.clip(stored, np.iinfo(dtype).min, np.iinfo(dtype).max)
    return stored.astype(dtype), random.uniform(0.002, 0.01, per).astype(np.float32), zeros.astype(dtype)


def lstm(by_column):
    """A quantised LSTM of onnxruntime in both directions."""
    random = np.random.default_rng(38)
    length, batch, size, hidden = 4, 2, 5, 3
    w, w_scale, w_zero = quantised(random, size, 4 * hidden, by_column)
    r, r_scale, r_zero = quantised(random, hidden, 4 * hidden, by_column)
    bias = random.uniform(-0.5, 0.5, [2, 8 * hidden]).astype(np.float32)
    weights = {"w": w, "r": r, "b": bias, "w_scale": w_scale, "w_zero": w_zero, "r_scale": r_scale, "r_zero": r_zero}
    names = ["x", "w", "r", "b", "", "h", "c", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "last_h", "last_c"], domain="com.microsoft", hidden_size=hidden,
        direction="bidirectional",
    )
    x = random.uniform(-1, 1, [length, batch, size]).astype(np.float32)
    h, c = (random.uniform(-1, 1, [2, batch, hidden]).astype(np.float32) for _ in range(2))
    return [node], weights, {"x": (x, ["length", "batch", size]), "h": (h, h.shape), "c": (c, c.shape)}, 3


def open_squeeze():
    """A Squeeze without axes of sizes that only a step tells, and nodes on its result, whose rank is open."""
    nodes = [
        helper.make_node("Squeeze", ["x"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["g"]),
        helper.make_node("Slice", ["g", "zero", "two", "zero"], ["a"]),
        helper.make_node("Slice", ["g", "two", "far", "zero"], ["b"]),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=0),
    ]
    ints = {"zero": [0], "two": [2], "far": [9]}
    x = np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 1, 4)
    return nodes, {name: np.array(value, np.int64) for name, value in ints.items()}, {"x": (x, ["batch", "frames", 4])}, 1


def windows():
    """Windows whose padding depends on sizes that only a step tells."""
    random = np.random.default_rng(39)
    three = {"kernel_shape": [3, 2], "strides": [2, 3]}
    stated = {"pads": [1, 0, 0, 1], "ceil_mode": 1}
    ops = {
        "max_pool_same": ("MaxPool", three | {"auto_pad": "SAME_UPPER"}),
        "max_pool_ceil": ("MaxPool", three | stated),
        "max_pool_dilated": ("MaxPool", three | stated | {"dilations": [2, 1]}),
        "average_pool_same": ("AveragePool", three | {"auto_pad": "SAME_LOWER"}),
        "average_pool_ceil": ("AveragePool", three | stated),
        "average_pool_of_padding": ("AveragePool", three | stated | {"count_include_pad": 1}),
        "lp_pool_same": ("LpPool", three | {"auto_pad": "SAME_UPPER"}),
        "conv_same_upper": ("Conv", {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        "conv_same_lower": ("Conv", {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    }
    for name, (op, attrs) in ops.items():
        weights = {"w": random.uniform(-1, 1, [3, 2, 3, 2]).astype(np.float32)} if op == "Conv" else {}
        for sizes in ([7, 8], [6, 5]):
            x = random.uniform(-1, 1, [1, 2, *sizes]).astype(np.float32)
            node = helper.make_node(op, ["x", *weights], ["y"], **attrs)
            yield f"open_{name}_{sizes[0]}", ([node], weights, {"x": (x, ["batch", 2, "height", "width"])}, 1)


def tokenizers():
    """Texts to tokens, in the forms that converters of scikit-learn write, and more."""
    texts = ["The first, document.", "", "  second one\nof 2 ", "äöü bc_d--e", "one"]
    x = np.array(texts, object)
    forms = {
        "words": {"tokenexp": "[a-zA-Z0-9_]+"},
        "long_words": {"tokenexp": "\\w\\w+", "mincharnum": 3},
        "characters_of_lines": {"tokenexp": "."},
        "characters": {"separators": [""]},
        "separated": {"separators": [" ", ",", "\\.", "-+"]},
        "separated_and_long": {"separators": ["\\s"], "mincharnum": 3},
        "separated_by_lines": {"separators": ["e."]},
        "marked": {"separators": [" "], "mark": 1},
        "marked_characters": {"separators": [""], "mark": 1},
    }
    for name, attrs in forms.items():
        attrs = {"mark": 0, "mincharnum": 1, "pad_value": "#"} | attrs
        node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attrs)
        yield f"tokenizer_{name}", ([node], {}, {"x": (x, ["texts"])}, 1)
        if name == "words":
            yield "tokenizer_of_rows", ([node], {}, {"x": (x[:4].reshape(2, 2), ["rows", 2])}, 1)
        if name in ("words", "marked"):
            yield f"tokenizer_{name}_of_none", ([node], {}, {"x": (np.array(["", " "], object), ["texts"])}, 1)


def contrib():
    """Models of a few nodes, with onnxruntime's answers: its own operators, and shapes that are open."""
    all = {"quantised_lstm": lstm(False), "quantised_lstm_by_column": lstm(True), "open_squeeze": open_squeeze()}
    all |= dict(windows())
    mel = {"bins": np.int64(20), "length": np.int64(64), "rate": np.int64(16000), "low": np.float32(80), "high": np.float32(7600)}
    all["mel_of_constants"] = [helper.make_node("MelWeightMatrix", list(mel), ["y"])], mel, {}, 1
    all |= dict(tokenizers())
    for name, (nodes, weights, feeds, count) in all.items():
        infos = [
            helper.make_tensor_value_info(own, helper.np_dtype_to_tensor_dtype(value.dtype), shape)
            for own, (value, shape) in feeds.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(own) for own in nodes[-1].output]
        for output in outputs:
            is_text = nodes[-1].op_type == "Tokenizer"
            output.type.tensor_type.elem_type = onnx.TensorProto.STRING if is_text else onnx.TensorProto.FLOAT
        initializers = [numpy_helper.from_array(np.asarray(value), own) for own, value in weights.items()]
        graph = helper.make_graph(nodes, name, infos, outputs, initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        values = onnxruntime.InferenceSession(model, options).run(None, {own: value for own, (value, _) in feeds.items()})
        assert len(values) == count
        inputs = [message(value, info) for (value, _), info in zip(feeds.values(), infos)]
        yield case(name, 1e-5, 1e-6, model, inputs, [message(value, info) for value, info in zip(values, outputs)])


def of_ml():
    """Classical models, with onnxruntime's answers."""
    for name, node, x in classical.models():
        kind_of_x = helper.np_dtype_to_tensor_dtype(x.dtype)
        info = helper.make_tensor_value_info("x", kind_of_x, ["rows", x.shape[1]])
        # The first of two outputs is the label.
        text = any(attr.name == "classlabels_strings" for attr in node.attribute)
        label = onnx.TensorProto.STRING if text else onnx.TensorProto.INT64
        scores = onnx.TensorProto.INT64 if node.op_type == "Imputer" and x.dtype == np.int64 else onnx.TensorProto.FLOAT
        if node.op_type == "CategoryMapper":
            scores = onnx.TensorProto.STRING if kind_of_x == onnx.TensorProto.INT64 else onnx.TensorProto.INT64
        kinds = [label, scores] if len(node.output) == 2 else [scores]
        outputs = [helper.make_tensor_value_info(own, kind, None) for own, kind in zip(node.output, kinds)]
        graph = helper.make_graph([node], name, [info], outputs)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        values = onnxruntime.InferenceSession(model).run(None, {"x": x})
        yield case(name, 1e-5, 1e-6, model, [message(x, info)], [message(value, info) for value, info in zip(values, outputs)])


os.makedirs(OUT, exist_ok=True)
for name, all in [("cases.pb", node_cases()), ("models.pb", models()), ("contrib.pb", contrib()), ("classical.pb", of_ml())]:
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    content = b"".join(all)
    with open(os.path.join(OUT, name), "wb") as file:
        file.write(content)
    print(name, len(content))
