"""One op at a time: the cases of `tests/data/kernels/*.json` and `tests/data/updates/*.json`.

A case has `op`, `attrs` (only those that differ from the default and cannot be inferred) and `inputs`; one of an update
has `variables`, too. What TensorFlow makes of it stands in `outputs` (of an update: the variables afterwards) or in `error`,
the canonical class, with `message`, words that every implementation's error must have. See `crates/cases/src/lib.rs`.

Three marks are for the recorder alone. `onednn: true`: only TensorFlow's oneDNN kernels take this on a CPU. `unset: [3]`:
TensorFlow leaves this output as its memory was, so that what is recorded of it is our own choice. `ours: "why"`: TensorFlow is
not asked, for that reason.

`version: 1`: TensorFlow 2 has no kernel any more, so that TensorFlow 1.15 is asked, by `record_1_15.py`. This file and
`sessions.py` therefore run with Python 3.7, too.
"""

import itertools
import json

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_registry

from . import values


class Refused(Exception):
    """TensorFlow takes the op, but not with this."""

    def __init__(self, kind, message, is_of_graph=False):
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        # Whether not even a graph could be made of it.
        self.is_of_graph = is_of_graph


def spans(text):
    """Where in the text of a JSON list its items stand."""
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return
        _, end = decoder.raw_decode(text, at)
        yield at, end
        at = end


def definition_of(name):
    """An op's definition, or None."""
    if hasattr(op_def_registry, "get"):
        return op_def_registry.get(name)
    return op_def_registry.get_registered_ops().get(name)


def is_for_this(version):
    """Whether a case or a session is for this version of TensorFlow: 1 or 2."""
    return version == int(tf.version.VERSION.split(".")[0])


def is_recorded(case):
    return "outputs" in case or "error" in case


def check(path, onednn):
    """Asks anew for every case that takes these kernels; answers how many there were and what differs."""
    with open(path) as file:
        cases = json.load(file)
    count, wrong = 0, []
    for number, case in enumerate(cases):
        if "ours" in case or case.get("onednn", False) != onednn or not is_for_this(case.get("version", 2)):
            continue
        count += 1
        why = difference(case) if is_recorded(case) else "there is no answer yet: record it"
        if why:
            wrong.append(f"{path}[{number}] {case['op']} {case.get('attrs') or {}}: {why}")
    return count, wrong


def record(path, onednn):
    """Adds the answers to the cases that have none and are for that setting of oneDNN."""
    def is_wanted(case):
        return not is_recorded(case) and case.get("onednn", False) == onednn and is_for_this(case.get("version", 2))

    return fill(path, is_wanted, answered)


def fill(path, is_wanted, answered):
    """Replaces each case that is wanted by what it is once answered, and leaves every other byte of the file as it is."""
    with open(path) as file:
        text = file.read()
    pieces, done, count = [], 0, 0
    for begin, end in spans(text):
        case = json.loads(text[begin:end])
        if not is_wanted(case):
            continue
        pieces += [text[done:begin], json.dumps(answered(case), ensure_ascii=False, separators=(",", ":"))]
        done, count = end, count + 1
    if count:
        with open(path, "w") as file:
            file.write("".join(pieces) + text[done:])
    return count


def answered(case):
    try:
        outputs = run(case)
    except Refused as refused:
        # Words of it that ours must have, too, are for the one who records to choose.
        return {**case, "error": refused.kind, "message": str(refused).split(": ", 1)[1]}
    return {**case, "outputs": [values.to_triple(output) for output in outputs]}


def difference(case):
    """What TensorFlow answers otherwise than recorded, or None."""
    try:
        outputs = run(case)
    except Refused as refused:
        return None if case.get("error") == refused.kind else f"{refused}, recorded {case.get('error', 'outputs')}"
    if "error" in case:
        return f"answers {[values.to_triple(output) for output in outputs]}, recorded {case['error']}"
    recorded = [values.from_triple(triple) for triple in case["outputs"]]
    if len(outputs) != len(recorded):
        return f"{len(outputs)} outputs, recorded {len(recorded)}"
    for number, (output, wanted) in enumerate(zip(outputs, recorded)):
        if number in case.get("unset", []):
            continue
        if case.get("check") == "shape":
            output, wanted = (np.zeros(array.shape, array.dtype) for array in (output, wanted))
        why = values.difference(output, wanted, case.get("rtol"), case.get("atol"))
        if why:
            return why
    return None


def run(case):
    """What TensorFlow's session makes of a case: the op's outputs, or the variables that it changed."""
    try:
        return run_with(case, knows_shapes=False)
    except Refused as refused:
        # Some ops are refused as long as the shapes of their inputs are not known.
        try:
            return run_with(case, knows_shapes=True)
        except Refused as second:
            raise (second if refused.is_of_graph else refused) from None


def run_with(case, knows_shapes):
    definition = definition_of(case["op"])
    if definition is None:
        raise Refused("NotFound", f"TensorFlow has no op {case['op']}")
    variables = [values.from_triple(triple) for triple in case.get("variables", [])]
    inputs = [values.from_triple(triple) for triple in case["inputs"]]
    graph_def = tf.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    if definition.HasField("deprecation"):
        # Nothing but an older client can ask for it.
        graph_def.versions.producer = definition.deprecation.version - 1
    feeds = {}
    for i, array in enumerate(variables):
        variable(graph_def, f"variable{i}", definition.input_arg[i], array, feeds)
    for i, array in enumerate(inputs):
        placeholder(graph_def, f"input{i}", array, feeds, knows_shapes)
    names = [f"variable{i}" for i in range(len(variables))] + [f"input{i}" for i in range(len(inputs))]
    node = graph_def.node.add(name="node", op=case["op"], input=names)
    dtypes = [values.dtype_name(array) for array in variables + inputs]
    for name, value in attributes(definition, case.get("attrs") or {}, dtypes).items():
        node.attr[name].CopyFrom(value)
    return answers(graph_def, feeds, len(variables), 2 if definition.is_stateful else 1)


