"""Detection of changes to tensors since their values were compiled into a model.

PyTorch counts the writes into a tensor (its version): an optimiser's step and `load_state_dict` are noticed. Writes
through `tensor.data`, through NumPy and into tensors that were made in inference mode are not counted.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Frozen:
    """The state of tensors at one time. The tensors are not kept alive; a deleted or replaced tensor is a change."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._known = [(id(t), _version(t), t.data_ptr()) for t in tensors]
        self._is_complete = True
        self._watched = [weakref.ref(tensor, self._lost) for tensor in tensors]

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Returns whether `tensors`, as many as were frozen, are the same tensors with the same values."""
        for t, (number, version, address) in zip(tensors, self._known):
            if id(t) != number or t.data_ptr() != address or (version >= 0 and t._version != version):
                return False
        return self._is_complete

    def _lost(self, _: Any) -> None:
        self._is_complete = False  # its id may belong to another tensor now


def _version(t: Tensor) -> int:
    return -1 if t.is_inference() else t._version


class ModuleState:
    """The parts, parameters and buffers of a module, in the places of the module."""

    def __init__(self, module: torch.nn.Module) -> None:
        holders = list(module.modules())
        self._parts = [(h._modules, name, part) for h in holders for name, part in h._modules.items()]
        tables = [table for h in holders for table in (h._parameters, h._buffers)]
        self._places = [(table, name) for table in tables for name, tensor in table.items() if tensor is not None]
        self._frozen = Frozen([table[name] for table, name in self._places])

    def holds(self) -> bool:
        """Returns whether the module has the same parts, and tensors with the same values."""
        try:
            return all(table[name] is part for table, name, part in self._parts) and self._frozen.holds(
                table[name] for table, name in self._places
            )
        except (KeyError, AttributeError):  # it has been removed, or is None
            return False
