"""What a CUDA device must do beyond computing operators: arrays of every owner, several callers, errors that say what
happened, and kernels that fault or hang without costing more than their process.

Every check is a function that raises AssertionError; `CHECKS` names them. Those that leave the GPU unusable for their
process run in processes of their own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.base.errors import BuildError
from stormdrop.device.artifact import Artifact, BufferSpec, Launch
from stormdrop.device.cuda.context import Attribute, DeviceArray
from stormdrop.device.cuda.detect import detect_gpu
from stormdrop.device.cuda.device import CudaDevice, cuda_device
from stormdrop.device.cuda.driver import CudaError
from stormdrop.device.cuda.peak import artifact_of_module
from stormdrop.device.device import BoundCall, BufferPlace, InputArray, OutputArray
from stormdrop.device.rotation import Rotation, rotation_bytes
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.model.prepared import PreparedKernel
from stormdrop.operators import catalogue
from stormdrop.space.sketch import sketches
from stormdrop.target.structures import Scope

Array = NDArray[Any]
HANG_SECONDS = 5

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


@contextmanager
def _raising(kind: type[Exception]) -> Generator[list[Exception]]:
    """Expect an exception; it is put into the list. (pytest is not installed on every machine with a GPU.)"""
    found: list[Exception] = []
    try:
        yield found
    except kind as error:
        found.append(error)
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def _torch() -> Any:
    """PyTorch, where it is installed."""
    return import_module("torch") if find_spec("torch") is not None else None


# ---- runs --------------------------------------------------------------------------------------------------------


def arrays_of_numpy() -> None:
    """Other arrays in every run; outputs of a timed run are right too."""
    device = cuda_device()
    c = data(1)
    recording = PreparedKernel(axpy(device), {"c": c}, device).record()
    for seed in range(2, 12):
        x, y = data(seed), np.full(N, np.nan, np.float32)
        recording.bind([x], [y])
        recording.run()
        assert np.array_equal(y, right(x, c))
    x, y = data(12), np.full(N, np.nan, np.float32)
    recording.bind([x], [y])
    assert (recording.bench(100) > 0).all()
    assert np.array_equal(y, right(x, c))
    assert recording.profile(20).shape == (20, 1)


def several_callers() -> None:
    device = cuda_device()
    c = data(1)
    kernel = PreparedKernel(axpy(device), {"c": c}, device)
    failed: list[int] = []

    def work(seed: int) -> None:
        x, y, mine = data(seed), np.full(N, np.nan, np.float32), kernel.record()
        mine.bind([x], [y])
        for _ in range(20):
            y.fill(np.nan)
            mine.run()
            if not np.array_equal(y, right(x, c)):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def rotated_constants() -> None:
    """Constants from another copy in every run, cold ones: the same results."""
    device = cuda_device()
    c, x, y = data(1), data(2), np.full(N, np.nan, np.float32)
    call = PreparedKernel(axpy(device), {"c": c}, device).call()
    block = device.allocate(rotation_bytes(device.context.attribute(Attribute.L2_BYTES)))
    rotation = Rotation(device, call, [1], block)
    rotation.bind([x], [y])
    rotation.bench(100)
    assert np.array_equal(y, right(x, c))


def arrays_of_the_gpu() -> None:
    """Other pointers in the same graph."""
    device = cuda_device()
    c = data(1)
    recording = device.record([PreparedKernel(axpy(device), {"c": c}, device).call()])
    for seed in range(3):
        x = data(seed)
        source, sink = device.adopt(x.view(np.uint8)), device.allocate(4 * N)
        arrays = DeviceArray(source.address, (N,), np.float32), DeviceArray(sink.address, (N,), np.float32)
        recording.bind([arrays[0]], [arrays[1]])
        recording.run()
        assert np.array_equal(sink.read(0, 4 * N).view(np.float32), right(x, c))


def tensors_of_pytorch() -> None:
    """In place, on the caller's stream."""
    if (torch := _torch()) is None:
        return
    device = cuda_device()
    c = data(1)
    recording = device.record([PreparedKernel(axpy(device), {"c": c}, device).call()])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for seed in range(5):
            x = data(seed)
            source = torch.from_numpy(x).cuda(non_blocking=True)
            sink = torch.empty_like(source)
            recording.bind(
                [DeviceArray(source.data_ptr(), (N,), np.float32)], [DeviceArray(sink.data_ptr(), (N,), np.float32)]
            )
            recording.run_on(stream.cuda_stream)
            assert np.array_equal((sink + 0).cpu().numpy(), right(x, c))


