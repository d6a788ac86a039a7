"""Commands on models with open dimensions: sizes from files, from `--shapes`, or three that are tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from stormdrop.cli.main import main
from tests.support.command import refusal
from tests.support.open_onnx import decoder, perceptron

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORMDROP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("STORMDROP_THREADS", "1")
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(perceptron().SerializeToString())
    return path


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def told(*args: object, code: int = 0) -> Any:
    result = ran(*args, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def shapes(tree: Any) -> list[list[int]]:
    return [size["outputs"][0]["shape"] for size in tree["sizes"]]


def test_without_sizes_three_are_tried_and_told(model: Path) -> None:
    assert shapes(told("check", model)) == [[1, 20], [2, 20], [5, 20]]
    result = ran("run", model)
    assert "three sizes are tried" in result.stderr
    assert result.stdout.count("at x=") == 3


def test_an_input_file_gives_the_size(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((7, 32), np.float32))
    for command in ("run", "check"):
        assert told(command, model, "--input", tmp_path / "x.npy")["outputs"][0]["shape"] == [7, 20]
    np.save(tmp_path / "wide.npy", np.ones((7, 33), np.float32))
    assert "wide.npy has shape [7, 33]" in refusal(ran("run", model, "--input", tmp_path / "wide.npy"), 1)


def test_an_input_that_is_named_again_begins_another_size(model: Path) -> None:
    two = told("check", model, "--shapes", "x=3x32", "--shapes", "x=4x32")
    assert shapes(two) == [[3, 20], [4, 20]]
    one = told("check", model, "--shapes", "x=3x32")
    assert one["outputs"][0]["shape"] == [3, 20]


def test_rounded_sizes_are_checked_as_they_run(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder(layers=1, width=16, heads=2).SerializeToString())
    tree = told("check", path, "--shapes", "ids=1x5", "--shapes", "ids=1x9")
    assert all(size["ok"] for size in tree["sizes"])
    assert shapes(tree) == [[1, 5, 50], [1, 9, 50]]


def test_a_file_holds_all_sizes_and_commands_take_each(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.sd"
    tree = told("compile", model, "--shapes", "x=3x32", "--shapes", "x=4x32", "-o", file)
    assert sorted(tree["sizes"]) == [[[3, 32]], [[4, 32]]]
    assert sorted(shapes(told("run", file))) == [[3, 20], [4, 20]]
    assert sorted(size["inputs"][0]["shape"] for size in told("info", file)["sizes"]) == [[3, 32], [4, 32]]
    assert all(size["ok"] for size in told("check", model, "--compiled", file)["sizes"])
    np.save(tmp_path / "x.npy", np.ones((7, 32), np.float32))
    assert "--shapes add others" in refusal(ran("run", file, "--input", tmp_path / "x.npy"), 1)


def test_bench_times_each_size(model: Path) -> None:
    tree = told("bench", model, "--shapes", "x=3x32", "--shapes", "x=4x32", "--repeats", "2")
    assert len(tree["sizes"]) == 2
    assert all(size["stormdrop"]["median_seconds"] > 0 for size in tree["sizes"])


def test_commands_that_take_one_size_say_so(model: Path, tmp_path: Path) -> None:
    both = ("--shapes", "x=3x32", "--shapes", "x=4x32")
    assert "takes one size" in refusal(ran("info", model, *both), 2)
    assert "one size" in refusal(ran("run", model, *both, "--output", tmp_path / "y.npz"), 2)
    assert "no input" in ran("check", model, "--shapes", "z=1x2", "--shapes", "z=2x2").stderr
