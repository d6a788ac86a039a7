"""The container of machine code: a compiled model (`.sd`), or built kernels that are kept between processes.

     0  magic           8 bytes
     8  format version  u32
    12  kind            u32 (`Kind`)
    16  header bytes    u64
    24  code bytes      u64
    32  weights bytes   u64
    40  header (JSON), code (byte strings of the header), zeros up to a multiple of 64, weights
     …  SHA-256 of all preceding bytes, and the end of the file

All numbers are little-endian. The header is the text of a tree (`base.codec`), [versions, content]. Nothing is
interpreted, and no code is loaded, before the checksum is verified. The checksum finds accidents, not intent: machine
code has all rights of the process that loads the code.

Invariant: at no time is there a second copy of the weights in memory.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.codec import decode, encode, text_of, tree_of
from stormdrop.base.errors import UserError
from stormdrop.base.version import __version__
from stormdrop.device.arrays import aligned
from stormdrop.device.artifact import SLACK_BYTES
from stormdrop.model.earlier_formats import current_family, current_image
from stormdrop.target import ALIGN_BYTES

_T = TypeVar("_T")

MAGIC = b"\x89SDMDL\r\n"  # not text: a transfer in text mode changes it
VERSION = 4  # 1 to 3: `earlier_formats`
AGAIN = "compile the model again"
_PREAMBLE = struct.Struct("<8sIIQQQ")
_DIGEST_BYTES = hashlib.sha256().digest_size
_CHUNK_BYTES = 1 << 20  # is hashed while it is in the cache


class Kind(IntEnum):
    """The contents of a container."""

    IMAGE = 0
    FAMILY = 1
    KERNELS = 2


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions that compiled the content; nothing depends on them."""

    stormdrop: str
    llvm: str


def write_container(
    write: Callable[[bytes | memoryview], None],
    kind: Kind,
    content_type: type[_T],
    content: _T,
    weights: Sequence[NDArray[np.uint8]] = (),
) -> None:
    """Writes a container. Raises Malformed for content that `content_of` would refuse."""
    from stormdrop.codegen.llvm import llvm_version

    tree = encode((_Versions(__version__, llvm_version()), content))
    decode(tuple[_Versions, content_type], tree)
    header, code = text_of(tree)
    sizes = len(header), len(code)
    preamble = _PREAMBLE.pack(MAGIC, VERSION, kind, *sizes, sum(part.nbytes for part in weights))
    digest = hashlib.sha256()
    for view in (*map(memoryview, (preamble, header, code, bytes(_padding(*sizes)))), *(part.data for part in weights)):
        for at in range(0, len(view), _CHUNK_BYTES):
            chunk = view[at : at + _CHUNK_BYTES]
            digest.update(chunk)
            write(chunk)
    write(digest.digest())


@dataclass(frozen=True, slots=True)
class Container:
    """A container with a verified checksum."""

    version: int
    kind: Kind
    header: bytes
    code: bytes
    weights: NDArray[np.uint8]

    def content(self, content_type: type[_T]) -> _T:
        """Returns the content. Raises Malformed."""
        if self.version >= VERSION:
            return decode(tuple[_Versions, content_type], tree_of(self.header, self.code))[1]
        current = current_family if self.kind is Kind.FAMILY else current_image
        tree: Any = current(tree_of(self.header), self.code, self.weights.nbytes)
        return decode(content_type, tree)


def read_container(file: io.BufferedReader, name: str) -> Container:
    """Returns the container in an open file. Raises UserError, and OSError if the file cannot be read."""
    size = os.fstat(file.fileno()).st_size
    digest = hashlib.sha256()

    def fill(view: memoryview) -> None:
        at = 0
        while at < len(view):
            n = file.readinto(view[at : at + _CHUNK_BYTES])
            if not n:
                raise UserError(f"{name} is cut short; {AGAIN}")
            digest.update(view[at : at + n])
            at += n

    def read(nbytes: int) -> bytes:
        data = bytearray(nbytes)
        fill(memoryview(data))
        return bytes(data)

    if size < _PREAMBLE.size:
        raise UserError(f"{name} is no compiled model: it has only {size} bytes")
    magic, version, kind, header_bytes, code_bytes, weights_bytes = _PREAMBLE.unpack(read(_PREAMBLE.size))
    if magic != MAGIC:
        raise UserError(f"{name} is no compiled model (Model.save writes them, sd.compile makes one from an ONNX file)")
    if not 1 <= version <= VERSION:
        age = "a newer" if version > VERSION else "another"
        reads = f"(format {version}, this one reads 1 to {VERSION})"
        raise UserError(f"{name} was written by {age} Stormdrop {reads}; {AGAIN} with this one")
    padding = _padding(header_bytes, code_bytes)
    expected = _PREAMBLE.size + header_bytes + code_bytes + padding + weights_bytes + _DIGEST_BYTES
    if kind not in list(Kind) or size < expected:
        raise UserError(f"{name} is cut short or damaged: it has {size} bytes of {expected}; {AGAIN}")
    if size > expected:
        raise UserError(f"{name} is damaged: {size - expected} bytes follow its end; {AGAIN}")
    header, code, _ = read(header_bytes), read(code_bytes), read(padding)
    weights = aligned(weights_bytes + SLACK_BYTES)[:weights_bytes]
    fill(weights.data)
    if file.read(_DIGEST_BYTES) != digest.digest():
        raise UserError(f"{name} is damaged: its checksum is wrong; {AGAIN}")
    weights.flags.writeable = False
    return Container(version, Kind(kind), header, code, weights)


def _padding(header_bytes: int, code_bytes: int) -> int:
    return -(_PREAMBLE.size + header_bytes + code_bytes) % ALIGN_BYTES
