"""The header of a compiled model's file: an `Image` without its code, as JSON, and back.

Invariant: what `read_header` returns is consistent. Every address lies within its space, every step has one address for
each buffer of its kernel, every number is one that a run can use. A header that is not like that is refused, whoever
wrote it.
"""

from __future__ import annotations

import json
import math
from typing import Any

from stormdrop.ir.expr import ITEMSIZE
from stormdrop.runtime.artifact import Artifact
from stormdrop.runtime.image import Address, Image, KernelCall, Port, Space
from stormdrop.runtime.strict import (
    LARGEST,
    Fields,
    amount_of,
    dtype_of,
    integer_of,
    list_of,
    object_of,
    one_of,
    parsed,
    row_of,
    size_of,
    text_of,
)
from stormdrop.runtime.threads import MOST_THREADS
from stormdrop.runtime.verify import verify

MOST_DIMENSIONS = 32

_SPACES: dict[str, Space] = {"input": "input", "output": "output", "arena": "arena", "weights": "weights"}


def write_header(image: Image, versions: dict[str, str]) -> bytes:
    """The image as JSON. `versions` says who compiled it; nothing depends on that."""
    tree = {
        "versions": versions,
        "name": image.name,
        "triple": image.triple,
        "cpu": image.cpu,
        "features": image.features,
        "threads": image.threads,
        "arena_bytes": image.arena_bytes,
        "inputs": [_port_tree(p) for p in image.inputs],
        "outputs": [_port_tree(p) for p in image.outputs],
        "kernels": [{"code_bytes": len(k.code), **k.to_json()} for k in image.kernels],
        "steps": [
            {
                "kernel": s.kernel,
                "addresses": [None if a is None else [a.space, a.index, a.offset] for a in s.addresses],
                "label": s.label,
                "digest": s.digest,
                "flops": s.flops,
                "bytes": s.nbytes,
            }
            for s in image.calls
        ],
    }
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()


def read_header(data: bytes, code: memoryview, weights_bytes: int) -> Image:
    """The image that a header describes.

    Raises ValueError if it is not well-formed, UserError if its parts do not fit each other.
    """
    head = Fields(parsed(data), "header")
    versions = head.take("versions", object_of)
    for value in versions.values():
        text_of(value)
    kernels = _kernels(head.take("kernels", list_of), code)
    image = Image(
        name=head.take("name", text_of),
        inputs=tuple(map(_port, head.take("inputs", list_of))),
        outputs=tuple(map(_port, head.take("outputs", list_of))),
        kernels=kernels,
        calls=tuple(map(_call, head.take("steps", list_of))),
        arena_bytes=head.take("arena_bytes", size_of),
        weights_bytes=weights_bytes,
        threads=head.take("threads", lambda v: integer_of(v, 1, MOST_THREADS)),
        triple=head.take("triple", text_of),
        cpu=head.take("cpu", text_of),
        features=head.take("features", text_of),
    )
    head.close()
    verify(image)
    return image


def _kernels(trees: list[Any], code: memoryview) -> tuple[Artifact, ...]:
    found: list[Artifact] = []
    begin = 0
    for tree in trees:
        fields = Fields(tree, "kernel")
        end = begin + fields.take("code_bytes", lambda v: integer_of(v, 1, LARGEST))
        if end > len(code):
            raise ValueError(f"kernels of more than {len(code)} bytes")
        found.append(Artifact.from_fields(fields, bytes(code[begin:end])))
        begin = end
    if begin != len(code):
        raise ValueError(f"kernels of {begin} bytes, not {len(code)}")
    return tuple(found)


def _call(tree: Any) -> KernelCall:
    fields = Fields(tree, "step")
    call = KernelCall(
        kernel=fields.take("kernel", size_of),
        addresses=tuple(map(_address, fields.take("addresses", list_of))),
        label=fields.take("label", text_of),
        digest=fields.take("digest", text_of),
        flops=fields.take("flops", amount_of),
        nbytes=fields.take("bytes", size_of),
    )
    fields.close()
    return call


def _address(tree: Any) -> Address | None:
    if tree is None:
        return None
    name, index, offset = row_of(tree, 3)
    space = one_of(name, _SPACES)
    if index != 0 and space in ("arena", "weights"):
        raise ValueError(f"there is only one block of {space}")
    return Address(space, size_of(index), size_of(offset))


def _port_tree(p: Port) -> list[object]:
    return [p.name, list(p.shape), p.dtype]


def _port(tree: Any) -> Port:
    name, shape, dtype = row_of(tree, 3)
    extents = tuple(map(size_of, list_of(shape)))
    if len(extents) > MOST_DIMENSIONS:
        raise ValueError(f"an array of {len(extents)} dimensions")
    # Also without its zeros: NumPy refuses strides that overflow, even those of an empty array.
    if ITEMSIZE[dtype_of(dtype)] * math.prod(n for n in extents if n) > LARGEST:
        raise ValueError(f"an array of shape {extents}")
    return Port(text_of(name), extents, dtype_of(dtype))
