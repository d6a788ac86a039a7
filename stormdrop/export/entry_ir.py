"""The entry points of a C library as LLVM IR text: open, run and close, around the thread pool and the kernels.

A handle is one block of memory, zeroed when it is made:

    handle · control block of the pool · pointer tables of all steps · steps of each size · arena ·
    scratch of each thread · crew (thread, block, number)

`open` fills the tables with all addresses except the addresses of the caller's arrays. `run` adds these addresses and
passes the list of steps to the pool, which executes the list as for `Model`. Memory, threads and CPUs come from libc.

Invariant: nothing but the three functions is visible outside the library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stormdrop.device.arrays import HUGE_BYTES, HUGE_FROM_BYTES
from stormdrop.device.artifact import SLACK_BYTES, step_rows
from stormdrop.device.cpus import MOST_THREADS
from stormdrop.device.host import required_features
from stormdrop.device.host_device import scratch_stride
from stormdrop.device.pool.pool import CROWDED_SPIN_MICROSECONDS, SPIN_MICROSECONDS
from stormdrop.device.pool.pool_ir import (
    BLOCK_ALIGN,
    SPIN_TICKS_OFFSET,
    SPREAD_OFFSET,
    STEP_WORDS,
    THREADS_OFFSET,
    block_bytes,
    pool_ir,
)
from stormdrop.export.entry_text import FUNCTIONS, RUN, RUN_AT_SIZE, TYPES
from stormdrop.export.processor import fits_text
from stormdrop.ir.expr import ITEMSIZE
from stormdrop.model.image import Image
from stormdrop.target import whole_lines

_CREW_BYTES = 24


def entry_ir(images: Sequence[Image], prefix: str, machine: str) -> str:
    """Returns the module for a machine of `pool_ir.MACHINES`. Expects the symbols PREFIX_weights and PREFIX_kernel_N.

    `images` are the images of a model at several sizes; their kernels are numbered consecutively. With one image, `run`
    takes no number of the size.
    """
    # The pool's functions are called `run` and `stop`, and must not collide with other symbols.
    pool = re.sub(r"(?m)^define (?!internal )", "define internal ", pool_ir(machine))
    features = required_features(images[0].cpu, images[0].features) or frozenset()
    numbers = _numbers(images)
    text = (FUNCTIONS + (RUN if len(images) == 1 else RUN_AT_SIZE)).replace("$PREFIX$", prefix)
    for name, value in numbers.items():
        text = text.replace(f"${name}$", str(value))
    return "\n".join([pool, fits_text(machine, features), TYPES, _tables(images, prefix, numbers), text])


def _numbers(images: Sequence[Image]) -> dict[str, int]:
    calls = [call for image in images for call in image.calls]
    pointers = sum(len(call.addresses) for call in calls)
    tables = BLOCK_ALIGN + -(-block_bytes(MOST_THREADS) // BLOCK_ALIGN) * BLOCK_ALIGN
    words = pointers + STEP_WORDS * sum(len(group.phases) for image in images for group in image.all_groups)
    arena = whole_lines(tables + 8 * words)
    return {
        "THREADS": images[0].threads,
        "MOST_THREADS": MOST_THREADS,
        "SIZES": len(images),
        "WORDS": words,
        "BLOCK_AT": BLOCK_ALIGN,
        "POINTERS_AT": tables,
        "STEPS_AT": tables + 8 * pointers,
        "ARENA_AT": arena,
        "SCRATCH_AT": arena + max(whole_lines(image.arena_bytes) for image in images) + SLACK_BYTES,
        "STRIDE": scratch_stride(max(image.scratch_bytes for image in images)),
        "CREW_BYTES": _CREW_BYTES,
        "THREADS_OFFSET": THREADS_OFFSET,
        "SPIN_OFFSET": SPIN_TICKS_OFFSET,
        "SPREAD_OFFSET": SPREAD_OFFSET,
        "HUGE": HUGE_BYTES,
        "HUGE_FROM": HUGE_FROM_BYTES,
        "SPIN": round(SPIN_MICROSECONDS * 1e3),
        "CROWDED_SPIN": round(CROWDED_SPIN_MICROSECONDS * 1e3),
    }


def _tables(images: Sequence[Image], prefix: str, numbers: Mapping[str, int]) -> str:
    """Returns the constant tables of all sizes, pointers and steps."""
    lines = [f"@{prefix}_weights = external hidden constant [{images[0].weights_bytes} x i8]"]
    for k in range(sum(len(image.kernels) for image in images)):
        lines.append(f"declare hidden void @{prefix}_kernel_{k}(ptr, ptr, i64, i64, i64)")
    pointers: list[str] = []
    binds: list[str] = []
    steps: list[str] = []
    sizes: list[str] = []
    kernels = 0  # of the images before
    for image in images:
        first, begin = len(binds), numbers["STEPS_AT"] + 8 * len(steps)
        tables: list[int] = []  # the first pointer of each call
        for call in image.calls:
            tables.append(numbers["POINTERS_AT"] + 8 * len(pointers))
            for buffer, a in zip(image.kernels[call.kernel].buffers, call.addresses):
                word = _word()  # of an address that `run` sets, or that nobody reads
                if a is not None and a.space == "weights":
                    word = _word(f"@{prefix}_weights", a.offset)
                elif a is not None and a.space == "arena":
                    word = _word(offset=numbers["ARENA_AT"] + a.offset, is_relative=True)
                elif a is not None:
                    fields = (len(pointers), a.index, a.offset, ITEMSIZE[buffer.dtype] - 1, int(a.space == "input"))
                    binds.append(_row("bind", *fields))
                pointers.append(word)
        listed = step_rows(image.extents, image.all_groups)
        for row in listed:
            steps += [
                _word(f"@{prefix}_kernel_{kernels + image.calls[row.call].kernel}"),
                _word(offset=tables[row.call], is_relative=True),
                _word(offset=numbers["SCRATCH_AT"], is_relative=True),
                _word(offset=numbers["STRIDE"]),
                *(_word(offset=n) for n in row.words),
            ]
        kernels += len(image.kernels)
        sizes.append(_row("size", first, len(binds), begin, len(listed)))
    for name, rows in (("word", [*pointers, *steps]), ("bind", binds), ("size", sizes)):
        lines.append(f"@{name}s = internal constant [{len(rows)} x %{name}] [{', '.join(rows)}]")
    return "\n".join(lines)


def _row(kind: str, *fields: int) -> str:
    return f"%{kind} {{ {', '.join(f'i64 {n}' for n in fields)} }}"


def _word(base: str = "null", offset: int = 0, is_relative: bool = False) -> str:
    return f"%word {{ ptr {base}, i64 {offset}, i64 {int(is_relative)} }}"
