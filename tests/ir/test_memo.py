"""Results of functions of expressions: kept while somebody is at work, and not for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from stormdrop.builder.building import lowered
from stormdrop.codegen.emit import emit
from stormdrop.codegen.fingerprint import fingerprint
from stormdrop.ir import memo
from stormdrop.ir.expr import Axis, Expr
from stormdrop.ir.memo import at_work, forget, memoised
from stormdrop.operators.catalogue import build
from stormdrop.space.default import ranked
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import cross


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Expr]:
    """Of `grown`; every expression beyond those of the beginning is one too many."""
    forget()
    monkeypatch.setattr(memo, "MOST_EXPRESSIONS", 0)
    monkeypatch.setattr(memo._results, "expressions_kept", memo.interned_count())
    return []


def counting(calls: list[Expr]) -> Callable[[Expr], Expr]:
    @memoised()
    def grown(e: Expr) -> Expr:
        calls.append(e)
        return e + 1

    return grown


def test_results_are_kept_until_the_last_one_at_work_is_done(calls: list[Expr]) -> None:
    grown, axis = counting(calls), Axis("i", 8)
    with at_work():
        with at_work():
            grown(axis)
        grown(axis)
        assert len(calls) == 1
    grown(axis)
    assert len(calls) == 2


def test_few_expressions_are_kept(calls: list[Expr], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST_EXPRESSIONS", 1000)
    grown, axis = counting(calls), Axis("i", 8)
    for _ in range(3):
        with at_work():
            grown(axis)
    assert len(calls) == 1


def test_a_sketch_lowers_to_the_same_code_after_results_were_dropped() -> None:
    """It was derived with what was dropped."""
    target = cross("avx512").with_threads(2)
    for name, args in (("C2D", (1, 14, 14, 16, 32, 3, 1, 1)), ("TBG", (1, 16, 2, 8)), ("SFM", (7, 33))):
        found = ranked(sketches(build(name, args), target))
        before = [fingerprint(emit(lowered(sketch, point), target)) for sketch, point, _ in found]
        forget()
        assert [fingerprint(emit(lowered(sketch, point), target)) for sketch, point, _ in found] == before


COMPILATIONS = """
import sys
from pathlib import Path
from stormdrop.compiler.compile import compile
from stormdrop.ir.expr import interned_count
from tests.support.tiny_onnx import conv
model = conv(Path(sys.argv[1])).read_bytes()
for number in range(1, 15):
    compile(model, schedules=lambda task: None)
    if number in (4, 14):
        print(int(Path("/proc/self/statm").read_text().split()[1]), interned_count())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compiling_an_equal_model_again_and_again_takes_no_more_memory(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILATIONS, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (early, _), (late, expressions) = [map(int, line.split()) for line in done.stdout.splitlines()]
    assert late < 1.05 * early
    assert expressions < 2 * memo.MOST_EXPRESSIONS