def answers(graph_def, feeds, variables, times):
    """The outputs of "node"; the last time, where it has a state: the tests call an op twice, with inputs shared and its own."""
    with tf.Graph().as_default() as graph:
        try:
            tf.import_graph_def(graph_def, name="")
        except ValueError as error:
            raise Refused("InvalidArgument", str(error), is_of_graph=True) from None
        op = graph.get_operation_by_name("node")
        try:
            with tf.Session() as session:
                if not variables:
                    for _ in range(times):
                        outputs = session.run([list(op.outputs), op], feeds)[0]
                    return [values.array_of(output, made.dtype) for output, made in zip(outputs, op.outputs)]
                session.run([graph.get_operation_by_name(f"variable{i}/set") for i in range(variables)], feeds)
                session.run(op, feeds)
                return session.run([f"variable{i}/read:0" for i in range(variables)])
        except tf.errors.OpError as error:
            raise Refused(type(error).__name__.replace("Error", ""), essence(error.message)) from None


def essence(message):
    """What an op said, without the places in the program that TensorFlow tells it was made at."""
    message = message.split("\n\nOriginal stack trace for ")[0]
    if message.startswith("Graph execution error:") and "\nNode: " in message:
        message = message.split("\nNode: ", 1)[1].split("\n", 1)[1]
    return message.split("\n\t [[")[0].strip()


def placeholder(graph_def, name, array, feeds, knows_shape=True):
    node = graph_def.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = tf.as_dtype(values.dtype_name(array)).as_datatype_enum
    # Without a shape nothing is found out before the op runs.
    shape = tf.TensorShape(array.shape if knows_shape else None)
    node.attr["shape"].shape.CopyFrom(shape.as_proto())
    feeds[f"{name}:0"] = array


def variable(graph_def, name, argument, array, feeds):
    """A variable as the op takes it, what sets it and what reads it."""
    dtype = tf.as_dtype(values.dtype_name(array)).as_datatype_enum
    placeholder(graph_def, f"{name}/value", array, feeds)
    forms = ("VariableV2", "Assign", "Identity") if argument.is_ref else ("VarHandleOp", "AssignVariableOp", "ReadVariableOp")
    inputs = ([], [name, f"{name}/value"], [name])
    for suffix, op, taken in zip(("", "/set", "/read"), forms, inputs):
        node = graph_def.node.add(name=name + suffix, op=op, input=taken)
        node.attr["T" if op in ("Assign", "Identity") else "dtype"].type = dtype
        if op in ("VariableV2", "VarHandleOp"):
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
            # Without a name of its own a resource is the one of all that have none.
            node.attr["shared_name"].s = name.encode()


def attributes(definition, given, dtypes):
    """The attributes of a node: those given, and those that its inputs decide. TensorFlow adds the defaults."""
    kinds = {attr.name: attr.type for attr in definition.attr}
    unknown = set(given) - set(kinds)
    if unknown:
        raise Refused("InvalidArgument", f"{definition.name} has no attribute {', '.join(sorted(unknown))}")
    found = {name: attribute(kinds[name], value) for name, value in given.items()}
    lengths = lengths_of(definition, {name: value.i for name, value in found.items()}, len(dtypes))
    at = 0
    for argument, length in zip(definition.input_arg, lengths):
        taken, at = dtypes[at : at + length], at + length
        if argument.number_attr:
            found.setdefault(argument.number_attr, attribute("int", length))
        if argument.type_list_attr:
            found.setdefault(argument.type_list_attr, attribute("list(type)", taken))
        elif argument.type_attr and taken:
            found.setdefault(argument.type_attr, attribute("type", taken[0]))
    return found


def lengths_of(definition, given, count):
    """How many inputs each argument takes: what is left is shared alike by those of variable length."""
    open_ended = [arg for arg in definition.input_arg if arg.type_list_attr or arg.number_attr and arg.number_attr not in given]
    fixed = sum(given.get(arg.number_attr, 1) for arg in definition.input_arg if arg not in open_ended)
    share = (count - fixed) // len(open_ended) if open_ended else 0
    return [share if arg in open_ended else given.get(arg.number_attr, 1) for arg in definition.input_arg]


def attribute(kind, value):
    proto = tf.AttrValue()
    if kind.startswith("list("):
        into, kind, items = proto.list, kind[5:-1], value
        proto.list.SetInParent()
    else:
        into, items = proto, itertools.repeat(value, 1)
    for item in items:
        if kind == "shape":
            shape = tf.TensorShape(item).as_proto()
            into.shape.add().CopyFrom(shape) if into is not proto else into.shape.CopyFrom(shape)
            continue
        field = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}[kind]
        if kind == "type":
            item = tf.as_dtype(item).as_datatype_enum
        elif kind == "string":
            item = item.encode()
        getattr(into, field).append(item) if into is not proto else setattr(into, field, item)
    return proto
