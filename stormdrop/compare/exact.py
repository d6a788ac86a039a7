"""The f64 reference: the judge of both sides if their outputs differ.

    right              both sides agree within the tolerance; the f64 reference is not computed
    peer less exact    ours agrees with the f64 reference, the peer's does not agree with ours
    ill-conditioned    one rounding of every value moves the f64 reference as far as ours is from it
    wrong              none of these

The f64 reference is the graph as imported on the reference interpreter, with every float a float64. It runs no
generated code. A *shaken* run simulates roundings: each element of the inputs, constants and results is multiplied by 1
± eps of its type, at random. The result of a sum of n terms moves by 1 + √n / 2 roundings, the growth that
`ir/interp.py` allows. So integer inputs need no shaking of their own. Numbers of at most 11 significant bits stay: such
constants as 1, 0.5 or 255 are exact, and comparisons with them must not flip.

A model that partly runs in onnxruntime has no f64 reference. The peer on shaken inputs takes its place there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.compare.interpreter import interpret
from stormdrop.compare.oracle import Agreement, agreement, is_whole
from stormdrop.graph.graph import Graph
from stormdrop.ir.dtypes import NUMPY, Dtype
from stormdrop.operators.node import Value

Array = NDArray[Any]
Conclusion = Literal["right", "peer less exact", "ill-conditioned", "wrong"]

ROUNDING: dict[Dtype, float] = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""The largest relative distance between neighbouring numbers of a type."""
EXACT_BITS = 11
SHAKEN_RUNS = 3
"""The most there are: no more are made once the roundings explain all differences."""
SLACK = 4.0
"""An ill-conditioned result is at most so many times as far as the farthest shaken run."""


class SideReference(Protocol):
    """Outputs as they are, and outputs after roundings."""

    is_f64: bool
    """False for outputs of the peer."""

    def run(self) -> Mapping[str, Array]: ...
    def shaken(self, seed: int) -> Mapping[str, Array]: ...


class ExactReference:
    """The outputs of a graph in f64, as they are and shaken, all within a limit of time."""

    is_f64 = True

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], seconds: float) -> None:
        """Inputs that are constants of the graph are ignored."""
        names = set(graph.input_names)
        self._graph, self._inputs = graph, {k: a for k, a in inputs.items() if k in names}
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def run(self) -> dict[str, Array]:
        """Raises UserError if time is up."""
        return self._run(_as_it_is)

    def shaken(self, seed: int) -> dict[str, Array]:
        """Raises UserError if time is up."""
        return self._run(_Shaking(np.random.default_rng(seed)))

    def _run(self, shaken: Callable[[Value, Array, int], Array]) -> dict[str, Array]:
        outputs = interpret(self._graph, self._inputs, "f64", shaken, self._tick)
        return dict(zip(self._graph.output_names, outputs))

    def _tick(self) -> None:
        if time.monotonic() >= self._end:
            raise UserError(f"the f64 reference takes longer than {self._seconds:g} s")


def _as_it_is(value: Value, array: Array, terms: int) -> Array:
    return array


class ShakenPeer:
    """The outputs of the peer, as they are and on shaken inputs, for models without an f64 reference."""

    is_f64 = False

    def __init__(self, run: Callable[[Mapping[str, Array]], Mapping[str, Array]], inputs: Mapping[str, Array]) -> None:
        self._run, self._inputs = run, inputs

    def run(self) -> Mapping[str, Array]:
        return self._run(self._inputs)

    def shaken(self, seed: int) -> Mapping[str, Array]:
        rng = np.random.default_rng(seed)
        floats = {np.dtype(NUMPY[dtype]): eps for dtype, eps in ROUNDING.items()}
        return self._run(
            {k: _shaken(a, floats[a.dtype], rng) if a.dtype in floats else a for k, a in self._inputs.items()}
        )


@dataclass(frozen=True, slots=True)
class _Shaking:
    rng: np.random.Generator

    def __call__(self, value: Value, array: Array, terms: int) -> Array:
        eps = ROUNDING[value.dtype] * (1.0 if terms == 1 else 1.0 + terms**0.5 / 2.0)
        return _shaken(array, eps, self.rng)


