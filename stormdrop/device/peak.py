"""The measured peak of the machine: f32 fma throughput, and bandwidth of each cache level and of memory.

    measure_peak(target) -> Peak         once per machine, kept in a file; about three seconds
    PeakMeter, StreamMeter               short timings, to be interleaved with the kernels they are compared to

The figures are upper bounds: each is the best of many short timings of the fastest of several code forms. A clock that
ramps and a neighbour that steals cycles only ever make a timing longer.

Bandwidth counts the bytes the program asks for: one array for a read, three for the triad a[i] = b[i] + s * c[i]. The
line that a store fetches before it overwrites it is not counted.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt

from stormdrop.base.errors import warn
from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import assemble
from stormdrop.device.artifact import Artifact
from stormdrop.device.calibration import PEAKS, identity, load_peak
from stormdrop.device.device import BoundCall, BufferPlace
from stormdrop.device.host import hyperthreads
from stormdrop.device.host_device import HostMemory, host_device
from stormdrop.target.cpu import Cpu
from stormdrop.target.machine import LEVELS, Bandwidth, Peak

Stream = Literal["read", "triad"]


# ---- the kernels: the loop of thread `begin` of a range that has one index for each thread ---------------------------

_KERNEL = """
define void @{entry}(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) {attributes} {{
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


def _kernel(target: Cpu, setup: Sequence[str], body: Sequence[str], last: Sequence[str]) -> str:
    """Returns a loop of `params[0]` trips; `last` are the values whose sum keeps the loop from being dead code."""
    vec, lanes = f"<{target.lanes('f32')} x float>", target.lanes("f32")
    sums = [f"%r{n} = fadd {vec} {last[n]}, {f'%r{n - 1}' if n else last[0]}" for n in range(len(last))]
    sums.append(f"store {vec} %r{len(last) - 1}, ptr %sink, align 4")
    lines = {part: "\n  ".join(code) for part, code in (("setup", setup), ("body", body), ("sums", sums))}
    return _KERNEL.format(entry=ENTRY, attributes=target.function_attributes, vec=vec, lanes=lanes, **lines)


@dataclass(frozen=True, slots=True)
class FmaForm:
    """A form of a loop of independent fmas; the form that saturates a core is not known beforehand."""

    accumulators: int
    unroll: int
    broadcast: bool  # a factor is a scalar in memory, folded into the instruction where the target can


def fma_forms(target: Cpu) -> list[FmaForm]:
    """Returns forms with enough chains for two fmas a cycle at any known latency, as far as the registers go."""
    counts = [n for n in (10, 12, 14, 20, 24, 28) if n <= target.vector_registers - 2]
    forms = [FmaForm(n, unroll, broadcast=False) for n in counts for unroll in (1, 4)]
    return forms + [FmaForm(n, 1, broadcast=True) for n in (12, 24) if n in counts]


def fma_text(target: Cpu, form: FmaForm) -> str:
    """Returns LLVM IR of a kernel of fmas: every trip makes, `unroll` times and for each accumulator j,

        x[j] = x[j] * a + b

    with a = 1/2 and b = 1: x stays near 2, far from denormals and infinities. The accumulator is a factor, so that
    nothing can be hoisted even if a multiply and an add are two instructions.
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
    return _kernel(target, setup, body, last)


def stream_text(target: Cpu, stream: Stream) -> str:
    """Returns LLVM IR of a kernel that repeatedly reads or writes the thread's block of each array,
    `params[1]` bytes.
    """
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
    return _kernel(target, setup, body, [f"%y{v}" for v in vectors])


# ---- timing ----------------------------------------------------------------------------------------------------------

_NAP_SECONDS = 2e-3
_LEAST_SHARE = 0.52  # of threads × one thread's rate: 16 CPUs of a virtual machine that are hidden hyperthreads reach
# little more; two threads on one CPU reach less
_SHORT_SECONDS = 1e-3  # one timing: long against the fork of a parallel region, short against a time slice


class _Region:
    """A kernel with its buffers, over a parallel range of `extent` units on the target's threads."""

    def __init__(self, text: str, target: Cpu, arrays: Sequence[BufferPlace], extent: int) -> None:
        device = host_device(target.threads)
        self._params = np.zeros(32, np.int64)
        kernel = device.load(Artifact(assemble(text, target), (), (extent,)))
        params = BufferPlace(HostMemory(self._params.view(np.uint8)))
        self._recording = device.record([BoundCall(kernel, (params, *arrays))])

    def best_seconds(self, repeats: int, *params: int) -> float:
        self._params[: len(params)] = params
        return float(self._recording.bench(repeats).min())


class PeakMeter:
    """The fma peak of all the target's threads, for use between timings of kernels: clocks drift 1–2 % in minutes.

    Linux at times leaves two threads on one cpu for half a second and more, until they sleep. A rate far below one
    core's rate times the number of threads indicates this, and is timed again.
    """

    def __init__(self, target: Cpu) -> None:
        self._flops = 2 * target.lanes("f32") * target.threads
        halves = [BufferPlace(HostMemory(np.full(256, 0.5, np.float32).view(np.uint8)))]
        texts = {form: fma_text(target, form) for form in fma_forms(target)}
        self._regions = {form: _Region(text, target, halves, target.threads) for form, text in texts.items()}
        self._rates = dict.fromkeys(self._regions, target.peak_gflops * target.threads)  # sizes the first timings
        form, text = next(iter(texts.items()))
        alone = _Region(text, target, halves, extent=1)
        self._least = _LEAST_SHARE / hyperthreads() * self._time(form, alone, repeats=25)
        self._rates = {form: self._time(form, region, repeats=2) for form, region in self._regions.items()}
        self.search(rounds=3)

    def _time(self, form: FmaForm, region: _Region, repeats: int) -> float:
        flops = self._flops * form.accumulators * form.unroll
        trips = max(1, round(self._rates[form] * 1e9 * _SHORT_SECONDS / flops))
        return flops * trips / region.best_seconds(repeats, trips) / 1e9

    def search(self, rounds: int, limit_seconds: float = 1.5) -> float:
        """Times all forms in turn until the clock ramps no more and `rounds` rounds bring no gain; returns the best
        rate ever.
        """
        stop, patience, best = time.perf_counter() + limit_seconds, rounds, max(self._rates.values())
        while patience > 0 and time.perf_counter() < stop:
            for form, region in self._regions.items():
                self._rates[form] = max(self._rates[form], self._time(form, region, repeats=2))
            before, best = best, max(self._rates.values())
            patience = rounds if best > 1.001 * before or best < self._least else patience - 1
            time.sleep(_NAP_SECONDS)
        return best

    def gflops(self) -> float:
        """Measures the rate in about 5 ms: the best of five timings in a row, of the fastest form of the search."""
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
        target: Cpu,
        stream: Stream,
        footprint_bytes: int,
        sweeps: int = 1,
        memory: npt.NDArray[np.float32] | None = None,
    ) -> None:
        trip_bytes = _VECTORS_PER_TRIP[stream] * target.vector_bytes
        trips = max(1, footprint_bytes // (_ARRAYS[stream] * target.threads * trip_bytes))
        array_bytes = target.threads * trips * trip_bytes
        self.footprint_bytes = _ARRAYS[stream] * array_bytes
        block = HostMemory((_ones(self.footprint_bytes) if memory is None else memory).view(np.uint8))
        first = -block.address % _PAGE_BYTES
        stride = array_bytes + -array_bytes % _PAGE_BYTES + _SKEW_BYTES
        arrays = [BufferPlace(block, first + k * stride) for k in range(_ARRAYS[stream])]
        self._region = _Region(stream_text(target, stream), target, arrays, target.threads)
        self._params = (sweeps * trips, trips * trip_bytes)
        self._bytes = sweeps * self.footprint_bytes

    def gbs(self, repeats: int = 2) -> float:
        """Returns the best of a few timings in a row; before the first, the caches are in the state of other work."""
        return self._bytes / self._region.best_seconds(repeats, *self._params) / 1e9


_PAGE_BYTES = 4096
_SKEW_BYTES = 21 * 64  # a third of a page: a load of the store's offset within its page would wait for the store


def _ones(footprint_bytes: int) -> npt.NDArray[np.float32]:
    return np.ones((footprint_bytes + 4 * (_PAGE_BYTES + _SKEW_BYTES)) // 4, np.float32)


# ---- one machine, measured once --------------------------------------------------------------------------------------

_STREAM_SECONDS = 1.5
_BYTES_PER_TIMING = 100 << 20  # and thread: half a millisecond of the fastest cache


def measure_peak(target: Cpu, fresh: bool = False) -> Peak:
    """Returns the machine's peak from the cache file, or else (or if `fresh`) measures and saves it."""
    if not fresh and (known := load_peak(target)) is not None:
        return known
    targets = {n: target.with_threads(n) for n in (1, target.threads)}
    gflops = {n: PeakMeter(one).search(rounds=8) for n, one in targets.items()}
    table = _measure_bandwidths(list(targets.values()))
    peak = Peak(identity(target), target.threads, gflops[1], gflops[target.threads], table)
    if _is_too_slow(peak):
        warn(f"the machine is busy: the peak of {target.threads} threads comes out too low, and is not kept")
    else:
        PEAKS.save(peak.key, peak)
    return peak


def _is_too_slow(peak: Peak) -> bool:
    """Returns whether all threads together are so little faster than one that they cannot have had a cpu each."""
    least = _LEAST_SHARE * peak.threads / hyperthreads()
    reads = [peak.bandwidth("L1", n).read_gbs for n in (peak.threads, 1)]
    return min(peak.gflops / peak.thread_gflops, reads[0] / reads[1]) < least


def _measure_bandwidths(targets: Sequence[Cpu]) -> tuple[Bandwidth, ...]:
    """Measures all levels and streams in turn, again and again, so that a busy moment of the machine spoils none of
    them.
    """
    cells = [(level, target, _footprint(target, level)) for target in targets for level in LEVELS]
    memory = _ones(max(footprint for _, _, footprint in cells))

    def meter(stream: Stream, target: Cpu, footprint_bytes: int) -> StreamMeter:
        sweeps = max(1, _BYTES_PER_TIMING * target.threads // footprint_bytes)
        return StreamMeter(target, stream, footprint_bytes, sweeps, memory)

    meters = [(meter("read", target, footprint), meter("triad", target, footprint)) for _, target, footprint in cells]
    best = [(read.gbs(), triad.gbs()) for read, triad in meters]
    stop = time.perf_counter() + _STREAM_SECONDS
    while time.perf_counter() < stop:
        best = [(max(r, read.gbs()), max(t, triad.gbs())) for (r, t), (read, triad) in zip(best, meters)]
        time.sleep(_NAP_SECONDS)
    return tuple(Bandwidth(level, t.threads, footprint, *rates) for (level, t, footprint), rates in zip(cells, best))


def _footprint(target: Cpu, level: str) -> int:
    """Returns a size that stays in the level and is well beyond the level before it, for all threads together."""
    sizes = {
        "L1": target.threads * target.l1_bytes // 2,
        "L2": target.threads * target.l2_bytes // 2,
        # Not a share of the nominal size, of which a virtual machine may have little
        "L3": target.threads * target.l2_bytes + min(target.l3_bytes // 2, target.threads * target.l2_bytes),
        "DRAM": max(target.threads * target.l2_bytes + 8 * target.l3_bytes, 64 << 20),
    }
    return min(sizes[level], 1 << 30)


@cache
def peak_gflops(target: Cpu) -> float:
    """Returns the f32 rate of all threads together: from the cache file of `measure_peak`, or by a short
    measurement.
    """
    known = load_peak(target)
    return PeakMeter(target).search(rounds=2, limit_seconds=0.2) if known is None else known.gflops
