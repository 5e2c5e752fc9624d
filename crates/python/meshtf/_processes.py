"""Nodes as processes of the command, which end with the mesh or the program that started them.

They stay if the program is killed, as by SIGKILL, or by a SIGTERM that it does not handle: its last functions do not run then.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import weakref

from . import _errors

# How long a node may take to serve its task, and to end when it is asked to, in seconds.
_START, _END = 60, 10
# Most lines of a node's complaints that are kept.
_MOST_LINES = 20


def binary() -> str:
    """The path of the command ``meshtf``: ``MESHTF_BINARY``, that of this installation, or the first one of the PATH."""
    stated = os.environ.get("MESHTF_BINARY")
    own = os.path.join(sysconfig.get_path("scripts"), "meshtf")
    found = stated or (own if os.access(own, os.X_OK) else shutil.which("meshtf"))
    if not found:
        raise _errors.NotFoundError("the command meshtf is not installed; MESHTF_BINARY may name it")
    return found


class Nodes:
    """The processes of some tasks, on a mesh of their own."""

    def __init__(self, names: list[str], backend: str, data: str | None) -> None:
        command = binary()
        self.mesh = f"python-{secrets.token_hex(8)}"
        self.home = tempfile.mkdtemp(prefix="meshtf-")
        self._running: list[subprocess.Popen] = []
        self._ending = weakref.finalize(self, _end, self._running, self.home, os.getpid())
        # The first node makes the key of the mesh, so the others wait for it.
        flags = ["--mesh", self.mesh, "--no-mdns", "--backend", backend]
        flags += [] if data is None else ["--data", data]
        environment = {**os.environ, "MESHTF_HOME": self.home}
        try:
            for name in names:
                node = subprocess.Popen(
                    [command, "node", "--name", name, *flags],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # Ctrl-C in a terminal is for this process, which then ends its nodes.
                    start_new_session=True,
                )
                self._running.append(node)
                _await(node, name)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends the processes, and removes their folder."""
        self._ending()


def _await(node: subprocess.Popen, name: str) -> None:
    """Waits until a node says that it is up, by a line on stdout, or ends."""
    said: list[bytes] = []
    complaints: list[bytes] = []
    up = threading.Event()

    def read_stdout() -> None:
        for line in node.stdout or ():
            if not said:
                said.append(line)
                up.set()
        up.set()

    def read_stderr() -> None:
        for line in node.stderr or ():
            if len(complaints) < _MOST_LINES:
                complaints.append(line)

    threads = [threading.Thread(target=read, daemon=True) for read in (read_stdout, read_stderr)]
    for thread in threads:
        thread.start()
    if not up.wait(_START):
        raise _errors.UnavailableError(f"the node {name} is not up after {_START} s", task=name)
    if not said:
        threads[1].join(_END)
        why = b"".join(complaints).decode(errors="replace").strip()
        raise _errors.UnavailableError(f"the node {name} did not start: {why}", task=name)


def _end(running: list[subprocess.Popen], home: str, owner: int) -> None:
    # A process that was forked runs this at its end, too: the nodes are not its own.
    if os.getpid() != owner:
        return
    for node in running:
        if node.poll() is None:
            node.terminate()
    for node in running:
        try:
            node.wait(_END)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()
        for stream in (node.stdout, node.stderr):
            if stream is not None:
                stream.close()
    running.clear()
    shutil.rmtree(home, ignore_errors=True)
