"""The fair clock: every side runs a model in a process of its own, in steady loops that alternate.

A side may have several callers, Python threads that each loop, and a second model beside the first in one process.

Two runtimes in one process disturb each other: each begins its turn with sleeping threads, and with the caches and
clocks that the other runtime left. The cost differs between runtimes. Here a side loops for seconds without a pause,
while the processes of the other sides wait for a line on their standard input. Each round reverses the order. A single
call after a rest is a figure of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import RunError
from stormdrop.device.device import Seconds
from stormdrop.measure.stopwatch import Runs

Array = NDArray[Any]
Runtime = Literal["stormdrop", "mixed", "onnxruntime"]

ROUNDS = 4
RESTED_CALLS = 5  # a round
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Side:
    """The model of one process and its threads: a compiled file, or an ONNX model that the process compiles in parts
    ("mixed") or gives to onnxruntime.
    """

    runtime: Runtime
    path: Path
    threads: int
    inputs: Mapping[str, Array]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`spin`, `affinity`, `pool` and `ordinal` of a compiled model; of a mixed one `compare.side.compiled_here`."""
    callers: int = 1
    """Python threads that call the model in loops of their own at the same time."""
    beside: Side | None = None
    """A model that its own callers run in the same process meanwhile; it is not timed itself."""


@dataclass(frozen=True, slots=True)
class Loops:
    """The measurements of a side."""

    runs: Runs
    """The runs of the loops."""
    rested: Seconds
    """Single calls, each after a rest."""
    cpu_seconds: float
    """CPU time of all threads of the process, per run of a loop; a run of either model counts."""
    runs_per_second: float = 0.0
    """The rate of all callers together."""
    beside_per_second: float = 0.0
    """Runs of the model beside it."""


def steady(
    sides: Mapping[str, Side],
    seconds: float,
    *,
    repeats: int | None = None,
    warm_up: int = 3,
    rounds: int = ROUNDS,
    busy: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Loops]:
    """Times each side for about `seconds` in all, or `repeats` runs, after `warm_up` uncounted runs. Beside the sides,
    `busy` processes each keep a CPU busy.

    Raises RunError, with the process's message, if a side's process fails.
    """
    each: dict[str, list[float]] = {name: [] for name in sides}
    rested: dict[str, list[float]] = {name: [] for name in sides}
    cpu, wall, others = (dict.fromkeys(sides, 0.0) for _ in range(3))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes: dict[str, _Process] = {}
        for name, side in sides.items():
            tell(f"{name} loads")
            processes[name] = stack.enter_context(_Process.of(name, side, folder / str(len(processes)), warm_up))
        stack.enter_context(neighbours(busy))
        order = list(sides)
        rounds = rounds if repeats is None else min(rounds, repeats)
        for number in range(rounds):
            # The remainder of the division goes to the first rounds.
            runs = None if repeats is None else repeats // rounds + (number < repeats % rounds)
            for name in order:
                tell(f"round {number + 1} of {rounds}, {name}")
                answer = processes[name].ask({"seconds": seconds / rounds, "runs": runs, "rested": RESTED_CALLS})
                each[name] += answer["each"]
                rested[name] += answer["rested"]
                cpu[name] += answer["cpu"]
                wall[name] += answer["seconds"]
                others[name] += answer["beside"]
            order.reverse()
    return {
        name: Loops(
            Runs(np.array(each[name]), False),
            np.array(rested[name]),
            cpu[name] / (len(each[name]) + others[name]),
            len(each[name]) / wall[name],
            others[name] / wall[name],
        )
        for name in sides
    }


@contextmanager
def neighbours(count: int) -> Generator[None]:
    """Runs `count` other processes, each of which keeps a CPU busy until the block ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        started += [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(count)]
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _request(side: Side, inputs: Path) -> dict[str, Any]:
    """Returns the description of a model for the process, and writes the model's inputs to a file."""
    np.savez(inputs, *side.inputs.values())
    return {
        "runtime": side.runtime,
        "path": str(side.path),
        "threads": side.threads,
        "settings": dict(side.settings),
        "callers": side.callers,
        "names": list(side.inputs),
        "inputs": str(inputs),
    }


class _Process:
    """A running `compare.side`."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name, self._process = name, process

    @staticmethod
    @contextmanager
    def of(name: str, side: Side, folder: Path, warm_up: int) -> Generator[_Process]:
        """Starts a process for the duration of the context; `folder` receives the inputs."""
        folder.mkdir()
        command = [sys.executable, "-m", "stormdrop.compare.side"]
        # No session of its own, unlike a measuring worker: Linux divides a CPU between sessions first (autogroups), and
        # would give a side a multiple of its share beside `busy` neighbours.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            running = _Process(name, process)
            beside = None if side.beside is None else _request(side.beside, folder / "beside.npz")
            running.ask({**_request(side, folder / "inputs.npz"), "beside": beside, "warm_up": warm_up})
            yield running
        finally:
            process.kill()
            process.communicate()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):  # a process that dies may leave a part of its answer
            raise RunError(f"{self._name} ended with status {self._process.wait()} instead of running the model")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunError(f"{self._name} cannot run the model: {answer['error']}")
        return answer
