"""What the machine can do at best, measured: f32 fma throughput, and bandwidth of each cache level and of memory.

    measure_peak(target) -> Peak         once per machine, kept in a file; about three seconds
    calibrated(target) -> Target         with the measured rates, if they have been measured
    PeakMeter, StreamMeter, triad        short timings, to be interleaved with the kernels they are compared to

The figures are upper bounds: each is the best of many short timings of the fastest of several code forms, since a clock
that ramps and a neighbour that steals cycles only ever make a timing longer.

Bandwidth counts the bytes the program asks for: one array for a read, three for the triad a[i] = b[i] + s * c[i]. The
line that a store fetches before it overwrites it is not counted.
"""

import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from stormdrop.codegen.llvm import Code, assemble
from stormdrop.errors import UserError
from stormdrop.paths import cache_dir
from stormdrop.runtime.host import detect, hyperthreads
from stormdrop.runtime.pool import Pool, shared_pool
from stormdrop.target.machine import LEVELS, Bandwidth, Peak, Target

_log = logging.getLogger(__name__)

Stream = Literal["read", "triad"]


# ---- the kernels: the loop of thread `begin` of a range that has one index for each thread ---------------------------

_KERNEL = """
define void @{name}(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) {attributes} {{
entry:
  %params = load ptr, ptr %buffers, align 8
  %trips = load i64, ptr %params, align 8
  {setup}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  {body}
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %trips
  br i1 %more, label %loop, label %done
done:
  %sink = getelementptr i8, ptr %params, i64 64  ; nobody reads what is left there
  {sums}
  ret void
}}
declare {vec} @llvm.fmuladd.v{lanes}f32({vec}, {vec}, {vec})
"""
_ARRAYS: dict[Stream, int] = {"read": 1, "triad": 3}
_VECTORS_PER_TRIP: dict[Stream, int] = {"read": 16, "triad": 4}


def _kernel(target: Target, name: str, setup: Sequence[str], body: Sequence[str], last: Sequence[str]) -> str:
    """A loop of `params[0]` trips; `last` are the values whose sum keeps the loop from being dead code."""
    vec, lanes = f"<{target.lanes('f32')} x float>", target.lanes("f32")
    sums = [f"%r{n} = fadd {vec} {last[n]}, {f'%r{n - 1}' if n else last[0]}" for n in range(len(last))]
    sums.append(f"store {vec} %r{len(last) - 1}, ptr %sink, align 4")
    lines = {part: "\n  ".join(code) for part, code in (("setup", setup), ("body", body), ("sums", sums))}
    return _KERNEL.format(name=name, attributes=target.function_attributes, vec=vec, lanes=lanes, **lines)


@dataclass(frozen=True, slots=True)
class FmaForm:
    """One way to write a loop of independent fmas; which one saturates a core is not known beforehand."""

    accumulators: int
    unroll: int
    broadcast: bool  # a factor is a scalar in memory, folded into the instruction where the target can


def fma_forms(target: Target) -> list[FmaForm]:
    """Forms with enough chains for two fmas a cycle at any known latency, as far as the registers go."""
    counts = [n for n in (10, 12, 14, 20, 24, 28) if n <= target.vector_registers - 2]
    forms = [FmaForm(n, unroll, broadcast=False) for n in counts for unroll in (1, 4)]
    return forms + [FmaForm(n, 1, broadcast=True) for n in (12, 24) if n in counts]


def fma_text(target: Target, form: FmaForm) -> str:
    """LLVM IR of `@fma`: every trip makes, `unroll` times and for each accumulator j,

        x[j] = x[j] * a + b

    with a = 1/2 and b = 1: x stays near 2, far from denormals and infinities. The accumulator is a factor, so that
    nothing can be hoisted even where a multiply and an add are two instructions.
    """
    vec, lanes = f"<{target.lanes('f32')} x float>", target.lanes("f32")
    setup = ["%halves.at = getelementptr ptr, ptr %buffers, i64 1", "%halves = load ptr, ptr %halves.at, align 8"]
    setup += [f"%a = load {vec}, ptr %halves, align 4", f"%b = fadd {vec} %a, %a"]
    last = [f"%x{form.unroll}.{j}" for j in range(form.accumulators)]
    body = [f"%x0.{j} = phi {vec} [ %b, %entry ], [ {x}, %loop ]" for j, x in enumerate(last)]
    # Eight lines in turn, or the loads would be hoisted.
    body += ["%line.i = and i64 %i, 7", "%line = getelementptr [16 x float], ptr %halves, i64 %line.i"]
    for u, j in product(range(form.unroll), range(form.accumulators)):
        factor = f"%a{u}.{j}" if form.broadcast else "%a"
        if form.broadcast:
            body += [f"%p{u}.{j} = getelementptr float, ptr %line, i64 {j % 16}"]
            body += [f"%s{u}.{j} = load float, ptr %p{u}.{j}, align 4"]
            body += [f"%v{u}.{j} = insertelement {vec} poison, float %s{u}.{j}, i32 0"]
            body += [f"{factor} = shufflevector {vec} %v{u}.{j}, {vec} poison, <{lanes} x i32> zeroinitializer"]
        operands = f"{vec} %x{u}.{j}, {vec} {factor}, {vec} %b"
        body.append(f"%x{u + 1}.{j} = call {vec} @llvm.fmuladd.v{lanes}f32({operands})")
    return _kernel(target, "fma", setup, body, last)


