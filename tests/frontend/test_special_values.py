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
from onnx import numpy_helper

import stormdrop as sd
from stormdrop.compiler import build_model, tasks_of
from stormdrop.graph.run_unfused import Unfused
from tests.support.abused_onnx import NUMPY, B, D, F, I, L, model, node, port
from tests.support.trials import targets

Array = NDArray[Any]
Wide = np.longdouble
MACHINES = (*(t.isa for t in targets()), "interpreter")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def specials(kind: int) -> Array:
    """Both signs of everything that has one."""
    info = np.finfo(NUMPY[kind])
    edge = 2.0 ** (int(info.nmant) - 1)  # up to here floats have halves
    sizes = [
        0.0, info.smallest_subnormal, info.smallest_normal, info.smallest_normal * 1.5, 1e-30, 1e-10, 1e-4, 0.1, 0.25,
        0.5, 0.75, 1 - info.epsneg, 1.0, 1 + info.eps, 1.5, 2.0, 2.5, 3.0, 3.5, 10.0, 16.5, 33.3, 88.0, 100.0, 1e3,
        65536.5, edge - 0.5, edge + 0.5, edge * 2, edge * 8, 1e10, 1e16, 1e18, 1e20, 1e30, info.max / 2, info.max,
        np.inf,
    ]  # fmt: skip
    return np.array([np.nan, *sizes, *(-np.array(sizes))], NUMPY[kind])


@cache
def points(kind: int) -> Array:
    """The special ones, random bits, and random numbers around the places where functions bend."""
    rng, bits = np.random.default_rng(17), NUMPY[I if kind == F else L]
    anything = rng.integers(np.iinfo(bits).min, np.iinfo(bits).max, 2000, bits, endpoint=True).view(NUMPY[kind])
    near = rng.uniform(-1, 1, 2000) * 2.0 ** rng.uniform(-50, 0, 2000)
    ranges = [rng.uniform(-size, size, 1000) for size in (0.5, 1, 5, 20, 90, 720)]
    plain = np.concatenate([near, 1 + near, near - 1, *ranges, np.pi / 2 * rng.integers(-500, 500, 1000)])
    return np.concatenate([specials(kind), anything, plain.astype(NUMPY[kind])])


def ulps(found: Array, wanted: Array) -> Array:
    """Distances in units of the last place of `wanted`; infinite where NaN, infinity or the sign of zero differ."""
    info = np.finfo(found.dtype)
    rounded = wanted.astype(found.dtype)
    unit = np.spacing(np.minimum(np.abs(wanted), info.max).astype(found.dtype)).astype(Wide)
    near = np.abs(found.astype(Wide) - wanted) / unit
    beyond = np.isinf(found) & (np.abs(wanted) >= info.max)  # rounded to infinity by less than an ulp
    far = np.where(np.isinf(rounded) | np.isinf(found), np.where((found == rounded) | beyond, 0, np.inf), near)
    zeros = (found == 0) & (rounded == 0) & (np.signbit(found) != np.signbit(rounded))
    strays = zeros | (np.isnan(found) != np.isnan(rounded))
    return np.where(strays, np.inf, np.where(np.isnan(rounded), 0, far))


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
OPSET = {"Gelu": 20, "Swish": 24}


Given = Mapping[str, tuple[int, Array]]


def all_at_once(nodes: list[Any], given: Given, kinds: Mapping[str, int], machine: str) -> dict[str, Array]:
    """The outputs of a model of independent nodes on one machine; `kinds` are the outputs' types."""
    opset = max((OPSET.get(n.op_type, 18) for n in nodes), default=18)
    ports = [port(name, a.shape, kind) for name, (kind, a) in given.items()]
    graph = sd.load(model(nodes, ports, [port(name, None, kind) for name, kind in kinds.items()], opset=opset))
    arrays = {name: a for name, (_, a) in given.items()}
    if machine == "interpreter":
        return dict(zip(graph.output_names, Unfused(interpret=True).run(graph, arrays)))
    target = next(t for t in targets() if t.isa == machine).with_threads(1)
    return dict(build_model(tasks_of(graph), target, lambda task: None).run(arrays))


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


