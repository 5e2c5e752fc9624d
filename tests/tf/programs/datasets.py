"""Input pipelines of tf.data on the mesh: fed, trained from, on another task, in one session and the next."""

import numpy as np

from client import check, near, raises, same, target, tf

CLUSTER = {"local": 2}

data = tf.data.Dataset
xs = np.random.RandomState(0).uniform(-1, 1, [12, 2]).astype(np.float32)
ys = xs @ np.float32([[2], [-3]]) + 1

# A model trained from a pipeline that lies on the other task, for as many epochs as it has.
with tf.Graph().as_default():
    with tf.device("/job:local/task:1"):
        pipeline = data.from_tensor_slices((xs, ys)).shuffle(12, seed=1).repeat(40).batch(4)
        iterator = tf.data.make_initializable_iterator(pipeline)
        x, y = iterator.get_next()
    w, b = tf.Variable(tf.zeros([2, 1])), tf.Variable(0.0)
    train = tf.train.GradientDescentOptimizer(0.3).minimize(tf.reduce_mean(tf.square(x @ w + b - y)))
    with tf.Session(target("local/0")) as session:
        session.run([tf.global_variables_initializer(), iterator.initializer])
        steps = 0
        try:
            while True:
                session.run(train)
                steps += 1
        except tf.errors.OutOfRangeError:
            pass
        check(steps == 120, steps)
        near(session.run(w), [[2], [-3]], relative=0.05)
        near(session.run(b), 1, relative=0.05)

# An iterator without a name is its session's own: another session begins anew.
with tf.Graph().as_default():
    following = tf.data.make_one_shot_iterator(data.range(3)).get_next()
    for _ in range(2):
        with tf.Session(target("local/1")) as session:
            same([session.run(following) for _ in range(3)], np.arange(3))
            with raises(tf.errors.OutOfRangeError):
                session.run(following)

# Two datasets by turns under one name that is fed.
with tf.Graph().as_default():
    name = tf.placeholder(tf.string, [])
    value = tf.data.Iterator.from_string_handle(name, tf.int64, []).get_next()
    first = tf.data.make_one_shot_iterator(data.range(0, 100, 10))
    second = tf.data.make_initializable_iterator(data.range(5).map(lambda x: -x))
    with tf.Session(target("local/0")) as session:
        session.run(second.initializer)
        handles = session.run([first.string_handle(), second.string_handle()])
        got = [session.run(value, {name: handles[i]}) for i in [0, 1, 0, 1, 1]]
        same(got, np.array([0, 0, 10, -1, -2]))
        with raises(tf.errors.InvalidArgumentError):
            session.run(value, {name: b"none"})

# A filter that never passes ends with its session's patience, and the node goes on.
with tf.Graph().as_default():
    never = tf.data.make_one_shot_iterator(data.range(1).repeat().filter(lambda x: x > 0)).get_next()
    config = tf.ConfigProto(operation_timeout_in_ms=1000)
    with tf.Session(target("local/0"), config=config) as session:
        with raises(tf.errors.DeadlineExceededError):
            session.run(never)
        same(session.run(tf.constant(1) + 1), np.int32(2))

# Random numbers of a function begin anew with each iterator.
with tf.Graph().as_default():
    tf.set_random_seed(7)
    drawn = data.range(4).map(lambda x: tf.random_uniform([], seed=3))
    iterator = tf.data.make_initializable_iterator(drawn)
    value = iterator.get_next()

    def round_of(session):
        session.run(iterator.initializer)
        return [session.run(value) for _ in range(4)]

    with tf.Session() as session:
        wanted = round_of(session), round_of(session)
    with tf.Session(target("local/0")) as session:
        near((round_of(session), round_of(session)), wanted)
