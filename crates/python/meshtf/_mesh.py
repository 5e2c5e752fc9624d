"""Meshes that are joined, and nodes that are started on this machine."""

from __future__ import annotations

import os
import weakref
from collections import namedtuple
from collections.abc import Mapping

from . import _errors, _native
from ._draw import Plan, table
from ._graph import Graph
from ._lazy import json, pictures
from ._session import Names, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ._processes import Nodes
    from ._session import Fetches


# How long a task may take to report its status for a picture, in seconds, and most devices of a table.
_ANSWER, _MOST_ROWS = 2.0, 40


class Device(namedtuple("Device", "name backend description memory cores")):
    """A device of a task: its name, its backend, the machine's words for it, its memory in bytes and its cores, if known."""

    __slots__ = ()
    name: str
    backend: str
    description: str
    memory: int | None
    cores: int | None


class Task(namedtuple("Task", "job index devices addresses", defaults=((), ()))):
    """A task that is up. As a text it is its name in device strings."""

    __slots__ = ()
    job: str
    index: int
    devices: tuple[Device, ...]
    addresses: tuple[str, ...]

    @property
    def name(self) -> str:
        """The short name: ``worker/1``."""
        return f"{self.job}/{self.index}"

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.index}"


class Mesh:
    """The tasks of a mesh, or of this process: see `mesh` and `local`. It is left by ``with`` or by `close`."""

    def __init__(self, native: _native.Client, what: str, nodes: Nodes | None = None) -> None:
        self._native = native
        self._what = what
        self._nodes = nodes
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def tasks(self) -> list[Task]:
        """The tasks that are up, by name.

        >>> import meshtf
        >>> with meshtf.local({"ps": 1, "worker": 2}) as m:
        ...     [task.name for task in m.tasks()]
        ['ps/0', 'worker/0', 'worker/1']
        """
        return [
            Task(one["job"], one["index"], tuple(Device(**device) for device in one["devices"]), tuple(one["addresses"]))
            for one in json.loads(self._native.tasks())
        ]

    def status(self, task: Task | str) -> dict:
        """The status of a task: its sessions, devices, variables, peers and limits, as `meshtf status --json` has them."""
        return json.loads(self._native.status(_task(task)))

    def wait_for(self, *tasks: Task | str, seconds: float = 10) -> None:
        """Waits until these tasks are up. UnavailableError if they are not within the limit."""
        if not self._native.wait_for([_task(task) for task in tasks], seconds):
            up = ", ".join(task.name for task in self.tasks()) or "none"
            raise _errors.UnavailableError(f"not all of {', '.join(map(_task, tasks))} are up after {seconds} s; there are: {up}")

    def session(
        self,
        graph: Graph,
        *,
        target: Task | str | None = None,
        place: str = "names",
        soft_placement: bool = False,
        isolated: bool = False,
        guard: float | None = None,
        init: bool | None = None,
        weights: Mapping[str, Any] | None = None,
    ) -> Session:
        """Opens a session of a graph on the master `target`: the first task by name if there is none.

        `place` decides on the device of nodes whose device strings leave a choice: ``"names"`` has the master's, ``"auto"`` has
        those with which a step is expected to end soonest, ``"throughput"`` those with which most steps of a series are
        expected to end each second, if they do not wait for each other. `soft_placement` uses another device of the task if a
        requested one does not exist. The variables of an `isolated` session are its own. With `guard`, runs of many steps survive the loss of
        a task whose name is taken again: copies of the state are made that many seconds apart. `init` gives the variables their
        first values: None if none of them has one, True in any case. `weights` are values of variables by name, which are set
        then.
        """
        complete = Graph._of(graph)._complete()
        native = self._native.session(
            complete,
            target=None if target is None else _task(target),
            place=place,
            soft_placement=soft_placement,
            isolated=isolated,
            guard=guard,
            init=False if weights is not None and init is None else init,
        )
        session = Session(native, graph)
        self._sessions.add(session)
        try:
            if weights is not None:
                session.variables.update(weights)
        except BaseException:
            session.close()
            raise
        return session

    def plan(
        self,
        graph: Graph,
        fetches: Fetches = None,
        feeds: Iterable[str] = (),
        *,
        target: Task | str | None = None,
        place: str = "names",
        soft_placement: bool = False,
    ) -> Plan:
        """The plan of a run, without running it: where each node runs, and what is sent. `feeds` are names of tensors
        that are fed besides the placeholders that the fetches need.

        >>> import meshtf
        >>> g = meshtf.Graph()
        >>> x = g.placeholder("x", "int32", [])
        >>> with g.device("/job:worker/task:1"):
        ...     y = g.op("AddV2", x, 1, name="y")
        >>> with meshtf.local({"worker": 2}) as m:
        ...     plan = m.plan(g, y, ["x"])
        >>> plan.devices["y"]
        '/job:worker/task:1/device:CPU:0'
        """
        names = Names(Graph._of(graph))
        asked = names.asked(fetches)
        fed = [names.meant(names.of(name))[0] for name in feeds]
        svg, described = self._native.plan(
            names.complete,
            asked.fetches,
            asked.targets,
            fed,
            target=None if target is None else _task(target),
            place=place,
            soft_placement=soft_placement,
        )
        return Plan(svg, json.loads(described))

    def close(self) -> None:
        """Closes its sessions, leaves the mesh, and ends the nodes that were started for it."""
        try:
            for session in list(self._sessions):
                session.close()
        finally:
            try:
                self._native.close()
            finally:
                if self._nodes is not None:
                    self._nodes.end()

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a mesh belongs to the process that joined it: pickle the graph, and join with meshtf.mesh() where it runs"
        )

    def __repr__(self) -> str:
        if self._native.is_closed:
            return f"<meshtf.Mesh {self._what}, closed>"
        return f"<meshtf.Mesh {self._what}: {', '.join(task.name for task in self.tasks()) or 'no task'}>"

    def _repr_html_(self) -> str:
        if self._native.is_closed:
            return "<p>The mesh was left.</p>"
        rows = [
            [task.name, device.name, device.backend, device.description, pictures.size(device.memory)]
            for task in self.tasks()
            for device in task.devices
        ]
        shown = table(["task", "device", "backend", "", "memory"], rows[:_MOST_ROWS], max(len(rows) - _MOST_ROWS, 0))
        return f"{self.svg}{shown}"

    @property
    def svg(self) -> str:
        """The mesh as an SVG picture: its tasks, how busy they are, and the links between them."""
        nodes = []
        for task, status in json.loads(self._native.statuses(_ANSWER)):
            busy = None if status is None else max((one["busy_share"] for one in status["devices"]["items"]), default=0.0)
            links = [] if status is None else [_link(one) for one in status["peers"]["items"] if one["task"]]
            nodes.append({"task": task, "busy": busy, "links": links})
        return pictures.mesh(nodes)


