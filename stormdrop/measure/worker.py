"""The process that builds and runs candidates: `python -m stormdrop.measure.worker REQUESTS REPLIES PARENT`.

The worker reads requests from an inherited pipe and answers on another (`wire`); both get high numbers, out of reach of
a wild kernel. Standard output is discarded, and standard error goes to a log that the parent reads when the worker
dies. The worker ends when the pipe closes, and Linux kills it when its parent dies, even in the middle of a request.

    start  target, settings, role, rules      once, first; rules of the user's, with where modules are found
    task   task, number                       makes a task current; a runner makes its inputs and reference values
    build  `wire.BuildRequest`                machine code of one candidate, as a `wire.BuildReply`
    time   artifact, variant, best            load, check and time one candidate
    round  artifact, variant                  time a candidate once more; it is loaded and checked the first time
    drop                                      forget what rounds have loaded
    prove  artifact, variant, witness         check a candidate against more references and a witness's output; time it
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from stormdrop.base.codec import decode, encode
from stormdrop.base.errors import BuildError, RunError, ScheduleError, UserError
from stormdrop.base.lru import Lru
from stormdrop.builder.building import BuiltKernel, build_for_model, code_from
from stormdrop.codegen.llvm import assemble
from stormdrop.device.artifact import Artifact
from stormdrop.device.device import Array, BoundCall, Device, Memory
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice, HostPacker, host_device
from stormdrop.device.interlude import SurroundedBenches
from stormdrop.device.pool.pool import Pool
from stormdrop.device.rotation import Rotation, rotation_bytes
from stormdrop.device.targets import device_for
from stormdrop.ir.tensor import Task
from stormdrop.lower.program import View
from stormdrop.measure.result import FailureKind
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.stopwatch import Bench, Runs, repeat, turn
from stormdrop.measure.wire import BuildReply, BuildRequest, Inbox, frame
from stormdrop.measure.workbench import GpuWorkbench, Workbench, WrongOutput
from stormdrop.model.kernel import PreparedKernel
from stormdrop.space.derive import received
from stormdrop.space.rules import Rule
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target, target_from_json

Message = dict[str, Any]
Requests = Mapping[str, Callable[[Message], Message]]

HIGH_FD = 512
LOG_BYTES = 1 << 20
KEPT_TASKS = 64
KEPT_BYTES = 256 << 20  # of tasks' data; the current task's data stays, regardless of its size
PR_SET_PDEATHSIG = 1
EMPTY_GPU_KERNEL = "define ptx_kernel void @phase0() { ret void }"
EMPTY_KERNEL = "define void @kernel(ptr %b, ptr %s, i64 %p, i64 %i, i64 %n) { ret void }"


class BuilderRole:
    """The worker's role that turns schedules into artifacts."""

    def __init__(self, target: Target, rules: Sequence[Rule]) -> None:
        self.target, self._rules = target, rules
        self._tasks = Lru[int, Task](KEPT_TASKS)
        self._task: Task | None = None
        self.requests: Requests = {"task": self.set_task, "build": self.build}
        # LLVM's own start-up, 20 ms, belongs to nobody's build; a GPU's constants are packed by code for the host.
        assemble(EMPTY_KERNEL, detect(1) if isinstance(target, Gpu) else target)
        if isinstance(target, Gpu):
            code_from(EMPTY_GPU_KERNEL, target)

    def set_task(self, request: Message) -> Message:
        number = request["number"]
        task = self._tasks.get(number)
        if task is None:
            task = Task.from_json(request["task"])
            self._tasks.put(number, task)
        self._task = task
        return {}

    def build(self, request: Message) -> Message:
        task = self._task
        if task is None:
            raise RuntimeError("a request to build came before its task")
        start = time.perf_counter()
        wanted = decode(BuildRequest, request["request"])
        if wanted.like is not None:
            built = BuiltKernel(replace(wanted.like, code=code_from(wanted.text, self.target)))
        else:
            views = {name: View(strides) for name, strides in wanted.strides}
            how = views, self._rules, wanted.code, wanted.packing, wanted.summarise
            built = build_for_model(task, wanted.schedule, self.target, *how)
        return encode(BuildReply(built, time.perf_counter() - start))


