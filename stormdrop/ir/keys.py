"""Keys that variants share: the class and the anchor class, by which schedules are transferred between tasks.

    digest (one task)  ⊂  class (any sizes)  ⊂  anchor class (any sizes, any epilogue)

A key ignores names, extents, strides, dilations and pads. It also ignores numbers in the body that may stand for sizes
(1/n of a mean, the scale of an attention).

A division by such a number is spelled as the multiplication that it becomes if the reciprocal is exact: attention
divides by √80 and multiplies by 1/√64.

A key contains the DAG of stages, the reductions, the axes that an index combines, element types, and the constness of
inputs. It also contains the numbers that decide how a body is computed: zero, the infinities (the values of borders)
and exponents.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
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
    """Returns a key, equal for variants that differ only in sizes, names and numbers: they can exchange schedules."""
    return _hashed(CLASS, _structure(variant.stages, variant.outputs))


@memoised(4096)
def former_class_key(variant: Variant) -> str:
    """Returns the class of earlier versions, which kept divisions by numbers: schedules may still name it."""
    return _hashed(CLASS, _structure(variant.stages, variant.outputs, sees_division=True))


@memoised(4096)
def anchor_key(variant: Variant) -> str:
    """Returns a key, equal for variants with anchor stages of one class and any epilogue; empty without reductions."""
    anchors = anchor_stages(variant)
    return _hashed(ANCHOR, _structure(anchors, anchor_results(variant))) if anchors else ""


@memoised(4096)
def anchor_stages(variant: Variant) -> tuple[Tensor, ...]:
    """Returns the reductions and all stages they read, in the order of the stages; the rest is the epilogue."""
    anchors: set[Tensor] = set()
    for t in reversed(variant.stages):
        assert t.compute is not None
        if t.compute.combiner is not None or t in anchors:
            anchors |= {t, *(load.tensor for load in loads(t.compute.body) if load.tensor.compute is not None)}
    return tuple(t for t in variant.stages if t in anchors)


def anchor_results(variant: Variant) -> tuple[Tensor, ...]:
    """Returns the anchor stages that no other anchor stage reads."""
    anchors = anchor_stages(variant)
    read = {load.tensor for t in anchors if t.compute is not None for load in loads(t.compute.body)}
    return tuple(t for t in anchors if t not in read)


def extents(variant: Variant) -> tuple[int, ...]:
    """Returns the extents of the anchor stages, or of all stages without a reduction; one key implies one count."""
    computes = [t.compute for t in anchor_stages(variant) or variant.stages]
    return tuple(a.extent for c in computes if c is not None for a in (*c.axes, *c.reduce_axes))


def is_class_key(text: str) -> bool:
    """Returns whether a text can be the class of a variant. Schedules of early versions name classes of whole tasks."""
    return text.startswith(CLASS)


def _hashed(kind: str, structure: object) -> str:
    return kind + hashlib.sha256(json.dumps(structure).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Spelling:
    """The spelling of expressions in a key."""

    axes: dict[Expr, str]
    tensors: dict[Tensor, str]
    sees_division: bool
    """True if a division by a number is written as a division; see `former_class_key`."""


def _structure(stages: tuple[Tensor, ...], results: tuple[Tensor, ...], sees_division: bool = False) -> list[object]:
    number: dict[Tensor, str] = {t: f"s{k}" for k, t in enumerate(stages)}
    described: list[object] = []
    for t in stages:
        c = t.compute
        assert c is not None
        for load in loads(c.body):
            if load.tensor not in number:
                count = sum(n.startswith("i") for n in number.values())
                number[load.tensor] = f"i{count}{'c' if load.tensor.constant else ''}{load.tensor.dtype}"
        body = _shape_free(c.body, _Spelling(c.axis_ids, number, sees_division))
        described.append([number[t], t.dtype, c.combiner, len(c.axes), len(c.reduce_axes), body])
    return [described, [number[t] for t in results]]


def _shape_free(e: Expr, spelling: _Spelling, is_exponent: bool = False) -> object:
    """Returns an expression without numbers; an index is the set of atoms it combines."""
    if e.dtype == "i64" and not isinstance(e, (Load, Cast, Select, Call)):
        return _index_structure(affine(e), spelling)
    match e:
        case Const(value, dtype):
            return f"#{dtype}" if _may_be_size(e) and not is_exponent else repr(value)
        case Load(tensor, indices):
            return [spelling.tensors[tensor], *(_shape_free(i, spelling) for i in indices)]
        case Bin("div", a, b) if isinstance(b, Const) and _may_be_size(b) and not spelling.sees_division:
            return ["mul", _shape_free(a, spelling), _shape_free(b, spelling)]
        case Bin(op, a, b) | Cmp(op, a, b):
            return [op, _shape_free(a, spelling), _shape_free(b, spelling, op == "pow")]
        case _:
            label = e.fn if isinstance(e, Call) else type(e).__name__ + e.dtype
            return [label, *(_shape_free(c, spelling) for c in children(e))]


def _may_be_size(number: Const) -> bool:
    """Returns whether a number may stand for a size. The caller excludes exponents."""
    return number.dtype != "bool" and number.value != 0 and isfinite(number.value)


def _index_structure(form: Affine, spelling: _Spelling) -> object:
    def part(atom: Expr) -> str:
        if isinstance(atom, Bin):
            return json.dumps([atom.op, _shape_free(atom.a, spelling), _shape_free(atom.b, spelling)])
        return spelling.axes[atom] if atom in spelling.axes else json.dumps(_shape_free(atom, spelling))

    return sorted(part(atom) for atom, _ in form.terms)
