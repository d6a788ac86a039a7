"""One worker process as its parent sees it.

The process is started at the first request, killed after a time-out, and replaced when lost. Every worker has a thread
of its own in the parent, which starts the process and communicates with it. The thread lives as long as the worker may.
The death signal ties a worker to its parent, and Linux sends it when the *thread* that started the worker ends.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stormdrop.base.codec import encode
from stormdrop.base.errors import RunError, UserError
from stormdrop.base.paths import package_root
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import FailureKind
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.wire import Garbled, Inbox, frame
from stormdrop.space.rule_names import sent
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

Message = dict[str, Any]
Role = Literal["builder", "runner"]

_log = logging.getLogger("stormdrop.measure")

LOOK_SECONDS = 0.05  # between looks at a worker that has not answered
GRACE_SECONDS = 0.5  # until a process without pipe ends, and until the pipe of a process without main thread closes
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOG_TAIL = 300
_UNFIT = ("", "T", "Z")  # states of a process that will not answer


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


@dataclass(slots=True)
class _Process:
    """The state of one process of a worker."""

    child: subprocess.Popen[bytes]
    requests: int
    replies: int
    log: int
    inbox: Inbox
    inherited_bytes: int
    """The initial peak of resident bytes, which Linux inherits from the parent."""
    sequence: int = 0
    task: int | None = None


class Worker:
    """A worker that is started or replaced as needed. `ask` and its callees run only on `lane`'s thread."""

    def __init__(self, role: Role, target: Target, settings: MeasureSettings, rules: Sequence[Rule] = RULES) -> None:
        """Raises UserError for rules that another process cannot import."""
        self._greeting = {
            "op": "start",
            "role": role,
            "target": target.to_json(),
            "settings": encode(settings),
            "rules": sent(rules),
        }
        self.lane = ThreadPoolExecutor(1, thread_name_prefix="stormdrop-measure")
        self._start_timeout, self._memory_limit = settings.start_timeout, settings.memory_limit_bytes
        self._process: _Process | None = None
        self._thread: threading.Thread | None = None
        self._signalling = threading.Lock()  # a process must not be reaped, and its number reused, while signalled

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.child.pid if process else None

    def ask(self, task: Message, request: Mapping[str, Any], timeout: float) -> Message:
        """Returns the answer to a request about a task.

        Raises RequestFailed, or RunError or UserError if no worker starts.
        """
        return self._exchange(self.prepare(task), request, timeout)

    def prepare(self, task: Message) -> _Process:
        """Makes a task the current task of the worker. Raises TaskRefused, and RunError if no worker can be started."""
        self._thread = threading.current_thread()
        process = self._process
        is_talking = process is not None and _poll(process.replies, select.POLLIN, 0.0)
        if process is not None and (is_talking or _state(process.child.pid)[0] in _UNFIT):
            self._end(process)  # it died, was stopped, or wrote something after its last answer: nobody's fault now
            process = None
        process = process or self._start()
        if process.task != task["number"]:
            process.task = None
            try:
                self._exchange(process, task, self._start_timeout)
            except RequestFailed as failed:
                raise TaskRefused(failed.kind, f"while the task was set up: {failed.message}") from failed
            process.task = task["number"]
        return process

    def kill(self) -> None:
        """Ends the process, from any thread; a pending request fails. The next request starts a replacement."""
        with self._signalling:
            process = self._process
            if process is not None and process.child.returncode is None:
                _kill_group(process.child.pid)

    def retire(self) -> None:
        """Ends the process, on the lane, so that a pending signal to it cannot hit a later candidate."""
        if self._process is not None:
            self._end(self._process)

    def close(self) -> None:
        """Ends the process and its thread."""
        self.kill()
        # The last reference to a measurer may go away on a lane's thread, which cannot wait for itself.
        self.lane.shutdown(wait=self._thread is not threading.current_thread(), cancel_futures=True)
        if self._process is not None:
            self._end(self._process)

    # ---- a process's life ------------------------------------------------------------------------------------------

    def _start(self) -> _Process:
        process = self._process = _spawn()
        try:
            self._exchange(process, self._greeting, self._start_timeout)
        except RequestFailed as failed:
            self.retire()
            is_rule = failed.kind == "build"  # a rule of the user's that the worker cannot import
            raise (UserError if is_rule else RunError)(
                f"a measuring worker does not start: {failed.message}"
            ) from failed
        _log.debug("worker %d (%s) started", process.child.pid, self._greeting["role"])
        return process

    def _end(self, process: _Process) -> tuple[int | None, int]:
        """Kills the remaining processes; returns the exit code (negative: a signal) and the peak of resident bytes."""
        with self._signalling:
            _kill_group(process.child.pid)
            try:
                _, status, usage = os.wait4(process.child.pid, 0)
                process.child.returncode, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
            except ChildProcessError:  # somebody else reaps this program's children
                process.child.returncode, peak = -signal.SIGKILL, 0
            if self._process is process:
                self._process = None
        for fd in (process.requests, process.replies, process.log):
            os.close(fd)
        _log.debug(
            "worker %d ended: %s, at most %d MiB", process.child.pid, _ending(process.child.returncode), peak >> 20
        )
        return process.child.returncode, peak

    # ---- conversation ----------------------------------------------------------------------------------------------

    def _exchange(self, process: _Process, request: Mapping[str, Any], timeout: float) -> Message:
        process.sequence += 1
        os.ftruncate(process.log, 0)
        deadline = time.monotonic() + timeout
        self._send(process, frame(process.sequence, request), deadline, timeout)
        reply = self._receive(process, deadline, timeout)
        if "failure" in reply:
            if reply.get("is_lost"):
                self._end(process)  # the worker is unusable: the next request starts a new process
            raise RequestFailed(**reply["failure"])
        return reply

    def _lost(self, kind: FailureKind, message: str) -> RequestFailed:
        """Returns the error to raise if the worker is lost."""
        return RequestFailed(kind, f"while building: {message}" if self._greeting["role"] == "builder" else message)

    def _send(self, process: _Process, data: bytes, deadline: float, timeout: float) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(process.requests, rest) :]
            except BlockingIOError:
                _poll(process.requests, select.POLLOUT, LOOK_SECONDS)
                self._look(process, deadline, timeout)
            except BrokenPipeError:
                raise self._lost_at_end(process) from None

    def _receive(self, process: _Process, deadline: float, timeout: float) -> Message:
        inbox = process.inbox
        while True:
            if not _poll(process.replies, select.POLLIN, min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))):
                self._look(process, deadline, timeout)
                continue
            try:
                data = os.read(process.replies, 1 << 20)
            except BlockingIOError:
                continue
            if not data:
                raise self._lost_at_end(process)
            inbox.feed(data)
            try:
                got = inbox.take()
                if got is None:
                    continue
                if got[0] != process.sequence or len(inbox):
                    raise Garbled("a message that nobody asked for")
                return got[1]
            except Garbled as error:
                self._end(process)
                raise self._lost("crash", f"wrote on the measurer's pipe: {error}") from None

    def _look(self, process: _Process, deadline: float, timeout: float) -> None:
        """Raises RequestFailed if further waiting is pointless."""
        state, resident = _state(process.child.pid)
        reason: tuple[FailureKind, str] | None = None
        if resident > self._memory_limit:
            reason = "memory", f"took {resident >> 20} MiB of memory; {self._memory_limit >> 20} are allowed"
        elif state == "T":
            reason = "crash", "stopped itself (SIGSTOP or alike)"
        elif state == "Z" and not _poll(process.replies, select.POLLIN, GRACE_SECONDS):  # other threads may yet die
            reason = "crash", "ended its main thread"
        elif time.monotonic() >= deadline:
            reason = "timeout", f"no answer within {timeout:g} s"
        if reason is not None:
            self._end(process)
            raise self._lost(*reason)

    def _lost_at_end(self, process: _Process) -> RequestFailed:
        """Returns the error for a process that closed its pipe."""
        patience = time.monotonic() + GRACE_SECONDS
        while _state(process.child.pid)[0] not in ("", "Z") and time.monotonic() < patience:
            time.sleep(1e-3)
        is_gone = _state(process.child.pid)[0] in ("", "Z")
        log = _tail(process.log)
        code, peak = self._end(process)
        said = f"; it said: {log}" if log else ""
        if not is_gone:
            return self._lost("crash", f"closed its pipe{said}")
        is_large = peak > max(0.9 * self._memory_limit, 1.02 * process.inherited_bytes)
        if is_large or code == -signal.SIGKILL or "out of memory" in log or "bad_alloc" in log:
            return self._lost("memory", f"{_ending(code)} with {peak >> 20} MiB of memory{said}")
        return self._lost("crash", f"{_ending(code)}{said}")


