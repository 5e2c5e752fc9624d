"""Random numbers of generators whose states are variables."""

from recorder.sessions import step, tf

raw = tf.raw_ops
c = tf.constant


def generator(name, value, dtype=tf.int64):
    handle = raw.VarHandleOp(dtype=dtype, shape=None, shared_name=name)
    return handle, raw.AssignVariableOp(resource=handle, value=c(value, dtype)), raw.ReadVariableOp(resource=handle, dtype=dtype)


first, made, state = generator("first", [7, 0, 5])
edge, made_edge, edge_state = generator("edge", [-3, 9, 5, 8])
short, made_short, _ = generator("short", [7, 0])
matrix, made_matrix, _ = generator("matrix", [[7, 0, 5]])
narrow, made_narrow, _ = generator("narrow", [7, 0, 5], tf.int32)
philox = c(1, tf.int64)
size = c([2, 3], tf.int64)
STEPS = [step([], targets=[made, made_edge, made_short, made_matrix, made_narrow])]
for dtype in ("float16", "bfloat16", "float32", "float64"):
    for op in (raw.StatefulUniform, raw.StatefulStandardNormalV2, raw.StatefulTruncatedNormal):
        STEPS += [step([op(resource=first, algorithm=philox, shape=size, dtype=dtype)]), step([state])]
for dtype in ("int32", "int64", "uint32", "uint64"):
    STEPS += [step([raw.StatefulUniformFullInt(resource=edge, algorithm=philox, shape=c([5], tf.int32), dtype=dtype)]), step([edge_state])]
for dtype in ("int32", "int64"):
    low, high = c(-5, dtype), c(90, dtype)
    STEPS += [step([raw.StatefulUniformInt(resource=edge, algorithm=philox, shape=size, minval=low, maxval=high)]), step([edge_state])]
    STEPS += [step([raw.StatefulUniformInt(resource=edge, algorithm=philox, shape=size, minval=high, maxval=low)])]
for delta in (0, 5, 2**40):
    STEPS += [step([], targets=[raw.RngSkip(resource=edge, algorithm=philox, delta=c(delta, tf.int64))]), step([edge_state])]
    STEPS += [step([raw.RngReadAndSkip(resource=first, alg=c(1), delta=c(delta, tf.uint64))]), step([state])]
STEPS += [step([], targets=[raw.RngSkip(resource=edge, algorithm=philox, delta=c(-5, tf.int64))]), step([edge_state])]
for wrong in (short, matrix, narrow):
    STEPS += [step([raw.StatefulUniform(resource=wrong, algorithm=philox, shape=size)]), step([], targets=[raw.RngSkip(resource=wrong, algorithm=philox, delta=c(1, tf.int64))])]
for wrong in (0, 2, 7):
    STEPS += [step([raw.StatefulUniform(resource=first, algorithm=c(wrong, tf.int64), shape=size)])]
    STEPS += [step([], targets=[raw.RngSkip(resource=first, algorithm=c(wrong, tf.int64), delta=c(1, tf.int64))])]
    STEPS += [step([raw.RngReadAndSkip(resource=first, alg=c(wrong), delta=c(1, tf.uint64))])]
STEPS += [step([raw.StatefulUniform(resource=first, algorithm=philox, shape=c([0], tf.int64))]), step([raw.NonDeterministicInts(shape=size)], check="shape")]
# TensorFlow's binomial op frees the variable of its state: each has its own, and nothing uses it again.
counts, shares = c([[4.0, 300.0], [9.0, 80.0]], tf.float64), c([0.25, 0.75], tf.float64)
for dtype in ("float16", "float32", "float64", "int32", "int64"):
    own, make, _ = generator(f"binomial_{dtype}", [7, 0, 5])
    STEPS += [step([], targets=[make])]
    STEPS += [step([raw.StatefulRandomBinomial(resource=own, algorithm=philox, shape=c([3, 2, 2]), counts=counts, probs=shares, dtype=dtype)])]
