#!/usr/bin/env python3
"""Steps of ONNX models by `meshtf run`, beside onnxruntime on as many threads, by turns.

    bench.py                                  every model on the binary that MESHTF names
    bench.py --on new=PATH old=PATH lstm      that model on two binaries, and on onnxruntime
    bench.py --file m.onnx --shape x=1,3,48,320   a model of a file, with feeds of that shape

Each line has the median steps a second of a program beside onnxruntime's, the most memory that its process had, beside that of
a process of onnxruntime without Python's own, and the largest difference of their outputs as a part of the largest value.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import models
import numpy as np
import onnx
import onnxruntime

STEPS = re.compile(r"in (\d+) steps?: ([\d.,]+) (ns|us|ms|s)\b")
# What the name of an output has that the name of its file has not.
WITHIN_NAMES = r"[/:]"
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of one turn")
    parser.add_argument("--on", nargs="*", default=[], help="NAME=BINARY")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of onnxruntime")
    parser.add_argument("--file", action="append", default=[], help="a model of a file, in place of these")
    parser.add_argument("--shape", action="append", default=[], help="NAME=SIZE,SIZE…: the shape of an input of the files")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    asked.on = asked.on or ["meshtf=" + os.environ["MESHTF"]]
    return asked


def of_file(path, shapes):
    """A model of a file, with normal feeds; sizes that the file leaves open are 1."""
    model, random = onnx.load(path), np.random.default_rng(7)
    feeds = {}
    for one in onnxruntime.InferenceSession(path).get_inputs():
        shape = shapes.get(one.name, [size if isinstance(size, int) else 1 for size in one.shape])
        kind = {"tensor(float)": np.float32, "tensor(int64)": np.int64}[one.type]
        feeds[one.name] = random.standard_normal(shape).astype(kind) if kind is np.float32 else np.ones(shape, kind)
    return model, feeds


# The kernel counts for a process what the one that started it had then: this one, which holds models, starts none by itself.
STARTER = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, status, used = os.wait4(child.pid, 0)
print(used.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def resident(command):
    """A command that ran, and the most memory that it had, in MB."""
    ran = subprocess.run([sys.executable, "-S", "-c", STARTER, *command], capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}: {ran.stderr}")
    return ran, int(ran.stderr.split()[-1]) / 1024


def alone(path, feeds, threads, *names):
    """Three steps of onnxruntime in this process; prints the memory that it had before, in MB."""
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)
    with np.load(feeds) as stored:
        feeds = dict(zip(names, (stored[name] for name in stored.files), strict=True))
    Onnxruntime(path, feeds, int(threads)).turn(0)


class Onnxruntime:
    def __init__(self, path, feeds, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.feeds, self.rates = feeds, []
        self.outputs = self.session.run(None, feeds)

    def peak(self, path, folder, threads):
        """The most memory of a process that runs three steps, in MB, beyond that of the imports."""
        feeds = os.path.join(folder, "feeds.npz")
        np.savez(feeds, *self.feeds.values())
        ran, most = resident([sys.executable, __file__, "--alone", path, feeds, str(threads), *self.feeds])
        return most - float(ran.stdout)

    def turn(self, seconds):
        steps, began = 0, time.perf_counter()
        while steps < 3 or time.perf_counter() - began < seconds:
            self.session.run(None, self.feeds)
            steps += 1
        self.rates.append(steps / (time.perf_counter() - began))


class Meshtf:
    def __init__(self, name, binary, path, feeds, folder):
        self.name, self.rates, self.peak = name, [], 0
        self.command = [binary, "run", path, "--no-record"]
        for i, (feed, value) in enumerate(feeds.items()):
            file = os.path.join(folder, f"feed{i}.npy")
            np.save(file, value)
            self.command += ["--feed", f"{feed}=@{file}"]
        self.folder = os.path.join(folder, name)
        self.rate = self.run(3)

    def run(self, steps):
        """Steps a second, as the command says; the outputs of the last are kept."""
        ran, most = resident([*self.command, "--steps", str(steps), "--out", self.folder])
        self.peak = max(self.peak, most)
        found = STEPS.search(ran.stderr)
        if not found:
            sys.exit(f"{' '.join(self.command)}: {ran.stderr}")
        return int(found[1]) / (float(found[2].replace(",", "")) * SECONDS[found[3]])

    def turn(self, seconds):
        # The first step of a process prepares the plan and the weights, and is not counted.
        steps = max(3, int(self.rate * seconds))
        first, all_of_them = 1 / self.run(1), (steps + 1) / self.run(steps + 1)
        # It is at most most of the time, however long it took where it was measured alone.
        self.rate = steps / max(all_of_them - first, all_of_them / 4)
        self.rates.append(self.rate)

    def difference(self, names, outputs):
        most = 0.0
        for name, wanted in zip(names, outputs, strict=True):
            got = np.load(os.path.join(self.folder, f"{re.sub(WITHIN_NAMES, '_', name)}.npy"))
            if got.shape != wanted.shape:
                return float("inf")
            most = max(most, float(np.max(np.abs(got - wanted)) / max(np.max(np.abs(wanted)), 1e-30)))
        return most


def measure(name, what, model, feeds, asked):
    """The ratios of the first binary."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        onnx.save(model, path)
        other = Onnxruntime(path, feeds, asked.threads)
        ones = [Meshtf(*one.split("=", 1), path, feeds, folder) for one in asked.on]
        for turn in range(asked.rounds):
            for one in [*ones, other][:: 1 if turn % 2 else -1]:
                one.turn(asked.seconds)
        names = [output.name for output in other.session.get_outputs()]
        peak = other.peak(path, folder, asked.threads)
        print(f"{name}: {what}: onnxruntime {statistics.median(other.rates):.1f} steps/s, {peak:.0f} MB", flush=True)
        ratios = []
        for one in ones:
            ratios.append(statistics.median(mine / theirs for mine, theirs in zip(one.rates, other.rates)))
            print(
                f"  {one.name:<12} {statistics.median(one.rates):8.1f} steps/s {ratios[-1]:5.2f} of onnxruntime's"
                f"  {one.peak:.0f} MB, {one.peak / peak:.2f} of its"
                f"  differs by {one.difference(names, other.outputs):.1e}",
                flush=True,
            )
        return ratios[0]


def main():
    asked = arguments()
    shapes = {name: [int(size) for size in sizes.split(",")] for name, _, sizes in (one.partition("=") for one in asked.shape)}
    ratios = []
    for path in asked.file:
        ratios.append(measure(os.path.basename(path), "a file", *of_file(path, shapes), asked))
    for model in [] if asked.file else models.MODELS:
        if not asked.names or model.__name__ in asked.names:
            ratios.append(measure(model.__name__, model.__doc__, *model(), asked))
    if ratios:
        print(f"of onnxruntime: geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}, of {len(ratios)} models")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        alone(*sys.argv[2:])
    else:
        main()
