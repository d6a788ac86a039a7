"""Recurrent networks.

Not drawn, because Stormdrop says that it does not support them: clip, input_forget, sequences of different lengths or
of none, activations other than the plain ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.draft import FLOATS, Draft, Maker
from tests.fuzz.makers.arguments import affordable, tensor

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
PLAIN = ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")


def recurrent(op: str) -> Maker:
    """Every direction, layout and optional operand; each output wanted or not."""

    def maker(d: Draft) -> list[str]:
        layout = d.among(0, 0, 1) if d.opset >= 14 else 0
        sizes = (d.among(1, 2, 3, 5), d.among(1, 1, 2, 3), d.among(1, 2, 3, 4, 8, 9))
        shape = (sizes[1], sizes[0], sizes[2]) if layout else sizes
        x = d.take(lambda: shape, FLOATS, lambda s: len(s) == 3 and 0 not in s and s[1 if layout else 0] <= 7)
        dtype = d.dtype(x)
        batch, steps = d.shape(x)[:2] if layout else d.shape(x)[1::-1]
        features, hidden = d.shape(x)[2], d.among(1, 2, 3, 4, 5, 8, 16)
        way = d.among("forward", "reverse", "bidirectional")
        directions, rows = 2 if way == "bidirectional" else 1, GATES[op] * hidden
        affordable(steps * batch * rows * (features + hidden) * directions)
        attributes: dict[str, Any] = {"hidden_size": hidden}
        if way != "forward" or d.chance(0.3):
            attributes["direction"] = way
        if layout or (d.opset >= 14 and d.chance(0.2)):
            attributes["layout"] = layout
        if d.chance(0.4):
            attributes["activations"] = [d.among(a, *PLAIN) for a in ACTIVATIONS[op] * directions]
        if op == "GRU" and d.chance(0.6):
            attributes["linear_before_reset"] = d.among(0, 1)
        if op == "LSTM" and d.chance(0.1):
            attributes["input_forget"] = 0
        weights = tensor(d, (directions, rows, features), dtype, features**-0.5)
        again = tensor(d, (directions, rows, hidden), dtype, hidden**-0.5)
        bias = tensor(d, (directions, 2 * rows), dtype, 0.3) if d.chance(0.6) else ""
        lengths = d.constant(np.full(batch, steps, np.int32)) if d.chance(0.3) else ""
        state = (batch, directions, hidden) if layout else (directions, batch, hidden)
        states = [tensor(d, state, dtype) if d.chance(0.4) else "" for _ in range(2 if op == "LSTM" else 1)]
        peepholes = [tensor(d, (directions, 3 * hidden), dtype, 0.5) if d.chance(0.3) else ""] if op == "LSTM" else []
        inputs = [x, weights, again, bias, lengths, *states, *peepholes]
        while not inputs[-1]:
            inputs.pop()
        wanted = [d.chance(0.6) for _ in range(3 if op == "LSTM" else 2)]
        wanted = wanted if any(wanted) else [True]
        while not wanted[-1]:
            wanted.pop()
        return d.emit(op, *inputs, results=wanted, **attributes)

    return maker


MAKERS: dict[str, tuple[float, Maker]] = {op: (0.7, recurrent(op)) for op in GATES}
