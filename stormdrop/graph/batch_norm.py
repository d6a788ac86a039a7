"""Folding of scales and shifts by constants into neighbouring constant weights.

Batch norm is a Mul and an Add of constants here, a bias an Add. Around a product with constant weights W (Conv,
ConvTranspose, MatMul) they become one product and one Add:

    (W ∗ (a·x + b)) · s + t   =   (a·W·s) ∗ x + ((W ∗ b)·s + t)

Here a and b are per input channel, s is per output channel, and t is any constant that broadcasts to the result. A
shift b needs a window without padding.

Only values with a single reader that are no outputs are merged; the pass looks through no nodes except movements of
scalars. New weights are computed in f64 and rounded once. Weights that would overflow stay unchanged.

Invariant: `_Folding` holds a graph at every moment. `producers` gives each value's node; `uses` and `readers` describe
the current graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from stormdrop.graph.builder import uniform, use_counts
from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.graph.identities import TAME
from stormdrop.ir.dtypes import FLOATS, HALVES, NUMPY
from stormdrop.operators.broadcast import broadcast_shape
from stormdrop.operators.node import Array, Node, Value
from stormdrop.operators.pointwise import ADD

PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul"})
MOST_DOUBLED = 1 << 20
"""The largest weights, in bytes, that are copied to save a multiplication if they have another reader."""


def fold_scales(graph: Graph) -> Graph:
    """Merges multiplications and additions of constants around products into weights and one addition.

        Add(Mul(Add(Conv(x, w), b), s), t)   ->   Add(Conv(x, w·s), b·s + t)
        Conv(Mul(x, a), w)                   ->   Conv(x, a·w)
        Conv(Add(x, b), w) without padding   ->   Add(Conv(x, w), Σ w·b)

    Quotients and differences count as products and sums. A mean (SumPool, Mul) stays together.
    """
    if not any(n.op in PRODUCTS for n in graph.nodes):
        return graph
    folding = _Folding(graph)
    for node in graph.nodes:
        if node.op in PRODUCTS:
            folding.merge(folding.producers[node.output])
    return folding.finished()


ONE, ZERO = np.ones(1), np.zeros(1)


@dataclass(frozen=True, slots=True)
class _Step:
    """The function x · scale + shift of a value x."""

    x: Value
    scale: Array
    shift: Array


@dataclass(frozen=True, slots=True)
class _Product:
    """A product with constant weights.

    `reads` and `writes` are the channel dimensions of its data and of its result, `inner` and `outer` the channel
    dimensions of its weights. With groups, the weight dimension that comes first in the file's order holds all groups,
    and the second dimension holds one group.
    """

    node: Node
    data: int
    reads: int
    writes: int
    inner: int
    outer: int

    @property
    def weights(self) -> Value:
        return self.node.inputs[1 - self.data]

    @property
    def takes_shift(self) -> bool:
        """True if adding constants to the input channels adds constants to the output channels."""
        if self.node.op == "Conv":
            return not any((*self.node.integers("before"), *self.node.integers("after")))
        return self.node.op == "MatMul"

    def factor(self, channels: Array, outwards: bool) -> Array:
        """Returns numbers per output or input channel, or a single number, in a shape to multiply the weights."""
        shape = self.weights.shape
        at, other = (self.outer, self.inner) if outwards else (self.inner, self.outer)
        if channels.size in (1, shape[at]):
            return _shaped(channels, len(shape), at)
        groups = self.node.integer("groups")  # this dimension is of one group, the other one holds all groups
        table = np.repeat(channels.reshape(groups, -1), shape[other] // groups, axis=0)
        table = table if other < at else table.T
        return table.reshape([n if d in (at, other) else 1 for d, n in enumerate(shape)])

    def response(self, channels: Array, w: Array) -> Array:
        """Returns the change of the result if `channels` is added to the input channels, in a shape for addition.

        Requires `takes_shift`.
        """
        matrices = self.node.op == "MatMul"
        kept = [d for d in range(w.ndim) if d != self.inner] if matrices else [self.outer]
        total = _contracted(w, self.factor(channels, False), kept)
        return np.expand_dims(total, self.data - 2) if matrices else _shaped(total, self.node.output.rank, self.writes)


def _contracted(w: Array, factor: Array, kept: Sequence[int]) -> Array:
    """Returns Σ w·factor over all dimensions except the kept dimensions, in f64 without a copy of the weights."""
    dims = list(range(w.ndim))
    wide = factor.reshape((1,) * (w.ndim - factor.ndim) + factor.shape)
    return np.asarray(np.einsum(w, dims, wide, dims, list(kept), dtype=np.float64))


def _shaped(channels: Array, rank: int, at: int) -> Array:
    return channels.reshape([-1 if d == at else 1 for d in range(rank)])


def _channels(c: Array, rank: int, at: int | None) -> Array | None:
    """Returns a constant as numbers per channel or as a single number for all channels, else None.

    Without `at` there are no channels.
    """
    shape = (1,) * (rank - c.ndim) + c.shape
    if at is not None and all(e == 1 for d, e in enumerate(shape) if d != at):
        return c.reshape(-1)
    one = uniform(c)
    return None if one is None else np.array([one], np.float64)


def _has_room(a: Array, b: Array) -> bool:
    """Returns whether the broadcast of a and b is no larger than the larger of the two."""
    return prod(broadcast_shape(a.shape, b.shape)) <= max(a.size, b.size)


def _scaled(w: Array, factors: Sequence[Array]) -> Array | None:
    """Returns the weights times all factors, in f64 piece by piece and rounded once; None if that overflows."""
    result = np.empty(w.shape, w.dtype)
    try:
        with np.errstate(over="raise", invalid="raise", under="ignore"):
            factor = factors[0] if len(factors) == 1 else factors[0] * factors[1]
            np.multiply(w, factor, out=result, dtype=np.float64, casting="same_kind")
    except FloatingPointError:
        return None
    return result


class _Folding:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.names = FreshNames(graph)
        self.uses = use_counts(graph)
        self.outputs = frozenset(graph.outputs)
        self.producers: dict[Value, Node] = {}
        self.readers: dict[Value, Node] = {}
        """The last reader of a value, its only reader if `uses` is 1."""
        self.slots: dict[Value, tuple[Value, ...]] = {}
        """The current nodes' values in place of a value of the original graph, if they changed."""
        self.dropped: set[Value] = set()
        for node in graph.nodes:
            self._put(node)

    def _put(self, node: Node) -> None:
        self.producers[node.output] = node
        for v in node.inputs:
            self.readers[v] = node

    def finished(self) -> Graph:
        if not self.slots:
            return self.graph
        values = [v for n in self.graph.nodes for v in self.slots.get(n.output, (n.output,)) if v not in self.dropped]
        nodes = tuple(self.producers[v] for v in values)
        return replace(self.graph, nodes=nodes, constants=self.constants).pruned()

    def only_reader(self, v: Value) -> Node | None:
        return self.readers.get(v) if self.uses[v] == 1 and v not in self.outputs else None

    def merge(self, node: Node) -> None:
        """Folds the scales and shifts around one product into its weights."""
        product = self._product(node)
        if product is None or (self.uses[product.weights] > 1 and product.weights.nbytes > MOST_DOUBLED):
            return
        before, a, b = self._before(product)
        w = self.constants[product.weights]
        behind, s, shift = self._behind(product, product.response(b, w) if b.any() else ZERO)
        factors = [product.factor(c, outwards) for c, outwards in ((a, False), (s, True)) if np.any(c != 1)]
        if not before and not factors and len(behind) < 2:
            return
        weights = _scaled(w, factors) if factors else w
        added = self._addend(product, shift) if shift.any() else None
        if weights is None or (added is not None and not bool(np.all(np.isfinite(added)))):
            return
        for step in before:
            self._bypass(step)
        self._replace(product, weights, added, behind)

    def _product(self, node: Node) -> _Product | None:
        if node.output.dtype not in FLOATS or node.inputs[0].dtype in HALVES:
            return None
        known = [v in self.constants for v in node.inputs]
        if sum(known) != 1 or (known[0] and node.op != "MatMul"):
            return None
        data = known.index(False)
        rank = node.inputs[1 - data].rank
        if node.op == "MatMul":
            turned = [node.flag(key, 0) for key in ("transpose_a", "transpose_b")]
            reads, inner = (node.inputs[k].rank - (1 if (k == 0) != turned[k] else 2) for k in (data, 1 - data))
            return _Product(node, data, reads, node.output.rank - 1 - data, inner, 2 * rank - 3 - inner)
        if node.text("layout") == "NCHW":
            return _Product(node, 0, 1, 1, *((1, 0) if node.op == "Conv" else (0, 1)))
        if node.op == "ConvTranspose" and node.integer("groups") != 1:
            return None
        return _Product(node, 0, rank - 1, rank - 1, rank - 2, rank - 1)

    def _before(self, product: _Product) -> tuple[list[Node], Array, Array]:
        """Returns the steps that end in the product's data, last step first, and their scale and shift per channel."""
        steps: list[Node] = []
        a, b = ONE, ZERO
        v, channel = product.node.inputs[product.data], product.reads
        extent = v.shape[channel]
        while v.size and self.only_reader(v) is not None and (node := self.producers.get(v)) is not None:
            if node.operator.moves == "all":  # only a factor of all channels may cross a movement
                v, channel = node.inputs[0], None
                continue
            step = self._step(node, None)
            if step is None or ((made := self.producers.get(step.x)) is not None and made.op == "SumPool"):
                break  # no scale or shift to fold, or a mean
            scale, shift = (_channels(c, v.rank, channel) for c in (step.scale, step.shift))
            if scale is None or shift is None or (shift.any() and not product.takes_shift):
                break
            a, b = a * scale, b + a * shift
            steps.append(node)
            v = step.x
        return steps, a, np.broadcast_to(b, (extent,))

    def _behind(self, product: _Product, shift: Array) -> tuple[list[Node], Array, Array]:
        """Returns the steps that follow the product, their factor for each channel, and the sum of all shifts."""
        steps: list[Node] = []
        scale = ONE
        v, rank = product.node.output, product.node.output.rank
        while (node := self.only_reader(v)) is not None:
            step = self._step(node, v)
            factor = None if step is None else _channels(step.scale, rank, product.writes)
            if step is None or factor is None:
                break
            spread = _shaped(factor, rank, product.writes)
            if shift.any() and not _has_room(shift, spread):
                break
            moved = shift * spread if shift.any() else shift
            if not _has_room(moved, step.shift):
                break
            shift, scale = moved + step.shift, scale * factor
            steps.append(node)
            v = node.output
        return steps, scale, shift

    def _step(self, node: Node, of: Value | None) -> _Step | None:
        """Returns the scale and shift that the node applies to `of` (None: to its operand that is not constant).

        Returns None for nodes that compute anything else.
        """
        if node.output.dtype not in FLOATS:
            return None
        if node.op == "Neg":
            return _Step(node.inputs[0], -ONE, ZERO)
        if node.op not in ("Add", "Sub", "Mul", "Div"):
            return None
        constant = [v in self.constants for v in node.inputs]
        if sum(constant) != 1:
            return None
        x, known = (node.inputs[0], node.inputs[1]) if constant[1] else (node.inputs[1], node.inputs[0])
        if x.shape != node.output.shape or (of is not None and x != of):
            return None
        c = self.constants[known].astype(np.float64)
        if not bool(np.all(np.isfinite(c))):
            return None
        match node.op:
            case "Mul":
                return _Step(x, c, ZERO)
            case "Div":
                return _Step(x, 1 / c, ZERO) if constant[1] and bool(np.all(c != 0)) else None
            case _:
                if bool(np.any(np.abs(c) > TAME[node.output.dtype])):
                    return None
                if node.op == "Add":
                    return _Step(x, ONE, c)
                return _Step(x, ONE, -c) if constant[1] else _Step(x, -ONE, c)

    def _bypass(self, step: Node) -> None:
        """Connects the only reader of a step to the step's input."""
        x = next(v for v in step.inputs if v not in self.constants)
        reader = self.readers[step.output]
        self._put(replace(reader, inputs=tuple(x if v == step.output else v for v in reader.inputs)))
        self.dropped.add(step.output)

    def _addend(self, product: _Product, shift: Array) -> Array:
        """Returns a shift shaped like an imported bias.

        The bias of a window has the image's rank; the bias of a matrix product has no leading dimensions of extent 1.
        """
        rank = product.node.output.rank
        shape = (1,) * (rank - shift.ndim) + shift.shape
        if product.node.op == "MatMul":
            first = next((d for d, e in enumerate(shape) if e != 1), rank - 1)
            shape = shape[first:]
        with np.errstate(over="ignore"):
            return shift.reshape(shape).astype(NUMPY[product.node.output.dtype])

    def _replace(self, product: _Product, weights: Array, added: Array | None, behind: Sequence[Node]) -> None:
        """Replaces the product by the merged product, followed by an addition if `added` is given."""
        node = self.producers[product.node.output]
        start, end = node.output, behind[-1].output if behind else node.output
        w = product.weights
        if weights is not self.constants[w]:
            # Weights that only this product reads are replaced under their own name: the old ones need not be kept.
            w = w if self.uses[w] == 1 else Value(self.names.fresh(w.name), w.shape, w.dtype)
            self.constants[w] = weights
        inputs = tuple(v if k == product.data else w for k, v in enumerate(node.inputs))
        for step in behind:
            self.slots[step.output] = ()
        if added is None:
            self.slots[start] = (end,)
            self._put(replace(node, inputs=inputs, outputs=(end,)))
            return
        middle = start if behind else Value(self.names.fresh(f"{start.name}.product"), start.shape, start.dtype)
        shift = Value(self.names.fresh(f"{end.name}.shift"), added.shape, end.dtype)
        self.constants[shift] = added
        self.slots[start] = (middle, end)
        self.uses[middle] = 1
        self._put(replace(node, inputs=inputs, outputs=(middle,)))
        self._put(Node(ADD, (middle, shift), (end,), name=(behind[-1] if behind else node).name))
