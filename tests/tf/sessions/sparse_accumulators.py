"""Accumulators of gradients of some rows: sums and means by row, steps that are over, and gradients that do not fit."""

import numpy as np

from recorder.sessions import step, tf

raw = tf.raw_ops

number, local = tf.placeholder(tf.int32, [], name="number"), tf.placeholder(tf.int64, [], name="local")
rows, sizes = tf.placeholder(tf.int64, name="rows"), tf.placeholder(tf.int64, name="sizes")
STEPS = []


def accumulator(name, dtype, shape, reduction="MEAN"):
    """An accumulator, and what is done with it."""
    handle = raw.SparseConditionalAccumulator(dtype=dtype, shape=shape, reduction_type=reduction, shared_name=name, name=name)
    values = tf.placeholder(dtype, name=f"{name}/values")
    applies = {
        known: raw.SparseAccumulatorApplyGradient(
            handle=handle, local_step=local, gradient_indices=rows, gradient_values=values, gradient_shape=sizes if known else [],
            has_known_shape=known, name=f"{name}/apply_{known}",
        )
        for known in (False, True)
    }
    taken = raw.SparseAccumulatorTakeGradient(handle=handle, num_required=number, dtype=dtype, name=f"{name}/take")
    count = raw.AccumulatorNumAccumulated(handle=handle, name=f"{name}/count")
    set_step = raw.AccumulatorSetGlobalStep(handle=handle, new_global_step=local, name=f"{name}/set_step")

    def put(indices, gradient, at=0, shape=None):
        feeds = {local: at, rows: indices, values: np.array(gradient)} | ({} if shape is None else {sizes: shape})
        STEPS.append(step(targets=[applies[shape is not None]], feeds=feeds))

    def take(needed):
        STEPS.append(step(list(taken), feeds={number: needed}))

    def look():
        STEPS.append(step([count]))

    return put, take, look, lambda at: STEPS.append(step(targets=[set_step], feeds={local: at}))


for dtype in (tf.float16, tf.float32, tf.float64):
    for reduction in ("MEAN", "SUM"):
        put, take, look, begin = accumulator(f"{dtype.name}_{reduction}", dtype, [5, 2], reduction)
        put([0, 3], [[1, 2], [3, 4]])
        put([0, 1, 4], [[10, 20], [30, 40], [50, 60]], shape=[5, 2])
        put([1, 3], [[0.5, 0.25], [-1, 1]])
        look()
        take(2)
        look()
        # Too late by one step.
        put([0], [[9, 9]])
        look()
        put([2], [[7, 9]], at=1)
        take(1)
        begin(7)
        put([2], [[7, 9]], at=6)
        put([2], [[1, 3]], at=7)
        take(1)

# Rows as they stand: neither in order, nor once each.
put, take, look, begin = accumulator("unordered", tf.float32, [None, 1])
put([3, 1, 1], [[1], [2], [3]])
put([1, 3, 0], [[4], [5], [6]])
take(2)
put([], np.zeros([0, 1]), at=1)
put([2], [[3]], at=1)
take(1)

# The rank of an accumulator's shape is the least; its first gradient says more.
put, take, look, begin = accumulator("checked", tf.float32, [2, 2, None])
put([0], [[1, 2]], shape=[2, 2])
put([0], [[[1, 2], [3, 4], [5, 6]]], shape=[2, 3, 2])
put([3], [[[1, 2], [3, 4]]])
put([0, 1], [[1, 2], [3, 4]])
put([0], [[[1, 2], [3, 4], [5, 6]]])
put([0], [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]])
put([0], [[[1, 2], [3, 4]]])
put([0], [[[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]]])
take(1)
put([[0, 1], [1, 0]], [1, 2], at=1)
put([0], 1.0, at=1)
put([0, 1], [[0, 1, 1]], at=1)
put([0], [[[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]]], at=1)
take(0)
take(-1)
take(1)

put, take, look, begin = accumulator("scalar", tf.float32, [])
put([0], [1.0], shape=[])
put([4], [3.0])
take(1)
