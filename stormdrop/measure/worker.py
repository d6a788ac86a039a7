"""The process that builds and runs candidates: `python -m stormdrop.measure.worker REQUESTS REPLIES PARENT`.

The worker reads requests from an inherited pipe and answers on another (`wire`); both get high numbers, out of reach of
a wild kernel. REQUESTS and REPLIES are their file descriptors; PARENT is the parent's process id. Standard output is
discarded, and standard error goes to a log that the parent reads when the worker dies. The worker ends when the pipe
closes, and Linux kills the worker when its parent dies, even in the middle of a request.

    start  target, settings, role, rules      first and once: become a builder or a runner; the user's rules, sys.path
    task   task, number                       make a task current; a runner makes its inputs and reference values

A builder then answers

    build  `wire.BuildRequest`                machine code of one candidate, as a `wire.BuildReply`

and a runner

    time   artifact, variant, best            load, check and time one candidate; `best`: seconds to beat
    round  artifact, variant                  time a candidate for one turn; load and check it before its first turn
    drop                                      unload the candidates of rounds
    prove  artifact, variant, witness         check a candidate, also against a witness's output; time `final_seconds`

`variant` is the index of a variant of the task, which has its own error bound; None allows the largest bound.
`Measurer` sends proofs to a runner with more reference values: its `sample_points` are the settings' `final_points`.
Invariant: requests are answered in order, and a failed request leaves the worker usable, except after a fault on a GPU.
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
"""The least file descriptor of a pipe, unless the process may have only few."""
LOG_BYTES = 1 << 20
"""The most bytes of a file that the worker writes: the log of its standard error."""
KEPT_TASKS = 64
"""The tasks that a builder keeps."""
KEPT_BYTES = 256 << 20
"""The bytes of tasks' data that a runner keeps; the current task's data stays, regardless of its size."""
PR_SET_PDEATHSIG = 1  # of prctl
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
        order = decode(BuildRequest, request["request"])
        if order.like is not None:
            built = BuiltKernel(replace(order.like, code=code_from(order.text, self.target)))
        else:
            views = {name: View(strides) for name, strides in order.strides}
            options = views, self._rules, order.code, order.packing, order.summarise
            built = build_for_model(task, order.schedule, self.target, *options)
        return encode(BuildReply(built, time.perf_counter() - start))


def _pinned(target: Target) -> HostDevice:
    """Returns the host's device, with threads bound to CPUs; a first run of a kernel has calibrated the clock."""
    pool = Pool(target.threads, affinity="none")  # `pin` binds the threads, regardless of the environment
    device = HostDevice(pool)
    nothing = Artifact(assemble(EMPTY_KERNEL, target), (), (1,))
    PreparedKernel(nothing, {}, device).record().bench(2)
    pool.pin()
    return device


@dataclass(frozen=True, slots=True)
class LoadedCandidate:
    """A candidate in memory whose first run was correct."""

    call: BoundCall
    arrays: tuple[list[Array], list[Array]]
    """The inputs and outputs."""
    bench: Bench
    """The timer of runs of the candidate."""
    first_seconds: float
    """The seconds of the first run."""
    variant: int | None
    seconds_between: float = 0.0
    """The seconds of the interlude between two runs, which simulates the surrounding model."""