def pairs_of(values: Array) -> tuple[Array, Array]:
    return np.repeat(values, len(values)), np.tile(values, len(values))


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


def same(found: Array, wanted: Array) -> Array:
    """Where two arrays agree, NaN and the sign of zero included."""
    return ((found == wanted) & (np.signbit(found) == np.signbit(wanted))) | (np.isnan(found) & np.isnan(wanted))


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
    (-0.0, -1.0, -np.inf), (-0.0, -3.0, -np.inf), (0.0, -1.0, np.inf), (-0.0, -2.0, np.inf), (-0.0, -0.5, np.inf),
    (-0.0, -np.inf, np.inf), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (-0.0, 0.5, 0.0), (-1.0, np.inf, 1.0),
    (-1.0, -np.inf, 1.0), (1.0, np.nan, 1.0), (np.nan, 0.0, 1.0), (np.nan, -0.0, 1.0), (-8.0, 1 / 3, np.nan),
    (0.5, -np.inf, np.inf), (-0.5, np.inf, 0.0), (2.0, -np.inf, 0.0), (-2.0, np.inf, np.inf), (-np.inf, -3.0, -0.0),
    (-np.inf, -2.5, 0.0), (-np.inf, 3.0, -np.inf), (-np.inf, 2.5, np.inf), (-np.inf, 0.5, np.inf), (np.inf, -1.0, 0.0),
    (-np.inf, -0.5, 0.0), (-1.0, 0.5, np.nan), (np.inf, 0.5, np.inf), (np.nan, 1.0, np.nan), (2.0, np.nan, np.nan),
    (-3.0, 3.0, -27.0), (-3.0, 4.0, 81.0), (5.0, 3.0, 125.0), (16.0, 0.75, 8.0), (10.0, 15.0, 1e15), (9.0, 0.5, 3.0),
    (4.0, -0.5, 0.5), (-0.0, 0.25, 0.0), (-np.inf, 0.25, np.inf), (-1.0, 0.25, np.nan), (-0.0, 0.75, 0.0),
    (-np.inf, -0.75, 0.0), (-0.0, -0.75, np.inf), (0.0, -0.75, np.inf), (np.inf, -0.75, 0.0), (16.0, -0.75, 0.125),
    (-0.0, 1.5, 0.0), (-np.inf, 1.5, np.inf), (-4.0, 1.5, np.nan), (4.0, 1.5, 8.0), (-2.0, 4.0, 16.0),
    (-np.inf, 4.0, np.inf), (-0.0, 4.0, 0.0), (-0.0, -0.25, np.inf), (16.0, -0.25, 0.5), (np.nan, 0.75, np.nan),
]  # fmt: skip


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


# ---- constants of integer type

LARGE = (2**53 + 1, -(2**53) - 1, 2**62 + 3, 2**63 - 1, -(2**63))


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def filled(value: int) -> Any:
    return node("ConstantOfShape", "s", "t", value=numpy_helper.from_array(np.array([value])))


