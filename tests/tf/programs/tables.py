"""Lookup tables: vocabularies that tables_initializer fills, from tensors and from files; tables that change; shared ones;
and V1's handles, which are references."""

import numpy as np
from tensorflow.python.framework import errors
from tensorflow.python.ops import lookup_ops

from client import check, data, raises, same, target, tf

CLUSTER = {"local": 2}

vocabulary = data("words.txt")
with open(vocabulary, "w") as file:
    file.write("brain\nsalad\nsurgery\n")
pairs = data("pairs.tsv")
with open(pairs, "w") as file:
    file.write("one\t1\ttrue\ntwo\t2\tfalse\n")

# As a TensorFlow 1 input function has them: an index of words, and words of indices, on another task.
with tf.Graph().as_default(), tf.device("/job:local/task:1"):
    words = tf.constant(["salad", "surgery", "tarkus", "brain"])
    index = lookup_ops.index_table_from_file(vocabulary, num_oov_buckets=1).lookup(words)
    back = lookup_ops.index_to_string_table_from_file(vocabulary, default_value="?").lookup(tf.constant([1, 0, 9], tf.int64))
    from_tensor = lookup_ops.index_table_from_tensor(tf.constant(["a", "b"]), default_value=-7).lookup(tf.constant(["b", "z"]))
    columns = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(pairs, tf.string, 0, tf.int64, 1, delimiter="\t"), -1)
    found = columns.lookup(tf.constant([["two", "one"], ["six", "two"]]))
    numbers = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [0.5, 1.5], tf.int64, tf.float32), -1.0)
    values, size = numbers.lookup(tf.constant([2, 3, 1], tf.int64)), numbers.size()
    exported = numbers.export()
    with tf.Session(target("local/0")) as session:
        with raises(errors.FailedPreconditionError):
            session.run(values)
        session.run(tf.tables_initializer())
        # Once more changes nothing.
        session.run(tf.tables_initializer())
        same(session.run(index), np.array([1, 2, 3, 0]))
        check(session.run(back).tolist() == [b"salad", b"brain", b"?"])
        same(session.run(from_tensor), np.array([1, -7]))
        same(session.run(found), np.array([[2, 1], [-1, 2]]))
        same(session.run(values), np.array([1.5, -1, 0.5], np.float32))
        check(session.run(size) == 2)
        keys, held = session.run(exported)
        check(sorted(zip(keys.tolist(), held.tolist())) == [(1, 0.5), (2, 1.5)])

# Another session has to fill a table of its own, unless the table has a name to share.
with tf.Graph().as_default():
    for shared in ("", "shared words"):
        handle = tf.raw_ops.HashTableV2(key_dtype="string", value_dtype="int64", shared_name=shared)
        fill = tf.raw_ops.InitializeTableV2(table_handle=handle, keys=["a", "b"], values=tf.constant([1, 2], tf.int64))
        less = tf.raw_ops.InitializeTableV2(table_handle=handle, keys=["a"], values=tf.constant([1], tf.int64))
        size = tf.raw_ops.LookupTableSizeV2(table_handle=handle)
        with tf.Session(target("local/0")) as first, tf.Session(target("local/0")) as second:
            first.run(fill)
            check(second.run(size) == (2 if shared else 0), shared)
            with raises(errors.FailedPreconditionError):
                first.run(less)

