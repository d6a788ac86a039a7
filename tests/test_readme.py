"""What a newcomer reads is true: code in the README runs, commands of all pages are ones there are, files they name
exist.
"""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from stormdrop.cli.main import main
from stormdrop.driver.compile import load, tasks_of
from tests.support.tiny_onnx import saved

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL = ROOT / "docs" / "models.md"
VARIABLES = {"$network": "resnet18", "$time": "60s", "$against": "--against onnxruntime"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own, and a directory to write into."""
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `$ stormdrop …` of every page, and those of the demo."""
    for page in PAGES:
        for line in re.findall(r"^(?: {4})?\$ stormdrop (.*)$", page.read_text(), re.MULTILINE):
            yield page.name, shlex.split(line.split(" | ")[0], comments=True)
    for line in re.findall(r"^stormdrop (.*)$", (ROOT / "examples" / "demo.sh").read_text(), re.MULTILINE):
        for name, value in VARIABLES.items():
            line = line.replace(name, value)
        yield "demo.sh", shlex.split(line)


def image_model(folder: Path) -> Path:
    """What the README's model.onnx may be: the mean of each of two filters' results over a picture."""
    w = np.random.default_rng(7).standard_normal((2, 3, 32, 32)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["t"], strides=[32, 32]),
        helper.make_node("GlobalAveragePool", ["t"], ["output"]),
    ]
    return saved(folder, nodes, {"input": [1, 3, 224, 224]}, {"output": TensorProto.FLOAT}, {"w": w}, file="model.onnx")


@pytest.mark.parametrize("number", range(2))
def test_python_of_the_readme_runs(number: int, folder: Path) -> None:
    path = image_model(folder)
    code = blocks(ROOT / "README.md", "python")
    assert len(code) == 2
    shorter = re.sub(r"seconds=\d+", "trials=4", code[number])
    assert shorter != code[number]
    found: dict[str, Any] = {}
    exec(compile(shorter, "README.md", "exec"), found)
    if number == 0:
        tiles = found["x"].reshape(3, 7, 32, 7, 32)
        filters = next(a for v, a in load(path).constants.items() if v.rank == 4)
        expected = np.einsum("cyixj,ocij->o", tiles, filters) / 49
        for y in (
            found["y"],
            found["model"](found["x"]),
        ):  # of the model in memory, and of the one that was written and read
            np.testing.assert_allclose(y.reshape(2), expected, rtol=1e-3, atol=1e-3)


def test_pages_show_every_command_for_models() -> None:
    assert {"bench", "check", "compile", "info", "op", "run", "show", "tune", "zoo"} <= {
        args[0] for _, args in commands()
    }


@pytest.mark.parametrize(("page", "args"), list(commands()), ids=lambda x: x if isinstance(x, str) else " ".join(x))
def test_commands_are_spelt_as_they_are_understood(page: str, args: list[str]) -> None:
    with click.Context(main) as root:
        name, command, rest = main.resolve_command(root, args)
        assert command is not None, f"{page}: stormdrop {args[0]}"
        while isinstance(command, click.Group) and rest:
            name, command, rest = command.resolve_command(root, rest)
            assert command is not None
        if rest != ["--help"]:
            command.make_context(name, rest, parent=root)  # raises where an option or an argument is wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`((?:docs|stormdrop|tests|benchmarks|examples)/[\w./-]*\.(?:md|py|json|sh))`", text)
    inside = re.findall(
        r"`((?:graph|runtime|ops|space|codegen|lower|search|zoo|reservoir|measure|cost)/\w+\.py)`", text
    )
    missing = [n for n in named if not (ROOT / n).exists()] + [
        n for n in inside if not (ROOT / "stormdrop" / n).exists()
    ]
    assert [n for n in missing if n != "benchmarks/results/models.json"] == []  # made by whoever measures


def test_the_small_model_is_told_of_as_it_is(folder: Path) -> None:
    runpy.run_path(str(ROOT / "examples" / "small.py"))
    page = SMALL.read_text()
    told = CliRunner(env={"COLUMNS": "100", "STORMDROP_THREADS": "2"}).invoke(main, ["info", "small.onnx"]).stdout
    assert told in page
    parts = tasks_of(load(folder / "small.onnx"))
    for line in re.sub(r": f32\[[^]]*\]", "", str(parts)).splitlines():
        assert f"    {line}\n" in page
