"""A model evaluated in float64 with NumPy: what the errors of float32 runtimes are measured against.

    y = reference64(model, inputs)["output"]

The model's numbers become float64 before it is imported, so that folded constants are right to float64 as well. The
graph is then walked node by node; convolutions are matrix products, one tap of the window at a time. Invariant: only
operators that the zoo and the light models need are known, each written here anew: nothing of `operators/` or the
interpreter is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import erf
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from stormdrop.frontend.onnx import load
from stormdrop.graph.graph import Graph
from stormdrop.operators.node import Node, Value
from stormdrop.operators.window import window_of

Array = NDArray[Any]
Rule = Callable[[Node, Sequence[Array]], Array]


def reference64(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name. Raises KeyError for an operator that is not among `RULES`."""
    graph = load(doubled(model))
    given = {k: a.astype(np.float64) if a.dtype == np.float32 else a for k, a in inputs.items()}
    return dict(zip(graph.output_names, evaluate(graph, given)))


def relative_error(found: Array, wanted: Array) -> float:
    """The largest difference, over the largest magnitude that is wanted; infinite where one has a NaN that the other
    has not.
    """
    a, b = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    good = np.isfinite(b)
    if not good.any():
        return 0.0
    return float(np.max(np.abs(a[good] - b[good])) / max(float(np.max(np.abs(b[good]))), 1e-30))


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 wherever it has float32."""
    graph = model.graph
    nodes = [_doubled_node(n) for n in graph.node]
    weights = [_doubled_tensor(t) for t in graph.initializer]
    ports = [[_doubled_port(v) for v in some] for some in (graph.input, graph.output)]
    made = onnx.helper.make_graph(nodes, graph.name, ports[0], ports[1], weights)
    return onnx.helper.make_model(made, opset_imports=list(model.opset_import), ir_version=model.ir_version)


def _doubled_tensor(t: onnx.TensorProto) -> onnx.TensorProto:
    return (
        numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name)
        if t.data_type == TensorProto.FLOAT
        else t
    )


def _doubled_port(v: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    made = onnx.ValueInfoProto()
    made.CopyFrom(v)
    if made.type.tensor_type.elem_type == TensorProto.FLOAT:
        made.type.tensor_type.elem_type = TensorProto.DOUBLE
    return made


def _doubled_node(n: onnx.NodeProto) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(n)
    for a in made.attribute:
        if a.type == onnx.AttributeProto.TENSOR:
            a.t.CopyFrom(_doubled_tensor(a.t))
        elif n.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
            a.i = TensorProto.DOUBLE
    return made


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs in order; values are forgotten after their last reader."""
    values: dict[Value, Array] = dict(graph.constants)
    values |= {v: inputs[v.name] for v in graph.inputs}
    last = {v: k for k, node in enumerate(graph.nodes) for v in node.inputs}
    kept = set(graph.outputs)
    for k, node in enumerate(graph.nodes):
        y = RULES[node.op](node, [values[v] for v in node.inputs])
        assert y.shape == node.output.shape, f"{node} is computed as {y.shape}"
        values[node.output] = y
        for v in set(node.inputs):
            if last[v] == k and v not in kept:
                del values[v]
    return [values[v] for v in graph.outputs]


# ---- operators -----------------------------------------------------------------------------------------------------


def _padded(n: Node, x: Array, value: float) -> Array:
    before, after = n.integers("before"), n.integers("after")
    return np.pad(x, ((0, 0), (0, 0), *zip(before, after)), constant_values=value)


def _taps(n: Node, x: Array, value: float = 0.0) -> list[tuple[tuple[int, ...], Array]]:
    """For every tap of a channels-first window the image that it sees."""
    assert n.text("layout") == "NCHW", n
    w = window_of(n)
    p, extents = _padded(n, x, value), w.extents(x.shape[2:])
    seen: list[tuple[tuple[int, ...], Array]] = []
    for tap in product(*map(range, w.kernel)):
        spans = [slice(k * d, k * d + (e - 1) * s + 1, s) for k, d, e, s in zip(tap, w.dilations, extents, w.strides)]
        seen.append((tap, p[(slice(None), slice(None), *spans)]))
    return seen


