"""Runs trials in forked workers, so that a kernel that crashes or hangs costs its case and names it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.support.trials import CASES, GRAPHS, Bench, Plant, Subject, Trial

HANG_SECONDS = 60.0
TICK_SECONDS = 1.0
_fork = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Outcome:
    """What many trials did."""

    points: int = 0
    paths: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])

    def report(self) -> str:
        lines = [f"{n:8d}  {path}" for path, n in sorted(self.paths.items())]
        return "\n".join([f"{self.points} points, {len(self.failures)} failures", *lines])


@dataclass(slots=True)
class _Worker:
    subjects: list[Subject]
    process: Any
    pipe: Connection
    orders: Orders
    running: tuple[int, int, str] = (-1, 0, "")  # position of the subject, case, description
    silent: float = 0.0  # seconds without a message, while we ourselves were awake


@dataclass(frozen=True, slots=True)
class Orders:
    """What all workers do: `only` the cases of this number, with this bug planted; `refit`: points of other shapes."""

    only: int | None = None
    plant: Plant | None = None
    refit: bool = False


def run(seeds: Sequence[int], orders: Orders | None = None, stop_after: int = 20) -> Outcome:
    """As `check`, of the trials with these seeds."""
    return check([Trial(seed) for seed in seeds], orders, stop_after)


def check(subjects: Sequence[Subject], orders: Orders | None = None, stop_after: int = 20) -> Outcome:
    """Check every case of the subjects; gives up after `stop_after` failures."""
    orders = orders or Orders()
    count = max(1, min(len(os.sched_getaffinity(0)), len(subjects)))
    outcome = Outcome()
    crew = [_start(list(subjects[k::count]), 0, orders) for k in range(count)]
    while crew:
        if len(outcome.failures) >= stop_after:
            for w in crew:
                _end(w)
            break
        before = time.monotonic()
        ready = wait([w.pipe for w in crew], timeout=TICK_SECONDS)
        passed = min(time.monotonic() - before, 2 * TICK_SECONDS)  # a machine that was paused proves nothing
        for w in list(crew):
            if w.pipe in ready:
                try:
                    done = _listen(w, outcome)
                except EOFError:
                    w.process.join()
                    done = _buried(w, outcome, _cause(w.process.exitcode), crew)
            else:
                w.silent += passed
                done = w.silent > HANG_SECONDS and _buried(
                    w, outcome, f"no answer within {HANG_SECONDS:.0f} s{_condition(w)}", crew
                )
            if done:
                crew.remove(w)
    return outcome


def _start(subjects: list[Subject], skip: int, orders: Orders) -> _Worker:
    ours, theirs = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_work, args=(theirs, subjects, skip, orders), daemon=True)
    process.start()
    theirs.close()
    return _Worker(subjects, process, ours, orders)


def _end(w: _Worker) -> None:
    w.process.kill()
    w.process.join()
    w.pipe.close()


def _listen(w: _Worker, outcome: Outcome) -> bool:
    """Take one message; whether the worker has finished."""
    w.silent = 0.0
    match w.pipe.recv():
        case "begin", int(position), int(number), str(text):
            w.running = (position, number, text)
        case "end", paths, str(problem):
            outcome.points += 1
            outcome.paths.update(paths)
            if problem:
                outcome.failures.append(f"{problem}\n{w.running[2]}")
        case "lost", str(problem):
            outcome.failures.append(problem)
        case _:
            w.process.join()
            return True
    return False


def _buried(w: _Worker, outcome: Outcome, cause: str, crew: list[_Worker]) -> bool:
    """Note the case that ended a worker and let another one go on behind it."""
    _end(w)
    position, number, text = w.running
    outcome.points += 1
    outcome.failures.append(f"{cause}\n{text}")
    if position >= 0:
        crew.append(_start(w.subjects[position:], number + 1, w.orders))
        crew[-1].running = (0, number, text)
    return True


def _condition(w: _Worker) -> str:
    """Whether a silent process runs or sleeps, and the CPU seconds it has used: a loop without end, or a deadlock."""
    try:
        fields = Path(f"/proc/{w.process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f" (state {fields[0]}, {int(fields[11]) / os.sysconf('SC_CLK_TCK'):.1f} s of CPU time)"


def _cause(code: int | None) -> str:
    return (
        f"the process died of {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"the process ended with {code}"
    )


def _work(pipe: Connection, subjects: list[Subject], skip: int, orders: Orders) -> None:
    faulthandler.disable()
    bench = Bench(orders.plant)
    for k, subject in enumerate(subjects):
        try:
            for case in subject.refitted() if orders.refit else subject.cases():
                if (k == 0 and case.number < skip) or orders.only not in (None, case.number):
                    continue
                pipe.send(("begin", k, case.number, str(case)))
                verdict = bench.check(case)
                pipe.send(("end", sorted(verdict.paths), verdict.problem))
        except Exception:
            pipe.send(("lost", f"{subject.title}: {traceback.format_exc()}"))
    pipe.send(("done",))
    pipe.close()
    os._exit(0)


def seeds_for(points: int) -> list[int]:
    """Seeds of so many points; two of seven trials are of graphs."""
    count = -(-points // CASES)
    graphs = 2 * count // 7
    return [*range(count - graphs), *range(GRAPHS, GRAPHS + graphs)]
