"""ONNX's quantised operators: QuantizeLinear, DequantizeLinear, and products summed exactly in integers.

A quantised number q stands for (q - zero) · scale. Products subtract the zero points in i16, where differences of 8-bit
numbers fit, and sum in i32. Padding adds zeros to the differences, so the image is padded with zero points. The sum is
rounded once: round(f32(sum) · (scale_x · scale_w / scale_y)) + zero_y, half to even, saturated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stormdrop.frontend.movement import MOVEMENT
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import POINTWISE, Importer, element_type
from stormdrop.frontend.reductions import REDUCTIONS, per_channel
from stormdrop.frontend.windows import WINDOWS
from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.dtypes import Dtype
from stormdrop.operators.node import Value

FLOAT_IMPORTERS: dict[str, Importer] = {**POINTWISE, **MOVEMENT, **REDUCTIONS, **WINDOWS}


def _spread(n: NodeReader, x: Value, v: Value) -> Value:
    """Returns a scale or zero point (a single number, or per channel, or per block along `axis`) in a shape for x."""
    b, axis = n.build, n.integer("axis", 1)
    if v.size == 1:
        return b.reshape(v, ())
    along = n.dim(axis, x.rank)
    if v.rank == 1 and v.size == x.shape[along]:
        return per_channel(b, v, x.rank, along)
    block = n.integer("block_size", 0)
    fits = v.rank == x.rank and all(p == q for d, (p, q) in enumerate(zip(v.shape, x.shape)) if d != along)
    if not fits or block < 1 or not v.shape[along] * block >= x.shape[along] > (v.shape[along] - 1) * block:
        raise n.fail(f"{v} does not fit {x} along dimension {along}")
    return b.cut(b.emit("Repeat", v, axis=along, times=block), {along: (0, 1, x.shape[along])})


def quantize(b: GraphBuilder, x: Value, scale: Value, zero: Value | None, dtype: Dtype) -> Value:
    """Returns round(x / scale) + zero, saturated."""
    shift = b.number(0, scale) if zero is None else b.cast(zero, "f32")
    return b.emit("Quantize", b.cast(x, "f32"), b.cast(scale, "f32"), shift, to=dtype)


def dequantize(b: GraphBuilder, x: Value, scale: Value, zero: Value | None) -> Value:
    """Returns (x - zero) · scale."""
    shift = b.number(0, scale) if zero is None else b.cast(zero, "f32")
    return b.emit("Dequantize", x, b.cast(scale, "f32"), shift)


def _quantize_linear(n: NodeReader) -> Value:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    dtype: Dtype = "u8" if zero is None else zero.dtype
    if zero is None and n.integer("output_dtype", 0):
        dtype = element_type(n.integer("output_dtype"), "its result")
    return quantize(n.build, x, _spread(n, x, scale), None if zero is None else _spread(n, x, zero), dtype)


def _dequantize_linear(n: NodeReader) -> Value:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    y = dequantize(n.build, x, _spread(n, x, scale), None if zero is None else _spread(n, x, zero))
    wanted = n.integer("output_dtype", 0)
    return n.build.cast(y, element_type(wanted, "its result")) if wanted else y


def difference(b: GraphBuilder, x: Value, zero: Value | None) -> Value:
    """Returns x - zero in i16, which holds all differences of two 8-bit numbers."""
    wide = b.cast(x, "i16")
    return wide if zero is None else b.emit("Sub", wide, b.cast(zero, "i16"))


def _scalar(n: NodeReader, v: Value | None) -> Value | None:
    """Returns a zero point or scale that all elements share."""
    if v is not None and v.size != 1:
        raise n.fail(f"{v} must hold one number")
    return v if v is None else n.build.reshape(v, ())


def _per_output(n: NodeReader, v: Value | None, rank: int, at: int) -> Value | None:
    """Returns a zero point or scale that all elements share, or one for each output channel."""
    if v is None or v.size == 1:
        return _scalar(n, v)
    if v.rank != 1:
        raise n.fail(f"{v} must hold one number, or one for each output channel")
    return per_channel(n.build, v, rank, at)


def _integer_conv(n: NodeReader, x: Value, x_zero: Value | None, w: Value, w_zero: Value | None) -> Value:
    b = n.build
    images = difference(b, x, _scalar(n, x_zero))
    weights = difference(b, w, _per_output(n, w_zero, w.rank, 0))
    result = WINDOWS["Conv"](replace(n, inputs=[images, weights]))
    assert isinstance(result, Value)
    return result


def requantize(b: GraphBuilder, total: Value, factor: Value, zero: Value | None, dtype: Dtype) -> Value:
    """Returns an i32 sum, times a factor, rounded to a quantised number."""
    shift = b.number(0, factor) if zero is None else b.cast(zero, "f32")
    return b.emit("Requantize", total, factor, shift, to=dtype)


def _factor(b: GraphBuilder, x_scale: Value, w_scale: Value, y_scale: Value) -> Value:
    wide = [b.cast(v, "f32") for v in (x_scale, w_scale, y_scale)]
    return b.emit("Div", b.emit("Mul", wide[0], wide[1]), wide[2])


def _qlinear_conv(n: NodeReader) -> Value:
    b, x, w = n.build, n.input(0), n.input(3)
    total = _integer_conv(n, x, n.optional(2), w, n.optional(5))
    bias = n.optional(8)
    if bias is not None:
        total = b.emit("Add", total, per_channel(b, bias, total.rank))
    x_scale, y_scale = _scalar(n, n.input(1)), _scalar(n, n.input(6))
    w_scale = _per_output(n, n.input(4), total.rank, 1)
    assert x_scale is not None
    assert w_scale is not None
    assert y_scale is not None
    zero = n.input(7)
    return requantize(b, total, _factor(b, x_scale, w_scale, y_scale), _scalar(n, zero), zero.dtype)


def _conv_integer(n: NodeReader) -> Value:
    return _integer_conv(n, n.input(0), n.optional(2), n.input(1), n.optional(3))


def _rows(n: NodeReader, v: Value | None, x: Value) -> Value | None:
    """Returns a zero point or scale of the left factor: one number, or one for each row."""
    if v is None or v.size == 1:
        return _scalar(n, v)
    return n.build.reshape(v, (v.size, 1)) if v.rank == 1 and x.rank > 1 else v


def _columns(n: NodeReader, v: Value | None) -> Value | None:
    """Returns a zero point or scale of the right factor: one number, or one for each column."""
    return _scalar(n, v) if v is None or v.size == 1 else v


def _integer_product(n: NodeReader, x: Value, x_zero: Value | None, w: Value, w_zero: Value | None) -> Value:
    b = n.build
    factors = [difference(b, x, _rows(n, x_zero, x)), difference(b, w, _columns(n, w_zero))]
    result = REDUCTIONS["MatMul"](replace(n, inputs=factors))
    assert isinstance(result, Value)
    return result


def _matmul_integer(n: NodeReader) -> Value:
    return _integer_product(n, n.input(0), n.optional(2), n.input(1), n.optional(3))


def _qlinear_matmul(n: NodeReader) -> Value:
    b, zero = n.build, n.input(7)
    total = _integer_product(n, n.input(0), n.optional(2), n.input(3), n.optional(5))
    x_scale, w_scale, y_scale = _rows(n, n.input(1), n.input(0)), _columns(n, n.input(4)), _columns(n, n.input(6))
    assert x_scale is not None
    assert w_scale is not None
    assert y_scale is not None
    return requantize(b, total, _factor(b, x_scale, w_scale, y_scale), _columns(n, zero), zero.dtype)


QUANTIZED: dict[str, Importer] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "MatMulInteger": _matmul_integer,
}


# com.microsoft: operators that onnxruntime's quantisation to operators writes


def _floats(n: NodeReader, op: str, triples: Sequence[int], result: int) -> Value:
    """Imports a float operator between dequantised inputs (at `triples`) and a quantised result (by `result`)."""
    b = n.build
    inputs = [dequantize(b, n.input(k), n.input(k + 1), n.optional(k + 2)) for k in triples]
    y = FLOAT_IMPORTERS[op](replace(n, op=op, inputs=inputs))
    assert isinstance(y, Value)
    zero = n.optional(result + 1)
    return quantize(b, y, n.input(result), zero, n.input(triples[0]).dtype if zero is None else zero.dtype)


def _unary(op: str) -> Importer:
    return lambda n: _floats(n, op, [0], 3)


def _binary(op: str) -> Importer:
    return lambda n: _floats(n, op, [0, 3], 6)


def _pool(n: NodeReader) -> Value:
    if n.integer("channels_last", 0):
        raise n.fail("channels_last is not supported")
    return _floats(n, n.op.removeprefix("QLinear"), [0], 3)


def _softmax(n: NodeReader) -> Value:
    return _floats(replace(n, version=n.integer("opset", 13)), "Softmax", [0], 3)


def _concat(n: NodeReader) -> Value:
    return _floats(n, "Concat", range(2, len(n.inputs), 3), 0)


def _qgemm(n: NodeReader) -> Value:
    """Imports alpha · (A - a)(B - b) + C with an i32 bias C; without a scale of the result it is f32."""
    b, x, w = n.build, n.input(0), n.input(3)
    turned = n.integer("transB", 0)
    w_zero, w_scale = n.optional(5), n.input(4)
    if w_zero is not None and w_zero.size > 1:
        w_zero = b.reshape(w_zero, (w_zero.size, 1) if turned else (1, w_zero.size))
    factors = [difference(b, x, _scalar(n, n.optional(2))), difference(b, w, w_zero)]
    total = b.emit("MatMul", *factors, transpose_a=n.integer("transA", 0), transpose_b=turned)
    bias = n.optional(6)
    if bias is not None:
        total = b.emit("Add", total, bias)
    scale = b.emit("Mul", n.input(1), w_scale)
    if n.number("alpha", 1.0) != 1.0:
        scale = b.emit("Mul", scale, b.number(n.number("alpha"), scale))
    y_scale, zero = n.optional(7), n.optional(8)
    if y_scale is None:
        return b.emit("Mul", b.cast(total, "f32"), scale)
    factor = b.emit("Div", scale, y_scale)
    return requantize(b, total, factor, zero, x.dtype if zero is None else zero.dtype)


MICROSOFT_QUANTIZED: dict[str, Importer] = {
    **QUANTIZED,
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearAveragePool": _pool,
    "QLinearGlobalAveragePool": _pool,
    "QLinearSoftmax": _softmax,
    "QLinearConcat": _concat,
    "QGemm": _qgemm,
}
