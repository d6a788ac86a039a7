"""What the pages say is true: their Python runs, their commands, links, modules and files exist, their figures are the
recorded ones.

The Python blocks of one page are one session, run in order in a folder of their own that holds model.onnx and
small.onnx. A block marked ```python fragment is only compiled. Where a block tunes for some seconds, it gets a few
trials instead. A block whose first line is the name of a Python file is that file. A text block right after a Python
block shows what that one prints; `…` stands for what was left out. Console blocks run in tests/test_console_blocks.py;
only the commands of marked ones are parsed here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from onnx import TensorProto, helper

import stormdrop
from benchmarks import choice, core, division, gpu, models, ranking, replayed, scaling, search, stopping, transfer
from benchmarks.reuse.table import Table, read_rows, stored_tables
from benchmarks.reuse.text import report
from stormdrop.cli.main import main
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.frontend.microsoft import UNDER_THE_STANDARD_NAME
from stormdrop.frontend.onnx import IMPORTERS
from stormdrop.operators.catalogue import OPERATORS
from stormdrop.operators.node import OperatorKind
from stormdrop.operators.table import GRAPH_OPERATORS
from stormdrop.zoo import NETWORKS
from tests.support.pages import PAGES, README, ROOT, blocks, check_printed, console_blocks, page_name
from tests.support.tiny_onnx import saved

DEMO = ROOT / "examples" / "demo.sh"
FIGURES = ROOT / "docs" / "figures.md"
RESULTS = ROOT / "benchmarks" / "results"
DEMO_VARIABLES = {"$network": "resnet18", "$time": "60s", "$against": "--against onnxruntime"}
MEASURED = re.compile(r"^\d[\d.,]*\s*(?:x|ms|µs|s|GB/s|GFLOP/s)$")
OPERATOR = "One operator, before and after tuning"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own, and a directory to write into."""
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def code_spans(page: Path) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


# ---- Python ----------------------------------------------------------------------------------------------------------


def image_model(folder: Path) -> Path:
    """What a page's model.onnx may be: the mean of each of two filters' results over a picture."""
    w = np.random.default_rng(7).standard_normal((2, 3, 32, 32)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["t"], strides=[32, 32]),
        helper.make_node("GlobalAveragePool", ["t"], ["output"]),
    ]
    return saved(folder, nodes, {"input": [1, 3, 224, 224]}, {"output": TensorProto.FLOAT}, {"w": w}, file="model.onnx")


def run_page(page: Path, folder: Path) -> dict[str, Any]:
    """Run a page's blocks as one module; what they defined."""
    (folder / "tests").symlink_to(ROOT / "tests")
    image_model(folder)
    runpy.run_path(str(ROOT / "examples" / "small.py"))
    names: dict[str, Any] = {"__name__": "page"}
    session = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
    for code, shown in session.findall(page.read_text()):
        if file := re.match(r"# (\w+\.py)\n", code):
            (folder / file[1]).write_text(code)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(re.sub(r"seconds=\d+", "trials=4", code), page.name, "exec"), names)
        check_printed(shown.splitlines(), output.getvalue().splitlines())
    return names


@pytest.mark.parametrize("page", [p for p in PAGES if p is not README and blocks(p, "python")], ids=page_name)
def test_python_of_a_page_runs(page: Path, folder: Path) -> None:
    run_page(page, folder)


