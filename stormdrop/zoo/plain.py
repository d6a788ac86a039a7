"""Chains without branches: AlexNet and the VGGs, and DCGAN's generator from 100 numbers to a 64 x 64 image."""

from __future__ import annotations

from stormdrop.zoo.builder import CLASSES, Network, NetworkBuilder, OnnxValue

VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
DCGAN_LATENT = 100
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
    """Adds the three matrices of a classifier.

    torchvision's adaptive pool before them changes nothing at 224 x 224 and is not written.
    """
    first, second, last = (f"classifier.{at}" for at in positions)
    x = net.relu(net.linear(net.flatten(x), first, 4096))
    x = net.relu(net.linear(x, second, 4096))
    return net.finish(net.linear(x, last, CLASSES))


def dcgan_generator(net: NetworkBuilder) -> Network:
    x = net.input("input", (DCGAN_LATENT, 1, 1))
    for i, width in enumerate(DCGAN_WIDTHS):
        stride, pad = (2, 1) if i else (1, 0)
        x = net.relu(net.norm(net.conv_transpose(x, f"main.{3 * i}", width, 4, stride, pad), f"main.{3 * i + 1}"))
    return net.finish(net.tanh(net.conv_transpose(x, f"main.{3 * len(DCGAN_WIDTHS)}", 3, 4, 2, 1)))
