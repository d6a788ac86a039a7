"""Networks for phones, which filter each channel by itself.

MobileNet v2, MnasNet 1.0 and EfficientNet-B0 are made of inverted residuals (expand, filter, project); ShuffleNet v2
at width 1.0 lets half of the channels pass untouched, then interleaves the halves.
"""

from __future__ import annotations

from stormdrop.zoo.builder import CLASSES, DAMPED, Network, NetworkBuilder, OnnxValue

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
# Channels, units.
SHUFFLENET = ((116, 4), (232, 8), (464, 4))


def _gain(x: OnnxValue, out: int, stride: int) -> float:
    return DAMPED if stride == 1 and x.channels == out else 1.0


def _residual(net: NetworkBuilder, x: OnnxValue, y: OnnxValue, at: str, stride: int) -> OnnxValue:
    return net.add(f"{at}.add", x, y) if stride == 1 and x.channels == y.channels else y


def mobilenet_v2(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu6(net.conv_norm(x, "features.0.0", "features.0.1", 32, 3, 2))
    number = 1
    for expansion, out, blocks, first in MOBILENET_V2:
        for i in range(blocks):
            x = _mobilenet_block(net, x, f"features.{number}", expansion, out, 1 if i else first)
            number += 1
    x = net.relu6(net.conv_norm(x, f"features.{number}.0", f"features.{number}.1", 1280))
    return net.classified(x, "classifier.1")


def _mobilenet_block(net: NetworkBuilder, x: OnnxValue, at: str, expansion: int, out: int, stride: int) -> OnnxValue:
    y, hidden, i = x, expansion * x.channels, 0
    if expansion != 1:
        y, i = net.relu6(net.conv_norm(y, f"{at}.conv.0.0", f"{at}.conv.0.1", hidden)), 1
    y = net.relu6(net.conv_norm(y, f"{at}.conv.{i}.0", f"{at}.conv.{i}.1", hidden, 3, stride, hidden))
    y = net.conv_norm(y, f"{at}.conv.{i + 1}", f"{at}.conv.{i + 2}", out, gain=_gain(x, out, stride))
    return _residual(net, x, y, at, stride)


def mnasnet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv_norm(x, "layers.0", "layers.1", 32, 3, 2))
    x = net.relu(net.conv_norm(x, "layers.3", "layers.4", 32, 3, groups=32))
    x = net.conv_norm(x, "layers.6", "layers.7", 16)
    for number, (expansion, out, blocks, first, kernel) in enumerate(MNASNET, 8):
        for i in range(blocks):
            x = _mnasnet_block(net, x, f"layers.{number}.{i}", expansion, out, 1 if i else first, kernel)
    x = net.relu(net.conv_norm(x, "layers.14", "layers.15", 1280))
    return net.finish(net.linear(net.spatial_mean(x, "mean"), "classifier.1", CLASSES))


def _mnasnet_block(
    net: NetworkBuilder, x: OnnxValue, at: str, expansion: int, out: int, stride: int, kernel: int
) -> OnnxValue:
    hidden, layer = expansion * x.channels, f"{at}.layers"
    y = net.relu(net.conv_norm(x, f"{layer}.0", f"{layer}.1", hidden))
    y = net.relu(net.conv_norm(y, f"{layer}.3", f"{layer}.4", hidden, kernel, stride, hidden))
    y = net.conv_norm(y, f"{layer}.6", f"{layer}.7", out, gain=_gain(x, out, stride))
    return _residual(net, x, y, at, stride)


def efficientnet_b0(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.silu(net.conv_norm(x, "features.0.0", "features.0.1", 32, 3, 2))
    for number, (expansion, out, blocks, first, kernel) in enumerate(EFFICIENTNET_B0, 1):
        for i in range(blocks):
            x = _efficientnet_block(net, x, f"features.{number}.{i}", expansion, out, 1 if i else first, kernel)
    x = net.silu(net.conv_norm(x, "features.8.0", "features.8.1", 1280))
    return net.classified(x, "classifier.1")


def _efficientnet_block(
    net: NetworkBuilder, x: OnnxValue, at: str, expansion: int, out: int, stride: int, kernel: int
) -> OnnxValue:
    y, hidden, i = x, expansion * x.channels, 0
    if expansion != 1:
        y, i = net.silu(net.conv_norm(y, f"{at}.block.0.0", f"{at}.block.0.1", hidden)), 1
    y = net.silu(net.conv_norm(y, f"{at}.block.{i}.0", f"{at}.block.{i}.1", hidden, kernel, stride, hidden))
    y = _squeeze_excite(net, y, f"{at}.block.{i + 1}", x.channels // 4)
    y = net.conv_norm(y, f"{at}.block.{i + 2}.0", f"{at}.block.{i + 2}.1", out, gain=_gain(x, out, stride))
    return _residual(net, x, y, at, stride)


def _squeeze_excite(net: NetworkBuilder, x: OnnxValue, at: str, squeezed: int) -> OnnxValue:
    y = net.silu(net.conv(net.global_average(x, f"{at}.avgpool"), f"{at}.fc1", squeezed, 1))
    return net.mul(f"{at}.mul", x, net.sigmoid(net.conv(y, f"{at}.fc2", x.channels, 1)))


def shufflenet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv_norm(x, "conv1.0", "conv1.1", 24, 3, 2))
    x = net.max_pool(x, "maxpool", 3, 2, 1)
    for stage, (out, units) in enumerate(SHUFFLENET, 2):
        for i in range(units):
            x = _shuffle_unit(net, x, f"stage{stage}.{i}", out // 2, reduces=i == 0)
    x = net.relu(net.conv_norm(x, "conv5.0", "conv5.1", 1024))
    return net.finish(net.linear(net.spatial_mean(x, "mean"), "fc", CLASSES))


def _shuffle_unit(net: NetworkBuilder, x: OnnxValue, at: str, half: int, reduces: bool) -> OnnxValue:
    if reduces:
        kept, worked = _filtered(net, x, f"{at}.branch1", 0, half, 2), x
    else:
        kept, worked = net.split(x, f"{at}.split", 2)
    y = net.relu(net.conv_norm(worked, f"{at}.branch2.0", f"{at}.branch2.1", half))
    y = _filtered(net, y, f"{at}.branch2", 3, half, 2 if reduces else 1)
    return _shuffled(net, net.concat(f"{at}.concat", [kept, y]), f"{at}.shuffle")


def _filtered(net: NetworkBuilder, x: OnnxValue, at: str, first: int, out: int, stride: int) -> OnnxValue:
    """A 3x3 filter for each channel and no activation, then a pointwise convolution with one."""
    x = net.conv_norm(x, f"{at}.{first}", f"{at}.{first + 1}", x.channels, 3, stride, x.channels)
    return net.relu(net.conv_norm(x, f"{at}.{first + 2}", f"{at}.{first + 3}", out))


def _shuffled(net: NetworkBuilder, x: OnnxValue, at: str) -> OnnxValue:
    channels, *spatial = x.sizes
    y = net.reshape(x, f"{at}.apart", (2, channels // 2, *spatial))
    y = net.transpose(y, f"{at}.swap", (0, 2, 1, 3, 4))
    return net.reshape(y, f"{at}.join", (channels, *spatial))
