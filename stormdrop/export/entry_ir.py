"""The entry points of a C library as LLVM IR text: open, run and close, around the thread pool and the kernels.

A handle is one block of memory, zeroed when it is made:

    handle · control block of the pool · pointer tables of all steps · steps · arena · scratch of each thread ·
    crew (thread, block, number)

`open` fills the tables with all addresses but those of the caller's arrays, `run` adds these and hands the list of
steps to the pool, which goes through it as it does for `Model`. Linux is reached through libc: mmap, pthread_create,
and what they need.

Invariant: nothing but the three functions is visible outside the library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stormdrop.export.entry_text import FUNCTIONS, TYPES
from stormdrop.export.processor import fits_text
from stormdrop.ir.expr import ITEMSIZE
from stormdrop.runtime.artifact import SLACK_BYTES
from stormdrop.runtime.compatible import required_features
from stormdrop.runtime.host_device import scratch_stride
from stormdrop.runtime.image import Image
from stormdrop.runtime.memory import HUGE_BYTES, HUGE_FROM_BYTES
from stormdrop.runtime.pool import CROWDED_SPIN_SECONDS, SPIN_SECONDS
from stormdrop.runtime.pool_ir import (
    BLOCK_ALIGN,
    SPIN_TICKS_OFFSET,
    SPREAD_OFFSET,
    STEP_WORDS,
    THREADS_OFFSET,
    block_bytes,
    pool_ir,
)
from stormdrop.runtime.threads import MOST_THREADS
from stormdrop.target import whole_lines

_CREW_BYTES = 24
_LATER = 0
_KINDS = {"weights": 1, "arena": 2}


@dataclass(frozen=True, slots=True)
class SymbolNames:
    """The symbols of a library."""

    prefix: str

    @property
    def weights(self) -> str:
        return f"{self.prefix}_weights"

    def kernel(self, number: int) -> str:
        return f"{self.prefix}_kernel_{number}"

    def prepare(self, number: int) -> str:
        return f"{self.prefix}_prepare_{number}"


def entry_ir(image: Image, names: SymbolNames, machine: str) -> str:
    """The module for one of `pool_ir.MACHINES`."""
    # The pool's functions are called `run` and `stop`, and must not meet others of that name.
    pool = re.sub(r"(?m)^define (?!internal )", "define internal ", pool_ir(machine))
    features = required_features(image.cpu, image.features) or frozenset()
    text = FUNCTIONS.replace("$PREFIX$", names.prefix).replace("$WEIGHTS$", names.weights)
    for name, value in _numbers(image).items():
        text = text.replace(f"${name}$", str(value))
    return "\n".join([pool, fits_text(machine, features), TYPES, _tables(image, names), text])


def _numbers(image: Image) -> dict[str, int]:
    pointers = sum(len(step.addresses) for step in image.calls)
    binds = sum(a is not None and a.space in ("input", "output") for step in image.calls for a in step.addresses)
    block = BLOCK_ALIGN
    tables = block + -(-block_bytes(MOST_THREADS) // BLOCK_ALIGN) * BLOCK_ALIGN
    steps = tables + 8 * pointers
    arena = whole_lines(steps + 8 * STEP_WORDS * len(image.calls))
    scratch = arena + whole_lines(image.arena_bytes) + SLACK_BYTES
    return {
        "THREADS": image.threads,
        "MOST_THREADS": MOST_THREADS,
        "STEPS": len(image.calls),
        "POINTERS": pointers,
        "BINDS": binds,
        "BLOCK_AT": block,
        "POINTERS_AT": tables,
        "STEPS_AT": steps,
        "ARENA_AT": arena,
        "SCRATCH_AT": scratch,
        "STRIDE": scratch_stride(image.scratch_bytes),
        "CREW_BYTES": _CREW_BYTES,
        "THREADS_OFFSET": THREADS_OFFSET,
        "SPIN_OFFSET": SPIN_TICKS_OFFSET,
        "SPREAD_OFFSET": SPREAD_OFFSET,
        "HUGE": HUGE_BYTES,
        "HUGE_FROM": HUGE_FROM_BYTES,
        "SPIN": round(SPIN_SECONDS * 1e9),
        "CROWDED_SPIN": round(CROWDED_SPIN_SECONDS * 1e9),
    }


def _tables(image: Image, names: SymbolNames) -> str:
    """What is known of every pointer and every step when the library is made."""
    lines = [f"@{names.weights} = external hidden constant [{image.weights_bytes} x i8]"]
    for k, kernel in enumerate(image.kernels):
        lines.append(f"declare hidden void @{names.kernel(k)}(ptr, ptr, i64, i64, i64)")
        numbers = ", ".join(f"i64 {n}" for n in kernel.extents)
        lines.append(f"@extents.{k} = internal constant [{len(kernel.extents)} x i64] [{numbers}]")
    places: list[str] = []
    binds: list[str] = []
    plans: list[str] = []
    for step in image.calls:
        kernel = image.kernels[step.kernel]
        extents = f"ptr @extents.{step.kernel}, i64 {len(kernel.extents)}"
        plans.append(f"%plan {{ ptr @{names.kernel(step.kernel)}, i64 {8 * len(places)}, {extents} }}")
        for buffer, a in zip(kernel.buffers, step.addresses):
            if a is not None and a.space in ("input", "output"):
                mask, is_input = ITEMSIZE[buffer.dtype] - 1, int(a.space == "input")
                binds.append(
                    f"%bind {{ i64 {len(places)}, i64 {a.index}, i64 {a.offset}, i64 {mask}, i64 {is_input} }}"
                )
            kind, offset = (_LATER, 0) if a is None else (_KINDS.get(a.space, _LATER), a.offset)
            places.append(f"%place {{ i64 {kind}, i64 {offset} }}")
    for name, rows in (("place", places), ("bind", binds), ("plan", plans)):
        lines.append(f"@{name}s = internal constant [{len(rows)} x %{name}] [{', '.join(rows)}]")
    return "\n".join(lines)
