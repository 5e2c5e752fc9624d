"""Datasets of files below the data folder: lines, TFRecords and records of one length, packed or not, and names that a function
is given. Held against the same on TensorFlow itself."""

import gzip
import zlib

from client import check, data, raises, target, tf, tf_records, written

CLUSTER = {"local": 2}


text = written("lines/a.txt", b"first\r\nsecond\n\nlast")
more = written("lines/b.txt", b"only\n")
packed = written("lines/c.gz", gzip.compress(b"one\ntwo\n" * 1000))
deflated = written("lines/d.z", zlib.compress(b"three\n"))
fixed = written("fixed/a.bin", b"HHaaabbbcccF")
fixed_packed = written("fixed/a.gz", gzip.compress(b"HHaaabbbcccF"))
cut = written("fixed/cut.bin", b"HHaaabbbccF")
cut_packed = written("fixed/cut.gz", gzip.compress(b"HHaaabbbccF"))
empty = written("empty", b"")
missing = data("none")


records = [b"one", b"", b"three" * 1000]
plain, zipped = tf_records("a.records", records), tf_records("b.records", records, "GZIP")
broken = written("broken.records", open(plain, "rb").read()[:-3])
wrong = written("wrong.records", b"\x00" * 40)
Lines, Records, Fixed = tf.data.TextLineDataset, tf.data.TFRecordDataset, tf.data.FixedLengthRecordDataset
files = tf.data.Dataset.from_tensor_slices

PIPELINES = {
    "lines": lambda: Lines([text, more]),
    "a_name": lambda: Lines(text),
    "lines_packed": lambda: Lines(packed, compression_type="GZIP").batch(700),
    "lines_deflated": lambda: Lines([deflated], "ZLIB", buffer_size=16),
    "records": lambda: Records([plain, empty, plain]),
    "records_packed": lambda: Records(zipped, "GZIP"),
    "fixed": lambda: Fixed(fixed, 3, 2, 1),
    "fixed_without_footer": lambda: Fixed([fixed, fixed], 4),
    "fixed_packed": lambda: Fixed([fixed_packed], 3, 2, 1, compression_type="GZIP"),
    "flat": lambda: files([text, more]).flat_map(lambda name: Lines(name).skip(1)),
    "by_turns": lambda: files([text, more, text]).interleave(Lines, cycle_length=2, block_length=1),
    "numbers": lambda: Lines(more).map(tf.strings.length).repeat(2),
    "missing": lambda: Lines([more, missing, more]),
    "missing_records": lambda: Records([missing, plain]),
    "cut": lambda: Fixed([cut], 3, 2, 1),
    "cut_packed": lambda: Fixed([cut_packed], 3, 2, 1, compression_type="GZIP"),
    "broken": lambda: Records([broken]),
    "wrong": lambda: Records([wrong]),
    "sparse": lambda: Lines(text).map(lambda line: tf.string_split([line], "i").values).padded_batch(4, [None]),
}


def elements(make, where):
    """The elements of a dataset, or the class of the error that it ends with."""
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(make())
        value, got = iterator.get_next(), []
        with tf.Session(where) as session:
            session.run(iterator.initializer)
            while len(got) < 40:
                try:
                    got.append(session.run(value))
                except tf.errors.OutOfRangeError:
                    return got
                except tf.errors.OpError as error:
                    return got + [type(error).__name__]
    return got


for name, make in PIPELINES.items():
    got, wanted = elements(make, target("local/0")), elements(make, "")
    check(repr(got) == repr(wanted), name, got, wanted)

# What leads out of the folder is refused, also within a function.
for make in (lambda: Lines("/etc/passwd"), lambda: files(["/etc/passwd"]).flat_map(Lines)):
    check(elements(make, target("local/0"))[-1] == "PermissionDeniedError")

with tf.Graph().as_default(), tf.Session(target("local/1")) as session:
    sizes = [tf.placeholder(tf.int64, []) for _ in range(4)]
    dataset = tf.raw_ops.FixedLengthRecordDatasetV2(
        filenames=fixed, header_bytes=sizes[0], record_bytes=sizes[1], footer_bytes=sizes[2], buffer_size=sizes[3], compression_type=""
    )
    size = tf.raw_ops.DatasetCardinality(input_dataset=dataset)
    check(session.run(size, dict(zip(sizes, [2, 3, 1, 0]))) == -2)
    for wrong_sizes in ([-1, 3, 1, 0], [2, 0, 1, 0], [2, 3, -1, 0], [2, 3, 1, -1]):
        with raises(tf.errors.InvalidArgumentError):
            session.run(size, dict(zip(sizes, wrong_sizes)))
    for raw in (tf.raw_ops.TextLineDataset, tf.raw_ops.TFRecordDataset):
        named = raw(filenames=fixed, compression_type=tf.constant("LZ4"), buffer_size=tf.constant(0, tf.int64))
        with raises(tf.errors.InvalidArgumentError):
            session.run(tf.raw_ops.DatasetCardinality(input_dataset=named))
    v1 = tf.raw_ops.FixedLengthRecordDataset(filenames=[fixed], header_bytes=2, record_bytes=3, footer_bytes=1, buffer_size=0)
    v2 = tf.raw_ops.TFRecordDatasetV2(filenames=[plain], compression_type="", buffer_size=0, byte_offsets=[19])
    for dataset, wanted in ((v1, b"aaa"), (v2, b"")):
        iterator = tf.data.Iterator.from_structure(tf.string, [])
        with tf.control_dependencies([tf.raw_ops.MakeIterator(dataset=dataset, iterator=iterator._iterator_resource)]):
            session.run(tf.no_op())
        check(session.run(iterator.get_next()) == wanted)