WHOLE: dict[
    str, tuple[Callable[[int], list[Any]], Callable[[int], dict[str, Any]], Callable[[list[int], int], Any]]
] = {
    "Pad": (lambda v: [node("Pad", "x p v", "y")], lambda v: {"p": [1, 2], "v": v}, lambda x, v: [v, *x, v, v]),
    "two Pads": (
        lambda v: [node("Pad", "x p v", "t"), node("Pad", "t p w", "y")],
        lambda v: {"p": [1, 0], "v": v, "w": v ^ 1},
        lambda x, v: [v ^ 1, v, *x],
    ),
    "Pad of nothing": (
        lambda v: [node("Slice", "x z z", "t"), node("Pad", "t p v", "y")],
        lambda v: {"z": [0], "p": [0, 2], "v": v},
        lambda x, v: [v, v],
    ),
    "Clip from below": (lambda v: [node("Clip", "x v", "y")], lambda v: {"v": v}, lambda x, v: [max(k, v) for k in x]),
    "Clip from above": (
        lambda v: [node("Clip", "x _ v", "y")],
        lambda v: {"v": v},
        lambda x, v: [min(k, v) for k in x],
    ),
    "Max": (lambda v: [node("Max", "x v", "y")], lambda v: {"v": v}, lambda x, v: [max(k, v) for k in x]),
    "Add": (lambda v: [node("Add", "x v", "y")], lambda v: {"v": v}, lambda x, v: [wrapped(k + v) for k in x]),
    "Mul": (lambda v: [node("Mul", "x v", "y")], lambda v: {"v": v}, lambda x, v: [wrapped(k * v) for k in x]),
    "Where": (
        lambda v: [node("Less", "x z", "c"), node("Where", "c v x", "y")],
        lambda v: {"z": 0, "v": v},
        lambda x, v: [v if k < 0 else k for k in x],
    ),
    "ConstantOfShape": (
        lambda v: [filled(v), node("Add", "t x", "y")],
        lambda v: {"s": [3]},
        lambda x, v: [wrapped(k + v) for k in x],
    ),
    "OneHot": (
        lambda v: [node("OneHot", "x d v", "y")],
        lambda v: {"d": 6, "v": [v, v ^ 1]},
        lambda x, v: [[v ^ 1 if k == c else v for c in range(6)] for k in x],
    ),
    "Range": (
        lambda v: [node("Range", "a b c", "t"), node("Add", "t x", "y")],
        lambda v: {"a": v, "b": v - 3 if v > 0 else v + 3, "c": -1 if v > 0 else 1},
        lambda x, v: [wrapped(k + v + (-step if v > 0 else step)) for step, k in enumerate(x)],
    ),
    "CumSum": (
        lambda v: [node("Add", "x v", "t"), node("CumSum", "t z", "y")],
        lambda v: {"v": v, "z": 0},
        lambda x, v: [wrapped(sum(x[: n + 1]) + (n + 1) * v) for n in range(len(x))],
    ),
}


@pytest.mark.parametrize("value", LARGE)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_beyond_the_digits_of_f64_stay_themselves(name: str, value: int) -> None:
    """The value of a Pad once went through a float: 2^53 + 1 lost its last bit, 2^63 - 1 was refused."""
    nodes, weights, right = WHOLE[name]
    x = [5, -7, 2**60 + 1]
    held = {k: np.array(a, np.int64) for k, a in weights(value).items()}
    found = sd.compile(model(nodes(value), [port("x", (3,), L)], [port("y", None, L)], held))(np.array(x))
    assert found.tolist() == right(x, value)


# ---- bounds


