"""Messages between the measurer and its workers: JSON in frames that cannot be mistaken for anything else.

    magic (4) | sequence (u32) | length (u32) | CRC-32 of the payload (u32) | payload: one JSON object

A candidate runs in the process that holds the pipe and may write anything on it. Whatever is not exactly the reply that
is due raises `Garbled`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, cast

MAGIC = b"\xc3SD\x1a"
HEADER = struct.Struct("<4sIII")
LIMIT_BYTES = 1 << 28


class Garbled(Exception):
    """Bytes on the pipe that are no message of ours."""


def frame(sequence: int, message: Mapping[str, Any]) -> bytes:
    payload = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(MAGIC, sequence, len(payload), zlib.crc32(payload)) + payload


class Inbox:
    """Bytes as they arrive, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> tuple[int, dict[str, Any]] | None:
        """The next message and its number; None while it is incomplete. Raises Garbled, as early as it can."""
        held = self._bytes
        if not MAGIC.startswith(held[: len(MAGIC)]):
            raise Garbled(f"{bytes(held[:16])!r} where a message should begin")
        if len(held) < HEADER.size:
            return None
        _, sequence, length, checksum = HEADER.unpack_from(held)
        if length > LIMIT_BYTES:
            raise Garbled(f"a message of {length} bytes")
        end = HEADER.size + length
        if len(held) < end:
            return None
        payload = bytes(held[HEADER.size : end])
        if zlib.crc32(payload) != checksum:
            raise Garbled("a damaged message")
        del held[:end]
        try:
            message: object = json.loads(payload)
        except ValueError as error:
            raise Garbled(f"a message that is not JSON: {error}") from error
        if not isinstance(message, dict):
            raise Garbled("a message that is not an object")
        return sequence, cast("dict[str, Any]", message)
