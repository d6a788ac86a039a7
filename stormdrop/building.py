"""Building the kernels of a model: this process works through the list from its beginning, a worker process from its end.

Python and LLVM use one core each way, so two processes are nearly twice as quick. A worker takes a third of a second to start:
a short list is not worth it. What the worker cannot build, this process does, and says why it cannot either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any

from stormdrop.errors import BuildError, RunError, ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.lower.program import View
from stormdrop.measure.process import Worker, WorkerLost, message_of
from stormdrop.measure.settings import MeasureSettings
from stormdrop.runtime.artifact import Artifact, build_artifact
from stormdrop.runtime.threads import available_cpus
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

WORTH_A_WORKER = 8


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A kernel to build: a task, how (None: by default), and the strides of its tensors that are not row-major, by name."""

    task: Task
    schedule: Schedule | None
    strides: dict[str, tuple[int, ...]]


def build_kernel(job: Job, target: Target) -> Artifact:
    """A schedule that does not fit the task (it came from elsewhere) gives way to the default. Raises BuildError."""
    views = {name: View(strides) for name, strides in job.strides.items()}
    if job.schedule is not None:
        try:
            return build_artifact(job.task, job.schedule, target, views)
        except ScheduleError:
            pass
    try:
        schedule = default_schedule(job.task, target)
    except ScheduleError as error:
        outputs = ", ".join(map(repr, job.task.outputs))
        raise BuildError(f"no kernel of {job.task.name} for {outputs} fits this machine ({error}): is the shape meant?") from error
    return build_artifact(job.task, schedule, target, views)


def build_kernels(jobs: Sequence[Job], target: Target, cpus: int | None = None) -> list[Artifact]:
    """All of them, in order. Raises BuildError."""
    built: dict[int, Artifact] = {}
    left = deque(range(len(jobs)))  # pops at either end are atomic
    if len(jobs) < WORTH_A_WORKER or (cpus or available_cpus()) < 2:
        return [build_kernel(job, target) for job in jobs]
    settings = MeasureSettings()
    greeting = {"op": "start", "role": "builder", "target": asdict(target), "settings": settings.to_json()}
    worker = Worker(greeting, settings.start_timeout, settings.memory_limit_bytes)
    stop = Event()

    def help_out() -> None:
        while not stop.is_set():
            try:
                k = left.pop()
            except IndexError:
                return
            try:
                reply = worker.ask(message_of(jobs[k].task), _request(jobs[k]), settings.build_timeout)
            except (WorkerLost, RunError):
                return
            if "failure" not in reply:
                built[k] = Artifact.from_json(reply["artifact"])

    try:
        helping = worker.lane.submit(help_out)
        while left:
            try:
                k = left.popleft()
            except IndexError:
                break
            built[k] = build_kernel(jobs[k], target)
        helping.result()
    finally:
        stop.set()
        worker.close()
    return [built[k] if k in built else build_kernel(job, target) for k, job in enumerate(jobs)]


def _request(job: Job) -> dict[str, Any]:
    schedule = None if job.schedule is None else job.schedule.to_json()
    return {"op": "build", "schedule": schedule, "views": {name: list(strides) for name, strides in job.strides.items()}}
