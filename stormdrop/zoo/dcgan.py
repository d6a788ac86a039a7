"""The generator of DCGAN: from 100 numbers to an image of 64 x 64, by transposed convolutions."""

from __future__ import annotations

from stormdrop.zoo.builder import Network, NetworkBuilder

LATENT = 100
WIDTHS = (512, 256, 128, 64)


def dcgan_generator(net: NetworkBuilder) -> Network:
    x = net.input("input", (LATENT, 1, 1))
    for i, width in enumerate(WIDTHS):
        stride, pad = (2, 1) if i else (1, 0)
        x = net.relu(net.norm(net.conv_transpose(x, f"main.{3 * i}", width, 4, stride, pad), f"main.{3 * i + 1}"))
    return net.finish(net.tanh(net.conv_transpose(x, f"main.{3 * len(WIDTHS)}", 3, 4, 2, 1)))
