"""The options of compiling, among them the receivers of its events and of its progress.

`sd.compile` and the command line build the options, `compile_model` takes them. The text of an event is for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from stormdrop.base.arguments import shapes_by_name
from stormdrop.base.errors import StormdropError, UserError
from stormdrop.compiler.choose import Schedules
from stormdrop.device.host_device import HostDevice
from stormdrop.device.pool.pool import Pool
from stormdrop.device.targets import host_for, target_for
from stormdrop.frontend.custom import CustomOperator
from stormdrop.model.fallback import Fallback
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

Shapes = Mapping[str, Sequence[int]]
"""The shapes of inputs by name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadOptions:
    """The options for reading a model. Raises UserError for a text in `shapes` that is no shape."""

    shapes: Shapes | Sequence[Shapes] | None = None
    constants: Mapping[str, ArrayLike] | None = None
    operators: Sequence[CustomOperator] = ()
    fallback: str | Fallback | None = "auto"
    winograd: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", shapes_by_name(self.shapes))

    @property
    def closed(self) -> Shapes | None:
        """The shapes that close dimensions; None for a list of sizes, which leaves dimensions open."""
        return self.shapes if isinstance(self.shapes, Mapping) else None

    @property
    def sizes(self) -> Sequence[Shapes] | None:
        """The sizes to compile ahead; None without a list."""
        return None if self.shapes is None or isinstance(self.shapes, Mapping) else list(self.shapes)

    def refuse_for(self, subject: str) -> None:
        """Raises UserError for options of ONNX models; `subject` describes a model that is none."""
        if self.shapes or self.constants or self.operators:
            raise UserError(f"shapes=, constants= and operators= are for ONNX models; this is {subject}")
        self.refuse_fallback()

    def refuse_fallback(self) -> None:
        """Raises UserError if another runtime is asked for."""
        if self.fallback not in (None, "auto", "none"):
            raise UserError("fallback= is for ONNX models on the CPU")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineOptions:
    """The machine that runs a model, and its threads."""

    target: Target | str | None = None
    precision: str | None = None
    threads: int | None = None
    spin: float | None = None
    affinity: str | Sequence[int] | None = None
    pool: Pool | str | None = None

    def resolved(self) -> tuple[Target, HostDevice]:
        """Returns the target, and the host that runs a CPU's model or packs a GPU's constants. Raises UserError."""
        target = target_for(self.target, self.threads, self.pool, self.precision)
        return target, host_for(target.threads, isinstance(target, Gpu), self.spin, self.affinity, self.pool)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompileOptions:
    """All options of compiling; `sd.compile` describes them."""

    read: ReadOptions = field(default_factory=ReadOptions)
    machine: MachineOptions = field(default_factory=MachineOptions)
    rules: Sequence[Rule] = RULES
    schedules: Schedules | None = None
    unproved: bool = False


@runtime_checkable
class Watcher(Protocol):
    """Shows events of tuning, and in between a line of text."""

    @property
    def is_shown(self) -> bool:
        """A person sees the view."""
        ...

    def hear(self, event: Any) -> None: ...
    def tell(self, text: str) -> None: ...


Progress = Watcher | bool | None
"""The option of users, True, False or None; or the watcher that `sd.tune` and `sd.compile` put in its place."""


def silent(text: str) -> None:
    """Receives a line of text, and shows nothing."""


def told_by(progress: Progress) -> Callable[[str], None]:
    """Returns the receiver of lines of text."""
    return progress.tell if isinstance(progress, Watcher) else silent


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph was cut into tasks; `Scheduled` follows for each task."""

    model: str
    tasks: int

    def __str__(self) -> str:
        return f"compiling {self.model}"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The schedule of a task was chosen; `number` counts the tasks of a graph from 1."""

    number: int
    task: str

    def __str__(self) -> str:
        return f"compiling, {self.number} kernels: {self.task}"


@dataclass(frozen=True, slots=True)
class StoreUnreadable:
    """The user's store cannot be read: the remaining tasks get default schedules."""

    error: StormdropError

    def __str__(self) -> str:
        return f"default schedules are used, since the store cannot be read: {self.error}"


class Placed(str):
    """A part of the model was given to another runtime: the text names the runtime, the operators and the reasons."""


Event = Planned | Scheduled | StoreUnreadable | Placed
Listen = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Receives events, and does nothing."""
