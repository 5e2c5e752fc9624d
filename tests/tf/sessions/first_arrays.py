"""Tensor arrays as the first clients had them, by references to strings: scattered, and their gradients."""

from recorder.sessions import as_of, step, tf

as_of(15)
raw = tf.raw_ops

rows = raw.PlaceholderV2(dtype=tf.float32, shape=[3, 2], name="rows")
indices = tf.placeholder(tf.int32, [None], name="indices")

array = raw.TensorArray(size=3, dtype=tf.float32, dynamic_size=False, clear_after_read=False, name="array")
scattered = raw.TensorArrayScatter(handle=array, indices=indices, value=rows, flow_in=0.0, name="scattered")
read = raw.TensorArrayRead(handle=array, index=1, flow_in=scattered, dtype=tf.float32, name="read")
gathered = raw.TensorArrayGather(handle=array, indices=[2, 0], flow_in=scattered, dtype=tf.float32, name="gathered")
gradient = raw.TensorArrayGrad(handle=array, flow_in=scattered, source="gradients", name="gradient")
with tf.control_dependencies([gradient]):
    flow = tf.identity(scattered, name="flow")
pulled = raw.TensorArrayWrite(handle=gradient, index=1, value=[0.5, 0.25], flow_in=flow, name="pulled")
again = raw.TensorArrayWrite(handle=gradient, index=1, value=[1.0, 1.0], flow_in=pulled, name="again")
total = raw.TensorArrayRead(handle=gradient, index=1, flow_in=again, dtype=tf.float32, name="total")

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
STEPS = [
    step([read, gathered], feeds={rows: ROWS, indices: [2, 1, 0]}),
    step([read], feeds={rows: ROWS, indices: [0, 1, 3]}),
    step([total], feeds={rows: ROWS, indices: [0, 1, 2]}),
]