class RunnerRole:
    """The worker's role that runs artifacts on the data of the current task."""

    def __init__(self, target: Target, settings: MeasureSettings) -> None:
        self.target, self.settings = target, settings
        self._device: Device = device_for(target) if isinstance(target, Gpu) else _pinned(target)
        self._workbenches = Lru[int, Workbench](KEPT_BYTES)
        self._current: Workbench | None = None
        self._loaded_for_rounds: dict[tuple[Artifact, int | None], LoadedCandidate] = {}
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
        self._loaded_for_rounds.clear()
        workbench = self._workbenches.get(number)
        if workbench is None:
            task = Task.from_json(request["task"])
            data = task, self.target, self.settings.seed, self.settings.sample_points
            workbench = GpuWorkbench(*data, self._device) if isinstance(self.target, Gpu) else Workbench(*data)
            self._workbenches.put(number, workbench, workbench.nbytes)
        self._current = workbench
        return {}

    def time(self, request: Message) -> Message:
        loaded, best = self._load(request), request["best"]
        if not self._is_hopeless(loaded, best):
            loaded = self._with_surroundings(loaded)
        return self._timing(loaded, best, self.settings.min_seconds)

    def round(self, request: Message) -> Message:
        key = decode(Artifact, request["artifact"]), request["variant"]
        loaded = self._loaded_for_rounds.get(key)
        if loaded is None:
            loaded = self._loaded_for_rounds[key] = self._with_surroundings(
                self._load(request, stays_loaded=True), stays_loaded=True
            )
        runs = turn(loaded.bench, self.settings, loaded.seconds_between)
        return self._checked(loaded, runs) | {"samples": [float(runs.each.min())]}

    def drop(self, request: Message) -> Message:
        self._loaded_for_rounds.clear()
        return {}

    def prove(self, request: Message) -> Message:
        """Times a candidate whose every output element agrees with another program, the witness, within the errors.

        Raises WrongOutput.
        """
        witness = request["witness"]
        expected: list[NDArray[Any]] = []
        if witness is not None:
            self._load(witness)
            expected = [o.array.copy() for o in self._workbench.outputs]
        loaded = self._load(request)
        self._workbench.compare(expected)
        loaded = self._with_surroundings(loaded)
        return self._timing(loaded, None, self.settings.final_seconds)

    @property
    def _workbench(self) -> Workbench:
        if self._current is None:
            raise RuntimeError("a request to time came before its task")
        return self._current

    def _copies_block(self, stays_loaded: bool) -> Memory:
        """Returns memory for the copies of a candidate's weights: its own if it stays loaded, else one shared block."""
        if stays_loaded:
            return self._device.allocate(rotation_bytes(self.target.l3_bytes))
        self._copies = self._copies or self._copies_block(stays_loaded=True)
        return self._copies

    def _load(self, request: Message, stays_loaded: bool = False) -> LoadedCandidate:
        """Loads a candidate, runs it once on poisoned outputs and checks the outputs.

        Raises WrongOutput, BuildError, MemoryError.
        """
        artifact, variant = decode(Artifact, request["artifact"]), request["variant"]
        try:
            kernel = PreparedKernel(artifact, self._workbench.arrays, self._device)
        except KeyError as error:
            raise BuildError(f"the kernel needs constant {error}, which the task does not have") from error
        call, arrays = kernel.call(), self._workbench.arrays_of(artifact)
        is_cold = self.target.is_cold and self._surrounded_benches is None
        weights = [k for k, buffer in enumerate(artifact.buffers) if buffer.is_kept] if is_cold else []
        timed = (
            Rotation(self._device, call, weights, self._copies_block(stays_loaded))
            if weights
            else self._device.record([call])
        )
        timed.bind(*arrays)
        self._workbench.poison()
        first_seconds = float(timed.bench(1)[0])
        self._workbench.check(variant, poisoned=True)
        return LoadedCandidate(call, arrays, timed.bench, first_seconds, variant)

    def _is_hopeless(self, loaded: LoadedCandidate, best: float | None) -> bool:
        """Returns whether a candidate is far slower than `best` even with all data in near caches.

        The answer spares a candidate the copies of its constants; without surroundings it is always False.
        """
        if self._surrounded_benches is None or best is None:
            return False
        return float(loaded.bench(2).min()) > self.settings.slow_factor * best

    def _with_surroundings(self, loaded: LoadedCandidate, stays_loaded: bool = False) -> LoadedCandidate:
        """Returns the candidate with the timing of a kernel inside its model, if the settings have surroundings.

        The interlude before each run rewrites the inputs, so that the timed runs read writable copies.
        """
        if self._surrounded_benches is None:
            return loaded
        inputs, outputs = loaded.arrays
        constants = [k for k, buffer in enumerate(loaded.call.kernel.artifact.buffers) if buffer.is_kept]
        timed = self._surrounded_benches.bench(loaded.call, constants, stays_loaded)
        timed.bind(self._workbench.rewritable(inputs), outputs)
        timed.bench(1)
        return replace(loaded, bench=timed.bench, seconds_between=timed.interlude_seconds)

    @cached_property
    def _surrounded_benches(self) -> SurroundedBenches | None:
        surroundings, device = self.settings.surroundings, self._device
        if surroundings is None or isinstance(self.target, Gpu) or not isinstance(device, HostDevice):
            return None
        return SurroundedBenches(device, self.target, surroundings)

    def _timing(self, loaded: LoadedCandidate, best: float | None, min_seconds: float) -> Message:
        settings = replace(self.settings, min_seconds=min_seconds)
        runs = repeat(loaded.bench, loaded.first_seconds, best, settings, loaded.seconds_between)
        return self._checked(loaded, runs)

    def _checked(self, loaded: LoadedCandidate, runs: Runs) -> Message:
        self._workbench.check(loaded.variant, poisoned=False)  # a kernel may be right only on fresh working memory
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
    """Returns the failure that an exception means: its kind and message; unexpected exceptions are bugs."""
    for classes, kind in _KINDS.items():
        if isinstance(error, classes):
            return {"kind": kind, "message": str(error) or "out of memory"}
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {"kind": "bug", "message": f"{type(error).__name__}: {error}{where}"}