def _pinned(target: Target) -> HostDevice:
    """Returns the host's threads, each bound to a CPU; they have run a kernel, which calibrates the clock."""
    pool = Pool(target.threads, affinity="none")  # `pin` binds the threads, regardless of the environment
    device = HostDevice(pool)
    nothing = Artifact(assemble(EMPTY_KERNEL, target), (), (1,))
    PreparedKernel(nothing, {}, device).record().bench(2)
    pool.pin()
    return device


@dataclass(frozen=True, slots=True)
class Held:
    """A loaded candidate, right on its first run."""

    call: BoundCall
    arrays: tuple[list[Array], list[Array]]
    bench: Bench
    first: float
    variant: int | None
    between: float = 0.0
    """Seconds that pass between two runs."""


class RunnerRole:
    """The worker's role that runs artifacts on the data of the current task."""

    def __init__(self, target: Target, settings: MeasureSettings) -> None:
        self.target, self.settings = target, settings
        self._device: Device = device_for(target) if isinstance(target, Gpu) else _pinned(target)
        self._benches = Lru[int, Workbench](KEPT_BYTES)
        self._current: Workbench | None = None
        self._held: dict[tuple[Artifact, int | None], Held] = {}
        self._copies: Memory | None = None
        self.requests: Requests = {
            "task": self.set_task,
            "time": self.time,
            "round": self.round,
            "drop": self.drop,
            "prove": self.prove,
        }
        if isinstance(target, Gpu):
            HostPacker(Artifact(b"", (), ()), host_device(1))  # starts the packer of constants
            self._device.record([]).bench(1)  # brings the clocks up

    def set_task(self, request: Message) -> Message:
        number = request["number"]
        self._held.clear()
        bench = self._benches.get(number)
        if bench is None:
            task = Task.from_json(request["task"])
            given = task, self.target, self.settings.seed, self.settings.sample_points
            on_gpu = isinstance(self.target, Gpu)
            bench = GpuWorkbench(*given, self._device) if on_gpu else Workbench(*given)
            self._benches.put(number, bench, bench.nbytes)
        self._current = bench
        return {}

    def time(self, request: Message) -> Message:
        held, best = self._load(request), request["best"]
        if not self._is_hopeless(held, best):
            held = self._in_surroundings(held)
        return self._timing(held, held.first, best, self.settings.min_seconds)

    def round(self, request: Message) -> Message:
        key = decode(Artifact, request["artifact"]), request["variant"]
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = self._in_surroundings(self._load(request, is_kept=True), is_kept=True)
        runs = turn(held.bench, self.settings, held.between)
        return self._checked(held, runs) | {"samples": [float(runs.each.min())]}

    def drop(self, request: Message) -> Message:
        self._held.clear()
        return {}

    def prove(self, request: Message) -> Message:
        """Proves a candidate: every output element must agree with another program, the witness, within the errors."""
        witness = request["witness"]
        expected: list[NDArray[Any]] = []
        if witness is not None:
            self._load(witness)
            expected = [o.array.copy() for o in self._bench.outputs]
        held = self._load(request)
        self._bench.compare(expected)
        held = self._in_surroundings(held)
        return self._timing(held, held.first, None, self.settings.final_seconds)

    @property
    def _bench(self) -> Workbench:
        if self._current is None:
            raise RuntimeError("a request to time came before its task")
        return self._current

    def _block(self, is_kept: bool) -> Memory:
        """Returns memory for copies of weights: a kept candidate's own, else memory that candidates use in turn."""
        if is_kept:
            return self._device.allocate(rotation_bytes(self.target.l3_bytes))
        self._copies = self._copies or self._block(is_kept=True)
        return self._copies

    def _load(self, request: Message, is_kept: bool = False) -> Held:
        """Loads a candidate and lets it run once on poisoned outputs. Raises WrongOutput, BuildError, MemoryError."""
        artifact, variant = decode(Artifact, request["artifact"]), request["variant"]
        try:
            kernel = PreparedKernel(artifact, self._bench.arrays, self._device)
        except KeyError as error:
            raise BuildError(f"the kernel needs constant {error}, which the task does not have") from error
        call, arrays = kernel.call(), self._bench.arrays_of(artifact)
        is_cold = self.target.is_cold and self._surrounded is None
        weights = [k for k, buffer in enumerate(artifact.buffers) if buffer.is_kept] if is_cold else []
        timed = Rotation(self._device, call, weights, self._block(is_kept)) if weights else self._device.record([call])
        timed.bind(*arrays)
        self._bench.poison()
        first = float(timed.bench(1)[0])
        self._bench.check(variant, poisoned=True)
        return Held(call, arrays, timed.bench, first, variant)

    def _is_hopeless(self, held: Held, best: float | None) -> bool:
        """Returns whether a candidate is too slow even with all data in near caches: its constants need no copies."""
        if self._surrounded is None or best is None:
            return False
        return float(held.bench(2).min()) > self.settings.slow_factor * best

    def _in_surroundings(self, held: Held, is_kept: bool = False) -> Held:
        """Returns the candidate with the timing of its surrounding model, if it has one.

        The first run of the candidate was on read-only inputs.
        """
        if self._surrounded is None:
            return held
        inputs, outputs = held.arrays
        constants = [k for k, buffer in enumerate(held.call.kernel.artifact.buffers) if buffer.is_kept]
        timed = self._surrounded.bench(held.call, constants, is_kept)
        timed.bind(self._bench.rewritable(inputs), outputs)
        timed.bench(1)
        return replace(held, bench=timed.bench, between=timed.interlude_seconds)

    @cached_property
    def _surrounded(self) -> SurroundedBenches | None:
        surroundings, device = self.settings.surroundings, self._device
        if surroundings is None or isinstance(self.target, Gpu) or not isinstance(device, HostDevice):
            return None
        return SurroundedBenches(device, self.target, surroundings)

    def _timing(self, held: Held, first: float, best: float | None, min_seconds: float) -> Message:
        how = replace(self.settings, min_seconds=min_seconds)
        return self._checked(held, repeat(held.bench, first, best, how, held.between))

    def _checked(self, held: Held, runs: Runs) -> Message:
        self._bench.check(held.variant, poisoned=False)  # a kernel may be right only on fresh working memory
        return {
            "seconds": runs.seconds,
            "spread": runs.spread,
            "runs": len(runs.each),
            "stopped_early": runs.stopped_early,
            "samples": runs.samples,
        }


