"""The examples of the module and of docs/python.md, and stubs that agree with the module."""

import ast
import doctest
import importlib
import os
import pathlib
import re
import subprocess
import sys
import unittest

from needs import need

import meshtf

MODULES = ["_callbacks", "_draw", "_errors", "_graph", "_mesh", "_session", "_tensor", "_train"]
# Modules whose examples need scikit-learn.
OF_SKLEARN = ["_place", "joblib", "sklearn"]
ROOT = pathlib.Path(__file__).resolve().parents[3]


class Folder(unittest.TestCase):
    """Examples name files of the repository."""

    def setUp(self):
        self.before = os.getcwd()
        os.chdir(ROOT)

    def tearDown(self):
        os.chdir(self.before)


class Examples(Folder):
    def test_examples_of_the_module(self):
        attempted = 0
        for module in [meshtf, *(importlib.import_module(f"meshtf.{name}") for name in MODULES)]:
            done = doctest.testmod(module)
            self.assertEqual(done.failed, 0, module.__name__)
            attempted += done.attempted
        self.assertGreater(attempted, 60)

    def test_examples_that_need_scikit_learn(self):
        need("python-packages", "sklearn")
        for name in OF_SKLEARN:
            done = doctest.testmod(importlib.import_module(f"meshtf.{name}"))
            self.assertEqual(done.failed, 0, name)
            self.assertGreater(done.attempted, 1)

    def test_examples_of_the_page(self):
        page = ROOT / "docs" / "python.md"
        parts = []
        for part in re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE):
            for package in re.findall(r"<!-- needs (\w+) -->", part):
                try:
                    need("python-packages", package)
                except unittest.SkipTest:
                    part = ""
            parts.append(part)
        text = "".join(parts)
        test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, "python.md", str(page), 0)
        done = doctest.DocTestRunner().run(test)
        self.assertEqual(done.failed, 0)
        self.assertGreater(done.attempted, 30)


class Interface(unittest.TestCase):
    def test_stubs_name_all_that_is_native(self):
        native = importlib.import_module("meshtf._native")
        stubs = ast.parse((pathlib.Path(meshtf.__file__).parent / "_native.pyi").read_text())
        named = {}
        for node in stubs.body:
            if isinstance(node, ast.ClassDef):
                named[node.name] = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            elif isinstance(node, ast.FunctionDef):
                named[node.name] = None
            elif isinstance(node, ast.AnnAssign):
                named[node.target.id] = None
        own = {name for name in dir(native) if not name.startswith("__")}
        self.assertEqual(own, set(named))
        for name, methods in named.items():
            if methods is not None:
                public = {one for one in vars(getattr(native, name)) if not one.startswith("__")}
                self.assertEqual(public, {one for one in methods if not one.startswith("__")}, name)

    def test_modules_say_which_package_they_need(self):
        for name, call, part in [
            ("sklearn", "", "meshtf.sklearn needs scikit-learn 1.6 or later: pip install"),
            ("joblib", "", "meshtf.joblib needs joblib: pip install"),
            ("tf", ".convert(0)", "meshtf.tf.convert needs TensorFlow: pip install"),
            ("torch", ".convert(0, 0)", "meshtf.torch.convert needs PyTorch: pip install"),
        ]:
            lacks = "import sys; sys.modules.update(dict.fromkeys(['joblib', 'sklearn', 'tensorflow', 'torch']))"
            program = f"{lacks}; import meshtf; meshtf.{name}{call}"
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
            self.assertIn(f"ImportError: {part}", done.stderr.splitlines()[-1])
        with self.assertRaisesRegex(AttributeError, "no attribute 'sklear'"):
            meshtf.sklear  # noqa: B018

    def test_all_that_is_public_has_a_text(self):
        for name in meshtf.__all__:
            one = getattr(meshtf, name)
            self.assertTrue(one.__doc__, name)
            if isinstance(one, type):
                for part, value in vars(one).items():
                    if not part.startswith("_") and callable(value):
                        self.assertTrue(value.__doc__, f"{name}.{part}")
        self.assertEqual(meshtf.__version__, importlib.import_module("importlib.metadata").version("meshtf"))


if __name__ == "__main__":
    unittest.main()
