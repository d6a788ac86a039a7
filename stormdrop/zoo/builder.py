"""A small language for networks: each method adds the node that an exporter would write and returns its value.

    net = NetworkBuilder("tiny", batch=1, opset=18)
    x = net.input("input", (3, 32, 32))
    x = net.relu(net.norm(net.conv(x, "conv1", 16, 3, pad=1, bias=False), "bn1"))
    network = net.finish(net.linear(net.flatten(net.global_average(x, "avgpool")), "fc", 10))

Parameters have torchvision's names. Nodes are named after their layer, or after their input and their operation; all
values but outputs have their node's name. Invariant: every value leads with the batch, and `sizes` are its other
extents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stormdrop.zoo import moments
from stormdrop.zoo.moments import Function, Moments
from stormdrop.zoo.weights import Fill, LogUniform, Normal, NormScale, Parameter, Uniform

Attribute = int | float | tuple[int, ...]
Sizes = int | tuple[int, ...]
Dtype = type[np.float32] | type[np.int64]

CLASSES = 1000
BIAS_DEVIATION = 0.1
# Running variances lie this far around the true one, so that folding a batch norm wrongly is seen.
VARIANCE_RATIO = LogUniform(0.05, 2.0)
SCALE_SPREAD = 0.25
MEAN_DEVIATION = 0.2
# The output of a residual branch is scaled by this factor, so that a hundred branches do not drown the first.
DAMPED = 0.5


@dataclass(frozen=True, slots=True)
class OnnxValue:
    name: str
    sizes: tuple[int, ...]
    moments: Moments

    @property
    def channels(self) -> int:
        return self.sizes[0]


@dataclass(frozen=True, slots=True)
class OnnxNode:
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    sizes: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class Network:
    """A described network; `batch` is None if it is symbolic. Parameters have no values yet."""

    name: str
    batch: int | None
    opset: int
    inputs: tuple[Input, ...]
    outputs: tuple[OnnxValue, ...]
    nodes: tuple[OnnxNode, ...]
    parameters: tuple[Parameter, ...]
    constants: dict[str, NDArray[np.generic]]
    multiply_adds: int
    """The multiply-adds of convolutions and matrix products for one sample; padding at borders counts as data."""

    @property
    def parameter_count(self) -> int:
        return sum(math.prod(p.shape) for p in self.parameters if p.trained)


def _per_axis(sizes: Sizes, axes: int) -> tuple[int, ...]:
    return (sizes,) * axes if isinstance(sizes, int) else sizes


def _windows(extent: int, kernel: int, stride: int, pad: int, ceil: bool) -> int:
    """Returns the number of windows; as in torch, a last window that starts in the padding is dropped."""
    room = extent + 2 * pad - kernel
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= extent + pad else count


def _window(kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {"kernel_shape": kernel, "pads": pad * 2, "strides": stride}


@dataclass(slots=True)
class NetworkBuilder:
    name: str
    batch: int | None
    opset: int
    _inputs: list[Input] = field(default_factory=list[Input])
    _nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])
    _parameters: list[Parameter] = field(default_factory=list[Parameter])
    _constants: dict[str, NDArray[np.generic]] = field(default_factory=dict[str, NDArray[np.generic]])
    _taken: dict[str, int] = field(default_factory=dict[str, int])
    _multiply_adds: int = 0

    def finish(self, *outputs: OnnxValue, names: Sequence[str] = ("output",)) -> Network:
        """Returns the network as described so far; `names` are the names of its outputs."""
        renamed = {value.name: name for value, name in zip(outputs, names, strict=True)}

        def final(read: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(renamed.get(name, name) for name in read)

        nodes = tuple(replace(n, inputs=final(n.inputs), outputs=final(n.outputs)) for n in self._nodes)
        results = tuple(replace(value, name=renamed[value.name]) for value in outputs)
        inputs, parameters = tuple(self._inputs), tuple(self._parameters)
        whole = inputs, results, nodes, parameters, self._constants, self._multiply_adds
        return Network(self.name, self.batch, self.opset, *whole)

    # Layers of a network

    def input(self, name: str, sizes: tuple[int, ...], dtype: Dtype = np.float32) -> OnnxValue:
        self._inputs.append(Input(name, sizes, dtype))
        return OnnxValue(self._unique(name), sizes, Moments())

    def parameter(self, name: str, shape: tuple[int, ...], fill: Fill, trained: bool = True) -> str:
        if name in self._taken:
            raise ValueError(f"{self.name} has two parameters {name}")
        self._parameters.append(Parameter(self._unique(name), shape, fill, trained))
        return name

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        name = self._unique(name)
        self._constants[name] = value
        return name

    def node(
        self,
        op: str,
        name: str,
        inputs: Sequence[OnnxValue | str],
        sizes: tuple[int, ...],
        expected: Moments,
        multiply_adds: int = 0,
        **attributes: Attribute,
    ) -> OnnxValue:
        name = self._unique(name)
        self._multiply_adds += multiply_adds
        read = tuple(i.name if isinstance(i, OnnxValue) else i for i in inputs)
        self._nodes.append(OnnxNode(op, name, read, (name,), attributes))
        return OnnxValue(name, sizes, expected)

    def _unique(self, name: str) -> str:
        seen = self._taken.get(name, 0)
        self._taken[name] = seen + 1
        return f"{name}_{seen}" if seen else name

    # Layers with weights

    def conv(
        self,
        x: OnnxValue,
        name: str,
        out: int,
        kernel: Sizes,
        stride: Sizes = 1,
        pad: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> OnnxValue:
        axes = len(x.sizes) - 1
        kernels, strides, pads = (_per_axis(size, axes) for size in (kernel, stride, pad))
        shape = (out, x.channels // groups, *kernels)
        # A balanced filter of one channel would only pass edges: depthwise filters stay unbalanced.
        inputs = [x, *self._weight_and_bias(name, shape, x.moments, balanced=groups == 1, bias=bias)]
        sizes = (out, *(_windows(e, k, s, p, False) for e, k, s, p in zip(x.sizes[1:], kernels, strides, pads)))
        work = math.prod(sizes) * math.prod(shape[1:])
        attributes = {"dilations": (1,) * axes, "group": groups, **_window(kernels, strides, pads)}
        return self.node("Conv", name, inputs, sizes, Moments(), work, **attributes)

    def conv_norm(
        self,
        x: OnnxValue,
        conv: str,
        norm: str,
        out: int,
        kernel: Sizes = 1,
        stride: Sizes = 1,
        groups: int = 1,
        gain: float = 1.0,
    ) -> OnnxValue:
        """Adds a convolution without bias, padded so that stride 1 keeps the extents, and its batch norm."""
        pad = tuple(k // 2 for k in _per_axis(kernel, len(x.sizes) - 1))
        return self.norm(self.conv(x, conv, out, kernel, stride, pad, groups, bias=False), norm, gain)

    def conv_transpose(self, x: OnnxValue, name: str, out: int, kernel: int, stride: int, pad: int) -> OnnxValue:
        axes = len(x.sizes) - 1
        # Each output pixel sees kernel / stride taps per axis; at stride 1 on a single pixel it sees one.
        taps = min(math.prod(x.sizes[1:]), max(kernel // stride, 1) ** axes)
        fill = Normal(1 / math.sqrt(x.channels * taps * x.moments.square))
        shape = (x.channels, out, *(kernel,) * axes)
        inputs = [x, self.parameter(f"{name}.weight", shape, fill)]
        sizes = (out, *((e - 1) * stride - 2 * pad + kernel for e in x.sizes[1:]))
        work, window = math.prod(x.sizes) * math.prod(shape[1:]), _window(*((n,) * axes for n in (kernel, stride, pad)))
        attributes = {"dilations": (1,) * axes, "group": 1, **window}
        return self.node("ConvTranspose", name, inputs, sizes, Moments(), work, **attributes)

    def linear(self, x: OnnxValue, name: str, out: int) -> OnnxValue:
        """Adds a classifier: Gemm on rows, its weight as (out, in)."""
        (width,) = x.sizes
        inputs = [x, *self._weight_and_bias(name, (out, width), x.moments, balanced=True, bias=True)]
        return self.node("Gemm", name, inputs, (out,), Moments(), out * width, transB=1)

    def dense(self, x: OnnxValue, name: str, out: int) -> OnnxValue:
        """Adds a linear layer on a sequence's last axis, in exporters' form: MatMul by the transposed weight, Add."""
        fan = x.sizes[-1]
        weight = self.parameter(f"{name}.weight.T", (fan, out), Normal(1 / math.sqrt(fan * x.moments.square)))
        bias = self.parameter(f"{name}.bias", (out,), Normal(BIAS_DEVIATION))
        work = math.prod(x.sizes) * out
        product = self.node("MatMul", f"{name}.matmul", [x, weight], (*x.sizes[:-1], out), Moments(), work)
        return self.node("Add", name, [bias, product], product.sizes, product.moments)

    def norm(self, x: OnnxValue, name: str, gain: float = 1.0, eps: float = 1e-5) -> OnnxValue:
        """Adds a batch norm whose statistics fit its input; channels are scaled to about `gain`."""
        variance, deviation = x.moments.variance, math.sqrt(x.moments.variance)
        ratio = LogUniform(VARIANCE_RATIO.low * variance, VARIANCE_RATIO.high * variance)
        running = f"{name}.running_var"
        inputs = [
            x,
            self.parameter(f"{name}.weight", (x.channels,), NormScale(gain, SCALE_SPREAD, variance, running, ratio)),
            self.parameter(f"{name}.bias", (x.channels,), Normal(MEAN_DEVIATION * gain)),
            self.parameter(
                f"{name}.running_mean", (x.channels,), Normal(MEAN_DEVIATION * deviation, x.moments.mean), trained=False
            ),
            self.parameter(running, (x.channels,), ratio, trained=False),
        ]
        expected = Moments(0.0, gain**2 * (1 + SCALE_SPREAD**2 / 3 + 2 * MEAN_DEVIATION**2))
        return self.node("BatchNormalization", name, inputs, x.sizes, expected, epsilon=eps)

    def layer_norm(self, x: OnnxValue, name: str, eps: float) -> OnnxValue:
        width = x.sizes[-1]
        weight = self.parameter(f"{name}.weight", (width,), Uniform(1 - SCALE_SPREAD, 1 + SCALE_SPREAD))
        bias = self.parameter(f"{name}.bias", (width,), Normal(BIAS_DEVIATION))
        return self.node("LayerNormalization", name, [x, weight, bias], x.sizes, Moments(), axis=-1, epsilon=eps)

    def _weight_and_bias(
        self, name: str, shape: tuple[int, ...], expected: Moments, balanced: bool, bias: bool
    ) -> list[str]:
        """Adds parameters with He's scaling for (out, fan…): variance 1 / (fan · mean square).

        Balanced weights are scaled by the variance instead of the mean square.
        """
        power = math.prod(shape[1:]) * (expected.variance if balanced else expected.square)
        weight = self.parameter(f"{name}.weight", shape, Normal(1 / math.sqrt(power), balanced=balanced))
        return [weight, self.parameter(f"{name}.bias", shape[:1], Normal(BIAS_DEVIATION))] if bias else [weight]

    # Layers without

    def _map(self, op: str, x: OnnxValue, word: str, function: Function) -> OnnxValue:
        return self.node(op, f"{x.name}.{word}", [x], x.sizes, x.moments.through(function))

    def relu(self, x: OnnxValue) -> OnnxValue:
        return self._map("Relu", x, "relu", moments.relu)

    def sigmoid(self, x: OnnxValue) -> OnnxValue:
        return self._map("Sigmoid", x, "sigmoid", moments.sigmoid)

    def tanh(self, x: OnnxValue) -> OnnxValue:
        return self._map("Tanh", x, "tanh", np.tanh)

    def relu6(self, x: OnnxValue) -> OnnxValue:
        low, high = self.scalar("zero", 0.0), self.scalar("six", 6.0)
        return self.node("Clip", f"{x.name}.relu6", [x, low, high], x.sizes, x.moments.through(moments.relu6))

    def silu(self, x: OnnxValue) -> OnnxValue:
        expected = x.moments.through(moments.silu)
        if self.opset >= 24:
            return self.node("Swish", f"{x.name}.silu", [x], x.sizes, expected)
        return self.node("Mul", f"{x.name}.silu", [x, self.sigmoid(x)], x.sizes, expected)

    def gelu(self, x: OnnxValue) -> OnnxValue:
        """Adds x · Φ(x): one node since opset 20, before that 0.5 · x · (1 + erf(x / sqrt 2))."""
        name, expected = f"{x.name}.gelu", x.moments.through(moments.gelu)
        if self.opset >= 20:
            return self.node("Gelu", name, [x], x.sizes, expected)
        scaled = self.node("Div", f"{name}.div", [x, self.scalar("sqrt_two", math.sqrt(2))], x.sizes, x.moments)
        erf = self.node("Erf", f"{name}.erf", [scaled], x.sizes, x.moments)
        raised = self.node("Add", f"{name}.add", [erf, self.scalar("one", 1.0)], x.sizes, x.moments)
        product = self.node("Mul", f"{name}.mul", [x, raised], x.sizes, expected)
        return self.node("Mul", name, [product, self.scalar("half", 0.5)], x.sizes, expected)

    def scalar(self, name: str, value: float) -> str:
        """Returns the name of a float constant; nodes share it."""
        return name if name in self._constants else self.constant(name, np.array(value, np.float32))

    def add(self, name: str, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self.node("Add", name, [a, b], a.sizes, a.moments.plus(b.moments))

    def mul(self, name: str, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        """Adds a · b; b may have extents of one."""
        return self.node("Mul", name, [a, b], a.sizes, a.moments.times(b.moments))

    def concat(self, name: str, parts: Sequence[OnnxValue]) -> OnnxValue:
        if len(parts) == 1:
            return parts[0]
        sizes = (sum(p.channels for p in parts), *parts[0].sizes[1:])
        mixed = moments.mixture([(p.channels, p.moments) for p in parts])
        return self.node("Concat", name, parts, sizes, mixed, axis=1)

    def split(self, x: OnnxValue, name: str, count: int) -> list[OnnxValue]:
        """Adds a split into `count` equal parts along the channels."""
        name, channels = self._unique(name), x.channels // count
        sizes = self.constant(f"{name}.sizes", np.full(count, channels, np.int64))
        outputs = tuple(self._unique(f"{name}.{i}") for i in range(count))
        self._nodes.append(OnnxNode("Split", name, (x.name, sizes), outputs, {"axis": 1}))
        return [OnnxValue(o, (channels, *x.sizes[1:]), x.moments) for o in outputs]

    def max_pool(
        self, x: OnnxValue, name: str, kernel: int, stride: int, pad: int = 0, ceil: bool = False
    ) -> OnnxValue:
        sizes = (x.channels, *(_windows(e, kernel, stride, pad, ceil) for e in x.sizes[1:]))
        attributes = {"ceil_mode": int(ceil), **_window(*((n, n) for n in (kernel, stride, pad)))}
        return self.node("MaxPool", name, [x], sizes, x.moments.largest(kernel**2), 0, **attributes)

    def avg_pool(self, x: OnnxValue, name: str, kernel: int, stride: int, pad: int = 0) -> OnnxValue:
        """Adds an average pool with torch's averages: the padding counts."""
        sizes = (x.channels, *(_windows(e, kernel, stride, pad, False) for e in x.sizes[1:]))
        attributes = {"ceil_mode": 0, **_window(*((n, n) for n in (kernel, stride, pad))), "count_include_pad": 1}
        return self.node("AveragePool", name, [x], sizes, x.moments.average(kernel**2), 0, **attributes)

    def global_average(self, x: OnnxValue, name: str) -> OnnxValue:
        sizes = (x.channels, *(1 for _ in x.sizes[1:]))
        return self.node("GlobalAveragePool", name, [x], sizes, x.moments.average(math.prod(x.sizes[1:])))

    def spatial_mean(self, x: OnnxValue, name: str) -> OnnxValue:
        """Adds x.mean([2, 3]): since opset 18 the axes are an input."""
        expected = x.moments.average(math.prod(x.sizes[1:]))
        if self.opset < 18:
            return self.node("ReduceMean", name, [x], (x.channels,), expected, axes=(2, 3), keepdims=0)
        axes = self.constant(f"{name}.axes", np.array([2, 3]))
        return self.node("ReduceMean", name, [x, axes], (x.channels,), expected, keepdims=0)

    def classified(self, x: OnnxValue, name: str, classes: int = CLASSES) -> Network:
        """Finishes the network with a global average and one linear layer."""
        return self.finish(self.linear(self.flatten(self.global_average(x, "avgpool")), name, classes))

    def flatten(self, x: OnnxValue) -> OnnxValue:
        return self.node("Flatten", f"{x.name}.flatten", [x], (math.prod(x.sizes),), x.moments, axis=1)

    def reshape(self, x: OnnxValue, name: str, sizes: tuple[int, ...]) -> OnnxValue:
        # Zero copies the input's extent, as a symbolic batch needs.
        target = self.constant(f"{name}.shape", np.array([self.batch or 0, *sizes], np.int64))
        return self.node("Reshape", name, [x, target], sizes, x.moments)

    def transpose(self, x: OnnxValue, name: str, order: tuple[int, ...]) -> OnnxValue:
        """Adds a transpose; `order` counts the batch, which stays first."""
        sizes = tuple(x.sizes[axis - 1] for axis in order[1:])
        return self.node("Transpose", name, [x], sizes, x.moments, perm=order)
