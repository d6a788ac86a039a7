"""A loop program as one LLVM module.

    void kernel(ptr buffers, ptr scratch, i64 phase, i64 begin, i64 end)

runs the units `begin` to `end` of one phase's parallel range; `prepare`, of the same type, runs the phases that pack
constants. `buffers` is the pointer table, `scratch` the calling thread's scratch memory. The object has no absolute
address and no external symbol, so it can be shipped anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from stormdrop.base.errors import BuildError
from stormdrop.codegen import ENTRY, PREPARE, routines
from stormdrop.codegen.block import BlockWriter
from stormdrop.codegen.memory import Pages
from stormdrop.codegen.text import SsaValue, Writer
from stormdrop.codegen.tile import TileWriter
from stormdrop.ir.expr import Const, Expr, Load, Select, Var
from stormdrop.lower.program import (
    Barrier,
    BlockStmt,
    Buffer,
    Combine,
    CommitCopies,
    Finish,
    For,
    If,
    Phase,
    Program,
    ReduceLoop,
    RegisterTile,
    Save,
    Start,
    Stmt,
    Threads,
    Update,
    WaitForCopies,
    buffers_of,
    statements,
)
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope


def emit(program: Program, target: Target) -> str:
    """Returns the text of the LLVM module."""
    attributes = f"nounwind {target.function_attributes}".strip()
    module = ModuleWriter(target, attributes)
    for k, phase in enumerate(program.phases):
        module.functions.append(_phase(module, phase, k))
    for name, at_load in ((ENTRY, False), (PREPARE, True)):
        numbers = [k for k, p in enumerate(program.phases) if p.at_load == at_load]
        module.functions.append(_dispatcher(name, numbers, attributes))
    return "\n".join([*module.lines(), ""])


@dataclass(frozen=True, slots=True)
class ModuleWriter:
    """A writer of a module: its functions, and the pages and declarations that these functions share."""

    target: Target
    attributes: str  # of routines
    pages: Pages = field(default_factory=Pages)
    declarations: set[str] = field(default_factory=set[str])
    functions: list[str] = field(default_factory=list[str])

    def tile_writer(self, w: Writer, pointers: Mapping[Buffer, str]) -> Callable[[RegisterTile], TileWriter]:
        return lambda tile: TileWriter(w, tile, pointers, self.pages, self.target)

    def lines(self) -> list[str]:
        body = "\n".join(self.functions)
        called = routines.definitions(body, self.attributes, self.declarations)
        return [*self.pages.definitions(), *called, body, *sorted(self.declarations)]


def _dispatcher(name: str, numbers: list[int], attributes: str) -> str:
    cases = " ".join(f"i64 {k}, label %phase{n}" for k, n in enumerate(numbers))
    w = Writer()
    w.here.append("entry:")
    w.line(f"switch i64 %phase, label %done [ {cases} ]")
    for n in numbers:
        w.label(f"phase{n}")
        w.line(f"call void @phase.{n}(ptr %buffers, ptr %scratch, i64 %begin, i64 %end)")
        w.line("br label %done")
    w.label("done")
    w.line("ret void")
    return w.function(f"void @{name}(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) {attributes}")


def _phase(module: ModuleWriter, phase: Phase, number: int) -> str:
    w = Writer(module.declarations)
    w.here.append("entry:")
    pointers: dict[Buffer, str] = {}
    for b in buffers_of(phase):
        if b.scope is Scope.SCRATCH:
            pointers[b] = w.op(f"getelementptr i8, ptr %scratch, i64 {b.scratch_offset}")
        else:
            at = w.op(f"getelementptr ptr, ptr %buffers, i64 {b.slot}")
            pointers[b] = w.op(f"load ptr, ptr {at}, align 8")
    w.push()

    def unit(_: object, __: object) -> list[SsaValue]:
        rest = Var("unit")
        for k, (var, trips) in reversed(list(enumerate(phase.loops))):
            name = w.variables[rest][0]
            if k == 0:
                digit = name
            else:
                digit = w.hoisted(1, ("digit", k), lambda n=name, t=trips: w.op(f"urem i64 {n}, {t}"))
                following = w.hoisted(1, ("rest", k), lambda n=name, t=trips: w.op(f"udiv i64 {n}, {t}"))
                w.variables[rest] = (following, 1, (0, phase.extent))
            w.variables[var] = (digit, 1, (0, trips - 1))
        StatementWriter(w, module.tile_writer(w, pointers)).write(phase.body)
        return []

    w.loop(Var("unit"), "%begin", "%end", 1, (0, max(0, phase.extent - 1)), True, [], unit)
    w.line("ret void")
    parameters = "ptr %buffers, ptr %scratch, i64 %begin, i64 %end"
    return w.function(f"internal void @phase.{number}({parameters}) {module.attributes}")


MOST_UNROLLED = 8  # iterations of a copy's loop


def _is_copy(body: tuple[Stmt, ...]) -> bool:
    """Returns whether a body only copies, an element or a vector at a time."""
    return all(isinstance(s, (For, If, Finish)) for s in statements(body)) and all(
        s.tile.row_count * s.tile.chunks == 1 and not s.tile.stage.is_reduction and isinstance(s.value, (Load, Select))
        for s in statements(body)
        if isinstance(s, Finish)
    )


class StatementWriter:
    """A writer of statements. One TileWriter serves a reduction tile from its `Start` to its `Finish` or `Save`.

    `block` writes the cooperative statements of a thread block; None on a CPU.
    """

    def __init__(
        self, w: Writer, tile_writer: Callable[[RegisterTile], TileWriter], block: BlockWriter | None = None
    ) -> None:
        self.w, self.tile_writer, self.block = w, tile_writer, block
        self.started: dict[RegisterTile, TileWriter] = {}

    def write(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case For(var, trips, most, inner, None):
                    self._loop(var, trips, most, inner)
                case For():
                    assert s.tile is not None
                    self.started[s.tile].carry(s, self.write)
                case If(condition, then, orelse):
                    bodies = [partial(self.write, branch) for branch in (then, orelse) if branch]
                    self.w.branch(self.w.integer(condition), *bodies)
                case Start():
                    self.started[s.tile] = self.tile_writer(s.tile)
                    self.started[s.tile].start(s)
                case ReduceLoop():
                    self.started[s.tile].reduce(s, self.write)
                case Update():
                    self.started[s.tile].update(s)
                case Save():
                    self.started[s.tile].save(s)
                case Finish():
                    (self.started[s.tile] if s.tile.stage.is_reduction else self.tile_writer(s.tile)).finish(s)
                case _:
                    self._together(s)

    def _together(self, s: BlockStmt) -> None:
        if self.block is None:
            raise BuildError("a CPU has no thread blocks")
        match s:
            case Threads():
                self.block.run(s, partial(self.write, s.body))
            case Barrier():
                self.block.barrier()
                for tile in self.started.values():
                    tile.evaluator.forget()  # values loaded before may differ from values loaded after
            case CommitCopies():
                self.block.commit()
            case WaitForCopies(pending):
                self.block.wait(pending)
            case Combine():
                self.started[s.tile].accs = self.block.combine(s, self.started[s.tile].accs)

    def _written_out(self, var: Var, most: int, inner: tuple[Stmt, ...]) -> None:
        """Writes a short loop of a thread as a copy of the body per iteration: the loads of the copies overlap."""
        for i in range(most):
            self.w.push()
            self.w.variables[var] = (str(i), len(self.w.scopes) - 1, (i, i))
            self.write(inner)
            self.w.scopes.pop()
            del self.w.variables[var]

    def _loop(self, var: Var, trips: Expr, most: int, inner: tuple[Stmt, ...]) -> None:
        def run(_: object, __: object) -> list[SsaValue]:
            self.write(inner)
            return []

        if self.block is not None and isinstance(trips, Const) and most <= MOST_UNROLLED and _is_copy(inner):
            return self._written_out(var, most, inner)
        known = self.w.interval(trips)
        self.w.loop(var, "0", self.w.integer(trips), 1, (0, most - 1), known is None or known[0] < 1, [], run)
