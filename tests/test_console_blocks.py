"""Every console block of the pages runs as printed, in the environment of a fresh clone.

The clone is a copy of the tracked files; its environment has what the README installs first. Each page is one session:
its blocks run in order, in a copy of the clone that also holds the files that the page names. Output that a page shows
is compared with the output. Blocks that are marked in their fence are not run (`tests/support/pages.py`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.pages import (
    PAGES,
    README,
    ROOT,
    ConsoleBlock,
    blocks,
    check_printed,
    console_blocks,
    files_of,
    page_name,
)
from tests.support.tiny_onnx import saved

ENVIRONMENT = "environment"
BETWEEN = "\x1e"
"""Printed before each command of a block; separates their outputs."""
SECONDS = 300
LARGEST_MARKED_SHARE = 0.3


def sessions() -> list[Path]:
    return [page for page in PAGES if any(not block.mark for block in console_blocks(page))]


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the tracked files and an environment after the README's first console block.

    The workers of a parallel run share the folder: the first worker makes it, the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    fresh = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fresh"
    fresh.mkdir(exist_ok=True)
    with (fresh / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (fresh / "finished").exists():
            make_clone(fresh / "clone")
            (fresh / "finished").touch()
    return fresh / "clone"


def make_clone(folder: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run([sys.executable, "-m", "venv", folder / ENVIRONMENT], check=True)
    run_block(console_blocks(README)[0], folder)


def copied(clone: Path, folder: Path) -> Path:
    """Returns a copy of the clone whose environment shares the files of the clone's by hard links.

    The scripts of the environment name its path, so they are written anew.
    """
    shutil.copytree(clone, folder, ignore=shutil.ignore_patterns(ENVIRONMENT))
    shutil.copytree(clone / ENVIRONMENT, folder / ENVIRONMENT, symlinks=True, copy_function=os.link)
    for script in (folder / ENVIRONMENT / "bin").iterdir():
        if not script.is_symlink():
            text = script.read_text().replace(str(clone), str(folder))
            script.unlink()
            script.write_text(text)
            script.chmod(0o755)
    return folder


def write_models(folder: Path) -> None:
    """Writes the models that pages name: small enough for a search to try all of their schedules."""
    for name in ("model", "resnet18", "resnet50", "a", "b"):
        weights = np.random.default_rng(len(name)).standard_normal((4, 3)).astype(np.float32)
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        saved(folder, nodes, {"x": [1, 4]}, {"y": TensorProto.FLOAT}, {"w": weights}, graph=name, file=f"{name}.onnx")
    corners = [helper.make_node("Slice", ["x", "from", "to", "axes"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    places = {"from": np.array([0, 0]), "to": np.array([2, 2]), "axes": np.array([2, 3])}
    sizes: list[int | str] = ["batch", 3, "height", "width"]
    saved(folder, corners, {"x": sizes}, {"y": TensorProto.FLOAT}, places, file="images.onnx")
    casts = [helper.make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)]
    integers: dict[str, int] = {"ids": TensorProto.INT64}
    saved(folder, casts, {"ids": ["batch", "length"]}, {"y": TensorProto.FLOAT}, types=integers, file="words.onnx")


def write_custom_operator(folder: Path) -> None:
    """Replaces model.onnx by the model of the first Python block of docs/operators.md."""
    names: dict[str, Any] = {}
    exec(blocks(ROOT / "docs" / "operators.md", "python")[0], names)
    onnx.save(names["proto"], folder / "model.onnx")


def environment_of(folder: Path) -> dict[str, str]:
    """Returns the variables of a new terminal in which the environment of `folder` is active."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STORMDROP_", "PYTHON", "PYTEST_", "VIRTUAL_ENV"))}
    return kept | {
        "PATH": f"{folder / ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "STORMDROP_THREADS": "2",
        "STORMDROP_CACHE_DIR": str(folder.parent / "cache"),
    }


def run_block(block: ConsoleBlock, folder: Path) -> None:
    """Runs the commands of a block as one script, and compares their output with the lines that the page shows."""
    script = "set -eu\n" + "".join(f"printf '\\036'\n{command.text}\n" for command in block.commands)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment_of(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    outputs = done.stdout.split(BETWEEN)[1:]
    last = block.commands[len(outputs) - 1].text
    assert done.returncode == 0, f"line {block.line}: {last}\n{outputs[-1]}\n{done.stderr}"
    for command, output in zip(block.commands, outputs, strict=True):
        if command.shown:
            check_printed(command.shown, output.splitlines(), is_all=True)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", sessions(), ids=page_name)
def test_console_blocks_of_a_page_run_as_printed(page: Path, clone: Path, tmp_path: Path) -> None:
    folder = copied(clone, tmp_path / "clone")
    write_models(folder)
    if page.name == "operators.md":
        write_custom_operator(folder)
    np.save(folder / "image.npy", np.zeros((1, 3, 224, 224) if page.name == "shapes.md" else (1, 4), np.float32))
    for name, text in files_of(page).items():
        (folder / name).write_text(text)
    for block in console_blocks(page):
        if not block.mark:
            run_block(block, folder)


def marked_blocks(mark: str) -> list[ConsoleBlock]:
    return [block for page in PAGES for block in console_blocks(page) if block.mark == mark]


def test_continuous_integration_runs_what_its_mark_promises() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    commands = {command.text.split("#")[0].strip() for block in marked_blocks("ci") for command in block.commands}
    assert "make demo" in commands
    assert {command for command in commands if command not in script} == set()


def test_few_commands_of_the_pages_are_left_out() -> None:
    def count(found: Sequence[ConsoleBlock]) -> int:
        return sum(len(block.commands) for block in found)

    every = [block for page in PAGES for block in console_blocks(page)]
    assert count([block for block in every if block.mark]) <= LARGEST_MARKED_SHARE * count(every)


def test_a_console_block_with_an_unknown_mark_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console later (some day)\n$ make tea\n```\n")
    with pytest.raises(ValueError, match="unknown mark of a console block: ' later"):
        console_blocks(page)


def test_output_that_a_page_does_not_show_is_a_difference() -> None:
    check_printed(["a", "…", "d e…"], ["a", "b", "d e f", ""], is_all=True)
    with pytest.raises(AssertionError, match="not printed: c"):
        check_printed(["a", "c"], ["a", "b"])
    with pytest.raises(AssertionError, match="printed, but not shown: b"):
        check_printed(["a"], ["a", "b"], is_all=True)
