"""Native code that checks the processor for the features of the kernels: `open` fails if a run would execute an illegal
instruction.

Features outside the tables count as present: LLVM has names for more features than ordinary code uses.
"""

from __future__ import annotations

from collections.abc import Collection

# Leaf, subleaf and register of cpuid: the feature at each bit.
_CPUID = {
    (1, 0, "ecx"): (
        "0 sse3, 1 pclmul, 9 ssse3, 12 fma, 13 cx16, 19 sse4.1, 20 sse4.2, 20 crc32, 22 movbe, 23 popcnt, 25 aes, "
        "28 avx, 29 f16c"
    ),
    (1, 0, "edx"): "8 cx8, 15 cmov, 23 mmx, 25 sse, 26 sse2",
    (7, 0, "ebx"): (
        "3 bmi, 5 avx2, 8 bmi2, 16 avx512f, 17 avx512dq, 19 adx, 21 avx512ifma, 28 avx512cd, 29 sha, 30 avx512bw, "
        "31 avx512vl"
    ),
    (7, 0, "ecx"): (
        "1 avx512vbmi, 6 avx512vbmi2, 8 gfni, 9 vaes, 10 vpclmulqdq, 11 avx512vnni, 12 avx512bitalg, 14 avx512vpopcntdq"
    ),
    (7, 0, "edx"): "8 avx512vp2intersect, 23 avx512fp16",
    (7, 1, "eax"): "4 avxvnni, 5 avx512bf16, 23 avxifma",
    (7, 1, "edx"): "4 avxvnniint8, 5 avxneconvert, 10 avxvnniint16",
    (0x80000001, 0, "ecx"): "0 sahf, 5 lzcnt, 6 sse4a, 8 prfchw, 11 xop, 16 fma4, 21 tbm",
}
_REGISTERS = ("eax", "ebx", "ecx", "edx")
_SAVES_AVX, _SAVES_AVX512 = 0x06, 0xE6  # of XCR0: the registers that the operating system keeps apart for each thread
_OSXSAVE = 27

# Bits of AT_HWCAP.
_HWCAP = (
    "0 fp-armv8, 1 neon, 3 aes, 5 sha2, 6 sha2, 7 crc, 8 lse, 9 fullfp16, 10 fullfp16, 12 rdm, 13 jsconv, "
    "14 complxnum, 15 rcpc, 17 sha3, 20 dotprod, 22 sve"
)

_CPUID_TEXT = r"""
define internal {i32, i32, i32, i32} @cpuid(i32 %leaf, i32 %subleaf) nounwind {  ; rbx may be in use as a frame's base
  %r = call {i32, i32, i32, i32} asm sideeffect "xchgq %rbx,${1:q}\0Acpuid\0Axchgq %rbx,${1:q}",
    "={ax},=r,={cx},={dx},0,2,~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 %subleaf)
  ret {i32, i32, i32, i32} %r
}
; Whether a leaf and its subleaf are there: only of leaf 7 is more than the first one asked for.
define internal i1 @cpuid_knows(i32 %leaf, i32 %subleaf) nounwind {
  %family = and i32 %leaf, -2147483648
  %most = call {i32, i32, i32, i32} @cpuid(i32 %family, i32 0)
  %last = extractvalue {i32, i32, i32, i32} %most, 0
  %known = icmp uge i32 %last, %leaf
  %first = call {i32, i32, i32, i32} @cpuid(i32 %leaf, i32 0)
  %sublast = extractvalue {i32, i32, i32, i32} %first, 0
  %subknown = icmp uge i32 %sublast, %subleaf
  %whole = icmp eq i32 %subleaf, 0
  %there = or i1 %whole, %subknown
  %both = and i1 %known, %there
  ret i1 %both
}
"""


def fits_text(machine: str, features: Collection[str]) -> str:
    """Returns LLVM IR that defines `i1 @fits()`, true if the processor has all of the features."""
    return _x86(features) if machine == "x86_64" else _arm(features)


def _mask(listed: str, features: Collection[str]) -> int:
    """Returns the bits of these features in a listing."""
    pairs = [pair.split() for pair in listed.split(", ")]
    return sum({1 << int(bit) for bit, feature in pairs if feature in features})


def _x86(features: Collection[str]) -> str:
    masks = {place: mask for place, listed in _CPUID.items() if (mask := _mask(listed, features))}
    wide = any(f.startswith("avx512") for f in features)
    state = _SAVES_AVX512 if wide else _SAVES_AVX if "avx" in features else 0
    if state:
        masks[1, 0, "ecx"] = masks.get((1, 0, "ecx"), 0) | 1 << _OSXSAVE
    lines = [_CPUID_TEXT, "define internal i1 @fits() nounwind {"]
    for n, ((leaf, subleaf, register), mask) in enumerate(masks.items()):
        place, wanted = f"i32 {_signed(leaf)}, i32 {subleaf}", _signed(mask)
        lines += [
            f"  %knows{n} = call i1 @cpuid_knows({place})",
            f"  br i1 %knows{n}, label %look{n}, label %no",
            f"look{n}:",
            f"  %registers{n} = call {{i32, i32, i32, i32}} @cpuid({place})",
            f"  %bits{n} = extractvalue {{i32, i32, i32, i32}} %registers{n}, {_REGISTERS.index(register)}",
            f"  %wanted{n} = and i32 %bits{n}, {wanted}",
            f"  %has{n} = icmp eq i32 %wanted{n}, {wanted}",
            f"  br i1 %has{n}, label %next{n}, label %no",
            f"next{n}:",
        ]
    if state:  # without OSXSAVE the instruction itself is illegal
        lines += [
            '  %xcr0 = call {i32, i32} asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)',
            "  %saved = extractvalue {i32, i32} %xcr0, 0",
            f"  %kept = and i32 %saved, {state}",
            f"  %all = icmp eq i32 %kept, {state}",
            "  br i1 %all, label %yes, label %no",
        ]
    else:
        lines += ["  br label %yes"]
    return "\n".join([*lines, "yes:", "  ret i1 true", "no:", "  ret i1 false", "}", ""])


def _arm(features: Collection[str]) -> str:
    mask = _mask(_HWCAP, features)
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
