#!/usr/bin/env python3
"""Runs the programs in `programs/` with TensorFlow's own client against meshtf nodes. `make test-tf` calls it.

    run.py                          every program, against the binary that the environment variable MESHTF names
    run.py sums errors              those
    run.py --servers tensorflow     the same programs against TensorFlow's own servers

Each program is a small file that says at its top which cluster it needs (`CLUSTER = {"local": 2}`; `None` where it
starts its own) and in how many seconds it must have ended (`LIMIT_S`). It gets that cluster freshly started, runs
as a process of its own and fails by a non-zero exit. TensorFlow is loaded once, here, and each program is forked
from this process.
"""

import argparse
import ast
import os
import runpy
import select
import shutil
import sys
import tempfile
import time

import sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs")
# The machine may be busy with the other tests.
LIMIT_S = 400


class Program:
    """A program, its cluster, its process."""

    def __init__(self, name):
        self.name = name
        self.path = os.path.join(PROGRAMS, name + ".py")
        with open(self.path) as file:
            module = ast.parse(file.read(), self.path)
        constants = {}
        for statement in module.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                try:
                    constants[statement.targets[0].id] = ast.literal_eval(statement.value)
                except ValueError:
                    pass
        self.jobs = constants["CLUSTER"]
        self.limit_s = constants.get("LIMIT_S", LIMIT_S)
        self.alone = constants.get("ALONE", False)

    def start(self, kind, meshtf):
        self.folder = tempfile.mkdtemp(prefix=f"meshtf-tf-{self.name}-")
        self.began = time.monotonic()
        self.cluster = sandbox.Cluster(kind, self.jobs or {}, meshtf, folder=self.folder)
        self.cluster.start()
        environment = self.cluster.environment() | {"TMPDIR": self.folder}

        def body():
            os.environ.update(environment)
            tempfile.tempdir = None
            sys.argv = [self.path]
            runpy.run_path(self.path, run_name="__main__")

        self.process = sandbox.Process.fork(self.name, os.path.join(self.folder, "output.log"), body, group=True)

    def ended(self):
        """What became of it, once its process has ended or was out of time: (passed, text)."""
        status = self.process.wait(0)
        took = time.monotonic() - self.began
        output = self.process.output()
        passed = status == 0
        if passed:
            lines = [line for line in output.splitlines() if line.startswith("note: ")]
            text = "\n".join([f"ok      {self.name:<16} {took:6.1f} s"] + ["          " + line for line in lines])
        else:
            how = f"exit {status}" if status is not None else f"not ended after {self.limit_s} s"
            text = f"FAILED  {self.name:<16} {took:6.1f} s  {how}\n{indented(output)}"
            for task, log in self.cluster.logs():
                text += f"\n    what {task} said\n{indented(log[-4000:])}"
        self.process.end()
        self.cluster.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        return passed, text


def indented(text):
    # TensorFlow tells each stack three times; once is enough.
    text = text.split("\nOriginal stack trace for ")[0]
    return "\n".join("    " + line for line in text.splitlines() if not line.startswith(NOISE))


# What TensorFlow says however well it goes.
NOISE = ("WARNING:tensorflow:From ", "Instructions for updating:", "non-resource variables are not supported", "W0000 00:00:")


def run_all(programs, kind, meshtf, jobs):
    """Runs `jobs` programs at a time, the ones that must be alone at the end. Answers the names of those that failed."""
    waiting = sorted(programs, key=lambda program: (program.alone, -program.limit_s))
    running, failed = [], []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                if running and (waiting[0].alone or running[0].alone):
                    break
                program = waiting.pop(0)
                running.append(program)
                program.start(kind, meshtf)
            poll = select.poll()
            for program in running:
                poll.register(program.process.pidfd, select.POLLIN)
            soonest = min(program.began + program.limit_s for program in running)
            poll.poll(max(0, soonest - time.monotonic()) * 1000)
            for program in list(running):
                if program.process.alive() and time.monotonic() < program.began + program.limit_s:
                    continue
                running.remove(program)
                passed, text = program.ended()
                print(text, flush=True)
                if not passed:
                    failed.append(program.name)
    finally:
        for program in running:
            program.process.end()
            program.cluster.stop()
            shutil.rmtree(program.folder, ignore_errors=True)
    return failed


def load_tensorflow():
    """Loads it for all that is forked, and keeps what it says meanwhile to itself unless it fails."""
    with tempfile.TemporaryFile() as said:
        own = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            import client
            import sklearn.datasets  # noqa: F401
        except BaseException:
            said.seek(0)
            os.write(own, said.read())
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)
    return client.tf.__version__


def main():
    there = sorted(name.removesuffix(".py") for name in os.listdir(PROGRAMS) if name.endswith(".py"))
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(there))
    arguments.add_argument("--servers", choices=["meshtf", "tensorflow"], default="meshtf", help="what they connect to")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many run at once")
    options = arguments.parse_args()
    for name in options.programs:
        if name not in there:
            arguments.error(f"there is no program {name!r}: there is {', '.join(there)}")
    meshtf = os.environ.get("MESHTF")
    if options.servers == "meshtf" and not (meshtf and os.access(meshtf, os.X_OK)):
        arguments.error("the environment variable MESHTF must name the meshtf binary" + (f", not {meshtf}" if meshtf else ""))

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    sys.path.insert(0, HERE)
    began = time.monotonic()
    version = load_tensorflow()
    print(f"TensorFlow {version} loaded in {time.monotonic() - began:.1f} s", flush=True)
    programs = [Program(name) for name in options.programs or there]
    failed = run_all(programs, options.servers, os.path.abspath(meshtf) if meshtf else None, options.jobs)
    took = time.monotonic() - began
    print(f"{len(programs) - len(failed)} of {len(programs)} programs passed in {took:.0f} s against {options.servers}")
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
