"""Datasets whose elements have sparse components, datasets that are cached in files, and datasets as graphs."""

import os

import numpy as np

from client import check, data, raises, same, target, tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.ops import sparse_ops

CLUSTER = {"local": 2}


def elements(session, dataset):
    following = tf.data.make_one_shot_iterator(dataset).get_next()
    found = []
    while True:
        try:
            found.append(session.run(following))
        except tf.errors.OutOfRangeError:
            return found


def whole(value):
    """A sparse value as three lists."""
    return [np.asarray(part).tolist() for part in value]


table = tf.SparseTensor([[0, 1], [1, 0], [1, 2], [3, 1]], [5.0, 6.0, 7.0, 8.0], [4, 3])
rows = [[[[1]], [5.0], [3]], [[[0], [2]], [6.0, 7.0], [3]], [[], [], [3]], [[[1]], [8.0], [3]]]
with tf.Session(target("local/0")) as session:
    # Rows of a sparse tensor, alone and beside a dense one.
    got = elements(session, tf.data.Dataset.from_tensor_slices(table))
    check([whole(value) for value in got] == rows, got)
    pairs = tf.data.Dataset.from_tensor_slices({"sparse": table, "dense": np.arange(4)})
    got = elements(session, pairs)
    check([whole(value["sparse"]) for value in got] == rows and [value["dense"] for value in got] == [0, 1, 2, 3])

    # Batches of them; with a remainder, and unbatched again.
    got = elements(session, pairs.batch(3))
    check(whole(got[0]["sparse"]) == [[[0, 1], [1, 0], [1, 2]], [5.0, 6.0, 7.0], [3, 3]], got)
    check(whole(got[1]["sparse"]) == [[[0, 1]], [8.0], [1, 3]], got)
    same(got[0]["dense"], np.arange(3))
    got = elements(session, pairs.batch(2).batch(2))
    check(whole(got[0]["sparse"]) == [[[0, 0, 1], [0, 1, 0], [0, 1, 2], [1, 1, 1]], [5.0, 6.0, 7.0, 8.0], [2, 2, 3]], got)
    got = elements(session, tf.data.Dataset.from_tensors(table).repeat(2).unbatch())
    check([whole(value) for value in got] == rows + rows, got)

    # Functions that take and return them.
    doubled = tf.data.Dataset.from_tensor_slices(table).map(lambda row: tf.SparseTensor(row.indices, row.values * 2, row.dense_shape))
    got = elements(session, doubled.filter(lambda row: tf.size(row.values) > 0).batch(2))
    check(whole(got[0]) == [[[0, 1], [1, 0], [1, 2]], [10.0, 12.0, 14.0], [2, 3]], got)
    got = elements(session, doubled.map(lambda row: tf.sparse.to_dense(row)))
    same(np.stack(got), np.array([[0, 10, 0], [12, 0, 14], [0, 0, 0], [0, 16, 0]], np.float32))
    made = tf.data.Dataset.range(3).map(lambda i: tf.sparse.expand_dims(tf.sparse.from_dense([i, 0, i * i]), 0))
    got = elements(session, made.cache().repeat(2).shuffle(1))
    check([value.values.tolist() for value in got] == [[], [1, 1], [2, 4]] * 2, got)
    got = elements(session, tf.data.Dataset.zip((made, made.skip(1))).take(2))
    check([(a.values.tolist(), b.values.tolist()) for a, b in got] == [([], [1, 1]), ([1, 1], [2, 4])], got)
    parsed = tf.data.Dataset.from_tensor_slices(["b a", "", "c"]).map(lambda line: tf.string_split([line]))
    got = elements(session, parsed)
    check([value.values.tolist() for value in got] == [[b"b", b"a"], [], [b"c"]], got)

    # Sparse tensors as strings.
    one, many = tf.serialize_sparse(table), tf.serialize_many_sparse(table)
    check(session.run([tf.shape(one), tf.shape(many)])[1].tolist() == [4, 3])
    again = tf.deserialize_many_sparse(many, tf.float32, rank=1)
    check(whole(session.run(again)) == [[[0, 1], [1, 0], [1, 2], [3, 1]], [5.0, 6.0, 7.0, 8.0], [4, 3]])
    check(whole(session.run(sparse_ops.deserialize_sparse(one, tf.float32, rank=2))) == whole(session.run(table)))
    with raises(tf.errors.InvalidArgumentError, "Requested SparseTensor of type int32"):
        session.run(sparse_ops.deserialize_sparse(one, tf.int32, rank=2))

    # A cache in a file outlives its iterator.
    name = data("elements")
    words = tf.data.Dataset.from_tensor_slices((np.arange(6).reshape(3, 2), ["a", "b", ""]))
    first = elements(session, words.cache(name))
    check(any(file.startswith("elements.") for file in os.listdir(data())), os.listdir(data()))
    second = elements(session, tf.data.Dataset.from_tensors((np.int64([9, 9]), "other")).cache(name))
    for got in first, second:
        check([value[1] for value in got] == [b"a", b"b", b""], got)
        same(np.stack([value[0] for value in got]), np.arange(6).reshape(3, 2))
    half = tf.data.Dataset.range(4).cache(data("half"))
    following = tf.data.make_one_shot_iterator(half).get_next()
    check([session.run(following) for _ in range(2)] == [0, 1])
    with raises(tf.errors.AlreadyExistsError, "There appears to be a concurrent caching iterator running"):
        elements(session, half)

    # A dataset as a graph.
    described = tf.data.Dataset.range(5).map(lambda i: i + 1).shuffle(3, seed=1).batch(2)
    graph = graph_pb2.GraphDef.FromString(session.run(described._as_serialized_graph()))
    ops = [node.op for node in graph.node]
    check(any(op.startswith("ShuffleDataset") for op in ops) and "RangeDataset" in ops and ops[-1] == "_Retval", ops)
    check(len(graph.library.function) == 1 and "AddV2" in {node.op for node in graph.library.function[0].node_def})
