"""Quantise-dequantise models (QDQ) in integers: products are summed exactly, and movements keep quantised numbers.

    Conv(Dequantize(x, sx, zx), Dequantize(w, sw, zw))          ->   f32(Conv(x - zx, w - zw)) · (sx·sw)
    Quantize(Relu(f32(sum) · (sx·sw) + b · (sx·sw)), sy, zy)    ->   Requantize(Relu(sum + b), sx·sw / sy, zy)
    Quantize(MaxPool(Dequantize(x, s, z)), s, z)                ->   MaxPool(x)

Differences from zero points are i16, sums of their products i32, without the rounding of floats; the result is rounded
once, half to even. This is ONNX's own definition of QLinearConv and QLinearMatMul.

Scales and zero points must be constants: a single number, or for weights also one number for each output channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stormdrop.graph.builder import Sweep, use_counts
from stormdrop.graph.graph import Graph
from stormdrop.ir.dtypes import Dtype
from stormdrop.operators.node import Array, Node, Value
from stormdrop.operators.pointwise import MUL, REQUANTIZE

NARROW: tuple[Dtype, ...] = ("u8", "i8")


def quantized(graph: Graph) -> Graph:
    """Sums products of dequantised numbers as integers, and cancels equal scales on both sides of a movement."""
    if not any(n.op == "Dequantize" for n in graph.nodes):
        return graph
    return _Rewrite(graph).run()


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Quantised numbers behind a Dequantize with constant scale and zero point."""

    x: Value
    scale: Array
    zero: Array


@dataclass(frozen=True, slots=True)
class _Sum:
    """An exact i32 value that represents the f32 value `value` · `scale`."""

    value: Value
    scale: Array


