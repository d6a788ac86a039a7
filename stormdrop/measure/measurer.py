"""Builds candidates in parallel, then times them one by one, all in worker processes.

    candidates ──builders──▶ artifacts ──runner──▶ Timing | Failure

On a CPU, building and timing never overlap; a GPU times built candidates while the CPUs build the rest. A candidate
that kills, hangs or fools its worker costs only that candidate: the worker is replaced and the next candidate is
measured. Only a worker that cannot start raises an error.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stormdrop.base.codec import decode, encode
from stormdrop.base.errors import RunError, UserError
from stormdrop.base.lru import Lru
from stormdrop.device.artifact import Artifact
from stormdrop.device.cpus import available_cpus
from stormdrop.ir.tensor import Task
from stormdrop.measure.link import Link, Message, PipeLink
from stormdrop.measure.process import RequestFailed, TaskRefused, Worker, message_of
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.stopwatch import Runs
from stormdrop.measure.wire import BuildReply, BuildRequest
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

__all__ = ["Candidate", "HandWritten", "MeasureSettings", "Measurer"]


INTERRUPT_SECONDS = 0.2
KEPT_ARTIFACTS = 128  # the last built artifacts, some 30 KB each: finalists and duels need not be built again


@dataclass(frozen=True, slots=True)
class HandWritten:
    """LLVM IR text of a kernel with the calling convention of the artifact `like`."""

    text: str
    like: Artifact
    variant: int | None = None


Candidate = Schedule | HandWritten


@dataclass(frozen=True, slots=True)
class _Built:
    """A built candidate: its artifact and variant as messages hold them, and how long the build took."""

    message: Message
    seconds: float


class Measurer:
    """The owner of the workers; a context manager. Workers start with the first call and stay until `close`.

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
        connect: Callable[[], Link] = PipeLink,
    ) -> None:
        """`shared_proofs`: winners are proved in a shared process until a proof fails there, which saves half a second
        per proof. `rules` are the rules that schedules may follow. `connect` starts a worker. Raises UserError for
        rules that workers cannot import.
        """
        if builders is not None and builders < 1:
            raise UserError(f"{builders} builders cannot build anything; give 1 or more")
        self.target, self.settings = target, settings or MeasureSettings()
        final = replace(self.settings, sample_points=self.settings.final_points)
        self._runner = Worker("runner", target, self.settings, connect=connect)
        self._prover = Worker("runner", target, final, connect=connect)
        self._shared_proofs = shared_proofs
        count = builders or available_cpus()
        self._builders = [Worker("builder", target, self.settings, rules, connect) for _ in range(count)]
        self._texts: weakref.WeakKeyDictionary[Task, Message] = weakref.WeakKeyDictionary()
        self._kept = Lru[tuple[int, Schedule], _Built](KEPT_ARTIFACTS)
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
        """Builds and times candidates; returns the results in the candidates' order. `best` holds the seconds to beat,
        if known.

        `meanwhile` is called here while the candidates are being built; on a CPU nothing runs beside their timing.
        Raises RunError if workers cannot be started, and every exception of `meanwhile`.
        """
        with self._busy:
            message = self._message(task)
            if isinstance(self.target, Gpu):
                return self._build_and_time(message, candidates, best, meanwhile)
            built = self._build(message, candidates, meanwhile)
            return self._on_lane(self._runner, lambda: self._timed(message, built, best))

    def retime(self, task: Task, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        """Times candidates in turns (A B C A B C …), so that a drift of the machine affects all candidates alike.

        The samples are the fastest run of every round; `seconds` is their median, `spread` theirs. Raises as `measure`.
        """
        with self._busy:
            message = self._message(task)
            built = self._build(message, candidates)
            return self._on_lane(self._runner, lambda: self._in_turns(message, built, rounds))

    def prove(self, task: Task, candidate: Candidate, witness: Schedule | None = None) -> Result:
        """Checks a winner in a fresh process against many reference values, and all of its output against a witness's
        output; times the winner.

        A process that proofs share has run only winners. A winner that fails there is proved again in a process of its
        own.
        """
        with self._busy:
            message = self._message(task)
            built, *others = self._build(message, [candidate] if witness is None else [candidate, witness])
            against = others[0].message if others and isinstance(others[0], _Built) else None
            if isinstance(built, Failure):
                return built
            is_fresh = self._prover.link is None
            result = self._proof(message, built, against)
            return result if is_fresh or isinstance(result, Timing) else self._proof(message, built, against)

    def _proof(self, message: Message, built: _Built, witness: Message | None) -> Result:
        """Proves a candidate once. The process stays only if it may be shared and the proof succeeded."""
        prover, stays = self._prover, False
        try:
            request: Message = {"op": "prove", "witness": witness}
            (result,) = self._on_lane(prover, lambda: [self._run(prover, message, built, request)])
            stays = self._shared_proofs and isinstance(result, Timing)
            return result
        finally:
            if not stays:
                with suppress(RuntimeError):  # the measurer was closed meanwhile: its lane takes no more work
                    prover.lane.submit(prover.retire).result()

    def warm_up(self, task: Task) -> None:
        """Begins to start the workers and to create the task's data, without waiting for completion."""
        message = self._message(task)

        def begin(worker: Worker) -> None:
            with suppress(RequestFailed, RunError):  # the first measurement reports the error
                worker.prepare(message)

        # A process that opens a GPU takes more than a second to start: the prover starts now, too.
        provers = [self._prover] if isinstance(self.target, Gpu) else []
        for worker in (self._runner, *self._builders, *provers):
            worker.lane.submit(begin, worker)

    def close(self) -> None:
        """Ends all workers; a call in progress on another thread fails."""
        self._closed = True
        self._stop.set()
        self._finalizer()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- building --------------------------------------------------------------------------------------------------

    def _build(
        self, task: Message, candidates: Sequence[Candidate], meanwhile: Callable[[], None] | None = None
    ) -> list[_Built | Failure]:
        """Builds all artifacts. Meanwhile the runner creates the task's inputs and reference values."""
        stop = self._begin()
        built, working = self._start_building(task, candidates, stop)
        self._await(working, stop, meanwhile)
        return [future.result() for future in built]

    def _build_and_time(
        self, task: Message, candidates: Sequence[Candidate], best: float | None, meanwhile: Callable[[], None] | None
    ) -> list[Result]:
        """Times each candidate as soon as it and all preceding candidates are built."""
        stop = self._begin()
        built, working = self._start_building(task, candidates, stop)

        def each() -> Iterator[_Built | Failure]:
            for future in built:
                while not wait([future], INTERRUPT_SECONDS).done:
                    if stop.is_set() or all(w.done() for w in working):  # `_await` reports the failure of a builder
                        return
                yield future.result()

        timing = self._runner.lane.submit(self._timed, task, each(), best)
        self._await([*working, timing], stop, meanwhile)
        return timing.result()

    def _start_building(
        self, task: Message, candidates: Sequence[Candidate], stop: threading.Event
    ) -> tuple[list[Future[_Built | Failure]], list[Future[None]]]:
        """Builds on all builders' lanes while the runner prepares; returns futures of candidates and of lanes."""
        built: list[Future[_Built | Failure]] = [Future() for _ in candidates]
        indices = iter(range(len(candidates)))  # of all builders: each takes the next one

        def work(builder: Worker) -> None:
            for i in indices:
                built[i].set_result(self._kept_or_built(builder, task, candidates[i]))
                if stop.is_set():
                    return

        builders = [b.lane.submit(work, b) for b in self._builders[: len(candidates)]]
        return built, [*builders, self._runner.lane.submit(self._prepare_runner, task)]

    def _prepare_runner(self, task: Message) -> None:
        with suppress(TaskRefused):  # the error recurs, and is reported, when the first candidate is timed
            self._runner.prepare(task)

    def _kept_or_built(self, builder: Worker, task: Message, candidate: Candidate) -> _Built | Failure:
        if not isinstance(candidate, Schedule):
            return self._build_one(builder, task, candidate)
        key = task["number"], candidate
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        built = self._build_one(builder, task, candidate)
        if isinstance(built, _Built):
            self._kept.put(key, built)
        return built

    def _build_one(self, builder: Worker, task: Message, candidate: Candidate) -> _Built | Failure:
        match candidate:
            case Schedule():
                request = BuildRequest(candidate)
            case HandWritten():
                request = BuildRequest(text=candidate.text, like=candidate.like)
        start = time.perf_counter()
        try:
            reply = decode(BuildReply, builder.ask(task, request.message, self.settings.build_timeout))
        except RequestFailed as failed:
            return Failure(failed.kind, failed.message, time.perf_counter() - start)
        return _Built({"artifact": encode(reply.kernel.artifact), "variant": candidate.variant}, reply.seconds)

    # ---- timing ----------------------------------------------------------------------------------------------------

    def _timed(self, task: Message, built: Iterable[_Built | Failure], best: float | None) -> list[Result]:
        """Times candidates, on the runner's thread."""
        fastest = best
        results: list[Result] = []
        refused: TaskRefused | None = None
        for one in built:
            try:
                if isinstance(one, _Built) and refused is None:
                    self._runner.prepare(task)
            except TaskRefused as error:  # all further candidates would fail alike
                refused = error
            if refused is not None:
                results.append(_failure(one, refused))
                continue
            result = self._run(self._runner, task, one, {"op": "time", "best": fastest})
            results.append(result)
            if isinstance(result, Timing):
                fastest = result.seconds if fastest is None else min(fastest, result.seconds)
            if self._stop.is_set():
                break
        return results

    def _in_turns(self, task: Message, built: Sequence[_Built | Failure], rounds: int) -> list[Result]:
        """Times candidates in turns, on the runner's thread.

        A runner keeps loaded candidates; a replacement runner loads them again.
        """
        failures: dict[int, Failure] = {}
        timings: list[list[Timing]] = [[] for _ in built]
        for _ in range(rounds):
            for i, one in enumerate(built):
                if i in failures or self._stop.is_set():
                    continue
                result = self._run(self._runner, task, one, {"op": "round"})
                if isinstance(result, Failure):
                    failures[i] = result
                else:
                    timings[i].append(result)
        with suppress(RequestFailed):
            self._runner.ask(task, {"op": "drop"}, self.settings.run_timeout)
        return [failures.get(i) or _together(each) for i, each in enumerate(timings)]

    def _run(self, worker: Worker, task: Message, built: _Built | Failure, request: Message) -> Result:
        """Returns the worker's result for a candidate; runs on the worker's thread."""
        if isinstance(built, Failure):
            return built
        try:
            timing = worker.ask(task, {**request, **built.message}, self.settings.run_timeout)
        except RequestFailed as failed:
            return _failure(built, failed)
        timing["samples"] = tuple(timing["samples"])
        return Timing(**timing, build_seconds=built.seconds)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _message(self, task: Task) -> Message:
        message = self._texts.get(task)
        if message is None:
            message = self._texts[task] = message_of(task)
        return message

    def _begin(self) -> threading.Event:
        self._stop = stop = threading.Event()
        if self._closed:
            raise RunError("the measurer has been closed")
        return stop

    def _on_lane(self, worker: Worker, work: Callable[[], list[Result]]) -> list[Result]:
        stop = self._begin()
        future = worker.lane.submit(work)
        self._await([future], stop)
        return future.result()

    def _await(
        self, futures: Sequence[Future[Any]], stop: threading.Event, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Waits for lanes. If a lane fails, or the user interrupts, ends the work of all lanes before raising."""
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


def _together(timings: Sequence[Timing]) -> Result:
    if not timings:
        return Failure("timeout", "no round was run")
    rounds = Runs(np.array([t.floor for t in timings]), False)
    samples = tuple(rounds.each.tolist())
    return Timing(
        rounds.seconds, rounds.spread, sum(t.runs for t in timings), timings[0].build_seconds, samples=samples
    )


def _failure(built: _Built | Failure, failed: RequestFailed) -> Failure:
    return built if isinstance(built, Failure) else Failure(failed.kind, failed.message, built.seconds)


def _close(workers: Sequence[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner: not its workers
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.close()
