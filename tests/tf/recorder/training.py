"""What optimizers do: writes `tests/data/train/optimizers.json`.

A case has an optimizer of ours with its numbers, the variable it begins with, the gradients of some steps, dense or as rows, and what
the variable and its slots are after each step, by their names. Run it with the Python of `make test-tf`:

    python -m recorder.training       (in tests/tf)
"""

import json
import os

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

RATE = 0.125
STEPS = 4
OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "data", "train", "optimizers.json")

# Name, numbers, and what makes TensorFlow's.
CASES = [
    ("sgd", {}, lambda: tf.train.GradientDescentOptimizer(RATE)),
    ("momentum", {"momentum": 0.75}, lambda: tf.train.MomentumOptimizer(RATE, 0.75)),
    ("nesterov", {"momentum": 0.75}, lambda: tf.train.MomentumOptimizer(RATE, 0.75, use_nesterov=True)),
    ("adagrad", {"initial": 0.5}, lambda: tf.train.AdagradOptimizer(RATE, 0.5)),
    ("adadelta", {"rho": 0.75, "epsilon": 0.0625}, lambda: tf.train.AdadeltaOptimizer(RATE, 0.75, 0.0625)),
    ("rmsprop", {"decay": 0.75, "momentum": 0.5, "epsilon": 0.0625}, lambda: tf.train.RMSPropOptimizer(RATE, 0.75, 0.5, 0.0625)),
    (
        "rmsprop",
        {"decay": 0.75, "momentum": 0.5, "epsilon": 0.0625, "centered": True},
        lambda: tf.train.RMSPropOptimizer(RATE, 0.75, 0.5, 0.0625, centered=True),
    ),
    ("adam", {"beta1": 0.75, "beta2": 0.875, "epsilon": 0.0625}, lambda: tf.train.AdamOptimizer(RATE, 0.75, 0.875, 0.0625)),
    (
        "ftrl",
        {"power": -0.5, "initial": 0.25, "l1": 0.03125, "l2": 0.0625},
        lambda: tf.train.FtrlOptimizer(
            RATE, -0.5, 0.25, l1_regularization_strength=0.03125, l2_regularization_strength=0.0625
        ),
    ),
    (
        "adamw",
        {"beta1": 0.75, "beta2": 0.875, "epsilon": 0.0625, "decay": 0.25},
        lambda: tf2.keras.optimizers.AdamW(RATE, weight_decay=0.25, beta_1=0.75, beta_2=0.875, epsilon=0.0625),
    ),
    ("lion", {"beta1": 0.75, "beta2": 0.875}, lambda: tf2.keras.optimizers.Lion(RATE, beta_1=0.75, beta_2=0.875)),
]


def triple(array):
    return [array.dtype.name, list(array.shape), [float(x) for x in array.ravel()]]


def gradients(dtype, sparse):
    random = np.random.RandomState(7)
    for _ in range(STEPS):
        if not sparse:
            yield random.uniform(-1, 1, (4, 2)).astype(dtype)
            continue
        indices = random.randint(0, 4, 3).astype(np.int32)
        indices[1] = indices[0]
        yield random.uniform(-1, 1, (3, 2)).astype(dtype), indices


def graph_case(make, dtype, sparse, use_resource):
    with tf.Graph().as_default(), tf.Session() as session:
        first = np.linspace(-1, 1, 8).reshape(4, 2).astype(dtype)
        w = tf.get_variable("w", initializer=first, use_resource=use_resource)
        optimizer = make()
        values = tf.placeholder(dtype)
        indices = tf.placeholder(tf.int32)
        values.set_shape([3, 2] if sparse else [4, 2])
        gradient = tf.IndexedSlices(values, indices, tf.constant([4, 2])) if sparse else values
        train = optimizer.apply_gradients([(gradient, w)])
        session.run(tf.global_variables_initializer())
        after = []
        for one in gradients(dtype, sparse):
            session.run(train, {values: one[0], indices: one[1]} if sparse else {values: one})
            named = {v.op.name: v for v in tf.global_variables()}
            after.append({name: triple(np.asarray(value)) for name, value in session.run(named).items()})
        return triple(first), after


def keras_case(make, dtype):
    first = np.linspace(-1, 1, 8).reshape(4, 2).astype(dtype)
    w = tf2.Variable(first, name="w")
    optimizer = make()
    after = []
    for one in gradients(dtype, False):
        optimizer.apply_gradients([(tf2.constant(one), w)])
        after.append({"w": triple(w.numpy())})
    return triple(first), after


def main():
    cases = []
    for dtype in ("float32", "float64"):
        for name, numbers, make in CASES:
            for sparse in (False, True):
                for is_ref in (False, True):
                    if name in ("adamw", "lion"):
                        if sparse or is_ref:
                            continue
                        first, after = keras_case(make, dtype)
                    else:
                        first, after = graph_case(make, dtype, sparse, not is_ref)
                    steps = [
                        {"values": triple(one[0]), "indices": ["int32", [3], one[1].tolist()]} if sparse else {"values": triple(one)}
                        for one in gradients(dtype, sparse)
                    ]
                    cases.append(
                        {"optimizer": name, "numbers": numbers, "is_ref": is_ref, "first": first, "steps": steps, "after": after}
                    )
    os.makedirs(os.path.dirname(OUT), exist_ok=True)
    with open(OUT, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
