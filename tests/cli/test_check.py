"""`stormdrop check` and `bench` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from stormdrop.cli.main import main
from stormdrop.runtime.model import Model
from tests.support.tiny_onnx import INPUT, OUTPUT, added, dense, reshaped

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(folder))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    return folder


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def told(*args: object, code: int = 0) -> Any:
    result = ran(*args, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """All models are wrong by one percent."""
    right = Model.run

    def run(self: Model, inputs: Any) -> dict[str, Any]:
        return {k: (a * np.float32(1.01) if a.dtype == np.float32 else a) for k, a in right(self, inputs).items()}

    monkeypatch.setattr(Model, "run", run)


# ---- check


def test_a_right_model_passes_against_onnxruntime(tmp_path: Path) -> None:
    report = told("check", dense(tmp_path), "--seed", 5)
    assert (report["ok"], report["seed"], report["tolerance"], report["threads"]) == (True, 5, 1e-3, 1)
    assert report["against"].startswith("onnxruntime ")
    assert [o["name"] for o in report["outputs"]] == [OUTPUT, "top"]
    assert all(o["ok"] and o["relative_error"] < 1e-5 for o in report["outputs"])
    assert "all right: 2 outputs" in ran("check", dense(tmp_path)).stdout


def test_the_reference_judges_where_onnxruntime_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormdrop.compare.oracle.has_onnxruntime", lambda: False)
    result = ran("check", dense(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    assert "onnxruntime is not installed; comparing with the reference" in result.stderr
    assert json.loads(result.stdout)["against"] == "the reference interpreter"


@pytest.mark.usefixtures("wrong")
def test_a_wrong_model_is_exit_code_1(tmp_path: Path) -> None:
    path = dense(tmp_path)
    report = told("check", path, code=1)
    assert not report["ok"]
    assert [o["ok"] for o in report["outputs"]] == [False, True]
    assert report["outputs"][0]["relative_error"] == pytest.approx(0.01, rel=1e-3)
    result = ran("check", path)
    assert result.exit_code == 1
    assert "1 of 2 outputs too far off" in result.stdout
    assert "WRONG" in result.stdout
    assert ran("check", path, "--tolerance", "0.02").exit_code == 0


def test_a_compiled_file_is_checked_against_its_model(tmp_path: Path) -> None:
    path, file = dense(tmp_path), tmp_path / "m.sd"
    assert ran("compile", path, "-o", file).exit_code == 0
    assert told("check", path, "--compiled", file)["ok"]
    assert ran("check", path, "--compiled", path).exit_code == 2


def test_a_file_compiled_from_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.sd"
    assert ran("compile", added(tmp_path), "-o", file).exit_code == 0
    result = ran("check", dense(tmp_path), "--compiled", file)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def test_bound_and_open_inputs_reach_the_other_side(tmp_path: Path) -> None:
    np.save(tmp_path / "to.npy", np.array([3, 2]))
    assert told("check", reshaped(tmp_path), "--bind", f"to={tmp_path / 'to.npy'}")["outputs"][0]["shape"] == [3, 2]
    report = told("check", dense(tmp_path, "N"), "--shapes", f"{INPUT}=4x6")
    assert report["ok"]
    assert report["outputs"][0]["shape"] == [4, 5]


def test_inputs_may_be_given(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.array([1, np.inf, np.nan], np.float32), k=np.array([1, 2, 3]))
    report = told("check", added(tmp_path), "--input", tmp_path / "in.npz")
    assert (report["ok"], report["seed"]) == (True, None)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "some"])
def test_a_tolerance_is_a_positive_number(text: str, tmp_path: Path) -> None:
    assert ran("check", dense(tmp_path), "--tolerance", text).exit_code == 2


# ---- bench


def test_a_race_has_exactly_these_keys(tmp_path: Path) -> None:
    path = dense(tmp_path)
    result = ran("bench", path, "--against", "onnxruntime", "--repeats", "12", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert list(report) == ["model", "threads", "stormdrop", "onnxruntime", "speedup"]
    assert (report["model"], report["threads"]) == (str(path), 1)
    for side in ("stormdrop", "onnxruntime"):
        assert list(report[side]) == ["median_seconds", "min_seconds", "rested_seconds", "cpu_seconds"]
        assert 0 < report[side]["min_seconds"] <= report[side]["median_seconds"]
    assert report["speedup"] == pytest.approx(
        report["onnxruntime"]["median_seconds"] / report["stormdrop"]["median_seconds"]
    )
    for setting in ("ORT_ENABLE_ALL", "intra_op_num_threads=1", "by default, none is in the store; 1 thread"):
        assert setting in result.stderr


def test_a_model_alone_has_no_rival(tmp_path: Path) -> None:
    report = told("bench", dense(tmp_path), "--seconds", "20ms", "--warm-up", "0")
    assert list(report) == ["model", "threads", "stormdrop"]


def test_a_model_is_timed_beside_busy_cpus(tmp_path: Path) -> None:
    report = told("bench", dense(tmp_path), "--repeats", "3", "--busy", "1")
    assert list(report) == ["model", "threads", "stormdrop", "busy"]
    assert report["busy"]["1"]["stormdrop"]["median_seconds"] > 0


def test_a_model_is_timed_with_other_settings_of_its_threads(tmp_path: Path) -> None:
    result = ran("bench", dense(tmp_path), "--repeats", "3", "--spin", "5", "--affinity", "none", "--profile", "--json")
    assert result.exit_code == 0, result.output
    assert "spin 5.0; affinity none" in result.stderr
    assert list(json.loads(result.stdout)) == ["model", "threads", "stormdrop", "profile"]


def test_the_report_tells_settings_runs_and_kernels(tmp_path: Path) -> None:
    result = ran("bench", dense(tmp_path), "--against", "onnxruntime", "--repeats", "7", "--profile")
    assert result.exit_code == 0, result.output
    assert "differs" not in result.stderr
    for part in ("1 thread", "median", "spread", "speedup", "ORT_ENABLE_ALL", "MatMul", "by default"):
        assert part in result.stdout
    assert result.stdout.count(" 7\n") >= 2
    assert "\x1b" not in result.output


@pytest.mark.usefixtures("wrong")
def test_a_race_of_different_results_is_doubted(tmp_path: Path) -> None:
    result = ran("bench", dense(tmp_path), "--against", "onnxruntime", "--repeats", "2", "--json")
    assert result.exit_code == 0
    assert f"WARNING: the output {OUTPUT} differs by 1.0e-02" in result.stderr


def test_a_compiled_file_is_timed_and_raced_beside_its_model(tmp_path: Path) -> None:
    path, file = dense(tmp_path), tmp_path / "m.sd"
    assert ran("compile", path, "-o", file).exit_code == 0
    report = told("bench", file, "--repeats", "3", "--profile")
    assert list(report) == ["model", "threads", "stormdrop", "profile"]
    assert told("bench", path, "--compiled", file, "--against", "onnxruntime", "--repeats", "3")["speedup"] > 0
    assert "--compiled FILE" in ran("bench", file, "--against", "onnxruntime").stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--repeats", "3", "--seconds", "1s"],
        ["--repeats", "0"],
        ["--against", "nobody"],
        ["--warm-up", "-1"],
        ["--spin", "-1"],
        ["--affinity", "near"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str], tmp_path: Path) -> None:
    assert ran("bench", dense(tmp_path), *args).exit_code == 2
