"""The measured peak of a GPU: f32 multiply-adds, matrix instructions, bandwidths, kernel launches.

    measure_gpu_peak(device) -> GpuPeak           about a second; kept in a file

Every figure is an upper bound: the best of several timings of a kernel that does nothing else. Bandwidths are of reads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stormdrop.base.codec import Rate
from stormdrop.codegen.llvm import AnyOf, assembly
from stormdrop.device.artifact import Artifact, BufferSpec, Launch
from stormdrop.device.calibration import MachineFile
from stormdrop.device.cuda.assembler import machine_code
from stormdrop.device.cuda.context import Attribute
from stormdrop.device.cuda.device import CudaDevice
from stormdrop.device.device import BoundCall, BufferPlace
from stormdrop.target.gpu import GPU_TRIPLE, WARP
from stormdrop.target.structures import Scope

PTX_VERSION = "+ptx80"


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """The measured limits of one GPU; bandwidths in GB/s."""

    name: str
    gflops: Rate
    matrix_gflops: Rate
    """The rate of mma.sync with factors of bf16."""
    shared_gbs: Rate
    l2_gbs: Rate
    dram_gbs: Rate
    kernel_gap_seconds: Rate
    """The seconds from one empty kernel of a graph to the next."""
    launch_seconds: Rate
    """The seconds of a graph of one empty kernel, until the host has waited for it."""


# ---- the kernels ---------------------------------------------------------------------------------------------------

_MODULE = """
target triple = "nvptx64-nvidia-cuda"
@shared = external addrspace(3) global [0 x i8], align 128
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare float @llvm.fma.f32(float, float, float)
define ptx_kernel void @phase0({parameters}) "nvvm.maxntid"="{threads}" {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  {setup}
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i.next, %loop ]
  {body}
  %i.next = add i32 %i, 1
  %more = icmp ult i32 %i.next, {trips}
  br i1 %more, label %loop, label %done
