"""A loop program as an LLVM module for NVIDIA GPUs.

    define ptx_kernel void @phase0(ptr %b0, ptr %b1, …)

is a call phase: one pointer to global memory for every entry of the pointer table. A block computes one iteration of
the phase's parallel range; its scratch buffers lie in dynamic shared memory. Load-time phases are not in the module:
the host runs them (`emit_prepare`).
"""

from __future__ import annotations

from dataclasses import replace

from stormdrop.codegen.block import BlockWriter
from stormdrop.codegen.emit import ModuleWriter, StatementWriter, emit
from stormdrop.codegen.text import Writer
from stormdrop.lower.program import Buffer, Phase, Program, buffers_of
from stormdrop.target.cpu import Cpu
from stormdrop.target.gpu import GPU_TRIPLE, Gpu
from stormdrop.target.structures import Scope

LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
SHARED = "@shared"
MOST_SHORT_ELEMENTS = 1 << 31  # of every buffer: indices are then 32-bit integers


def emit_module(program: Program, target: Gpu) -> str:
    """Returns the text of the LLVM module: a function for every call phase."""
    module = ModuleWriter(target, "nounwind")
    for k, phase in enumerate(phase for phase in program.phases if not phase.at_load):
        module.functions.append(_phase(module, phase, k, len(program.buffers)))
    head = [f'target datalayout = "{LAYOUT}"', f'target triple = "{GPU_TRIPLE}"']
    shared = [f"{SHARED} = external addrspace(3) global [0 x i8], align 128"]
    return "\n".join([*head, *shared, *module.lines(), "!0 = !{}", ""])


def emit_prepare(program: Program, host: Cpu) -> str | None:
    """Returns the LLVM module of the load-time phases for the host; None if there are none."""
    phases = tuple(phase for phase in program.phases if phase.at_load)
    return emit(replace(program, phases=phases), host) if phases else None


def _phase(module: ModuleWriter, phase: Phase, number: int, buffers: int) -> str:
    used = buffers_of(phase)
    are_small = all(b.elements < MOST_SHORT_ELEMENTS for b in used)
    w = Writer(module.declarations, "i32" if are_small else "i64")
    w.here.append("entry:")
    pointers: dict[Buffer, str] = {}
    for b in used:
        # Through the address space and back: LLVM infers it for every access.
        if b.scope is Scope.SCRATCH:
            there = w.op(f"getelementptr i8, ptr addrspace(3) {SHARED}, i32 {b.scratch_offset}")
            pointers[b] = w.op(f"addrspacecast ptr addrspace(3) {there} to ptr")
        else:
            there = w.op(f"addrspacecast ptr %b{b.slot} to ptr addrspace(1)")
            pointers[b] = w.op(f"addrspacecast ptr addrspace(1) {there} to ptr")
    block = BlockWriter(w, phase.threads, pointers)
    w.push()
    block.digits(block.block, phase.loops, True)
    StatementWriter(w, module.tile_writer(w, pointers), block).write(phase.body)
    w.line("ret void")
    parameters = ", ".join(f"ptr %b{k}" for k in range(buffers))
    # With one block as the least, the assembler spills no register for the sake of occupancy.
    attributes = f'nounwind "nvvm.maxntid"="{phase.threads}" "nvvm.minctasm"="{phase.residents}"'
    return w.function(f"ptx_kernel void @phase{number}({parameters}) {attributes}")
