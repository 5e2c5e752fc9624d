"""Graphs: numpy's functions and operators give numpy's values; names, devices, files, gradients, layers."""

import os
import pickle
import tempfile
import unittest

import numpy as np

import meshtf

A = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]], "float32")
B = np.array([[2.0, 1.0, -0.5], [0.5, 4.0, 1.5]], "float32")
P = np.abs(A) + 0.25
I = np.array([[7, -3, 12], [5, 9, -8]], "int32")
J = np.array([[2, 4, 5], [-3, 2, 3]], "int32")
T = np.array([[True, False, True], [False, False, True]])

# Functions of one or two arrays, which are called with numpy's arrays and with tensors of a graph.
FUNCTIONS = {
    "operators": [
        (lambda a, b: a + b, A, B),
        (lambda a, b: a - b * 2, A, B),
        (lambda a, b: 3 - a / b, A, B),
        (lambda a, b: a**2 + 2**b, A, B),
        (lambda a, b: a // b + a % b, I, J),
        (lambda a, b: 100 // b - 7 % b, I, J),
        (lambda a, b: -a + abs(b) + +a, A, B),
        (lambda a, b: a @ b.T, A, B),
        (lambda a, b: a @ b[0] + b[1] @ a.T, A, B),
        (lambda a, b: (a < b) | (a >= 2), A, B),
        (lambda a, b: (a <= b) & ~(a > 0) ^ (b > 1), A, B),
        (lambda a, b: (a & 5) | (b ^ 3), I, J),
        (lambda a, b: a + np.float32(1) + B, A, B),
        (lambda a, b: B - a, A, B),
        (lambda a, b: [[1, 2, 3]] + b, A, B),
        (lambda a, b: (a * 1.5).astype("int32") + b.astype(np.int32), A, B),
    ],
    "elements": [
        (lambda a: np.exp(a) + np.expm1(a) + np.square(a), A),
        (lambda a: np.log(a) + np.log1p(a) + np.sqrt(a) + np.reciprocal(a), P),
        (lambda a: np.sin(a) + np.cos(a) + np.tan(a) + np.sinh(a) + np.cosh(a) + np.tanh(a), A),
        (lambda a: np.arcsin(a / 4) + np.arccos(a / 4) + np.arctan(a), A),
        (lambda a: np.arcsinh(a) + np.arccosh(a + 3) + np.arctanh(a / 4), A),
        (lambda a: np.sign(a) + np.floor(a) + np.ceil(a) + np.rint(a) + np.abs(a) + np.negative(a), A),
        (lambda a: np.isfinite(a) & ~np.isnan(a) | np.isinf(a), A),
        (lambda a: np.logical_not(a) | np.logical_and(a, a) ^ np.logical_or(a, a), T),
        (lambda a, b: np.maximum(a, b) + np.minimum(a, 0.5), A, B),
        (lambda a, b: np.power(a, b) + np.arctan2(a, b), P, B),
        (lambda a, b: np.equal(a, b) | np.not_equal(a, 0.5) | np.greater(a, b), A, B),
        (lambda a, b: np.add(a, b) * np.subtract(a, b) * np.multiply(a, b) / np.divide(a, b), P, P),
        (lambda a, b: np.floor_divide(a, b) + np.remainder(a, b) + np.bitwise_and(a, b), I, J),
        (lambda a: np.clip(a, -1, 1) + np.clip(a, None, 0.5) + a.clip(0), A),
        (lambda a: np.round(a), A),
        (lambda a, b: np.where(a > b, a, b) + np.where(a > 0, 1.0, b), A, B),
    ],
    "reductions": [
        (lambda a: np.sum(a), A),
        (lambda a: np.sum(a, axis=0) + a.mean(axis=0), A),
        (lambda a: np.mean(a, axis=-1, keepdims=True) + np.prod(a, axis=1, keepdims=True), A),
        (lambda a: np.max(a, axis=1) + np.min(a, axis=1) + np.amax(a), A),
        (lambda a: np.var(a, axis=0) + np.std(a, axis=0) + np.std(a), A),
        (lambda a: np.any(a, axis=0), T),
        (lambda a: np.all(a, axis=1) | a.any(), T),
        (lambda a: np.argmax(a, axis=1) + np.argmin(a, axis=1), A),
        (lambda a: np.argmax(a) + a.argmin(), A),
        (lambda a: np.cumsum(a, axis=1) + np.cumprod(a, axis=0), A),
        (lambda a: np.cumsum(a), A),
        (lambda a: np.linalg.norm(a, axis=1) + np.linalg.norm(a, 1, axis=1) + np.linalg.norm(a, np.inf, 1), A),
        (lambda a: np.linalg.norm(a) + np.linalg.norm(a, "fro") + np.linalg.norm(a[0], 1) + np.linalg.norm(a[1], np.inf), A),
        (lambda a: np.linalg.norm(a, axis=(0, 1)) + np.linalg.norm(a[0], 2) + np.linalg.norm(a, 2, (1,)), A),
        (lambda a: np.linalg.norm(a) + np.linalg.norm(a, 1, 0), I),
        (lambda a: np.linalg.norm(np.stack([a, a + 1])), A),
        (lambda a: np.mean(a) + a.mean(axis=1, keepdims=True), I),
        (lambda a: np.mean(a, axis=0) + a.var(axis=0) + np.std(a), I),
        (lambda a: np.mean(a, axis=1) + np.var(a), T),
        (lambda a: np.sum(a, axis=(0, 1)), A),
        (lambda a: np.sum(a, dtype="int64") + a.sum(0, "int64").sum() + np.prod(a, axis=1, dtype="int64"), I),
        (lambda a: np.cumsum(a, dtype="int64") + a.cumprod(dtype="int64"), I),
        (lambda a: np.mean(a, dtype="float32") + np.sum(a, 1, "float32"), I),
    ],
    "shapes": [
        (lambda a: a.reshape(3, 2) + np.reshape(a, (3, 2)) + a.reshape(-1, 2), A),
        (lambda a: a.T + np.transpose(a) + np.swapaxes(a, 0, 1) + a.transpose(1, 0) + a.transpose((1, 0)), A),
        (lambda a: np.expand_dims(a, 1) + np.expand_dims(np.squeeze(np.expand_dims(a, 0)), 1), A),
        (lambda a, b: np.concatenate([a, b, B]), A, B),
        (lambda a, b: np.concatenate([a, b], axis=1), A, B),
        (lambda a, b: np.stack([a, b]) + np.stack((a, b), axis=0), A, B),
        (lambda a: np.tile(a, (2, 1)) + np.tile(a, [2, 1]), A),
        (lambda a: np.tile(a[0], (2, 3)), A),
        (lambda a: np.broadcast_to(a, (2, 2, 3)), A),
        (lambda a: np.split(a, 3, axis=1)[1] + np.split(a, 3, axis=1)[2], A),
        (lambda a: np.pad(a, ((1, 0), (0, 2))) + np.pad(a, [(1, 0), (0, 2)], constant_values=3), A),
        (lambda a: np.flip(a) + np.flip(a, 0) + np.roll(a, 1, 1), A),
        (lambda a: np.ravel(a) + a.ravel() + np.zeros_like(a).ravel() + np.ones_like(a).reshape(-1), A),
        (lambda a: np.take(a, [2, 0], axis=1) + a.take([0, 1], 1), A),
        (lambda a: np.take(a, [5, 0]) + a.take([[3, 4], [1, 1]]), A),
        (lambda a, b: np.matmul(a, b.T) + np.dot(a, b.T) + np.einsum("ij,kj->ik", a, b), A, B),
        (lambda a, b: np.matmul(np.stack([a, a]), np.stack([b.T, b.T])), A, B),
        (lambda a, b: np.outer(a[0], b[1]), A, B),
        (lambda a, b: np.dot(A, b.T), A, B),
        (lambda a, b: np.dot(a[0], b[1]) + a.dot(b[1]), A, B),
    ],
    "indices": [
        (lambda a: a[0], A),
        (lambda a: a[-1, 1:], A),
        (lambda a: a[:, ::-1], A),
        (lambda a: a[..., 0], A),
        (lambda a: a[:, None, 1], A),
        (lambda a: a[1:, -2:-1], A),
        (lambda a: a[[1, 0, 1]], A),
        (lambda a: a[np.array([1, 0])], A),
        (lambda a: a[1][2], A),
        (lambda a: a[np.int64(1), :-1:2], A),
    ],
}


class Numpy(unittest.TestCase):
    def test_functions_give_numpys_values(self):
        for family, cases in FUNCTIONS.items():
            g, fetches, expected = meshtf.Graph(), [], []
            feeds = {}
            for function, *arrays in cases:
                tensors = []
                for array in arrays:
                    tensors.append(g.placeholder("x", array.dtype, array.shape))
                    feeds[tensors[-1]] = array
                fetches.append(function(*tensors))
                expected.append(function(*arrays))
            with meshtf.local() as m, m.session(g) as s:
                for i, (got, wanted) in enumerate(zip(s.run(fetches, feeds), expected, strict=True)):
                    with self.subTest(f"{family}[{i}]"):
                        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)
                        self.assertEqual(np.shape(got), np.shape(wanted))
                        self.assertEqual(np.asarray(got).dtype.kind, np.asarray(wanted).dtype.kind)
                        # The shape was known before the run, or said to be unknown.
                        known = fetches[i].shape
                        if known is not None:
                            self.assertTrue(all(a in (None, b) for a, b in zip(known, np.shape(wanted), strict=True)), known)

    def test_means_have_numpys_dtypes(self):
        g = meshtf.Graph()
        for dtype in ("bool", "int8", "int32", "uint16", "int64", "float16", "float32", "float64"):
            x, array = g.placeholder("x", dtype, [2]), np.ones(2, dtype)
            self.assertEqual((np.mean(x).dtype, np.var(x).dtype), (np.mean(array).dtype, np.var(array).dtype), dtype)
        # Without the package that has the dtype.
        self.assertIn("bfloat16", repr(g.placeholder("x", "bfloat16", [2]).mean()))

    def test_integers_are_divided_and_truths_counted_as_in_numpy(self):
        g = meshtf.Graph()
        for dtype in ("bool", "int8", "int32", "uint16", "int64", "float32"):
            x, array = g.placeholder("x", dtype, [3]), np.array([1, 0, 1], dtype)
            with meshtf.local() as m, m.session(g) as s:
                for of in (
                    lambda x: x / np.float32(2.5) if dtype == "float32" else x / 2.5,
                    lambda x: 2 / x[:1],
                    lambda x: np.divide(x, x[:1]),
                    lambda x: np.true_divide(np.array([6], dtype), x[:1]),
                ):
                    got, wanted = s.run(of(x), {x: array}), of(array)
                    np.testing.assert_allclose(got, wanted, rtol=1e-6)
                    if dtype != "float32" and wanted.dtype != np.float16:
                        self.assertEqual(got.dtype, np.float64, dtype)
        truths = g.placeholder("truths", "bool", [3])
        with meshtf.local() as m, m.session(g) as s:
            self.assertEqual(s.run(truths.sum(), {truths: [True, False, True]}), 2)
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "float32"):
            g.placeholder("n", "int32", [3]) / g.placeholder("f", "float32", [3])

    def test_what_a_graph_cannot_do_is_refused_at_once(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None, 3])
        n = g.placeholder("n", "int32", [2])
        anything = g.placeholder("anything")
        for i, (refused, kind, part) in enumerate(
            [
                (lambda: bool(x), TypeError, "before a run"),
                (lambda: list(x), TypeError, "before a run"),
                (lambda: len(x), TypeError, "not known"),
                (lambda: np.array(x), TypeError, "tensor of a graph"),
                (lambda: x @ np.ones((2, 2), "float32"), meshtf.InvalidArgumentError, "the inner sizes 3 and 2 differ"),
                (lambda: x + n, meshtf.InvalidArgumentError, "int32"),
                (lambda: n + 1.5, meshtf.InvalidArgumentError, "astype"),
                (lambda: x["a"], TypeError, "indexed by"),
                (lambda: x[x > 0], TypeError, "Where"),
                (lambda: x[[True, False]], TypeError, "Where"),
                (lambda: anything.T, meshtf.InvalidArgumentError, "number of dimensions"),
                (lambda: np.fft.fft(x), TypeError, "fft"),
                (lambda: np.linalg.norm(x, 1), TypeError, "two dimensions has the order 'fro', not 1"),
                (lambda: np.linalg.norm(x, np.inf), TypeError, "two dimensions has the order 'fro', not inf"),
                (lambda: np.linalg.norm(x, 2, axis=(0, 1)), TypeError, "two dimensions"),
                (lambda: np.linalg.norm(x[0], "fro"), TypeError, "orders 1, 2 and inf"),
                (lambda: np.linalg.norm(x, 0, axis=1), TypeError, "orders 1, 2 and inf"),
                (lambda: np.linalg.norm(x[None], 1), TypeError, "not of 3"),
                (lambda: np.linalg.norm(anything, 1), meshtf.InvalidArgumentError, "number of dimensions"),
                (lambda: np.linalg.norm(x.astype("complex64")), TypeError, "complex"),
                (lambda: x.astype("complex64").var(), TypeError, "complex"),
                (lambda: np.dot(x[None], x.T), meshtf.InvalidArgumentError, "3 dimensions"),
                (lambda: x.dot(np.ones((2, 3, 2))), meshtf.InvalidArgumentError, "3 dimensions"),
                (lambda: np.dot(np.ones((2, 2, 2)), x), meshtf.InvalidArgumentError, "3 dimensions"),
                (lambda: np.float_power(x, 2), TypeError, "float_power"),
                (lambda: np.add.reduce(x), TypeError, "reduce"),
                (lambda: g.op("MatMull", x, x), meshtf.InvalidArgumentError, "MatMul"),
                (lambda: g.op("MatMul", x, x, transpose=True), meshtf.InvalidArgumentError, "transpose_a"),
                (lambda: g.op("MatMul", x, x, transpose_a="yes"), TypeError, "transpose_a"),
                (lambda: g.placeholder("y", "float33"), meshtf.InvalidArgumentError, "float33"),
                (lambda: g.variable("v", [2], initial="one"), meshtf.InvalidArgumentError, "ones"),
                (lambda: g.variable("v"), meshtf.InvalidArgumentError, "shape"),
                (lambda: g.device("worker").__enter__(), meshtf.InvalidArgumentError, "worker"),
                (lambda: g["nothing"], meshtf.InvalidArgumentError, "nothing"),
                (lambda: g.minimize(x.sum(), "adamm"), meshtf.InvalidArgumentError, "adamw"),
                (lambda: g.minimize(x.sum()), meshtf.InvalidArgumentError, "variable"),
                (lambda: g.constant([[1], [1, 2]]), (TypeError, ValueError), ""),
                (lambda: g.constant({}), TypeError, ""),
                (lambda: g.constant(10**30), TypeError, "64 bits"),
                (lambda: g.placeholder("y", "float32", [-1]), meshtf.InvalidArgumentError, "None for an open one"),
                (lambda: g.placeholder("y", "float32", 3), meshtf.InvalidArgumentError, "expected sizes"),
                (lambda: x + meshtf.Graph().constant(1.0), meshtf.InvalidArgumentError, "another graph"),
                (lambda: n.dense(3), meshtf.Error, ""),
                (lambda: x.conv(3, 3), meshtf.InvalidArgumentError, "conv"),
                (lambda: x.dense(-1), meshtf.InvalidArgumentError, "dense"),
                (
                    lambda: g.placeholder("long", "float32", [None, 4097, 4]).self_attention(2, causal=True),
                    meshtf.InvalidArgumentError,
                    "4097 positions",
                ),
            ]
        ):
            with self.subTest(i), self.assertRaisesRegex(kind, part):
                refused()
        # It continues without them.
        y = (x.dense(2, name="d") + 1).sum()
        g.minimize(y, "sgd", 0.1)
        self.assertEqual(g.variables, ["d/kernel", "d/bias", "global_step"])
        with meshtf.local() as m, m.session(g) as s:
            self.assertEqual(s.run(y, {x: np.zeros((1, 3))}), 2)


