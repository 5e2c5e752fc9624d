"""Graphs, functions and Keras models of TensorFlow as graphs, when TensorFlow is installed.

    import keras, meshtf
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2, name="y")])
    g = meshtf.tf.convert(model)
    with meshtf.local(g) as m, m.session(g) as s:
        y = s.run("y", {"x": [[1, 2, 3, 4]]})

The variables of a function or a model become constants with their present values, and with their names: such a graph needs no
session that initializes it, and runs on any task. Those that are `trained` stay variables. A `tf.Graph` keeps its variables,
unless a session with their values is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping

from . import _errors
from ._graph import Graph, loads
from ._mesh import local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["convert"]


def convert(
    model: Any, inputs: Any = None, *, outputs: Any = None, session: Any = None, trained: bool | Iterable[str] = False
) -> Graph:
    """The graph of a `tf.Graph`, a `tf.function`, one of its concrete functions, or a Keras model.

    Names of the graph's inputs are those of the function's arguments, or of the model's inputs; names of its outputs are those of
    the model's, the keys of the function's dict, or ``output_0`` and so on. Where the model's repeat, as for a layer with several
    outputs, the second is ``name_1``, and so on.

    - Of a function without a signature, or a model that was not built, `inputs` are its arguments: `tf.TensorSpec`, or examples,
      whose first dimension is open. A dict has them by the names of the function's parameters, or of the model's inputs.
    - Of a `tf.Graph`, `inputs` and `outputs` may name its tensors: lists of tensors or names, or dicts by the names that they
      get. With a `session` of TensorFlow 1, variables that the `outputs` need become constants with their values there.
    - Of a function or a model, `trained` names the variables that stay variables, which `meshtf.train` changes: with True all that
      are trainable, else by names or patterns, as `meshtf.load` takes them.

    InvalidArgumentError for an op that meshtf lacks: it is named; and if one of `trained` matches no variable.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError("meshtf.tf.convert needs TensorFlow: pip install tensorflow") from error
    if isinstance(model, tf.Graph):
        if trained:
            raise TypeError("trained is for a function or a model: a tf.Graph keeps its variables")
        return _of_graph(tf, model, inputs, outputs, session)
    if outputs is not None or session is not None:
        raise TypeError("outputs and session are for a tf.Graph: a function or a model has outputs and variables of its own")
    if isinstance(model, tf.types.experimental.ConcreteFunction):
        return _of_function(tf, model, None, trained)
    if isinstance(model, tf.types.experimental.PolymorphicFunction):
        specs = _specs(tf, inputs)
        try:
            function = model.get_concrete_function(**specs) if isinstance(specs, dict) else model.get_concrete_function(*specs)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise _errors.InvalidArgumentError(f"TensorFlow cannot trace the function: {error}") from error
        return _of_function(tf, function, None, trained)
    if _is_keras(model):
        return _of_keras(tf, model, inputs, trained)
    raise TypeError(f"expected a tf.Graph, a tf.function, a ConcreteFunction or a Keras model, not {model!r:.60}")


def _specs(tf: Any, inputs: Any) -> list[Any] | dict[str, Any]:
    """Arguments as specifications, in their order or by their names; examples have an open first dimension."""
    if inputs is None:
        return []

    def spec(one: Any, name: str | None = None) -> Any:
        if isinstance(one, tf.TensorSpec):
            return one if name is None else tf.TensorSpec(one.shape, one.dtype, name)
        try:
            tensor = tf.convert_to_tensor(one)
        except (TypeError, ValueError) as error:
            raise _errors.InvalidArgumentError(f"inputs are tf.TensorSpec, or examples, not {one!r:.60}") from error
        return tf.TensorSpec([None, *tensor.shape[1:]] if tensor.shape.rank else [], tensor.dtype, name=name)

    if isinstance(inputs, Mapping):
        return {str(name): spec(one, str(name)) for name, one in inputs.items()}
    return [spec(one) for one in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]


def _is_keras(model: Any) -> bool:
    """Whether it is a model of Keras 3, or of Keras 2, the package tf_keras."""
    return any(one.__name__ == "Model" and one.__module__.split(".")[0] in ("keras", "tf_keras") for one in type(model).__mro__)


