"""Steps of optimisers: the operators of the domain ai.onnx.preview.training, which are elementwise.

Inputs are the rate R, the number of steps T, and then for every tensor that is optimised the tensor X, its gradient G
and its state; outputs are the new tensors and states. All tensors come first, then all gradients, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.graph.graph import Value

Step = Callable[["_Arithmetic", Sequence[Value]], Sequence[Value]]
"""From a tensor, its gradient and its states to the new tensor and the new states."""


class _Arithmetic:
    """The rate, the number of steps and the attributes of one node, and sums and products of values and numbers."""

    def __init__(self, n: NodeReader) -> None:
        self.n, self.b = n, n.build
        self.rate, self.steps = n.input(0), n.input(1)

    def do(self, op: str, x: Value, y: Value | float) -> Value:
        return self.b.emit(op, x, y if isinstance(y, Value) else self.b.number(y, x))

    def blend(self, x: Value, share: float, y: Value, rest: float) -> Value:
        """share · x + rest · y."""
        return self.do("Add", self.do("Mul", x, share), self.do("Mul", y, rest))

    def regularised(self, x: Value, gradient: Value) -> Value:
        return self.do("Add", self.do("Mul", x, self.n.number("norm_coefficient", 0.0)), gradient)

    def after_the_first(self, then: Value, otherwise: Value) -> Value:
        """`then` where steps were made before, else `otherwise`."""
        return self.b.emit("Where", self.do("Greater", self.steps, 0), then, otherwise)


def _adagrad(a: _Arithmetic, values: Sequence[Value]) -> Sequence[Value]:
    x, gradient, squares = values
    g = a.regularised(x, gradient)
    steps = a.b.cast(a.steps, a.rate.dtype)
    decay = a.do("Add", a.do("Mul", steps, a.n.number("decay_factor", 0.0)), 1.0)
    rate = a.b.cast(a.do("Div", a.rate, decay), x.dtype)
    total = a.do("Add", squares, a.do("Mul", g, g))
    root = a.do("Add", a.b.emit("Sqrt", total), a.n.number("epsilon", 1e-6))
    return a.do("Sub", x, a.do("Div", a.do("Mul", rate, g), root)), total


def _momentum(a: _Arithmetic, values: Sequence[Value]) -> Sequence[Value]:
    x, gradient, velocity = values
    g = a.regularised(x, gradient)
    alpha, mode = a.n.number("alpha"), a.n.text("mode")
    if mode not in ("standard", "nesterov"):
        raise a.n.fail(f"unknown mode {mode}")
    beta = a.after_the_first(a.b.number(a.n.number("beta"), x), a.b.number(1.0, x))
    new = a.do("Add", a.do("Mul", velocity, alpha), a.do("Mul", g, beta))
    way = new if mode == "standard" else a.do("Add", g, a.do("Mul", new, alpha))
    return a.do("Sub", x, a.do("Mul", a.b.cast(a.rate, x.dtype), way)), new


def _adam(a: _Arithmetic, values: Sequence[Value]) -> Sequence[Value]:
    x, gradient, mean, squares = values
    g = a.regularised(x, gradient)
    alpha, beta = a.n.number("alpha", 0.9), a.n.number("beta", 0.999)
    new_mean, new_squares = a.blend(mean, alpha, g, 1 - alpha), a.blend(squares, beta, a.do("Mul", g, g), 1 - beta)
    steps = a.b.cast(a.steps, a.rate.dtype)

    def missing(base: float) -> Value:
        """1 - base^T: the weight that the first T steps have in a running mean."""
        return a.do("Sub", a.b.number(1.0, a.rate), a.b.emit("Pow", a.b.number(base, a.rate), steps))

    corrected = a.do("Div", a.do("Mul", a.rate, a.b.emit("Sqrt", missing(beta))), missing(alpha))
    rate = a.b.cast(a.after_the_first(corrected, a.rate), x.dtype)
    root = a.do("Add", a.b.emit("Sqrt", new_squares), a.n.number("epsilon", 1e-6))
    new = a.do("Sub", x, a.do("Div", a.do("Mul", rate, new_mean), root))
    return a.do("Mul", new, 1 - a.n.number("norm_coefficient_post", 0.0)), new_mean, new_squares


def _each(step: Step, values: int) -> Importer:
    """One step for every tensor; `values` counts a tensor, its gradient and its states."""

    def importer(n: NodeReader) -> Results:
        tensors = [n.input(k) for k in range(2, len(n.inputs))]
        count, rest = divmod(len(tensors), values)
        if rest or not count:
            raise n.fail(f"{len(tensors)} inputs behind the first two are not {values} for each tensor")
        arithmetic = _Arithmetic(n)
        results = [step(arithmetic, tensors[k::count]) for k in range(count)]
        return [value for kind in zip(*results) for value in kind]

    return importer


TRAINING: dict[str, Importer] = {
    "Adagrad": _each(_adagrad, 3),
    "Momentum": _each(_momentum, 3),
    "Adam": _each(_adam, 4),
}
