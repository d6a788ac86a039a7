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

import stormdrop as sd
from stormdrop.cli import main
from stormdrop.compiler import load, stored_schedules, tasks_of
from stormdrop.errors import RunError
from stormdrop.reservoir.store import default_path
from stormdrop.target.machine import detect
from tests.support.tiny_onnx import GRAPH, INPUT, dense, reshaped

QUICK = ("--trials", "6", "--search", "random")
KEYS = [
    "model", "threads", "strategy", "seed", "cold", "stopped", "trials", "failed", "known", "tuning_seconds", "estimated_seconds",
    "estimated_default_seconds", "tasks", "peak_gflops", "store", "in_model",
]  # fmt: skip
TASK_KEYS = [
    "id", "label", "digest", "count", "flops", "seconds", "default_seconds", "gflops", "trials", "failed", "known", "verified", "ended",
    "failure", "schedule",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(folder))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    return folder


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, args)])


def failed(*args: object, code: int = 1) -> str:
    """One harmless line on stderr, nothing on stdout."""
    result = ran(*args)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1
    return result.stderr


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
    tasks = tasks_of(load(str(path))).tasks
    assert [t["digest"] for t in report["tasks"]] == [use.task.digest for use in tasks]
    assert all(list(t) == TASK_KEYS for t in report["tasks"])
    assert report["estimated_seconds"] == pytest.approx(sum(t["count"] * t["seconds"] for t in report["tasks"]))
    lines = first.stderr.splitlines()
    assert lines[0] == f"starting: none of {len(tasks)} tasks known"
    assert "6 of 6 trials" in lines[-1]
    assert "\x1b" not in first.stderr

    again = ran(path, *QUICK)
    assert again.exit_code == 0, again.output
    assert again.stderr.splitlines()[0].startswith("continuing: ")
    assert f"of {len(tasks)} of {len(tasks)} tasks known" in again.stderr.splitlines()[0]
    table, last = again.stdout.splitlines(), again.stdout.splitlines()[-1]
    assert table[0].split()[:3] == ["task", "count", "GFLOP"]
    assert len(table) == 1 + len(tasks) + 2
    assert last.startswith("estimated ")
    for part in ("(defaults: ", "; in-model: ", "(untuned: "):
        assert part in last
    assert "\x1b" not in again.output
    chosen = stored_schedules(detect(1))
    assert all(chosen(use.task) is not None for use in tasks)


def test_quiet_shows_nothing_but_results(tmp_path: Path, cache: Path) -> None:
    done = ran(dense(tmp_path), "--time", "1s", "--store", "none", "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    assert "nothing is kept" in done.stdout
    assert not default_path().exists()


def test_a_verbose_run_is_logged(tmp_path: Path) -> None:
    done = ran(dense(tmp_path), *QUICK, "--store", "none", "-v")
    assert done.exit_code == 0, done.output
    assert "new best at trial 1" in done.stderr
    assert "starting:" not in done.stderr
    assert "\x1b" not in done.stderr


def test_what_is_wrong_with_a_model_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in failed(tmp_path / "none.onnx") or True
    failed(tmp_path / "none.onnx", *QUICK)
    (tmp_path / "text.onnx").write_text("no model")
    failed(tmp_path / "text.onnx", *QUICK)
    assert "--bind" in failed(reshaped(tmp_path)) or True


def test_wrong_usage_has_exit_code_two(tmp_path: Path) -> None:
    path = dense(tmp_path, batch="n")
    assert "no network" in failed("zoo:resnet5000", code=2)
    assert "is not a time" in failed(path, "--time", "soon", code=2)
    assert "more than 0" in failed(path, "--time", "0", code=2)
    failed(path, "--trials", "0", code=2)
    failed(path, "--search", "drizzle", code=2)
    assert "is not a shape" in failed(path, "--shapes", "5", code=2)
    failed(code=2)


def test_shapes_are_taken(tmp_path: Path) -> None:
    path = dense(tmp_path, batch="n")
    done = ran(path, "--shapes", f"{INPUT}=3x6", *QUICK, "--store", "none", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tasks"][0]["flops"] > 3 * 2 * 6 * 5 - 1


def test_a_model_that_cannot_be_timed_itself_is_tuned_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RunError("out of \x1b luck")

    monkeypatch.setattr("stormdrop.in_model.build_model", broken)
    done = ran(dense(tmp_path), *QUICK, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["in_model"] is None
    assert "the model itself could not be timed: out of \\x1b luck" in done.stderr


def test_ctrl_c_ends_with_what_is_known(tmp_path: Path, cache: Path) -> None:
    command = [sys.executable, "-m", "stormdrop.cli", "tune", str(dense(tmp_path)), "--time", "60s", "--search", "random", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "trials" in line and "estimated" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["stopped"] == "interrupted"
    assert "interrupted after" in err


def test_tune_of_the_package_takes_tasks_and_models(tmp_path: Path) -> None:
    tuned = sd.tune(str(dense(tmp_path)), trials=4, search="random")
    assert isinstance(tuned, sd.TunedModel)
    assert default_path().exists()  # where compiling looks
    graph = load(str(dense(tmp_path)))
    known: list[int] = []
    again = sd.tune(tasks_of(graph), detect(1), trials=4, search="random", listen=lambda e: known.append(getattr(e, "known", 0)))
    assert known[0] >= 4
    assert again.trials == 4
    a = sd.tensor("a", (5, 7))
    i, k = sd.axis(5), sd.reduce_axis(7)
    one = sd.tune(sd.Task([sd.compute("s", (i,), sd.sum(a[i, k], k))]), detect(1), trials=2)
    assert isinstance(one, sd.Tuned)
    assert np.isfinite(one.seconds)
