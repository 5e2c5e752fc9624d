"""Pictures of notebooks: well-formed, complete in themselves, and with all that they are to show."""

import base64
import copy
import html
import math
import pickle
import re
import unittest
import xml.etree.ElementTree as xml

import numpy as np

import meshtf
from meshtf import _pictures


def split():
    """238, on two tasks."""
    g = meshtf.Graph()
    x = g.placeholder("x", "int32", [])
    with g.device("/job:local/task:0"):
        y1 = g.op("AddV2", x, 300, name="y1")
    with g.device("/job:local/task:1"):
        y2 = g.op("Sub", x, 66, name="y2")
    with g.device("/job:local/task:0"):
        g.op("AddV2", y1, y2, name="y")
    return g


class Pictures(unittest.TestCase):
    def drawn(self, page):
        """The elements of a picture, which is well-formed and loads nothing."""
        root = xml.fromstring(f"<div>{page}</div>")
        for one in root.iter():
            self.assertNotIn(one.tag.split("}")[-1], ("script", "iframe", "link", "image", "use"))
            for key, value in one.attrib.items():
                self.assertFalse(key.endswith("href") or key.startswith("on"), page)
                self.assertTrue(key != "src" or value.startswith("data:"), page)
        self.assertNotIn("url(", page)
        self.assertNotIn("nan", page.lower().replace("nano", ""))
        return root

    def texts(self, page):
        return ["".join(one.itertext()) for one in self.drawn(page).iter() if one.tag.endswith(("text", "title", "td"))]

    def count(self, page, tag, kind=None):
        return sum(one.tag.endswith(tag) and kind in (None, one.get("class")) for one in self.drawn(page).iter())

    def test_a_mesh_of_this_process_and_one_of_processes(self):
        for processes in (False, True):
            with meshtf.local({"ps": 1, "worker": 2}, processes=processes) as m:
                page = m._repr_html_()
                texts = self.texts(page)
                for task in ("ps/0", "worker/0", "worker/1"):
                    self.assertIn(task, texts)
                self.assertEqual(self.count(page, "circle", "device"), 3)
                if processes:
                    # Each node has a link with each other one.
                    self.assertEqual(self.count(m.svg, "line"), 3)
            self.assertIn("left", m._repr_html_())

    def test_a_plan_a_step_and_a_graph(self):
        g = split()
        with meshtf.local(g) as m, m.session(g) as s:
            plan, trace = m.plan(g, "y", ["x"]), s.trace("y", {"x": 2})
        page = plan._repr_html_()
        self.assertIn("/job:local/task:1/device:CPU:0", html.unescape(self.drawn(page)[0].get("alt")))
        inner = base64.b64decode(re.search("base64,([^']*)'", page)[1]).decode()
        self.assertIn("/job:local/task:1/device:CPU:0", self.texts(inner))
        texts = self.texts(trace._repr_html_())
        self.assertIn("/job:local/task:1/device:CPU:0", texts)
        self.assertTrue(any(text.startswith("y2\n") for text in texts), texts)
        self.assertEqual(self.count(trace.svg, "rect", "lane"), 2)
        # y2 goes to the first task.
        self.assertGreaterEqual(self.count(trace.svg, "line", "way"), 1)
        self.assertIn("y2", self.texts(g._repr_html_()))
        for value in (plan, trace):
            again = pickle.loads(pickle.dumps(value))
            self.assertEqual((repr(again), again.svg), (repr(value), value.svg))

    def test_nodes_that_do_not_answer_and_names_of_any_kind(self):
        link = {"to": "b/0", "up": False, "seconds": None, "rate": 2e6}
        nodes = [
            {"task": "<a&'\"\x1b>/0", "busy": 0.25, "links": [link, {**link, "to": "elsewhere/0"}]},
            {"task": "b/0", "busy": None, "links": [{**link, "to": "<a&'\"\x1b>/0"}]},
            {"task": "c/0", "busy": 1.0, "links": []},
        ]
        texts = self.texts(_pictures.mesh(nodes))
        for text in ("<a&'\"\ufffd>/0", "?", "25%", "100%", "broken, 2 MB/s", "b/0\nit did not answer"):
            self.assertIn(text, texts)
        many = [{"task": f"worker/{i}", "busy": 0.0, "links": []} for i in range(100)]
        self.assertIn("and 60 more", self.texts(_pictures.mesh(many)))
        self.texts(_pictures.mesh([]))
        self.texts(_pictures.timeline(0, [], []))
        self.assertIn("and 7 shorter nodes", self.texts(_pictures.timeline(1e-3, ["d"], [("d", "n", "o", 0, 1e-3)], more=7)))

    def test_a_training(self):
        g = meshtf.Graph()
        x = g.placeholder("x", "float32", [None])
        ((x * g.variable("w", [], initial=1.0) - 4) ** 2).mean().named("loss")
        done = meshtf.train(g, {"x": [1.0, 3.0]}, optimizer="sgd", rate=0.1, batch=2, steps=4, record=1)
        page = done._repr_html_()
        self.assertIn("loss", self.texts(page))
        self.assertEqual(self.count(page, "path", "curve"), 1)

    def test_curves(self):
        history = {
            "step": [1, 2, 3],
            "loss": [4.0, float("nan"), 1.0],
            "accuracy": [0.5, 0.6, 0.7],
            "val_step": [3],
            "val_loss": [2.0],
            "val_accuracy": np.array([0.65]),
        }
        curves = meshtf.curves(history)
        self.assertEqual(repr(curves), "<meshtf.Curves: loss 1, val_loss 2, accuracy 0.7, val_accuracy 0.65>")
        texts = self.texts(curves._repr_html_())
        for text in ("loss", "val_loss", "accuracy", "4", "1", "step 1", "3"):
            self.assertIn(text, texts)
        self.assertEqual((self.count(curves.svg, "path", "curve"), self.count(curves.svg, "circle", "device")), (2, 2))
        # Without steps, and of a wide range.
        texts = self.texts(meshtf.curves({"loss": [1000.0, 1.0, 0.5, 0.1]}).svg)
        self.assertIn("logarithmic", texts)
        # What cannot be drawn is said.
        self.assertIn("no value is a number", self.texts(meshtf.curves({"loss": [math.inf, math.nan]}).svg))
        self.texts(meshtf.curves({}).svg)
        self.assertIn("and 8 more", self.texts(meshtf.curves({f"m{i}": [1.0, 2.0] for i in range(20)}).svg))
        long = meshtf.curves({"loss": np.random.default_rng(0).random(100_000)}).svg
        self.assertLess(len(long), 20_000)
        with self.assertRaisesRegex(ValueError, "loss has 1 values, and there are 2 steps"):
            meshtf.curves({"step": [1, 2], "loss": [1.0]})


