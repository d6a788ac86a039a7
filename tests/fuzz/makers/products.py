"""Products: MatMul, Gemm and Einsum."""

from __future__ import annotations

import string

import numpy as np
from numpy.typing import DTypeLike

from tests.fuzz.draft import FLOATS, Draft, Maker, Refused, Shape
from tests.fuzz.makers.operands import (
    affordable,
    anything,
    broadcast,
    moderate,
    narrower,
    partner,
    scalar,
    size,
    swapped,
    types_of,
)


def _factor(d: Draft, shape: Shape, dtype: DTypeLike, inner: int) -> str:
    """An operand of a product: weights scaled by their fan-in, an input, or any value that is there."""
    if np.dtype(dtype).kind != "f" or d.chance(0.4):
        return d.value(shape, dtype)
    array = np.asarray(d.rng.standard_normal(shape) * max(inner, 1) ** -0.5).astype(dtype)
    return d.constant(array) if d.chance(0.6) else d.input(shape, array=array)


def _matmul(d: Draft) -> str:
    """Vectors, matrices, batches that broadcast; the other factor may be constant, on either side."""
    x = anything(d, types_of(d, "MatMul"), least_rank=1)
    shape, dtype = d.shape(x), d.dtype(x)
    first = d.chance(0.5)
    if first:
        *batch, k = shape[:-2] + shape[-1:]
        other = (k,) if d.chance(0.15) else (*_batch(d, tuple(batch)), k, d.dim(33))
        left, right = shape, other
    else:
        *batch, k = shape[:-2] + (shape[-2:-1] or shape)
        other = (k,) if d.chance(0.15) else (*_batch(d, tuple(batch)), d.dim(33), k)
        left, right = other, shape
    batches = broadcast(left[:-2], right[:-2])
    if batches is None or len(batches) > 3:
        raise Refused("the batches do not fit")
    rows, columns = left[-2] if len(left) > 1 else 1, right[-1] if len(right) > 1 else 1
    affordable(size(batches) * rows * k * columns)
    y = _factor(d, other, dtype, k)
    return d.one("MatMul", x, y) if first else d.one("MatMul", y, x)


def _batch(d: Draft, batch: Shape) -> Shape:
    """Dimensions of a batch that broadcast with `batch`."""
    match d.among("none", "same", "same", "narrower", "partner"):
        case "none":
            return ()
        case "same":
            return batch
        case "narrower":
            return narrower(d, batch)
        case _:
            return partner(d, batch)[-3:]


