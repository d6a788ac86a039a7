"""The first half of attention: scores and their softmax."""

from __future__ import annotations

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis
from stormdrop.ops.movement import transpose
from stormdrop.ops.reduce import softmax


def attention_weights(q: Tensor, k: Tensor, name: str = "Y") -> Tensor:
    """Both operands arrive as [batch, seq, heads, dim] and are transposed by stages of their own.

    Qt[b, h, i, d] = Q[b, i, h, d];   Kt[b, h, d, j] = K[b, j, h, d]
    scores[b, h, i, j] = Σ_d Qt[b, h, i, d] · Kt[b, h, d, j];   Y = softmax over j of scores
    """
    if len(q.shape) != 4 or len(k.shape) != 4 or (q.shape[0], *q.shape[2:]) != (k.shape[0], *k.shape[2:]):
        raise UserError(f"attention_weights: {q!r} and {k!r} are not both [batch, seq, heads, dim]")
    qt = transpose(q, (0, 2, 1, 3), "Qt")
    kt = transpose(k, (0, 2, 3, 1), "Kt")
    b, h, i, j = (axis(n, a) for n, a in zip((*qt.shape[:3], kt.shape[3]), "bhij"))
    d = reduce_axis(qt.shape[3], "d")
    scores = compute("scores", (b, h, i, j), build.sum(qt[b, h, i, d] * kt[b, h, d, j], d))
    return softmax(scores, name)
