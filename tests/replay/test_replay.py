"""The recorded cases give the recorded code. `python -m tests.replay --help` says what to do if they do not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import stormdrop.codegen.values as values
from stormdrop.codegen.emit import emit
from stormdrop.codegen.fingerprint import digest, normalised
from stormdrop.codegen.text import SsaValue, Writer
from stormdrop.lower.program import Program
from tests.replay import __main__ as command
from tests.replay import cases as replay
from tests.replay.cases import (
    Case,
    changed_cases,
    changed_defaults,
    difference,
    read_cases,
    read_defaults,
    read_expected,
)
from tests.replay.outputs import index_limit, input_arrays, runs_here

MultiplyAdd = Callable[[Writer, SsaValue, SsaValue, SsaValue, bool], SsaValue]


def test_every_case_gives_the_recorded_code() -> None:
    changed = changed_cases(read_cases(), read_expected())
    count = f"{len(changed)} of {len(read_cases())} cases give other code (python -m tests.replay --changed)"
    assert not changed, f"{count}\n{replay.summary(changed)}"


def test_every_task_has_the_recorded_default_schedule() -> None:
    defaults = read_defaults()
    changed = changed_defaults(read_cases(), defaults)
    lines = [f"  {case}: {difference(defaults[case.number], now)}" for case, now in changed[:20]]
    count = f"{len(changed)} of {len(defaults)} default schedules changed (python -m tests.replay --accept-defaults)"
    assert not changed, "\n".join([count, *lines])


def test_the_files_tell_of_the_same_cases() -> None:
    numbers = [case.number for case in read_cases()]
    assert list(read_expected()) == numbers
    assert list(read_defaults()) == [case.number for case in read_cases() if case.is_default]


# ---- normalisation -----------------------------------------------------------------------------------------------


def some_text() -> tuple[Case, str]:
    """A module with several phases, a page, loops and branches."""
    for case in read_cases():
        text = emit(case.program(), case.target)
        if all(part in text for part in ("@phase.1", "@page.", "then", "phi")):
            return case, text
    raise AssertionError("no case has all of it")


def test_renaming_is_invisible() -> None:
    _, text = some_text()
    renamed = re.sub(r"%v(\d+)", r"%value\g<1>.of.it", text)
    renamed = re.sub(r"\b(loop|done|then|else|endif)(\d+)\b", r"\g<1>_\g<2>7", renamed)
    renamed = re.sub(r"@phase\.(\d+)", r"@part\g<1>", renamed)
    renamed = re.sub(r"@page\.", "@repeated.", renamed)
    renamed = renamed.replace("%buffers", "%table")
    assert renamed != text
    assert normalised(renamed) == normalised(text)


def test_names_of_one_function_do_not_meet_those_of_another() -> None:
    function = "define void @{}(i64 %a) {{\nentry:\n  %b = add i64 %a, 1\n  ret void\n}}\n"
    one, two = normalised(function.format("kernel")), normalised(function.format("kernel") + function.format("prepare"))
    assert two == one + one.replace("@kernel", "@prepare")


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"i64 1\b", "i64 2"),  # a constant
        (r"align \d+", "align 1"),
        (r"icmp slt ", "icmp sgt "),
        (r"@kernel", "@main"),  # a name that callers know
        (r"(add|mul) i64 (%\w+), (%\w+)", r"\1 i64 \3, \3"),  # an operand
    ],
)
def test_one_change_is_seen(pattern: str, replacement: str) -> None:
    _, text = some_text()
    other = re.sub(pattern, replacement, text, count=1)
    assert other != text
    assert digest(normalised(other)) != digest(normalised(text))


def test_the_memory_that_a_caller_must_provide_belongs_to_the_code() -> None:
    case, text = some_text()
    program = case.program()
    code = case.code()
    assert code.endswith(normalised(text))
    assert f"; scratch {program.scratch_bytes}" in code
    assert code.count("; output") == len(case.task.outputs)


# ---- planted changes ---------------------------------------------------------------------------------------------


def few_cases() -> tuple[Case, ...]:
    """Matrix products, on all machines; the parts of a divided sum have a border, and multiply and add apart."""
    return tuple(
        c for c in read_cases() if c.group == "GMM" and all(step.rule != "rfactor" for step in c.schedule.steps)
    )


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[MultiplyAdd], MultiplyAdd]) -> None:
    monkeypatch.setattr(values, "multiply_add", change(values.multiply_add))


def swapped(original: MultiplyAdd) -> MultiplyAdd:
    """Other code, equal results."""
    return lambda w, x, y, acc, fma: original(w, y, x, acc, fma)


def twice_rounded(original: MultiplyAdd) -> MultiplyAdd:
    return lambda w, x, y, acc, fma: original(w, x, y, acc, False)


def doubled(original: MultiplyAdd) -> MultiplyAdd:
    return lambda w, x, y, acc, fma: original(w, x, y, original(w, x, y, acc, fma), fma)


@pytest.mark.parametrize("change", [swapped, twice_rounded, doubled])
def test_a_changed_emitter_is_noticed(
    change: Callable[[MultiplyAdd], MultiplyAdd], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not changed_cases(few_cases(), read_expected())
    plant(monkeypatch, change)
    changed = changed_cases(few_cases(), read_expected())
    with_fma = [case for case in few_cases() if case.target.has_fma or change is not twice_rounded]
    assert changed == with_fma
    assert f"  GMM avx2: {sum(case.target.isa == 'avx2' for case in changed)}" in replay.summary(changed)


def test_a_case_that_cannot_be_built_any_more_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> SsaValue:
        raise KeyError("gone")

    monkeypatch.setattr(values, "multiply_add", broken)
    assert changed_cases(few_cases(), read_expected()) == list(few_cases())


# ---- accepting ---------------------------------------------------------------------------------------------------


def has_outputs(cases: Sequence[Case]) -> int:
    """How many of them can be run here and compared."""
    recorded = json.loads((replay.DATA / "expected.json").read_text())
    return sum(runs_here(case) and recorded[case.number]["outputs"] is not None for case in cases)


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Case, ...]:
    """The commands see a few cases, and write elsewhere."""
    cases = few_cases()
    if not has_outputs(cases):
        pytest.skip("no case that runs on this machine has recorded outputs")
    monkeypatch.setattr(command, "read_cases", lambda: cases)
    for name in ("EXPECTED", "ACCEPTED"):
        monkeypatch.setattr(replay, name, tmp_path / name)
    monkeypatch.setattr(command, "ACCEPTED", tmp_path / "ACCEPTED")
    shutil.copy(replay.DATA / "expected.json", replay.EXPECTED)
    return cases


def test_other_code_with_equal_outputs_is_accepted(few: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_expected()
    plant(monkeypatch, swapped)
    assert command.main(["--changed"]) == 1
    assert command.main(["--accept", "factors the other way round"]) == 0
    assert command.main(["--changed"]) == 0
    after = read_expected()
    assert all(after[c.number].code != before[c.number].code for c in few)
    assert all(after[c.number].outputs == before[c.number].outputs for c in few)
    assert replay.ACCEPTED.read_text() == f"{len(few)} cases: factors the other way round\n"


def test_other_outputs_are_refused_unless_they_are_meant(
    few: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = replay.EXPECTED.read_text()
    plant(monkeypatch, doubled)
    assert command.main(["--accept", "an accident"]) == 1
    assert replay.EXPECTED.read_text() == recorded
    assert not replay.ACCEPTED.exists()
    assert command.main(["--accept", "on purpose", "--outputs-changed", "a test"]) == 0
    assert command.main(["--changed"]) == 0
    assert f"other outputs in {has_outputs(few)}: a test" in replay.ACCEPTED.read_text()


def one(_: Program) -> float:
    return 1.0


def test_more_operations_are_refused_unless_they_are_meant(
    few: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, swapped)
    monkeypatch.setattr(replay, "executed_flops", one)
    assert command.main(["--accept", "an accident"]) == 1
    assert command.main(["--accept", "on purpose", "--flops-changed", "a test"]) == 0
    assert {e.flops for e in read_expected().values()} == {1.0}


def test_old_texts_show_how_a_case_changed(
    few: tuple[Case, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--dump", str(tmp_path / "old")]) == 0
    assert {path.name for path in (tmp_path / "old").iterdir()} == {f"{case.number:03}.ll" for case in few}
    plant(monkeypatch, twice_rounded)
    assert command.main(["--changed", "--old", str(tmp_path / "old")]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"^-.*@llvm\.fma", printed, re.MULTILINE)
    assert re.search(r"^\+.*fmul", printed, re.MULTILINE)


def test_a_default_schedule_that_changed_is_told_and_accepted(
    few: tuple[Case, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = {n: schedule for n, schedule in read_defaults().items() if n in {case.number for case in few}}
    (first, chosen), *_ = recorded.items()
    name, value = chosen.values[-1]
    other = replace(chosen, values=(*chosen.values[:-1], (name, value + 1)))
    monkeypatch.setattr(replay, "DEFAULTS", tmp_path / "DEFAULTS")
    replay.write_defaults(few, recorded | {first: other})
    assert [(case.number, now) for case, now in changed_defaults(few, read_defaults())] == [(first, chosen)]
    assert command.main(["--accept-defaults", "a better estimate"]) == 0
    assert f"{name} {value + 1} -> {value}" in capsys.readouterr().out
    assert read_defaults() == recorded
    assert replay.ACCEPTED.read_text() == "1 default schedules: a better estimate\n"


# ---- inputs ------------------------------------------------------------------------------------------------------


def test_whole_numbers_that_serve_as_indices_are_in_range() -> None:
    looked_up = [case for case in read_cases() if index_limit(case.task) is not None]
    assert looked_up
    for case in looked_up:
        limit = index_limit(case.task)
        assert limit is not None
        arrays = input_arrays(case)
        numbers = [arrays[t.name] for t in case.task.inputs if t.dtype in ("i32", "i64")]
        assert all(a.min() >= 0 and a.max() < limit for a in numbers if a.size)
