"""What one node computes, by other implementations: onnxruntime, ONNX's reference, NumPy.

The first that knows the node is believed, unless `WRONG` says that it is known to be wrong there. A NumPy function
stands first where it is shorter than the list of the others' faults. Control flow is interpreted, every node of a body
by these oracles again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator

from tests.fuzz import (
    control_flow,
    numpy_pointwise,
    numpy_quantized,
    numpy_recurrent,
    numpy_resize,
    numpy_sums,
    numpy_windows,
)
from tests.fuzz.numpy_pointwise import Undetermined
from tests.fuzz.recipe import Node, node_model

Array = NDArray[Any]
Given = Mapping[str, Array]
ort.set_default_logger_severity(4)


class NoOracle(Exception):
    """No implementation evaluates this node."""


class NotKnown(Exception):
    """This implementation does not evaluate this node."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Where an implementation is known to be wrong: an operator, on inputs and attributes for which `when` holds."""

    oracle: str
    op: str
    why: str
    when: Callable[[Node, list[Array]], bool] = lambda node, inputs: True


def evaluate(node: Node, given: Given, opset: int) -> list[Array]:
    """The node's results. Raises NoOracle."""
    return next(iter(opinions(node, given, opset, first_only=True).values()))


def opinions(node: Node, given: Given, opset: int, first_only: bool = False) -> dict[str, list[Array]]:
    """The results by implementation, the believed one first. Raises NoOracle where there is none."""
    inputs = [given[name] for name in node.inputs if name]
    found: dict[str, list[Array]] = {}
    for name, run in ORACLES.items():
        if any(f.oracle == name and f.op == node.op and f.when(node, inputs) for f in WRONG):
            continue
        try:
            with np.errstate(all="ignore"):
                found[name] = [np.asarray(a) for a in run(node, given, opset)]
        except NotKnown:
            continue
        if first_only:
            return found
    if not found:
        raise NoOracle(f"no oracle evaluates {node}")
    return found


# ---- implementations
# ---------------------------------------------------------------------------------------------------

_sessions: OrderedDict[bytes, Any] = OrderedDict()


def _onnxruntime(node: Node, given: Given, opset: int) -> list[Array]:
    model = node_model(node, given, opset).SerializeToString()
    try:
        session = _sessions.get(model)
        if session is None:
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 4
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = _sessions[model] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            if len(_sessions) > 64:
                _sessions.popitem(last=False)
        return [np.asarray(a) for a in session.run(None, dict(given))]
    except Exception as error:  # onnxruntime has a class for each of its codes
        raise NotKnown(str(error)) from error


def _reference(node: Node, given: Given, opset: int) -> list[Array]:
    try:
        results = ReferenceEvaluator(node_model(node, given, opset)).run(None, dict(given))
    except Exception as error:  # it raises whatever NumPy raises
        raise NotKnown(str(error)) from error
    return [np.asarray(r) for r in results]  # pyright: ignore[reportUnknownArgumentType]


def _numpy(node: Node, given: Given, opset: int) -> list[Array]:
    function = NUMPY.get(node.op)
    if function is None:
        raise NotKnown(node.op)
    try:
        results = function(node, *(given[name] if name else None for name in node.inputs))
    except (Undetermined, ValueError, IndexError) as error:  # a shrunk model's shapes may not fit each other
        raise NoOracle(f"{node.op}: {error}") from error
    listed = results if isinstance(results, list) else [results]
    return [a for a, name in zip(listed, node.outputs) if name]


def _control_flow(node: Node, given: Given, opset: int) -> list[Array]:
    if not node.bodies():
        raise NotKnown(node.op)
    results = control_flow.run(node, given, lambda inner, values: evaluate(inner, values, opset))
    return [a for a, name in zip(results, node.outputs) if name]


def _cast(node: Node, x: Array) -> Array:
    return _converted(x, np.dtype(tensor_dtype_to_np_dtype(int(node.attributes["to"]))))


def _cast_like(node: Node, x: Array, like: Array) -> Array:
    return _converted(x, like.dtype)


def _converted(x: Array, dtype: np.dtype[Any]) -> Array:
    """Towards zero; saturating; NaN becomes 0."""
    if x.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        wide = np.trunc(x.astype(np.float64))
        fits = (wide >= float(info.min)) & (wide < float(info.max) + 1 - (dtype == np.int64))
        inside = np.where(fits, wide, 0).astype(dtype)
        return np.where(fits | np.isnan(x), inside, np.where(x > 0, info.max, info.min)).astype(dtype)
    return x.astype(dtype)


def _one_hot(node: Node, at: Array, depth: Array, values: Array) -> Array:
    """Indices of any type, cut to integers; those beyond the depth mark nothing."""
    count, axis = int(depth.reshape(())), int(node.attributes.get("axis", -1)) % (at.ndim + 1)
    whole = at.astype(np.int64)
    wrapped = np.expand_dims(np.where(whole < 0, whole + count, whole), axis)
    places = np.arange(count).reshape([-1 if k == axis else 1 for k in range(at.ndim + 1)])
    return np.where(wrapped == places, values[1], values[0])


def _is_wide(a: Array) -> bool:
    return a.dtype == np.int64 and bool(np.any(a != a.astype(np.int32)))


NUMPY: dict[str, Callable[..., Array | list[Array]]] = {
    **numpy_pointwise.NUMPY,
    **numpy_sums.NUMPY,
    **numpy_quantized.NUMPY,
    "AveragePool": numpy_windows.average_pool,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Col2Im": numpy_windows.col2im,
    "Conv": numpy_windows.conv,
    "ConvTranspose": numpy_windows.conv_transpose,
    "GRU": numpy_recurrent.recurrent,
    "GlobalAveragePool": numpy_windows.global_pool,
    "GlobalLpPool": numpy_windows.global_pool,
    "GlobalMaxPool": numpy_windows.global_pool,
    "GridSample": numpy_resize.grid_sample,
    "LSTM": numpy_recurrent.recurrent,
    "LpPool": numpy_windows.lp_pool,
    "MaxPool": numpy_windows.max_pool,
    "OneHot": _one_hot,
    "RNN": numpy_recurrent.recurrent,
    "Resize": numpy_resize.resize,
}
"""Results, one or a list of all, by operator; absent inputs are None."""

ORACLES: dict[str, Callable[[Node, Given, int], list[Array]]] = {
    "control flow": _control_flow,
    "numpy": _numpy,
    "onnxruntime": _onnxruntime,
    "reference": _reference,
}

WRONG: tuple[Fault, ...] = (
    Fault(
        "onnxruntime",
        "Div",
        "the least integer over -1 ends the process",
        lambda node, inputs: inputs[0].dtype.kind == "i",
    ),
    Fault(
        "onnxruntime", "Max", "i64 is compared by its lower 32 bits", lambda node, inputs: any(map(_is_wide, inputs))
    ),
    Fault("onnxruntime", "MaxUnpool", "positions count in output_shape", lambda node, inputs: len(inputs) == 3),
    Fault(
        "onnxruntime", "Min", "i64 is compared by its lower 32 bits", lambda node, inputs: any(map(_is_wide, inputs))
    ),
    Fault("onnxruntime", "NonZero", "a scalar has no dimension to index", lambda node, inputs: inputs[0].ndim == 0),
    Fault("onnxruntime", "TopK", "dividing by no elements ends the process", lambda node, inputs: not inputs[0].size),
    Fault("reference", "Shape", "an end before the first dimension counts from the end again"),
    Fault("reference", "Slice", "a start before the first element, going backward, is not clamped"),
)
