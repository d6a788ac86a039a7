"""A kernel a user calls: NumPy arrays in, NumPy arrays out.

    kernel = build(task, constants={"B": b})     # packed here, once; later changes to b have no effect
    c = kernel(a)                                 # run-time inputs only, in the order of task.runtime_inputs
    kernel(a, out=c)

Arrays must have the task's shapes and types. Any memory layout is accepted: an input that is not C-contiguous and
aligned is copied, an `out` that is not is written through a copy. `out` may not overlap an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike, NDArray

from stormdrop.errors import UserError
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task
from stormdrop.runtime.arrays import address_of, checked, checked_outputs, is_plain, new_array
from stormdrop.runtime.artifact import Artifact
from stormdrop.runtime.building import artifact_of, lowered
from stormdrop.runtime.host import target_for
from stormdrop.runtime.loaded import CallMemory, LoadedKernel
from stormdrop.runtime.pool import shared_pool
from stormdrop.space.default import resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

Array = NDArray[Any]


class Kernel:
    """A task built for this machine. Several Python threads may call it at once."""

    def __init__(
        self,
        task: Task,
        schedule: Schedule | None,
        artifact: Artifact | None,
        constants: Mapping[str, Array],
        threads: int,
    ) -> None:
        self.task, self.schedule, self.threads = task, schedule, threads
        self._constants = {name: a.copy() for name, a in constants.items()} if artifact is None else {}
        self._loaded = LoadedKernel(artifact, constants, shared_pool(threads)) if artifact is not None else None
        self._idle: list[CallMemory] = []  # list.pop and append are atomic

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None) -> Any:
        task = self.task
        if len(inputs) != len(task.runtime_inputs):
            wanted = ", ".join(repr(t) for t in task.runtime_inputs) or "no inputs"
            raise UserError(f"{task.name} takes {len(task.runtime_inputs)} arrays ({wanted}), not {len(inputs)}")
        arrays = [checked(t, x) for t, x in zip(task.runtime_inputs, inputs)]
        targets = checked_outputs(task.outputs, out, arrays)
        direct = [t if is_plain(t) else new_array(tensor) for t, tensor in zip(targets, task.outputs)]
        if self._loaded is None:
            named = {t.name: a for t, a in zip(task.runtime_inputs, arrays)} | self._constants
            for d, value in zip(direct, evaluate(task, named).values()):
                d[...] = value
        else:
            self._run(self._loaded, arrays, direct)
        for t, d in zip(targets, direct):
            if t is not d:
                t[...] = d
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _run(self, loaded: LoadedKernel, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = loaded.call_memory()
        given = iter(arrays)
        results = iter(outputs)
        for k, slot in enumerate(loaded.artifact.slots):
            if slot.role == "input":
                memory.bind(k, address_of(next(given)))
            elif slot.role == "output":
                memory.bind(k, address_of(next(results)))
        loaded.run(memory)
        self._idle.append(memory)

    def __repr__(self) -> str:
        return f"<kernel {self.task.name}, {self.threads} thread{'s' if self.threads != 1 else ''}>"


def build(
    task: Task,
    constants: Mapping[str, ArrayLike] | None = None,
    schedule: Schedule | None = None,
    threads: int | None = None,
    target: Target | None = None,
    rules: Sequence[Rule] = RULES,
) -> Kernel:
    """Build a task for this machine, with its default schedule unless one is given; `rules` are those that it follows.

    Raises UserError for missing or wrong constants, ScheduleError for a schedule of another class or rule, BuildError.
    """
    if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"build takes a task, sd.Task([output]), not {type(task).__name__}")
    if constants is not None and not isinstance(constants, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"constants= takes arrays by name, {{'W': array}}, not {type(constants).__name__}")
    given = dict(constants or {})
    known = {t.name: t for t in task.constants}
    for name in given:
        if name not in known:
            raise UserError(f"{task.name} has no constant {name!r}; its constants: {', '.join(known) or 'none'}")
    missing = [repr(t) for name, t in known.items() if name not in given]
    if missing:
        raise UserError(f"{task.name} needs constants={{…}} for {', '.join(missing)}")
    arrays = {name: checked(known[name], value) for name, value in given.items()}
    machine = target_for(target, threads)
    if is_empty(task):
        return Kernel(task, None, None, arrays, machine.threads)
    sketch, point = resolve(task, schedule, machine, rules)
    return Kernel(task, sketch.schedule(point), artifact_of(lowered(sketch, point), machine), arrays, machine.threads)


def is_empty(task: Task) -> bool:
    """Whether some axis has extent zero: there is nothing to loop over, and the reference gives the (tiny) answer."""
    return any(
        a.extent == 0 for t in task.variants[0].stages if t.compute for a in (*t.compute.axes, *t.compute.reduce_axes)
    )
