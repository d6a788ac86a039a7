"""This machine as a target: the description of its CPU, caches and threads by LLVM and the operating system."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from stormdrop.base.files import text_of
from stormdrop.codegen.llvm import host
from stormdrop.device.calibration import calibrated
from stormdrop.device.compatible import sve_bytes
from stormdrop.device.cpus import allowed_cpus, cpu_list
from stormdrop.device.threads import thread_count
from stormdrop.target.cpu import ISAS, Caches, Cpu, cpu_target


def detect(threads: int | None = None) -> Cpu:
    """Returns this machine, limited to the part that this process may use, with its measured rates.

    `threads` otherwise as `thread_count`.
    """
    return calibrated(nominal(threads))


def nominal(threads: int | None = None) -> Cpu:
    """Returns this machine as `detect` does, with nominal rates and coefficients of the estimate."""
    return _detect(thread_count(threads))


@cache
def _detect(threads: int) -> Cpu:
    triple, cpu, features = host()
    flags = {f for f in features.split(",") if f}
    isa = ISAS[_isa_of(triple, flags)]
    if isa.name == "avx512":
        features = ",".join(filter(None, [features, "-prefer-256-bit"]))
    name = f"{_model_name() or isa.family} ({cpu})"
    target = cpu_target(name, triple, cpu, features, isa, threads, _read_caches(_SYSFS / f"cpu{_first_cpu()}"))
    has_bf16_dot = isa.name == "avx512" and "+avx512bf16" in flags
    return replace(target, cores=cores_of(cpu, sorted(allowed_cpus())), has_bf16_dot=has_bf16_dot)


def _isa_of(triple: str, flags: set[str]) -> str:
    if triple.startswith(("aarch64", "arm64")):
        return "sve512" if "+sve" in flags and sve_bytes() == 64 else "neon"
    if {"+avx512f", "+avx512vl", "+avx512bw", "+avx512dq"} <= flags:
        return "avx512"
    return "avx2" if {"+avx2", "+fma"} <= flags else "sse"


_SYSFS = Path("/sys/devices/system/cpu")


def _read_caches(cpu: Path) -> Caches:
    """Returns the data caches of one cpu as Linux lists them, with defaults for missing or zero values."""
    caches = Caches()
    level3 = 0
    for index in sorted((cpu / "cache").glob("index*")):
        size = _size(text_of(index / "size"))
        if text_of(index / "type") == "Instruction" or not size:
            continue
        match text_of(index / "level"):
            case "1":
                line = _size(text_of(index / "coherency_line_size")) or caches.line_bytes
                ways = _size(text_of(index / "ways_of_associativity")) or caches.l1_ways
                caches = replace(caches, l1_bytes=size, line_bytes=line, l1_ways=ways)
            case "2":
                # A cluster's L2 (efficiency cores, Apple) is divided among its cores, not among hyperthreads.
                cores = len(cpu_list(text_of(index / "shared_cpu_list"))) // _hyperthreads(cpu)
                caches = replace(caches, l2_bytes=size // max(1, cores))
                level3 = max(level3, size)
            case "3":
                level3 = size
            case _:
                pass
    return replace(caches, l3_bytes=level3 or caches.l3_bytes)


def hyperthreads() -> int:
    """Returns the number of cpus that share one core's execution units."""
    return _hyperthreads(_SYSFS / f"cpu{_first_cpu()}")


HIDDEN_HYPERTHREADS = frozenset(
    {
        *("skylake-avx512", "cascadelake", "cooperlake", "icelake-server"),
        *("sapphirerapids", "emeraldrapids", "graniterapids"),
    }
)
"""Server CPUs whose virtual machines see hyperthreads as CPUs, without data about CPUs that share a core."""


def cores_of(cpu: str, cpus: Sequence[int], root: Path = _SYSFS) -> int:
    """Returns the number of cores of these CPUs.

    Virtual machines mostly hide the assignment of CPUs to cores. On servers of a kind that has hyperthreads in all
    large clouds, two CPUs count as a core.
    """
    siblings = [cpu_list(text_of(root / f"cpu{k}" / "topology/thread_siblings_list")) or (k,) for k in cpus]
    is_hidden = max(map(len, siblings)) == 1 and cpu in HIDDEN_HYPERTHREADS and _is_virtual()
    return max(1, len({min(some) for some in siblings}) // (2 if is_hidden else 1))


def _is_virtual() -> bool:
    return any(line.startswith("flags") and " hypervisor" in line for line in _cpuinfo())


def _hyperthreads(cpu: Path) -> int:
    return max(1, len(cpu_list(text_of(cpu / "topology" / "thread_siblings_list"))))


def _size(text: str) -> int:
    """Returns the bytes of a text: '32K' -> 32768; 0 for a text that is not a size."""
    scale = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    digits = text[:-1] if scale else text
    return int(digits) << scale if digits.isdecimal() else 0


# ---- what the operating system says ----------------------------------------------------------------------------------


def _first_cpu() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return min(affinity(0)) if affinity is not None else 0


def _cpuinfo() -> list[str]:
    return text_of(Path("/proc/cpuinfo")).splitlines()


def _model_name() -> str:
    for line in _cpuinfo():
        label, _, value = line.partition(":")
        if label.strip() == "model name":
            return value.strip()
    return platform.processor()
