"""Gradients: the cases of `tests/data/gradients/*.json`.

A case is either one op, with `op`, `attrs` and `inputs` as in `ops.py`, or a whole graph: `graph`, a GraphDef in protobuf's JSON
mapping, with `feeds` (tensors by name), `of` and `by` (names of tensors). These are the recorder's where `built` names a graph of
`loops.py`, of which TensorFlow has no gradient unless its own Python made it. Of an op, the float and complex outputs are differentiated, or those
in `outputs`, by the float and complex inputs, and what is neither is a constant.

`starts` are what the gradients begin with. `gradients` is what TensorFlow makes of these, in the order of the inputs, as dense
tensors or null; `sparse` says which of them it states as rows. `second` are the gradients of `gradients` again, started by
`second_starts`. Where TensorFlow has no gradient, or no kernel for it, `lacks` or `second_lacks` has its error in place of the
answer; it is not asked where `ours` says why. See `crates/exec/tests/devices/gradients.rs`.
"""

import json

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import json_format
from tensorflow.python.framework import op_def_registry

from . import loops, ops, values

ANSWERS = ("starts", "gradients", "sparse", "lacks", "second_starts", "second", "second_lacks")


def is_recorded(case):
    return "gradients" in case or "lacks" in case or "ours" in case


def check(path):
    with open(path) as file:
        cases = json.load(file)
    wrong = []
    for number, case in enumerate(cases):
        if "ours" in case:
            continue
        why = difference(case) if is_recorded(case) else "there is no answer yet: record it"
        if why:
            wrong.append(f"{path}[{number}] {case.get('op') or case['name']} {case.get('attrs') or {}}: {why}")
    return len(cases), wrong


def record(path):
    """Adds the answers to the cases that have none."""
    return ops.fill(path, lambda case: not is_recorded(case), lambda case: case | answer(case))


def difference(case):
    """What TensorFlow answers otherwise than recorded, or None."""
    got = answer(case)
    for key in ANSWERS:
        if (key in got) != (key in case):
            return f"{key} is {'new' if key in got else 'no more'}"
    for key in ("gradients", "second"):
        for number, (output, wanted) in enumerate(zip(got.get(key, []), case.get(key, []))):
            if output is None or wanted is None:
                if output != wanted:
                    return f"{key}[{number}] is {output}, recorded {wanted}"
                continue
            pair = values.from_triple(output), values.from_triple(wanted)
            why = values.difference(*pair, case.get("rtol"), case.get("atol"))
            if why:
                return f"{key}[{number}]: {why}"
    return None if got.get("sparse") == case.get("sparse") else f"sparse is {got.get('sparse')}"


def weights(shape, dtype, shift):
    """What a gradient starts from: numbers that differ from each other, of both signs."""
    count = int(np.prod(shape, dtype=np.int64))
    flat = [((7 * i + 3 * shift) % 11 - 5) / 4 + 0.125 for i in range(count)]
    if dtype in values.COMPLEX:
        flat = [complex(re, ((5 * i + shift) % 7 - 3) / 4) for i, re in enumerate(flat)]
    return values.shaped(flat, dtype, shape)


def answer(case):
    if "built" in case:
        return answer_built(case)
    with tf.Graph().as_default() as graph:
        feeds, ys, xs = of_graph(case, graph) if "graph" in case else of_op(case, graph)
        return once_and_again(case, graph, feeds, ys, xs)


def answer_built(case):
    """TensorFlow 1's loops, and their gradients; those of second order, of which it has none, by the loops of TensorFlow 2."""
    with tf.Graph().as_default() as graph:
        tf.disable_control_flow_v2()
        feeds, ys, xs = loops.build(case["built"])
        made = {"graph": json_format.MessageToDict(graph.as_graph_def())}
        made["feeds"] = {tensor.op.name: values.to_triple(array) for tensor, array in feeds.items()}
        made |= {"of": [y.op.name for y in ys], "by": [x.op.name for x in xs]}
        with tf.Session(graph=graph) as session:
            made |= differentiate(session, ys, xs, feeds, 1, case.get("starts"))[0]
    again = [values.from_triple(gradient) for gradient in made["gradients"] if gradient is not None]
    starts = [weights(array.shape, values.dtype_name(array), 2 + i) for i, array in enumerate(again)]
    with tf.Graph().as_default() as graph:
        tf.enable_control_flow_v2()
        feeds, ys, xs = loops.build(case["built"])
        first = tf.gradients(ys, xs, grad_ys=[tf.constant(values.from_triple(start)) for start in made["starts"]])
        pairs = zip(first, made["gradients"])
        dense = [tf.convert_to_tensor(gradient) for gradient, recorded in pairs if recorded is not None]
        second = tf.gradients(dense, xs, grad_ys=[tf.constant(start) for start in starts])
        second = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in second]
        made["second_starts"] = [values.to_triple(start) for start in starts]
        try:
            with tf.Session(graph=graph) as session:
                arrays = iter(session.run([gradient for gradient in second if gradient is not None], feeds))
        except tf.errors.OpError as error:
            return made | {"second_lacks": ops.essence(error.message)}
    made["second"] = [None if gradient is None else values.to_triple(np.asarray(next(arrays))) for gradient in second]
    return made


