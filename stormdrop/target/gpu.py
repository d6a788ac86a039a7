"""An NVIDIA GPU as a target: the limits of its architecture, its size, and the rates that the estimate divides by.

A `Gpu` is a plain value. `gpu("sm_90")` describes the named default of an architecture, for compilation without a GPU
at hand. The numbers of a real device replace the defaults by `dataclasses.replace`.

Invariant: code for a target runs on every GPU of its architecture, with any number of multiprocessors.
"""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from stormdrop.base.codec import Count, Range, Rate, Tolerant
from stormdrop.base.errors import UserError
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.target import Machine
from stormdrop.target.microkernels import MATRIX_KERNELS, MULTIPLY_ADD, PRECISIONS, Microkernel, Precision
from stormdrop.target.structures import GPU_STRUCTURES

WARP = 32
"""Threads that execute one instruction together, on every NVIDIA GPU."""

GPU_TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True, slots=True)
class GpuCoefficients(Tolerant):
    """The calibrated numbers of the estimate of a program on a GPU, as one value.

    *h200*: fitted to measured kernels of an H200; *nominal*: from the architecture's documents; *chosen*: a limit or a
    small preference.
    """

    version: Count

    # Issue: warp instructions that a multiprocessor starts in a cycle
    issue_per_cycle: Rate = 4.0  # nominal: four schedulers
    shared_bytes_per_cycle: Rate = 142.0  # one wavefront has 128; h200
    load_issue_per_cycle: Rate = 1.0  # nominal: warp-wide requests to the L1 that one multiprocessor takes
    unstaged_factor: Rate = 4.0  # the cost factor of operands of a tile that every thread loads from the L1; h200
    sector_bytes: Rate = 32.0  # nominal: the traffic of a request per cache line it touches
    function_instructions: Rate = 20.0  # exp, tanh, erf, ...; counted
    turn_instructions: Rate = 24.0  # of a turn of an unrolled loop: control, and loads that do not overlap; h200
    division_instructions: Rate = 10.0  # counted
    rounding_instructions: Rate = 7.0  # of an f32 to a half; counted
    index_instructions: Rate = 6.0  # of each tile that a thread stores; counted
    copy_instructions: Rate = 3.0  # of each copy to shared memory, for its addresses; counted
    guard_instructions: Rate = 5.0  # in addition, for the test of a border; counted

    # Latencies, in cycles
    memory_cycles: Rate = 650.0  # a load from the L2 that few blocks share; h200
    barrier_cycles: Rate = 40.0  # h200
    shuffle_cycles: Rate = 30.0  # nominal
    loop_cycles: Rate = 12.0  # control of a loop that is not unrolled; chosen
    fma_latency: Rate = 4.0  # nominal
    warp_gap: Rate = 2.0  # share of time lost to instruction latencies if there is one warp; h200

    # A launch
    launch_seconds: Rate = 2.0e-6  # of a kernel in a graph, from the end of the one before; h200
    block_cycles: Rate = 600.0  # to start a block and to drain its stores; h200
    start_cycles: Rate = 60.0  # between the starts of two blocks on one multiprocessor; chosen

    # Limits, all of them chosen
    most_instructions: Rate = 6000.0  # of one phase: ptxas takes about 40 µs for each
    spare_registers: Rate = 40.0  # of a thread, beside accumulators and operands: addresses, loop variables
    code_scale: Rate = 2e5  # of two equal programs take the shorter
    cached_instructions: Rate = 2000.0  # that a loop may have before it is fetched again and again; h200
    fetch_scale: Rate = 1e4  # by so many instructions beyond it a program takes twice as long; h200


GPU_COEFFICIENTS = GpuCoefficients(version=2)


