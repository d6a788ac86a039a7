"""From the instructions of a function to what the emulator runs: segments of steps.

A *segment* is a basic block, or a part of one between two barriers. Registers and constants have numbered slots; a
register that only its own segment uses is *local*: it needs no merging where threads diverge, and its slot is emptied
after its last use. Phis are copies on the edges between segments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.emulator import arithmetic
from tests.emulator.faults import Unsupported
from tests.emulator.llvm_types import FLOATS, Type
from tests.emulator.reading import BINARY, CASTS, Block, Function, Instruction, Value
from tests.emulator.threads import Frame

Step = Callable[[Frame], None]
Evaluate = Callable[..., Any]

BARRIERS = ("llvm.nvvm.barrier.cta.sync.aligned.all", "llvm.nvvm.barrier0")


@dataclass(slots=True)
class Edge:
    """A branch to a segment; the copies are (to, from, whether a vector)."""

    segment: int
    copies: list[tuple[int, int, bool]] = field(default_factory=list[tuple[int, int, bool]])


@dataclass(slots=True)
class Segment:
    steps: list[tuple[Step, tuple[int, ...]]]
    """Each with the slots that are empty afterwards."""
    condition: int = -1
    """The slot that decides between the two edges."""
    edges: tuple[Edge, ...] = ()
    """None: the function ends here."""
    is_barrier: bool = False
    """Threads wait before they take the edge."""
    result: int = -1
    """The slot of the value that is returned."""
    last: Instruction | None = None


@dataclass(slots=True)
class Code:
    """A function ready to run."""

    name: str
    segments: list[Segment]
    slots: int
    constants: list[tuple[int, Any]]
    parameters: list[int]
    symbols: list[tuple[int, str]]
    result: Type


def compile_function(function: Function, special: Callable[[Instruction, Slots], Step | None]) -> Code:
    """`special` makes steps of loads, stores and calls. Raises Unsupported."""
    return _Compiler(function, special).code()


class Slots:
    """Numbers registers, symbols and constants."""

    def __init__(self) -> None:
        self.of_name: dict[str, int] = {}
        self.constants: list[tuple[int, Any]] = []
        self._of_constant: dict[tuple[Type, bytes], int] = {}
        self.count = 0

    def named(self, name: str) -> int:
        if name not in self.of_name:
            self.of_name[name] = self._next()
        return self.of_name[name]

    def of(self, value: Value) -> int:
        if value.name:
            return self.named(value.name)
        text = repr(value.constant) if value.type.dtype == object else np.asarray(value.constant).tobytes()
        key = (value.type, text if isinstance(text, bytes) else text.encode())
        if key not in self._of_constant:
            self._of_constant[key] = self._next()
            self.constants.append((self._of_constant[key], value.constant))
        return self._of_constant[key]

    def _next(self) -> int:
        self.count += 1
        return self.count - 1


class _Compiler:
    def __init__(self, function: Function, special: Callable[[Instruction, Slots], Step | None]) -> None:
        self.function, self.special = function, special
        self.slots = Slots()
        self.pieces = [piece for block in function.blocks for piece in _cut(block)]
        self.start = {label: k for k, (label, _, is_first) in enumerate(self.pieces) if is_first}
        self.phis = {b.label: [i for i in b.instructions if i.opcode == "phi"] for b in function.blocks}
        self.local = self._local_registers()

    def code(self) -> Code:
        parameters = [self.slots.named(p.name) for p in self.function.parameters]
        segments = [self._segment(k) for k in range(len(self.pieces))]
        symbols = [(slot, name) for name, slot in self.slots.of_name.items() if name.startswith("@")]
        return Code(
            self.function.name,
            segments,
            self.slots.count,
            self.slots.constants,
            parameters,
            symbols,
            self.function.result,
        )

    def _local_registers(self) -> set[str]:
        """Registers that are used only in the segment that defines them, and by no phi."""
        home: dict[str, int] = {}
        for k, (_, body, _) in enumerate(self.pieces):
            for i in body:
                if i.result and i.opcode != "phi":
                    home[i.result] = k
        found = set(home)
        for k, (_, body, _) in enumerate(self.pieces):
            for i in body:
                for operand in i.operands:
                    if operand.name and (i.opcode == "phi" or home.get(operand.name) != k):
                        found.discard(operand.name)
        return found

    def _segment(self, number: int) -> Segment:
        label, body, _ = self.pieces[number]
        last_use: dict[str, int] = {}
        for k, i in enumerate(body):
            for name in (*(operand.name for operand in i.operands), i.result):
                if name in self.local:
                    last_use[name] = k
        emptied: dict[int, list[int]] = {}
        for name, k in last_use.items():
            emptied.setdefault(k, []).append(self.slots.named(name))
        made = Segment([])
        for k, i in enumerate(body):
            made.last = i
            if i.opcode == "br":
                if len(i.labels) == 2:
                    made.condition = self.slots.of(i.operands[0])
                made.edges = tuple(self._edge(label, to) for to in i.labels)
            elif i.opcode == "ret":
                made.result = self.slots.of(i.operands[0]) if i.operands else -1
            elif i.opcode == "call" and i.name in BARRIERS:
                made.is_barrier, made.edges = True, (Edge(number + 1),)
            elif i.opcode == "unreachable":
                raise Unsupported(str(i))
            elif i.opcode != "phi":
                step = self._step(i)
                if step is not None:
                    made.steps.append((step, tuple(emptied.get(k, ()))))
        return made

    def _edge(self, source: str, to: str) -> Edge:
        copies: list[tuple[int, int, bool]] = []
        for phi in self.phis[to]:
            value = phi.operands[phi.labels.index(source)]
            copies.append((self.slots.named(phi.result), self.slots.of(value), phi.type.lanes > 0))
        return Edge(self.start[to], copies)

    def _step(self, i: Instruction) -> Step | None:
        if i.opcode in ("load", "store", "call"):
            return self.special(i, self.slots)
        evaluate = pure(i)
        return self.assign(i, evaluate)

    def assign(self, i: Instruction, evaluate: Evaluate) -> Step:
        return assignment(i, evaluate, self.slots, i.result in self.local)


def assignment(i: Instruction, evaluate: Evaluate, slots: Slots, is_local: bool = False) -> Step:
    """The step that computes a register from the operands' values."""
    to, is_vector = slots.named(i.result), i.type.lanes > 0
    sources = [slots.of(operand) for operand in i.operands]
    if is_local and len(sources) == 2:
        a, b = sources

        def local_pair(f: Frame) -> None:
            regs = f.regs
            regs[to] = evaluate(regs[a], regs[b])

        return local_pair

    if is_local:

        def local(f: Frame) -> None:
            regs = f.regs
            regs[to] = evaluate(*[regs[s] for s in sources])

        return local

    def merged(f: Frame) -> None:
        regs = f.regs
        f.put(to, evaluate(*[regs[s] for s in sources]), is_vector)

    return merged


