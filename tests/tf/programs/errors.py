"""Errors arrive as TensorFlow's own exception classes, with code, op and location."""

import numpy as np

from client import check, data, on_tensorflow, raises, target, tf

CLUSTER = {"local": 2}
E = tf.errors

a = tf.placeholder(tf.float32, name="a")
b = tf.placeholder(tf.float32, name="b")
n = tf.placeholder(tf.int32, name="n")
with tf.device("/job:local/task:1"):
    added = tf.add(a, b, name="added")
    product = tf.matmul(a, b, name="product")
    divided = tf.floordiv(tf.constant(7), n, name="divided")
    gathered = tf.gather(tf.constant([1.0, 2.0]), n, name="gathered")
    unset = tf.Variable([1.0], name="unset")
    held = tf.Variable([1.0, 2.0], name="held", use_resource=True)
    queue = tf.FIFOQueue(10, tf.int32, shapes=[()], name="queue", shared_name="errors_queue")
    checked = tf.check_numerics(a, "here is a NaN", name="checked")
    asserted = tf.debugging.Assert(a > 0, [a], name="asserted")
    reshaped = tf.reshape(a, [3], name="reshaped")
    parsed = tf.strings.to_number(tf.placeholder(tf.string, name="text"), tf.float32, name="parsed")
    restored = tf.train.Saver({"unset": unset}, name="saver")
    absent = tf.raw_ops.RestoreV2(
        prefix=data("nosuch"), tensor_names=["v"], shape_and_slices=[""], dtypes=[tf.float32], name="absent"
    )

with tf.Session(target("local/0")) as session:
    bad, ones = E.InvalidArgumentError, np.ones((2, 3))
    unfed = "You must feed a value for placeholder tensor 'a' with dtype float"
    for kind, op, fetch, feed, parts in [
        (bad, "added", added, {a: [1, 2, 3], b: [1, 2]}, ["ncompatible shapes: [3] vs. [2]"]),
        (bad, "product", product, {a: ones, b: ones}, ["[2,3]"]),
        (bad, "divided", divided, {n: 0}, ["nteger division by zero"]),
        (bad, "gathered", gathered, {n: 9}, ["9", "[0, 2)"]),
        (E.FailedPreconditionError, "unset", unset, {}, ["Attempting to use uninitialized value unset"]),
        (E.FailedPreconditionError, "held", held, {}, ["held"]),
        (bad, "checked", checked, {a: [1, np.nan]}, ["here is a NaN"]),
        (bad, "asserted", asserted, {a: -1.0}, ["assertion failed"]),
        (bad, "reshaped", reshaped, {a: [1, 2]}, ["2", "3"]),
        (bad, "parsed", parsed, {"text:0": "four"}, ["four"]),
        (bad, "a", added, {b: 1}, [unfed]),
        (E.NotFoundError, "absent", absent, {}, ["nosuch"]),
    ]:
        with raises(kind, *parts) as caught:
            session.run(fetch, feed)
        error = caught[0]
        codes = {bad: E.INVALID_ARGUMENT, E.FailedPreconditionError: E.FAILED_PRECONDITION, E.NotFoundError: E.NOT_FOUND}
        check(error.error_code == codes[kind], error.error_code)
        if not (on_tensorflow() and op == "unset"):
            # TensorFlow names the Send that read the variable, which is no op of the program.
            check(error.op is not None, f"no op with: {error}")
            check(op in error.op.name, f"{error.op.name}, expected {op}")
            # It says where in the program the op was made.
            check(f"Detected at node '{op}" in str(error) and "errors.py" in str(error), str(error))
        # The session goes on.
        check(session.run(added, {a: 1, b: 2}) == 3)

    # The failure of the step comes before that of a fetch that no client understands.
    shape = tf.placeholder(tf.int32, name="shape")
    with tf.device("/job:local/task:1"):
        listed = tf.raw_ops.TensorListSplit(tensor=[1.0, 2.0], element_shape=shape, lengths=tf.constant([1, 1], tf.int64))
    with raises(bad, "TensorListSplit requires element_shape to be at least of rank 1, but saw: []"):
        session.run(listed, {shape: []})
    if not on_tensorflow():
        with raises(bad, "it is a handle of state on a device, which clients cannot fetch"):
            session.run(listed, {shape: [-1]})

    # Queues: what is over is OutOfRange, what is closed is Cancelled or Aborted.
    session.run(queue.enqueue_many([[1, 2]]))
    session.run(queue.close())
    with raises(E.OutOfRangeError, "is closed and has insufficient elements (requested 3, current size 2)") as caught:
        session.run(queue.dequeue_many(3))
    check(caught[0].op.type == "QueueDequeueManyV2", caught[0].op)
    with raises(E.CancelledError, "closed"):
        session.run(queue.enqueue(1))
    check(session.run(queue.dequeue()) == 1)

    # Files: there is none; or it is not where one may look.
    with raises(ValueError, "not a valid checkpoint"):
        restored.restore(session, data("nosuch"))
    if not on_tensorflow():
        with raises(E.PermissionDeniedError):
            named = {"tensor_names": ["v"], "shape_and_slices": [""], "dtypes": [tf.float32]}
            session.run(tf.raw_ops.RestoreV2(prefix="/etc/nosuch", **named))

    # An op type that the server does not know is refused by its name.
    graph = tf.Graph()
    with graph.as_default():
        odd = tf.raw_ops.Betainc(a=1.0, b=1.0, x=0.5)
    with tf.Session(target("local/0"), graph=graph) as other:
        try:
            check(other.run(odd) == 0.5)
        except (E.UnimplementedError, E.NotFoundError, E.InvalidArgumentError) as error:
            check("Betainc" in str(error), str(error))

    # Errors in the middle of a step over two tasks: the first cause, not what followed from it.
    with tf.device("/job:local/task:0"):
        after = tf.identity(tf.cast(divided, tf.float32) + a)
    for _ in range(20):
        with raises(E.InvalidArgumentError, "nteger division by zero"):
            session.run(after, {n: 0, a: 1})
    check(session.run(after, {n: 2, a: 1}) == 4)
