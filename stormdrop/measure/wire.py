"""Messages between the measurer and its workers: JSON objects that may hold bytes, in frames with a checksum.

    magic (4) | sequence (u32) | bytes of JSON (u32) | bytes of blobs (u32) | CRC-32 of both (u32) | JSON | blobs

Machine code is sent as a blob, which `{"": [offset, length]}` replaces in the JSON. A candidate runs in the process
that holds the pipe and may write any bytes on it. Bytes other than exactly the expected reply raise `Garbled`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, cast

MAGIC = b"\xc3SD\x1a"
HEADER = struct.Struct("<4sIIII")
LIMIT_BYTES = 1 << 28


class Garbled(Exception):
    """Bytes on the pipe that are not a valid message."""


def frame(sequence: int, message: Mapping[str, Any]) -> bytes:
    """Returns a message as bytes."""
    blobs = bytearray()

    def set_aside(value: object) -> dict[str, list[int]]:
        if not isinstance(value, bytes):
            raise TypeError(f"{type(value).__name__} is no value of a message")
        place = [len(blobs), len(value)]
        blobs.extend(value)
        return {"": place}

    text = json.dumps(message, separators=(",", ":"), default=set_aside).encode()
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
        return sequence, _message(payload[:text_bytes], payload[text_bytes:])


def _message(text: bytes, blobs: bytes) -> dict[str, Any]:
    def put_back(value: dict[str, Any]) -> Any:
        if "" not in value:
            return value
        offset, length = value[""]
        return blobs[offset : offset + length]

    try:
        message: object = json.loads(text, object_hook=put_back)
    except (ValueError, TypeError) as error:
        raise Garbled(f"a message that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise Garbled("a message that is not an object")
    return cast("dict[str, Any]", message)
