"""Small networks: MobileNet v2, MnasNet 1.0, EfficientNet-B0 and ShuffleNet v2.

The first three consist of inverted residuals (expand, filter each channel, project). In ShuffleNet v2 at width 1.0 half
of the channels pass unchanged, and the halves are interleaved.
"""

from __future__ import annotations

from collections.abc import Callable

from stormdrop.zoo.builder import CLASSES, DAMPED, Network, NetworkBuilder, OnnxValue

Names = tuple[tuple[str, str], ...]
# Expansion, channels, blocks, stride of the first.
MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# The same, and the kernel.
MNASNET = ((3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)

# Channels and units.
SHUFFLENET_STAGES = ((116, 4), (232, 8), (464, 4))


def _pair(at: str) -> tuple[str, str]:
    """Returns the names of a convolution and its norm in one torch module."""
    return f"{at}.0", f"{at}.1"


def _inverted_residual(
    net: NetworkBuilder,
    x: OnnxValue,
    at: str,
    names: Names,
    shape: tuple[int, int, int, int],
    activation: Callable[[OnnxValue], OnnxValue],
    excite: str = "",
) -> OnnxValue:
    """Adds an inverted residual: expand (unless by 1), filter each channel, perhaps weigh the channels, project.

    `names` are the names of the convolutions and their norms; `shape` is expansion, channels, stride and kernel.
    """
    expansion, out, stride, kernel = shape
    y, hidden = x, expansion * x.channels
    if expansion != 1:
        y = activation(net.conv_norm(y, *names[0], hidden))
    y = activation(net.conv_norm(y, *names[1], hidden, kernel, stride, hidden))
    if excite:
        y = _squeeze_excite(net, y, excite, x.channels // 4)
    passes = stride == 1 and x.channels == out
    y = net.conv_norm(y, *names[2], out, gain=DAMPED if passes else 1.0)
    return net.add(f"{at}.add", x, y) if passes else y


def mobilenet_v2(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu6(net.conv_norm(x, "features.0.0", "features.0.1", 32, 3, 2))
    number = 1
    for expansion, out, blocks, first in MOBILENET_V2:
        for i in range(blocks):
            at, k = f"features.{number}", int(expansion != 1)
            block = f"{at}.conv"
            names = _pair(f"{block}.0"), _pair(f"{block}.{k}"), (f"{block}.{k + 1}", f"{block}.{k + 2}")
            x = _inverted_residual(net, x, at, names, (expansion, out, 1 if i else first, 3), net.relu6)
            number += 1
    x = net.relu6(net.conv_norm(x, f"features.{number}.0", f"features.{number}.1", 1280))
    return net.classified(x, "classifier.1")


def mnasnet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv_norm(x, "layers.0", "layers.1", 32, 3, 2))
    x = net.relu(net.conv_norm(x, "layers.3", "layers.4", 32, 3, groups=32))
    x = net.conv_norm(x, "layers.6", "layers.7", 16)
    for number, (expansion, out, blocks, first, kernel) in enumerate(MNASNET, 8):
        for i in range(blocks):
            at = f"layers.{number}.{i}"
            names = tuple((f"{at}.layers.{k}", f"{at}.layers.{k + 1}") for k in (0, 3, 6))
            x = _inverted_residual(net, x, at, names, (expansion, out, 1 if i else first, kernel), net.relu)
    x = net.relu(net.conv_norm(x, "layers.14", "layers.15", 1280))
    return net.finish(net.linear(net.spatial_mean(x, "mean"), "classifier.1", CLASSES))


def efficientnet_b0(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.silu(net.conv_norm(x, "features.0.0", "features.0.1", 32, 3, 2))
    for number, (expansion, out, blocks, first, kernel) in enumerate(EFFICIENTNET_B0, 1):
        for i in range(blocks):
            at, k = f"features.{number}.{i}", int(expansion != 1)
            names = tuple(_pair(f"{at}.block.{j}") for j in (0, k, k + 2))
            shape = (expansion, out, 1 if i else first, kernel)
            x = _inverted_residual(net, x, at, names, shape, net.silu, excite=f"{at}.block.{k + 1}")
    x = net.silu(net.conv_norm(x, "features.8.0", "features.8.1", 1280))
    return net.classified(x, "classifier.1")


def _squeeze_excite(net: NetworkBuilder, x: OnnxValue, at: str, squeezed: int) -> OnnxValue:
    y = net.silu(net.conv(net.global_average(x, f"{at}.avgpool"), f"{at}.fc1", squeezed, 1))
    return net.mul(f"{at}.mul", x, net.sigmoid(net.conv(y, f"{at}.fc2", x.channels, 1)))


def shufflenet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv_norm(x, "conv1.0", "conv1.1", 24, 3, 2))
    x = net.max_pool(x, "maxpool", 3, 2, 1)
    for stage, (out, units) in enumerate(SHUFFLENET_STAGES, 2):
        for i in range(units):
            x = _shufflenet_unit(net, x, f"stage{stage}.{i}", out // 2, reduces=i == 0)
    x = net.relu(net.conv_norm(x, "conv5.0", "conv5.1", 1024))
    return net.finish(net.linear(net.spatial_mean(x, "mean"), "fc", CLASSES))


def _shufflenet_unit(net: NetworkBuilder, x: OnnxValue, at: str, half: int, reduces: bool) -> OnnxValue:
    if reduces:
        kept, worked = _filtered(net, x, f"{at}.branch1", 0, half, 2), x
    else:
        kept, worked = net.split(x, f"{at}.split", 2)
    y = net.relu(net.conv_norm(worked, f"{at}.branch2.0", f"{at}.branch2.1", half))
    y = _filtered(net, y, f"{at}.branch2", 3, half, 2 if reduces else 1)
    return _shuffled(net, net.concat(f"{at}.concat", [kept, y]), f"{at}.shuffle")


def _filtered(net: NetworkBuilder, x: OnnxValue, at: str, first: int, out: int, stride: int) -> OnnxValue:
    """Adds a 3x3 filter for each channel and no activation, then a pointwise convolution with activation."""
    x = net.conv_norm(x, f"{at}.{first}", f"{at}.{first + 1}", x.channels, 3, stride, x.channels)
    return net.relu(net.conv_norm(x, f"{at}.{first + 2}", f"{at}.{first + 3}", out))


def _shuffled(net: NetworkBuilder, x: OnnxValue, at: str) -> OnnxValue:
    channels, *spatial = x.sizes
    y = net.reshape(x, f"{at}.apart", (2, channels // 2, *spatial))
    y = net.transpose(y, f"{at}.swap", (0, 2, 1, 3, 4))
    return net.reshape(y, f"{at}.join", (channels, *spatial))
