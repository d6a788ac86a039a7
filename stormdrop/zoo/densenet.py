"""DenseNets: every layer reads all earlier outputs of its block."""

from __future__ import annotations

from stormdrop.zoo.builder import Network, NetworkBuilder, OnnxValue

BOTTLENECK = 4
# Growth, channels of the stem, layers of the four blocks.
SHAPES = {
    121: (32, 64, (6, 12, 24, 16)),
    161: (48, 96, (6, 12, 36, 24)),
    169: (32, 64, (6, 12, 32, 32)),
    201: (32, 64, (6, 12, 48, 32)),
}


def densenet(net: NetworkBuilder, depth: int) -> Network:
    growth, stem, blocks = SHAPES[depth]
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.norm(net.conv(x, "features.conv0", stem, 7, stride=2, pad=3, bias=False), "features.norm0"))
    x = net.max_pool(x, "features.pool0", 3, 2, pad=1)
    for number, layers in enumerate(blocks, 1):
        block = f"features.denseblock{number}"
        made = [x]
        for layer in range(1, layers + 1):
            made.append(_layer(net, made, f"{block}.denselayer{layer}", growth))
        x = net.concat(f"{block}.concat", made)
        if number < len(blocks):
            x = _transition(net, x, f"features.transition{number}")
    x = net.relu(net.norm(x, "features.norm5"))
    return net.classified(x, "classifier")


def _layer(net: NetworkBuilder, made: list[OnnxValue], at: str, growth: int) -> OnnxValue:
    x = net.relu(net.norm(net.concat(f"{at}.concat", made), f"{at}.norm1"))
    x = net.relu(net.norm(net.conv(x, f"{at}.conv1", BOTTLENECK * growth, 1, bias=False), f"{at}.norm2"))
    return net.conv(x, f"{at}.conv2", growth, 3, pad=1, bias=False)


def _transition(net: NetworkBuilder, x: OnnxValue, at: str) -> OnnxValue:
    x = net.conv(net.relu(net.norm(x, f"{at}.norm")), f"{at}.conv", x.channels // 2, 1, bias=False)
    return net.avg_pool(x, f"{at}.pool", 2, 2)
