"""A backend of `torch.compile`: a graph that Dynamo captured to a function that runs it natively.

The graph is compiled when it is first called, for the shapes of that call; a graph with open dimensions once for each
signature. A graph that cannot be compiled runs as Dynamo captured it, in PyTorch, with a single remark. The reasons are
gradients and training, autocast, random numbers, writes into arguments, and operators that are not supported.

Dynamo passes parameters and buffers as arguments. The models contain them as constants. Each call compares parameters
and buffers with the compiled constants, and compiles again if another module shares the graph or a tensor was written
since.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from stormdrop.base.errors import UserError
from stormdrop.pytorch.compiled import (
    MOST_SIGNATURES,
    Build,
    CompiledSignature,
    Remarks,
    Signatures,
    compiled_signature,
    signature,
)
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
        self._graph, self._build, self._remarks = graph, build, Remarks()
        self._lock = Lock()
        self._current: tuple[Frozen, Signatures] | None = None
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

    def _specialised(self, arguments: Sequence[Any]) -> CompiledSignature | UserError:
        def compiled() -> CompiledSignature:
            spec = pytree.tree_structure((tuple(arguments), {}))
            return compiled_signature(self._graph, self._build, arguments, spec, frozenset(self._static))

        try:
            signatures = self._signatures([arguments[k] for k in self._static])
            return signatures.made(signature([arguments[k] for k in self._varying]), compiled)
        except UserError as error:
            return error

    def _signatures(self, static: Sequence[Tensor]) -> Signatures:
        """Returns the signatures of these parameters and buffers. Raises UserError after too many changes."""
        current = self._current
        if current is not None and current[0].holds(static):
            return current[1]
        with self._lock:
            current = self._current
            if current is None or not current[0].holds(static):
                self._refreezes += current is not None
                if self._refreezes > MOST_REFREEZES:
                    raise UserError(f"its parameters have changed more than {MOST_REFREEZES} times")
                current = self._current = Frozen(static), Signatures(MOST_SIGNATURES)
            return current[1]


def _is_static(node: fx.Node) -> bool:
    """Returns whether a placeholder is a parameter or buffer of a module."""
    described = node.meta.get("tensor_dict") or {}
    return "_dynamo_static_input_type" in described or isinstance(
        getattr(node.meta.get("grapharg"), "example", None), torch.nn.Parameter
    )
