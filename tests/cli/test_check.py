"""`stormdrop check` and `bench` as a user meets them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from stormdrop.builder import building
from stormdrop.lower.program import Program
from stormdrop.model.model import Model
from stormdrop.model.onnx_session import OnnxSession
from stormdrop.target.cpu import Cpu
from tests.support.command import json_of, ran
from tests.support.tiny_onnx import INPUT, OUTPUT, added, conv, dense, reshaped, saved
from tests.test_planted_bugs import window_is_read_one_pixel_aside

ort = pytest.importorskip("onnxruntime")


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """All models are wrong by one percent."""
    right = Model.run

    def run(self: Model, inputs: Any) -> dict[str, Any]:
        return {k: (a * np.float32(1.01) if a.dtype == np.float32 else a) for k, a in right(self, inputs).items()}

    monkeypatch.setattr(Model, "run", run)


# ---- check


def test_a_right_model_passes_against_onnxruntime(tmp_path: Path) -> None:
    report = json_of("check", dense(tmp_path), "--seed", 5)
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
    report = json_of("check", path, code=1)
    assert not report["ok"]
    assert [(o["ok"], o["result"]) for o in report["outputs"]] == [(False, "wrong"), (True, "right")]
    assert report["outputs"][0]["relative_error"] == pytest.approx(0.01, rel=1e-3)
    exact = report["outputs"][0]["f64"]
    assert exact["relative_error"] == pytest.approx(0.01, rel=1e-3)
    assert max(exact["peer_relative_error"], report["outputs"][0]["rounding_change"]) < 1e-5
    assert exact["absolute_error"] > exact["peer_absolute_error"]
    result = ran("check", path)
    assert result.exit_code == 1
    assert "1 of 2 outputs too far off" in result.stdout
    assert "WRONG" in result.stdout
    assert f"next: stormdrop check {path} --against reference" in result.stdout
    assert f"next: stormdrop show {path}" in ran("check", path, "--against", "reference").stdout
    for tolerance in (["--tolerance", "0.02"], ["--absolute", "1"]):
        report = json_of("check", path, *tolerance)
        assert [(o["result"], o["f64"]) for o in report["outputs"]] == [("right", None)] * 2


@pytest.fixture
def far_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime's floats are off by one."""
    right = OnnxSession.run

    def run(self: OnnxSession, inputs: Any) -> dict[str, Any]:
        return {k: a + np.float32(1) if a.dtype == np.float32 else a for k, a in right(self, inputs).items()}

    monkeypatch.setattr(OnnxSession, "run", run)


@pytest.mark.usefixtures("far_peer")
def test_a_peer_that_is_less_exact_is_no_error_of_ours(tmp_path: Path) -> None:
    path = dense(tmp_path)
    report = json_of("check", path)
    output = report["outputs"][0]
    assert (report["ok"], output["ok"], output["result"]) == (True, True, "peer less exact")
    assert output["f64"]["relative_error"] < 1e-6 < 0.01 < output["f64"]["peer_relative_error"]
    assert output["relative_error"] > 0.01
    result = ran("check", path)
    assert result.exit_code == 0, result.output
    assert "at most 120 s (--f64-time)" in result.stderr
    for part in ("onnxruntime is less exact", "off f64", f"next: stormdrop bench {path}"):
        assert part in result.stdout


@pytest.mark.usefixtures("far_peer")
def test_inputs_where_one_rounding_changes_as_much_are_ill_conditioned(tmp_path: Path) -> None:
    large = np.array(2.0**24 + 2.0**10 + 8.0, np.float32)
    nodes = [helper.make_node("Add", ["x", "c"], ["t"]), helper.make_node("Sub", ["t", "c"], ["y"])]
    path = saved(tmp_path, nodes, {"x": [4, 6]}, {"y": TensorProto.FLOAT}, {"c": large})
    report = json_of("check", path, "--seed", 3)
    assert (report["ok"], report["outputs"][0]["result"]) == (True, "ill-conditioned")
    assert report["outputs"][0]["rounding_change"] > 0.1
    result = ran("check", path)
    assert "ill-conditioned" in result.stdout
    assert f"next: stormdrop check {path} --seed 1" in result.stdout


