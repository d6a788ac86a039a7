"""Statements of a thread block: thread numbers, barriers, and accumulators combined across threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stormdrop.base.errors import BuildError
from stormdrop.codegen import values as v
from stormdrop.codegen.text import Loop, SsaValue, Writer
from stormdrop.ir.expr import ITEMSIZE, Combiner, Var
from stormdrop.lower.program import Buffer, Combine, Threads

MOST_UNROLLED_GROUPS = 8


class BlockWriter:
    """A writer of the cooperative statements of a thread block.

    `thread` and `block` are the numbers of the present thread and block.
    """

    def __init__(self, w: Writer, threads: int, pointers: Mapping[Buffer, str]) -> None:
        self.w, self.threads, self.pointers = w, threads, pointers
        self.thread, self.block = (self._register(name) for name in ("tid", "ctaid"))

    def _register(self, name: str) -> str:
        short = self.w.intrinsic(f"nvvm.read.ptx.sreg.{name}.x", "i32")
        return short if self.w.index == "i32" else self.w.op(f"zext i32 {short} to i64")

    def digits(self, number: str, loops: Sequence[tuple[Var, int]], is_whole: bool) -> None:
        """Binds variables to the digits of a number; the last digit changes fastest.

        `is_whole`: the number is below the product of the extents.
        """
        w = self.w
        stride = 1
        for k, (var, n) in reversed(list(enumerate(loops))):
            rest = self._outside("udiv", number, stride)
            digit = rest if k == 0 and is_whole else self._outside("urem", rest, n)
            w.variables[var] = (digit, 0, (0, n - 1))
            stride *= n

    def _outside(self, op: str, x: str, n: int) -> str:
        """Returns a quotient or remainder, computed once at the function's entry."""
        if n == 1:
            return x if op == "udiv" else "0"
        return self.w.hoisted(0, (op, x, n), lambda: self.w.op(f"{op} {self.w.index} {x}, {n}"))

    def run(self, s: Threads, body: Callable[[], None]) -> None:
        w = self.w
        saved = dict(w.variables)
        self.digits(self.thread, s.loops, s.count >= self.threads)
        if s.count >= self.threads:
            body()
        else:
            key = ("threads", s.count)
            w.branch(w.hoisted(0, key, lambda: w.op(f"icmp ult {w.index} {self.thread}, {s.count}")), body)
        w.variables = saved

    def barrier(self) -> None:
        self.w.effect("nvvm.barrier.cta.sync.aligned.all", ("i32", "0"))

    def commit(self) -> None:
        self.w.effect("nvvm.cp.async.commit.group")

    def wait(self, pending: int) -> None:
        self.w.effect("nvvm.cp.async.wait.group", ("i32", str(pending)))

    # Accumulators across threads

    def combine(self, s: Combine, accs: Sequence[SsaValue]) -> list[SsaValue]:
        """Returns the accumulators combined over the threads that divided the reduction: complete in the first of these
        threads.
        """
        combiner = s.tile.stage.combiner
        assert combiner is not None
        combined = list(accs)
        distance = s.shuffled // 2
        while distance:
            combined = [v.combine(self.w, combiner, a, self._from_neighbour(a, distance)) for a in combined]
            distance //= 2
        return self._through_memory(s, combiner, combined) if s.groups > 1 else combined

    def _from_neighbour(self, x: SsaValue, distance: int) -> SsaValue:
        """Returns the value of the thread at `distance`: its number differs in a single bit."""
        if x.lanes > 1:
            raise BuildError("vectors are not shuffled between threads")
        w = self.w

        def shuffled(type: str, ending: str, name: str) -> str:
            args = (("i32", "-1"), (type, name), ("i32", str(distance)), ("i32", "31"))
            return w.intrinsic(f"nvvm.shfl.sync.bfly.{ending}", type, *args)

        match x.dtype:
            case "f32":
                return SsaValue(shuffled("float", "f32", x.name), "f32")
            case "i32":
                return SsaValue(shuffled("i32", "i32", x.name), "i32")
            case "bool":
                wide = shuffled("i32", "i32", w.op(f"zext i1 {x.name} to i32"))
                return SsaValue(w.op(f"icmp ne i32 {wide}, 0"), "bool")
            case "f64" | "i64":
                bits = x.name if x.dtype == "i64" else w.op(f"bitcast double {x.name} to i64")
                low = shuffled("i32", "i32", w.op(f"trunc i64 {bits} to i32"))
                high = shuffled("i32", "i32", w.op(f"trunc i64 {w.op(f'lshr i64 {bits}, 32')} to i32"))
                upper = w.op(f"shl i64 {w.op(f'zext i32 {high} to i64')}, 32")
                both = w.op(f"or i64 {upper}, {w.op(f'zext i32 {low} to i64')}")
                return SsaValue(both if x.dtype == "i64" else w.op(f"bitcast i64 {both} to double"), x.dtype)
            case _:
                raise BuildError(f"{x.dtype} is not shuffled between threads")

    def _through_memory(self, s: Combine, combiner: Combiner, accs: Sequence[SsaValue]) -> list[SsaValue]:
        """Returns the accumulators combined through memory: every group's first thread stores, then each thread
        combines the slots of its groups.
        """
        w, index, buffer = self.w, self.w.index, s.buffer
        assert buffer is not None
        width = sum(a.lanes for a in accs)
        item = ITEMSIZE[buffer.dtype]
        base = self.pointers[buffer]

        def address(slot: str, k: int) -> str:
            start = w.op(f"mul {index} {slot}, {width * item}")
            at = sum(a.lanes for a in accs[:k]) * item
            here = w.op(f"getelementptr i8, ptr {base}, {index} {start}")
            return here if not at else w.op(f"getelementptr i8, ptr {here}, i64 {at}")

        def store() -> None:
            own = self._outside("udiv", self.thread, s.shuffled)
            for k, a in enumerate(accs):
                raw = v.to_memory(w, a)
                w.line(f"store {a.memory_type} {raw}, ptr {address(own, k)}, align {item}")

        def load(slot: str, k: int) -> SsaValue:
            raw = w.op(f"load {accs[k].memory_type}, ptr {address(slot, k)}, align {item}")
            return v.from_memory(w, raw, buffer.dtype, accs[k].lanes)

        self.barrier()  # an earlier use of the buffer is over
        if s.shuffled > 1:
            first_lane = w.op(f"icmp eq {index} {self._outside('urem', self.thread, s.shuffled)}, 0")
            w.branch(first_lane, store)
        else:
            store()
        self.barrier()
        if s.distance > 1:
            first = self._outside("urem", self.thread, s.distance)
        else:
            first = w.op(f"mul {index} {self._outside('udiv', self.thread, s.shuffled * s.groups)}, {s.groups}")
        combined = [load(first, k) for k in range(len(accs))]
        if s.groups <= MOST_UNROLLED_GROUPS:
            for g in range(1, s.groups):
                slot = w.op(f"add {index} {first}, {g * s.distance}")
                combined = [v.combine(w, combiner, a, load(slot, k)) for k, a in enumerate(combined)]
            return combined
        var = Var("group")

        def step(carried: Sequence[SsaValue], _: Loop) -> Sequence[SsaValue]:
            away = w.op(f"mul {index} {w.variables[var][0]}, {s.distance}")
            slot = w.op(f"add {index} {first}, {away}")
            return [v.combine(w, combiner, a, load(slot, k)) for k, a in enumerate(carried)]

        return w.loop(var, "1", str(s.groups), 1, (1, s.groups - 1), False, combined, step)