def _conv(n: Node, x: Sequence[Array]) -> Array:
    image, weights = x
    groups, outs = n.integer("groups"), weights.shape[0]
    batch, extents = image.shape[0], n.output.shape[2:]
    if groups == image.shape[1] == outs:
        per_channel = weights.reshape(outs, *weights.shape[2:], *[1] * len(extents))
        return sum((seen * per_channel[(slice(None), *tap)] for tap, seen in _taps(n, image)), np.zeros(1))
    total = np.zeros((batch, groups, outs // groups, int(np.prod(extents))))
    for tap, seen in _taps(n, image):
        filters = weights[(slice(None), slice(None), *tap)].reshape(groups, outs // groups, -1)
        total += filters @ seen.reshape(batch, groups, seen.shape[1] // groups, -1)
    return total.reshape(batch, outs, *extents)


def _conv_transpose(n: Node, x: Sequence[Array]) -> Array:
    """Every pixel adds its filter to the padded result, tap by tap."""
    image, weights = x
    w, groups, extents = window_of(n), n.integer("groups"), n.integers("extents")
    batch, outs = image.shape[0], weights.shape[1] * groups
    sizes = [(e - 1) * s + d * (k - 1) + 1 for e, s, d, k in zip(image.shape[2:], w.strides, w.dilations, w.kernel)]
    whole = np.zeros((batch, outs, *(max(size, b + e) for size, b, e in zip(sizes, w.before, extents))))
    parts = image.reshape(batch, groups, image.shape[1] // groups, -1)
    for tap in product(*map(range, w.kernel)):
        filters = weights[(slice(None), slice(None), *tap)].reshape(groups, parts.shape[2], -1)
        added = np.swapaxes(filters, 1, 2) @ parts
        spans = [
            slice(k * d, k * d + (e - 1) * s + 1, s) for k, d, e, s in zip(tap, w.dilations, image.shape[2:], w.strides)
        ]
        whole[(slice(None), slice(None), *spans)] += added.reshape(batch, outs, *image.shape[2:])
    return whole[(slice(None), slice(None), *(slice(b, b + e) for b, e in zip(w.before, extents)))]


def _max_pool(n: Node, x: Sequence[Array]) -> Array:
    found: Array = np.full(n.output.shape, -np.inf)
    for _, seen in _taps(n, x[0], -np.inf):
        found = np.maximum(found, seen)
    return found


def _sum_pool(n: Node, x: Sequence[Array]) -> Array:
    return sum((seen for _, seen in _taps(n, x[0])), np.zeros(n.output.shape))


def _matmul(n: Node, x: Sequence[Array]) -> Array:
    a = np.swapaxes(x[0], -1, -2) if n.integer("transpose_a", 0) else x[0]
    b = np.swapaxes(x[1], -1, -2) if n.integer("transpose_b", 0) else x[1]
    return a @ b


def _softmax(n: Node, x: Sequence[Array]) -> Array:
    e = np.exp(x[0] - x[0].max(axis=n.integer("axis"), keepdims=True))
    return e / e.sum(axis=n.integer("axis"), keepdims=True)


def _standardize(n: Node, x: Sequence[Array]) -> Array:
    axes = n.integers("axes")
    return (x[0] - x[0].mean(axis=axes, keepdims=True)) / np.sqrt(
        x[0].var(axis=axes, keepdims=True) + n.number("epsilon")
    )


def _slice(n: Node, x: Sequence[Array]) -> Array:
    grid = [a + s * np.arange(c) for a, s, c in zip(n.integers("starts"), n.integers("steps"), n.integers("shape"))]
    return x[0][np.ix_(*grid)]


def _clip(n: Node, x: Sequence[Array]) -> Array:
    low = n.number("min") if "min" in n.attributes else -np.inf
    return np.clip(x[0], low, n.number("max") if "max" in n.attributes else np.inf)


def _reduce(function: Callable[..., Array]) -> Rule:
    return lambda n, x: function(x[0], axis=n.integers("axes"), keepdims=bool(n.integer("keepdims", 1)))


_TYPES = {"f32": np.float64, "f64": np.float64, "i32": np.int32, "i64": np.int64, "bool": np.bool_}

RULES: dict[str, Rule] = {
    "Add": lambda n, x: x[0] + x[1],
    "Sub": lambda n, x: x[0] - x[1],
    "Mul": lambda n, x: x[0] * x[1],
    "Div": lambda n, x: x[0] / x[1],
    "Relu": lambda n, x: np.maximum(x[0], 0),
    "Sigmoid": lambda n, x: 1 / (1 + np.exp(-x[0])),
    "Tanh": lambda n, x: np.tanh(x[0]),
    "Erf": lambda n, x: np.vectorize(erf, otypes=[np.float64])(x[0]),
    "Clip": _clip,
    "Sqrt": lambda n, x: np.sqrt(x[0]),
    "PowConst": lambda n, x: x[0] ** n.number("exponent"),
    "Cast": lambda n, x: x[0].astype(_TYPES[n.text("to")]),
    "Reshape": lambda n, x: x[0].reshape(n.integers("shape")),
    "Transpose": lambda n, x: np.transpose(x[0], n.integers("perm")),
    "Expand": lambda n, x: np.broadcast_to(x[0], n.integers("shape")),
    "Concat": lambda n, x: np.concatenate(x, n.integer("axis")),
    "Slice": _slice,
    "Gather": lambda n, x: np.take(x[0], x[1], axis=n.integer("axis")),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "MatMul": _matmul,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "SumPool": _sum_pool,
    "Softmax": _softmax,
    "Standardize": _standardize,
}
