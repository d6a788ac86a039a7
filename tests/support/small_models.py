"""Ten networks that take well below 2 ms: what runs on every key press, sensor reading or request.

The four of MLPerf Tiny (keyword spotting, wake words, small images, anomalies), and one each of other common kinds.
Weights are seeded random ones, as in the zoo.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from stormdrop.zoo import DEFAULT_OPSET
from stormdrop.zoo.bert import Bert, bert
from stormdrop.zoo.builder import Network, NetworkBuilder, OnnxValue
from stormdrop.zoo.export import model
from stormdrop.zoo.weights import Normal

REQUESTS = 32


def _lenet5(net: NetworkBuilder) -> Network:
    x = net.input("input", (1, 28, 28))
    for k, channels in enumerate((6, 16)):
        x = net.max_pool(net.relu(net.conv(x, f"conv{k}", channels, 5, pad=2 - 2 * k)), f"pool{k}", 2, 2)
    return _layers(net, net.flatten(x), (120, 84), 10)


def _perceptron(net: NetworkBuilder) -> Network:
    return _layers(net, net.input("input", (784,)), (512, 512), 10)


def _layers(net: NetworkBuilder, x: OnnxValue, widths: tuple[int, ...], classes: int) -> Network:
    for k, width in enumerate(widths):
        x = net.relu(net.linear(x, f"fc{k}", width))
    return net.finish(net.linear(x, "classifier", classes))


def _keywords(net: NetworkBuilder) -> Network:
    """DS-CNN on 49 frames of 10 coefficients."""
    x = net.input("input", (1, 49, 10))
    x = net.relu(net.norm(net.conv(x, "stem", 64, (10, 4), 2, (5, 1), bias=False), "stem_norm"))
    for k in range(4):
        x = _separable(net, x, f"block{k}", 64, 1)
    return net.classified(x, "fc", 12)


def _separable(net: NetworkBuilder, x: OnnxValue, name: str, out: int, stride: int) -> OnnxValue:
    x = net.relu(net.conv_norm(x, f"{name}.depthwise", f"{name}.norm1", x.channels, 3, stride, x.channels))
    return net.relu(net.conv_norm(x, f"{name}.pointwise", f"{name}.norm2", out))


def _wake_words(net: NetworkBuilder) -> Network:
    """MobileNet v1 of a quarter of the width, on images of 96x96."""
    x = net.relu(net.conv_norm(net.input("input", (3, 96, 96)), "stem", "stem_norm", 8, 3, 2))
    widths = (16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256)
    for k, width in enumerate(widths):
        x = _separable(net, x, f"block{k}", width, 2 if width > x.channels and k else 1)
    return net.classified(x, "fc", 2)


def _small_images(net: NetworkBuilder) -> Network:
    """ResNet-8 on images of 32x32."""
    x = net.relu(net.conv_norm(net.input("input", (3, 32, 32)), "stem", "stem_norm", 16, 3))
    for k, width in enumerate((16, 32, 64)):
        stride = 1 if width == x.channels else 2
        y = net.relu(net.conv_norm(x, f"block{k}.conv1", f"block{k}.norm1", width, 3, stride))
        y = net.conv_norm(y, f"block{k}.conv2", f"block{k}.norm2", width, 3)
        skipped = x if stride == 1 else net.conv(x, f"block{k}.skip", width, 1, stride)
        x = net.relu(net.add(f"block{k}.add", y, skipped))
    return net.classified(x, "fc", 10)


def _anomalies(net: NetworkBuilder) -> Network:
    """An autoencoder of 640 spectral values."""
    x = net.input("input", (640,))
    for k, width in enumerate((128, 128, 128, 128, 8, 128, 128, 128, 128)):
        x = net.relu(net.norm(net.linear(x, f"fc{k}", width), f"norm{k}"))
    return net.finish(net.linear(x, "restored", 640))


def _segments(net: NetworkBuilder) -> Network:
    """A U-Net of three levels on images of 64x64."""
    x, levels = net.input("input", (1, 64, 64)), list[OnnxValue]()
    for k, width in enumerate((16, 32, 64)):
        x = _twice(net, net.max_pool(x, f"pool{k}", 2, 2) if k else x, f"down{k}", width)
        levels.append(x)
    for k, skipped in enumerate(reversed(levels[:-1])):
        x = net.conv_transpose(x, f"up{k}", skipped.channels, 2, 2, 0)
        x = _twice(net, net.concat(f"join{k}", [x, skipped]), f"level{k}", skipped.channels)
    return net.finish(net.conv(x, "mask", 2, 1))


def _twice(net: NetworkBuilder, x: OnnxValue, name: str, width: int) -> OnnxValue:
    for k in range(2):
        x = net.relu(net.conv_norm(x, f"{name}.conv{k}", f"{name}.norm{k}", width, 3))
    return x


def _signals(net: NetworkBuilder) -> Network:
    """Residual convolutions over 256 samples of a signal."""
    x = net.relu(net.conv(net.input("input", (8, 256)), "stem", 64, 5, pad=2))
    for k in range(5):
        y = net.conv(net.relu(net.conv(x, f"block{k}.conv1", 64, 5, pad=2)), f"block{k}.conv2", 64, 5, pad=2)
        x = net.relu(net.add(f"block{k}.add", x, y))
    return net.finish(net.conv(x, "cleaned", 8, 1))


def _sentences(net: NetworkBuilder) -> Network:
    """BERT-tiny on 64 tokens."""
    return bert(net, Bert(hidden=128, heads=2, intermediate=512, layers=2, sequence=64))


def _recommendations(net: NetworkBuilder) -> Network:
    """Embeddings of 26 categories beside 13 numbers, and a perceptron."""
    numbers, ids = net.input("numbers", (13,)), net.input("ids", (26,), np.int64)
    table = net.parameter("embeddings", (10_000, 16), Normal(1.0))
    rows = net.node("Gather", "gathered", [table, ids], (26, 16), numbers.moments, axis=0)
    return _layers(net, net.concat("joined", [numbers, net.flatten(rows)]), (256, 128, 64), 1)


SMALL: dict[str, Callable[[NetworkBuilder], Network]] = {
    "lenet5": _lenet5,
    "perceptron": _perceptron,
    "keywords": _keywords,
    "wake_words": _wake_words,
    "small_images": _small_images,
    "anomalies": _anomalies,
    "segments": _segments,
    "signals": _signals,
    "sentences": _sentences,
    "recommendations": _recommendations,
}


def small(name: str, seed: int = 0) -> onnx.ModelProto:
    """One input at a time; the recommendations are of a batch of requests."""
    batch = REQUESTS if name == "recommendations" else 1
    return model(SMALL[name](NetworkBuilder(name, batch, DEFAULT_OPSET)), seed)