def mesh(
    name: str | None = None,
    *,
    peers: Iterable[str] | None = None,
    tasks: Iterable[Task | str] = (),
    open: bool = False,
    mdns: bool = True,
    local: bool = True,
    home: str | os.PathLike[str] | None = None,
    timeout: float = 8,
    own_master: bool = False,
) -> Mesh:
    """Joins a mesh as a client, which holds no task, once a node of it is found and these `tasks` are up.

    The arguments are those of the command: `name` is that of the mesh (``MESHTF_MESH``, else ``"meshtf"``), `peers` are addresses
    to dial (``MESHTF_PEERS``), `open` admits peers without a key, `mdns` searches the local network, `local` uses Unix sockets
    on this machine, and `home` is the folder of keys. UnavailableError if no node is found within `timeout` seconds.

    With `own_master`, this process is the master of the sessions that it opens without a `target`, in place of the node of the
    first task by name: they do not end with a node, so with a `guard` their steps survive the loss of any node. Nodes do not
    list them.
    """
    if name is None:
        name = os.environ.get("MESHTF_MESH") or "meshtf"
    if peers is None:
        peers = (peer for peer in os.environ.get("MESHTF_PEERS", "").split(",") if peer)
    if isinstance(peers, str):
        peers = [peers]
    native = _native.join(
        name=name,
        peers=list(peers),
        open=open,
        mdns=mdns,
        local=local,
        home=None if home is None else os.fspath(home),
        tasks=[_task(task) for task in tasks],
        seconds=timeout,
        own_master=own_master,
    )
    return Mesh(native, name)


def local(
    tasks: Mapping[str, int] | Iterable[Task | str] | Graph | None = None,
    *,
    backend: str = "auto",
    data: str | os.PathLike[str] | None = None,
    processes: bool = False,
) -> Mesh:
    """Starts tasks on this machine: numbers of tasks by job, names of tasks, or a graph for the tasks that it names.

    They are parts of this process, without a network. With `processes`, each is a process of the command ``meshtf node``, and
    they meet on a mesh of their own. Both end when the mesh is closed, and with the program; a program that is killed by a
    signal leaves its processes. Graphs may save and restore files below the folder `data`, and nowhere else.

    >>> import meshtf
    >>> with meshtf.local() as m:
    ...     m
    <meshtf.Mesh local: localhost/0>
    """
    names = _names(tasks)
    folder = None if data is None else os.fspath(data)
    if not processes:
        return Mesh(_native.local(names, backend=backend, data=folder), "local")
    from ._processes import Nodes

    nodes = Nodes(names, backend, folder)
    try:
        native = _native.join(
            name=nodes.mesh,
            peers=[],
            open=False,
            mdns=False,
            local=True,
            home=nodes.home,
            tasks=names,
            seconds=30,
            own_master=False,
        )
    except BaseException:
        nodes.end()
        raise
    return Mesh(native, nodes.mesh, nodes)


def _link(peer: Mapping[str, Any]) -> dict[str, Any]:
    """A link with a peer as the picture of a mesh takes it."""
    microseconds = peer["round_trip_us"]
    return {
        "to": f"{peer['task']['job']}/{peer['task']['index']}",
        "up": peer["state"] == "Up",
        "seconds": None if microseconds is None else microseconds / 1e6,
        "rate": peer["sent_per_second"] + peer["received_per_second"],
    }


def _names(tasks: Any) -> list[str]:
    if tasks is None:
        return ["localhost/0"]
    if isinstance(tasks, Graph):
        return tasks._complete().tasks() or ["localhost/0"]
    if isinstance(tasks, str):
        raise TypeError('tasks are {"worker": 2}, or a list of names such as ["worker/0", "worker/1"]')
    if isinstance(tasks, Mapping):
        return [f"{job}/{index}" for job, count in tasks.items() for index in range(count)]
    return [_task(task) for task in tasks]


def _task(task: Task | str) -> str:
    return task.name if isinstance(task, Task) else task
