"""The smallest kernel, written by hand."""

from __future__ import annotations

from functools import cache

from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import assemble
from stormdrop.device.artifact import Artifact, BufferSpec
from stormdrop.device.host import detect
from stormdrop.target.structures import Scope


@cache
def adder() -> Artifact:
    """Y[0] = X[0] + 1, of one i64."""
    text = f"""
define void @{ENTRY}(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) {{
  %at = getelementptr ptr, ptr %buffers, i64 1
  %x = load ptr, ptr %buffers
  %y = load ptr, ptr %at
  %old = load i64, ptr %x
  %new = add i64 %old, 1
  store i64 %new, ptr %y
  ret void
}}"""
    buffers = BufferSpec("X", "i64", Scope.INPUT, 1), BufferSpec("Y", "i64", Scope.OUTPUT, 1)
    return Artifact(assemble(text, detect(1)), buffers, (1,))
