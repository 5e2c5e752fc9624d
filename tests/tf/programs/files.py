"""Files below the data folder: read, written and matched; and readers of lines, TFRecords, whole files and records of one length,
which a queue tells the names."""

import gzip
import itertools
import threading
import zlib

from tensorflow.python.framework import errors

from client import check, data, raises, target, tf, tf_records, written

CLUSTER = {"local": 2}

raw = tf.raw_ops


text = written("text/a.txt", b"first\r\nsecond\n\nlast")
more = written("text/b.txt", b"only\n")
fixed = written("fixed.bin", b"HHaaabbbcccF")
records = [b"one", b"", b"three" * 1000]

numbers = itertools.count()


def queue_of(names):
    """A queue that is closed once it has these names, and what fills it."""
    queue = tf.queue.FIFOQueue(99, [tf.string], shapes=[[]], shared_name=f"names_{next(numbers)}")
    fill = queue.enqueue_many([tf.constant(names)])
    with tf.control_dependencies([fill]):
        return queue, queue.close()


def all_read(session, reads):
    """What a reader gives until its queue is at its end."""
    got = []
    while True:
        try:
            got.append(session.run(list(reads)))
        except errors.OutOfRangeError:
            return got


def check_reader(reader, names, expected):
    queue, fill = queue_of(names)
    reads = reader.read(queue)
    with tf.Session(target("local/0")) as session:
        session.run(fill)
        got = [tuple(pair) for pair in all_read(session, reads)]
        check(got == expected, got)
        check(session.run(reader.num_records_produced()) == len(expected))
        check(session.run(reader.num_work_units_completed()) == len(names))
        session.run(reader.reset())
        check(session.run(reader.num_records_produced()) == 0)


def named(path, *places):
    return [f"{path}:{place}".encode() for place in places]


with tf.Graph().as_default(), tf.device("/job:local/task:1"):
    contents = raw.ReadFile(filename=text)
    wrote = raw.WriteFile(filename=data("new/folder/file"), contents="some bytes")
    again = tf.read_file(data("new/folder/file"))
    found = tf.matching_files(data("text", "*.txt"))
    both = raw.MatchingFiles(pattern=[data("text", "[b-z]*"), data("fix??.bin"), data("absent*")])
    absent, outside = tf.read_file(data("absent")), tf.read_file("/etc/passwd")
    escapes = tf.write_file(data("..", "escaped"), "x")
    with tf.Session(target("local/0")) as session:
        with open(text, "rb") as file:
            check(session.run(contents) == file.read())
        session.run(wrote)
        check(session.run(again) == b"some bytes")
        check(session.run(found).tolist() == [text.encode(), more.encode()])
        check(session.run(both).tolist() == [fixed.encode(), more.encode()])
        with raises(errors.NotFoundError):
            session.run(absent)
        from client import on_tensorflow

        if not on_tensorflow():
            with raises(errors.PermissionDeniedError):
                session.run(outside)
            with raises(errors.PermissionDeniedError):
                session.run(escapes)

with tf.Graph().as_default():
    lines = list(zip(named(text, 1, 2, 3, 4) + named(more, 1), [b"first", b"second", b"", b"last", b"only"]))
    check_reader(tf.TextLineReader(name="lines"), [text, more], lines)
    check_reader(tf.TextLineReader(skip_header_lines=2, name="without_head"), [text, more], lines[2:4])
    check_reader(tf.IdentityReader(name="names"), ["a", "b"], [(b"a", b"a"), (b"b", b"b")])
    with open(more, "rb") as file:
        check_reader(tf.WholeFileReader(name="whole"), [more], [(more.encode(), file.read())])
    by_three = list(zip(named(fixed, 0, 1, 2), [b"aaa", b"bbb", b"ccc"]))
    sizes = dict(record_bytes=3, header_bytes=2, footer_bytes=1)
    check_reader(tf.FixedLengthRecordReader(name="fixed", **sizes), [fixed], by_three)
    overlapping = list(zip(named(fixed, *range(7)), [b"aaa", b"aab", b"abb", b"bbb", b"bbc", b"bcc", b"ccc"]))
    check_reader(tf.FixedLengthRecordReader(hop_bytes=1, name="hops", **sizes), [fixed], overlapping)
    packed = written("fixed.z", zlib.compress(b"HHaaabbbcccF"))
    check_reader(tf.FixedLengthRecordReader(encoding="ZLIB", name="packed", **sizes), [packed], [(k.replace(b"bin", b"z"), v) for k, v in by_three])
    for kind in ("", "GZIP", "ZLIB"):
        path = tf_records("records" + kind, records, kind)
        options = tf.io.TFRecordOptions(kind) if kind else None
        check_reader(tf.TFRecordReader(name="records" + kind, options=options), [path], list(zip(named(path, 0, 19, 35), records)))

    newer = {"IdentityReaderV2", "WholeFileReaderV2", "TextLineReaderV2", "TFRecordReaderV2", "FixedLengthRecordReaderV2", "ReaderReadV2"}
    newer |= {"ReaderNumRecordsProducedV2", "ReaderNumWorkUnitsCompletedV2", "ReaderResetV2"}
    check(newer <= {node.op for node in tf.get_default_graph().as_graph_def().node})

