"""Values with the rounding they may have: what an expected output is compared with.

A value that only movement, comparison, selection and integer arithmetic have made from the model's inputs is *exact*:
any correct implementation gives the same bits. Any other value is held several times: as the oracle computes it, and
*shaken*: computed again from inputs that are off by a few units in the last place, at every node on the way. The spread
of the shaken copies is what rounding may do to the value, element by element, in this model. A node is refused where
that says too little: an integer or a decision that differs between copies, an error that has grown to percents of the
result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz import control_flow, oracle
from tests.fuzz.recipe import Node, Recipe

Array = NDArray[Any]
COPIES = 4
UNIT = {np.dtype(np.float32): 2.0**-21, np.dtype(np.float64): 2.0**-50, np.dtype(np.float16): 2.0**-11}
"""How far a rounded value is shaken, relative to itself: four units in the last place, of f16 one."""
ALLOWED = 32
"""An output may be off by this many times its spread (and as many units of its own)."""
SUBNORMALS = 64
"""Smallest steps that a rounded value may be off by: a subnormal factor has few digits, and what it is multiplied with
is larger.
"""
MOST_SPREAD = {np.dtype(np.float32): 1e-3, np.dtype(np.float64): 1e-9, np.dtype(np.float16): 2e-2}
"""The largest spread of an accepted value, relative to its largest element."""
LARGEST = {np.dtype(np.float32): 1e30, np.dtype(np.float64): 1e200, np.dtype(np.float16): 1e3}
"""Finite data stays below: products of such values would overflow in one order of summation and not in another."""

MOVES = frozenset(
    {
        "Identity",
        "Transpose",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Expand",
        "Tile",
        "Slice",
        "Split",
        "Concat",
        "Pad",
        "Gather",
        "GatherElements",
        "GatherND",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "DepthToSpace",
        "SpaceToDepth",
        "Where",
        "Trilu",
        "ReverseSequence",
        "Compress",
        "Dropout",
        "EyeLike",
        "OneHot",
        "Range",
        "ConstantOfShape",
        "Constant",
        "Shape",
        "Size",
        "NonZero",
        "CastLike",
        "Cast",
        "Not",
        "And",
        "Or",
        "Xor",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "BitwiseNot",
        "IsNaN",
        "IsInf",
        "ArgMax",
        "ArgMin",
        "TopK",
        "Neg",
        "Abs",
        "Ceil",
        "Floor",
        "Round",
        "MaxUnpool",
    }
)
"""Operators that round nothing and keep the sign of a zero."""
EXACT = MOVES | {
    "Relu",
    "Max",
    "Min",
    "Clip",
    "ReduceMax",
    "ReduceMin",
    "MaxPool",
    "GlobalMaxPool",
    "Hardmax",
    "Mod",
    "Sign",
    "ThresholdedRelu",
}
"""Operators that round nothing."""
NORMWISE = {
    "Conv": (0.0, 1),
    "GridSample": (0.0, 1),
    "Resize": (0.0, 1),
    "GRU": (1.0, 1),
    "LSTM": (1.0, 1),
    "GroupNormalization": (0.0, 16),
    "InstanceNormalization": (0.0, 16),
    "LayerNormalization": (0.0, 16),
    "MeanVarianceNormalization": (0.0, 16),
}
"""Operators whose error is relative to the largest values of a tensor, and to at least the first number, in as many
units: Winograd's transforms mix neighbours, the weights of an interpolation are rounded, gates are of size 1 and
rounded before they are taken from 1; a norm's mean is rounded by units of the data, which may be large beside its
deviation."""
SUMS = frozenset(
    {
        "Attention",
        "AveragePool",
        "Col2Im",
        "Conv",
        "ConvTranspose",
        "Einsum",
        "GRU",
        "GlobalAveragePool",
        "GlobalLpPool",
        "GridSample",
        "LSTM",
        "LpPool",
        "MeanVarianceNormalization",
        "RNN",
        "Resize",
        "RotaryEmbedding",
    }
)
"""Operators that add many elements: near the largest number, the order of the additions decides whether they overflow.
"""
ABSOLUTE = frozenset(
    {
        "BlackmanWindow",
        "Celu",
        "Elu",
        "Gelu",
        "HammingWindow",
        "HannWindow",
        "LogSoftmax",
        "ReduceLogSumExp",
        "Selu",
        "SoftmaxCrossEntropyLoss",
    }
)
"""Operators that subtract numbers around 1 inside, as ONNX writes them: their error is relative to 1."""
STEADY: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Celu",
            "Cos",
            "Cosh",
            "Elu",
            "Erf",
            "Exp",
            "Gelu",
            "LeakyRelu",
            "Log",
            "Mish",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Sin",
            "Sinh",
            "Softplus",
            "Softsign",
            "Sqrt",
            "Swish",
            "Tan",
            "Tanh",
        ),
        (0,),
    ),
    "Pow": (1,),
    "Resize": (1, 2, 3),
}
"""Inputs, by position, that nothing rounds on the way: a function of one number is right to a few units of its result,
and a negative number to the 2.0000001 is NaN; or that decide shapes and positions."""


class Refused(Exception):
    """A node that would make a bad model; the draft is as it was before it."""


@dataclass(frozen=True, slots=True)
class Held:
    """One value: as the oracle has it, and shaken (none: it is exact).

    `signed`: the sign of its zeros is determined too.
    """

    plain: Array
    shaken: tuple[Array, ...] = ()
    signed: bool = True

    @classmethod
    def exactly(cls, array: Array) -> Held:
        return cls(array)

    def copy(self, k: int) -> Array:
        return self.shaken[k] if self.shaken else self.plain

    def tolerance(self) -> Array:
        """By how much each element may differ; zeros where the value is exact."""
        if not self.shaken:
            return np.zeros(self.plain.shape)
        with np.errstate(all="ignore"):
            size = np.where(np.isfinite(self.plain), np.abs(self.plain.astype(np.float64)), 0.0)
            tiny = SUBNORMALS * float(np.finfo(self.plain.dtype).smallest_subnormal)
            return ALLOWED * (_spread(self.plain, self.shaken) + UNIT[self.plain.dtype] * size + tiny)


def apply(node: Node, given: Mapping[str, Held], opset: int, rng: np.random.Generator, special: bool) -> list[Held]:
    """The results of a node. Raises Refused where no oracle evaluates it or where it decides by a hair."""
    plain = evaluated(node, {k: h.plain for k, h in given.items()}, opset)
    floats = any(a.dtype.kind == "f" for a in (*plain, *(h.plain for h in given.values())))
    exact = not floats or _rounds_nothing(node)
    signed = (_keeps_signs(node) or not exact) and all(h.signed for h in given.values())
    if exact and not any(h.shaken for h in given.values()):
        return [Held(_accepted(node, a, (), special), (), signed) for a in plain]
    if special and node.op in SUMS and any(_is_large(h.plain) for h in given.values()):
        raise Refused(f"{node.op} may overflow on the way")
    if special and not exact and _overflows(node, given, plain, opset):
        raise Refused(f"{node.op} overflows")
    steady = {node.inputs[k] for k in STEADY.get(node.op, ()) if k < len(node.inputs)}
    copies: list[list[Array]] = []
    for k in range(COPIES):
        shaken = {name: h.copy(k) if exact or name in steady else _shaken(h.copy(k), rng) for name, h in given.items()}
        copies.append(_evaluated_shaken(node, shaken, opset, rng))
    found: list[Held] = []
    for a, *others in zip(plain, *copies):
        if a.dtype not in UNIT:
            if any(a.shape != b.shape or not np.array_equal(a, b) for b in others):
                raise Refused(f"{node.op} decides by a hair")
            found.append(Held(a, (), signed))
            continue
        if any(a.shape != b.shape for b in others):
            raise Refused(f"{node.op}'s shape is decided by a hair")
        if node.op in NORMWISE:
            least, units = NORMWISE[node.op]
            largest = np.max(np.abs(a), where=np.isfinite(a), initial=least)
            widest = np.max(_spread(a, tuple(others)), initial=0.0) + units * UNIT[a.dtype] * largest
            others = [(b + widest * np.where(rng.random(b.shape) < 0.5, -1, 1)).astype(a.dtype) for b in others]
        if node.op in ABSOLUTE:
            others = [(b + UNIT[a.dtype] * rng.uniform(-1, 1, b.shape)).astype(a.dtype) for b in others]
        others = [b if exact else _shaken(b, rng) for b in others]
        found.append(Held(_accepted(node, a, tuple(others), special), tuple(others), signed))
    return found


def expected(recipe: Recipe, rng: np.random.Generator, special: bool) -> dict[str, Held]:
    """Every value of a model. Raises Refused."""
    known = {k: Held.exactly(a) for k, a in (*recipe.inputs.items(), *recipe.constants.items())}
    for node in recipe.nodes:
        given = {name: known[name] for name in sorted(node.reads()) if name in known}
        known |= dict(zip((n for n in node.outputs if n), apply(node, given, recipe.opset, rng, special)))
    return known


def _rounds_nothing(node: Node) -> bool:
    return all(
        (n.op in EXACT and n.attributes.get("reduction") not in ("add", "mul"))
        or (n.op == "Resize" and n.attributes.get("mode", "nearest") == "nearest")
        for n in node.leaves()
    )


def _keeps_signs(node: Node) -> bool:
    return all(n.op in MOVES and n.attributes.get("reduction", "none") == "none" for n in node.leaves())


def evaluated(node: Node, given: Mapping[str, Array], opset: int) -> list[Array]:
    try:
        return oracle.evaluate(node, given, opset)
    except oracle.NoOracle as error:
        raise Refused(str(error)) from error


def _overflows(node: Node, given: Mapping[str, Held], plain: list[Array], opset: int) -> bool:
    """Whether large finite numbers give an infinity: a compiler that folds scales into weights may spare that."""
    large = {k: _is_large(h.plain) for k, h in given.items()}
    if not any(large.values()):
        return False
    tamed = {k: _tamed(h.plain) if large[k] else h.plain for k, h in given.items()}
    pairs = zip(plain, evaluated(node, tamed, opset))
    return any(not np.array_equal(_kinds(a), _kinds(b)) for a, b in pairs if a.dtype in UNIT)


def _tamed(a: Array) -> Array:
    return np.where(np.isfinite(a), np.clip(a, -1e9, 1e9), a)


def _evaluated_shaken(node: Node, given: Mapping[str, Array], opset: int, rng: np.random.Generator) -> list[Array]:
    """As `evaluated`; in the body of control flow, every result is shaken again."""
    if not node.bodies():
        return evaluated(node, given, opset)

    def inner(n: Node, values: Mapping[str, Array]) -> list[Array]:
        if n.bodies() or _rounds_nothing(n):
            return _evaluated_shaken(n, values, opset, rng)
        shaken = {name: _shaken(a, rng) for name, a in values.items()}
        return [_shaken(a, rng) for a in evaluated(n, shaken, opset)]

    results = control_flow.run(node, given, inner)
    return [a for a, name in zip(results, node.outputs) if name]


def _is_large(a: Array) -> bool:
    return a.dtype in UNIT and bool(np.any(np.isfinite(a) & (np.abs(a) > LARGEST[a.dtype])))


def _shaken(a: Array, rng: np.random.Generator) -> Array:
    if a.dtype not in UNIT:
        return a
    info = np.finfo(a.dtype)
    with np.errstate(all="ignore"):
        by = rng.uniform(0.5, 1, a.shape) * np.where(rng.random(a.shape) < 0.5, -1, 1)  # never by nothing
        shaken = (a * (1 + UNIT[a.dtype] * by)).astype(a.dtype)
        is_subnormal = (a != 0) & (np.abs(a) < info.smallest_normal)
    if is_subnormal.any():  # a factor does not move it: a step of its own does
        steps = rng.integers(-1, 2, a.shape).astype(a.dtype) * info.smallest_subnormal
        shaken = np.where(is_subnormal, shaken + steps, shaken)
    return np.where(np.isinf(shaken), a, shaken)  # the largest number stays finite


def _spread(plain: Array, shaken: tuple[Array, ...]) -> Array:
    """The largest difference of a copy, element by element; 0 where none is finite."""
    with np.errstate(all="ignore"):
        apart = [np.abs(b.astype(np.float64) - plain.astype(np.float64)) for b in shaken]
        worst = np.max(np.stack(apart), axis=0)
    return np.where(np.isfinite(worst), worst, 0.0)


def _accepted(node: Node, a: Array, shaken: tuple[Array, ...], special: bool) -> Array:
    if a.dtype not in UNIT:
        return a
    finite = np.isfinite(a)
    size = float(np.max(np.abs(a), where=finite, initial=0.0))
    if not special and (not finite.all() or size > LARGEST[a.dtype]):
        raise Refused(f"{node.op} gives values up to {size if finite.all() else 'infinity'}")
    if any(not np.array_equal(_kinds(a), _kinds(b)) for b in shaken):
        raise Refused(f"{node.op} overflows by a hair")
    size = max(size, 1.0) if node.op in ABSOLUTE else size
    if shaken and float(np.max(_spread(a, shaken), initial=0.0)) > MOST_SPREAD[a.dtype] * size:
        raise Refused(f"{node.op} magnifies errors")
    return a


def _kinds(a: Array) -> Array:
    """0 for a finite element, 1, -1 for an infinite one, 2 for NaN."""
    return np.where(np.isnan(a), 2, np.where(np.isinf(a), np.sign(a), 0))
