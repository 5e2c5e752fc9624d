"""Maps from tensors to values, mutexes and critical sections, handles of sessions, tables without names, and identities of the debugger."""

from recorder.sessions import step, tf
from tensorflow.python.framework import ops

raw = tf.raw_ops
STEPS = []

# Maps.
key, value = tf.placeholder(tf.int64, name="key"), tf.placeholder(tf.float32, name="value")
empty = raw.EmptyTensorMap(name="empty")
one = raw.TensorMapInsert(input_handle=empty, key=key, value=value, name="one")
again = raw.TensorMapInsert(input_handle=one, key=key, value=value * 2, name="again")
two = raw.TensorMapInsert(input_handle=one, key=key + 1, value=value + 1, name="two")
texts = raw.TensorMapInsert(input_handle=two, key=tf.constant(["a", "b"]), value=tf.constant([7, 8]), name="texts")
size = lambda it, name: raw.TensorMapSize(input_handle=it, name=name)
has = lambda it, k, name: raw.TensorMapHasKey(input_handle=it, key=k, name=name)
get = lambda it, k, dtype, name: raw.TensorMapLookup(input_handle=it, key=k, value_dtype=dtype, name=name)
gone = raw.TensorMapErase(input_handle=two, key=key, value_dtype=tf.float32, name="gone")
keys = raw.TensorMapStackKeys(input_handle=two, key_dtype=tf.int64, name="keys")
fed = {key: 5, value: [1.0, -2.0]}
STEPS.append(step([size(empty, "s0"), size(one, "s1"), size(again, "s2"), size(two, "s3"), size(texts, "s4"), size(gone, "s5")], fed))
STEPS.append(step([get(one, key, tf.float32, "g1"), get(again, key, tf.float32, "g2"), get(two, key + 1, tf.float32, "g3")], fed))
STEPS.append(step([get(texts, tf.constant(["a", "b"]), tf.int32, "g4"), get(texts, key, tf.float32, "g5")], fed))
STEPS.append(step([has(two, key, "h1"), has(gone, key, "h2"), has(two, key + 2, "h3"), has(texts, tf.constant(["a", "c"]), "h4")], fed))
# A key of another dtype or shape is another key.
STEPS.append(step([has(two, tf.cast(key, tf.int32), "h5"), has(two, key[None], "h6"), has(empty, key, "h7")], fed))
STEPS.append(step([tf.sort(keys, name="sorted")], fed))
STEPS.append(step([get(two, key + 2, tf.float32, "missing")], fed))
STEPS.append(step([size(raw.TensorMapErase(input_handle=one, key=key + 1, value_dtype=tf.float32, name="no_erase"), "s6")], fed))
STEPS.append(step([raw.TensorMapStackKeys(input_handle=empty, key_dtype=tf.int64, name="no_keys")], fed))
STEPS.append(step([raw.TensorMapStackKeys(input_handle=one, key_dtype=tf.int32, name="wrong_keys")], fed))
STEPS.append(step([raw.TensorMapStackKeys(input_handle=texts, key_dtype=tf.int64, name="mixed_keys")], fed))
# What flows into a map stays as it is when the map goes on.
STEPS.append(step([size(one, "s7"), get(one, key, tf.float32, "g6"), get(again, key, tf.float32, "g7"), size(again, "s8")], fed))
STEPS.append(step([size(raw.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=tf.float32, name="list"), "s9")], fed))
nested = raw.TensorMapInsert(input_handle=empty, key=key, value=two, name="nested")
inner = get(nested, key, tf.variant, "inner")
STEPS.append(step([size(nested, "s10"), size(inner, "s11"), get(inner, key, tf.float32, "g8")], fed))
total = tf.add_n([two, two], name="total")
zeros = raw.ZerosLike(x=two, name="zeros")
STEPS.append(step([size(zeros, "s13"), size(total, "s14"), get(total, key, tf.float32, "g9"), get(total, key + 1, tf.float32, "g10")], fed))
STEPS.append(step([size(tf.add_n([one, texts], name="joined"), "s15")], fed))

