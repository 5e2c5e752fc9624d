"""Clusters of servers and the programs that use them, as processes that end with the test.

The servers are meshtf nodes that serve TensorFlow's protocol, or TensorFlow's own, so that each program can be held
against both. This file never opens a session itself: whoever imports it may fork with TensorFlow already loaded,
which costs milliseconds where a fresh interpreter costs four seconds.
"""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

# A server that serves later than this has failed. Far above what it takes: the machine may be busy.
SERVES_WITHIN_S = 60


class Failed(Exception):
    """Something the test relies on did not come to be."""


class Process:
    """A child of this process. Its output goes to a file; it is ended by its id and by nothing else."""

    def __init__(self, name, pid, log):
        self.name, self.pid, self.log = name, pid, log
        self.status, self.leads = None, False
        self.pidfd = os.pidfd_open(pid)

    @classmethod
    def fork(cls, name, log, body, *, group=False):
        """Runs `body()` in a copy of this process; its exit status is 0 unless `body` raises or exits otherwise.

        With `group` it leads a process group, and what it starts ends with it.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            process = cls(name, pid, log)
            process.leads = group
            return process
        status = 1
        try:
            if group:
                os.setpgid(0, 0)
            with open(log, "ab", buffering=0) as output, open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            body()
            status = 0
        except SystemExit as exit:
            status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
            if isinstance(exit.code, str):
                print(exit.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status & 0xFF)

    def wait(self, limit_s):
        """Its exit status (a signal's number below zero), or None where it has not ended after `limit_s`."""
        if self.status is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if poll.poll(max(0, limit_s) * 1000):
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def alive(self):
        return self.wait(0) is None

    def signal(self, number):
        if self.alive():
            signal.pidfd_send_signal(self.pidfd, number)

    def end(self):
        if self.leads:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        self.wait(30)
        with contextlib.suppress(OSError):
            os.close(self.pidfd)

    def output(self):
        with open(self.log, errors="replace") as file:
            return file.read()


class Cluster:
    """Servers, one a task: `jobs` is {"ps": 2, "worker": 2}. Each has a port that the system chose."""

    def __init__(self, kind, jobs, meshtf=None, *, flags=(), folder=None, fresh=False):
        # Whether TensorFlow's servers are interpreters of their own, as a user starts them, and not copies of this process.
        self.fresh = fresh
        self.kind, self.jobs, self.meshtf, self.flags = kind, jobs, meshtf, list(flags)
        self.folder = tempfile.mkdtemp(prefix="cluster-", dir=folder)
        # What graphs save to and restore from; every task of a cluster has the same.
        self.data = os.path.join(self.folder, "data")
        os.mkdir(self.data)
        self.servers, self.addresses = {}, {}
        if kind == "tensorflow":
            self.addresses = free_addresses(jobs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, *, without=()):
        """Starts every task but those in `without`."""
        tasks = [f"{job}/{index}" for job, count in self.jobs.items() for index in range(count)]
        starting = [(task, self.launch(task)) for task in tasks if task not in without]
        for task, ready in starting:
            self.wait_ready(task, ready)
        return self

    def restart(self, task):
        """The task again, on the address it had."""
        self.wait_ready(task, self.launch(task))

    def launch(self, task):
        log = os.path.join(self.folder, task.replace("/", "-") + ".log")
        return self.launch_meshtf(task, log) if self.kind == "meshtf" else self.launch_tensorflow(task, log)

    def launch_meshtf(self, task, log):
        door = self.addresses.get(task, "127.0.0.1:0")
        command = [self.meshtf, "node", "--name", task, "--listen", "127.0.0.1:0", "--grpc", door, "--data", self.data]
        return self.spawn(task, log, command + self.flags, self.own_environment())

    def own_environment(self):
        """What meshtf's commands are told, so that they find this cluster's nodes and no others."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHTF_")}
        return environment | {"MESHTF_HOME": self.folder, "MESHTF_MESH": "tf-" + os.path.basename(self.folder)}

    def spawn(self, task, log, command, environment):
        with open(log, "ab") as errors:
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        self.servers[task] = Process(task, child.pid, log)
        # The process is waited for by its descriptor; Popen must not wait for it again.
        child.returncode = 0
        return child.stdout

    def launch_tensorflow(self, task, log):
        job, index = task.split("/")
        spec = {job: [self.addresses[f"{job}/{i}"] for i in range(count)] for job, count in self.jobs.items()}
        if self.fresh:
            command = [sys.executable, os.path.abspath(__file__), json.dumps(spec), job, index]
            return self.spawn(task, log, command, dict(os.environ))
        ready, says = os.pipe()

        def serve():
            os.close(ready)
            serve_tensorflow(spec, job, int(index), says)

        self.servers[task] = Process.fork(task, log, serve)
        os.close(says)
        return os.fdopen(ready, "rb", buffering=0)

    def wait_ready(self, task, stream):
        """Waits for the line that says where the task serves."""
        said, deadline = b"", time.monotonic() + SERVES_WITHIN_S
        with stream:
            while b"\n" not in said:
                readable, _, _ = select.select([stream], [], [], max(0, deadline - time.monotonic()))
                part = os.read(stream.fileno(), 65536) if readable else b""
                if not part:
                    raise Failed(f"{task} does not serve: {said!r}\n{self.servers[task].output()}")
                said += part
            # What it may print later has a reader as long as it lives, so that it cannot fail for want of one.
            self.servers[task].stdout = os.dup(stream.fileno())
        for word in said.decode().split():
            if word.startswith("grpc="):
                self.addresses[task] = word.removeprefix("grpc=")
                return
        raise Failed(f"{task} does not say where it serves TensorFlow's clients: {said.decode()}")

    def kill(self, task):
        """kill -9, and gone."""
        self.servers.pop(task).end()

    def rss_kib(self, task, what="VmRSS"):
        with open(f"/proc/{self.servers[task].pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(what + ":"))

    def environment(self):
        """What a program is told about the cluster. `client.py` reads it."""
        spec = {}
        for job, count in self.jobs.items():
            spec[job] = [self.addresses.get(f"{job}/{index}", "127.0.0.1:1") for index in range(count)]
        told = {"kind": self.kind, "cluster": spec, "data": self.data, "meshtf": self.meshtf}
        told["pids"] = {task: server.pid for task, server in self.servers.items()}
        return {"TF_TEST_CLUSTER": json.dumps(told)}

    def logs(self):
        for task, server in sorted(self.servers.items()):
            text = server.output()
            if text.strip():
                yield task, text

    def stop(self):
        for server in self.servers.values():
            server.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def serve_tensorflow(spec, job, index, says):
    """Is a server of TensorFlow's own until it is ended; writes a line to `says` when it serves."""
    import tensorflow.compat.v1 as tf

    server = tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=index)
    os.write(says, b"serves grpc=" + spec[job][index].encode() + b"\n")
    server.join()


def free_addresses(jobs):
    """Addresses for TensorFlow's servers, which must know all of them beforehand.

    Seconds can pass until a server listens. No port is one of those that the system gives to outgoing connections, of
    which the programs open many: one of them could have taken it by then.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    ports = [*range(10_000, first), *range(last + 1, 65_536)]
    random.SystemRandom().shuffle(ports)
    tasks = [f"{job}/{index}" for job, count in jobs.items() for index in range(count)]
    addresses = {}
    with contextlib.ExitStack() as held:
        for task in tasks:
            one = held.enter_context(socket.socket())
            while task not in addresses:
                address = ("127.0.0.1", ports.pop())
                with contextlib.suppress(OSError):
                    one.bind(address)
                    addresses[task] = "%s:%s" % address
    return addresses


if __name__ == "__main__":
    serve_tensorflow(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), 1)
