"""Passes that make a graph smaller with bit-identical results, and the pass that gives each output its own node.

Each pass is a function from a graph to a graph. No pass changes the interface, and all are linear in the nodes. A pass
without changes returns the same graph. See `identities` for the rules of single operators.

After `empties` a value without elements is an input or a constant. A node whose result has elements reads no value
without elements, so kernels never contain an empty loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.graph.builder import MOST_BYTES, Folding, Sweep, use_counts
from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.ir.expr import NUMPY, Scalar, identity_of
from stormdrop.operators.node import Node, Value, shown
from stormdrop.operators.pointwise import COPY


def empties(graph: Graph) -> Graph:
    """Makes results without elements constants, and lets no other node read a value without elements.

        Concat(a, empty, b)        ->  Concat(a, b)
        ReduceSum over no element  ->  0, also a product with k = 0, a convolution of no channels; ReduceMax -> -inf
        Pad(empty, value)          ->  value everywhere
        Scatter(x, no updates)     ->  x

    Raises UserError if an operator would take an element from an empty tensor.
    """
    sweep = Sweep(graph)
    for given in graph.nodes:
        node = sweep.current(given)
        if node.output.size == 0:
            sweep.fold(node.output, np.zeros(node.output.shape, NUMPY[node.output.dtype]))
        elif not any(v.size == 0 for v in node.inputs):
            sweep.keep(node)
        elif node.op == "Concat":
            _joined(sweep, node)
        else:
            sweep.replace(node.output, _equal(sweep, node))
    return sweep.finished()


def _joined(sweep: Sweep, node: Node) -> None:
    parts = tuple(v for v in node.inputs if v.size)
    if len(parts) == 1:
        sweep.replace(node.output, parts[0])
    else:
        sweep.keep_rewritten(replace(node, inputs=parts))


def _equal(sweep: Sweep, node: Node) -> Value:
    """Returns the value that equals the result of a node whose operand is empty."""
    dtype = node.output.dtype
    if node.operator.combiner is not None:
        return _filled(sweep, node, identity_of(node.operator.combiner, dtype))
    match node.op:
        case "ScatterElements" | "ScatterND":
            return node.inputs[0]
        case "Pad" if len(node.inputs) > 1:
            return sweep.emit("Expand", node.inputs[1:], {"shape": node.output.shape}, node)
        case "Pad":
            return _filled(sweep, node, node.constant("value", dtype))
        case _:
            name = shown(node.name or node.output.name)
            raise UserError(f"{node.op} node {name}: there is nothing to take its result from")


def _filled(sweep: Sweep, node: Node, value: Scalar) -> Value:
    """Returns a constant of the node's shape; a constant too large to keep is expanded when the model runs."""
    shape, dtype = node.output.shape, node.output.dtype
    fits = node.output.nbytes <= MOST_BYTES
    filled = sweep.constant(np.full(shape if fits else (), value, NUMPY[dtype]), f"{node.output.name}.c")
    return filled if fits else sweep.emit("Expand", (filled,), {"shape": shape}, node)


def fold_constants(graph: Graph) -> Graph:
    """Replaces a node that reads only constants by its result, within the bounds of `Folding`.

    y = Transpose(w)   ->   y constant
    """
    sweep, fold = Sweep(graph), Folding()
    for node in graph.nodes:
        if node.op != "Copy" and all(v in sweep.constants for v in node.inputs):
            array = fold(node, [sweep.constants[v] for v in node.inputs])
            if array is not None:
                sweep.fold(node.output, array)
                continue
        sweep.keep(node)
    return sweep.finished()


def common_subexpressions(graph: Graph) -> Graph:
    """Merges nodes of equal operators and inputs, and constants of the same bits.

    a = Relu(x); b = Relu(x); y = Add(a, b)   ->   a = Relu(x); y = Add(a, a)
    """
    sweep = Sweep(graph)
    for old, new in _equal_constants(graph).items():
        sweep.replace(old, new)
    seen: dict[Hashable, Value] = {}
    for given in graph.nodes:
        node = sweep.current(given)
        key = _key(node)
        if key in seen:
            sweep.replace(node.output, seen[key])
        else:
            seen[key] = node.output
            sweep.keep(node)
    return sweep.finished()