# A mutex: what happens under it does not interleave.
mutex = raw.MutexV2(shared_name="m", container="", name="mutex")
lock = raw.MutexLock(mutex=mutex, name="lock")
with tf.control_dependencies([lock]):
    inside = tf.identity(value * 3, name="inside")
with tf.control_dependencies([inside]):
    free = raw.ConsumeMutexLock(mutex_lock=lock, name="free")
with tf.control_dependencies([free]):
    after = tf.identity(inside, name="after")
STEPS += [step([after], {value: 2.0}), step([after], {value: 3.0})]
# Nobody consumes the lock: its step frees it.
STEPS += [step([inside], {value: 4.0}), step(targets=[lock]), step([after], {value: 5.0})]
fails = raw.Assert(condition=tf.less(value, 0.0), data=[value], name="fails")
with tf.control_dependencies([lock]):
    within = raw.Assert(condition=tf.less(value, 0.0), data=[inside], name="within")
with tf.control_dependencies([within]):
    broken = tf.identity(inside, name="broken")
STEPS += [step([broken], {value: 6.0}), step([after], {value: 7.0})]
count = tf.get_variable("count", initializer=0, dtype=tf.int32, use_resource=True)
section = tf.CriticalSection(shared_name="section", name="section")
def raised():
    now = count.read_value()
    with tf.control_dependencies([now]):
        return tf.group(count.assign(now + 1))
parts = [section.execute(raised) for _ in range(6)]
with tf.control_dependencies(parts):
    counted = tf.identity(count.read_value(), name="counted")
STEPS += [step(targets=[count.initializer]), step([counted]), step([counted])]

# Tensors that a session keeps.
kept = raw.GetSessionHandle(value=value, name="kept")
handle = tf.placeholder(tf.string, name="handle")
STEPS += [step([tf.strings.substr(kept, 0, 5, name="begin")], {value: [1.0, 2.0]}), step([raw.GetSessionTensor(handle=handle, dtype=tf.float32, name="of")], {handle: b"nothing;0;here"})]
STEPS += [step(targets=[raw.DeleteSessionTensor(handle=handle, name="delete")], feeds={handle: b"kept;99;here"})]
STEPS += [step(targets=[raw.GetSessionHandleV2(value=value, name="kept2").op], feeds={value: 1.0})]
now = raw.Timestamp(name="now")
STEPS.append(step([now], check="shape"))
STEPS.append(step([tf.greater(now, 1.7e9, name="is_late")]))

# Tables without names.
ids, names = tf.constant([1, 2, 3], tf.int64), tf.constant(["a", "b", "c"])
table = raw.AnonymousMutableHashTable(key_dtype=tf.int64, value_dtype=tf.string, name="table")
with tf.control_dependencies([raw.LookupTableInsertV2(table_handle=table, keys=ids, values=names)]):
    found = raw.LookupTableFindV2(table_handle=table, keys=tf.constant([3, 9, 1], tf.int64), default_value="?", name="found")
    length = raw.LookupTableSizeV2(table_handle=table, name="length")
STEPS += [step([found, length]), step([found, length]), step([raw.LookupTableSizeV2(table_handle=table, name="bare")])]
fixed = raw.AnonymousHashTable(key_dtype=tf.string, value_dtype=tf.int64, name="fixed")
with tf.control_dependencies([raw.InitializeTableV2(table_handle=fixed, keys=names, values=ids)]):
    STEPS.append(step([raw.LookupTableFindV2(table_handle=fixed, keys=["b", "x"], default_value=tf.constant(-1, tf.int64), name="found_fixed")]))
vectors = raw.AnonymousMutableHashTableOfTensors(key_dtype=tf.int64, value_dtype=tf.float32, value_shape=[2], name="vectors")
with tf.control_dependencies([raw.LookupTableInsertV2(table_handle=vectors, keys=ids, values=tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))]):
    STEPS.append(step([raw.LookupTableFindV2(table_handle=vectors, keys=ids[1:], default_value=[0.0, 0.0], name="found_vectors")]))
