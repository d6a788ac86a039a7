"""Chains of convolutions: AlexNet, the VGGs, SqueezeNet 1.0 and the generator of DCGAN."""

from __future__ import annotations

from stormdrop.zoo.builder import CLASSES, Network, NetworkBuilder, OnnxValue

VGG = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
# SqueezeNet's fire modules, by position among torchvision's features: squeezed channels, and channels of either
# expansion.
FIRES = {3: (16, 64), 4: (16, 64), 5: (32, 128), 7: (32, 128), 8: (48, 192), 9: (48, 192), 10: (64, 256), 12: (64, 256)}
FIRE_POOLS = (6, 11)
DCGAN_WIDTHS = (512, 256, 128, 64)


def alexnet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv(x, "features.0", 64, 11, stride=4, pad=2))
    x = net.max_pool(x, "features.2", 3, 2)
    x = net.relu(net.conv(x, "features.3", 192, 5, pad=2))
    x = net.max_pool(x, "features.5", 3, 2)
    for at, channels in ((6, 384), (8, 256), (10, 256)):
        x = net.relu(net.conv(x, f"features.{at}", channels, 3, pad=1))
    x = net.max_pool(x, "features.12", 3, 2)
    return _classified(net, x, (1, 4, 6))


def vgg(net: NetworkBuilder, depth: int) -> Network:
    x = net.input("input", (3, 224, 224))
    at = 0
    for convs, channels in zip(VGG[depth], (64, 128, 256, 512, 512)):
        for _ in range(convs):
            x = net.relu(net.conv(x, f"features.{at}", channels, 3, pad=1))
            at += 2
        x = net.max_pool(x, f"features.{at}", 2, 2)
        at += 1
    return _classified(net, x, (0, 3, 6))


def _classified(net: NetworkBuilder, x: OnnxValue, positions: tuple[int, int, int]) -> Network:
    """Three matrices; torchvision's adaptive pool before them changes nothing at 224 x 224 and is not written."""
    first, second, last = (f"classifier.{at}" for at in positions)
    x = net.relu(net.linear(net.flatten(x), first, 4096))
    x = net.relu(net.linear(x, second, 4096))
    return net.finish(net.linear(x, last, CLASSES))


def squeezenet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv(x, "features.0", 96, 7, stride=2))
    x = net.max_pool(x, "features.2", 3, 2, ceil=True)
    for at in range(3, 13):
        if at in FIRE_POOLS:
            x = net.max_pool(x, f"features.{at}", 3, 2, ceil=True)
        else:
            x = _fire(net, x, f"features.{at}", *FIRES[at])
    x = net.relu(net.conv(x, "classifier.1", CLASSES, 1))
    return net.finish(net.flatten(net.global_average(x, "classifier.3")))


def _fire(net: NetworkBuilder, x: OnnxValue, at: str, squeezed: int, expanded: int) -> OnnxValue:
    x = net.relu(net.conv(x, f"{at}.squeeze", squeezed, 1))
    one = net.relu(net.conv(x, f"{at}.expand1x1", expanded, 1))
    three = net.relu(net.conv(x, f"{at}.expand3x3", expanded, 3, pad=1))
    return net.concat(f"{at}.concat", [one, three])


def dcgan_generator(net: NetworkBuilder) -> Network:
    """From 100 numbers to an image of 64 x 64, by transposed convolutions."""
    x = net.input("input", (100, 1, 1))
    for i, width in enumerate(DCGAN_WIDTHS):
        stride, pad = (2, 1) if i else (1, 0)
        x = net.relu(net.norm(net.conv_transpose(x, f"main.{3 * i}", width, 4, stride, pad), f"main.{3 * i + 1}"))
    return net.finish(net.tanh(net.conv_transpose(x, f"main.{3 * len(DCGAN_WIDTHS)}", 3, 4, 2, 1)))
