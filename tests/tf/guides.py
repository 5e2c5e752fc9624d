"""Programs of TensorFlow's guides as processes, started with `meshtf tf --` before them: each role a process, on loopback.

The programs are in `documents/`, as the guides have them; only their ports are replaced. `trainer.py` has a small model in the place of
"Build model...", fed by queues, flags for the number of steps and the folder, and says how fast it was; its workers look each
second for the chief.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time

import sandbox
from client import check, meshtf_binary, note

HERE = os.path.dirname(os.path.abspath(__file__))
HOME = tempfile.mkdtemp()
# Neither this cluster, nor what TensorFlow 2 leaves for those that it starts: with TF2_BEHAVIOR, TensorFlow 1.15 is eager.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("MESHTF_", "TF2_"))}
ENVIRONMENT.update(MESHTF_HOME=HOME, PYTHONUNBUFFERED="1", TF_CPP_MIN_LOG_LEVEL="3")


class Program:
    """One of the guides' programs as a process of `python`, with other ports and `more` in its environment. Its output is in a file."""

    def __init__(self, name, *arguments, mesh="guide", ports=None, text=None, python=sys.executable, **more):
        if text is None:
            with open(os.path.join(HERE, "documents", name + ".py")) as file:
                text = file.read()
        for port, own in (ports or {}).items():
            text = text.replace(port, own)
        self.folder = tempfile.mkdtemp()
        path = os.path.join(self.folder, f"{name}-{'-'.join(arguments)[:20].replace('/', '-')}.py")
        with open(path, "w") as file:
            file.write(text)
        self.log = path.replace(".py", ".log")
        command = [meshtf_binary(), "tf", "--mesh", "tf-" + mesh + os.path.basename(HOME), "--", python, path, *arguments]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT | more, stdout=log, stderr=log)

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


def train(mesh, python=sys.executable):
    """The trainer on two parameter servers and two workers, each with that `python`; answers the folder of its checkpoints."""
    addresses = sandbox.free_addresses({"ps": 2, "worker": 2})
    hosts = {job: ",".join(addresses[f"{job}/{i}"] for i in range(2)) for job in ("ps", "worker")}
    logs = tempfile.mkdtemp()
    roles = {}
    for task in addresses:
        job, index = task.split("/")
        flags = [f"--job_name={job}", f"--task_index={index}", f"--ps_hosts={hosts['ps']}", f"--worker_hosts={hosts['worker']}"]
        roles[task] = Program("trainer", *flags, "--steps=1000", f"--logdir={logs}", mesh=mesh, python=python)
    for i in range(2):
        said = roles[f"worker/{i}"].ends()
        line = next(line for line in said.splitlines() if line.startswith(f"worker {i}: "))
        step, loss = int(line.split("step ")[1].split(",")[0]), float(line.split("loss ")[1])
        check(step >= 1000 and loss < 0.02, line)
        note(line)
    check([name for name in os.listdir(logs) if name.startswith("events.out")], os.listdir(logs))
    for i in range(2):
        role = roles[f"ps/{i}"]
        check(role.process.poll() is None and serves(addresses[f"ps/{i}"]), role.output())
        role.process.kill()
        role.process.wait()
        check(is_left(addresses[f"ps/{i}"]), f"ps/{i}")
    return logs
