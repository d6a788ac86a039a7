"""Operators of the domain com.microsoft: fusions of several standard operators by onnxruntime's optimiser.

Attention is in `microsoft_attention`. Files that onnxruntime optimises for one CPU (ORT_ENABLE_ALL) contain operators
of the domain com.microsoft.nchwc, with weights in that CPU's order. This domain is not supported; files written with
ORT_ENABLE_EXTENDED are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stormdrop.frontend.microsoft_attention import ATTENTION
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.frontend.reductions import REDUCTIONS, inverse_root_square, last_axes, product, row_statistics, scaled
from stormdrop.frontend.windows import WINDOWS
from stormdrop.operators.node import Attribute, Value, shown

_ACTIVATIONS: dict[str, tuple[tuple[str, float], ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "Softplus": (),
    "Softsign": (),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "ThresholdedRelu": (("alpha", 1.0),),
    "Clip": (("min", float(np.finfo("f4").min)), ("max", float(np.finfo("f4").max))),
}
"""Activations that may follow a fused product, with their parameters in the order of the file, and their defaults."""


def _activated(n: NodeReader, x: Value, parameters: Sequence[float]) -> Value:
    name = n.text("activation", "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise n.unsupported(f"the activation {shown(name)}")
    defaults = _ACTIVATIONS[name]
    values = [*parameters, *(default for _, default in defaults[len(parameters) :])]
    attributes: dict[str, Attribute] = {key: float(np.float32(v)) for (key, _), v in zip(defaults, values)}
    return n.build.emit(name, x, **attributes)


def _fused_conv(n: NodeReader) -> Value:
    """Imports activation(conv(x, w) + bias + z)."""
    y = WINDOWS["Conv"](n)
    assert isinstance(y, Value)
    z = n.optional(3)
    y = y if z is None else n.build.emit("Add", y, z)
    return _activated(n, y, list(n.attributes.get("activation_params", ())))


def _fused_gemm(n: NodeReader) -> Value:
    y = REDUCTIONS["Gemm"](n)
    assert isinstance(y, Value)
    keys = [key for key in ("activation_alpha", "activation_beta", "activation_gamma") if n.has(key)]
    return _activated(n, y, [n.number(key) for key in keys])


def _fused_matmul(n: NodeReader) -> Value:
    """Imports alpha · a · b; each factor may be transposed, or its first dimension moved behind the leading ones."""
    b = n.build
    factors: list[Value] = []
    for k, which in enumerate("AB"):
        x = n.input(k)
        if n.integer(f"transBatch{which}", 0) and x.rank > 2:
            x = b.transpose(x, [*range(1, x.rank - 1), 0, x.rank - 1])
        factors.append(x)
    left, right = factors
    turned = [n.integer(f"trans{which}", 0) if x.rank > 1 else 0 for which, x in zip("AB", factors)]
    y = product(b, left, right, transpose_a=turned[0], transpose_b=turned[1])
    alpha = n.number("alpha", 1.0)
    return y if alpha == 1.0 else b.emit("Mul", y, b.number(alpha, y))


def _gelu(approximate: str) -> Importer:
    """Imports Gelu; its input is the sum with a bias if there is a bias."""

    def importer(n: NodeReader) -> Value:
        x, bias = n.input(0), n.optional(1)
        x = x if bias is None else n.build.emit("Add", x, bias)
        return n.build.emit("Gelu", x, approximate=approximate)

    return importer


def _quick_gelu(n: NodeReader) -> Value:
    return n.build.emit("Swish", n.input(0), alpha=n.number("alpha", 1.702))


def _epsilon(n: NodeReader) -> float:
    return n.number("epsilon", 1e-5 if n.op == "SimplifiedLayerNormalization" else 1e-12)


def _normalised(n: NodeReader, x: Value, gamma: Value, beta: Value | None, simplified: bool) -> Value:
    op = "RmsNormalize" if simplified else "Standardize"
    y = n.build.emit(op, x, axes=last_axes(n, x), epsilon=_epsilon(n))
    return scaled(n.build, y, gamma, beta)


def _simplified_norm(n: NodeReader) -> Results:
    """Imports the norm, and the factor of each row."""
    x = n.input(0)
    factor = inverse_root_square(n, x, _epsilon(n)) if n.wanted(1) else None
    return [_normalised(n, x, n.input(1), None, True), factor]


def _skip_norm(simplified: bool) -> Importer:
    """Imports the norm of an input plus a residual and perhaps a bias, with statistics of its rows, and the sum.

    A simplified norm subtracts no mean: its second output is 0, as onnxruntime has it.
    """

    def importer(n: NodeReader) -> Results:
        b = n.build
        beta, bias = (None, n.optional(3)) if simplified else (n.optional(3), n.optional(4))
        total = b.emit("Add", n.input(0), n.input(1))
        total = total if bias is None else b.emit("Add", total, bias)
        y = _normalised(n, total, n.input(2), beta, simplified)
        if not (n.wanted(1) or n.wanted(2)):
            return [y, None, None, total]
        mean, factor = row_statistics(n, total, _epsilon(n))
        if simplified:
            mean, factor = b.expand(b.number(0, mean), mean.shape), inverse_root_square(n, total, _epsilon(n))
        return [y, mean, factor, total]

    return importer


def _embed_norm(n: NodeReader) -> Results:
    """Imports the norm of the sum of word, position and segment embeddings, and the length of each sequence."""
    b, ids = n.build, n.input(0)
    if ids.rank != 2 or any(n.input(k).rank != 2 for k in (2, 3)):
        raise n.fail(f"{ids} or the tables {n.input(2)} and {n.input(3)} do not fit")
    positions = n.optional(8)
    if positions is None:
        rows = b.cut(n.input(3), {0: (0, 1, ids.shape[1])})
    else:
        rows = b.emit("Gather", n.input(3), positions, axis=0)
    total = b.emit("Add", b.emit("Gather", n.input(2), ids, axis=0), rows)
    segments = n.optional(1)
    if segments is not None:
        total = b.emit("Add", total, b.emit("Gather", n.input(4), segments, axis=0))
    y = _normalised(n, total, n.input(5), n.input(6), False)
    lengths: Value | None = None
    if n.wanted(1):
        mask = n.optional(7)
        zeros = b.expand(b.constant(0, "i32"), ids.shape[:1])
        lengths = zeros if mask is None else b.reduce("Sum", b.cast(mask, "i32"), [1], False)
    return [y, lengths, total]


MICROSOFT: dict[str, Importer] = {
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "QuickGelu": _quick_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm(False),
    "SkipSimplifiedLayerNormalization": _skip_norm(True),
    "EmbedLayerNormalization": _embed_norm,
    **ATTENTION,
}
UNDER_THE_STANDARD_NAME: dict[str, Importer] = {"SimplifiedLayerNormalization": _simplified_norm}
"""Operators of onnxruntime's that its files put into the standard domain."""
