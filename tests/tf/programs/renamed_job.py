"""A cluster with a renamed job: the old device strings are errors that list the devices, the new ones work."""

from client import check, on_tensorflow, raises, target, tf

CLUSTER = {"helpers": 2}


def split(job):
    x = tf.constant(2)
    with tf.device(f"/job:{job}/task:1"):
        y2 = x - 66
    with tf.device(f"/job:{job}/task:0"):
        return x + 300 + y2


with tf.Graph().as_default():
    y = split("local")
    with tf.Session(target("helpers/0")) as session:
        with raises(tf.errors.InvalidArgumentError, "/job:local/task:", "/job:helpers/replica:0/task:1") as caught:
            session.run(y)
        check(caught[0].error_code == tf.errors.INVALID_ARGUMENT)

with tf.Graph().as_default():
    y = split("helpers")
    with tf.Session(target("helpers/0")) as session:
        check(session.run(y) == 238)

# A kind of device that is not there. (A task that is not there may still come up on a mesh; `absent` is about those.)
for device in ["/job:helpers/task:0/gpu:5"] + ["/job:helpers/task:7"] * on_tensorflow():
    with tf.Graph().as_default():
        with tf.device(device):
            y = tf.constant(1) + 1
        with tf.Session(target("helpers/0")) as session:
            with raises(tf.errors.InvalidArgumentError, "device"):
                session.run(y)
