"""Variables of the environment: read in one module, and known by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stormdrop.base.environment import VARIABLES, unknown_variables, variable
from stormdrop.doctor.doctor import _environment

ROOT = Path(__file__).parents[1]


def test_a_value_is_taken_without_white_space_and_nothing_is_empty() -> None:
    assert variable("STORMDROP_SPIN", {"STORMDROP_SPIN": " 5 "}) == "5"
    assert variable("STORMDROP_SPIN", {"STORMDROP_SPIN": " "}) == variable("STORMDROP_SPIN", {}) == ""


def test_a_misspelt_variable_is_found() -> None:
    assert unknown_variables({"STORMDROP_THREAD": "2", "STORMDROP_THREADS": "2", "PATH": ""}) == ["STORMDROP_THREAD"]


def test_doctor_names_a_variable_that_sets_nothing_and_says_how_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_SPIN", "5")
    found = _environment(1)
    assert (found.ok, found.detail) == (True, "threads spin for 5 µs before they sleep, on any CPU")
    monkeypatch.setenv("STORMDROP_SPINS", "5")
    found = _environment(1)
    assert (found.ok, found.detail) == (False, "STORMDROP_SPINS is no setting")
    assert "STORMDROP_SPIN," in found.advice
    monkeypatch.delenv("STORMDROP_SPINS")
    monkeypatch.setenv("STORMDROP_AFFINITY", "near")
    assert "STORMDROP_AFFINITY is 'near'" in _environment(1).detail


def test_one_module_reads_the_variables() -> None:
    reading = re.compile(r"""(environ\[|environ\.get\(|getenv\()\s*f?["']STORMDROP_""")
    sources = {path: path.read_text() for path in (ROOT / "stormdrop").rglob("*.py")}
    assert not [path for path, text in sources.items() if path.name != "environment.py" and reading.search(text)]


def test_the_pages_explain_every_variable() -> None:
    page = (ROOT / "docs" / "threads.md").read_text()
    assert not [name for name in VARIABLES if f"`{name}`" not in page]
