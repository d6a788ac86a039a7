"""Construction of a graph node by node: from nothing (`GraphBuilder`), or from another graph in one sweep (`Sweep`).

    sweep = Sweep(graph)
    for node in graph.nodes:
        node = sweep.current(node)                      # with replaced inputs; then one of
        sweep.keep(node)
        sweep.keep_rewritten(replace(node, …))          # another node that computes the same value
        sweep.replace(node.output, value)               # readers of the node read `value`; the node is dropped
        sweep.fold(node.output, array)                  # the node's value becomes a constant; the node is dropped
    return sweep.finished()

Invariant of a sweep: the nodes of a graph are in topological order, so that every replacement precedes the readers;
each node is visited once. A sweep without changes returns the original graph.

Operators determine shapes; a `GraphBuilder` computes results of constants alone at once. Common operators are folded in
NumPy. All further operators are folded by the reference interpreter on their own tensor expression, so folded nodes and
kernels compute the same function.

Memory and work are bounded per node and in total. Folding is limited (`Folding`), values have at most `MOST_VALUE`
bytes and `MOST_DIMENSIONS` dimensions, and a model has at most `MOST_NODES` nodes. So a small file can cause neither a
huge array nor endless work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.base.errors import UserError
from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.ir.dtypes import DTYPES, HALVES, ITEMSIZE, NUMPY, Dtype
from stormdrop.ir.expr import FLOATS, identity_of
from stormdrop.ir.tensor import Task
from stormdrop.operators.node import Array, Attribute, Node, Operator, Value, evaluate_node, infer, shown, task_of
from stormdrop.operators.table import node_of

MOST_BYTES = 64 << 20
"""The largest folded result."""
MOST_STEPS = 1 << 24
"""The most points that the interpreter evaluates for one node; it evaluates some 10 to 100 million a second."""
MOST_FOLDED = 1 << 31
MOST_WORK = 1 << 25
"""The limits of bytes and steps for all nodes together."""
PRODUCTS_PER_STEP = {"f32": 256, "f64": 256}
"""The products counted as one step of a matrix product, as a library computes them much faster than the interpreter."""


class Folding:
    """Evaluates nodes until its share of memory and time is spent."""

    def __init__(self) -> None:
        self._bytes, self._steps = MOST_FOLDED, MOST_WORK

    def __call__(self, node: Node, inputs: Sequence[Array]) -> Array | None:
        """Returns the node's value, or None if it is too large to compute here."""
        if not inputs or node.output.nbytes > min(MOST_BYTES, self._bytes):
            return None
        task = None if _is_quick(node) else task_of(node)
        steps = _steps(task) if task is not None else _products(node)
        if steps > min(MOST_STEPS, self._steps):
            return None
        array = _value(node, inputs, task)
        self._bytes -= array.nbytes
        self._steps -= steps
        return array


def _is_quick(node: Node) -> bool:
    """Returns whether NumPy's result equals the interpreter's. Casts from floats saturate; NumPy's casts do not."""
    return node.operator.numpy is not None or (node.op == "Cast" and node.inputs[0].dtype not in FLOATS)


def _products(node: Node) -> int:
    if node.op != "MatMul":
        return 0
    a = node.inputs[0]
    return node.output.size * a.shape[-2 if node.integer("transpose_a", 0) else -1] // PRODUCTS_PER_STEP.get(a.dtype, 8)


def _value(node: Node, inputs: Sequence[Array], task: Task | None) -> Array:
    with np.errstate(all="ignore"):
        if node.operator.numpy is not None:
            result: Array = np.asarray(node.operator.numpy(node, inputs))
        elif task is None:
            result = inputs[0].astype(NUMPY[node.output.dtype])
        else:
            result = evaluate_node(node, task, dict(zip(node.inputs, inputs)))
    wanted = np.dtype(NUMPY[node.output.dtype])
    return np.ascontiguousarray(result, wanted).reshape(node.output.shape)


def _steps(task: Task) -> int:
    computes = [t.compute for t in task.variants[0].stages if t.compute]
    return sum(math.prod(a.extent for a in (*c.axes, *c.reduce_axes)) for c in computes)


MOST_VALUE = 1 << 36
MOST_DIMENSIONS = 32
MOST_NODES = 250_000
MOST_PARTS = 16


