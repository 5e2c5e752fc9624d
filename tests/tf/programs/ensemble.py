"""Two models, each trained on its own task with half of the digits; a third task averages their predictions."""

import numpy as np

from client import check, digits, note, target, tf

CLUSTER = {"local": 3}

(images, labels), (unseen, answers) = digits()
x = tf.placeholder(tf.float32, [None, 64])
y = tf.placeholder(tf.int64, [None])
said, steps = [], []
for task, seed in [(1, 11), (2, 22)]:
    with tf.device(f"/job:local/task:{task}"), tf.variable_scope(f"model{task}"):
        start = np.random.RandomState(seed)
        w1 = tf.Variable((start.standard_normal((64, 48)) * 0.15).astype(np.float32), name="w1")
        b1 = tf.Variable(tf.zeros([48]), name="b1")
        w2 = tf.Variable((start.standard_normal((48, 10)) * 0.15).astype(np.float32), name="w2")
        b2 = tf.Variable(tf.zeros([10]), name="b2")
        logits = tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2) + b2
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        steps.append(tf.train.AdamOptimizer(0.005).minimize(loss))
        said.append(tf.nn.softmax(logits))
with tf.device("/job:local/task:0"):
    right = [tf.reduce_mean(tf.cast(tf.equal(tf.argmax(one, 1), y), tf.float32)) for one in said + [tf.add_n(said) / 2]]

with tf.Session(target("local/0")) as session:
    session.run(tf.global_variables_initializer())
    order = np.random.RandomState(3)
    for _ in range(300):
        for half, step in enumerate(steps):
            batch = order.choice(np.arange(half, len(labels), 2), 64)
            session.run(step, {x: images[batch], y: labels[batch]})
    first, second, both = session.run(right, {x: unseen, y: answers})
note(f"accuracy {first:.3f}, {second:.3f}, together {both:.3f}")
check(both >= 0.95, both)
check(both >= min(first, second), first, second, both)
