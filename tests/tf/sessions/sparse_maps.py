"""Sparse tensors that one step puts in a map and another takes out, by their numbers."""

from recorder.sessions import step, tf

raw = tf.raw_ops

STEPS = []
numbers = tf.placeholder(tf.int64, name="numbers")
for dtype, all_values in ((tf.float32, [1.5, -2.0, 3.0]), (tf.string, [b"a", b"", b"ccc"]), (tf.int64, [7, 8, 1 << 40])):
    name = dtype.name
    indices, values = tf.placeholder(tf.int64, name=f"{name}/indices"), tf.placeholder(dtype, name=f"{name}/values")
    sizes = tf.placeholder(tf.int64, name=f"{name}/sizes")
    one = raw.AddSparseToTensorsMap(sparse_indices=indices, sparse_values=values, sparse_shape=sizes, shared_name=name, name=f"{name}/one")
    many = raw.AddManySparseToTensorsMap(sparse_indices=indices, sparse_values=values, sparse_shape=sizes, shared_name=name, name=f"{name}/many")
    taken = raw.TakeManySparseFromTensorsMap(sparse_handles=numbers, dtype=dtype, shared_name=name, name=f"{name}/taken")

    def put(op, at, shape, count=3):
        STEPS.append(step([op], feeds={indices: at, values: all_values[:count], sizes: shape}))

    put(one, [[0, 1], [1, 0], [1, 2]], [2, 3])
    put(one, [[0, 0], [3, 1], [3, 4]], [4, 5])
    # Rows without elements are numbered after the others.
    put(many, [[1, 1], [1, 2], [4, 0]], [6, 3])
    put(one, [[2]], [4], 1)
    take = lambda *which: STEPS.append(step(list(taken), feeds={numbers: list(which)}))
    take(1, 0)
    take(1)
    take(4, 2, 3)
    take(5, 99)
    take(5, 5)
    take(5, 8)
    take(6, 7)
    take(6)
    take(5)
    put(many, [[0], [1], [2]], [3])
    put(many, [[4, 0], [1, 1], [1, 2]], [6, 3])
    put(one, [[0, 1], [1, 0]], [2, 3])
other = raw.TakeManySparseFromTensorsMap(sparse_handles=numbers, dtype=tf.int32, shared_name="float32", name="other")
STEPS.append(step(list(other), feeds={numbers: [8]}))
