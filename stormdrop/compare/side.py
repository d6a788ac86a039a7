"""One side of the fair clock: a process that loads a model once and then runs it in loops as it is told.

A line of JSON comes in, one goes out. The first names the model, and perhaps another one that runs beside it in the
same process; the others say how long to loop and how many single calls to make after a rest. It ends with its standard
input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stormdrop.errors import StormdropError

SETTLING = 2  # runs of a loop that do not count
REST_SECONDS = 0.1  # in which threads of every runtime fall asleep


def loaded(request: dict[str, Any]) -> Callable[[], object]:
    """The model as a call without arguments."""
    with np.load(request["inputs"]) as stored:
        arrays = {name: stored[f"arr_{k}"] for k, name in enumerate(request["names"])}
    if request["runtime"] == "onnxruntime":
        from stormdrop.compare.oracle import OnnxRuntime

        peer = OnnxRuntime(request["path"], request["threads"])
        fed = peer.prepared(arrays)
        return lambda: peer.run_prepared(fed)
    from stormdrop.runtime.open_model import load_compiled

    model = load_compiled(request["path"], **request["settings"])
    return lambda: model.run(arrays)


@dataclass(slots=True)
class CallLoop:
    """What callers of a model share: when to end, and how long each run took."""

    run: Callable[[], object]
    seconds: float
    runs: int | None
    is_over: bool = False
    each: list[float] = field(default_factory=list[float])  # list.append is atomic

    def go(self, start: float) -> None:
        """Run until the time is over, or the runs of all callers; at least once."""
        now = start
        while True:
            began = now
            self.run()
            now = time.perf_counter()
            self.each.append(now - began)
            is_last = now - start >= self.seconds if self.runs is None else len(self.each) >= self.runs
            if is_last or self.is_over:
                return


@dataclass(frozen=True, slots=True)
class LoadedSide:
    """The model of a side, and the one beside it."""

    run: Callable[[], object]
    callers: int
    beside: Callable[[], object] | None
    beside_callers: int

    @staticmethod
    def of(request: dict[str, Any]) -> LoadedSide:
        beside: dict[str, Any] | None = request["beside"]
        other = None if beside is None else loaded(beside)
        return LoadedSide(loaded(request), request["callers"], other, 0 if beside is None else beside["callers"])

    def warm_up(self, runs: int) -> None:
        for _ in range(runs):
            self.run()
            if self.beside is not None:
                self.beside()

    def timed(self, request: dict[str, Any]) -> dict[str, Any]:
        rested: list[float] = []
        for _ in range(request["rested"]):
            time.sleep(REST_SECONDS)
            began = time.perf_counter()
            self.run()
            rested.append(time.perf_counter() - began)
        own = CallLoop(self.run, request["seconds"], request["runs"])
        other = None if self.beside is None else CallLoop(self.beside, float("inf"), None)
        others = [] if other is None else _started(other, self.beside_callers)
        for _ in range(SETTLING):
            self.run()
        before = 0 if other is None else len(other.each)
        cpu, start = time.process_time(), time.perf_counter()
        callers = _started(own, self.callers - 1)
        own.go(start)
        own.is_over = True
        for caller in callers:
            caller.join()
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        beside = 0 if other is None else len(other.each) - before
        if other is not None:
            other.is_over = True
        for caller in others:
            caller.join()
        return {"each": own.each, "rested": rested, "cpu": used, "seconds": seconds, "beside": beside}


def _started(loop: CallLoop, callers: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=lambda: loop.go(time.perf_counter())) for _ in range(callers)]
    for thread in threads:
        thread.start()
    return threads


def main() -> None:
    # Standard output is the channel: what a library prints goes elsewhere.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side: LoadedSide | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if side is None:
                side = LoadedSide.of(request)
                side.warm_up(request["warm_up"])
            else:
                answer = side.timed(request)
        except (StormdropError, OSError, MemoryError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=channel, flush=True)


if __name__ == "__main__":
    main()
