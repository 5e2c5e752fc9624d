"""Runs: fetches, feeds, dtypes, steps, variables, failures."""

import asyncio
import gc
import os
import pickle
import signal
import threading
import time
import unittest

import numpy as np

import meshtf

NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def same(dtype):
    """A graph whose y is its x."""
    g = meshtf.Graph()
    g.op("Identity", g.placeholder("x", dtype), name="y")
    return g


class Values(unittest.TestCase):
    def test_arrays_of_each_dtype_come_back(self):
        for dtype in [*NUMBERS, "bool"]:
            values = np.array([[0, 1, 2], [3, 100, 1]]).astype(dtype)
            with self.subTest(dtype), meshtf.local() as m, m.session(same(dtype)) as s:
                # As one that a file may have: its elements are not aligned.
                odd = np.frombuffer(b"-" + values.tobytes(), dtype, offset=1).reshape(values.shape)
                for fed in (values, values.T, values[:, ::2], values[:0], values[0, 0], np.asfortranarray(values), odd):
                    got = s.run("y", {"x": fed})
                    np.testing.assert_array_equal(got, fed)
                    self.assertEqual((got.dtype, got.shape), (np.dtype(dtype), np.shape(fed)))

    def test_a_value_belongs_to_the_caller(self):
        with meshtf.local() as m, m.session(same("float32")) as s:
            fed = np.ones((2, 2), "float32")
            got = s.run("y", {"x": fed})
            got += 1
            self.assertEqual((fed.sum(), got.sum(), s.run("y", {"x": fed}).sum()), (4, 8, 4))
        g = meshtf.Graph()
        g.constant([1.0, 2.0], name="c")
        with meshtf.local() as m, m.session(g) as s:
            s.run("c")[:] = 0
            self.assertEqual(list(s.run("c")), [1, 2])
        # It outlives what it came from.
        del m, s
        gc.collect()
        self.assertEqual(got.sum(), 8)

    def test_strings(self):
        with meshtf.local() as m, m.session(same("string")) as s:
            for fed, expected in [
                (["a", b"b\xff", "ü"], [b"a", b"b\xff", "ü".encode()]),
                (np.array(["ab", "c"]), [b"ab", b"c"]),
                (np.array([b"ab", b"c"]), [b"ab", b"c"]),
            ]:
                got = s.run("y", {"x": fed})
                self.assertEqual((got.dtype, list(got)), (np.dtype(object), expected))
            self.assertEqual(s.run("y", {"x": "one"}), b"one")
            self.assertEqual(s.run("y", {"x": np.empty((0, 2), object)}).shape, (0, 2))
            for wrong in ([1, 2], [None], ["a", 1.5]):
                with self.assertRaises((meshtf.InvalidArgumentError, TypeError)):
                    s.run("y", {"x": wrong})

    def test_bfloat16_takes_ml_dtypes(self):
        with meshtf.local() as m, m.session(same("bfloat16")) as s:
            try:
                import ml_dtypes
            except ImportError:
                with self.assertRaisesRegex(meshtf.UnimplementedError, "ml_dtypes"):
                    s.run("y", {"x": [1.0]})
                return
            fed = np.array([1.5, -2, 3e38], ml_dtypes.bfloat16)
            for given in (fed, fed.astype("float32"), [1.5, -2, 3e38]):
                got = s.run("y", {"x": given})
                self.assertEqual(got.dtype, fed.dtype)
                np.testing.assert_array_equal(got, fed)

    def test_feeds_are_converted_without_a_loss(self):
        cases = [
            ("float32", [1, 2], [1.0, 2.0]),
            ("float32", np.array([1.1], "float64"), [np.float32(1.1)]),
            ("float64", np.array([1, 2], ">f4"), [1.0, 2.0]),
            ("int32", np.array([1, 2], "int64"), [1, 2]),
            ("uint8", [0, 255], [0, 255]),
            ("complex64", [1.5], [1.5 + 0j]),
            ("int64", [True, False], [1, 0]),
            ("float32", [], []),
            ("int32", np.ma.masked_array([1, 2], mask=[False, False]), [1, 2]),
            ("string", ["a", b"b"], [b"a", b"b"]),
        ]
        for dtype, fed, expected in cases:
            with self.subTest(dtype=dtype, fed=fed), meshtf.local() as m, m.session(same(dtype)) as s:
                self.assertEqual(list(s.run("y", {"x": fed})), expected)
        for dtype, fed, part in [
            ("int32", [1.5], "without a loss"),
            ("uint8", [256], "out of its range"),
            ("int8", np.array([-129]), "out of its range"),
            ("float32", [1j], "without a loss"),
            ("bool", [1], "without a loss"),
            ("float32", ["a"], "cannot take"),
            ("float32", [[1], [1, 2]], "x: rows of unequal length"),
            ("float32", [1, None, 3], "cannot take None"),
            ("float32", [2**100], "cannot take 1267650600228229401496703205376"),
            ("float32", {1.0}, "cannot take {1.0}"),
            ("int32", np.ma.masked_array([1, 2], mask=[True, False]), "x has 1 masked element:"),
            ("string", ["a", None, float("nan")], "x has 2 nulls"),
            ("string", ["a", 3], "cannot take 3"),
        ]:
            with self.subTest(dtype=dtype, fed=fed), meshtf.local() as m, m.session(same(dtype)) as s:
                with self.assertRaisesRegex(ValueError, part):
                    s.run("y", {"x": fed})


    def test_masked_numbers_are_no_numbers(self):
        with meshtf.local() as m, m.session(same("float32")) as s:
            fed = np.ma.masked_array([1.0, 2.0], mask=[True, False])
            np.testing.assert_array_equal(s.run("y", {"x": fed}), [np.nan, 2])


