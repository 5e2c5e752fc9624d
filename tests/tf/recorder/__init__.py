"""Asks TensorFlow for the values that the tests expect. `record.py` is its command line.

    values.py     tensors as the recorded files write them, and when two of them are the same
    ops.py        one op at a time: `tests/data/kernels/*.json` and `tests/data/updates/*.json`
    shapes/       what it infers of the shapes of nodes of every op: `tests/data/shapes/shapes.json`
    sessions.py   a graph and what a session runs of it, step by step: `tests/cases/*`

A recorded file is its own specification: whatever it says beside the answers can be asked of TensorFlow again.
"""
