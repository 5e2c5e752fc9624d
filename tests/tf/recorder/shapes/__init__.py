"""What TensorFlow infers of the shapes of nodes of every op: tests/data/shapes/shapes.json.

The file is a GraphDef in JSON, a node a line, and for each node the shapes of its outputs: a list with null for an unknown size,
or null if not even the rank is known. The nodes are made here, by family. An op is added with a line in one of these files.
"""

import json

from google.protobuf import json_format

from . import arrays, held, networks, numbers, quantized, rare, reductions, scientific, state, texts, trees
from .nodes import made_before, tf1

FAMILIES = (
    numbers.elementwise, arrays.forwarding, arrays.making, reductions.reducing, arrays.arranging, arrays.indexing, networks.images,
    state.state, texts.strings, networks.pictures, texts.sets, state.files, state.tables, state.lists, numbers.arithmetic,
    texts.ragged, rare.less_common, state.datasets, numbers.complex_numbers, rare.uncommon, texts.serialized, networks.recurrent,
    held.held, held.sampled,
    scientific.special_functions, scientific.matrices, scientific.distributions, scientific.sparse_counts,
    quantized.quantized, quantized.uniform, trees.trees,
)  # fmt: skip


def inferred():
    """The lines of the file: a node each."""
    tf1.disable_control_flow_v2()
    made_before.clear()
    lines = []
    with tf1.Graph().as_default() as graph:
        for family in FAMILIES:
            family()
        for node in graph.as_graph_def().node:
            outputs = graph.get_operation_by_name(node.name).outputs
            shapes = [None if output.shape.rank is None else output.shape.as_list() for output in outputs]
            for name in [name for name in node.attr if name.startswith("_")]:
                del node.attr[name]
            text = json.dumps(json_format.MessageToDict(node), separators=(",", ":"), sort_keys=True)
            lines.append(f'{{"node":{text},"shapes":{json.dumps(shapes, separators=(",", ":"))}}}')
    return lines


def record(path):
    """Writes the file anew: how many nodes."""
    lines = inferred()
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
    return len(lines)


def check(path):
    """(how many nodes, what differs)."""
    lines = inferred()
    with open(path) as file:
        recorded = [line.removesuffix(",") for line in file.read().splitlines()[1:-1]]
    wrong = [f"{path}: {now}, recorded as {then}" for now, then in zip(lines, recorded) if now != then]
    if len(lines) != len(recorded):
        wrong.append(f"{path}: {len(recorded)} nodes are recorded, and {len(lines)} are made")
    return len(lines), wrong
