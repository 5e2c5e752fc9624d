"""Resources that a step destroys: the next one makes them anew."""

from recorder.sessions import step, tf

raw = tf.raw_ops

variable = raw.VarHandleOp(dtype=tf.float32, shape=[], shared_name="variable")
init = raw.AssignVariableOp(resource=variable, value=1.5)
read = raw.ReadVariableOp(resource=variable, dtype=tf.float32)
has_value = raw.VarIsInitializedOp(resource=variable)
gone = raw.DestroyResourceOp(resource=variable)
gone_or_not_there = raw.DestroyResourceOp(resource=variable, ignore_lookup_error=False)
with tf.control_dependencies([gone]):
    late = raw.ReadVariableOp(resource=variable, dtype=tf.float32)

queue = raw.FIFOQueueV2(component_types=[tf.int32], shared_name="queue")
put = raw.QueueEnqueueV2(handle=queue, components=[tf.constant(1)])
size = raw.QueueSizeV2(handle=queue)
no_queue = raw.DestroyResourceOp(resource=queue, ignore_lookup_error=False)

table = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="table")
fill = raw.InitializeTableV2(table_handle=table, keys=["a"], values=tf.constant([7], tf.int64))
entries = raw.LookupTableSizeV2(table_handle=table)
no_table = raw.DestroyResourceOp(resource=table, ignore_lookup_error=False)

STEPS = [
    step(targets=[gone_or_not_there]),
    step(targets=[gone]),
    step(targets=[init]),
    step([read, has_value]),
    step(targets=[gone_or_not_there]),
    step([has_value]),
    step([read]),
    step(targets=[gone_or_not_there]),
    step(targets=[init]),
    step([late]),
    step([has_value]),
    step(targets=[init]),
    step([read]),
    step(targets=[put]),
    step([size]),
    step(targets=[no_queue]),
    step([size]),
    step(targets=[put]),
    step([size]),
    step(targets=[fill]),
    step([entries]),
    step(targets=[no_table]),
    step([entries]),
]
