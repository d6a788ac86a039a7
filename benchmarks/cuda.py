"""What of the CUDA device works on the GPU of this machine: attributes, peak, one kernel in every way it can be run.

    python -m benchmarks.cuda                     # every step, a minute or two
    python -m benchmarks.cuda peak axpy           # some steps
    python -m benchmarks.cuda --json FILE         # also as JSON

A step that fails is told of with its error, and the next one runs. Steps that leave the GPU unusable for their process
run in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.errors import BuildError, RunError, StormdropError
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.ops import catalogue
from stormdrop.runtime.artifact import Artifact, BufferSpec, Launch
from stormdrop.runtime.cuda.assembler import NoAssembler, assembler
from stormdrop.runtime.cuda.context import Attribute
from stormdrop.runtime.cuda.detect import detect_gpu
from stormdrop.runtime.cuda.device import CudaDevice, cuda_device
from stormdrop.runtime.cuda.driver import CudaError
from stormdrop.runtime.cuda.memory import DeviceArray
from stormdrop.runtime.cuda.peak import artifact_of_module, measure_gpu_peak
from stormdrop.runtime.device import BoundCall, BufferPlace, InputArray, OutputArray
from stormdrop.runtime.prepared import PreparedKernel
from stormdrop.runtime.rotation import Rotation, rotation_bytes
from stormdrop.space.default import default_schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.scope import Scope

Array = NDArray[Any]
Facts = dict[str, Any]

N, THREADS = 1 << 20, 256
SHARED_BYTES = 64 << 10

AXPY = """
target triple = "nvptx64-nvidia-cuda"
@shared = external addrspace(3) global [0 x i8], align 128
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32)

; work = x through shared memory, each block's elements reversed
define ptx_kernel void @phase0(ptr %x, ptr %c, ptr %work, ptr %y) "nvvm.maxntid"="256" {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %base = mul i32 %b, 256
  %i = add i32 %base, %t
  %from = addrspacecast ptr %x to ptr addrspace(1)
  %into = addrspacecast ptr %work to ptr addrspace(1)
  %at = getelementptr float, ptr addrspace(1) %from, i32 %i
  %far = add i32 %t, 15000
  %s = getelementptr float, ptr addrspace(3) @shared, i32 %far
  call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) %s, ptr addrspace(1) %at)
  call void @llvm.nvvm.cp.async.commit.group()
  call void @llvm.nvvm.cp.async.wait.group(i32 0)
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %mirror = sub i32 15255, %t
  %m = getelementptr float, ptr addrspace(3) @shared, i32 %mirror
  %v = load float, ptr addrspace(3) %m, align 4
  %o = getelementptr float, ptr addrspace(1) %into, i32 %i
  store float %v, ptr addrspace(1) %o, align 4
  ret void
}

