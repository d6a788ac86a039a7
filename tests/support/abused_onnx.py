"""ONNX models in as few words as a test wants to spend on one, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
F, D, I, L, B = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
NUMPY: dict[int, Any] = {F: np.float32, D: np.float64, I: np.int32, L: np.int64, B: np.bool_}


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """Names divided by blanks; `_` stands for an input that is left out. The node is called after its first output."""
    given = ["" if name == "_" else name for name in inputs.split()]
    made = outputs.split()
    return helper.make_node(op, given, made, name=attributes.pop("name", f"n_{made[0]}" if made else "n"), **attributes)


def port(name: str, shape: Sequence[int | str] | None = None, kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def held(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any] | str,
    weights: Mapping[str, Any] | Sequence[Any] = (),
    opset: int = 18,
    name: str = "g",
    domains: Sequence[str] = (),
) -> Any:
    """Outputs as ports, or as names of f32; weights by name, or as tensors; `domains` beside ONNX's own."""
    ends = [port(name) for name in outputs.split()] if isinstance(outputs, str) else list(outputs)
    tensors = [held(k, a) for k, a in weights.items()] if isinstance(weights, Mapping) else list(weights)
    graph = helper.make_graph(list(nodes), name, list(inputs), ends, tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def one(
    op: str,
    shape: Sequence[int] = (2, 3),
    weights: Mapping[str, Any] | None = None,
    kind: int = F,
    opset: int = 18,
    **attributes: Any,
) -> Any:
    """One node called n, of an input x and constants in the order given; one called `_` is left out."""
    names = " ".join(["x", *(weights or {})])
    given = {name: a for name, a in (weights or {}).items() if name != "_"}
    return model(
        [node(op, names, "y", name="n", **attributes)], [port("x", shape, kind)], [port("y", None, kind)], given, opset
    )


def random_feeds(m: Any, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for i in m.graph.input:
        shape, kind = [d.dim_value for d in i.type.tensor_type.shape.dim], i.type.tensor_type.elem_type
        values = rng.standard_normal(shape) * 3 if kind in (F, D) else rng.integers(-3, 4, shape)
        found[i.name] = np.asarray(values).astype(NUMPY[kind])
    return found


def expected(m: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What onnxruntime computes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session: Any = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    taken = {i.name for i in session.get_inputs()}
    results = session.run(None, {name: np.asarray(a) for name, a in feeds.items() if name in taken})
    return dict(zip([o.name for o in session.get_outputs()], results))
