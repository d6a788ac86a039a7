"""Measuring works from anywhere, keeps its order, stops early, and leaves nothing behind."""

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stormdrop.base.errors import RunError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import HandWritten, Measurer, MeasureSettings
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target
from tests.support.workers import worker_pids

Write = Callable[..., HandWritten]
Draw = Callable[[Task, int], list[Schedule]]
FOREVER = "br label %forever\nforever:\n  br label %forever\nnever:"


@pytest.mark.parametrize(("name", "sizes"), [("GMM", [1, 17, 33, 29]), ("C2D", [1, 7, 7, 8, 16, 3, 1, 1])])
def test_schedules_are_built_checked_and_timed(name: str, sizes: list[int], measurer: Measurer, draw: Draw):
    task = build(name, sizes)
    results = measurer.measure(task, draw(task, 6))
    assert len(results) == 6
    for r in results:
        assert isinstance(r, Timing), r
        assert 0 < r.seconds < 1
        assert r.build_seconds > 0
        assert r.runs >= 1
        assert r.spread >= 0


def test_results_come_in_the_order_of_the_candidates(measurer: Measurer, tiny: Task, write: Write):
    bad, wrong = write("nonsense"), write("")
    results = measurer.measure(tiny, [bad, write(), wrong, write(), bad, write()])
    kinds = [r.kind if isinstance(r, Failure) else "" for r in results]
    assert kinds == ["build", "", "wrong", "", "build", ""]


def test_nothing_gives_nothing(measurer: Measurer, tiny: Task):
    assert measurer.measure(tiny, []) == []
    assert measurer.retime(tiny, [], 3) == []


def test_what_is_slower_than_the_best_is_stopped_early(measurer: Measurer, tiny: Task, write: Write):
    (hopeless,) = measurer.measure(tiny, [write()], best=1e-12)
    (unrivalled,) = measurer.measure(tiny, [write()])
    assert isinstance(hopeless, Timing)
    assert isinstance(unrivalled, Timing)
    assert hopeless.stopped_early
    assert not unrivalled.stopped_early


def test_candidates_are_retimed_in_turns_without_those_that_fail(measurer: Measurer, tiny: Task, write: Write):
    trap = write("call void @llvm.trap()", "declare void @llvm.trap()")
    fails_later = write(
        "store float %y, ptr %at\n  br i1 %again, label %bad, label %done\nbad:\n  store i8 0, ptr null"
    )
    results = measurer.retime(tiny, [write(), trap, write(), fails_later, write("")], 3)
    kinds = [r.kind if isinstance(r, Failure) else "" for r in results]
    assert kinds == ["", "crash", "", "crash", "wrong"]
    assert all(r.runs >= 3 for r in results if isinstance(r, Timing))


def test_cold_weights_give_the_same_output(target: Target, draw: Draw):
    task = build("GMM", [1, 16, 32, 24])
    small = replace(target, l3_bytes=1 << 20)
    with Measurer(small.with_cold_weights(True), MeasureSettings(min_seconds=0.002), builders=1) as measurer:
        results = [*measurer.measure(task, draw(task, 2)), *measurer.retime(task, draw(task, 2), 2)]
    assert all(isinstance(r, Timing) for r in results), results


def test_one_measurer_serves_many_tasks_and_threads(measurer: Measurer, tiny: Task, write: Write, draw: Draw):
    other = build("GMM", [1, 8, 8, 8])
    found: list[list[Result]] = []

    def use() -> None:
        found.append(measurer.measure(tiny, [write()] * 2))

    for _ in range(2):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        pids = worker_pids(measurer)
        found.append(measurer.measure(other, draw(other, 1)))
        assert worker_pids(measurer) == pids  # a worker does not die with the thread that first needed it
    assert all(isinstance(r, Timing) for results in found for r in results)


