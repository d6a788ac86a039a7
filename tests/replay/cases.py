"""Recorded cases, what is expected of them, and the files that hold both."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from stormdrop.builder.building import program_of
from stormdrop.codegen.emit import emit
from stormdrop.codegen.fingerprint import digest, normalised
from stormdrop.ir.tensor import Task
from stormdrop.lower.executed import executed_flops
from stormdrop.lower.program import Program, View
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target, target_from_json
from stormdrop.target.structures import Scope

DATA = Path(__file__).parent / "data"
CASES, EXPECTED, DEFAULTS, ACCEPTED = (
    DATA / name for name in ("cases.json.gz", "expected.json", "defaults.json", "accepted.txt")
)
NAMED_SCOPES = (Scope.INPUT, Scope.CONSTANT, Scope.OUTPUT)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A kernel to build. `group` is the operator or the model it comes from."""

    number: int
    group: str
    task: Task
    schedule: Schedule
    target: Target
    views: dict[str, View] = field(default_factory=dict[str, View])
    is_default: bool = False
    """The schedule was the default of its task and target when it was recorded."""

    def __str__(self) -> str:
        return f"{self.group} {self.machine}: {self.task.name}"

    @property
    def machine(self) -> str:
        """The name of the target."""
        return f"{self.target.isa}/{self.target.threads}{'/cold' if self.target.is_cold else ''}"

    def program(self) -> Program:
        return program_of(self.task, self.schedule, self.target, self.views)

    def code(self) -> str:
        """The normalised module, after what a caller must know: the pointer table, the phases, the scratch memory."""
        program = self.program()
        interface = [
            *(
                f"; {b.scope.value} {b.dtype}[{b.elements}] {b.name if b.scope in NAMED_SCOPES else ''}"
                for b in program.buffers
            ),
            *(f"; {'prepare' if p.at_load else 'phase'} {p.extent}" for p in program.phases),
            f"; scratch {program.scratch_bytes}",
        ]
        return "\n".join([*interface, normalised(emit(program, self.target))])

    def flops(self) -> float:
        return executed_flops(self.program())


@dataclass(frozen=True, slots=True)
class Expected:
    """`outputs` is the hash of the bytes a case computes; None where it was recorded without such a machine."""

    code: str
    outputs: str | None
    flops: float


# ---- what is wrong now -------------------------------------------------------------------------------------------


def code_digest(case: Case) -> str:
    """Of the code, or of the error that building it raises."""
    try:
        return digest(case.code())
    except Exception as error:  # of whatever kind: one broken case does not hide the others
        return f"{type(error).__name__}: {error}"


def changed_cases(cases: Iterable[Case], expected: Mapping[int, Expected]) -> list[Case]:
    return [case for case in cases if code_digest(case) != expected[case.number].code]


def summary(cases: Sequence[Case]) -> str:
    """How many of which operators on which targets."""
    counts = Counter((case.group, case.target.isa) for case in cases)
    return "\n".join(f"  {group} {isa}: {count}" for (group, isa), count in sorted(counts.items()))


def changed_defaults(cases: Iterable[Case], defaults: Mapping[int, Schedule]) -> list[tuple[Case, Schedule]]:
    """Cases whose task has another default schedule now, with that schedule."""
    return [
        (case, now)
        for case in cases
        if case.number in defaults and (now := default_schedule(case.task, case.target)) != defaults[case.number]
    ]


def difference(before: Schedule, now: Schedule) -> str:
    """What is different in two schedules of one task, briefly."""
    if (before.variant, before.steps) != (now.variant, now.steps):
        return "another sketch"
    old = before.by_name
    return ", ".join(f"{name} {old.get(name)} -> {value}" for name, value in now.values if old.get(name) != value)


# ---- files -------------------------------------------------------------------------------------------------------


@cache
def read_cases() -> tuple[Case, ...]:
    data = json.loads(gzip.decompress(CASES.read_bytes()))
    tasks = [Task.from_json(task) for task in data["tasks"]]
    targets = {name: target_from_json(values) for name, values in data["targets"].items()}
    return tuple(
        Case(
            number,
            case["group"],
            tasks[case["task"]],
            Schedule.from_json(case["schedule"]).of(tasks[case["task"]]),
            targets[case["target"]],
            {name: View(tuple(strides), at) for name, (strides, at) in case["views"].items()},
            case["default"],
        )
        for number, case in enumerate(data["cases"])
    )


def write_cases(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Returns the cases as they are read."""
    tasks: dict[str, int] = {}
    targets: dict[str, object] = {}
    described: list[object] = []
    for case in cases:
        text = json.dumps(case.task.to_json())
        targets[case.machine] = case.target.to_json()
        described.append(
            {
                "group": case.group,
                "task": tasks.setdefault(text, len(tasks)),
                "target": case.machine,
                "schedule": case.schedule.to_json(),
                "default": case.is_default,
                "views": {name: [view.strides, view.offset] for name, view in case.views.items()},
            }
        )
    data = {"targets": targets, "tasks": [json.loads(text) for text in tasks], "cases": described}
    CASES.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))
    read_cases.cache_clear()
    return read_cases()


def read_expected() -> dict[int, Expected]:
    """By the number of the case."""
    return {
        line["number"]: Expected(line["code"], line["outputs"], line["flops"])
        for line in json.loads(EXPECTED.read_text())
    }


def write_expected(cases: Iterable[Case], expected: Mapping[int, Expected]) -> None:
    _write_lines(EXPECTED, [{"number": c.number, "case": str(c), **asdict(expected[c.number])} for c in cases])


def read_defaults() -> dict[int, Schedule]:
    """By the number of the case; only of cases that were recorded with the default schedule."""
    tasks = [case.task for case in read_cases()]
    lines = json.loads(DEFAULTS.read_text())
    return {line["number"]: Schedule.from_json(line["schedule"]).of(tasks[line["number"]]) for line in lines}


def write_defaults(cases: Iterable[Case], defaults: Mapping[int, Schedule]) -> None:
    kept = [(case, defaults[case.number]) for case in cases if case.number in defaults]
    _write_lines(DEFAULTS, [{"number": case.number, "case": str(case), "schedule": s.to_json()} for case, s in kept])


def _write_lines(path: Path, lines: Iterable[object]) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n")


def note(text: str) -> None:
    """Keep why something was recorded again."""
    with ACCEPTED.open("a") as file:
        file.write(text + "\n")


def numbered(cases: Iterable[Case]) -> list[Case]:
    return [replace(case, number=k) for k, case in enumerate(cases)]
