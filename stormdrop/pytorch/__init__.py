"""PyTorch modules and graphs: exported through ONNX, run on tensors without copies.

This package alone imports torch, at its first use: `import stormdrop` does not load torch. `stormdrop.compiler` passes
in the function that compiles a graph.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stormdrop.base.errors import UserError

if TYPE_CHECKING:
    from stormdrop.graph.graph import Graph
    from stormdrop.pytorch.compiled import Build, CompiledModule


def is_torch(model: object) -> bool:
    """Returns whether `model` is a module or an exported program of PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(model, (torch.nn.Module, torch.export.ExportedProgram))


def compile_module(module: Any, example_inputs: Any, build: Build) -> CompiledModule:
    """Returns a module as a callable that runs natively. Raises UserError as `export` does."""
    from stormdrop.pytorch.compiled import CompiledModule

    return CompiledModule(module, *_arguments(module, example_inputs), build)


def graph_of(module: Any, example_inputs: Any) -> Graph:
    """Returns a module as a graph, for tensors like the examples. Raises UserError as `export` does."""
    from stormdrop.pytorch.export import export_module

    return export_module(module, *_arguments(module, example_inputs)).graph


def _arguments(module: Any, example_inputs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Returns positional and named arguments, from a tuple, a mapping or a tensor; an exported program has its own."""
    if example_inputs is None:
        example_inputs = getattr(module, "example_inputs", None)
        if not isinstance(example_inputs, tuple):
            raise UserError("a PyTorch module needs example inputs: sd.compile(module, (x,))")
        return example_inputs
    if isinstance(example_inputs, Mapping):
        return (), example_inputs
    if isinstance(example_inputs, (list, tuple)):
        return example_inputs, {}
    return (example_inputs,), {}
