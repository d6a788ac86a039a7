"""ShuffleNet v2 at width 1.0: half of the channels pass untouched, then halves are interleaved."""

from __future__ import annotations

from stormdrop.zoo.builder import CLASSES, Network, NetworkBuilder, OnnxValue

STAGES = ((116, 4), (232, 8), (464, 4))


def shufflenet(net: NetworkBuilder) -> Network:
    x = net.input("input", (3, 224, 224))
    x = net.relu(net.norm(net.conv(x, "conv1.0", 24, 3, 2, 1, bias=False), "conv1.1"))
    x = net.max_pool(x, "maxpool", 3, 2, 1)
    for stage, (out, units) in enumerate(STAGES, 2):
        for i in range(units):
            x = _unit(net, x, f"stage{stage}.{i}", out // 2, reduces=i == 0)
    x = net.relu(net.norm(net.conv(x, "conv5.0", 1024, 1, bias=False), "conv5.1"))
    return net.finish(net.linear(net.spatial_mean(x, "mean"), "fc", CLASSES))


def _unit(net: NetworkBuilder, x: OnnxValue, at: str, half: int, reduces: bool) -> OnnxValue:
    if reduces:
        kept, worked = _filtered(net, x, f"{at}.branch1", 0, half, 2), x
    else:
        kept, worked = net.split(x, f"{at}.split", 2)
    y = net.relu(_pointwise(net, worked, f"{at}.branch2", 0, half))
    y = _filtered(net, y, f"{at}.branch2", 3, half, 2 if reduces else 1)
    return _shuffled(net, net.concat(f"{at}.concat", [kept, y]), f"{at}.shuffle")


def _pointwise(net: NetworkBuilder, x: OnnxValue, at: str, first: int, out: int) -> OnnxValue:
    return net.norm(net.conv(x, f"{at}.{first}", out, 1, bias=False), f"{at}.{first + 1}")


def _filtered(net: NetworkBuilder, x: OnnxValue, at: str, first: int, out: int, stride: int) -> OnnxValue:
    """A 3x3 filter for each channel and no activation, then a pointwise convolution with one."""
    x = net.norm(net.conv(x, f"{at}.{first}", x.channels, 3, stride, 1, x.channels, bias=False), f"{at}.{first + 1}")
    return net.relu(_pointwise(net, x, at, first + 2, out))


def _shuffled(net: NetworkBuilder, x: OnnxValue, at: str) -> OnnxValue:
    channels, *spatial = x.sizes
    y = net.reshape(x, f"{at}.apart", (2, channels // 2, *spatial))
    y = net.transpose(y, f"{at}.swap", (0, 2, 1, 3, 4))
    return net.reshape(y, f"{at}.join", (channels, *spatial))
