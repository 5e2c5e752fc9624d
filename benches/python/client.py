"""The client in Python of benches/python.rs. A line `steps 100` on stdin asks for a turn; it prints the times in nanoseconds."""

import json
import sys
import time

import numpy as np

import meshtf

ELEMENTS = 16 << 20


def split():
    """238, as in benches/python.rs."""
    g = meshtf.Graph()
    x = g.constant(2, name="x")
    with g.device("/job:local/task:0"):
        y1 = x + 300
    with g.device("/job:local/task:1"):
        y2 = x - 66
    with g.device("/job:local/task:0"):
        g.op("AddV2", y1, y2, name="y")
    return g


def same():
    """An array that a task returns."""
    g = meshtf.Graph()
    x = g.placeholder("x", "float32", [None])
    with g.device("/job:local/task:1"):
        g.op("Identity", x, name="y")
    return g


def timed(run):
    start = time.perf_counter_ns()
    value = run()
    return time.perf_counter_ns() - start, value


def main():
    if sys.argv[1] == "mesh":
        mesh = meshtf.mesh(home=sys.argv[2], mdns=False, tasks=["local/0", "local/1"])
    else:
        mesh = meshtf.local(["local/0", "local/1"], backend="flex")
    steps, arrays = mesh.session(split()), mesh.session(same())
    fed = np.full(ELEMENTS, 1.5, "float32")
    for line in sys.stdin:
        what, count = line.split()
        times = []
        for _ in range(int(count)):
            if what == "steps":
                took, value = timed(lambda: steps.run("y"))
                assert value == 238, value
            else:
                took, value = timed(lambda: arrays.run("y", {"x": fed}))
                assert value.shape == (ELEMENTS,) and value[-1] == 1.5, value
            times.append(took)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
