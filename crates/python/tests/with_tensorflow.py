"""Conversions of TensorFlow's graphs, functions and Keras models, by the values that TensorFlow computes.

`make test-python` runs it with the interpreter that has TensorFlow, as a program: ``python with_tensorflow.py``.
"""

import os
import unittest
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import meshtf

RNG = np.random.default_rng(0)


def rows(*shape):
    return RNG.normal(size=shape).astype("float32")


class Conversions(unittest.TestCase):
    def same(self, graph, feeds, expected):
        self.assertEqual(set(graph.outputs), set(expected))
        self.assertEqual(set(graph.inputs), set(feeds))
        with meshtf.local(graph) as m, m.session(graph) as s:
            values = s.run(list(expected), feeds)
        for name, value in zip(expected, values, strict=True):
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)

    def test_keras(self):
        layers = keras.layers
        dense = keras.Sequential(
            [keras.Input((4,), name="x"), layers.Dense(8, activation="relu"), layers.Dropout(0.5), layers.Dense(3, name="y")]
        )
        image = keras.Input((8, 8, 3), name="image")
        h = layers.Conv2D(4, 3, padding="same")(image)
        h = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(h)))
        cnn = keras.Model(
            image, [layers.Dense(5, name="first")(layers.Flatten()(h)), layers.GlobalAveragePooling2D(name="mean")(h)]
        )
        words = keras.Input((7,), name="words", dtype="int32")
        text = keras.Model(words, layers.Dense(2, name="z")(layers.LSTM(6)(layers.Embedding(11, 5)(words))))
        a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
        both = keras.Model({"a": a, "b": b}, {"sum": layers.Dense(1)(layers.Concatenate()([a, b])), "twice": a * 2})
        # Averages that are not the first ones.
        cnn.layers[2].set_weights([rows(4) ** 2 + 1, rows(4), rows(4), rows(4) ** 2 + 0.5])
        for model, feeds, names in [
            (dense, {"x": rows(5, 4)}, ["y"]),
            (cnn, {"image": rows(3, 8, 8, 3)}, ["first", "mean"]),
            (text, {"words": RNG.integers(0, 11, (4, 7))}, ["z"]),
            (both, {"a": rows(3, 4), "b": rows(3, 2)}, ["sum", "twice"]),
        ]:
            with self.subTest(names):
                values = model(feeds if len(feeds) > 1 else next(iter(feeds.values())), training=False)
                values = list(values.values()) if isinstance(values, dict) else values if isinstance(values, list) else [values]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    graph = meshtf.tf.convert(model)
                self.same(graph, feeds, dict(zip(names, values, strict=True)))

    def test_trained_variables(self):
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((4,), name="x"),
                layers.Dense(6, activation="tanh", name="hidden"),
                layers.BatchNormalization(name="norm"),
                layers.Dense(3, name="logits"),
            ]
        )
        model.layers[1].set_weights([rows(6) ** 2 + 1, rows(6), rows(6), rows(6) ** 2 + 0.5])
        x, labels = rows(8, 4), RNG.integers(0, 3, 8).astype("int32")
        for trained, is_trained in (
            (True, lambda one: one.trainable),
            (["*/logits/*", "*/norm/gamma"], lambda one: "logits" in one.path or one.path.endswith("gamma")),
        ):
            g = meshtf.tf.convert(model, trained=trained)
            own = [one for one in model.variables if is_trained(one)]
            self.assertEqual(sorted(g.variables), sorted(one.path for one in own))
            before = [one.numpy() for one in model.variables]
            g["logits"].sparse_cross_entropy(g.placeholder("labels", "int32", [None])).mean().named("loss")
            done = meshtf.train(
                g, {"x": x, "labels": labels}, optimizer="sgd", rate=0.1, batch=8, steps=5, shuffle=None, record=1
            )
            losses = []
            for _ in range(5):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(
                        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=model(x, training=False))
                    )
                losses.append(float(loss))
                for one, slope in zip(own, tape.gradient(loss, [one.value for one in own]), strict=True):
                    one.assign_sub(0.1 * slope)
            np.testing.assert_allclose(done.history["loss"], losses, rtol=1e-5)
            for one in own:
                np.testing.assert_allclose(done.weights[one.path], one.numpy(), rtol=1e-4, atol=1e-5, err_msg=one.path)
            for one, value in zip(model.variables, before, strict=True):
                one.assign(value)
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "no/such.*matches no weight"):
            meshtf.tf.convert(model, trained=["no/such"])

    def test_trained_variables_of_a_function(self):
        w, v = tf.Variable([[1.0], [2.0]], name="W"), tf.Variable([[3.0]], name="w", trainable=False)

        @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
        def f(x):
            return {"y": x @ w @ v}

        g = meshtf.tf.convert(f, trained=True)
        # Names of nodes do not differ in the case of letters alone.
        self.assertEqual(g.variables, ["W"])
        x = rows(3, 2)
        self.same(g, {"x": x}, {"y": f(x)["y"].numpy()})
        with self.assertRaisesRegex(TypeError, "keeps its variables"):
            meshtf.tf.convert(tf.Graph(), trained=True)

    def test_outputs_of_layers_with_several(self):
        layers = keras.layers
        x = keras.Input((5, 3), name="x")
        states = keras.Model(x, layers.LSTM(4, return_state=True, name="enc")(x))
        twice = layers.Dense(2, name="shared")
        a = keras.Input((3,), name="a")
        both = keras.Model(a, [twice(a), twice(a * 2), layers.Dense(1, name="shared_1")(a)])
        for model, given, names in (
            (states, rows(2, 5, 3), ["enc", "enc_1", "enc_2"]),
            (both, rows(4, 3), ["shared", "shared_2", "shared_1"]),
        ):
            values = [value.numpy() for value in model(given)]
            self.same(meshtf.tf.convert(model), {model.inputs[0].name: given}, dict(zip(names, values, strict=True)))

    def test_inputs_by_their_names(self):
        spec = lambda width: tf.TensorSpec([None, width])
        a, b = rows(3, 2), rows(3, 2)
        less = tf.function(lambda a, b: a - 2 * b)
        for given in ({"a": spec(2), "b": spec(2)}, {"b": spec(2), "a": spec(2)}, {"b": b[:1], "a": a[:1]}):
            self.same(meshtf.tf.convert(less, given), {"a": a, "b": b}, {"output_0": a - 2 * b})
        for given in ({"a": spec(2)}, {"a": spec(2), "c": spec(2)}):
            with self.assertRaisesRegex(meshtf.InvalidArgumentError, "TensorFlow cannot trace the function.*'?b'?"):
                meshtf.tf.convert(less, given)
        u, v = keras.Input((2,), name="u"), keras.Input((2,), name="v")
        keyed = keras.Model({"v": v, "u": u}, u - 2 * v)
        listed = keras.Model([v, u], u - 2 * v)

        class Named(keras.Model):
            def call(self, u, v, training=False):
                return u - 2 * v

        class Keyed(keras.Model):
            def call(self, given, training=False):
                return given["u"] - 2 * given["v"]

        for model in (keyed, listed, Named(), Keyed()):
            for given in ({"u": spec(2), "v": spec(2)}, {"v": spec(2), "u": spec(2)}, {"v": b, "u": a}):
                graph = meshtf.tf.convert(model, given)
                self.assertEqual(len(graph.outputs), 1)
                self.same(graph, {"u": a, "v": b}, {next(iter(graph.outputs)): a - 2 * b})
        self.same(meshtf.tf.convert(listed, [spec(2), spec(2)]), {"u": a, "v": b}, {listed.output_names[0]: a - 2 * b})
        for model, given, part in (
            (keyed, {"u": spec(2)}, "has the inputs .*; stated are u"),
            (keyed, {"u": spec(2), "w": spec(2)}, "stated are u, w"),
            (listed, {"u": spec(2), "w": spec(2)}, "inputs v, u; stated are u, w"),
            (keyed, [spec(2), spec(2)], "takes a dict of the inputs"),
            (listed, [spec(2)], "takes 2 inputs, v, u; stated is a list of 1"),
        ):
            with self.subTest(part), self.assertRaisesRegex(meshtf.InvalidArgumentError, part):
                meshtf.tf.convert(model, given)

    def test_a_model_of_its_own_class(self):
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(2)

            def call(self, x, training=False):
                return {"y": self.dense(x), "norm": tf.norm(x, axis=1)}

        model, x = Own(), rows(3, 4)
        expected = {name: value.numpy() for name, value in model(x).items()}
        self.same(meshtf.tf.convert(model, tf.TensorSpec([None, 4], tf.float32, name="x")), {"x": x}, expected)
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "state them"):
            meshtf.tf.convert(Own())

    def test_functions(self):
        w = tf.Variable(rows(4, 3))

        @tf.function
        def step(x, n):
            y = x
            for _ in tf.range(n):
                y = tf.tanh(y @ w @ tf.transpose(w))
            return {"y": y, "rest": tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1, lambda: x - 1)}

        x = rows(5, 4)
        expected = {name: value.numpy() for name, value in step(x, 3).items()}
        spec = [tf.TensorSpec([None, 4], name="x"), tf.TensorSpec([], tf.int32, name="n")]
        for graph in (meshtf.tf.convert(step, spec), meshtf.tf.convert(step.get_concrete_function(*spec))):
            self.same(graph, {"x": x, "n": 3}, expected)
        # Examples in place of specifications: their first dimension is open.
        double = tf.function(lambda x: (x * 2, x + 1))
        self.same(meshtf.tf.convert(double, x[:1]), {"x": x}, {"output_0": x * 2, "output_1": x + 1})

    def test_graphs(self):
        v1 = tf.compat.v1
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, 4], name="x")
            w = v1.get_variable("w", initializer=rows(4, 2), use_resource=True)
            y = tf.nn.relu(x @ w, name="y")
            session = v1.Session()
            session.run(v1.global_variables_initializer())
            session.run(w.assign(w * 2))
            weights = session.run(w)
            parts = tf.split(x, 2, axis=1, name="parts")
        given = rows(3, 4)
        expected = session.run(y, {x: given})
        for inputs, outputs, names in ((x, "y", "xy"), (["x"], [y], "xy"), ({"in": "x:0"}, {"out": y}, ("in", "out"))):
            frozen = meshtf.tf.convert(graph, inputs, outputs=outputs, session=session)
            self.assertEqual(frozen.variables, [])
            self.same(frozen, {names[0]: given}, {names[1]: expected})
        halves = meshtf.tf.convert(graph, x, outputs=["parts:0", parts[1]])
        self.same(halves, {"x": given}, {"parts": given[:, :2], "parts_1": given[:, 2:]})
        # As it is, with its variables.
        whole = meshtf.tf.convert(graph)
        with meshtf.local(whole) as m, m.session(whole, weights={"w": weights}) as s:
            np.testing.assert_allclose(s.run("y", {"x": given}), expected, rtol=1e-5)
        for wrong, kind, part in [
            ({"inputs": "xx"}, meshtf.InvalidArgumentError, "inputs: .*xx"),
            ({"session": session}, TypeError, "state outputs"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(kind, part):
                meshtf.tf.convert(graph, **wrong)

    def test_mistakes_are_named(self):
        boxes = tf.function(
            lambda x: tf.raw_ops.GenerateBoundingBoxProposals(
                scores=x, bbox_deltas=x, image_info=x, anchors=x, nms_threshold=0.5, pre_nms_topn=1, min_size=1.0
            )[0]
        )
        with self.assertRaisesRegex(meshtf.Error, "GenerateBoundingBoxProposals"):
            meshtf.tf.convert(boxes, tf.TensorSpec(None))
        with self.assertRaisesRegex(TypeError, "expected a tf.Graph"):
            meshtf.tf.convert(lambda x: x)
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "inputs are tf.TensorSpec, or examples, not {'x'"):
            meshtf.tf.convert(boxes, [{"x": tf.TensorSpec(None)}])
        with self.assertRaisesRegex(TypeError, "of its own"):
            meshtf.tf.convert(boxes, outputs="y")


if __name__ == "__main__":
    unittest.main()
