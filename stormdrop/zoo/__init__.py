"""Twenty-four well-known networks as ONNX models, with seeded random weights and without downloads.

    from stormdrop import zoo

    zoo.names()                                  # ('alexnet', 'densenet121', …)
    model = zoo.build("resnet50")                # an onnx.ModelProto, the same for the same seed
    model = zoo.build("resnet50", batch=None)    # the batch is symbolic

Graphs equal the output of torch's exporter; parameters have torchvision's names. Activations stay near one in size by
construction, so an output distinguishes right kernels from wrong kernels. onnx is imported only when a model is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stormdrop.base.errors import UserError

if TYPE_CHECKING:
    import onnx


from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

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


__all__ = ["DEFAULT_OPSET", "build", "flops", "names", "parameters", "skeleton"]


def names() -> tuple[str, ...]:
    return tuple(NETWORKS)


def build(name: str, batch: int | None = 1, seed: int = 0, opset: int = DEFAULT_OPSET) -> onnx.ModelProto:
    """Describes a network and draws its weights.

    Raises UserError for an unknown name, a batch below one, a negative seed or an unsupported opset.
    """
    from stormdrop.zoo.export import model

    if seed < 0:
        raise UserError(f"a seed of {seed}: give 0 or more")
    return model(describe(name, batch, opset), seed)


def skeleton(name: str, batch: int | None = 1, opset: int = DEFAULT_OPSET) -> onnx.ModelProto:
    """Returns the graph of `build` with parameters as inputs without values: a few kilobytes, made in milliseconds."""
    from stormdrop.zoo.export import skeleton as exported

    return exported(describe(name, batch, opset))


def parameters(name: str) -> int:
    """Returns the number of trained parameters as in the literature: inception_v3 with its auxiliary head."""
    return describe(name).parameter_count + TRAINING_ONLY.get(name, 0)


def flops(name: str, batch: int = 1) -> int:
    """Counts the floating-point operations of one inference: two per multiply-add of convolutions and matrix products.

    Biases, batch norms, activations and pools are not counted, as in the literature.
    """
    return 2 * describe(name, batch).multiply_adds * batch
