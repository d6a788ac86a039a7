"""ONNX's own backend node tests, run as compiled models.

    python -m tests.support.onnx_suite [PART COUNT] [--interpret] [NAME…]      one line of JSON per case, on stdout

A case passes, passes with some input bound as a constant (its value decides shapes), is skipped because the importer
refuses it (the reason is its message), or fails. While a compiled model runs, the reference interpreter,
`onnx.reference` and NumPy's arithmetic raise: the kernels do the work. `kernels` counts them; a case whose outputs are
empty needs none.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx.numpy_helper
import onnx.reference

from stormdrop.base.errors import UserError
from stormdrop.builder.building import BuiltKernel
from stormdrop.compare.interpreter import interpret
from stormdrop.compiler.choose import Choice
from stormdrop.compiler.compile import tasks_of
from stormdrop.compiler.kernel_builds import Job, build_kernels
from stormdrop.compiler.model_build import build_model
from stormdrop.device.host import detect
from stormdrop.frontend.node_reader import NeedsConstant
from stormdrop.frontend.onnx import load
from stormdrop.frontend.pointwise import ELEMENT_TYPES
from stormdrop.graph.graph import Graph, verify
from stormdrop.space.rules import Rule
from stormdrop.target.machine import Target

ARITHMETIC = """
    add subtract multiply divide matmul dot einsum tensordot convolve exp log sqrt power tanh sum prod mean max min
    amax amin maximum minimum argmax argmin where take transpose concatenate pad cumsum sort argsort clip abs
    negative equal less greater floor ceil
"""
"""Functions of NumPy, none of which may compute what a kernel should."""
Run = Callable[[Graph, Mapping[str, Any]], tuple[list[Any], int]]
"""The outputs of a graph, and how many kernels it took."""


NOISE: dict[str, float] = {"test_dft_inverse": 1e-6, "test_dft_inverse_opset19": 1e-6}
"""Cases that expect the noise of a transform in f32 where the exact result is 0: absolute tolerances above it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case. `result`: passed, bound, skipped or failed."""

    name: str
    operators: tuple[str, ...]
    result: str
    kernels: int = 0
    why: str = ""


def all_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return sorted(load_model_tests(kind="node"), key=lambda c: c.name)


def graph_of(model: Any, feeds: Mapping[str, Any]) -> tuple[Graph, set[str]]:
    """The graph, with as few inputs bound as constants as it takes, and their names."""
    constants: dict[str, Any] = {}
    while True:
        shapes = {name: np.shape(x) for name, x in feeds.items() if name not in constants}
        try:
            return load(model, shapes, constants), set(constants)
        except NeedsConstant as error:
            more = {error.value} & set(feeds) - set(constants)
            if not more:  # computed from inputs: bind those that can hold shapes
                more = {name for name, x in feeds.items() if name not in constants and np.asarray(x).dtype.kind in "ib"}
            if not more:
                raise
            constants.update({name: feeds[name] for name in more})


_BUILT: dict[object, BuiltKernel] = {}


def built_once(jobs: Sequence[Job], target: Target, rules: Sequence[Rule]) -> list[BuiltKernel]:
    """Builds a kernel for each job; equal tasks of several cases share one, as equal tasks of a model do."""
    keys = [(job.task.digest, *sorted(job.strides.items())) for job in jobs]
    new = {key: job for key, job in zip(keys, jobs) if key not in _BUILT}
    _BUILT.update(zip(new, build_kernels(list(new.values()), target, rules=rules)))
    return [_BUILT[key] for key in keys]


@contextmanager
def kernels_only() -> Generator[None]:
    """Whoever computes in any other way raises."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something other than a kernel computes")

    with ExitStack() as stack:
        for name in ARITHMETIC.split():
            stack.enter_context(patch.object(np, name, refuse))
        stack.enter_context(patch("stormdrop.ir.interp.evaluate", refuse))
        stack.enter_context(patch.object(onnx.reference.ReferenceEvaluator, "run", refuse))
        yield


