"""Work on many numbered items in forked processes, so that one that crashes or hangs costs that item alone."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

HANG_SECONDS = 120.0
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Died:
    """What ended a process that worked on an item."""

    cause: str


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    item: int | None = None
    since: float = 0.0


def outcomes(items: Iterable[int], job: Callable[[int], Any], processes: int) -> Iterator[tuple[int, Any]]:
    """Each item with what `job` returned for it (picklable), or `Died`; in the order they end.

    `items` may be endless.
    """
    left = iter(items)
    crew: list[_Worker] = []
    try:
        for _ in range(processes):
            _give(crew, _start(job), left)
        while crew:
            ready = wait([w.pipe for w in crew], timeout=1.0)
            for w in list(crew):
                if w.pipe in ready:
                    yield from _answer(crew, w, left, job)
                elif time.monotonic() - w.since > HANG_SECONDS:
                    yield from _bury(crew, w, f"no answer within {HANG_SECONDS:.0f} s", left, job)
    finally:
        for w in crew:
            w.process.kill()


def isolated(job: Callable[[], Any]) -> Any:
    """What `job` returns in a process of its own, or `Died`."""
    return next(outcomes([0], lambda _: job(), 1))[1]


def _start(job: Callable[[int], Any]) -> _Worker:
    ours, theirs = _fork.Pipe()
    process = _fork.Process(target=_work, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(crew: list[_Worker], w: _Worker, left: Iterator[int]) -> None:
    """Hand the next item to a worker, or let it go."""
    w.item, w.since = next(left, None), time.monotonic()
    if w.item is None:
        w.process.kill()
        w.process.join()
        if w in crew:
            crew.remove(w)
        return
    w.pipe.send(w.item)
    if w not in crew:
        crew.append(w)


def _answer(
    crew: list[_Worker], w: _Worker, left: Iterator[int], job: Callable[[int], Any]
) -> Iterator[tuple[int, Any]]:
    try:
        result = w.pipe.recv()
    except EOFError:
        w.process.join()
        code = w.process.exitcode
        cause = (
            f"the process died of {signal.Signals(-code).name}"
            if code and code < 0
            else f"the process ended with {code}"
        )
        yield from _bury(crew, w, cause, left, job)
        return
    assert w.item is not None
    item = w.item
    _give(crew, w, left)
    yield item, result


def _bury(
    crew: list[_Worker], w: _Worker, cause: str, left: Iterator[int], job: Callable[[int], Any]
) -> Iterator[tuple[int, Any]]:
    w.process.kill()
    w.process.join()
    crew.remove(w)
    assert w.item is not None
    item = w.item
    _give(crew, _start(job), left)
    yield item, Died(cause)


def _work(pipe: Connection, job: Callable[[int], Any]) -> None:
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        item = pipe.recv()
        try:
            result = job(item)
        except Exception:
            result = Died(traceback.format_exc())
        pipe.send(result)
        if os.getppid() == 1:
            os._exit(0)
