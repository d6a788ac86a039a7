"""What notebooks and prompts show for results of tuning: short, self-contained and harmless."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

import stormdrop as sd
from stormdrop.tuning.tuned import InModel, Tuned, TunedTask
from tests.support.searches import HOSTILE, tiny, tuned


def model(**changes: object) -> Tuned:
    search = tuned([4e-6, 2e-6])
    task = TunedTask(
        id="t0",
        label="Conv3x3+Relu",
        count=2,
        flops=1e6,
        seconds=2e-6,
        default_seconds=4e-6,
        trials=3,
        phase="proved",
        task=tiny(),
        schedule=search.best,
        default=None,
        verified=True,
        node="block1/conv",
        shapes="1x6x6x16, 3x3x16x16 → 1x6x6x16",
    )
    made = Tuned("net", search.target, "storm", 3, (task,), 61.0, "seconds", in_model=InModel(5e-3, 8e-3))
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


def test_a_tuned_model_shows_its_worth_and_its_tasks() -> None:
    page = model()._repr_html_()
    for part in ("net", "8.00 ms → 5.00 ms, 1.60x", "Conv3x3+Relu", "4.00 µs", "2.00x", "500.0", "1:01 min", "proved"):
        assert part in page
    for part in ("block1/conv", "1x6x6x16, 3x3x16x16 → 1x6x6x16", "<code>stormdrop show MODEL t0</code>"):
        assert part in page
    assert "(its kernels alone)" in model(in_model=None)._repr_html_()


def test_a_model_of_which_nothing_was_timed_is_shown() -> None:
    untimed = replace(model().tasks[0], seconds=None, default_seconds=None, failure="no memory")
    page = model(tasks=(untimed,), in_model=None)._repr_html_()
    assert "not timed" in page
    assert "no memory" in page


def test_nothing_of_a_model_s_names_is_markup() -> None:
    page = model(
        name=HOSTILE, stopped=HOSTILE, tasks=(replace(model().tasks[0], label=HOSTILE, node=HOSTILE, id=HOSTILE),)
    )._repr_html_()
    assert "<b>" not in page
    assert not re.search(r"<script|\b(src|href)=", page)
    assert page.isprintable()


def test_public_values_have_short_representations() -> None:
    task = tiny()
    shown = [model(), tuned([1e-6]), task, sd.sketches(task, sd.detect())[0], sd.detect(), sd.Store.in_memory()]
    kernel = sd.build(task, constants={t.name: np.zeros(t.shape, np.float32) for t in task.constants})
    for value in (*shown, kernel):
        assert len(repr(value)) < 160
        assert repr(value).startswith("<")