def run_compiled(graph: Graph, inputs: Mapping[str, Any]) -> tuple[list[Any], int]:
    with patch("stormdrop.compiler.model_build.build_kernels", built_once):
        model = build_model(tasks_of(graph), detect(1), lambda task: Choice())
    with kernels_only():
        results = model.run(inputs)
    return list(results.values()), len(model.image.calls)


def run_interpreted(graph: Graph, inputs: Mapping[str, Any]) -> tuple[list[Any], int]:
    return interpret(graph, inputs), 0


def outcome_of(case: Any, run: Run) -> Outcome:
    operators = tuple(sorted({n.op_type for n in case.model.graph.node}))
    bound, kernels = False, 0
    try:
        for given in case.data_sets:
            inputs, outputs = ([_array(x) for x in side] for side in given)
            if not all(isinstance(x, (np.ndarray, np.generic)) for x in (*inputs, *outputs)):
                raise UserError("an input or output is no array of a NumPy type")
            feeds = dict(zip((i.name for i in case.model.graph.input), inputs))
            graph, constants = graph_of(case.model, feeds)
            bound = bound or bool(constants)
            verify(graph)
            results, called = run(graph, {name: x for name, x in feeds.items() if name not in constants})
            kernels += called
            atol: float = NOISE.get(case.name) or case.atol
            wrong = _difference(results, outputs, case.rtol, atol)
            if wrong:
                return Outcome(case.name, operators, "failed", kernels, wrong)
    except UserError as error:
        return Outcome(case.name, operators, "skipped", 0, str(error))
    except Exception as error:
        return Outcome(case.name, operators, "failed", 0, repr(error)[:500])
    return Outcome(case.name, operators, "bound" if bound else "passed", kernels)


def _array(x: Any) -> Any:
    """Data that the suite keeps as a TensorProto, as an array, where it has a type that is known here."""
    is_known = isinstance(x, onnx.TensorProto) and x.data_type in ELEMENT_TYPES
    return onnx.numpy_helper.to_array(x) if is_known else x


def _error_of_halves(right: Any) -> float:
    """Two units in the last place of the largest value, where the values are halves.

    The suite computes these with halves throughout: they themselves are off by about one unit.
    """
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(str(right.dtype), 0.0)
    finite = np.abs(right.astype(np.float64))
    return 2 * unit * float(np.max(finite, initial=0.0, where=np.isfinite(finite))) if unit else 0.0


def _difference(results: Sequence[Any], wanted: Sequence[Any], rtol: float, atol: float) -> str:
    if len(results) != len(wanted):
        return f"{len(results)} outputs, not {len(wanted)}"
    for mine, right in zip(results, wanted):
        right = np.asarray(right)
        if mine.shape != right.shape or mine.dtype != right.dtype:
            return f"{mine.dtype}{mine.shape}, not {right.dtype}{right.shape}"
        if not np.allclose(mine, right, rtol, max(atol, _error_of_halves(right)), equal_nan=True):
            return f"values differ by up to {np.nanmax(np.abs(mine.astype(float) - right.astype(float)))}"
    return ""


def outcomes(cases: Sequence[Any], interpret: bool = False) -> Iterator[Outcome]:
    run = run_interpreted if interpret else run_compiled
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            yield outcome_of(case, run)


def main() -> None:
    words = [a for a in sys.argv[1:] if not a.startswith("--")]
    cases = all_cases()
    if len(words) >= 2 and words[0].isdigit():
        part, count = int(words[0]), int(words[1])  # neighbours have equal tasks
        cases = cases[part * len(cases) // count : (part + 1) * len(cases) // count]
        words = words[2:]
    if words:
        cases = [c for c in cases if any(w in c.name for w in words)]
    for outcome in outcomes(cases, "--interpret" in sys.argv):
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
