"""One side of the fair clock: a process that loads a model once and then runs it in loops as it is told.

A line of JSON comes in, one goes out. The first names the model, the others say how long to loop and how many single
calls to make after a rest. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
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


def timed(run: Callable[[], object], request: dict[str, Any]) -> dict[str, Any]:
    rested: list[float] = []
    for _ in range(request["rested"]):
        time.sleep(REST_SECONDS)
        began = time.perf_counter()
        run()
        rested.append(time.perf_counter() - began)
    for _ in range(SETTLING):
        run()
    each: list[float] = []
    cpu, start = time.process_time(), time.perf_counter()
    now = start
    runs, seconds = request["runs"], request["seconds"]
    while not each or (now - start < seconds if runs is None else len(each) < runs):
        began = now
        run()
        now = time.perf_counter()
        each.append(now - began)
    return {"each": each, "rested": rested, "cpu": time.process_time() - cpu}


def main() -> None:
    # Standard output is the channel: what a library prints goes elsewhere.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run: Callable[[], object] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if run is None:
                run = loaded(request)
                for _ in range(request["warm_up"]):
                    run()
            else:
                answer = timed(run, request)
        except (StormdropError, OSError, MemoryError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=channel, flush=True)


if __name__ == "__main__":
    main()
