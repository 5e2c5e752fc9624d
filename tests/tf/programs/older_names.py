"""Ops by their older names, and those that TensorFlow 2.21 has no kernel for any more or cannot run in a graph."""


import numpy as np
from tensorflow.python.data.ops import structured_function
from tensorflow.python.framework import errors

from client import check, data, same, target, tf, written

CLUSTER = {"local": 2}

raw = tf.raw_ops
RANGE = tf.data.Dataset.range
OF = {"output_types": [tf.int64], "output_shapes": [[]]}


def number(value):
    return tf.constant(value, tf.int64)


def of(dataset):
    return dataset._variant_tensor


def calls(function, dataset):
    made = structured_function.StructuredFunctionWrapper(function, "meshtf", dataset=dataset)
    return made.function, made.function.captured_inputs


def elements(variant, shape=()):
    """All that a dataset has."""
    shapes = [tf.TensorShape(shape)]
    iterator = raw.IteratorV2(shared_name="", container="", output_types=[tf.int64], output_shapes=shapes)
    begin = raw.MakeIterator(dataset=variant, iterator=iterator)
    [value] = raw.IteratorGetNext(iterator=iterator, output_types=[tf.int64], output_shapes=shapes)
    got = []
    with tf.Session(target("local/0")) as session:
        session.run(begin)
        try:
            while True:
                got.append(session.run(value).tolist())
        except errors.OutOfRangeError:
            return got


with tf.Graph().as_default(), tf.device("/job:local/task:1"):
    marked = RANGE(6).map(lambda x: (x, tf.equal(x % 2, 1)))
    got = elements(raw.FilterByLastComponentDataset(input_dataset=of(marked), **OF))
    check(got == [1, 3, 5], got)
    some = RANGE(2, 6)
    f, captured = calls(lambda x: x * 10, some)
    got = elements(raw.ExperimentalMapDataset(input_dataset=of(some), other_arguments=captured, f=f, **OF))
    check(got == [20, 30, 40, 50], got)
    predicate, captured = calls(lambda x: x > 3, some)
    filters = {"other_arguments": captured, "num_parallel_calls": number(2), "predicate": predicate}
    got = elements(raw.ParallelFilterDataset(input_dataset=of(some), **filters, **OF))
    check(got == [4, 5], got)
    grows = RANGE(1, 4).map(lambda x: tf.range(x))
    padded = {"padded_shapes": [number([-1])], "padding_values": [number(-7)], "output_shapes": [[None, None]]}
    got = elements(raw.PaddedBatchDataset(input_dataset=of(grows), batch_size=number(2), **padded), (None, None))
    check(got == [[[0, -7], [0, 1]], [[0, 1, 2]]], got)
    of_seeds = [make(seed=number(6), seed2=number(7), **OF) for make in (raw.RandomDataset, raw.ExperimentalRandomDataset)]
    first, second = [elements(raw.TakeDataset(input_dataset=made, count=number(3), **OF)) for made in of_seeds]
    check(first == second and len(set(first)) == 3, (first, second))


def check_reader(reader, names, expected):
    """What a reader by reference gives of the files that a queue by reference names."""
    queue = raw.FIFOQueue(component_types=[tf.string], shapes=[[]], capacity=9, container="", shared_name="")
    fill = raw.QueueEnqueueMany(handle=queue, components=[tf.constant(names)])
    with tf.control_dependencies([fill]):
        fill = raw.QueueClose(handle=queue)
    reads = raw.ReaderRead(reader_handle=reader, queue_handle=queue)
    count = raw.ReaderNumRecordsProduced(reader_handle=reader)
    with tf.Session(target("local/0")) as session:
        session.run(fill)
        same(np.array([session.run(reads.value) for _ in expected]), np.array(expected))
        check(session.run(count) == len(expected))


with tf.Graph().as_default():
    # A graph of an older client: newer ones may not have readers by reference.
    older = tf.GraphDef()
    older.versions.producer = 21
    tf.import_graph_def(older, name="")
    lines, fixed, packed = written("older/lines", b"head\none\ntwo\n"), written("older/fixed", b"Haaabbb"), data("older/records")
    with tf.io.TFRecordWriter(packed) as writer:
        for record in [b"x", b"yy"]:
            writer.write(record)
    check_reader(raw.IdentityReader(container="", shared_name="a"), ["p", "q"], [b"p", b"q"])
    check_reader(raw.TextLineReader(skip_header_lines=1, container="", shared_name="b"), [lines], [b"one", b"two"])
    sizes = {"header_bytes": 1, "record_bytes": 3, "footer_bytes": 0, "hop_bytes": 0}
    check_reader(raw.FixedLengthRecordReader(container="", shared_name="c", **sizes), [fixed], [b"aaa", b"bbb"])
    check_reader(raw.TFRecordReader(container="", shared_name="d", compression_type=""), [packed], [b"x", b"yy"])
