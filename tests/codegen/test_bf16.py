"""bf16: stored in two bytes, computed with as f32. Conversions are exact or round to nearest even, on every machine."""

from __future__ import annotations

import json
import platform
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.builder.building import program_of
from stormdrop.codegen.emit import emit
from stormdrop.codegen.llvm import _global_symbols, assemble
from stormdrop.codegen.text import bf16_bits
from stormdrop.ir import build as sd
from stormdrop.ir.expr import Bin, Cast, Const, Expr
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task, Tensor, axis, compute, reduce_axis, tensor
from stormdrop.model.kernel import build as kernel_of
from stormdrop.operators.broadcast import concat, elementwise, pad_constant, repeat, transpose
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.target.cpu import cross
from tests.support import crew
from tests.support.trials import Given, targets

BF16 = np.dtype(ml_dtypes.bfloat16)
ISAS = [t.isa for t in targets()]


def _converted(x: NDArray[Any], to: Any, isa: str) -> NDArray[Any]:
    source = tensor("X", x.shape, "bf16" if x.dtype == BF16 else "f32")
    task = Task([elementwise(lambda e: sd.cast(e[0], to), [source])])
    target = next(t for t in targets() if t.isa == isa)
    return kernel_of(task, threads=1, target=target)(x)


def _floats() -> NDArray[np.float32]:
    """Every upper half of an f32 with lower halves around its middle: all exponents, both zeros, infinities, NaNs."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] | lower).ravel().view(np.float32)


@pytest.mark.parametrize("isa", ISAS)
def test_every_bf16_is_read_exactly(isa: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    found = _converted(every, "f32", isa)
    np.testing.assert_array_equal(found.view(np.uint32), every.view(np.uint16).astype(np.uint32) << 16)


@pytest.mark.parametrize("isa", ISAS)
def test_a_float_is_rounded_to_the_nearest_even_bf16(isa: str) -> None:
    x = _floats()
    with np.errstate(invalid="ignore"):
        wanted = x.astype(BF16)
    found = _converted(x, "bf16", isa)
    assert found.dtype == BF16
    is_nan = np.isnan(x)
    np.testing.assert_array_equal(found.view(np.uint16)[~is_nan], wanted.view(np.uint16)[~is_nan])
    assert np.isnan(found[is_nan].astype(np.float32)).all()


def test_constants_and_the_interpreter_round_as_kernels_do() -> None:
    values = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, -3.3e38, 3.4e38, 1e-40, float("inf"), float("-inf")]
    rounded = np.array(values, np.float32).astype(BF16)
    assert [bf16_bits(float(np.float32(v))) for v in values] == rounded.view(np.uint16).tolist()
    assert bf16_bits(float("nan")) == 0x7FC0
    x = tensor("X", (len(values),))
    task = Task([elementwise(lambda e: sd.cast(e[0], "bf16"), [x])])
    found = evaluate(task, {"X": np.array(values, np.float32)})["Y"]
    np.testing.assert_array_equal(found.view(np.uint16), rounded.view(np.uint16))


def _rounded(x: Tensor) -> Tensor:
    return elementwise(lambda e: sd.cast(e[0], "bf16"), [x], "H")


def _moves() -> dict[str, Tensor]:
    x, y = tensor("X", (13, 33), "bf16"), tensor("Z", (13, 20), "bf16", constant=True)
    i, j = axis(13), axis(33)
    flag = tensor("B", (13, 33), "bool")
    chosen = compute("Y", (i, j), sd.where(flag[i, j], x[i, j], Const(1.5, "bf16")))
    k, n, r = axis(13), axis(33), reduce_axis(3)
    padded = pad_constant(x, (0, 1), (0, 1), -2.0)
    largest = compute("Y", (k, n), sd.reduce_max(sd.cast(padded[k, n + r], "f32"), r))
    sums = compute("Y", (k, n), sd.sum(sd.cast(padded[k, n + r], "f32"), r))
    n, k = axis(33), axis(13)
    return {
        "transpose": transpose(x, (1, 0)),
        "pad": pad_constant(x, (2, 1), (0, 5), -2.0),
        "concat": concat([x, y], 1),
        "repeat": repeat(x, 1, 3),
        "where": chosen,
        "largest of a window": largest,
        "sums rounded to bf16": _rounded(sums),
        "sums through bf16": compute("S", (k, n), sd.cast(_rounded(sums)[k, n], "f32") * 3.0),
    }


@pytest.mark.parametrize("name", _moves())
def test_bf16_is_moved_padded_and_chosen_as_other_types_are(name: str) -> None:
    outcome = crew.check([Given(f"bf16 {name}", Task([_moves()[name]]), points=3)])
    assert outcome.points
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])


@pytest.mark.parametrize("name", ["GMM", "DEN"])
def test_a_product_of_bf16_is_summed_in_f32(name: str) -> None:
    task = build(name, [2, 5, 37, 300], "bf16")
    assert [t.dtype for t in (*task.inputs, *task.outputs)] == ["bf16", "bf16", "f32"]
    assert task.digest == Task.from_json(json.loads(json.dumps(task.to_json()))).digest
    assert task.digest != build(name, [2, 5, 37, 300]).digest
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(t.shape).astype(BF16) for t in task.inputs)
    constants = {t.name: b for t in task.constants}
    found = kernel_of(task, constants=constants)(a, *([] if constants else [b]))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=0, atol=300 * 2.0**-23 * float(np.abs(exact).max()))


def test_arrays_of_bf16_are_given_and_written_in_any_layout() -> None:
    kernel = kernel_of(Task([transpose(tensor("X", (5, 7), "bf16"), (1, 0))]))
    x = np.random.default_rng(0).standard_normal((5, 14)).astype(BF16)[:, ::2]
    out = np.zeros((14, 5), BF16)[::2]
    assert kernel(x, out=out) is out
    np.testing.assert_array_equal(out.astype(np.float32), x.T.astype(np.float32))
    with pytest.raises(UserError, match=r"type float32; use x.astype\(ml_dtypes.bfloat16\)"):
        kernel(x.astype(np.float32))


@pytest.mark.parametrize("isa", ["neon", "sve512"])
def test_conversions_and_products_call_nothing_on_arm(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")  # objects of other machines are not looked into
    target = cross(isa)
    for task in [build("GMM", [1, 9, 33, 20], "bf16"), *(Task([t]) for t in _moves().values())]:
        code = assemble(emit(program_of(task, default_schedule(task, target), target), target), target)
        assert not _global_symbols(code)[1]


def test_computing_with_bf16_is_refused() -> None:
    x, i, k = tensor("X", (4,), "bf16"), axis(4), reduce_axis(4)
    bodies: list[Expr] = [x[i] + x[i], -x[i], Bin("max", x[i], x[i]), sd.where(x[i] > x[i], 1.0, sd.cast(x[i], "f32"))]
    for body in [*bodies, Cast(x[i], "f64"), Cast(sd.cast(i, "i32"), "bf16")]:
        with pytest.raises(UserError, match="computes with bf16"):
            compute("Y", i, body)
    with pytest.raises(UserError, match="sum of bf16"):
        compute("Y", (), sd.sum(x[k], k))
    with pytest.raises(UserError, match="computes with bf16"):
        build("ADR", [1, 2, 2, 3], "bf16")


def test_a_cast_between_bf16_and_other_types_goes_through_f32() -> None:
    x, i = tensor("X", (4,), "bf16"), axis(4)
    assert sd.cast(x[i], "i32") is Cast(Cast(x[i], "f32"), "i32")
    assert sd.cast(i, "bf16") is Cast(Cast(i, "f32"), "bf16")
    assert sd.cast(x[i], "bf16") is x[i]