def _key(node: Node) -> Hashable:
    """Returns a key, equal for equal computations. Attributes are compared as text: 0.0 and -0.0, 1 and True differ."""
    attributes = tuple(sorted((k, repr(v)) for k, v in node.attributes.items()))
    if node.operator.commutes == "exactly" and node.inputs[0].name > node.inputs[1].name:
        return node.op, node.inputs[::-1], attributes
    return node.op, node.inputs, attributes


def _equal_constants(graph: Graph) -> dict[Value, Value]:
    """Returns the constants that equal an earlier constant in type, shape and bits, with that constant.

    Only constants that agree in a few elements are compared as a whole.
    """
    alike: dict[Hashable, list[Value]] = {}
    for v, array in graph.constants.items():
        # An array may be a transposed view: do not read it as a whole here.
        some = np.asarray(array.flat[:: max(1, array.size // 8)])
        alike.setdefault((v.dtype, v.shape, some.tobytes()), []).append(v)
    same: dict[Value, Value] = {}
    for values in alike.values():
        if len(values) > 1:
            first: dict[bytes, Value] = {}
            for v in values:
                data = np.ascontiguousarray(graph.constants[v]).reshape(-1).view(np.uint8).data
                kept = first.setdefault(hashlib.blake2b(data, digest_size=16).digest(), v)
                if kept is not v:
                    same[v] = kept
    return same


def pads_into_windows(graph: Graph) -> Graph:
    """Moves zeros around an image into the padding of windows, if only windows read them.

        Conv(Pad(x, before=p, after=q), w, before=b, after=a)   ->   Conv(x, w, before=p + b, after=q + a)

    Likewise for SumPool: a mean is a SumPool times a constant, which already counts these zeros. MaxPool accepts pads
    of the lowest number. Positions of a MaxPoolIndices count in the padded image: such a Pad stays.
    """
    pads = {n.output: n for n in graph.nodes if n.op == "Pad" and len(n.inputs) == 1 and n.text("mode") == "constant"}
    if not pads:
        return graph
    readers = use_counts(graph)
    for node in graph.nodes:
        for v in node.inputs:
            if v in pads and _takes_pad(node, pads[v]):
                readers[v] -= 1
    sweep = Sweep(graph)
    for node in graph.nodes:
        pad = pads.get(node.inputs[0]) if node.inputs else None
        if pad is None or readers[pad.output] or not _takes_pad(node, pad):
            sweep.keep(node)
            continue
        attributes = dict(node.attributes)
        for k in ("before", "after"):
            attributes[k] = tuple(a + b for a, b in zip(_spatial(node, pad.integers(k)), node.integers(k)))
        sweep.keep_rewritten(replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), attributes=attributes))
    return sweep.finished()


def _spatial(node: Node, pads: tuple[int, ...]) -> tuple[int, ...]:
    return pads[2:] if node.text("layout") == "NCHW" else pads[1:-1]


def _takes_pad(node: Node, pad: Node) -> bool:
    if node.op not in ("Conv", "SumPool", "MaxPool") or node.inputs[0] != pad.output:
        return False
    if pad.output in node.inputs[1:]:
        return False
    wanted = identity_of(node.operator.combiner or "sum", pad.output.dtype)
    counts = [sum(pad.integers(k)) - sum(_spatial(node, pad.integers(k))) for k in ("before", "after")]
    return counts == [0, 0] and pad.constant("value", pad.output.dtype) == wanted


def own_outputs(graph: Graph) -> Graph:
    """Makes every output the result of its own node: kernels write outputs, so inputs, constants and repeats are
    copied.

        return x, y, y   ->   a = Copy(x); b = Copy(y); return a, y, b

    Runs last: `identities` drops copies.
    """
    computed = {n.output for n in graph.nodes}
    names = FreshNames(graph)
    nodes, outputs = list(graph.nodes), list(graph.outputs)
    owned: set[Value] = set()
    for k, v in enumerate(graph.outputs):
        if v in computed and v not in owned:
            owned.add(v)
            continue
        outputs[k] = Value(names.fresh(graph.output_names[k]), v.shape, v.dtype)
        nodes.append(Node(COPY, (v,), (outputs[k],), name=graph.output_names[k]))
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), outputs=tuple(outputs))
