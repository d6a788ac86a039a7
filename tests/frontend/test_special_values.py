"""ONNX's elementwise operators at the edges: NaN, infinities, zeros of both signs, subnormals, halves, huge numbers.

The judge is NumPy in a wider type (long double), rounded to the type; exceptions are explained where they stand. Every
operator runs compiled, on each instruction set of this machine, and in the reference interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from tests.support.abused_onnx import NUMPY, B, D, F, I, L, model, node, port
from tests.support.special_values import MACHINES, OPSET, Wide, all_at_once, pairs_of, points, same, specials, ulps

Array = NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@dataclass(frozen=True)
class Rule:
    """What an operator of one input gives: to `bound` ulps, or to `slack` units of eps · |x| where terms cancel.

    `factor`: the result is x times a number that may be subnormal, and is off by as much of x as that number is.
    """

    function: Callable[[Array], Array]
    bound: float = 0.5
    slack: float = 0.0
    factor: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def number(x: float) -> Wide:
    """An attribute: ONNX keeps them in f32, defaults included."""
    return Wide(np.float32(x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: Array) -> Array:
    return np.array([math.erf(float(v)) for v in x], Wide)


def elu(alpha: float, gamma: float = 1.0, width: float = 1.0) -> Callable[[Array], Array]:
    a, g, w = number(alpha), number(gamma), number(width)
    return lambda x: np.where(x < 0, g * (a * np.expm1(x / w)), g * x)


def clamped(x: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(x, low), high)


SELU = 1.67326319217681884765625, 1.05070102214813232421875
UNARY: dict[str, Rule] = {
    "Abs": Rule(np.abs),
    "Neg": Rule(np.negative),
    "Floor": Rule(np.floor),
    "Ceil": Rule(np.ceil),
    "Round": Rule(np.rint),
    "Sqrt": Rule(np.sqrt),
    "Reciprocal": Rule(lambda x: 1 / x),
    "Identity": Rule(lambda x: x),
    # NumPy's sign of -0 is 0, ours stays -0; of max(0, -0) either zero is right, ours is the -0.
    "Sign": Rule(lambda x: np.where(x == 0, x, np.sign(x))),
    "Relu": Rule(lambda x: np.where(x < 0, 0, x)),
    "Exp": Rule(np.exp, 2.5),
    "Log": Rule(np.log, 1.0),
    "Sigmoid": Rule(sigmoid, 2.0),
    "Tanh": Rule(np.tanh, 2.1),
    "Erf": Rule(erf, 3.0),
    "Sin": Rule(np.sin, 3.0),
    "Cos": Rule(np.cos, 3.0),
    "Tan": Rule(np.tan, 4.5),
    "Asin": Rule(np.arcsin, 4.0),
    "Acos": Rule(np.arccos, 4.0),
    "Atan": Rule(np.arctan, 3.0),
    "Sinh": Rule(np.sinh, 4.5),
    "Cosh": Rule(np.cosh, 4.5),
    "Asinh": Rule(np.arcsinh, 3.0),
    "Acosh": Rule(np.arccosh, 3.0),
    "Atanh": Rule(np.arctanh, 3.0),
    "LeakyRelu": Rule(lambda x: np.where(x < 0, number(0.01) * x, x)),
    "Elu": Rule(elu(1), 2.5),
    "Celu": Rule(elu(2, 1, 2), 2.5, attributes={"alpha": 2.0}),
    "Selu": Rule(elu(*SELU), 3.0),
    "Softplus": Rule(softplus, 3.5),
    # inf / inf is NaN, by ONNX's formula.
    "Softsign": Rule(lambda x: x / (1 + np.abs(x)), 1.5),
    "HardSigmoid": Rule(lambda x: clamped(number(0.2) * x + number(0.5), 0, 1), 1.0, 1.0),
    # -inf times 0 is NaN in the five that follow, as ONNX's formulas have it, although each tends to -0.
    "HardSwish": Rule(lambda x: x * clamped(number(1 / 6) * x + number(0.5), 0, 1), 1.5, 1.0),
    "Gelu": Rule(lambda x: x / 2 * (1 + erf(x / np.sqrt(Wide(2)))), 4.0, 2.0),
    "Mish": Rule(lambda x: x * np.tanh(softplus(x)), 5.0, factor=True),
    "Swish": Rule(lambda x: x * sigmoid(x), 3.0, factor=True),
    # "Otherwise y = 0", NaN included.
    "ThresholdedRelu": Rule(lambda x: np.where(x > 1, x, 0)),
    "Shrink": Rule(
        lambda x: np.where(x < -1.5, x + 0.5, np.where(x > 1.5, x - 0.5, 0)), attributes={"lambd": 1.5, "bias": 0.5}
    ),
}


@cache
def unary_results(kind: int, machine: str) -> dict[str, Array]:
    """Of each operator, one model per opset."""
    found: dict[str, Array] = {}
    for opset in {OPSET.get(op, 18) for op in UNARY}:
        ops = [op for op in UNARY if OPSET.get(op, 18) == opset]
        nodes = [node(op, "x", op, **UNARY[op].attributes) for op in ops]
        found |= all_at_once(nodes, {"x": (kind, points(kind))}, dict.fromkeys(ops, kind), machine)
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("op", UNARY)
def test_an_operator_of_one_input_is_right_at_its_edges(op: str, kind: int, machine: str) -> None:
    rule, x = UNARY[op], points(kind)
    found, wanted = unary_results(kind, machine)[op], rule.function(x.astype(Wide))
    info = np.finfo(x.dtype)
    allowed = (rule.slack * Wide(info.eps) + rule.factor * Wide(info.smallest_subnormal)) * np.abs(x)
    is_close = (np.abs(found.astype(Wide) - wanted) <= allowed) & (allowed > 0)
    far = np.where(is_close, 0, ulps(found, wanted))
    bound = rule.bound + (machine == "interpreter")  # its operations are NumPy's, each of them rounded
    wrong = [f"{op}({x[k]}) = {found[k]}, not {wanted[k]}: {far[k]:.3g} ulp" for k in np.flatnonzero(~(far <= bound))]
    assert not wrong, "\n".join(wrong[:20])


# ---- two inputs


EXACT: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "PRelu": lambda a, b: np.where(a < 0, a * b, a),
}
TRUTHS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


@cache
def binary_results(kind: int, machine: str) -> dict[str, Array]:
    a, b = pairs_of(specials(kind))
    ops = [*EXACT, "Max", "Min", "Pow"]
    nodes = [node(op, "a b", op) for op in ops] + [node("Mod", "a b", "FMod", fmod=1)]
    kinds = {op: B if op in TRUTHS else kind for op in [*ops, "FMod"]}
    return all_at_once(nodes, {"a": (kind, a), "b": (kind, b)}, kinds, machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("op", [*EXACT, "FMod"])
def test_arithmetic_and_comparisons_are_exact(op: str, kind: int, machine: str) -> None:
    a, b = pairs_of(specials(kind))
    found, wanted = binary_results(kind, machine)[op], np.fmod(a, b) if op == "FMod" else EXACT[op](a, b)
    if op in TRUTHS:
        np.testing.assert_array_equal(found, wanted)
        return
    wrong = [f"{op}({a[k]}, {b[k]}) = {found[k]}, not {wanted[k]}" for k in np.flatnonzero(~same(found, wanted))]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_an_extremum_is_nan_if_one_operand_is(op: str, kind: int, machine: str) -> None:
    """Of zeros with different signs either may be the result."""
    a, b = pairs_of(specials(kind))
    np.testing.assert_array_equal(
        binary_results(kind, machine)[op], np.maximum(a, b) if op == "Max" else np.minimum(a, b)
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
def test_powers_of_floats_follow_c_everywhere(kind: int, machine: str) -> None:
    a, b = pairs_of(specials(kind))
    found, wanted = binary_results(kind, machine)["Pow"], np.power(a.astype(Wide), b.astype(Wide))
    far = ulps(found, wanted)
    wrong = np.flatnonzero(~(far <= 1.0))
    assert not len(wrong), "\n".join(
        f"{a[k]} ** {b[k]} = {found[k]}, not {wanted[k]}: {far[k]:.3g} ulp" for k in wrong[:20]
    )


C_POW = [
    (-0.0, -1.0, -np.inf),
    (-0.0, -3.0, -np.inf),
    (0.0, -1.0, np.inf),
    (-0.0, -2.0, np.inf),
    (-0.0, -0.5, np.inf),
    (-0.0, -np.inf, np.inf),
    (-0.0, 3.0, -0.0),
    (-0.0, 2.0, 0.0),
    (-0.0, 0.5, 0.0),
    (-1.0, np.inf, 1.0),
    (-1.0, -np.inf, 1.0),
    (1.0, np.nan, 1.0),
    (np.nan, 0.0, 1.0),
    (np.nan, -0.0, 1.0),
    (-8.0, 1 / 3, np.nan),
    (0.5, -np.inf, np.inf),
    (-0.5, np.inf, 0.0),
    (2.0, -np.inf, 0.0),
    (-2.0, np.inf, np.inf),
    (-np.inf, -3.0, -0.0),
    (-np.inf, -2.5, 0.0),
    (-np.inf, 3.0, -np.inf),
    (-np.inf, 2.5, np.inf),
    (-np.inf, 0.5, np.inf),
    (np.inf, -1.0, 0.0),
    (-np.inf, -0.5, 0.0),
    (-1.0, 0.5, np.nan),
    (np.inf, 0.5, np.inf),
    (np.nan, 1.0, np.nan),
    (2.0, np.nan, np.nan),
    (-3.0, 3.0, -27.0),
    (-3.0, 4.0, 81.0),
    (5.0, 3.0, 125.0),
    (16.0, 0.75, 8.0),
    (10.0, 15.0, 1e15),
    (9.0, 0.5, 3.0),
    (4.0, -0.5, 0.5),
    (-0.0, 0.25, 0.0),
    (-np.inf, 0.25, np.inf),
    (-1.0, 0.25, np.nan),
    (-0.0, 0.75, 0.0),
    (-np.inf, -0.75, 0.0),
    (-0.0, -0.75, np.inf),
    (0.0, -0.75, np.inf),
    (np.inf, -0.75, 0.0),
    (16.0, -0.75, 0.125),
    (-0.0, 1.5, 0.0),
    (-np.inf, 1.5, np.inf),
    (-4.0, 1.5, np.nan),
    (4.0, 1.5, 8.0),
    (-2.0, 4.0, 16.0),
    (-np.inf, 4.0, np.inf),
    (-0.0, 4.0, 0.0),
    (-0.0, -0.25, np.inf),
    (16.0, -0.25, 0.5),
    (np.nan, 0.75, np.nan),
]


@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("is_constant", [False, True], ids=["given", "constant"])
def test_the_special_powers_of_the_c_standard(kind: int, is_constant: bool) -> None:
    """An exponent that is a constant has programs of its own: 2, 3, 1, -1, 1/2 and -1/2 are not powers at all."""
    x, y, z = (np.array(column, NUMPY[kind]) for column in zip(*C_POW))
    if not is_constant:
        nodes = [node("Pow", "x y", "z")]
        found = sd.compile(model(nodes, [port("x", x.shape, kind), port("y", y.shape, kind)], [port("z", None, kind)]))(
            x, y
        )
        assert same(found, z).all(), list(zip(x, y, found, z))
        return
    for exponent in np.unique(y):
        chosen = same(y, np.full_like(y, exponent)) | ((y == 0) & (exponent == 0))
        weights = {"y": np.array(exponent, NUMPY[kind])}
        m = model([node("Pow", "x y", "z")], [port("x", (int(chosen.sum()),), kind)], [port("z", None, kind)], weights)
        found = sd.compile(m)(x[chosen])
        assert same(found, z[chosen]).all(), (exponent, x[chosen], found, z[chosen])


@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0, -1.0, 0.25, 0.5, 0.75, 1.5, -0.25, -0.5, -0.75, 2.2, -2.0, 1 / 3])
def test_constant_powers_are_within_four_ulps(exponent: float, kind: int) -> None:
    x, y = points(kind), np.array(exponent, NUMPY[kind])
    found = sd.compile(model([node("Pow", "x y", "z")], [port("x", x.shape, kind)], [port("z", None, kind)], {"y": y}))(
        x
    )
    far = ulps(found, np.power(x.astype(Wide), y.astype(Wide)))
    assert far.max() <= 4.0, (x[far.argmax()], found[far.argmax()])


def random_remainders(kind: int) -> tuple[Array, Array]:
    """One-decimal numbers, quotients of all sizes, and all exponents."""
    rng = np.random.default_rng(11)
    tenths = rng.integers(-999, 1000, (2, 3000)) / 10
    sizes = rng.standard_normal((2, 3000)) * 10.0 ** rng.uniform(-12, 12, (2, 3000))
    bits = NUMPY[I if kind == F else L]
    any_bits = rng.integers(np.iinfo(bits).min, np.iinfo(bits).max, (2, 3000), bits, endpoint=True).view(NUMPY[kind])
    a, b = np.concatenate([tenths.astype(NUMPY[kind]), sizes.astype(NUMPY[kind]), any_bits], axis=1)
    return a, b


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_of_floats_are_exact(fmod: int, kind: int, machine: str) -> None:
    """0.5 mod 0.1 is 0.1 (less what 0.1 is off): the quotient was once rounded to 5."""
    a, b = random_remainders(kind)
    edges = pairs_of(specials(kind))
    a, b = np.concatenate([a, edges[0]]), np.concatenate([b, edges[1]])
    found = all_at_once([node("Mod", "a b", "y", fmod=fmod)], {"a": (kind, a), "b": (kind, b)}, {"y": kind}, machine)[
        "y"
    ]
    wanted = np.fmod(a, b) if fmod else np.mod(a, b)
    wrong = np.flatnonzero(~same(found, wanted))
    assert not len(wrong), "\n".join(f"{a[k]} mod {b[k]} = {found[k]}, not {wanted[k]}" for k in wrong[:20])


# ---- mixed types


def exponents_of(kind: int) -> Array:
    return np.array([0, 1, 2, 3, 5, 14, 31, 32, 33, 62, 63, 64, 65, 2**31 - 1, -1, -2, -3, -(2**31)], NUMPY[kind])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [I, L], ids=["i32", "i64"])
@pytest.mark.parametrize("to", [I, L], ids=["to_i32", "to_i64"])
def test_powers_of_integers_are_exact_and_wrap(kind: int, to: int, machine: str) -> None:
    """11 to the 14 was once computed in f64, and off by one. A negative power is 1 over the positive one, truncated."""
    span = np.iinfo(NUMPY[kind])
    bases = np.array(
        [span.min, span.min + 1, -(2**16), -11, -3, -2, -1, 0, 1, 2, 3, 7, 10, 11, 46341, span.max - 1, span.max],
        NUMPY[kind],
    )
    exponents = exponents_of(to)
    a, b = np.repeat(bases, len(exponents)), np.tile(exponents, len(bases))
    found = all_at_once([node("Pow", "a b", "y")], {"a": (kind, a), "b": (to, b)}, {"y": kind}, machine)["y"]
    bits = 8 * a.itemsize

    def right(x: int, y: int) -> int:
        if y < 0:
            return 0 if abs(x) != 1 else x if y % 2 else 1
        value = pow(x, y, 1 << bits)
        return value - (1 << bits) if value >> (bits - 1) else value

    assert found.dtype == a.dtype
    assert found.tolist() == [right(x, y) for x, y in zip(a.tolist(), b.tolist())]


@pytest.mark.parametrize("kind", [I, L], ids=["i32", "i64"])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 40, 64, 65, 1000, -1, -2])
def test_a_constant_power_of_integers_is_exact_and_wraps(kind: int, exponent: int) -> None:
    span = np.iinfo(NUMPY[kind])
    x = np.array([span.min, -11, -1, 0, 1, 3, 11, 12345, span.max], NUMPY[kind])
    m = model(
        [node("Pow", "x y", "z")],
        [port("x", x.shape, kind)],
        [port("z", None, kind)],
        {"y": np.array(exponent, NUMPY[kind])},
    )
    bits = 8 * x.itemsize
    if exponent < 0:
        right = [0 if abs(v) != 1 else v**-exponent for v in x.tolist()]
    else:
        right = [(pow(v, exponent, 1 << bits) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for v in x.tolist()]
    assert sd.compile(m)(x).tolist() == right


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [I, L], ids=["i32", "i64"])
@pytest.mark.parametrize("to", [F, D], ids=["to_f32", "to_f64"])
def test_an_integer_to_a_fractional_power_is_truncated(kind: int, to: int, machine: str) -> None:
    """3 to the 0.5 is 1, not 2; what is whole stays whole, and what does not fit is the nearest that does."""
    rng = np.random.default_rng(5)
    whole = [
        (4, 0.5),
        (9, 1.5),
        (16, 0.75),
        (8, 3.0),
        (5, 3.0),
        (10, 9.0),
        (-3, 3.0),
        (-3, 2.0),
        (7, 0.0),
        (0, 2.0),
        (0, 0.0),
    ]
    edges = [
        (2, 100.0),
        (-2, 101.0),
        (0, -1.0),
        (-2, 0.5),
        (2, -1.0),
        (5, np.nan),
        (1, np.nan),
        (3, np.inf),
        (3, -np.inf),
    ]
    a = np.array([3, 5, 7, 10, *rng.integers(0, 100, 300), *(x for x, _ in whole + edges)], NUMPY[kind])
    b = np.array([0.5, 0.75, 0.5, 0.9, *rng.uniform(0, 4, 300), *(y for _, y in whole + edges)], NUMPY[to])
    found = all_at_once([node("Pow", "a b", "y")], {"a": (kind, a), "b": (to, b)}, {"y": kind}, machine)["y"]
    span = np.iinfo(a.dtype)

    def right(x: int, y: float) -> int:
        exact = np.power(np.float64(x), np.float64(y))
        return (
            0 if np.isnan(exact) else span.max if exact >= span.max else span.min if exact <= span.min else int(exact)
        )

    assert found[:4].tolist() == [1, 3, 2, 7]
    assert found.tolist() == [right(x, y) for x, y in zip(a.tolist(), b.tolist())]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("kind", "to"), [(F, D), (F, I), (F, L), (D, F), (D, I), (D, L)])
def test_a_float_to_a_power_of_another_type_is_a_power_in_f64(kind: int, to: int, machine: str) -> None:
    rng = np.random.default_rng(5)
    a = np.array([*rng.uniform(0.1, 9, 100), -2.0, -2.0, 0.0, -0.0, np.nan, np.inf, 1.0], NUMPY[kind])
    b = np.array([*rng.uniform(-20, 20, 100), 3, 4, 0, -1, 0, -1, 7], NUMPY[to])
    found = all_at_once([node("Pow", "a b", "y")], {"a": (kind, a), "b": (to, b)}, {"y": kind}, machine)["y"]
    assert (ulps(found, np.power(a.astype(Wide), b.astype(Wide))) <= 1.0).all()


def test_a_constant_exponent_of_a_wider_type_keeps_its_digits() -> None:
    x = np.array([1e30, 1e-30, 3.0], np.float32)
    m = model([node("Pow", "x y", "z")], [port("x", (3,))], "z", {"y": np.array(0.1)})
    assert (ulps(sd.compile(m)(x), np.power(x.astype(Wide), Wide(0.1))) <= 0.51).all()