class Runs(unittest.TestCase):
    def setUp(self):
        g = self.g = meshtf.Graph()
        self.x = g.placeholder("x", "float32", [None])
        self.y = g.op("Mul", self.x, 2.0, name="y")
        g.op("TopKV2", self.x, 1, name="top")
        g.op("NoOp", name="nothing")
        self.m = meshtf.local({"local": 2})
        self.addCleanup(self.m.close)
        self.s = self.m.session(g)

    def test_fetches_keep_their_form(self):
        s, feeds = self.s, {"x": [1, 5]}
        self.assertEqual(list(s.run("y", feeds)), [2, 10])
        self.assertEqual(list(s.run(self.y, {self.x: [1, 5]})), [2, 10])
        got = s.run({"a": ["y", ("top", "top:1")], "b": "nothing"}, feeds)
        self.assertEqual([list(got["a"][0]), *map(list, got["a"][1])], [[2, 10], [5], [1]])
        self.assertIsInstance(got["a"][1], tuple)
        self.assertIsNone(got["b"])
        self.assertEqual(s.run([]), [])
        self.assertIsNone(s.run("nothing"))
        self.assertEqual(list(s.run("y", feeds, steps=100)), [2, 10])

    def test_failures_say_what_and_where(self):
        s = self.s
        for run, kind, part in [
            (lambda: s.run("yy"), meshtf.InvalidArgumentError, "yy"),
            (lambda: s.run("y"), meshtf.InvalidArgumentError, "x"),
            (lambda: s.run("y:7"), meshtf.InvalidArgumentError, "y"),
            (lambda: s.run("y", {"nothing": 1}), meshtf.InvalidArgumentError, "nothing"),
            (lambda: s.run(), meshtf.InvalidArgumentError, "what to fetch"),
            (lambda: s.run("y", {"x": [[1]]}), meshtf.InvalidArgumentError, "x"),
            (lambda: s.run("y", {"x": [1]}, steps=0), meshtf.InvalidArgumentError, "at least 1"),
            (lambda: s.run(5), TypeError, "5"),
            (lambda: s.run("y", {5: 1}), TypeError, "5"),
            (lambda: s.variables["v"], meshtf.NotFoundError, "no variable v"),
            (lambda: meshtf.load("/no/such/file"), meshtf.NotFoundError, "/no/such/file"),
            (lambda: meshtf.loads("{}"), meshtf.InvalidArgumentError, ""),
            (lambda: self.m.session(self.g, target="local/7"), meshtf.NotFoundError, "local/task:7|local:7|task:7"),
            (lambda: self.m.session(self.g, place="best"), meshtf.InvalidArgumentError, "names"),
            (lambda: self.m.session("graph.json"), TypeError, "load"),
            (lambda: meshtf.local({"a": 0}), meshtf.InvalidArgumentError, "at least one task"),
            (lambda: meshtf.local(["a/0", "a/0"]), meshtf.InvalidArgumentError, "twice"),
            (lambda: meshtf.local(backend="tpu"), meshtf.InvalidArgumentError, "tpu"),
            (lambda: self.m.status("local/9"), meshtf.Error, "local"),
            (lambda: meshtf.mesh("none-of-this-name", timeout=0.05, home="/no/such/folder"), meshtf.UnavailableError, ""),
        ]:
            with self.assertRaisesRegex(kind, part):
                run()
        g = meshtf.Graph()
        x = g.placeholder("x", "float32")
        with g.device("/job:local/task:1"):
            g.op("AddV2", x, [1.0, 2.0, 3.0], name="sum")
        with self.m.session(g) as summing, self.assertRaises(meshtf.InvalidArgumentError) as raised:
            summing.run("sum", {"x": [1, 2]})
        error = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual(type(error), meshtf.InvalidArgumentError)
        place = (error.node, error.op, error.device, error.step, error.code)
        self.assertEqual(place, ("sum", "AddV2", "/job:local/task:1/device:CPU:0", 1, 3))
        self.assertIn("[2] vs. [3]", str(error))
        self.assertIsInstance(error, (meshtf.Error, ValueError))

    def test_what_is_closed_says_so(self):
        self.s.close()
        self.s.close()
        with self.assertRaisesRegex(meshtf.FailedPreconditionError, "session is closed"):
            self.s.run("y", {"x": [1]})
        self.m.close()
        self.m.close()
        with self.assertRaisesRegex(meshtf.FailedPreconditionError, "closed"):
            self.m.session(self.g)
        self.assertIn("closed", repr(self.m) + repr(self.s))

    def test_steps_are_taken_one_by_one(self):
        s = self.s
        got = [(step, list(y)) for step, y in s.run_steps("y", {"x": [1]}, steps=5, every=2)]
        self.assertEqual(got, [(2, [2]), (4, [2]), (5, [2])])
        got = [(step, list(y)) for step, y in s.run_steps("y", ({"x": [i]} for i in range(5)), every=2)]
        self.assertEqual(got, [(2, [2]), (4, [6]), (5, [8])])
        self.assertEqual(list(s.run_steps("y", [])), [])
        # An iterator that is left cancels its steps; the session can run again.
        for step, _ in s.run_steps("y", {"x": [1]}, steps=10**12):
            if step > 100:
                break
        self.assertEqual(list(s.run("y", {"x": [1]})), [2])
        with self.assertRaises(meshtf.InvalidArgumentError):
            next(s.run_steps("y", {"x": [[1]]}, steps=2))
        for wrong in (lambda: s.run_steps("y", {"x": [1]}), lambda: s.run_steps("y", [{}], steps=2)):
            with self.assertRaises(TypeError):
                wrong()

    def test_steps_end_with_their_session(self):
        def left():
            # The other one is that of `setUp`.
            return len(self.m.status("local/0")["sessions"]["items"]) - 1

        # Their values wait for Python.
        s = self.m.session(self.g)
        steps = s.run_steps("y", {"x": [1]}, steps=10**12)
        next(steps)
        s.close()
        self.assertEqual(left(), 0)
        with self.assertRaisesRegex(meshtf.FailedPreconditionError, "closed"):
            for _ in steps:
                pass
        # Python waits for their values.
        s = self.m.session(self.g)
        threading.Timer(0.2, s.close).start()
        with self.assertRaisesRegex(meshtf.FailedPreconditionError, "closed"):
            next(s.run_steps("y", {"x": [1]}, steps=10**12, every=10**9))
        s.close()
        # Those that were all taken have ended well.
        s = self.m.session(self.g)
        steps = s.run_steps("y", {"x": [1]}, steps=3)
        self.assertEqual([next(steps)[0] for _ in range(3)], [1, 2, 3])
        s.close()
        self.assertEqual(list(steps), [])

    def test_runs_are_awaited_and_cancelled(self):
        async def all_of_them():
            got = await asyncio.gather(*(self.s.run_async("y", {"x": [i]}) for i in range(20)))
            self.assertEqual([int(y[0]) for y in got], [2 * i for i in range(20)])
            with self.assertRaises(meshtf.InvalidArgumentError):
                await self.s.run_async("y")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.s.run_async("y", {"x": [1]}, steps=10**12), 0.2)
            return await self.s.run_async(["y", "nothing"], {"x": [1]})

        self.assertEqual([list(y) if y is not None else y for y in asyncio.run(all_of_them())], [[2], None])

    def test_other_threads_run_meanwhile(self):
        counted = [0]
        is_over = threading.Event()

        def count():
            while not is_over.is_set():
                counted[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        try:
            before = counted[0]
            asyncio.run(self._a_while())
            self.s.run("y", {"x": [1]}, steps=20_000)
            self.assertGreater(counted[0], before + 1000)
        finally:
            is_over.set()
            thread.join()

    async def _a_while(self):
        await asyncio.sleep(0)

    def test_several_threads_share_a_session(self):
        got = {}

        def run(i):
            got[i] = [list(self.s.run("y", {"x": [i]})) for _ in range(50)]

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, {i: [[2 * i]] * 50 for i in range(8)})

    def test_ctrl_c_ends_a_run(self):
        # A program that began in the background of a shell ignores it.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            self.s.run("y", {"x": [1]}, steps=10**12)
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(list(self.s.run("y", {"x": [1]})), [2])

    def test_a_run_has_a_time_limit(self):
        with self.assertRaisesRegex(meshtf.DeadlineExceededError, "0.2 s") as raised:
            self.s.run("y", {"x": [1]}, steps=10**12, timeout=0.2)
        self.assertIsInstance(raised.exception, TimeoutError)
        self.assertEqual(list(self.s.run("y", {"x": [1]}, timeout=60)), [2])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "-1"):
            self.s.run("y", {"x": [1]}, timeout=-1)

    def test_a_traced_step_has_its_nodes(self):
        trace = self.s.trace(["y", "top"], {"x": [1, 5]})
        self.assertEqual([list(one) for one in trace.values], [[2, 10], [5]])
        self.assertIn("y", [name for _, name, _, _, _ in trace.nodes])
        self.assertGreater(trace.took, 0)
        self.assertIn("<svg", trace._repr_html_())

    def test_a_graph_may_grow(self):
        z = self.y + 1
        self.assertEqual(list(self.s.run(z, {"x": [1]})), [3])
        v = self.g.variable("v", [2], initial=[5.0, 6.0])
        self.assertEqual(list(self.s.run(v * 2)), [10, 12])
        w = self.g.variable("w", [], initial=7.0)
        self.s.variables["v"] = [1, 2]
        self.assertEqual([list(self.s.run(v)), self.s.run(w)], [[1, 2], 7])
        other = meshtf.Graph()
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "another graph"):
            self.s.run(other.constant(1))


