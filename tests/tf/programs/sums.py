"""Two sums of 2 make 238: in this process, on one server, and on two."""

from client import check, same, target, tf

CLUSTER = {"local": 2}

# In this process, with TensorFlow's own runtime: what the others must answer.
two = tf.constant(2)
y = (two + 300) + (two - 66)
with tf.Session() as session:
    same(session.run(y), tf.int32.as_numpy_dtype(238))

# The whole of it on one server, which need not be the first.
for task in ["local/0", "local/1"]:
    with tf.Session(target(task)) as session:
        same(session.run(y), tf.int32.as_numpy_dtype(238))

# Split by device strings, in both spellings, from either server.
SPELLINGS = [
    ("/job:local/task:0", "/job:local/task:1"),
    ("/job:local/replica:0/task:0/device:CPU:0", "/job:local/task:1/cpu:0"),
]
for first, second in SPELLINGS:
    with tf.Graph().as_default():
        x = tf.constant(2)
        with tf.device(second):
            y2 = x - 66
        with tf.device(first):
            y1 = x + 300
            y = y1 + y2
        for task in ["local/0", "local/1"]:
            with tf.Session(target(task)) as session:
                check(session.run(y) == 238)
                check(session.run([y1, y2, y]) == [302, -64, 238])
                check(session.run({"sums": (y1, y2)}) == {"sums": (302, -64)})