def once_and_again(case, graph, feeds, ys, xs):
    with tf.Session(graph=graph) as session:
        first, found = differentiate(session, ys, xs, feeds, 1, case.get("starts"))
        if "lacks" in first:
            return first
        again = [gradient for gradient in found if gradient is not None]
        if not again:
            return first
        second, _ = differentiate(session, again, xs, feeds, 2, case.get("second_starts"))
        names = {"starts": "second_starts", "gradients": "second", "lacks": "second_lacks"}
        return first | {names[key]: value for key, value in second.items() if key in names}


def differentiate(session, ys, xs, feeds, shift, starts):
    """The answer, and the gradients as dense tensors."""
    arrays = session.run(ys, feeds)
    if starts is None:
        given = [weights(array.shape, values.dtype_name(array), shift + i) for i, array in enumerate(arrays)]
    else:
        given = [values.from_triple(start) for start in starts]
    recorded = {"starts": [values.to_triple(array) for array in given]}
    try:
        found = tf.gradients(ys, xs, grad_ys=[tf.constant(array) for array in given])
    # A rule may not take the gradients of its op: that of QuantizeAndDequantizeV4Grad is for another number of outputs.
    except (LookupError, NotImplementedError, TypeError) as error:
        return recorded | {"lacks": str(error).split(". In general")[0]}, None
    sparse = [i for i, gradient in enumerate(found) if isinstance(gradient, tf.IndexedSlices)]
    dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in found]
    try:
        arrays = iter(session.run([gradient for gradient in dense if gradient is not None], feeds))
    except tf.errors.OpError as error:
        return recorded | {"lacks": ops.essence(error.message)}, dense
    recorded["gradients"] = [None if gradient is None else values.to_triple(np.asarray(next(arrays))) for gradient in dense]
    if sparse:
        recorded["sparse"] = sparse
    return recorded, dense


def of_op(case, graph):
    """The op alone in a graph: its feeds, what is differentiated and by what."""
    definition = op_def_registry.get(case["op"])
    inputs = [values.from_triple(triple) for triple in case["inputs"]]
    graph_def = tf.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    if definition.HasField("deprecation"):
        graph_def.versions.producer = definition.deprecation.version - 1
    feeds = {}
    names = [f"input{i}" for i in range(len(inputs))]
    dtypes = [values.dtype_name(array) for array in inputs]
    for name, array, dtype in zip(names, inputs, dtypes):
        if dtype in values.DIFFERENTIABLE:
            ops.placeholder(graph_def, name, array, feeds)
            continue
        node = graph_def.node.add(name=name, op="Const")
        node.attr["dtype"].type = tf.as_dtype(dtype).as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array))
    node = graph_def.node.add(name="node", op=case["op"], input=names)
    for name, value in ops.attributes(definition, case.get("attrs") or {}, dtypes).items():
        node.attr[name].CopyFrom(value)
    tf.import_graph_def(graph_def, name="")
    outputs = graph.get_operation_by_name("node").outputs
    chosen = case.get("outputs", [i for i, output in enumerate(outputs) if output.dtype.is_floating or output.dtype.is_complex])
    floats = [i for i, dtype in enumerate(dtypes) if dtype in values.DIFFERENTIABLE]
    return feeds, [outputs[i] for i in chosen], [graph.get_tensor_by_name(f"input{i}:0") for i in floats]


def of_graph(case, graph):
    tf.import_graph_def(json_format.ParseDict(case["graph"], tf.GraphDef()), name="")
    tensor = lambda name: graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    feeds = {tensor(name): values.from_triple(triple) for name, triple in case["feeds"].items()}
    return feeds, [tensor(name) for name in case["of"]], [tensor(name) for name in case["by"]]
