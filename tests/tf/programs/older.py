"""What clients before 1.13 wrote: op types that newer ones took the place of, placeholders of shape [], Supervisor's start;
and graphs with more in them than a run needs."""

import numpy as np
from tensorflow.core.framework import graph_pb2
from tensorflow.python.ops import array_ops

from client import check, target, tf

CLUSTER = {"local": 2}

# A graph of version 21, as TensorFlow 1.0 writes it.
graph_def = graph_pb2.GraphDef()
graph_def.versions.producer = 21


def node(text, device="/job:local/task:1", **attrs):
    name, rest = text.split(" = ")
    op, *inputs = rest.split()
    made = graph_def.node.add(name=name, op=op, device=device)
    made.input.extend(inputs)
    for key, value in attrs.items():
        attr = made.attr[key]
        if isinstance(value, tf.DType):
            attr.type = value.as_datatype_enum
        elif isinstance(value, bool):
            attr.b = value
        elif isinstance(value, int):
            attr.i = value
        elif isinstance(value, np.ndarray):
            attr.tensor.CopyFrom(tf.make_tensor_proto(value))
        elif isinstance(value, tf.TensorShape):
            attr.shape.CopyFrom(value.as_proto())
        elif isinstance(value, list) and value and isinstance(value[0], tf.DType):
            attr.list.type.extend(dtype.as_datatype_enum for dtype in value)
        else:
            attr.s = value.encode()


node("any = Placeholder", dtype=tf.float32, shape=tf.TensorShape([]))
node("v = Variable", dtype=tf.float32, shape=tf.TensorShape([3]), container="", shared_name="")
node("start = Assign v any", T=tf.float32, validate_shape=True, use_locking=True)
node("places = Const", dtype=tf.int32, value=np.array([2, 0], np.int32))
node("some = Gather v places", Tparams=tf.float32, Tindices=tf.int32, validate_indices=True)
node("q = FIFOQueue", component_types=[tf.float32], capacity=4, container="", shared_name="")
node("put = QueueEnqueue q some", Tcomponents=[tf.float32])
node("got = QueueDequeue q", component_types=[tf.float32])
node("size = QueueSize q")
# Read on the other task, and so sent as the value that it has.
node("double = Add v v", device="/job:local/task:0", T=tf.float32)

with tf.Graph().as_default() as graph:
    tf.import_graph_def(graph_def, name="")
    with tf.Session(target("local/0")) as session:
        session.run("start", {"any:0": [1, 2, 3]})
        check(session.run("some:0").tolist() == [3, 1])
        check(session.run("double:0").tolist() == [2, 4, 6])
        session.run("put")
        check(session.run("size:0") == 1)
        check(session.run("got:0").tolist() == [3, 1])

# Supervisor's start asks which variables have no value yet, with the Gather of its time.
with tf.Graph().as_default():
    newer = array_ops.gather
    array_ops.gather = lambda params, indices, **_: tf.raw_ops.Gather(params=params, indices=indices)
    try:
        with tf.device("/job:local/task:1"):
            count = tf.Variable(5, name="count", use_resource=False)
        more = count.assign_add(2)
        supervisor = tf.train.Supervisor(is_chief=True, logdir=None, summary_op=None, saver=None)
        check("Gather" in [node.op for node in tf.get_default_graph().as_graph_def().node])
    finally:
        array_ops.gather = newer
    with supervisor.managed_session(target("local/0")) as session:
        check(session.run(more) == 7)

# What a run does not need may be of any kind: a pipeline with its functions, a dtype, an op.
with tf.Graph().as_default():
    numbers = tf.data.Dataset.range(3).map(lambda x: x * x)
    number = tf.data.make_one_shot_iterator(numbers).get_next()
    turned = tf.complex(1.0, 2.0)
    picture = tf.image.encode_png(tf.zeros([1, 1, 3], tf.uint8))
    x = tf.constant(4, tf.int64)
    sums = x + number
    with tf.Session(target("local/0")) as session:
        check(session.run(x) == 4)
        check(session.run(sums, {number: 300}) == 304)

# A node's random numbers go on from run to run, whatever is fetched with them: the same here as in TensorFlow's own process.
with tf.Graph().as_default():
    drawn = tf.random_uniform([2], seed=7)
    other = tf.random_normal([3], seed=8)
    one = tf.constant(1.0)
    answers = []
    for where in [target("local/0"), ""]:
        with tf.Session(where) as session:
            answers.append([session.run(fetch) for fetch in [[drawn], [drawn, one], [other], [drawn, other], [drawn]]])
    for here, there in zip(*answers):
        for a, b in zip(here, there):
            check(np.allclose(a, b), a, b)
