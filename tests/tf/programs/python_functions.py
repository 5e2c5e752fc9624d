"""Functions of the program that a graph calls (`tf.py_func`, `Dataset.from_generator`): they run in the program that started the
server, and elsewhere one sentence says what does."""

import os
import subprocess
import sys
import tempfile

from client import check, meshtf_binary, note, on_tensorflow, raises, target, tf

CLUSTER = {"local": 1}

if on_tensorflow():
    note("not run: the servers are nodes")
    sys.exit()

PROGRAM = """
import threading
import numpy as np
import tensorflow as tf

server = tf.train.Server({"local": ["localhost:0"]}, job_name="local", task_index=0)


def run(*fetches, **named):
    with tf.Session(server.target) as session:
        return session.run(list(fetches), **named)


def fails(kind, part, function, dtype=tf.float32):
    try:
        run(tf.py_func(function, [tf.constant([1.0, 2.0])], dtype))
        raise SystemExit("no " + kind.__name__)
    except kind as error:
        assert part in str(error), error


# Values of every kind; a number without dimensions is numpy's scalar, as with TensorFlow.
kinds = []
def looks(number, text, table):
    kinds.append((type(number), type(text), table.shape, threading.current_thread() is threading.main_thread()))
    return number + np.float32(1), text + b"!", table[::-1], ["a", "\\u00fc"]
one = tf.py_func(looks, [tf.constant(2.5), tf.constant(b"x"), tf.constant([[1, 2], [3, 4]])], [tf.float32, tf.string, tf.int32, tf.string])
number, text, table, words = run(*one)
assert number == np.float32(3.5) and number.dtype == np.float32 and text == b"x!", (number, text)
assert table.tolist() == [[3, 4], [1, 2]] and words.tolist() == [b"a", "\\u00fc".encode()], (table, words)
assert kinds == [(np.float32, bytes, (2, 2), False)], kinds
assert run(tf.py_func(lambda: np.float64(7), [], tf.float64)) == [7.0]

# State of the program changes; the graph goes on with the answers; steps at the same time do not wait for each other.
counted = []
count = tf.py_func(lambda x: counted.append(x) or np.int64(len(counted)), [tf.constant(1)], tf.int64)
assert [run(count + 10)[0] for _ in range(3)] == [11, 12, 13]
meeting = threading.Barrier(2, timeout=60)
meets = [tf.py_func(lambda: np.int64(meeting.wait() >= 0), [], tf.int64) for _ in range(2)]
with tf.Session(server.target) as session:
    other = threading.Thread(target=lambda: session.run(meets[1]))
    other.start()
    assert session.run(meets[0]) == 1
    other.join()
large = np.arange(3 << 20, dtype=np.float32)
assert (run(tf.py_func(lambda x: x * 2, [tf.constant(large)], tf.float32))[0] == large * 2).all()
step = tf.while_loop(lambda i, _: i < 5, lambda i, x: (i + 1, tf.reshape(tf.py_func(lambda x: x * 2, [x], tf.int64), [])), [0, tf.constant(1, tf.int64)])
assert run(step[1]) == [32]

# Failures have the class that TensorFlow gives to the exception, and the exception's text.
def raising(error):
    def function(_):
        raise error
    return function
fails(tf.errors.InvalidArgumentError, "ValueError: no good", raising(ValueError("no good")))
fails(tf.errors.InvalidArgumentError, "TypeError", raising(TypeError("x")))
fails(tf.errors.OutOfRangeError, "StopIteration", raising(StopIteration()))
fails(tf.errors.UnimplementedError, "later", raising(NotImplementedError("later")))
fails(tf.errors.UnknownError, "KeyError: 'k'", raising(KeyError("k")))
fails(tf.errors.InvalidArgumentError, "0-th value returned by pyfunc_", lambda x: x.astype(np.float64))
fails(tf.errors.InvalidArgumentError, "returns 2 values, but expects to see 1 values", lambda x: (x, x))

# Generators; the second epoch begins again; an exception is the element's.
def numbers(stop=3):
    for i in range(int(stop)):
        yield i, [float(i)] * i
data = tf.data.Dataset.from_generator(numbers, (tf.int64, tf.float32), ([], [None])).repeat(2)
i, row = tf.data.make_one_shot_iterator(data).get_next()
with tf.Session(server.target) as session:
    seen = []
    try:
        while True:
            a, b = session.run([i, row])
            seen.append((int(a), b.tolist()))
    except tf.errors.OutOfRangeError:
        pass
assert seen == [(n, [float(n)] * n) for n in (0, 1, 2)] * 2, seen
def broken():
    yield 1
    raise ValueError("torn")
data = tf.data.Dataset.from_generator(broken, tf.int32, []).map(lambda x: x * 2).batch(1)
batch = tf.data.make_one_shot_iterator(data).get_next()
with tf.Session(server.target) as session:
    assert session.run(batch).tolist() == [2]
    try:
        session.run(batch)
        raise SystemExit("a generator that fails has elements")
    except tf.errors.InvalidArgumentError as error:
        assert "torn" in str(error), error

# A step that is given up does not wait for its function.
entered, leave = threading.Event(), threading.Event()
held = tf.py_func(lambda: (entered.set(), np.int64(leave.wait(60)))[1], [], tf.int64)
with tf.Session(server.target) as session:
    try:
        session.run(held, options=tf.RunOptions(timeout_in_ms=5000))
        raise SystemExit("it did not end")
    except tf.errors.DeadlineExceededError:
        assert entered.is_set()
    assert session.run(tf.constant(3) + 4) == 7
    leave.set()
print("all of it")
"""

folder = tempfile.mkdtemp()
path = os.path.join(folder, "program.py")
with open(path, "w") as file:
    file.write(PROGRAM)
environment = {key: value for key, value in os.environ.items() if not key.startswith("TF2_")}
environment.update(MESHTF_HOME=os.path.join(folder, "home"), TF_CPP_MIN_LOG_LEVEL="2")
pythons = [sys.executable] + [os.environ["TF1_CLIENT"]] * ("TF1_CLIENT" in os.environ)
for python in pythons:
    command = [meshtf_binary(), "tf", "--backend", "flex", "--", python, path]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    check(ran.returncode == 0 and "all of it" in ran.stdout, ran.stdout, ran.stderr)

# A node that another process has started.
generated = tf.data.make_one_shot_iterator(tf.data.Dataset.from_generator(lambda: iter([1, 2]), tf.int64, [])).get_next()
for value in (tf.py_func(lambda x: x * 2, [tf.constant([1.0])], tf.float32), generated):
    with tf.Session(target("local/0")) as session:
        with raises(tf.errors.InvalidArgumentError, "Python does not run in a node", "placeholder", "TFRecord"):
            session.run(value)
