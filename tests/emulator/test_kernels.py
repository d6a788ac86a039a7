"""Kernels written by hand compute what they should in every order, and every planted bug is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.emulator import kernels
from tests.emulator.faults import Fault, FaultKind
from tests.emulator.launch import Copies, Order, Warps, launch
from tests.emulator.memory import GlobalBuffer
from tests.emulator.reading import read

Array = NDArray[Any]
ORDERS = [
    Order(seed, warps, copies)
    for seed, (warps, copies) in enumerate(
        list[tuple[Warps, Copies]](
            [
                ("together", "late"),
                ("together", "early"),
                ("forward", "random"),
                ("backward", "late"),
                ("random", "early"),
            ]
        )
    )
]


@dataclass(frozen=True)
class Kernel:
    """A kernel, its launch, and what it should compute."""

    text: str
    blocks: int
    threads: int
    shared_bytes: int
    inputs: Sequence[Array]
    wanted: Array

    def run(self, text: str | None = None, order: Order = ORDERS[0]) -> Array:
        got = np.full(self.wanted.shape, np.nan, np.float32)
        buffers = [GlobalBuffer(f"in{k}", x.reshape(-1).view(np.uint8)) for k, x in enumerate(self.inputs)]
        buffers.append(GlobalBuffer("out", got.reshape(-1).view(np.uint8), is_writable=True))
        launch(
            read(text or self.text),
            "phase0",
            blocks=self.blocks,
            threads=self.threads,
            shared_bytes=self.shared_bytes,
            arguments=buffers,
            order=order,
            most_segments=1000,
        )
        return got

    def changed(self, old: str, new: str) -> str:
        assert old in self.text
        return self.text.replace(old, new)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def vector_add(n: int = 1003) -> Kernel:
    x, y = drawn(n), drawn(n)[::-1].copy()
    return Kernel(kernels.vector_add(n), -(-n // 256), 64, 0, [x, y], x + y)


def gemm(m: int = 13, n: int = 18, k: int = 37, stages: int = 3) -> Kernel:
    a, b = drawn(m, k), drawn(k, n)
    blocks = -(-m // kernels.TILE) * -(-n // kernels.TILE)
    return Kernel(kernels.gemm(m, n, k, stages), blocks, 64, kernels.gemm_shared_bytes(stages), [a, b], a @ b)


def row_sums() -> Kernel:
    x = drawn(5, 301)
    return Kernel(kernels.row_sums(5, 301), 5, 128, 16, [x], x.sum(axis=1))


def row_maxima() -> Kernel:
    x = -np.abs(drawn(150))
    padded = np.concatenate([[-np.inf], x, [-np.inf]]).astype(np.float32)
    wanted = np.maximum(np.maximum(padded[:-2], padded[1:-1]), padded[2:])
    return Kernel(kernels.row_maxima(150), 3, 64, 66 * 4, [x], wanted)


KERNELS: list[Callable[[], Kernel]] = [vector_add, gemm, row_sums, row_maxima]


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: f"{o.warps}-{o.copies}")
@pytest.mark.parametrize("make", KERNELS, ids=lambda f: f.__name__)
def test_a_right_kernel_computes_its_result_in_every_order(make: Callable[[], Kernel], order: Order) -> None:
    kernel = make()
    np.testing.assert_allclose(kernel.run(order=order), kernel.wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stages", [2, 4])
def test_rings_of_any_depth_are_understood(stages: int) -> None:
    kernel = gemm(stages=stages)
    np.testing.assert_allclose(kernel.run(), kernel.wanted, rtol=1e-4, atol=1e-5)


def is_caught(kernel: Kernel, text: str, *kinds: FaultKind) -> None:
    """In every order: either a fault of one of the kinds, or, without kinds, a wrong result."""
    for order in ORDERS:
        got = outcome(kernel, text, order)
        if isinstance(got, Fault):
            assert got.kind in kinds, str(got)
        else:
            assert not kinds, f"no fault in {order}"
            assert not np.allclose(got, kernel.wanted, rtol=1e-4, atol=1e-5)


def outcome(kernel: Kernel, text: str, order: Order) -> Array | Fault:
    try:
        return kernel.run(text, order)
    except Fault as fault:
        return fault


BARRIER = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"


@pytest.mark.parametrize("make", [gemm, row_sums, row_maxima], ids=lambda f: f.__name__)
def test_a_dropped_barrier_is_a_race(make: Callable[[], Kernel]) -> None:
    kernel = make()
    is_caught(kernel, kernel.changed(BARRIER + "\n", "\n"), FaultKind.RACE, FaultKind.PENDING_COPY)


def test_a_race_names_both_instructions_their_threads_and_the_address() -> None:
    kernel = row_sums()
    with pytest.raises(Fault) as caught:
        kernel.run(kernel.changed(BARRIER + "\n", "\n"))
    text = str(caught.value)
    assert "thread 32 of block 0 writes" in text
    assert "store float %sum5, ptr addrspace(3) %part" in text
    assert "thread 0 of block 0 reads" in text
    assert "load <4 x float>, ptr addrspace(3) @shared" in text
    assert "byte 4 of 16 shared bytes" in text


def test_a_wait_that_leaves_one_group_too_many_is_caught() -> None:
    kernel = gemm()
    text = kernel.changed("cp.async.wait.group(i32 1)", "cp.async.wait.group(i32 2)")
    is_caught(kernel, text, FaultKind.PENDING_COPY)


def test_a_read_of_the_wrong_stage_is_caught() -> None:
    """With two stages to spare the neighbour's data would be there, but for its copy under way."""
    kernel = gemm(stages=4)
    text = kernel.changed("%s = urem i32 %t, 4", "%s0 = add i32 %t, 1\n  %s = urem i32 %s0, 4")
    is_caught(kernel, text, FaultKind.PENDING_COPY)


