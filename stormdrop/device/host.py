"""This machine as a target: its CPU, caches and threads, and whether it runs code that was compiled elsewhere.

LLVM and the operating system describe the CPU. Code may use every feature of its target, so this machine must have them
all (`unfit`), except features of operating systems and intrinsics. A missing feature would end the process with an
illegal instruction, in the middle of a run.
"""

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
from stormdrop.device.cpus import allowed_cpus, cpu_list, thread_count
from stormdrop.target.cpu import ISAS, Caches, Cpu, cpu_target

# Never chosen by LLVM for ordinary code. Hypervisors show them or not, so that a file would not run on the machine next
# to it.
_SYSTEM = (
    "64bit cldemote clflushopt clwb clzero enqcmd fsgsbase fxsr hreset invpcid kl lwp mwaitx pconfig pku "
    "prefetchi ptwrite rdpid rdpru rdrnd rdseed rtm serialize sgx shstk tsxldtrk uintr usermsr waitpkg wbnoinvd "
    "widekl xsave xsavec xsaveopt xsaves"
)

# What goes with a feature that is switched off, as LLVM does it.
_AVX512 = ("avx512", "avx10", "amx-avx512")
_RESTING_ON = {
    "avx512f": _AVX512,
    "avx": (*_AVX512, "avx", "fma", "f16c", "xop", "vaes", "vpclmulqdq", "sha512", "sm3", "sm4"),
    "sve": ("sve",),
}

# What a processor name alone stands for, where a target has no list of features.
_V2 = "cx16 popcnt sahf sse3 sse4.1 sse4.2 ssse3"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe"
_LEVELS = {
    "": "",
    "generic": "",
    "x86-64": "",
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl",
    "neoverse-n1": "crc dotprod fp-armv8 fullfp16 lse neon rcpc rdm",
    "a64fx": "complxnum crc fp-armv8 fullfp16 lse neon rdm sve",
}
_A64FX_SVE_BYTES = 64


def required_features(cpu: str, features: str) -> frozenset[str] | None:
    """Returns the features that code for such a target may use.

    None if the processor's name alone determines them and is not known here.
    """
    flags = [flag for flag in features.split(",") if flag]
    on: set[str] = set()
    if not any(flag.startswith("+") for flag in flags):
        if cpu not in _LEVELS:
            return None
        on.update(_LEVELS[cpu].split())
    for flag in flags:
        sign, name = flag[:1], flag[1:]
        if sign == "+":
            on.add(name)
        else:
            gone = _RESTING_ON.get(name, ())
            on = {f for f in on if f != name and not f.startswith(gone or "\0")}
    return frozenset(on.difference(_SYSTEM.split()))


def unfit(triple: str, cpu: str, features: str, here: tuple[str, str, str] | None = None) -> str | None:
    """Returns the reason why code for this target cannot run on a machine (triple, cpu, features); None if it can.

    The machine is this machine by default.
    """
    if here is None:
        from stormdrop.codegen.llvm import host  # llvmlite, which loading the code needs anyway

        here = host()
    theirs, ours = triple.partition("-")[0], here[0].partition("-")[0]
    if theirs != ours:
        return f"it was compiled for {theirs}, and this machine is {ours}"
    needed = required_features(cpu, features)
    if needed is None:
        return None if cpu == here[1] else f"it was compiled for the processor {cpu!r}, and this one is {here[1]!r}"
    missing = sorted(needed - {flag[1:] for flag in here[2].split(",") if flag.startswith("+")})
    if missing:
        named = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        return f"it was compiled for {cpu or 'a processor'} and uses {named}, which this processor ({here[1]}) lacks"
    if cpu == "a64fx" and "sve" in needed and sve_bytes() != _A64FX_SVE_BYTES:
        return (
            f"it was compiled for vectors of {_A64FX_SVE_BYTES} bytes, and those of this processor have {sve_bytes()}"
        )
    return None


def sve_bytes() -> int:
    """Returns the size of SVE's vectors on this machine, 0 if there are none."""
    text = text_of(Path("/proc/sys/abi/sve_default_vector_length"))
    return int(text) if text.isdecimal() else 0


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
