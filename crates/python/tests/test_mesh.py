"""Meshes: tasks in this process and in processes of their own, plans, and nothing that is left behind."""

import gc
import os
import subprocess
import sys
import threading
import time
import unittest

import numpy as np

import meshtf


def split(first="/job:local/task:0", second="/job:local/task:1"):
    """238, as in examples/graph.json."""
    g = meshtf.Graph()
    x = g.placeholder("x", "int32", [])
    with g.device(first):
        y1 = x + 300
    with g.device(second):
        y2 = x - 66
    with g.device(first):
        g.op("AddV2", y1, y2, name="y")
    return g


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Local(unittest.TestCase):
    def test_tasks_of_this_process(self):
        g = split()
        for tasks in (g, {"local": 2}, ["local/0", "/job:local/task:1"]):
            with meshtf.local(tasks) as m:
                self.assertEqual([task.name for task in m.tasks()], ["local/0", "local/1"])
                self.assertEqual(str(m.tasks()[1]), "/job:local/task:1")
                device = m.tasks()[0].devices[0]
                self.assertEqual(device.name, "/job:local/task:0/device:CPU:0")
                self.assertGreater(device.cores, 0)
                self.assertIn("local/1", repr(m))
                self.assertIn("local/1", m._repr_html_())
                with m.session(g) as s:
                    self.assertEqual(s.run("y", {"x": 2}), 238)
                with m.session(g, target=m.tasks()[1], place="auto") as s:
                    self.assertEqual(s.run("y", {"x": 2}), 238)

    def test_a_plan_is_made_without_a_run(self):
        g = split()
        with meshtf.local(g) as m:
            plan = m.plan(g, "y", ["x"])
            # Placeholders that the fetches need count as fed.
            self.assertEqual(m.plan(g, "y").devices, plan.devices)
        self.assertEqual(plan.devices["Sub"], "/job:local/task:1/device:CPU:0")
        self.assertIn(("Sub", "/job:local/task:1/device:CPU:0", "/job:local/task:0/device:CPU:0", 4), plan.transfers)
        self.assertIn("<svg", plan.svg)
        self.assertIn("<img", plan._repr_html_())
        self.assertIn("2 devices", repr(plan))
        self.assertIn("Sub on /job:local/task:1/device:CPU:0", str(plan))

    def test_threads_end_with_their_cluster(self):
        g = split()

        def threads():
            return len(os.listdir("/proc/self/task"))

        def use():
            with meshtf.local(g) as m, m.session(g) as s:
                s.run("y", {"x": 2})

        use()
        before = threads()
        for _ in range(20):
            use()
        deadline = time.monotonic() + 30
        while threads() > before + 4 and time.monotonic() < deadline:
            gc.collect()
            threading.Event().wait(0.05)
        self.assertLessEqual(threads(), before + 4)

    def test_sessions_end_with_their_mesh(self):
        g = split()
        m = meshtf.local(g)
        s = m.session(g)
        m.close()
        with self.assertRaises(meshtf.FailedPreconditionError):
            s.run("y", {"x": 2})

    def test_a_forked_process_is_refused(self):
        code = (
            "import os, meshtf\n"
            "with meshtf.local() as m: pass\n"
            "if os.fork() == 0:\n"
            "    try: meshtf.local()\n"
            "    except RuntimeError as error: os._exit(0 if 'spawn' in str(error) else 1)\n"
            "    os._exit(2)\n"
            "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_what_a_forked_process_has_ends_without_harm(self):
        for processes in (False, True):
            code = (
                "import gc, os, sys, meshtf\n"
                "g = meshtf.Graph(); g.op('Neg', g.placeholder('x', 'float32'), name='y')\n"
                f"m = meshtf.local({{'a': 1}}, processes={processes}); s = m.session(g)\n"
                "steps = s.run_steps('y', {'x': 1}, steps=10**12); next(steps)\n"
                "if os.fork() == 0:\n"
                "    steps.close(); s.close(); m.close()\n"
                "    del steps, s, m; gc.collect()\n"
                "    sys.exit(7)\n"
                "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
                "next(steps); steps.close()\n"
                "assert s.run('y', {'x': 1}) == -1\n"
                "if m._nodes: assert os.path.exists(m._nodes.home)\n"
                "m.close()"
            )
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_program_may_end_in_the_middle(self):
        for end in ("", "s.close()", "m.close()", "raise SystemExit(0)", "import os; os._exit(0)"):
            code = (
                "import meshtf\n"
                "g = meshtf.Graph(); y = g.op('Neg', g.placeholder('x', 'float32'), name='y')\n"
                "m = meshtf.local({'a': 2}); s = m.session(g)\n"
                "steps = s.run_steps('y', {'x': 1}, steps=10**12); next(steps)\n" + end
            )
            done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), end)

    def test_numpy_is_imported_when_it_is_needed(self):
        code = "import sys, meshtf; g = meshtf.Graph(); g.placeholder('x'); raise SystemExit('numpy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Processes(unittest.TestCase):
    def test_nodes_are_processes_that_end_with_the_mesh(self):
        g = split("/job:ps/task:0", "/job:worker/task:0")
        with meshtf.local({"ps": 1, "worker": 1}, processes=True) as m:
            running = [node.pid for node in m._nodes._running]
            self.assertTrue(all(map(is_running, running)))
            with m.session(g) as s:
                self.assertEqual(s.run("y", {"x": 2}), 238)
                values = np.arange(1_000_000, dtype="float32")
                z = g.op("Neg", g.placeholder("z", "float32"), name="negative")
                np.testing.assert_array_equal(s.run(z, {"z": values}), -values)
            home = m._nodes.home
            status = m.status("worker/0")
            self.assertIn("sessions", status)
            # Another client of the mesh, as one of a terminal.
            again = meshtf.mesh(m._nodes.mesh, home=home, mdns=False, tasks=["ps/0"])
            with again, again.session(g) as s:
                self.assertEqual(s.run("y", {"x": 2}), 238)
            with self.assertRaisesRegex(meshtf.UnavailableError, "ps/7"):
                meshtf.mesh(m._nodes.mesh, home=home, mdns=False, tasks=["ps/7"], timeout=0.2)
        self.assertFalse(any(map(is_running, running)))
        self.assertFalse(os.path.exists(home))

    def test_a_lost_task_is_named(self):
        g = split("/job:ps/task:0", "/job:worker/task:0")
        with meshtf.local({"ps": 1, "worker": 1}, processes=True) as m, m.session(g) as s:
            self.assertEqual(s.run("y", {"x": 2}), 238)
            m._nodes._running[1].kill()
            with self.assertRaises(meshtf.Error) as raised:
                for _ in range(1000):
                    s.run("y", {"x": 2})
                    threading.Event().wait(0.02)
            self.assertIn("worker", str(raised.exception))

    def test_sessions_of_an_own_master_do_not_end_with_a_node(self):
        g = split("/job:worker/task:0", "/job:worker/task:0")
        with meshtf.local({"ps": 1, "worker": 1}, processes=True) as m:
            own = meshtf.mesh(m._nodes.mesh, home=m._nodes.home, mdns=False, tasks=["ps/0", "worker/0"], own_master=True)
            with own, own.session(g) as s, own.session(g, target="ps/0") as other:
                self.assertEqual([one.run("y", {"x": 2}) for one in (s, other)], [238, 238])
                m._nodes._running[0].kill()
                with self.assertRaises(meshtf.UnavailableError):
                    for _ in range(1000):
                        other.run("y", {"x": 2})
                        threading.Event().wait(0.02)
                self.assertEqual(s.run("y", {"x": 2}), 238)

    def test_a_node_that_does_not_start_says_why(self):
        with self.assertRaisesRegex(meshtf.UnavailableError, "backend"):
            meshtf.local({"a": 1}, processes=True, backend="nothing")

    def test_nodes_end_with_the_program(self):
        code = "import meshtf; m = meshtf.local({'a': 1}, processes=True); print(m._nodes._running[0].pid)"
        done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True, check=True)
        self.assertFalse(is_running(int(done.stdout)))


if __name__ == "__main__":
    unittest.main()
