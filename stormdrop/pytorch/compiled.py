"""The compiled form of a module: a compiled model for each signature of its arguments.

A *signature* is the structure of the arguments, the shape and type of each tensor, and the value of everything else.
`Sizes` compiles a signature at its first call, once for all threads, and drops the least recently called signatures.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from threading import Lock, RLock
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stormdrop.base.errors import StormdropWarning, UserError
from stormdrop.graph.graph import Graph
from stormdrop.model.model import Model
from stormdrop.model.sizes import Sizes
from stormdrop.pytorch.export import Aliased, Computed, Exported, Fixed, export, runnable
from stormdrop.pytorch.frozen import ModuleState
from stormdrop.pytorch.tensors import array_of, refusal, tensor_of

Build = Callable[[Graph], Model]
MOST_SIGNATURES = 16
"""Compiled at a time; each holds weights of its own."""


class Remarks:
    """A channel for remarks. Each remark is issued once, as a Python warning."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def make(self, text: str) -> None:
        if text not in self._made:
            self._made.add(text)
            warnings.warn(text, StormdropWarning, stacklevel=4)


class CompiledSignature:
    """A module for one signature: tensors in, tensors out, in the memory they have."""

    def __init__(self, exported: Exported, model: Model) -> None:
        self.model, self.spec = model, exported.spec
        self._inputs, self._results, self._views = exported.inputs, exported.results, exported.views

    def __call__(self, leaves: Sequence[Any]) -> list[object]:
        """Returns the leaves of the results."""
        outputs = self.model(*[array_of(leaves[k]) for k in self._inputs])
        tensors = [tensor_of(a) for a in (outputs if isinstance(outputs, tuple) else (outputs,))]
        views = self._views(leaves, tensors) if self._views else ()
        results: list[object] = []
        for result in self._results:
            match result:
                case Fixed(value):
                    results.append(value)
                case Computed(index):
                    results.append(tensors[index])
                case Aliased(index):
                    results.append(views[index])
        return results


Signatures = Sizes[Hashable, CompiledSignature]
"""The compiled signatures of one module or graph, with the parameters of one moment."""
_exporting = RLock()
"""Exports take turns: torch.export changes state of the process."""


def compiled_signature(
    module: Any, build: Build, leaves: Sequence[object], spec: Any, frozen: Collection[int] = ()
) -> CompiledSignature:
    """Compiles a module for one signature; argument leaves with numbers in `frozen` are constants. Raises UserError."""
    with _exporting:
        exported = export(module, leaves, spec, frozen)
    return CompiledSignature(exported, build(exported.graph))


def signature(leaves: Sequence[object]) -> tuple[Hashable, ...]:
    """Returns the signature of argument leaves.

    An unhashable leaf raises TypeError when the signature is hashed. Numbers of different types are different.
    """
    return tuple(
        (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else (type(leaf), leaf)  # pyright: ignore
        for leaf in leaves
    )


class CompiledModule:
    """A PyTorch module compiled by `sd.compile`, with the module's arguments and results, without gradients.

    `model` is the `Model` of the example's shapes; calls with other shapes compile another. Parameters and buffers are
    part of the models: if they have changed since, the next call compiles again. A module in training mode, and
    arguments that require gradients, run in PyTorch.
    """

    model: Model
    """The model of the example's shapes."""

    def __init__(self, module: Any, arguments: Sequence[Any], named: Mapping[str, Any], build: Build) -> None:
        self._module, self._remarks = runnable(module), Remarks()
        self._build, self._lock = build, Lock()
        self._current = ModuleState(self._module), Signatures(MOST_SIGNATURES)
        leaves, spec = pytree.tree_flatten((tuple(arguments), dict(named)))
        if (why := refusal(leaves)) is not None:
            raise UserError(why)
        self.model = self._specialised(leaves, spec).model

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the results of the module.

        Raises UserError for arguments of shapes for which the module cannot be compiled.
        """
        leaves, spec = pytree.tree_flatten((arguments, named))
        if (why := self._needs_eager(leaves)) is not None:
            self._remarks.make(f"the module runs in PyTorch: {why}")
            return self._module(*arguments, **named)
        made = self._specialised(leaves, spec)
        return pytree.tree_unflatten(made(leaves), made.spec)

    @property
    def models(self) -> list[Model]:
        """The compiled models, one for each signature called so far."""
        return [made.model for _, made in self._current[1].items()]

    def _needs_eager(self, leaves: Sequence[Any]) -> str | None:
        if self._module.training:
            return "it is in training mode"
        if torch.is_grad_enabled() and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            return "an argument requires gradients"
        return refusal(leaves)

    def _specialised(self, leaves: Sequence[object], spec: Any) -> CompiledSignature:
        state, signatures = self._current
        if not state.holds():
            with self._lock:
                if self._current[0] is state:  # compilations under way end in the signatures of the former state
                    self._current = ModuleState(self._module), Signatures(MOST_SIGNATURES)
                _, signatures = self._current
            self._remarks.make("parameters or buffers have changed since the module was compiled; it is compiled again")
        key = (spec, signature(leaves))
        return signatures.made(key, lambda: compiled_signature(self._module, self._build, leaves, spec))

    def __repr__(self) -> str:
        return f"<compiled module {type(self._module).__name__}, {self.model!r}>"