def stream_text(target: Target, stream: Stream) -> str:
    """LLVM IR of `@read` or `@triad` over the thread's block of each array, `params[1]` bytes, again and again."""
    vec, size = f"<{target.lanes('f32')} x float>", target.vector_bytes
    vectors, arrays = range(_VECTORS_PER_TRIP[stream]), range(_ARRAYS[stream])
    setup = ["%block.at = getelementptr i64, ptr %params, i64 1", "%block = load i64, ptr %block.at, align 8"]
    setup.append("%first = mul i64 %begin, %block")
    for k in arrays:
        setup += [f"%array{k}.at = getelementptr ptr, ptr %buffers, i64 {k + 1}"]
        setup += [f"%array{k} = load ptr, ptr %array{k}.at, align 8"]
        setup += [f"%base{k} = getelementptr i8, ptr %array{k}, i64 %first"]
    body = ["%at = phi i64 [ 0, %entry ], [ %at.next, %loop ]"]
    if stream == "read":
        body += [f"%x{v} = phi {vec} [ zeroinitializer, %entry ], [ %y{v}, %loop ]" for v in vectors]
    body += [f"%p{k} = getelementptr i8, ptr %base{k}, i64 %at" for k in arrays]
    for v in vectors:
        body += [f"%p{k}.{v} = getelementptr i8, ptr %p{k}, i64 {v * size}" for k in arrays]
        body += [f"%v{k}.{v} = load {vec}, ptr %p{k}.{v}, align {size}" for k in (arrays[1:] or arrays)]
        if stream == "read":
            body += [f"%y{v} = fadd {vec} %x{v}, %v0.{v}"]
        else:
            body += [f"%m{v} = fmul contract {vec} %v2.{v}, splat (float 0.5)"]
            body += [f"%y{v} = fadd contract {vec} %v1.{v}, %m{v}"]
            body += [f"store {vec} %y{v}, ptr %p0.{v}, align {size}"]
    body += [f"%at.end = add i64 %at, {len(vectors) * size}", "%over = icmp sge i64 %at.end, %block"]
    body += ["%at.next = select i1 %over, i64 0, i64 %at.end"]
    return _kernel(target, stream, setup, body, [f"%y{v}" for v in vectors])


# ---- timing ----------------------------------------------------------------------------------------------------------

_NAP_SECONDS = 2e-3
_LEAST_SHARE = 0.6  # of threads × one thread's rate; less than this is no lower clock but a cpu short
_SHORT_SECONDS = 1e-3  # one timing: long against the fork of a parallel region, short against a time slice


class _Region:
    """A kernel with its buffers: one parallel range with one index for each thread."""

    def __init__(self, text: str, symbol: str, target: Target, pool: Pool, arrays: Sequence[int], threads: int) -> None:
        self._code = Code(assemble(text, target))
        self._entry = self._code.address(symbol)
        self._pool = pool
        self._params = np.zeros(32, np.int64)
        self._buffers = np.array([self._params.ctypes.data, *arrays], np.uint64)
        self._extents = np.array([threads], np.int64)

    def best_seconds(self, repeats: int, *params: int) -> float:
        self._params[: len(params)] = params
        job = (self._entry, self._buffers.ctypes.data, 0, 0, self._extents.ctypes.data, 1)
        return float(self._pool.bench(*job, repeats).min())


