"""The programs of TensorFlow's guides, started as they say with `meshtf tf --` before it; `guides.py` has what they share."""

import os
import signal
import sys

import sandbox
from client import check, note, on_tensorflow, tf
from guides import Program, is_left, train

CLUSTER = None

if on_tensorflow():
    note("not run: TensorFlow 2 lacks the names that these programs use")
    sys.exit()

# A server at an address that only other machines know.
NAMED = """
import tensorflow as tf

server = tf.train.Server({"worker": ["worker7.invalid:2222"]})
for target in ("grpc://worker7.invalid:2222", "grpc://localhost:2222", server.target):
    with tf.Session(target) as session:
        print(target, session.run(tf.constant(5) + 2))
"""

# A server by itself, and a program without any.
greeting = Program("greeting")
first = Program("first")
own_port = sandbox.free_addresses({"worker": 1})["worker/0"].split(":")[1]
named = Program("named", mesh="named", ports={"2222": own_port}, text=NAMED)
check("Hello, distributed TensorFlow!" in greeting.ends(), greeting.output())
check("238" in first.ends().split(), first.output())
for target in (f"grpc://worker7.invalid:{own_port}", f"grpc://localhost:{own_port}"):
    check(f"{target} 7" in named.ends().splitlines(), named.output())

# Two servers in terminals of their own; programs connect to the first.
addresses = sandbox.free_addresses({"local": 2})
ports = {str(2222 + i): addresses[f"local/{i}"].split(":")[1] for i in range(2)}
workers = [Program("create_worker", str(i), mesh="workers", ports=ports) for i in range(2)]
for i, worker in enumerate(workers):
    worker.says(f"Starting server #{i}")
connecting = [Program(name, ports=ports) for name in ("sum", "mean")]
check("238" in connecting[0].ends().split(), connecting[0].output())
mean = [float(line) for line in connecting[1].ends().splitlines() if line.startswith("0.")]
check(len(mean) == 1 and 0.3 < mean[0] < 0.7, connecting[1].output())
# A second server at an address that is taken.
again = Program("create_worker", "0", mesh="again", ports=ports)
check("Could not start the server of /job:local/task:0" in again.ends(1), again.output())
check("cannot listen on --grpc" in again.output(), again.output())
# However a program ends, its server ends with it.
for worker, number in zip(workers, (signal.SIGKILL, signal.SIGTERM)):
    worker.process.send_signal(number)
    worker.process.wait()
for address in addresses.values():
    check(is_left(address), address)

# The trainer: two parameter servers, two workers.
logs = train("trainer")
checkpoint = tf.train.latest_checkpoint(logs)
check(checkpoint == os.path.join(logs, "final"), checkpoint, os.listdir(logs))
reader = tf.train.load_checkpoint(checkpoint)
check(reader.get_variable_to_shape_map()["Variable"] == [10, 1])
