"""The networks of the zoo: names and descriptions."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from stormdrop.base.errors import UserError
from stormdrop.zoo.bert import Bert, bert
from stormdrop.zoo.builder import Network, NetworkBuilder
from stormdrop.zoo.densenet import densenet
from stormdrop.zoo.inception import AUXILIARY_PARAMETERS, googlenet, inception_v3, squeezenet
from stormdrop.zoo.mobile import efficientnet_b0, mnasnet, mobilenet_v2, shufflenet
from stormdrop.zoo.plain import alexnet, dcgan_generator, vgg
from stormdrop.zoo.resnet import resnet, resnet3d

# LayerNormalization requires 17, Swish 24; onnxruntime runs no later opset that these graphs would use.
OPSETS = range(17, 25)
DEFAULT_OPSET = 18

NETWORKS: dict[str, Callable[[NetworkBuilder], Network]] = {
    "alexnet": alexnet,
    **{f"densenet{depth}": partial(densenet, depth=depth) for depth in (121, 161, 169, 201)},
    "googlenet": googlenet,
    "inception_v3": inception_v3,
    "mnasnet1_0": mnasnet,
    "mobilenet_v2": mobilenet_v2,
    **{f"resnet{depth}": partial(resnet, depth=depth) for depth in (18, 34, 50, 101, 152)},
    "shufflenet_v2_x1_0": shufflenet,
    "squeezenet1_0": squeezenet,
    **{f"vgg{depth}": partial(vgg, depth=depth) for depth in (11, 13, 16, 19)},
    "bert_base_seq128": partial(bert, shape=Bert()),
    "resnet3d_18": resnet3d,
    "dcgan_generator": dcgan_generator,
    "efficientnet_b0": efficientnet_b0,
}
# Counted with a network although its inference graph does not have them.
TRAINING_ONLY = {"inception_v3": AUXILIARY_PARAMETERS}


def describe(name: str, batch: int | None = 1, opset: int = DEFAULT_OPSET) -> Network:
    """Returns a network of the zoo. Raises UserError for an unknown name, a batch below 1 or an opset out of range."""
    if name not in NETWORKS:
        close = get_close_matches(name, NETWORKS, 1, 0.5)
        hint = f"; did you mean {close[0]}?" if close else f": it has {', '.join(NETWORKS)}"
        raise UserError(f"no network {name!r} in the zoo{hint}")
    if batch is not None and batch < 1:
        raise UserError(f"a batch of {batch}: give at least 1, or None for a symbolic one")
    if opset not in OPSETS:
        raise UserError(f"opset {opset}: give one of {OPSETS[0]} to {OPSETS[-1]}")
    return NETWORKS[name](NetworkBuilder(name, batch, opset))