class PeakMeter:
    """The fma peak of all the pool's threads, for use between timings of kernels: clocks drift 1–2 % in minutes.

    Linux at times leaves two threads on one cpu for half a second and more, until they sleep: a rate far below one
    core's times their number is that, and is timed again.
    """

    def __init__(self, target: Target, pool: Pool) -> None:
        self._flops = 2 * target.lanes("f32") * pool.threads
        self._halves = np.full(256, 0.5, np.float32)
        halves, texts = self._halves.ctypes.data, {form: fma_text(target, form) for form in fma_forms(target)}
        self._regions = {f: _Region(text, "fma", target, pool, [halves], pool.threads) for f, text in texts.items()}
        self._rates = dict.fromkeys(self._regions, target.peak_gflops * pool.threads)  # sizes the first timings
        form, text = next(iter(texts.items()))
        alone = _Region(text, "fma", target, pool, [halves], threads=1)
        self._least = _LEAST_SHARE / hyperthreads() * self._time(form, alone, repeats=25)
        self._rates = {form: self._time(form, region, repeats=2) for form, region in self._regions.items()}
        self.search(rounds=3)

    def _time(self, form: FmaForm, region: _Region, repeats: int) -> float:
        flops = self._flops * form.accumulators * form.unroll
        trips = max(1, round(self._rates[form] * 1e9 * _SHORT_SECONDS / flops))
        return flops * trips / region.best_seconds(repeats, trips) / 1e9

    def search(self, rounds: int, limit_seconds: float = 1.5) -> float:
        """Time all forms in turn until the clock ramps no more and `rounds` rounds bring nothing new; the best ever."""
        stop, patience, best = time.perf_counter() + limit_seconds, rounds, max(self._rates.values())
        while patience > 0 and time.perf_counter() < stop:
            for form, region in self._regions.items():
                self._rates[form] = max(self._rates[form], self._time(form, region, repeats=2))
            before, best = best, max(self._rates.values())
            patience = rounds if best > 1.001 * before or best < self._least else patience - 1
            time.sleep(_NAP_SECONDS)
        return best

    def gflops(self) -> float:
        """About 5 ms: the best of five timings in a row, of the form that was the fastest in the search."""
        form, tries = max(self._rates, key=self._rates.__getitem__), 20
        while (rate := self._time(form, self._regions[form], repeats=5)) < self._least and (tries := tries - 1):
            time.sleep(_NAP_SECONDS)
        return rate