def test_a_copy_into_the_stage_that_is_being_read_is_caught() -> None:
    kernel = gemm()
    text = kernel.changed("%next.s = urem i32 %later, 3", "%next.s = urem i32 %t, 3")
    is_caught(kernel, text, FaultKind.RACE, FaultKind.PENDING_COPY)


@pytest.mark.parametrize(
    ("make", "old", "new"),
    [
        (vector_add, "icmp sge i32 %left, 4", "icmp sge i32 %left, 1"),
        (gemm, "%row.ok = icmp slt i32 %i, 13", "%row.ok = icmp slt i32 %i, 14"),
        (row_maxima, "%inside = icmp ult i32 %g, 150", "%inside = icmp slt i32 %g, 150"),
        (row_maxima, "%live = icmp slt i32 %i, 150", "%live = icmp sle i32 %i, 150"),
    ],
)
def test_a_wrong_guard_is_out_of_bounds(make: Callable[[], Kernel], old: str, new: str) -> None:
    kernel = make()
    is_caught(kernel, kernel.changed(old, new), FaultKind.OUT_OF_BOUNDS)


def test_a_guard_that_is_too_narrow_leaves_elements_unwritten() -> None:
    kernel = row_maxima()
    is_caught(kernel, kernel.changed("%live = icmp slt i32 %i, 150", "%live = icmp slt i32 %i, 149"))


def test_a_wrong_lane_in_a_shuffle_gives_a_wrong_result() -> None:
    kernel = row_sums()
    is_caught(kernel, kernel.changed("float %sum2, i32 4, i32 31", "float %sum2, i32 2, i32 31"))


def test_a_shuffle_among_threads_that_are_not_all_there_is_caught() -> None:
    kernel = row_sums()
    text = kernel.changed(
        "%more = fadd float %acc, %v",
        "%more0 = fadd float %acc, %v\n  %more = call float "
        "@llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %more0, i32 0, i32 31)",
    )
    is_caught(kernel, text, FaultKind.SHUFFLE)


def test_zeros_where_the_identity_is_minus_infinity_give_a_wrong_result() -> None:
    kernel = row_maxima()
    text = kernel.changed("store float 0xFFF0000000000000", "store float 0.0")
    is_caught(kernel, text)


def test_a_zero_filled_copy_where_the_identity_is_minus_infinity_gives_a_wrong_result() -> None:
    kernel = row_maxima()
    text = kernel.changed(
        "br i1 %inside, label %fetch, label %border", "%size = select i1 %inside, i32 4, i32 0\n  br label %fetch"
    )
    text = text.replace(
        "cp.async.ca.shared.global.4(ptr addrspace(3) %dst, ptr addrspace(1) %src)",
        "cp.async.ca.shared.global.4.s(ptr addrspace(3) %dst, ptr addrspace(1) %src, i32 %size)",
    )
    is_caught(kernel, text)


def test_two_blocks_that_write_one_element_race() -> None:
    kernel = vector_add(1024)
    is_caught(kernel, kernel.changed("%b = mul i32 %cta, 64", "%b = mul i32 %cta, 63"), FaultKind.RACE)


def test_two_blocks_of_different_batches_that_write_one_element_race() -> None:
    """1,024 blocks of 64 threads are too many to run together; the last two write the same elements."""
    kernel = vector_add(256 * 1024)
    text = kernel.changed("%b = mul i32 %cta, 64", "%n = and i32 %cta, 511\n  %b = mul i32 %n, 64")
    with pytest.raises(Fault, match=r"race: byte \d+ of out"):
        kernel.run(text)


