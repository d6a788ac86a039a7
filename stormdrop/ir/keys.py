"""Keys that variants share: the class and the anchor class. Schedules are carried from one task to another by them.

    digest (one task)  ⊂  class (any sizes)  ⊂  anchor class (any sizes, any epilogue)

A key is blind to names, to extents, strides, dilations and pads, and to numbers in the body, which may stand for sizes
(1/n of a mean, the scale of an attention). It sees the DAG of stages, what is reduced, which axes an index combines,
element types, which inputs are constant, and numbers that decide how a body is computed: zero and the infinities (the
values of borders) and exponents.
"""

from __future__ import annotations

import hashlib
import json
from math import isfinite
from typing import TYPE_CHECKING

from stormdrop.ir.affine import Affine, affine
from stormdrop.ir.expr import Bin, Call, Cast, Cmp, Const, Expr, Load, Select, children, loads
from stormdrop.ir.memo import memoised

if TYPE_CHECKING:
    from stormdrop.ir.tensor import Tensor, Variant

CLASS, ANCHOR = "v", "a"
"""The first letters of the two kinds of keys."""


@memoised(4096)
def class_key(variant: Variant) -> str:
    """Equal for variants that differ in sizes, names and numbers only: every schedule of one fits the others."""
    return _hashed(CLASS, _structure(variant.stages, variant.outputs))


@memoised(4096)
def anchor_key(variant: Variant) -> str:
    """Equal for variants whose anchor stages are of one class, whatever their epilogues; empty without a reduction."""
    anchors = anchor_stages(variant)
    return _hashed(ANCHOR, _structure(anchors, anchor_results(variant))) if anchors else ""


@memoised(4096)
def anchor_stages(variant: Variant) -> tuple[Tensor, ...]:
    """The reductions and everything that they read, in the order of the stages. The other stages are the epilogue."""
    found: set[Tensor] = set()
    for t in reversed(variant.stages):
        assert t.compute is not None
        if t.compute.combiner is not None or t in found:
            found |= {t, *(load.tensor for load in loads(t.compute.body) if load.tensor.compute is not None)}
    return tuple(t for t in variant.stages if t in found)


def anchor_results(variant: Variant) -> tuple[Tensor, ...]:
    """The anchor stages that no other anchor stage reads."""
    anchors = anchor_stages(variant)
    read = {load.tensor for t in anchors if t.compute is not None for load in loads(t.compute.body)}
    return tuple(t for t in anchors if t not in read)


def extents(variant: Variant) -> tuple[int, ...]:
    """The extents of the anchor stages, of all stages without a reduction; variants of one key have equally many."""
    computes = [t.compute for t in anchor_stages(variant) or variant.stages]
    return tuple(a.extent for c in computes if c is not None for a in (*c.axes, *c.reduce_axes))


def is_class_key(text: str) -> bool:
    """Whether a text can be the class of a variant. Schedules of early versions name classes of whole tasks."""
    return text.startswith(CLASS)


def _hashed(kind: str, structure: object) -> str:
    return kind + hashlib.sha256(json.dumps(structure).encode()).hexdigest()[:16]


def _structure(stages: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> list[object]:
    number: dict[Tensor, str] = {t: f"s{k}" for k, t in enumerate(stages)}
    described: list[object] = []
    for t in stages:
        c = t.compute
        assert c is not None
        axes = c.axis_ids
        for load in loads(c.body):
            if load.tensor not in number:
                count = sum(n.startswith("i") for n in number.values())
                number[load.tensor] = f"i{count}{'c' if load.tensor.constant else ''}{load.tensor.dtype}"
        body = _shape_free(c.body, axes, number)
        described.append([number[t], t.dtype, c.combiner, len(c.axes), len(c.reduce_axes), body])
    return [described, [number[t] for t in results]]


def _shape_free(e: Expr, axes: dict[Expr, str], number: dict[Tensor, str], is_exponent: bool = False) -> object:
    """An expression without numbers; an index is the set of atoms it combines."""
    if e.dtype == "i64" and not isinstance(e, (Load, Cast, Select, Call)):
        return _index_structure(affine(e), axes, number)
    match e:
        case Const(value, dtype):
            is_seen = is_exponent or dtype == "bool" or value == 0 or not isfinite(value)
            return repr(value) if is_seen else f"#{dtype}"
        case Load(tensor, indices):
            return [number[tensor], *(_shape_free(i, axes, number) for i in indices)]
        case Bin(op, a, b) | Cmp(op, a, b):
            return [op, _shape_free(a, axes, number), _shape_free(b, axes, number, op == "pow")]
        case _:
            label = e.fn if isinstance(e, Call) else type(e).__name__ + e.dtype
            return [label, *(_shape_free(c, axes, number) for c in children(e))]


def _index_structure(form: Affine, axes: dict[Expr, str], number: dict[Tensor, str]) -> object:
    parts: list[str] = []
    for atom, _ in form.terms:
        if atom in axes:
            parts.append(axes[atom])
        elif isinstance(atom, Bin):
            parts.append(json.dumps([atom.op, _shape_free(atom.a, axes, number), _shape_free(atom.b, axes, number)]))
        else:
            parts.append(json.dumps(_shape_free(atom, axes, number)))
    return sorted(parts)
