"""Tensors as arrays and back, sharing their memory."""

# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def array_of(tensor: Tensor) -> Array:
    """Returns the elements of a CPU tensor in place.

    NumPy has no bfloat16 of its own: its bits pass as whole numbers.
    """
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy(force=True)


def tensor_of(array: Array) -> Tensor:
    """Returns a tensor of an array's memory, which lives as long as the tensor does."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def refusal(leaves: Iterable[Any]) -> str | None:
    """Returns the reason why the arguments cannot be read in place; None if they can."""
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if type(leaf) not in (Tensor, torch.nn.Parameter):
                return f"an argument is a {type(leaf).__name__}"
            if leaf.device.type != "cpu" or leaf.layout != torch.strided:
                return f"a tensor is {leaf.layout} on {leaf.device}; only dense tensors on the CPU are taken"
    return None
