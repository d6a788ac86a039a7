"""Residual networks: ResNet-18 to -152, and the 18-layer one on video."""

from __future__ import annotations

from stormdrop.zoo.builder import DAMPED, Network, NetworkBuilder, OnnxValue

VIDEO_CLASSES = 400
WIDTHS = (64, 128, 256, 512)
BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
# Names of the convolutions and batch norms in a basic block.
BlockNames = tuple[tuple[str, str], tuple[str, str]]
IMAGE_NAMES = (("conv1", "bn1"), ("conv2", "bn2"))
VIDEO_NAMES = (("conv1.0", "conv1.1"), ("conv2.0", "conv2.1"))


def resnet(net: NetworkBuilder, depth: int) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv_norm(x, "conv1", "bn1", 64, 7, 2))
    x = net.max_pool(x, "maxpool", 3, 2, pad=1)
    block = _bottleneck if depth >= 50 else _basic
    for stage, (width, blocks) in enumerate(zip(WIDTHS, BLOCKS[depth]), 1):
        for i in range(blocks):
            x = block(net, x, f"layer{stage}.{i}", width, 2 if stage > 1 and i == 0 else 1)
    return net.classified(x, "fc")


def _basic(
    net: NetworkBuilder, x: OnnxValue, at: str, width: int, stride: int, names: BlockNames = IMAGE_NAMES
) -> OnnxValue:
    (conv1, norm1), (conv2, norm2) = names
    y = net.relu(net.conv_norm(x, f"{at}.{conv1}", f"{at}.{norm1}", width, 3, stride))
    y = net.conv_norm(y, f"{at}.{conv2}", f"{at}.{norm2}", width, 3, gain=DAMPED)
    return net.relu(net.add(f"{at}.add", y, _shortcut(net, x, at, width, stride)))


def _bottleneck(net: NetworkBuilder, x: OnnxValue, at: str, width: int, stride: int) -> OnnxValue:
    y = net.relu(net.conv_norm(x, f"{at}.conv1", f"{at}.bn1", width))
    y = net.relu(net.conv_norm(y, f"{at}.conv2", f"{at}.bn2", width, 3, stride))
    y = net.conv_norm(y, f"{at}.conv3", f"{at}.bn3", 4 * width, gain=DAMPED)
    return net.relu(net.add(f"{at}.add", y, _shortcut(net, x, at, 4 * width, stride)))


def _shortcut(net: NetworkBuilder, x: OnnxValue, at: str, out: int, stride: int) -> OnnxValue:
    if stride == 1 and x.channels == out:
        return x
    return net.conv_norm(x, f"{at}.downsample.0", f"{at}.downsample.1", out, stride=stride)


def resnet3d(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 16, 112, 112))
    x = net.relu(net.norm(net.conv(x, "stem.0", 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), "stem.1"))
    for stage, width in enumerate(WIDTHS, 1):
        for i in range(2):
            x = _basic(net, x, f"layer{stage}.{i}", width, 2 if stage > 1 and i == 0 else 1, VIDEO_NAMES)
    return net.classified(x, "fc", VIDEO_CLASSES)
