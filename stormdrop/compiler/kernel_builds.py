"""Building the kernels of a model: this process begins at the start of the list, worker processes begin at its end.

Python and LLVM use one core in a process, so there are as many processes as CPUs. A worker takes a third of a second to
start, too long for a short list. Kernels that fail in a worker are built here, which gives the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event

from stormdrop.base.codec import decode
from stormdrop.base.errors import BuildError, RunError, ScheduleError, warn
from stormdrop.builder.building import BuiltKernel, Packing, build_for_model
from stormdrop.device.cpus import available_cpus
from stormdrop.ir.tensor import Task
from stormdrop.lower.program import View
from stormdrop.measure.process import RequestFailed, Worker, message_of
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.wire import BuildReply, BuildRequest
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

WORTH_A_WORKER = 8
"""Kernels per worker process that pay for its start."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A kernel to build: a task, its schedule (None: the default), and the strides of tensors that are not row-major.

    `code` is the expected fingerprint of the schedule's code, if any. `packing` is given if other models share the
    constants.
    """

    task: Task
    schedule: Schedule | None
    strides: dict[str, tuple[int, ...]]
    code: str | None = None
    packing: Packing | None = None


def build_kernel(
    job: Job, target: Target, rules: Sequence[Rule] = RULES, warned: set[str] | None = None
) -> BuiltKernel:
    """Builds a kernel. A schedule of another class, or of an unknown rule, is replaced by the default.

    A warning names the replacement, once for each digest in `warned`. Raises BuildError.
    """
    views = {name: View(strides) for name, strides in job.strides.items()}
    warned = set() if warned is None else warned
    if job.schedule is not None:
        try:
            return build_for_model(job.task, job.schedule, target, views, rules, job.code, job.packing, summarise=True)
        except ScheduleError as error:
            if job.task.digest not in warned:
                warn(f"{job.task.name} is computed by default, its schedule cannot be replayed: {error}")
            warned.add(job.task.digest)
    try:
        built = build_for_model(job.task, None, target, views, rules, packing=job.packing, summarise=True)
        return built if job.schedule is None else replace(built, deviation="default")
    except ScheduleError as error:
        outputs = ", ".join(map(repr, job.task.outputs))
        text = f"no kernel of {job.task.name} for {outputs} fits this machine ({error}): is the shape meant?"
        raise BuildError(text) from error


def build_kernels(
    jobs: Sequence[Job], target: Target, cpus: int | None = None, rules: Sequence[Rule] = RULES
) -> list[BuiltKernel]:
    """Builds kernels, in order. Raises BuildError, and UserError for rules that workers cannot import."""
    built: dict[int, BuiltKernel] = {}
    warned: set[str] = set()
    left = deque(range(len(jobs)))  # pops at either end are atomic
    settings = MeasureSettings()
    helpers = min((cpus or available_cpus()) - 1, len(jobs) // WORTH_A_WORKER)
    workers = [Worker("builder", target, settings, rules) for _ in range(helpers)]
    stop = Event()

    def help_out(worker: Worker) -> None:
        while not stop.is_set():
            try:
                k = left.pop()
            except IndexError:
                return
            try:
                job = jobs[k]
                request = BuildRequest(job.schedule, tuple(job.strides.items()), job.code, job.packing, summarise=True)
                reply = worker.ask(message_of(job.task), request.message, settings.build_timeout)
                built[k] = decode(BuildReply, reply).kernel
            except (RequestFailed, RunError):
                return  # this process builds it, and raises the error

    try:
        helping = [worker.lane.submit(help_out, worker) for worker in workers]
        while left:
            try:
                k = left.popleft()
            except IndexError:
                break
            built[k] = build_kernel(jobs[k], target, rules, warned)
        for future in helping:
            future.result()
    finally:
        stop.set()
        for worker in workers:
            worker.close()
    return [built[k] if k in built else build_kernel(job, target, rules, warned) for k, job in enumerate(jobs)]
