"""Index arithmetic in normal form: an integer combination of atoms.

    h*2 + kh - 3   ->   Affine({h: 2, kh: 1}, -3)

Atoms are axes, variables and nonlinear terms (`h // 2`, `h % 2`); every integer expression has such a form.
Coefficients are exact Python integers, and none is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stormdrop.base.errors import UserError
from stormdrop.ir.expr import Axis, Bin, Cmp, Const, Expr, Load, Select, binary, compare, walk
from stormdrop.ir.memo import memoised

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """`constant + Σ coefficient · atom`."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int = 0

    def __eq__(self, other: object) -> bool:
        """Compares atoms by identity, since `==` of expressions builds an expression."""
        if not isinstance(other, Affine) or self.constant != other.constant or len(self.terms) != len(other.terms):
            return False
        return all(a is b and c == d for (a, c), (b, d) in zip(self.terms, other.terms))

    def __hash__(self) -> int:
        return hash((self.terms, self.constant))

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for atom, c in other.terms:
            terms[atom] = terms.get(atom, 0) + c
        return Affine(tuple((a, c) for a, c in terms.items() if c), self.constant + other.constant)

    def scaled(self, factor: int) -> Affine:
        if factor == 0:
            return ZERO
        return Affine(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    def shifted(self, offset: int) -> Affine:
        return Affine(self.terms, self.constant + offset)

    def coefficient(self, atom: Expr) -> int:
        return next((c for a, c in self.terms if a is atom), 0)

    def replace(self, values: Mapping[Expr, Affine]) -> Affine:
        """Returns the combination with the atoms in `values` substituted; all remaining atoms stay."""
        result = Affine((), self.constant)
        for atom, c in self.terms:
            result = result + (values[atom].scaled(c) if atom in values else Affine(((atom, c),)))
        return result

    def expr(self) -> Expr:
        total: Expr | None = None
        for atom, c in self.terms:
            term = binary("mul", atom, c)
            total = term if total is None else binary("add", total, term)
        if total is None:
            return Const(self.constant, "i64")
        return binary("add", total, self.constant) if self.constant >= 0 else binary("sub", total, -self.constant)

    def __str__(self) -> str:
        return str(self.expr())


ZERO = Affine(())


@memoised()
def affine(e: Expr) -> Affine:
    """Returns the normal form of an integer expression."""
    match e:
        case Const(value):
            return Affine((), int(value))
        case Bin("add", a, b):
            return affine(a) + affine(b)
        case Bin("sub", a, b):
            return affine(a) + affine(b).scaled(-1)
        case Bin("mul", a, Const(c)) | Bin("mul", Const(c), a):
            return affine(a).scaled(int(c))
        case _:
            return Affine(((e, 1),))


def bounds(e: Expr, of_atom: Callable[[Expr], Interval | None]) -> Interval | None:
    """Returns an interval (both ends included) that holds every value of an integer expression, or None.

    Sums are bounded after collecting equal atoms, so `i - i` is exactly zero.
    """
    form = affine(e)
    low = high = form.constant
    for atom, c in form.terms:
        known = _atom_bounds(atom, of_atom)
        if known is None:
            return None
        low += c * (known[0] if c > 0 else known[1])
        high += c * (known[1] if c > 0 else known[0])
    return low, high


def _atom_bounds(e: Expr, of_atom: Callable[[Expr], Interval | None]) -> Interval | None:
    known = of_atom(e)
    if known is not None:
        return known
    match e:
        case Axis(_, extent):
            return 0, extent - 1
        case Bin("floordiv", a, Const(c)) if int(c) > 0:
            inner = bounds(a, of_atom)
            return inner and (inner[0] // int(c), inner[1] // int(c))
        case Bin("mod", a, Const(c)) if int(c) > 0:
            inner = bounds(a, of_atom)
            if inner and inner[0] // int(c) == inner[1] // int(c):
                return inner[0] % int(c), inner[1] % int(c)
            return 0, int(c) - 1
        case Bin("min" | "max" as op, a, b):
            x, y = bounds(a, of_atom), bounds(b, of_atom)
            if x is None or y is None:
                return None
            pick = min if op == "min" else max
            return pick(x[0], y[0]), pick(x[1], y[1])
        case Select(_, a, b):
            x, y = bounds(a, of_atom), bounds(b, of_atom)
            return x and y and (min(x[0], y[0]), max(x[1], y[1]))
        case _:
            return None


_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def decide(condition: Expr, of_atom: Callable[[Expr], Interval | None]) -> bool | None:
    """Returns True or False if an integer condition always or never holds within the atoms' bounds, else None."""
    match condition:
        case Const(value):
            return bool(value)
        case Bin("and", a, b):
            x, y = decide(a, of_atom), decide(b, of_atom)
            return False if x is False or y is False else True if x and y else None
        case Bin("or", a, b):
            x, y = decide(a, of_atom), decide(b, of_atom)
            return True if x or y else False if x is False and y is False else None
        case Cmp(op, a, b) if a.dtype == "i64":
            gap = bounds(binary("sub", a, b), of_atom)
            if gap is None:
                return None
            low, high = gap
            always = {"lt": high < 0, "le": high <= 0, "gt": low > 0, "ge": low >= 0, "eq": low == high == 0}
            always["ne"] = always["lt"] or always["gt"]
            return True if always[op] else False if always[_OPPOSITE[op]] else None
        case _:
            return None


@memoised(4096)
def index_condition(c: Expr) -> bool:
    """Returns whether a condition depends on indices alone: it loads no element."""
    match c:
        case Const():
            return True
        case Bin("and" | "or", a, b):
            return index_condition(a) and index_condition(b)
        case Cmp(_, a, b):
            return a.dtype == "i64" and not any(isinstance(n, Load) for e in (a, b) for n in walk(e))
        case _:
            return False


def conjuncts(condition: Expr) -> list[Expr]:
    """Returns the parts of `a and b and c`."""
    match condition:
        case Bin("and", a, b):
            return conjuncts(a) + conjuncts(b)
        case Const(True):
            return []
        case _:
            return [condition]


def conjunction(parts: Iterable[Expr]) -> Expr:
    result: Expr = Const(True, "bool")
    for part in parts:
        result = binary("and", result, part)
    return result


def opposite(c: Expr) -> Expr:
    """Returns the negation of a condition on indices."""
    match c:
        case Const(value):
            return Const(not value, "bool")
        case Bin("and" | "or" as op, a, b):
            return Bin("or" if op == "and" else "and", opposite(a), opposite(b))
        case Cmp(op, a, b):
            return Cmp(_OPPOSITE[op], a, b)
        case _:
            raise UserError(f"{c} is no condition on indices")


def normal(e: Expr) -> Expr:
    """Returns an integer condition with both sides in normal form, so that equal conditions are one node."""
    match e:
        case Bin("and" | "or" as op, a, b):
            return binary(op, normal(a), normal(b))
        case Cmp(op, a, b) if a.dtype == "i64":
            gap = affine(a) + affine(b).scaled(-1)
            return compare(op, gap.shifted(-gap.constant).expr(), -gap.constant)
        case _:
            return e
