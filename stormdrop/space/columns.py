"""Columns: symbolic values, one per point. Formulas are traced once and evaluated on matrices of points.

Arithmetic on a `Column` computes nothing: it appends an instruction to the column's `Tape`, in SSA form with common
subexpressions shared. A `ColumnProgram` is the instructions that some results need; it runs one NumPy call per
instruction. Nothing is reordered (only x + 0, x - 0, x * 1 and x / 1 are folded): a program gives the same bits as
the same arithmetic on arrays.

The functions here take Python numbers (one point, or a constant of the structure), arrays and columns alike.
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

FUNCTIONS: tuple[Callable[..., Array], ...] = (
    np.add,
    np.subtract,
    np.multiply,
    np.divide,
    np.minimum,
    np.maximum,
    np.ceil,
    np.floor,
    np.where,
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    np.logical_and,
    np.logical_or,
)
(
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    MINIMUM,
    MAXIMUM,
    CEIL,
    FLOOR,
    WHERE,
    EQUAL,
    GREATER,
    GREATER_EQUAL,
    LESS,
    LESS_EQUAL,
    AND,
    OR,
    INPUT,
    NUMBER,
) = range(18)
NONE = 0  # the value number of an absent operand
BITS = 20  # of a value number


class Tape:
    """A trace in SSA form. A value number is the index of its instruction: an opcode and up to three value numbers.

    Flat lists of integers, no object per instruction: every sketch traces thousands.
    """

    __slots__ = ("_a", "_b", "_c", "_known", "_numbers", "_op", "_values")

    def __init__(self, width: int) -> None:
        """`width`: the number of input columns, values 1 to `width`."""
        self._op = [INPUT] * (width + 1)
        self._a, self._b, self._c = ([NONE] * (width + 1) for _ in range(3))
        self._known: dict[int, int] = {}
        self._numbers: dict[float, int] = {}
        self._values: dict[int, float] = {}

    def column(self, k: int) -> Column:
        """The k-th input column."""
        return Column(self, k + 1)

    def number(self, x: Num) -> int:
        """The value number of a column or a constant."""
        if type(x) is Column:
            return x.number
        found = self._numbers.get(x)
        if found is None:
            found = self._numbers[x] = self._append(NUMBER, NONE, NONE, NONE)
            self._values[found] = float(x)
        return found

    def _append(self, op: int, a: int, b: int, c: int) -> int:
        at = len(self._op)
        self._op.append(op)
        self._a.append(a)
        self._b.append(b)
        self._c.append(c)
        return at

    def note(self, op: int, a: int, b: int = NONE, c: int = NONE) -> Column:
        """Append an instruction on the given value numbers, or reuse an equal one."""
        key = ((op << BITS | a) << BITS | b) << BITS | c
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._append(op, a, b, c)
        return Column(self, found)

    def program(self, results: Sequence[Num]) -> ColumnProgram:
        """Compile: dead-code elimination, then slot allocation by last use."""
        wanted = [self.number(x) for x in results]
        ops, first, second, third = self._op, self._a, self._b, self._c
        last = [NONE] * len(ops)  # by value: the last instruction that reads it; NONE: dead
        for k in wanted:
            last[k] = len(ops)
        kept: list[int] = []
        for k in range(max(wanted, default=0), 0, -1):
            if last[k] and ops[k] < INPUT:
                kept.append(k)
                last[first[k]] = last[first[k]] or k
                last[second[k]] = last[second[k]] or k
                last[third[k]] = last[third[k]] or k
        kept.reverse()
        at = [-1] * len(ops)
        slots: list[Array | None] = []
        inputs: list[tuple[int, int]] = []
        for k in range(1, len(ops)):
            if last[k] and ops[k] >= INPUT:
                at[k] = len(slots)
                slots.append(np.asarray(self._values[k]) if ops[k] == NUMBER else None)
                if ops[k] == INPUT:
                    inputs.append((k - 1, at[k]))
                else:
                    last[k] = NONE  # constants keep their slots
        free: list[int] = []
        x: list[int] = []
        y: list[int] = []
        z: list[int] = []
        for k in kept:
            a, b, c = first[k], second[k], third[k]
            x.append(at[a])
            y.append(at[b])
            z.append(at[c])
            if last[a] == k:
                free.append(at[a])
            if b != a and last[b] == k:
                free.append(at[b])
            if c and c != a and c != b and last[c] == k:
                free.append(at[c])
            if free:
                at[k] = free.pop()
            else:
                at[k] = len(slots)
                slots.append(None)
        functions = [FUNCTIONS[ops[k]] for k in kept]
        return ColumnProgram(
            functions, [at[k] for k in kept], x, y, z, tuple(slots), tuple(inputs), tuple(at[k] for k in wanted)
        )


class Column:
    """A symbolic value, one number per point."""

    __slots__ = ("number", "tape")

    def __init__(self, tape: Tape, number: int) -> None:
        self.tape, self.number = tape, number

    def __add__(self, other: Num) -> Num:
        if type(other) is Column:
            return self.tape.note(ADD, self.number, other.number)
        return self if other == 0 else self.tape.note(ADD, self.number, self.tape.number(other))

    def __radd__(self, other: Num) -> Num:
        return self if other == 0 else self.tape.note(ADD, self.tape.number(other), self.number)

    def __sub__(self, other: Num) -> Num:
        return (
            self
            if type(other) is not Column and other == 0
            else self.tape.note(SUBTRACT, self.number, self.tape.number(other))
        )

    def __rsub__(self, other: Num) -> Num:
        return self.tape.note(SUBTRACT, self.tape.number(other), self.number)

    def __mul__(self, other: Num) -> Num:
        if type(other) is Column:
            return self.tape.note(MULTIPLY, self.number, other.number)
        return self if other == 1 else self.tape.note(MULTIPLY, self.number, self.tape.number(other))

    def __rmul__(self, other: Num) -> Num:
        return self if other == 1 else self.tape.note(MULTIPLY, self.tape.number(other), self.number)

    def __truediv__(self, other: Num) -> Num:
        if type(other) is Column:
            return self.tape.note(DIVIDE, self.number, other.number)
        return self if other == 1 else self.tape.note(DIVIDE, self.number, self.tape.number(other))

    def __rtruediv__(self, other: Num) -> Num:
        return self.tape.note(DIVIDE, self.tape.number(other), self.number)

    def __gt__(self, other: Num) -> Num:
        return self.tape.note(GREATER, self.number, self.tape.number(other))

    def __ge__(self, other: Num) -> Num:
        return self.tape.note(GREATER_EQUAL, self.number, self.tape.number(other))

    def __lt__(self, other: Num) -> Num:
        return self.tape.note(LESS, self.number, self.tape.number(other))

    def __le__(self, other: Num) -> Num:
        return self.tape.note(LESS_EQUAL, self.number, self.tape.number(other))

    def __and__(self, other: Num) -> Num:
        if type(other) is Column:
            return self.tape.note(AND, self.number, other.number)
        return self if other else False

    __rand__ = __and__

    def __or__(self, other: Num) -> Num:
        if type(other) is Column:
            return self.tape.note(OR, self.number, other.number)
        return True if other else self

    __ror__ = __or__


@dataclass(frozen=True, slots=True, eq=False)
class ColumnProgram:
    """Instructions in order: functions, result slots, operand slots (-1: none)."""

    functions: list[Callable[..., Array]]
    to: list[int]
    first: list[int]
    second: list[int]
    third: list[int]
    slots: tuple[Array | None, ...]  # initial slots: the constants
    inputs: tuple[tuple[int, int], ...]  # (input column, slot)
    results: tuple[int, ...]

    def run(self, columns: NDArray[np.float64]) -> list[Array]:
        """Each result: an array of one value per point, or a scalar if it depends on no input."""
        slots: list[Any] = list(self.slots)
        for k, slot in self.inputs:
            slots[slot] = columns[k]
        for f, to, a, b, c in zip(self.functions, self.to, self.first, self.second, self.third):
            if b < 0:
                slots[to] = f(slots[a])
            elif c < 0:
                slots[to] = f(slots[a], slots[b])
            else:
                slots[to] = f(slots[a], slots[b], slots[c])
        return [slots[k] for k in self.results]


def traced(names: Sequence[str]) -> tuple[Tape, Mapping[str, Column]]:
    """A new tape and its input columns by name."""
    tape = Tape(len(names))
    return tape, {name: tape.column(k) for k, name in enumerate(names)}


def _noted(op: int, *values: Num) -> Column:
    tape = next(v.tape for v in values if type(v) is Column)
    return tape.note(op, *(tape.number(v) for v in values))


def minimum(a: Num, b: Num) -> Num:
    if type(a) is Column:
        tape = a.tape
        return tape.note(MINIMUM, a.number, tape.number(b))
    if type(b) is Column:
        tape = b.tape
        return tape.note(MINIMUM, tape.number(a), b.number)
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def maximum(a: Num, b: Num) -> Num:
    if type(a) is Column or type(b) is Column:
        return _noted(MAXIMUM, a, b)
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def rounded_up(a: Num) -> Num:
    if type(a) is Column:
        return a.tape.note(CEIL, a.number)
    return np.ceil(a) if isinstance(a, np.ndarray) else ceil(a)


def rounded_down(a: Num) -> Num:
    if type(a) is Column:
        return a.tape.note(FLOOR, a.number)
    return np.floor(a) if isinstance(a, np.ndarray) else floor(a)


def ceil_div(a: Num, b: Num) -> Num:
    """The quotient of integers, rounded up."""
    if isinstance(b, int):
        if b == 1:
            return a
        if isinstance(a, int):
            return -(-a // b)
    return rounded_up(a / b)


def where(condition: Num, a: Num, b: Num) -> Num:
    """`a` where the condition holds, else `b`."""
    if type(condition) is Column:
        return _noted(WHERE, condition, a, b)
    return np.where(condition, a, b) if isinstance(condition, np.ndarray) else a if condition else b


def equal(a: Num, b: Num) -> Num:
    return _noted(EQUAL, a, b) if type(a) is Column or type(b) is Column else a == b


def within(demands: Sequence[Num]) -> Num:
    """Whether no demand exceeds 1."""
    fits: Any = True
    for demand in demands:
        fits = fits & (demand <= 1.0)
    return fits


def is_multiple(a: Num, of: Num) -> Num:
    """Whether `a` is a multiple of `of`, for integers; avoids the slow float modulo."""
    if isinstance(a, int) and isinstance(of, int):
        return a % of == 0
    return equal(rounded_down(a / of) * of, a)
