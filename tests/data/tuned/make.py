"""Makes the files of this folder: python make.py, with numpy and onnx.

`mlp.onnx` is Gemm, Relu, Gemm; `x.npy` and `y.npy` are eight examples and their classes. `expected.json` has the initializers after
five steps of gradient descent on the mean cross entropy, with the gradients written out: for training the second layer alone, and
both; the losses; and the logits of the model trained whole. `case.onnx` is the same model, whose initializers differ in the case of
letters alone.
"""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RATE, STEPS = 0.1, 5
rng = np.random.default_rng(0)
x = rng.normal(size=(8, 3)).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(np.int32)
first = {
    "fc1.weight": rng.normal(size=(4, 3)).astype(np.float32),
    "fc1.bias": np.zeros(4, np.float32),
    "fc2.weight": rng.normal(size=(2, 4)).astype(np.float32),
    "fc2.bias": np.zeros(2, np.float32),
}


def forward(w):
    inner = x @ w["fc1.weight"].T + w["fc1.bias"]
    hidden = np.maximum(inner, 0)
    return inner, hidden, hidden @ w["fc2.weight"].T + w["fc2.bias"]


def step(w):
    inner, hidden, logits = forward(w)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(p[rows, y]).mean()
    p[rows, y] -= 1
    p /= len(y)
    back = (p @ w["fc2.weight"]) * (inner > 0)
    return loss, {"fc1.weight": back.T @ x, "fc1.bias": back.sum(0), "fc2.weight": p.T @ hidden, "fc2.bias": p.sum(0)}


def trained(names):
    w = {name: value.astype(np.float64) for name, value in first.items()}
    losses = []
    for _ in range(STEPS):
        loss, gradients = step(w)
        losses.append(loss)
        for name in names:
            w[name] = w[name] - RATE * gradients[name]
    return {"losses": losses, "weights": {name: value.ravel().tolist() for name, value in w.items()}, "logits": forward(w)[2].tolist()}


def saved(path, names):
    w1, b1, w2, b2 = names
    nodes = [
        helper.make_node("Gemm", ["x", w1, b1], ["inner"], transB=1),
        helper.make_node("Relu", ["inner"], ["/relu/Relu_output_0"]),
        helper.make_node("Gemm", ["/relu/Relu_output_0", w2, b2], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(value, name) for name, value in zip(names, first.values())],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="author", value="a person")
    onnx.save(model, path)


saved("mlp.onnx", list(first))
saved("case.onnx", ["W", "B", "w", "b"])
np.save("x.npy", x)
np.save("y.npy", y)
json.dump({"second": trained(["fc2.weight", "fc2.bias"]), "both": trained(list(first))}, open("expected.json", "w"), indent=1)
