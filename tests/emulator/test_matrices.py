"""Tensor-core instructions against PTX's tables of fragments, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.codegen.llvm import assembly
from stormdrop.target.gpu import gpu
from tests.emulator.faults import Fault
from tests.emulator.launch import launch
from tests.emulator.memory import GlobalBuffer
from tests.emulator.reading import read

Array = NDArray[Any]
HEAD = """\
@shared = external addrspace(3) global [0 x i8], align 128
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
define ptx_kernel void @f(ptr %a, ptr %b, ptr %d) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
"""
OPERATIONS = {"bf16": ("bf16", 16, "i32"), "f16": ("f32.f32", 16, "<2 x half>"), "tf32": ("tf32", 8, "i32")}


def multiply(kind: str) -> str:
    """Every lane loads its registers of A and B one after the other; C is zero."""
    name, depth, type = OPERATIONS[kind]
    lines = [HEAD]
    for operand, count in (("a", 4), ("b", 2)):
        lines.append(f"  %{operand}.at = mul i32 %t, {4 * count}\n")
        lines.append(f"  %{operand}.p = getelementptr i8, ptr %{operand}, i32 %{operand}.at\n")
        for q in range(count):
            lines.append(f"  %{operand}.p{q} = getelementptr i8, ptr %{operand}.p, i32 {4 * q}\n")
            lines.append(f"  %{operand}{q} = load {type}, ptr %{operand}.p{q}, align 4\n")
    callee = f"@llvm.nvvm.mma.m16n8k{depth}.row.col.{name}"
    given = ", ".join([*(f"{type} %a{q}" for q in range(4)), *(f"{type} %b{q}" for q in range(2)), *["float 0.0"] * 4])
    fields = "{ float, float, float, float }"
    lines.append(f"  %r = call {fields} {callee}({given})\n  %d.at = mul i32 %t, 16\n")
    lines.append("  %d.p = getelementptr i8, ptr %d, i32 %d.at\n")
    for q in range(4):
        lines.append(f"  %r{q} = extractvalue {fields} %r, {q}\n")
        lines.append(
            f"  %d.p{q} = getelementptr i8, ptr %d.p, i32 {4 * q}\n  store float %r{q}, ptr %d.p{q}, align 4\n"
        )
    types = ", ".join([type] * 6 + ["float"] * 4)
    return "".join(lines) + f"  ret void\n}}\ndeclare {fields} {callee}({types})\n"


def numbers(kind: str, *shape: int) -> Array:
    """Small whole numbers, which every format holds."""
    return np.random.default_rng(list(shape)).integers(-8, 9, shape).astype(np.float32)


def bits(kind: str, x: Array) -> Array:
    if kind == "tf32":
        return x.astype(np.float32).view(np.uint32)
    return x.astype(np.float16).view(np.uint16) if kind == "f16" else (x.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_warp_multiplies_fragments(kind: str) -> None:
    depth = OPERATIONS[kind][1]
    a, b = numbers(kind, 16, depth), numbers(kind, depth, 8)
    per = 1 if kind == "tf32" else 2
    a_registers, b_registers, wanted = [], [], np.zeros((32, 4), np.float32)
    for lane in range(32):
        group, inside = lane // 4, lane % 4
        for q in range(4):  # a0, a1: rows g, g + 8 of the left half; a2, a3: of the right half
            column = inside * per + 4 * per * (q // 2)
            a_registers += [a[group + 8 * (q % 2), column + k] for k in range(per)]
            wanted[lane, q] = (a @ b)[group + 8 * (q // 2), 2 * inside + q % 2]
        for q in range(2):
            row = inside * per + 4 * per * q
            b_registers += [b[row + k, group] for k in range(per)]
    text = multiply(kind)
    assert ".entry f(" in assembly(text, gpu("sm_80"))
    given = [bits(kind, np.array(r, np.float32)).view(np.uint8) for r in (a_registers, b_registers)]
    got = np.full((32, 4), np.nan, np.float32)
    out = GlobalBuffer("d", got.reshape(-1).view(np.uint8), is_writable=True)
    buffers = [GlobalBuffer("a", given[0]), GlobalBuffer("b", given[1]), out]
    launch(read(text), "f", blocks=1, threads=32, arguments=buffers)
    np.testing.assert_array_equal(got, wanted)
    with pytest.raises(Fault, match="not all threads of a warp"):
        launch(read(text), "f", blocks=1, threads=24, arguments=buffers)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_warp_loads_four_matrices(is_transposed: bool) -> None:
    """Lane l stores row l of 32 rows, and gives the address of row l: matrix q is rows 8 q to 8 q + 7."""
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{'.trans' if is_transposed else ''}.b16.p3"
    fields = "{ i32, i32, i32, i32 }"
    text = f"""{HEAD}  %row = mul i32 %t, 16
  %from = getelementptr i8, ptr %a, i32 %row
  %v = load <4 x i32>, ptr %from, align 16
  %to = getelementptr i8, ptr addrspace(3) @shared, i32 %row
  store <4 x i32> %v, ptr addrspace(3) %to, align 16
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %r = call {fields} @{name}(ptr addrspace(3) %to)
  %out = getelementptr i8, ptr %d, i32 %row
"""
    for q in range(4):
        text += f"  %r{q} = extractvalue {fields} %r, {q}\n  %p{q} = getelementptr i8, ptr %out, i32 {4 * q}\n"
        text += f"  store i32 %r{q}, ptr %p{q}, align 4\n"
    text += f"  ret void\n}}\ndeclare {fields} @{name}(ptr addrspace(3))\n"
    assert "ldmatrix" in assembly(text, gpu("sm_80"))
    data = np.arange(256, dtype=np.uint16)
    got = np.zeros((32, 4, 2), np.uint16)
    buffers = [
        GlobalBuffer("a", data.view(np.uint8)),
        None,
        GlobalBuffer("d", got.reshape(-1).view(np.uint8), is_writable=True),
    ]
    launch(read(text), "f", blocks=1, threads=32, shared_bytes=512, arguments=buffers)
    matrices = data.reshape(4, 8, 8)
    for lane in range(32):
        for q in range(4):
            matrix = matrices[q].T if is_transposed else matrices[q]
            np.testing.assert_array_equal(got[lane, q], matrix[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2])
    unordered = text.replace("  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n", "")
    with pytest.raises(Fault, match="race"):
        launch(read(unordered), "f", blocks=1, threads=32, shared_bytes=512, arguments=buffers)
