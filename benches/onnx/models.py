"""ONNX models of random weights with the nodes that exporters write, and feeds for them: what `bench.py` measures.

A model is a function that answers (model, feeds); its docstring says what it is.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class Net:
    """A graph under construction. Weights are normal, scaled by their fan-in, so that values keep their size from layer to layer."""

    def __init__(self, name):
        self.name, self.random = name, np.random.default_rng(7)
        self.nodes, self.weights, self.inputs, self.outputs, self.feeds = [], [], [], [], {}

    def input(self, name, value):
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, value.shape))
        self.feeds[name] = value
        return name

    def noise(self, name, *shape):
        return self.input(name, self.random.standard_normal(shape, np.float32))

    def weight(self, *shape, fan=None):
        fan = fan or int(np.prod(shape[1:])) or 1
        return self.constant(self.random.standard_normal(shape, np.float32) * np.float32(fan**-0.5))

    def constant(self, value):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def output(self, name):
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def done(self, output):
        self.output(output)
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8), self.feeds

    def conv(self, x, inputs, outputs, size, stride=1, group=1):
        pads = [size // 2] * 4
        kernel = self.weight(outputs, inputs // group, size, size, fan=inputs // group * size * size / 2)
        bias = self.constant(np.zeros(outputs, np.float32))
        return self.op("Conv", x, kernel, bias, kernel_shape=[size, size], strides=[stride, stride], pads=pads, group=group)

    def dense(self, x, inputs, outputs):
        product = self.op("MatMul", x, self.weight(inputs, outputs, fan=inputs))
        return self.op("Add", product, self.constant(np.zeros(outputs, np.float32)))

    def norm(self, x, width):
        scale, offset = self.constant(np.ones(width, np.float32)), self.constant(np.zeros(width, np.float32))
        return self.op("LayerNormalization", x, scale, offset, axis=-1, epsilon=1e-5)

    def gelu(self, x):
        half = self.op("Mul", x, self.constant(np.float32(0.5)))
        erf = self.op("Erf", self.op("Div", x, self.constant(np.float32(2**0.5))))
        return self.op("Mul", half, self.op("Add", erf, self.constant(np.float32(1))))

    def heads(self, x, heads, width):
        """[1, length, width] as [1, heads, length, width / heads]."""
        shape = self.constant(np.array([0, 0, heads, width // heads], np.int64))
        return self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def attend(self, q, k, v, heads, width):
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(np.float32((width // heads) ** -0.5)))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        mixed = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.op("Reshape", mixed, self.constant(np.array([0, 0, width], np.int64)))


def resnet18():
    """ResNet-18, a picture of 224 x 224"""
    net = Net("resnet18")
    x = net.op("Relu", net.conv(net.noise("x", 1, 3, 224, 224), 3, 64, 7, 2))
    x, inputs = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), 64
    for outputs, stride in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]:
        y = net.op("Relu", net.conv(x, inputs, outputs, 3, stride))
        y = net.conv(y, outputs, outputs, 3)
        x = net.op("Relu", net.op("Add", y, x if inputs == outputs else net.conv(x, inputs, outputs, 1, stride)))
        inputs = outputs
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.done(net.op("Gemm", x, net.weight(1000, 512), net.constant(np.zeros(1000, np.float32)), transB=1))


def mobilenet():
    """MobileNetV2, a picture of 224 x 224"""
    net = Net("mobilenet")
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))

    def clipped(x):
        return net.op("Clip", x, low, high)

    x, inputs = clipped(net.conv(net.noise("x", 1, 3, 224, 224), 3, 32, 3, 2)), 32
    for expansion, outputs, count, stride in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    ]:  # fmt: skip
        for i in range(count):
            y, inner = x, inputs * expansion
            if expansion != 1:
                y = clipped(net.conv(y, inputs, inner, 1))
            y = clipped(net.conv(y, inner, inner, 3, stride if i == 0 else 1, group=inner))
            y = net.conv(y, inner, outputs, 1)
            x = net.op("Add", x, y) if inputs == outputs and i > 0 else y
            inputs = outputs
    x = net.op("Flatten", net.op("GlobalAveragePool", clipped(net.conv(x, 320, 1280, 1))))
    return net.done(net.op("Gemm", x, net.weight(1000, 1280), net.constant(np.zeros(1000, np.float32)), transB=1))


def encoder():
    """an encoder as BERT's, 12 layers of 384 with 12 heads, 128 tokens"""
    net, width, heads = Net("encoder"), 384, 12
    tokens = net.input("tokens", net.random.integers(0, 8000, (1, 128)))
    x = net.norm(net.op("Add", net.op("Gather", net.weight(8000, width, fan=1), tokens), net.weight(128, width, fan=1)), width)
    for _ in range(12):
        q, k, v = (net.heads(net.dense(x, width, width), heads, width) for _ in range(3))
        x = net.norm(net.op("Add", x, net.dense(net.attend(q, k, v, heads, width), width, width)), width)
        y = net.dense(net.gelu(net.dense(x, width, 4 * width)), 4 * width, width)
        x = net.norm(net.op("Add", x, y), width)
    return net.done(x)


def decoder():
    """a decoder as GPT's, 6 layers of 384 with 6 heads, one token after 255 that are cached"""
    net, width, heads, past = Net("decoder"), 384, 6, 255
    token = net.input("token", np.array([[17]], np.int64))
    table = net.weight(8000, width, fan=1)
    x = net.op("Add", net.op("Gather", table, token), net.weight(1, width, fan=1))
    for layer in range(6):
        h = net.norm(x, width)
        q, k, v = (net.heads(net.dense(h, width, width), heads, width) for _ in range(3))
        k = net.op("Concat", net.noise(f"keys_{layer}", 1, heads, past, width // heads), k, axis=2)
        v = net.op("Concat", net.noise(f"values_{layer}", 1, heads, past, width // heads), v, axis=2)
        net.output(k)
        net.output(v)
        x = net.op("Add", x, net.dense(net.attend(q, k, v, heads, width), width, width))
        x = net.op("Add", x, net.dense(net.gelu(net.dense(net.norm(x, width), width, 4 * width)), 4 * width, width))
    return net.done(net.op("MatMul", net.norm(x, width), net.weight(width, 8000, fan=width)))


def lstm():
    """two layers of LSTM with 256 units, 100 steps of 8 sequences"""
    net, units, inputs = Net("lstm"), 256, 64
    x = net.noise("x", 100, 8, inputs)
    for _ in range(2):
        w, r = net.weight(1, 4 * units, inputs, fan=inputs), net.weight(1, 4 * units, units, fan=units)
        y, _, _ = net.op("LSTM", x, w, r, net.constant(np.zeros((1, 8 * units), np.float32)), outputs=3, hidden_size=units)
        x, inputs = net.op("Squeeze", y, net.constant(np.array([1], np.int64))), units
    return net.done(x)


MODELS = [resnet18, mobilenet, encoder, decoder, lstm]