class StreamMeter:
    """The bandwidth of one stream over a fixed footprint; each thread keeps to its own share.

    A timing is one parallel region of `sweeps` passes: one as in a kernel, or more, to hide the fork.
    """

    def __init__(
        self,
        target: Target,
        pool: Pool,
        stream: Stream,
        footprint_bytes: int,
        threads: int | None = None,
        sweeps: int = 1,
        memory: npt.NDArray[np.float32] | None = None,
    ) -> None:
        threads = threads or pool.threads
        if not 1 <= threads <= pool.threads:
            raise UserError(f"a pool of {pool.threads} threads cannot stream with {threads}")
        trip_bytes = _VECTORS_PER_TRIP[stream] * target.vector_bytes
        trips = max(1, footprint_bytes // (_ARRAYS[stream] * threads * trip_bytes))
        array_bytes = threads * trips * trip_bytes
        self.footprint_bytes = _ARRAYS[stream] * array_bytes
        self._memory = _ones(self.footprint_bytes) if memory is None else memory
        first = self._memory.ctypes.data + -self._memory.ctypes.data % _PAGE_BYTES
        stride = array_bytes + -array_bytes % _PAGE_BYTES + _SKEW_BYTES
        arrays = [first + k * stride for k in range(_ARRAYS[stream])]
        self._region = _Region(stream_text(target, stream), stream, target, pool, arrays, threads)
        self._params = (sweeps * trips, trips * trip_bytes)
        self._bytes = sweeps * self.footprint_bytes

    def gbs(self, repeats: int = 2) -> float:
        """The best of a few timings in a row; the first one finds the caches as other work left them."""
        return self._bytes / self._region.best_seconds(repeats, *self._params) / 1e9


_PAGE_BYTES = 4096
_SKEW_BYTES = 21 * 64  # a third of a page: a load of the store's offset within its page would wait for the store


def _ones(footprint_bytes: int) -> npt.NDArray[np.float32]:
    return np.ones((footprint_bytes + 4 * (_PAGE_BYTES + _SKEW_BYTES)) // 4, np.float32)


def triad(footprint_bytes: int, threads: int, pool: Pool, target: Target | None = None) -> float:
    """GB/s of a[i] = b[i] + s * c[i] over three arrays of `footprint_bytes` together, one parallel region a pass.

    The best of about 50 ms: the yardstick of a memory-bound kernel of the same footprint, on the same pool.
    """
    meter = StreamMeter(target or detect(), pool, "triad", footprint_bytes, threads)
    return meter.gbs(repeats=max(5, round(0.05 * meter.gbs() * 1e9 / meter.footprint_bytes)))


# ---- one machine, measured once --------------------------------------------------------------------------------------

_STREAM_SECONDS = 1.5
_BYTES_PER_TIMING = 100 << 20  # and thread: half a millisecond of the fastest cache


def measure_peak(target: Target, fresh: bool = False) -> Peak:
    """The machine's peak: what the cache file says, or else (or if `fresh`) measured now and written there."""
    if not fresh and (known := _load(target)) is not None:
        return known
    pools = {n: shared_pool(n) for n in (1, target.threads)}
    gflops = {n: PeakMeter(target, pool).search(rounds=8) for n, pool in pools.items()}
    table = _measure_bandwidths(target, pools)
    peak = Peak(_identity(target), target.threads, gflops[1], gflops[target.threads], table)
    if _is_too_slow(peak):
        _log.warning("the machine is busy: the peak of %d threads comes out too low, and is not kept", target.threads)
    else:
        _save(target, peak)
    return peak


def _is_too_slow(peak: Peak) -> bool:
    """Whether all threads together do so little more than one that they cannot have had a cpu each."""
    least = _LEAST_SHARE * peak.threads / hyperthreads()
    reads = [peak.bandwidth("L1", n).read_gbs for n in (peak.threads, 1)]
    return min(peak.gflops / peak.thread_gflops, reads[0] / reads[1]) < least


def _measure_bandwidths(target: Target, pools: Mapping[int, Pool]) -> tuple[Bandwidth, ...]:
    """All levels and streams in turn, again and again, so that a busy moment of the machine spoils none of them."""
    cells = [(level, n, _footprint(target, level, n)) for n in pools for level in LEVELS]
    memory = _ones(max(footprint for _, _, footprint in cells))

    def meter(stream: Stream, threads: int, footprint_bytes: int) -> StreamMeter:
        sweeps = max(1, _BYTES_PER_TIMING * threads // footprint_bytes)
        return StreamMeter(target, pools[threads], stream, footprint_bytes, threads, sweeps, memory)

    meters = [(meter("read", n, footprint), meter("triad", n, footprint)) for _, n, footprint in cells]
    best = [(read.gbs(), triad.gbs()) for read, triad in meters]
    stop = time.perf_counter() + _STREAM_SECONDS
    while time.perf_counter() < stop:
        best = [(max(r, read.gbs()), max(t, triad.gbs())) for (r, t), (read, triad) in zip(best, meters)]
        time.sleep(_NAP_SECONDS)
    return tuple(Bandwidth(level, n, footprint, *rates) for (level, n, footprint), rates in zip(cells, best))


def _footprint(target: Target, level: str, threads: int) -> int:
    """A size that stays in the level and is well beyond the one before it, for all threads together."""
    sizes = {
        "L1": threads * target.l1_bytes // 2,
        "L2": threads * target.l2_bytes // 2,
        "L3": threads * target.l2_bytes + target.l3_bytes // 2,
        "DRAM": max(threads * target.l2_bytes + 8 * target.l3_bytes, 64 << 20),
    }
    return min(sizes[level], 1 << 30)


def calibrated(target: Target) -> Target:
    """The target with the rates that `measure_peak` left in the cache file; itself if there are none."""
    if (peak := _load(target)) is None:
        return target
    l2, l3, dram = (peak.bandwidth(*row).read_gbs for row in (("L2", 1), ("L3", peak.threads), ("DRAM", peak.threads)))
    return replace(target, peak_gflops=peak.thread_gflops, l2_gbs=l2, l3_gbs=l3, dram_gbs=dram)


def _identity(target: Target) -> str:
    """What tells this machine from others that a shared home directory may be used on; no host name."""
    caches = f"{target.l1_bytes}, {target.l2_bytes}, {target.l3_bytes}"
    return f"{target.key()}; {target.name}; caches {caches}; {os.cpu_count()} cpus"


def _path(target: Target) -> Path:
    return cache_dir() / f"peak-{sha256(_identity(target).encode()).hexdigest()[:16]}.json"


def _load(target: Target) -> Peak | None:
    path = _path(target)
    try:
        if not path.exists():
            return None
        peak = Peak.from_json(path.read_text())
        if (peak.key, peak.threads) != (_identity(target), target.threads):
            raise ValueError(f"it describes {peak.key!r}")
        return peak
    except (OSError, ValueError) as error:
        _log.warning("the measured peak in %s is ignored: %s", path, error)
    return None


def _save(target: Target, peak: Peak) -> None:
    path = _path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: another process may be reading it.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(peak.to_json())
        os.replace(file.name, path)
    except OSError as error:
        _log.warning("the measured peak cannot be kept in %s: %s", path, error)
