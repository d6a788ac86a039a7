"""From a loop program to an artifact whose code is LLVM text, for the emulator's device."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm

from stormdrop.codegen.gpu import build, emit_prepare
from stormdrop.codegen.llvm import assemble
from stormdrop.lower.program import Program, buffers_of
from stormdrop.runtime.artifact import Artifact, BufferSpec, Launch
from stormdrop.runtime.host import detect
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target


def text_artifact(program: Program, target: Target, change: Callable[[str], str] = lambda text: text) -> Artifact:
    """`change` plants a mistake in the LLVM text."""
    assert isinstance(target, Gpu)
    text, grids = build(program, target)
    text = change(text)
    check_valid(text)
    host = detect(1)
    prepare = emit_prepare(program, host)
    used = {b for p in program.phases if not p.at_load for b in buffers_of(p)}
    return Artifact(
        text.encode(),
        tuple(BufferSpec(b.name, b.dtype, b.scope, b.elements, b in used) for b in program.buffers),
        tuple(p.extent for p in program.phases if not p.at_load),
        tuple(p.extent for p in program.phases if p.at_load),
        program.scratch_bytes,
        tuple(Launch(grid.blocks, grid.threads, grid.shared_bytes) for grid in grids),
        b"" if prepare is None else assemble(prepare, host),
    )


def check_valid(text: str) -> None:
    """LLVM's own verifier: the emulator takes the text's structure for granted. Raises AssertionError."""
    with llvm.create_context() as context:
        try:
            with llvm.parse_assembly(text, context) as module:
                module.verify()
        except RuntimeError as error:
            raise AssertionError(f"LLVM refuses the text: {str(error).strip()}") from error
