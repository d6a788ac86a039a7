"""Builds candidates in parallel, then times them one by one, all in worker processes.

    candidates ──builders──▶ artifacts ──runner──▶ Timing | Failure

Nothing is built while anything is timed. A candidate that kills, hangs or fools its worker costs that candidate: the
worker is replaced and the next candidate is measured. Only a worker that cannot even start raises.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from stormdrop.errors import RunError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.process import Message, TaskMessage, TaskRefused, Worker, WorkerLost, message_of
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.runtime.artifact import Artifact
from stormdrop.runtime.threads import available_cpus
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

__all__ = ["Candidate", "HandWritten", "MeasureSettings", "Measurer"]


INTERRUPT_SECONDS = 0.2
KEPT_ARTIFACTS = 128  # of what was built last, some 30 KB each: finalists and duels need not be built again


@dataclass(frozen=True, slots=True)
class HandWritten:
    """LLVM IR text of a kernel that is called as the artifact `like` is."""

    text: str
    like: Artifact
    variant: int | None = None


Candidate = Schedule | HandWritten


@dataclass(frozen=True, slots=True)
class _Built:
    """An artifact as a message holds it: it only passes through here."""

    artifact: object
    variant: int | None
    seconds: float


class Measurer:
    """Owns the workers; a context manager. They start with the first call and stay until `close`.

    with Measurer(detect()) as measurer:
        results = measurer.measure(task, schedules)
    """

    def __init__(
        self,
        target: Target,
        settings: MeasureSettings | None = None,
        builders: int | None = None,
        shared_proofs: bool = False,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        """`shared_proofs`: winners are proved in one process for as long as nothing fails there, which saves half a
        second each. `rules` are those that schedules may follow. Raises UserError for what workers cannot import.
        """
        if builders is not None and builders < 1:
            raise UserError(f"{builders} builders cannot build anything; give 1 or more")
        self.target, self.settings = target, settings or MeasureSettings()
        self._runner = Worker("runner", target, self.settings)
        self._prover = Worker("runner", target, replace(self.settings, sample_points=self.settings.final_points))
        self._shared_proofs = shared_proofs
        self._builders = [Worker("builder", target, self.settings, rules) for _ in range(builders or available_cpus())]
        self._texts: weakref.WeakKeyDictionary[Task, TaskMessage] = weakref.WeakKeyDictionary()
        self._kept: OrderedDict[tuple[int, Schedule], _Built] = OrderedDict()
        self._busy = threading.Lock()
        self._stop = threading.Event()  # of the call in progress
        self._closed = False
        self._finalizer = weakref.finalize(self, _close, [self._runner, *self._builders, self._prover], os.getpid())

    def measure(
        self,
        task: Task,
        candidates: Sequence[Candidate],
        best: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Result]:
        """Build and time candidates; results in their order. `best`: seconds to beat, if known.

        `meanwhile` is called here while the candidates are being built; nothing runs beside their timing.
        Raises RunError if workers cannot be started, and what `meanwhile` raises.
        """
        with self._busy:
            message = self._message(task)
            return self._time(message, self._build(message, candidates, meanwhile), best)

    def retime(self, task: Task, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Time candidates in turns (A B C A B C …), so that a drifting machine wrongs nobody.

        The samples are the fastest run of every round; `seconds` is their median, `spread` theirs. Raises as `measure`.
        """
        with self._busy:
            message = self._message(task)
            built = self._build(message, candidates)
            return self._on_runner(lambda: _Turns(self, message, built).take(rounds))

    def prove(self, task: Task, candidate: Candidate, witness: Schedule | None = None) -> Result:
        """Check a winner in a fresh process against many reference values, and all of its output against a witness's;
        time it.

        Where proofs share a process, it has run nothing but winners, and what fails there is proved again in one of its
        own.
        """
        with self._busy:
            message = self._message(task)
            built = self._build(message, [candidate] if witness is None else [candidate, witness])
            first = built[0]
            if isinstance(first, Failure):
                return first
            other = built[1] if len(built) > 1 else None
            against = {"artifact": other.artifact, "variant": other.variant} if isinstance(other, _Built) else None
            request = {"op": "prove", "artifact": first.artifact, "variant": first.variant, "witness": against}
            is_fresh = self._prover.pid is None
            result = self._proof(message, first, request)
            return result if is_fresh or isinstance(result, Timing) else self._proof(message, first, request)

    def _proof(self, message: TaskMessage, built: _Built, request: Message) -> Result:
        """One attempt; the process stays only where it may be shared and did nothing wrong."""
        prover, stays = self._prover, False
        try:
            ask = partial(prover.ask, message, request, self.settings.run_timeout)
            result = self._on_lane(prover, lambda: [_result(ask(), built.seconds)])[0]
            stays = self._shared_proofs and isinstance(result, Timing)
            return result
        except WorkerLost as lost:
            return _failed(built, lost)
        finally:
            if not stays:
                with suppress(RuntimeError):  # the measurer was closed meanwhile: its lane takes no more work
                    prover.lane.submit(prover.retire).result()

    def warm_up(self, task: Task) -> None:
        """Begin to start the workers and to make the task's data, without waiting for either."""
        message = self._message(task)

        def begin(worker: Worker) -> None:
            with suppress(WorkerLost, RunError):  # whoever measures first is told
                worker.prepare(message)

        for worker in (self._runner, *self._builders):
            worker.lane.submit(begin, worker)

    def close(self) -> None:
        """End all workers; a call in progress on another thread fails."""
        self._closed = True
        self._stop.set()
        self._finalizer()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The processes that run now."""
        return tuple(w.pid for w in (self._runner, *self._builders) if w.pid is not None)

    # ---- building --------------------------------------------------------------------------------------------------

    def _build(
        self, task: TaskMessage, candidates: Sequence[Candidate], meanwhile: Callable[[], None] | None = None
    ) -> list[_Built | Failure]:
        """All artifacts. Meanwhile the runner makes the task's inputs and reference values."""
        results: list[_Built | Failure] = [Failure("build", "not built")] * len(candidates)
        queue: SimpleQueue[int] = SimpleQueue()
        for i in range(len(candidates)):
            queue.put(i)
        stop = self._begin()

        def work(builder: Worker) -> None:
            while not stop.is_set():
                try:
                    i = queue.get_nowait()
                except Empty:
                    return
                results[i] = self._kept_or_built(builder, task, candidates[i])

        def prepare() -> None:
            with suppress(TaskRefused):  # it happens again, and is told, when the first candidate is timed
                self._runner.prepare(task)

        builders = self._builders[: len(candidates)]
        futures: list[Future[None]] = [b.lane.submit(work, b) for b in builders]
        self._await([*futures, self._runner.lane.submit(prepare)], stop, meanwhile)
        return results

    def _kept_or_built(self, builder: Worker, task: TaskMessage, candidate: Candidate) -> _Built | Failure:
        if not isinstance(candidate, Schedule):
            return self._build_one(builder, task, candidate)
        key = task.number, candidate
        kept = self._kept.pop(key, None)
        built = kept or self._build_one(builder, task, candidate)
        if isinstance(built, _Built):
            self._kept[key] = built
            while len(self._kept) > KEPT_ARTIFACTS:
                with suppress(KeyError):  # another builder's thread was quicker
                    self._kept.popitem(last=False)
        return built

    def _build_one(self, builder: Worker, task: TaskMessage, candidate: Candidate) -> _Built | Failure:
        match candidate:
            case Schedule():
                request: Message = {"op": "build", "schedule": candidate.to_json()}
            case HandWritten():
                request = {"op": "build", "text": candidate.text, "artifact": candidate.like.to_message()}
        start = time.perf_counter()
        try:
            reply = builder.ask(task, request, self.settings.build_timeout)
        except WorkerLost as lost:
            return Failure(lost.kind, f"while building: {lost.message}", time.perf_counter() - start)
        if "failure" in reply:
            return _failure(reply, reply["seconds"])
        return _Built(reply["artifact"], candidate.variant, reply["seconds"])

    # ---- timing ----------------------------------------------------------------------------------------------------

    def _time(self, task: TaskMessage, built: Sequence[_Built | Failure], best: float | None) -> list[Result]:
        def work() -> list[Result]:
            fastest = best
            results: list[Result] = []
            for one in built:
                if isinstance(one, Failure):
                    results.append(one)
                    continue
                request = {"op": "time", "artifact": one.artifact, "variant": one.variant, "best": fastest}
                try:
                    result = _result(self._runner.ask(task, request, self.settings.run_timeout), one.seconds)
                except TaskRefused as lost:
                    return [*results, *(_failed(b, lost) for b in built[len(results) :])]
                except WorkerLost as lost:
                    result = _failed(one, lost)
                results.append(result)
                if isinstance(result, Timing):
                    fastest = result.seconds if fastest is None else min(fastest, result.seconds)
                if self._stop.is_set():
                    break
            return results

        return self._on_runner(work)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _message(self, task: Task) -> TaskMessage:
        found = self._texts.get(task)
        if found is None:
            found = self._texts[task] = message_of(task)
        return found

    def _begin(self) -> threading.Event:
        self._stop = stop = threading.Event()
        if self._closed:
            raise RunError("the measurer has been closed")
        return stop

    def _on_runner(self, work: Callable[[], list[Result]]) -> list[Result]:
        return self._on_lane(self._runner, work)

    def _on_lane(self, worker: Worker, work: Callable[[], list[Result]]) -> list[Result]:
        stop = self._begin()
        future = worker.lane.submit(work)
        self._await([future], stop)
        return future.result()

    def _await(
        self, futures: Sequence[Future[Any]], stop: threading.Event, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Wait for lanes; if one fails, or the user interrupts, end the others' work before raising."""
        try:
            if meanwhile is not None:
                meanwhile()
            done: set[Future[Any]] = set()
            while len(done) < len(futures):  # in steps: not every interrupt wakes a thread that waits for a lock
                done = wait(futures, INTERRUPT_SECONDS, FIRST_EXCEPTION).done
                for future in done:
                    future.result()
            if stop.is_set():
                raise RunError("the measurer was closed while it measured")
        except BaseException:
            stop.set()
            workers = (self._runner, *self._builders, self._prover)
            while wait(futures, timeout=0).not_done:
                for worker in workers:
                    worker.kill()
                wait(futures, timeout=0.05)
            with suppress(RuntimeError):  # the measurer was closed meanwhile: their lanes take no more work
                wait([worker.lane.submit(worker.retire) for worker in workers])
            raise


class _Turns:
    """Candidates that are held by the runner and timed in turns; runs on the runner's thread."""

    def __init__(self, measurer: Measurer, task: TaskMessage, built: Sequence[_Built | Failure]) -> None:
        self._measurer, self._task, self._built = measurer, task, built
        self._failures = {i: b for i, b in enumerate(built) if isinstance(b, Failure)}
        self._timings: dict[int, list[Timing]] = {i: [] for i in range(len(built)) if i not in self._failures}
        self._place: dict[int, int] = {}  # where the runner holds a candidate

    def take(self, rounds: int) -> list[Result]:
        self._hold()
        for _ in range(rounds):
            for i in list(self._timings):
                if i not in self._failures and not self._measurer._stop.is_set():
                    self._turn(i)
        self._request({"op": "drop"})
        return [self._failures.get(i) or _together(self._timings[i]) for i in range(len(self._built))]

    def _turn(self, i: int) -> None:
        reply = self._request({"op": "round", "index": self._place[i]})
        if "forgotten" in reply:
            self._hold()
        elif "failure" in reply:
            self._failures[i] = _failure(reply, self._seconds(i))
            if reply.get("lost"):
                self._hold()
        else:
            self._timings[i].append(_timing(reply, self._seconds(i)))

    def _hold(self) -> None:
        """Load every candidate that has not failed; begin again without one that kills the runner."""
        is_complete = False
        while not is_complete and not self._measurer._stop.is_set():
            self._place.clear()
            self._request({"op": "drop"})
            is_complete = True
            for i, one in enumerate(self._built):
                if i in self._failures or isinstance(one, Failure):
                    continue
                reply = self._request({"op": "hold", "artifact": one.artifact, "variant": one.variant})
                if "failure" not in reply:
                    self._place[i] = len(self._place)
                    continue
                self._failures[i] = _failure(reply, one.seconds)
                if reply.get("lost"):
                    is_complete = False
                    break

    def _request(self, request: Message) -> Message:
        runner, settings = self._measurer._runner, self._measurer.settings
        try:
            return runner.ask(self._task, request, settings.run_timeout)
        except WorkerLost as lost:
            return {"failure": {"kind": lost.kind, "message": lost.message}, "lost": True}

    def _seconds(self, i: int) -> float:
        one = self._built[i]
        return one.build_seconds if isinstance(one, Failure) else one.seconds


def _together(timings: Sequence[Timing]) -> Result:
    if not timings:
        return Failure("timeout", "no round was run")
    seconds = tuple(t.floor for t in timings)
    low, middle, high = np.percentile(seconds, (25, 50, 75))
    spread = float((high - low) / middle) if middle > 0 else 0.0
    return Timing(float(middle), spread, sum(t.runs for t in timings), timings[0].build_seconds, samples=seconds)


def _failed(built: _Built | Failure, lost: WorkerLost) -> Failure:
    return built if isinstance(built, Failure) else Failure(lost.kind, lost.message, built.seconds)


def _result(reply: Message, build_seconds: float) -> Result:
    return _failure(reply, build_seconds) if "failure" in reply else _timing(reply, build_seconds)


def _failure(reply: Message, build_seconds: float) -> Failure:
    return Failure(reply["failure"]["kind"], reply["failure"]["message"], build_seconds)


def _timing(reply: Message, build_seconds: float) -> Timing:
    t = reply["timing"]
    return Timing(t["seconds"], t["spread"], t["runs"], build_seconds, t["stopped_early"], tuple(t["samples"]))


def _close(workers: Sequence[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner: not its workers
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.close()