class GraphBuilder:
    """A graph under construction.

    `node` is the name put on emitted nodes and into messages, `hint` names their values.
    """

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self.node = ""
        self.hint = "v"
        self._names = FreshNames()
        self._fold = Folding()
        self._emitted = 0

    def input(self, name: str, shape: Sequence[int], dtype: Dtype) -> Value:
        value = Value(self._names.fresh(name), tuple(shape), dtype)
        self._check_size(value)
        self.inputs.append(value)
        return value

    def reserve(self, name: str) -> str:
        """Returns a name that no value will have."""
        return self._names.fresh(name)

    def constant(self, data: ArrayLike, dtype: Dtype | None = None, name: str = "") -> Value:
        """Returns an array as a value; the array must not change afterwards."""
        array = np.asarray(data, NUMPY[dtype] if dtype else None)
        if array.dtype not in DTYPES:
            raise UserError(f"{self.node}: constants of type {array.dtype} are not supported")
        value = Value(self._names.fresh(name or f"{self.hint}.c"), array.shape, DTYPES[array.dtype])
        self.constants[value] = array
        return value

    def number(self, value: float, like: Value) -> Value:
        return self.constant(value, like.dtype)

    def array(self, value: Value) -> Array | None:
        """Returns the array of a value if it is a constant, else None."""
        return self.constants.get(value)

    def emit(self, operator: str | Operator, /, *inputs: Value, **attributes: Attribute) -> Value:
        """Returns the result of one operation: a new node, or a constant if all inputs are constants.

        `operator` is a record, or the name of a record in `operators.table`.
        """
        node = node_of(operator, inputs, attributes, self.node)
        shape, dtype = infer(node)
        value = Value(self._names.fresh(self.hint), shape, dtype)
        self._check_size(value)
        self._emitted += 1
        if self._emitted > MOST_NODES:
            raise self.fail(f"written out, the model has more than {MOST_NODES:,} nodes")
        node = replace(node, outputs=(value,))
        if all(v in self.constants for v in inputs) and not _widens_weights(node):
            arrays = [self.constants[v] for v in inputs]
            array = self._fold(node, arrays) if value.size else np.zeros(shape, NUMPY[dtype])
            if array is not None:
                self.constants[value] = array
                return value
        self.nodes.append(node)
        return value

    def _check_size(self, value: Value) -> None:
        extents = [max(1, n) for n in value.shape]  # NumPy refuses large extents beside a zero as well
        if prod(extents) * ITEMSIZE[value.dtype] > MOST_VALUE:
            most = f"{MOST_VALUE >> 30} GiB"
            raise UserError(f"{value} would have {value.size:,} elements, more than a model may hold ({most})")
        if value.rank > MOST_DIMENSIONS:
            name = shown(value.name)
            raise UserError(f"%{name} has {value.rank} dimensions; at most {MOST_DIMENSIONS} are supported")

    def rename(self, value: Value, name: str, since: int) -> Value:
        """Renames the result of one of the nodes emitted after position `since`, if the new name is free."""
        if value.name == name or name in self._names.used:
            return value
        for k in range(len(self.nodes) - 1, since - 1, -1):
            if self.nodes[k].output == value:
                fresh = replace(value, name=self._names.fresh(name))
                self.nodes[k] = replace(self.nodes[k], outputs=(fresh,))
                for j, n in enumerate(self.nodes[k + 1 :], k + 1):
                    if value in n.inputs:
                        self.nodes[j] = replace(n, inputs=tuple(fresh if v == value else v for v in n.inputs))
                return fresh
        return value

    # The few operations that other code composes all the time.

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.emit("Reshape", x, shape=tuple(map(int, shape)))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        return x if list(order) == list(range(x.rank)) else self.emit("Transpose", x, perm=tuple(map(int, order)))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.emit("Expand", x, shape=tuple(map(int, shape)))

    def cut(self, x: Value, ranges: Mapping[int, tuple[int, int, int]]) -> Value:
        """Returns a part of x: by start, step and count in the dimensions that `ranges` names."""
        whole = [(0, 1, e) for e in x.shape]
        parts = [ranges.get(d, w) for d, w in enumerate(whole)]
        if parts == whole:
            return x
        starts = tuple(start if count else 0 for start, _, count in parts)
        return self.emit("Slice", x, starts=starts, steps=tuple(p[1] for p in parts), shape=tuple(p[2] for p in parts))

    def concat(self, parts: Sequence[Value], along: int) -> Value:
        """Returns a concatenation; many parts are joined in groups, as every part adds a level to the expression."""
        while len(parts) > 1:
            groups = [parts[k : k + MOST_PARTS] for k in range(0, len(parts), MOST_PARTS)]
            parts = [self.emit("Concat", *g, axis=along) if len(g) > 1 else g[0] for g in groups]
        return parts[0]

    def cast(self, x: Value, dtype: Dtype) -> Value:
        return x if x.dtype == dtype else self.emit("Cast", x, to=dtype)

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """Returns Sum, Max, Min or Prod: without dimensions the value itself, over an empty one the neutral element."""
        if not axes:
            return x
        dims = tuple(sorted(axes))
        if kind in ("Max", "Min") and any(x.shape[d] == 0 for d in dims):
            shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdims or d not in dims]
            none = identity_of("max" if kind == "Max" else "min", x.dtype)
            return self.expand(self.constant(none, x.dtype), shape)
        return self.emit(f"Reduce{kind}", x, axes=dims, keepdims=int(keepdims))

    def graph(self, outputs: Sequence[Value], names: Sequence[str], name: str, opset: int) -> Graph:
        """Returns the finished graph, without nodes and constants that no output needs."""
        inputs, nodes = tuple(self.inputs), tuple(self.nodes)
        return Graph(inputs, tuple(outputs), nodes, self.constants, name, opset, tuple(names)).pruned()

    def fail(self, message: str) -> UserError:
        return UserError(f"node {shown(self.node)}: {message}")