def test_a_block_that_reads_what_another_writes_races() -> None:
    """In place and shifted by one element: each block reads its neighbour's first element."""
    kernel = vector_add(1024)
    x = drawn(1028)
    data = x.view(np.uint8)
    text = kernel.changed(
        "%py = getelementptr float, ptr addrspace(1) %y",
        "%k4 = add i32 %k, 4\n  %py = getelementptr float, ptr addrspace(1) %z",
    )
    text = text.replace("%z, i32 %k\n  %pz", "%z, i32 %k4\n  %pz").replace(", !invariant.load !0", "")
    buffers = [GlobalBuffer(name, data if name == "z" else data.copy(), name == "z") for name in "xyz"]
    with pytest.raises(Fault, match="race"):
        launch(read(text), "phase0", blocks=4, threads=64, arguments=buffers)


def test_an_invariant_load_of_what_the_launch_writes_is_caught() -> None:
    kernel = vector_add(1024)
    text = kernel.changed(
        "%px = getelementptr float, ptr addrspace(1) %x", "%px = getelementptr float, ptr addrspace(1) %z"
    )
    is_caught(kernel, text, FaultKind.STALE_INVARIANT)


def test_a_write_to_an_input_is_caught() -> None:
    kernel = vector_add(1024)
    text = kernel.changed(
        "%pz = getelementptr float, ptr addrspace(1) %z", "%pz = getelementptr float, ptr addrspace(1) %x"
    )
    is_caught(kernel, text, FaultKind.READ_ONLY)


def test_a_misaligned_vector_is_caught() -> None:
    kernel = vector_add()
    is_caught(kernel, kernel.changed("%k = mul i32 %t, 4", "%k = mul i32 %t, 3"), FaultKind.MISALIGNED)


def test_an_argument_that_is_not_aligned_is_caught() -> None:
    kernel = vector_add(1024)
    buffers = [GlobalBuffer(name, drawn(1024).view(np.uint8), name == "z", 8 * (name == "y")) for name in "xyz"]
    with pytest.raises(Fault, match=r"misaligned: byte 0 of y \(4096 bytes\), to 16"):
        launch(read(kernel.text), "phase0", blocks=4, threads=64, arguments=buffers)


def test_one_element_too_many_is_out_of_bounds() -> None:
    kernel = vector_add()
    is_caught(kernel, kernel.changed("%left = sub i32 1003, %k", "%left = sub i32 1004, %k"), FaultKind.OUT_OF_BOUNDS)


def test_shared_memory_beyond_what_was_asked_for_is_out_of_bounds() -> None:
    kernel = row_maxima()
    short = Kernel(kernel.text, kernel.blocks, kernel.threads, 65 * 4, kernel.inputs, kernel.wanted)
    is_caught(short, kernel.text, FaultKind.OUT_OF_BOUNDS)


def test_shared_memory_is_garbage_when_a_block_begins() -> None:
    kernel = row_sums()
    is_caught(kernel, kernel.changed("br i1 %first, label %put, label %meet", "br label %meet"))


def test_a_barrier_that_some_threads_do_not_reach_is_caught() -> None:
    kernel = row_maxima()
    text = kernel.changed(
        f"{BARRIER}\n",
        "%few = icmp slt i32 %tid, 40\n  br i1 %few, label %bar, label %past\n"
        f"bar:\n  {BARRIER}\n  br label %past\npast:\n",
    )
    is_caught(kernel, text, FaultKind.DIVERGENT_BARRIER)


def test_a_kernel_that_never_ends_is_reported() -> None:
    kernel = vector_add()
    is_caught(kernel, kernel.changed("%next = add i32 %i, 1", "%next = add i32 %i, 0"), FaultKind.HANG)


def test_more_threads_than_the_kernel_allows_are_refused() -> None:
    kernel = vector_add()
    with pytest.raises(Fault, match="takes 256 threads"):
        Kernel(kernel.text, 1, 288, 0, kernel.inputs, kernel.wanted).run()


def test_a_constant_offset_into_shared_memory_is_understood() -> None:
    kernel = row_sums()
    offset = "ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @shared, i32 16)"
    moved = kernel.changed("ptr addrspace(3) @shared", offset)
    large = Kernel(moved, kernel.blocks, kernel.threads, 32, kernel.inputs, kernel.wanted)
    np.testing.assert_allclose(large.run(), kernel.wanted, rtol=1e-4, atol=1e-5)
    is_caught(kernel, moved, FaultKind.OUT_OF_BOUNDS)
