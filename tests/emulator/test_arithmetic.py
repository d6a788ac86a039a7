"""The emulator computes what LLVM computes: the same instructions, emulated and compiled for this machine."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.codegen import routines, vecmath
from stormdrop.codegen.llvm import Code, assemble
from stormdrop.codegen.text import Writer, flatten
from stormdrop.device.host import detect
from tests.emulator.launch import launch
from tests.emulator.llvm_types import Type
from tests.emulator.memory import GlobalBuffer
from tests.emulator.reading import read

Array = NDArray[Any]
N = 192


@dataclass(frozen=True)
class Body:
    """Instructions that compute %r from %x, %y and %z, which have one type."""

    type: str
    result: str
    lines: str
    declarations: str = ""

    def host(self) -> str:
        return f"""{self.declarations}
define void @f(ptr %in, ptr %out) {{
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %stored ]
{self._loads("ptr")}  br label %body
body:
{self.lines}
  br label %stored
stored:
  %po = getelementptr {self.result}, ptr %out, i32 %i
  store {self.result} %r, ptr %po, align 1
  %next = add i32 %i, 1
  %again = icmp slt i32 %next, {N}
  br i1 %again, label %loop, label %done
done:
  ret void
}}"""

    def gpu(self) -> str:
        return f"""{self.declarations}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @f(ptr %given, ptr %out) {{
entry:
  %in = addrspacecast ptr %given to ptr addrspace(1)
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
{self._loads("ptr addrspace(1)")}  br label %body
body:
{self.lines}
  br label %stored
stored:
  %po = getelementptr {self.result}, ptr %out, i32 %i
  store {self.result} %r, ptr %po, align 1
  ret void
}}"""

    def _loads(self, pointer: str) -> str:
        lines = ["  %three = mul i32 %i, 3\n"]
        for k, name in enumerate("xyz"):
            lines.append(f"  %i{name} = add i32 %three, {k}\n")
            lines.append(f"  %p{name} = getelementptr {self.type}, {pointer} %in, i32 %i{name}\n")
            lines.append(f"  %{name} = load {self.type}, {pointer} %p{name}, align 1\n")
        return "".join(lines)


def both(body: Body, data: Array) -> tuple[Array, Array]:
    """What the emulator and this machine compute, as bytes."""
    size = _size(body.result)
    given = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    emulated, compiled = np.zeros(N * size, np.uint8), np.zeros(N * size + 64, np.uint8)
    buffers = [GlobalBuffer("in", given), GlobalBuffer("out", emulated, is_writable=True)]
    launch(read(body.gpu()), "f", blocks=1, threads=N, arguments=buffers)
    code = Code(assemble(body.host(), detect(1)))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("f"))(given.ctypes.data, compiled.ctypes.data)
    return emulated, compiled[: N * size]


def _size(text: str) -> int:
    lanes, _, element = text.strip("<>").rpartition(" x ")
    return Type(element).nbytes * int(lanes or 1)


def integers(bits: int, lanes: int = 1) -> Array:
    rng = np.random.default_rng(bits)
    dtype = np.dtype(f"i{bits // 8}")
    info = np.iinfo(dtype)
    wide = rng.integers(info.min, info.max, (N, 3, lanes), dtype, endpoint=True)
    small = rng.integers(-9, 9, (N, 3, lanes)).astype(dtype)
    return np.where(rng.random((N, 3, lanes)) < 0.5, wide, small)


def floats(dtype: str, lanes: int = 1) -> Array:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((N, 3, lanes)) * 10.0 ** rng.integers(-6, 6, (N, 3, lanes))
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.inf, -np.inf, np.nan, 3e9, -3e9, 1e19])
    return np.where(rng.random(values.shape) < 0.2, rng.choice(special, values.shape), values).astype(dtype)


def same_floats(a: Array, b: Array) -> bool:
    """All NaNs are equal."""
    return np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(
        np.where(np.isnan(a), 0, a).view(f"u{a.itemsize}"), np.where(np.isnan(b), 0, b).view(f"u{b.itemsize}")
    )


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("lanes", [1, 4])
def test_integers(bits: int, lanes: int) -> None:
    element, type = f"i{bits}", f"i{bits}" if lanes == 1 else f"<{lanes} x i{bits}>"
    one = "1" if lanes == 1 else f"splat ({element} 1)"
    most = str(bits - 1) if lanes == 1 else f"splat ({element} {bits - 1})"
    mask = "i1" if lanes == 1 else f"<{lanes} x i1>"
    lines = [f"  %odd = or {type} %y, {one}", f"  %amount = and {type} %y, {most}", f"  %t0 = add {type} %x, %z"]
    names = ["%t0"]
    for right, ops in (("%y", "sub mul and or xor"), ("%odd", "udiv urem"), ("%amount", "shl lshr ashr")):
        for op in ops.split():
            lines.append(f"  %{op} = {op} {type} %x, {right}")
            names.append(f"%{op}")
    half = f"i{bits // 2}" if bits > 8 else "i1"
    lines += [
        f"  %tame = lshr {type} %x, {one}",  # the least number over -1 has no quotient
        f"  %sdiv = sdiv {type} %tame, %odd",
        f"  %srem = srem {type} %tame, %odd",
        f"  %cut = trunc {type} %x to {type.replace(element, half)}",
        f"  %sext = sext {type.replace(element, half)} %cut to {type}",
        f"  %zext = zext {type.replace(element, half)} %cut to {type}",
    ]
    names += ["%sdiv", "%srem", "%sext", "%zext"]
    for predicate in ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"):
        lines.append(f"  %c.{predicate} = icmp {predicate} {type} %x, %y")
        lines.append(f"  %s.{predicate} = select {mask} %c.{predicate}, {type} %z, {type} %y")
        names.append(f"%s.{predicate}")
    total = names[0]
    for k, name in enumerate(names[1:]):
        lines.append(f"  %m{k} = mul {type} {total}, {most if k % 2 else one}")
        lines.append(f"  %a{k} = xor {type} %m{k}, {name}")
        total = f"%a{k}"
    lines.append(f"  %r = add {type} {total}, {one}")
    emulated, compiled = both(Body(type, type, "\n".join(lines)), integers(bits, lanes))
    np.testing.assert_array_equal(emulated, compiled)


FLOAT_LINES = {
    "fadd": "%r = fadd T %x, %y",
    "fsub": "%r = fsub T %x, %y",
    "fmul": "%r = fmul T %x, %y",
    "fdiv": "%r = fdiv T %x, %y",
    "fneg": "%r = fneg T %x",
    **{
        p: f"%c = fcmp {p} T %x, %y\n  %r = select M %c, T %z, T %y"
        for p in ("oeq", "one", "olt", "ole", "ogt", "oge", "ord", "uno", "ueq", "une", "ult", "ule", "ugt", "uge")
    },
    **{
        name: f"%r = call T @llvm.{name}.S(T %x)"
        for name in ("sqrt", "fabs", "floor", "ceil", "rint", "roundeven", "trunc")
    },
    **{name: f"%r = call T @llvm.{name}.S(T %x, T %y)" for name in ("copysign", "minnum", "maxnum")},
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_floats(dtype: str, lanes: int) -> None:
    element, letter = ("float", "f32") if dtype == "f4" else ("double", "f64")
    type, suffix = (element, letter) if lanes == 1 else (f"<{lanes} x {element}>", f"v{lanes}{letter}")
    data = floats(dtype, lanes)
    for name, text in FLOAT_LINES.items():
        text = (
            text.replace("T", type)
            .replace(".S", f".{suffix}")
            .replace("M %", f"{'i1' if lanes == 1 else f'<{lanes} x i1>'} %")
        )
        count = text.count(f"{type} %") if "call" in text else 0
        declared = f"declare {type} @llvm.{name}.{suffix}({', '.join([type] * count)})" if count else ""
        emulated, compiled = both(Body(type, type, "  " + text, declared), data)
        if name in ("minnum", "maxnum"):  # of two zeros either
            np.testing.assert_array_equal(emulated.view(dtype), compiled.view(dtype))
        else:
            assert same_floats(emulated.view(dtype), compiled.view(dtype)), name


@pytest.mark.parametrize(
    ("source", "to", "line"),
    [
        ("float", "double", "fpext float %x to double"),
        ("double", "float", "fptrunc double %x to float"),
        ("float", "i32", "call i32 @llvm.fptosi.sat.i32.f32(float %x)"),
        ("float", "i64", "call i64 @llvm.fptosi.sat.i64.f32(float %x)"),
        ("double", "i32", "call i32 @llvm.fptosi.sat.i32.f64(double %x)"),
        ("double", "i64", "call i64 @llvm.fptosi.sat.i64.f64(double %x)"),
        ("i32", "float", "sitofp i32 %x to float"),
        ("i64", "float", "sitofp i64 %x to float"),
        ("i64", "double", "sitofp i64 %x to double"),
        ("i32", "float", "uitofp i32 %x to float"),
        ("i32", "float", "bitcast i32 %x to float"),
        ("double", "i64", "bitcast double %x to i64"),
        ("<4 x i32>", "<2 x i64>", "bitcast <4 x i32> %x to <2 x i64>"),
        ("<2 x float>", "i64", "bitcast <2 x float> %x to i64"),
        ("i64", "<2 x float>", "bitcast i64 %x to <2 x float>"),
        ("i64", "i64", "call i64 @llvm.fshl.i64(i64 %x, i64 %y, i64 %z)"),
        ("i32", "i32", "call i32 @llvm.smax.i32(i32 %x, i32 %y)"),
        ("i32", "i32", "call i32 @llvm.umin.i32(i32 %x, i32 %y)"),
        ("<4 x i32>", "<4 x i32>", "shufflevector <4 x i32> %x, <4 x i32> %y, <4 x i32> <i32 5, i32 0, i32 7, i32 2>"),
        ("<4 x i32>", "i32", "extractelement <4 x i32> %x, i32 2"),
    ],
)
def test_conversions_and_shuffles(source: str, to: str, line: str) -> None:
    lanes, _, element = source.strip("<>").rpartition(" x ")
    wide = int(lanes or 1)
    data = integers(int(element[1:]), wide) if element[0] == "i" else floats("f4" if element == "float" else "f8", wide)
    declared = "declare " + line[5:].replace(" %x", "").replace(" %y", "").replace(" %z", "") if "call" in line else ""
    emulated, compiled = both(Body(source, to, f"  %r = {line}", declared), data)
    if to.strip("<>").rpartition(" x ")[2] in ("float", "double"):
        kind = "f8" if "double" in to else "f4"
        assert same_floats(emulated.view(kind), compiled.view(kind))
    else:
        np.testing.assert_array_equal(emulated, compiled)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("fn", sorted(vecmath.UNARY | vecmath.BINARY))
def test_elementary_functions_as_they_are_emitted(fn: str, dtype: str) -> None:
    """Products, divisions and integer steps by the same instructions; f32's fused multiply-add is rounded twice here,
    so that the last bits may differ.
    """
    lanes = 4 if dtype == "f32" else 2
    w = Writer()
    w.block = "body"
    result = vecmath.emit(fn, w, ["%x", "%y"] if fn in vecmath.BINARY else ["%x"], dtype, lanes, fma=True)
    element = "float" if dtype == "f32" else "double"
    type = f"<{lanes} x {element}>"
    body = "\n".join(flatten(w.text))
    more = routines.definitions(body, "nounwind", w.declarations)
    declarations = "\n".join([*sorted(w.declarations), *more])
    # The last block of the body is the one that leads to the store.
    lines = f"{body}\n  br label %last\nlast:\n  %r = select i1 true, {type} {result}, {type} {result}"
    emulated, compiled = both(Body(type, type, lines, declarations), floats("f4" if dtype == "f32" else "f8", lanes))
    kind = "f4" if dtype == "f32" else "f8"
    tolerance = 3e-7 if dtype == "f32" else 1e-15
    np.testing.assert_allclose(emulated.view(kind), compiled.view(kind), rtol=tolerance, atol=1e-45)


def test_threads_that_diverge_meet_again() -> None:
    """Loops whose trips are data, one inside the other, with a branch and an early exit."""
    lines = """\
  %n0 = and i32 %x, 255
  %n1 = add i32 %n0, 1
  %most = and i32 %y, 31
  br label %outer
