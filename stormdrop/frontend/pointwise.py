"""ONNX's elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.graph.graph import Attribute, Value
from stormdrop.ir.expr import FLOATS, Dtype
from stormdrop.ops.scalar import fits_f32

Results = Value | Sequence[Value | None]
Importer = Callable[[NodeReader], Results]

ELEMENT_TYPES: dict[int, Dtype] = {1: "f32", 11: "f64", 6: "i32", 7: "i64", 9: "bool"}
OTHER_TYPES = {
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    8: "string",
    10: "float16",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8e4m3fn",
    18: "float8e4m3fnuz",
    19: "float8e5m2",
    20: "float8e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4e2m1",
    24: "float8e8m0",
    25: "uint2",
    26: "int2",
}


def type_name(code: int) -> str:
    return ELEMENT_TYPES.get(code) or OTHER_TYPES.get(code, f"type {code}")


def _same(n: NodeReader) -> Value:
    return n.build.emit(n.op, *n.given())


def _with(op: str, **defaults: float) -> Importer:
    def importer(n: NodeReader) -> Value:
        attributes: dict[str, Attribute] = {key: n.number(key, value) for key, value in defaults.items()}
        return n.build.emit(op, n.input(0), **attributes)

    return importer


def _selu(n: NodeReader) -> Value:
    alpha, gamma = n.number("alpha", 1.67326319217681884765625), n.number("gamma", 1.05070102214813232421875)
    return n.build.emit("Elu", n.input(0), alpha=alpha, gamma=gamma)


def _celu(n: NodeReader) -> Value:
    alpha = n.number("alpha", 1.0)
    return n.build.emit("Elu", n.input(0), alpha=alpha, width=alpha)


def _hard_swish(n: NodeReader) -> Value:
    return n.build.emit("HardSwish", n.input(0), alpha=n.number("alpha", 1 / 6), beta=0.5)


def _gelu(n: NodeReader) -> Value:
    return n.build.emit("Gelu", n.input(0), approximate=n.text("approximate", "none"))


def _is_inf(n: NodeReader) -> Value:
    return n.build.emit(
        "IsInf", n.input(0), positive=n.integer("detect_positive", 1), negative=n.integer("detect_negative", 1)
    )


def _variadic(op: str) -> Importer:
    return lambda n: reduce(lambda a, b: n.build.emit(op, a, b), n.given())


def _mean(n: NodeReader) -> Value:
    total = reduce(lambda a, b: n.build.emit("Add", a, b), n.given())
    return n.build.emit("Mul", total, n.build.number(1 / len(n.given()), total))


def _cast_to(n: NodeReader, code: int) -> Value:
    if code not in ELEMENT_TYPES:
        raise n.fail(
            f"element type {type_name(code)} is not supported; supported are {', '.join(ELEMENT_TYPES.values())}"
        )
    return n.build.cast(n.input(0), ELEMENT_TYPES[code])


def _cast(n: NodeReader) -> Value:
    return _cast_to(n, n.integer("to"))


def _cast_like(n: NodeReader) -> Value:
    return n.build.cast(n.input(0), n.input(1).dtype)


def _pow(n: NodeReader) -> Value:
    x, y = n.input(0), n.input(1)
    exponent = n.build.array(y)
    if exponent is not None and exponent.size == 1 and x.dtype in FLOATS and y.rank <= x.rank:
        known = float(exponent.reshape(()))
        if x.dtype == "f64" or fits_f32(known):
            return n.build.emit("PowConst", x, exponent=known)
    return n.build.emit("Pow", x, y)


def _mod(n: NodeReader) -> Value:
    return n.build.emit("Mod", n.input(0), n.input(1), fmod=n.integer("fmod", 0))


def _clip(n: NodeReader) -> Value:
    """min(max(x, low), high), in this order: where low > high, all is high. Bounds that are known become attributes.

    A bound that is not given is the largest finite number, by ONNX's text: an infinity does not pass a Clip.
    """
    x = n.input(0)
    known: dict[str, Attribute] = {}
    for k, key, op in ((1, "min", "Max"), (2, "max", "Min")):
        if n.has(key):
            known[key] = n.number(key)
            continue
        given = n.optional(k)
        if given is None:
            if x.dtype in FLOATS:
                limit = float(np.finfo("f4" if x.dtype == "f32" else "f8").max)
                known[key] = limit if key == "max" else -limit
            continue
        array = n.build.array(given)
        if array is not None and array.size == 1:
            known[key] = array.reshape(()).item()
            continue
        x = n.build.emit("Clip", x, **known) if known else x
        x, known = n.build.emit(op, x, given), {}
    return n.build.emit("Clip", x, **known) if known else x


def _prelu(n: NodeReader) -> Value:
    return n.build.emit("PRelu", n.input(0), n.input(1))


def _silu_alpha(n: NodeReader) -> Value:
    return n.build.emit("Swish", n.input(0), alpha=n.number("alpha", 1.0))


def _identity(n: NodeReader) -> Value:
    return n.input(0)


def _dropout(n: NodeReader) -> Results:
    """Inference: the input itself, and a mask of ones."""
    training = n.optional(2)
    known = n.build.array(training) if training is not None else np.array(False)
    if known is None or bool(known):
        ratio = n.optional(1)
        rate = n.build.array(ratio) if ratio is not None else np.array(n.number("ratio", 0.5))
        if rate is None or float(rate) != 0.0:
            raise n.fail("dropout in training mode is random; load the model for inference")
    mask = n.build.expand(n.build.constant(True), n.input(0).shape) if n.wanted(1) else None
    return [n.input(0), mask]


def _bit_not(n: NodeReader) -> Value:
    """~x = -x - 1."""
    x = n.input(0)
    return n.build.emit("Sub", n.build.emit("Neg", x), n.build.number(1, x))


POINTWISE: dict[str, Importer] = {
    **dict.fromkeys(
        (
            "Abs",
            "Neg",
            "Not",
            "Exp",
            "Log",
            "Sqrt",
            "Tanh",
            "Erf",
            "Sigmoid",
            "Sin",
            "Cos",
            "Floor",
            "Ceil",
            "Round",
            "Tan",
            "Asin",
            "Acos",
            "Atan",
            "Sinh",
            "Cosh",
            "Asinh",
            "Acosh",
            "Atanh",
            "Sign",
            "Reciprocal",
            "Relu",
            "Softplus",
            "Softsign",
            "Mish",
            "IsNaN",
            "Add",
            "Sub",
            "Mul",
            "Div",
            "And",
            "Or",
            "Xor",
            "Equal",
            "Less",
            "LessOrEqual",
            "Greater",
            "GreaterOrEqual",
            "Where",
        ),
        _same,
    ),
    "LeakyRelu": _with("LeakyRelu", alpha=0.01),
    "Elu": _with("Elu", alpha=1.0),
    "Selu": _selu,
    "Celu": _celu,
    "HardSigmoid": _with("HardSigmoid", alpha=0.2, beta=0.5),
    "HardSwish": _hard_swish,
    "Gelu": _gelu,
    "ThresholdedRelu": _with("ThresholdedRelu", alpha=1.0),
    "Shrink": _with("Shrink", lambd=0.5, bias=0.0),
    "Swish": _silu_alpha,
    "IsInf": _is_inf,
    "Max": _variadic("Max"),
    "Min": _variadic("Min"),
    "Sum": _variadic("Add"),
    "Mean": _mean,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Pow": _pow,
    "Mod": _mod,
    "Clip": _clip,
    "PRelu": _prelu,
    "Identity": _identity,
    "Dropout": _dropout,
    "BitwiseNot": _bit_not,
}
