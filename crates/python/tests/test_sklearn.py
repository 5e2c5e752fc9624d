"""Estimators of scikit-learn's protocol: its checks, its own perceptron as the oracle, and searches over tasks."""

import concurrent.futures
import os
import pickle
import subprocess
import sys
import threading
import unittest
import warnings
from unittest import mock

import numpy as np
from needs import need

import meshtf

need("python-packages", "sklearn", "joblib")

import joblib  # noqa: E402
import sklearn  # noqa: E402
import sklearn.neural_network as own  # noqa: E402
from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_validate  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

from meshtf._place import place  # noqa: E402
from meshtf.sklearn import MLPClassifier, MLPRegressor, on  # noqa: E402

# Its name since joblib 1.3.
CONFIG = getattr(joblib, "parallel_config", joblib.parallel_backend)
VERSION = tuple(int(part) for part in sklearn.__version__.split(".")[:2])


def quiet(estimator, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*args, **options)


def blobs(classes, count=120, seed=3):
    """Points around the corners of a regular polygon, and their classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    angles = 2 * np.pi * y / classes
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1) * 2 + rng.normal(size=(count, 2))
    return x, y


class Checks(unittest.TestCase):
    def test_both_can_be_imported_in_any_order(self):
        """A module with static thread-local memory would take what scikit-learn's libgomp needs."""
        for order in ("meshtf._native, sklearn.utils", "sklearn.utils, meshtf._native"):
            done = subprocess.run([sys.executable, "-c", f"import {order}"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), order)

    def test_scikit_learn_checks_the_estimators(self):
        for estimator in (MLPClassifier(max_iter=100), MLPRegressor(max_iter=100)):
            with self.subTest(type(estimator).__name__), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Since 1.6, the results of all checks.
                results = check_estimator(estimator, on_fail=None)
                failed = [(one["check_name"], one["exception"]) for one in results if one["status"] == "failed"]
                self.assertEqual(failed, [])
                self.assertGreater(sum(one["status"] == "passed" for one in results), 40)


