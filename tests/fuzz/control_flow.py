"""If, Loop and Scan evaluated by interpreting their bodies, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.fuzz.recipe import Node

Array = NDArray[Any]
Given = Mapping[str, Array]
Evaluate = Callable[[Node, Given], list[Array]]
"""The results of one node."""
MOST_STEPS = 64


def run(node: Node, given: Given, evaluate: Evaluate) -> list[Array]:
    """All results of the node. Raises what `evaluate` raises."""
    match node.op:
        case "If":
            taken = "then_branch" if bool(given[node.inputs[0]].reshape(())) else "else_branch"
            return _body(node.attributes[taken], (), given, evaluate)
        case "Loop":
            return _loop(node, given, evaluate)
        case _:
            return _scan(node, given, evaluate)


def _loop(node: Node, given: Given, evaluate: Evaluate) -> list[Array]:
    body: onnx.GraphProto = node.attributes["body"]
    count, condition, *states = (given[name] if name else None for name in node.inputs)
    trips = MOST_STEPS if count is None else int(count.reshape(()))
    go = np.asarray(True) if condition is None else condition.reshape(())
    carried = [s for s in states if s is not None]
    rows: list[list[Array]] = []
    while len(rows) < trips and bool(go):
        results = _body(body, [np.asarray(len(rows), np.int64), go, *carried], given, evaluate)
        go, carried = results[0].reshape(()), results[1 : 1 + len(carried)]
        rows.append(results[1 + len(carried) :])
    return [*carried, *(np.stack(column) for column in zip(*rows))]


def _scan(node: Node, given: Given, evaluate: Evaluate) -> list[Array]:
    a, inputs = node.attributes, [given[name] for name in node.inputs]
    split = len(inputs) - int(a["num_scan_inputs"])
    carried, sources = inputs[:split], inputs[split:]
    stacked = len(a["body"].output) - split
    axes, backwards = a.get("scan_input_axes", [0] * len(sources)), a.get("scan_input_directions", [0] * len(sources))
    slices = [np.moveaxis(x, axis, 0)[:: -1 if back else 1] for x, axis, back in zip(sources, axes, backwards)]
    rows: list[list[Array]] = []
    for t in range(len(slices[0])):
        results = _body(a["body"], [*carried, *(s[t] for s in slices)], given, evaluate)
        carried = results[:split]
        rows.append(results[split:])
    along, turned = a.get("scan_output_axes", [0] * stacked), a.get("scan_output_directions", [0] * stacked)
    columns = [list(column) for column in zip(*rows)]
    return [
        *carried,
        *(np.stack(c[::-1] if back else c, axis=axis) for c, axis, back in zip(columns, along, turned)),
    ]


def _body(body: onnx.GraphProto, arguments: Sequence[Array], given: Given, evaluate: Evaluate) -> list[Array]:
    known = dict(given)
    known |= {t.name: numpy_helper.to_array(t) for t in body.initializer}
    known |= {formal.name: np.asarray(array) for formal, array in zip(body.input, arguments)}
    for proto in body.node:
        node = Node.of(proto)
        reads = {name: known[name] for name in sorted(node.reads()) if name in known}
        known |= dict(zip((name for name in node.outputs if name), evaluate(node, reads)))
    return [known[o.name] for o in body.output]
