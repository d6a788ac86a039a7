"""How arrays of the caller lie in memory."""

from __future__ import annotations

from stormdrop.ir import build as sd
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from stormdrop.lower.lower import lower
from stormdrop.lower.program import Finish, View, statements
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import cross
from stormdrop.target.structures import Scope


def test_a_tensor_in_between_may_have_the_name_of_an_output_that_lies_otherwise() -> None:
    i, j, k = axis(4), axis(6), reduce_axis(3)
    total = compute("Y", (i, j), sd.sum(tensor("X", (4, 3, 6))[i, k, j], k))
    i, j = axis(4), axis(5)
    task = Task([compute("Y", (i, j), total[i, j] - total[i, j + 1])])
    (sketch,) = [s for s in sketches(task, cross("avx2")) if len(s.structure.roots) == 2]
    values = {knob.name: 1 for knob in sketch.knobs}
    program = lower(task, sketch.at(values), sketch.tilings(values), {"Y": View((1, 40))})
    strides = {
        s.store.buffer.scope: [s.store.coefficient(a) for a in s.tile.stage.axes]
        for phase in program.phases
        for s in statements(phase.body)
        if isinstance(s, Finish)
    }
    assert strides == {Scope.WORKSPACE: [6, 1], Scope.OUTPUT: [1, 40]}
