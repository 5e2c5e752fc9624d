#!/usr/bin/env python3
"""As `record.py`, with the Python 3.7 of TensorFlow 1.15, for ops of which TensorFlow 2 has no kernels any more.

    record_1_15.py tests/data/kernels/trees.json     answers the cases of the file that are marked `version: 1`
    record_1_15.py tests/tf/sessions/trees.py        runs a program with `VERSION = 1`
    record_1_15.py --check [PATH ...]                asks anew, and fails if an answer is another; without paths for all that is
                                                     recorded of this version

Each case of a file is asked for in a process of its own: kernels of that version may write where they should not.
"""

import glob
import multiprocessing
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))


TESTS = os.path.dirname(HERE)


def folder_of(program):
    return os.path.join(TESTS, "cases", os.path.splitext(os.path.basename(program))[0])


def everything():
    def has(path, mark):
        with open(path) as file:
            return mark in file.read()

    files = sorted(glob.glob(os.path.join(TESTS, "data", "kernels", "*.json")))
    programs = sorted(glob.glob(os.path.join(HERE, "sessions", "*.py")))
    return [path for path in files if has(path, '"version":1')] + [path for path in programs if has(path, "\nVERSION = 1\n")]


def apart(function):
    """The function, which is called in another process each time; None if that ends without an answer."""

    def call(*arguments):
        context = multiprocessing.get_context("fork")
        receives, sends = context.Pipe(duplex=False)

        def answer():
            try:
                sends.send((function(*arguments), None))
            except Exception as error:
                sends.send((None, error))

        process = context.Process(target=answer)
        process.start()
        sends.close()
        try:
            answered, error = receives.recv()
        except EOFError:
            raise SystemExit("TensorFlow crashed: %s" % (arguments,)) from None
        finally:
            process.join()
        if error:
            raise error
        return answered

    return call


def main():
    from recorder import ops, sessions

    ops.answered, ops.difference = apart(ops.answered), apart(ops.difference)

    is_check = "--check" in sys.argv
    wrong = []
    paths = [argument for argument in sys.argv[1:] if argument != "--check"]
    for path in paths or (everything() if is_check else []):
        if path.endswith(".json"):
            count, differs = ops.check(path, False) if is_check else (ops.record(path, False), [])
        elif is_check:
            count, differs = sessions.check(folder_of(path))
        else:
            count, differs = sessions.write(*sessions.from_program(path), folder=folder_of(path)), []
        wrong += differs
        print("%s  %d %s" % (os.path.relpath(path), count, "checked" if is_check else "recorded"), flush=True)
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