class Pickled(unittest.TestCase):
    def test_graphs_and_tensors(self):
        g = split()
        y1, operation = g["y1"], g.op("NoOp", name="nothing")
        graph, tensor, again, node = pickle.loads(pickle.dumps((g, y1, g["y2"], operation)))
        self.assertEqual((tensor.name, tensor.dtype, repr(node)), ("y1", y1.dtype, repr(operation)))
        self.assertIs(tensor.graph, graph)
        with meshtf.local(graph) as m, m.session(graph) as s:
            self.assertEqual(s.run(tensor + again, {"x": 2}), 238)
            task = pickle.loads(pickle.dumps(m.tasks()))[1]
            self.assertEqual((str(task), task), ("/job:local/task:1", m.tasks()[1]))
            for one in (m, s):
                with self.assertRaisesRegex(TypeError, "belongs to the process"):
                    pickle.dumps(one)
        copied = copy.deepcopy(g)
        copied.op("Neg", copied["y"], name="z")
        self.assertNotIn("z", [name for name, _, _ in g.nodes])


class Placed(unittest.TestCase):
    def test_a_graph_is_split_by_names(self):
        g = split()
        moved = g.placed({"y2": "/job:worker/task:7", "y?": "/job:worker/task:3"})
        devices = {name: device for name, _, device in moved.nodes}
        self.assertEqual(
            [devices[name] for name in ("y1", "y2", "y", "x")],
            ["/job:worker/task:3", "/job:worker/task:7", "/job:local/task:0", ""],
        )
        # The graph itself stays as it is.
        self.assertEqual({name: device for name, _, device in g.nodes}["y2"], "/job:local/task:1")
        with meshtf.local(moved) as m, m.session(moved) as s:
            self.assertEqual(s.run("y", {"x": 2}), 238)
        for devices, part in (({"z*": "/job:a"}, "no node has the name z"), ({"y": "/jobs:a"}, "jobs")):
            with self.assertRaisesRegex(meshtf.InvalidArgumentError, part):
                g.placed(devices)


if __name__ == "__main__":
    unittest.main()
