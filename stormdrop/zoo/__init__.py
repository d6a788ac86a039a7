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
from stormdrop.zoo.catalogue import DEFAULT_OPSET, NETWORKS, TRAINING_ONLY, describe

if TYPE_CHECKING:
    import onnx

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
