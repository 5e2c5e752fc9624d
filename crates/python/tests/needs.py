"""What a test needs besides numpy: as the tests in Rust do (crates/testing/src/means.rs), it says that it did not run."""

import importlib.util
import os
import sys
import unittest


def need(means: str, *packages: str) -> None:
    """Skips the tests of a module without these packages; with CI set it fails, unless MESHTF_TEST_MAY_SKIP names the means."""
    lacks = [one for one in packages if importlib.util.find_spec(one) is None]
    if not lacks:
        return
    why = f"there is no {', '.join(lacks)} here (PYTHON_EXTRA of `make test-python` installs packages)"
    may_skip = os.environ.get("MESHTF_TEST_MAY_SKIP", "").replace(" ", "").split(",")
    if os.environ.get("CI", "") not in ("", "0", "false") and means not in may_skip:
        raise AssertionError(f"{why}; with CI set this is a failure, unless MESHTF_TEST_MAY_SKIP names {means!r}")
    caller = sys._getframe(1).f_globals["__name__"]
    print(f"NOT RUN: {caller}: {why}", file=sys.stderr)
    raise unittest.SkipTest(why)
