"""Networks of parallel branches: SqueezeNet 1.0, GoogLeNet and Inception v3, as they infer, without auxiliary heads."""

from __future__ import annotations

from stormdrop.zoo.builder import CLASSES, Network, NetworkBuilder, OnnxValue, Sizes

EPS = 1e-3
# Inception v3's auxiliary head, which only training uses: 768 -> 128 (1x1), 128 -> 768 (5x5), 768 -> 1000. It is
# counted.
AUXILIARY_PARAMETERS = (768 * 128 + 2 * 128) + (128 * 768 * 25 + 2 * 768) + (768 * 1000 + 1000)

# Channels of each GoogLeNet module: 1x1; reduced, 3x3; reduced, second 3x3; after the pool.
GOOGLENET = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}

# Position among torchvision's features: squeezed channels, and channels of either expansion.
FIRES = {3: (16, 64), 4: (16, 64), 5: (32, 128), 7: (32, 128), 8: (48, 192), 9: (48, 192), 10: (64, 256), 12: (64, 256)}
SQUEEZENET_POOLS = (6, 11)


def _unit(
    net: NetworkBuilder, x: OnnxValue, at: str, out: int, kernel: Sizes = 1, stride: int = 1, pad: Sizes = 0
) -> OnnxValue:
    return net.relu(net.norm(net.conv(x, f"{at}.conv", out, kernel, stride, pad, bias=False), f"{at}.bn", eps=EPS))


def googlenet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = _unit(net, x, "conv1", 64, 7, 2, 3)
    x = net.max_pool(x, "maxpool1", 3, 2, ceil=True)
    x = _unit(net, x, "conv2", 64)
    x = _unit(net, x, "conv3", 192, 3, pad=1)
    x = net.max_pool(x, "maxpool2", 3, 2, ceil=True)
    for name, channels in GOOGLENET.items():
        if name == "4a":
            x = net.max_pool(x, "maxpool3", 3, 2, ceil=True)
        elif name == "5a":
            x = net.max_pool(x, "maxpool4", 2, 2, ceil=True)
        x = _googlenet_module(net, x, f"inception{name}", channels)
    return net.classified(x, "fc")


def _googlenet_module(
    net: NetworkBuilder, x: OnnxValue, at: str, channels: tuple[int, int, int, int, int, int]
) -> OnnxValue:
    one, reduce3, three, reduce5, five, pooled = channels
    # torchvision's "5x5" branch has a 3x3 kernel, as the released weights have.
    branches = [
        _unit(net, x, f"{at}.branch1", one),
        _unit(net, _unit(net, x, f"{at}.branch2.0", reduce3), f"{at}.branch2.1", three, 3, pad=1),
        _unit(net, _unit(net, x, f"{at}.branch3.0", reduce5), f"{at}.branch3.1", five, 3, pad=1),
        _unit(net, net.max_pool(x, f"{at}.branch4.0", 3, 1, 1, ceil=True), f"{at}.branch4.1", pooled),
    ]
    return net.concat(f"{at}.concat", branches)


def inception_v3(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 299, 299))
    x = _unit(net, x, "Conv2d_1a_3x3", 32, 3, 2)
    x = _unit(net, x, "Conv2d_2a_3x3", 32, 3)
    x = _unit(net, x, "Conv2d_2b_3x3", 64, 3, pad=1)
    x = net.max_pool(x, "maxpool1", 3, 2)
    x = _unit(net, x, "Conv2d_3b_1x1", 80)
    x = _unit(net, x, "Conv2d_4a_3x3", 192, 3)
    x = net.max_pool(x, "maxpool2", 3, 2)
    for name, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        x = _square_module(net, x, f"Mixed_{name}", pooled)
    x = _square_reduction(net, x, "Mixed_6a")
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        x = _long_module(net, x, f"Mixed_{name}", width)
    x = _long_reduction(net, x, "Mixed_7a")
    for name in ("7b", "7c"):
        x = _forked_module(net, x, f"Mixed_{name}")
    return net.classified(x, "fc")


