"""The header of a compiled model's file: an `Image` without its code, as JSON, and back.

Invariant: every image that `read_header` returns is consistent, even if the file is untrusted. Every address lies
within its space, every step has one address for each buffer of its kernel, every number is usable in a run. Any other
header is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

from stormdrop.device.artifact import ARTIFACT_FORM, Artifact
from stormdrop.device.group import GROUP_FORM, Group
from stormdrop.device.threads import MOST_THREADS
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.ir.strict import DTYPE, LARGEST, SIZE, Nullable, Optional, conform, parsed
from stormdrop.model.image import Address, Image, KernelCall, Port
from stormdrop.model.verify_image import verify

MOST_DIMENSIONS = 32

_PORT = (str, [SIZE], DTYPE)
IMAGE_FORM = {
    "versions": {"stormdrop": str, "llvm": str},
    "name": str,
    "triple": str,
    "cpu": str,
    "features": str,
    "threads": range(1, MOST_THREADS + 1),
    "arena_bytes": SIZE,
    "inputs": [_PORT],
    "outputs": [_PORT],
    "kernels": [{"code_bytes": range(1, LARGEST + 1), **ARTIFACT_FORM}],
    "steps": [
        {
            "kernel": SIZE,
            "addresses": [Nullable((frozenset(("input", "output", "arena", "weights")), SIZE, SIZE))],
            "label": str,
            "digest": str,
            "flops": float,
            "bytes": SIZE,
            "id": Optional(str),
            "shapes": Optional(str),
            "node": Optional(str),
        }
    ],
    "groups": Optional([GROUP_FORM]),
}


def write_header(image: Image, versions: dict[str, str]) -> bytes:
    """Returns the image as JSON. `versions` names the compiling versions; nothing depends on them."""
    return json.dumps(image_tree(image, versions), separators=(",", ":"), allow_nan=False).encode()


def image_tree(image: Image, versions: dict[str, str]) -> dict[str, object]:
    """Returns the image as JSON values."""
    return {
        "versions": versions,
        "name": image.name,
        "triple": image.triple,
        "cpu": image.cpu,
        "features": image.features,
        "threads": image.threads,
        "arena_bytes": image.arena_bytes,
        "inputs": [[p.name, p.shape, p.dtype] for p in image.inputs],
        "outputs": [[p.name, p.shape, p.dtype] for p in image.outputs],
        "kernels": [{"code_bytes": len(k.code), **k.to_json()} for k in image.kernels],
        "steps": [
            {
                "kernel": s.kernel,
                "addresses": [None if a is None else [a.space, a.index, a.offset] for a in s.addresses],
                "label": s.label,
                "digest": s.digest,
                "flops": s.flops,
                "bytes": s.nbytes,
                "id": s.id,
                "shapes": s.shapes,
                "node": s.node,
            }
            for s in image.calls
        ],
        **({"groups": [group.to_json() for group in image.groups]} if image.groups else {}),
    }


def read_header(data: bytes, code: memoryview, weights_bytes: int) -> Image:
    """Returns the image that a header describes.

    Raises ValueError if it is not well-formed, UserError if its parts do not fit each other.
    """
    head = parsed(data)
    conform(head, IMAGE_FORM, "header")
    return image_from(head, code, weights_bytes)


def image_from(head: dict[str, Any], code: memoryview, weights_bytes: int) -> Image:
    """Returns the image that a tree of `IMAGE_FORM` describes. Raises ValueError, UserError."""
    image = Image(
        name=head["name"],
        inputs=tuple(_port(*row) for row in head["inputs"]),
        outputs=tuple(_port(*row) for row in head["outputs"]),
        kernels=_kernels(head["kernels"], code),
        calls=tuple(map(_call, head["steps"])),
        arena_bytes=head["arena_bytes"],
        weights_bytes=weights_bytes,
        threads=head["threads"],
        triple=head["triple"],
        cpu=head["cpu"],
        features=head["features"],
        groups=tuple(map(Group.from_json, head.get("groups", ()))),
    )
    verify(image)
    return image


def _kernels(trees: list[Any], code: memoryview) -> tuple[Artifact, ...]:
    found: list[Artifact] = []
    begin = 0
    for tree in trees:
        end = begin + tree["code_bytes"]
        found.append(Artifact.from_json(tree, bytes(code[begin:end])))
        begin = end
    if begin != len(code):
        raise ValueError(f"kernels of {begin} bytes, not {len(code)}")
    return tuple(found)


def _call(tree: dict[str, Any]) -> KernelCall:
    addresses = tuple(a and Address(*a) for a in tree["addresses"])
    amounts = float(tree["flops"]), tree["bytes"]
    of_task = (tree.get(name, "") for name in ("id", "shapes", "node"))
    return KernelCall(tree["kernel"], addresses, tree["label"], tree["digest"], *amounts, *of_task)


def _port(name: str, shape: list[int], dtype: Dtype) -> Port:
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"an array of {len(shape)} dimensions")
    # Also without its zeros: NumPy refuses strides that overflow, even the strides of an empty array.
    if ITEMSIZE[dtype] * math.prod(n for n in shape if n) > LARGEST:
        raise ValueError(f"an array of shape {shape}")
    return Port(name, tuple(shape), dtype)
