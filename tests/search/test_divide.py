"""Who gets the next round."""

from __future__ import annotations

from dataclasses import replace

from stormdrop.search.divide import ByShare, Standing

TASK = Standing(count=1, best=1e-3, trials=0, idle=0, is_open=True)


def given(tasks: list[Standing], rounds: int, batch: int = 16) -> list[int]:
    """Trials of each task after so many rounds in which nobody gains anything but his turn."""
    for _ in range(rounds):
        chosen = ByShare().next(tasks)
        assert chosen is not None
        tasks[chosen] = replace(tasks[chosen], trials=tasks[chosen].trials + batch)
    return [t.trials for t in tasks]


def test_the_task_with_the_largest_share_comes_first() -> None:
    assert ByShare().next([TASK, replace(TASK, count=3), replace(TASK, best=2e-3)]) == 1


def test_trials_grow_with_the_share() -> None:
    small, large = given([TASK, replace(TASK, count=4)], rounds=100)
    assert 3.5 < large / small < 4.5


def test_who_has_not_gained_for_long_falls_behind() -> None:
    assert ByShare().next([replace(TASK, idle=200), replace(TASK, best=0.5e-3)]) == 1


def test_trials_that_were_known_before_count() -> None:
    assert ByShare().next([replace(TASK, trials=500), replace(TASK, best=0.2e-3)]) == 1


def test_who_has_nothing_left_or_does_not_matter_or_never_ran_gets_nothing() -> None:
    closed, tiny, unknown = replace(TASK, is_open=False), replace(TASK, best=1e-6), replace(TASK, best=None)
    assert ByShare().next([closed, tiny, unknown]) is None
    assert ByShare().next([closed, tiny, unknown, TASK]) == 3
    assert ByShare().next([]) is None