@dataclass(frozen=True, slots=True)
class Gpu(Machine):
    """One GPU as code generation, the estimate and the tuning records see it.

    Limits are CUDA's. `l2_gbs` and `dram_gbs` are for all multiprocessors together.
    """

    name: str
    architecture: str
    multiprocessors: Count
    threads_per_block: Count
    threads_per_multiprocessor: Count
    blocks_per_multiprocessor: Count
    registers_per_thread: Count
    registers_per_multiprocessor: Count
    shared_bytes_per_block: Count
    """The limit of a block's dynamic shared memory."""
    shared_bytes_per_multiprocessor: Count
    l2_bytes: Count
    clock_ghz: Rate
    fma_lanes: Count
    """f32 multiply-adds that one multiprocessor starts in a cycle."""
    l2_gbs: Rate
    dram_gbs: Rate
    matrix_products: Rate = 1024.0
    """bf16 multiply-adds that one multiprocessor's matrix units make in a cycle, by mma.sync; of tf32 half as many."""
    precision: Precision = "f32"
    """The precision of the factors of f32 products and convolutions; sums are always f32."""
    coefficients: GpuCoefficients = GPU_COEFFICIENTS
    ordinal: Annotated[int, Range(0, 1023)] = 0
    """CUDA's number of the machine's GPU that runs the code; not part of the target's identity."""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["temperature"]
        return {"kind": "gpu", **values, "cold": self.is_cold}

    # The interface that all kinds of target share

    structures = GPU_STRUCTURES
    """The loop levels that a stage may have on this kind of machine."""
    vector_bytes = 16
    """The widest access of a thread."""
    has_fma = has_f16 = True
    triple, features, function_attributes = GPU_TRIPLE, "+ptx80", ""
    """Facts that LLVM needs."""
    reach_bytes = 1 << 23
    """The largest offset of an address from its pointer that needs no instruction of its own: 24 bits."""

    @property
    def microkernels(self) -> tuple[Microkernel, ...]:
        """The instructions that can sum a register tile."""
        matrix = self.matrix_kernel
        return (MULTIPLY_ADD,) if matrix is None else (MULTIPLY_ADD, matrix)

    @property
    def matrix_kernel(self) -> Microkernel | None:
        """The matrix instruction for products of f32 at the target's precision; None: they are computed in f32."""
        return MATRIX_KERNELS.get(self.precision)

    def with_precision(self, precision: str) -> "Gpu":
        """Returns the same GPU at a precision. Raises UserError for an unknown precision."""
        if precision not in PRECISIONS:
            raise UserError(f"unknown precision {precision!r:.60}; known are {', '.join(PRECISIONS)}")
        return replace(self, precision=precision)

    @property
    def threads(self) -> int:
        """The units that work in parallel on one phase: thread blocks, one for each multiprocessor."""
        return self.multiprocessors

    @property
    def units(self) -> str:
        """The parallel units, for people."""
        return f"{self.multiprocessors} multiprocessors"

    def with_threads(self, threads: int) -> "Gpu":
        """Returns the GPU itself: its threads are not the host's."""
        return self

    @property
    def isa(self) -> str:
        return self.architecture

    @property
    def last_cache_bytes(self) -> int:
        return self.l2_bytes

    l3_bytes = last_cache_bytes  # under its name on CPUs

    @property
    def l3_gbs(self) -> float:
        return self.l2_gbs

    def lanes(self, dtype: Dtype) -> int:
        """Returns the number of elements of one vector. Narrow types are computed in 32-bit lanes."""
        return self.vector_bytes // max(4, ITEMSIZE[dtype])

    def key(self) -> str:
        """Returns the identity under which tuning records are kept."""
        own = f"{self.architecture}/{self.multiprocessors}"
        return own if self.precision == "f32" else f"{own}/{self.precision}"

    @property
    def peak_gflops(self) -> float:
        """The peak of all multiprocessors in f32."""
        return 2.0 * self.fma_lanes * self.multiprocessors * self.clock_ghz

    @property
    def cpu(self) -> str:
        """LLVM's name of the processor."""
        return self.architecture

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.architecture}, {self.multiprocessors} multiprocessors, L2 {self.l2_bytes >> 20} MiB, "
            f"{self.dram_gbs:.0f} GB/s{'' if self.precision == 'f32' else f', products in {self.precision}'}"
        )


def _gpu(name: str, architecture: str, *numbers: float) -> Gpu:
    """Returns a GPU; `numbers` are a row of the table below, with sizes in KiB and MiB."""
    multiprocessors, threads, blocks, block_kib, multiprocessor_kib, l2_mib = map(int, numbers[:6])
    clock_ghz, fma_lanes, l2_gbs, dram_gbs, matrix_products = numbers[6:]
    return Gpu(
        name=name,
        architecture=architecture,
        multiprocessors=multiprocessors,
        threads_per_block=1024,
        threads_per_multiprocessor=threads,
        blocks_per_multiprocessor=blocks,
        registers_per_thread=255,
        registers_per_multiprocessor=65536,
        shared_bytes_per_block=block_kib << 10,
        shared_bytes_per_multiprocessor=multiprocessor_kib << 10,
        l2_bytes=l2_mib << 20,
        clock_ghz=clock_ghz,
        fma_lanes=int(fma_lanes),
        l2_gbs=l2_gbs,
        dram_gbs=dram_gbs,
        matrix_products=matrix_products,
    )


ARCHITECTURES: dict[str, Gpu] = {
    g.architecture: g
    for g in (
        _gpu("A100", "sm_80", 108, 2048, 32, 163, 164, 40, 1.41, 64, 4000.0, 1555.0, 870.0),
        _gpu("RTX 3080", "sm_86", 68, 1536, 16, 99, 100, 5, 1.71, 128, 1800.0, 760.0, 256.0),
        _gpu("RTX 4090", "sm_89", 128, 1536, 24, 99, 100, 72, 2.52, 128, 5000.0, 1008.0, 512.0),
        _gpu("H200", "sm_90", 132, 2048, 32, 227, 228, 50, 1.83, 128, 5500.0, 4000.0, 1230.0),
    )
}
"""The named default of every architecture that code is generated for."""


def gpu(architecture: str = "sm_90") -> Gpu:
    """Returns the default GPU of an architecture. Raises UserError for an unknown architecture."""
    if architecture not in ARCHITECTURES:
        raise UserError(f"unknown GPU architecture {architecture!r}; known are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[architecture]