def test_a_task_too_large_for_a_worker_fails_every_candidate(measurer: Measurer, tiny: Task, write: Write):
    huge = build("ADR", [1, 1 << 10, 1 << 10, 1 << 10])
    results = measurer.measure(huge, [write(), write()])
    assert [r.kind for r in results if isinstance(r, Failure)] == ["memory", "memory"]
    assert isinstance(measurer.measure(tiny, [write()])[0], Timing)


def test_ctrl_c_ends_a_measurement_but_not_the_measurer(tiny: Task, write: Write, target: Target):
    with Measurer(target, MeasureSettings(run_timeout=20), builders=1) as measurer:
        measurer.measure(tiny, [write()])
        timer = threading.Timer(0.3, _thread.interrupt_main)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' background jobs ignore it
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                measurer.measure(tiny, [write(FOREVER)] * 2)
        finally:
            timer.join()
            signal.signal(signal.SIGINT, before)
        assert isinstance(measurer.measure(tiny, [write()])[0], Timing)


def test_close_ends_the_workers_and_all_later_calls(tiny: Task, write: Write, target: Target):
    measurer = Measurer(target, builders=1)
    assert worker_pids(measurer) == ()
    measurer.measure(tiny, [write()])
    pids = worker_pids(measurer)
    assert len(pids) == 2
    measurer.close()
    measurer.close()
    assert not any(is_running(pid) for pid in pids)
    with pytest.raises(RunError, match="closed"):
        measurer.measure(tiny, [write()])


def test_a_measurer_without_builders_is_refused(target: Target):
    with pytest.raises(UserError, match="builders"):
        Measurer(target, builders=0)


# ---- from other programs -------------------------------------------------------------------------------------------

PROGRAM = """
import numpy as np
from stormdrop.measure.measurer import Measurer, MeasureSettings
from stormdrop.operators.catalogue import build
from stormdrop.space.sketch import sketches
from stormdrop.device.host import detect

print("once")
task, target = build("GMM", [1, 8, 8, 8]), detect(2)
sketch = sketches(task, target)[0]
measurer = Measurer(target, MeasureSettings(min_seconds=0.001))
results = measurer.measure(task, [sketch.schedule(p) for p in sketch.sample(2, np.random.default_rng(0))])
print(*(type(r).__name__ for r in results))
"""


def run(arguments: list[str], cwd: Path, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments], input=text, cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_it_works_in_a_program_read_from_stdin_beside_misleading_files(tmp_path: Path):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    assert run(["-"], tmp_path, PROGRAM) == "once\nTiming Timing\n"


def test_it_works_in_a_script_without_a_main_guard_that_never_closes_it(tmp_path: Path):
    (tmp_path / "script.py").write_text(PROGRAM)
    assert run(["script.py"], tmp_path) == "once\nTiming Timing\n"


ORPHANS = (
    PROGRAM.split("print")[0]
    + """
import os, signal
from stormdrop.measure.measurer import HandWritten
from stormdrop.builder.building import build_artifact
task, target = build("ADR", [1, 1, 1, 1]), detect(2)
measurer = Measurer(target, MeasureSettings(run_timeout=100), builders=2)
sketch = sketches(task, target)[0]
schedule = sketch.schedule(sketch.sample(1, np.random.default_rng(0))[0])
measurer.measure(task, [schedule] * 2)
like = build_artifact(task, schedule, target)
loop = HandWritten("define void @kernel(ptr %b, ptr %s, i64 %p, i64 %i, i64 %n) { br label %x x: br label %x }", like)
from tests.support.workers import worker_pids
print(*worker_pids(measurer), flush=True)
os.kill(worker_pids(measurer)[2], signal.SIGSTOP)
measurer.measure(task, [loop])
"""
)


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path):
    (tmp_path / "parent.py").write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # it imports tests.support
    with subprocess.Popen(
        [sys.executable, "parent.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(p) for p in parent.stdout.readline().split()]
        assert len(pids) == 3
        time.sleep(0.3)  # one runs for ever, one is idle, one is stopped
        assert all(is_running(pid) for pid in pids)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_running(pid) for pid in pids)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X") and os.path.exists(f"/proc/{pid}")
