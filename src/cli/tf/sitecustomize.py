"""Python runs this file before a program that `meshtf tf` starts: TensorFlow is adapted when the program imports it.

A `sitecustomize` of the machine's or the user's own, which this file hides, runs, too.
"""

import sys

if sys.version_info < (3, 5):
    sys.stderr.write("meshtf tf: Python 3.5 or newer is needed; this is %s (%s)\n" % (sys.version.split()[0], sys.executable))
    sys.exit(2)

import importlib.machinery
import importlib.util
import os


def run_hidden():
    """Runs the `sitecustomize` that would have been found without this one."""
    here = os.path.realpath(os.path.dirname(__file__))
    others = [folder for folder in sys.path if os.path.realpath(folder or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class Finder:
    """Finds `tensorflow` where Python would, and has it adapted once it is loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[:2] == ["tensorflow", "contrib"] and sys.modules.get("meshtf_tf") is not None:
            sys.modules["meshtf_tf"].check_contrib()
        if name != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec


class Loader:
    """TensorFlow's own loader, and what comes after it."""

    def __init__(self, own):
        self.own = own

    def __getattr__(self, name):
        return getattr(self.own, name)

    def create_module(self, spec):
        return self.own.create_module(spec)

    def exec_module(self, module):
        import meshtf_tf

        meshtf_tf.before()
        # TensorFlow asks its loader for its own files.
        module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        meshtf_tf.after(sys.modules[module.__name__])


sys.meta_path.insert(0, Finder)
run_hidden()
