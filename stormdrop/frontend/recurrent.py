"""Recurrent networks and static loops, unrolled in time.

A sequence's length is known, so every step is a few nodes; the product with the inputs is one for all steps.
"""

from __future__ import annotations

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.graph.builder import GraphBuilder
from stormdrop.operators.node import Value

MOST_STEPS = 1024
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_RANKS = (3, 3, 3, 2, 1, 3, 3, 2)
"""The ranks of the inputs: X, W, R, B, lengths, the states, and an LSTM's peepholes."""
_PLAIN = {"Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"}


def element(b: GraphBuilder, x: Value, at: int, along: int = 0) -> Value:
    """Returns x[…, at, …] without that dimension."""
    return b.reshape(b.cut(x, {along: (at, 1, 1)}), [e for d, e in enumerate(x.shape) if d != along])


class _Cell:
    """One direction: weights, activations, and the step from one state to the next."""

    def __init__(self, n: NodeReader, direction: int, hidden: int, gates: int) -> None:
        self.n, self.hidden, self.gates, self.build = n, hidden, gates, n.build
        self.w, self.r = (element(n.build, n.input(k), direction) for k in (1, 2))
        given = n.optional(3), n.optional(7) if n.op == "LSTM" else None
        self.bias, self.peepholes = (None if v is None else element(n.build, v, direction) for v in given)
        names = n.attributes.get("activations") or list(_DEFAULTS[n.op]) * 2
        count = len(_DEFAULTS[n.op])
        self.names = [str(a).capitalize() for a in names[direction * count : (direction + 1) * count]]
        if any(a not in _PLAIN for a in self.names) or n.has("clip") or n.integer("input_forget", 0):
            raise n.unsupported(f"activations {self.names}, clip or input_forget")

    def act(self, k: int, x: Value) -> Value:
        return self.build.emit(self.names[k], x)

    def gate(self, x: Value, k: int, count: int = 1, along: int = -1) -> Value:
        """Returns `count` gates from the k-th on, which are neighbours in one dimension."""
        return self.build.cut(x, {along % x.rank: (k * self.hidden, 1, count * self.hidden)})

    def from_inputs(self, x: Value) -> Value:
        """Returns the inputs' part of all gates, for all steps at once: [seq, batch, gates · hidden]."""
        product = self.build.emit("MatMul", x, self.w, transpose_b=1)
        return product if self.bias is None else self.build.emit("Add", product, self.gate(self.bias, 0, self.gates))

    def from_state(self, h: Value, k: int, count: int) -> Value:
        """Returns the state's part of `count` gates from the k-th on."""
        product = self.build.emit("MatMul", h, self.gate(self.r, k, count, along=0), transpose_b=1)
        if self.bias is None:
            return product
        return self.build.emit("Add", product, self.gate(self.bias, self.gates + k, count))

    def step(self, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
        """Computes one step; `x` is the inputs' part of the gates at this step."""
        if self.n.op == "GRU":
            return self._gru(x, h), None
        gates = self.build.emit("Add", x, self.from_state(h, 0, self.gates))
        return (self.act(0, gates), None) if c is None else self._lstm(gates, c)

    def _gru(self, x: Value, h: Value) -> Value:
        """Computes a GRU step with gates in the order update, reset, new.

        The reset gate acts on the state, or on its part of the new gate.
        """
        b, resets_product = self.build, self.n.integer("linear_before_reset", 0)
        recurrent = self.from_state(h, 0, 3 if resets_product else 2)
        z, r = (self.act(0, b.emit("Add", self.gate(x, k), self.gate(recurrent, k))) for k in (0, 1))
        if resets_product:
            kept = b.emit("Mul", r, self.gate(recurrent, 2))
        else:
            kept = self.from_state(b.emit("Mul", r, h), 2, 1)
        new = self.act(1, b.emit("Add", self.gate(x, 2), kept))
        return b.emit("Add", b.emit("Mul", b.emit("Sub", b.number(1, z), z), new), b.emit("Mul", z, h))

    def _lstm(self, gates: Value, c: Value) -> tuple[Value, Value]:
        """Computes an LSTM step with gates in the order input, output, forget, cell."""
        b, p = self.build, self.peepholes

        def peep(x: Value, k: int, state: Value) -> Value:
            return x if p is None else b.emit("Add", x, b.emit("Mul", self.gate(p, k), state))

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
    fits = n.input(1).shape[1] == gates * hidden and directions == (2 if way == "bidirectional" else 1)
    if not fits:
        raise n.fail(f"weights {n.input(1)} do not fit {hidden} units, {way}")
    if not 1 <= steps <= MOST_STEPS:
        raise n.unsupported(f"a sequence of {steps} steps")
    if n.optional(4) is not None and set(n.array(4).tolist()) != {steps}:
        raise n.unsupported("sequences of different lengths")
    sequences: list[Value] = []
    ends: list[Value] = []
    cells: list[Value] = []
    for d in range(directions):
        cell = _Cell(n, d, hidden, gates)
        projected = cell.from_inputs(x)
        h = _start(n, 5, d, batch, hidden, batch_first)
        c = _start(n, 6, d, batch, hidden, batch_first) if n.op == "LSTM" else None
        outputs: dict[int, Value] = {}
        backwards = way == "reverse" or d == 1
        for t in reversed(range(steps)) if backwards else range(steps):
            h, c = cell.step(element(b, projected, t), h, c)
            outputs[t] = b.reshape(h, (1, 1, batch, hidden))
        sequences.append(b.concat([outputs[t] for t in range(steps)], 0))
        ends.append(b.reshape(h, (1, batch, hidden)))
        cells += [] if c is None else [b.reshape(c, (1, batch, hidden))]
    results: list[Value | None] = [b.concat(sequences, 1), b.concat(ends, 0), b.concat(cells, 0) if cells else None]
    if batch_first:
        orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        results = [None if v is None else b.transpose(v, order) for v, order in zip(results, orders)]
    return results


def _start(n: NodeReader, k: int, direction: int, batch: int, hidden: int, batch_first: bool) -> Value:
    given = n.optional(k)
    if given is None:
        return n.build.expand(n.build.number(0, n.input(0)), (batch, hidden))
    return element(n.build, n.build.transpose(given, (1, 0, 2)) if batch_first else given, direction)


RECURRENT: dict[str, Importer] = {"RNN": _recurrent, "GRU": _recurrent, "LSTM": _recurrent}
