"""A winner is proved in a fresh process: against many reference values, and element by element against another
schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from stormdrop.builder.building import artifact_of, program_of
from stormdrop.codegen.emit import emit
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import HandWritten, Measurer
from stormdrop.measure.result import Failure, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope
from tests.support.workers import worker_pids

Draw = Callable[[Task, int], list[Schedule]]
LIE = """
define void @kernel(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {{
  call void @honest(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end)
  %slot = getelementptr ptr, ptr %buffers, i64 {slot}
  %out = load ptr, ptr %slot
  %at = getelementptr float, ptr %out, i64 {element}
  store float {value}, ptr %at
  ret void
}}
"""


@contextmanager
def watched(started: list[str]) -> Generator[None]:
    """The roles of the workers that are started meanwhile; the log names them."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.msg.endswith("started"):
                started.append(str(record.args[1]) if isinstance(record.args, tuple) else "")

    log, listener = logging.getLogger("stormdrop.measure"), Listener()
    level = log.level
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.setLevel(level)


def liar(task: Task, target: Target, element: int, value: str) -> HandWritten:
    """The default kernel, except that one element of its output is something else."""
    program = program_of(task, default_schedule(task, target), target)
    artifact = artifact_of(program, target)
    slot = next(k for k, s in enumerate(artifact.buffers) if s.scope is Scope.OUTPUT)
    honest = emit(program, target).replace("define void @kernel(", "define internal void @honest(")
    return HandWritten(honest + LIE.format(slot=slot, element=element, value=value), artifact, 0)


@pytest.fixture
def large() -> Task:
    return build("GMM", [1, 160, 160, 8])  # 25,600 elements: most of them are in no sample


def test_a_right_kernel_is_proved_and_timed(measurer: Measurer, large: Task, draw: Draw):
    (one,) = draw(large, 1)
    pids = worker_pids(measurer)
    proved = measurer.prove(large, one, default_schedule(large, measurer.target))
    assert isinstance(proved, Timing), proved
    assert proved.seconds > 0
    assert set(pids) <= set(worker_pids(measurer))  # the runner is another process than the fresh one


@pytest.mark.parametrize("value", ["3.0e3", "0x7FF8000000000000"])  # NaN
def test_one_wrong_element_among_thousands_is_found(value: str, measurer: Measurer, large: Task, target: Target):
    planted = liar(large, target, 12_347, value)
    (measured,) = measurer.measure(large, [planted])
    assert isinstance(measured, Timing), "the samples of a first measurement happen to contain the planted element"
    proved = measurer.prove(large, planted, default_schedule(large, target))
    assert isinstance(proved, Failure)
    assert proved.kind == "wrong"
    assert "1 of 25600 elements differ" in proved.message


def test_a_kernel_that_kills_the_fresh_process_is_a_failure(measurer: Measurer, large: Task, target: Target):
    planted = liar(large, target, 0, "0.0")
    deadly = replace(
        planted, text=planted.text.replace("%out = load ptr, ptr %slot", "%out = getelementptr i8, ptr null, i64 0")
    )
    proved = measurer.prove(large, deadly)
    assert isinstance(proved, Failure)
    assert proved.kind == "crash"


def test_proofs_may_share_a_process_until_one_fails(measurer: Measurer, large: Task, target: Target, draw: Draw):
    default, (one,) = default_schedule(large, target), draw(large, 1)
    wrong = liar(large, target, 12_347, "3.0e3")
    started: list[str] = []
    with Measurer(target, measurer.settings, shared_proofs=True) as shared, watched(started):
        assert isinstance(shared.prove(large, default), Timing)
        assert isinstance(shared.prove(large, one, default), Timing)
        assert started.count("runner") == 2  # the one that times candidates, and the one that proves
        refused = shared.prove(large, wrong, default)
        assert isinstance(refused, Failure)
        assert refused.kind == "wrong"
        assert started.count("runner") == 3  # it was given a second chance in a process of its own
        assert isinstance(shared.prove(large, one, default), Timing)
        assert started.count("runner") == 4


def test_otherwise_every_winner_is_proved_in_a_process_of_its_own(measurer: Measurer, large: Task, target: Target):
    started: list[str] = []
    with watched(started):
        for _ in range(2):
            assert isinstance(measurer.prove(large, default_schedule(large, target)), Timing)
    assert started.count("runner") >= 2


def test_searching_goes_on_while_candidates_are_built(measurer: Measurer, large: Task, draw: Draw):
    called: list[int] = []
    results = measurer.measure(large, draw(large, 3), meanwhile=lambda: called.append(1))
    assert called == [1]
    assert all(isinstance(r, Timing) for r in results)


def test_what_goes_wrong_meanwhile_is_told_and_the_measurer_goes_on(measurer: Measurer, large: Task, draw: Draw):
    def fail() -> None:
        raise ZeroDivisionError("in the search")

    with pytest.raises(ZeroDivisionError, match="in the search"):
        measurer.measure(large, draw(large, 3), meanwhile=fail)
    assert isinstance(measurer.measure(large, draw(large, 1))[0], Timing)


def test_a_schedule_that_was_built_is_not_built_again(measurer: Measurer, large: Task, draw: Draw):
    (one,) = draw(large, 1)
    first, again = measurer.measure(large, [one]), measurer.retime(large, [one], 2)
    assert isinstance(first[0], Timing)
    assert isinstance(again[0], Timing)
    assert again[0].build_seconds == first[0].build_seconds  # the same build, not another of the same length


def test_samples_are_the_runs_or_the_rounds(measurer: Measurer, large: Task, draw: Draw):
    (one,) = draw(large, 1)
    (timed,), (turned,) = measurer.measure(large, [one]), measurer.retime(large, [one], 5)
    assert isinstance(timed, Timing)
    assert isinstance(turned, Timing)
    assert 1 <= len(timed.samples) <= 32
    assert len(turned.samples) == 5
    assert min(turned.samples) <= turned.seconds <= max(turned.samples)
