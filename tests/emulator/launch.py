"""Runs a kernel: the threads of many blocks in lockstep, or warp after warp between barriers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from tests.emulator.accesses import Accesses
from tests.emulator.compiling import Code, Edge, Segment, compile_function
from tests.emulator.copies import CopyQueue
from tests.emulator.faults import Fault, FaultKind
from tests.emulator.intrinsics import special_step
from tests.emulator.llvm_types import Array
from tests.emulator.memory import GlobalBuffer, KernelArgument, Memory
from tests.emulator.races import RaceLog
from tests.emulator.reading import Function, Module
from tests.emulator.threads import WARP, Frame, Mask, Threads

TOGETHER = 8192
"""Threads that run together, if blocks are small enough."""
MOST_THREADS, MOST_SHARED_BYTES = 1024, 227 * 1024
MOST_SEGMENTS = 500_000
MOST_GROUPS = 8
"""Of warps that run one after the other: a block of more warps has several in a group, in lockstep."""

Warps = Literal["together", "forward", "backward", "random"]
Copies = Literal["early", "late", "random"]


@dataclass(frozen=True, slots=True)
class Order:
    """In which of the allowed orders a launch runs; its result must not depend on it.

    `warps`: all threads in lockstep, or one warp of each block after the other between barriers. `copies`: when
    asynchronous copies land. Blocks run in a random order unless the seed is 0.
    """

    seed: int = 0
    warps: Warps = "together"
    copies: Copies = "late"

    @staticmethod
    def drawn(seed: int) -> Order:
        """Mostly in lockstep, which is fastest."""
        rng = np.random.default_rng([7, seed])
        warps: Sequence[Warps] = ("together", "together", "together", "forward", "backward", "random")
        copies: Sequence[Copies] = ("early", "late", "random")
        return Order(seed + 1, warps[int(rng.integers(6))], copies[int(rng.integers(3))])


def launch(
    module: Module,
    name: str,
    *,
    blocks: int,
    threads: int,
    shared_bytes: int = 0,
    arguments: Sequence[KernelArgument] = (),
    order: Order = Order(),
    most_segments: int = MOST_SEGMENTS,
) -> None:
    """Run one kernel of a module; writable arguments are changed in place. Raises Fault, Unsupported."""
    function = module.functions[name]
    limit = function.attribute("nvvm.maxntid") or MOST_THREADS
    if not 0 < threads <= min(limit, MOST_THREADS) or shared_bytes > MOST_SHARED_BYTES or blocks < 1:
        text = f"{blocks} blocks of {threads} threads with {shared_bytes} shared bytes; {name} takes {limit} threads"
        raise Fault(FaultKind.LAUNCH, text)
    if len(arguments) != len(function.parameters):
        raise Fault(FaultKind.LAUNCH, f"{name} takes {len(function.parameters)} arguments, not {len(arguments)}")
    with np.errstate(all="ignore"):
        _Launch(module, function, blocks, threads, shared_bytes, arguments, order, most_segments).run()


class _Launch:
    def __init__(
        self,
        module: Module,
        function: Function,
        blocks: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[KernelArgument],
        order: Order,
        most_segments: int,
    ) -> None:
        self.module, self.function, self.blocks, self.threads, self.order = module, function, blocks, threads, order
        self.together = min(blocks, max(1, TOGETHER // threads))
        constants = {c.name: c.data for c in module.constants.values() if c.data is not None}
        granule = granule_of(module)
        offsets = [a.skew if isinstance(a, GlobalBuffer) else a.offset for a in arguments if a is not None]
        granule = min([granule, *(offset & -offset for offset in offsets if offset)])
        self.memory = Memory(arguments, constants, self.together, shared_bytes, granule)
        self.accesses = Accesses(self.memory, RaceLog(self.memory, threads))
        self.rng = np.random.default_rng([8, order.seed])
        self.left = most_segments
        self._codes: dict[str, Code] = {}
        self._queues: dict[int, CopyQueue] = {}

    # What steps need

    def queue(self, threads: Threads) -> CopyQueue:
        return self._queues[id(threads)]

    def defines(self, name: str) -> bool:
        return name in self.module.functions

    def code(self, name: str) -> Code:
        if name not in self._codes:
            self._codes[name] = compile_function(self.module.functions[name], partial(special_step, self))
        return self._codes[name]

    def call(self, name: str, f: Frame, arguments: list[Any]) -> Any:
        """A routine of the module, called by the present threads of a frame."""
        activation = Activation(self, self.code(name), f.threads, arguments, f.mask)
        activation.advance()
        return activation.result

    def lands_early(self) -> bool:
        return self.order.copies == "early" or (self.order.copies == "random" and self.rng.random() < 0.5)

    # The launch

    def run(self) -> None:
        starts = np.arange(0, self.blocks, self.together)
        for start in self.rng.permutation(starts) if self.order.seed else starts:
            self._run_blocks(int(start), min(self.together, self.blocks - int(start)))
        self.memory.check_invariance()
        self.memory.copy_back()

    def _run_blocks(self, first: int, count: int) -> None:
        self.memory.poison_shared()
        self.accesses.pending[:] = 0
        self.accesses.pending_count = 0
        warps = -(-self.threads // WARP)
        size = WARP * (warps if self.order.warps == "together" else -(-warps // MOST_GROUPS))
        groups = [np.arange(k, min(k + size, self.threads)) for k in range(0, self.threads, size)]
        running = [self._activation(Threads(self.memory, first, count, group, self.threads)) for group in groups]
        while True:
            for k in self._warp_order(len(running)):
                running[k].advance()
            self._check_barrier(running)
            self.accesses.log.end_epoch()
            if all(a.has_ended for a in running):
                return
            for a in running:
                a.release()

    def _activation(self, threads: Threads) -> Activation:
        self._queues[id(threads)] = CopyQueue(self.accesses, threads.count, self.lands_early)
        arguments = [np.int64(address) for address in self.memory.addresses]
        return Activation(self, self.code(self.function.name), threads, arguments, None)

    def _warp_order(self, count: int) -> list[int]:
        if self.order.warps == "random":
            return [int(k) for k in self.rng.permutation(count)]
        return list(range(count))[:: -1 if self.order.warps == "backward" else 1]

    def _check_barrier(self, running: list[Activation]) -> None:
        """All threads of a block must wait at one barrier, or have ended."""
        first, last = (np.full(self.together, value) for value in (1 << 30, -1))
        for a in running:
            places = a.places()
            np.minimum.at(first, a.threads.position, places)
            np.maximum.at(last, a.threads.position, places)
        wrong = np.nonzero((first < last) & (last >= 0))[0]
        if len(wrong):
            block, at = int(wrong[0]), int(last[wrong[0]])
            barrier = running[0].code.segments[at].last
            where = "have ended" if first[block] < 0 else f"wait at {running[0].code.segments[first[block]].last}"
            number = running[0].threads.block[0] + block
            raise Fault(FaultKind.DIVERGENT_BARRIER, f"block {number}\n  {barrier}\n  but other threads {where}")


class Activation(Frame):
    """Threads that run a function: which segments they are to run next, and who waits or has ended."""

    def __init__(self, machine: _Launch, code: Code, threads: Threads, arguments: Sequence[Any], mask: Mask) -> None:
        super().__init__(threads, code.slots)
        self.machine, self.code = machine, code
        self.ready: dict[int, Mask] = {0: mask}
        self.waiting: dict[int, Mask] = {}
        self.result: Any = None
        for slot, value in code.constants:
            self.regs[slot] = value
        for slot, value in zip(code.parameters, arguments):
            self.regs[slot] = value
        for slot, name in code.symbols:
            self.regs[slot] = self._symbol(name)

    def _symbol(self, name: str) -> Any:
        symbol, _, offset = name.partition("+")
        symbols = self.machine.memory.symbols
        base = np.int64(symbols[symbol]) if symbol in symbols else self.threads.shared_base
        return base + np.int64(offset or 0)

    @property
    def has_ended(self) -> bool:
        return not self.ready and not self.waiting

    def release(self) -> None:
        """Pass the barrier."""
        for number, mask in self.waiting.items():
            self.narrow(mask)
            self._follow(self.code.segments[number].edges[0], mask)
        self.waiting = {}

    def places(self) -> Array:
        """The segment at whose end each thread waits; -1: it has ended."""
        found = np.full(self.threads.count, -1)
        for number, mask in self.waiting.items():
            found[slice(None) if mask is None else mask] = number
        return found

    def advance(self) -> None:
        """Run until all threads wait or have ended. The first segment in the text goes first, so that threads that
        diverged meet again.
        """
        while self.ready:
            number = min(self.ready)
            self.narrow(self.ready.pop(number))
            self.machine.left -= 1
            if self.machine.left < 0:
                raise Fault(FaultKind.HANG, f"too many steps; the last one at {self.code.segments[number].last}")
            segment = self.code.segments[number]
            regs = self.regs
            for step, emptied in segment.steps:
                step(self)
                for slot in emptied:
                    regs[slot] = None
            self._leave(number, segment)

    def _leave(self, number: int, segment: Segment) -> None:
        mask = self.mask
        if segment.is_barrier:
            self._join(self.waiting, number, mask)
        elif not segment.edges:
            if segment.result >= 0:
                self._return(self.regs[segment.result])
        elif segment.condition < 0:
            self._follow(segment.edges[0], mask)
        else:
            self._branch(segment.edges, self.regs[segment.condition])

    def _return(self, value: Any) -> None:
        if self.result is None or self.mask is None:
            self.result = value
        else:
            self.result = np.where(self.mask[:, None] if self.code.result.lanes else self.mask, value, self.result)

    def _branch(self, edges: tuple[Edge, ...], condition: Any) -> None:
        mask = self.mask
        if condition.ndim == 0:
            self._follow(edges[0 if condition else 1], mask)
            return
        yes, no = (condition, ~condition) if mask is None else (mask & condition, mask & ~condition)
        if not no.any():
            self._follow(edges[0], mask)
        elif not yes.any():
            self._follow(edges[1], mask)
        else:
            self._follow(edges[0], yes)
            self._follow(edges[1], no)

    def _follow(self, edge: Edge, mask: Mask) -> None:
        if edge.copies:
            self.narrow(mask)
            values = [self.regs[source] for _, source, _ in edge.copies]
            for (to, _, is_vector), value in zip(edge.copies, values):
                self.put(to, value, is_vector)
        self._join(self.ready, edge.segment, mask)

    def _join(self, places: dict[int, Mask], number: int, mask: Mask) -> None:
        before = places.get(number)
        if mask is not None and before is not None:
            both = before | mask
            mask = None if both.all() else both
        places[number] = mask


def granule_of(module: Module) -> int:
    """The largest unit of which every access of a module is a multiple."""
    sizes = [4]
    for function in module.functions.values():
        for block in function.blocks:
            for i in block.instructions:
                if i.opcode in ("load", "store"):
                    sizes.append(min(i.type.item_bytes, i.align))
                elif i.opcode == "call" and i.name.startswith("llvm.masked."):
                    vector = i.type if i.type.element != "void" else i.operands[0].type
                    sizes.append(vector.item_bytes)
    return min(sizes)