class Oracle(unittest.TestCase):
    """The weights are those of scikit-learn's own classes."""

    def same(self, kind, data, places=6, **options):
        options = {"hidden_layer_sizes": (7, 5), "max_iter": 12, "random_state": 5, "batch_size": 32, **options}
        mine, theirs = (quiet(getattr(module, kind)(**options), *data) for module in (meshtf.sklearn, own))
        np.testing.assert_allclose(mine.loss_curve_, theirs.loss_curve_, rtol=10.0**-places)
        for part in ("coefs_", "intercepts_"):
            for a, b in zip(getattr(mine, part), getattr(theirs, part), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=10.0**-places)
        self.assertEqual((mine.n_iter_, mine.t_, mine.out_activation_), (theirs.n_iter_, theirs.t_, theirs.out_activation_))
        np.testing.assert_array_equal(mine.predict(data[0]), theirs.predict(data[0])) if kind == "MLPClassifier" else None
        return mine, theirs

    def test_classes(self):
        for classes in (2, 3):
            for options in (
                {"solver": "adam"},
                {"solver": "adam", "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-4},
                {"solver": "sgd", "learning_rate_init": 0.1},
                {"solver": "sgd", "momentum": 0.5, "nesterovs_momentum": False},
                {"solver": "sgd", "momentum": 0.0, "shuffle": False, "batch_size": "auto"},
                {"activation": "tanh", "alpha": 0.1},
                {"activation": "logistic", "hidden_layer_sizes": 4},
                {"activation": "identity", "early_stopping": True, "n_iter_no_change": 2, "max_iter": 30},
            ):
                with self.subTest(classes=classes, **options):
                    mine, theirs = self.same("MLPClassifier", blobs(classes), **options)
                    x = blobs(classes)[0]
                    np.testing.assert_allclose(mine.predict_proba(x), theirs.predict_proba(x), atol=1e-6)
                    np.testing.assert_allclose(mine.predict_log_proba(x), theirs.predict_log_proba(x), atol=1e-6)
                    if options.get("early_stopping"):
                        self.assertEqual(mine.validation_scores_, theirs.validation_scores_)
                        self.assertEqual(mine.best_validation_score_, theirs.best_validation_score_)

    def test_labels_and_names(self):
        x, y = blobs(3)
        self.same("MLPClassifier", (x, np.array(["c", "a", "b"])[y]))
        self.same("MLPClassifier", (x, np.stack([y == 0, y < 2], axis=1).astype(int)))

    def test_values(self):
        x, _ = blobs(2)
        y = np.sin(x[:, 0]) + x[:, 1]
        for truth in (y, np.stack([y, x[:, 0] * 3], axis=1)):
            for options in ({"solver": "adam"}, {"solver": "sgd", "learning_rate_init": 0.01}, {"early_stopping": True}):
                with self.subTest(truth.shape, **options):
                    mine, theirs = self.same("MLPRegressor", (x, truth), **options)
                    np.testing.assert_allclose(mine.predict(x), theirs.predict(x), atol=1e-6)

    def test_single_precision(self):
        x, y = blobs(3)
        mine, _ = self.same("MLPClassifier", (x.astype("float32"), y), places=4)
        self.assertEqual({one.dtype for one in mine.coefs_}, {np.dtype("float32")})

    @unittest.skipIf(VERSION < (1, 7), "scikit-learn's own class has weights of examples since 1.7")
    def test_weights_of_examples(self):
        x, y = blobs(3)
        weights = np.random.default_rng(1).uniform(0, 2, len(x))
        weights[::7] = 0
        for kind, truth in (("MLPClassifier", y), ("MLPRegressor", x[:, 0] ** 2)):
            for options in ({}, {"early_stopping": True}):
                with self.subTest(kind, **options):
                    self.same(kind, (x, truth, weights), **options)

    def test_parts(self):
        x, y = blobs(3)
        mine, theirs = (
            module.MLPClassifier((6,), random_state=2, batch_size=16, solver=solver, learning_rate_init=0.02)
            for module, solver in ((meshtf.sklearn, "adam"), (own, "adam"))
        )
        for part in (slice(0, 50), slice(50, 90), slice(90, 120)):
            for one in (mine, theirs):
                one.partial_fit(x[part], y[part], classes=[0, 1, 2])
        for a, b in zip(mine.coefs_, theirs.coefs_, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
        # Those of another solver begin anew, as scikit-learn's own optimizer does if it has none.
        for one in (mine, theirs):
            one.set_params(solver="sgd")
        del theirs._optimizer
        for one in (mine, theirs):
            one.partial_fit(x, y).partial_fit(x, y)
        np.testing.assert_allclose(mine.coefs_[0], theirs.coefs_[0], atol=1e-6)
        again = pickle.loads(pickle.dumps(mine)).partial_fit(x, y)
        theirs.partial_fit(x, y)
        np.testing.assert_allclose(again.coefs_[0], theirs.coefs_[0], atol=1e-6)

    def test_parts_continue_a_fit(self):
        x, y = blobs(3)
        for solver in ("adam", "sgd"):
            mine, theirs = (
                module.MLPClassifier((6,), random_state=2, max_iter=4, solver=solver, learning_rate_init=0.02)
                for module in (meshtf.sklearn, own)
            )
            for one in (mine, theirs):
                quiet(one, x, y).partial_fit(x[:50], y[:50]).partial_fit(x[50:], y[50:])
            with self.subTest(solver):
                np.testing.assert_allclose(mine.coefs_[0], theirs.coefs_[0], atol=1e-6)
            # A further fit has a new optimizer.
            for one in (mine, theirs):
                quiet(one.set_params(warm_start=True), x, y)
            with self.subTest(solver, warm_start=True):
                np.testing.assert_allclose(mine.coefs_[0], theirs.coefs_[0], atol=1e-6)

    def test_a_warm_start_continues(self):
        x, y = blobs(2)
        mine, theirs = (
            module.MLPClassifier((6,), random_state=2, warm_start=True, max_iter=3, solver="sgd")
            for module in (meshtf.sklearn, own)
        )
        for _ in range(2):
            quiet(mine, x, y), quiet(theirs, x, y)
        np.testing.assert_allclose(mine.coefs_[0], theirs.coefs_[0], atol=1e-6)
        with self.assertRaisesRegex(ValueError, "same classes"):
            mine.fit(x, np.arange(len(x)) % 3)
        with self.assertRaisesRegex(ValueError, "sizes .2, 6, 1., and cannot continue with .2, 3, 1."):
            mine.set_params(hidden_layer_sizes=3).fit(x, y)
        # What is measured may change.
        quiet(mine.set_params(hidden_layer_sizes=6, early_stopping=True), x, y)
        self.assertEqual((len(mine.validation_scores_), len(mine.loss_curve_), mine.best_loss_), (3, 9, None))
        quiet(mine.set_params(early_stopping=False), x, y)
        self.assertEqual((mine.validation_scores_, len(mine.loss_curve_)), (None, 12))


class Mistakes(unittest.TestCase):
    def test_wrong_arguments_are_named(self):
        x, y = blobs(2)
        for options, part in [
            ({"activation": "softmax"}, "identity, logistic, tanh or relu"),
            ({"solver": "lbfgs"}, "no optimizer of a graph"),
            ({"solver": "adamm"}, "adam"),
            ({"alpha": -1}, "alpha .* at least 0"),
            ({"learning_rate_init": 0}, "more than 0"),
            ({"max_iter": 2.5}, "a whole number, at least 1"),
            ({"hidden_layer_sizes": (3, 0)}, "hidden_layer_sizes must be > 0"),
            ({"batch_size": 0}, "at least 1"),
            ({"validation_fraction": 0.001, "early_stopping": True}, "test_size = 1 should be greater or equal to the number of"),
            ({"validation_fraction": 1.5, "early_stopping": True}, "validation_fraction .* at least 0, at most 1"),
        ]:
            with self.subTest(options), self.assertRaisesRegex(ValueError, part):
                MLPClassifier(**{"max_iter": 2, **options}).fit(x, y)
        with self.assertRaisesRegex(ValueError, "partial_fit does not support early_stopping"):
            MLPRegressor(early_stopping=True).partial_fit(x, y)
        with self.assertRaisesRegex(TypeError, "a mesh"):
            on("worker/0")

    def test_a_training_that_has_not_converged_says_so(self):
        with self.assertWarnsRegex(ConvergenceWarning, "Maximum iterations .2. reached"):
            MLPClassifier((3,), max_iter=2).fit(*blobs(2))
        with self.assertWarnsRegex(UserWarning, "clipped"):
            quiet(MLPClassifier((3,), max_iter=2, batch_size=1000), *blobs(2))


class Tasks(unittest.TestCase):
    def have_worked(self, m):
        """The tasks that have run steps, as they themselves report."""
        return {task.name for task in m.tasks() if m.status(task)["totals"]["steps"]}

    def test_a_fit_runs_on_the_task_that_is_chosen(self):
        x, y = blobs(2)
        with meshtf.local({"worker": 2}) as m:
            with on(m, "worker/1"):
                model = quiet(MLPClassifier((4,), max_iter=3, random_state=1), x, y)
                self.assertEqual((model.task_, self.have_worked(m)), ("worker/1", {"worker/1"}))
                with on(m):
                    self.assertEqual(quiet(clone(model), x, y).task_, "worker/0")
                inside = model.predict(x)
        self.assertEqual(quiet(clone(model), x, y).task_, "localhost/0")
        np.testing.assert_array_equal(model.predict(x), inside)

    def test_threads_have_their_own_places(self):
        with meshtf.local({"worker": 2}) as m:
            shared, (entered, left) = on(m, "worker/1"), (threading.Barrier(2, timeout=60) for _ in range(2))

            def inner():
                with shared:
                    entered.wait()
                    left.wait()
                    return place().task

            with concurrent.futures.ThreadPoolExecutor(1) as other:
                with on(m, "worker/0"):
                    with shared:
                        beside = other.submit(inner)
                        entered.wait()
                        self.assertEqual(place().task, "worker/1")
                    self.assertEqual(place().task, "worker/0")
                    left.wait()
                    self.assertEqual(beside.result(), "worker/1")
                self.assertEqual(other.submit(lambda: place().task).result(), "localhost/0")

    def search(self, **options):
        grid = {"hidden_layer_sizes": [(3,), (8,)], "alpha": [1e-4, 0.1]}
        model = MLPClassifier(max_iter=15, random_state=1, solver="sgd", learning_rate_init=0.1)
        return quiet(GridSearchCV(model, grid, cv=3, **{"error_score": "raise", **options}), *blobs(3))

    def test_a_search_has_its_fits_on_several_tasks(self):
        alone = self.search(n_jobs=1)
        for processes in (False, True):
            with self.subTest(processes=processes), meshtf.local({"worker": 3}, processes=processes) as m:
                with joblib.parallel_backend("meshtf", mesh=m):
                    found = self.search()
                    self.assertEqual(self.have_worked(m), {"worker/0", "worker/1", "worker/2"})
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", ConvergenceWarning)
                        fits = cross_validate(clone(found.best_estimator_), *blobs(3), cv=6, return_estimator=True)
                self.assertEqual({one.task_ for one in fits["estimator"]}, {"worker/0", "worker/1", "worker/2"})
                self.assertEqual(found.best_estimator_.task_, "worker/0")
                self.assertEqual(found.best_params_, alone.best_params_)
                for key, values in alone.cv_results_.items():
                    if key.endswith("score") and "time" not in key:
                        np.testing.assert_allclose(found.cv_results_[key], values, err_msg=key)
                np.testing.assert_allclose(found.best_estimator_.coefs_[0], alone.best_estimator_.coefs_[0], atol=1e-9)

    def test_a_search_goes_on_without_a_lost_task(self):
        alone = self.search(n_jobs=1)
        with meshtf.local({"worker": 3}, processes=True) as m:
            # Whether a fit's failure is a score or not, the job is done elsewhere.
            for lost, options in ((1, {"error_score": np.nan}), (0, {"error_score": "raise"})):
                names = [f"worker/{i}" for i in range(3)]
                m._nodes._running[lost].kill()
                m._nodes._running[lost].wait()
                with self.subTest(lost), joblib.parallel_backend("meshtf", mesh=m, tasks=names):
                    found = self.search(**options)
                for key, values in alone.cv_results_.items():
                    if key.endswith("score") and "time" not in key:
                        np.testing.assert_allclose(found.cv_results_[key], values, err_msg=key)
                # The last fit is on the first task that is left.
                self.assertEqual(found.best_estimator_.task_, "worker/0" if lost else "worker/2")
            m._nodes._running[2].kill()
            m._nodes._running[2].wait()
            with self.assertRaisesRegex(meshtf.UnavailableError, "each task of the jobs was lost: worker/., worker/."):
                with joblib.parallel_backend("meshtf", mesh=m, tasks=names[1:]):
                    self.search()

    def test_a_job_moves_when_its_task_ends(self):
        with meshtf.local({"worker": 3}, processes=True) as m:
            ended = []

            def job(i):
                if i == 0 and not ended:
                    ended.append(place().task)
                    node = m._nodes._running[int(ended[0][-1])]
                    node.kill()
                    node.wait()
                return quiet(MLPRegressor((2,), max_iter=2), *blobs(2)).task_

            with CONFIG("meshtf", mesh=m, n_jobs=2):
                done = joblib.Parallel()(joblib.delayed(job)(i) for i in range(8))
            # The task that had no job takes the place of the one that ended.
            self.assertEqual(set(done), {"worker/0", "worker/1", "worker/2"} - set(ended))

    def test_jobs_take_the_tasks_that_are_named(self):
        jobs = [joblib.delayed(lambda: quiet(MLPRegressor((2,), max_iter=2), *blobs(2)).task_)() for _ in range(8)]
        with meshtf.local({"ps": 1, "worker": 2}) as m:
            with CONFIG("meshtf", mesh=m, tasks=["worker/0", "worker/1"]):
                self.assertEqual(set(joblib.Parallel()(jobs)), {"worker/0", "worker/1"})
                self.assertEqual(set(joblib.Parallel(n_jobs=1)(jobs)), {"worker/0"})
            with CONFIG("meshtf", mesh=m, n_jobs=5):
                self.assertEqual(set(joblib.Parallel()(jobs)), {"ps/0", "worker/0", "worker/1"})
                with self.assertRaisesRegex(ZeroDivisionError, "division"):
                    joblib.Parallel()(joblib.delayed(lambda: 1 // 0)() for _ in range(3))
        # Without a mesh, that of this user is joined.
        with meshtf.local({"worker": 2}, processes=True) as m:
            own = {"MESHTF_MESH": m._nodes.mesh, "MESHTF_HOME": m._nodes.home}
            with mock.patch.dict(os.environ, own), joblib.parallel_backend("meshtf"):
                self.assertEqual(set(joblib.Parallel()(jobs)), {"worker/0", "worker/1"})
        with self.assertRaisesRegex(TypeError, "a mesh"), CONFIG("meshtf", mesh="lab"):
            pass


if __name__ == "__main__":
    unittest.main()
