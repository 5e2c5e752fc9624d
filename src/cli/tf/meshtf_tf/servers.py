"""`tf.train.Server` as a node of its task: `meshtf server` as a process that ends with the program."""

import functools
import json
import os
import subprocess
import threading

from meshtf_tf import functions

# Every node of the program, by its server. They serve until it ends, as TensorFlow's do, whatever becomes of the object.
NODES = []
# The targets of sessions that the cluster has for them, and those where they are: another machine's name for this one does not lead
# to a server that this machine alone may reach.
TARGETS = {}


def install():
    """Gives TensorFlow's class its methods here: whoever has the class, Estimator among them, has them."""
    from tensorflow.python.client import session
    from tensorflow.python.framework import errors
    from tensorflow.python.training import server_lib

    session.BaseSession.__init__ = to_own_server(session.BaseSession.__init__)

    def __init__(self, server_or_cluster_def, job_name=None, task_index=None, protocol=None, config=None, start=True):
        self._server_def = server_lib._make_server_def(server_or_cluster_def, job_name, task_index, protocol, config)
        self._node = Node(self._server_def, errors)
        if start:
            self.start()

    def start(self):
        """Starts this server."""
        self._node.start()

    def join(self):
        """Blocks until the server has ended, which it does with the program."""
        self._node.join()

    server = server_lib.Server
    server.__init__ = __init__
    server.__del__ = lambda self: None
    server.start = start
    server.join = join
    server.target = property(lambda self: self._node.target(), doc="The target of sessions on this server.")


def to_own_server(init):
    """Has a session on a server of this program go where that is."""

    @functools.wraps(init)
    def __init__(self, target="", *arguments, **more):
        init(self, TARGETS.get(target, target), *arguments, **more)

    return __init__


class Node:
    """The node of one task, once it is started."""

    def __init__(self, server_def, errors):
        self.errors = errors
        self.process, self.address, self.says = None, None, Says()
        tasks = {job.name: dict(job.tasks) for job in server_def.cluster.job}
        own = tasks.get(server_def.job_name, {})
        self.name = "/job:%s/task:%d" % (server_def.job_name, server_def.task_index)
        if server_def.task_index not in own:
            raise errors.InvalidArgumentError(None, None, "Task %s is not in the cluster: %s" % (self.name, tasks))
        address = own[server_def.task_index]
        self.stated = "grpc://" + address
        # A task by itself at a port that nobody knows beforehand: nobody else can be meant to join it.
        is_alone = sum(map(len, tasks.values())) == 1 and address.endswith(":0")
        self.flags = ["--cluster_spec", json.dumps({job: {str(i): at for i, at in all.items()} for job, all in tasks.items()})]
        self.flags += ["--job_name", server_def.job_name, "--task_index", str(server_def.task_index)]
        self.flags += json.loads(os.environ["MESHTF_SERVER_FLAGS"]) + (["--private"] if is_alone else [])

    def start(self):
        """Returns once the node serves."""
        if self.process is not None:
            return
        command = [os.environ["MESHTF_BINARY"], "server", "--parent", str(os.getpid()), "--python", functions.listen()]
        command += self.flags
        # Ctrl-C is the program's: its server is there until it has ended, to save a last checkpoint, say.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        says, address = Says(), None
        threading.Thread(target=says.pass_on, args=(process.stderr,), daemon=True).start()
        line = process.stdout.readline().decode(errors="replace")
        for word in line.split():
            if word.startswith("grpc="):
                address = word[len("grpc=") :]
        if address is None:
            # The end of its input ends it if it has not ended yet. The thread closes its standard error.
            process.stdin.close()
            process.stdout.close()
            process.wait()
            says.ended.wait(1)
            why = "Could not start the server of %s: %s" % (self.name, says.last() or line or "it says nothing")
            raise self.errors.UnknownError(None, None, why)
        self.process, self.says, self.address = process, says, address
        NODES.append(self)
        TARGETS[self.stated] = self.target()

    def join(self):
        """Returns never: fails if the node ends before the program."""
        if self.process is None:
            raise self.errors.FailedPreconditionError(None, None, "The server of %s has not been started" % self.name)
        code = self.process.wait()
        self.says.ended.wait(1)
        why = "The node of %s has ended with code %d: %s" % (self.name, code, self.says.last())
        raise self.errors.UnavailableError(None, None, why)

    def target(self):
        """What a session connects to."""
        # The port may be known by the node alone.
        self.start()
        host, port = self.address.rsplit(":", 1)
        return "grpc://%s:%s" % ("localhost" if host in ("127.0.0.1", "0.0.0.0") else host, port)


class Says:
    """What a node says on its standard error, passed on to the program's."""

    def __init__(self):
        self.lines, self.ended = [], threading.Event()

    def pass_on(self, stream):
        with stream:
            for line in stream:
                self.lines = self.lines[-4:] + [line.decode(errors="replace").strip()]
                try:
                    os.write(2, line)
                except OSError:
                    # Nobody reads it; the node goes on.
                    pass
        self.ended.set()

    def last(self):
        """The last line."""
        return self.lines[-1] if self.lines else ""
