"""The live view: what it shows, how often, and what it does with hostile text."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import replace

from rich.console import Console

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure
from stormdrop.report.progress import TuningProgress
from stormdrop.tuning.events import Event, Measured, Moved, Proving, StageStarted, Warned
from tests.support.searches import HOSTILE, events, tiny, tuned

PEAK = 100.0


class Clock:
    """Shows the time of the last event."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(
    happened: Iterable[Event],
    terminal: bool = False,
    width: int = 200,
    height: int = 40,
    moved: Callable[[Event], float] | None = None,
) -> str:
    """All that is written while these events happen, one second apart unless `moved` says otherwise."""
    out, clock = io.StringIO(), Clock()
    console = Console(
        file=out, force_terminal=terminal, width=width, height=height, highlight=False, markup=False, emoji=False
    )
    with TuningProgress(console, PEAK, clock) as progress:
        for event in happened:
            clock.now += moved(event) if moved else 1.0
            progress(event)
    return out.getvalue()


def test_without_a_terminal_each_round_is_one_plain_line() -> None:
    text = shown(events(tuned([4e-6, 2e-6, Failure("build", "x"), 1e-6], droplet_from=3), trials=4, known=7))
    lines = text.splitlines()
    assert lines[0] == "tuning GMM 1 13 17 11: storm+droplet over 3 sketches, at most 4 trials; 7 trials of it known"
    assert (
        lines[1] == "  2/4 measured, storm, 0 failed, best 2.00 µs, 2.4 GFLOP/s, 2.4% of peak; 2.0 candidates/s, 1.0 s"
    )
    assert (
        lines[2]
        == "  4/4 measured, droplet, 1 failed, best 1.00 µs, 4.9 GFLOP/s, 4.9% of peak; 2.0 candidates/s, 2.0 s"
    )
    assert len(lines) == 3
    assert "\x1b" not in text


def test_budgets_are_told_at_the_start() -> None:
    search = tuned([1e-6])
    assert "at most 30.0 s" in shown(events(search, seconds=30.0))
    assert "at most 9 trials or 30.0 s" in shown(events(search, trials=9, seconds=30.0))
    assert "until nothing is gained" in shown(events(search))


def test_plain_lines_come_about_once_a_second_and_the_last_round_is_told() -> None:
    search = tuned([1e-6] * 100)
    lines = shown(events(search), moved=lambda event: 0.1 if isinstance(event, Moved) else 0.0).splitlines()
    rounds = [line for line in lines if "measured" in line]
    assert 5 <= len(rounds) <= 7
    assert rounds[-1].startswith("  100 measured")


def test_before_anything_runs_the_view_says_so() -> None:
    assert "nothing ran yet" in shown(events(tuned([Failure("build", "x")] * 2)))


def test_the_board_shows_budget_best_phase_and_the_last_improvements() -> None:
    search = tuned([9e-6, 8e-6, 7e-6, 6e-6, 5e-6, 4e-6, 3e-6], droplet_from=6)
    text = shown(events(search, trials=10, seconds=20.0), terminal=True)
    board = text[text.rindex("tuning") :]
    for part in (
        "storm+droplet: droplet",
        "3.00 µs, 1.6 GFLOP/s, 1.6% of peak",
        "7 of 10, 0 failed, 2.0 candidates/s",
        "3.5 s of 20.0 s",
    ):
        assert part in board
    assert "s0.a0.1 6→7" in board
    assert "     7   3.00 µs     1.6%  s0.a0.1 6→7" in board
    assert "9.00 µs" not in board  # only the last five


def test_the_board_is_drawn_at_most_four_times_a_second() -> None:
    search = tuned([1e-6] * 100)
    text = shown(events(search), terminal=True, moved=lambda event: 0.01 if isinstance(event, Measured) else 0.0)
    assert text.count("tuning") <= 1 + 4 + 2  # the start, one second, the end


def test_no_line_of_the_board_is_wider_than_the_terminal() -> None:
    from rich.text import Text

    text = shown(events(tuned([9e-6, 8e-6, 7e-6]), trials=10), terminal=True, width=40)
    board = Text.from_ansi(text[text.rindex("tuning") :]).plain
    assert max(map(len, board.splitlines())) <= 40


def test_the_cursor_is_given_back_when_tuning_breaks_off() -> None:
    happened = list(events(tuned([1e-6, 2e-6])))[:-1]
    text = shown(happened, terminal=True)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_warnings_are_shown_at_once_in_either_view() -> None:
    happened: list[Event] = list(events(tuned([1e-6, 2e-6])))
    happened.insert(2, Warned("stopping after this batch; Ctrl-C again to abort"))
    for terminal in (False, True):
        assert "stopping after this batch; Ctrl-C again to abort" in shown(happened, terminal, moved=lambda _: 0.0)


def test_hostile_text_is_neither_markup_nor_control() -> None:
    task = tiny()
    named = Task(task.outputs, name=HOSTILE)
    search = replace(tuned([1e-6, 2e-6], task=named), strategy=HOSTILE)
    happened: list[Event] = [*events(search), Warned(HOSTILE), StageStarted(HOSTILE), Warned(HOSTILE)]
    plain = shown(happened)
    assert plain.replace("\n", "").isprintable()
    assert plain.count("[red]x[/]") >= 4
    live = shown(happened, terminal=True)
    assert "\x1b[31m<b>" not in live
    assert "\u202e" not in live


def test_the_final_choice_is_announced_after_the_last_round() -> None:
    *searched, ended = events(tuned([1e-6, 2e-6, 3e-6]))
    text = shown([*searched, Proving(1, 1.5), ended])
    assert text.index("  2 measured, storm") < text.index("timing the best few again in turns, and proving the winner")


def test_a_stage_after_the_search_is_a_line_below_the_board() -> None:
    text = shown([*events(tuned([1e-6, 2e-6])), StageStarted("compiling with defaults")], terminal=True)
    assert text.rindex("compiling with defaults") > text.rindex("tuning")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_an_interrupted_search_says_so() -> None:
    assert "interrupted after 2 trials" in shown(events(tuned([1e-6, 2e-6], stopped="interrupted")))


def test_a_second_search_begins_a_board_of_its_own() -> None:
    first, second = tuned([1e-6, 1e-6], "random"), tuned([8e-6, 8e-6], "storm")
    text = shown([*events(first), *events(second)])
    assert "over 3 sketches" in text.split("storm over")[0]
    assert "best 8.00 µs" in text


def test_a_task_without_operations_has_no_share_of_peak() -> None:
    from stormdrop.operators.catalogue import build

    task = build("TRN", (8, 8))
    assert task.flops == 0
    for terminal in (False, True):
        text = shown(events(tuned([1e-6, 2e-6], task=task)), terminal)
        assert "peak" not in text
        assert "GFLOP" not in text


def test_events_before_a_task_starts_are_survived() -> None:
    started = next(iter(events(tuned([1e-6]))))
    happened: list[Event] = [Proving(1, 0.0), Warned("early"), started]
    assert "early" in shown(happened)