done:
  {last}
  ret void
}}
"""
_VECTOR = "<4 x float>"


def _module(
    parameters: int, threads: int, trips: int, setup: Sequence[str], body: Sequence[str], last: Sequence[str]
) -> str:
    parts = {"setup": setup, "body": body, "last": last}
    return _MODULE.format(
        parameters=", ".join(f"ptr %b{k}" for k in range(parameters)),
        threads=threads,
        trips=trips,
        **{name: "\n  ".join(lines) for name, lines in parts.items()},
    )


def _sink(kind: str, value: str, nbytes: int, threads: int) -> list[str]:
    """Stores the result of a thread to its own element of the first buffer, so that nothing is dead code."""
    return [
        "%sink = addrspacecast ptr %b0 to ptr addrspace(1)",
        f"%sink.row = mul i32 %block, {threads}",
        "%sink.index = add i32 %sink.row, %thread",
        f"%sink.at = getelementptr {kind}, ptr addrspace(1) %sink, i32 %sink.index",
        f"store {kind} {value}, ptr addrspace(1) %sink.at, align {nbytes}",
    ]


FMA_CHAINS, FMA_UNROLL = 8, 16


def fma_module(threads: int, trips: int) -> str:
    """Returns a module in which every trip makes, `FMA_UNROLL` times for each of `FMA_CHAINS` values, x = x * a + a."""
    last = [f"%x{FMA_UNROLL}.{c}" for c in range(FMA_CHAINS)]
    setup = ["%t = uitofp i32 %thread to float", "%a = fmul float %t, 0x3F50000000000000"]
    body = [f"%x0.{c} = phi float [ %t, %entry ], [ {x}, %loop ]" for c, x in enumerate(last)]
    for u in range(FMA_UNROLL):
        for c in range(FMA_CHAINS):
            body.append(f"%x{u + 1}.{c} = call float @llvm.fma.f32(float %x{u}.{c}, float %a, float %a)")
    sums = [f"%s{c} = fadd float {last[c]}, {f'%s{c - 1}' if c else last[0]}" for c in range(FMA_CHAINS)]
    return _module(1, threads, trips, setup, body, [*sums, *_sink("float", f"%s{FMA_CHAINS - 1}", 4, threads)])


MMA_CHAINS = 8
_FRAGMENT = "{ float, float, float, float }"
_MMA = f"declare {_FRAGMENT} @llvm.nvvm.mma.m16n8k16.row.col.bf16({', '.join(['i32'] * 6 + ['float'] * 4)})\n"


def mma_module(threads: int, trips: int) -> str:
    """Returns a module in which every trip makes one product of bf16 matrices, 16 × 16 times 16 × 8.

    There is a product for each of `MMA_CHAINS` sums of a warp.
    """
    factors = ", ".join(["i32 %thread"] * 6)
    body: list[str] = []
    for c in range(MMA_CHAINS):
        body += [f"%c{c}.{n} = phi float [ 0.0, %entry ], [ %d{c}.{n}, %loop ]" for n in range(4)]
    for c in range(MMA_CHAINS):
        sums = ", ".join(f"float %c{c}.{n}" for n in range(4))
        body.append(f"%d{c} = call {_FRAGMENT} @llvm.nvvm.mma.m16n8k16.row.col.bf16({factors}, {sums})")
        body += [f"%d{c}.{n} = extractvalue {_FRAGMENT} %d{c}, {n}" for n in range(4)]
    last = [f"%s{c} = fadd float %d{c}.0, {f'%s{c - 1}' if c else '%d0.1'}" for c in range(MMA_CHAINS)]
    sink = _sink("float", f"%s{MMA_CHAINS - 1}", 4, threads)
    return _module(1, threads, trips, [], body, [*last, *sink]) + _MMA


SHARED_LOADS = 8


def shared_module(threads: int, trips: int) -> str:
    """Returns a module in which every thread reads `SHARED_LOADS` vectors of shared memory in a trip.

    Neighbouring threads read neighbouring vectors.
    """
    row = 16 * threads
    setup = ["%lane = mul i32 %thread, 16"]
    body = [f"%x{k} = phi {_VECTOR} [ zeroinitializer, %entry ], [ %y{k}, %loop ]" for k in range(SHARED_LOADS)]
    # Another half in every trip, or the loads would leave the loop.
    body += ["%half = and i32 %i, 1", f"%offset = mul i32 %half, {row * SHARED_LOADS}", "%at = add i32 %offset, %lane"]
    for k in range(SHARED_LOADS):
        body += [f"%at{k} = add i32 %at, {k * row}"]
        body += [f"%p{k} = getelementptr i8, ptr addrspace(3) @shared, i32 %at{k}"]
        body += [f"%v{k} = load {_VECTOR}, ptr addrspace(3) %p{k}, align 16"]
        body += [f"%y{k} = fadd {_VECTOR} %x{k}, %v{k}"]
    sums = [f"%s{k} = fadd {_VECTOR} %y{k}, {f'%s{k - 1}' if k else '%y0'}" for k in range(SHARED_LOADS)]
    return _module(1, threads, trips, setup, body, [*sums, *_sink(_VECTOR, f"%s{SHARED_LOADS - 1}", 16, threads)])


STREAM_LOADS = 8


def stream_module(threads: int, trips: int, chunks: int, step: int) -> str:
    """Returns a module that reads chunks of the second buffer, `STREAM_LOADS` vectors a thread.

    Block b reads chunk (b + step · i) mod chunks in trip i, so that no multiprocessor finds a chunk in its L1.
    """
    row = 16 * threads
    setup = ["%source = addrspacecast ptr %b1 to ptr addrspace(1)", "%lane = mul i32 %thread, 16"]
    body = [f"%x{k} = phi {_VECTOR} [ zeroinitializer, %entry ], [ %y{k}, %loop ]" for k in range(STREAM_LOADS)]
    body += [f"%far = mul i32 %i, {step}", "%number = add i32 %block, %far", f"%chunk = urem i32 %number, {chunks}"]
    body += ["%wide = zext i32 %chunk to i64", f"%first = mul i64 %wide, {row * STREAM_LOADS}"]
    body += ["%start = getelementptr i8, ptr addrspace(1) %source, i64 %first"]
    body += ["%mine = getelementptr i8, ptr addrspace(1) %start, i32 %lane"]
    for k in range(STREAM_LOADS):
        body += [f"%p{k} = getelementptr i8, ptr addrspace(1) %mine, i32 {k * row}"]
        body += [f"%v{k} = load {_VECTOR}, ptr addrspace(1) %p{k}, align 16"]
        body += [f"%y{k} = fadd {_VECTOR} %x{k}, %v{k}"]
    sums = [f"%s{k} = fadd {_VECTOR} %y{k}, {f'%s{k - 1}' if k else '%y0'}" for k in range(STREAM_LOADS)]
    return _module(2, threads, trips, setup, body, [*sums, *_sink(_VECTOR, f"%s{STREAM_LOADS - 1}", 16, threads)])


EMPTY_MODULE = 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @phase0() { ret void }\n'


# ---- measuring -----------------------------------------------------------------------------------------------------

_TIMINGS = 8
_GAP_KERNELS = 100


def artifact_of_module(device: CudaDevice, text: str, buffers: Sequence[BufferSpec], *launches: Launch) -> Artifact:
    """Compiles hand-written LLVM IR for a device's architecture. Raises BuildError, NoAssembler."""
    architecture = device.context.architecture
    ptx = assembly(text, AnyOf(GPU_TRIPLE, architecture, PTX_VERSION))
    code = machine_code(ptx, architecture)
    return Artifact(code, tuple(buffers), tuple(launch.blocks for launch in launches), launches=launches)


