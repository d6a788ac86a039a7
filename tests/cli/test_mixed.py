"""The commands on models of which onnxruntime runs a part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import helper, save

from stormdrop.cli.main import main
from stormdrop.model.mixed import MixedModel
from tests.support.command import refusal
from tests.support.mixed_models import FLOAT, OURS, STRING, THEIRS, Shapes, W, model, positives

pytest.importorskip("onnxruntime")


def test_the_command_line_runs_what_onnxruntime_must_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    path = str(tmp_path / "m.onnx")
    save(positives(), path)
    line = "onnxruntime runs a part of mixed: NonZero, Transpose, GatherND, ReduceSum"

    def ran(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, list(args))
        assert result.exit_code == code, result.output
        return result

    refused = refusal(ran("run", path, "--fallback", "none", code=1), 1)
    assert "NonZero" in refused
    assert "--bind" not in refused  # a value between two nodes is no input
    assert ran("run", path, "--untuned").stderr.count(line) == 1
    for judge, against in (("onnxruntime", "onnxruntime"), ("reference", "ONNX's reference evaluator")):
        checked = ran("check", path, "--untuned", "--json", "--against", judge)
        assert json.loads(checked.stdout)["against"].startswith(against)
        assert ("judges the whole model" in checked.stderr) == (judge == "onnxruntime")
    tree = json.loads(ran("info", path, "--json").stdout)
    assert [(part["where"], part["operators"][0]) for part in tree["parts"]] == [
        (OURS, "MatMul"),
        (THEIRS, "NonZero"),
        (OURS, "Mul"),
    ]
    assert tree["outputs"][1] == {"name": "values", "shape": ["values[0]"], "dtype": "f32"}
    assert "onnxruntime: NonZero" in ran("info", path).stdout
    assert len(json.loads(ran("show", path, "--json").stdout)["tasks"]) == len(tree["tasks"])
    for output in ("m.sd", "m.so"):
        refused = refusal(ran("compile", path, "-o", str(tmp_path / output), code=1), 1)
        assert "NonZero" in refused
        assert "no saved file or C library can hold it" in refused
    tuned = ran("tune", path, "--trials", "3", "--threads", "1", "--json")
    assert json.loads(tuned.stdout)["in_model"] is not None
    assert "stormdrop" in json.loads(ran("bench", path, "--repeats", "4", "--json", "--profile").stdout)
    assert "leave out --fallback" in ran("run", path, "--fallback", "onnxruntime", "--target", "cuda", code=2).stderr


def test_outputs_that_are_no_numbers_are_printed_and_not_compared(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("SplitToSequence", ["h"], ["rows"], axis=0),
        helper.make_node("Cast", ["h"], ["texts"], to=STRING),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    outputs: Shapes = {"y": (FLOAT, (3, 8)), "texts": (STRING, (3, 8))}
    proto = model(nodes, {"x": (FLOAT, (3, 8))}, outputs, {"w": W})
    proto.graph.output.append(helper.make_tensor_sequence_value_info("rows", FLOAT, None))
    path = str(tmp_path / "m.onnx")
    save(proto, path)
    ran = CliRunner().invoke(main, ["run", path, "--untuned", "--json"])
    assert ran.exit_code == 0, ran.output
    shown = {o["name"]: (o["dtype"], o["shape"]) for o in json.loads(ran.stdout)["outputs"]}
    assert shown == {"y": ("float32", [3, 8]), "texts": ("string", [3, 8]), "rows": ("list", [3])}
    saved = CliRunner().invoke(main, ["run", path, "--untuned", "--output", str(tmp_path / "out.npz")])
    assert saved.exit_code == 1
    assert "the output texts is no array of numbers" in saved.stderr
    checked = CliRunner().invoke(main, ["check", path, "--untuned", "--json"])
    assert checked.exit_code == 0, checked.output
    assert "the output rows (sequence) is of onnxruntime" in checked.stderr
    assert [o["name"] for o in json.loads(checked.stdout)["outputs"]] == ["y"]


def test_a_wrong_part_is_found_beside_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "m.onnx")
    save(positives(), path)
    right = MixedModel.run

    def wrong(self: MixedModel, inputs: Mapping[str, Any], *rest: Any) -> dict[str, Any]:
        outputs = right(self, inputs, *rest)
        return {**outputs, "values": outputs["values"] * np.float32(1.01)}

    monkeypatch.setattr(MixedModel, "run", wrong)
    ran = CliRunner().invoke(main, ["check", path, "--untuned", "--json"])
    assert ran.exit_code == 1, ran.output
    outputs = {o["name"]: o for o in json.loads(ran.stdout)["outputs"]}
    assert [outputs[name]["result"] for name in ("y", "values")] == ["right", "wrong"]
    assert outputs["values"]["rounding_change"] < 1e-5
    assert outputs["values"]["f64"] is None
    assert "by rounding" in CliRunner().invoke(main, ["check", path, "--untuned"]).stdout