def _chain(net: NetworkBuilder, x: OnnxValue, at: str, units: list[tuple[int, Sizes, int, Sizes]]) -> OnnxValue:
    """Adds the units `at_1`, `at_2`, …, each (channels, kernel, stride, pad)."""
    for number, (out, kernel, stride, pad) in enumerate(units, 1):
        x = _unit(net, x, f"{at}_{number}", out, kernel, stride, pad)
    return x


def _pooled(net: NetworkBuilder, x: OnnxValue, at: str, out: int) -> OnnxValue:
    return _unit(net, net.avg_pool(x, f"{at}.avgpool", 3, 1, 1), f"{at}.branch_pool", out)


def _square_module(net: NetworkBuilder, x: OnnxValue, at: str, pooled: int) -> OnnxValue:
    branches = [
        _unit(net, x, f"{at}.branch1x1", 64),
        _chain(net, x, f"{at}.branch5x5", [(48, 1, 1, 0), (64, 5, 1, 2)]),
        _chain(net, x, f"{at}.branch3x3dbl", [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 1, 1)]),
        _pooled(net, x, at, pooled),
    ]
    return net.concat(f"{at}.concat", branches)


def _square_reduction(net: NetworkBuilder, x: OnnxValue, at: str) -> OnnxValue:
    branches = [
        _unit(net, x, f"{at}.branch3x3", 384, 3, 2),
        _chain(net, x, f"{at}.branch3x3dbl", [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 2, 0)]),
        net.max_pool(x, f"{at}.maxpool", 3, 2),
    ]
    return net.concat(f"{at}.concat", branches)


def _wide(out: int) -> tuple[int, Sizes, int, Sizes]:
    return out, (1, 7), 1, (0, 3)


def _tall(out: int) -> tuple[int, Sizes, int, Sizes]:
    return out, (7, 1), 1, (3, 0)


def _long_module(net: NetworkBuilder, x: OnnxValue, at: str, width: int) -> OnnxValue:
    branches = [
        _unit(net, x, f"{at}.branch1x1", 192),
        _chain(net, x, f"{at}.branch7x7", [(width, 1, 1, 0), _wide(width), _tall(192)]),
        _chain(net, x, f"{at}.branch7x7dbl", [(width, 1, 1, 0), _tall(width), _wide(width), _tall(width), _wide(192)]),
        _pooled(net, x, at, 192),
    ]
    return net.concat(f"{at}.concat", branches)


def _long_reduction(net: NetworkBuilder, x: OnnxValue, at: str) -> OnnxValue:
    branches = [
        _chain(net, x, f"{at}.branch3x3", [(192, 1, 1, 0), (320, 3, 2, 0)]),
        _chain(net, x, f"{at}.branch7x7x3", [(192, 1, 1, 0), _wide(192), _tall(192), (192, 3, 2, 0)]),
        net.max_pool(x, f"{at}.maxpool", 3, 2),
    ]
    return net.concat(f"{at}.concat", branches)


def _forked_module(net: NetworkBuilder, x: OnnxValue, at: str) -> OnnxValue:
    def fork(x: OnnxValue, name: str, position: int) -> OnnxValue:
        wide = _unit(net, x, f"{at}.{name}_{position}a", 384, (1, 3), pad=(0, 1))
        tall = _unit(net, x, f"{at}.{name}_{position}b", 384, (3, 1), pad=(1, 0))
        return net.concat(f"{at}.{name}.concat", [wide, tall])

    branches = [
        _unit(net, x, f"{at}.branch1x1", 320),
        fork(_unit(net, x, f"{at}.branch3x3_1", 384), "branch3x3", 2),
        fork(_chain(net, x, f"{at}.branch3x3dbl", [(448, 1, 1, 0), (384, 3, 1, 1)]), "branch3x3dbl", 3),
        _pooled(net, x, at, 192),
    ]
    return net.concat(f"{at}.concat", branches)


def squeezenet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.conv(x, "features.0", 96, 7, stride=2))
    x = net.max_pool(x, "features.2", 3, 2, ceil=True)
    for at in range(3, 13):
        if at in SQUEEZENET_POOLS:
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
