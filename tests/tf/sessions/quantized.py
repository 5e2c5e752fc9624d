"""A quantised network over two tasks: its numbers are fed, held in variables and queues, saved, and go from task to task."""

import numpy as np

from recorder.sessions import step, tf

CLUSTER = {"worker": 2}
raw = tf.raw_ops

image = tf.placeholder(tf.float32, [1, 4, 4, 2], name="image")
bytes_ = tf.placeholder(tf.quint8, [None, 2], name="bytes")
pixels = np.linspace(-1.0, 2.0, 32, dtype=np.float32).reshape([1, 4, 4, 2])

with tf.device("/job:worker/task:0"):
    x = raw.QuantizeV2(input=image, min_range=-1.0, max_range=2.0, T=tf.quint8, mode="MIN_FIRST", name="x")
    weights = tf.constant(np.arange(0, 216, 6, dtype=np.uint8).reshape([3, 3, 2, 2]), name="weights")
    filters = raw.QuantizeV2(input=tf.cast(weights, tf.float32) / 215.0 - 0.5, min_range=-0.5, max_range=0.5, T=tf.quint8,
                             mode="MIN_FIRST", name="filters")
with tf.device("/job:worker/task:1"):
    product = raw.QuantizedConv2D(input=x[0], filter=filters[0], min_input=x[1], max_input=x[2], min_filter=filters[1],
                                  max_filter=filters[2], strides=[1, 1, 1, 1], padding="SAME", name="product")
    found = raw.RequantizationRange(input=product[0], input_min=product[1], input_max=product[2], name="found")
    small = raw.Requantize(input=product[0], input_min=product[1], input_max=product[2], requested_output_min=found[0],
                           requested_output_max=found[1], out_type=tf.quint8, name="small")
    positive = raw.QuantizedRelu(features=small[0], min_features=small[1], max_features=small[2], name="positive")
    pooled = raw.QuantizedMaxPool(input=positive[0], min_input=positive[1], max_input=positive[2], ksize=[1, 2, 2, 1],
                                  strides=[1, 2, 2, 1], padding="VALID", name="pooled")
with tf.device("/job:worker/task:0"):
    flat = raw.QuantizedReshape(tensor=pooled[0], shape=[4, 2], input_min=pooled[1], input_max=pooled[2], name="flat")
    scores = raw.QuantizedMatMul(a=flat[0], b=bytes_, min_a=flat[1], max_a=flat[2], min_b=-1.0, max_b=1.0, name="scores")
    biased = raw.QuantizedBiasAdd(input=flat[0], bias=tf.reshape(bytes_, [-1])[:2], min_input=flat[1], max_input=flat[2],
                                  min_bias=0.0, max_bias=1.0, out_type=tf.qint32, name="biased")
    y = tf.dequantize(scores[0], scores[1], scores[2], mode="MIN_FIRST", name="y")

# Numbers that are kept: in a variable, in a queue, in a file.
with tf.device("/job:worker/task:1"):
    kept = raw.VariableV2(shape=[2, 2], dtype=tf.quint8, shared_name="kept", name="kept")
    keep = raw.Assign(ref=kept, value=bytes_, name="keep")
    queue = tf.FIFOQueue(4, [tf.qint32], shapes=[[4, 2]], name="queue")
    put = queue.enqueue([scores[0]], name="put")
    size = queue.size(name="size")
with tf.device("/job:worker/task:0"):
    taken = tf.identity(queue.dequeue(), name="taken")
    joined = tf.concat([tf.identity(kept), bytes_], 0, name="joined")
    whole = tf.cast(joined, tf.int32, name="whole")
    bits = tf.bitcast(joined, tf.qint8, name="bits")
    named = dict(tensor_names=["bytes", "bits"])
    save = raw.SaveV2(prefix="newer", shape_and_slices=["", ""], tensors=[joined, bits], **named, name="save")
    save_older = raw.Save(filename="older", data=[joined, bits], **named, name="save_older")
    newer = raw.RestoreV2(prefix="newer", shape_and_slices=["", ""], dtypes=[tf.quint8, tf.qint8], **named, name="newer")
    older = raw.Restore(file_pattern="older", tensor_name="bits", dt=tf.qint8, name="older")

first, second = [[0, 255], [128, 7]], [[1, 2], [3, 254]]
STEPS = [
    step([x[0], x[1], x[2]], feeds={image: pixels}, check="exact"),
    step([product[0], product[1], small[0], pooled[0]], feeds={image: pixels}),
    step([scores[0], scores[1], y], feeds={image: pixels, bytes_: first}),
    step([biased[0], biased[2]], feeds={image: pixels, bytes_: second}),
    step([keep], feeds={bytes_: first}, check="exact"),
    step([joined, whole, bits], feeds={bytes_: second}, check="exact"),
    step(targets=[save, save_older], feeds={bytes_: second}),
    step([newer[0], newer[1], older], check="exact"),
    step(targets=[put], feeds={image: pixels, bytes_: first}),
    step(targets=[put], feeds={image: -pixels / 2, bytes_: second}),
    step([size]),
    step([taken]),
    step([taken]),
]