def _of_keras(tf: Any, model: Any, inputs: Any, trained: bool | Iterable[str]) -> Graph:
    specs = _specs(tf, inputs)
    own, takes_dict = _inputs_of(model)
    if inputs is None:
        if not own:
            why = (
                "the model was not built, so its inputs are not known: state them, as in convert(model, inputs=tf.TensorSpec(…))"
            )
            raise _errors.InvalidArgumentError(why)
        specs = {name: tf.TensorSpec(one.shape, one.dtype, name) for name, one in own.items()}
    elif own:
        specs = _in_order(tf, specs, list(own), takes_dict)
    keys = list(specs) if isinstance(specs, dict) else []
    parameters = list(inspect.signature(model.call).parameters)

    def call(*args: Any) -> Any:
        named = dict(zip(keys, args, strict=False))
        if takes_dict or (len(named) > 1 and not own and not set(keys) <= set(parameters)):
            return model(named, training=False)
        if len(named) > 1 and not own:
            # Keras takes the first one without its name alone.
            first = [named.pop(name) for name in parameters[:1] if name in named]
            return model(*first, training=False, **named)
        return model(args[0] if len(args) == 1 else list(args), training=False)

    try:
        signature = list(specs.values()) if isinstance(specs, dict) else specs
        function = tf.function(call, input_signature=signature).get_concrete_function()
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _errors.InvalidArgumentError(f"TensorFlow cannot trace the model: {error}") from error
    structured = function.structured_outputs
    named = getattr(model, "output_names", None)
    if isinstance(structured, Mapping):
        named = None
    elif named is None and isinstance(structured, tf.Tensor) and getattr(model, "layers", None):
        named = [model.layers[-1].name]
    return _of_function(tf, function, named, trained)


def _inputs_of(model: Any) -> tuple[dict[str, Any], bool]:
    """The inputs that a model of called layers has, by their names; whether it takes a dict with these keys."""
    keyed = getattr(model, "_inputs_struct", None)
    if isinstance(keyed, Mapping):
        if not all(hasattr(one, "shape") for one in keyed.values()):
            raise _errors.InvalidArgumentError("the model takes a dict of further lists or dicts; expected a dict of tensors")
        return {str(key): one for key, one in keyed.items()}, True
    listed = getattr(model, "inputs", None) or []
    return dict(zip(_distinct([str(one.name).split(":")[0] for one in listed]), listed, strict=True)), False


def _in_order(tf: Any, specs: Any, names: list[str], takes_dict: bool) -> dict[str, Any]:
    """Specifications of all inputs of a model that has these, in its order."""
    is_one = len(specs) == len(names) == 1 and not takes_dict
    if not isinstance(specs, dict):
        if len(specs) != len(names) or (takes_dict and len(names) > 1):
            what = "a dict of the inputs" if takes_dict else f"{len(names)} inputs,"
            raise _errors.InvalidArgumentError(f"the model takes {what} {', '.join(names)}; stated is a list of {len(specs)}")
        named = zip(names, specs, strict=True)
        return {name: tf.TensorSpec(one.shape, one.dtype, one.name or name) for name, one in named}
    if set(specs) != set(names) and not is_one:
        raise _errors.InvalidArgumentError(f"the model has the inputs {', '.join(names)}; stated are {', '.join(specs)}")
    return specs if is_one else {name: specs[name] for name in names}


def _distinct(names: list[str]) -> list[str]:
    """Names in their order; each that comes again has a number."""
    found: list[str] = []
    for name in names:
        own, number = name, 0
        while own in found or (number and own in names):
            number += 1
            own = f"{name}_{number}"
        found.append(own)
    return found


def _of_function(tf: Any, function: Any, names: list[str] | None, trained: bool | Iterable[str]) -> Graph:
    """The graph of a concrete function, with constants in place of the variables that are not trained."""
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    structured = function.structured_outputs
    if names is None and isinstance(structured, Mapping):
        # TensorFlow flattens dicts in the order of their keys.
        names = [str(key) for key in sorted(structured)]
    if names is None or len(names) != len(frozen.outputs):
        names = [f"output_{i}" for i in range(len(frozen.outputs))]
    names = _distinct(names)
    fed = {one.op.name: one for one in frozen.inputs if one.dtype != tf.resource}
    definition = frozen.graph.as_graph_def()
    own = _name_constants(definition, function)
    if trained is True:
        trained = [own[id(one.handle)] for one in function.graph.variables if one.trainable and id(one.handle) in own]
        if not trained:
            raise _errors.InvalidArgumentError("the model has no trainable variables")
    patterns = trained or ()
    return _with_names(tf, definition, fed, dict(zip(names, frozen.outputs, strict=True)), patterns)