def _own_product(d: Draft) -> str:
    """A value times its own transpose, in either order."""
    x = moderate(d, anything(d, types_of(d, "MatMul"), least_rank=2))
    *batch, m, k = d.shape(x)
    affordable(size(batch) * m * k * max(m, k))
    rank = d.rank(x)
    t = d.one("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
    return d.one("MatMul", *swapped(d, x, t))


def _gemm(d: Draft) -> str:
    """Both transpositions, both factors, and a third operand of every shape that broadcasts to the result, or none."""
    x = d.take(lambda: d.dims(2), types_of(d, "Gemm"))
    dtype = d.dtype(x)
    first = d.chance(0.6)
    mine, others = d.whole(0, 1), d.whole(0, 1)
    far, k = d.shape(x) if first != bool(mine) else d.shape(x)[::-1]
    free = d.dim(48)
    y = _factor(d, (k, free) if first != bool(others) else (free, k), dtype, k)
    affordable(far * k * free)
    m, n = (far, free) if first else (free, far)
    attributes: dict[str, float] = {}
    for key, flag in (("transA", mine if first else others), ("transB", others if first else mine)):
        if flag or d.chance(0.3):
            attributes[key] = flag
    for key in ("alpha", "beta"):  # whole numbers among integers: ONNX does not say where a fraction is rounded
        if d.chance(0.5):
            attributes[key] = float(
                d.among(0.0, 1.0, 2.0, -1.0) if dtype.kind == "i" else d.among(0.0, 1.0, 0.5, -1.3, 0.1)
            )
    operands = (x, y) if first else (y, x)
    if d.chance(0.3):
        return d.one("Gemm", *operands, *d.among((), ("",)), **attributes)
    shape = d.among((), (1,), (n,), (1, 1), (1, n), (m, 1), (m, n))
    return d.one("Gemm", *operands, d.value(shape, dtype), **attributes)


# ---- Einstein sums ---------------------------------------------------------------------------------------------------

EQUATIONS = (
    "ij->ji",
    "ij->i",
    "ij->",
    "ii->i",
    "ii->",
    "iij->ij",
    "iji->j",
    "iij->j",
    "ijk->kij",
    "ijk->ki",
    "i->",
    "i->i",
    "ij",
    "ji",
    "ba",
    "i,i->",
    "i,i->i",
    "i,j->ij",
    "i,j->ji",
    "i,j",
    "i,i",
    "ij,j->i",
    "ij,ij->",
    "ij,ij->ij",
    "ij,ji->",
    "ij,jk->ik",
    "ij,jk->ki",
    "ij,kj->ik",
    "ji,jk->ik",
    "ij,jk",
    "ij,jk->",
    "ij,jk->j",
    "ij,jk->ijk",
    "bij,bjk->bik",
    "bij,bkj->bik",
    "bij,jk->bik",
    "bij,bjk",
    "bhqd,bhkd->bhqk",
    "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd",
    "ijk,jil->kl",
    "ijkl,klij->",
    "ij,jk,kl->il",
    "i,j,k->ijk",
    "i,i,i->i",
    "ij,i,j->",
    "ii,i->i",
    "iij,jk->ik",
    "ab,ab,ab->a",
    "bij,bjk,bkl->bil",
    "...->...",
    "...i->...",
    "i...->...i",
    "...ij->...ji",
    "...ij,...jk->...ik",
    "...i,...i->...",
    "i...,i...->...",
    "...i,i->...",
    "...,...->...",
    "...ij,jk->...ik",
    "...i,j...->...ij",
    "ij...,jk...->ik...",
    "...ii->...i",
    "...i,...i",
    "a...,b...->ab...",
)


def _einsum(d: Draft) -> str:
    """Sums, transpositions, diagonals, outer, inner, batched products of up to three operands, with or without dots."""
    equation = d.among(*EQUATIONS)
    dtype = np.dtype(d.type_among(types_of(d, "Einsum")))
    terms = equation.partition("->")[0].split(",")
    extents = {label: d.dim(13) for label in string.ascii_lowercase}
    dots = d.dims(d.whole(0, 2), 30)
    shapes: list[Shape] = []
    for term in terms:
        before, mark, after = term.partition("...")
        mine = narrower(d, dots) if len(terms) > 1 and d.chance(0.4) else dots
        shapes.append((*(extents[c] for c in before), *(mine if mark else ()), *(extents[c] for c in after)))
    affordable(size([extents[c] for c in set(equation) if c.isalpha()]) * size(dots) * len(terms))
    if len(terms) == 1 and d.chance(0.7):
        wanted = shapes[0]
        operands = [d.take(lambda: wanted, [dtype], lambda s: _fits(terms[0], s))]
    else:
        operands = [_factor(d, s, dtype, 4) for s in shapes]
    spaced = equation.replace(",", ", ").replace("->", " -> ") if d.chance(0.2) else equation
    return d.one("Einsum", *operands, equation=_renamed(d, spaced) if "->" in spaced else spaced)


def _fits(term: str, shape: Shape) -> bool:
    """Whether a value has the dimensions of a term."""
    labels = term.replace("...", "")
    if len(shape) != len(labels) and ("..." not in term or not len(labels) <= len(shape) <= len(labels) + 2):
        return False
    before, mark, after = term.partition("...")
    ends = (*shape[: len(before)], *(shape[len(shape) - len(after) :] if mark and after else ()))
    return all(dict(zip(before + after, ends))[c] == n for c, n in zip(before + after, ends))


def _renamed(d: Draft, equation: str) -> str:
    """The equation with other letters, capitals among them."""
    if d.chance(0.6):
        return equation
    letters = d.rng.permutation(list(string.ascii_letters))
    labels = sorted({c for c in equation if c.isalpha()})
    return equation.translate({ord(a): str(b) for a, b in zip(labels, letters)})


def _scaled_product(d: Draft) -> str:
    """Constants around a product, which a compiler may fold into its weights."""
    x = moderate(d, anything(d, FLOATS, least_rank=2))
    dtype, k, n = d.dtype(x), d.shape(x)[-1], d.dim(24)
    affordable(size(d.shape(x)) * n)
    for op in ("Mul", "Add", "Sub"):
        if d.chance(0.4):
            shape = d.among((), (k,), (1, k), (d.shape(x)[-2], 1))
            x = d.one(op, *swapped(d, x, d.constant(np.asarray(d.rng.normal(0.5, 1.0, shape)).astype(dtype))))
    y = d.one("MatMul", x, d.constant(np.asarray(d.rng.standard_normal((k, n)) * max(k, 1) ** -0.5).astype(dtype)))
    for op in ("Mul", "Add", "Div", "Sub"):
        if d.chance(0.4):
            shape = d.among((), (n,), (1, n), (d.shape(x)[-2], 1))
            number = (
                d.constant(np.asarray(d.rng.uniform(0.3, 2.0, shape)).astype(dtype))
                if d.chance(0.8)
                else scalar(d, 2.0, dtype)
            )
            y = d.one(op, y, number) if op == "Div" else d.one(op, *swapped(d, y, number))
    return y


MAKERS: dict[str, tuple[float, Maker]] = {
    "Einsum": (1.0, _einsum),
    "Gemm": (1.0, _gemm),
    "MatMul": (2.0, _matmul),
    "own product": (0.4, _own_product),
    "scaled product": (0.8, _scaled_product),
}
