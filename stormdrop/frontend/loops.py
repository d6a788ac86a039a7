"""Scan and Loop with a known number of steps: their bodies are unrolled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stormdrop.base.errors import Unsupported, UserError
from stormdrop.frontend.node_reader import Binding, NeedsConstant, tensor_of, tensors_of
from stormdrop.frontend.recurrent import element
from stormdrop.graph.builder import GraphBuilder
from stormdrop.operators.node import Value

MOST_STEPS = 1024
Body = Callable[[Any, Mapping[str, Binding]], list[Binding]]
"""Imports a subgraph with some of its names bound, and gives its outputs."""


def _stacked(b: GraphBuilder, parts: Sequence[Value], along: int) -> Value:
    return b.concat([b.reshape(v, (*v.shape[:along], 1, *v.shape[along:])) for v in parts], along)


def unroll_scan(node: Any, inputs: Sequence[Binding | None], b: GraphBuilder, run: Body) -> list[Binding]:
    """Unrolls a scan: states pass from step to step, and each step reads and writes one slice of the scanned values.

    Raises UserError for lengths that differ or are too many.
    """
    attributes = {a.name: a for a in node.attribute}
    body = attributes["body"].g
    values = tensors_of([v for v in inputs if v is not None], "an input")
    scanned = int(attributes["num_scan_inputs"].i)
    if not 1 <= scanned <= len(values) or len(body.input) != len(values) or len(body.output) < len(values) - scanned:
        raise UserError(f"{scanned} of {len(values)} inputs are scanned, which does not fit its body")
    states, sources = values[: len(values) - scanned], values[len(values) - scanned :]
    outputs = len(body.output) - len(states)

    def listed(key: str, count: int) -> list[int]:
        values = list(attributes[key].ints) if key in attributes else [0] * count
        if len(values) != count:
            raise UserError(f"{count} values are scanned, but {key} has {len(values)} entries")
        return values

    axes = listed("scan_input_axes", scanned)
    if any(not -v.rank <= a < v.rank for a, v in zip(axes, sources)):
        raise UserError(f"its inputs cannot be scanned along dimensions {axes}")
    axes = [a % v.rank for a, v in zip(axes, sources)]
    backwards, stacking = listed("scan_input_directions", scanned), listed("scan_output_axes", outputs)
    turned = listed("scan_output_directions", outputs)
    lengths = {v.shape[a] for v, a in zip(sources, axes)}
    if len(lengths) != 1 or not 1 <= (steps := lengths.pop()) <= MOST_STEPS:
        raise Unsupported(f"a scan over lengths {sorted(v.shape for v in sources)} is not supported")
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    for t in range(steps):
        slices = [element(b, v, steps - 1 - t if back else t, a) for v, a, back in zip(sources, axes, backwards)]
        given = dict[str, Binding](zip((i.name for i in body.input), [*states, *slices]))
        results = tensors_of(run(body, given), "an output of its body")
        states = results[: len(states)]
        for parts, v in zip(collected, results[len(states) :]):
            parts.append(v)
    whole: list[Value] = []
    for parts, along, back in zip(collected, stacking, turned):
        rank = parts[0].rank + 1
        if not -rank <= along < rank:
            raise UserError(f"its outputs cannot be stacked along dimension {along}")
        whole.append(_stacked(b, parts[::-1] if back else parts, along % rank))
    return [*states, *whole]


def unroll_loop(node: Any, inputs: Sequence[Binding | None], b: GraphBuilder, run: Body) -> list[Binding]:
    """Unrolls a loop with constant trip count and conditions. Raises NeedsConstant if they are not constant."""
    body = next(a.g for a in node.attribute if a.name == "body")
    count, go = (v if isinstance(v, Value) else None for v in inputs[:2])
    states = [v for v in inputs[2:] if v is not None]
    if len(body.input) != 2 + len(states) or len(body.output) < 1 + len(states):
        raise UserError(f"a loop with {len(states)} states does not fit its body")
    most = MOST_STEPS + 1 if count is None else int(known_number(b, count, "its number of trips"))
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(states))]
    condition = go if go is not None else b.constant(True)
    step = 0
    while step < most and known_number(b, condition, "its condition"):
        if step >= MOST_STEPS:
            raise Unsupported(f"a loop of more than {MOST_STEPS} steps is not supported")
        values: list[Binding] = [b.constant(np.int64(step)), condition, *states]
        results = run(body, dict(zip((i.name for i in body.input), values)))
        condition, states = tensor_of(results[0], "its condition"), results[1 : 1 + len(states)]
        for parts, v in zip(collected, tensors_of(results[1 + len(states) :], "a scanned output")):
            parts.append(v)
        step += 1
    if any(not parts for parts in collected):
        raise Unsupported("a loop that never runs has outputs of unknown shape")
    return [*states, *(_stacked(b, parts, 0) for parts in collected)]


def known_number(b: GraphBuilder, value: Value, what: str) -> Any:
    """Returns the number or truth value that must be constant to unroll a loop or to choose a branch."""
    array = b.array(value)
    if array is None:
        raise NeedsConstant(f"{what} must be known when the model is loaded", value.name)
    if array.size != 1:
        raise UserError(f"{what} must be one value, not {value}")
    return array.reshape(()).item()
