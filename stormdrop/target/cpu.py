"""CPU targets: instruction set, registers, caches, threads, and the rates that the analytic prior divides by.

A `Cpu` is a plain value. `detect()` describes this machine. `with_isa` narrows it, so that AVX2 and SSE code can be
tested on an AVX-512 machine. `cross` describes a machine for which code is only assembled. Rates and coefficients of
the estimate are nominal until `stormdrop.device.calibration` fills in measurements of the machine.

Invariant: code assembled for a target holds no vector wider than `vector_bytes`.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

from stormdrop.base.codec import Count, Rate
from stormdrop.base.errors import UserError
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.target import Machine
from stormdrop.target.coefficients import CPU_COEFFICIENTS, UNWRITTEN_VERSION, CpuCoefficients
from stormdrop.target.microkernels import BF16_DOT, I16_DOT, MULTIPLY_ADD, Microkernel
from stormdrop.target.structures import CPU_STRUCTURES, TilingStructures


@dataclass(frozen=True, slots=True)
class Isa:
    """A vector instruction set: the properties that all its machines share."""

    name: str
    family: str  # "x86" | "arm"
    vector_bytes: int
    vector_registers: int
    has_fma: bool
    fma_per_cycle: float  # full-width vector fmas; a multiply and an add count as one
    fma_latency: int
    cpu: str  # the plainest LLVM cpu that has it


ISAS = {
    "avx512": Isa("avx512", "x86", 64, 32, True, 2, 4, "x86-64-v4"),
    "avx2": Isa("avx2", "x86", 32, 16, True, 2, 4, "x86-64-v3"),
    "sse": Isa("sse", "x86", 16, 16, False, 1, 7, "x86-64-v2"),
    "neon": Isa("neon", "arm", 16, 32, True, 2, 4, "neoverse-n1"),
    "sve512": Isa("sve512", "arm", 64, 32, True, 2, 9, "a64fx"),
}

# Cores whose throughput differs from the usual throughput of their instruction set: (cpu, isa) -> fmas per cycle.
_FMA_PER_CYCLE = {
    ("znver4", "avx512"): 1.0,  # two passes through 256-bit pipes
    ("icelake-client", "avx512"): 1.0,
    ("tigerlake", "avx512"): 1.0,
    ("rocketlake", "avx512"): 1.0,
    ("znver1", "avx2"): 1.0,
    ("neoverse-v1", "neon"): 4.0,
    ("neoverse-v2", "neon"): 4.0,
    ("apple-m1", "neon"): 4.0,
    ("apple-m2", "neon"): 4.0,
    ("apple-m3", "neon"): 4.0,
    ("apple-m4", "neon"): 4.0,
}

# The feature whose absence leaves nothing wider than the instruction set: LLVM also drops all features that imply it.
_NARROWING = {"avx2": "-avx512f", "sse": "-avx", "neon": "-sve"}

_TRIPLES = {"x86": "x86_64-unknown-linux-gnu", "arm": "aarch64-unknown-linux-gnu"}


@dataclass(frozen=True, slots=True)
class NominalRates:
    """The rates that the estimate divides by before the machine is measured."""

    ghz: float
    l2_bytes_per_cycle: float
    l3_gbs_per_thread: float
    dram_gbs_per_thread: float
    most_dram_gbs: float

    handover_gbs_per_thread: float = 80.0


_ZEN = NominalRates(3.5, 32.0, 80.0, 32.0, 100.0)  # measured on a Zen 4 server: 117 GB/s of L2 at 3.65 GHz
_XEON = NominalRates(2.7, 37.0, 22.0, 11.0, 130.0, 6.0)  # measured on 8 and 16 CPUs of an Emerald Rapids server
_RATES = {"sapphirerapids": _XEON, "emeraldrapids": _XEON, "graniterapids": _XEON}
"""The rates by cpu; every cpu without an entry is estimated as a Zen 4 core."""


MOST_CORES = 1 << 16


@dataclass(frozen=True, slots=True)
class Cpu(Machine):
    """One CPU as code generation, the prior and the tuning records see it.

    L1 and L2 sizes are per core. The L3 size is the size of one shared cache; the L2 stands in for a missing L3.
    `l2_gbs` is per core, `l3_gbs` and `dram_gbs` are for all threads together; all of them are reads.
    """

    name: str
    triple: str
    cpu: str
    features: str
    isa: str
    vector_bytes: Count
    vector_registers: Count
    has_fma: bool
    threads: Count
    line_bytes: Count
    l1_bytes: Count
    l1_ways: Count
    l2_bytes: Count
    l3_bytes: Count
    fma_per_cycle: Rate
    """Full-width vector fmas started each cycle; times `fma_latency` (cycles), the chains that keep a core busy."""
    fma_latency: Count
    peak_gflops: Rate
    """The peak of one core in f32."""
    l2_gbs: Rate
    l3_gbs: Rate
    dram_gbs: Rate
    handover_gbs: Rate = 160.0
    """The rate of reads of data that another core wrote last, for all threads together."""
    cores: Count = MOST_CORES
    """The number of cores. Threads in excess share a core's L1 and L2. Unknown: more than any machine has."""
    has_bf16_dot: bool = False
    """AVX512_BF16: two products of bf16 are added to every f32 lane in one instruction."""
    coefficients: CpuCoefficients = CPU_COEFFICIENTS
    """The coefficients of the estimate."""

    def __repr__(self) -> str:
        return f"<cpu {self.name}, {self.isa}, {self.threads} thread{'s' if self.threads != 1 else ''}>"

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["temperature"], values["coefficients"]
        coefficients = self.coefficients.to_json()
        written = {} if coefficients == {"version": UNWRITTEN_VERSION} else {"coefficients": coefficients}
        return {"kind": "cpu", **values, "cold": self.is_cold, **written}

    @property
    def last_cache_bytes(self) -> int:
        return self.l3_bytes

    @property
    def structures(self) -> TilingStructures:
        """The loop levels that a stage may have on this kind of machine."""
        return CPU_STRUCTURES

    @property
    def microkernels(self) -> tuple[Microkernel, ...]:
        """The instructions that can sum a register tile."""
        dots = (BF16_DOT,) if self.has_bf16_dot else ()
        return (MULTIPLY_ADD, *dots, I16_DOT) if ISAS[self.isa].family == "x86" else (MULTIPLY_ADD, *dots)

    @property
    def has_f16(self) -> bool:
        """True if the machine converts between f16 and f32: F16C comes with AVX2."""
        return self.isa != "sse"

    def lanes(self, dtype: Dtype) -> int:
        """Returns the number of elements of one vector. Narrow types are computed in 32-bit lanes."""
        return self.vector_bytes // max(4, ITEMSIZE[dtype])

    def key(self) -> str:
        """Returns the identity under which tuning records are kept."""
        return f"{self.cpu}/{self.isa}/{self.threads}"

    @property
    def units(self) -> str:
        """The parallel units, for people."""
        return f"{self.threads} thread{'s' if self.threads != 1 else ''}"

    @property
    def threads_per_core(self) -> int:
        """The most threads that share one core's L1 and L2."""
        return -(-self.threads // self.cores)

    @property
    def folds_broadcasts(self) -> bool:
        """True if a multiply-add broadcasts an element to all lanes; assumed for Arm, which was never timed."""
        return self.isa not in ("avx2", "sse")

    @property
    def ghz(self) -> float:
        """The clock at which `peak_gflops` is reached."""
        return self.peak_gflops / (2 * self.lanes("f32") * self.fma_per_cycle)

    @property
    def barrier_seconds(self) -> float:
        """The cost of a barrier of all threads, including the start of the next phase."""
        return self.coefficients.thread_barrier_seconds * self.threads

    @property
    def reach_bytes(self) -> int:
        """The largest offset of an address from its pointer that needs no instruction of its own."""
        return {"neon": 16384, "sve512": 256}.get(self.isa, 1 << 31)

    @property
    def function_attributes(self) -> str:
        """The attributes of every LLVM function definition, so that full-width vectors are one register.

        x86 needs none: without `min-legal-vector-width` LLVM treats 512 bits as legal, even if the cpu prefers less.
        Fixed vectors use SVE registers only if the function pins their length.
        """
        return "vscale_range(4,4)" if self.isa == "sve512" else ""

    def with_isa(self, isa: str) -> "Cpu":
        """Returns the same core restricted to a narrower instruction set, with nominal rates.

        Raises UserError for an instruction set that this target does not have.
        """
        if isa == self.isa:
            return self
        here, there = ISAS[self.isa], ISAS.get(isa)
        if there is None or there.family != here.family or there.vector_bytes > here.vector_bytes:
            raise UserError(
                f"{self.name} has {self.isa}, it cannot be narrowed to {isa!r}; use cross({isa!r}) to assemble only"
            )
        features = ",".join(filter(None, [self.features, _NARROWING[isa]]))
        caches = Caches(self.line_bytes, self.l1_bytes, self.l1_ways, self.l2_bytes, self.l3_bytes)
        narrow = cpu_target(self.name, self.triple, self.cpu, features, there, self.threads, caches)
        return replace(narrow, temperature=self.temperature, cores=self.cores)

    def with_threads(self, threads: int) -> "Cpu":
        """Returns the same CPU with `threads` threads in use: shared rates are nominal, the rates of a core stay."""
        if threads < 1:
            raise UserError(f"a target needs at least one thread, got {threads}")
        if threads == self.threads:
            return self
        rates = _nominal(self.cpu, ISAS[self.isa], threads)
        return replace(self, threads=threads, **{k: rates[k] for k in ("l3_gbs", "dram_gbs", "handover_gbs")})

    def with_nominal_rates(self) -> "Cpu":
        """Returns the machine with nominal rates and coefficients, as before any measurement."""
        rates = _nominal(self.cpu, ISAS[self.isa], self.threads)
        return replace(self, **rates, coefficients=CPU_COEFFICIENTS)

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.isa}, {self.threads} thread{'s' if self.threads > 1 else ''}, "
            f"L1 {self.l1_bytes >> 10} KiB, L2 {self.l2_bytes >> 10} KiB, L3 {self.l3_bytes >> 20} MiB"
        )


