"""The example notebooks: they are stored without outputs, run from top to bottom, and show what their text says.

`make test-notebooks` runs this in an environment with the wheel, nbconvert, ipykernel and scikit-learn.
"""

import json
import os
import pathlib
import re
import tempfile
import unittest
import xml.etree.ElementTree as xml

import nbformat
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "examples" / "notebooks"
# Above the expected time of a cell, in seconds: the machine may be busy.
_SOON = 300

# What each notebook prints or draws, as patterns of the text of its outputs.
EXPECTED = {
    "238.ipynb": [r"(?m)^238$", r"'y1': .*310.*'y2': .*-56.*'y': .*254", r"the mesh: local/0, local/1", r"<title>Sub\nSub\n"],
    "onnx.ipynb": [
        r"\[\('relu/Relu',\s+'/job:worker/task:0/device:CPU:0',\s+'/job:worker/task:1/device:CPU:0',\s+None\)\]",
        r"(?m)^\[0 1 2 3\] are \[0 1 2 3\]$",
        r"accuracy 0\.9\d\d|accuracy 1\.000",
        r"largest difference (0|[1-9]e-(0[5-9]|[1-9]\d))\b",
    ],
    "digits.ipynb": [r"the mesh: ps/0, worker/0, worker/1", r"curves of loss, accuracy", r"accuracy 0\.9\d\d|accuracy 1\.000"],
    "table.ipynb": [
        r"accuracy on rows that it has not seen: (0\.9|1\.0)",
        r"\(32,\)} mean accuracy (0\.9|1\.0)",
        r"worker/1 was busy for [1-9]",
    ],
    "monte_carlo.ipynb": [r"'right': ", r"3\.1[34]\d* ± 0\.000\d", r"curves of mean, error", r"RandomUniform"],
}


def text_of(outputs):
    """The outputs of cells as text: printed text, and HTML."""
    texts = []
    for output in outputs:
        if output.output_type == "stream":
            texts.append(output.text)
        elif "data" in output:
            texts += [output.data[kind] for kind in ("text/plain", "text/html") if kind in output.data]
    return "\n".join(texts)


class Notebooks(unittest.TestCase):
    def test_each_has_expectations(self):
        self.assertEqual({path.name for path in FOLDER.glob("*.ipynb")}, set(EXPECTED))

    def test_they_are_stored_without_outputs(self):
        for name in EXPECTED:
            with self.subTest(name):
                text = (FOLDER / name).read_text(encoding="utf-8")
                book = nbformat.reads(text, as_version=4)
                nbformat.validate(book)
                for cell in book.cells:
                    if cell.cell_type == "code":
                        self.assertEqual((cell.outputs, cell.execution_count), ([], None), cell.source)
                self.assertEqual(book.cells[0].cell_type, "markdown")
                self.assertTrue(book.cells[0].source.startswith("# "))
                # As Jupyter stores it, so that a change of a cell is a change of its lines.
                self.assertEqual(text, json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n")

    def test_they_run_and_show_what_they_say(self):
        for name, patterns in EXPECTED.items():
            with self.subTest(name):
                book = nbformat.read(FOLDER / name, as_version=4)
                # Raises the first exception of a cell.
                quiet = ["--log-level=ERROR"]
                runs = ExecutePreprocessor(timeout=_SOON, kernel_name="python3", extra_arguments=quiet)
                runs.preprocess(book, {"metadata": {"path": str(FOLDER)}})
                if folder := os.environ.get("MESHTF_NOTEBOOKS"):
                    page, _ = HTMLExporter().from_notebook_node(book)
                    pathlib.Path(folder, f"{name}.html").write_text(page, encoding="utf-8")
                outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
                self.assertEqual([output.text for output in outputs if output.get("name") == "stderr"], [])
                text = text_of(outputs)
                for pattern in patterns:
                    self.assertTrue(re.search(pattern, text), f"{pattern} is not in\n{text:.4000}")
                for output in outputs:
                    if "text/html" in output.get("data", {}):
                        self._is_complete(output.data["text/html"])

    def _is_complete(self, page):
        """That it is well-formed, and loads nothing."""
        drawn = xml.fromstring(f"<div>{page}</div>")
        for one in drawn.iter():
            self.assertNotIn(one.tag.split("}")[-1], ("script", "iframe", "link", "image"))
            for key, value in one.attrib.items():
                self.assertFalse(key.endswith("href"), page)
                self.assertTrue(key != "src" or value.startswith("data:"), page)
        self.assertNotIn("url(", page)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as runtime:
        os.environ["JUPYTER_RUNTIME_DIR"] = runtime
        unittest.main()
