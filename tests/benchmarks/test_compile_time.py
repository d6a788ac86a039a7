"""The benchmark of what reuse adds to the time to compile: its arithmetic, its table, and where the experience lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import compile_time
from benchmarks.compile_time import compared, experience_of, measure, table
from stormdrop.ops.catalogue import build
from stormdrop.reservoir.experience import Experience, load, path_beside
from stormdrop.reservoir.store import FILE, Store
from stormdrop.target.cpu import Cpu
from tests.support.experiences import experience, random_schedule
from tests.support.records import HERE


def run(seconds: float, taken: int = 0) -> dict[str, Any]:
    return {"seconds": seconds, "tasks": 20, "taken": taken}


def known() -> Experience:
    task = build("GMM", (1, 16, 16, 16))
    return experience([(task, random_schedule(task, HERE))], HERE)


def test_medians_of_both_ways_are_compared() -> None:
    found = compared({"predicted": [run(2.4, 5), run(2.3, 5), run(9.0, 5)], "off": [run(1.0), run(2.0), run(7.0)]})
    assert found["seconds"] == {"predicted": 2.4, "off": 2.0}
    assert found["added"] == pytest.approx(0.2)
    assert (found["tasks"], found["taken"]) == (20, 5)


def test_both_ways_take_turns_in_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []

    def compiled(name: str, reuse: str, target: Cpu, experience: Experience) -> dict[str, Any]:
        ways.append(reuse)
        return run(1.0)

    monkeypatch.setattr(compile_time, "compiled_apart", compiled)
    assert measure("resnet34", HERE, known(), 2)["added"] == 0.0
    assert ways == ["predicted", "off", "off", "predicted"]


def test_the_table_has_what_is_added_to_each_model_and_their_mean() -> None:
    rows = [
        {"model": name, "isa": "avx2", "threads": 2, "repeats": 1}
        | compared({"predicted": [run(seconds, 5)], "off": [run(1.0)]})
        for name, seconds in (("resnet34", 1.21), ("squeezenet1_0", 1.0))
    ]
    lines = table({"machine": rows}).splitlines()
    assert lines[0] == "machine"
    assert lines[-3] == "| resnet34 | avx2 | 2 | 20 | 5 | 1.00 | 1.21 | 21.0% |"
    assert lines[-1] == "| geometric mean (2) | | | | | | | 10.0% |"


def test_a_store_that_teaches_nothing_leaves_nothing_to_compare(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    Store.open(path).close()
    with pytest.raises(SystemExit):
        experience_of(path, HERE)


def test_the_experience_lies_where_the_other_process_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = known()
    found: list[Experience | None] = []

    class Done:
        stdout = b'{"seconds": 1.0}'

    def ran(command: list[str], env: dict[str, str], **_: object) -> Done:
        found.append(load(path_beside(Path(env["STORMDROP_CACHE_DIR"]) / FILE, HERE), HERE))
        assert command[-2:] == ["--isa", HERE.isa]
        return Done()

    monkeypatch.setattr("subprocess.run", ran)
    assert compile_time.compiled_apart("resnet34", "off", HERE, wanted) == {"seconds": 1.0}
    (loaded,) = found
    assert loaded is not None
    assert loaded.donors == wanted.donors
