"""Pages: blocks of one repeated value that reads beyond a border are sent to."""

from __future__ import annotations

from dataclasses import dataclass

from stormdrop.codegen.text import MEMORY, literal
from stormdrop.ir.expr import Dtype, Scalar

PAGE_BYTES = 1 << 16


@dataclass(slots=True)
class Pages:
    """Blocks of one repeated value that borders are read from."""

    elements: dict[tuple[Scalar, Dtype], int]

    def get(self, value: Scalar, dtype: Dtype, elements: int) -> str:
        key = (value, dtype)
        self.elements[key] = max(self.elements.get(key, 0), elements)
        return page_name(value, dtype)

    def definitions(self) -> list[str]:
        lines: list[str] = []
        for (value, dtype), n in self.elements.items():
            kind = MEMORY[dtype]
            zero = literal(value, dtype) in ("0", "0x0000000000000000", "false")
            item = f"{kind} {int(value) if dtype == 'bool' else literal(value, dtype)}"
            content = "zeroinitializer" if zero else f"[{', '.join([item] * n)}]"
            lines.append(f"{page_name(value, dtype)} = internal constant [{n} x {kind}] {content}, align 64")
        return lines


def page_name(value: Scalar, dtype: Dtype) -> str:
    text = literal(value, dtype).replace("-", "m")
    return f"@page.{dtype}.{text}"