_KINDS: Mapping[tuple[type[Exception], ...], FailureKind] = {
    (ScheduleError,): "schedule",
    (BuildError, UserError): "build",
    (WrongOutput,): "wrong",
    (MemoryError,): "memory",
    (RunError,): "crash",
}


def explain(error: Exception) -> Message:
    """Returns a failure's kind and message."""
    for classes, kind in _KINDS.items():
        if isinstance(error, classes):
            return {"kind": kind, "message": str(error) or "out of memory"}
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {"kind": "bug", "message": f"{type(error).__name__}: {error}{where}"}


def start(request: Message) -> BuilderRole | RunnerRole:
    settings, target = decode(MeasureSettings, request["settings"]), target_from_json(request["target"])
    is_runner = request["role"] == "runner"
    role = RunnerRole(target, settings) if is_runner else BuilderRole(target, received(request["rules"]))
    gc.collect()
    gc.freeze()
    # Memory held now, arenas and threads' stacks included, does not count.
    with open("/proc/self/statm") as f:
        mapped = int(f.read().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, mapped + settings.memory_limit_bytes)
    return role


def answer(role: BuilderRole | RunnerRole, request: Message) -> Message:
    try:
        return role.requests[request["op"]](request)
    except Exception as error:
        # A fault on a GPU leaves it unusable for this process.
        return {"failure": explain(error), "is_lost": getattr(error, "is_sticky", False)}


def serve(requests: int, replies: int) -> None:
    """Answers requests until the parent closes its end."""
    inbox = Inbox()
    role: BuilderRole | RunnerRole | None = None
    while True:
        got = inbox.take()
        if got is None:
            data = os.read(requests, 1 << 20)
            if not data:
                return
            inbox.feed(data)
            continue
        sequence, request = got
        if role is None:
            reply: Mapping[str, Any] = {}
            try:
                role = start(request)
            except UserError as error:  # a rule that is not to be found here
                reply = {"failure": explain(error)}
        else:
            reply = answer(role, request)
        data = frame(sequence, reply)
        while data:
            data = data[os.write(replies, data) :]


def main(arguments: list[str]) -> None:
    requests, replies, parent = map(int, arguments)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before the line above
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, LOG_BYTES)
    try:
        serve(_lift(requests), _lift(replies))
    except BrokenPipeError:
        pass
    finally:
        sys.stderr.flush()


def _lift(fd: int) -> int:
    """Moves a file to a high number, and returns the number."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lifted = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD if soft > 2 * HIGH_FD else soft // 2)
    os.close(fd)
    return lifted


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
