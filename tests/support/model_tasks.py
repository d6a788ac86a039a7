"""Tasks of small models: the layers of the zoo's networks at sizes that the reference computes in milliseconds."""

from __future__ import annotations

from functools import cache

from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.ir.tensor import Task
from stormdrop.zoo.bert import Bert, bert
from stormdrop.zoo.builder import Network, NetworkBuilder
from stormdrop.zoo.export import model

SIZES = ((9, 16, 18), (12, 17, 24), (13, 8, 33))
"""Pixels of an image row, channels, wider channels."""
ENCODERS = (
    Bert(vocabulary=20, positions=12, hidden=24, heads=3, intermediate=40, layers=1, sequence=11),
    Bert(vocabulary=20, positions=9, hidden=32, heads=2, intermediate=17, layers=1, sequence=7),
)


def _image_network(size: int, width: int, wide: int) -> Network:
    """Plain, strided, pointwise, residual, depthwise and squeezed convolutions, each with other epilogues; pools."""
    net = NetworkBuilder(f"images{size}", 1, 18)
    x = net.relu(net.conv_norm(net.input("input", (3, size, size)), "stem", "stem.norm", width, 3))
    y = net.relu(net.conv_norm(x, "a1", "a1.norm", width, 3))
    x = net.relu(net.add("a.add", net.conv_norm(y, "a2", "a2.norm", width, 3), x))
    y = net.relu6(net.conv_norm(x, "b1", "b1.norm", wide, 1))
    y = net.relu6(net.norm(net.conv(y, "b2", wide, 3, 1, 1, groups=wide, bias=False), "b2.norm"))
    x = net.add("b.add", net.conv_norm(y, "b3", "b3.norm", width, 1), x)
    x = net.max_pool(net.silu(net.conv_norm(x, "c1", "c1.norm", wide, 3, 2)), "pool", 3, 2, pad=1)
    gate = net.sigmoid(net.conv(net.silu(net.conv(net.global_average(x, "mean"), "d1", width, 1)), "d2", wide, 1))
    x = net.conv_norm(net.mul("gate", x, gate), "d3", "d3.norm", width, 1)
    y = net.tanh(net.conv_transpose(x, "e", wide, 4, 2, 1))
    return net.finish(net.avg_pool(y, "mean2", 2, 2), net.linear(net.flatten(x), "fc", wide), names=("image", "output"))


@cache
def model_tasks() -> tuple[Task, ...]:
    """Of several models, each once; those with something to reduce, and with float inputs alone."""
    networks = [_image_network(*sizes) for sizes in SIZES]
    networks += [bert(NetworkBuilder(f"bert{k}", 1, 18), shape) for k, shape in enumerate(ENCODERS)]
    found: dict[str, Task] = {}
    for network in networks:
        for use in tasks_of(read_graph(model(network, 0))).tasks:
            if use.task.anchor_key and all(t.dtype == "f32" for t in use.task.inputs):
                found[use.task.digest] = use.task
    return tuple(found.values())
