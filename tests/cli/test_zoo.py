"""`stormdrop zoo` as a user meets it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result

from stormdrop import zoo
from stormdrop.cli.main import main


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["zoo", *map(str, args)])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_ls_has_a_line_for_every_network() -> None:
    done = call("ls")
    assert done.exit_code == 0
    head, *rows = (line.split() for line in done.stdout.splitlines())
    assert head == ["network", "parameters", "GFLOP", "input"]
    assert [row[0] for row in rows] == list(zoo.names())
    assert ["resnet50", "25,557,032", "8.18", "1x3x224x224"] in rows
    assert ["bert_base_seq128", "109,482,240", "22.35", "1x128"] in rows


def test_ls_as_json() -> None:
    done = call("ls", "--json")
    assert done.exit_code == 0
    rows = {row["name"]: row for row in json.loads(done.stdout)["networks"]}
    assert list(rows) == list(zoo.names())
    bert = rows["bert_base_seq128"]
    assert bert["parameters"] == 109482240
    assert bert["gflops"] == pytest.approx(22.348, abs=1e-3)
    assert bert["inputs"] == {"input_ids": [1, 128], "attention_mask": [1, 128], "token_type_ids": [1, 128]}


def test_build_writes_the_model_here_under_its_name(here: Path) -> None:
    done = call("build", "squeezenet1_0", "--seed", "4", "--batch", "2")
    assert done.exit_code == 0, done.output
    assert done.stdout == "squeezenet1_0.onnx: 4.77 MiB, 1,248,424 parameters\n"
    assert onnx.load(here / "squeezenet1_0.onnx") == zoo.build("squeezenet1_0", batch=2, seed=4)
    assert [p.name for p in here.iterdir()] == ["squeezenet1_0.onnx"]


def test_build_replaces_a_file_and_reports_as_json(here: Path) -> None:
    path = here / "model.onnx"
    path.write_text("old")
    done = call("build", "squeezenet1_0", "-o", path, "--symbolic-batch", "--opset", "20", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "name": "squeezenet1_0",
        "file": str(path),
        "bytes": path.stat().st_size,
        "parameters": 1248424,
    }
    assert onnx.load(path) == zoo.build("squeezenet1_0", batch=None, opset=20)
    assert [p.name for p in here.iterdir()] == ["model.onnx"]


def test_a_link_stays_and_what_it_names_is_replaced(here: Path) -> None:
    (here / "there").mkdir()
    (here / "model.onnx").symlink_to(here / "there" / "model.onnx")
    assert call("build", "squeezenet1_0", "-o", "model.onnx").exit_code == 0
    assert (here / "model.onnx").is_symlink()
    onnx.checker.check_model(onnx.load(here / "there" / "model.onnx"))


def test_an_interrupted_write_leaves_the_old_file_and_nothing_beside_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "squeezenet1_0.onnx").write_text("old")

    def fail(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    done = call("build", "squeezenet1_0")
    assert done.exit_code == 1
    assert done.stderr == "Error: 'squeezenet1_0.onnx' cannot be written: No space left on device\n"
    assert [(p.name, p.read_text()) for p in here.iterdir()] == [("squeezenet1_0.onnx", "old")]


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["build"], 2, "NAME"),
        (["build", "resnet5"], 2, "did you mean resnet50?"),
        (["build", "squeezenet1_0", "--batch", "0"], 2, "--batch"),
        (["build", "squeezenet1_0", "--seed", "-1"], 2, "--seed"),
        (["build", "squeezenet1_0", "--opset", "9"], 2, "opset 9: give one of 17 to 24"),
        (["build", "squeezenet1_0", "-o", "."], 2, "not an ordinary file"),
        (["build", "squeezenet1_0", "-o", "/dev/null"], 2, "not an ordinary file"),
        (["build", "squeezenet1_0", "-o", "nowhere/x.onnx"], 1, "there is no directory nowhere"),
    ],
)
def test_errors_are_told_and_nothing_is_written(args: list[str], code: int, told: str, here: Path) -> None:
    done = call(*args)
    assert done.exit_code == code
    assert told in done.stderr
    assert done.stdout == ""
    assert not list(here.iterdir())


@pytest.mark.parametrize("args", [[], ["ls"], ["build"]])
def test_help_has_examples(args: list[str]) -> None:
    done = call(*args, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.stdout
