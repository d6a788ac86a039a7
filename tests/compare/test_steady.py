"""The fair clock: sides in processes of their own."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.errors import RunError
from stormdrop.compare.steady import RESTED_CALLS, Side, neighbours, steady
from tests.support.tiny_onnx import INPUT, dense

X = {INPUT: np.ones((2, 6), np.float32)}


def compiled(folder: Path) -> Path:
    path = folder / "tiny.sd"
    sd.compile(dense(folder), threads=1).save(path)
    return path


def test_every_side_is_timed_in_loops_and_after_rests(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    sides = {
        "ours": Side("stormdrop", compiled(tmp_path), 1, X),
        "theirs": Side("onnxruntime", dense(tmp_path), 1, X),
    }
    told: list[str] = []
    found = steady(sides, 0.02, rounds=2, tell=told.append)
    assert list(found) == ["ours", "theirs"]
    for loops in found.values():
        assert loops.beside_per_second == 0
        assert len(loops.runs.each) >= 2
        assert (loops.runs.each > 0).all()
        assert len(loops.rested) == 2 * RESTED_CALLS
        assert loops.cpu_seconds > 0
    rounds = [line for line in told if line.startswith("round")]
    assert [line.split()[-1] for line in rounds] == ["ours", "theirs", "theirs", "ours"]


def test_a_side_that_cannot_run_says_why(tmp_path: Path) -> None:
    missing = {"ours": Side("stormdrop", tmp_path / "none.sd", 1, X)}
    with pytest.raises(RunError, match=r"ours cannot run the model: .*none\.sd"):
        steady(missing, 0.01)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(RunError, match="theirs cannot run the model: onnxruntime"):
        steady({"theirs": Side("onnxruntime", broken, 1, X)}, 0.01)


def test_a_side_that_dies_within_an_answer_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread request\nprintf '{\"each\": [0.1'\nexit 3\n")
    python.chmod(0o700)
    monkeypatch.setattr("stormdrop.compare.steady.sys.executable", str(python))
    with pytest.raises(RunError, match="ours ended with status 3"):
        steady({"ours": Side("stormdrop", tmp_path, 1, X)}, 0.01)


def test_neighbours_run_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen[bytes]):
        def __init__(self, command: list[str]) -> None:
            super().__init__(command)
            started.append(self)

    monkeypatch.setattr("stormdrop.compare.steady.subprocess.Popen", Watched)
    with neighbours(2):
        assert [process.poll() for process in started] == [None, None]
    assert all(process.poll() is not None for process in started)


def test_a_side_has_several_callers_and_a_model_beside_it(tmp_path: Path) -> None:
    ours = Side("stormdrop", compiled(tmp_path), 1, X, {"spin": 0})
    side = replace(ours, callers=3, beside=replace(ours, settings={"pool": "own"}, callers=2))
    (loops,) = steady({"ours": side}, 0.1, rounds=1, repeats=40).values()
    assert 40 <= len(loops.runs.each) < 60  # each caller may be in a run when the last one ends
    assert loops.runs_per_second > 0
    assert loops.beside_per_second > 0
    assert 0 < loops.cpu_seconds < 1
