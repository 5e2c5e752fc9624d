"""Plans, traced steps and curves as values that notebooks show as pictures."""

from __future__ import annotations

from ._lazy import base64, html, json, pictures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# Most rows of a table in a notebook.
_MOST_ROWS = 20


def table(heads: list[str], rows: list[list[Any]], more: int = 0) -> str:
    """A table of HTML."""
    head = "".join(f"<th style='text-align:left'>{html.escape(one)}</th>" for one in heads)
    cell = "<td style='text-align:left'>{}</td>".format
    body = "".join("<tr>" + "".join(cell(html.escape(str(one))) for one in row) + "</tr>" for row in rows)
    rest = f"<p>and {more} more</p>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


class Plan:
    """The devices of a run's nodes, and the values that pass between devices: see `Mesh.plan`."""

    def __init__(self, svg: str, described: dict) -> None:
        #: The plan as an SVG picture.
        self.svg = svg
        #: The device of each node, by name.
        self.devices: dict[str, str] = {one["node"]: one["device"] for one in described["placements"]}
        #: The values that a step sends from one device to another: tensor, from, to, bytes (None if only a run knows).
        self.transfers: list[tuple[str, str, str, int | None]] = [
            (one["tensor"], one["from"], one["to"], one["bytes"]) for one in described["transfers"]
        ]
        #: The time that a step is expected to take, in seconds, if the plan was made by cost.
        self.estimate: float | None = described["estimate"]

    def __repr__(self) -> str:
        devices = len(set(self.devices.values()))
        return f"<meshtf.Plan of {len(self.devices)} nodes on {devices} devices, {len(self.transfers)} transfers>"

    def __str__(self) -> str:
        lines = [f"{node} on {device}" for node, device in self.devices.items()]
        lines += [
            f"{tensor}: {of} to {to}" + (f", {pictures.size(count)}" if count else "") for tensor, of, to, count in self.transfers
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # As an image: the rules of its style are not for the page.
        image = base64.b64encode(self.svg.encode()).decode()
        words = html.escape(f"the plan: {len(self.devices)} nodes on {', '.join(sorted(set(self.devices.values())))}")
        width = self.svg.split('viewBox="0 0 ', 1)[1].split(maxsplit=1)[0]
        return f"<img alt='{words}' width='{width}' style='max-width:100%' src='data:image/svg+xml;base64,{image}'/>"


class Trace:
    """A traced step: what it fetched, and when each device ran which node.

    >>> import meshtf
    >>> g = meshtf.Graph()
    >>> y = g.op("AddV2", g.placeholder("x", "float32", [None]), 1.0, name="y")
    >>> with meshtf.local() as m, m.session(g) as s:
    ...     traced = s.trace("y", {"x": [1, 2]})
    >>> traced.values, [name for _, name, _, _, _ in traced.nodes if name == "y"]
    (array([2., 3.], dtype=float32), ['y'])
    """

    def __init__(self, values: Any, timeline: dict) -> None:
        #: The fetched values, in the form of the fetches.
        self.values = values
        #: The devices that took part.
        self.devices: list[str] = timeline["devices"]
        #: The longest nodes: device, name, op, start and duration in seconds since the step began.
        self.nodes: list[tuple[str, str, str, float, float]] = [
            (self.devices[device], name, op, start / 1e6, took / 1e6) for device, name, op, start, took in timeline["bars"]
        ]
        #: The duration of the step in seconds.
        self.took: float = timeline["took_us"] / 1e6
        self._ways = [
            (self.devices[of], sent / 1e6, self.devices[to], received / 1e6) for of, sent, to, received in timeline["ways"]
        ]
        self._more: int = timeline["more"]
        self._chrome = timeline["chrome"]

    def save(self, path: str) -> None:
        """Writes the timeline for ui.perfetto.dev."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self._chrome, file)

    def __repr__(self) -> str:
        return f"<meshtf.Trace of {len(self.nodes)} nodes on {len(self.devices)} devices, {self.took * 1e6:.0f} µs>"

    @property
    def svg(self) -> str:
        """The step as an SVG picture: a lane for each device, and the values that went from one to another."""
        return pictures.timeline(self.took, sorted(self.devices), self.nodes, self._ways, self._more)

    def _repr_html_(self) -> str:
        return self.svg


class Curves:
    """Curves of measured values by step: see `curves`."""

    def __init__(self, history: Mapping[str, Sequence[float]]) -> None:
        self._measures: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for name, values in history.items():
            if name in ("step", "val_step"):
                continue
            held_out = name.startswith("val_")
            steps = history.get("val_step" if held_out and "val_step" in history else "step")
            steps = range(1, len(values) + 1) if steps is None else steps
            if len(steps) != len(values):
                raise ValueError(f"{name} has {len(values)} values, and there are {len(steps)} steps")
            named = self._measures.setdefault(name.removeprefix("val_"), {})
            named[name] = [(float(step), float(value)) for step, value in zip(steps, values, strict=True)]

    @property
    def svg(self) -> str:
        """The curves as an SVG picture."""
        return pictures.curves(self._measures)

    def __repr__(self) -> str:
        last = (f"{name} {points[-1][1]:.5g}" for named in self._measures.values() for name, points in named.items() if points)
        return f"<meshtf.Curves: {', '.join(last) or 'none'}>"

    def _repr_html_(self) -> str:
        return self.svg


def curves(history: Mapping[str, Sequence[float]]) -> Curves:
    """The values of a training as curves, which a notebook shows: a diagram for the loss, and one for each metric.

    `history` is that of `Trained`, or any dict of lists. "step" has the steps, which are 1, 2, … without it. Names that begin
    with ``val_``, whose steps are "val_step", share the diagram of the rest of the name.

    >>> import meshtf
    >>> meshtf.curves({"step": [10, 20], "loss": [0.5, 0.25], "val_step": [20], "val_loss": [0.3]})
    <meshtf.Curves: loss 0.25, val_loss 0.3>
    """
    return Curves(history)


def nodes_table(nodes: list[tuple[str, str, str]]) -> str:
    """Nodes of a graph as a table of HTML: name, op, device."""
    rows = [list(node) for node in nodes[:_MOST_ROWS]]
    return table(["node", "op", "device"], rows, max(len(nodes) - _MOST_ROWS, 0))
