"""From a loop program to an artifact whose code is LLVM text, for the emulator's device."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import llvmlite.binding as llvm

from stormdrop.builder import building
from stormdrop.device.artifact import Artifact
from stormdrop.lower.program import Program
from stormdrop.target.machine import Target


def text_artifact(program: Program, target: Target, change: Callable[[str], str] = lambda text: text) -> Artifact:
    """`change` plants a mistake in the LLVM text."""
    with patch.object(building, "code_from", checked_text):
        return building.described(program, building.code_from(change(building.text_of(program, target)), target))


def checked_text(text: str, target: Target) -> bytes:
    """What stands for `building.code_from` where the emulator runs a kernel: the text itself.

    Raises AssertionError for text that LLVM refuses: the emulator takes its structure for granted.
    """
    with llvm.create_context() as context:
        try:
            with llvm.parse_assembly(text, context) as module:
                module.verify()
        except RuntimeError as error:
            raise AssertionError(f"LLVM refuses the text: {str(error).strip()}") from error
    return text.encode()
