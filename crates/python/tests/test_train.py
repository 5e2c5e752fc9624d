"""Training on arrays: values, histories, callbacks, validation, states."""

import json
import os
import signal
import tempfile
import threading
import unittest

import numpy as np

import meshtf


def line():
    """y = x @ [2, -1] + 0.5, without noise, and a model of it."""
    rng = np.random.default_rng(0)
    xs = rng.uniform(-1, 1, (64, 2)).astype("float32")
    ys = xs @ np.array([[2.0], [-1.0]], "float32") + 0.5
    g = meshtf.Graph()
    x, y = g.placeholder("x", "float32", [None, 2]), g.placeholder("y", "float32", [None, 1])
    guess = x.dense(1, name="line").named("guess")
    ((guess - y) ** 2).mean().named("loss")
    abs(guess - y).mean().named("error")
    return g, {"x": xs, "y": ys}


class Training(unittest.TestCase):
    def test_one_step_is_that_of_calculus(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None])
        w = g.variable("w", [], initial=1.0)
        ((x * w - 4) ** 2).mean().named("loss")
        done = meshtf.train(g, {"x": [1.0, 3.0]}, optimizer="sgd", rate=0.1, batch=2, steps=1, record=1)
        # d/dw mean((x w - 4)²) = mean(2 x (x w - 4)) = mean(-6, -6) = -6
        self.assertAlmostEqual(float(done.weights["w"]), 1.6, places=6)
        self.assertEqual((done.step, done.how, done.history["step"]), (1, "done", [1]))
        self.assertAlmostEqual(done.history["loss"][0], (9 + 1) / 2, places=5)

    def test_what_is_not_finite_is_a_number(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None])
        w = g.variable("w", [], initial=1.0)
        (x * w).sum().named("loss")
        np.log(x - 1).mean().named("undefined")
        np.exp(x * 1000).mean().named("huge")
        seen = []
        done = meshtf.train(
            g,
            {"x": [0.5]},
            batch=1,
            steps=1,
            record=1,
            metrics=["undefined", "huge"],
            callbacks=[lambda _, logs: seen.append(logs)],
        )
        np.testing.assert_array_equal([done.history["undefined"], done.history["huge"]], [[np.nan], [np.inf]])
        self.assertEqual({type(value) for value in seen[0].values()}, {float})

    def test_it_begins_with_weights_that_are_given(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None])
        w, b = g.variable("w", [], initial=1.0), g.variable("b", [], initial=0.5)
        ((x * w + b - 4) ** 2).mean().named("loss")
        data = {"x": [1.0, 3.0]}

        def after_a_step(weights, **options):
            done = meshtf.train(g, data, optimizer="sgd", rate=0.05, batch=2, steps=1, weights=weights, **options)
            return {name: round(float(value), 5) for name, value in done.weights.items()}

        self.assertEqual(g.variables, ["w", "b"])
        # As in the test of the trainer, by hand: the gradients are -4 and -3; 16 and 5; 14 and 4.
        self.assertEqual(after_a_step(None), {"w": 1.2, "b": 0.65})
        for some in ({"w": 3}, {w: np.float64(3)}, {"w": np.array(3, "float16")}):
            self.assertEqual(after_a_step(some), {"w": 2.2, "b": 0.25})
        self.assertEqual(after_a_step({"b": 0.0, "w": [3.0][0]}, workers=2, ps=1), {"w": 2.3, "b": -0.2})
        with tempfile.TemporaryDirectory() as folder:
            # What a training saved, and what numpy did.
            states = os.path.join(folder, "run")
            self.assertEqual(after_a_step({"w": 3}, checkpoint=states), {"w": 2.2, "b": 0.25})
            file = os.path.join(folder, "all.npz")
            np.savez(file, w=np.float32(2.2), b=np.float32(0.25))
            for path in (states, file, os.path.join(states, "step-000000000001.safetensors")):
                # Errors of -1.55 and 2.85: the gradients are 7 and 1.3.
                self.assertEqual(after_a_step(path), {"w": 1.85, "b": 0.185})
            # One that continues has those of its state.
            done = meshtf.train(g, data, optimizer="sgd", rate=0.05, batch=2, steps=2, weights={"w": 9}, checkpoint=states)
            self.assertAlmostEqual(float(done.weights["w"]), 1.85, places=5)

    def test_some_variables_are_trained(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None])
        w, b = g.variable("a/w", [], initial=1.0), g.variable("a/b", [], initial=0.5)
        ((x * w + b - 4) ** 2).mean().named("loss")
        for some, values in (((), (1.2, 0.65)), (["a/w"], (1.2, 0.5)), ("*/b", (1.0, 0.65)), ([b], (1.0, 0.65)), (["a/*"], (1.2, 0.65))):
            done = meshtf.train(g, {"x": [1.0, 3.0]}, variables=some, optimizer="sgd", rate=0.05, batch=2, steps=1)
            self.assertEqual([round(float(done.weights[name]), 5) for name in ("a/w", "a/b")], list(values), some)
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "no variable has the name c; there are a/w, a/b"):
            meshtf.train(g, {"x": [1.0, 3.0]}, variables=["a/w", "c"], steps=1)

    def test_weights_of_a_file_are_trained(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None])
        ((x * g.constant(np.ones(1, "float32"), name="w") - 4) ** 2).mean().named("loss")
        options = {"optimizer": "sgd", "rate": 0.05, "batch": 2, "steps": 1}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "frozen.pb")
            g.save(path)
            frozen = meshtf.load(path, trained=["w"])
            self.assertEqual((meshtf.load(path).variables, frozen.variables), ([], ["w"]))
            # The errors are -3 and -1: the gradient is (2·1·-3 + 2·3·-1)/2 = -6.
            done = meshtf.train(frozen, {"x": [1.0, 3.0]}, **options)
            np.testing.assert_allclose(done.weights["w"], [1.3], rtol=1e-6)
            with self.assertRaisesRegex(meshtf.InvalidArgumentError, 'frozen.pb: "v" matches no weight of floats .* there are w'):
                meshtf.load(path, trained=["w", "v"])
            with open(path, "rb") as file:
                self.assertEqual(meshtf.loads(file.read(), trained="w").variables, ["w"])
        own = meshtf.Graph()
        own.variable("v", [2])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "it has variables, such as v, which train without being named"):
            meshtf.loads(own.to_json(), trained=["v"])
        onnx = os.path.join(os.path.dirname(__file__), "../../../tests/data/tuned/mlp.onnx")
        self.assertEqual(meshtf.load(onnx).variables, [])
        self.assertEqual(sorted(meshtf.load(onnx, trained=["fc2.*"]).variables), ["fc2.bias", "fc2.weight"])

    def test_weights_have_the_names_of_the_graph(self):
        # A training calls this variable by the node that reads it, and Graph.variables by the one that makes it.
        nodes = {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [None]}},
            "v": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": []}},
            "v/Read": {"op": "ReadVariableOp", "inputs": ["v"], "attrs": {"dtype": "float32"}},
            "set": {"op": "AssignVariableOp", "inputs": ["v", {"value": 1.0}]},
            "xv": {"op": "Mul", "inputs": ["x", "v/Read"]},
            "off": {"op": "Sub", "inputs": ["xv", {"value": 4.0}]},
            "square": {"op": "Square", "inputs": ["off"]},
            "loss": {"op": "Mean", "inputs": ["square", [0]]},
        }
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "graph.json")
            with open(path, "w") as file:
                json.dump({"version": 1, "nodes": nodes, "init": ["set"]}, file)
            g = meshtf.load(path)
        self.assertEqual(g.variables, ["v"])
        options = {"optimizer": "sgd", "rate": 0.05, "batch": 2, "steps": 1}
        done = meshtf.train(g, {"x": [1.0, 3.0]}, weights={"v": 3.0}, **options)
        # The gradient is (2·1·-1 + 2·3·5)/2 = 14.
        self.assertAlmostEqual(float(done.weights["v"]), 2.3, places=5)
        again = meshtf.train(g, {"x": [1.0, 3.0]}, weights=done.weights, **options)
        # (2·1·-1.7 + 2·3·2.9)/2 = 7
        self.assertAlmostEqual(float(again.weights["v"]), 1.95, places=5)

    def test_weights_that_do_not_fit_are_named(self):
        g, data = line()
        kernel = np.zeros((2, 1), "float32")
        for weights, why in (
            ({"line/kernal": kernel, "line/bias": [0.0]}, r"no variable line/kernal \(did you mean line/kernel\?\); it has line/kernel"),
            ({"line/kernel": kernel.T}, r"line/kernel is float32\[2, ?1\], and its value float32\[1, ?2\]"),
            ({"line/bias": np.zeros(1, "complex64")}, "variable line/bias is float32, and cannot take complex64 without a loss"),
            ("nowhere.npz", "nowhere.npz: there is no such model"),
        ):
            with self.assertRaisesRegex(meshtf.InvalidArgumentError, why):
                meshtf.train(g, data, steps=1, weights=weights)
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "weights cannot be used with resume=True"):
            meshtf.train(g, data, steps=1, weights={"line/bias": [0.0]}, checkpoint="run", resume=True)
        with self.assertRaisesRegex(TypeError, "a dict of arrays"):
            meshtf.train(g, data, steps=1, weights=[kernel])

    def test_tasks_share_the_work(self):
        local = {"workers": 2, "mode": "local", "local": {"steps": 4, "rate": 1.0, "momentum": 0.0}}
        stage = {"workers": 1, "mode": "pipeline", "microbatches": 3}
        for options in ({}, {"workers": 2, "ps": 1}, {"workers": 2, "ps": 1, "mode": "async"}, local, stage):
            g, data = line()
            done = meshtf.train(g, data, optimizer="sgd", rate=0.3, epochs=80, batch=16, metrics=["error"], **options)
            with self.subTest(options):
                np.testing.assert_allclose(done.weights["line/kernel"], [[2], [-1]], atol=0.02)
                np.testing.assert_allclose(done.weights["line/bias"], [0.5], atol=0.02)
                self.assertLess(done.history["error"][-1], 0.1)
        # The weights are those of a session.
        with meshtf.local() as m, m.session(g, weights={"line/kernel": [[2], [-1]], "line/bias": [0.5]}) as s:
            self.assertAlmostEqual(float(s.run("error", data)), 0, places=5)

    def test_a_mesh_of_processes_trains(self):
        g, data = line()
        with meshtf.local({"ps": 1, "worker": 2}, processes=True) as m:
            done = meshtf.train(g, data, optimizer="sgd", rate=0.3, epochs=60, batch=16, workers=2, ps=1, mesh=m)
        np.testing.assert_allclose(done.weights["line/kernel"], [[2], [-1]], atol=0.03)

    def test_callbacks_see_each_record_and_may_stop(self):
        g, data = line()
        seen = []

        def stop(step, logs):
            seen.append((step, logs))
            return step >= 20

        done = meshtf.train(g, data, optimizer="sgd", rate=0.1, steps=100_000, record=10, callbacks=[stop])
        self.assertEqual(done.how, "stopped")
        self.assertGreaterEqual(done.step, 20)
        self.assertLess(done.step, 100_000)
        self.assertEqual(set(seen[0][1]), {"loss"})
        self.assertEqual(done.history["step"], [step for step, _ in seen])

        # A callback may use meshes of its own.
        with meshtf.local() as m, m.session(g) as s:
            errors = []

            def evaluate(step, logs):
                errors.append((s.run("guess", {"x": [[0, 0]]}).shape, len(m.tasks())))

            meshtf.train(g, data, steps=3, record=1, callbacks=[evaluate])
            self.assertEqual(errors, [((1, 1), 1)] * 3)

        def fails(step, logs):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            meshtf.train(g, data, steps=1000, record=1, callbacks=[fails])

    def test_validation_ends_a_training_that_does_not_improve(self):
        g, data = line()
        done = meshtf.train(
            g, data, optimizer="sgd", rate=0.3, epochs=10_000, batch=16, validation=0.25, patience=3, metrics=["error"]
        )
        self.assertEqual(done.how, "enough")
        self.assertLess(done.history["val_loss"][-1], 1e-4)
        self.assertEqual(len(done.history["val_step"]), len(done.history["val_error"]))
        other = {"x": data["x"][:8], "y": data["y"][:8]}
        done = meshtf.train(g, data, steps=20, validation=other, evaluate_every=10)
        self.assertEqual(done.history["val_step"], [10, 20])

    def test_the_best_weights_are_restored(self):
        # A rate so great that the weight runs away from its first value, which is nearly the best.
        g = meshtf.Graph()
        x, y = g.placeholder("x", "float32", [None]), g.placeholder("y", "float32", [None])
        w, n = g.variable("w", [], initial=2.5), g.variable("n", [], dtype="int64", initial=7, trainable=False)
        ((x * w - y) ** 2).mean().named("loss")
        data = {"x": [1.0, 2.0, 1.0, 2.0], "y": [2.0, 4.0, 2.0, 4.0]}
        options = {"optimizer": "sgd", "rate": 0.5, "batch": 4, "epochs": 5, "validation": data, "shuffle": None}
        last = meshtf.train(g, data, **options)
        best = meshtf.train(g, data, restore_best=True, **options)
        losses = last.history["val_loss"]
        # d/dw of mean((x w - y)²) is 5 (w - 2): each step makes w - 2 1.5 times as great, with the other sign.
        np.testing.assert_allclose([last.weights["w"], best.weights["w"]], [2 - 0.5 * 1.5**5, 2 - 0.5 * 1.5], rtol=1e-5)
        self.assertEqual((last.weights_step, best.weights_step, best.step), (5, 1, 5))
        self.assertEqual((best.history["val_loss"], best.weights["n"]), (losses, 7))
        with tempfile.TemporaryDirectory() as folder:
            kept = meshtf.train(g, data, restore_best=True, checkpoint=os.path.join(folder, "states"), **options)
            self.assertEqual(kept.weights["w"], best.weights["w"])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "state validation"):
            meshtf.train(g, data, restore_best=True)
        # Variables of each dtype that a state may have.
        kinds = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64".split()
        kept = {kind: g.variable(f"of_{kind}", dtype=kind, initial=np.ones(2, kind), trainable=False) for kind in kinds}
        best = meshtf.train(g, data, restore_best=True, **options)
        for kind in kept:
            np.testing.assert_array_equal(best.weights[f"of_{kind}"], np.ones(2, kind))
            self.assertEqual(best.weights[f"of_{kind}"].dtype, kind)
        self.assertEqual((w.shape, n.shape), ((), ()))

    def test_a_training_continues_from_its_last_state(self):
        g, data = line()
        with tempfile.TemporaryDirectory() as folder:
            states = os.path.join(folder, "states")
            first = meshtf.train(g, data, steps=10, checkpoint=states)
            self.assertEqual((first.step, len(os.listdir(states)) > 0), (10, True))
            then = meshtf.train(g, data, steps=25, checkpoint=states)
            self.assertEqual(then.step, 25)
            whole = meshtf.train(g, data, steps=25)
            np.testing.assert_allclose(then.weights["line/kernel"], whole.weights["line/kernel"], rtol=1e-5)
            with self.assertRaises(meshtf.Error):
                meshtf.train(g, data, steps=30, checkpoint=states, resume=False)

    def test_ctrl_c_saves_the_state(self):
        # A program that began in the background of a shell ignores it.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        g, data = line()
        for is_within in (False, True):
            began = threading.Event()

            def follow(step, logs, began=began, is_within=is_within):
                if is_within and step == 30:
                    raise KeyboardInterrupt
                began.set()

            def interrupt(began=began):
                began.wait(30)
                os.kill(os.getpid(), signal.SIGINT)

            with self.subTest(is_within), tempfile.TemporaryDirectory() as folder:
                states = os.path.join(folder, "states")
                if not is_within:
                    threading.Thread(target=interrupt, daemon=True).start()
                with self.assertRaises(KeyboardInterrupt):
                    meshtf.train(g, data, steps=10**9, record=10, checkpoint=states, callbacks=[follow])
                then = meshtf.train(g, data, steps=1, checkpoint=states, resume=True)
                self.assertGreaterEqual(then.step, 10)

    def test_wrong_arguments_are_named(self):
        g, data = line()
        for options, kind, part in [
            ({"epochs": 0}, meshtf.InvalidArgumentError, "epochs is 0; expected at least 1"),
            ({"steps": 0}, meshtf.InvalidArgumentError, "steps is 0"),
            ({"workers": 0}, meshtf.InvalidArgumentError, "workers is 0"),
            ({"batch": -1}, meshtf.InvalidArgumentError, "batch is -1"),
            ({"epochs": 1.5}, TypeError, "whole number, not 1.5"),
            ({"layers": {}}, TypeError, "no argument 'layers'"),
            ({"callbacks": print}, TypeError, "a list"),
        ]:
            with self.subTest(options), self.assertRaisesRegex(kind, part):
                meshtf.train(g, data, **options)
        for options, part in [
            ({"loss": "los"}, "los"),
            ({"optimizer": "adamm"}, "adam"),
            ({"mode": "both"}, "mirrored"),
            ({"mode": "local"}, "state workers"),
            ({"mode": "local", "workers": 2, "ps": 1}, "no ps"),
            ({"mode": "local", "workers": 2, "local": {"step": 5}}, "steps"),
            ({"mode": "local", "workers": 2, "local": {"steps": 0}}, "local.steps: expected a whole number of at least 1"),
            ({"workers": 2, "local": {"steps": 5}}, "mode is \"sync\""),
            ({"mode": "pipeline"}, "state workers"),
            ({"mode": "pipeline", "workers": 1, "ps": 1}, "no ps"),
            ({"mode": "pipeline", "workers": 1, "batch": 4, "microbatches": 5}, "has no 5 micro-batches"),
            ({"mode": "pipeline", "workers": 9}, "stages? at most"),
            ({"workers": 2, "microbatches": 5}, "mode is \"sync\""),
            ({"beta3": 1.0}, "beta3"),
            ({"patience": 2}, "validation"),
            ({"clip": 1.0, "clip_norm": 1.0}, "exclude"),
            ({"workers": 3, "batch": 16}, "16"),
            ({"metrics": ["no"]}, "no"),
        ]:
            with self.subTest(options), self.assertRaisesRegex(meshtf.Error, part):
                meshtf.train(g, data, steps=1, **options)
        with self.assertRaises(meshtf.Error):
            meshtf.train(g, {"x": data["x"], "y": data["y"][:3]}, steps=1)
        with self.assertRaisesRegex(meshtf.Error, "y"):
            meshtf.train(g, {"x": data["x"]}, steps=1)


if __name__ == "__main__":
    unittest.main()