def _shaken(array: Array, eps: float, rng: np.random.Generator) -> Array:
    """Returns the array, each element of more than EXACT_BITS bits multiplied by 1 ± eps."""
    mantissa, _ = np.frexp(array.astype(np.float64))
    leading = mantissa * 2.0**EXACT_BITS
    signs = rng.integers(0, 2, array.shape) * 2.0 - 1.0
    with np.errstate(all="ignore"):
        return np.where(leading == np.trunc(leading), array, array * (1.0 + eps * signs)).astype(array.dtype)


@dataclass(frozen=True, slots=True)
class ExactErrors:
    """The errors of both sides against the f64 reference.

    `distance` is the error of our output, and `rounding` the largest error of a shaken run, None without shaken runs.
    The error of floats is relative. The error of integers and truth values is the largest difference, and the number of
    elements that differ.
    """

    ours: Agreement
    peer: Agreement
    distance: tuple[float, ...]
    rounding: tuple[float, ...] | None
    is_f64: bool = True
    """False if the peer itself was the reference, on shaken inputs."""

    @property
    def is_explained(self) -> bool:
        """True if roundings move the f64 reference as far as our output is from it."""
        return self.rounding is not None and all(d <= SLACK * r for d, r in zip(self.distance, self.rounding))


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """One output beside the peer's, and beside the f64 reference if that was computed."""

    agreement: Agreement
    exact: ExactErrors | None = None

    @property
    def conclusion(self) -> Conclusion:
        if self.agreement.ok:
            return "right"
        if self.exact is None:
            return "wrong"
        if self.exact.ours.ok:
            return "peer less exact"
        return "ill-conditioned" if self.exact.is_explained else "wrong"

    @property
    def ok(self) -> bool:
        """True unless the output is wrong."""
        return self.conclusion != "wrong"


def judged(
    judged_by_peer: Sequence[Agreement],
    ours: Mapping[str, Array],
    peer: Mapping[str, Array],
    reference: SideReference,
    tell: Callable[[str], None],
) -> list[CheckedOutput]:
    """Returns the outputs with their errors against the f64 reference.

    If there are no errors to return, `tell` receives the reason.
    """
    try:
        exact = reference.run()
    except (UserError, MemoryError) as error:
        tell(f"{error}: nothing but the other side judges")
        return [CheckedOutput(a) for a in judged_by_peer]
    shaken: list[Mapping[str, Array]] = []
    while True:
        checked = [
            _beside(a, ours[a.name], peer[a.name], exact[a.name], [run[a.name] for run in shaken], reference.is_f64)
            for a in judged_by_peer
        ]
        if all(c.ok for c in checked) or len(shaken) == SHAKEN_RUNS:
            return checked
        try:
            shaken.append(reference.shaken(len(shaken)))
        except (UserError, MemoryError) as error:
            tell(f"{error}: {len(shaken)} of {SHAKEN_RUNS} shaken runs were made")
            return checked


def _beside(
    a: Agreement, ours: Array, peer: Array, exact: Array, shaken: Sequence[Array], is_f64: bool
) -> CheckedOutput:
    with np.errstate(all="ignore"):  # a float64 may be infinite in the output's type
        exact, *shaken = (x.astype(ours.dtype) for x in (exact, *shaken))
    moved = [_distance(x, exact) for x in shaken]
    errors = ExactErrors(
        agreement(a.name, ours, exact, a.tolerance, a.allowed),
        agreement(a.name, peer, exact, a.tolerance, a.allowed),
        _distance(ours, exact),
        tuple(map(max, zip(*moved))) if moved else None,
        is_f64,
    )
    return CheckedOutput(a, errors)


def _distance(output: Array, exact: Array) -> tuple[float, ...]:
    """Returns the numbers of `ExactErrors`."""
    errors = agreement("", output, exact)
    if is_whole(exact) and output.shape == exact.shape:
        return errors.absolute, float(np.count_nonzero(output != exact))
    return (errors.relative,)