outer:
  %n = phi i32 [ %n1, %body ], [ %n.next, %inner.done ]
  %steps = phi i32 [ 0, %body ], [ %steps.next, %inner.done ]
  %odd = trunc i32 %n to i1
  br i1 %odd, label %up, label %down
up:
  %n3 = mul i32 %n, 3
  %n4 = add i32 %n3, 1
  br label %chosen
down:
  %n5 = lshr i32 %n, 1
  br label %chosen
chosen:
  %n.next = phi i32 [ %n4, %up ], [ %n5, %down ]
  %few = and i32 %n.next, 3
  br label %inner
inner:
  %k = phi i32 [ 0, %chosen ], [ %k.next, %inner.more ]
  %sum = phi i32 [ %steps, %chosen ], [ %sum.next, %inner.more ]
  %end = icmp sge i32 %k, %few
  br i1 %end, label %inner.done, label %inner.more
inner.more:
  %sum.next = add i32 %sum, %n.next
  %k.next = add i32 %k, 1
  br label %inner
inner.done:
  %steps.next = add i32 %sum, 1
  %is.one = icmp eq i32 %n.next, 1
  %is.late = icmp sgt i32 %steps.next, 5000
  %stop = or i1 %is.one, %is.late
  br i1 %stop, label %left, label %outer
left:
  %big = icmp sgt i32 %steps.next, 1000
  br i1 %big, label %cut, label %join
cut:
  %less = sub i32 %steps.next, %most
  br label %join
join:
  %r = phi i32 [ %steps.next, %left ], [ %less, %cut ]"""
    emulated, compiled = both(Body("i32", "i32", lines), integers(32))
    np.testing.assert_array_equal(emulated, compiled)
    assert len(np.unique(compiled.view(np.int32))) > 20
