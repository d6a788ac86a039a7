"""RNN, GRU and LSTM in NumPy, in f64, after ONNX's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.recipe import Node

Array = NDArray[Any]
Activation = Callable[[Array], Array]
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
ACTIVATIONS: dict[str, Activation] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tanh": np.tanh,
}


def recurrent(
    node: Node,
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
    c0: Array | None = None,
    peepholes: Array | None = None,
) -> list[Array]:
    """Y, Y_h and, of an LSTM, Y_c. All sequences have the full length."""
    a, dtype = node.attributes, x.dtype
    batch_first = bool(a.get("layout", 0))
    if batch_first:
        x = x.transpose(1, 0, 2)
        h0, c0 = (None if s is None else s.transpose(1, 0, 2) for s in (h0, c0))
    steps, batch, _ = x.shape
    assert lengths is None or (lengths == steps).all()
    directions, hidden, per = w.shape[0], r.shape[2], len(DEFAULTS[node.op])
    names: list[str] = list(a.get("activations") or DEFAULTS[node.op] * directions)
    outputs = np.zeros((steps, directions, batch, hidden))
    ends, cells = np.zeros((directions, batch, hidden)), np.zeros((directions, batch, hidden))
    for d in range(directions):
        both = np.zeros(2 * w.shape[1]) if bias is None else bias[d].astype(np.float64)
        p = None if peepholes is None else peepholes[d].astype(np.float64)
        parts = (w[d].astype(np.float64), r[d].astype(np.float64), both[: w.shape[1]], both[w.shape[1] :])
        acts = [ACTIVATIONS[name] for name in names[d * per : (d + 1) * per]]
        h = np.zeros((batch, hidden)) if h0 is None else h0[d].astype(np.float64)
        c = np.zeros((batch, hidden)) if c0 is None else c0[d].astype(np.float64)
        backwards = d == 1 or a.get("direction", "forward") == "reverse"
        for t in range(steps)[:: -1 if backwards else 1]:
            now = x[t].astype(np.float64)
            match node.op:
                case "RNN":
                    h = acts[0](now @ parts[0].T + h @ parts[1].T + parts[2] + parts[3])
                case "GRU":
                    h = _gru(now, h, parts, acts, bool(a.get("linear_before_reset", 0)))
                case _:
                    h, c = _lstm(now, h, c, parts, p, acts)
            outputs[t, d] = h
        ends[d], cells[d] = h, c
    results = [outputs, ends, cells]
    if batch_first:
        results = [outputs.transpose(2, 0, 1, 3), ends.transpose(1, 0, 2), cells.transpose(1, 0, 2)]
    return [y.astype(dtype) for y in results]


def _gru(x: Array, h: Array, parts: tuple[Array, ...], acts: list[Activation], linear_before_reset: bool) -> Array:
    """Gates in the order update, reset, hidden."""
    (wz, wr, wh), (rz, rr, rh), (bz, br, bh), (cz, cr, ch) = (np.split(p, 3) for p in parts)
    z = acts[0](x @ wz.T + h @ rz.T + bz + cz)
    reset = acts[0](x @ wr.T + h @ rr.T + br + cr)
    again = reset * (h @ rh.T + ch) if linear_before_reset else (reset * h) @ rh.T + ch
    return (1 - z) * acts[1](x @ wh.T + again + bh) + z * h


def _lstm(
    x: Array, h: Array, c: Array, parts: tuple[Array, ...], peepholes: Array | None, acts: list[Activation]
) -> tuple[Array, Array]:
    """Gates in the order input, output, forget, cell; peepholes in the order input, output, forget."""
    w, r, bw, br = parts
    i, o, f, g = np.split(x @ w.T + h @ r.T + bw + br, 4, axis=1)
    if peepholes is None:  # not zeros: they would make NaN of an infinite cell
        new = acts[0](f) * c + acts[0](i) * acts[1](g)
        return acts[0](o) * acts[2](new), new
    pi, po, pf = np.split(peepholes, 3)
    new = acts[0](f + pf * c) * c + acts[0](i + pi * c) * acts[1](g)
    return acts[0](o + po * new) * acts[2](new), new