def _widens_weights(node: Node) -> bool:
    """Returns whether a node widens a matrix of halves or quantised numbers to f32.

    Products may read such matrices themselves (see `halves` and `quantized`).
    """
    x = node.inputs[0]
    return x.rank >= 2 and ((node.op == "Cast" and x.dtype in HALVES) or node.op == "Dequantize")


def use_counts(graph: Graph) -> Counter[Value]:
    """Returns the number of uses of each value: as an operand, and as an output of the graph."""
    counts: Counter[Value] = Counter(graph.outputs)
    for node in graph.nodes:
        counts.update(node.inputs)
    return counts


class Sweep:
    """A graph under construction. `producers` maps the value of each kept node to this node.

    `constants` maps the constants of the old graph, and new constants, to their arrays.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.producers: dict[Value, Node] = {}
        self._nodes: list[Node] = []
        self._replacements: dict[Value, Value] = {}
        self._names = FreshNames(graph)
        self._changed = False

    def current(self, node: Node) -> Node:
        """Returns the node with replaced values as inputs."""
        if not any(v in self._replacements for v in node.inputs):
            return node
        return replace(node, inputs=tuple(self._replacements.get(v, v) for v in node.inputs))

    def keep(self, node: Node) -> None:
        """Appends a node of the old graph, with current inputs, to the new graph."""
        self._nodes.append(node)
        self.producers[node.output] = node

    def keep_rewritten(self, node: Node) -> None:
        """Appends a node that the old graph does not have to the new graph."""
        self._changed = True
        self.keep(node)

    def emit(
        self, operator: str | Operator, inputs: Sequence[Value], attributes: Mapping[str, Attribute], like: Node
    ) -> Value:
        """Appends a node of an operator, named after the node `like`, and returns its value."""
        node = node_of(operator, inputs, attributes, like.name)
        value = Value(self._names.fresh(like.output.name), *infer(node))
        self.keep_rewritten(replace(node, outputs=(value,)))
        return value

    def replace(self, old: Value, new: Value) -> None:
        """Makes later readers of `old`, and the outputs, read `new`."""
        self._changed = True
        self._replacements[old] = self._replacements.get(new, new)

    def constant(self, array: Array, name: str) -> Value:
        """Returns a new constant."""
        value = Value(self._names.fresh(name), array.shape, DTYPES[array.dtype])
        self.constants[value] = array
        return value

    def fold(self, value: Value, array: Array) -> None:
        """Makes the value of a node of the old graph a constant."""
        self._changed = True
        self.constants[value] = array

    def array(self, value: Value) -> Array | None:
        """Returns the array of a constant; None for other values."""
        return self.constants.get(value)

    def finished(self) -> Graph:
        """Returns the new graph, without unread nodes and constants; the old graph if nothing changed."""
        if not self._changed:
            return self.graph
        outputs = tuple(self._replacements.get(v, v) for v in self.graph.outputs)
        return replace(self.graph, nodes=tuple(self._nodes), outputs=outputs, constants=self.constants).pruned()


def uniform(array: Array) -> float | None:
    """Returns the number that all elements equal; None if elements differ or the array is empty."""
    if array.size == 0:
        return None
    first = array.flat[0]
    if array.size > 1 and (array.flat[array.size - 1] != first or not bool(np.all(array == first))):
        return None
    return first.item()
