"""What the installed LLVM compiles wrongly, so that a version that mends a fault, or has a new one, is noticed.

Every function here converts a vector and stores or scatters it under a constant mask, into memory full of a known byte.
A function is *broken* where it changes other bytes than those of the mask's live lanes, or writes other values there
than a store of the whole vector does. Likewise for loads under a mask, from memory that ends with the last live lane.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.codegen.llvm import AnyOf, Code, assemble, llvm_version
from stormdrop.device.host import detect
from tests.support.guarded import Arena
from tests.support.trials import targets

Bytes = NDArray[np.uint8]
SIZE = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}
SUFFIX = {"i8": "i8", "i16": "i16", "half": "f16", "i32": "i32", "i64": "i64", "float": "f32", "double": "f64"}
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
        "i64",
        "float",
        "%y = trunc <N x i64> %x to <N x i32>\n%t = bitcast <N x i32> %y to <N x float>",
    ),
    "i32 to i16": ("i32", "i16", "%t = trunc <N x i32> %x to <N x i16>"),
    "high half of i32": ("i32", "i16", "%y = lshr <N x i32> %x, splat (i32 16)\n%t = trunc <N x i32> %y to <N x i16>"),
    "i16 to i32": ("i16", "i32", "%t = zext <N x i16> %x to <N x i32>"),
    "i16 as it is": ("i16", "i16", "%t = freeze <N x i16> %x"),
    "i32 to i16 as half": (
        "i32",
        "half",
        "%y = trunc <N x i32> %x to <N x i16>\n%t = bitcast <N x i16> %y to <N x half>",
    ),
    "i64 as it is": ("i64", "i64", "%t = freeze <N x i64> %x"),
}
DECLARATIONS = (
    "declare <N x i32> @llvm.fptosi.sat.vNi32.vNf64(<N x double>)",
    "declare <N x i64> @llvm.fptosi.sat.vNi64.vNf32(<N x float>)",
    *(f"declare void @llvm.masked.store.vN{s}.p0(<N x {t}>, ptr, i32, <N x i1>)" for t, s in SUFFIX.items()),
    *(f"declare void @llvm.masked.scatter.vN{s}.vNp0(<N x {t}>, <N x ptr>, i32, <N x i1>)" for t, s in SUFFIX.items()),
    *(f"declare <N x {t}> @llvm.masked.load.vN{s}.p0(ptr, i32, <N x i1>, <N x {t}>)" for t, s in SUFFIX.items()),
)

TRUNCATIONS = (
    "i64 to i32",
    "i64 to i8",
    "i32 to i8",
    "i64 to i32 to i8",
    "high half of i64",
    "i32 to i16",
    "high half of i32",
)
BROKEN: dict[str, set[str]] = {
    "avx512": {f"{name}, x{n}: 1 live lane" for name, n in itertools.product(TRUNCATIONS, LANES)}
    # Sixteen i64 are two registers, each truncated on its own; two i32 are less than a register.
    - {f"{name}, x16: 1 live lane" for name in TRUNCATIONS if "i64" in name}
    - {f"{name}, x2: 1 live lane" for name in TRUNCATIONS if "i64" not in name},
}
"""By instruction set, the truncations whose masked store writes the whole untruncated element of the one live lane."""
WORKAROUND = "MemoryWriter.store writes i32 and bf16 under a mask as the floats of the same bits"


@dataclass(frozen=True)
class Conversion:
    """A function `void @name(ptr to, ptr from)`: load, convert, store; one of the three by way of a mask."""

    conversion: str
    mask: tuple[bool, ...]
    masked: Literal["store", "scatter", "load"] = "store"

    @property
    def fault(self) -> str:
        lanes = f"{sum(self.mask)} live lane{'s' if sum(self.mask) > 1 else ''}"
        how = "" if self.masked == "store" else f" ({self.masked})"
        return f"{self.conversion}, x{len(self.mask)}: {lanes}{how}"

    def text(self, name: str, masked: bool) -> str:
        n = len(self.mask)
        source, stored, convert = CONVERSIONS[self.conversion]
        bits = ", ".join(f"i1 {str(live).lower()}" for live in self.mask)
        align, mask = f"i32 {SIZE[stored]}", f"<N x i1> <{bits}>"
        load = f"%x = load <N x {source}>, ptr %from, align {SIZE[source]}"
        store = f"store <N x {stored}> %t, ptr %to, align {SIZE[stored]}"
        if masked and self.masked == "store":
            store = f"call void @llvm.masked.store.vN{SUFFIX[stored]}.p0(<N x {stored}> %t, ptr %to, {align}, {mask})"
        elif masked and self.masked == "scatter":
            steps = ", ".join(f"i64 {i}" for i in range(n))
            store = f"%a = getelementptr {stored}, ptr %to, <N x i64> <{steps}>\n"
            value = f"<N x {stored}> %t, <N x ptr> %a"
            store += f"call void @llvm.masked.scatter.vN{SUFFIX[stored]}.vNp0({value}, {align}, {mask})"
        elif masked:
            arguments = f"ptr %from, i32 {SIZE[source]}, {mask}, <N x {source}> zeroinitializer"
            load = f"%x = call <N x {source}> @llvm.masked.load.vN{SUFFIX[source]}.p0({arguments})"
        lines = [f"define void @{name}(ptr %to, ptr %from) {{", load, convert, store, "ret void", "}"]
        return _of_lanes("\n".join(lines), n)

    def data(self) -> Bytes:
        rng = np.random.default_rng(len(self.conversion))
        source = CONVERSIONS[self.conversion][0]
        n = len(self.mask)
        if source in ("float", "double"):
            floats = rng.standard_normal(n) * 1000 * (rng.random(n) < 0.7)
            return floats.astype(np.float32 if source == "float" else np.float64).view(np.uint8)
        return rng.integers(0, 256, n * SIZE[source]).astype(np.uint8)


def _of_lanes(text: str, n: int) -> str:
    return text.replace("<N x", f"<{n} x").replace("vN", f"v{n}")


def masks(n: int) -> Iterator[tuple[bool, ...]]:
    """The first lanes, few or nearly all of them, and one lane alone."""
    yield from (tuple(i < live for i in range(n)) for live in sorted({1, 2, n // 2 + 1, n - 1} - {n}))
    yield from (tuple(i == lane for i in range(n)) for lane in sorted({1, n - 1}))


def compiled(functions: Sequence[Conversion], target: AnyOf) -> Code:
    """Each function, and the same without a mask."""
    text: list[str] = []
    for k, function in enumerate(functions):
        text += [function.text(f"masked{k}", True), function.text(f"whole{k}", False)]
    for n in LANES:
        text += [_of_lanes(line, n) for line in DECLARATIONS]
    return Code(assemble("\n".join(text), target))


def call(code: Code, name: str, to: Bytes, source: Bytes) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address(name))(to.ctypes.data, source.ctypes.data)


def broken(functions: Sequence[Conversion], target: AnyOf) -> set[str]:
    """The faults of the functions that change other bytes than they should."""
    code = compiled(functions, target)
    found: set[str] = set()
    for k, function in enumerate(functions):
        source, item = function.data(), SIZE[CONVERSIONS[function.conversion][1]]
        memory, whole, expected = (np.full(3 * SPACE, UNTOUCHED, np.uint8) for _ in range(3))
        call(code, f"masked{k}", memory[SPACE:], source)
        call(code, f"whole{k}", whole[SPACE:], source)
        for lane in np.flatnonzero(function.mask):
            element = slice(SPACE + lane * item, SPACE + (lane + 1) * item)
            expected[element] = whole[element]
        if not np.array_equal(memory, expected):
            found.add(function.fault)
    return found


def wrong_loads(functions: Sequence[Conversion], target: AnyOf, told: Connection) -> None:
    """Tell the fault of every function before it runs, and all that load wrong values at the end."""
    code, arena = compiled(functions, target), Arena()
    found: list[str] = []
    for k, function in enumerate(functions):
        told.send(function.fault)
        data, item = function.data(), SIZE[CONVERSIONS[function.conversion][0]]
        live = (int(np.flatnonzero(function.mask).max()) + 1) * item
        ends = arena.aligned(live, 1, at_end=True)  # an inaccessible page follows
        ends[:] = data[:live]
        dead = np.repeat(~np.array(function.mask), item)
        loaded, expected = (np.zeros(SPACE, np.uint8) for _ in range(2))
        call(code, f"masked{k}", loaded, ends)
        call(code, f"whole{k}", expected, np.where(dead, 0, data).astype(np.uint8))
        found += [] if np.array_equal(loaded, expected) else [function.fault]
        arena.reset()
    told.send(found)


@pytest.mark.parametrize("isa", [t.isa for t in targets()])
def test_llvm_has_the_faults_that_are_worked_around_and_no_others(isa: str) -> None:
    here = detect().with_isa(isa)
    stores = [Conversion(name, mask) for name in CONVERSIONS for n in LANES for mask in masks(n)]
    functions = [*stores, *(replace(store, masked="scatter") for store in stores)]
    found, known = broken(functions, AnyOf(here.triple, here.cpu, here.features)), BROKEN.get(isa, set())
    new, gone = sorted(found - known), sorted(known - found)
    llvm = f"LLVM {llvm_version()} for {isa}"
    assert not new, f"{llvm} miscompiles masked stores that were right: {new}. Find a form that is not folded"
    assert not gone, f"{llvm} no longer has this fault: {gone}. The workaround can go: {WORKAROUND}"


@pytest.mark.parametrize("isa", [t.isa for t in targets()])
def test_llvm_loads_under_a_mask_what_is_alive_and_nothing_else(isa: str) -> None:
    here = detect().with_isa(isa)
    functions = [Conversion(name, mask, "load") for name in CONVERSIONS for n in LANES for mask in masks(n)]
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=wrong_loads, args=(functions, AnyOf(here.triple, here.cpu, here.features), theirs))
    child.start()
    theirs.close()
    last: object = "nothing was run"
    with contextlib.suppress(EOFError):
        while True:
            last = ours.recv()
    child.join()
    assert child.exitcode == 0, f"LLVM {llvm_version()} reads beyond the live lanes ({isa}): {last}"
    assert last == [], f"LLVM {llvm_version()} loads wrong values ({isa}): {last}"


@pytest.mark.parametrize("cpu", ["skylake-avx512", "icelake-server", "x86-64-v4"])
def test_every_avx512_processor_has_the_same_faults(cpu: str) -> None:
    here = detect()
    if here.isa != "avx512":
        pytest.skip("this machine has no AVX-512")
    names = ("i64 to i32", "i64 to i32 as float")
    functions = [Conversion(name, mask) for name in names for n in LANES for mask in masks(n)]
    known = {fault for fault in BROKEN["avx512"] if fault.startswith("i64 to i32,")}
    assert broken(functions, AnyOf(here.triple, cpu)) == known
