"""Tensor arrays: gradients of arrays that were written at once and then grew, lists of unset elements, and errors."""

from recorder.sessions import step, tf

raw = tf.raw_ops

# Split writes three elements, Write a fourth: the gradient of the whole is that of three.
whole = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
growing = tf.TensorArray(tf.float32, size=3, dynamic_size=True, infer_shape=False, clear_after_read=False)
grown = growing.split(whole, [1, 1, 3]).write(3, tf.constant([6.0]) * whole[0])
(of_whole,) = tf.gradients(grown.concat() * tf.constant([1.0, 10.0, 2.0, 3.0, 4.0, 7.0]), whole)

# Unpack writes two elements of an older form.
rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
old = tf.TensorArray(tf.float32, size=2, dynamic_size=True, clear_after_read=False)
unpacked = old.unstack(rows).write(2, tf.constant([5.0, 6.0]) * rows[0])
(of_rows,) = tf.gradients(unpacked.stack() * tf.constant([[1.0], [2.0], [3.0]]), rows)


def array(**more):
    return tf.TensorArray(tf.float32, size=more.pop("size", 3), tensor_array_name="foo", infer_shape=False, **more)


def listed(items, count, shape=-1):
    made = raw.TensorListReserve(element_shape=tf.constant(shape, tf.int32), num_elements=count, element_dtype=tf.float32)
    for index, item in items:
        made = raw.TensorListSetItem(input_handle=made, index=index, item=tf.constant(item, tf.float32))
    return made


def joined(made, shape, leading):
    # From placeholders, so that nothing is refused when the graph is made.
    stated, lengths = tf.placeholder(tf.int32), tf.placeholder(tf.int64)
    out = raw.TensorListConcatV2(input_handle=made, element_shape=stated, leading_dims=lengths, element_dtype=tf.float32)
    return step(list(out), feeds={stated: shape, lengths: leading})


one, two = (1, [[4.0, 5.0]]), (2, [[1.0, 2.0], [3.0, 4.0]])
lengths = tf.placeholder(tf.int64, name="lengths")
value = tf.placeholder(tf.float32, name="value")
split = lambda made: made.split(value, lengths).flow
gradient = array().grad("source")
shapes = gradient.write(1, tf.placeholder_with_default(1.0, None)).write(1, tf.placeholder_with_default([1.0], None))

STEPS = [
    step([grown.concat(), of_whole]),
    step([unpacked.stack(), of_rows]),
    joined(listed([one], 3), -1, []),
    joined(listed([one], 3), -1, [2]),
    joined(listed([one], 3), -1, [2, 7, 3]),
    joined(listed([one, two], 3), -1, []),
    joined(listed([one, two], 3), -1, [3]),
    joined(listed([], 2), [2, 2], []),
    joined(listed([], 2), [2, 2], [1, 3]),
    joined(listed([], 2, [2, 2]), -1, []),
    joined(listed([(0, two[1])], 2, [2, 2]), -1, [1, 1]),
    joined(listed([(0, one[1])], 2), [2, 2], []),
    joined(listed([(0, one[1])], 2), [-1, 2], []),
    joined(listed([(0, 3.0), (1, 4.0)], 2), -1, []),
    joined(listed([(0, 3.0), (1, 4.0)], 2), [], []),
    joined(listed([(0, [3.0]), (1, [[4.0]])], 2), -1, []),
    joined(listed([], 2), [-1, 2], []),
    joined(listed([], 2), [-1, 2], [1, 0]),
    step([array(size=0).stack()]),
    step([array(size=0).concat()]),
    step([raw.TensorArrayReadV3(handle=array().handle, index=0, flow_in=0.0, dtype=tf.float64)]),
    step([raw.TensorArrayWriteV3(handle=array().handle, index=0, value="text", flow_in=0.0)]),
    step([array().write(-1, 1.0).flow]),
    step([array().write(3, 1.0).flow]),
    step([array().write(1, 1.0).write(1, 2.0).flow]),
    step([array().write(0, 1.0).write(1, [2.0]).write(2, 3.0).concat()]),
    step([array().write(0, [1.0]).write(1, [[2.0]]).write(2, [3.0]).concat()]),
    step([shapes.flow]),
    step([split(array())], feeds={value: [1.0, 2.0, 3.0], lengths: [1]}),
    step([split(array(size=1))], feeds={value: 1.0, lengths: [1]}),
    step([split(array(size=2))], feeds={value: [1.0], lengths: [1]}),
    step([split(array(size=3, dynamic_size=True))], feeds={value: [1.0], lengths: [1]}),
    step([array(size=1, dynamic_size=True).split(value, lengths).concat()], feeds={value: [1.0, 2.0, 3.0], lengths: [2, 1]}),
]
