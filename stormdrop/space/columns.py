"""Columns: symbolic values, one per point. Formulas are traced once and evaluated on matrices of points.

Arithmetic on a `Column` computes nothing: it appends an instruction to the column's `Tape`, in SSA form with common
subexpressions shared. A `ColumnProgram` is the instructions that some results need; it runs one NumPy call per
instruction. No operation is reordered, and only x + 0, x - 0, x * 1 and x / 1 are folded. Therefore a program computes
the same bits as the same arithmetic on arrays.

The functions here take Python numbers (one point, or a constant of the structure), arrays and columns alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from operator import eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

Num = Any  # int or float, a float64 array of one value per point, or a Column
Array = NDArray[Any]

NONE = 0  # the value number of an absent operand
Instruction = tuple[str, int, int, int]
"""The name of a NumPy function, and up to three value numbers; inputs and constants have none."""
Step = tuple[Callable[..., Array], int, int, int, int]


class Tape:
    """A trace in SSA form. A value number is the index of its instruction."""

    __slots__ = ("_code", "_known", "_values", "_width")

    def __init__(self, width: int) -> None:
        """`width` is the number of input columns, values 1 to `width`."""
        self._width = width
        self._code: list[Instruction] = [("", NONE, NONE, NONE)] * (width + 1)
        self._known: dict[Instruction | float, int] = {}  # instructions and constants by content
        self._values: dict[int, float] = {}  # of the constants

    def number(self, x: Num) -> int:
        """Returns the value number of a column or a constant."""
        if type(x) is Column:
            return x.number
        number = self._known.get(x)
        if number is None:
            number = self._known[x] = len(self._code)
            self._code.append(("", NONE, NONE, NONE))
            self._values[number] = float(x)
        return number

    def note(self, op: str, a: int, b: int = NONE, c: int = NONE) -> Column:
        """Appends an instruction on the given value numbers, or reuses an equal instruction."""
        key = (op, a, b, c)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._code)
            self._code.append(key)
        return Column(self, number)

    def program(self, results: Sequence[Num]) -> ColumnProgram:
        """Compiles the trace: dead-code elimination, then slot allocation by last use."""
        wanted = [self.number(x) for x in results]
        code, values, inputs_end = self._code, self._values, self._width
        last = [NONE] * len(code)  # by value: the last instruction that reads it; NONE: dead
        for k in wanted:
            last[k] = len(code)
        kept: list[int] = []
        for k in range(max(wanted, default=0), inputs_end, -1):
            if last[k] and k not in values:
                kept.append(k)
                _, a, b, c = code[k]
                last[a], last[b], last[c] = last[a] or k, last[b] or k, last[c] or k
        last[NONE] = NONE
        at = [-1] * len(code)
        slots: list[Array | None] = []
        inputs: list[tuple[int, int]] = []
        for k in range(1, len(code)):
            if last[k] and (k <= inputs_end or k in values):
                at[k] = len(slots)
                slots.append(np.asarray(values[k]) if k in values else None)
                if k in values:
                    last[k] = NONE  # constants keep their slots
                else:
                    inputs.append((k - 1, at[k]))
        free: list[int] = []
        steps: list[Step] = []
        for k in reversed(kept):
            op, a, b, c = code[k]
            free += [at[x] for x in dict.fromkeys((a, b, c)) if last[x] == k]
            if not free:
                free.append(len(slots))
                slots.append(None)
            at[k] = free.pop()
            steps.append((getattr(np, op), at[k], at[a], at[b], at[c]))
        return ColumnProgram(steps, tuple(slots), tuple(inputs), tuple(at[k] for k in wanted))


def _operator(op: str, neutral: int | None = None) -> Callable[[Column, Num], Num]:
    """Returns the method for `self op other`; `self op neutral` is `self`."""

    def method(self: Column, other: Num) -> Num:
        return self if other == neutral else self.tape.note(op, self.number, self.tape.number(other))

    return method


def _reflected(op: str, neutral: int | None = None) -> Callable[[Column, Num], Num]:
    """Returns the method for `other op self`; `neutral op self` is `self`."""

    def method(self: Column, other: Num) -> Num:
        return self if other == neutral else self.tape.note(op, self.tape.number(other), self.number)

    return method


class Column:
    """A symbolic value, one number per point."""

    __slots__ = ("number", "tape")

    def __init__(self, tape: Tape, number: int) -> None:
        self.tape, self.number = tape, number

    __add__, __radd__ = _operator("add", 0), _reflected("add", 0)
    __sub__, __rsub__ = _operator("subtract", 0), _reflected("subtract")
    __mul__, __rmul__ = _operator("multiply", 1), _reflected("multiply", 1)
    __truediv__, __rtruediv__ = _operator("divide", 1), _reflected("divide")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __lt__, __le__ = _operator("less"), _operator("less_equal")

    def __and__(self, other: Num) -> Num:
        if type(other) is not Column:
            return self if other else False
        return self.tape.note("logical_and", self.number, other.number)

    def __or__(self, other: Num) -> Num:
        if type(other) is not Column:
            return True if other else self
        return self.tape.note("logical_or", self.number, other.number)

    __rand__, __ror__ = __and__, __or__


@dataclass(frozen=True, slots=True, eq=False)
class ColumnProgram:
    """A straight-line program."""

    steps: list[Step]  # a function, the slot of its result, and three operand slots (-1 for none)
    slots: tuple[Array | None, ...]  # initial slots: the constants
    inputs: tuple[tuple[int, int], ...]  # (input column, slot)
    results: tuple[int, ...]

    def run(self, columns: NDArray[np.float64]) -> list[Array]:
        """Returns the results. A result is an array of one value per point, or a scalar if it depends on no input."""
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
    """Returns a new tape and its input columns by name."""
    tape = Tape(len(names))
    return tape, {name: Column(tape, k) for k, name in enumerate(names, 1)}


def _applied(op: str, on_numbers: Callable[..., Num], *values: Num) -> Num:
    """Returns a NumPy function of columns or arrays, or `on_numbers` of Python numbers."""
    for v in values:
        if type(v) is Column:
            number = v.tape.number
            return v.tape.note(op, *[number(x) for x in values])
    return getattr(np, op)(*values) if any(isinstance(v, np.ndarray) for v in values) else on_numbers(*values)


def minimum(a: Num, b: Num) -> Num:
    if type(a) is Column:
        return a.tape.note("minimum", a.number, a.tape.number(b))
    return _applied("minimum", min, a, b)


def maximum(a: Num, b: Num) -> Num:
    return _applied("maximum", max, a, b)


def rounded_up(a: Num) -> Num:
    return _applied("ceil", ceil, a)


def rounded_down(a: Num) -> Num:
    return _applied("floor", floor, a)


def square_root(a: Num) -> Num:
    return _applied("sqrt", sqrt, a)


def equal(a: Num, b: Num) -> Num:
    return _applied("equal", eq, a, b)


def where(condition: Num, a: Num, b: Num) -> Num:
    """Returns `a` at the points that meet the condition, else `b`."""
    if isinstance(condition, (Column, np.ndarray)):
        return _applied("where", eq, condition, a, b)
    return a if condition else b


def ceil_div(a: Num, b: Num) -> Num:
    """Returns the quotient of integers, rounded up."""
    if isinstance(b, int):
        if b == 1:
            return a
        if isinstance(a, int):
            return -(-a // b)
    return rounded_up(a / b)


def within(demands: Sequence[Num]) -> Num:
    """Returns whether all demands are at most 1."""
    fits: Any = True
    for demand in demands:
        fits = fits & (demand <= 1.0)
    return fits


def is_multiple(a: Num, of: Num) -> Num:
    """Returns whether the integer `a` is a multiple of `of`, without the slow float modulo."""
    if isinstance(a, int) and isinstance(of, int):
        return a % of == 0
    return equal(rounded_down(a / of) * of, a)


def prod_of(values: Iterable[Num]) -> Num:
    """Returns a product of integers, exact in any order: constants are folded before columns."""
    known: Num = 1
    result: Num = None
    for v in values:
        if type(v) is not Column:
            known = known * v
        else:
            result = v if result is None else result * v
    return known if result is None else result * known


def sum_of(values: Iterable[Num]) -> Num:
    total: Num = 0
    for v in values:
        total = total + v
    return total


def is_one(n: Num) -> bool:
    """Returns whether a size is the constant 1 at every point."""
    return isinstance(n, int) and n == 1