class Variables(unittest.TestCase):
    def test_values_are_read_and_set(self):
        g = meshtf.Graph()
        w = g.variable("w", [2], initial=[1.0, 2.0])
        n = g.variable("n", [], dtype="int64", initial=7, trainable=False)
        # As TensorFlow 1 makes them.
        ref = g.op("VariableV2", name="ref", dtype="float32", shape=[1])
        g.op("Assign", ref, [9.0], name="set_ref")
        total = g.op("AddV2", w.sum(), n.astype("float32"), name="total")
        with meshtf.local({"ps": 1, "worker": 1}) as m:
            with m.session(g) as s:
                self.assertEqual(sorted(s.variables), ["n", "ref", "w"])
                self.assertEqual((len(s.variables), "w" in s.variables, "x" in s.variables), (3, True, False))
                self.assertEqual((list(s.variables["w"]), s.variables["n"]), ([1, 2], 7))
                s.variables["w"] = [3, 4]
                s.variables["ref"] = np.array([5.0])
                self.assertEqual((list(s.variables["ref"]), s.run(total)), ([5], 14))
                with self.assertRaises(meshtf.Error):
                    s.variables["w"] = [[1, 2], [3, 4]]
                with self.assertRaises(meshtf.InvalidArgumentError):
                    s.variables["n"] = 1.5
                with self.assertRaises(TypeError):
                    del s.variables["w"]
                kept = s.variables.copy()
            # Variables stay on their tasks, unless they are given first values again.
            with m.session(g) as s:
                self.assertEqual(list(s.variables["w"]), [3, 4])
            with m.session(g, init=True) as s:
                self.assertEqual(list(s.variables["w"]), [1, 2])
            with m.session(g, weights=kept) as s:
                self.assertEqual(list(s.variables["w"]), [3, 4])
            with m.session(g, isolated=True) as s:
                self.assertEqual(list(s.variables["w"]), [1, 2])

    def together(self, count, work):
        """What each of several threads returns or raises that begin at once."""
        got, gate = [None] * count, threading.Barrier(count)

        def one(i):
            gate.wait()
            try:
                got[i] = work(i)
            except Exception as error:
                got[i] = error

        threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return got

    def test_threads_use_a_variable_for_the_first_time(self):
        with meshtf.local() as m:
            for _ in range(10):
                g = meshtf.Graph()
                g.variable("w", [], initial=5.0)
                with m.session(g, isolated=True) as s:
                    self.assertEqual(self.together(8, lambda _: float(s.variables["w"])), [5.0] * 8)
                    more = [g.variable(f"v{i}", [], initial=float(i)) for i in range(8)]
                    self.assertEqual(self.together(8, lambda i: float(s.run(more[i]))), [float(i) for i in range(8)])

    def test_a_thread_may_find_that_another_one_has_the_grown_graph(self):
        g = meshtf.Graph()
        g.variable("w", [], initial=5.0)
        with meshtf.local() as m, m.session(g) as s:
            g.variable("new", [], initial=6.0)
            completed, names = g._complete, s._names

            def by_another_thread():
                names.complete = completed()
                return names.complete

            g._complete = by_another_thread
            self.assertEqual(float(s.run("new")), 6.0)

    def test_ctrl_c_at_the_first_use_of_a_variable_loses_nothing(self):
        for delay in (0, 0.0005, 0.001, 0.002, 0.005):
            g = meshtf.Graph()
            g.variable("w", [], initial=5.0)
            with meshtf.local() as m, m.session(g) as s:
                new = g.variable("new", [], initial=6.0)
                timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
                try:
                    timer.start()
                    for _ in range(200):
                        self.assertEqual((s.variables["w"], s.run(new)), (5, 6))
                    threading.Event().wait(30)
                except KeyboardInterrupt:
                    pass
                self.assertEqual((s.variables["w"], s.run(new)), (5, 6))


if __name__ == "__main__":
    unittest.main()
