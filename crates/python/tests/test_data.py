"""Data of a training: iterators and files; followers and bars."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
from test_train import line

import meshtf
from meshtf._bar import Bar


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

    def test_workers_take_batches_in_any_order(self):
        # The gradient of mean(x * w) is mean(x), whatever the weight is: so the order of updates does not matter.
        g = meshtf.Graph()
        x, w = g.placeholder("x", "float32", [None]), g.variable("w", [], initial=0.0)
        (x * w).mean().named("loss")
        xs = np.random.default_rng(2).integers(0, 8, 240).astype("float32")
        given = lambda: iter([{"x": xs[i : i + 10]} for i in range(0, 240, 10)])
        options = {"mode": "async", "workers": 4, "ps": 1, "optimizer": "sgd", "rate": 1.0, "batch": 8}
        expected = [-xs[: steps * 8].reshape(-1, 8).mean(axis=1).sum() for steps in (13, 30)]
        # The worker that reads first may be any of them.
        for _ in range(10):
            self.assertEqual(meshtf.train(g, given(), steps=30, **options).weights["w"], expected[1])
        with tempfile.TemporaryDirectory() as folder:
            # It continues within a batch of the iterator.
            for steps, weight in zip((13, 30), expected, strict=True):
                done = meshtf.train(g, given(), steps=steps, checkpoint=os.path.join(folder, "s"), **options)
                self.assertEqual((done.step, done.weights["w"]), (steps, weight))
        self.assertEqual(w.shape, ())

    def test_what_an_iterable_is_evaluated_for(self):
        g, data = line()
        given, held = batches(data, 16), {"x": data["x"][:8], "y": data["y"][:8]}
        options = {"steps": 40, "optimizer": "sgd", "validation": held}
        # Without epochs, there are as many evaluations as records.
        for record, expected in ((None, list(range(2, 41, 2))), (8, [8, 16, 24, 32, 40])):
            done = meshtf.train(g, given, rate=0.1, record=record, **options)
            self.assertEqual((done.history["step"], done.history["val_step"]), (expected, expected))
        done = meshtf.train(g, given, rate=0.0, patience=3, **options)
        self.assertEqual((done.how, done.history["val_step"]), ("enough", [2, 4, 6, 8]))
        # Each step makes it worse, so that the first evaluation is the best one.
        done = meshtf.train(g, given, rate=1.5, restore_best=True, record=10, **{**options, "steps": 30})
        self.assertEqual((done.weights_step, done.step), (10, 30))
        stop = meshtf.EarlyStopping("val_loss", patience=2)
        done = meshtf.train(g, given, rate=0.0, callbacks=[stop], record=10, **{**options, "steps": 10**6})
        self.assertEqual((done.how, stop.best_step), ("stopped", 10))
        for wrong in ({"record": "epoch"}, {"epochs": 2}):
            with self.subTest(wrong), self.assertRaisesRegex(meshtf.InvalidArgumentError, "about epochs"):
                meshtf.train(g, given, rate=0.1, **{**options, **wrong})

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
            # The validation may have other constants: a numeral is one.
            h = meshtf.Graph()
            x, y = h.placeholder("x", "float32", [None, 2]), h.placeholder("y", "float32", [None, 1])
            keep, w = h.placeholder("keep", "float32", []), h.variable("w", [2, 1], initial=[[1.0], [2.0]])
            ((x @ w * keep - y) ** 2).mean().named("loss")
            for own, factor in (({}, 0.5), ({"keep": 1.0}, 1.0)):
                done = meshtf.train(
                    h, {**there, "keep": 0.5}, steps=1, batch=64, optimizer="sgd", rate=0.0, validation={**there, **own}
                )
                of = lambda factor: np.square(data["x"] @ [[1.0], [2.0]] * factor - data["y"]).mean()
                losses = [done.history[name][-1] for name in ("loss", "val_loss")]
                np.testing.assert_allclose(losses, [of(0.5), of(factor)], rtol=1e-5)
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
        for validation in (None, 0.0):
            with self.assertRaisesRegex(meshtf.InvalidArgumentError, "EarlyStopping watches val_loss.*state validation"):
                meshtf.train(g, data, epochs=1, validation=validation, callbacks=[meshtf.EarlyStopping()])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "min"):
            meshtf.EarlyStopping(mode="least")
        with self.assertRaisesRegex(TypeError, "callbacks are functions"):
            meshtf.train(g, data, callbacks=["stop"])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, '"epoch"'):
            meshtf.train(g, data, record="epochs")

    def test_a_comparison_of_numpy_stops_a_training(self):
        g, data = line()

        class Low(meshtf.Callback):
            def on_record(self, step, logs):
                return np.float64(logs["loss"]) < 1e9

        for stops in (lambda step, logs: np.float64(logs["loss"]) < 1e9, Low()):
            self.assertEqual(meshtf.train(g, data, steps=10**5, record=10, callbacks=[stops]).how, "stopped")
        # Nothing else does, such as a number or a list.
        done = meshtf.train(g, data, steps=20, record=10, callbacks=[lambda step, _: step, lambda *_: np.False_])
        self.assertEqual(done.how, "done")

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


if __name__ == "__main__":
    unittest.main()