def _seconds(device: CudaDevice, text: str, launch: Launch, *nbytes: int) -> float:
    """Returns the least seconds of a kernel with buffers of these sizes."""
    buffers = [BufferSpec(f"b{k}", "f32", Scope.WORKSPACE, n // 4) for k, n in enumerate(nbytes)]
    kernel = device.load(artifact_of_module(device, text, buffers, launch))
    memories = [device.allocate(b.nbytes) for b in buffers]
    for memory in memories:
        memory.fill(0, memory.nbytes, 0)
    recording = device.record([BoundCall(kernel, tuple(BufferPlace(memory) for memory in memories))])
    recording.bind([], [])
    return float(np.min([recording.bench(1)[0] for _ in range(_TIMINGS)]))


def _gap_seconds(device: CudaDevice) -> float:
    kernel = device.load(artifact_of_module(device, EMPTY_MODULE, (), Launch(1, 32, 0)))
    recording = device.record([BoundCall(kernel, ())] * _GAP_KERNELS)
    recording.bind([], [])
    return float(np.min([recording.bench(1)[0] for _ in range(_TIMINGS)])) / _GAP_KERNELS


def _launch_seconds(device: CudaDevice) -> float:
    kernel = device.load(artifact_of_module(device, EMPTY_MODULE, (), Launch(1, 32, 0)))
    recording = device.record([BoundCall(kernel, ())])
    recording.bind([], [])
    seconds: list[float] = []
    for _ in range(50):
        began = time.perf_counter()
        recording.run()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


FMA_TRIPS, FMA_THREADS = 2048, 256


class GpuPeakMeter:
    """The multiply-adds of a GPU, for use between timings of kernels."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        blocks = 8 * device.context.attribute(Attribute.MULTIPROCESSORS)
        self._flops = 2.0 * FMA_CHAINS * FMA_UNROLL * FMA_TRIPS * blocks * FMA_THREADS
        self._launch = Launch(blocks, FMA_THREADS, 0)

    def gflops(self) -> float:
        """Measures the rate in about 20 ms."""
        text = fma_module(FMA_THREADS, FMA_TRIPS)
        return self._flops / _seconds(self._device, text, self._launch, 16 * self._launch.blocks * FMA_THREADS) / 1e9


def measure_gpu_peak(device: CudaDevice, fresh: bool = False) -> GpuPeak:
    """Returns the peak from the cache file, or else (or if `fresh`) measures and saves it. Raises NoAssembler."""
    if not fresh and (known := known_gpu_peak(device)) is not None:
        return known
    multiprocessors = device.context.attribute(Attribute.MULTIPROCESSORS)
    l2_bytes = device.context.attribute(Attribute.L2_BYTES)
    threads, trips = 256, 2048
    sink_bytes = 16 * 8 * multiprocessors * threads
    shared_bytes = 16 * threads * SHARED_LOADS
    launch = Launch(3 * multiprocessors, threads, 2 * shared_bytes)
    shared = _seconds(device, shared_module(threads, trips), launch, sink_bytes)
    chunk_bytes = 16 * threads * STREAM_LOADS
    chunks, l2_trips = max(1, l2_bytes // 4 // chunk_bytes), 64
    launch = Launch(8 * multiprocessors, threads, 0)
    l2 = _seconds(device, stream_module(threads, l2_trips, chunks, 37), launch, sink_bytes, chunks * chunk_bytes)
    dram_trips = max(1, 16 * l2_bytes // (launch.blocks * chunk_bytes))
    far = launch.blocks * dram_trips
    text = stream_module(threads, dram_trips, far, launch.blocks)
    dram = _seconds(device, text, launch, sink_bytes, far * chunk_bytes)
    warps = launch.blocks * threads // WARP
    mma = _seconds(device, mma_module(threads, trips), launch, sink_bytes)
    peak = GpuPeak(
        device.context.name,
        GpuPeakMeter(device).gflops(),
        2.0 * 16 * 8 * 16 * MMA_CHAINS * trips * warps / mma / 1e9,
        3 * multiprocessors * trips * shared_bytes / shared / 1e9,
        launch.blocks * l2_trips * chunk_bytes / l2 / 1e9,
        far * chunk_bytes / dram / 1e9,
        _gap_seconds(device),
        _launch_seconds(device),
    )
    GPU_PEAKS.save(_identity(device), peak)
    return peak


def known_gpu_peak(device: CudaDevice) -> GpuPeak | None:
    """Returns the peak of this GPU from the cache file; None if there is none."""
    return GPU_PEAKS.load(_identity(device))


GPU_PEAKS = MachineFile("peak-gpu", GpuPeak)


def _identity(device: CudaDevice) -> str:
    context = device.context
    return f"{context.name}; {context.architecture}; {context.attribute(Attribute.MULTIPROCESSORS)}"
