"""Making a graph node by node. Shapes follow from the operators; what depends on constants alone is computed at once.

Bounds: what is folded is little (see `fold`); no value of a model may be larger than `MOST_VALUE` or have more
dimensions than `MOST_DIMENSIONS`, and no model more nodes than `MOST_NODES`: a small file cannot ask for a huge array,
or for endless work.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.errors import UserError
from stormdrop.graph.fold import Folding
from stormdrop.graph.graph import Attribute, Graph, Node, Value, shown
from stormdrop.graph.shapes import infer
from stormdrop.ir.expr import ITEMSIZE, NUMPY, Dtype, identity_of

Array = NDArray[Any]
MOST_VALUE = 1 << 36
MOST_DIMENSIONS = 32
MOST_NODES = 250_000
DTYPES: dict[np.dtype[Any], Dtype] = {np.dtype(t): d for d, t in NUMPY.items()}


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
        self._names: dict[str, int] = {}
        self._fold = Folding()
        self._emitted = 0

    def unique(self, name: str) -> str:
        """A name that no value has yet."""
        name = name or "v"
        if name not in self._names:
            self._names[name] = 0
            return name
        while True:
            self._names[name] += 1
            fresh = f"{name}.{self._names[name]}"
            if fresh not in self._names:
                self._names[fresh] = 0
                return fresh

    def input(self, name: str, shape: Sequence[int], dtype: Dtype) -> Value:
        value = Value(self.unique(name), tuple(shape), dtype)
        self._check_size(value)
        self.inputs.append(value)
        return value

    def constant(self, data: ArrayLike, dtype: Dtype | None = None, name: str = "") -> Value:
        """An array as a value; it must not be changed afterwards."""
        array = np.asarray(data, NUMPY[dtype] if dtype else None)
        if array.dtype not in DTYPES:
            raise UserError(f"{self.node}: constants of type {array.dtype} are not supported")
        value = Value(self.unique(name or f"{self.hint}.c"), array.shape, DTYPES[array.dtype])
        self.constants[value] = array
        return value

    def number(self, value: float, like: Value) -> Value:
        return self.constant(value, like.dtype)

    def array(self, value: Value) -> Array | None:
        """What is known of a value, if it is a constant."""
        return self.constants.get(value)

    def emit(self, op: str, *inputs: Value, **attributes: Attribute) -> Value:
        """The result of one operation: a new node, or a constant where all inputs are."""
        shape, dtype = infer(op, inputs, attributes)
        value = Value(self.unique(self.hint), shape, dtype)
        self._check_size(value)
        self._emitted += 1
        if self._emitted > MOST_NODES:
            raise self.fail(f"written out, the model has more than {MOST_NODES:,} nodes")
        node = Node(op, inputs, (value,), attributes, self.node)
        if all(v in self.constants for v in inputs):
            array = (
                self._fold(node, [self.constants[v] for v in inputs]) if value.size else np.zeros(shape, NUMPY[dtype])
            )
            if array is not None:
                self.constants[value] = array
                return value
        self.nodes.append(node)
        return value

    def _check_size(self, value: Value) -> None:
        extents = [max(1, n) for n in value.shape]  # NumPy refuses large extents beside a zero as well
        if prod(extents) * ITEMSIZE[value.dtype] > MOST_VALUE:
            raise UserError(
                f"{value} would have {value.size:,} elements, more than a model may hold ({MOST_VALUE >> 30} GiB)"
            )
        if value.rank > MOST_DIMENSIONS:
            raise UserError(
                f"%{shown(value.name)} has {value.rank} dimensions; at most {MOST_DIMENSIONS} are supported"
            )

    def rename(self, value: Value, name: str, since: int) -> Value:
        """Give the result of one of the nodes emitted after position `since` another name, if that is free."""
        if value.name == name or name in self._names:
            return value
        for k in range(len(self.nodes) - 1, since - 1, -1):
            if self.nodes[k].output == value:
                fresh = Value(name, value.shape, value.dtype)
                self._names[name] = 0
                self.nodes[k] = Node(
                    self.nodes[k].op, self.nodes[k].inputs, (fresh,), self.nodes[k].attributes, self.nodes[k].name
                )
                for j in range(k + 1, len(self.nodes)):
                    n = self.nodes[j]
                    if value in n.inputs:
                        self.nodes[j] = Node(
                            n.op, tuple(fresh if v == value else v for v in n.inputs), n.outputs, n.attributes, n.name
                        )
                return fresh
        return value

    # The few operations that other code composes all the time.

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.emit("Reshape", x, shape=tuple(map(int, shape)))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        return x if list(order) == list(range(x.rank)) else self.emit("Transpose", x, perm=tuple(map(int, order)))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.emit("Expand", x, shape=tuple(map(int, shape)))

    def cast(self, x: Value, dtype: Dtype) -> Value:
        return x if x.dtype == dtype else self.emit("Cast", x, to=dtype)

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """Sum, Max, Min or Prod; over no dimension it is the value itself, over an empty one the neutral element."""
        if not axes:
            return x
        dims = tuple(sorted(axes))
        if kind in ("Max", "Min") and any(x.shape[d] == 0 for d in dims):
            shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdims or d not in dims]
            none = identity_of("max" if kind == "Max" else "min", x.dtype)
            return self.expand(self.constant(none, x.dtype), shape)
        return self.emit(f"Reduce{kind}", x, axes=dims, keepdims=int(keepdims))

    def graph(self, outputs: Sequence[Value], names: Sequence[str], name: str, opset: int) -> Graph:
        """The finished graph, without what no output needs."""
        return Graph(
            tuple(self.inputs), tuple(outputs), tuple(self.nodes), self.constants, name, opset, tuple(names)
        ).pruned()

    def fail(self, message: str) -> UserError:
        return UserError(f"node {shown(self.node)}: {message}")