def test_a_kernel_that_is_wrong_is_not_excused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = building.emit

    def emit(program: Program, target: Cpu) -> str:
        return right(window_is_read_one_pixel_aside(program), target)

    monkeypatch.setattr(building, "emit", emit)
    for against in ("onnxruntime", "reference"):
        report = json_of("check", conv(tmp_path), "--against", against, code=1)
        assert report["outputs"][0]["result"] == "wrong"
        assert report["outputs"][0]["rounding_change"] < 1e-3


@pytest.mark.usefixtures("far_peer")
def test_without_time_for_f64_the_peer_alone_judges(tmp_path: Path) -> None:
    result = ran("check", dense(tmp_path), "--f64-time", "1ms", "--json")
    assert result.exit_code == 1
    assert "takes longer than 0.001 s" in result.stderr
    assert json.loads(result.stdout)["outputs"][0]["f64"] is None


def test_a_report_explains_its_columns_and_names_the_next_command_with_its_sizes(tmp_path: Path) -> None:
    result = ran("check", dense(tmp_path, "N"), "--shapes", f"{INPUT}=4x6")
    assert "of magnitude: the largest error over the largest element" in result.stdout
    line = result.stdout.splitlines()[-1]
    assert line.startswith("next: stormdrop bench ")
    assert shlex.split(line)[-2:] == ["--shapes", f"{INPUT}=4x6"]
    several = ran("check", dense(tmp_path, "N")).stdout
    assert several.count("next: ") == 1


def test_random_indices_come_from_the_whole_vocabulary(tmp_path: Path) -> None:
    table = np.arange(50, dtype=np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    types: dict[str, int] = {"ids": TensorProto.INT64}
    path = saved(tmp_path, nodes, {"ids": [600]}, {"y": TensorProto.FLOAT}, {"table": table}, types)
    report = json_of("run", path)
    assert (report["outputs"][0]["min"], report["outputs"][0]["max"]) == (0.0, 49.0)
    assert json_of("check", path)["ok"]


def test_a_compiled_file_is_checked_against_its_model(tmp_path: Path) -> None:
    path, file = dense(tmp_path), tmp_path / "m.sd"
    assert ran("compile", path, "-o", file).exit_code == 0
    assert json_of("check", path, "--compiled", file)["ok"]
    assert ran("check", path, "--compiled", path).exit_code == 2


def test_a_file_compiled_from_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.sd"
    assert ran("compile", added(tmp_path), "-o", file).exit_code == 0
    result = ran("check", dense(tmp_path), "--compiled", file)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def test_bound_and_open_inputs_reach_the_other_side(tmp_path: Path) -> None:
    np.save(tmp_path / "to.npy", np.array([3, 2]))
    assert json_of("check", reshaped(tmp_path), "--bind", f"to={tmp_path / 'to.npy'}")["outputs"][0]["shape"] == [3, 2]
    report = json_of("check", dense(tmp_path, "N"), "--shapes", f"{INPUT}=4x6")
    assert report["ok"]
    assert report["outputs"][0]["shape"] == [4, 5]


def test_inputs_may_be_given(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.array([1, np.inf, np.nan], np.float32), k=np.array([1, 2, 3]))
    report = json_of("check", added(tmp_path), "--input", tmp_path / "in.npz")
    assert (report["ok"], report["seed"]) == (True, None)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "some"])
def test_an_absolute_tolerance_is_no_negative_number(text: str, tmp_path: Path) -> None:
    assert ran("check", dense(tmp_path), "--absolute", text).exit_code == 2


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "some"])
def test_a_tolerance_is_a_positive_number(text: str, tmp_path: Path) -> None:
    assert ran("check", dense(tmp_path), "--tolerance", text).exit_code == 2


# ---- bench