def _cut(block: Block) -> list[tuple[str, list[Instruction], bool]]:
    """The parts of a block that end after a barrier or at its end: label, instructions, whether the first."""
    pieces: list[tuple[str, list[Instruction], bool]] = [(block.label, [], True)]
    for i in block.instructions:
        pieces[-1][1].append(i)
        if i.opcode == "call" and i.name in BARRIERS:
            pieces.append((block.label, [], False))
    return pieces


# ---- instructions without side effects ------------------------------------------------------------------------------


def pure(i: Instruction) -> Evaluate:
    """A function of the operands' values. Raises Unsupported."""
    if i.opcode in BINARY:
        return arithmetic.binary(i.opcode, i.type)
    if i.opcode in CASTS:
        return arithmetic.cast(i.opcode, i.operands[0].type, i.type)
    match i.opcode:
        case "fneg":
            return np.negative
        case "freeze":
            return _itself
        case "icmp" | "fcmp":
            return arithmetic.comparison(i.name, i.operands[0].type.element in FLOATS)
        case "select":
            return _select(i)
        case "getelementptr":
            return _address(i)
        case "extractelement":
            return _extract(i)
        case "insertelement":
            return _insert(i)
        case "shufflevector":
            return _shuffle(i)
        case "extractvalue":
            return _field(i)
        case _:
            raise Unsupported(str(i))


def _itself(x: Any) -> Any:
    return x


def _field(i: Instruction) -> Evaluate:
    def evaluate(x: Any) -> Any:
        return x[i.align]

    return evaluate


def _select(i: Instruction) -> Evaluate:
    by_thread = i.type.lanes > 0 and not i.operands[0].type.lanes

    def evaluate(condition: Any, a: Any, b: Any) -> Any:
        if condition.ndim == 0:
            return a if condition else b
        return np.where(condition[:, None] if by_thread else condition, a, b)

    return evaluate


def _address(i: Instruction) -> Evaluate:
    sizes: list[int] = []
    type = i.source
    for k in range(len(i.operands) - 1):
        if k:
            if type.element != "array":
                raise Unsupported(str(i))
            type = type.fields[0]
        sizes.append(type.nbytes)
    # A pointer of each thread and an index of each lane, or the other way round.
    widen = [i.type.lanes > 0 and not operand.type.lanes for operand in i.operands]

    def evaluate(*given: Any) -> Any:
        values = [x[..., None] if w and x.ndim else x for x, w in zip(given, widen)]
        total = values[0]
        for index, size in zip(values[1:], sizes):
            total = total + index.astype(np.int64) * size
        return total

    return evaluate


def _position(value: Value) -> int:
    if value.name:
        raise Unsupported("a vector indexed by a register")
    return int(value.constant)


def _extract(i: Instruction) -> Evaluate:
    k = _position(i.operands[1])

    def evaluate(x: Any, _: Any) -> Any:
        return x[..., k]

    return evaluate


def _insert(i: Instruction) -> Evaluate:
    k, lanes = _position(i.operands[2]), i.type.lanes

    def evaluate(x: Any, item: Any, _: Any) -> Any:
        shape = np.broadcast_shapes(x.shape[:-1], np.shape(item))
        result = np.empty((*shape, lanes), x.dtype)
        result[...] = x
        result[..., k] = item
        return result

    return evaluate


def _shuffle(i: Instruction) -> Evaluate:
    if i.operands[2].name:
        raise Unsupported("a shuffle by a register")
    order = np.asarray(i.operands[2].constant).astype(np.int64)
    lanes = i.operands[0].type.lanes
    is_of_first = bool((order < lanes).all())

    def evaluate(a: Any, b: Any, _: Any) -> Any:
        if is_of_first:
            return a[..., order]
        a, b = np.broadcast_arrays(a, b)
        return np.concatenate([a, b], axis=-1)[..., order % (2 * lanes)]

    return evaluate