def _name_constants(definition: Any, function: Any) -> dict[int, str]:
    """Gives the constants in place of variables the variables' names, unless nodes have these; names by the variables' handles."""
    nodes = {node.name: node for node in definition.node}
    handles = {inner.op.name: id(outer) for outer, inner in function.graph.captures}
    listed = list(function.graph.variables)
    wanted = dict(zip([id(one.handle) for one in listed], _distinct([one.name.split(":")[0] for one in listed]), strict=True))
    found = {name: handle for name, handle in handles.items() if handle in wanted and name in nodes and nodes[name].op == "Const"}
    # No two nodes differ in the case of letters alone.
    taken = {name.lower() for name in nodes if name not in found}
    renamed = {}
    for name, handle in found.items():
        if wanted[handle].lower() in taken:
            wanted[handle] = name
        taken.add(wanted[handle].lower())
        renamed[name] = wanted[handle]
    for node in definition.node:
        node.name = renamed.get(node.name, node.name)
        for i, taken_from in enumerate(node.input):
            mark, name, port = "^" if taken_from.startswith("^") else "", *taken_from.removeprefix("^").partition(":")[::2]
            if name in renamed:
                node.input[i] = f"{mark}{renamed[name]}{':' + port if port else ''}"
    return {handle: wanted[handle] for handle in found.values()}


def _of_graph(tf: Any, graph: Any, inputs: Any, outputs: Any, session: Any) -> Graph:
    fed, fetched = _tensors(graph, inputs, "inputs"), _tensors(graph, outputs, "outputs")
    definition = graph.as_graph_def()
    if session is not None:
        if not fetched:
            raise TypeError("session makes constants of the variables that the outputs need: state outputs, too")
        from tensorflow.python.framework.convert_to_constants import (
            convert_variables_to_constants_from_session_graph,
        )

        nodes = sorted({one.op.name for one in fetched.values()})
        definition = convert_variables_to_constants_from_session_graph(session, definition, nodes)
    if not fed and not fetched:
        return loads(definition.SerializeToString())
    return _with_names(tf, definition, fed, fetched)


def _tensors(graph: Any, stated: Any, what: str) -> dict[str, Any]:
    """Tensors of a graph by the names that they get."""
    if stated is None:
        return {}
    if not isinstance(stated, Mapping):
        listed = stated if isinstance(stated, (list, tuple)) else [stated]
        names = _distinct([(one if isinstance(one, str) else one.name).split(":")[0] for one in listed])
        stated = dict(zip(names, listed, strict=True))
    found = {}
    for name, one in stated.items():
        tensor = one if not isinstance(one, str) else one if ":" in one else f"{one}:0"
        try:
            found[name] = graph.as_graph_element(tensor, allow_tensor=True, allow_operation=False)
        except (KeyError, ValueError, TypeError) as error:
            raise _errors.InvalidArgumentError(f"{what}: {error}") from error
    return found


def _with_names(
    tf: Any, definition: Any, inputs: dict[str, Any], outputs: dict[str, Any], trained: Iterable[str] = ()
) -> Graph:
    """A graph whose inputs and outputs have names, as a signature states them."""
    meta = tf.compat.v1.MetaGraphDef()
    meta.meta_info_def.tensorflow_version = tf.__version__
    meta.graph_def.CopyFrom(definition)
    signature = meta.signature_def["serving_default"]
    for part, named in ((signature.inputs, inputs), (signature.outputs, outputs)):
        for name, tensor in named.items():
            part[name].name = tensor.name
            part[name].dtype = tensor.dtype.as_datatype_enum
            part[name].tensor_shape.CopyFrom(tensor.shape.as_proto())
    graph = loads(meta.SerializeToString(), trained=trained)
    # The planner names an op that the outputs need and that no task has.
    with local(graph) as m:
        m.plan(graph, list(outputs), list(inputs), soft_placement=True)
    return graph
