"""Plans and traced steps, and their pictures in notebooks."""

from __future__ import annotations

from ._lazy import base64, html, json

TYPE_CHECKING = False
if TYPE_CHECKING:
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


def size(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return ""
    number, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{count} B" if unit == "B" else f"{number:.3g} {unit}"


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
        lines += [f"{tensor}: {of} to {to}" + (f", {size(count)}" if count else "") for tensor, of, to, count in self.transfers]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # As an image: the rules of its style are not for the page.
        image = base64.b64encode(self.svg.encode()).decode()
        return f"<img alt='the plan' style='max-width:100%' src='data:image/svg+xml;base64,{image}'>"


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
        self._chrome = timeline["chrome"]

    def save(self, path: str) -> None:
        """Writes the timeline for ui.perfetto.dev."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self._chrome, file)

    def __repr__(self) -> str:
        return f"<meshtf.Trace of {len(self.nodes)} nodes on {len(self.devices)} devices, {self.took * 1e6:.0f} µs>"

    def _repr_html_(self) -> str:
        high, left, width = 30, 230, 700
        scale = width / max(self.took, 1e-12)
        lanes = {device: 6 + i * high for i, device in enumerate(self.devices)}
        style = "font:11px system-ui,sans-serif;fill:currentColor"
        parts = []
        for i, (device, top) in enumerate(lanes.items()):
            hue = (210 + i * 275 // 2) % 360
            parts.append(f"<rect x='{left}' y='{top}' width='{width}' height='24' rx='4' fill='hsl({hue} 55% 60% / .15)'/>")
            parts.append(f"<text x='{left - 8}' y='{top + 16}' text-anchor='end' style='{style}'>{html.escape(device)}</text>")
            for own, name, op, start, took in self.nodes:
                if own == device:
                    bar = max(took * scale, 1)
                    words = html.escape(f"{name}\n{op}\n{took * 1e6:.0f} µs")
                    parts.append(
                        f"<rect x='{left + start * scale:.1f}' y='{top + 2}' width='{bar:.1f}' height='20' "
                        f"fill='hsl({hue} 55% 60% / .8)'><title>{words}</title></rect>"
                    )
        bottom = 6 + len(lanes) * high
        for share in (0, 0.5, 1):
            x = left + share * width
            parts.append(
                f"<text x='{x}' y='{bottom + 12}' text-anchor='middle' style='{style}'>{share * self.took * 1e6:.0f} µs</text>"
            )
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {left + width + 30} {bottom + 18}' role='img' "
            f"style='max-width:72em'>{''.join(parts)}</svg>"
        )


def nodes_table(nodes: list[tuple[str, str, str]]) -> str:
    """Nodes of a graph as a table of HTML: name, op, device."""
    rows = [list(node) for node in nodes[:_MOST_ROWS]]
    return table(["node", "op", "device"], rows, max(len(nodes) - _MOST_ROWS, 0))
