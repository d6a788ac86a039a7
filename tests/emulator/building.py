"""From a loop program to an artifact whose code is LLVM text, for the emulator's device."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm

from stormdrop.lower.program import Program
from stormdrop.runtime.artifact import Artifact
from stormdrop.runtime.building import described, text_of
from stormdrop.target.machine import Target


def text_artifact(program: Program, target: Target, change: Callable[[str], str] = lambda text: text) -> Artifact:
    """`change` plants a mistake in the LLVM text."""
    return assembled_as_text(program, change(text_of(program, target)), target)


def assembled_as_text(program: Program, text: str, target: Target) -> Artifact:
    """What stands for assembling where the emulator runs the kernel. Raises AssertionError for text that LLVM refuses:
    the emulator takes its structure for granted.
    """
    with llvm.create_context() as context:
        try:
            with llvm.parse_assembly(text, context) as module:
                module.verify()
        except RuntimeError as error:
            raise AssertionError(f"LLVM refuses the text: {str(error).strip()}") from error
    return described(program, text.encode())