@pytest.mark.parametrize("kind", [F, D, I, L], ids=["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("known", ["", "low", "high", "low high"])
def test_where_the_lower_bound_is_above_the_upper_one_all_is_the_upper_one(kind: int, known: str) -> None:
    """The bounds may be constants or inputs, in any combination: a constant lower bound was once applied last."""
    x = np.array([-9, -3, 0, 4, 7, 20], NUMPY[kind])
    for low, high in ((-4, 5), (5, -4), (3, 3)):
        bounds = {"low": np.array(low, x.dtype), "high": np.array(high, x.dtype)}
        weights = {name: a for name, a in bounds.items() if name in known.split()}
        inputs = {"x": x, **{name: a for name, a in bounds.items() if name not in weights}}
        ports = [port(name, a.shape, kind) for name, a in inputs.items()]
        m = model([node("Clip", "x low high", "y")], ports, [port("y", None, kind)], weights)
        assert sd.compile(m)(*inputs.values()).tolist() == [min(max(v, low), high) for v in x.tolist()]


@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_bound_that_is_nan_makes_all_nan_as_in_numpy(kind: int, is_known: bool) -> None:
    x = specials(kind)
    for low, high in ((np.nan, 1.0), (-1.0, np.nan), (-np.inf, np.inf), (-1.0, np.inf), (-0.0, 0.5)):
        bounds = {"low": np.array(low, x.dtype), "high": np.array(high, x.dtype)}
        ports = [port("x", x.shape, kind), *([] if is_known else [port(name, (), kind) for name in bounds])]
        m = model([node("Clip", "x low high", "y")], ports, [port("y", None, kind)], bounds if is_known else {})
        found = sd.compile(m)(x, *([] if is_known else bounds.values()))
        np.testing.assert_array_equal(found, np.clip(x, bounds["low"], bounds["high"]))


# ---- casts

KINDS = {F: "f32", D: "f64", I: "i32", L: "i64", B: "bool"}


def cast_values(kind: int) -> Array:
    if kind == B:
        return np.array([False, True])
    if kind in (I, L):
        span = np.iinfo(NUMPY[kind])
        more = [2**53 + 1, -(2**53) - 1, 2**31, -(2**31) - 1, 2**32 + 5, 2**63 - 513] if kind == L else []
        return np.array([0, 1, -1, 2**24 + 1, -(2**24) - 1, span.min, span.max, *more], NUMPY[kind])
    edges = [2.0**31, 2.0**31 - 1, 2.0**31 - 0.5, 2.0**32 + 1, 2.0**53, 2.0**63, 2.0**64, 1e10, 2.5, 3.5, 0.9999999]
    return np.concatenate([specials(kind), np.array([*edges, *(-e for e in edges)], NUMPY[kind])])


def cast_right(v: Any, to: int) -> Any:
    """Floats towards zero, saturating, NaN to 0; integers modulo 2^bits; anything but zero, NaN included, is true."""
    if to == B:
        return v != 0
    if to in (F, D):
        return NUMPY[to](v)
    span = np.iinfo(NUMPY[to])
    if isinstance(v, float):
        return 0 if math.isnan(v) else span.min if v <= span.min else span.max if v >= span.max else int(v)
    bits = 32 if to == I else 64
    return (int(v) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS, ids=list(KINDS.values()))
def test_casts_saturate_floats_and_wrap_integers(kind: int, machine: str) -> None:
    x = cast_values(kind)
    others = [to for to in KINDS if to != kind]
    nodes = [node("Cast", "x", KINDS[to], to=to) for to in others]
    results = all_at_once(nodes, {"x": (kind, x)}, {KINDS[to]: to for to in others}, machine)
    for to in others:
        found, right = results[KINDS[to]], np.array([cast_right(v, to) for v in x.tolist()], NUMPY[to])
        wrong = np.flatnonzero(~same(found, right) if to in (F, D) else found != right)
        assert not len(wrong), [(KINDS[to], x[k], found[k], right[k]) for k in wrong]


# ---- integers


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [I, L], ids=["i32", "i64"])
def test_integers_wrap_and_never_trap(kind: int, machine: str) -> None:
    span, bits = np.iinfo(NUMPY[kind]), 8 * np.dtype(NUMPY[kind]).itemsize
    a, b = pairs_of(np.array([span.min, span.min + 1, -7, -2, -1, 0, 1, 2, 3, 7, span.max - 1, span.max], NUMPY[kind]))

    def quotient(x: int, y: int) -> int:
        return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    rules: dict[str, Callable[[int, int], int]] = {
        "Add": lambda x, y: x + y,
        "Sub": lambda x, y: x - y,
        "Mul": lambda x, y: x * y,
        "Div": quotient,
        "Mod": lambda x, y: 0 if y == 0 else x % y,
        "FMod": lambda x, y: 0 if y == 0 else x - quotient(x, y) * y,
        "Max": max,
        "Min": min,
        "Abs": lambda x, _: abs(x),
        "Neg": lambda x, _: -x,
        "Sign": lambda x, _: (x > 0) - (x < 0),
        "Relu": lambda x, _: max(x, 0),
        "BitwiseNot": lambda x, _: ~x,
    }
    one_input = ("Abs", "Neg", "Sign", "Relu", "BitwiseNot")
    nodes = [
        node("Mod", "a b", op, fmod=1) if op == "FMod" else node(op, "a" if op in one_input else "a b", op)
        for op in rules
    ]
    results = all_at_once(nodes, {"a": (kind, a), "b": (kind, b)}, dict.fromkeys(rules, kind), machine)
    for op, rule in rules.items():
        right = [(rule(x, y) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for x, y in zip(a.tolist(), b.tolist())]
        assert results[op].tolist() == right, op
