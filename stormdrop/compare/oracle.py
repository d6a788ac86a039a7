"""Whom a compiled model is compared with: onnxruntime where it is installed, else the reference interpreter.

A model that runs partly in onnxruntime is compared with ONNX's reference evaluator instead.

onnxruntime is a peer, not a part: it is imported only when asked for, and never needed. `agreement` judges one output
by its largest error, relative to the largest magnitude that is expected: networks end in sums, whose small results
carry the errors of large terms. NaNs and infinities must be where they are expected; whole numbers and truth values
must be equal, except that numbers of 8 bits, as quantised models give them, may differ by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.compare.interpreter import interpret
from stormdrop.errors import UserError
from stormdrop.graph.graph import Graph

Array = NDArray[Any]
TOLERANCE = 1e-3
LEAST_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}
"""A network that is rounded to halves on the way gives no more digits than these, whoever computes it."""
QUANTA = {"int8": 1, "uint8": 1}
LEAST_MAGNITUDE = 1e-6
"""Errors of outputs smaller than this are compared with it: zero has no relative error."""
ERRORS_ONLY = 3
LONGEST = 500
"""Characters of a message, which may quote a name of any length."""


class Oracle(Protocol):
    """Gives the outputs of a model by name; `told` says who it is."""

    @property
    def told(self) -> str: ...
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...


def has_onnxruntime() -> bool:
    return find_spec("onnxruntime") is not None


class OnnxRuntime:
    """A session on the CPU with every optimisation, threads as given, and everything else as it comes (its threads
    spin).
    """

    def __init__(self, model: str | bytes, threads: int) -> None:
        """Raises UserError where it is not installed, or refuses the model."""
        try:
            import onnxruntime
        except ImportError as error:
            raise UserError(f"onnxruntime cannot be imported: {error}; pip install onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = ERRORS_ONLY
        try:
            self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class of their own
            raise UserError(f"onnxruntime does not take the model: {_first_line(error)}") from error
        self.told = f"onnxruntime {version('onnxruntime')}"
        self.settings = f"{version('onnxruntime')}, ORT_ENABLE_ALL on the CPU; intra_op_num_threads={threads}, spinning"
        self._outputs: list[str] = [o.name for o in self._session.get_outputs()]
        self._inputs = {str(i.name) for i in self._session.get_inputs()}

    def prepared(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Those that it takes: what nothing reads is no input there."""
        return {k: a for k, a in inputs.items() if k in self._inputs}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self.run_prepared(self.prepared(inputs))
        except Exception as error:  # as above
            raise UserError(f"onnxruntime does not run the model: {_first_line(error)}") from error

    def run_prepared(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Nothing but the call: this is what is timed."""
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs)))


class Reference:
    """The graph as imported, on the reference interpreter."""

    told = "the reference interpreter"

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = {v.name for v in self._graph.inputs}  # bound ones are constants of the graph
        found = interpret(self._graph, {k: a for k, a in inputs.items() if k in names})
        return dict(zip(self._graph.output_names, found))


class OnnxReference:
    """The model on ONNX's own evaluator, in NumPy: slow, and independent of onnxruntime and of everything here."""

    told = "ONNX's reference evaluator"

    def __init__(self, model: str | bytes) -> None:
        """Raises UserError where it does not know an operator."""
        from onnx import load, load_from_string
        from onnx.reference import ReferenceEvaluator

        try:
            proto = load(model) if isinstance(model, str) else load_from_string(model)
            self._evaluator: Any = ReferenceEvaluator(proto)
        except Exception as error:  # a dozen kinds
            raise UserError(f"{self.told} does not take the model: {_first_line(error)}") from error

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            found = self._evaluator.run(None, dict(inputs))
        except Exception as error:  # as above
            raise UserError(f"{self.told} does not run the model: {_first_line(error)}") from error
        return dict(zip(self._evaluator.output_names, found))


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:LONGEST] if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far one output is from what is expected; errors are infinite where it is not even comparable."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    absolute: float
    relative: float
    is_exact: bool
    tolerance: float

    @property
    def ok(self) -> bool:
        if self.is_exact:
            return self.absolute <= QUANTA.get(self.dtype, 0)
        return self.relative <= max(self.tolerance, LEAST_TOLERANCE.get(self.dtype, 0.0))


def agreement(name: str, found: Array, expected: Array, tolerance: float = TOLERANCE) -> Agreement:
    """Compare one output."""
    is_exact = not (np.issubdtype(expected.dtype, np.floating) or str(expected.dtype) in LEAST_TOLERANCE)
    absolute, magnitude = _difference(found, expected)
    return Agreement(
        name, found.shape, str(found.dtype), absolute, absolute / max(magnitude, LEAST_MAGNITUDE), is_exact, tolerance
    )


def agreements(
    names: Sequence[str], found: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float = TOLERANCE
) -> list[Agreement]:
    """Compare outputs by name. Raises UserError where one is not known to the other side."""
    missing = [n for n in names if n not in expected]
    if missing:
        raise UserError(f"the output {missing[0]!r} is unknown to the other side: is it the same model?")
    return [agreement(n, found[n], expected[n], tolerance) for n in names]


def _difference(found: Array, expected: Array) -> tuple[float, float]:
    """The largest difference, and the largest magnitude that is expected."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf"), 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf"), 0.0
    a, b = a[finite], b[finite]
    difference, magnitude = float(np.max(np.abs(a - b), initial=0.0)), float(np.max(np.abs(b), initial=0.0))
    if found.dtype == np.int64 and not np.array_equal(found, expected):
        difference = max(1.0, difference)  # float64 may not tell them apart
    return difference, magnitude
