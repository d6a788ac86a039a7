"""The header of a compiled model's file: an `Image` without its code, as JSON, and back.

Invariant: what `read_header` returns is consistent. Every address lies within its space, every step has one address for
each buffer of its kernel, every number is one that a run can use. A header that is not like that is refused, whoever
wrote it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.runtime.artifact import Artifact, BufferSpec
from stormdrop.runtime.image import Address, Image, KernelCall, Port, Space
from stormdrop.runtime.verify import verify
from stormdrop.target.scope import Scope

LARGEST = 1 << 46
"""Bytes, or trips of a loop: products with a number of threads still fit 64 bits."""
MOST_THREADS = 4096
MOST_DIMENSIONS = 32

_SPACES: dict[str, Space] = {"input": "input", "output": "output", "arena": "arena", "weights": "weights"}
_DTYPES: dict[str, Dtype] = {name: name for name in ITEMSIZE}
_SCOPES: dict[str, Scope] = {scope.value: scope for scope in Scope if scope is not Scope.SCRATCH}
T = TypeVar("T")


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
        "kernels": [
            {
                "code_bytes": len(k.code),
                "scratch_bytes": k.scratch_bytes,
                "extents": list(k.extents),
                "prepare_extents": list(k.prepare_extents),
                "slots": [[s.name, s.dtype, s.scope.value, s.elements, s.resident] for s in k.buffers],
            }
            for k in image.kernels
        ],
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
    try:
        tree = json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no header: {error}") from error
    head = _Fields(tree, "header")
    versions = head.take("versions", _object)
    for value in versions.values():
        _text(value)
    kernels = _kernels(head.take("kernels", _list), code)
    image = Image(
        name=head.take("name", _text),
        inputs=tuple(map(_port, head.take("inputs", _list))),
        outputs=tuple(map(_port, head.take("outputs", _list))),
        kernels=kernels,
        calls=tuple(map(_call, head.take("steps", _list))),
        arena_bytes=head.take("arena_bytes", _size),
        weights_bytes=weights_bytes,
        threads=head.take("threads", lambda v: _integer(v, 1, MOST_THREADS)),
        triple=head.take("triple", _text),
        cpu=head.take("cpu", _text),
        features=head.take("features", _text),
    )
    head.close()
    verify(image)
    _check_reach(image)
    return image


def _check_reach(image: Image) -> None:
    """Raises ValueError for memory that cannot hold what a step reads or writes there.

    A view with gaps reaches further than its elements fill, and the header does not say how far.
    """
    rooms: dict[Space, Sequence[int]] = {
        "input": [p.nbytes for p in image.inputs],
        "output": [p.nbytes for p in image.outputs],
        "arena": [image.arena_bytes],
        "weights": [image.weights_bytes],
    }
    for n, step in enumerate(image.calls):
        for buffer, a in zip(image.kernels[step.kernel].buffers, step.addresses):
            if a is None:
                continue
            room = rooms[a.space][a.index]
            if a.offset + buffer.elements * ITEMSIZE[buffer.dtype] > room:
                raise ValueError(
                    f"call {n} has {buffer.elements} {buffer.dtype} at byte {a.offset} of the {room} of {a.space} "
                    f"{a.index}"
                )


def _kernels(trees: list[Any], code: memoryview) -> tuple[Artifact, ...]:
    found: list[Artifact] = []
    begin = 0
    for tree in trees:
        fields = _Fields(tree, "kernel")
        end = begin + fields.take("code_bytes", lambda v: _integer(v, 1, LARGEST))
        if end > len(code):
            raise ValueError(f"kernels of more than {len(code)} bytes")
        found.append(
            Artifact(
                code=bytes(code[begin:end]),
                buffers=tuple(map(_buffer, fields.take("slots", _list))),
                extents=tuple(map(_size, fields.take("extents", _list))),
                prepare_extents=tuple(map(_size, fields.take("prepare_extents", _list))),
                scratch_bytes=fields.take("scratch_bytes", _size),
            )
        )
        fields.close()
        begin = end
    if begin != len(code):
        raise ValueError(f"kernels of {begin} bytes, not {len(code)}")
    return tuple(found)


def _buffer(tree: Any) -> BufferSpec:
    name, dtype, scope, elements, resident = _row(tree, 5)
    if type(resident) is not bool:
        raise ValueError(f"{resident!r} for yes or no")
    return BufferSpec(_text(name), _one_of(dtype, _DTYPES), _one_of(scope, _SCOPES), _size(elements), resident)


def _call(tree: Any) -> KernelCall:
    fields = _Fields(tree, "step")
    call = KernelCall(
        kernel=fields.take("kernel", _size),
        addresses=tuple(map(_address, fields.take("addresses", _list))),
        label=fields.take("label", _text),
        digest=fields.take("digest", _text),
        flops=fields.take("flops", _amount),
        nbytes=fields.take("bytes", _size),
    )
    fields.close()
    return call


def _address(tree: Any) -> Address | None:
    if tree is None:
        return None
    name, index, offset = _row(tree, 3)
    space = _one_of(name, _SPACES)
    if index != 0 and space in ("arena", "weights"):
        raise ValueError(f"there is only one block of {space}")
    return Address(space, _size(index), _size(offset))


def _port_tree(p: Port) -> list[object]:
    return [p.name, list(p.shape), p.dtype]


def _port(tree: Any) -> Port:
    name, shape, dtype = _row(tree, 3)
    extents = tuple(map(_size, _list(shape)))
    if len(extents) > MOST_DIMENSIONS:
        raise ValueError(f"an array of {len(extents)} dimensions")
    # Also without its zeros: NumPy refuses strides that overflow, even those of an empty array.
    if ITEMSIZE[_one_of(dtype, _DTYPES)] * math.prod(n for n in extents if n) > LARGEST:
        raise ValueError(f"an array of shape {extents}")
    return Port(_text(name), extents, _one_of(dtype, _DTYPES))


# ---- JSON, strictly --------------------------------------------------------------------------------------------------


class _Fields:
    """The fields of a JSON object, each of which must be there and be taken."""

    def __init__(self, tree: Any, what: str) -> None:
        self._tree, self._what = dict(_object(tree)), what

    def take(self, name: str, read: Callable[[Any], T]) -> T:
        if name not in self._tree:
            raise ValueError(f"a {self._what} without {name}")
        try:
            return read(self._tree.pop(name))
        except ValueError as error:
            raise ValueError(f"{self._what}, {name}: {error}") from error

    def close(self) -> None:
        if self._tree:
            raise ValueError(f"a {self._what} with {min(self._tree)[:40]!r}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name occurs twice")
    return tree


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"{_shown(value)} for an object")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{_shown(value)} for a list")
    return value


def _row(value: Any, length: int) -> list[Any]:
    if len(_list(value)) != length:
        raise ValueError(f"{len(value)} entries for {length}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{_shown(value)} for a text")
    return value


def _integer(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:  # a bool is not an int here
        raise ValueError(f"{_shown(value)} for a whole number between {least} and {most}")
    return value


def _size(value: Any) -> int:
    return _integer(value, 0, LARGEST)


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e300:
        raise ValueError(f"{_shown(value)} for an amount")
    return float(value)


def _one_of(value: Any, known: dict[str, T]) -> T:
    if type(value) is not str or value not in known:
        raise ValueError(f"{_shown(value)} for one of {', '.join(known)}")
    return known[value]


def _shown(value: Any) -> str:
    text = repr(value) if type(value) in (str, int, float, bool) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
