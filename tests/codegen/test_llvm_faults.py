"""What the installed LLVM compiles wrongly, so that a version that mends a fault, or has a new one, is noticed.

Every function here converts a vector and stores it under a constant mask, into memory full of a known byte. A function is
*broken* where it changes other bytes than those of the mask's live lanes, or writes other values there than a store of the
whole vector does.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.codegen.llvm import AnyOf, Code, assemble, llvm_version
from stormdrop.target.machine import detect
from tests.support.trials import targets

Bytes = NDArray[np.uint8]
SIZE = {"i8": 1, "i32": 4, "i64": 8, "float": 4, "double": 8}
SUFFIX = {"i8": "i8", "i32": "i32", "i64": "i64", "float": "f32", "double": "f64"}
LANES = (2, 4, 8, 16)
UNTOUCHED = 0xA5
SPACE = 256

CONVERSIONS: dict[str, tuple[str, str, str]] = {
    "i64 to i32": ("i64", "i32", "%t = trunc <N x i64> %x to <N x i32>"),
    "i64 to i8": ("i64", "i8", "%t = trunc <N x i64> %x to <N x i8>"),
    "i32 to i8": ("i32", "i8", "%t = trunc <N x i32> %x to <N x i8>"),
    "i64 to i32 to i8": ("i64", "i8", "%y = trunc <N x i64> %x to <N x i32>\n%t = trunc <N x i32> %y to <N x i8>"),
    "high half of i64": ("i64", "i32", "%y = lshr <N x i64> %x, splat (i64 32)\n%t = trunc <N x i64> %y to <N x i32>"),
    "i32 to i64": ("i32", "i64", "%t = sext <N x i32> %x to <N x i64>"),
    "i8 to i32": ("i8", "i32", "%t = zext <N x i8> %x to <N x i32>"),
    "f64 to f32": ("double", "float", "%t = fptrunc <N x double> %x to <N x float>"),
    "f32 to f64": ("float", "double", "%t = fpext <N x float> %x to <N x double>"),
    "i64 to f32": ("i64", "float", "%t = sitofp <N x i64> %x to <N x float>"),
    "f64 to i32": ("double", "i32", "%t = call <N x i32> @llvm.fptosi.sat.vNi32.vNf64(<N x double> %x)"),
    "f32 to i64": ("float", "i64", "%t = call <N x i64> @llvm.fptosi.sat.vNi64.vNf32(<N x float> %x)"),
    "i64 to bool": ("i64", "i8", "%y = icmp ne <N x i64> %x, zeroinitializer\n%t = zext <N x i1> %y to <N x i8>"),
    "f32 to bool": ("float", "i8", "%y = fcmp une <N x float> %x, zeroinitializer\n%t = zext <N x i1> %y to <N x i8>"),
    "odd i64 to bool": ("i64", "i8", "%y = trunc <N x i64> %x to <N x i1>\n%t = zext <N x i1> %y to <N x i8>"),
    "i64 to i32 as float": (
        "i64", "float", "%y = trunc <N x i64> %x to <N x i32>\n%t = bitcast <N x i32> %y to <N x float>",
    ),
    "i64 as it is": ("i64", "i64", "%t = freeze <N x i64> %x"),
}  # fmt: skip
DECLARATIONS = (
    "declare <N x i32> @llvm.fptosi.sat.vNi32.vNf64(<N x double>)",
    "declare <N x i64> @llvm.fptosi.sat.vNi64.vNf32(<N x float>)",
)

TRUNCATIONS = ("i64 to i32", "i64 to i8", "i32 to i8", "i64 to i32 to i8", "high half of i64")
BROKEN: dict[str, set[str]] = {
    "avx512": {f"{name}, x{n}: 1 live lane" for name, n in itertools.product(TRUNCATIONS, LANES)}
    # Sixteen i64 are two registers, each truncated on its own; two i32 are less than a register.
    - {f"{name}, x16: 1 live lane" for name in TRUNCATIONS if name != "i32 to i8"}
    - {"i32 to i8, x2: 1 live lane"},
}
"""By instruction set, the truncations whose masked store writes the whole untruncated element of the one live lane."""
WORKAROUND = "MemoryWriter.store writes i32 under a mask as the floats of the same bits"


@dataclass(frozen=True)
class Store:
    """A function `void @k<number>(ptr to, ptr from)`: convert, then store under the mask."""

    conversion: str
    mask: tuple[bool, ...]

    @property
    def fault(self) -> str:
        return f"{self.conversion}, x{len(self.mask)}: {sum(self.mask)} live lane{'s' if sum(self.mask) > 1 else ''}"

    def text(self, name: str, masked: bool) -> str:
        n = len(self.mask)
        source, stored, convert = CONVERSIONS[self.conversion]
        bits = ", ".join(f"i1 {str(live).lower()}" for live in self.mask)
        mask = f"<{n} x i1> <{bits}>"
        store = f"call void @llvm.masked.store.vN{SUFFIX[stored]}.p0(<N x {stored}> %t, ptr %to, i32 {SIZE[stored]}, {mask})"
        plain = f"store <N x {stored}> %t, ptr %to, align {SIZE[stored]}"
        load = f"%x = load <N x {source}>, ptr %from, align {SIZE[source]}"
        lines = [f"define void @{name}(ptr %to, ptr %from) {{", load, convert, store if masked else plain, "ret void", "}"]
        return "\n".join(lines).replace("<N x", f"<{n} x").replace("vN", f"v{n}")

    def data(self) -> Bytes:
        rng = np.random.default_rng(len(self.conversion))
        source = CONVERSIONS[self.conversion][0]
        n = len(self.mask)
        if source in ("float", "double"):
            floats = (rng.standard_normal(n) * 1000 * (rng.random(n) < 0.7)).astype(np.float32 if source == "float" else np.float64)
            return floats.view(np.uint8)
        return rng.integers(0, 256, n * SIZE[source]).astype(np.uint8)


def masks(n: int) -> Iterator[tuple[bool, ...]]:
    """The first lanes, few or nearly all of them, and one lane alone."""
    yield from (tuple(i < live for i in range(n)) for live in sorted({1, 2, n // 2 + 1, n - 1} - {n}))
    yield from (tuple(i == lane for i in range(n)) for lane in sorted({1, n - 1}))


def broken(stores: list[Store], target: AnyOf) -> set[str]:
    """The faults of the stores that change other bytes than they should."""
    text: list[str] = []
    for k, store in enumerate(stores):
        text += [store.text(f"masked{k}", True), store.text(f"whole{k}", False)]
    for n, kind in itertools.product(LANES, SUFFIX):
        text.append(f"declare void @llvm.masked.store.v{n}{SUFFIX[kind]}.p0(<{n} x {kind}>, ptr, i32, <{n} x i1>)")
        text += [d.replace("<N x", f"<{n} x").replace("vN", f"v{n}") for d in DECLARATIONS] if kind == "i8" else []
    code = Code(assemble("\n".join(text), target))
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    found: set[str] = set()
    for k, store in enumerate(stores):
        source, item = store.data(), SIZE[CONVERSIONS[store.conversion][1]]
        memory, whole = (np.full(3 * SPACE, UNTOUCHED, np.uint8) for _ in range(2))
        prototype(code.address(f"masked{k}"))(memory.ctypes.data + SPACE, source.ctypes.data)
        prototype(code.address(f"whole{k}"))(whole.ctypes.data + SPACE, source.ctypes.data)
        expected = np.full(3 * SPACE, UNTOUCHED, np.uint8)
        for lane in np.flatnonzero(store.mask):
            element = slice(SPACE + lane * item, SPACE + (lane + 1) * item)
            expected[element] = whole[element]
        if not np.array_equal(memory, expected):
            found.add(store.fault)
    return found


@pytest.mark.parametrize("isa", [t.isa for t in targets()])
def test_llvm_has_the_faults_that_are_worked_around_and_no_others(isa: str) -> None:
    here = detect().with_isa(isa)
    stores = [Store(name, mask) for name in CONVERSIONS for n in LANES for mask in masks(n)]
    found, known = broken(stores, AnyOf(here.triple, here.cpu, here.features)), BROKEN.get(isa, set())
    new, gone = sorted(found - known), sorted(known - found)
    assert not new, f"LLVM {llvm_version()} miscompiles masked stores that were right ({isa}): {new}. Find a form that is not folded"
    assert not gone, f"LLVM {llvm_version()} no longer has this fault ({isa}): {gone}. The workaround can go: {WORKAROUND}"


@pytest.mark.parametrize("cpu", ["skylake-avx512", "icelake-server", "x86-64-v4"])
def test_every_avx512_processor_has_the_same_faults(cpu: str) -> None:
    here = detect()
    if here.isa != "avx512":
        pytest.skip("this machine has no AVX-512")
    stores = [Store(name, mask) for name in ("i64 to i32", "i64 to i32 as float") for n in LANES for mask in masks(n)]
    assert broken(stores, AnyOf(here.triple, cpu)) == {fault for fault in BROKEN["avx512"] if fault.startswith("i64 to i32,")}
