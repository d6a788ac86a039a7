"""Native code that asks the processor whether it has what kernels use: `open` says no where a run would be an illegal
instruction.

Features that the tables do not know are taken to be there: LLVM has names for more than ordinary code is ever made of.
"""

from __future__ import annotations

from collections.abc import Collection

# leaf, subleaf and register of cpuid -> bits
_CPUID: dict[tuple[int, int, str], dict[str, int]] = {
    (1, 0, "ecx"): {
        "sse3": 0,
        "pclmul": 1,
        "ssse3": 9,
        "fma": 12,
        "cx16": 13,
        "sse4.1": 19,
        "sse4.2": 20,
        "crc32": 20,
        "movbe": 22,
        "popcnt": 23,
        "aes": 25,
        "avx": 28,
        "f16c": 29,
    },
    (1, 0, "edx"): {"cx8": 8, "cmov": 15, "mmx": 23, "sse": 25, "sse2": 26},
    (7, 0, "ebx"): {
        "bmi": 3,
        "avx2": 5,
        "bmi2": 8,
        "avx512f": 16,
        "avx512dq": 17,
        "adx": 19,
        "avx512ifma": 21,
        "avx512cd": 28,
        "sha": 29,
        "avx512bw": 30,
        "avx512vl": 31,
    },
    (7, 0, "ecx"): {
        "avx512vbmi": 1,
        "avx512vbmi2": 6,
        "gfni": 8,
        "vaes": 9,
        "vpclmulqdq": 10,
        "avx512vnni": 11,
        "avx512bitalg": 12,
        "avx512vpopcntdq": 14,
    },
    (7, 0, "edx"): {"avx512vp2intersect": 8, "avx512fp16": 23},
    (7, 1, "eax"): {"avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    (7, 1, "edx"): {"avxvnniint8": 4, "avxneconvert": 5, "avxvnniint16": 10},
    (0x80000001, 0, "ecx"): {"sahf": 0, "lzcnt": 5, "sse4a": 6, "prfchw": 8, "xop": 11, "fma4": 16, "tbm": 21},
}
_REGISTERS = ("eax", "ebx", "ecx", "edx")
_SAVES_AVX, _SAVES_AVX512 = 0x06, 0xE6  # of XCR0: the registers that the operating system keeps apart for each thread
_OSXSAVE = 27

# Bits of AT_HWCAP.
_HWCAP = {
    "fp-armv8": (0,),
    "neon": (1,),
    "aes": (3,),
    "sha2": (5, 6),
    "crc": (7,),
    "lse": (8,),
    "fullfp16": (9, 10),
    "rdm": (12,),
    "jsconv": (13,),
    "complxnum": (14,),
    "rcpc": (15,),
    "sha3": (17,),
    "dotprod": (20,),
    "sve": (22,),
}

_CPUID_TEXT = r"""
define internal {i32, i32, i32, i32} @cpuid(i32 %leaf, i32 %subleaf) nounwind {  ; rbx may be in use as a frame's base
  %r = call {i32, i32, i32, i32} asm sideeffect "xchgq %rbx,${1:q}\0Acpuid\0Axchgq %rbx,${1:q}",
    "={ax},=r,={cx},={dx},0,2,~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 %subleaf)
  ret {i32, i32, i32, i32} %r
}
define internal i32 @saved_state() nounwind {
  %r = call {i32, i32} asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %low = extractvalue {i32, i32} %r, 0
  ret i32 %low
}
define internal i1 @cpuid_has(i32 %leaf, i32 %subleaf, i32 %eax, i32 %ebx, i32 %ecx, i32 %edx) nounwind {
  %family = and i32 %leaf, -2147483648
  %most = call {i32, i32, i32, i32} @cpuid(i32 %family, i32 0)
  %last = extractvalue {i32, i32, i32, i32} %most, 0
  %known = icmp uge i32 %last, %leaf
  %first = call {i32, i32, i32, i32} @cpuid(i32 %leaf, i32 0)
  %sublast = extractvalue {i32, i32, i32, i32} %first, 0
  %subknown = icmp uge i32 %sublast, %subleaf  ; only of leaf 7 is more than the first one asked for
  %whole = icmp eq i32 %subleaf, 0
  %there = or i1 %whole, %subknown
  %r = call {i32, i32, i32, i32} @cpuid(i32 %leaf, i32 %subleaf)
  %a = extractvalue {i32, i32, i32, i32} %r, 0
  %b = extractvalue {i32, i32, i32, i32} %r, 1
  %c = extractvalue {i32, i32, i32, i32} %r, 2
  %d = extractvalue {i32, i32, i32, i32} %r, 3
  %na = xor i32 %a, -1
  %nb = xor i32 %b, -1
  %nc = xor i32 %c, -1
  %nd = xor i32 %d, -1
  %ma = and i32 %na, %eax
  %mb = and i32 %nb, %ebx
  %mc = and i32 %nc, %ecx
  %md = and i32 %nd, %edx
  %mab = or i32 %ma, %mb
  %mcd = or i32 %mc, %md
  %missing = or i32 %mab, %mcd
  %all = icmp eq i32 %missing, 0
  %x = and i1 %known, %there
  %y = and i1 %x, %all
  ret i1 %y
}
"""


def fits_text(machine: str, features: Collection[str]) -> str:
    """LLVM IR that defines `i1 @fits()`: whether the processor has all of the features."""
    return _x86(features) if machine == "x86_64" else _arm(features)


def _x86(features: Collection[str]) -> str:
    masks: dict[tuple[int, int], dict[str, int]] = {}
    for (leaf, subleaf, register), bits in _CPUID.items():
        mask = sum({1 << bits[f] for f in features if f in bits})
        if mask:
            masks.setdefault((leaf, subleaf), {})[register] = mask
    wide = any(f.startswith("avx512") for f in features)
    state = _SAVES_AVX512 if wide else _SAVES_AVX if "avx" in features else 0
    if state:
        first = masks.setdefault((1, 0), {})
        first["ecx"] = first.get("ecx", 0) | 1 << _OSXSAVE
    lines = [_CPUID_TEXT, "define internal i1 @fits() nounwind {"]
    for n, ((leaf, subleaf), registers) in enumerate(masks.items()):
        wanted = ", ".join(f"i32 {_signed(registers.get(r, 0))}" for r in _REGISTERS)
        lines += [
            f"  %has{n} = call i1 @cpuid_has(i32 {_signed(leaf)}, i32 {subleaf}, {wanted})",
            f"  br i1 %has{n}, label %next{n}, label %no",
            f"next{n}:",
        ]
    if state:  # without OSXSAVE the instruction itself is illegal
        lines += [
            "  %saved = call i32 @saved_state()",
            f"  %kept = and i32 %saved, {state}",
            f"  %all = icmp eq i32 %kept, {state}",
        ]
        lines += ["  br i1 %all, label %yes, label %no"]
    else:
        lines += ["  br label %yes"]
    return "\n".join([*lines, "yes:", "  ret i1 true", "no:", "  ret i1 false", "}", ""])


def _arm(features: Collection[str]) -> str:
    mask = sum({1 << bit for f in features for bit in _HWCAP.get(f, ())})
    return f"""
declare i64 @getauxval(i64)
define internal i1 @fits() nounwind {{
  %has = call i64 @getauxval(i64 16)  ; AT_HWCAP
  %of.these = and i64 %has, {mask}
  %all = icmp eq i64 %of.these, {mask}
  ret i1 %all
}}
"""


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
