"""The lines that the search's benchmark prints of searches from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import search
from benchmarks.search_bench import Bench
from benchmarks.stored import StoredRows
from stormdrop.target.cpu import cross

CASE = "GMM 1 512 512 512"


def line_of(rows: dict[str, Any]) -> str:
    return next(x for x in search.table({"reach": rows}).splitlines() if CASE in x)


def test_the_line_of_reach_says_how_often_the_default_was_there_already() -> None:
    rows: dict[str, Any] = {
        f"{CASE} seed 0": {"seconds": 2.0, "default": 0.97},
        f"{CASE} seed 1": {"seconds": 4.0, "default": 0.95},
    }
    expected = "at 96% of peak after 2.0, 4.0 s (median 3.0; TVM 215"
    assert line_of(rows).endswith(f"{expected}; by the default schedule in 1 of 2)")
    older = {key: {"seconds": row["seconds"]} for key, row in rows.items()}
    assert line_of(older).endswith(f"{expected})")


def test_reach_records_the_share_of_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def from_nothing(case: Any, seed: int, threads: int) -> dict[str, Any]:
        return {"improvements": [[1.5, 0.95], [3.0, 1.1]], "wall": 9.0}

    monkeypatch.setattr(search, "from_nothing", from_nothing)
    stored = StoredRows(tmp_path / "found.json", None)
    search.part_reach(Bench(cross("avx512"), 1, stored, ()))
    row = stored.results["reach"][f"{CASE} seed 0"]
    assert (row["default"], row["seconds"], row["share"]) == (0.95, 3.0, 1.1)
