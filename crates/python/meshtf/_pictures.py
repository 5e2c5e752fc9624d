"""Pictures for notebooks, as SVG: a mesh, a traced step, curves.

They show the same as those of a node's page (`src/door/web`), in its colours. The page's script draws in the browser. A stored
notebook is also shown where no script runs, so these pictures are complete when they are made. They load nothing.
"""

from __future__ import annotations

from ._lazy import html, math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

# Most nodes in the picture of a mesh, points of a curve, and diagrams of curves.
_MOST_NODES, _MOST_POINTS, _MOST_DIAGRAMS = 40, 400, 12
# Traffic of fewer bytes a second keeps members in touch, and is not shown.
_QUIET = 5000

# Rules for these pictures alone: the page around them has its own.
_STYLE = (
    "<style>.meshtf{--ink:#1c2430;--dim:#5d6776;--line:#d9dee5;--fill:88%;--edge:42%;--hot:#c23a4b;--back:#fff;"
    "background:var(--back);font:12px system-ui,sans-serif;max-width:100%}"
    "@media (prefers-color-scheme:dark){.meshtf{--ink:#e4e8ee;--dim:#93a0b2;--line:#323b48;--fill:28%;--edge:62%;--hot:#ff7b89;"
    "--back:#14181f}}"
    ".meshtf text{fill:var(--ink);text-anchor:middle}.meshtf .small{fill:var(--dim);font-size:10px}"
    ".meshtf .halo{paint-order:stroke;stroke:var(--back);stroke-width:4px;stroke-linejoin:round}"
    ".meshtf .begin{text-anchor:start}.meshtf .end{text-anchor:end}"
    ".meshtf .device{fill:hsl(var(--h) 55% var(--fill));stroke:hsl(var(--h) 55% var(--edge))}"
    ".meshtf .lane{fill:hsl(var(--h) 55% 50% / .1)}"
    ".meshtf .curve{fill:none;stroke:hsl(var(--h) 55% var(--edge));stroke-width:1.6}"
    ".meshtf .ring{fill:none;stroke:hsl(var(--h) 55% var(--edge));stroke-width:6}.meshtf .back{fill:none;stroke:var(--line)}"
    ".meshtf .way{stroke:var(--hot);stroke-opacity:.9}.meshtf .hot{fill:var(--hot)}</style>"
)


def svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A picture of that size, with a text for those who do not see it."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' class='meshtf' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' role='img' aria-label='{escaped(label)}'>{_STYLE}{''.join(parts)}</svg>"
    )


def escaped(text: Any) -> str:
    """A text of XML, which has no control characters."""
    return html.escape("".join(c if c >= " " and c not in "\x7f\ufffe\uffff" else "\ufffd" for c in str(text)))


def hue(number: int) -> str:
    """The colour of a device, far from those of its neighbours."""
    return f"--h:{(210 + number * 275 // 2) % 360}"


def size(count: float | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return ""
    number, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:.0f} B" if unit == "B" else f"{number:.3g} {unit}"


