"""The live table of a model's tasks: what it shows, how often, and what it does with hostile text."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

from rich.console import Console
from rich.text import Text

from stormdrop.report.progress import print_tuned
from stormdrop.tuning.events import Ended, Event, Moved, Proving, Started, Warned
from stormdrop.tuning.tuned import TaskRow, Tuned, TunedTask
from tests.report.test_progress import PEAK, shown
from tests.support.searches import HOSTILE, one_thread, schedule, tiny

ROWS = (
    TaskRow("t0", "Conv3x3+Relu", 3, 2e8, known=7),
    TaskRow("t1", "MatMul", 1, 1e8),
    TaskRow("t2", "Transpose", 1, 0.0),
)
STARTED = Started("net", ROWS, "storm+droplet", None, 300.0, cold=True)
FIRST = replace(
    ROWS[0],
    seconds=4e-3,
    default_seconds=5e-3,
    trials=6,
    failed=1,
    phase="storm",
    origin="droplet",
    expected_gain=0.0123,
)
SECOND = replace(ROWS[1], seconds=2e-3, default_seconds=2e-3, trials=6, phase="storm")
THIRD = replace(ROWS[2], seconds=1e-4, default_seconds=1e-4, trials=1, phase="small")


def tuned(stopped: str = "seconds") -> Tuned:
    tasks = [
        TunedTask(
            *astuple(replace(r, flops=tiny().flops, phase="proved")),
            task=tiny(),
            schedule=schedule(1),
            default=schedule(2),
            verified=True,
        )
        for r in (FIRST, SECOND, THIRD)
    ]
    return Tuned("net", one_thread().with_cold_weights(True), "storm+droplet", 0, tuple(tasks), 61.0, stopped)


def seconds_apart(seconds: float) -> Callable[[Event], float]:
    return lambda _: seconds


SLOWLY = seconds_apart(10.0)


def story() -> list[Event]:
    return [
        STARTED,
        Moved(FIRST, 10.0, 0.0246),
        Moved(SECOND, 20.0),
        Moved(THIRD, 30.0),
        Proving(2, 40.0),
        Moved(replace(FIRST, phase="proved"), 50.0),
        Ended(tuned()),
    ]


def test_the_first_line_says_whether_it_continues() -> None:
    lines = shown([STARTED]).splitlines()
    assert lines == [
        "continuing: 7 trials of 1 of 3 tasks known",
        "tuning net: storm+droplet over 3 tasks, at most 5:00 min, weights out of cache",
    ]
    fresh = replace(STARTED, rows=ROWS[1:], trials=9, seconds=None, cold=False)
    assert shown([fresh]).splitlines() == [
        "starting: none of 2 tasks known",
        "tuning net: storm+droplet over 2 tasks, at most 9 trials",
    ]


def test_without_a_terminal_there_is_a_plain_line_every_few_seconds() -> None:
    text = shown(story(), moved=SLOWLY)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert lines[2] == (
        "  6 trials, 1 failed, 10.0 s of 5:00 min, another minute may gain 2.5%; estimated 12.0 ms "
        "(defaults 15.0 ms, 1 of 3 tasks); t0 Conv3x3+Relu: storm, 4.00 ms, 50.0 GFLOP/s, 50.0% of peak"
    )
    assert lines[4].endswith("estimated 14.1 ms (defaults 17.1 ms); t2 Transpose: small, 100 µs")
    assert lines[5] == "timing the best of 2 tasks again in turns, and proving the winners"
    many = [STARTED, *[Moved(FIRST, 1.0)] * 200]
    assert 3 <= len(shown(many, moved=lambda _: 0.1).splitlines()) - 2 <= 5


def test_the_table_has_all_figures_of_a_task_those_that_take_longest_first() -> None:
    text = shown([STARTED, Moved(SECOND, 10.0), Moved(FIRST, 20.0)], terminal=True)
    table = Text.from_ansi(text[text.rindex("GFLOP ") :]).plain.splitlines()
    first = next(k for k, line in enumerate(table) if "Conv3x3" in line)
    second = next(k for k, line in enumerate(table) if "MatMul" in line)
    figures = ["3", "0.200", "4.000", "50.0", "50.0%", "6", "1", "1.23%", "droplet", "storm"]
    assert table[first].split() == ["t0", "Conv3x3+Relu", *figures]
    assert first < second
    assert "estimated 14.0 ms (defaults 17.0 ms, 2 of 3 tasks)" in text
    assert "12 trials, 1 failed, 20.0 s of 5:00 min" in text


def test_a_table_that_is_too_high_is_cut_and_says_so() -> None:
    rows = tuple(TaskRow(f"t{k}", "MatMul", 1, 1e6, seconds=1e-3, default_seconds=1e-3) for k in range(50))
    text = shown([replace(STARTED, rows=rows)], terminal=True, height=20)
    table = Text.from_ansi(text[text.rindex("GFLOP ") :]).plain
    assert len(table.splitlines()) <= 20
    assert "and 36 more, 36.0 ms together" in table


def test_the_table_is_drawn_at_most_four_times_a_second_and_no_line_is_too_wide() -> None:
    text = shown([STARTED, *[Moved(FIRST, 1.0)] * 100], terminal=True, width=50, moved=lambda _: 0.01)
    assert text.count("count") <= 6
    last = Text.from_ansi(text[text.rindex("task") :]).plain
    assert max(map(len, last.splitlines())) <= 50


def test_in_eighty_columns_times_and_phases_are_still_seen() -> None:
    rows = tuple(replace(FIRST, id=f"t{k}", label="Conv1x1/2+Add+Add+Relu") for k in range(3))
    text = shown([replace(STARTED, rows=rows), Moved(rows[0], 1.0)], terminal=True, width=80)
    table = Text.from_ansi(text[text.rindex("task ") :]).plain.splitlines()
    assert table[1].split()[0] == "t0"
    assert {"4.000", "storm"} <= set(table[1].split())
    assert max(map(len, table)) <= 80
    out = io.StringIO()
    print_tuned(Console(file=out, width=80, highlight=False, markup=False), tuned(), PEAK)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert all("proved" in line for line in out.getvalue().splitlines()[1:])


def test_a_row_of_the_live_table_names_the_node_and_the_shapes() -> None:
    row = replace(FIRST, node="block/conv", shapes="1x4x4x8, 3x3x8x8 → 1x4x4x8")
    text = shown([replace(STARTED, rows=(row,)), Moved(row, 1.0)], terminal=True, width=160)
    table = Text.from_ansi(text[text.rindex("task ") :]).plain.splitlines()
    assert table[1].split()[0] == "t0"
    assert table[1].endswith("block/conv  1x4x4x8, 3x3x8x8 → 1x4x4x8")


def test_the_cursor_is_given_back_when_tuning_breaks_off() -> None:
    text = shown(story()[:3], terminal=True)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_warnings_are_shown_at_once_and_hostile_names_are_harmless() -> None:
    rows = (replace(FIRST, label=HOSTILE),)
    events: Sequence[Event] = [
        replace(STARTED, name=HOSTILE, rows=rows),
        Warned(f"t0 fails: {HOSTILE}"),
        Moved(rows[0], 9.0),
        Ended(tuned()),
    ]
    plain = shown(events)
    assert "t0 fails: " in plain
    assert "\x1b" not in plain
    assert "\u202e" not in plain + shown(events, terminal=True)
    assert "[red]x[/]" in plain
    assert len(plain.splitlines()) == 4


def test_an_interrupted_search_says_so() -> None:
    assert "interrupted after 13 trials; the results so far follow" in shown([STARTED, Ended(tuned("interrupted"))])


def test_the_final_table_compares_with_the_defaults() -> None:
    out = io.StringIO()
    print_tuned(Console(file=out, width=200, highlight=False, markup=False), tuned(), PEAK)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines[0] == [
        "task",
        "what",
        "count",
        "GFLOP",
        "default",
        "ms",
        "best",
        "ms",
        "GFLOP/s",
        "of",
        "peak",
        "share",
        "trials",
        "failed",
        "next",
        "min",
        "from",
        "state",
        "node",
        "shapes",
    ]
    assert [line[0] for line in lines[1:]] == ["t0", "t1", "t2"]
    assert lines[1][2:] == [
        "3",
        "0.000",
        "5.000",
        "4.000",
        "0.0",
        "0.0%",
        "85.1%",
        "6",
        "1",
        "1.23%",
        "droplet",
        "proved",
    ]
