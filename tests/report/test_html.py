"""The page a notebook shows: complete, self-contained, and harmless."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure
from tests.support.searches import HOSTILE, tiny, tuned


def svg_of(page: str) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


def numbers(path: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?[\d.]+", path)]


def test_a_tuned_task_shows_its_figures_and_its_schedule() -> None:
    page = tuned([4e-6, 2e-6, 1e-6])._repr_html_()
    for part in ("GMM 1 13 17 11", "1.00 µs", "GFLOP/s", "storm+droplet, seed 3: 3 trials", "s0.a0.1 = 3"):
        assert part in page


def test_nothing_is_loaded_and_nothing_runs() -> None:
    page = tuned([4e-6, 2e-6])._repr_html_()
    assert "<script" not in page
    assert not re.search(r"\b(src|href)=", page)
    assert set(re.findall(r"https?://[^\"]*", page)) == {"http://www.w3.org/2000/svg"}


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


def test_the_curve_descends_within_its_frame() -> None:
    page = tuned([900e-6, Failure("build", "x"), 4e-6, 2e-6, 3e-6, 1e-6])._repr_html_()
    svg = svg_of(page)
    width, height = numbers(svg.attrib["viewBox"])[2:]
    paths = [p for p in svg.iter("{http://www.w3.org/2000/svg}path") if p.get("stroke") == "#0072b2"]
    assert len(paths) == 1
    levels = [float(n) for n in re.findall(r"V([\d.]+)", paths[0].attrib["d"])]
    assert levels == sorted(levels)
    assert len(levels) == 3
    assert all(0 <= y <= height for y in levels)
    dots = list(svg.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == 5
    assert all(0 <= float(d.attrib["cx"]) <= width and 0 <= float(d.attrib["cy"]) <= height for d in dots)


def test_the_droplets_part_is_shaded() -> None:
    assert "droplets" in tuned([3e-6, 2e-6, 1e-6], droplet_from=2)._repr_html_()
    assert "droplets" not in tuned([3e-6, 2e-6, 1e-6])._repr_html_()


def test_a_search_of_one_trial_can_be_drawn() -> None:
    svg_of(tuned([1e-6])._repr_html_())


def test_thousands_of_trials_make_a_page_of_bounded_size() -> None:
    page = tuned([1e-6 + 1e-9 * (n % 7) for n in range(5000)])._repr_html_()
    assert len(list(svg_of(page).iter("{http://www.w3.org/2000/svg}circle"))) <= 1000