class Building(unittest.TestCase):
    def test_names_scopes_and_devices(self):
        g = meshtf.Graph()
        with g.device("/job:worker"), g.scope("a"):
            x = g.placeholder("x", "int32")
            with g.device("/task:1"), g.scope("b"):
                y = g.op("Neg", x, name="y")
            z = x + 1
        again = y.named("y")
        self.assertEqual((x.name, y.name, z.name, again.name), ("a/x", "a/b/y", "a/AddV2", "y"))
        devices = {name: device for name, _, device in g.nodes}
        self.assertEqual(devices["a/x"], "/job:worker")
        self.assertEqual(devices["a/b/y"], "/job:worker/task:1")
        self.assertEqual(devices["y"], "")
        self.assertEqual((g["a/b/y"].name, g["a/x"].shape, g["a/x"].dtype), ("a/b/y", None, np.dtype("int32")))
        try:
            with g.device("/job:ps"):
                raise KeyError
        except KeyError:
            pass
        g.constant(1, name="after")
        self.assertEqual(g.nodes[-1], ("after", "Const", ""))

    def test_constants_have_the_dtypes_of_tensorflow(self):
        g = meshtf.Graph()
        for value, dtype in [
            (1, "int32"),
            (1.5, "float32"),
            ([True], "bool"),
            (1j, "complex64"),
            (2**40, "int64"),
            (np.float64(1), "float64"),
            (np.array([1, 2], "int8"), "int8"),
            ("text", "object"),
            ([b"a", "b"], "object"),
            ([], "float32"),
        ]:
            self.assertEqual(g.constant(value).dtype, np.dtype(dtype), repr(value))
        self.assertEqual(g.constant([1, 2], "float16").dtype, np.dtype("float16"))

    def test_graphs_are_saved_loaded_and_extended(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None, 2])
        w = g.variable("w", [2, 1], initial=[[1.0], [2.0]])
        y = (x @ w).named("y")
        expected = [[5]]
        with tempfile.TemporaryDirectory() as folder:
            for name in ("graph.json", "graph.pb"):
                path = os.path.join(folder, name)
                g.save(path, fetch=y)
                again = meshtf.load(path)
                self.assertEqual((again.inputs, again.variables), ({"x": "x"}, ["w"]))
                with meshtf.local() as m:
                    with m.session(again, weights={"w": [[1], [2]]}) as s:
                        self.assertEqual(s.run("y", {"x": [[1, 2]]}), expected)
                    z = (again["y"] * 2).named("z")
                    with m.session(again) as s:
                        self.assertEqual(s.run(z, {"x": [[1, 2]]}), [[10]])
            with self.assertRaisesRegex(meshtf.InvalidArgumentError, ".json"):
                g.save(os.path.join(folder, "graph.txt"))
            # What a file says to fetch and to feed is the default of a run.
            with open(os.path.join(folder, "defaults.json"), "w") as file:
                file.write(
                    '{"version": 1, "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32"}}, '
                    '"y": {"op": "Square", "inputs": ["x"]}}, "feed": {"x": 3.0}, "fetch": ["y"]}'
                )
            defaults = meshtf.load(os.path.join(folder, "defaults.json"))
            with meshtf.local() as m, m.session(defaults) as s:
                self.assertEqual((s.run(), s.run("y", {"x": 4})), ({"y": 9}, 16))
        copied = pickle.loads(pickle.dumps(g))
        self.assertEqual((copied.nodes, copied.variables), (g.nodes, g.variables))
        self.assertIn("x -> ?", repr(g))
        self.assertIn("<table>", g._repr_html_())

    def test_variables_have_first_values(self):
        g = meshtf.Graph(seed=3)
        for name, initial, check in [
            ("zeros", "zeros", lambda v: (v == 0).all()),
            ("ones", "ones", lambda v: (v == 1).all()),
            ("uniform", ("uniform", 2, 3), lambda v: ((v >= 2) & (v < 3)).all()),
            ("normal", ("normal", 5, 0.1), lambda v: abs(v.mean() - 5) < 0.1),
            ("glorot", "glorot_uniform", lambda v: (abs(v) <= np.sqrt(6 / 50)).all() and v.std() > 0.1),
            ("array", np.arange(600).reshape(20, 30), lambda v: (v == np.arange(600).reshape(20, 30)).all()),
            ("number", 4, lambda v: (v == 4).all()),
        ]:
            g.variable(name, [20, 30], initial=initial)
            with self.subTest(name), meshtf.local() as m, m.session(g) as s:
                self.assertTrue(check(s.variables[name]))
        self.assertEqual(g["glorot"].dtype, np.dtype("float32"))

    def test_gradients_are_those_of_calculus(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None])
        w = g.variable("w", [2], initial=[3.0, -1.0])
        unused = g.placeholder("unused", "float32", [2])
        y = (np.exp(x) * w).sum() + (x**3).sum()
        by_x, by_w, by_unused = g.gradients(y, [x, w, unused])
        at = np.array([0.5, -1.0], "float32")
        with meshtf.local() as m, m.session(g) as s:
            got = s.run([by_x, by_w, by_unused], {x: at, unused: [1, 2]})
        np.testing.assert_allclose(got[0], np.exp(at) * [3, -1] + 3 * at**2, rtol=1e-6)
        np.testing.assert_allclose(got[1], np.exp(at), rtol=1e-6)
        np.testing.assert_allclose(got[2], [0, 0])

    def test_layers_compute_what_they_say(self):
        rng = np.random.default_rng(1)
        g = meshtf.Graph()
        images = g.placeholder("images", "float32", [None, 6, 6, 2])
        rows = g.placeholder("rows", "float32", [None, 5])
        indices = g.placeholder("indices", "int32", [None, 4])
        words = indices.embedding(10, 3, name="words")
        fetches = {
            "dense": rows.dense(4, name="dense"),
            "conv": images.conv(3, 3, padding="valid", name="conv"),
            "max": images.max_pool(2),
            "avg": images.avg_pool(2),
            "flat": images.flatten(),
            "norm": rows.layer_norm(name="norm"),
            "dropout": rows.dropout(0.5, name="drop"),
            "words": words,
            "lstm": words.lstm(6, name="lstm"),
            "gru": words.gru(6, name="gru"),
            "attention": words.self_attention(1, causal=True, name="attention"),
            "relu": rows.relu(),
            "softmax": rows.softmax(),
            "batch": rows.batch_norm(name="batch"),
        }
        X, R = rng.normal(size=(2, 6, 6, 2)).astype("float32"), rng.normal(size=(3, 5)).astype("float32")
        N = rng.integers(0, 10, (2, 4))
        with meshtf.local() as m, m.session(g) as s:
            got = s.run(fetches, {images: X, rows: R, indices: N})
            v = s.variables
            np.testing.assert_allclose(got["dense"], R @ v["dense/kernel"] + v["dense/bias"], rtol=1e-5, atol=1e-6)
            windows = np.lib.stride_tricks.sliding_window_view(X, (3, 3), axis=(1, 2))
            conv = np.einsum("nhwcij,ijco->nhwo", windows, v["conv/kernel"])
            np.testing.assert_allclose(got["conv"], conv, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(got["words"], v["words/table"][N])
        blocks = X.reshape(2, 3, 2, 3, 2, 2)
        np.testing.assert_allclose(got["max"], blocks.max(axis=(2, 4)))
        np.testing.assert_allclose(got["avg"], blocks.mean(axis=(2, 4)), rtol=1e-5)
        np.testing.assert_allclose(got["flat"], X.reshape(2, -1))
        centered = R - R.mean(1, keepdims=True)
        np.testing.assert_allclose(got["norm"], centered / np.sqrt(R.var(1, keepdims=True) + 1e-3), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got["dropout"], R)
        np.testing.assert_allclose(got["batch"], R / np.sqrt(1 + 1e-3), rtol=1e-5)
        np.testing.assert_allclose(got["relu"], np.maximum(R, 0))
        np.testing.assert_allclose(got["softmax"].sum(1), 1, rtol=1e-5)
        self.assertEqual([got[name].shape for name in ("lstm", "gru", "attention")], [(2, 4, 6), (2, 4, 6), (2, 4, 3)])


if __name__ == "__main__":
    unittest.main()
