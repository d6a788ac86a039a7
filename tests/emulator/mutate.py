"""Mistakes that are made in a kernel's text, one at a time: the emulator must notice each that matters.

for mutation in mutations(text, HARMFUL): ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Change = Callable[[str], str | None]
"""A line with the mistake; None where the line has no place for it."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """`text` has one line changed, with the number `line` from 1."""

    mistake: str
    line: int
    was: str
    text: str

    def __str__(self) -> str:
        return f"{self.mistake}, line {self.line}: {self.was}"


def _dropped(pattern: str) -> Change:
    return lambda line: "" if re.search(pattern, line) else None


def _longer_wait(line: str) -> str | None:
    found = re.search(r"cp\.async\.wait\.group\(i32 (\d+)\)", line)
    return line.replace(f"(i32 {found[1]})", f"(i32 {int(found[1]) + 1})") if found else None


def _open_guard(line: str) -> str | None:
    """A branch that jumps over something always falls into it."""
    found = re.fullmatch(r"(\s*)br i1 \S+, label (%\S+), label (%\S+)", line)
    return f"{found[1]}br label {found[2]}" if found and "loop" not in line else None


def _whole_copy(line: str) -> str | None:
    """A copy that should be filled with zeros reads its source."""
    found = re.fullmatch(r"(\s*\S+) = select i1 \S+, i32 (4|8|16), i32 0", line)
    return f"{found[1]} = add i32 {found[2]}, 0" if found else None


def _wrong_lane(line: str) -> str | None:
    found = re.search(r"(shfl\.sync\.\w+\.\w+\(i32 \S+, \w+ \S+, i32) (\d+),", line)
    return line.replace(found[0], f"{found[1]} {int(found[2]) // 2},") if found else None


def _half_the_blocks(line: str) -> str | None:
    """Two blocks do the work of one."""
    found = re.fullmatch(r"(\s*)(%\S+) = (call i32 @llvm\.nvvm\.read\.ptx\.sreg\.ctaid\.x\(\))", line)
    return (
        f"{found[1]}{found[2]}.own = {found[3]}\n{found[1]}{found[2]} = lshr i32 {found[2]}.own, 1" if found else None
    )


def _same_thread(line: str) -> str | None:
    """Two threads do the work of one."""
    found = re.fullmatch(r"(\s*)(%\S+) = (call i32 @llvm\.nvvm\.read\.ptx\.sreg\.tid\.x\(\))", line)
    return (
        f"{found[1]}{found[2]}.own = {found[3]}\n{found[1]}{found[2]} = lshr i32 {found[2]}.own, 1" if found else None
    )


def _moved_store(line: str) -> str | None:
    """A store one element behind its place."""
    found = re.fullmatch(r"(\s*)store (.+) (\S+), (ptr(?: addrspace\(\d\))?) (\S+), align (\d+)", line)
    if not found:
        return None
    indent, type, value, pointer, place, align = found.groups()
    element = type.rpartition("x ")[2].strip("<>")
    name = f"%moved.{abs(hash(line)) % 10**9}"
    moved = f"{indent}{name} = getelementptr {element}, {pointer} {place}, i32 1"
    return f"{moved}\n{indent}store {type} {value}, {pointer} {name}, align {align}"


def _next_remainder(line: str) -> str | None:
    """The next stage of a ring, or another thread's share."""
    found = re.fullmatch(r"(\s*)(%\S+) = urem (i\d+) (\S+), (\d+)", line)
    if not found or found[5] == "1":
        return None
    indent, name, type, value, of = found.groups()
    return f"{indent}{name}.off = add {type} {value}, 1\n{indent}{name} = urem {type} {name}.off, {of}"


def _swapped_fragments(line: str) -> str | None:
    """The rows of an instruction's first and second half change places, of one operand only."""
    found = re.search(r"(mma\.m16n8k\S+\()((?:<2 x half>|i32) \S+), ((?:<2 x half>|i32) \S+),", line)
    return line.replace(found[0], f"{found[1]}{found[3]}, {found[2]},") if found else None


def _next_row(line: str) -> str | None:
    """A lane gives the address behind its own."""
    found = re.fullmatch(r"(\s*)(%\S+ = call .*ldmatrix\S+\(ptr addrspace\(3\)) (%\S+)\)", line)
    if not found:
        return None
    indent, call, place = found.groups()
    moved = f"{indent}{place}.next = getelementptr i8, ptr addrspace(3) {place}, i32 16"
    return f"{moved}\n{indent}{call} {place}.next)"


def _zero_identity(line: str) -> str | None:
    return line.replace("0xFFF0000000000000", "0.0") if "0xFFF0000000000000" in line else None


HARMFUL: dict[str, Change] = {
    "dropped barrier": _dropped(r"call void @llvm\.nvvm\.barrier\.cta"),
    "dropped wait": _dropped(r"call void @llvm\.nvvm\.cp\.async\.wait"),
    "wait for one group fewer": _longer_wait,
    "wrong lane": _wrong_lane,
    "two blocks for one": _half_the_blocks,
    "two threads for one": _same_thread,
    "moved store": _moved_store,
    "zero for the identity": _zero_identity,
    "swapped fragments": _swapped_fragments,
    "next row of a matrix": _next_row,
}
"""Wrong wherever the line is needed."""
SOMETIMES: dict[str, Change] = {
    "open guard": _open_guard,
    "copy without its condition": _whole_copy,
    "next remainder": _next_remainder,
}
"""Harmless where the guard always holds, where what is read beyond it is not used, or where threads only change places.
"""


def mutations(text: str, mistakes: Mapping[str, Change]) -> Iterator[Mutation]:
    lines = text.splitlines()
    for name, change in mistakes.items():
        for k, line in enumerate(lines):
            changed = change(line)
            if changed is not None:
                yield Mutation(name, k + 1, line.strip(), "\n".join([*lines[:k], changed, *lines[k + 1 :]]) + "\n")
