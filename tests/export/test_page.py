"""The C program of `docs/models.md`, as a reader would type it in; and the library from Python."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import stormdrop as sd
from stormdrop.cli.main import main
from tests.support.tiny_onnx import saved

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def network(folder: Path) -> Path:
    """One input, one output, and the name that the page has."""
    nodes = [helper.make_node("Exp", ["pixels"], ["scores"])]
    return saved(folder, nodes, {"pixels": [2, 3]}, {"scores": TensorProto.FLOAT}, file="resnet50.onnx")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_c_program_of_the_page_is_built_and_runs_as_it_says(folder: Path) -> None:
    network(folder)
    found = re.search(r"^`main.c`:\n\n```c\n(.*?)^```\n\n```console\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert found is not None
    (folder / "main.c").write_text(found[1])
    commands = [shlex.split(line.removeprefix("$ "), comments=True) for line in found[2].splitlines()]
    assert [command[0] for command in commands] == ["stormdrop", "cc", "./main"]
    made = CliRunner().invoke(main, commands[0][1:])
    assert made.exit_code == 0, made.output
    built = subprocess.run([*commands[1], "-Wall", "-Werror"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    moved = folder / "elsewhere"
    moved.mkdir()
    for name in ("main", "libresnet50.so"):
        (folder / name).rename(moved / name)
    done = subprocess.run([moved / "main"], capture_output=True, text=True)
    assert (done.returncode, float(done.stdout)) == (0, 1.0), done.stderr


def test_the_library_has_a_short_name_in_python(folder: Path) -> None:
    model = sd.compile(network(folder), schedules=lambda task: None)
    library = sd.export_library(model, "libtiny.so")
    assert (library.path, library.header, library.prefix) == (folder / "libtiny.so", folder / "libtiny.h", "tiny")
    assert sd.export_library(model, folder / "x.so", header="y.h", name="net").prefix == "net"
    assert "net_open(" in (folder / "y.h").read_text()
    assert np.allclose(model(np.zeros((2, 3), np.float32)), 1.0)
