"""`stormdrop tune` as a user meets it, and `sd.tune` with a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import stormdrop as sd
from stormdrop.base.errors import RunError
from stormdrop.cli.main import main
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.compiler.stored import stored_schedules
from stormdrop.device.host import detect
from stormdrop.report.text import clean
from stormdrop.store.store import Store, StoreFull, default_path
from stormdrop.target.machine import Target
from stormdrop.tuning.subject import Subject
from stormdrop.tuning.tune import TuneOptions
from tests.support.command import refusal
from tests.support.tiny_onnx import GRAPH, INPUT, conv, dense, reshaped, saved

QUICK = ("--trials", "6", "--search", "random")
KEYS = [
    "model",
    "shapes",
    "threads",
    "strategy",
    "seed",
    "cold",
    "stopped",
    "expected_gain",
    "not_kept",
    "trials",
    "failed",
    "known",
    "tuning_seconds",
    "estimated_seconds",
    "estimated_default_seconds",
    "tasks",
    "peak_gflops",
    "store",
    "objective",
    "in_model",
]
TASK_KEYS = [
    "id",
    "label",
    "shapes",
    "node",
    "digest",
    "count",
    "flops",
    "seconds",
    "default_seconds",
    "gflops",
    "trials",
    "failed",
    "known",
    "verified",
    "ended",
    "origin",
    "expected_gain",
    "search_seconds",
    "failure",
    "schedule",
]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(folder))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    monkeypatch.delenv("COLUMNS", raising=False)  # tests in several processes have it
    return folder


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, args)])


def failed(*args: object, code: int = 1) -> str:
    return refusal(ran(*args), code)


def test_a_model_is_tuned_kept_and_continued(tmp_path: Path, cache: Path) -> None:
    path = dense(tmp_path)
    first = ran(path, *QUICK, "--json")
    assert first.exit_code == 0, first.output
    report: dict[str, Any] = json.loads(first.stdout)
    assert list(report) == KEYS
    assert (report["model"], report["trials"], report["known"], report["threads"]) == (GRAPH, 6, 0, 1)
    assert Path(report["store"]).is_relative_to(cache)
    assert report["in_model"]["seconds"] > 0
    assert report["in_model"]["default_seconds"] > 0
    tasks = tasks_of(read_graph(str(path))).tasks
    assert [t["digest"] for t in report["tasks"]] == [use.task.digest for use in tasks]
    assert all(list(t) == TASK_KEYS for t in report["tasks"])
    rows = [(t["id"], t["shapes"], t["node"]) for t in report["tasks"]]
    assert rows == [(use.id, use.calls[0].shapes_text(), use.calls[0].node) for use in tasks]
    assert rows[0] == ("t0", "2x6, 6x5 → 2x5", "first/dense")
    assert report["estimated_seconds"] == pytest.approx(sum(t["count"] * t["seconds"] for t in report["tasks"]))
    lines = first.stderr.splitlines()
    assert lines[0] == f"starting: none of {len(tasks)} tasks known"
    assert "6 of 6 trials" in lines[-1]
    assert "\x1b" not in first.stderr

    again = ran(path, *QUICK)
    assert again.exit_code == 0, again.output
    assert again.stderr.splitlines()[0].startswith("continuing: ")
    assert f"of {len(tasks)} of {len(tasks)} tasks known" in again.stderr.splitlines()[0]
    table = again.stdout.splitlines()
    assert table[0].split()[:4] == ["task", "what", "count", "GFLOP"]
    assert table[0].split()[-2:] == ["node", "shapes"]
    assert next(line for line in table if line.startswith("t0")).endswith("first/dense  2x6, 6x5 → 2x5")
    assert len(table) == 1 + len(tasks) + 7
    hint = table[1 + len(tasks)]
    assert hint.startswith(f"stormdrop show {path} t")
    assert hint.split()[3] == table[1].split()[0]
    rows = {line.split()[0]: line for line in table[-5:]}
    assert list(rows) == ["estimated", "in-model", "objective", "search", "stored"]
    assert "(defaults: " in rows["estimated"]
    assert "(untuned: " in rows["in-model"]
    assert "\x1b" not in again.output
    chosen = stored_schedules(detect(1))
    assert all(chosen(use.task) is not None for use in tasks)


def test_a_task_ends_when_patience_does(tmp_path: Path) -> None:
    impatient = ran(dense(tmp_path), "--trials", "400", "--search", "random", "--patience", "1", "--json")
    report: dict[str, Any] = json.loads(impatient.stdout)
    assert report["stopped"] == "nothing left"
    assert report["trials"] < 128  # the usual patience alone is 256


def test_what_is_not_kept_is_not_called_stored(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, records: object) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(Store, "add", full)
    done = ran(dense(tmp_path), *QUICK)
    assert done.exit_code == 0, done.output
    (stored,) = [line for line in done.stdout.splitlines() if line.startswith("stored")]
    assert stored.split(maxsplit=1)[1] == "not everything: the disk is full"
    assert str(cache) not in done.stdout
    assert done.stderr.count("the disk is full") == 1
    monkeypatch.undo()
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(cache))
    monkeypatch.setattr(Store, "add_verdicts", full)
    done = ran(dense(tmp_path), *QUICK)
    assert done.exit_code == 0, done.output
    assert "not everything: the disk is full" in done.stdout
    assert "in-model" in done.stdout


def test_two_models_are_tuned_at_once_and_reported_each(tmp_path: Path) -> None:
    paths = [dense(tmp_path, file=f"{name}.onnx") for name in "ab"]
    done = ran(*paths, *QUICK, "--objective", "speedup", "--json")
    assert done.exit_code == 0, done.output
    reports = json.loads(done.stdout)["models"]
    assert [list(r) for r in reports] == [KEYS, KEYS]
    first, second = ([t["schedule"] for t in r["tasks"]] for r in reports)
    assert first == second
    text = ran(*paths, *QUICK, "--objective", "5ms,1h")
    assert text.exit_code == 0, text.output
    assert text.stdout.splitlines()[0] == clean(GRAPH)
    for once in ("search ", "stored ", "objective "):
        assert sum(line.startswith(once) for line in text.stdout.splitlines()) == 1
    assert text.stdout.count("another minute may gain") == 1
    targets = [line for line in text.stdout.splitlines() if line.startswith("target ")]
    assert [line.split()[3] for line in targets] == ["met:", "met:"]
    alone = ran(paths[0], *QUICK, "--objective", "0.0000001ms", "--json")
    objective = json.loads(alone.stdout)["objective"]
    assert (objective["name"], objective["targets"], objective["met"]) == ("targets", [1e-10], [False])


def test_several_sizes_of_one_model_are_tuned_together_and_reported_each(tmp_path: Path) -> None:
    path = dense(tmp_path, batch="n")
    sizes = "--shapes", f"{INPUT}=2x6", "--shapes", f"{INPUT}=5x6"
    done = ran(path, *sizes, *QUICK, "--weights", "1,3", "--json")
    assert done.exit_code == 0, done.output
    reports = json.loads(done.stdout)["sizes"]
    assert [r["shapes"] for r in reports] == [{INPUT: [2, 6]}, {INPUT: [5, 6]}]
    objective, seconds = reports[0]["objective"], [r["in_model"]["seconds"] for r in reports]
    assert (objective["name"], objective["weights"]) == ("latency", [1.0, 3.0])
    assert objective["value"] == pytest.approx(seconds[0] + 3 * seconds[1])
    model = sd.compile(path)
    for rows, report in zip((2, 5), reports):
        model(np.ones((rows, 6), np.float32))
        assert isinstance(model, sd.OpenModel)
        assert model.models[-1].origins == {t["digest"]: "verdict" for t in report["tasks"]}
    text = ran(path, *sizes, *QUICK).stdout
    assert text.splitlines()[0] == clean(f"{GRAPH} at {INPUT}=2x6")
    assert "all sizes" in text.splitlines()


def test_weights_that_fit_no_models_or_sizes_are_wrong_usage(tmp_path: Path) -> None:
    path = dense(tmp_path, batch="n")
    sizes = "--shapes", f"{INPUT}=2x6", "--shapes", f"{INPUT}=5x6"
    assert "3 weights for 2 models or sizes" in failed(path, *sizes, "--weights", "1,2,3", code=2)
    assert "is no list of weights" in failed(path, *sizes, "--weights", "1,-2", code=2)
    assert "are for --objective latency" in failed(path, path, "--weights", "1,2", "--objective", "speedup", code=2)
    assert "one MODEL at several sizes" in failed(path, path, *sizes, code=2)


def test_help_lists_each_option_once() -> None:
    options = [line.split()[0] for line in ran("--help").stdout.splitlines() if line.startswith("  --")]
    assert sorted(options) == sorted(set(options))


def test_quiet_shows_nothing_but_results(tmp_path: Path) -> None:
    path = dense(tmp_path, batch="n")
    done = ran(
        path, "--shapes", f"{INPUT}=3x6", "--time", "5m", "--trials", "6", "--store", "none", "--quiet", "--json"
    )
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["store"] is None
    assert report["tasks"][0]["flops"] >= 3 * 2 * 6 * 5
    assert not default_path().exists()


def test_a_verbose_run_is_logged_and_goes_well_without_the_model_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RunError("out of \x1b luck")

    monkeypatch.setattr("stormdrop.tuning.in_model.build_model", broken)
    done = ran(dense(tmp_path), *QUICK, "--store", "none", "-v")
    assert done.exit_code == 0, done.output
    assert "new best at trial 1" in done.stderr
    assert "starting:" not in done.stderr
    assert "itself could not be timed: out of \\x1b luck" in done.stderr
    assert "nothing is kept" in done.stdout
    assert "in-model" not in done.stdout
    assert "\x1b" not in done.output


def test_what_is_wrong_with_a_model_is_one_line(tmp_path: Path) -> None:
    assert "none.onnx" in failed(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    assert "text.onnx" in failed(tmp_path / "text.onnx")
    assert "'to'" in failed(reshaped(tmp_path), "--fallback", "none")


def test_help_has_examples() -> None:
    assert "Examples:" in ran("--help").stdout


def test_wrong_usage_has_exit_code_two(tmp_path: Path) -> None:
    path = dense(tmp_path, batch="n")
    assert "no network" in failed("zoo:resnet5000", code=2)
    assert "is not a time" in failed(path, "--time", "soon", code=2)
    assert "more than 0" in failed(path, "--time", "0", code=2)
    failed(path, "--trials", "0", code=2)
    failed(path, "--search", "drizzle", code=2)
    assert "latency, speedup, or a time for each model" in failed(path, "--objective", "fast", code=2)
    assert "latency targets given: 2, models: 1" in failed(dense(tmp_path), "--objective", "1ms,2ms")
    assert "is not a shape" in failed(path, "--shapes", "5", code=2)
    failed(code=2)


def test_ctrl_c_ends_with_what_is_known(tmp_path: Path, cache: Path) -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((96, 80)).astype(np.float32)}
    path = saved(
        tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [64, 96]}, {"y": TensorProto.FLOAT}, weights
    )
    command = [
        sys.executable,
        "-m",
        "stormdrop",
        "tune",
        str(path),
        "--time",
        "60s",
        "--search",
        "random",
        "--json",
        "-v",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " measured, " in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["stopped"] == "interrupted"
    assert "Ctrl-C again aborts" in err


def test_tune_of_the_package_takes_tasks_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Subject, Target, TuneOptions, sd.Store | None]] = []

    def listening(
        subjects: list[Subject], target: Target, options: TuneOptions, *, store: sd.Store | None, listen: object
    ) -> tuple[int, ...]:
        given.extend((subject, target, options, store) for subject in subjects)
        return tuple(range(len(subjects)))

    monkeypatch.setattr("stormdrop.tuning.api.tune_subjects", listening)
    path = dense(tmp_path, batch="n")
    graph = read_graph(str(path), {INPUT: (4, 6)})
    parts = tasks_of(graph)
    sd.tune(str(path), shapes={INPUT: (4, 6)}, threads=3, trials=7)
    sd.tune(path.read_bytes(), shapes={INPUT: (4, 6)})
    sd.tune(graph, detect(2))
    mine = sd.Store.in_memory()
    sd.tune(parts, store=mine, seconds=2.5)
    assert sd.tune([parts, graph], store=mine) == (0, 1)
    assert given.pop()[2] is given.pop()[2]
    digests = [use.task.digest for use in parts.tasks]
    assert [[t.task.digest for t in subject.tasks] for subject, *_ in given] == [digests] * 4
    assert all(subject.model is not None for subject, *_ in given)
    assert [target.threads for _, target, *_ in given] == [3, 1, 2, 1]
    stores = [store for *_, store in given]
    assert [s.path for s in stores[:3] if s] == [default_path()] * 3  # where compiling looks
    assert stores[3] is mine
    budgets = [(options.trials, options.seconds) for *_, options, _ in given]
    assert budgets == [(7, None), (None, None), (None, None), (None, 2.5)]
    given.clear()
    sd.tune(parts.tasks[0].task, trials=3)
    ((subject, target, options, store),) = given
    assert [t.task for t in subject.tasks] == [parts.tasks[0].task]
    assert (subject.is_model, target, options.trials, store) == (False, detect(), 3, None)


def test_a_model_is_tuned_from_another_models_schedules_alone(tmp_path: Path) -> None:
    (tmp_path / "wider").mkdir()
    first, second = conv(tmp_path), conv(tmp_path / "wider", 24)
    assert ran(first, "--trials", "40", "--search", "storm").exit_code == 0
    done = ran(second, "--reuse", "only", "--donor", "tiny", "--trials", "30", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["strategy"] == "reuse"
    assert "Invalid value for '--reuse'" in failed(first, "--reuse", "always", code=2)
