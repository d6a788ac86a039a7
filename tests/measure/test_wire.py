"""Frames arrive whole, in pieces, or not at all."""

import pytest

from stormdrop.measure.wire import HEADER, MAGIC, Garbled, Inbox, frame


def test_messages_survive_any_cut():
    data = frame(7, {"op": "x", "value": [1, 2.5, "ü"]}) + frame(8, {})
    for size in (1, 3, len(data)):
        inbox, got = Inbox(), []
        for k in range(0, len(data), size):
            inbox.feed(data[k : k + size])
            while (message := inbox.take()) is not None:
                got.append(message)
        assert got == [(7, {"op": "x", "value": [1, 2.5, "ü"]}), (8, {})]
        assert len(inbox) == 0


GOOD = frame(1, {"a": 1})


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"hello" + GOOD,
        MAGIC[:2] + GOOD,
        GOOD[:-1] + b"!",
        HEADER.pack(MAGIC, 1, 1 << 31, 0),
        HEADER.pack(MAGIC, 1, 2, 0x0FC92BD8) + b"[]",
    ],
)
def test_anything_else_is_garbled(data: bytes):
    inbox = Inbox()
    inbox.feed(data)
    with pytest.raises(Garbled):
        inbox.take()