def _spawn() -> _Process:
    if not sys.executable:
        raise UserError("candidates are measured in processes of their own, but sys.executable does not name a Python")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    log = os.memfd_create("stormdrop-worker-log")
    fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)
    os.set_blocking(ours_in, False)
    os.set_blocking(ours_out, False)
    root = str(package_root())
    inherited = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    # One thread for NumPy's BLAS: it is not used, but its threads and their memory would be there.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, *inherited]), "OPENBLAS_NUM_THREADS": "1"}
    # -P: do not import a json.py of the user's directory.
    command = [sys.executable, "-P", "-m", "stormdrop.measure.worker", *map(str, (theirs_in, theirs_out, os.getpid()))]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(theirs_in, theirs_out),
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        for fd in (ours_in, ours_out, log):
            os.close(fd)
        raise RunError(f"a measuring worker does not start: {error}") from error
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    return _Process(child, ours_out, ours_in, log, Inbox(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # gone, or not yet the leader of its group
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _poll(fd: int, event: int, seconds: float) -> int:
    poller = select.poll()
    poller.register(fd, event)
    ready = poller.poll(seconds * 1000)
    return ready[0][1] if ready else 0


def _state(pid: int) -> tuple[str, int]:
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
    telling = [line for line in lines if "LLVM ERROR" in line or "error:" in line] or lines[-1:]
    return telling[0][-LOG_TAIL:] if telling else ""


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    except ValueError:
        return f"killed by signal {-code}"