def duration(seconds: float) -> str:
    """A duration for people."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms"), (1, "s")):
        if seconds * factor < 1000 or unit == "s":
            return f"{seconds * factor:.3g} {unit}"
    return ""


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}'{f' class={kind!r}' if kind else ''}>{escaped(text)}</text>"


# A mesh.


def mesh(nodes: Sequence[Mapping[str, Any]], more: int = 0) -> str:
    """The nodes of a mesh on a circle, how busy each is, and the links between them.

    A node has its "task", the "busy" share of its busiest device (None if it did not answer), and "links": "to", "up", "seconds"
    of a round trip, "rate" of bytes in both directions.
    """
    shown = nodes[:_MOST_NODES]
    more += len(nodes) - len(shown)
    radius = max(9.0, min(30.0, 420 / max(len(shown), 1)))
    spread = 1 if len(shown) > 1 else 0
    # Two nodes are beside each other.
    height = 110 if len(shown) <= 2 else 330
    reach = 0 if len(shown) == 2 else 115
    first = math.pi if len(shown) == 2 else -math.pi / 2
    places = {}
    for i, node in enumerate(shown):
        angle = first + 2 * math.pi * i / len(shown)
        x = 320 + spread * 230 * math.cos(angle)
        places[node["task"]] = (x, height / 2 - 8 + spread * reach * math.sin(angle))
    lines, labels, seen = [], [], set()
    for node in shown:
        for link in node["links"]:
            pair = frozenset((node["task"], link["to"]))
            if link["to"] in places and pair not in seen:
                seen.add(pair)
                (x1, y1), (x2, y2) = places[node["task"]], places[link["to"]]
                kind = "back" if link["up"] else "way"
                lines.append(f"<line class='{kind}' x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke-width='2'/>")
                # Of a large mesh, only links that carry something are labelled.
                if len(shown) <= 8 or link["rate"] > _QUIET:
                    labels.append(_text((x1 + x2) / 2, (y1 + y2) / 2 + 4, _of_link(link), "small halo"))
    circles = []
    for i, node in enumerate(shown):
        x, y = places[node["task"]]
        busy, around = node["busy"], 2 * math.pi * (radius - 4)
        words = "it did not answer" if busy is None else f"{busy:.0%} busy"
        circles.append(
            f"<g><title>{escaped(node['task'])}\n{words}</title>"
            f"<circle class='device' style='{hue(i)}' cx='{x:.1f}' cy='{y:.1f}' r='{radius:.1f}'/>"
            f"<circle class='ring' style='{hue(i)}' cx='{x:.1f}' cy='{y:.1f}' r='{radius - 4:.1f}' "
            f"stroke-dasharray='{around * (busy or 0):.1f} {around:.1f}' transform='rotate(-90 {x:.1f} {y:.1f})'/>"
            + (_text(x, y + 4, "?" if busy is None else f"{busy:.0%}", "hot" if busy is None else "") if radius > 20 else "")
            + "</g>"
        )
        labels.append(_text(x, y + radius + 15, node["task"]))
    if more > 0:
        labels.append(_text(630, 14, f"and {more} more", "small end"))
    names = ", ".join(node["task"] for node in shown) or "no task"
    height = max([y + radius + 24 for _, y in places.values()], default=20)
    return svg(640, height, f"the mesh: {names}", [*lines, *circles, *labels])


def _of_link(link: Mapping[str, Any]) -> str:
    words = [] if link["up"] else ["broken"]
    if link["rate"] > _QUIET:
        words.append(f"{size(link['rate'])}/s")
    if link["seconds"] is not None:
        words.append(duration(link["seconds"]))
    return ", ".join(words)


# A traced step.


def timeline(
    took: float,
    devices: Sequence[str],
    bars: Iterable[tuple[str, str, str, float, float]],
    ways: Iterable[tuple[str, float, str, float]] = (),
    more: int = 0,
) -> str:
    """A lane for each device, in it a bar for each node that ran, and a line for each value that went to another device."""
    high, left, width = 34, 230, 700
    scale = width / max(took, 1e-12)
    lanes = {device: 10 + i * high for i, device in enumerate(devices)}
    parts = []
    for i, (device, top) in enumerate(lanes.items()):
        parts.append(f"<rect class='lane' style='{hue(i)}' x='{left}' y='{top}' width='{width}' height='26' rx='4'/>")
        parts.append(_text(left - 8, top + 17, device, "end"))
    numbers = {device: i for i, device in enumerate(devices)}
    for device, name, op, start, ran in bars:
        wide, x, top = max(ran * scale, 1), left + start * scale, lanes[device]
        # The letters of an op, if the bar has room for them.
        words = _text(x + wide / 2, top + 17, op, "small") if wide > 7 * len(op) else ""
        parts.append(
            f"<g><title>{escaped(name)}\n{escaped(op)}\n{duration(ran)}</title>"
            f"<rect class='device' style='{hue(numbers[device])}' "
            f"x='{x:.1f}' y='{top + 2}' width='{wide:.1f}' height='22' stroke-width='.5'/>{words}</g>"
        )
    for of, sent, to, received in ways:
        x1, x2 = left + sent * scale, left + received * scale
        parts.append(f"<line class='way' x1='{x1:.1f}' y1='{lanes[of] + 13}' x2='{x2:.1f}' y2='{lanes[to] + 13}'/>")
    bottom = 10 + len(lanes) * high
    parts += [_text(left + share * width, bottom + 10, duration(share * took), "small") for share in (0, 0.25, 0.5, 0.75, 1)]
    if more:
        parts.append(_text(left - 30, bottom + 10, f"and {more} shorter nodes", "small end"))
    return svg(left + width + 40, bottom + 18, f"a step of {duration(took)} on {', '.join(devices)}", parts)


# Curves.


def curves(lines: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> str:
    """A diagram for each measure, two in a row; in it a curve of (step, value) for each name."""
    shown = list(lines.items())[:_MOST_DIAGRAMS]
    across, down = (2 if len(shown) > 1 else 1), math.ceil(len(shown) / 2)
    parts = []
    for i, (measure, named) in enumerate(shown):
        parts.append(f"<g transform='translate({i % 2 * 410} {i // 2 * 190})'>{''.join(_diagram(measure, named))}</g>")
    if len(lines) > len(shown):
        parts.append(_text(10, down * 190 + 12, f"and {len(lines) - len(shown)} more", "small begin"))
        return svg(410 * across, 190 * down + 18, f"curves of {', '.join(lines)}", parts)
    return svg(410 * across, max(190 * down, 20), f"curves of {', '.join(lines)}", parts)


def _diagram(measure: str, named: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    """Axes, and the curves between them: at (55, 30), 340 wide and 125 high."""
    left, top, wide, high = 55, 30, 340, 125
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in named.items()}
    values = sorted(value for points in finite.values() for _, value in points)
    steps = [step for points in finite.values() for step, _ in points]
    parts = [
        f"<path class='back' d='M{left} {top}V{top + high}H{left + wide}'/>",
        _text(left, top - 12, measure, "begin"),
    ]
    if not values:
        return [*parts, _text(left + wide / 2, top + high / 2, "no value is a number", "small")]
    # Where most values are far below the greatest, half of the curve would be the lower edge.
    is_log = values[0] >= 0 and values[len(values) // 2] > 0 and values[-1] >= 100 * values[len(values) // 2]
    floor = next(value for value in values if value > 0) if is_log else values[0]

    def scaled(value: float) -> float:
        return math.log(max(value, floor)) if is_log else value

    low, extent = scaled(floor), (scaled(values[-1]) - scaled(floor)) or 1
    first, last = min(steps), max(steps)

    def at(step: float, value: float) -> str:
        x = left + wide * (step - first) / ((last - first) or 1)
        return f"{x:.1f} {top + high - high * (scaled(value) - low) / extent:.1f}"

    beside = left + wide
    for i, (name, points) in reversed(list(enumerate(finite.items()))):
        beside -= 8 + 7 * len(name)
        parts.append(
            f"<text style='{hue(i)};fill:hsl(var(--h) 55% var(--edge))' class='begin' x='{beside}' y='{top - 12}'>"
            f"{escaped(name)}</text>"
        )
        thinned = _thinned(points)
        if len(thinned) == 1:
            x, y = at(*thinned[0]).split()
            parts.append(f"<circle class='device' style='{hue(i)}' cx='{x}' cy='{y}' r='3'/>")
        elif thinned:
            path = "L".join(at(*point) for point in thinned)
            parts.append(f"<path class='curve' style='{hue(i)}' d='M{path}'/>")
    # Enough digits to distinguish the ends of the axis.
    digits = next((digits for digits in range(3, 8) if f"{values[-1]:.{digits}g}" != f"{floor:.{digits}g}"), 3)
    parts.append(_text(left - 5, top + 4, f"{values[-1]:.{digits}g}", "small end"))
    parts.append(_text(left - 5, top + high + 3, f"{floor:.{digits}g}", "small end"))
    if is_log:
        parts.append(_text(left - 5, top + high / 2 + 3, f"{math.exp(low + extent / 2):.3g}", "small end"))
        parts.append(_text(left + wide / 2, top + high + 14, "logarithmic", "small"))
    parts.append(_text(left, top + high + 14, f"step {first:g}", "small begin"))
    parts.append(_text(left + wide, top + high + 14, f"{last:g}", "small end"))
    return parts


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """As many points as a picture shows, among them the first and the last."""
    if len(points) <= _MOST_POINTS:
        return points
    stride = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(i * stride)] for i in range(_MOST_POINTS)]
