"""What runs in a module's place: one compiled model for each signature of its arguments.

A *signature* is the structure of the arguments, the shape and type of each tensor, and the value of everything else.
Signatures are compiled when they are first called, under a lock; those called least recently are dropped.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stormdrop.errors import UserError
from stormdrop.graph.graph import Graph
from stormdrop.pytorch.export import Aliased, Computed, Exported, Fixed, export, runnable
from stormdrop.pytorch.frozen import ModuleState
from stormdrop.pytorch.tensors import array_of, refusal, tensor_of
from stormdrop.runtime.model import Model

Build = Callable[[Graph], Model]
MOST_SIGNATURES = 16
"""Compiled at a time; each holds weights of its own."""


class Remarks:
    """Each remark is made once, as a Python warning."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def make(self, text: str) -> None:
        if text not in self._made:
            self._made.add(text)
            warnings.warn(text, stacklevel=4)


class CompiledSignature:
    """A module for one signature: tensors in, tensors out, in the memory they have."""

    def __init__(self, exported: Exported, model: Model) -> None:
        self.model, self.spec = model, exported.spec
        self._inputs, self._results, self._views = exported.inputs, exported.results, exported.views

    def __call__(self, leaves: Sequence[Any]) -> list[object]:
        """The leaves of the results."""
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


class CompiledSignatures:
    """The compiled signatures of one module or graph. `frozen`: which argument leaves are constants."""

    def __init__(self, module: Any, build: Build, frozen: Collection[int] = ()) -> None:
        self._module, self._build, self._frozen = module, build, frozen
        self._made: OrderedDict[Hashable, CompiledSignature | UserError] = OrderedDict()
        self._lock = RLock()

    def find(self, key: Hashable) -> CompiledSignature | UserError | None:
        """The model of a signature, or why there is none."""
        found = self._made.get(key)
        if found is not None and len(self._made) == MOST_SIGNATURES:
            with self._lock:
                if key in self._made:
                    self._made.move_to_end(key)
        return found

    def make(self, key: Hashable, leaves: Sequence[object], spec: Any) -> CompiledSignature | UserError:
        with self._lock:
            if key not in self._made:
                if len(self._made) >= MOST_SIGNATURES:
                    self._made.popitem(last=False)
                self._made[key] = self._new(leaves, spec)
            return self._made[key]

    def clear(self) -> None:
        with self._lock:
            self._made.clear()

    def models(self) -> list[Model]:
        with self._lock:
            return [made.model for made in self._made.values() if isinstance(made, CompiledSignature)]

    def _new(self, leaves: Sequence[object], spec: Any) -> CompiledSignature | UserError:
        try:
            exported = export(self._module, leaves, spec, self._frozen)
            return CompiledSignature(exported, self._build(exported.graph))
        except UserError as error:
            return error


def signature(leaves: Sequence[object]) -> tuple[Hashable, ...]:
    """Of argument leaves; an unhashable one raises TypeError. Numbers of different types are different."""
    return tuple(
        (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else (type(leaf), leaf)  # pyright: ignore
        for leaf in leaves
    )


class CompiledModule:
    """A PyTorch module compiled by `sd.compile`: takes and returns what the module does, without gradients.

    `model` is the `Model` of the example's shapes; calls with other shapes compile another. Parameters and buffers are
    part of the models: where they have changed since, the next call compiles again. A module in training mode, and
    arguments that require gradients, run in PyTorch.
    """

    def __init__(self, module: Any, arguments: Sequence[Any], named: Mapping[str, Any], build: Build) -> None:
        self._module, self._remarks = runnable(module), Remarks()
        self._signatures = CompiledSignatures(self._module, build)
        self._state = ModuleState(self._module)
        leaves, spec = pytree.tree_flatten((tuple(arguments), dict(named)))
        if (why := refusal(leaves)) is not None:
            raise UserError(why)
        self.model = self._specialised(leaves, spec).model

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the module returns. Raises UserError for arguments of shapes for which it cannot be compiled."""
        leaves, spec = pytree.tree_flatten((arguments, named))
        if (why := self._needs_eager(leaves)) is not None:
            self._remarks.make(f"the module runs in PyTorch: {why}")
            return self._module(*arguments, **named)
        made = self._specialised(leaves, spec)
        return pytree.tree_unflatten(made(leaves), made.spec)

    @property
    def models(self) -> list[Model]:
        """The compiled models, one for each signature called so far."""
        return self._signatures.models()

    def _needs_eager(self, leaves: Sequence[Any]) -> str | None:
        if self._module.training:
            return "it is in training mode"
        if torch.is_grad_enabled() and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            return "an argument requires gradients"
        return refusal(leaves)

    def _specialised(self, leaves: Sequence[object], spec: Any) -> CompiledSignature:
        if not self._state.holds():
            self._signatures.clear()
            self._state = ModuleState(self._module)
            self._remarks.make("parameters or buffers have changed since the module was compiled; it is compiled again")
        key = (spec, signature(leaves))
        made = self._signatures.find(key) or self._signatures.make(key, leaves, spec)
        if isinstance(made, UserError):
            raise made
        return made

    def __repr__(self) -> str:
        return f"<compiled module {type(self._module).__name__}, {self.model!r}>"
