"""A kernel a user calls: NumPy arrays in, NumPy arrays out.

    kernel = build(task, constants={"B": b})     # packed here, once; later changes to b have no effect
    c = kernel(a)                                 # run-time inputs only, in the order of task.runtime_inputs
    kernel(a, out=c)
    print(kernel.show("asm"))                     # or "loops", "ir"

Arrays must have the task's shapes and types, in any memory layout (`device.arrays`). `out` may not overlap an input.

A single kernel on a device: code, constants, and workspace for each call; every buffer is its own allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import count

from numpy.typing import ArrayLike

from stormdrop.base.arguments import check_arguments
from stormdrop.base.errors import UserError
from stormdrop.builder.building import CodeText, artifact_of, code_text, lowered
from stormdrop.device.arrays import checked
from stormdrop.device.artifact import Artifact
from stormdrop.device.device import Argument, Array, BoundCall, BufferPlace, Device, InputArray, OutputArray, Recording
from stormdrop.device.targets import device_for, target_for
from stormdrop.ir.interp import evaluate
from stormdrop.ir.memo import at_work
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.model.executable import Recorded, Runnable, TakesOtherArrays
from stormdrop.space.default import resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope


class PreparedKernel:
    """A loaded kernel with its constants in the device's memory.

    Raises BuildError for code of another machine, KeyError or ValueError for constants that are missing or mis-sized.
    """

    def __init__(self, artifact: Artifact, constants: Mapping[str, Array], device: Device) -> None:
        self.artifact, self._device = artifact, device
        self.kernel = device.load(artifact)
        self._kept = [BufferPlace(device.allocate(b.nbytes)) if b.is_kept else None for b in artifact.buffers]
        self.kernel.prepare(constants, self._kept)

    def call(self) -> BoundCall:
        """Returns a call with its own workspace; array indices follow the order of the artifact's input and output
        buffers.
        """
        inputs, outputs = count(), count()
        arguments: list[Argument] = []
        for buffer, kept in zip(self.artifact.buffers, self._kept):
            match buffer.scope:
                case Scope.INPUT:
                    arguments.append(InputArray(next(inputs)))
                case Scope.OUTPUT:
                    arguments.append(OutputArray(next(outputs)))
                case Scope.WORKSPACE:
                    arguments.append(BufferPlace(self._device.allocate(buffer.nbytes)))
                case _:
                    arguments.append(kept)
        return BoundCall(self.kernel, tuple(arguments))

    def record(self) -> Recording:
        return self._device.record([self.call()])


class Kernel(Recorded[Tensor]):
    """A task built for this machine. Several Python threads may call it at once."""

    task: Task
    """The task that the kernel computes."""
    schedule: Schedule | None
    """The schedule that the kernel was built with; None if an axis has extent 0, which needs no code."""
    threads: int
    """The number of threads that run the kernel."""

    def __init__(
        self,
        task: Task,
        schedule: Schedule | None,
        threads: int,
        record: Callable[[], Runnable],
        device: Device | None = None,
        code: Callable[[str], CodeText] | None = None,
    ) -> None:
        super().__init__(task.name, task.runtime_inputs, task.outputs)
        self.task, self.schedule, self.threads, self._device = task, schedule, threads, device
        self._new_recording: Callable[[], Runnable] | None = record
        self._code = code

    @cached_property
    def _other(self) -> TakesOtherArrays | None:
        return self._device if isinstance(self._device, TakesOtherArrays) else None

    def _record(self) -> Runnable:
        if (record := self._new_recording) is None:
            raise self._closed()
        return record()

    def _release(self) -> None:
        self._new_recording = None

    def show(self, level: str = "loops") -> str:
        """Returns the kernel's code as text: the "loops", the LLVM "ir" or the "asm". Raises UserError for another
        level, and for a task with an axis of extent 0: it has no code.
        """
        if self._code is None:
            raise UserError(f"{self.task.name} has an axis of extent 0: the interpreter computes it, without code")
        return self._code(level)

    def __repr__(self) -> str:
        return f"<kernel {self.task.name}, {self.threads} thread{'s' if self.threads != 1 else ''}>"


def build(
    task: Task,
    *,
    constants: Mapping[str, ArrayLike] | None = None,
    schedule: Schedule | None = None,
    threads: int | None = None,
    target: Target | str | None = None,
    rules: Sequence[Rule] = RULES,
    precision: str | None = None,
) -> Kernel:
    """Builds a task for this machine, with its default schedule unless a schedule of `rules` is given.

    `target` is "cuda" for a GPU of this machine; `device.targets` has other names. `precision`, on a GPU, is the
    precision of the factors of f32 products: "tf32", "3xtf32", "bf16", "fp16". Raises UserError for missing or wrong
    constants, ScheduleError for a schedule of another class or rule, BuildError.
    """
    if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"build takes a task, sd.Task([output]), not {type(task).__name__}")
    check_arguments(schedule=schedule, threads=threads, target=target, rules=rules)
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
    machine = target_for(target, threads, precision=precision)
    if is_empty(task):
        copies = {name: array.copy() for name, array in arrays.items()}
        return Kernel(task, None, machine.threads, lambda: _Interpreted(task, copies))
    with at_work():
        sketch, point = resolve(task, schedule, machine, rules)
        device = device_for(machine)
        program = lowered(sketch, point)
        prepared = PreparedKernel(artifact_of(program, machine), arrays, device)
        code = partial(code_text, program, machine)
        return Kernel(task, sketch.schedule(point), machine.threads, prepared.record, device, code)


def is_empty(task: Task) -> bool:
    """Returns whether some axis has extent zero: there is nothing to loop over, and the reference computes the tiny
    result.
    """
    return any(
        a.extent == 0 for t in task.variants[0].stages if t.compute for a in (*t.compute.axes, *t.compute.reduce_axes)
    )


class _Interpreted:
    """An empty task, computed by the reference interpreter."""

    def __init__(self, task: Task, constants: Mapping[str, Array]) -> None:
        self._task, self._constants = task, constants
        self._inputs: Sequence[Array] = ()
        self._outputs: Sequence[Array] = ()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs, self._outputs = inputs, outputs

    def run(self) -> None:
        given = {t.name: array for t, array in zip(self._task.runtime_inputs, self._inputs)}
        for output, value in zip(self._outputs, evaluate(self._task, {**given, **self._constants}).values()):
            output[...] = value
