"""Commands on models with open dimensions: sizes from files, from `--shapes`, or sizes that work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from stormdrop.base.errors import UserError
from stormdrop.model.onnx_session import OnnxSession
from tests.support.command import json_of, ran, refusal
from tests.support.open_onnx import batched, classifier, decoder, detector, perceptron, recogniser

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


@pytest.fixture
def detector_file(tmp_path: Path) -> Path:
    return written(detector(), tmp_path)


def written(proto: ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def shapes(tree: Any) -> list[list[int]]:
    return [size["outputs"][0]["shape"] for size in tree["sizes"]]


def test_without_sizes_three_batches_are_checked_and_named(model: Path) -> None:
    assert shapes(json_of("check", model)) == [[1, 20], [2, 20], [5, 20]]
    result = ran("check", model)
    assert "the sizes are x=1x32; x=2x32; x=5x32; --shapes or --input give others" in result.stderr
    assert result.stdout.count("at x=") == 3


def test_run_takes_one_size_and_names_it(detector_file: Path, tmp_path: Path) -> None:
    result = ran("run", detector_file, "--output", tmp_path / "y.npy")
    assert result.exit_code == 0, result.output
    assert "the size is x=1x3x224x224; --shapes or --input give others" in result.stderr
    assert np.load(tmp_path / "y.npy").shape == (1, 8, 112, 112)


@pytest.mark.parametrize("command", [("check",), ("bench", "--repeats", "1", "--warm-up", "0")])
def test_sizes_that_the_model_cannot_compute_with_are_skipped_and_named(
    detector_file: Path, command: tuple[str, ...]
) -> None:
    result = ran(*command, detector_file)
    assert result.exit_code == 0, result.output
    assert "the sizes are x=1x3x224x224; x=2x3x64x96; x=5x3x96x160;" in result.stderr
    assert "skipped, since the model cannot compute with them: x=2x3x65x97: " in result.stderr
    for size in ("x=1x3x224x224", "x=2x3x64x96", "x=5x3x96x160"):
        assert f"at {size}" in result.stdout


def test_a_recogniser_is_checked_at_heights_that_leave_one_row(tmp_path: Path) -> None:
    path = written(recogniser(), tmp_path)
    heights = [size["outputs"][0]["shape"] for size in json_of("check", path)["sizes"]]
    assert heights[0] == [1, 8, 40]
    assert "x=1x3x224x224" in ran("check", path).stderr


def test_a_size_that_onnxruntime_alone_refuses_is_skipped(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = OnnxSession.run

    def refuses_two(self: OnnxSession, inputs: Any) -> Any:
        if inputs["x"].shape[0] == 2:
            raise UserError("onnxruntime does not run the model: no twos")
        return run(self, inputs)

    monkeypatch.setattr(OnnxSession, "run", refuses_two)
    for command in (("check",), ("bench", "--against", "onnxruntime", "--repeats", "1", "--warm-up", "0")):
        result = ran(*command, model)
        assert result.exit_code == 0, result.output
        assert "skipped: onnxruntime does not run the model: no twos (at x=2x32)" in result.stderr
        assert "at x=2x32" not in result.stdout
        assert "at x=5x32" in result.stdout
    explicit = refusal(ran("check", model, "--shapes", "x=2x32"), 1)
    assert "no twos (at x=2x32)" in explicit


def test_an_explicit_size_that_fails_is_named_with_one_that_works(detector_file: Path) -> None:
    at = ("--shapes", "x=1x3x33x64")
    for command in ("check", "bench", "run", "compile", "tune", "info", "show"):
        text = refusal(ran(command, detector_file, *at), 1)
        assert "do not broadcast (at x=1x3x33x64; x=1x3x224x224 works)" in text, command
    assert "(at x=1x3x33x64" in ran("check", detector_file, *at, "--shapes", "x=1x3x64x64").stderr


@pytest.mark.parametrize("command", ["compile -o m.sd", "tune --trials 1", "store donors"])
def test_commands_that_take_one_size_show_a_complete_command(
    detector_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = refusal(ran(*command.split(), detector_file), 1)
    assert "leaves dimensions open: x: f32[batch, 3, height, width]" in text
    line = text[text.index("stormdrop ") :].split()
    assert line == ["stormdrop", *command.split(), str(detector_file), "--shapes", "x=1x3x224x224"]
    assert not list(tmp_path.glob("*.sd"))
    assert ran(*line[1:]).exit_code == 0


def test_an_open_batch_is_one_with_a_line_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(batched(), tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in (("compile", "-o", "m.sd"), ("info",), ("show",), ("tune", "--trials", "1", "-q")):
        result = ran(command[0], path, *command[1:])
        assert result.exit_code == 0, result.output
        assert result.stderr.count("leaves the batch open: 1 is taken (image=1x3x8x8)") == 1
    assert json_of("info", tmp_path / "m.sd")["inputs"][0]["shape"] == [1, 3, 8, 8]


def test_info_shows_open_dimensions_by_name_and_kernels_at_a_size_that_works(tmp_path: Path) -> None:
    path = written(classifier(), tmp_path)
    result = ran("info", path)
    assert "[any, 3, any, any]" in result.stdout
    assert "tasks at x=1x3x224x224" in result.stdout
    assert "x=1x3x224x224 is taken; --shapes gives another size" in result.stderr
    tree = json_of("info", path)
    assert tree["dimensions"] == {"x": ["any", "3", "any", "any"], "y": ["any", "8"]}
    assert tree["size"] == {"x": [1, 3, 224, 224]}
    settled = json_of("info", path, "--shapes", "x=1x3x8x8")
    assert "dimensions" not in settled
    assert json_of("show", path)["tasks"] == tree["tasks"]
    assert ran("show", path, tree["tasks"][0]["id"]).exit_code == 0
    assert "1, 3, 224, 224" in ran("info", path, "--passes").stdout


def test_a_model_of_one_size_is_compared_at_that_size(detector_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "one.sd"
    json_of("compile", detector_file, "--shapes", "x=2x3x32x64", "-o", file)
    assert json_of("check", detector_file, "--compiled", file)["outputs"][0]["shape"] == [2, 8, 16, 32]


def test_dimensions_without_names_take_any_size(tmp_path: Path) -> None:
    path = written(classifier(), tmp_path)
    assert json_of("check", path, "--shapes", "x=2x3x8x12")["outputs"][0]["shape"] == [2, 8]
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8, 12), np.float32))
    assert json_of("run", path, "--input", tmp_path / "x.npy")["outputs"][0]["shape"] == [1, 8]
    np.save(tmp_path / "two.npy", np.ones((1, 2, 8, 12), np.float32))
    text = refusal(ran("run", path, "--input", tmp_path / "two.npy"), 1)
    assert "the input x: f32[any, 3, any, any] needs [any, 3, any, any]" in text


def test_an_input_file_gives_the_size(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((7, 32), np.float32))
    for command in ("run", "check"):
        assert json_of(command, model, "--input", tmp_path / "x.npy")["outputs"][0]["shape"] == [7, 20]
    np.save(tmp_path / "wide.npy", np.ones((7, 33), np.float32))
    assert "wide.npy has shape [7, 33]" in refusal(ran("run", model, "--input", tmp_path / "wide.npy"), 1)


def test_an_input_that_is_named_again_begins_another_size(model: Path) -> None:
    two = json_of("check", model, "--shapes", "x=3x32", "--shapes", "x=4x32")
    assert shapes(two) == [[3, 20], [4, 20]]
    one = json_of("check", model, "--shapes", "x=3x32")
    assert one["outputs"][0]["shape"] == [3, 20]


def test_rounded_sizes_are_checked_as_they_run(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder(layers=1, width=16, heads=2).SerializeToString())
    tree = json_of("check", path, "--shapes", "ids=1x5", "--shapes", "ids=1x9")
    assert all(size["ok"] for size in tree["sizes"])
    assert shapes(tree) == [[1, 5, 50], [1, 9, 50]]


def test_a_file_holds_all_sizes_and_commands_take_each(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.sd"
    tree = json_of("compile", model, "--shapes", "x=3x32", "--shapes", "x=4x32", "-o", file)
    assert sorted(tree["sizes"]) == [[[3, 32]], [[4, 32]]]
    assert sorted(shapes(json_of("run", file))) == [[3, 20], [4, 20]]
    assert sorted(size["inputs"][0]["shape"] for size in json_of("info", file)["sizes"]) == [[3, 32], [4, 32]]
    assert all(size["ok"] for size in json_of("check", model, "--compiled", file)["sizes"])
    np.save(tmp_path / "x.npy", np.ones((7, 32), np.float32))
    assert "--shapes add others" in refusal(ran("run", file, "--input", tmp_path / "x.npy"), 1)


def test_bench_times_each_size(model: Path) -> None:
    tree = json_of("bench", model, "--shapes", "x=3x32", "--shapes", "x=4x32", "--repeats", "2")
    assert len(tree["sizes"]) == 2
    assert all(size["stormdrop"]["median_seconds"] > 0 for size in tree["sizes"])


def test_commands_that_take_one_size_say_so(model: Path, tmp_path: Path) -> None:
    both = ("--shapes", "x=3x32", "--shapes", "x=4x32")
    assert "takes one size" in refusal(ran("info", model, *both), 2)
    assert "one size" in refusal(ran("run", model, *both, "--output", tmp_path / "y.npz"), 2)
    assert "no input" in ran("check", model, "--shapes", "z=1x2", "--shapes", "z=2x2").stderr
