"""A backend of `torch.compile`: a graph that Dynamo captured to a function that runs it natively.

The graph is compiled when it is first called, for the shapes of that call; a graph with open dimensions once for each
signature. Whatever cannot be compiled runs as Dynamo captured it, in PyTorch, with one remark: gradients and training,
autocast, random numbers, writes into arguments, operators that are not supported.

Dynamo passes parameters and buffers as arguments. They are constants of the models: each call compares them with those
compiled, and compiles again where another module shares the graph or a tensor was written since.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from stormdrop.errors import UserError
from stormdrop.pytorch.compiled import Build, CompiledSignatures, Remarks, signature
from stormdrop.pytorch.export import NothingComputed
from stormdrop.pytorch.frozen import Frozen
from stormdrop.pytorch.tensors import refusal

MOST_REFREEZES = 8
"""After so many changes of its parameters a graph stays in PyTorch: they are being trained."""


class GraphFunction:
    """A graph of Dynamo's as a callable on its flat arguments."""

    def __init__(self, graph: fx.GraphModule, build: Build) -> None:
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._static = [k for k, node in enumerate(nodes) if _is_static(node)]
        self._varying = [k for k in range(len(nodes)) if k not in set(self._static)]
        self._graph, self._remarks = graph, Remarks()
        self._signatures = CompiledSignatures(graph, build, frozenset(self._static))
        self._frozen: Frozen | None = None
        self._refreezes = 0

    def __call__(self, *arguments: Any) -> Any:
        why = self._needs_eager(arguments)
        if why is None:
            made = self._specialised(arguments)
            if not isinstance(made, UserError):
                return tuple(made(arguments))
            why = str(made) if not isinstance(made, NothingComputed) else None
        if why is not None:
            self._remarks.make(f"a graph of torch.compile runs in PyTorch: {why}")
        return self._graph(*arguments)

    def _needs_eager(self, arguments: Sequence[Any]) -> str | None:
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments):
            return "gradients are enabled; call the module under torch.inference_mode() or torch.no_grad()"
        if torch.is_autocast_enabled("cpu"):
            return "autocast is enabled"
        return refusal(arguments)

    def _specialised(self, arguments: Sequence[Any]) -> Any:
        static = [arguments[k] for k in self._static]
        if self._frozen is None or not self._frozen.holds(static):
            if self._frozen is not None:
                self._refreezes += 1
            if self._refreezes > MOST_REFREEZES:
                return UserError(f"its parameters have changed more than {MOST_REFREEZES} times")
            self._signatures.clear()
            self._frozen = Frozen(static)
        key = signature([arguments[k] for k in self._varying])
        made = self._signatures.find(key)
        if made is None:
            made = self._signatures.make(key, arguments, pytree.tree_structure((tuple(arguments), {})))
        return made


def _is_static(node: fx.Node) -> bool:
    """Whether a placeholder is a parameter or buffer of a module."""
    described = node.meta.get("tensor_dict") or {}
    return "_dynamo_static_input_type" in described or isinstance(
        getattr(node.meta.get("grapharg"), "example", None), torch.nn.Parameter
    )
