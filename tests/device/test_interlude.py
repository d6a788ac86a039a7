"""The state of the caches before a timed run, where it can be seen: who touches what, and that values stay."""

from __future__ import annotations

import ctypes
import mmap
import platform
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.builder.building import build_artifact
from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import AnyOf, assembly
from stormdrop.device.device import BoundCall, BufferPlace, InputArray
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice, HostKernel, HostMemory
from stormdrop.device.interlude import MOST_COPIES, Action, LineRange, SurroundedBenches, interlude, interlude_ir
from stormdrop.device.pool.pool import Pool, shared_pool
from stormdrop.model.kernel import PreparedKernel
from stormdrop.target import Surroundings
from stormdrop.target.cpu import Cpu

Array = NDArray[Any]
PAGE = mmap.PAGESIZE
N, K, M = 13, 29, 37
LARGE = Surroundings(constant_bytes=8 << 20, arena_bytes=1 << 20)


def layer() -> sd.Task:
    X, W = sd.tensor("X", (N, K)), sd.tensor("W", (K, M), constant=True)
    i, j, q = sd.axis(N), sd.axis(M), sd.reduce_axis(K)
    return sd.Task([sd.compute("Y", (i, j), sd.sum(X[i, q] * W[q, j], q))], name="layer")


def machine(is_cold: bool = False) -> Cpu:
    """A host whose caches are small: L2 64 KiB, L3 1 MiB."""
    return replace(detect(2), l2_bytes=1 << 16, l3_bytes=1 << 20).with_cold_weights(is_cold)


@pytest.fixture
def device() -> HostDevice:
    return HostDevice(shared_pool(2))


def weights() -> Array:
    return np.random.default_rng(1).standard_normal((K, M), dtype=np.float32)


def loaded(device: HostDevice) -> tuple[BoundCall, list[int]]:
    """A call of the layer, and the indices of its constants."""
    artifact = build_artifact(layer(), None, detect(2))
    call = PreparedKernel(artifact, {"W": weights()}, device).call()
    return call, [k for k, buffer in enumerate(artifact.buffers) if buffer.is_kept]


