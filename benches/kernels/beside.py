"""Times what benches/kernels.rs times, in numpy, and prints the best seconds of each as JSON."""

import json
import sys
import time

import numpy as np


def numbers(*dims):
    count = int(np.prod(dims))
    return ((np.arange(count, dtype=np.int64) * 7919 % 1000) / 500 - 1).astype(np.float32).reshape(dims)


def best(call, seconds=float(sys.argv[1])):
    call()
    times = []
    begun = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < seconds and len(times) < 10_000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def conv(image, filters):
    """What numpy has for it: windows gathered into the rows of a matrix, and a product."""
    height, width = filters.shape[:2]
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    return np.tensordot(windows, filters, axes=((3, 4, 5), (2, 0, 1)))


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


measured = {}
for n in (256, 1024, 2048):
    a, b = numbers(n, n), numbers(n, n)
    measured[f"matmul {n}"] = best(lambda: a @ b)
for batch, side, channels, made in ((32, 32, 3, 32), (8, 32, 64, 64)):
    image, filters = numbers(batch, side, side, channels), numbers(3, 3, channels, made)
    measured[f"conv {batch}x{side}x{side}x{channels} to {made}, 3x3"] = best(lambda: conv(image, filters))
square = numbers(1024, 1024)
measured["softmax 1024x1024"] = best(lambda: softmax(square))
x, y = numbers(16 << 20), numbers(16 << 20)
measured["add 16 M floats"] = best(lambda: x + y)
measured["add 16 M floats in place"] = best(lambda: np.add(x, y, out=x))
measured["sum 16 M floats"] = best(lambda: x.sum())
tiny = numbers(8)
measured["add 8 floats"] = best(lambda: tiny + tiny)
json.dump(measured, sys.stdout)