# Those that change.
with tf.Graph().as_default():
    table = lookup_ops.MutableHashTable(tf.string, tf.int64, default_value=-1)
    vectors = lookup_ops.MutableHashTable(tf.int64, tf.float32, default_value=[0.0, 0.0])
    dense = lookup_ops.DenseHashTable(tf.int64, tf.int64, default_value=-1, empty_key=0, deleted_key=-9, initial_num_buckets=4)
    pairs_of = lookup_ops.DenseHashTable(tf.int64, tf.int64, [-1, -2], empty_key=[0, 0], deleted_key=[-1, -1], initial_num_buckets=4)
    insert = table.insert(tf.constant(["x", "y"]), tf.constant([1, 2], tf.int64))
    remove = table.remove(tf.constant(["x", "w"]))
    lookup = table.lookup(tf.constant(["x", "y", "z"]))
    with tf.Session(target("local/0")) as session:
        session.run(insert)
        same(session.run(lookup), np.array([1, 2, -1]))
        session.run(remove)
        same(session.run(lookup), np.array([-1, 2, -1]))
        check(session.run(table.size()) == 1)
        session.run(vectors.insert(tf.constant([5], tf.int64), [[1.0, 2.0]]))
        same(session.run(vectors.lookup(tf.constant([[5, 6]], tf.int64))), np.array([[[1, 2], [0, 0]]], np.float32))
        session.run(dense.insert(tf.constant([11, 12, 13], tf.int64), tf.constant([0, 1, 2], tf.int64)))
        keys, held = session.run(dense.export())
        check(len(keys) == len(held) == 4, keys)
        check(sorted((k, v) for k, v in zip(keys.ravel().tolist(), held.ravel().tolist()) if k != 0) == [(11, 0), (12, 1), (13, 2)])
        check(keys.shape == held.shape == (4, 1))
        session.run(dense.insert(tf.constant([14, 15], tf.int64), tf.constant([3, 4], tf.int64)))
        check(len(session.run(dense.export())[0]) == 8)
        session.run(dense.remove(tf.constant([11], tf.int64)))
        same(session.run(dense.lookup(tf.constant([11, 15], tf.int64))), np.array([-1, 4]))
        with raises(errors.InvalidArgumentError):
            session.run(dense.insert(tf.constant([0], tf.int64), tf.constant([0], tf.int64)))
        session.run(pairs_of.insert(tf.constant([[1, 2], [3, 4]], tf.int64), tf.constant([[5, 6], [7, 8]], tf.int64)))
        same(session.run(pairs_of.lookup(tf.constant([[3, 4], [4, 3]], tf.int64))), np.array([[7, 8], [-1, -2]]))

    # What was exported is held again after an import.
    saved = tf.raw_ops.LookupTableImportV2(table_handle=table.resource_handle, keys=["p", "q"], values=tf.constant([7, 8], tf.int64))
    with tf.Session(target("local/0")) as session:
        session.run(insert)
        session.run(saved)
        keys, held = session.run(table.export())
        check(sorted(zip(keys.tolist(), held.tolist())) == [(b"p", 7), (b"q", 8)])

# A dense table of vectors.
with tf.Graph().as_default():
    dense = tf.raw_ops.MutableDenseHashTableV2(empty_key=tf.constant(0, tf.int64), deleted_key=tf.constant(-1, tf.int64), value_dtype="float32", value_shape=[2], initial_num_buckets=4)
    put = tf.raw_ops.LookupTableInsertV2(table_handle=dense, keys=tf.constant([3, 4], tf.int64), values=[[1.0, 2.0], [3.0, 4.0]])
    drop = tf.raw_ops.LookupTableRemoveV2(table_handle=dense, keys=tf.constant([3], tf.int64))
    get = tf.raw_ops.LookupTableFindV2(table_handle=dense, keys=tf.constant([[3], [4]], tf.int64), default_value=[0.5, 0.5])
    with tf.Session(target("local/0")) as session:
        session.run(put)
        session.run(drop)
        same(session.run(get), np.array([[[0.5, 0.5]], [[3, 4]]], np.float32))

# V1's handles.
with tf.Graph().as_default():
    raw = tf.raw_ops
    old = raw.HashTable(key_dtype="int64", value_dtype="string")
    fill = raw.InitializeTable(table_handle=old, keys=tf.constant([1, 2], tf.int64), values=["one", "two"])
    word = raw.LookupTableFind(table_handle=old, keys=tf.constant([2, 5], tf.int64), default_value="none")
    from_file = raw.HashTable(key_dtype="string", value_dtype="int64")
    read = raw.InitializeTableFromTextFile(table_handle=from_file, filename=vocabulary, key_index=-2, value_index=-1)
    cut = raw.InitializeTableFromTextFile(
        table_handle=raw.HashTable(key_dtype="string", value_dtype="int64"), filename=vocabulary, key_index=-2, value_index=-1, vocab_size=9
    )
    absent = raw.InitializeTableFromTextFile(
        table_handle=raw.HashTable(key_dtype="string", value_dtype="int64"), filename=data("absent"), key_index=-2, value_index=-1
    )
    mutable = raw.MutableHashTable(key_dtype="string", value_dtype="int64")
    of_tensors = raw.MutableHashTableOfTensors(key_dtype="string", value_dtype="int64", value_shape=[2])
    put = raw.LookupTableInsert(table_handle=mutable, keys=["k"], values=tf.constant([3], tf.int64))
    take = raw.LookupTableImport(table_handle=of_tensors, keys=["k"], values=tf.constant([[3, 4]], tf.int64))
    with tf.Session(target("local/0")) as session:
        session.run([fill, read, put, take])
        check(session.run(word).tolist() == [b"two", b"none"])
        check(session.run(raw.LookupTableSize(table_handle=from_file)) == 3)
        with raises(errors.InvalidArgumentError):
            session.run(cut)
        with raises(errors.NotFoundError):
            session.run(absent)
        keys, held = session.run(raw.LookupTableExport(table_handle=of_tensors, Tkeys="string", Tvalues="int64"))
        check(keys.tolist() == [b"k"] and held.tolist() == [[3, 4]])
