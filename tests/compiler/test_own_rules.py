"""A derivation rule of the user's, from derivation to a compiled model: measured in worker processes, stored, found
again by another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.codec import decode
from stormdrop.base.environment import package_root
from stormdrop.base.errors import UserError
from stormdrop.compiler import kernel_builds as building
from stormdrop.compiler.kernel_builds import Job, build_kernel, build_kernels
from stormdrop.device.host import detect
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph
from stormdrop.measure.process import Worker, message_of
from stormdrop.measure.result import Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.wire import BuildReply, BuildRequest
from stormdrop.operators.catalogue import build as operator
from stormdrop.space.default import default_schedule
from stormdrop.space.derive import imported
from stormdrop.store.store import Store, default_path
from tests.support.graphs import floats, graph_of
from tests.support.own_rules import AlwaysReverse
from tests.support.remarks import remarks

RULES = (*sd.RULES, AlwaysReverse())
CONV = (1, 9, 5, 17, 3, 1, 1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    return tmp_path / "cache"


def in_another_process(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package_root())}
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, env=environment)


def follows(schedule: sd.Schedule | None) -> bool:
    return schedule is not None and any(step.rule == "always_reverse" for step in schedule.steps)


FINDS = """
import json, sys
import numpy as np
import stormdrop as sd
from stormdrop.operators.catalogue import build
from tests.support.own_rules import AlwaysReverse

task, rules = build("C1D", json.loads(sys.argv[1])), (*sd.RULES, AlwaysReverse())
store = sd.Store.open()
assert store.best(task, sd.detect()) is None
found = store.best(task, sd.detect(), rules=rules)
kernel = sd.build(task, constants={"W": np.load(sys.argv[3])}, schedule=found.schedule, rules=rules)
np.save(sys.argv[4], kernel(np.load(sys.argv[2])))
print(json.dumps(found.schedule.to_json()))
"""


def test_a_rule_is_searched_measured_stored_and_found_by_another_process(tmp_path: Path) -> None:
    task = operator("C1D", CONV)
    with Store.open() as store:
        tuned = sd.tune(task, trials=6, search="random", store=store, rules=RULES)
    assert all(isinstance(t.result, Timing) and follows(t.schedule) for t in tuned.history)
    x, w = (np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in task.inputs)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", w)
    files = [tmp_path / name for name in ("x.npy", "w.npy", "y.npy")]
    done = in_another_process("-c", FINDS, json.dumps(CONV), *files)
    assert done.returncode == 0, done.stderr
    assert sd.Schedule.from_json(json.loads(done.stdout)) == tuned.best
    np.testing.assert_allclose(np.load(files[2]), sd.build(task, constants={"W": w})(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(sd.ScheduleError, match="always_reverse v1"):
        sd.build(task, constants={"W": w}, schedule=tuned.best)


MINE = """
from tests.support.own_rules import AlwaysReverse

class Mine(AlwaysReverse):
    pass
"""
TUNES = """
import stormdrop as sd
from stormdrop.operators.catalogue import build
{define}

if __name__ == "__main__":
    tuned = sd.tune(build("C1D", (1, 9, 5, 17, 3, 1, 1)), trials=1, search="random", rules=(*sd.RULES, Mine()))
    print(tuned.best.steps[-1].rule)
"""


def test_a_rule_in_a_file_beside_the_script_reaches_the_workers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "script.py").write_text(TUNES.format(define="from mine import Mine"))
    done = in_another_process(tmp_path / "script.py")
    assert (done.returncode, done.stdout) == (0, "always_reverse\n"), done.stderr


def test_a_rule_of_the_script_itself_is_refused() -> None:
    done = in_another_process("-c", TUNES.format(define=MINE))
    assert done.returncode == 1
    assert "UserError: rule always_reverse is a class of __main__" in done.stderr
    assert "move the class to a module" in done.stderr


def test_a_module_that_only_this_process_can_import_is_told_by_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vanishing.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    (rule,) = imported(["vanishing:Mine"])
    (tmp_path / "vanishing.py").write_text("raise RuntimeError('not here')")
    with pytest.raises(UserError, match="vanishing:Mine cannot be imported"):
        sd.tune(operator("C1D", CONV), trials=1, rules=(*sd.RULES, rule))


def conv_model() -> Graph:
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x = b.input("x", (1, 10, 12, 6), "f32")
    for channels in (8, 4):
        w, ones = b.constant(floats(rng, 3, 3, x.shape[3], channels)), (1, 1)
        x = b.emit(
            "Conv",
            x,
            w,
            kernel=(3, 3),
            strides=ones,
            dilations=ones,
            before=ones,
            after=ones,
            groups=1,
            layout="NHWC",
        )
    return graph_of(b, x)


def test_a_model_is_tuned_and_compiled_with_a_rule(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(building, "WORTH_A_WORKER", 1)
    monkeypatch.setattr(building, "available_cpus", lambda: 2)
    graph = conv_model()
    tuned = sd.tune(graph, trials=6, search="random", winograd=False, rules=RULES)
    assert default_path().exists()
    assert tuned.tasks
    assert all(follows(t.schedule) for t in tuned.tasks if t.task.flops)
    x = np.random.default_rng(1).standard_normal((1, 10, 12, 6)).astype(np.float32)
    expected = sd.compile(graph, schedules=lambda task: None, winograd=False)(x)
    assert not remarks(recwarn)
    for given in (None, tuned.schedules):
        y = sd.compile(graph, schedules=given, winograd=False, rules=RULES)(x)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert not remarks(recwarn)
    sd.compile(graph, winograd=False)
    sd.compile(graph, winograd=False, schedules=tuned.schedules)
    told = " ".join(remarks(recwarn))
    assert "not known here are skipped: always_reverse 1" in told
    assert "cannot be replayed: the schedule follows rule always_reverse v1" in told


def test_builders_of_a_model_build_what_this_process_does() -> None:
    target, task = detect(1), operator("C1D", CONV)
    job = Job(task, default_schedule(task, target, RULES), {})
    assert follows(job.schedule)
    expected = build_kernel(job, target, RULES)
    assert expected != build_kernel(job, target)
    worker = Worker("builder", target, MeasureSettings(), RULES)
    try:
        reply = worker.lane.submit(worker.ask, message_of(task), BuildRequest(job.schedule).message, 60.0).result()
    finally:
        worker.close()
    assert decode(BuildReply, reply).kernel.artifact == expected.artifact
    assert (
        build_kernels([job] * (2 * building.WORTH_A_WORKER), target, 2, RULES)
        == [expected] * 2 * building.WORTH_A_WORKER
    )


def test_compiling_refuses_a_rule_that_builders_could_not_import() -> None:
    class Mine(AlwaysReverse):
        pass

    with pytest.raises(UserError, match="top of a module"):
        sd.compile(conv_model(), rules=(*sd.RULES, Mine()))
