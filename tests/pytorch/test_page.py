"""docs/pytorch.md: its table is the recorded run, and its Python runs where torch is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stormdrop.compiler.pytorch import backend
from tests.pytorch.suite import recorded

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_the_table_is_the_recorded_run() -> None:
    rows = [
        f"| {name} | {found['kernels']} | {found['compiled']:.1e} | {found['in_torch_compile']:.1e} |"
        for name, found in sorted(recorded()["models"].items())
    ]
    shown = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [\w ]+ \| \d", line)]
    assert shown == rows
    assert len(rows) >= 15


def test_the_number_of_operators_is_the_recorded_one() -> None:
    assert f" {len(recorded()['operators'])} operators" in PAGE.read_text()


def test_no_part_of_a_recorded_model_ran_in_pytorch() -> None:
    assert [name for name, found in recorded()["models"].items() if found["remarks"]] == []


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"backend": backend}  # by its name where the package is installed
    for code in re.findall(r"^```python fragment\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(code.replace('backend="stormdrop"', "backend=backend"), names)
