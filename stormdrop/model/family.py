"""A model compiled for several sizes as data: images that share one block of weights, and the shapes that each serves.

Its JSON is the header of an `.sd` file that holds several sizes. Invariant as of `model.header`: every family that
`read_family` returns is consistent, even if the file is untrusted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from stormdrop.ir.padding import Claim, Padding
from stormdrop.ir.strict import DTYPE, LARGEST, SIZE, Nullable, conform, parsed
from stormdrop.model.header import IMAGE_FORM, image_from, image_tree
from stormdrop.model.image import Image, OpenPort

_PORT = (str, Nullable([(str, SIZE)]), DTYPE)  # of an open dimension the name, of another dimension the size
_PADDING = (range(1, LARGEST + 1), range(1, LARGEST + 1), SIZE)
_FORM = {
    "name": str,
    "inputs": [_PORT],
    "outputs": [_PORT],
    "models": [IMAGE_FORM],
    "served": [
        {"shapes": [[SIZE]], "model": SIZE, "masks": [_PADDING], "outputs": [[(SIZE, *_PADDING)]]},
    ],
}


@dataclass(frozen=True, slots=True)
class Served:
    """Input shapes, and the number of the image that runs them; for an image of larger shapes, also the valid parts
    there.
    """

    shapes: tuple[tuple[int, ...], ...]
    image: int
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


def write_family(family: Family, versions: dict[str, str]) -> bytes:
    """Returns the family as JSON, without the code."""
    tree = {
        "name": family.name,
        "inputs": [_port_tree(port) for port in family.inputs],
        "outputs": [_port_tree(port) for port in family.outputs],
        "models": [image_tree(image, versions) for image in family.images],
        "served": [
            {
                "shapes": s.shapes,
                "model": s.image,
                "masks": [[p.inner, p.size, p.valid] for p in s.masks],
                "outputs": [[[d, p.inner, p.size, p.valid] for d, p in claim.items()] for claim in s.outputs],
            }
            for s in family.served
        ],
    }
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()


def read_family(data: bytes, code: memoryview, weights_bytes: int) -> Family:
    """Parses the JSON of `write_family`. Raises ValueError, and UserError for images with inconsistent parts."""
    head = parsed(data)
    conform(head, _FORM, "header")
    images: list[Image] = []
    begin = 0
    for tree in head["models"]:
        end = begin + sum(kernel["code_bytes"] for kernel in tree["kernels"])
        images.append(image_from(tree, code[begin:end], weights_bytes))
        begin = end
    if begin != len(code):
        raise ValueError(f"kernels of {begin} bytes, not {len(code)}")
    inputs, outputs = (tuple(_port(*row) for row in head[kind]) for kind in ("inputs", "outputs"))
    served = tuple(_served(tree, images, len(inputs)) for tree in head["served"])
    if not images or len({(i.triple, i.cpu, i.features, i.threads) for i in images}) > 1:
        raise ValueError("models for different machines, or none")
    return Family(head["name"], inputs, outputs, tuple(images), served)


def _port_tree(port: OpenPort) -> list[object]:
    if port.dimensions is None:
        return [port.name, None, port.dtype]
    return [port.name, [[d, 0] if isinstance(d, str) else ["", d] for d in port.dimensions], port.dtype]


def _port(name: str, rows: list[Any] | None, dtype: Any) -> OpenPort:
    return OpenPort.of(name, None if rows is None else tuple(d or n for d, n in rows), dtype)


def _served(tree: dict[str, Any], images: list[Image], inputs: int) -> Served:
    """Returns shapes checked against the image: masks are its last inputs, and shapes are not larger than its own."""
    if tree["model"] >= len(images):
        raise ValueError(f"there is no model {tree['model']}")
    image = images[tree["model"]]
    masks = tuple(Padding(*row) for row in tree["masks"])
    outputs = tuple({d: Padding(*row) for d, *row in claim} for claim in tree["outputs"])
    shapes = tuple(map(tuple, tree["shapes"]))
    served = Served(shapes, tree["model"], masks, outputs)
    if len(shapes) != inputs or len(image.inputs) != inputs + len(masks) or len(outputs) not in (0, len(image.outputs)):
        raise ValueError("shapes of other inputs")
    for shape, port in zip(shapes, image.inputs):
        if len(shape) != len(port.shape) or any(n > m for n, m in zip(shape, port.shape)):
            raise ValueError(f"{list(shape)} does not fit into {port!r}")
        if not outputs and shape != port.shape:
            raise ValueError(f"{list(shape)} is not {port!r}")
    for port in image.inputs[inputs:]:
        if len(port.shape) != 1 or port.dtype != "bool":
            raise ValueError(f"{port!r} is no mask")
    for claim, port in zip(outputs, image.outputs):
        for d, p in claim.items():
            if d >= len(port.shape) or p.valid > p.size or port.shape[d] % (p.inner * p.size):
                raise ValueError(f"a padding that {port!r} does not have")
    return served
