"""Ragged tensors: gathered, made dense and sparse, differentiated, sent between tasks, and as elements of datasets."""

import numpy as np

from client import check, raises, target, tf

CLUSTER = {"local": 2}


def same(actual, expected):
    check(np.asarray(actual).tolist() == expected, actual)


rows = [[1.0, 2.0, 3.0], [], [4.0, 5.0], [6.0]]
splits = [0, 3, 3, 5, 6]
with tf.device("/job:local/task:1"):
    values = tf.placeholder(tf.float32, [6])
ragged = tf.RaggedTensor.from_row_splits(values, tf.constant(splits, tf.int64))
numbers = {values: np.arange(1, 7)}
with tf.Session(target("local/0")) as session:

    def run(fetches):
        return session.run(fetches, numbers)

    # Chosen rows, and rows of chosen rows.
    check(run(tf.gather(ragged, [2, 0])).to_list() == [rows[2], rows[0]])
    check(run(tf.gather(ragged, [[2, 0], [1, 3]])).to_list() == [[rows[2], rows[0]], [rows[1], rows[3]]])
    with raises(tf.errors.InvalidArgumentError, "is not in"):
        session.run(tf.gather(ragged, tf.constant([4])), numbers)

    # Ranges, sums, concatenations and masks are made of them.
    check(session.run(tf.ragged.range([3, 0], [5, 2])).to_list() == [[3, 4], [0, 1]])
    same(run(tf.reduce_sum(ragged, axis=1)), [6, 0, 9, 6])
    check(run(tf.concat([ragged, ragged], axis=1)).to_list() == [row + row for row in rows])
    check(run(tf.ragged.boolean_mask(ragged, ragged > 2.0)).to_list() == [[3.0], [], [4.0, 5.0], [6.0]])

    # Dense and sparse, and back.
    filled = [[1, 2, 3], [-1, -1, -1], [4, 5, -1], [6, -1, -1]]
    same(run(ragged.to_tensor(default_value=-1.0)), filled)
    sparse = run(ragged.to_sparse())
    same(sparse.indices, [[0, 0], [0, 1], [0, 2], [2, 0], [2, 1], [3, 0]])
    check(sparse.values.tolist() == [1, 2, 3, 4, 5, 6] and sparse.dense_shape.tolist() == [4, 3])
    check(run(tf.RaggedTensor.from_sparse(ragged.to_sparse())).to_list() == rows)

    # Gradients go back to the values.
    (by_gathered,) = tf.gradients(tf.reduce_sum(tf.gather(ragged, [0, 0, 3]).flat_values ** 2), [values])
    same(run(tf.convert_to_tensor(by_gathered)), [4, 8, 12, 0, 0, 12])
    (by_dense,) = tf.gradients(tf.reduce_sum(ragged.to_tensor()[:, 0]), [values])
    same(run(tf.convert_to_tensor(by_dense)), [1, 0, 0, 1, 0, 1])

    # Elements of datasets.
    constant = tf.ragged.constant(rows)
    following = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(constant).map(lambda row: row * 2)).get_next()
    for row in rows:
        same(session.run(following), [2 * x for x in row])
    nested = tf.ragged.constant([[[1], [2, 3]], [], [[4, 5, 6]]])
    following = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(nested).batch(2)).get_next()
    check(session.run(following).to_list() == [[[1], [2, 3]], []])
    check(session.run(following).to_list() == [[[4, 5, 6]]])