def start(request: Message) -> BuilderRole | RunnerRole:
    """Returns the role of a start request, and limits the memory that the role may allocate from now on."""
    settings, target = decode(MeasureSettings, request["settings"]), target_from_json(request["target"])
    is_runner = request["role"] == "runner"
    role = RunnerRole(target, settings) if is_runner else BuilderRole(target, received(request["rules"]))
    gc.collect()
    gc.freeze()
    # Memory allocated now, arenas and threads' stacks included, does not count.
    with open("/proc/self/statm") as f:
        mapped = int(f.read().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, mapped + settings.memory_limit_bytes)
    return role


def answer(role: BuilderRole | RunnerRole, request: Message) -> Message:
    """Returns the reply to a request; a failure instead of an exception, `is_lost` if the GPU is unusable now."""
    try:
        return role.requests[request["op"]](request)
    except Exception as error:
        # A fault on a GPU leaves it unusable for this process.
        return {"failure": explain(error), "is_lost": getattr(error, "is_sticky", False)}


def serve(requests: int, replies: int) -> None:
    """Answers the requests of one pipe on another until the parent closes the first; the first request is `start`."""
    inbox = Inbox()
    role: BuilderRole | RunnerRole | None = None
    while True:
        item = inbox.take()
        if item is None:
            data = os.read(requests, 1 << 20)
            if not data:
                return
            inbox.feed(data)
            continue
        sequence, request = item
        if role is None:
            reply: Mapping[str, Any] = {}
            try:
                role = start(request)
            except UserError as error:  # a rule that this process cannot import
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
        return  # the parent died before the line above
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, LOG_BYTES)
    try:
        serve(_lift(requests), _lift(replies))
    except BrokenPipeError:
        pass
    finally:
        sys.stderr.flush()


def _lift(fd: int) -> int:
    """Moves a file descriptor to `HIGH_FD` or above, if the limits allow it, and returns the new descriptor."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lifted = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD if soft > 2 * HIGH_FD else soft // 2)
    os.close(fd)
    return lifted


def _limit(kind: int, value: int) -> None:
    """Sets a soft limit of the module `resource`, at most to the hard limit."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
