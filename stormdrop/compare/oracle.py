"""Peers to compare a compiled model with: onnxruntime if installed, else the reference interpreter.

A model that runs partly in onnxruntime is compared with ONNX's reference evaluator instead.

onnxruntime is a peer, not a part: the package imports onnxruntime only on request, and never needs it. `agreement`
judges an output by its largest error, relative to the largest expected magnitude. Networks end in sums, and small sums
carry the errors of large terms. An error of at most `ABSOLUTE` is allowed beside that. NaNs and infinities must be at
the expected positions. Whole numbers and truth values must be equal, except that the 8-bit numbers of quantised models
may differ by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError, first_line
from stormdrop.compare import ABSOLUTE, TOLERANCE
from stormdrop.compare.interpreter import interpret
from stormdrop.graph.graph import Graph
from stormdrop.ir.interp import distances

Array = NDArray[Any]
LEAST_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}
"""The precision of a network that rounds to halves on the way, in any implementation."""
QUANTA = {"int8": 1, "uint8": 1}
LEAST_MAGNITUDE = 1e-6
"""Errors of outputs smaller than this are compared with it: zero has no relative error."""


class Oracle(Protocol):
    """A source of a model's outputs by name; `label` is its name for messages."""

    @property
    def label(self) -> str: ...
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...


def has_onnxruntime() -> bool:
    return find_spec("onnxruntime") is not None


class Reference:
    """The graph as imported, on the reference interpreter."""

    label = "the reference interpreter"

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = {v.name for v in self._graph.inputs}  # bound inputs are constants of the graph
        outputs = interpret(self._graph, {k: a for k, a in inputs.items() if k in names})
        return dict(zip(self._graph.output_names, outputs))


class OnnxReference:
    """The model on ONNX's own evaluator, in NumPy: slow, and independent of onnxruntime and of everything here."""

    label = "ONNX's reference evaluator"

    def __init__(self, model: str | bytes) -> None:
        """Raises UserError if the evaluator has no implementation of an operator."""
        from onnx import load, load_from_string
        from onnx.reference import ReferenceEvaluator

        try:
            proto = load(model) if isinstance(model, str) else load_from_string(model)
            self._evaluator: Any = ReferenceEvaluator(proto)
        except Exception as error:  # a dozen kinds
            raise UserError(f"{self.label} does not take the model: {first_line(error)}") from error

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            outputs = self._evaluator.run(None, dict(inputs))
        except Exception as error:  # as above
            raise UserError(f"{self.label} does not run the model: {first_line(error)}") from error
        return dict(zip(self._evaluator.output_names, outputs))


@dataclass(frozen=True, slots=True)
class Agreement:
    """The errors of an output relative to the expected output; infinite if the two are not comparable."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    absolute: float
    relative: float
    is_exact: bool
    tolerance: float
    allowed: float = ABSOLUTE
    """The absolute tolerance."""

    @property
    def ok(self) -> bool:
        if self.is_exact:
            return self.absolute <= QUANTA.get(self.dtype, 0)
        is_near = self.relative <= max(self.tolerance, LEAST_TOLERANCE.get(self.dtype, 0.0))
        return is_near or self.absolute <= self.allowed


def agreement(
    name: str, output: Array, expected: Array, tolerance: float = TOLERANCE, allowed: float = ABSOLUTE
) -> Agreement:
    """Compares an output with the expected output."""
    absolute, magnitude = _difference(output, expected)
    relative = absolute / max(magnitude, LEAST_MAGNITUDE)
    return Agreement(name, output.shape, str(output.dtype), absolute, relative, is_whole(expected), tolerance, allowed)


def is_whole(array: Array) -> bool:
    """Returns True for integers and truth values."""
    return not (np.issubdtype(array.dtype, np.floating) or str(array.dtype) in LEAST_TOLERANCE)


def agreements(
    names: Sequence[str],
    outputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    tolerance: float = TOLERANCE,
    allowed: float = ABSOLUTE,
) -> list[Agreement]:
    """Compares outputs by name. Raises UserError if an output is missing on the other side."""
    missing = [n for n in names if n not in expected]
    if missing:
        raise UserError(f"the output {missing[0]!r} is unknown to the other side: is it the same model?")
    return [agreement(n, outputs[n], expected[n], tolerance, allowed) for n in names]


def _difference(output: Array, expected: Array) -> tuple[float, float]:
    """Returns the largest difference, and the largest expected magnitude."""
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return float("inf"), 0.0
    largest = float(np.max(distances(output, expected), initial=0.0))
    magnitudes = np.abs(expected.astype(np.float64))
    magnitude = float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))
    return float("inf") if np.isnan(largest) else largest, magnitude
