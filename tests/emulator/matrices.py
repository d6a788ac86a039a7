"""Tensor-core instructions: `ldmatrix` and `mma.sync`, executed by whole warps.

Fragments are as PTX defines them: lane l of a warp holds row l / 4 and columns 2 (l mod 4), 2 (l mod 4) + 1 of an 8 × 8
matrix of 16-bit elements in one register. Products are exact and their sums are rounded once; a GPU rounds more often.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import numpy as np

from tests.emulator.accesses import Accesses
from tests.emulator.compiling import Slots, Step
from tests.emulator.faults import Fault, FaultKind, Unsupported
from tests.emulator.llvm_types import Array, Type
from tests.emulator.reading import Instruction
from tests.emulator.threads import WARP, Frame

_LOAD = re.compile(r"llvm\.nvvm\.ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.b16(?:\.p3)?")
_MULTIPLY = re.compile(r"llvm\.nvvm\.mma\.m16n8k(\d+)\.row\.col\.(bf16|tf32|f32\.f32)")
_GROUP, _IN_GROUP = np.divmod(np.arange(WARP), 4)
ROW = Type("i32", 4)


class Machine(Protocol):
    @property
    def accesses(self) -> Accesses: ...


def matrix_step(machine: Machine, i: Instruction, slots: Slots) -> Step | None:
    """None: another instruction."""
    sources = [slots.of(operand) for operand in i.operands]
    to = slots.named(i.result) if i.result else -1
    if found := _LOAD.fullmatch(i.name):
        count, is_transposed = int(found[1]), bool(found[2])
        i.source, i.align = i.operands[0].type, 16

        def load(f: Frame) -> None:
            f.regs[to] = _loaded(machine.accesses, f, i, f.regs[sources[0]], count, is_transposed)

        return load
    if found := _MULTIPLY.fullmatch(i.name):
        depth, kind = int(found[1]), found[2]
        if (depth, kind) not in ((16, "bf16"), (8, "bf16"), (16, "f32.f32"), (8, "f32.f32"), (8, "tf32"), (4, "tf32")):
            raise Unsupported(str(i))

        def multiply(f: Frame) -> None:
            f.regs[to] = _multiplied(f, i, [f.regs[s] for s in sources], depth, kind)

        return multiply
    return None


def _warps(f: Frame, i: Instruction) -> None:
    """All threads of every warp that executes it must be there."""
    t = f.threads
    is_whole = t.count % WARP == 0 and bool((t.warp_size == WARP).all())
    if is_whole and f.mask is not None:
        by_warp = f.mask.reshape(-1, WARP)
        is_whole = bool((by_warp.all(axis=1) | ~by_warp.any(axis=1)).all())
    if not is_whole:
        raise Fault(FaultKind.SHUFFLE, f"not all threads of a warp are there\n  {i}")


def _loaded(accesses: Accesses, f: Frame, i: Instruction, address: Any, count: int, is_transposed: bool) -> Any:
    """Lanes 8 q to 8 q + 7 give the addresses of the rows of matrix q."""
    _warps(f, i)
    addresses = np.broadcast_to(address, (f.threads.count,))
    active = np.ones(f.threads.count, np.bool_) if f.mask is None else f.mask
    lanes = np.nonzero(active & (f.threads.lane < 8 * count))[0]
    # Every lane gets parts of every row: the row's own lane and another one read it, so that any writer races.
    neighbours = np.where(f.threads.lane[lanes] == WARP - 1, lanes - (WARP - 1), lanes + 1)
    for readers in (lanes, neighbours):
        accesses.check(f, i, addresses[lanes], readers, 16, is_write=False)
    rows = np.zeros((f.threads.count, 4), np.int32)
    rows[lanes] = accesses.memory.load(addresses[lanes], ROW)
    matrices = rows.view(np.uint16).reshape(-1, 4, 8, 8)[:, :count]
    if is_transposed:
        matrices = matrices.swapaxes(2, 3)
    pairs = np.ascontiguousarray(matrices.reshape(-1, count, WARP, 2)).view(np.int32)[..., 0]
    registers = [pairs[:, q].reshape(-1) for q in range(count)]
    return registers[0] if count == 1 else tuple(registers)


def _multiplied(f: Frame, i: Instruction, registers: list[Any], depth: int, kind: str) -> Any:
    """D = A B + C of 16 × depth, depth × 8 and 16 × 8, for every warp."""
    _warps(f, i)
    warps = f.threads.count // WARP
    per = 1 if kind == "tf32" else 2
    a_count, b_count = 16 * depth // (WARP * per), 8 * depth // (WARP * per)
    given = (np.broadcast_to(r, (f.threads.count, *np.shape(r)[1:])) for r in registers[: a_count + b_count])
    wide = [_elements(register, kind, per) for register in given]
    a, b = np.zeros((warps, 16, depth)), np.zeros((warps, depth, 8))
    columns = _IN_GROUP * per
    for q in range(a_count):
        for k in range(per):
            a[:, _GROUP + 8 * (q % 2), columns + k + 4 * per * (q // 2)] = wide[q][:, :, k]
    for q in range(b_count):
        for k in range(per):
            b[:, columns + k + 4 * per * q, _GROUP] = wide[a_count + q][:, :, k]
    total = a @ b
    results: list[Array] = []
    for q, c in enumerate(registers[a_count + b_count :]):
        part = total[:, _GROUP + 8 * (q // 2), 2 * _IN_GROUP + q % 2].reshape(-1)
        results.append((part + np.asarray(c, np.float64)).astype(np.float32))
    return tuple(results)


def rounded_to_tf32(x: Array) -> Array:
    """The bits of an f32 rounded to a mantissa of 10 bits, ties away from zero; the bits below are zero."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, bits).astype(np.uint32).view(np.int32)


def _elements(register: Array, kind: str, per: int) -> Array:
    """A register of each thread as numbers: warps × lanes × elements."""
    if kind == "tf32":  # the 13 lowest bits are ignored
        bits = np.ascontiguousarray(register).view(np.uint32) & np.uint32(0xFFFFE000)
        numbers = bits.view(np.float32)[..., None]
    elif kind == "bf16":
        halves = np.ascontiguousarray(register).view(np.uint16).reshape(-1, 2).astype(np.uint32)
        numbers = (halves << 16).view(np.float32)
    else:
        numbers = np.ascontiguousarray(register).view(np.float16).reshape(-1, 2)
    return numbers.astype(np.float64).reshape(-1, WARP, per)
