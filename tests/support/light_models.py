"""The nine "light" models of ONNX's suite with weights that mean something.

    model = light("resnet50", seed=0)        # an onnx.ModelProto, the same for the same seed

The files have one constant in place of each weight, and so one number as output. Here every weight is drawn from the
seed, and one pass over the network, node by node in onnxruntime, scales it: each convolution and product gives
deviation one, each bias and running mean takes out most of what its channel has in common. Invariant: all activations
stay near one in size and the output follows the input, whatever the network. Nothing is stored on disk; vgg19, the
largest, takes some seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.support.inputs import image

Array = NDArray[Any]
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
IR_VERSION = 8
LAST_DEVIATION = 2.0  # of what a softmax reads: its result is then neither flat nor one single class
POOLED_DEVIATION = 16.0  # where a mean over all pixels follows, which leaves an eighth of it
BRANCH_GAIN = 0.5  # of what is added to a residual stream
LEAST_PIXELS = 49  # of an image whose channels' means are taken for typical


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx")))


def light(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network with random weights as initializers, which are no longer inputs: every runtime may fold and pack
    them.
    """
    return _Filling(onnx.load(FOLDER / f"light_{name}.onnx"), seed).model()


def with_logits(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with what its last softmax reads as a second output: where errors show that the softmax hides."""
    last = next((n for n in reversed(model.graph.node) if n.op_type == "Softmax"), None)
    if last is None:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.graph.output.append(helper.make_tensor_value_info(last.input[0], onnx.TensorProto.FLOAT, None))
    return result


class _Filling:
    """One pass over a model: weights drawn and scaled as they are met, activations as they follow."""

    def __init__(self, model: onnx.ModelProto, seed: int) -> None:
        graph = model.graph
        self.source, self.seed = model, seed
        self.opset = model.opset_import[0].version
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
        made = {
            n.output[0]: tuple(int(e) for e in constants[n.input[0]])
            for n in graph.node
            if n.op_type == "ConstantOfShape"
        }
        floating = {k: a.shape for k, a in constants.items() if a.dtype == np.float32}
        self.shapes: dict[str, tuple[int, ...]] = made | floating
        self.integers = {k: a for k, a in constants.items() if a.dtype != np.float32}
        self.weights: dict[str, Array] = {}
        self.views: dict[str, str] = {}  # a reshaped weight, and the weight
        self.readers = {name: n for n in self.nodes for name in n.input}
        self.inputs = [v for v in graph.input if v.name not in constants]
        self.values: dict[str, Array] = {}
        for v in self.inputs:
            shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
            self.values[v.name] = image(shape, np.random.default_rng([seed, 1]))

    def model(self) -> onnx.ModelProto:
        for node in self.nodes:
            self._visit(node)
        used = {name for n in self.nodes for name in n.input}
        arrays = {**self.weights, **{k: a for k, a in self.integers.items() if k in used}}
        initializers = [numpy_helper.from_array(a, k) for k, a in arrays.items()]
        graph = helper.make_graph(
            self.nodes, self.source.graph.name, self.inputs, list(self.source.graph.output), initializers
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=IR_VERSION)

    def _visit(self, node: onnx.NodeProto) -> None:
        if node.op_type in ("Unsqueeze", "Reshape") and node.input[0] in self.shapes:
            self.views[node.output[0]] = node.input[0]
            return
        match node.op_type:
            case "Conv" | "Gemm":
                self._linear(node)
            case "BatchNormalization":
                self._norm(node)
            case "Mul" | "Add" if self._weight(node, 1) is not None:
                self._affine(node)
            case _:
                pass
        self._run(node)

    def _weight(self, node: onnx.NodeProto, k: int) -> str | None:
        """The weight behind an input, if it is one."""
        if k >= len(node.input):
            return None
        name = self.views.get(node.input[k], node.input[k])
        return name if name in self.shapes else None

    def _stream(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, *name.encode()])))

    def _linear(self, node: onnx.NodeProto) -> None:
        """Deviation one (what a softmax reads: more).

        Products have no pixels to take a mean of: their weights are balanced instead.
        """
        w, b = self._weight(node, 1), self._weight(node, 2)
        assert w is not None, node.name
        weights = self._stream(w).standard_normal(self.shapes[w], np.float32)
        if node.op_type == "Gemm":
            weights = weights.reshape(-1, np.prod(self.shapes[w][1:], dtype=int))
            weights -= weights.mean(axis=1, keepdims=True)
            weights = weights.reshape(self.shapes[w])
        self.weights[w] = weights
        if b is not None:
            self.weights[b] = np.zeros(self.shapes[b], np.float32)
        y = self._outputs(node)[0]
        scale = np.float32(self._deviation(node) / max(float(y.std()), 1e-12))
        weights *= scale
        if b is not None:
            shift = 0.2 * self._stream(b).standard_normal(self.shapes[b], np.float32)
            self.weights[b] = shift - _means(y)[0] * scale

    def _deviation(self, node: onnx.NodeProto) -> float:
        after = [n.op_type for n in self.nodes[self.nodes.index(node) + 1 :]]
        if "Conv" in after or "Gemm" in after:
            return 1.0
        return POOLED_DEVIATION if "GlobalAveragePool" in after else LAST_DEVIATION

    def _norm(self, node: onnx.NodeProto) -> None:
        """Running statistics near the true ones, but not equal to them: one that is left out is seen."""
        scale, shift, mean, variance = (self._weight(node, k) or "" for k in range(1, 5))
        true_mean, true_variance = _means(self.values[node.input[0]])
        reader = self.readers.get(node.output[0])
        gain = BRANCH_GAIN if reader is not None and reader.op_type == "Sum" else 1.0
        deviation = np.sqrt(true_variance)
        count = self.shapes[mean]
        self.weights[scale] = _floats(gain * self._stream(scale).uniform(0.7, 1.3, count))
        self.weights[shift] = _floats(0.2 * self._stream(shift).standard_normal(count))
        self.weights[mean] = _floats(true_mean + 0.2 * deviation * self._stream(mean).standard_normal(count))
        self.weights[variance] = _floats(true_variance * np.exp(self._stream(variance).uniform(-0.7, 0.7, count)))

    def _affine(self, node: onnx.NodeProto) -> None:
        name = self._weight(node, 1) or ""
        stream, shape = self._stream(name), self.shapes[name]
        self.weights[name] = _floats(
            stream.uniform(0.7, 1.3, shape) if node.op_type == "Mul" else 0.2 * stream.standard_normal(shape)
        )

    def _run(self, node: onnx.NodeProto) -> None:
        for name, value in zip(node.output, self._outputs(node)):
            self.values[name] = value

    def _outputs(self, node: onnx.NodeProto) -> list[Array]:
        feed: dict[str, Array] = {}
        for name in node.input:
            feed[name] = self._value(name)
        return run_node(node, feed, self.opset)

    def _value(self, name: str) -> Array:
        if name in self.views:
            weight = self.weights[self.views[name]]
            node = next(n for n in self.nodes if name in n.output)
            return run_node(
                node, {k: weight if k == self.views[name] else self.integers[k] for k in node.input}, self.opset
            )[0]
        for known in (self.weights, self.integers, self.values):
            if name in known:
                return known[name]
        raise KeyError(name)


def run_node(node: onnx.NodeProto, feed: Mapping[str, Array], opset: int) -> list[Array]:
    """One node's outputs from onnxruntime."""
    given = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in feed.items()
    ]
    result = [helper.make_empty_tensor_value_info(node.output[0])]
    graph = helper.make_graph([node], "node", given, result)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    session: Any = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(feed))


def _means(y: Array) -> tuple[Array, Array]:
    """Each channel's mean and variance; zero and the overall mean square where an image is too small to tell."""
    if y.ndim < 4 or y[0, 0].size < LEAST_PIXELS:
        channels = y.shape[1]
        return np.zeros(channels, np.float32), np.full(channels, float(np.mean(y.astype(np.float64) ** 2)), np.float32)
    axes = (0, *range(2, y.ndim))
    variance = y.var(axis=axes, dtype=np.float64)
    return _floats(y.mean(axis=axes, dtype=np.float64)), _floats(np.maximum(variance, 1e-3 * variance.mean()))


def _floats(a: Array) -> NDArray[np.float32]:
    return np.asarray(a, np.float32)


def session_of(model: onnx.ModelProto, threads: int) -> Any:
    """onnxruntime's session of a model, without its warnings."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