class _Rewrite:
    """One sweep; `sums` holds the exact sums of the f32 values met so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sweep = Sweep(graph)
        self.uses = use_counts(graph)
        self.sums: dict[Value, _Sum] = {}

    def run(self) -> Graph:
        for given in self.graph.nodes:
            node = self.sweep.current(given)
            match node.op:
                case "Conv" | "MatMul":
                    done = self.product(node)
                case "Add":
                    done = self.bias(node)
                case "Relu":
                    done = self.relu(node)
                case "Quantize":
                    done = self.moved(node) or self.requantized(node)
                case _:
                    done = False
            if not done:
                self.sweep.keep(node)
        return self.sweep.finished()

    # Operands of products

    def numbers(self, v: Value) -> _Numbers | None:
        node = self.sweep.producers.get(v)
        if node is None or node.op != "Dequantize":
            return None
        scale, zero = (self.sweep.array(i) for i in node.inputs[1:])
        return None if scale is None or zero is None else _Numbers(node.inputs[0], scale, zero)

    def difference(self, q: _Numbers, like: Node) -> Value:
        """Returns x - zero in i16: a constant if x is constant."""
        zero = q.zero.astype(np.int16)
        known = self.sweep.array(q.x)
        if known is not None:
            return self.sweep.constant(known.astype(np.int16) - zero, f"{q.x.name}.difference")
        wide = self.sweep.emit("Cast", [q.x], {"to": "i16"}, like)
        if not zero.any():
            return wide
        return self.sweep.emit("Sub", [wide, self.sweep.constant(zero, f"{q.x.name}.zero")], {}, like)

    def product(self, node: Node) -> bool:
        """Emits the exact sum and its f32 value, which is dropped later if it has no reader."""
        left, right = (self.numbers(v) for v in node.inputs)
        if left is None or right is None or left.x.dtype not in NARROW or right.x.dtype not in NARROW:
            return False
        if left.scale.size != 1 or left.zero.size != 1:
            return False
        scale, zero = (_per_output(c, right.x, node) for c in (right.scale, right.zero))
        if scale is None or zero is None:
            return False
        factors = [self.difference(q, node) for q in (left, right)]
        total = self.sweep.emit(node.operator, factors, node.attributes, node)
        self.stands(node, _Sum(total, np.asarray(left.scale.reshape(()) * scale, np.float32)))
        return True

    def stands(self, node: Node, total: _Sum) -> None:
        """Emits the node's f32 result, computed from the sum."""
        wide = self.sweep.emit("Cast", [total.value], {"to": "f32"}, node)
        scale = self.sweep.constant(total.scale, f"{node.output.name}.scale")
        self.sweep.keep_rewritten(replace(node, operator=MUL, inputs=(wide, scale), attributes={}))
        self.sums[node.output] = total

    # Readers of products

    def bias(self, node: Node) -> bool:
        """Adds a constant that is a multiple of the sum's scale to the sum."""
        for v, other in (node.inputs, node.inputs[::-1]):
            total, added = self.sums.get(v), self.sweep.array(other)
            if total is None or added is None or node.output.shape != v.shape:
                continue
            whole = _multiple(added, total.scale)
            if whole is None:
                continue
            constant = self.sweep.constant(whole, f"{other.name}.whole")
            value = self.sweep.emit("Add", [total.value, constant], {}, node)
            self.stands(node, _Sum(value, total.scale))
            return True
        return False

    def relu(self, node: Node) -> bool:
        total = self.sums.get(node.inputs[0])
        if total is None or not (total.scale > 0).all():
            return False
        self.stands(node, _Sum(self.sweep.emit("Relu", [total.value], {}, node), total.scale))
        return True

    def requantized(self, node: Node) -> bool:
        total = self.sums.get(node.inputs[0])
        scale, zero = (self.sweep.array(v) for v in node.inputs[1:])
        if total is None or scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return False
        factor = self.sweep.constant(np.asarray(total.scale / scale.reshape(()), np.float32), f"{node.name}.factor")
        self.sweep.keep_rewritten(replace(node, operator=REQUANTIZE, inputs=(total.value, factor, node.inputs[2])))
        return True

    # Movements

    def moved(self, node: Node) -> bool:
        """Moves quantised numbers directly if they are dequantised, moved, and quantised again as before.

        Choosing and moving elements commutes with every elementwise function.
        """
        scale, zero = (self.sweep.array(v) for v in node.inputs[1:])
        chain: list[Node] = []
        v = node.inputs[0]
        while (maker := self.sweep.producers.get(v)) is not None and maker.operator.moves:
            chain.append(maker)
            v = maker.inputs[0]
        q = self.numbers(v)
        if q is None or scale is None or zero is None or q.x.dtype != node.output.dtype:
            return False
        if q.scale.size != 1 or not _same(q.scale, scale) or not _same(q.zero, zero) or not (scale > 0).all():
            return False
        x = q.x
        for n in reversed(chain):
            x = self.sweep.emit(n.operator, [x], n.attributes, node)
        self.sweep.replace(node.output, x)
        return True


def _same(a: Array, b: Array) -> bool:
    return a.size == b.size == 1 and bool(a.reshape(()) == b.reshape(()))


def _per_output(c: Array, w: Value, node: Node) -> Array | None:
    """Returns numbers of the right factor, shaped to multiply the result; None if they vary along the sum."""
    if c.size == 1:
        return c.reshape(())
    if c.ndim != w.rank:
        return None
    if node.op == "Conv":
        return c.reshape(1, -1, *[1] * (w.rank - 2)) if c.shape[0] == c.size == w.shape[0] else None
    turned = node.flag("transpose_b", 0)
    columns: Any = np.swapaxes(c, -1, -2) if turned else c
    return columns if columns.shape[-2] == 1 else None


def _multiple(added: Array, scale: Array) -> Array | None:
    """Returns the integers n with n · scale = added in f32; None if there are none, or if they are too large."""
    if added.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        whole = np.rint(added.astype(np.float64) / scale.astype(np.float64))
        exact = np.asarray(whole.astype(np.float32) * scale, np.float32)
        fits = np.isfinite(whole) & (np.abs(whole) < 2**30) & (exact == np.broadcast_to(added, exact.shape))
    return whole.astype(np.int32) if bool(fits.all()) else None
