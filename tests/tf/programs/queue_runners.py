"""Input pipelines of queues: threads of the client fill them, a coordinator ends them."""

import numpy as np

from client import check, raises, same, target, tf

CLUSTER = {"ps": 1, "worker": 1}

# One queue that counts, one that batches what comes out of it; the threads run until the input is over.
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        numbers = tf.train.range_input_producer(12, num_epochs=1, shuffle=False, shared_name="numbers")
        number = numbers.dequeue()
    with tf.device("/job:worker/task:0"):
        image = tf.cast(tf.fill([2, 3], number), tf.float32) / 4
        numbered, images = tf.train.batch([number, image], batch_size=4, capacity=8, shared_name="batches")
        total = tf.reduce_sum(images)
    with tf.Session(target("worker/0")) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        check(len(threads) >= 2, threads)
        seen = []
        try:
            while not coordinator.should_stop():
                got, got_images, got_total = session.run([numbered, images, total])
                check(got_images.shape == (4, 2, 3))
                same(got_images[:, 0, 0], np.float32(got) / 4)
                check(abs(got_total - got_images.sum()) < 1e-5)
                seen.extend(got)
            raise AssertionError("the input did not end")
        except tf.errors.OutOfRangeError as error:
            check("is closed and has insufficient elements" in str(error), str(error))
        finally:
            coordinator.request_stop()
            coordinator.join(threads, stop_grace_period_secs=30)
        check(seen == list(range(12)), seen)

# Without an end: the coordinator stops threads that wait in a full queue.
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        word = tf.train.string_input_producer(["a", "b", "c"], shuffle=True, seed=4, shared_name="words").dequeue()
    with tf.device("/job:worker/task:0"):
        words = tf.train.shuffle_batch([tf.strings.upper(word)], 6, 50, 10, seed=1, shared_name="shuffled", num_threads=2)
    with tf.Session(target("worker/0")) as session:
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        for _ in range(20):
            got = session.run(words)
            check(len(got) == 6 and set(got) <= {b"A", b"B", b"C"}, got)
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=30)

# A queue's own operations: priorities, padding, random order, a queue that two sessions share.
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        first = tf.PriorityQueue(10, [tf.string], [()], shared_name="first")
        add = first.enqueue_many(([3, 1, 2], ["c", "a", "b"]))
        taken = first.dequeue()
        padded = tf.PaddingFIFOQueue(10, [tf.int32], [[None]], shared_name="padded")
        add_padded = [padded.enqueue([[1]]), padded.enqueue([[2, 3, 4]])]
        both = padded.dequeue_many(2)
        shared = tf.FIFOQueue(3, [tf.int64, tf.float32], [(), (2,)], shared_name="shared")
        put, got, size, close = shared.enqueue([5, [0.5, 1.5]]), shared.dequeue(), shared.size(), shared.close(True)
        up_to = shared.dequeue_up_to(5)
    with tf.Session(target("worker/0")) as session, tf.Session(target("ps/0")) as other:
        session.run(add)
        check([session.run(taken)[1] for _ in range(3)] == [b"a", b"b", b"c"])
        for one in add_padded:
            session.run(one)
        same(session.run(both), np.int32([[1, 0, 0], [2, 3, 4]]))
        session.run(put)
        other.run(put)
        check(session.run(size) == 2 and other.run(size) == 2)
        number, pair = other.run(got)
        check(number == 5)
        same(pair, np.float32([0.5, 1.5]))
        session.run(close)
        check(len(other.run(up_to)[0]) == 1)
        with raises(tf.errors.OutOfRangeError, "shared"):
            other.run(got)
