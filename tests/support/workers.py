"""The workers of a measurer, to be watched or hurt, and workers without processes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from stormdrop.measure.link import Ending, Health, LinkClosed, Message, PipeLink, State
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.wire import Inbox, frame


def worker_pids(measurer: Measurer) -> tuple[int, ...]:
    """Returns the processes of the runner and the builders that run."""
    links = [worker.link for worker in (measurer._runner, *measurer._builders)]
    return tuple(link.pid for link in links if isinstance(link, PipeLink))


class MemoryLink:
    """A second implementation of `Link`: a thread answers messages by a function, without a process.

    `state`, `resident_bytes` and `has_input` are what the link reports of the worker's health.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self.state: State = "running"
        self.resident_bytes, self.has_input, self.is_ended = 1 << 20, False, False
        self._requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(answer,), daemon=True).start()

    def _serve(self, answer: Callable[[Message], Message]) -> None:
        while True:
            self._replies.put(_carried(answer(self._requests.get())))

    def send(self, message: Mapping[str, Any]) -> None:
        if self.state == "gone":
            raise LinkClosed
        self._requests.put(_carried(message))

    def receive(self, deadline: float) -> Message | None:
        try:
            reply = self._replies.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if reply is None:
            raise LinkClosed
        return reply

    def health(self) -> Health:
        return Health(self.state, self.resident_bytes, self.has_input or not self._replies.empty())

    def kill(self) -> None:
        self.state = "gone"
        self._replies.put(None)

    def end(self) -> Ending:
        was_killed, self.is_ended, self.state = self.state == "gone", True, "gone"
        return Ending("ended", was_killed, self.resident_bytes, 0, "")


def _carried(message: Mapping[str, Any]) -> Message:
    """Returns a message as the other side of a link receives it."""
    inbox = Inbox()
    inbox.feed(frame(0, message))
    numbered = inbox.take()
    assert numbered is not None
    return numbered[1]
