"""The page a notebook shows: complete, self-contained, and harmless."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure
from stormdrop.tuning.tuned import InModel, Tuned, TunedTask
from tests.support.searches import HOSTILE, tiny, tuned

IMAGE = re.compile(r'<img [^>]*src="data:image/png;base64,([^"]*)"/>')


def image_of(page: str) -> bytes:
    found = IMAGE.search(page)
    assert found is not None
    return b64decode(found[1], validate=True)


def test_a_tuned_task_shows_its_figures_and_its_schedule() -> None:
    page = tuned([4e-6, 2e-6, 1e-6])._repr_html_()
    for part in ("GMM 1 13 17 11", "1.00 µs", "GFLOP/s", "storm+droplet, seed 3: 3 trials", "s0.a0.1 = 3"):
        assert part in page


def test_nothing_is_loaded_and_nothing_runs() -> None:
    page = IMAGE.sub("", tuned([4e-6, 2e-6])._repr_html_())
    assert "<script" not in page
    assert not re.search(r"\b(src|href)=", page)
    assert "http" not in page


def test_all_text_is_escaped() -> None:
    search = tuned([1e-6, Failure("crash", HOSTILE)], HOSTILE, task=Task(tiny().outputs, name=HOSTILE), stopped=HOSTILE)
    search = replace(search, target=replace(search.target, name=HOSTILE))
    page = search._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert page.replace("\n", "").isprintable()


def test_every_tag_is_closed() -> None:
    open_tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

    Tags().feed(tuned([4e-6, 2e-6, 1e-6], droplet_from=2)._repr_html_())
    assert open_tags == []


@pytest.mark.parametrize(
    "results", [[1e-6], [900e-6, Failure("build", "x"), 4e-6, 2e-6, 3e-6], [1e-6 + 1e-9 * (n % 7) for n in range(5000)]]
)
def test_a_search_of_any_length_is_drawn_in_bounded_size(results: list[float | Failure]) -> None:
    image = image_of(tuned(results)._repr_html_())
    assert image.startswith(b"\x89PNG")
    assert len(image) < 1 << 20


def test_without_matplotlib_the_page_has_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        assert name == "matplotlib"

    monkeypatch.setattr("stormdrop.report.html.find_spec", missing)
    page = tuned([4e-6, 2e-6])._repr_html_()
    assert "<img" not in page
    assert "2.00 µs" in page


# ---- models


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
