"""The commands of `tests.replay`."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

import tests.replay
from stormdrop.codegen.fingerprint import digest
from tests.replay.cases import (
    ACCEPTED,
    DATA,
    Case,
    Expected,
    changed_cases,
    changed_defaults,
    code_digest,
    difference,
    note,
    read_cases,
    read_defaults,
    read_expected,
    summary,
    write_cases,
    write_defaults,
    write_expected,
)
from tests.replay.outputs import output_digest, runs_here

DIFF_LINES = 200


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.replay", description=tests.replay.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command = parser.add_mutually_exclusive_group(required=True)
    command.add_argument("--changed", action="store_true", help="list the cases whose code is not the recorded one")
    command.add_argument("--dump", type=Path, metavar="DIR", help="write the normalised code of every case")
    command.add_argument("--accept", metavar="REASON", help="record the new code of changed cases")
    command.add_argument("--accept-defaults", metavar="REASON", help="record the default schedules that are chosen now")
    command.add_argument("--record", action="store_true", help="draw, build and run all cases anew")
    command.add_argument("--record-files", action="store_true", help="make the store and the compiled model anew")
    parser.add_argument("--old", type=Path, metavar="DIR", help="with --changed: what --dump wrote before the change")
    parser.add_argument("--outputs-changed", metavar="REASON", help="with --accept: other outputs are right, and why")
    parser.add_argument(
        "--flops-changed", metavar="REASON", help="with --accept: more or fewer operations are right, and why"
    )
    given = parser.parse_args(arguments)
    if given.changed:
        return show_changed(given.old)
    if given.dump is not None:
        dump(given.dump)
    elif given.accept is not None:
        return accept(given.accept, given.outputs_changed, given.flops_changed)
    elif given.accept_defaults is not None:
        accept_defaults(given.accept_defaults)
    elif given.record:
        record()
    else:
        from tests.replay.files import record_files

        record_files()
    return 0


def show_changed(old: Path | None) -> int:
    """1 if a case has changed."""
    changed = changed_cases(read_cases(), read_expected())
    for case in changed:
        print(case.number, case, code_digest(case))
    print(f"{len(changed)} of {len(read_cases())} cases changed", summary(changed), sep="\n")
    texts = [case for case in changed if old is not None and _file(old, case).exists()]
    if old is not None and texts:
        shortest = min(texts, key=lambda case: _file(old, case).stat().st_size)
        before, now = _file(old, shortest).read_text().splitlines(), shortest.code().splitlines()
        lines = list(difflib.unified_diff(before, now, f"old/{shortest}", f"new/{shortest}", lineterm=""))
        print(*lines[:DIFF_LINES], sep="\n")
    return min(1, len(changed))


def dump(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for case in read_cases():
        _file(folder, case).write_text(case.code())


def _file(folder: Path, case: Case) -> Path:
    return folder / f"{case.number:03}.ll"


def accept(reason: str, outputs_changed: str | None, flops_changed: str | None) -> int:
    """Record the new code of changed cases, unless one of them has other outputs or executes other operations."""
    cases, expected = read_cases(), read_expected()
    changed = changed_cases(cases, expected)
    now = {case.number: _measured(case, expected[case.number]) for case in changed}
    other_outputs = [case for case in changed if expected[case.number].outputs not in (None, now[case.number].outputs)]
    other_flops = [case for case in changed if now[case.number].flops != expected[case.number].flops]
    for what, found, why in (("outputs", other_outputs, outputs_changed), ("flops", other_flops, flops_changed)):
        if found and why is None:
            print(f'{len(found)} cases have other {what}; if that is meant, --{what}-changed "why":', *found, sep="\n")
            return 1
    write_expected(cases, expected | now)
    not_run = sum(not runs_here(case) for case in changed)
    print(
        f"{len(changed)} cases are recorded again; {not_run} of them are for machines unlike this one and were not run"
    )
    note(f"{len(changed)} cases: {reason}")
    for what, found, why in (("outputs", other_outputs, outputs_changed), ("flops", other_flops, flops_changed)):
        if found:
            note(f"  other {what} in {len(found)}: {why}")
    return 0


def _measured(case: Case, before: Expected | None = None) -> Expected:
    """What is expected of a case from now on; where it cannot run here, its outputs are taken to be those of before."""
    outputs = output_digest(case) if runs_here(case) else before and before.outputs
    return Expected(digest(case.code()), outputs, case.flops())


def accept_defaults(reason: str) -> None:
    cases, defaults = read_cases(), read_defaults()
    changed = changed_defaults(cases, defaults)
    for case, now in changed:
        print(case, difference(defaults[case.number], now), sep=": ")
        defaults[case.number] = now
    write_defaults(cases, defaults)
    note(f"{len(changed)} default schedules: {reason}")


def record() -> None:
    from tests.replay.record import drawn_cases

    cases = write_cases(drawn_cases())
    expected: dict[int, Expected] = {}
    for case in cases:
        print(case.number, case, file=sys.stderr, flush=True)  # the last line names a case that ends the process
        expected[case.number] = _measured(case)
    write_expected(cases, expected)
    write_defaults(cases, {case.number: case.schedule for case in cases if case.is_default})
    ACCEPTED.unlink(missing_ok=True)
    run = sum(e.outputs is not None for e in expected.values())
    print(f"{len(cases)} cases, {run} of them with outputs, in {DATA}")


if __name__ == "__main__":
    sys.exit(main())
