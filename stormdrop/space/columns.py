"""Columns: numbers that depend on the point. They are written down once, and then computed for whole matrices of points.

Arithmetic on a `Column` computes nothing: it adds a step to the column's `Tape`, where equal steps are one. A `Program` is the
steps that some results need; running it on a matrix of points is one NumPy call a step. Steps are noted as they are written
(only x + 0, x - 0, x * 1 and x / 1 are left out), so a program gives the same bits as the same arithmetic on arrays.

The functions here take Python numbers (one point, or what no knob changes), arrays, and columns alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Num = Any  # int or float, a float64 array of one value per point, or a Column
Array = NDArray[Any]
Step = tuple[Callable[..., Array], int, int, int]  # a function and its operands, -1 where it has fewer


class Tape:
    """The steps that columns were made by. Every value has a number: the points' columns first, then steps and constants."""

    __slots__ = ("_known", "_numbers", "_steps")

    def __init__(self, width: int) -> None:
        self._steps: list[Step | float | None] = [None] * width
        self._known: dict[Step, Column] = {}
        self._numbers: dict[float, int] = {}

    def column(self, k: int) -> Column:
        """The k-th column of the points."""
        return Column(self, k)

    def number(self, x: Num) -> int:
        if type(x) is Column:
            return x.number
        found = self._numbers.get(x)
        if found is None:
            found = self._numbers[x] = len(self._steps)
            self._steps.append(float(x))
        return found

    def note(self, f: Callable[..., Array], a: Num, b: Num = None, c: Num = None) -> Column:
        """The column that `f` makes of its operands."""
        number = self.number
        step = (f, number(a), -1 if b is None else number(b), -1 if c is None else number(c))
        found = self._known.get(step)
        if found is None:
            found = self._known[step] = Column(self, len(self._steps))
            self._steps.append(step)
        return found

    def program(self, results: Sequence[Num]) -> Program:
        """What computes these results from the points. A value's slot is used again once nothing needs the value."""
        last: dict[int, int] = {}  # the last step that reads a value
        wanted = [self.number(x) for x in results]
        last.update(dict.fromkeys(wanted, len(self._steps)))
        for k in range(max(wanted, default=-1), -1, -1):
            step = self._steps[k]
            if k in last and isinstance(step, tuple):
                for operand in step[1:]:
                    if operand >= 0:
                        last.setdefault(operand, k)
        slots: list[Array | None] = []
        inputs: list[tuple[int, int]] = []
        at: dict[int, int] = {}
        for k in last:
            step = self._steps[k]
            if not isinstance(step, tuple):
                at[k] = len(slots)
                slots.append(None if step is None else np.asarray(step))
                if step is None:
                    inputs.append((k, at[k]))
        free: list[int] = []
        steps: list[tuple[Callable[..., Array], int, int, int, int]] = []
        for k in sorted(last):
            step = self._steps[k]
            if not isinstance(step, tuple):
                continue
            f, a, b, c = step
            operands = [at[o] if o >= 0 else -1 for o in (a, b, c)]
            for o in {a, b, c}:
                if o >= 0 and last[o] == k and not isinstance(self._steps[o], float):
                    free.append(at[o])
            if free:
                at[k] = free.pop()
            else:
                at[k] = len(slots)
                slots.append(None)
            steps.append((f, at[k], *operands))
        return Program(tuple(steps), tuple(slots), tuple(inputs), tuple(at[k] for k in wanted))