def test_python_of_the_readme_computes_what_it_says(folder: Path) -> None:
    names = run_page(README, folder)
    tiles = names["x"].reshape(3, 7, 32, 7, 32)
    filters = next(a for v, a in read_graph(folder / "model.onnx").constants.items() if v.rank == 4)
    expected = np.einsum("cyixj,ocij->o", tiles, filters) / 49
    for y in (names["y"], names["model"](names["x"])):  # of the model in memory, and of the one written and read
        np.testing.assert_allclose(y.reshape(2), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python fragment")], ids=page_name)
def test_fragments_are_python(page: Path) -> None:
    for code in blocks(page, "python fragment"):
        compile(code, page.name, "exec")


def test_the_small_model_has_the_tasks_that_its_page_shows(folder: Path) -> None:
    runpy.run_path(str(ROOT / "examples" / "small.py"))
    page = (ROOT / "docs" / "models.md").read_text()
    for line in re.sub(r": f32\[[^]]*\]", "", str(tasks_of(read_graph(folder / "small.onnx")))).splitlines():
        assert f"    {line}\n" in page


# ---- Commands --------------------------------------------------------------------------------------------------------


def stormdrop_commands() -> Iterator[tuple[str, list[str]]]:
    """Yields every `stormdrop …` that no test runs: in marked blocks, the figures' sentences and the demo."""
    for page in PAGES:
        marked = [command.text for block in console_blocks(page) if block.mark for command in block.commands]
        lines = [text.removeprefix("stormdrop ") for text in marked if text.startswith("stormdrop ")]
        if page == FIGURES:
            lines += [span.removeprefix("stormdrop ") for span in code_spans(page) if span.startswith("stormdrop ")]
        for line in lines:
            yield page.name, shlex.split(line.split(" | ")[0], comments=True)
    for line in re.findall(r"^stormdrop (.*)$", DEMO.read_text(), re.MULTILINE):
        for name, value in DEMO_VARIABLES.items():
            line = line.replace(name, value)
        yield "demo.sh", shlex.split(line)


def test_pages_show_every_command_for_models() -> None:
    commands = [command.text for page in PAGES for block in console_blocks(page) for command in block.commands]
    shown = {text.split()[1] for text in commands if text.startswith("stormdrop ")}
    assert {"bench", "check", "compile", "info", "op", "run", "show", "tune", "zoo"} <= shown


@pytest.mark.parametrize(
    ("page", "args"), list(stormdrop_commands()), ids=lambda x: x if isinstance(x, str) else " ".join(x)
)
def test_commands_are_spelt_as_they_are_understood(page: str, args: list[str], folder: Path) -> None:
    with click.Context(main) as root:
        name, command, rest = main.resolve_command(root, args)
        assert command is not None, f"{page}: stormdrop {args[0]}"
        while isinstance(command, click.Group) and rest:
            name, command, rest = command.resolve_command(root, rest)
            assert command is not None
        if rest != ["--help"]:
            command.make_context(name, rest, parent=root)  # raises where an option or an argument is wrong


def is_runnable(module: str) -> bool:
    """Returns whether `python -m` runs a module: a package needs a module `__main__`."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.submodule_search_locations is None:
        return spec is not None
    return importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize("page", [*PAGES, DEMO, ROOT / "Makefile"], ids=page_name)
def test_scripts_and_make_targets_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    missing = [f"make {t}" for t in re.findall(r"(?:`|\$ )make ([a-z]+)", text) if t not in targets]
    missing += [m for m in re.findall(r"python\"? -m ([\w.]+)", text) if not is_runnable(m)]
    missing += [f for f in re.findall(r"python ([\w/]+\.py)", text) if not (ROOT / f).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_extras_of_a_page_install_from_a_clone(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"'\.\[(\w+)\]'", page.read_text())) <= set(extras)
    assert "stormdrop[" not in page.read_text()  # no release that pip could find by name


# ---- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", prose(page))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = [s for s in code_spans(page) if re.fullmatch(r"(?:[\w-]+/)+[\w.-]*\.(?:md|py|json|sh|npz)", s)]
    assert [n for n in named if not (ROOT / n).exists() and not (ROOT / "stormdrop" / n).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_modules_and_names_that_a_page_names_exist(page: Path) -> None:
    dotted = [s for s in code_spans(page) if re.fullmatch(r"stormdrop(?:\.\w+)+", s)]
    assert [d for d in dotted if not is_importable(d)] == []
    public = re.findall(r"\bsd\.(\w+)", page.read_text())
    assert [n for n in public if not hasattr(stormdrop, n)] == []


def is_importable(dotted: str) -> bool:
    """A module, or a name in one."""
    if importlib.util.find_spec(dotted.rpartition(".")[0]) is None:
        return False
    parent = importlib.import_module(dotted.rpartition(".")[0])
    return hasattr(parent, dotted.rpartition(".")[2]) or importlib.util.find_spec(dotted) is not None


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_lines_end_at_120_columns(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if len(line) > 120] == []


# ---- Counts ----------------------------------------------------------------------------------------------------------

COUNTS = {
    r"(\d+) (?:ONNX operators|operators of ONNX)\b": len(IMPORTERS.keys() - UNDER_THE_STANDARD_NAME.keys()),
    r"(\d+) operators of the graph\b": len(GRAPH_OPERATORS),
    r"(\d+) of them elementwise\b": sum(
        operator.kind is OperatorKind.POINTWISE for operator in GRAPH_OPERATORS.values()
    ),
    r"(?:one of|the) (\d+) operators\b": len(OPERATORS),
    r"(\d+) well-known networks\b": len(NETWORKS),
}
"""The number of things in the package, by the pattern of its mentions on pages."""


@pytest.mark.parametrize("mention", COUNTS)
def test_counts_of_pages_are_those_of_the_code(mention: str) -> None:
    counts = {page_name(page): re.findall(mention, " ".join(page.read_text().split())) for page in PAGES}
    mentions = {page: numbers for page, numbers in counts.items() if numbers}
    assert mentions, "no page has such a count: remove the pattern"
    assert {page: numbers for page, numbers in mentions.items() if set(numbers) != {str(COUNTS[mention])}} == {}


def test_every_operator_of_the_graph_stands_in_its_table() -> None:
    table = (
        (ROOT / "docs" / "models.md")
        .read_text()
        .partition("### Canonical operators")[2]
        .partition("Each operator is one record")[0]
    )
    names = {name for name, operator in GRAPH_OPERATORS.items() if operator.kind is not OperatorKind.POINTWISE}
    assert sorted(names - set(re.findall(r"\w+", table))) == []


def test_the_promised_versions_of_python_are_those_of_the_package() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)]
    assert f"Python {versions[0]} to {versions[-1]}." in (ROOT / "docs" / "compatibility.md").read_text()


# ---- Figures ---------------------------------------------------------------------------------------------------------


def sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def rows(text: str) -> list[str]:
    """The rows of tables that hold a number, with single blanks."""
    return [
        " ".join(line.split()) for line in text.splitlines() if line.startswith("|") and re.search(r"\|\s*\d", line)
    ]


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """What the benchmarks' --table prints from the recorded results."""

    def recorded(name: str) -> dict[str, Any]:
        return json.loads((RESULTS / f"{name}.json").read_text())

    ranking.show(recorded("ranking"))
    tables = [core.table(recorded("core")), models.table(recorded("models")), replayed.report(recorded("replayed"))]
    tables += [scaling.table(recorded("scaling")), gpu.table(recorded("gpu")), stopping.table_of(recorded("stopping"))]
    tables += [search.table(recorded(name)) for name in ("search", "search-emeraldrapids")]
    tables += [transfer.table(recorded("transfer")), division.table(recorded("division"))]
    tables += [choice.table(recorded("choice"))]
    tables += [report(Table.of(read_rows(path))) for path in stored_tables()]
    return "\n".join([*tables, capsys.readouterr().out])


def test_figures_are_those_that_the_benchmarks_print(capsys: pytest.CaptureFixture[str]) -> None:
    text, page = printed(capsys), sections(FIGURES)
    page.pop(OPERATOR)
    everything = " ".join("\n".join(page.values()).split())
    wanted = [" ".join(line.split()) for line in text.splitlines() if re.search(r"\d", line)]
    assert [line for line in wanted if line not in everything] == []
    assert [row for section in page.values() for row in rows(section) if row not in set(rows(text))] == []


def test_figures_name_their_command() -> None:
    for title, text in sections(FIGURES).items():
        before = text.partition("|---")[0]
        assert re.search(r"`(?:python -m benchmarks\.|stormdrop )", before), title


def test_figures_of_the_readme_stand_in_the_page_of_figures() -> None:
    known = set(rows(FIGURES.read_text()))
    shown = rows(README.read_text())
    assert shown
    assert [row for row in shown if row not in known] == []


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in (README, FIGURES) and "dev" not in p.parts], ids=page_name
)
def test_other_pages_hold_no_measured_figures_in_tables(page: Path) -> None:
    cells = [c.strip() for line in prose(page).splitlines() if line.startswith("|") for c in line.split("|")]
    assert [c for c in cells if MEASURED.fullmatch(c)] == []
