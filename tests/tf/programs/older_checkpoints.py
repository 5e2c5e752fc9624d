"""Checkpoints in the form of clients before 1.0 (`SaverDef.V1`): saved and restored through the servers, whole and sharded; and
files that the other side wrote: TensorFlow in this process reads what the servers saved, and the servers what it saved."""

import os

import numpy as np

import sandbox
from client import check, meshtf_binary, raises, server_kind, tf

CLUSTER = None

weights = tf.get_variable("weights", [3, 2], initializer=tf.constant_initializer([[1, 2], [3, 4], [5, 6]]))
steps = tf.get_variable("steps", [], tf.int64, initializer=tf.constant_initializer(-7))
with tf.device("/job:local/task:1"):
    parts = tf.get_variable("parts", [4, 2], partitioner=tf.fixed_size_partitioner(2), initializer=tf.ones_initializer())
    half = tf.get_variable("half", [2], tf.float16, initializer=tf.constant_initializer([0.5, -2.0]))
changed = tf.group(*(tf.assign(variable, tf.zeros_like(variable)) for variable in tf.global_variables()))
form = tf.train.SaverDef.V1
savers = {"whole": tf.train.Saver(write_version=form), "sharded": tf.train.Saver(write_version=form, sharded=True)}
wanted = {"weights": [[1, 2], [3, 4], [5, 6]], "steps": -7, "parts": [[1, 1]] * 4, "half": [0.5, -2.0]}
values = {"weights": weights, "steps": steps, "parts": tf.convert_to_tensor(parts), "half": half}


def holds_what_was_saved(session):
    got = session.run(values)
    check({name: got[name].tolist() for name in got} == wanted, got)


def restores(session, saver, path):
    session.run(changed)
    check(not session.run(weights).any())
    saver.restore(session, path)
    holds_what_was_saved(session)


with sandbox.Cluster(server_kind(), {"local": 2}, meshtf_binary()) as servers:
    servers.start()
    with tf.Session("grpc://" + servers.addresses["local/0"]) as session:
        for name, saver in savers.items():
            session.run(tf.global_variables_initializer())
            path = saver.save(session, os.path.join(servers.data, "there-" + name))
            check(tf.train.checkpoint_exists(path), path)
            restores(session, saver, path)
            with tf.Graph().as_default(), tf.Session() as own:
                dtypes = {"weights": tf.float32, "steps": tf.int64, "parts": tf.float32, "half": tf.float16}
                read = {name: tf.raw_ops.Restore(file_pattern=path, tensor_name=name, dt=dtypes[name]) for name in wanted}
                got = {name: value.tolist() for name, value in own.run(read).items()}
                check(got == wanted, got)
        # What TensorFlow writes, without any of the graph's devices.
        with tf.Graph().as_default(), tf.Session() as own:
            path = os.path.join(servers.data, "here")
            data = {"weights": np.array(wanted["weights"], np.float32), "steps": np.int64(-7)}
            data |= {"parts": np.ones([4, 2], np.float32), "half": np.array(wanted["half"], np.float16)}
            own.run(tf.raw_ops.Save(filename=path, tensor_names=list(data), data=list(data.values())))
        restores(session, savers["whole"], path)
        # RestoreV2 reads the older form, too.
        part = {"tensor_names": ["weights"], "shape_and_slices": ["3 2 1,1:-"], "dtypes": [tf.float32]}
        check(session.run(tf.raw_ops.RestoreV2(prefix=path, **part))[0].tolist() == [[3, 4]])
        absent = tf.raw_ops.Restore(file_pattern=path, tensor_name="nobody", dt=tf.float32)
        with raises(tf.errors.NotFoundError, "Tensor name \"nobody\" not found in checkpoint files"):
            session.run(absent)
