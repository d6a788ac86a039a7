"""Messages between the measurer and its workers: JSON objects that may hold bytes, in frames with a checksum.

    magic (4) | sequence (u32) | bytes of JSON (u32) | bytes of blobs (u32) | CRC-32 of both (u32) | JSON | blobs

The JSON and its blobs, the machine code, are the text of a tree (`base.codec`). A candidate runs in the process that
holds the pipe and may write any bytes on it. Bytes other than exactly the expected reply raise `Garbled`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from stormdrop.base.codec import Malformed, encode, text_of, tree_of
from stormdrop.builder.building import BuiltKernel, Packing
from stormdrop.device.artifact import Artifact
from stormdrop.space.schedule import Schedule

MAGIC = b"\xc3SD\x1a"
HEADER = struct.Struct("<4sIIII")
LIMIT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A request to build a kernel: a schedule (None: the default), or LLVM IR with the calling convention of `like`.

    The other fields are the arguments of `build_for_model`.
    """

    schedule: Schedule | None = None
    strides: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The strides of the arrays that are not row-major, with their names."""
    code: str | None = None
    packing: Packing | None = None
    summarise: bool = False
    text: str = ""
    like: Artifact | None = None

    @property
    def message(self) -> dict[str, Any]:
        return {"op": "build", "request": encode(self)}


@dataclass(frozen=True, slots=True)
class BuildReply:
    """A built kernel and the seconds of the build."""

    kernel: BuiltKernel
    seconds: float


class Garbled(Exception):
    """Bytes on the pipe that are not a valid message."""


def frame(sequence: int, message: Mapping[str, Any]) -> bytes:
    """Returns a message as bytes."""
    text, blobs = text_of(message)
    return HEADER.pack(MAGIC, sequence, len(text), len(blobs), zlib.crc32(blobs, zlib.crc32(text))) + text + blobs


class Inbox:
    """Bytes as they arrive, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> tuple[int, dict[str, Any]] | None:
        """Returns the next message and its number; None while it is incomplete. Raises Garbled, as early as it can."""
        held = self._bytes
        if not MAGIC.startswith(held[: len(MAGIC)]):
            raise Garbled(f"{bytes(held[:16])!r} where a message should begin")
        if len(held) < HEADER.size:
            return None
        _, sequence, text_bytes, blob_bytes, checksum = HEADER.unpack_from(held)
        if text_bytes + blob_bytes > LIMIT_BYTES:
            raise Garbled(f"a message of {text_bytes + blob_bytes} bytes")
        end = HEADER.size + text_bytes + blob_bytes
        if len(held) < end:
            return None
        payload = bytes(held[HEADER.size : end])
        if zlib.crc32(payload) != checksum:
            raise Garbled("a damaged message")
        del held[:end]
        try:
            message = tree_of(payload[:text_bytes], payload[text_bytes:])
        except Malformed as error:
            raise Garbled(f"a message that is malformed: {error}") from error
        if not isinstance(message, dict):
            raise Garbled("a message that is not an object")
        return sequence, cast("dict[str, Any]", message)
