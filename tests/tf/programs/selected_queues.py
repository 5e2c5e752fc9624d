"""A queue that a step selects from several by its index (`QueueBase.from_list`), and handles that flow through branches."""

from client import check, raises, target, tf
from tensorflow.python.ops import control_flow_ops

CLUSTER = {"local": 2}


def queue_base(queue):
    """The queue of a handle, as the client has it for each."""
    return tf.QueueBase(dtypes=[tf.float32], shapes=[tf.TensorShape([])], names=None, queue_ref=queue)


for task in (0, 1):
    with tf.Graph().as_default(), tf.device(f"/job:local/task:{task}"), tf.Session(target("local/0")) as session:
        queues = [tf.FIFOQueue(10, tf.float32, shapes=[[]], shared_name=f"q{task}{index}") for index in range(3)]
        index = tf.placeholder(tf.int32, [])
        chosen = tf.QueueBase.from_list(index, queues)
        value = tf.placeholder(tf.float32, [])
        enqueue, dequeue, size = chosen.enqueue(value), chosen.dequeue(), chosen.size()
        for i in (2, 0, 1, 2):
            session.run(enqueue, {index: i, value: 10.0 + i})
        check([session.run(queue.size()) for queue in queues] == [1, 1, 2])
        check(session.run(size, {index: 2}) == 2)
        check(session.run(dequeue, {index: 2}) == 12.0)
        check(session.run([dequeue, dequeue.op.outputs[0]], {index: 0}) == [10.0, 10.0])
        with raises(tf.errors.InvalidArgumentError, "3 is not in [0, 3)"):
            session.run(dequeue, {index: 3})

        # Of an array of handles, a part, and a row; the older op, too.
        handles = tf.stack([queue.queue_ref for queue in queues])
        part = tf.gather(handles, [2, 1])
        check(session.run(queue_base(tf.gather(part, index)).size(), {index: 0}) == 1)
        square = tf.stack([handles, handles])
        check(session.run(queue_base(tf.gather(tf.gather(square, 1), index)).dequeue(), {index: 1}) == 11.0)
        older = tf.raw_ops.Gather(params=handles, indices=index)
        check(session.run(queue_base(older).size(), {index: 2}) == 1)

        # Through identities and branches.
        same = queue_base(tf.identity(queues[2].queue_ref))
        check(session.run(same.size()) == 1)
        is_first = tf.placeholder(tf.bool, [])
        first = control_flow_ops.switch(queues[0].queue_ref, is_first)[1]
        other = control_flow_ops.switch(queues[2].queue_ref, is_first)[0]
        merged = queue_base(control_flow_ops.merge([other, first])[0])
        check([session.run(merged.size(), {is_first: one}) for one in (True, False)] == [0, 1])
        check(session.run(merged.dequeue(), {is_first: False}) == 12.0)

# Handles of the first kind are references.
with tf.Graph().as_default(), tf.device("/job:local/task:1"), tf.Session(target("local/0")) as session:
    names = ("first", "second")
    queues = [tf.raw_ops.FIFOQueue(component_types=[tf.float32], shapes=[[]], shared_name=name) for name in names]
    puts = [tf.raw_ops.QueueEnqueue(handle=queue, components=[float(number)]) for number, queue in enumerate(queues)]
    session.run(puts)
    is_first = tf.placeholder(tf.bool, [])
    first = tf.raw_ops.RefSwitch(data=queues[0], pred=is_first)[1]
    second = tf.raw_ops.RefSwitch(data=tf.raw_ops.RefIdentity(input=queues[1]), pred=is_first)[0]
    merged = tf.raw_ops.RefMerge(inputs=[second, first])[0]
    size = tf.raw_ops.QueueSize(handle=merged)
    taken = tf.raw_ops.QueueDequeue(handle=merged, component_types=[tf.float32])
    check([session.run(size, {is_first: one}) for one in (True, False)] == [1, 1])
    check([session.run(taken, {is_first: one}) for one in (True, False)] == [[0.0], [1.0]])
