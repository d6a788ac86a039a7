"""The pages of the repository, their blocks of code, and the comparison of printed lines with shown lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

MARKS = {
    "gpu": "needs an NVIDIA GPU",
    "ci": "continuous integration runs these commands",
    "hours": "runs for hours, or until Ctrl-C",
}
"""The reasons for which a console block is not executed by the tests; a mark and its reason stand in the fence."""

FENCE = re.compile(r"^```console(?P<mark>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConsoleCommand:
    """A command after `$ `, with the lines that the page shows as its output."""

    text: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConsoleBlock:
    """A block of commands; `mark` is empty or a key of `MARKS`."""

    line: int
    mark: str
    commands: tuple[ConsoleCommand, ...]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, info: str) -> list[str]:
    return re.findall(rf"^```{info}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def files_of(page: Path) -> dict[str, str]:
    """Returns the Python blocks that begin with the name of a file, and C blocks after a line that names one."""
    python = {m[1]: code for code in blocks(page, "python") if (m := re.match(r"# (\w+\.py)\n", code))}
    return python | dict(re.findall(r"^`(\w+\.c)`:\n\n```c\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def console_blocks(page: Path) -> list[ConsoleBlock]:
    """Returns the console blocks of a page.

    Raises ValueError if a fence has an unknown mark, or a block does not begin with a command.
    """
    text = page.read_text()
    return [
        ConsoleBlock(text.count("\n", 0, m.start()) + 1, _mark(m["mark"]), _commands(m["body"]))
        for m in FENCE.finditer(text)
    ]


def _mark(info: str) -> str:
    if not info:
        return ""
    for mark, reason in MARKS.items():
        if info == f" {mark} ({reason})":
            return mark
    raise ValueError(f"unknown mark of a console block: {info!r}")


def _commands(body: str) -> tuple[ConsoleCommand, ...]:
    first, *parts = re.split(r"^\$ ", body, flags=re.MULTILINE)
    if first:
        raise ValueError(f"a console block begins with a command, got {first!r}")
    commands: list[ConsoleCommand] = []
    for part in parts:
        match = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n", part)
        assert match is not None
        commands.append(ConsoleCommand(match[0].rstrip("\n"), tuple(part[match.end() :].splitlines())))
    return tuple(commands)


def check_printed(shown: Sequence[str], lines: Sequence[str], is_all: bool = False) -> None:
    """Asserts that the lines of a page were printed, one right after another.

    A line of `…` stands for any lines, `…` inside a line for any text. With `is_all` the page shows the last line too;
    blank lines at the end do not count.
    """
    position, skips = 0, False
    for line in shown:
        if line == "…":
            skips = True
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
        places = range(position, len(lines) if skips else min(position + 1, len(lines)))
        place = next((k for k in places if pattern.fullmatch(lines[k])), None)
        assert place is not None, f"not printed: {line}"
        position, skips = place + 1, False
    rest = [line for line in lines[position:] if line.strip()]
    assert skips or not is_all or not rest, f"printed, but not shown: {rest[0]}"
