"""Partial runs: a step that is fed and fetched in parts; and callables."""

import numpy as np

from client import check, near, raises, same, target, tf

CLUSTER = {"local": 2}

a, b, c = (tf.placeholder(tf.float32, [], name=name) for name in "abc")
with tf.device("/job:local/task:1"):
    sum_ab = a + b
with tf.device("/job:local/task:0"):
    product = sum_ab * c

with tf.Session(target("local/0")) as session:
    for _ in range(3):
        handle = session.partial_run_setup([sum_ab, product], [a, b, c])
        check(session.partial_run(handle, sum_ab, {a: 1, b: 2}) == 3)
        # What comes next depends on what came.
        check(session.partial_run(handle, product, {c: 10}) == 30)

    # Several in flight, fed in another order.
    handles = [session.partial_run_setup([sum_ab, product], [a, b, c]) for _ in range(3)]
    for i, handle in enumerate(handles):
        check(session.partial_run(handle, sum_ab, {a: i, b: 1}) == i + 1)
    for i, handle in reversed(list(enumerate(handles))):
        check(session.partial_run(handle, product, {c: 2}) == 2 * (i + 1))

    # Feeds in parts, the fetch at the end.
    handle = session.partial_run_setup([product], [a, b, c])
    check(session.partial_run(handle, [], {a: 2}) == [])
    check(session.partial_run(handle, [], {b: 3}) == [])
    check(session.partial_run(handle, product, {c: 4}) == 20)

    # What was not announced, what is fed twice, what cannot be computed yet.
    handle = session.partial_run_setup([sum_ab, product], [a, b, c])
    check(session.partial_run(handle, sum_ab, {a: 1, b: 1}) == 2)
    with raises(tf.errors.InvalidArgumentError, "a:0", "has already been fed."):
        session.partial_run(handle, [], {a: 5})
    with raises(tf.errors.InvalidArgumentError, "has already been fetched."):
        session.partial_run(handle, sum_ab, {c: 5})
    handle = session.partial_run_setup([sum_ab], [a, b])
    with raises(tf.errors.InvalidArgumentError, "was not specified in partial_run_setup."):
        session.partial_run(handle, sum_ab, {a: 1, b: 1, c: 1})
    # A placeholder that no call can feed fails when it runs, not before.
    handle = session.partial_run_setup([sum_ab], [a])
    with raises(tf.errors.InvalidArgumentError, "You must feed a value for placeholder"):
        session.partial_run(handle, sum_ab, {a: 1})
    handle = session.partial_run_setup([sum_ab, product], [a, b, c])
    with raises(tf.errors.InvalidArgumentError, "c:0"):
        session.partial_run(handle, product, {a: 1, b: 1})
    with raises(tf.errors.InvalidArgumentError):
        session.partial_run("no such handle", product, {c: 1})

    # An ordinary run is not disturbed by those.
    check(session.run(product, {a: 1, b: 2, c: 3}) == 9)

    # A callable, without a feed and with.
    steady = session.make_callable(tf.constant([1.0, 2.0]) * 3)
    with_feeds = session.make_callable([sum_ab, product], feed_list=[a, b, c])
    for i in range(5):
        same(steady(), np.float32([3, 6]))
        near(with_feeds(i, 1, 2), [i + 1, 2 * i + 2])
    counter = tf.Variable(0, name="called")
    session.run(counter.initializer)
    step = session.make_callable(tf.assign_add(counter, 1).op)
    for _ in range(4):
        check(step() is None)
    check(session.run(counter) == 4)
    metadata = tf.RunMetadata()
    with_feeds(1, 2, 3, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    check(len(metadata.step_stats.dev_stats) >= 1)
