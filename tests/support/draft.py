"""A random model while it is being written: every node is run at once, so that shapes are known and the numbers stay tame.

Each value is held twice: as it is, and slightly disturbed at every node on the way. A node whose results differ by much more than it
was disturbed (a comparison of near equals, a norm of a constant row, a difference that cancels) is refused: what is left is a
model whose outputs any correct float32 runtime must agree on. Invariant: whatever `emit` has accepted is valid and well conditioned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
OPSET, IR_VERSION = 18, 8
MOST_ELEMENTS = 20_000
DISTURBANCE, TOLERATED = 1e-5, 3e-4  # relative to a value's largest magnitude
SMALLEST, LARGEST = 1e-2, 300.0

ort.set_default_logger_severity(3)


class Refused(Exception):
    """A node that would make a bad model; the draft is as it was before it."""


class Draft:
    """Nodes, constants, and two versions of every value."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        self.made: list[str] = []  # by nodes, in order
        self.read: set[str] = set()
        self.held: dict[str, tuple[Array, Array]] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        return self.held[name][0].shape

    def dtype(self, name: str) -> np.dtype[Any]:
        return self.held[name][0].dtype

    def input(self, shape: Sequence[int]) -> str:
        name = f"in{len(self.inputs)}"
        array = np.asarray(self.rng.standard_normal(tuple(shape)), np.float32)
        if array.size < 8:  # a lone number must not be next to nothing
            array = np.asarray(array + np.where(array < 0, -0.5, 0.5), np.float32)
        self.inputs[name] = array
        self.held[name] = (array, self._disturbed(array))
        return name

    def constant(self, value: Array | np.generic) -> str:
        array: Array = np.asarray(value)
        name = f"w{len(self.constants)}"
        self.constants[name] = array
        self.held[name] = (array, array)
        return name

    def weights(self, *shape: int, scale: float = 1.0, centre: float = 0.0) -> str:
        return self.constant(np.asarray(centre + scale * self.rng.standard_normal(shape), np.float32))

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def emit(self, op: str, *inputs: str, results: int = 1, **attributes: Any) -> list[str]:
        """The names of a new node's results. Raises Refused, and then nothing has changed."""
        names = [f"v{len(self.made) + k}" for k in range(results)]
        node = helper.make_node(op, list(inputs), names, name=f"n{len(self.nodes)}", **attributes)
        given = {name: self.held[name][0] for name in inputs if name}
        session = _session([node], given, names)
        plain = session.run(None, given)
        disturbed = session.run(None, {name: self.held[name][1] for name in given})
        pairs: list[tuple[Array, Array]] = []
        for a, b in zip(plain, disturbed):
            if a.size > MOST_ELEMENTS or a.size == 0:
                raise Refused(f"{op} gives {a.shape}")
            pairs.append((a, self._accepted(op, a, b)))
        self.nodes.append(node)
        self.read.update(given)
        self.made += names
        self.held |= dict(zip(names, pairs))
        return names

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.emit(op, *inputs, **attributes)[0]

    def _accepted(self, op: str, a: Array, b: Array) -> Array:
        if a.dtype != np.float32:
            if not np.array_equal(a, b):
                raise Refused(f"{op} decides by a hair")
            return a
        largest = float(np.max(np.abs(a)))
        if not np.isfinite(a).all() or not SMALLEST < largest < LARGEST:
            raise Refused(f"{op} gives values up to {largest}")
        if not float(np.max(np.abs(a - b))) <= TOLERATED * largest:
            raise Refused(f"{op} magnifies errors")
        return self._disturbed(b)

    def _disturbed(self, a: Array) -> Array:
        size = np.float32(DISTURBANCE * float(np.max(np.abs(a), initial=0.0)))
        return np.asarray(a + size * self.rng.uniform(-1, 1, a.shape), np.float32)

    # ---- choosing ------------------------------------------------------------------------------------------------

    def pick(self, fits: Callable[[tuple[int, ...]], bool] = lambda shape: True, dtype: Any = np.float32) -> str:
        """A run-time value, recent ones and those that nothing reads yet more often. Raises Refused if there is none."""
        pool = [name for name in (*self.inputs, *self.made) if self.dtype(name) == dtype and fits(self.shape(name))]
        if not pool:
            raise Refused("nothing fits")
        weights = np.array([1.12**k * (1 if name in self.read else 3) for k, name in enumerate(pool)])
        return pool[int(self.rng.choice(len(pool), p=weights / weights.sum()))]

    def among(self, *some: Any) -> Any:
        return some[int(self.rng.integers(len(some)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    # ---- the whole -----------------------------------------------------------------------------------------------

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        nodes = list(self.nodes)
        initializers: list[onnx.TensorProto] = []
        used = {name for n in nodes for name in n.input} | set(outputs)
        for name, array in self.constants.items():
            if name not in used:
                continue
            tensor = numpy_helper.from_array(array, name)
            if self.chance(0.1) and name not in outputs:
                nodes.insert(0, helper.make_node("Constant", [], [name], value=tensor))
            else:
                initializers.append(tensor)
        return _model(nodes, self.inputs, {name: self.held[name][0] for name in outputs}, initializers)


def _session(nodes: Sequence[onnx.NodeProto], given: Mapping[str, Array], results: Sequence[str]) -> Any:
    ports = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in given.items()]
    graph = helper.make_graph(nodes, "node", ports, [helper.make_empty_tensor_value_info(r) for r in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return session_of(model, 1)


def session_of(model: onnx.ModelProto, threads: int) -> Any:
    """onnxruntime's session of a model, without its warnings."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _model(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Array], outputs: Mapping[str, Array], initializers: Sequence[onnx.TensorProto]
) -> onnx.ModelProto:  # fmt: skip
    def port(name: str, a: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)

    graph = helper.make_graph(
        nodes, "random", [port(k, a) for k, a in inputs.items()], [port(k, a) for k, a in outputs.items()], list(initializers)
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
