"""One worker as its parent sees it: the conversation, and the supervision.

The worker is started at the first request, killed after a time-out, and replaced when lost. Every worker has a thread
of its own in the parent, which makes the `Link` to the worker and uses it. The thread lives as long as the worker may:
a process is killed when the thread that started it ends.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from stormdrop.base.codec import encode
from stormdrop.base.errors import RunError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.link import Ending, Link, LinkClosed, Message, PipeLink
from stormdrop.measure.result import FailureKind
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.wire import Garbled
from stormdrop.space.derive import sent
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

Role = Literal["builder", "runner"]

_log = logging.getLogger("stormdrop.measure")

LOOK_SECONDS = 0.05  # between looks at a worker that has not answered
GRACE_SECONDS = 0.5  # until a process without pipe ends, and until the pipe of a process without main thread closes


class RequestFailed(Exception):
    """A request without a result: the worker reported a failure, or the worker and its answer are lost."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message


class TaskRefused(RequestFailed):
    """The failure of a task's set-up, independent of any candidate."""


_numbers = itertools.count()


def message_of(task: Task) -> Message:
    """Returns the message that describes a task to workers, with a number that is unique in this process."""
    return {"op": "task", "number": next(_numbers), "task": task.to_json()}


class Worker:
    """A worker that is started or replaced as needed. `ask` and its callees run only on `lane`'s thread."""

    def __init__(
        self,
        role: Role,
        target: Target,
        settings: MeasureSettings,
        rules: Sequence[Rule] = RULES,
        connect: Callable[[], Link] = PipeLink,
    ) -> None:
        """`connect` starts a worker and returns its link. Raises UserError for rules that workers cannot import."""
        self._greeting = {
            "op": "start",
            "role": role,
            "target": target.to_json(),
            "settings": encode(settings),
            "rules": sent(rules),
        }
        self.lane = ThreadPoolExecutor(1, thread_name_prefix="stormdrop-measure")
        self._start_timeout, self._memory_limit = settings.start_timeout, settings.memory_limit_bytes
        self._connect = connect
        self._link: Link | None = None
        self._task: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def link(self) -> Link | None:
        """The link to the worker; None while no worker runs."""
        return self._link

    def ask(self, task: Message, request: Mapping[str, Any], timeout: float) -> Message:
        """Returns the answer to a request about a task.

        Raises RequestFailed, or RunError or UserError if no worker starts.
        """
        return self._exchange(self.prepare(task), request, timeout)

    def prepare(self, task: Message) -> Link:
        """Makes a task the current task of the worker. Raises TaskRefused, and RunError if no worker can be started."""
        self._thread = threading.current_thread()
        if self._link is not None:
            health = self._link.health()
            if health.has_input or health.state != "running":
                self._end(self._link)  # it died, was stopped, or wrote something after its last answer: nobody's fault
        link = self._link or self._start()
        if self._task != task["number"]:
            self._task = None
            try:
                self._exchange(link, task, self._start_timeout)
            except RequestFailed as failed:
                raise TaskRefused(failed.kind, f"while the task was set up: {failed.message}") from failed
            self._task = task["number"]
        return link

    def kill(self) -> None:
        """Ends the worker, from any thread; a pending request fails. The next request starts a replacement."""
        if (link := self._link) is not None:
            link.kill()

    def retire(self) -> None:
        """Ends the worker, on the lane, so that a pending signal to it cannot hit a later candidate."""
        if self._link is not None:
            self._end(self._link)

    def close(self) -> None:
        """Ends the worker and its thread."""
        self.kill()
        # The last reference to a measurer may go away on a lane's thread, which cannot wait for itself.
        self.lane.shutdown(wait=self._thread is not threading.current_thread(), cancel_futures=True)
        self.retire()

    def _start(self) -> Link:
        link = self._link = self._connect()
        try:
            self._exchange(link, self._greeting, self._start_timeout)
        except RequestFailed as failed:
            self.retire()
            is_rule = failed.kind == "build"  # a rule of the user's that the worker cannot import
            raise (UserError if is_rule else RunError)(
                f"a measuring worker does not start: {failed.message}"
            ) from failed
        _log.debug("%s (%s) started", link, self._greeting["role"])
        return link

    def _end(self, link: Link) -> Ending:
        self._link = self._task = None
        ending = link.end()
        _log.debug("%s ended: %s, at most %d MiB", link, ending.how, ending.peak_bytes >> 20)
        return ending

    # ---- conversation ------------------------------------------------------------------------------------------------

    def _exchange(self, link: Link, request: Mapping[str, Any], timeout: float) -> Message:
        deadline = time.monotonic() + timeout
        try:
            link.send(request)
            while (reply := link.receive(min(deadline, time.monotonic() + LOOK_SECONDS))) is None:
                self._look(link, deadline, timeout)
        except LinkClosed:
            raise self._lost_at_end(link) from None
        except Garbled as error:
            self._end(link)
            raise self._lost("crash", f"wrote on the measurer's pipe: {error}") from None
        if "failure" in reply:
            if reply.get("is_lost"):
                self._end(link)  # the worker is unusable: the next request starts a new one
            raise RequestFailed(**reply["failure"])
        return reply

    def _lost(self, kind: FailureKind, message: str) -> RequestFailed:
        """Returns the error to raise if the worker is lost."""
        return RequestFailed(kind, f"while building: {message}" if self._greeting["role"] == "builder" else message)

    def _look(self, link: Link, deadline: float, timeout: float) -> None:
        """Raises RequestFailed if further waiting is pointless."""
        health = link.health()
        reason: tuple[FailureKind, str] | None = None
        if health.resident_bytes > self._memory_limit:
            sizes = f"{health.resident_bytes >> 20} MiB of memory; {self._memory_limit >> 20} are allowed"
            reason = "memory", f"took {sizes}"
        elif health.state == "stopped":
            reason = "crash", "stopped itself (SIGSTOP or alike)"
        elif health.state == "ending" and not _within_grace(lambda: link.health().has_input):
            reason = "crash", "ended its main thread"  # and the other threads live on
        elif time.monotonic() >= deadline:
            reason = "timeout", f"no answer within {timeout:g} s"
        if reason is not None:
            self._end(link)
            raise self._lost(*reason)

    def _lost_at_end(self, link: Link) -> RequestFailed:
        """Returns the error for a worker that closed its end of the link."""
        is_gone = _within_grace(lambda: link.health().state in ("ending", "gone"))
        ending = self._end(link)
        log = f"; it said: {ending.log}" if ending.log else ""
        if not is_gone:
            return self._lost("crash", f"closed its pipe{log}")
        is_large = ending.peak_bytes > max(0.9 * self._memory_limit, 1.02 * ending.inherited_bytes)
        if is_large or ending.was_killed or "out of memory" in ending.log or "bad_alloc" in ending.log:
            return self._lost("memory", f"{ending.how} with {ending.peak_bytes >> 20} MiB of memory{log}")
        return self._lost("crash", f"{ending.how}{log}")


def _within_grace(holds: Callable[[], bool]) -> bool:
    """Waits until a condition holds; returns whether it does within the time of grace."""
    end = time.monotonic() + GRACE_SECONDS
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(1e-3)
    return True
