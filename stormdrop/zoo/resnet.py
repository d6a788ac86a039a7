"""Residual networks: ResNet-18 to -152, and an 18-layer network on video."""

from __future__ import annotations

from stormdrop.zoo.builder import DAMPED, Network, NetworkBuilder, OnnxValue

VIDEO_CLASSES = 400
WIDTHS = (64, 128, 256, 512)
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def resnet(net: NetworkBuilder, depth: int) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.norm(net.conv(x, "conv1", 64, 7, stride=2, pad=3, bias=False), "bn1"))
    x = net.max_pool(x, "maxpool", 3, 2, pad=1)
    block = _bottleneck if depth >= 50 else _basic
    for stage, (width, blocks) in enumerate(zip(WIDTHS, BLOCKS[depth]), 1):
        for i in range(blocks):
            x = block(net, x, f"layer{stage}.{i}", width, 2 if stage > 1 and i == 0 else 1)
    return net.classified(x, "fc")


def _basic(
    net: NetworkBuilder, x: OnnxValue, at: str, width: int, stride: int, conv: str = "conv{}", norm: str = "bn{}"
) -> OnnxValue:
    conv1, norm1, conv2, norm2 = (f"{at}.{name.format(k)}" for k in (1, 2) for name in (conv, norm))
    y = net.relu(net.conv_norm(x, conv1, norm1, width, 3, stride))
    y = net.conv_norm(y, conv2, norm2, width, 3, gain=DAMPED)
    return net.relu(net.add(f"{at}.add", y, _shortcut(net, x, at, width, stride)))


def _bottleneck(net: NetworkBuilder, x: OnnxValue, at: str, width: int, stride: int) -> OnnxValue:
    y = net.relu(net.norm(net.conv(x, f"{at}.conv1", width, 1, bias=False), f"{at}.bn1"))
    y = net.relu(net.norm(net.conv(y, f"{at}.conv2", width, 3, stride, 1, bias=False), f"{at}.bn2"))
    y = net.norm(net.conv(y, f"{at}.conv3", 4 * width, 1, bias=False), f"{at}.bn3", gain=DAMPED)
    return net.relu(net.add(f"{at}.add", y, _shortcut(net, x, at, 4 * width, stride)))


def _shortcut(net: NetworkBuilder, x: OnnxValue, at: str, out: int, stride: int) -> OnnxValue:
    if stride == 1 and x.channels == out:
        return x
    return net.norm(net.conv(x, f"{at}.downsample.0", out, 1, stride, bias=False), f"{at}.downsample.1")


def resnet3d(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 16, 112, 112))
    x = net.relu(net.norm(net.conv(x, "stem.0", 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), "stem.1"))
    for stage, width in enumerate(WIDTHS, 1):
        for i in range(2):
            stride = 2 if stage > 1 and i == 0 else 1
            x = _basic(net, x, f"layer{stage}.{i}", width, stride, "conv{}.0", "conv{}.1")
    return net.classified(x, "fc", VIDEO_CLASSES)
