"""One side of the fair clock: a process that loads a model once and then runs it in loops on request.

Each line of JSON on the standard input gets a line of JSON as its answer. The first line names the model, and perhaps a
second model that runs beside it in the same process. Each further line sets the length of a loop, and the number of
single calls after a rest. The process ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stormdrop.base.errors import StormdropError

if TYPE_CHECKING:
    from stormdrop.model.model import Model

SETTLING = 2  # runs of a loop that do not count
REST_SECONDS = 0.1  # in which threads of every runtime fall asleep


def loaded_call(request: dict[str, Any]) -> Callable[[], object]:
    """Returns the model as a call without arguments."""
    with np.load(request["inputs"]) as stored:
        arrays = {name: stored[f"arr_{k}"] for k, name in enumerate(request["names"])}
    if request["runtime"] == "onnxruntime":
        from stormdrop.model.onnx_session import OnnxSession

        peer = OnnxSession(request["path"], request["threads"])
        fed = peer.prepared(arrays)
        return lambda: peer.run_prepared(fed)
    if request["runtime"] == "mixed":
        mixed = compiled_here(request["path"], request["threads"], **request["settings"])
        return lambda: mixed.run(arrays)
    from stormdrop.model.open_model import load

    model = load(request["path"], **request["settings"])
    return lambda: model.run(arrays)


def compiled_here(
    path: str,
    threads: int,
    *,
    shapes: dict[str, list[int]],
    bound: list[str],
    schedules: str,
    rules: list[str],
    operators: list[str],
    **options: Any,
) -> Model:
    """Compiles a model that no saved file can hold; rules and operators may be in the current directory."""
    from stormdrop.compare.inputs import read_bound
    from stormdrop.compiler.compile import compile
    from stormdrop.frontend import custom
    from stormdrop.space import derive
    from stormdrop.space.rules import RULES

    sys.path.append(os.getcwd())
    return compile(
        path,
        threads=threads,
        shapes=shapes or None,
        constants=read_bound(bound),
        schedules=(lambda task: None) if schedules == "defaults" else None,
        unproved=schedules == "trials",
        rules=(*RULES, *derive.imported(rules)) if rules else RULES,
        operators=custom.imported(operators),
        **options,
    )


@dataclass(slots=True)
class CallLoop:
    """The shared state of a model's callers: the end of the loop, and the seconds of each run."""

    run: Callable[[], object]
    seconds: float
    runs: int | None
    is_over: bool = False
    each: list[float] = field(default_factory=list[float])  # list.append is atomic

    def go(self, start: float) -> None:
        """Runs until the time is over, or the callers' runs are complete; at least once."""
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
    """The model of a side, and the model beside it."""

    run: Callable[[], object]
    callers: int
    beside: Callable[[], object] | None
    beside_callers: int

    @staticmethod
    def of(request: dict[str, Any]) -> LoadedSide:
        beside: dict[str, Any] | None = request["beside"]
        other = None if beside is None else loaded_call(beside)
        return LoadedSide(loaded_call(request), request["callers"], other, 0 if beside is None else beside["callers"])

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
    # Standard output is the channel: the output of libraries goes elsewhere.
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
