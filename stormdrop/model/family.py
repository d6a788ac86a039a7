"""A model compiled for several sizes as data: images that share their weights, and the shapes that each serves."""

from __future__ import annotations

from dataclasses import dataclass

from stormdrop.base.codec import Size
from stormdrop.base.errors import UserError
from stormdrop.ir.shape import Claim, Padding
from stormdrop.model.image import Image, OpenPort, verify


@dataclass(frozen=True, slots=True)
class Served:
    """Input shapes, and the number of the image that runs them; for an image of larger shapes, also the valid parts
    there.
    """

    shapes: tuple[tuple[Size, ...], ...]
    image: Size
    masks: tuple[Padding, ...] = ()
    outputs: tuple[Claim, ...] = ()

    @property
    def is_padded(self) -> bool:
        return bool(self.outputs)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """All sizes of a model."""

    name: str
    inputs: tuple[OpenPort, ...]
    outputs: tuple[OpenPort, ...]
    images: tuple[Image, ...]
    served: tuple[Served, ...]


def verify_family(family: Family) -> None:
    """Raises UserError that names the fault: an image that cannot be run, or shapes that do not fit their image."""
    for image in family.images:
        verify(image)
    if len({(i.triple, i.cpu, i.features, i.threads, i.weights_bytes) for i in family.images}) != 1:
        raise UserError(f"{family.name}: it has images for different machines, or none")
    for served in family.served:
        if served.image >= len(family.images):
            raise UserError(f"{family.name}: there is no image {served.image}")
        problem = _problem(served, family.images[served.image], len(family.inputs))
        if problem:
            raise UserError(f"{family.name}: {problem}")


def _problem(served: Served, image: Image, inputs: int) -> str:
    """Returns the fault of shapes; empty if masks are the image's last inputs and no shape is larger than its own."""
    shapes, claims = served.shapes, served.outputs
    if len(shapes) != inputs or len(image.inputs) != inputs + len(served.masks):
        return f"{len(shapes)} shapes and {len(served.masks)} masks for {len(image.inputs)} inputs"
    if len(claims) not in (0, len(image.outputs)):
        return f"the valid parts of {len(claims)} outputs, not {len(image.outputs)}"
    for shape, port in zip(shapes, image.inputs):
        if len(shape) != len(port.shape) or any(n > m for n, m in zip(shape, port.shape)):
            return f"{list(shape)} does not fit into {port!r}"
        if not claims and shape != port.shape:
            return f"{list(shape)} is not {port!r}"
    for port in image.inputs[inputs:]:
        if len(port.shape) != 1 or port.dtype != "bool":
            return f"{port!r} is no mask"
    for claim, port in zip(claims, image.outputs):
        for d, p in claim.items():
            if d not in range(len(port.shape)) or p.valid > p.size or port.shape[d] % (p.inner * p.size):
                return f"a padding that {port!r} does not have"
    return ""
