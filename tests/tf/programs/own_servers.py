"""A program whose servers are nodes, under `meshtf tf`: jobs that nobody serves, tasks that start late, two clusters."""

import os
import re
import subprocess
import sys
import tempfile

import sandbox
from client import check, first_python, meshtf_binary, note, on_tensorflow

CLUSTER = None

if on_tensorflow():
    note("not run: the servers are nodes")
    sys.exit()

SERVERS = """
import os, subprocess, sys, time
import tensorflow as tf

addresses = sys.argv[1:]
cluster = tf.train.ClusterSpec({"ps": [addresses[0]], "worker": [addresses[1], addresses[2]]})
worker = tf.train.Server(cluster, job_name="worker", task_index=0)

# A job that is not in the cluster is refused at once, by a session and by one that was open before.
began = time.monotonic()
with tf.Graph().as_default():
    with tf.device("/job:nobody/task:0"):
        y = tf.constant(2) + 3
    with tf.device("/job:worker/task:0"):
        z = y + tf.constant(1)
    with tf.Session(worker.target) as session:
        try:
            session.run(z)
            raise SystemExit("a job that nobody serves answers")
        except tf.errors.InvalidArgumentError as error:
            assert "/job:nobody/task:0" in str(error) and "no job nobody" in str(error), error
# A mesh that waits for the job does so for ten seconds.
assert time.monotonic() - began < 9

# A list of devices waits for those of the cluster that still start: this one has just been asked to.
spec = "ps|%s,worker|%s;%s" % tuple(addresses)
ps = subprocess.Popen([os.environ["MESHTF_BINARY"], "server", "--cluster_spec", spec, "--job_name", "ps", "--backend", "flex"])
filters = ["/job:ps", "/job:worker/task:0"]
with tf.Session(worker.target, graph=tf.Graph(), config=tf.ConfigProto(device_filters=filters)) as session:
    listed = [device.name for device in session.list_devices()]
ps.terminate()
ps.wait()
cpus = sorted(name for name in listed if "CPU" in name)
assert cpus == ["/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0"], listed

# A second cluster with a task of the same name: the way out is named.
try:
    tf.train.Server({"worker": ["localhost:0"], "chief": ["127.0.0.1:0"]}, job_name="worker", task_index=0)
    raise SystemExit("a name is held twice")
except tf.errors.UnknownError as error:
    assert "held by" in str(error) and "--mesh" in str(error), error
print("all of it")
"""

# TensorFlow 1.15 warns once in each module of an old name that is used.
OLDER = """
import tensorflow as tf
tf.train.Server.create_local_server()
"""

folder = tempfile.mkdtemp()
environment = dict(os.environ, MESHTF_HOME=os.path.join(folder, "home"), TF_CPP_MIN_LOG_LEVEL="2")


def program(name, text, python, *arguments):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    command = [meshtf_binary(), "tf", "--backend", "flex", "--", python, path, *arguments]
    without = {key: value for key, value in environment.items() if not key.startswith("TF2_")}
    ran = subprocess.run(command, env=without, capture_output=True, text=True, timeout=300)
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    return ran.stdout, ran.stderr


tasks = sandbox.free_addresses({"ps": 1, "worker": 2})
output, _ = program("servers.py", SERVERS, sys.executable, tasks["ps/0"], *(tasks[f"worker/{i}"] for i in range(2)))
check("all of it" in output, output)
_, errors = program("older.py", OLDER, first_python())
check(not re.search("meshtf_tf.*deprecated", errors), errors)
