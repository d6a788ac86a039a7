"""Recurrent networks and static loops, unrolled in time.

A sequence's length is known, so every step is a few nodes of its own; the product with the inputs is one product for
all steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from stormdrop.frontend.movement import cut
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Value

MOST_STEPS = 1024
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_RANKS = (3, 3, 3, 2, 1, 3, 3, 2)
"""X, W, R, B, lengths, and the states; an LSTM's peepholes."""
_PLAIN = {"Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"}


def _part(n: NodeReader, x: Value, along: int, start: int, count: int) -> Value:
    return cut(n, x, {along: (start, 1, count)})


def _row(n: NodeReader, x: Value, at: int) -> Value:
    """x[at] along the first dimension, which is dropped."""
    return n.build.reshape(_part(n, x, 0, at, 1), x.shape[1:])


class _Cell:
    """One direction: weights, activations, and the step from one state to the next."""

    def __init__(self, n: NodeReader, direction: int, hidden: int, gates: int) -> None:
        self.n, self.hidden, b = n, hidden, n.build
        self.w, self.r = _row(n, n.input(1), direction), _row(n, n.input(2), direction)
        given = n.optional(3)
        both = _row(n, given, direction) if given is not None else None
        size = gates * hidden
        self.bias_w = _part(n, both, 0, 0, size) if both is not None else None
        self.bias_r = _part(n, both, 0, size, size) if both is not None else None
        peepholes = n.optional(7) if n.op == "LSTM" else None
        row = _row(n, peepholes, direction) if peepholes is not None else None
        self.peepholes = [_part(n, row, 0, k * hidden, hidden) for k in range(3)] if row is not None else None
        names = n.attributes.get("activations") or list(_DEFAULTS[n.op]) * 2
        count = len(_DEFAULTS[n.op])
        self.names = [str(a).capitalize() for a in names[direction * count : (direction + 1) * count]]
        if any(a not in _PLAIN for a in self.names) or n.has("clip") or n.integer("input_forget", 0):
            raise n.fail(f"activations {self.names}, clip or input_forget are not supported")
        self.build: GraphBuilder = b

    def act(self, k: int, x: Value) -> Value:
        return self.build.emit(self.names[k], x)

    def plus(self, x: Value, bias: Value | None) -> Value:
        return x if bias is None else self.build.emit("Add", x, bias)

    def from_inputs(self, x: Value) -> Value:
        """The part of all gates that the inputs decide, for all steps at once: [seq, batch, gates · hidden]."""
        return self.plus(self.build.emit("MatMul", x, self.w, transpose_b=1), self.bias_w)

    def gate(self, x: Value, k: int) -> Value:
        return _part(self.n, x, x.rank - 1, k * self.hidden, self.hidden)

    def step(self, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
        """x: the inputs' part of the gates at this step."""
        b = self.build
        if self.n.op == "GRU" and self.n.integer("linear_before_reset", 0) == 0:
            return self._gru_before(x, h), None
        recurrent = self.plus(b.emit("MatMul", h, self.r, transpose_b=1), self.bias_r)
        if self.n.op == "RNN":
            return self.act(0, b.emit("Add", x, recurrent)), None
        if self.n.op == "GRU":
            z, r = (self.act(0, b.emit("Add", self.gate(x, k), self.gate(recurrent, k))) for k in (0, 1))
            new = self.act(1, b.emit("Add", self.gate(x, 2), b.emit("Mul", r, self.gate(recurrent, 2))))
            return self._mix(z, new, h), None
        assert c is not None
        return self._lstm(b.emit("Add", x, recurrent), c)

    def _mix(self, z: Value, new: Value, h: Value) -> Value:
        b = self.build
        return b.emit("Add", b.emit("Mul", b.emit("Sub", b.number(1, z), z), new), b.emit("Mul", z, h))

    def _gru_before(self, x: Value, h: Value) -> Value:
        b, n, size = self.build, self.n, self.hidden
        first = _part(n, self.r, 0, 0, 2 * size)
        bias = self.bias_r
        recurrent = self.plus(
            b.emit("MatMul", h, first, transpose_b=1), _part(n, bias, 0, 0, 2 * size) if bias is not None else None
        )
        z, r = (self.act(0, b.emit("Add", self.gate(x, k), self.gate(recurrent, k))) for k in (0, 1))
        last = b.emit("MatMul", b.emit("Mul", r, h), _part(n, self.r, 0, 2 * size, size), transpose_b=1)
        new = self.act(
            1,
            b.emit(
                "Add", self.gate(x, 2), self.plus(last, _part(n, bias, 0, 2 * size, size) if bias is not None else None)
            ),
        )
        return self._mix(z, new, h)

    def _lstm(self, gates: Value, c: Value) -> tuple[Value, Value]:
        """Gates in the order input, output, forget, cell."""
        b, p = self.build, self.peepholes

        def peep(x: Value, k: int, state: Value) -> Value:
            return x if p is None else b.emit("Add", x, b.emit("Mul", p[k], state))

        i = self.act(0, peep(self.gate(gates, 0), 0, c))
        f = self.act(0, peep(self.gate(gates, 2), 2, c))
        new = b.emit("Add", b.emit("Mul", f, c), b.emit("Mul", i, self.act(1, self.gate(gates, 3))))
        o = self.act(0, peep(self.gate(gates, 1), 1, new))
        return b.emit("Mul", o, self.act(2, new)), new


def _recurrent(n: NodeReader) -> Results:
    b, x = n.build, n.input(0)
    for k, rank in enumerate(_RANKS):
        given = n.optional(k)
        if given is not None and given.rank != rank:
            raise n.fail(f"input {k} ({given}) must have {rank} dimensions")
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[n.op]
    batch_first = bool(n.integer("layout", 0))
    if batch_first:
        x = b.transpose(x, (1, 0, 2))
    steps, batch = x.shape[0], x.shape[1]
    directions, hidden = n.input(1).shape[0], n.integer("hidden_size", n.input(2).shape[-1])
    way = n.text("direction", "forward")
    if (
        steps > MOST_STEPS
        or steps < 1
        or n.input(1).shape[1] != gates * hidden
        or directions != (2 if way == "bidirectional" else 1)
    ):
        raise n.fail(
            f"a sequence of {steps} steps, or weights {n.input(1)} for {directions} directions, are not supported"
        )
    if n.optional(4) is not None and set(n.array(4).tolist()) != {steps}:
        raise n.fail("sequences of different lengths are not supported")
    sequences: list[Value] = []
    ends: list[Value] = []
    cells: list[Value] = []
    for d in range(directions):
        cell = _Cell(n, d, hidden, gates)
        projected = cell.from_inputs(x)
        h, c = (
            _start(n, 5, d, batch, hidden, batch_first),
            _start(n, 6, d, batch, hidden, batch_first) if n.op == "LSTM" else None,
        )
        outputs: list[Value | None] = [None] * steps
        backwards = way == "reverse" or d == 1
        for t in reversed(range(steps)) if backwards else range(steps):
            h, c = cell.step(_row(n, projected, t), h, c)
            outputs[t] = b.reshape(h, (1, 1, batch, hidden))
        sequences.append(joined(b, [o for o in outputs if o is not None], 0))
        ends.append(b.reshape(h, (1, batch, hidden)))
        cells += [] if c is None else [b.reshape(c, (1, batch, hidden))]
    results: list[Value | None] = [joined(b, sequences, 1), joined(b, ends, 0), joined(b, cells, 0) if cells else None]
    if batch_first:
        orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        results = [None if v is None else b.transpose(v, order) for v, order in zip(results, orders)]
    return results


def _start(n: NodeReader, k: int, direction: int, batch: int, hidden: int, batch_first: bool) -> Value:
    given = n.optional(k)
    if given is None:
        return n.build.expand(n.build.number(0, n.input(0)), (batch, hidden))
    return _row(n, n.build.transpose(given, (1, 0, 2)) if batch_first else given, direction)


def joined(b: GraphBuilder, parts: Sequence[Value], along: int) -> Value:
    """A concatenation in groups, so that no expression has many levels."""
    listed = list(parts)
    while len(listed) > 1:
        groups = [listed[k : k + 16] for k in range(0, len(listed), 16)]
        listed = [b.emit("Concat", *g, axis=along) if len(g) > 1 else g[0] for g in groups]
    return listed[0]


RECURRENT: dict[str, Importer] = {"RNN": _recurrent, "GRU": _recurrent, "LSTM": _recurrent}
