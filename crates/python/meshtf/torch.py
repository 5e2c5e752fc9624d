"""Modules of PyTorch as graphs, by way of torch.onnx, when PyTorch is installed.

    import meshtf, torch
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    g = meshtf.torch.convert(module, {"x": torch.zeros(1, 4)}, outputs=["y"])
    with meshtf.local(g) as m, m.session(g) as s:
        y = s.run("y", {"x": [[1, 2, 3, 4], [5, 6, 7, 8]]})

The weights are constants of the graph. The module is exported in evaluation mode: dropout does nothing, and batch normalisation
has its averages. With the package onnxscript it is exported by torch.export, as is torch's default; else by TorchScript.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Mapping, Sequence

from . import _errors
from ._graph import Graph, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["convert"]


def convert(
    module: Any,
    inputs: Any,
    *,
    outputs: Sequence[str] | None = None,
    open_batch: bool = True,
    opset: int | None = None,
) -> Graph:
    """The graph of a module, with its weights as constants.

    `inputs` are examples of its arguments, which are traced: a dict by the names that the graph's inputs get, or a tensor, or a
    tuple of them, which are called ``input`` or ``input_0`` and so on. `outputs` are the names of its outputs: ``output``, or
    ``output_0`` and so on. The first dimension of each input and output is that of the examples of a run, unless `open_batch` is
    False: then sizes are those of `inputs`. `opset` is the version of ONNX's operators; by default torch's own.

    A branch of Python that depends on a value is refused by torch.export. TorchScript takes that of the examples: then there is a
    ``torch.jit.TracerWarning``.

    InvalidArgumentError if torch.onnx cannot export the module, or the graph has an operator that meshtf lacks: it is named.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("meshtf.torch.convert needs PyTorch: pip install torch") from error
    if not _has("onnx"):
        raise ImportError("meshtf.torch.convert needs the package onnx, which torch.onnx uses: pip install onnx onnxscript")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, not {module!r:.60}")
    names, examples = _named(inputs, "input")
    for name, example in zip(names, examples, strict=True):
        if not isinstance(example, torch.Tensor):
            raise TypeError(f"the input {name} is {example!r:.60}; expected a torch.Tensor as an example")
    with _evaluating(module), torch.no_grad():
        if open_batch and all(one.dim() and len(one) == 1 for one in examples):
            # A tracer takes a size of 1 for a constant.
            examples = [torch.cat([one, one]) for one in examples]
        answers = module(*examples)
        results = list(answers) if isinstance(answers, (tuple, list)) else [answers]
        if not all(isinstance(one, torch.Tensor) for one in results):
            kinds = ", ".join(type(one).__name__ for one in results)
            raise TypeError(f"the module returns {kinds}; expected a torch.Tensor, or a tuple of them")
        fetched = list(outputs) if outputs is not None else _numbered("output", len(results))
        if len(fetched) != len(results):
            raise _errors.InvalidArgumentError(f"the module has {len(results)} outputs, and outputs names {len(fetched)}")
        options = {"input_names": names, "output_names": fetched, "opset_version": opset}
        with warnings.catch_warnings(record=True) as said, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            try:
                content = _exported(torch, module, examples, results, open_batch, options)
            except Exception as error:
                # Exporters raise what their parts raise: TypeError, RuntimeError and their own.
                raise _errors.InvalidArgumentError(f"torch.onnx cannot export the module: {error}") from error
    # Of an exporter's remarks, those about branches and values that are now those of the examples are for the caller.
    kind = torch.jit.TracerWarning
    for text in dict.fromkeys(str(one.message) for one in said if issubclass(one.category, kind)):
        warnings.warn(f"the graph may be right for these examples alone: {text}", kind, stacklevel=2)
    return loads(content)


class _evaluating:
    """The module in evaluation mode; afterwards each part has the mode that it had."""

    def __init__(self, module: Any) -> None:
        self._modes = [(one, one.training) for one in module.modules()]
        self._module = module

    def __enter__(self) -> None:
        self._module.eval()

    def __exit__(self, *_: object) -> None:
        for one, mode in self._modes:
            one.training = mode


def _exported(torch: Any, module: Any, examples: list, results: list, open_batch: bool, options: dict[str, Any]) -> bytes:
    """The module as an ONNX model."""
    if _has("onnxscript") and hasattr(torch, "export") and hasattr(torch.export, "Dim"):
        size = getattr(torch.export.Dim, "DYNAMIC", None) or torch.export.Dim("batch")
        shapes = tuple({0: size} if one.dim() and open_batch else None for one in examples)
        program = torch.onnx.export(module, tuple(examples), dynamo=True, dynamic_shapes=shapes, **options)
        return program.model_proto.SerializeToString()
    # The exporter by TorchScript needs no further package.
    named = zip(options["input_names"] + options["output_names"], examples + results, strict=True)
    axes = {name: {0: "batch"} for name, one in named if one.dim() and open_batch}
    file = io.BytesIO()
    try:
        torch.onnx.export(module, tuple(examples), file, dynamo=False, dynamic_axes=axes, **options)
    except TypeError as error:
        if "'dynamo'" not in str(error):
            raise
        # torch before 2.5 has this exporter alone.
        torch.onnx.export(module, tuple(examples), file, dynamic_axes=axes, **options)
    return file.getvalue()


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _named(inputs: Any, stem: str) -> tuple[list[str], list[Any]]:
    if isinstance(inputs, Mapping):
        return list(inputs), list(inputs.values())
    listed = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    return _numbered(stem, len(listed)), listed


def _numbered(stem: str, count: int) -> list[str]:
    return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]
