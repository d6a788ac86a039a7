"""Steps of loads, stores and calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tests.emulator import arithmetic
from tests.emulator.accesses import Accesses
from tests.emulator.compiling import Slots, Step, assignment
from tests.emulator.copies import CopyQueue
from tests.emulator.faults import Fault, FaultKind, Unsupported
from tests.emulator.llvm_types import Array, Type
from tests.emulator.matrices import matrix_step, rounded_to_tf32
from tests.emulator.reading import Instruction
from tests.emulator.threads import Frame, Threads

_COPY = re.compile(r"llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\.(\d+)(\.s)?")
_SHUFFLE = re.compile(r"llvm\.nvvm\.shfl\.sync\.(up|down|bfly|idx)\.(i32|f32)")
_REGISTER = re.compile(r"llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.x")
_NOTHING = ("llvm.assume", "llvm.lifetime.start.p0", "llvm.lifetime.end.p0")


class Machine(Protocol):
    """What calls need of the launch."""

    @property
    def accesses(self) -> Accesses: ...
    @property
    def blocks(self) -> int: ...
    def queue(self, threads: Threads) -> CopyQueue: ...
    def call(self, name: str, f: Frame, arguments: list[Any]) -> Any: ...
    def defines(self, name: str) -> bool: ...


def special_step(machine: Machine, i: Instruction, slots: Slots) -> Step | None:
    """The step of a load, a store or a call; None if it does nothing. Raises Unsupported."""
    if i.opcode == "load":
        return _load(machine, i, slots)
    if i.opcode == "store":
        return _store(machine, i, slots)
    if i.name in _NOTHING:
        return None
    if machine.defines(i.name):
        return _routine(machine, i, slots)
    if found := _REGISTER.fullmatch(i.name):
        return _special_register(machine, i, slots, found[1])
    if found := _COPY.fullmatch(i.name):
        return _copy(machine, i, slots, int(found[1]))
    if i.name.startswith("llvm.nvvm.cp.async"):
        return _copy_group(machine, i, slots)
    if found := _SHUFFLE.fullmatch(i.name):
        return _exchange(i, slots, found[1])
    if step := matrix_step(machine, i, slots):
        return step
    if i.name.startswith("llvm.masked."):
        return _masked(machine, i, slots)
    return assignment(i, _elementwise(i), slots)


def _sources(i: Instruction, slots: Slots) -> list[int]:
    return [slots.of(operand) for operand in i.operands]


def _load(machine: Machine, i: Instruction, slots: Slots) -> Step:
    i.source = i.operands[0].type
    (address,) = _sources(i, slots)
    to, is_vector = slots.named(i.result), i.type.lanes > 0

    def step(f: Frame) -> None:
        f.put(to, machine.accesses.load(f, i, f.regs[address], i.type), is_vector)

    return step


def _store(machine: Machine, i: Instruction, slots: Slots) -> Step:
    i.source = i.operands[1].type
    value, address = _sources(i, slots)

    def step(f: Frame) -> None:
        machine.accesses.store(f, i, f.regs[address], f.regs[value], i.type)

    return step


def _routine(machine: Machine, i: Instruction, slots: Slots) -> Step:
    sources = _sources(i, slots)
    to = slots.named(i.result) if i.result else -1

    def step(f: Frame) -> None:
        value = machine.call(i.name, f, [f.regs[s] for s in sources])
        if to >= 0:
            f.put(to, value, i.type.lanes > 0)

    return step


def _special_register(machine: Machine, i: Instruction, slots: Slots, name: str) -> Step:
    to = slots.named(i.result)
    values: dict[str, Callable[[Frame], Any]] = {
        "tid": lambda f: f.threads.in_block,
        "ctaid": lambda f: f.threads.block,
        "ntid": lambda f: np.int32(f.threads.block_size),
        "nctaid": lambda f: np.int32(machine.blocks),
        "laneid": lambda f: f.threads.lane,
    }
    if name not in values:
        raise Unsupported(str(i))
    value = values[name]

    def step(f: Frame) -> None:
        f.regs[to] = value(f)

    return step


def _elementwise(i: Instruction) -> Callable[..., Any]:
    """An intrinsic that acts on each element, or reduces a vector."""
    parts = i.name.split(".")
    if parts[0] == "llvm" and parts[1] in arithmetic.MATHS:
        return arithmetic.MATHS[parts[1]]
    if i.name.startswith("llvm.fptosi.sat"):
        return arithmetic.saturated(i.type)
    if i.name.startswith("llvm.vector.reduce.") and parts[3] in arithmetic.REDUCTIONS:
        return arithmetic.REDUCTIONS[parts[3]]
    if i.name == "llvm.nvvm.f2tf32.rna":
        return rounded_to_tf32
    raise Unsupported(str(i))


# ---- asynchronous copies --------------------------------------------------------------------------------------------


def _copy(machine: Machine, i: Instruction, slots: Slots, nbytes: int) -> Step:
    sources = _sources(i, slots)
    if nbytes not in (4, 8, 16) or (".cg." in i.name and nbytes != 16):
        raise Unsupported(str(i))

    def step(f: Frame) -> None:
        given = [f.regs[s] for s in sources]
        size = given[2] if len(given) > 2 else np.int32(nbytes)
        machine.queue(f.threads).issue(f, i, nbytes, given[0], given[1], size)

    return step


def _copy_group(machine: Machine, i: Instruction, slots: Slots) -> Step:
    kind = i.name.removeprefix("llvm.nvvm.cp.async.")
    if kind == "commit.group":
        return lambda f: machine.queue(f.threads).commit(f)
    if kind == "wait.group":
        groups = int(i.operands[0].constant)
    elif kind == "wait.all":
        groups = -1
    else:
        raise Unsupported(str(i))
    return lambda f: machine.queue(f.threads).wait(f, groups)


# ---- shuffles -------------------------------------------------------------------------------------------------------


def _exchange(i: Instruction, slots: Slots, kind: str) -> Step:
    mask, value, operand, limits = _sources(i, slots)
    to = slots.named(i.result)

    def step(f: Frame) -> None:
        regs = f.regs
        members = np.broadcast_to(regs[mask], (f.threads.count,)).view(np.uint32).astype(np.int64)
        source = _source_lane(f.threads, kind, regs[operand], regs[limits])
        f.put(to, _exchanged(f, i, members, source, regs[value], i.type), False)

    return step


def _source_lane(threads: Threads, kind: str, operand: Any, limits: Any) -> Array:
    """The lane that each thread reads, as PTX defines `shfl.sync`."""
    lane = threads.lane.astype(np.int64)
    b = np.asarray(operand, np.int64) & 31
    segment, clamp = (np.asarray(limits, np.int64) >> 8) & 31, np.asarray(limits, np.int64) & 31
    last, first = (lane & segment) | (clamp & ~segment), lane & segment
    if kind == "up":
        source, is_inside = lane - b, lane - b >= last
    elif kind == "down":
        source, is_inside = lane + b, lane + b <= last
    elif kind == "bfly":
        source, is_inside = lane ^ b, (lane ^ b) <= last
    else:
        source = first | (b & ~segment)
        is_inside = source <= last
    return np.where(is_inside, source, lane)


def _exchanged(f: Frame, i: Instruction, members: Array, source: Array, value: Any, type: Type) -> Array:
    """What each thread gets; garbage from a thread that does not exist or is no member."""
    t = f.threads
    active = np.ones(t.count, np.bool_) if f.mask is None else f.mask
    is_member = (members >> t.lane) & 1 == 1
    if not is_member[active].all():
        raise Fault(FaultKind.SHUFFLE, f"a thread that executes it is not in its mask\n  {i}")
    here = np.zeros(t.count, np.int64)
    np.add.at(here, t.warp_start[active], np.int64(1) << t.lane[active].astype(np.int64))
    exists = (np.int64(1) << t.warp_size.astype(np.int64)) - 1
    missing = members & exists & ~here[t.warp_start]
    if missing[active].any():
        k = int(np.nonzero(active & (missing != 0))[0][0])
        lanes = [n for n in range(32) if int(missing[k]) >> n & 1]
        where = f"warp {t.in_block[k] // 32} of block {t.block[k]}"
        raise Fault(FaultKind.SHUFFLE, f"lanes {lanes} of {where} are in its mask but are not there\n  {i}")
    values = np.broadcast_to(value, (t.count,))
    defined = (source < t.warp_size) & ((members >> np.minimum(source, 31)) & 1 == 1)
    position = np.where(defined, t.warp_start + source, np.arange(t.count))
    return np.where(defined, values[position], type.garbage())


# ---- vectors under a mask -------------------------------------------------------------------------------------------


def _masked(machine: Machine, i: Instruction, slots: Slots) -> Step:
    """llvm.masked.{load, store, gather, scatter}: one access per element whose bit is set."""
    kind = i.name.split(".")[2]
    numbers = [k for k, operand in enumerate(i.operands) if operand.type == Type("i32") and not operand.name]
    found = re.search(r"align (\d+)", i.text)
    i.align = int(i.operands[numbers[0]].constant) if numbers else int(found[1]) if found else 1
    operands = [operand for k, operand in enumerate(i.operands) if k not in numbers]
    is_write = kind in ("store", "scatter")
    type = operands[0].type if is_write else i.type
    item = type.scalar
    pointer = 1 if is_write else 0
    i.source = operands[pointer].type.scalar
    sources = [slots.of(operand) for operand in operands]
    to = slots.named(i.result) if i.result else -1

    def step(f: Frame) -> None:
        values = [f.regs[s] for s in sources]
        count, lanes = f.threads.count, type.lanes
        address = values[pointer]
        if kind in ("load", "store"):
            address = np.asarray(address)[..., None] + np.arange(lanes) * item.item_bytes
        address = np.broadcast_to(address, (count, lanes))
        bits = np.broadcast_to(values[pointer + 1], (count, lanes))
        if f.mask is not None:
            bits = bits & f.mask[:, None]
        threads, columns = np.nonzero(bits)
        chosen = address[threads, columns]
        if len(chosen):
            machine.accesses.check(f, i, chosen, threads, item.nbytes, is_write)
        if is_write:
            data = np.broadcast_to(values[0], (count, lanes))
            machine.accesses.memory.store(chosen, data[threads, columns], item)
            return
        result = np.broadcast_to(values[2], (count, lanes)).copy()
        result[threads, columns] = machine.accesses.memory.load(chosen, item)
        f.put(to, result, True)

    return step
