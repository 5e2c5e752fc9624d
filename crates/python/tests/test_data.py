"""Data of a training: iterators, files and tables; followers and bars; columns of pandas and Arrow."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
from needs import need

import meshtf
from meshtf._bar import Bar


def line():
    """y = x @ [2, -1] + 0.5, without noise, and a model of it."""
    rng = np.random.default_rng(0)
    xs = rng.uniform(-1, 1, (64, 2)).astype("float32")
    ys = xs @ np.array([[2.0], [-1.0]], "float32") + 0.5
    g = meshtf.Graph()
    x, y = g.placeholder("x", "float32", [None, 2]), g.placeholder("y", "float32", [None, 1])
    guess = x.dense(1, name="line").named("guess")
    ((guess - y) ** 2).mean().named("loss")
    return g, {"x": xs, "y": ys}


def batches(data, rows):
    return [{name: array[i : i + rows] for name, array in data.items()} for i in range(0, 64, rows)]


class Iterators(unittest.TestCase):
    def weights(self, data, **options):
        g, _ = line()
        return meshtf.train(g, data, optimizer="sgd", rate=0.1, **options).weights["line/kernel"]

    def test_an_iterable_is_as_its_arrays_in_order(self):
        _, data = line()
        for options in ({}, {"workers": 2, "ps": 1}):
            expected = self.weights(data, batch=16, steps=10, shuffle=None, **options)
            for given in (
                batches(data, 16),
                # The sizes of batches need not be that of a step.
                batches(data, 10),
                # An iterator that ends once, after as many examples as are taken.
                iter(batches(data, 16) * 3),
                (one for _ in range(3) for one in batches(data, 16)),
            ):
                with self.subTest(type(given), **options):
                    np.testing.assert_allclose(self.weights(given, batch=16, steps=10, **options), expected, rtol=1e-6)
        # Without a size, it is that of the first batch.
        expected = self.weights(data, batch=8, steps=10, shuffle=None)
        np.testing.assert_allclose(self.weights(batches(data, 8), steps=10), expected, rtol=1e-6)

    def test_batches_are_read_as_the_training_proceeds(self):
        _, data = line()
        taken = []

        def endless():
            while True:
                taken.append(1)
                yield {"x": data["x"][:16], "y": data["y"][:16]}

        self.weights(endless(), steps=1000)
        # As many as there are steps, and what no step takes any more is not read.
        self.assertLess(len(taken), 1100)
        g, _ = line()
        stopped = meshtf.train(g, endless(), steps=10**9, record=10, callbacks=[lambda step, _: step >= 50])
        self.assertEqual(stopped.how, "stopped")

    def test_a_training_with_batches_continues(self):
        _, data = line()
        expected = self.weights(data, batch=16, steps=9, shuffle=None)
        with tempfile.TemporaryDirectory() as folder:
            states = os.path.join(folder, "states")
            self.weights(iter(batches(data, 16) * 3), steps=4, checkpoint=states)
            found = self.weights(iter(batches(data, 16) * 3), steps=9, checkpoint=states)
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_strings_and_validation(self):
        g = meshtf.Graph()
        words, y = g.placeholder("words", "string", [None]), g.placeholder("y", "float32", [None])
        w = g.variable("w", [], initial=0.0)
        ((g.op("StringLength", words).astype("float32") * w - y) ** 2).mean().named("loss")
        given = [{"words": ["a", "bcd"], "y": [2, 6]}, {"words": [b"ef"], "y": [4]}]
        held = {"words": ["abcd"], "y": [8]}
        done = meshtf.train(g, given, optimizer="sgd", rate=0.05, steps=60, validation=held, evaluate_every=20)
        self.assertAlmostEqual(float(done.weights["w"]), 2, places=3)
        self.assertEqual(done.history["val_step"], [20, 40, 60])

    def test_mistakes_are_named(self):
        g, data = line()
        one = batches(data, 16)[0]

        def breaks():
            yield one
            raise KeyError("mine")

        for given, options, kind, part in [
            (iter([one]), {"steps": 5}, meshtf.InvalidArgumentError, "ended after 16 examples"),
            ([one], {}, meshtf.InvalidArgumentError, "state steps"),
            ([], {"steps": 1}, meshtf.InvalidArgumentError, "without a batch"),
            ([one], {"steps": 1, "validation": 0.5}, meshtf.InvalidArgumentError, "state other examples"),
            ([one, {"x": one["x"]}], {"steps": 9}, meshtf.InvalidArgumentError, "a batch of the data has x, and the first"),
            ([one, {"x": one["x"][:, :1], "y": one["y"]}], {"steps": 9}, meshtf.InvalidArgumentError, "shape .16, 1. for x"),
            ([{"x": one["x"], "y": one["y"][:3]}], {"steps": 9}, meshtf.InvalidArgumentError, "16 for x, 3 for y"),
            (breaks(), {"steps": 9}, KeyError, "mine"),
            (5, {"steps": 9}, TypeError, "iterable of batches"),
            ([5], {"steps": 9}, TypeError, "feeds are a dict"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(kind, part):
                meshtf.train(g, given, **options)


class Files(unittest.TestCase):
    def test_files_are_as_their_arrays(self):
        g, data = line()
        expected = meshtf.train(g, data, steps=20, batch=8).weights["line/kernel"]
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name)
            np.savez(path("both.npz"), points=data["x"], y=data["y"])
            np.save(path("x.npy"), data["x"])
            os.mkdir(path("below"))
            np.save(path("below/y.npy"), data["y"])
            table = np.hstack([data["x"], data["y"]])
            np.savetxt(path("t.csv"), table, delimiter=",", header="a,b,y", comments="", fmt="%.9g")
            for given in (
                {"x": path("both.npz") + ":points", "y": path("both.npz") + ":y"},
                {"x": path("x.npy"), "y": {"file": path("below/y.npy")}},
                {
                    "x": {"file": path("t.csv"), "columns": ["a", "b"]},
                    "y": {"file": path("t.csv"), "columns": ["y"]},
                },
            ):
                with self.subTest(given):
                    done = meshtf.train(g, given, steps=20, batch=8)
                    np.testing.assert_allclose(done.weights["line/kernel"], expected, rtol=1e-4)
            there = {"x": path("x.npy"), "y": path("below/y.npy")}
            done = meshtf.train(g, there, epochs=2, validation=0.25)
            self.assertEqual(len(done.history["val_loss"]), 2)
            done = meshtf.train(g, there, epochs=2, validation=there)
            self.assertEqual(len(done.history["val_loss"]), 2)
            before = os.getcwd()
            os.chdir(folder)
            try:
                meshtf.train(g, {"x": "x.npy", "y": "below/y.npy"}, steps=1)
            finally:
                os.chdir(before)
            for given, options, kind, part in [
                ({"x": path("none.npy"), "y": path("x.npy")}, {}, meshtf.InvalidArgumentError, "none.npy"),
                ({"x": path("x.npy"), "y": data["y"]}, {}, meshtf.InvalidArgumentError, "numpy.save"),
                ({"x": {"file": path("x.npy"), "colums": []}, "y": path("x.npy")}, {}, meshtf.InvalidArgumentError, "colums"),
                (there, {"validation": data["x"]}, TypeError, "dict of files"),
                (there, {"validation": {"x": data["x"]}}, meshtf.InvalidArgumentError, "numpy.save"),
            ]:
                with self.subTest(part), self.assertRaisesRegex(kind, part):
                    meshtf.train(g, given, steps=1, **options)


class Followers(unittest.TestCase):
    def test_a_callback_follows_the_whole_training(self):
        g, data = line()
        seen = []

        class Follow(meshtf.Callback):
            def on_begin(self, start, steps):
                seen.append(("begin", start, steps))

            def on_record(self, step, logs):
                seen.append(("record", step, sorted(logs)))

            def on_evaluation(self, step, logs):
                seen.append(("evaluation", step, sorted(logs)))

            def on_save(self, step, path):
                seen.append(("save", step, os.path.exists(path)))

            def on_end(self, trained):
                seen.append(("end", trained.step, trained.how))

        with tempfile.TemporaryDirectory() as folder:
            meshtf.train(
                g,
                data,
                batch=16,
                epochs=2,
                validation=0.25,
                record="epoch",
                checkpoint=os.path.join(folder, "s"),
                callbacks=[Follow()],
            )
        self.assertEqual(
            seen,
            [
                ("begin", 0, 6),
                ("record", 3, ["loss"]),
                ("evaluation", 3, ["val_loss"]),
                ("record", 6, ["loss"]),
                ("evaluation", 6, ["val_loss"]),
                ("save", 6, True),
                ("end", 6, "done"),
            ],
        )

    def test_early_stopping(self):
        g, data = line()
        stop = meshtf.EarlyStopping("loss", patience=3, min_delta=1e-3)
        done = meshtf.train(g, data, optimizer="sgd", rate=0.3, steps=10**6, record=5, callbacks=[stop])
        self.assertEqual(done.how, "stopped")
        self.assertLess(stop.best, 0.1)
        self.assertEqual(done.history["loss"][done.history["step"].index(stop.best_step)], stop.best)
        # Steps that have begun are finished, so that there may be more records.
        self.assertGreaterEqual(done.step, stop.best_step + 15)
        stop = meshtf.EarlyStopping(patience=2)
        done = meshtf.train(g, data, rate=0.0, epochs=10**5, batch=16, validation=0.25, callbacks=[stop])
        self.assertEqual((done.how, stop.best_step), ("stopped", 3))
        for monitor in ("los", "val_los"):
            with self.subTest(monitor), self.assertRaisesRegex(meshtf.InvalidArgumentError, "there is no "):
                meshtf.train(g, data, epochs=1, validation=0.25, callbacks=[meshtf.EarlyStopping(monitor)])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "min"):
            meshtf.EarlyStopping(mode="least")
        with self.assertRaisesRegex(TypeError, "callbacks are functions"):
            meshtf.train(g, data, callbacks=["stop"])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, '"epoch"'):
            meshtf.train(g, data, record="epochs")

    def test_a_bar_without_tqdm(self):
        bar = Bar(40)
        bar.update(10)
        bar.set_postfix({"loss": 0.25})
        self.assertEqual(bar.line(5.0), "#####............... 10/40 steps, 2 steps/s, 15 s left  loss 0.25")
        bar.update(30)
        self.assertEqual(bar.line(8.0), "#################### 40/40 steps, 5 steps/s  loss 0.25")
        g, data = line()
        with mock.patch.dict(sys.modules, {"tqdm.auto": None}), contextlib.redirect_stderr(io.StringIO()) as said:
            meshtf.train(g, data, steps=20, progress=True)
        self.assertIn("20/20 steps", said.getvalue())


class Columns(unittest.TestCase):
    """A graph over named columns, and one over a table."""

    def setUp(self):
        g = meshtf.Graph()
        a, b = g.placeholder("a", "float32", [None]), g.placeholder("b", "int64", [None])
        self.sum = (a + b.astype("float32")).named("sum")
        self.words = g.placeholder("words", "string", [None])
        self.lengths = g.op("StringLength", self.words, name="lengths")
        self.table = g.placeholder("table", "float64", [None, None])
        self.rows = self.table.sum(axis=1).named("rows")
        self.mesh = meshtf.local()
        self.session = self.mesh.session(g)
        self.addCleanup(self.mesh.close)

    def check(self, table, texts, with_nulls, refused):
        run = self.session.run
        np.testing.assert_array_equal(run("sum", table), [11, 22, 33])
        np.testing.assert_array_equal(run("sum", {"a": table["a"], "b": table["b"]}), [11, 22, 33])
        np.testing.assert_array_equal(run("rows", {"table": table}), [11, 22, 33])
        np.testing.assert_array_equal(run("lengths", {"words": texts}), [1, 22, 0])
        np.testing.assert_array_equal(run("sum", {"a": with_nulls, "b": [1, 1, 1]}), [2, np.nan, 4])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "b has 1 nulls: fill them"):
            run("sum", {"a": [1, 2, 3], "b": refused})
        for _, value in self.session.run_steps("sum", table, steps=1):
            np.testing.assert_array_equal(value, [11, 22, 33])

    TEXTS = ["a", "more than twelve bytes", ""]

    def test_pandas(self):
        need("python-packages", "pandas")
        import pandas as pd

        table = pd.DataFrame({"a": [1.0, 2, 3], "b": [10, 20, 30]}, index=[7, 8, 9])
        nulls = pd.array([1, None, 3], dtype="Float64")
        self.check(table, pd.Series(self.TEXTS), pd.Series(nulls), pd.Series([1, None, 3], dtype="Int64"))
        whole = table.astype({"a": "Float32", "b": "Int64"})
        self.check(
            whole, pd.Series(self.TEXTS, dtype="category"), pd.Series([1, np.nan, 3]), pd.Series([1, None, 3], dtype="Int32")
        )
        _, data = line()
        given = pd.DataFrame({"x": data["x"][:, 0], "y": data["y"][:, 0]})
        h = meshtf.Graph()
        x, y = h.placeholder("x", "float32", [None]), h.placeholder("y", "float32", [None])
        w = h.variable("w", [], initial=0.0)
        ((x * w - y) ** 2).mean().named("loss")
        by_table, by_arrays = (meshtf.train(h, one, steps=5) for one in (given, {name: given[name].to_numpy() for name in given}))
        self.assertEqual(by_table.weights, by_arrays.weights)
        np.testing.assert_allclose(
            meshtf.train(h, [given], steps=2).weights["w"], meshtf.train(h, given, batch=64, steps=2).weights["w"]
        )

    def test_arrow(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        class Table:
            """A table that has Arrow's protocol and nothing else that numpy knows."""

            def __init__(self, table):
                self.table = table

            def __arrow_c_stream__(self, requested_schema=None):
                return self.table.__arrow_c_stream__(requested_schema)

            def __getitem__(self, name):
                return self.table[name]

        whole = pa.table({"a": [1.0, 2, 3], "b": [10, 20, 30]})
        parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
        nulls, refused = pa.array([1.0, None, 3], pa.float32()), pa.array([1, None, 3])
        for table in (whole, parts, Table(parts), Table(pa.concat_tables([whole.slice(2), whole]).slice(1))):
            for texts in (pa.string(), pa.large_string(), pa.string_view(), pa.binary()):
                self.check(table, pa.array(self.TEXTS, texts), nulls, refused)
        batch = whole.to_batches()[0]
        np.testing.assert_array_equal(self.session.run("sum", batch.slice(1)), [22, 33])
        encoded = pa.array(self.TEXTS).dictionary_encode()
        np.testing.assert_array_equal(self.session.run("lengths", {"words": encoded}), [1, 22, 0])
        pairs = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2))
        np.testing.assert_array_equal(self.session.run("rows", {"table": pairs}), [3, 7])
        bools = pa.array([True, False, True] * 7)[4:]
        np.testing.assert_array_equal(meshtf._arrays.array_of(bools, "bool", "x"), bools.to_numpy(zero_copy_only=False))
        for value, part in [
            (pa.array([[1.0], [2.0, 3.0]]), "the type '.l' of Arrow"),
            (pa.array([0, 1], pa.timestamp("s")), "the type 'tss:'"),
            (pa.table({}), "no columns"),
            (pa.table([[1.0], [2.0]], names=["a", "a"]), "several columns have the name 'a'"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(meshtf.InvalidArgumentError, part):
                self.session.run("rows", {"table": value})

    def test_numbers_of_arrow_are_views(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        array = pa.array(np.arange(1000.0))
        view = meshtf._arrays.array_of(array, "float64", "x")
        self.assertEqual(view.__array_interface__["data"][0], array.buffers()[1].address)
        before = pa.total_allocated_bytes()
        for _ in range(50):
            meshtf._arrays.array_of(pa.chunked_array([np.arange(1e4)]), "float64", "x")
        self.assertLess(pa.total_allocated_bytes() - before, 200_000)
        del array
        self.assertEqual(view.sum(), 999 * 500)


if __name__ == "__main__":
    unittest.main()
