"""Kernels that write down every byte they read or write: their LLVM IR with a call before each access to memory.

log = TraceLog()
code = assemble(log.instrumented(text), target)
...                                     # run some of it
log.taken()                             # rows of begin, end, whether it was written; in bytes of the address space
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST = 1 << 21
BYTES = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}
VECTOR = re.compile(r"<(\d+) x (.+)>")
LOAD = re.compile(r"= load ([^,]+), ptr ([^,]+),")
STORE = re.compile(r"^store (.+), ptr ([^,]+), align")
MASKED = re.compile(
    r"@llvm\.masked\.(load|store)\.v\d+(\w+)\.p0\((?:<.*> .*?, )?ptr ([^,]+), i32 \d+, (<\d+ x i1> .*)\)$"
)
LANES = re.compile(
    r"@llvm\.masked\.(gather|scatter)\.v(\d+)(\w+)\.v\d+p0\((?:.*, )?(<\d+ x ptr> [^,]+), i32 \d+, (<\d+ x i1> .*)\)$"
)
MASK = re.compile(r"<\d+ x i1> (?:<[^>]*>|splat \([^)]*\)|%[\w.]+|zeroinitializer)")

TRACE = """
define internal void @trace(ptr %at, i64 %bytes, i64 %written) nounwind {{
  %some = icmp ne i64 %bytes, 0
  br i1 %some, label %note, label %done
note:
  %log = inttoptr i64 {address} to ptr
  %n = load i64, ptr %log, align 8
  %n.next = add i64 %n, 1
  store i64 %n.next, ptr %log, align 8
  %row = getelementptr [3 x i64], ptr %log, i64 %n.next
  %begin = ptrtoint ptr %at to i64
  %end = add i64 %begin, %bytes
  %end.at = getelementptr i64, ptr %row, i64 1
  %written.at = getelementptr i64, ptr %row, i64 2
  store i64 %begin, ptr %row, align 8
  store i64 %end, ptr %end.at, align 8
  store i64 %written, ptr %written.at, align 8
  br label %done
done:
  ret void
}}
"""


def _bytes(kind: str) -> int:
    vector = VECTOR.fullmatch(kind)
    if vector:
        return int(vector[1]) * _bytes(vector[2])
    return BYTES[kind] if kind in BYTES else -(-int(kind[1:]) // 8)


def _item_bytes(suffix: str) -> int:
    """Of `f32` or `i64` in an intrinsic's name."""
    return int(re.sub(r"\D", "", suffix)) // 8


class TraceLog:
    """The memory to which instrumented code writes; one thread at a time."""

    def __init__(self) -> None:
        self._rows = np.zeros((MOST, 3), np.int64)
        self._names = 0

    def instrumented(self, text: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("  "):
                lines += self._calls(line.strip())
            lines.append(line)
        return "\n".join(lines) + TRACE.format(address=self._rows.ctypes.data)

    def taken(self) -> npt.NDArray[np.int64]:
        count = int(self._rows[0, 0])
        assert count < MOST - 1
        self._rows[0, 0] = 0
        return self._rows[1 : count + 1].copy()

    def _calls(self, line: str) -> list[str]:
        if found := LOAD.search(line):
            return [f"  call void @trace(ptr {found[2]}, i64 {_bytes(found[1])}, i64 0)"]
        if found := STORE.search(line):
            kind = re.match(r"<[^>]*>|\S+", found[1])
            assert kind is not None
            return [f"  call void @trace(ptr {found[2]}, i64 {_bytes(kind[0])}, i64 1)"]
        if "@llvm.masked." not in line:
            assert not re.search(r"\b(load|store|memcpy|memset)\b", line), line
            return []
        if found := MASKED.search(line):
            masks = MASK.match(found[4])
            assert masks is not None, line
            lanes, item = int(masks[0][1 : masks[0].index(" ")]), _item_bytes(found[2])
            pointers = [f"getelementptr i8, ptr {found[3]}, i64 {k * item}" for k in range(lanes)]
            return self._lanes(masks[0], pointers, item, found[1] == "store")
        found = LANES.search(line)
        assert found is not None, line
        masks, lanes = MASK.match(found[5]), int(found[2])
        assert masks is not None, line
        pointers = [f"extractelement {found[4]}, i32 {k}" for k in range(lanes)]
        return self._lanes(masks[0], pointers, _item_bytes(found[3]), found[1] == "scatter")

    def _lanes(self, mask: str, pointers: Sequence[str], item: int, is_written: bool) -> list[str]:
        found: list[str] = []
        for k, pointer in enumerate(pointers):
            self._names += 1
            name = f"%traced.{self._names}"
            found += [
                f"  {name} = {pointer}",
                f"  {name}.live = extractelement {mask}, i32 {k}",
                f"  {name}.bytes = select i1 {name}.live, i64 {item}, i64 0",
                f"  call void @trace(ptr {name}, i64 {name}.bytes, i64 {int(is_written)})",
            ]
        return found


KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)


@dataclass(frozen=True)
class Conflict:
    """An iteration touched a byte that another iteration of its group wrote, or wrote one that it touched. The group is
    told by its first step.
    """

    first_step: int
    iterations: tuple[int, int]


def conflicts(records: npt.NDArray[np.int64], log: TraceLog, memory: Sequence[npt.NDArray[np.uint8]]) -> list[Conflict]:
    """Runs the steps of a pool's job, group by group and iteration by iteration, and reports for each group the first
    conflict of two iterations in one of these blocks of memory.
    """
    blocks = [(block.ctypes.data, block.nbytes) for block in memory]
    found: list[Conflict] = []
    at = 0
    while at < len(records):
        size, extent = int(records[at, 7]), int(records[at, 6])
        writer = [np.full(nbytes, -1, np.int64) for _, nbytes in blocks]  # the last iteration that wrote the byte
        reader = [np.full(nbytes, -1, np.int64) for _, nbytes in blocks]
        conflict: Conflict | None = None
        for i in range(extent):
            for entry, table, scratch, _, phase, steps, *_ in records[at : at + size].tolist():
                begin, end = -(-steps * i // extent), -(-steps * (i + 1) // extent)
                log.taken()
                if begin < end:
                    KERNEL(entry)(table, scratch, phase, begin, end)
                for first, last, is_written in np.unique(log.taken(), axis=0).tolist():
                    for k, (base, nbytes) in enumerate(blocks):
                        if base <= first < base + nbytes:
                            part = slice(first - base, last - base)
                            others = [writer[k][part], *([reader[k][part]] if is_written else [])]
                            for other in others:
                                strange = other[(other >= 0) & (other != i)]
                                if conflict is None and len(strange):
                                    conflict = Conflict(at, (int(strange[0]), i))
                            (writer if is_written else reader)[k][part] = i
        found += [conflict] if conflict is not None else []
        at += size
    return found
