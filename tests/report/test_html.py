"""The page a notebook shows: complete, self-contained, and harmless."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure
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
