"""PyTorch's OpInfo samples: every operator's own test arguments, compiled and compared with eager mode.

An operator passes where all its samples of a type are right. A sample that cannot be exported or imported is *refused*,
with the reason; a wrong result is an error, always.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

import stormdrop as sd
from stormdrop.pytorch.compiled import CompiledModule

TYPES = {"f32": torch.float32}


class Apply(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one operator and type: how many samples were right, and what was said of the others."""

    operator: str
    type: str
    right: int
    refused: tuple[str, ...]
    wrong: tuple[str, ...]


def names() -> list[str]:
    return sorted({_name(info) for info in _database()})


def outcomes(name: str, count: int = 1) -> Iterator[Outcome]:
    """Of so many samples for each type, spread over all that there are."""
    for info in _database():
        if _name(info) == name:
            for type_name, dtype in TYPES.items():
                if dtype in info.dtypes:
                    yield _outcome(info, type_name, dtype, count)


def _database() -> list[Any]:
    """All that have a defined result."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if "empty" not in info.name]


def _name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def _outcome(info: Any, type_name: str, dtype: Any, count: int) -> Outcome:
    torch.manual_seed(0)
    samples = list(islice(info.sample_inputs("cpu", dtype, requires_grad=False), 64))
    chosen = samples[:: max(1, len(samples) // count)][:count]
    refused: list[str] = []
    wrong: list[str] = []
    for sample in chosen:
        arguments = (sample.input, *sample.args)
        function = Apply(info.op).eval()
        try:
            want = function(*arguments, **sample.kwargs)
        except Exception:  # a sample that expects the tensors of another test class
            continue
        try:
            have = CompiledModule(function, arguments, sample.kwargs, partial(sd.compile, threads=1))(
                *arguments, **sample.kwargs
            )
        except sd.UserError as error:
            refused.append(str(error))
            continue
        try:
            torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4, equal_nan=True)
        except AssertionError as error:
            wrong.append(f"{arguments} {sample.kwargs}: {error}")
    return Outcome(_name(info), type_name, len(chosen) - len(refused) - len(wrong), tuple(refused), tuple(wrong))
