"""ONNX's elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from stormdrop.base.errors import Unsupported
from stormdrop.frontend.node_reader import Binding, NodeReader
from stormdrop.ir.build import fits_f32
from stormdrop.ir.expr import FLOATS, ITEMSIZE, Dtype
from stormdrop.operators.node import Attribute, Value, shown

Results = Binding | Sequence[Binding | None]
Importer = Callable[[NodeReader], Results]

ELEMENT_TYPES: dict[int, Dtype] = {
    1: "f32",
    11: "f64",
    10: "f16",
    16: "bf16",
    3: "i8",
    5: "i16",
    6: "i32",
    7: "i64",
    2: "u8",
    4: "u16",
    12: "u32",
    13: "u64",
    9: "bool",
}
"""The element types by their numbers in ONNX's TensorProto.DataType."""


def element_type(code: int, what: str) -> Dtype:
    """Returns the element type with this number in ONNX. Raises Unsupported, naming `what`, for unsupported types."""
    from onnx import TensorProto

    if code not in ELEMENT_TYPES:
        names = {number: name.lower() for name, number in TensorProto.DataType.items()}
        supported = ", ".join(ELEMENT_TYPES.values())
        raise Unsupported(f"{what} has element type {names.get(code, code)}; supported are {supported}")
    return ELEMENT_TYPES[code]


def _with(op: str, **defaults: float | str) -> Importer:
    """Returns an importer to one node; `defaults` are its attributes, with the type of their default."""

    def importer(n: NodeReader) -> Value:
        attributes: dict[str, Attribute] = {}
        for key, value in defaults.items():
            match value:
                case str():
                    attributes[key] = n.text(key, value)
                case int():
                    attributes[key] = n.integer(key, value)
                case float():
                    attributes[key] = n.number(key, value)
        return n.build.emit(op, *n.given(), **attributes)

    return importer


def _celu(n: NodeReader) -> Value:
    alpha = n.number("alpha", 1.0)
    return n.build.emit("Elu", n.input(0), alpha=alpha, width=alpha)


def _is_inf(n: NodeReader) -> Value:
    positive, negative = n.integer("detect_positive", 1), n.integer("detect_negative", 1)
    return n.build.emit("IsInf", n.input(0), positive=positive, negative=negative)


def _variadic(op: str) -> Importer:
    return lambda n: reduce(lambda a, b: n.build.emit(op, a, b), n.given())


def _mean(n: NodeReader) -> Value:
    total = reduce(lambda a, b: n.build.emit("Add", a, b), n.given())
    return n.build.emit("Mul", total, n.build.number(1 / len(n.given()), total))


def _cast(n: NodeReader) -> Value:
    return n.build.cast(n.input(0), element_type(n.integer("to"), "its result"))


def _bit_cast(n: NodeReader) -> Value:
    x, dtype = n.input(0), element_type(n.integer("to"), "its result")
    if ITEMSIZE[dtype] != ITEMSIZE[x.dtype]:
        raise n.fail(f"the bits of {x} are none of a {dtype}")
    return x if x.dtype == dtype else n.build.emit("BitCast", x, to=dtype)


def _bit_shift(n: NodeReader) -> Value:
    direction = n.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise n.fail(f"the direction is LEFT or RIGHT, not {shown(direction)}")
    return n.build.emit("BitShift", n.input(0), n.input(1), direction=direction)


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


def _clip(n: NodeReader) -> Value:
    """Imports min(max(x, low), high), in this order: if low > high, all is high. Constant bounds become attributes.

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


def _identity(n: NodeReader) -> Binding:
    return n.binding(0) or n.input(0)


def _dropout(n: NodeReader) -> Results:
    """Imports Dropout for inference: the input itself, and a mask of ones."""
    if n.optional(2) is not None and bool(n.scalar(2)):
        rate = n.number("ratio", 0.5) if n.optional(1) is None else n.scalar(1)
        if float(rate) != 0.0:
            raise n.unsupported("dropout in training mode is random (load the model for inference)")
    mask = n.build.expand(n.build.constant(True), n.input(0).shape) if n.wanted(1) else None
    return [n.input(0), mask]


def _bit_not(n: NodeReader) -> Value:
    """Imports ~x = -x - 1."""
    x = n.input(0)
    return n.build.emit("Sub", n.build.emit("Neg", x), n.build.number(1, x))


_SAME = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseOr BitwiseXor Ceil Cos Cosh Div Equal Erf Exp Floor
    Greater GreaterOrEqual IsNaN Less LessOrEqual Log Mish Mul Neg Not Or PRelu Reciprocal Relu Round Sigmoid Sign Sin
    Sinh Softplus Softsign Sqrt Sub Tan Tanh Where Xor
"""
"""The operators of ONNX that are operators of the graph as they are, without attributes."""
POINTWISE: dict[str, Importer] = {
    **{op: _with(op) for op in _SAME.split()},
    "LeakyRelu": _with("LeakyRelu", alpha=0.01),
    "Elu": _with("Elu", alpha=1.0),
    "Selu": _with("Elu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Celu": _celu,
    "HardSigmoid": _with("HardSigmoid", alpha=0.2, beta=0.5),
    "HardSwish": _with("HardSwish", alpha=1 / 6, beta=0.5),
    "Gelu": _with("Gelu", approximate="none"),
    "ThresholdedRelu": _with("ThresholdedRelu", alpha=1.0),
    "Shrink": _with("Shrink", lambd=0.5, bias=0.0),
    "Swish": _with("Swish", alpha=1.0),
    "IsInf": _is_inf,
    "Max": _variadic("Max"),
    "Min": _variadic("Min"),
    "Sum": _variadic("Add"),
    "Mean": _mean,
    "Cast": _cast,
    "CastLike": _cast_like,
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Pow": _pow,
    "Mod": _with("Mod", fmod=0),
    "Clip": _clip,
    "Identity": _identity,
    "Dropout": _dropout,
    "BitwiseNot": _bit_not,
}