dense = raw.AnonymousMutableDenseHashTable(empty_key=tf.constant(0, tf.int64), deleted_key=tf.constant(-1, tf.int64), value_dtype=tf.float32, value_shape=[2], name="dense")
with tf.control_dependencies([raw.LookupTableInsertV2(table_handle=dense, keys=ids, values=tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))]):
    STEPS.append(step([raw.LookupTableFindV2(table_handle=dense, keys=ids[1:] + 1, default_value=[0.5, 0.0], name="found_dense")]))

# A queue's handle in its old form, gradients of tensor arrays with more dimensions, lists of several at once.
queue = raw.FIFOQueueV2(component_types=[tf.float32], shapes=[[]], shared_name="q", name="queue")
old = raw.FakeQueue(resource=queue, name="old")
with tf.control_dependencies([raw.QueueEnqueueV2(handle=queue, components=[value], name="put")]):
    held = raw.QueueSize(handle=old, name="held")
STEPS += [step([held], {value: 1.0}), step([raw.QueueDequeue(handle=old, component_types=[tf.float32], name="take")[0]])]
array, flow = raw.TensorArrayV3(size=2, dtype=tf.float32, element_shape=[2], identical_element_shapes=True, name="array")
flow = raw.TensorArrayWriteV3(handle=array, index=0, value=[1.0, 2.0], flow_in=flow, name="w0")
grads, grad_flow = raw.TensorArrayGradWithShape(handle=array, flow_in=flow, shape_to_prepend=[3], source="g", name="grads")
wide = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
grad_flow = raw.TensorArrayWriteV3(handle=grads, index=0, value=wide, flow_in=grad_flow, name="gw")
grad_flow = raw.TensorArrayWriteV3(handle=grads, index=0, value=wide, flow_in=grad_flow, name="gw2")
STEPS.append(step([raw.TensorArrayReadV3(handle=grads, index=0, flow_in=grad_flow, dtype=tf.float32, name="gr")]))
narrow = raw.TensorArrayWriteV3(handle=grads, index=0, value=value, flow_in=grad_flow, name="narrow")
STEPS.append(step([narrow], {value: [1.0, 2.0]}))
a_list = raw.TensorListPushBack(input_handle=raw.EmptyTensorList(element_shape=-1, max_num_elements=2, element_dtype=tf.float32, name="l0"), tensor=[1.0, 2.0], name="l1")
both = raw.TensorListPushBackBatch(input_handles=tf.stack([a_list, a_list]), tensor=[[3.0, 4.0], [5.0, 6.0]], name="both")
STEPS.append(step([raw.TensorListStack(input_handle=tf.gather(both, i), element_shape=[2], element_dtype=tf.float32, name=f"row{i}") for i in range(2)]))
STEPS.append(step([raw.TensorListLength(input_handle=a_list, name="before")]))
full = raw.TensorListPushBackBatch(input_handles=both, tensor=[[3.0, 4.0], [5.0, 6.0]], name="full")
STEPS.append(step([raw.TensorListLength(input_handle=tf.gather(full, 0), name="too_long")]))

# Identities of the debugger, and a reference by its number.
same = raw.GuaranteeConst(input=value, name="constant")
seen = raw.DebugGradientIdentity(input=same, name="seen")
STEPS.append(step([seen, raw.Copy(input=seen, name="copy"), raw.CopyHost(input=seen, name="copy_host")], {value: [1.0, -0.0]}))
refs = [raw.VariableV2(shape=[], dtype=tf.float32, shared_name=f"r{i}", name=f"r{i}") for i in range(2)]
which = tf.placeholder(tf.int32, name="which")
chosen = raw.RefSelect(index=which, inputs=refs, name="chosen")
STEPS.append(step(targets=[raw.Assign(ref=ref, value=float(i)).op for i, ref in enumerate(refs)]))
added = raw.AssignAdd(ref=chosen, value=10.0, name="added")
STEPS += [step([added], {which: 1}), step([refs[0] + 0.0, refs[1] + 0.0]), step([chosen], {which: 0}), step([chosen], {which: 2}), step([chosen], {which: -1})]
through = raw.DebugGradientRefIdentity(input=refs[0], name="through")
STEPS.append(step([raw.AssignAdd(ref=through, value=1.0, name="more")]))