; y = 2 work + c
define ptx_kernel void @phase1(ptr %x, ptr %c, ptr %work, ptr %y) "nvvm.maxntid"="256" {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %base = mul i32 %b, 256
  %i = add i32 %base, %t
  %from = addrspacecast ptr %work to ptr addrspace(1)
  %const = addrspacecast ptr %c to ptr addrspace(1)
  %into = addrspacecast ptr %y to ptr addrspace(1)
  %p = getelementptr float, ptr addrspace(1) %from, i32 %i
  %q = getelementptr float, ptr addrspace(1) %const, i32 %i
  %o = getelementptr float, ptr addrspace(1) %into, i32 %i
  %v = load float, ptr addrspace(1) %p, align 4
  %w = load float, ptr addrspace(1) %q, align 4
  %two = fadd float %v, %v
  %sum = fadd float %two, %w
  store float %sum, ptr addrspace(1) %o, align 4
  ret void
}
"""

FAULT = """
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @phase0() {
  %p = inttoptr i64 64 to ptr addrspace(1)
  store volatile float 1.0, ptr addrspace(1) %p, align 4
  ret void
}
"""

HANG = """
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @phase0(ptr %x) {
entry:
  %p = addrspacecast ptr %x to ptr addrspace(1)
  br label %loop
loop:
  %v = load volatile i32, ptr addrspace(1) %p, align 4
  %more = icmp eq i32 %v, 0
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def axpy(device: CudaDevice) -> Artifact:
    """y[i] = 2 x[mirrored i] + c[i], in two phases with a workspace between them."""
    buffers = (
        BufferSpec("x", "f32", Scope.INPUT, N),
        BufferSpec("c", "f32", Scope.CONSTANT, N),
        BufferSpec("work", "f32", Scope.WORKSPACE, N),
        BufferSpec("y", "f32", Scope.OUTPUT, N),
    )
    blocks = N // THREADS
    return artifact_of_module(device, AXPY, buffers, Launch(blocks, THREADS, SHARED_BYTES), Launch(blocks, THREADS, 0))


def right(x: Array, c: Array) -> Array:
    return 2 * x.reshape(-1, THREADS)[:, ::-1].reshape(-1) + c


def data(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(N, dtype=np.float32)


def require(condition: bool, told: str) -> None:
    if not condition:
        raise RunError(told)


# ---- steps ---------------------------------------------------------------------------------------------------------


def attributes() -> Facts:
    context = cuda_device().context
    try:
        assembling = f"nvJitLink {'.'.join(map(str, assembler().version))} ({assembler().path})"
    except NoAssembler as error:
        assembling = f"the driver's ({error})"
    return {
        "name": context.name,
        "architecture": context.architecture,
        "driver for CUDA": ".".join(map(str, context.driver.version)),
        "assembler": assembling,
        "memory_bytes": context.memory_bytes,
        "free_bytes": context.free_bytes,
        **{attribute.name.lower(): context.attribute(attribute) for attribute in Attribute},
    }


def peak() -> Facts:
    began = time.perf_counter()
    found = asdict(measure_gpu_peak(cuda_device(), fresh=True))
    return found | {"spent_seconds": time.perf_counter() - began}


def run_axpy() -> Facts:
    """NumPy in and out, other arrays, timing, a profile, several threads."""
    device = cuda_device()
    began = time.perf_counter()
    artifact = axpy(device)
    built = time.perf_counter() - began
    c = data(1)
    kernel = PreparedKernel(artifact, {"c": c}, device)
    recording = kernel.record()
    walls: list[float] = []
    for seed in range(2, 12):
        x, y = data(seed), np.full(N, np.nan, np.float32)
        recording.bind([x], [y])
        began = time.perf_counter()
        recording.run()
        walls.append(time.perf_counter() - began)
        require(bool(np.array_equal(y, right(x, c))), "a run on NumPy arrays is wrong")
    x, y = data(12), np.full(N, np.nan, np.float32)
    recording.bind([x], [y])
    bench = recording.bench(100)
    require(bool(np.array_equal(y, right(x, c))), "a timed run is wrong")
    profile = recording.profile(20)

    def work(seed: int, failed: list[int]) -> None:
        x, y, mine = data(seed), np.full(N, np.nan, np.float32), kernel.record()
        mine.bind([x], [y])
        for _ in range(20):
            y.fill(np.nan)
            mine.run()
            if not np.array_equal(y, right(x, c)):
                failed.append(seed)

    failed: list[int] = []
    threads = [threading.Thread(target=work, args=(seed, failed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not failed, f"threads {failed} had wrong results")
    loaded = device.load(artifact)
    return {
        "build_ms": 1e3 * built,
        "registers": loaded.registers,
        "local_bytes": loaded.local_bytes,
        "wall_us": 1e6 * float(np.median(walls)),
        "bench_us": 1e6 * float(np.median(bench)),
        "bench_spread": float((np.percentile(bench, 75) - np.percentile(bench, 25)) / np.median(bench)),
        "first_of_one_us": 1e6 * float(recording.bench(1)[0]),
        "profile_us": 1e6 * float(np.median(profile)),
        "event_us": 1e6 * device.event_seconds(),
        "GB/s": 5 * 4 * N / float(np.median(bench)) / 1e9,
    }


def rotate() -> Facts:
    """Constants from another copy in every run: cold ones."""
    device = cuda_device()
    c, x, y = data(1), data(2), np.full(N, np.nan, np.float32)
    call = PreparedKernel(axpy(device), {"c": c}, device).call()
    block = device.allocate(rotation_bytes(device.context.attribute(Attribute.L2_BYTES)))
    began = time.perf_counter()
    rotation = Rotation(device, call, [1], block)
    rotation.bind([x], [y])
    made = time.perf_counter() - began
    cold = rotation.bench(100)
    require(bool(np.array_equal(y, right(x, c))), "a rotated run is wrong")
    return {"made_ms": 1e3 * made, "cold_us": 1e6 * float(np.median(cold))}


def in_place() -> Facts:
    """Arrays in the GPU's memory, ours and PyTorch's, other pointers in the same graph, on the caller's stream."""
    device = cuda_device()
    c = data(1)
    recording = device.record([PreparedKernel(axpy(device), {"c": c}, device).call()])
    for seed in range(3):
        x = data(seed)
        source, sink = device.adopt(x.view(np.uint8)), device.allocate(4 * N)
        arrays = DeviceArray(source.address, (N,), np.float32), DeviceArray(sink.address, (N,), np.float32)
        recording.bind([arrays[0]], [arrays[1]])
        recording.run()
        found = sink.read(0, 4 * N).view(np.float32)
        require(bool(np.array_equal(found, right(x, c))), "a run on arrays of the GPU is wrong")
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return {"torch": "not installed"}
    torch_any: Any = torch
    wrong = 0
    stream = torch_any.cuda.Stream()
    with torch_any.cuda.stream(stream):
        for seed in range(5):
            x = data(seed)
            source = torch_any.from_numpy(x).cuda(non_blocking=True)
            sink = torch_any.empty_like(source)
            recording.bind(
                [DeviceArray(source.data_ptr(), (N,), np.float32)], [DeviceArray(sink.data_ptr(), (N,), np.float32)]
            )
            recording.run_on(stream.cuda_stream)
            wrong += not np.array_equal((sink + 0).cpu().numpy(), right(x, c))
    require(not wrong, f"{wrong} runs on PyTorch's tensors are wrong")
    return {"torch": torch_any.__version__}


def refusals() -> Facts:
    """Code of another architecture, too much memory, too much shared memory: typed errors, and the GPU works on."""
    device = cuda_device()
    told: Facts = {}
    artifact = axpy(device)
    damaged = Artifact(b"\x7fELF" + bytes(200), artifact.buffers, artifact.extents, launches=artifact.launches)
    too_much = Artifact(artifact.code, artifact.buffers, artifact.extents, launches=(Launch(1, 32, 1 << 19),) * 2)
    attempts: dict[str, Callable[[], object]] = {
        "damaged code": lambda: device.load(damaged),
        "shared memory": lambda: device.load(too_much),
        "memory": lambda: device.allocate(1 << 45),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
            raise RunError(f"{name}: nothing was raised")
        except (BuildError, MemoryError) as error:
            told[name] = f"{type(error).__name__}: {error}"
    require(device.adopt(np.arange(8, dtype=np.uint8)).read(3, 1)[0] == 3, "the GPU does not work any more")
    return told


def fault() -> Facts:
    """An illegal address, in a process of its own: a sticky error with CUDA's name."""
    return _elsewhere("fault_here", 60)


def fault_here() -> Facts:
    device = cuda_device()
    kernel = device.load(artifact_of_module(device, FAULT, (), Launch(1, 32, 0)))
    recording = device.record([BoundCall(kernel, ())])
    recording.bind([], [])
    try:
        recording.run()
    except CudaError as error:
        require(error.is_sticky, f"{error} is not sticky")
        try:
            device.allocate(100)
        except CudaError as later:
            return {"raised": str(error), "later": str(later)}
    raise RunError("nothing was raised")


def hang() -> Facts:
    """A kernel that never ends: its process is killed, and the GPU works for the others."""
    began = time.perf_counter()
    try:
        _elsewhere("hang_here", 5)
    except subprocess.TimeoutExpired:
        killed = time.perf_counter() - began
        device = cuda_device()
        require(device.adopt(np.arange(8, dtype=np.uint8)).read(3, 1)[0] == 3, "the GPU does not work any more")
        return {"killed after": killed, "works again after": time.perf_counter() - began}
    raise RunError("the kernel ended")


def hang_here() -> Facts:
    device = cuda_device()
    buffers = (BufferSpec("x", "i32", Scope.WORKSPACE, 1),)
    kernel = device.load(artifact_of_module(device, HANG, buffers, Launch(1, 32, 0)))
    memory = device.adopt(np.zeros(1024, np.uint8))
    recording = device.record([BoundCall(kernel, (BufferPlace(memory),))])
    recording.bind([], [])
    recording.run()
    return {}


def many() -> Facts:
    """A graph of 100 kernels: how long making, binding and running it takes."""
    device = cuda_device()
    artifact, c = axpy(device), data(1)
    kernel = PreparedKernel(artifact, {"c": c}, device)
    call = kernel.call()
    sides = [BufferPlace(device.allocate(4 * N)) for _ in range(2)]
    calls = [BoundCall(call.kernel, (InputArray(0), call.arguments[1], call.arguments[2], sides[0]))]
    for k in range(48):
        calls.append(BoundCall(call.kernel, (sides[k % 2], call.arguments[1], call.arguments[2], sides[(k + 1) % 2])))
    calls.append(BoundCall(call.kernel, (sides[0], call.arguments[1], call.arguments[2], OutputArray(0))))
    began = time.perf_counter()
    recording = device.record(calls)
    x, y = data(2) * np.float32(1e-6), np.full(N, np.nan, np.float32)
    recording.bind([x], [y])
    recording.run()
    made = time.perf_counter() - began
    walls: list[float] = []
    for _ in range(20):
        recording.bind([x], [np.empty(N, np.float32)])
        began = time.perf_counter()
        recording.run()
        walls.append(time.perf_counter() - began)
    profile = recording.profile(10)
    bench = float(np.median(recording.bench(20)))
    return {
        "made_ms": 1e3 * made,
        "wall_us": 1e6 * float(np.median(walls)),
        "bench_us": 1e6 * bench,
        "sum of profile_us": 1e6 * float(np.median(profile.sum(axis=1))),
    }


OPERATORS = (
    ("GMM", (1, 512, 512, 512)),
    ("GMM", (1, 61, 67, 37)),
    ("C2D", (1, 14, 14, 256, 256, 3, 1, 1)),
    ("C2D", (1, 7, 7, 512, 512, 3, 1, 1)),
    ("DEP", (1, 14, 14, 512, 3, 1, 1)),
    ("SFM", (256, 256)),
    ("MXP", (1, 56, 56, 192, 3, 2, 1)),
    ("NRM", (1, 256, 256)),
)


def kernels() -> Facts:
    """Operators by default schedules, built here and compared with the reference; one row of their times."""
    told: Facts = {}
    target = detect_gpu()
    for name, shape in OPERATORS:
        task = catalogue.build(name, shape)
        try:
            with Measurer(target, MeasureSettings(final_seconds=0.02), builders=1, shared_proofs=True) as measurer:
                result = measurer.prove(task, default_schedule(task, target))
            if isinstance(result, Failure):
                told[task.name] = str(result)
            else:
                rate = task.flops / result.seconds / 1e12
                told[task.name] = f"{1e6 * result.seconds:.2f} µs, {rate:.2f} TFLOP/s, spread {result.spread:.1%}"
        except StormdropError as error:
            told[task.name] = f"{type(error).__name__}: {error}"
    return told


def search() -> Facts:
    """Random points of one operator: how many a second, and what fails."""
    target, task = detect_gpu(), catalogue.build("GMM", (1, 512, 512, 512))
    rng = np.random.default_rng(0)
    found = sketches(task, target)
    schedules = [s.schedule(p) for s in found for p in s.sample_legal(max(1, 96 // len(found)), rng)]
    with Measurer(target) as measurer:
        measurer.measure(task, schedules[:1])
        began = time.perf_counter()
        results = measurer.measure(task, schedules)
        spent = time.perf_counter() - began
    failures = [str(r) for r in results if isinstance(r, Failure)]
    timings = [r.seconds for r in results if isinstance(r, Timing)]
    return {
        "candidates": len(results),
        "candidates_per_second": len(results) / spent,
        "failed": len(failures),
        "failures": sorted(set(failures))[:5],
        "best_us": 1e6 * min(timings, default=float("nan")),
        "median build_ms": 1e3 * float(np.median([r.build_seconds for r in results])),
    }


def model() -> Facts:
    """A network of the zoo against the CPU's results; timed, profiled, saved and loaded; PyTorch's tensors."""
    began = time.perf_counter()
    made = sd.compile("zoo:squeezenet1_0", target="cuda", schedules=lambda task: None)
    compiled = time.perf_counter() - began
    x = np.random.default_rng(0).standard_normal(made.inputs[0].shape, dtype=np.float32)
    expected = sd.compile("zoo:squeezenet1_0", schedules=lambda task: None)(x)
    largest = float(np.max(np.abs(expected)))

    def error(found: Any) -> float:
        return float(np.max(np.abs(np.asarray(found) - expected))) / largest

    facts: Facts = {"compile_seconds": compiled, "error": error(made(x))}
    require(facts["error"] < 1e-3, f"the model is wrong by {facts['error']:.2g}")
    walls: list[float] = []
    for _ in range(50):
        began = time.perf_counter()
        made(x)
        walls.append(time.perf_counter() - began)
    profile = made.profile(x, repeats=20)
    facts["wall_us"] = 1e6 * float(np.median(walls))
    facts["bench_us"] = 1e6 * float(np.median(made.bench(x, repeats=50)))
    facts["sum of profile_us"] = 1e6 * profile.seconds
    facts["profile"] = "\n" + str(profile.by_task())
    with TemporaryDirectory() as folder:
        made.save(Path(folder) / "m.sd")
        facts["error of the file"] = error(sd.load_compiled(Path(folder) / "m.sd")(x))
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return facts
    torch_any: Any = torch
    tensor = torch_any.from_numpy(x).cuda()
    found = made(tensor)
    require(found.is_cuda, "PyTorch's tensors gave something else")
    facts["error with torch"] = error(found.cpu())
    strided = torch_any.empty((*x.shape[:-1], 2 * x.shape[-1]), device="cuda")[..., ::2]
    strided.copy_(tensor)
    facts["error with strides"] = error(made(strided).cpu())
    torch_any.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        found = made(tensor)
    torch_any.cuda.synchronize()
    facts["torch in and out, us"] = 1e6 * (time.perf_counter() - began) / 50
    require(max(facts["error with torch"], facts["error with strides"]) < 1e-3, "a run on tensors is wrong")
    return facts


STEPS: Mapping[str, Callable[[], Facts]] = {
    "attributes": attributes,
    "axpy": run_axpy,
    "rotate": rotate,
    "in_place": in_place,
    "refusals": refusals,
    "many": many,
    "peak": peak,
    "kernels": kernels,
    "search": search,
    "model": model,
    "fault": fault,
    "hang": hang,
}


def _elsewhere(step: str, seconds: float) -> Facts:
    """What a step of this module finds in a process of its own."""
    command = [sys.executable, "-c", f"import json; from benchmarks.cuda import {step}; print(json.dumps({step}()))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RunError(done.stderr.strip()[-500:])
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    given = parser.parse_args()
    found: dict[str, Facts] = {}
    failed: list[str] = []
    for name in given.steps or STEPS:
        try:
            found[name] = STEPS[name]()
            print(f"{name}: ok", flush=True)
        except Exception as error:  # the other steps say where the trouble begins
            traceback.print_exc()
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
            failed.append(name)
            print(f"{name}: FAILED", flush=True)
        for key, value in found[name].items():
            shown = f"{value:.4g}" if isinstance(value, float) else value
            print(f"    {key}: {shown}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
