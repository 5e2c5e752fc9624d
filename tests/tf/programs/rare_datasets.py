"""Datasets that few programs have, held against the same on TensorFlow itself; and iterators that are saved beside a model."""

import gzip

import numpy as np
from tensorflow.python.data.ops import dataset_ops, structured_function

from client import check, data, on_tensorflow, raises, same, target, tf, written

CLUSTER = {"local": 1}

raw, more = tf.raw_ops, tf.data.experimental
RANGE, LIST = tf.data.Dataset.range, tf.data.Dataset.from_tensor_slices

table = written("rare/table.csv", b'a,b,"c\nc"\n1.5,2,x\n-3,,"y,""z"""\n4,5,"two\nlines"\r\n7,8,\n')
other = written("rare/other.csv", b"h1,h2,h3\n0.25,-9,last")
wrong = written("rare/wrong.csv", b'x,y,z\n1,2,3\n1,2\n1,2,3,4\na,2,3\n1,b,3\n,2,3\n1,2,a"b\n1,2,"a"b"\n5,6,7\n8,9,"open')
packed = written("rare/packed.gz", gzip.compress(b"1,2,3\n" * 500))
written("rare/more/deep.csv", b""), written("rare/.hidden.csv", b"")
folder = data("rare")
fields = [tf.float32, np.array([7]), tf.string]


def of(dataset):
    return dataset._variant_tensor


def one(variant, shape=(), dtype=tf.int64):
    """A dataset that an op made."""
    return dataset_ops._VariantDataset(variant, tf.TensorSpec(shape, dtype))


def example(**features):
    lists = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for name, value in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


examples = [example(b=[1, 2], a=[3]), example(b=[4, 5]), example(a=[6, 7], b=[8, 9])]
wanted = {"b": tf.io.FixedLenFeature([2], tf.int64), "a": tf.io.VarLenFeature(tf.int64)}
csv = dict(compression_type="", buffer_size=7, header=True, field_delim=",", use_quote_delim=True, na_value="", select_cols=[0, 1])
csv.update(record_defaults=[np.float32([0]), np.zeros([0], np.int64)], output_shapes=[[], []])
pair = (tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int64))
grows = lambda: RANGE(5).map(lambda x: tf.fill([x], x))
batches = lambda: of(RANGE(7).batch(5))
rows = {"output_types": [tf.int64], "output_shapes": [[None]]}
numbers = {"output_types": [tf.int64], "output_shapes": [[]]}
fed = dict(num_parallel_calls=1, dense_defaults=[np.array([0, 0])], sparse_keys=[], dense_keys=["b"], sparse_types=[], dense_shapes=[[2]])
fed.update(output_types=[tf.int64], output_shapes=[[None, 2]])
sparse = dict(batch_size=2, row_shape=[5], output_types=[tf.variant], output_shapes=[None])
sparses = tf.SparseTensorSpec([None, 5], tf.int64)


def of_branches(dataset, shape, *branches, ratio=(1, 1), tried=2):
    """What ChooseFastestBranchDataset makes of a dataset."""
    structure = tf.data.DatasetSpec(dataset.element_spec)
    made = [structured_function.StructuredFunctionWrapper(branch, "meshtf", input_structure=structure).function for branch in branches]
    captured = [function.captured_inputs for function in made]
    variant = raw.ChooseFastestBranchDataset(
        input_dataset=of(dataset), ratio_numerator=ratio[0], ratio_denominator=ratio[1], other_arguments=sum(captured, []),
        num_elements_per_branch=tried, branches=made, other_arguments_lengths=[len(each) for each in captured],
        output_types=[tf.int64], output_shapes=[shape],
    )
    return one(variant, shape)


def of_worker(dataset, policy=0, make=raw.AutoShardDataset):
    """What AutoShardDataset gives the second of three workers."""
    numbers = dict(num_workers=3, index=1, auto_shard_policy=policy)
    made = make(input_dataset=of(dataset), output_types=[tf.string], output_shapes=[[]], **numbers)
    return one(made, (), tf.string)


