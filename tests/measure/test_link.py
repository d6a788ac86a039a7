"""Links: the contract of each implementation, and the supervision of a worker behind a scripted link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest

from stormdrop.base.errors import RunError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.link import Link, LinkClosed, Message, PipeLink
from stormdrop.measure.process import RequestFailed, TaskRefused, Worker, message_of
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.derive import sent
from stormdrop.space.rules import RULES
from stormdrop.target.machine import Target
from tests.support.workers import MemoryLink

# ---- the contract ----------------------------------------------------------------------------------------------------


def slow_start(request: Message) -> Message:
    if request["op"] == "start":
        time.sleep(0.2)
        return {}
    return {"failure": {"kind": "bug", "message": f"no request {request['op']}"}}


LINKS: dict[str, Callable[[], Link]] = {"process": PipeLink, "memory": lambda: MemoryLink(slow_start)}


@pytest.fixture(params=LINKS)
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    made = LINKS[request.param]()
    yield made
    made.kill()


def soon() -> float:
    return time.monotonic() + 30.0


def greeting(target: Target, **more: Any) -> Message:
    settings = asdict(MeasureSettings())
    start = {"op": "start", "role": "builder", "target": target.to_json(), "settings": settings}
    return {**start, "rules": sent(RULES), **more}


def test_a_reply_is_received_after_its_deadline_too(link: Link, target: Target) -> None:
    link.send(greeting(target))
    assert link.receive(time.monotonic()) is None
    assert link.receive(soon()) == {}
    health = link.health()
    assert (health.state, health.has_input) == ("running", False)
    assert health.resident_bytes > 0
    link.end()


def test_a_message_of_any_size_is_sent_while_the_reply_is_awaited(link: Link, target: Target) -> None:
    link.send(greeting(target, ignored=bytes(4 << 20)))  # more than a pipe holds
    assert link.receive(soon()) == {}
    link.send({"op": "dance", "ignored": [1, 2.5, "ü", b"\x00"]})
    reply = link.receive(soon())
    assert reply is not None
    assert "dance" in reply["failure"]["message"]
    assert link.receive(time.monotonic()) is None
    link.end()


def test_a_link_that_another_thread_kills_is_closed(link: Link, target: Target) -> None:
    link.send(greeting(target))
    assert link.receive(soon()) == {}
    timer = threading.Timer(0.05, link.kill)
    timer.start()
    with pytest.raises(LinkClosed):
        link.receive(soon())
    timer.join()
    ending = link.end()
    assert ending.was_killed
    assert ending.how
    assert link.health().state == "gone"
    link.kill()  # nothing is left to be killed


# ---- supervision -----------------------------------------------------------------------------------------------------


class Script:
    """Answers of a builder; `links` are the links made so far. `misbehave` is called at each request to build."""

    def __init__(self, misbehave: Callable[[MemoryLink], Message | None] = lambda link: None) -> None:
        self.links: list[MemoryLink] = []
        self.ops: list[str] = []
        self._misbehave = misbehave

    def connect(self) -> Link:
        self.links.append(MemoryLink(self._answer))
        return self.links[-1]

    def _answer(self, request: Message) -> Message:
        self.ops.append(request["op"])
        reply = self._misbehave(self.links[-1]) if request["op"] == "build" else None
        return reply if reply is not None else {"is": request["op"]}


SETTINGS = MeasureSettings(start_timeout=5.0, memory_limit_bytes=1 << 30)


@contextmanager
def supervised(script: Script, target: Target) -> Generator[Callable[..., Message]]:
    """A function that asks a builder behind scripted links to build."""
    worker = Worker("builder", target, SETTINGS, connect=script.connect)

    def ask(task: Message, timeout: float = 5.0) -> Message:
        return worker.lane.submit(worker.ask, task, {"op": "build"}, timeout).result()

    try:
        yield ask
    finally:
        worker.close()


def hang(link: MemoryLink) -> Message:
    threading.Event().wait()
    raise AssertionError


def stop(link: MemoryLink) -> Message:
    link.state = "stopped"
    return hang(link)


def end_main_thread(link: MemoryLink) -> Message:
    link.state = "ending"
    return hang(link)


def take_memory(link: MemoryLink) -> Message:
    link.resident_bytes = 2 << 30
    return hang(link)


def die(link: MemoryLink) -> Message:
    link.kill()
    return hang(link)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (hang, "timeout", "no answer within 0.2 s"),
        (stop, "crash", "stopped itself"),
        (end_main_thread, "crash", "ended its main thread"),
        (take_memory, "memory", "took 2048 MiB of memory; 1024 are allowed"),
        (die, "memory", "ended with 1 MiB of memory"),  # SIGKILL is what Linux sends if memory is short
    ],
)
def test_a_lost_worker_fails_one_request_and_is_replaced(
    fault: Callable[[MemoryLink], Message], kind: str, message: str, tiny: Task, target: Target
) -> None:
    script = Script(lambda link: fault(link) if len(script.links) == 1 else None)
    with supervised(script, target) as ask:
        with pytest.raises(RequestFailed) as failed:
            ask(message_of(tiny), 0.2)
        assert failed.value.kind == kind
        assert failed.value.message.startswith(f"while building: {message}")
        assert script.links[0].is_ended
        assert ask(message_of(tiny)) == {"is": "build"}
    assert len(script.links) == 2


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_reported_failure_keeps_the_worker_unless_it_is_lost(is_lost: bool, tiny: Task, target: Target) -> None:
    failure: Message = {"failure": {"kind": "crash", "message": "oh"}, "is_lost": is_lost}
    script = Script(lambda link: failure if script.ops.count("build") == 1 else None)
    with supervised(script, target) as ask:
        with pytest.raises(RequestFailed, match="oh"):
            ask(message_of(tiny))
        ask(message_of(tiny))
    assert len(script.links) == 1 + is_lost


def test_a_task_is_sent_once_in_a_row_and_an_idle_worker_that_spoke_is_replaced(tiny: Task, target: Target) -> None:
    script, task = Script(), message_of(tiny)
    with supervised(script, target) as ask:
        ask(task)
        ask(task)
        assert script.ops == ["start", "task", "build", "build"]
        script.links[0].has_input = True
        ask(task)
    assert script.ops[4:] == ["start", "task", "build"]
    assert len(script.links) == 2


@pytest.mark.parametrize(
    ("op", "kind", "error"),
    [("start", "build", UserError), ("start", "memory", RunError), ("task", "bug", TaskRefused)],
)
def test_failures_before_a_request_have_errors_of_their_own(
    op: str, kind: str, error: type[Exception], tiny: Task, target: Target
) -> None:
    def answer(request: Message) -> Message:
        return {"failure": {"kind": kind, "message": "no"}} if request["op"] == op else {}

    worker = Worker("runner", target, SETTINGS, connect=lambda: MemoryLink(answer))
    with pytest.raises(error):
        worker.lane.submit(worker.ask, message_of(tiny), {"op": "time"}, 5.0).result()
    worker.close()
