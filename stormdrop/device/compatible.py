"""Compatibility of machine code from another machine with this machine.

Code may use every feature of its target, so this machine must have them all, except features of operating systems and
intrinsics. A missing feature would end the process with an illegal instruction, in the middle of a run.
"""

from __future__ import annotations

from pathlib import Path

from stormdrop.base.files import text_of

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