def resident(pages: mmap.mmap) -> list[bool]:
    """Which pages of a mapping were ever touched."""
    address = np.frombuffer(pages, np.uint8).ctypes.data
    with open("/proc/self/pagemap", "rb") as f:
        f.seek(address // PAGE * 8)
        entries = np.frombuffer(f.read(len(pages) // PAGE * 8), np.uint64)
    return [bool(entry >> np.uint64(63)) for entry in entries]


@pytest.mark.parametrize("action", [Action.READ, Action.REWRITE])
def test_every_thread_touches_a_contiguous_share_of_its_own(action: Action) -> None:
    device = HostDevice(Pool(4))
    pages = mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    memory = HostMemory(np.frombuffer(pages, np.uint8))
    call = interlude(device, [LineRange(action, BufferPlace(memory), memory.nbytes)])
    table, place = (a for a in call.arguments if isinstance(a, BufferPlace))
    assert isinstance(table.memory, HostMemory)
    pointers = np.array([table.memory.address, memory.address], np.int64)
    assert place.memory is memory
    assert isinstance(call.kernel, HostKernel)
    assert call.kernel.artifact.extents == tuple(4 if a is action else 0 for a in Action)
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
    kernel = signature(call.kernel.code.address(ENTRY))
    touched: set[int] = set()
    for thread in (2, 0, 3, 1):
        kernel(pointers.ctypes.data, None, action, thread, thread + 1)
        touched |= {2 * thread, 2 * thread + 1}
        assert {k for k, is_there in enumerate(resident(pages)) if is_there} == touched


def test_what_is_rewritten_keeps_its_value_and_what_is_flushed_still_runs(device: HostDevice) -> None:
    call, _ = loaded(device)
    assert isinstance(call.kernel, HostKernel)
    address, nbytes = call.kernel.code.section(ENTRY)
    code = HostMemory(np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8))
    text = code.block.tobytes()
    data = device.allocate(1000)
    data.write(0, np.arange(1000, dtype=np.int64).astype(np.uint8))
    before = data.block.copy()
    ranges = [
        LineRange(Action.FLUSH, BufferPlace(code), nbytes),
        LineRange(Action.READ, BufferPlace(code), nbytes),
        LineRange(Action.FLUSH, BufferPlace(data), data.nbytes),
        LineRange(Action.REWRITE, InputArray(0), 4 * N * K),
        LineRange(Action.REWRITE, BufferPlace(data), data.nbytes),
    ]
    recording = device.record([interlude(device, ranges), call])
    x, y = normal_input(), np.full((N, M), np.nan, np.float32)
    given = x.copy()
    recording.bind([given], [y])
    for _ in range(3):
        recording.run()
    assert np.allclose(y, x @ weights(), atol=1e-4)
    assert np.array_equal(given, x)
    assert np.array_equal(data.block, before)
    assert code.block.tobytes() == text


def normal_input() -> Array:
    return np.random.default_rng(2).standard_normal((N, K), dtype=np.float32)


def test_a_section_holds_the_code_of_its_symbol(device: HostDevice) -> None:
    call = interlude(device, [])
    assert isinstance(call.kernel, HostKernel)
    address, nbytes = call.kernel.code.section(ENTRY)
    assert address <= call.kernel.code.address(ENTRY) < address + nbytes
    assert ctypes.string_at(address, nbytes) in call.kernel.artifact.code
    with pytest.raises(sd.BuildError, match="defines no 'other'"):
        call.kernel.code.section("other")


FLUSHES = {
    ("x86_64", ""): {"clflush"},
    ("x86_64", "+sse2,+clflushopt"): {"clflushopt"},
    ("aarch64", ""): {"dc", "ic"},
}


@pytest.mark.parametrize(("machine", "features"), [key for key in FLUSHES if key[0] == platform.machine()])
def test_every_machine_flushes_data_and_instructions(machine: str, features: str) -> None:
    text = assembly(interlude_ir(machine, features), AnyOf(f"{machine}-unknown-linux-gnu"))
    instructions = {line.split()[0] for line in text.splitlines() if line.startswith("\t")}
    assert instructions & {"clflush", "clflushopt", "dc", "ic"} == FLUSHES[machine, features]


def test_a_run_in_surroundings_evicts_reads_code_back_and_rewrites_inputs(device: HostDevice) -> None:
    call, constants = loaded(device)
    benches = SurroundedBenches(device, machine(), LARGE)
    ranges = benches.ranges(call, constants)
    assert [r.action for r in ranges] == [Action.FLUSH, Action.READ, Action.READ, Action.REWRITE]
    flushed, read_back, evicting, rewritten = ranges
    assert isinstance(call.kernel, HostKernel)
    assert flushed.nbytes == read_back.nbytes == call.kernel.code.section(ENTRY)[1]
    own_bytes = sum(call.kernel.artifact.buffers[k].nbytes for k in constants)
    assert evicting.nbytes == 2 * (64 + 16) * 1024 - own_bytes  # of two threads, a quarter more than L2 holds
    assert rewritten == LineRange(Action.REWRITE, InputArray(0), 4 * N * K)


def test_a_small_model_evicts_no_more_than_it_touches(device: HostDevice) -> None:
    call, constants = loaded(device)
    own_bytes = sum(call.kernel.artifact.buffers[k].nbytes for k in constants)
    benches = SurroundedBenches(device, machine(), Surroundings(own_bytes, 4096))
    assert benches.ranges(call, constants)[2].nbytes <= 4096 + 64
    alone = SurroundedBenches(device, machine(), Surroundings(0, 0))
    assert alone.ranges(call, constants)[2].nbytes == 0


def test_constants_of_a_cold_model_are_flushed_and_its_code_is_not_read_back(device: HostDevice) -> None:
    call, constants = loaded(device)
    ranges = SurroundedBenches(device, machine(is_cold=True), LARGE).ranges(call, constants)
    flushed = [r for r in ranges if r.action is Action.FLUSH]
    assert [r.place for r in flushed[:-1]] == [call.arguments[k] for k in constants]
    assert [r.place for r in ranges if r.action is Action.READ] == [ranges[-2].place]
    assert ranges[-1].action is Action.REWRITE


def test_inputs_are_rewritten_in_the_arena_and_in_arrays_of_the_caller_only(device: HostDevice) -> None:
    call, constants = loaded(device)
    arena, other = device.allocate(4 * N * K), device.allocate(4 * N * K)
    benches = SurroundedBenches(device, machine(), LARGE, arena)
    at = call.arguments.index(InputArray(0))
    for place, is_rewritten in ((BufferPlace(arena), True), (BufferPlace(other), False), (InputArray(0), True)):
        arguments = [*call.arguments[:at], place, *call.arguments[at + 1 :]]
        ranges = benches.ranges(BoundCall(call.kernel, tuple(arguments)), constants)
        assert [r.place for r in ranges if r.action is Action.REWRITE] == ([place] if is_rewritten else [])


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_bench_in_surroundings_times_right_runs_only(device: HostDevice, is_cold: bool, is_kept: bool) -> None:
    call, constants = loaded(device)
    bench = SurroundedBenches(device, machine(is_cold), LARGE).bench(call, constants, is_kept)
    x, y = normal_input(), np.full((N, M), np.nan, np.float32)
    bench.bind([x], [y])
    seconds = bench.bench(MOST_COPIES + 3)  # more than one round of the copies
    assert seconds.shape == (MOST_COPIES + 3,)
    assert bench.interlude_seconds > 0
    assert bench.busy(5).shape == (5,)
    assert np.allclose(y, x @ weights(), atol=1e-4)


def test_constants_come_from_another_copy_in_every_run(device: HostDevice) -> None:
    call, constants = loaded(device)
    own_bytes = sum(call.kernel.artifact.buffers[k].nbytes for k in constants)
    bench = SurroundedBenches(device, machine(), Surroundings(4 * own_bytes, 0)).bench(call, constants)
    x, y = normal_input(), np.full((N, M), np.nan, np.float32)
    bench.bind([x], [y])
    bench.bench(1)
    for k in constants:  # the copies were made: what the kernel was loaded with is not read any more
        place = call.arguments[k]
        assert isinstance(place, BufferPlace)
        place.memory.write(place.offset, np.zeros(call.kernel.artifact.buffers[k].nbytes, np.uint8))
    bench.bench(6)
    assert np.allclose(y, x @ weights(), atol=1e-4)