class Column:
    """One value per point, not yet computed."""

    __slots__ = ("number", "tape")

    def __init__(self, tape: Tape, number: int) -> None:
        self.tape, self.number = tape, number

    def __add__(self, other: Num) -> Num:
        return self if type(other) is not Column and other == 0 else self.tape.note(np.add, self, other)

    def __radd__(self, other: Num) -> Num:
        return self if other == 0 else self.tape.note(np.add, other, self)

    def __sub__(self, other: Num) -> Num:
        return self if type(other) is not Column and other == 0 else self.tape.note(np.subtract, self, other)

    def __rsub__(self, other: Num) -> Num:
        return self.tape.note(np.subtract, other, self)

    def __mul__(self, other: Num) -> Num:
        return self if type(other) is not Column and other == 1 else self.tape.note(np.multiply, self, other)

    def __rmul__(self, other: Num) -> Num:
        return self if other == 1 else self.tape.note(np.multiply, other, self)

    def __truediv__(self, other: Num) -> Num:
        return self if type(other) is not Column and other == 1 else self.tape.note(np.divide, self, other)

    def __rtruediv__(self, other: Num) -> Num:
        return self.tape.note(np.divide, other, self)

    def __gt__(self, other: Num) -> Num:
        return self.tape.note(np.greater, self, other)

    def __ge__(self, other: Num) -> Num:
        return self.tape.note(np.greater_equal, self, other)

    def __lt__(self, other: Num) -> Num:
        return self.tape.note(np.less, self, other)

    def __le__(self, other: Num) -> Num:
        return self.tape.note(np.less_equal, self, other)

    def __and__(self, other: Num) -> Num:
        if type(other) is Column:
            return self.tape.note(np.logical_and, self, other)
        return self if other else False

    __rand__ = __and__

    def __or__(self, other: Num) -> Num:
        if type(other) is Column:
            return self.tape.note(np.logical_or, self, other)
        return True if other else self

    __ror__ = __or__


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in order: a function, the slot of its result, the slots of its operands."""

    steps: tuple[tuple[Callable[..., Array], int, int, int, int], ...]
    slots: tuple[Array | None, ...]  # the constants, where they lie
    inputs: tuple[tuple[int, int], ...]  # a column of the points, and its slot
    results: tuple[int, ...]

    def run(self, columns: NDArray[np.float64]) -> list[Array]:
        """The results for points given by columns: each an array of one value per point, or a single value where all agree."""
        slots: list[Any] = list(self.slots)
        for k, slot in self.inputs:
            slots[slot] = columns[k]
        for f, to, a, b, c in self.steps:
            if b < 0:
                slots[to] = f(slots[a])
            elif c < 0:
                slots[to] = f(slots[a], slots[b])
            else:
                slots[to] = f(slots[a], slots[b], slots[c])
        return [slots[k] for k in self.results]


def traced(names: Sequence[str]) -> tuple[Tape, Mapping[str, Column]]:
    """A new tape and the points' columns by name."""
    tape = Tape(len(names))
    return tape, {name: tape.column(k) for k, name in enumerate(names)}


def _tape_of(*values: Num) -> Tape | None:
    for v in values:
        if type(v) is Column:
            return v.tape
    return None


def minimum(a: Num, b: Num) -> Num:
    if type(a) is Column or type(b) is Column:
        return a if a is b else (a if type(a) is Column else b).tape.note(np.minimum, a, b)
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def maximum(a: Num, b: Num) -> Num:
    if type(a) is Column or type(b) is Column:
        return a if a is b else (a if type(a) is Column else b).tape.note(np.maximum, a, b)
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def rounded_up(a: Num) -> Num:
    if type(a) is Column:
        return a.tape.note(np.ceil, a)
    return np.ceil(a) if isinstance(a, np.ndarray) else ceil(a)


def rounded_down(a: Num) -> Num:
    if type(a) is Column:
        return a.tape.note(np.floor, a)
    return np.floor(a) if isinstance(a, np.ndarray) else floor(a)


def ceil_div(a: Num, b: Num) -> Num:
    """The quotient of whole numbers, rounded up."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return rounded_up(a / b)


def where(condition: Num, a: Num, b: Num) -> Num:
    """`a` where the condition holds, else `b`."""
    if type(condition) is Column:
        return a if a is b else condition.tape.note(np.where, condition, a, b)
    return np.where(condition, a, b) if isinstance(condition, np.ndarray) else a if condition else b


def equal(a: Num, b: Num) -> Num:
    tape = _tape_of(a, b)
    return a == b if tape is None else tape.note(np.equal, a, b)


def is_multiple(a: Num, of: Num) -> Num:
    """Whether a whole number divides another: a remainder without the slow modulo of floats."""
    if isinstance(a, int) and isinstance(of, int):
        return a % of == 0
    return equal(rounded_down(a / of) * of, a)
