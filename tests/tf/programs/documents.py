"""The programs of TensorFlow's guides, started as they say with `meshtf tf --` before it: each role a process, on loopback.

They are in `documents/`, as the guides have them; only their ports are replaced. `trainer.py` has a small model in the place of
"Build model...", fed by queues, flags for the number of steps and the folder, and says how fast it was; its workers look each
second for the chief.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import sandbox
from client import check, meshtf_binary, note, on_tensorflow, tf

CLUSTER = None

if on_tensorflow():
    note("not run: TensorFlow 2 lacks the names that these programs use")
    sys.exit()

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOME = tempfile.mkdtemp()
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MESHTF_")}
ENVIRONMENT.update(MESHTF_HOME=HOME, PYTHONUNBUFFERED="1", TF_CPP_MIN_LOG_LEVEL="3")


class Program:
    """One of the guides' programs as a process, with other ports. Its output is in a file."""

    def __init__(self, name, *arguments, mesh="guide", ports=None, text=None):
        if text is None:
            with open(os.path.join(HERE, "documents", name + ".py")) as file:
                text = file.read()
        for port, own in (ports or {}).items():
            text = text.replace(port, own)
        self.folder = tempfile.mkdtemp()
        path = os.path.join(self.folder, f"{name}-{'-'.join(arguments)[:20]}.py")
        with open(path, "w") as file:
            file.write(text)
        self.log = path.replace(".py", ".log")
        command = [meshtf_binary(), "tf", "--mesh", "tf-" + mesh + os.path.basename(HOME), "--", sys.executable, path, *arguments]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT, stdout=log, stderr=log)

    def output(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def ends(self, code=0):
        """What it printed, once it has ended."""
        check(self.process.wait(120) == code, self.process.returncode, self.output())
        return self.output()

    def says(self, text):
        deadline = time.monotonic() + 60
        while text not in self.output():
            check(self.process.poll() is None and time.monotonic() < deadline, self.output())
            time.sleep(0.05)


def serves(address):
    """Whether somebody listens there."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


def is_left(address):
    """Whether nobody listens there any more, within seconds."""
    deadline = time.monotonic() + 10
    while serves(address) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not serves(address)


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
addresses = sandbox.free_addresses({"ps": 2, "worker": 2})
hosts = {job: ",".join(addresses[f"{job}/{i}"] for i in range(2)) for job in ("ps", "worker")}
logs = tempfile.mkdtemp()
roles = {}
for task in addresses:
    job, index = task.split("/")
    flags = [f"--job_name={job}", f"--task_index={index}", f"--ps_hosts={hosts['ps']}", f"--worker_hosts={hosts['worker']}"]
    roles[task] = Program("trainer", *flags, "--steps=1000", f"--logdir={logs}", mesh="trainer")
for i in range(2):
    said = roles[f"worker/{i}"].ends()
    line = next(line for line in said.splitlines() if line.startswith(f"worker {i}: "))
    step, loss = int(line.split("step ")[1].split(",")[0]), float(line.split("loss ")[1])
    check(step >= 1000 and loss < 0.02, line)
    note(line)
checkpoint = tf.train.latest_checkpoint(logs)
check(checkpoint == os.path.join(logs, "final"), checkpoint, os.listdir(logs))
reader = tf.train.load_checkpoint(checkpoint)
check(reader.get_variable_to_shape_map()["Variable"] == [10, 1])
check([name for name in os.listdir(logs) if name.startswith("events.out")], os.listdir(logs))
for i in range(2):
    role = roles[f"ps/{i}"]
    check(role.process.poll() is None and serves(addresses[f"ps/{i}"]), role.output())
    role.process.kill()
    role.process.wait()
    check(is_left(addresses[f"ps/{i}"]), f"ps/{i}")
