"""Operators of the domain com.microsoft: what onnxruntime's optimiser makes of several standard ones.

Attention is in `microsoft_attention`. Files that onnxruntime optimises for one CPU (ORT_ENABLE_ALL) hold operators of
another domain, com.microsoft.nchwc, whose weights lie in that CPU's order: those are not read; ORT_ENABLE_EXTENDED
writes what is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stormdrop.frontend.microsoft_attention import ATTENTION
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.frontend.reductions import REDUCTIONS, product, scaled
from stormdrop.frontend.windows import WINDOWS
from stormdrop.graph.graph import Attribute, Value, shown

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
"""What may stand behind a fused product, with its parameters in the order of the file, and their defaults."""


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
    """activation(conv(x, w) + bias + z)."""
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
    """alpha · a · b, each perhaps transposed, or its first dimension moved behind the leading ones before."""
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
    """Of the sum with a bias, where there is one."""

    def importer(n: NodeReader) -> Value:
        x, bias = n.input(0), n.optional(1)
        x = x if bias is None else n.build.emit("Add", x, bias)
        return n.build.emit("Gelu", x, approximate=approximate)

    return importer


def _quick_gelu(n: NodeReader) -> Value:
    return n.build.emit("Swish", n.input(0), alpha=n.number("alpha", 1.702))


def _normalised(n: NodeReader, x: Value, gamma: Value, beta: Value | None, simplified: bool) -> Value:
    op = "RmsNormalize" if simplified else "Standardize"
    default = 1e-5 if n.op == "SimplifiedLayerNormalization" else 1e-12
    axes = tuple(range(n.axis(-1, x.rank), x.rank))
    y = n.build.emit(op, x, axes=axes, epsilon=n.number("epsilon", default))
    return scaled(n.build, y, gamma, beta)


def _simplified_norm(n: NodeReader) -> Value:
    return _normalised(n, n.input(0), n.input(1), None, True)


def _skip_norm(simplified: bool) -> Importer:
    """The norm of the sum of an input, a residual and perhaps a bias; the sum is the fourth output."""

    def importer(n: NodeReader) -> Results:
        b = n.build
        beta, bias = (None, n.optional(3)) if simplified else (n.optional(3), n.optional(4))
        total = b.emit("Add", n.input(0), n.input(1))
        total = total if bias is None else b.emit("Add", total, bias)
        return [_normalised(n, total, n.input(2), beta, simplified), None, None, total]

    return importer


def _embed_norm(n: NodeReader) -> Results:
    """The norm of the sum of the embeddings of words, positions and segments; and how long each sequence is."""
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
