"""The transport between a measurer and one worker: the interface, and worker processes of this machine behind pipes.

    link.send(message)       begins to send a message, without waiting
    link.receive(deadline)   the reply, or None at the deadline
    link.health()            the state of the worker, and its memory
    link.kill(), .end()      ends the worker; `end` also releases the link

A link carries messages and observes its worker. Time-outs, limits and blame are matters of `stormdrop.measure.process`.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from stormdrop.base.environment import package_root
from stormdrop.base.errors import RunError, UserError
from stormdrop.measure.wire import Garbled, Inbox, frame

Message = dict[str, Any]
State = Literal["running", "stopped", "ending", "gone"]
"""`stopped`: by a signal. `ending`: the main thread has ended, other threads may not have. `gone`: no such worker."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOG_TAIL = 300
_STATES: Mapping[str, State] = {"": "gone", "T": "stopped", "Z": "ending"}


class LinkClosed(Exception):
    """The error for a worker that closed its end of the link."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a worker. `has_input`: a part of a message, or the end of the link, waits to be received."""

    state: State
    resident_bytes: int
    has_input: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a worker, in words, with the peak of its resident bytes, and the last words of its log."""

    how: str
    was_killed: bool
    peak_bytes: int
    inherited_bytes: int
    """The peak at the start: Linux hands the parent's peak down to its children."""
    log: str


class Link(Protocol):
    """A connection to one worker, which serves once the link is made. Any thread may call `kill`, one the rest."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Begins to send a message; `receive` sends the rest. Raises LinkClosed."""

    def receive(self, deadline: float) -> Message | None:
        """Returns the reply to the last message; None if it is not complete at a time of `time.monotonic`.

        Raises LinkClosed, and Garbled for bytes that are not exactly the reply.
        """

    def health(self) -> Health: ...

    def kill(self) -> None:
        """Ends the worker, from any thread: `receive` raises LinkClosed."""

    def end(self) -> Ending:
        """Ends what is left of the worker, and releases the link."""
        ...


class PipeLink:
    """A worker process of this machine, reached through two pipes.

    The death signal ties the process to its parent, and Linux sends it when the *thread* that made the link ends.
    """

    def __init__(self) -> None:
        """Starts the process. Raises UserError or RunError if there is no Python to start, or no room for a process."""
        if not sys.executable:
            reason = "but sys.executable does not name a Python"
            raise UserError(f"candidates are measured in processes of their own, {reason}")
        self._inherited_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._signalling = threading.Lock()  # a process must not be reaped, and its number reused, while signalled
        self._inbox, self._outbox, self._sequence = Inbox(), memoryview(b""), 0
        theirs_in, self._requests = os.pipe()
        self._replies, theirs_out = os.pipe()
        self._log = os.memfd_create("stormdrop-worker-log")
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        os.set_blocking(self._replies, False)
        os.set_blocking(self._requests, False)
        inherited = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        path = os.pathsep.join([str(package_root()), *inherited])
        # -P: do not import a json.py of the user's directory.
        command = [sys.executable, "-P", "-m", "stormdrop.measure.worker"]
        try:
            self._child = subprocess.Popen(
                [*command, *map(str, (theirs_in, theirs_out, os.getpid()))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
                # One thread for NumPy's BLAS: it is not used, but its threads and their memory would be there.
                env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._release()
            raise RunError(f"a measuring worker does not start: {error}") from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def __str__(self) -> str:
        return f"worker {self.pid}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, message: Mapping[str, Any]) -> None:
        os.ftruncate(self._log, 0)
        self._sequence += 1
        self._outbox = memoryview(frame(self._sequence, message))
        self._flush()

    def receive(self, deadline: float) -> Message | None:
        while ready := self._ready(max(0.0, deadline - time.monotonic())):
            if self._requests in ready:
                self._flush()
            if self._replies in ready and (reply := self._read()) is not None:
                return reply
            if time.monotonic() >= deadline:
                break
        return None

    def health(self) -> Health:
        letter, resident_bytes = _process_state(self.pid)
        return Health(_STATES.get(letter, "running"), resident_bytes, self._replies in self._ready(0.0))

    def kill(self) -> None:
        with self._signalling:
            if self._child.returncode is None:
                self._kill_group()

    def end(self) -> Ending:
        with self._signalling:
            self._kill_group()
            try:
                _, status, usage = os.wait4(self.pid, 0)
                code, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
            except ChildProcessError:  # somebody else reaps this program's children
                code, peak = -signal.SIGKILL, 0
            self._child.returncode = code
        log = _tail(self._log)
        self._release()
        return Ending(_how_ended(code), code == -signal.SIGKILL, peak, self._inherited_bytes, log)

    # ---- pipes -------------------------------------------------------------------------------------------------------

    def _ready(self, seconds: float) -> set[int]:
        """Waits for replies and, while there is something to send, for room in the pipe; returns what is ready."""
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        if self._outbox:
            poller.register(self._requests, select.POLLOUT)
        return {fd for fd, _ in poller.poll(seconds * 1000)}

    def _flush(self) -> None:
        try:
            while self._outbox:
                self._outbox = self._outbox[os.write(self._requests, self._outbox) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise LinkClosed from None

    def _read(self) -> Message | None:
        try:
            data = os.read(self._replies, 1 << 20)
        except BlockingIOError:
            return None
        if not data:
            raise LinkClosed
        self._inbox.feed(data)
        numbered = self._inbox.take()
        if numbered is None:
            return None
        sequence, message = numbered
        if sequence != self._sequence or len(self._inbox):
            raise Garbled("a message that nobody asked for")
        return message

    def _release(self) -> None:
        for fd in (self._requests, self._replies, self._log):
            os.close(fd)

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # gone, or not yet the leader of its group
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _process_state(pid: int) -> tuple[str, int]:
    """Returns Linux's letter for the main thread's state (empty: no such process) and the resident bytes."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return "", 0
    fields = data[data.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[21]) * PAGE_BYTES


def _tail(log: int) -> str:
    """Returns LLVM's error message, or else the log's last line."""
    lines = [line.strip() for line in os.pread(log, 1 << 20, 0).decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "LLVM ERROR" in line or "error:" in line] or lines[-1:]
    return errors[0][-LOG_TAIL:] if errors else ""


def _how_ended(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    except ValueError:
        return f"killed by signal {-code}"