many = [written(f"rare/lines/{i}", b"".join(b"%d of %d\n" % (line, i) for line in range(3))) for i in range(7)]
lines = lambda **how: tf.data.Dataset.list_files(many, **how).flat_map(tf.data.TextLineDataset)

captures = lambda make: make(tf.constant(10, tf.int64))

PIPELINES = {
    "branches": lambda: of_branches(
        RANGE(12), [None], lambda x: x.map(lambda y: y * 10).batch(2), lambda x: x.batch(2).map(lambda y: y * 10), ratio=(2, 1)
    ),
    "branches_captured": lambda: of_branches(
        RANGE(7), (), *captures(lambda ten: [lambda x: x.map(lambda y: y * ten), lambda x: x.map(lambda y: ten * y)])
    ),
    "branch_twice": lambda: of_branches(RANGE(2), (), lambda x: x.repeat(2), ratio=(1, 2), tried=6),
    "branches_uneven": lambda: of_branches(RANGE(2), (), lambda x: x, ratio=(1, 2), tried=3),
    "branches_none": lambda: of_branches(RANGE(2), (), lambda x: x, ratio=(0, 1)),
    "shard_files": lambda: of_worker(lines(shuffle=False).map(lambda line: line + b".").prefetch(2)),
    "shard_files_of_both": lambda: of_worker(lines(shuffle=False).concatenate(lines(shuffle=False).skip(2))),
    "shard_files_in_turns": lambda: of_worker(LIST(many).interleave(tf.data.TextLineDataset, cycle_length=2).repeat(2)),
    "shard_files_shuffled": lambda: of_worker(lines(shuffle=True, seed=5).shard(3, 0)),
    "shard_older": lambda: of_worker(lines(shuffle=False), make=raw.ExperimentalAutoShardDataset),
    "shard_elements": lambda: of_worker(RANGE(8).map(tf.strings.as_string)),
    "shard_elements_of_files": lambda: of_worker(lines(shuffle=False), 2),
    "shard_nothing": lambda: of_worker(lines(shuffle=False), -1),
    "csv": lambda: more.CsvDataset([table, other], fields, header=True),
    "csv_small_buffer": lambda: more.CsvDataset([table, other], fields, header=True, buffer_size=3),
    "csv_some": lambda: more.CsvDataset(table, [tf.string, tf.string], header=True, select_cols=[0, 2]),
    "csv_others": lambda: dataset_ops._VariantDataset(
        raw.CSVDatasetV2(filenames=[other], exclude_cols=[2], **{**csv, "select_cols": np.zeros([0], np.int64)}), pair
    ),
    "csv_wrong": lambda: more.CsvDataset(wrong, fields, header=True),
    "csv_no_quotes": lambda: more.CsvDataset(other, [tf.string] * 3, use_quote_delim=False, na_value="h2"),
    "csv_packed": lambda: more.CsvDataset(packed, [tf.int32] * 3, "GZIP").batch(150),
    "csv_missing": lambda: more.CsvDataset([folder + "/none", other], fields),
    "csv_v1": lambda: dataset_ops._VariantDataset(raw.CSVDataset(filenames=[other], **csv), pair),
    "csv_older": lambda: dataset_ops._VariantDataset(raw.ExperimentalCSVDataset(filenames=[other], **csv), pair),
    "sparse": lambda: grows().sparse_batch(2, [5]),
    "sparse_open": lambda: grows().sparse_batch(3, [None]),
    "sparse_too_long": lambda: grows().sparse_batch(2, [2]),
    "sparse_raw": lambda: dataset_ops._VariantDataset(raw.DenseToSparseBatchDataset(input_dataset=of(grows()), **sparse), sparses),
    "sparse_older": lambda: dataset_ops._VariantDataset(
        raw.ExperimentalDenseToSparseBatchDataset(input_dataset=of(grows()), **sparse), sparses
    ),
    "examples": lambda: LIST(examples).batch(2).apply(more.parse_example_dataset(wanted)),
    "examples_v1": lambda: one(raw.ParseExampleDataset(input_dataset=of(LIST(examples).batch(2)), **fed), [None, 2]),
    "examples_v2": lambda: one(raw.ParseExampleDatasetV2(input_dataset=of(LIST(examples).batch(2)), **fed), [None, 2]),
    "examples_older": lambda: one(
        raw.ExperimentalParseExampleDataset(input_dataset=of(LIST(examples).batch(2)), **fed), [None, 2]
    ),
    "examples_wrong": lambda: LIST(examples).batch(2).apply(more.parse_example_dataset({"b": tf.io.FixedLenFeature([2], tf.float32)})),
    "matching": lambda: one(
        raw.MatchingFilesDataset(patterns=[folder + "/*.csv", folder + "/*/*.csv", folder + "/t?ble.csv"]), (), tf.string
    ),
    "matching_older": lambda: one(raw.ExperimentalMatchingFilesDataset(patterns=folder + "/[a-o]*.csv"), (), tf.string),
    "matching_none": lambda: one(raw.MatchingFilesDataset(patterns=folder + "/*.none"), (), tf.string),
    "rebatch": lambda: one(raw.RebatchDataset(input_dataset=batches(), num_replicas=2, **rows), [None]),
    "rebatch_older": lambda: one(raw.ExperimentalRebatchDataset(input_dataset=batches(), num_replicas=3, **rows), [None]),
    "fastest": lambda: one(raw.ChooseFastestDataset(input_datasets=[of(RANGE(3))] * 2, num_experiments=1, **numbers)),
    "fastest_older": lambda: one(
        raw.ExperimentalChooseFastestDataset(input_datasets=[of(RANGE(3))] * 2, num_experiments=1, **numbers)
    ),
    "fastest_differ": lambda: one(
        raw.ChooseFastestDataset(input_datasets=[of(RANGE(3)), of(RANGE(4))], num_experiments=1, **numbers)
    ),
    "of_datasets": lambda: LIST([RANGE(2), RANGE(5, 7)]).flat_map(lambda x: x),
    "of_datasets_within": lambda: tf.data.Dataset.from_tensors([RANGE(2), RANGE(5, 7)]).flat_map(LIST).flat_map(lambda x: x),
}


