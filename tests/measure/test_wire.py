"""Frames arrive whole, in pieces, or not at all."""

import zlib

import pytest

from stormdrop.measure.wire import HEADER, MAGIC, Garbled, Inbox, frame


def test_messages_survive_any_cut():
    message = {"op": "x", "value": [1, 2.5, "ü"], "code": b"\x00\xff", "more": [{"code": b""}, {"code": b"abc"}]}
    data = frame(7, message) + frame(8, {})
    for size in (1, 3, len(data)):
        inbox, got = Inbox(), []
        for k in range(0, len(data), size):
            inbox.feed(data[k : k + size])
            while (one := inbox.take()) is not None:
                got.append(one)
        assert got == [(7, message), (8, {})]
        assert len(inbox) == 0


GOOD = frame(1, {"a": 1})


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"hello" + GOOD,
        MAGIC[:2] + GOOD,
        GOOD[:-1] + b"!",
        HEADER.pack(MAGIC, 1, 1 << 31, 0, 0),
        HEADER.pack(MAGIC, 1, 0, 1 << 31, 0),
        HEADER.pack(MAGIC, 1, 2, 0, zlib.crc32(b"[]")) + b"[]",
        HEADER.pack(MAGIC, 1, 12, 0, zlib.crc32(b'{"a":{"":1}}')) + b'{"a":{"":1}}',
        HEADER.pack(MAGIC, 1, 2, 1, zlib.crc32(b"{}x")) + b"{}x",
    ],
)
def test_anything_else_is_garbled(data: bytes):
    inbox = Inbox()
    inbox.feed(data)
    with pytest.raises(Garbled):
        inbox.take()