def test_a_race_has_exactly_these_keys(tmp_path: Path) -> None:
    path = dense(tmp_path)
    result = ran("bench", path, "--against", "onnxruntime", "--repeats", "12", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert list(report) == ["model", "threads", "stormdrop", "onnxruntime", "speedup", "settings"]
    assert (report["model"], report["threads"]) == (str(path), 1)
    for side in ("stormdrop", "onnxruntime"):
        assert list(report[side]) == ["median_seconds", "min_seconds", "rested_seconds", "cpu_seconds"]
        assert 0 < report[side]["min_seconds"] <= report[side]["median_seconds"]
    assert report["speedup"] == pytest.approx(
        report["onnxruntime"]["median_seconds"] / report["stormdrop"]["median_seconds"]
    )
    for setting in ("ORT_ENABLE_ALL", "intra_op_num_threads=1", "by default, none is in the store; 1 thread"):
        assert setting in str(report["settings"])


def test_a_model_alone_has_no_rival(tmp_path: Path) -> None:
    report = json_of("bench", dense(tmp_path), "--time", "20ms", "--warm-up", "0")
    assert list(report) == ["model", "threads", "stormdrop", "settings"]


def test_a_model_is_timed_beside_busy_cpus(tmp_path: Path) -> None:
    report = json_of("bench", dense(tmp_path), "--repeats", "3", "--busy", "1")
    assert list(report) == ["model", "threads", "stormdrop", "busy", "settings"]
    assert report["busy"]["1"]["stormdrop"]["median_seconds"] > 0


def test_a_model_is_timed_with_other_settings_of_its_threads(tmp_path: Path) -> None:
    result = ran("bench", dense(tmp_path), "--repeats", "3", "--spin", "5", "--affinity", "none", "--profile", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert "spin 5.0; affinity none" in report["settings"]["stormdrop"]
    assert list(report) == ["model", "threads", "stormdrop", "settings", "profile"]


def test_the_report_tells_settings_runs_and_kernels(tmp_path: Path) -> None:
    result = ran("bench", dense(tmp_path), "--against", "onnxruntime", "--repeats", "7", "--profile")
    assert result.exit_code == 0, result.output
    assert "differs" not in result.stderr
    for part in ("1 thread", "median", "spread", "speedup", "ORT_ENABLE_ALL", "MatMul", "by default"):
        assert part in result.stdout
    assert "MatMul  first/dense  2x6, 6x5 → 2x5" in result.stdout
    assert result.stdout.count(" 7\n") >= 2
    assert "\x1b" not in result.output


def test_a_row_of_a_profile_leads_to_show(tmp_path: Path) -> None:
    path = dense(tmp_path, "n")
    result = ran("bench", path, "--shapes", f"{INPUT}=3x6", "--repeats", "2", "--profile")
    hint = result.stdout.splitlines()[-1].removesuffix(" shows how a task is computed")
    _, command, *args = shlex.split(hint)
    assert (command, args[0]) == ("show", str(path))
    shown = ran(command, *args)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(f"{args[1]}: ")


def test_a_row_of_a_loaded_model_has_the_id_and_node_of_its_task(tmp_path: Path) -> None:
    path, file = dense(tmp_path), tmp_path / "m.sd"
    assert ran("compile", path, "-o", file).exit_code == 0
    rows = json_of("bench", file, "--repeats", "2", "--profile")["profile"]["rows"]
    tasks = json.loads(ran("info", path, "--json").stdout)["tasks"]
    names = ("id", "digest", "label", "shapes", "node")
    assert [[row[name] for name in names] for row in rows] == [[task[name] for name in names] for task in tasks]
    assert rows[0]["node"] == "first/dense"
    text = ran("bench", file, "--repeats", "2", "--profile").stdout
    assert text.splitlines()[-1].startswith("stormdrop show MODEL t")


@pytest.mark.usefixtures("wrong")
def test_a_race_of_different_results_is_doubted(tmp_path: Path) -> None:
    result = ran("bench", dense(tmp_path), "--against", "onnxruntime", "--repeats", "2", "--json")
    assert result.exit_code == 0
    assert f"WARNING: the output {OUTPUT} differs by 1.0e-02" in result.stderr


def test_a_compiled_file_is_timed_and_raced_beside_its_model(tmp_path: Path) -> None:
    path, file = dense(tmp_path), tmp_path / "m.sd"
    assert ran("compile", path, "-o", file).exit_code == 0
    report = json_of("bench", file, "--repeats", "3", "--profile")
    assert list(report) == ["model", "threads", "stormdrop", "settings", "profile"]
    assert json_of("bench", path, "--compiled", file, "--against", "onnxruntime", "--repeats", "3")["speedup"] > 0
    assert "--compiled FILE" in ran("bench", file, "--against", "onnxruntime").stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--repeats", "3", "--time", "1s"],
        ["--repeats", "0"],
        ["--against", "nobody"],
        ["--warm-up", "-1"],
        ["--spin", "-1"],
        ["--affinity", "near"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str], tmp_path: Path) -> None:
    assert ran("bench", dense(tmp_path), *args).exit_code == 2
