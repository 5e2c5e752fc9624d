"""A relative name of a checkpoint means the same to the program and to the node, or is refused with what to use instead.

The program looks for its checkpoints by itself, from its own working folder; a save that lands elsewhere could not be
restored."""

import os
import tempfile

import sandbox
from client import check, meshtf_binary, on_tensorflow, raises, server_kind, tf

CLUSTER = None

weights = tf.get_variable("weights", [3], initializer=tf.constant_initializer([1.0, 2.0, 3.0]))
changed = tf.assign_add(weights, [1.0, 1.0, 1.0])
savers = [tf.train.Saver(), tf.train.Saver(sharded=True)]


def saves_and_restores(session, saver, prefix):
    session.run(tf.global_variables_initializer())
    check(saver.save(session, prefix) == prefix)
    check(tf.train.checkpoint_exists(prefix), prefix)
    session.run(changed)
    saver.restore(session, prefix)
    check(session.run(weights).tolist() == [1.0, 2.0, 3.0])


# Program and node work in one folder, which is below the data folder.
with sandbox.Cluster(server_kind(), {"local": 1}, meshtf_binary()) as servers:
    os.makedirs(os.path.join(servers.data, "run"))
    os.chdir(os.path.join(servers.data, "run"))
    servers.start()
    with tf.Session("grpc://" + servers.addresses["local/0"]) as session:
        for i, saver in enumerate(savers):
            saves_and_restores(session, saver, f"./m{i}")
            check(tf.train.latest_checkpoint(".") == f"./m{i}", tf.train.latest_checkpoint("."))
        check(os.path.exists(os.path.join(servers.data, "run", "m0.index")))

# The node works elsewhere.
if not on_tensorflow():
    os.chdir(tempfile.mkdtemp())
    with sandbox.Cluster(server_kind(), {"local": 1}, meshtf_binary()) as servers:
        servers.start()
        with tf.Session("grpc://" + servers.addresses["local/0"]) as session:
            session.run(tf.global_variables_initializer())
            for saver in savers:
                with raises(tf.errors.PermissionDeniedError, "relative name", os.path.join(servers.data, "m"), "--data"):
                    saver.save(session, "./m")
                with raises(tf.errors.PermissionDeniedError, "relative name", servers.data):
                    session.run(saver.saver_def.restore_op_name, {saver.saver_def.filename_tensor_name: "m"})
                saves_and_restores(session, saver, os.path.join(servers.data, "m"))
            check(not [name for name in os.listdir(".") if name.startswith("m.data")])