with tf.Graph().as_default():
    # What is broken fails the read, and the next file is read after it.
    good = tf_records("good", records)
    with open(good, "rb") as file:
        whole = file.read()
    cut, broken = written("cut", whole[:60]), written("broken", whole[:13] + b"X" + whole[14:])
    for path, read in ((cut, 2), (broken, 0)):
        queue, fill = queue_of([path])
        reads = tf.TFRecordReader().read(queue)
        with tf.Session(target("local/0")) as session:
            session.run(fill)
            for _ in range(read):
                session.run(reads)
            with raises(errors.DataLossError):
                session.run(reads)
    queue, fill = queue_of([data("absent"), text])
    reads = tf.TextLineReader(name="after").read(queue)
    with tf.Session(target("local/0")) as session:
        session.run(fill)
        with raises(errors.NotFoundError):
            session.run(reads)
        check(session.run(reads)[1] == b"first")

with tf.Graph().as_default():
    # Several records at once, of one file at most.
    queue, fill = queue_of([text, more])
    keys, values = tf.TextLineReader().read_up_to(queue, 3)
    with tf.Session(target("local/0")) as session:
        session.run(fill)
        check({"ReaderReadUpToV2"} <= {node.op for node in session.graph.as_graph_def().node})
        check([got[1].tolist() for got in all_read(session, (keys, values))] == [[b"first", b"second", b""], [b"last"], [b"only"]])

with tf.Graph().as_default():
    # A read waits for a name, also when one that waited before it was given up.
    queue = tf.queue.FIFOQueue(9, [tf.string], shapes=[[]])
    _, value = tf.TextLineReader().read(queue)
    put = queue.enqueue([more])
    with tf.Session(target("local/0")) as session:
        with raises(errors.DeadlineExceededError):
            session.run(value, options=tf.RunOptions(timeout_in_ms=300))
        got = []
        waiting = threading.Thread(target=lambda: got.append(session.run(value)))
        waiting.start()
        session.run(put)
        waiting.join()
        check(got == [b"only"], got)

with tf.Graph().as_default():
    # What a reader says of itself can be restored.
    queue = tf.queue.FIFOQueue(9, [tf.string], shapes=[[]])
    reader = tf.WholeFileReader()
    reads = reader.read(queue)
    state = tf.placeholder(tf.string, [])
    restore = reader.restore_state(state)
    with tf.Session(target("local/0")) as session:
        session.run(queue.enqueue([more]))
        session.run(reads)
        saved = session.run(reader.serialize_state())
        check({"ReaderSerializeStateV2", "ReaderRestoreStateV2"} <= {node.op for node in session.graph.as_graph_def().node})
        session.run(reader.reset())
        session.run(restore, {state: saved})
        check(session.run(reader.num_records_produced()) == 1)
        with raises(errors.InvalidArgumentError):
            session.run(restore, {state: b"no state"})

# V1's handles, which are references.
with tf.Graph().as_default():
    queue = raw.FIFOQueue(component_types=["string"])
    put = raw.QueueEnqueue(handle=queue, components=[tf.constant(text)])
    reader = raw.WholeFileReader()
    key, value = raw.ReaderRead(reader_handle=reader, queue_handle=queue)
    counted = raw.ReaderNumRecordsProduced(reader_handle=reader)
    state = raw.ReaderSerializeState(reader_handle=reader)
    with tf.Session(target("local/0")) as session:
        session.run(put)
        check(session.run([key, value]) == [text.encode(), b"first\r\nsecond\n\nlast"])
        check(session.run(counted) == 1)
        saved = session.run(state)
        session.run(raw.ReaderReset(reader_handle=reader))
        check(session.run(counted) == 0)
        session.run(raw.ReaderRestoreState(reader_handle=reader, state=saved))
        check(session.run(counted) == session.run(raw.ReaderNumWorkUnitsCompleted(reader_handle=reader)) == 1)
        session.run(put)
        check(session.run(raw.ReaderReadUpTo(reader_handle=reader, queue_handle=queue, num_records=5)[0]).tolist() == [text.encode()])
