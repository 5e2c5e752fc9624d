"""Batches of the inputs of several ops in one step, their parts and their gradients, and a function that is called with a batch."""

from recorder.sessions import step, tf
from tensorflow.python.framework import function

raw = tf.raw_ops
STEPS = []
x = tf.placeholder(tf.float32, [None, 2], name="x")
y = tf.placeholder(tf.float32, [None, 2], name="y")
LONG = 60 * 1000 * 1000


def batched(one, shared, most, name, **more):
    return raw.Batch(in_tensors=[one], num_batch_threads=1, max_batch_size=most, batch_timeout_micros=LONG, grad_timeout_micros=LONG,
                     shared_name=shared, container="", batching_queue="", name=name, **more)


def parts(one, shared, name, by=2.0):
    return raw.Unbatch(batched_tensor=one.batched_tensors[0] * by, batch_index=one.batch_index, id=one.id, timeout_micros=LONG, shared_name=shared,
                       container="", name=name)


# A call alone fills a batch.
alone = batched(x, "alone", 2, "alone")
part = parts(alone, "part", "part")
STEPS.append(step([part, alone.batched_tensors[0], alone.batch_index[:, 1:]], {x: [[1.0, 2.0], [3.0, 4.0]]}))
STEPS.append(step([part], {x: [[5.0, 2.0], [3.0, 7.0]]}))
# Two calls of one step fill one.
first, second = batched(x, "both", 3, "first"), batched(y, "both", 3, "second")
back, forth = parts(first, "back", "back"), parts(second, "back", "forth")
fed = {x: [[1.0, 2.0]], y: [[3.0, 4.0], [5.0, 6.0]]}
STEPS += [step([back, forth], fed), step([back, forth], {x: [[1.0, 2.0], [8.0, 9.0]], y: [[3.0, 4.0]]})]
count = tf.shape(first.batched_tensors[0])[0] + tf.shape(second.batched_tensors[0])[0]
STEPS.append(step([count, tf.shape(first.batch_index)[0] + tf.shape(second.batch_index)[0]], fed))
# Gradients of parts go back to the batch, in the order of its rows.
grad = lambda one, by, name: raw.UnbatchGrad(original_input=one.batched_tensors[0], batch_index=one.batch_index, grad=by, id=one.id, shared_name="grad",
                                             container="", name=name)
grads = [grad(first, back * 3.0, "grad_first"), grad(second, forth * 5.0, "grad_second")]
# Which call has the batch is not said; the other's gradient has no rows.
STEPS.append(step([tf.reduce_sum(grads[0]) + tf.reduce_sum(grads[1]), tf.shape(tf.concat(grads, 0))], fed))
STEPS.append(step([grad(alone, part * x, "grad_alone")], {x: [[1.0, 2.0], [3.0, 4.0]]}))
# A batch is padded with its first row.
padded = batched(x, "padded", 2, "padded", allowed_batch_sizes=[2])
more = batched(x, "more", 4, "more", allowed_batch_sizes=[2, 4])
STEPS.append(step([padded.batched_tensors[0], padded.batch_index[:, 1:]], {x: [[1.0, 2.0], [3.0, 4.0]]}))
# Too large, without rows, of different numbers of rows.
STEPS.append(step([part], {x: [[1.0, 2.0]] * 3}))
z = tf.placeholder(tf.float32, name="z")
wide = raw.Batch(in_tensors=[x, z], num_batch_threads=1, max_batch_size=2, batch_timeout_micros=LONG, grad_timeout_micros=LONG, shared_name="wide",
                 container="", batching_queue="", name="wide")
STEPS += [step(wide.batched_tensors, {x: [[1.0, 2.0], [3.0, 4.0]], z: [1.0, 2.0]}), step(wide.batched_tensors, {x: [[1.0, 2.0], [3.0, 4.0]], z: [1.0]})]
STEPS.append(step(wide.batched_tensors, {x: [[1.0, 2.0], [3.0, 4.0]], z: 1.0}))
wrong = raw.Unbatch(batched_tensor=x, batch_index=tf.constant([[1, 0]], tf.int64), id=tf.constant(1, tf.int64), timeout_micros=LONG, shared_name="", container="", name="wrong")
STEPS.append(step([wrong], {x: [[1.0, 2.0]]}))
longer = raw.Unbatch(batched_tensor=x, batch_index=tf.constant([[1, 0, 1], [2, 1, 2]], tf.int64), id=tf.constant(1, tf.int64), timeout_micros=LONG, shared_name="", container="", name="longer")
STEPS.append(step([longer], {x: [[1.0, 2.0]]}))
# What does not come.
late = raw.Unbatch(batched_tensor=x, batch_index=tf.zeros([0, 3], tf.int64), id=tf.constant(1, tf.int64), timeout_micros=50000, shared_name="late", container="", name="late")
STEPS.append(step([late], {x: [[1.0, 2.0]]}))
# A batch whose time is over before it is full.
short = raw.Batch(in_tensors=[x], num_batch_threads=1, max_batch_size=100, batch_timeout_micros=20000, grad_timeout_micros=LONG, shared_name="short",
                  container="", batching_queue="", name="short")
STEPS.append(step([short.batched_tensors[0]], {x: [[1.0, 2.0]]}))


@function.Defun(tf.float32, tf.float32)
def scaled(batch, by):
    return batch * by, tf.reduce_sum(batch, 1)


def called(one, name, **more):
    arguments = dict(f=scaled, num_batch_threads=1, max_batch_size=3, batch_timeout_micros=LONG, shared_name="function", container="", batching_queue="")
    return raw.BatchFunction(in_tensors=[one], captured_tensors=[tf.constant(2.0)], Tout=[tf.float32, tf.float32], name=name, **{**arguments, **more})


one, other = called(x, "one"), called(y, "other")
STEPS += [step([*one, *other], fed), step([*one], {x: [[1.0, 2.0]] * 3})]
padding = called(x, "padding", shared_name="padding", max_batch_size=4, allowed_batch_sizes=[2, 4], batch_timeout_micros=1000)
STEPS.append(step([*padding], {x: [[1.0, 2.0]] * 3}))
STEPS.append(step([*one], {x: [[1.0, 2.0]] * 4}))


@function.Defun(tf.float32, tf.float32)
def reduced(batch, by):
    return tf.reduce_sum(batch * by, 0), by


STEPS.append(step([*called(x, "flat", f=reduced, shared_name="flat")], {x: [[1.0, 2.0]] * 3}))