def elements(make, where):
    """The elements of a dataset, with the class of each error between them."""
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(make())
        value, got = iterator.get_next(), []
        with tf.Session(where) as session:
            try:
                session.run(iterator.initializer)
            except tf.errors.OpError as error:
                return [type(error).__name__]
            while len(got) < 40:
                try:
                    got.append(session.run(value))
                except tf.errors.OutOfRangeError:
                    return got
                except tf.errors.OpError as error:
                    got.append(type(error).__name__)
                    if type(error) is tf.errors.NotFoundError:
                        return got
    return got


for name, make in PIPELINES.items():
    got, expected = elements(make, target("local/0")), elements(make, "")
    check(repr(got) == repr(expected), name, got, expected)

with tf.Graph().as_default(), tf.Session(target("local/0")) as session:
    # Elements as the records of a file.
    for place, (to_records, packing) in enumerate([(raw.DatasetToTFRecord, ""), (raw.ExperimentalDatasetToTFRecord, "GZIP")]):
        path = data(f"rare/{place}.records")
        session.run(to_records(input_dataset=of(LIST([b"one", b"", b"three"])), filename=path, compression_type=packing))
        check([record.numpy() if hasattr(record, "numpy") else record for record in tf.python_io.tf_record_iterator(
            path, tf.python_io.TFRecordOptions(getattr(tf.python_io.TFRecordCompressionType, packing or "NONE"))
        )] == [b"one", b"", b"three"])
    with raises(tf.errors.InvalidArgumentError):
        session.run(raw.DatasetToTFRecord(input_dataset=of(RANGE(2)), filename=path, compression_type=""))
    # A function of each row.
    two = tf.data.Dataset.from_tensors((tf.constant(0.0), tf.constant([0.0, 0.0])))
    scale = tf.constant(10.0)
    f = structured_function.StructuredFunctionWrapper(lambda x, y: (x * scale, y + x), "meshtf", dataset=two).function
    xs, ys = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None, 2])
    made = raw.MapDefun(
        arguments=[xs, ys], captured_inputs=f.captured_inputs, output_types=[tf.float32] * 2, output_shapes=[[], [2]], f=f
    )
    got = session.run(made, {xs: [1, 2], ys: [[1, 2], [3, 4]]})
    same(got[0], np.float32([10, 20])), same(got[1], np.float32([[2, 3], [5, 6]]))
    got = session.run(made, {xs: [], ys: np.zeros([0, 2])})
    check(got[1].shape == (0, 2), got)
    with raises(tf.errors.InvalidArgumentError):
        session.run(made, {xs: [1], ys: [[1, 2], [3, 4]]})


