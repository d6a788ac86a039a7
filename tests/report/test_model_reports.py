"""Tables and JSON of models that need no compiling."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from stormdrop.base.errors import UserError
from stormdrop.compare.exact import CheckedOutput, ExactErrors
from stormdrop.compare.oracle import agreement
from stormdrop.compare.steady import Loops
from stormdrop.compiler.choose import Choice, Origin
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.device.host import detect
from stormdrop.graph.partition import Partition
from stormdrop.ir.shape import shape_text
from stormdrop.measure.stopwatch import Runs
from stormdrop.report.console import table_lines
from stormdrop.report.model_reports import (
    Listed,
    calls_text,
    find_task,
    name_text,
    print_outputs,
    print_tasks,
    summary_json,
)
from stormdrop.report.versus import bench_json, check_json, print_bench, print_check, speedup_of
from stormdrop.space.default import default_schedule
from tests.support.tiny_onnx import dense, reshaped


def printed(show: object, *args: object) -> str:
    text = io.StringIO()
    show(Console(file=text, width=1000, highlight=False, markup=False), *args)  # type: ignore[operator]
    return text.getvalue()


@pytest.fixture
def parts(tmp_path: Path) -> Partition:
    return tasks_of(read_graph(dense(tmp_path)))


def test_a_task_is_summed_up_by_its_large_operands(parts: Partition) -> None:
    use = find_task(parts, "first/dense")
    assert use.calls[0].shapes_text() == "2x6, 6x5 → 2x5"
    schedule = default_schedule(use.task, detect(1))
    tree = Listed(use, Choice(schedule, Origin.VERDICT)).to_json()
    assert (tree["shapes"], tree["node"]) == ("2x6, 6x5 → 2x5", "first/dense")
    assert (tree["id"], tree["count"], tree["stored"], tree["origin"]) == (use.id, 1, True, "verdict")
    assert tree["gflop"] >= 2 * 2 * 6 * 5 / 1e9


def test_names_of_nodes_are_printed_harmlessly(parts: Partition) -> None:
    for use in parts.tasks:
        assert calls_text(use).isprintable()
        assert "[" not in calls_text(use)
    out = printed(print_tasks, [Listed(use, Choice()) for use in parts.tasks])
    assert all(line.isprintable() for line in out.splitlines())


def test_a_narrow_terminal_sees_fewer_operands_and_columns_but_every_task(parts: Partition) -> None:
    listed = [Listed(use, Choice()) for use in parts.tasks]
    whole = printed(print_tasks, listed)
    assert "2x6, 6x5 → 2x5" in whole
    for width in (60, 45, 30):
        text = io.StringIO()
        print_tasks(Console(file=text, width=width, highlight=False, markup=False), listed)
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert [line.split()[0] for line in lines] == ["task", *(use.id for use in parts.tasks)]
        assert "→ 2x5" in lines[1]


def test_columns_are_spared_in_order_until_the_table_fits() -> None:
    headings, rows = ("a", "bbbb", "cc"), [("1", "2", "3"), ("x", "", "yyyy")]
    assert table_lines(headings, rows, (0,), (1, 2), 13) == ["a  bbbb    cc", "1     2     3", "x        yyyy"]
    assert table_lines(headings, rows, (0,), (1, 2), 12) == ["a    cc", "1     3", "x  yyyy"]
    assert table_lines(headings, rows, (0,), (1, 2), 0) == ["a", "1", "x"]


def test_an_exact_name_wins_over_parts_of_others(parts: Partition) -> None:
    assert find_task(parts, parts.tasks[0].id) is parts.tasks[0]
    assert find_task(parts, parts.tasks[-1].task.digest) is parts.tasks[-1]
    with pytest.raises(UserError, match="no task, node or value is called ~1bx"):
        find_task(parts, "\x1bx")
    with pytest.raises(UserError, match=r"fits \d tasks: t0 "):
        find_task(parts, "a")


def test_a_model_without_tasks_says_so(tmp_path: Path) -> None:
    graph = read_graph(reshaped(tmp_path), constants={"to": np.array([3, 2]), "x": np.ones((2, 3), np.float32)})
    empty = Partition(graph, ())
    assert "there are no tasks" in printed(print_tasks, [])
    with pytest.raises(UserError, match="tasks are none"):
        find_task(empty, "t0")


def test_shapes_and_names_in_words() -> None:
    assert shape_text(()) == "scalar"
    assert shape_text((1, 3, 5)) == "1x3x5"
    assert name_text("a\nb[red]") == "a\\nb[red]"
    assert len(name_text("x" * 1000)) == 60


def test_outputs_are_summed_up_without_what_is_not_finite() -> None:
    array = np.array([[1.0, np.nan], [3.0, -np.inf]], np.float32)
    assert summary_json("y", array) == {
        "name": "y",
        "shape": [2, 2],
        "dtype": "float32",
        "min": 1.0,
        "max": 3.0,
        "mean": 2.0,
        "not_finite": 2,
    }
    assert summary_json("y", np.zeros((0, 3)))["min"] is None
    assert summary_json("y", np.array([True, False]))["mean"] == 0.5
    out = printed(print_outputs, {"y\x1b": array, "none": np.zeros((0, 3), np.int64)})
    assert "y\\x1b" in out
    assert "not finite" in out


def test_errors_that_are_infinite_are_null_in_json() -> None:
    nowhere = agreement("y", np.array([np.nan]), np.array([1.0]))
    for checked in (
        CheckedOutput(nowhere),
        CheckedOutput(nowhere, ExactErrors(nowhere, nowhere, (np.inf,), (np.inf,))),
    ):
        tree = json.loads(json.dumps(check_json([checked], 1e-3), allow_nan=False))
        assert tree["outputs"][0]["absolute_error"] is None
    assert tree["outputs"][0]["rounding_change"] is None
    out = printed(print_check, "m.onnx", "somebody", [CheckedOutput(nowhere)], "random inputs")
    assert "not comparable" in out
    assert "1 of 1 output too far off" in out


def test_the_speedup_is_that_of_medians() -> None:
    def loops(*each: float) -> Loops:
        return Loops(Runs(np.array(each), False), np.array([10.0, 12.0, 14.0]), 1.5)

    times = {"stormdrop": loops(1.0, 2.0, 9.0), "onnxruntime": loops(4.0, 3.0, 5.0)}
    beside = {"stormdrop": loops(3.0), "onnxruntime": loops(9.0)}
    assert speedup_of(times) == 2.0
    rest = {"rested_seconds": 12.0, "cpu_seconds": 1.5}
    assert bench_json("m", 2, times, {1: beside}) == {
        "model": "m",
        "threads": 2,
        "stormdrop": {"median_seconds": 2.0, "min_seconds": 1.0, **rest},
        "onnxruntime": {"median_seconds": 4.0, "min_seconds": 3.0, **rest},
        "speedup": 2.0,
        "busy": {
            "1": {
                "stormdrop": {"median_seconds": 3.0, "min_seconds": 3.0, **rest},
                "onnxruntime": {"median_seconds": 9.0, "min_seconds": 9.0, **rest},
                "speedup": 3.0,
            }
        },
    }
    told = {"stormdrop": "by default", "onnxruntime": "all of it"}
    out = printed(print_bench, "m", 2, times, {1: beside}, told)
    for part in ("2.00x", "all of it", "beside 1 busy CPU", "stormdrop 1.50x slower, onnxruntime 2.25x slower"):
        assert part in out
    assert list(bench_json("m", 2, {"stormdrop": times["stormdrop"]}, {})) == ["model", "threads", "stormdrop"]
