"""Pages: constant blocks of one repeated value, which reads beyond a border read instead of the tensor."""

from __future__ import annotations

from dataclasses import dataclass

from stormdrop.codegen.text import MEMORY, literal
from stormdrop.ir.expr import Dtype, Scalar


@dataclass(slots=True)
class Pages:
    """The pages of one module, and the elements each must have.

    The key is the value as an LLVM literal: 0.0 and -0.0 differ, all NaNs are equal.
    """

    elements: dict[tuple[str, Dtype], int]

    def get(self, value: Scalar, dtype: Dtype, elements: int) -> str:
        key = (literal(value, dtype), dtype)
        self.elements[key] = max(self.elements.get(key, 0), elements)
        return page_name(*key)

    def definitions(self) -> list[str]:
        lines: list[str] = []
        for (text, dtype), n in self.elements.items():
            kind = MEMORY[dtype]
            item = f"{kind} {int(text == 'true') if dtype == 'bool' else text}"
            zero = text in ("0", "0x0000000000000000", "false")
            content = "zeroinitializer" if zero else f"[{', '.join([item] * n)}]"
            lines.append(f"{page_name(text, dtype)} = internal constant [{n} x {kind}] {content}, align 64")
        return lines


def page_name(text: str, dtype: Dtype) -> str:
    return f"@page.{dtype}.{text.replace('-', 'm')}"
