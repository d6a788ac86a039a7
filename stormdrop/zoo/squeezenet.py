"""SqueezeNet 1.0: fire modules, and a classifier that is a convolution."""

from __future__ import annotations

from stormdrop.zoo.builder import CLASSES, Network, NetworkBuilder, OnnxValue

# Position among torchvision's features: squeezed channels, and channels of either expansion.
FIRES = {3: (16, 64), 4: (16, 64), 5: (32, 128), 7: (32, 128), 8: (48, 192), 9: (48, 192), 10: (64, 256), 12: (64, 256)}
POOLS = (6, 11)


def squeezenet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv(x, "features.0", 96, 7, stride=2))
    x = net.max_pool(x, "features.2", 3, 2, ceil=True)
    for at in range(3, 13):
        if at in POOLS:
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