# ---- making one -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caches:
    """The cache sizes, as in `Cpu`; the defaults apply if the machine or its hypervisor reports none."""

    line_bytes: int = 64
    l1_bytes: int = 32 << 10
    l1_ways: int = 8
    l2_bytes: int = 1 << 20
    l3_bytes: int = 16 << 20


def cross(isa: str) -> Cpu:
    """Returns a typical machine of an instruction set, for assembly only. Raises UserError for an unknown set."""
    if isa not in ISAS:
        raise UserError(f"unknown instruction set {isa!r}; known are {', '.join(ISAS)}")
    it = ISAS[isa]
    return cpu_target(f"generic {it.cpu}", _TRIPLES[it.family], it.cpu, "", it, threads=4, caches=Caches())


def cpu_target(name: str, triple: str, cpu: str, features: str, isa: Isa, threads: int, caches: Caches) -> Cpu:
    return Cpu(
        name=name,
        triple=triple,
        cpu=cpu,
        features=features,
        isa=isa.name,
        vector_bytes=isa.vector_bytes,
        vector_registers=isa.vector_registers,
        has_fma=isa.has_fma,
        threads=threads,
        **asdict(caches),
        fma_per_cycle=_fma_per_cycle(cpu, isa),
        fma_latency=isa.fma_latency,
        **_nominal(cpu, isa, threads),
    )


def _fma_per_cycle(cpu: str, isa: Isa) -> float:
    return _FMA_PER_CYCLE.get((cpu, isa.name), isa.fma_per_cycle)


class _Rates(TypedDict):
    """The rates of a `Cpu`, by the names of its fields."""

    peak_gflops: float
    l2_gbs: float
    l3_gbs: float
    dram_gbs: float
    handover_gbs: float


def _nominal(cpu: str, isa: Isa, threads: int) -> _Rates:
    rates = _RATES.get(cpu, _ZEN)
    return {
        "peak_gflops": isa.vector_bytes / 4 * 2 * _fma_per_cycle(cpu, isa) * rates.ghz,
        "l2_gbs": rates.l2_bytes_per_cycle * rates.ghz,
        "l3_gbs": rates.l3_gbs_per_thread * threads,
        "dram_gbs": min(rates.dram_gbs_per_thread * threads, rates.most_dram_gbs),
        "handover_gbs": rates.handover_gbs_per_thread * threads,
    }
