"""Elementwise operators as functions of scalars, the parts of a fused kernel.

`ELEMENTWISE[op](node, a, b, …)` is the scalar expression of one output element; operands broadcast as NumPy's do. All
further parameters of a node are its attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce

from stormdrop.graph.formula import POINTWISE_FORMULA, applied_to_elements
from stormdrop.graph.graph import Node
from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, NUMPY, Dtype, Expr, binary, call, compare, select
from stormdrop.ir.power import power
from stormdrop.operators import scalar


def _rounding(fn: str) -> Callable[[Node, Expr], Expr]:
    return lambda n, x: call(fn, x) if x.dtype in FLOATS else x


def _leaky(n: Node, x: Expr) -> Expr:
    return select(compare("lt", x, scalar.number(0, x)), x * n.number("alpha"), x)


def _elu(n: Node, x: Expr) -> Expr:
    """Returns gamma · (x, or alpha · (exp(x / width) - 1) below zero): Elu, Selu and Celu."""
    alpha, gamma, width = n.number("alpha"), n.number("gamma", 1.0), n.number("width", 1.0)
    inner = x if width == 1.0 else x / width
    below = call("expm1", inner) * (alpha * gamma)
    return select(compare("lt", x, scalar.number(0, x)), below, x if gamma == 1.0 else x * gamma)


def _clip(n: Node, x: Expr) -> Expr:
    for key, op in (("min", "max"), ("max", "min")):
        if key in n.attributes:
            x = binary(op, x, scalar.number(n.constant(key, x.dtype), x))
    return x


def _hard_sigmoid(n: Node, x: Expr) -> Expr:
    y = x * n.number("alpha") + n.number("beta")
    return binary("min", binary("max", y, 0.0), 1.0)


def _is_inf(n: Node, x: Expr) -> Expr:
    wanted = [value for key, value in (("positive", math.inf), ("negative", -math.inf)) if n.flag(key)]
    found = [compare("eq", x, scalar.number(value, x)) for value in wanted]
    return reduce(Expr.__or__, found) if found else compare("lt", x, x)


def _shrink(n: Node, x: Expr) -> Expr:
    """Returns Shrink; the attributes are cast to the operand's type, as in ONNX's function body."""
    as_x = float if x.dtype in FLOATS else int
    limit, bias = as_x(n.number("lambd")), as_x(n.number("bias"))
    above = select(compare("gt", x, scalar.number(limit, x)), x - bias, scalar.number(0, x))
    return select(compare("lt", x, scalar.number(-limit, x)), x + bias, above)


def _thresholded(n: Node, x: Expr) -> Expr:
    return select(compare("gt", x, scalar.number(n.number("alpha"), x)), x, scalar.number(0, x))


def _swish(n: Node, x: Expr) -> Expr:
    alpha = n.number("alpha", 1.0)
    return x * build.sigmoid(x if alpha == 1.0 else x * alpha)


def _prelu(n: Node, x: Expr, slope: Expr) -> Expr:
    return select(compare("lt", x, scalar.number(0, x)), x * slope, x)


def _quantize(n: Node, x: Expr, scale: Expr, zero: Expr) -> Expr:
    """Returns round(x / scale) + zero, saturated; sums beyond f32's integers are beyond the result's type too."""
    return build.cast(call("round", x / scale) + zero, dtype_of(n.text("to")))


def _requantize(n: Node, x: Expr, factor: Expr, zero: Expr) -> Expr:
    """Returns round(x · factor) + zero of an i32 sum x, saturated."""
    return build.cast(call("round", build.cast(x, "f32") * factor) + zero, dtype_of(n.text("to")))


def _dequantize(n: Node, x: Expr, scale: Expr, zero: Expr) -> Expr:
    """Returns (x - zero) · scale, rounded: no multiply-add joins the product with a following sum."""
    return binary("rounded_mul", build.cast(x, "f32") - zero, scale)


def _plain(f: Callable[..., Expr]) -> Callable[..., Expr]:
    """Wraps a function of the operands alone, without attributes, as an operator."""

    def of_operands(_: Node, *operands: Expr) -> Expr:
        return f(*operands)

    return of_operands


def dtype_of(text: str) -> Dtype:
    return next(d for d in NUMPY if d == text)


_ONE: dict[str, Callable[[Node, Expr], Expr]] = {
    "Floor": _rounding("floor"),
    "Ceil": _rounding("ceil"),
    "Round": _rounding("round"),
    "Reciprocal": lambda n, x: 1.0 / x,
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda n, x: x * _hard_sigmoid(n, x),
    "Softsign": lambda n, x: x / (call("abs", x) + 1.0),
    "Swish": _swish,
    "Gelu": lambda n, x: scalar.gelu(x, n.text("approximate", "none") == "tanh"),
    "ThresholdedRelu": _thresholded,
    "Shrink": _shrink,
    "Clip": _clip,
    "Cast": lambda n, x: build.cast(x, dtype_of(n.text("to"))),
    "BitCast": lambda n, x: call(f"bits_as_{n.text('to')}", x),
    "IsInf": _is_inf,
    "Copy": lambda n, x: x,
    "PowConst": lambda n, x: power(x, scalar.number(n.number("exponent"), x)),
}

_FUNCTION: dict[str, Callable[..., Expr]] = {
    "Div": scalar.divide,
    "Pow": power,
    "Where": select,
    "Tan": scalar.tan,
    "Asin": scalar.asin,
    "Acos": scalar.acos,
    "Atan": scalar.atan,
    "Sinh": scalar.sinh,
    "Cosh": scalar.cosh,
    "Asinh": scalar.asinh,
    "Acosh": scalar.acosh,
    "Atanh": scalar.atanh,
    "Sign": scalar.sign,
    "Relu": build.relu,
    "Softplus": scalar.softplus,
    "Mish": scalar.mish,
    "IsNaN": scalar.is_nan,
}

_CORE = {
    "Abs": "abs",
    "Neg": "neg",
    "Not": "not",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Tanh": "tanh",
    "Erf": "erf",
    "Sigmoid": "sigmoid",
    "Sin": "sin",
    "Cos": "cos",
}

_TWO: dict[str, Callable[[Node, Expr, Expr], Expr]] = {
    "Mod": lambda n, a, b: scalar.remainder(a, b, n.flag("fmod", 0)),
    "PRelu": _prelu,
    "BitShift": lambda n, a, b: binary("shl" if n.text("direction") == "LEFT" else "shr", a, b),
}

_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Min": "min", "Max": "max", "And": "and", "Or": "or", "Xor": "xor"}
_BITWISE = {"BitwiseAnd": "bitand", "BitwiseOr": "bitor", "BitwiseXor": "bitxor"}
_COMPARISON = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"}

_QUANTIZED = {"Quantize": _quantize, "Requantize": _requantize, "Dequantize": _dequantize}

ELEMENTWISE: dict[str, Callable[..., Expr]] = {
    **_QUANTIZED,
    **_ONE,
    **_TWO,
    POINTWISE_FORMULA: applied_to_elements,
    **{op: _plain(f) for op, f in _FUNCTION.items()},
    **{op: _plain(partial(call, f)) for op, f in _CORE.items()},
    **{op: _plain(partial(binary, f)) for op, f in (_BINARY | _BITWISE).items()},
    **{op: _plain(partial(compare, f)) for op, f in _COMPARISON.items()},
}

TRUTHS = frozenset(
    {"Not", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf"}
)
"""Operators whose result is bool."""
NUMBERS = frozenset(_QUANTIZED)
"""Operators whose operands may differ in type: quantised numbers, and f32 scales and zero points."""
