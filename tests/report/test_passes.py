"""What passes change, printed."""

from __future__ import annotations

from stormdrop.graph.builder import GraphBuilder
from stormdrop.report.model_reports import passes_text


def test_each_pass_shows_the_lines_that_went_and_came() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3), "f32")
    graph = b.graph([b.emit("Relu", b.emit("Mul", x, b.number(1, x)))], ["y"], "small", 20)
    text = "\n".join(passes_text(graph))
    assert text.startswith("graph small(%x: f32[2, 3])")
    assert "pass identities: 2 nodes to 1" in text
    assert [line for line in text.splitlines() if line.startswith("-") and "Mul(" in line]
    assert "pass channels last: changes nothing" in text