def a_graph_of_many_kernels() -> None:
    """Fifty calls that hand two buffers to each other."""
    device = cuda_device()
    c = data(1)
    call = PreparedKernel(axpy(device), {"c": c}, device).call()
    sides = [BufferPlace(device.allocate(4 * N)) for _ in range(2)]
    calls = [BoundCall(call.kernel, (InputArray(0), call.arguments[1], call.arguments[2], sides[0]))]
    for k in range(48):
        calls.append(BoundCall(call.kernel, (sides[k % 2], call.arguments[1], call.arguments[2], sides[(k + 1) % 2])))
    calls.append(BoundCall(call.kernel, (sides[0], call.arguments[1], call.arguments[2], OutputArray(0))))
    recording = device.record(calls)
    x, y = data(2), np.full(N, np.nan, np.float32)
    recording.bind([x], [y])
    recording.run()
    expected = x
    for _ in calls:
        expected = right(expected, c)
    assert np.array_equal(y, expected)


def candidates_of_a_search() -> None:
    """Random points of one operator: none fails."""
    target, task = detect_gpu(), catalogue.build("GMM", (1, 512, 512, 512))
    rng = np.random.default_rng(0)
    found = sketches(task, target)
    schedules = [s.schedule(p) for s in found for p in s.sample_legal(max(1, 48 // len(found)), rng)]
    with Measurer(target) as measurer:
        results = measurer.measure(task, schedules)
    assert not [str(r) for r in results if isinstance(r, Failure)]


def a_network() -> None:
    """Against the CPU's results: called with arrays and with PyTorch's tensors, saved and loaded."""
    made = sd.compile("zoo:squeezenet1_0", target="cuda", schedules=lambda task: None)
    x = np.random.default_rng(0).standard_normal(made.inputs[0].shape, dtype=np.float32)
    expected = sd.compile("zoo:squeezenet1_0", schedules=lambda task: None)(x)

    def is_close(found: Any) -> bool:
        return float(np.max(np.abs(np.asarray(found) - expected))) < 1e-3 * float(np.max(np.abs(expected)))

    assert is_close(made(x))
    with TemporaryDirectory() as folder:
        made.save(Path(folder) / "m.sd")
        assert is_close(sd.load_compiled(Path(folder) / "m.sd")(x))
    if (torch := _torch()) is None:
        return
    tensor = torch.from_numpy(x).cuda()
    found = made(tensor)
    assert found.is_cuda
    assert is_close(found.cpu())
    strided = torch.empty((*x.shape[:-1], 2 * x.shape[-1]), device="cuda")[..., ::2]
    strided.copy_(tensor)
    assert is_close(made(strided).cpu())


# ---- errors --------------------------------------------------------------------------------------------------------


def refusals() -> None:
    """Damaged code, too much memory, too much shared memory: typed errors, and the GPU works on."""
    device = cuda_device()
    artifact = axpy(device)
    damaged = Artifact(b"\x7fELF" + bytes(200), artifact.buffers, artifact.extents, launches=artifact.launches)
    too_much = Artifact(artifact.code, artifact.buffers, artifact.extents, launches=(Launch(1, 32, 1 << 19),) * 2)
    with _raising(BuildError):
        device.load(damaged)
    with _raising(BuildError):
        device.load(too_much)
    with _raising(MemoryError):
        device.allocate(1 << 45)
    _still_works()


def _still_works() -> None:
    assert cuda_device().adopt(np.arange(8, dtype=np.uint8)).read(3, 1)[0] == 3


def fault() -> None:
    """An illegal address: a sticky error with CUDA's name. In a process of its own."""
    done = _elsewhere("fault_here", 60)
    assert done.returncode == 0, done.stderr[-500:]


def fault_here() -> None:
    device = cuda_device()
    kernel = device.load(artifact_of_module(device, FAULT, (), Launch(1, 32, 0)))
    recording = device.record([BoundCall(kernel, ())])
    recording.bind([], [])
    with _raising(CudaError) as raised:
        recording.run()
    assert isinstance(raised[0], CudaError)
    assert raised[0].is_sticky
    with _raising(CudaError):
        device.allocate(100)


def hang() -> None:
    """A kernel that never ends: its process is killed, and the GPU works for the others."""
    with _raising(subprocess.TimeoutExpired):
        _elsewhere("hang_here", HANG_SECONDS)
    _still_works()


def hang_here() -> None:
    device = cuda_device()
    buffers = (BufferSpec("x", "i32", Scope.WORKSPACE, 1),)
    kernel = device.load(artifact_of_module(device, HANG, buffers, Launch(1, 32, 0)))
    memory = device.adopt(np.zeros(1024, np.uint8))
    recording = device.record([BoundCall(kernel, (BufferPlace(memory),))])
    recording.bind([], [])
    recording.run()


def _elsewhere(function: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a function of this module in a process of its own."""
    command = [sys.executable, "-c", f"from tests.cuda.device import {function}; {function}()"]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


CHECKS: Mapping[str, Callable[[], None]] = {
    check.__name__: check
    for check in (
        arrays_of_numpy,
        several_callers,
        rotated_constants,
        arrays_of_the_gpu,
        tensors_of_pytorch,
        a_graph_of_many_kernels,
        candidates_of_a_search,
        a_network,
        refusals,
        fault,
        hang,
    )
}
