"""f16: stored in two bytes, computed with as f32. Conversions are exact or round to nearest even, on every machine."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.builder.building import program_of
from stormdrop.codegen.emit import emit
from stormdrop.codegen.llvm import _global_symbols, assemble
from stormdrop.codegen.text import f16_bits
from stormdrop.ir import build as sd
from stormdrop.ir.expr import Dtype
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task, axis, compute, tensor
from stormdrop.model.kernel import build as kernel_of
from stormdrop.operators.broadcast import elementwise
from stormdrop.space.default import default_schedule
from stormdrop.target.cpu import cross
from tests.support.trials import targets

ISAS = [t.isa for t in targets()]


def _task(source: Dtype, to: Dtype, n: int) -> Task:
    return Task([elementwise(lambda e: sd.cast(e[0], to), [tensor("X", (n,), source)])])


def _converted(x: NDArray[Any], to: Dtype, isa: str) -> NDArray[Any]:
    task = _task("f16" if x.dtype == np.float16 else "f32", to, x.size)
    return kernel_of(task, threads=1, target=next(t for t in targets() if t.isa == isa))(x)


def _floats() -> NDArray[np.float32]:
    """Every f16, and f32 next to it and next to the middle between it and the next: both zeros, infinities, NaNs."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        above = np.nextafter(every, np.float16(np.inf)).astype(np.float32)
        exact = every.astype(np.float32)
        middle = (exact + above) / 2
        sides = [np.nextafter(middle, np.float32(s)) for s in (-np.inf, np.inf)]
    others = np.array([65504, 65519.996, 65520, 65536, 1e38, 2.0**-25, 2.0**-26, 1e-45, -(2.0**-25)], np.float32)
    return np.concatenate([exact, middle, *sides, others]).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
def test_every_f16_is_read_exactly(isa: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found = _converted(every, "f32", isa)
    is_nan = np.isnan(every)
    np.testing.assert_array_equal(found.view(np.uint32)[~is_nan], every.astype(np.float32).view(np.uint32)[~is_nan])
    assert np.isnan(found[is_nan]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_float_is_rounded_to_the_nearest_even_f16(isa: str) -> None:
    x = _floats()
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(np.float16)
    found = _converted(x, "f16", isa)
    is_nan = np.isnan(x)
    np.testing.assert_array_equal(found.view(np.uint16)[~is_nan], wanted.view(np.uint16)[~is_nan])
    assert np.isnan(found[is_nan]).all()


def test_constants_and_the_interpreter_round_as_kernels_do() -> None:
    values = [0.0, -0.0, 1.0, 1.00048828125, 65519.0, 65520.0, -1e9, 6e-8, 2e-8, float("inf"), float("-inf")]
    with np.errstate(over="ignore"):
        rounded = np.array(values).astype(np.float16)
    assert [f16_bits(v) for v in values] == rounded.view(np.uint16).tolist()
    found = evaluate(_task("f32", "f16", len(values)), {"X": np.array(values, np.float32)})["Y"]
    np.testing.assert_array_equal(found.view(np.uint16), rounded.view(np.uint16))


@pytest.mark.parametrize("isa", ["sse", "avx2", "avx512", "neon", "sve512"])
def test_conversions_call_nothing(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = cross(isa)
    if target.triple.startswith("aarch64"):
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")  # objects of other machines are not looked into
    for task in (_task("f16", "f32", 1000), _task("f32", "f16", 1000), _task("i64", "f16", 7), _task("f16", "u8", 33)):
        code = assemble(emit(program_of(task, default_schedule(task, target), target), target), target)
        assert not _global_symbols(code)[1]


def test_computing_with_f16_is_refused() -> None:
    x, i = tensor("X", (4,), "f16"), axis(4)
    with pytest.raises(UserError, match="computes with f16"):
        compute("Y", i, x[i] + x[i])