def continued(make, where, cuts):
    """The elements of a dataset, whose iterator is saved and restored in another session after each of some numbers of them."""
    got, prefix = [], data("rare/iterator" + ("" if where else "-tf"))
    for place, count in enumerate(cuts):
        with tf.Graph().as_default():
            iterator = tf.data.make_initializable_iterator(make())
            value = iterator.get_next()
            steps = tf.Variable(0)
            saver = tf.train.Saver({"iterator": more.make_saveable_from_iterator(iterator), "steps": steps})
            with tf.Session(where) as session:
                session.run([iterator.initializer, steps.initializer])
                if place:
                    saver.restore(session, prefix)
                    check(session.run(steps) == len(got))
                for _ in range(count):
                    got.append(session.run(value).tolist())
                session.run(steps.assign(len(got)))
                saver.save(session, prefix, write_meta_graph=False)
    return got


SAVED = {
    "range": lambda: RANGE(12),
    "shuffled": lambda: RANGE(6).shuffle(4, seed=5).repeat(2),
    "shuffled_each": lambda: RANGE(4).flat_map(lambda x: RANGE(3).shuffle(3, seed=2)).batch(1),
    "windows": lambda: RANGE(20).window(3, shift=2).flat_map(lambda x: x.batch(3)),
    "interleaved": lambda: RANGE(5).interleave(lambda x: RANGE(x), cycle_length=2, block_length=2).concatenate(RANGE(4)),
    "cached": lambda: RANGE(4).map(lambda x: x * x).cache().repeat(3),
}
for name, make in SAVED.items():
    got, expected = continued(make, target("local/0"), [3, 0, 5, 1]), continued(make, "", [9])
    check(got == expected, name, got, expected)

# Unseeded: what was not given yet follows, in whatever order.
got = continued(lambda: RANGE(50).shuffle(50), target("local/0"), [20, 20, 10])
check(sorted(got) == list(range(50)), got)

# The same as a string.
with tf.Graph().as_default(), tf.Session(target("local/0")) as session:
    iterator = tf.data.make_initializable_iterator(RANGE(9))
    value, handle = iterator.get_next(), iterator._iterator_resource
    state = tf.io.serialize_tensor(raw.SerializeIterator(resource_handle=handle))
    name = tf.placeholder(tf.string, [])
    begin = raw.DeserializeIterator(resource_handle=handle, serialized=tf.io.parse_tensor(name, tf.variant))
    session.run(iterator.initializer)
    check([session.run(value) for _ in range(3)] == [0, 1, 2])
    text = session.run(state)
    check([session.run(value) for _ in range(3)] == [3, 4, 5])
    session.run(begin, {name: text})
    check([session.run(value) for _ in range(3)] == [3, 4, 5])

with tf.Graph().as_default(), tf.Session(target("local/0")) as session:
    iterator = tf.data.make_initializable_iterator(RANGE(3).map(lambda x: tf.random_uniform([], 0, 9, tf.int64)))
    state = raw.SerializeIterator(resource_handle=iterator._iterator_resource)
    with raises(tf.errors.FailedPreconditionError, "not been initialized"):
        session.run(state.op)
    session.run(iterator.initializer)
    # TensorFlow 2 warns and saves it nevertheless, and ends if what is to be restored is a dataset.
    if not on_tensorflow():
        with raises(tf.errors.FailedPreconditionError, "stateful"):
            session.run(state.op)
        with raises(tf.errors.InvalidArgumentError, "state of an iterator"):
            session.run(raw.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=of(RANGE(2))))
