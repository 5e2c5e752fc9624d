"""Values of layers by Keras, for tests/data/train/layers.json: for each a graph.json, the values of its variables, an
input, and the output with and without training.

    python tests/tf/recorder/layers.py > tests/data/train/layers.json
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

RANDOM = np.random.default_rng(35)


def drawn(*shape):
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def case(name, layer, x, variables, answer, trained=None, others=None):
    """A case: `layer` takes the placeholder x, and the further inputs in `others`."""
    inputs = {"x": x, **(others or {})}
    dtype = "int32" if x.dtype == np.int32 else "float32"
    nodes = {
        key: {"op": "Placeholder", "attrs": {"dtype": dtype, "shape": [None, *value.shape[1:]]}}
        for key, value in inputs.items()
    }
    nodes["h"] = {**layer, "inputs": list(inputs)}
    graph = {"version": 1, "nodes": nodes}
    tensor = lambda value: [str(value.dtype), list(value.shape), np.asarray(value).ravel().tolist()]
    made = {
        "name": name,
        "graph": graph,
        "variables": {f"h/{key}": tensor(value) for key, value in variables.items()},
        "feeds": {key: tensor(value) for key, value in inputs.items()},
        "answer": tensor(np.asarray(answer, np.float32)),
    }
    if trained is not None:
        made["trained"] = tensor(np.asarray(trained, np.float32))
    return made


def built(layer, x, weights):
    layer.build(x.shape)
    layer.set_weights(weights)
    return layer


def cases():
    x, kernel, bias = drawn(3, 4), drawn(4, 5), drawn(5)
    for function in [None, "relu", "elu", "tanh", "sigmoid", "softplus", "softmax", "log_softmax"]:
        layer = built(keras.layers.Dense(5, activation=function), x, [kernel, bias])
        stated = {"layer": "dense", "units": 5, **({"activation": function} if function else {})}
        yield case(f"dense {function}", stated, x, {"kernel": kernel, "bias": bias}, layer(x))
    x = drawn(2, 3, 4)
    yield case("dense of rows", {"layer": "dense", "units": 5}, x, {"kernel": kernel, "bias": bias},
               built(keras.layers.Dense(5), x, [kernel, bias])(x))

    x, kernel, bias = drawn(2, 7, 6, 2), drawn(3, 3, 2, 4), drawn(4)
    for padding, stride in [("VALID", 1), ("SAME", 2)]:
        layer = built(keras.layers.Conv2D(4, 3, strides=stride, padding=padding.lower(), activation="relu"), x, [kernel, bias])
        stated = {"layer": "conv", "filters": 4, "size": 3, "stride": stride, "padding": padding, "activation": "relu"}
        yield case(f"conv {padding}", stated, x, {"kernel": kernel, "bias": bias}, layer(x))
    yield case("max_pool", {"layer": "max_pool"}, x, {}, keras.layers.MaxPooling2D()(x))
    yield case("avg_pool", {"layer": "avg_pool", "size": 3, "stride": 2, "padding": "SAME"}, x, {},
               keras.layers.AveragePooling2D(3, 2, "same")(x))
    yield case("flatten", {"layer": "flatten"}, x, {}, keras.layers.Flatten()(x))

    for shape in [(6, 3), (2, 3, 3, 3)]:
        x, weights = drawn(*shape), [drawn(3), drawn(3), drawn(3), drawn(3) + 2]
        layer = built(keras.layers.BatchNormalization(), x, weights)
        names = ["gamma", "beta", "moving_mean", "moving_variance"]
        yield case(f"batch_norm {len(shape)}", {"layer": "batch_norm"}, x, dict(zip(names, weights)),
                   layer(x, training=False), layer(x, training=True))
    x, weights = drawn(2, 3, 5), [drawn(5), drawn(5)]
    yield case("layer_norm", {"layer": "layer_norm"}, x, dict(zip(["gamma", "beta"], weights)),
               built(keras.layers.LayerNormalization(), x, weights)(x))

    rows, table = np.array([[1, 0, 4], [2, 2, 3]], np.int32), drawn(5, 3)
    yield case("embedding", {"layer": "embedding", "rows": 5, "width": 3}, rows, {"table": table},
               built(keras.layers.Embedding(5, 3), rows, [table])(rows))

    x, units = drawn(2, 4, 3), 2
    kernel, inner, bias = drawn(3, 4 * units), drawn(units, 4 * units), drawn(4 * units)

    def parts(value, order):
        by_gate = np.split(value, len(order), axis=-1)
        return np.concatenate([by_gate[i] for i in order], axis=-1)

    # Keras has the gates input, forget, candidate, output, and no 1 that is added to the forget gates.
    both = parts(np.concatenate([kernel, inner]), [0, 2, 1, 3])
    own_bias = parts(bias, [0, 2, 1, 3]) - np.repeat(np.float32([0, 0, 1, 0]), units)
    for last in [False, True]:
        layer = built(keras.layers.LSTM(units, return_sequences=not last), x, [kernel, inner, bias])
        stated = {"layer": "lstm", "units": units, **({"last": True} if last else {})}
        yield case(f"lstm {last}", stated, x, {"kernel": both, "bias": own_bias}, layer(x))
    # Keras has the gates update, reset, candidate.
    kernel, inner, bias = drawn(3, 3 * units), drawn(units, 3 * units), drawn(3 * units)
    layer = built(keras.layers.GRU(units, return_sequences=True, reset_after=False), x, [kernel, inner, bias])
    both = np.concatenate([kernel, inner])
    weights = {
        "gates/kernel": parts(both, [0, 1, 2])[:, : 2 * units][:, [2, 3, 0, 1]],
        "gates/bias": bias[: 2 * units][[2, 3, 0, 1]],
        "candidate/kernel": both[:, 2 * units :],
        "candidate/bias": bias[2 * units :],
    }
    yield case("gru", {"layer": "gru", "units": units}, x, weights, layer(x))

    q, k, v = drawn(2, 3, 4), drawn(2, 5, 4), drawn(2, 5, 2)
    scores = tf.matmul(q, k, transpose_b=True) / np.sqrt(np.float32(4))
    yield case("attention", {"layer": "attention"}, q, {}, tf.matmul(tf.nn.softmax(scores), v), others={"k": k, "v": v})
    x = drawn(2, 3, 4)
    for causal in [False, True]:
        layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=2)
        layer.build(x.shape, x.shape)
        kernels, biases = [drawn(4, 4) for _ in range(4)], [drawn(4) for _ in range(4)]
        weights, variables = [], {}
        for i, part in enumerate(["query", "key", "value", "output"]):
            is_last = part == "output"
            weights += [kernels[i].reshape((2, 2, 4) if is_last else (4, 2, 2)), biases[i].reshape(4 if is_last else (2, 2))]
            variables |= {f"{part}/kernel": kernels[i], f"{part}/bias": biases[i]}
        layer.set_weights(weights)
        stated = {"layer": "self_attention", "heads": 2, **({"causal": True} if causal else {})}
        yield case(f"self_attention {causal}", stated, x, variables, layer(x, x, use_causal_mask=causal))


json.dump(list(cases()), sys.stdout, separators=(",", ":"))
print()
