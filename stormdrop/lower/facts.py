"""A prover of `e >= 0` from linear inequalities between loop variables.

A fact is a linear form that is >= 0. `for i in (n + 3) // 4` gives `n - 1 - 4·i >= 0`: tails relate loop variables to
each other, which intervals alone cannot express.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import gcd, lcm

from stormdrop.ir.affine import Affine, Interval, affine, bounds, conjuncts
from stormdrop.ir.expr import Axis, Bin, Cmp, Const, Expr, Select, Var, binary
from stormdrop.lower.borders import non_negative

SPLITS = 2
"""The most loops that a proof may split into the last iteration and all other iterations."""

Linear = Mapping[Expr | None, int | Fraction]
"""The coefficient of each variable; the key None holds the constant term."""
Integral = Mapping[Expr | None, int]
"""A linear form with integer coefficients."""


def data_bounds(atom: Expr) -> Interval | None:
    """Returns the bounds of data: any i64.

    Returns None for variables, and for operations that `bounds` analyses itself.
    """
    looks_inside = isinstance(atom, Bin) and atom.op in ("min", "max", "mod", "floordiv")
    return None if looks_inside or isinstance(atom, (Axis, Var, Select)) else (-(2**63), 2**63 - 1)


def _sum(a: Linear, b: Linear, factor: int | Fraction = 1) -> Linear:
    total = dict(a)
    for atom, c in b.items():
        total[atom] = total.get(atom, 0) + factor * c
    return {atom: c for atom, c in total.items() if c or atom is None}


def _integral(form: Linear) -> tuple[Integral, int]:
    """Returns the smallest multiple of a form that has integer coefficients, and the factor."""
    scale = lcm(*(c.denominator for c in form.values()))
    return {atom: int(c * scale) for atom, c in form.items()}, scale


@dataclass(slots=True)
class Facts:
    """Intervals of variables, and linear forms that are >= 0."""

    intervals: dict[Expr, Interval] = field(default_factory=dict[Expr, Interval])
    forms: list[tuple[Expr, Integral]] = field(
        default_factory=list[tuple[Expr, Integral]]
    )  # (innermost variable, form)
    rank: dict[Expr, int] = field(default_factory=dict[Expr, int])  # inner variables rank higher

    def copy(self) -> Facts:
        return Facts(dict(self.intervals), list(self.forms), dict(self.rank))

    def variable(self, var: Expr, low: Expr, high: Expr, interval: Interval) -> None:
        """Assumes `low <= var < high`."""
        self.intervals[var] = interval
        self._assume_non_negative(binary("sub", var, low))
        self._assume_non_negative(binary("sub", binary("sub", high, 1), var))

    def assume(self, condition: Expr) -> None:
        """Assumes a condition; conjuncts that are neither inequalities nor integer equations are dropped."""
        for part in conjuncts(condition):
            form = non_negative(part)
            if form is not None:
                self._narrow(form)
                self._assume_non_negative(form.expr())
            elif isinstance(part, Cmp) and part.op == "eq" and part.a.dtype == "i64":
                self._assume_non_negative(binary("sub", part.a, part.b))
                self._assume_non_negative(binary("sub", part.b, part.a))

    def _narrow(self, form: Affine) -> None:
        """Narrows the interval of the only variable of a form that is >= 0: its quotients have narrower bounds then."""
        match form.terms:
            case ((Var() as var, 1 | -1 as c),) if var in self.intervals:
                low, high = self.intervals[var]
                narrow = (max(low, -form.constant), high) if c == 1 else (low, min(high, form.constant))
                self.intervals[var] = narrow if narrow[0] <= narrow[1] else (low, high)
            case _:
                pass

    def _assume_non_negative(self, e: Expr) -> None:
        """Assumes `e >= 0`: every linear upper bound of `e` is a fact."""
        for form in self._above(e):
            self._add(form)

    def _add(self, form: Linear) -> None:
        """Adds a fact, divided by its coefficients' gcd, with its constant rounded down: variables are integers."""
        whole, _ = _integral(form)
        divisor = gcd(*(c for atom, c in whole.items() if atom is not None))
        if divisor:  # dividing rounds the constant down, and no coefficient
            fact = {atom: c // divisor for atom, c in whole.items()} | {None: whole.get(None, 0) // divisor}
            atom = self._innermost(fact)
            assert atom is not None
            self.forms.append((atom, fact))

    def _above(self, e: Expr) -> Iterator[Linear]:
        """Yields linear upper bounds of an expression."""
        form = affine(e)
        parts = [self._atom_above(atom, c) for atom, c in form.terms]
        for choice in product(*parts):
            total: Linear = {None: form.constant}
            for part in choice:
                total = _sum(total, part)
            yield total

    def _atom_above(self, atom: Expr, c: int) -> list[Linear]:
        """Yields linear upper bounds of `c · atom`; a floordiv or mod is also treated as a variable."""
        if isinstance(atom, Var) or (isinstance(atom, Bin) and atom.op in ("floordiv", "mod")):
            self.rank.setdefault(atom, len(self.rank))
            if atom not in self.intervals and (known := bounds(atom, self._known)) is not None:
                self.intervals[atom] = known
            own: list[Linear] = [{atom: c}]
        else:
            own = []
        inner: list[Linear] = []
        match atom:
            case Bin("min", a, b) if c > 0:
                inner = [*self._above(a), *self._above(b)]
            case Bin("max", a, b) if c < 0:
                inner = [*self._below(a), *self._below(b)]
            case Bin("floordiv", a, Const(n)) if c > 0 and int(n) > 0:
                inner = [_sum({}, form, Fraction(1, int(n))) for form in self._above(a)]
            case Bin("floordiv", a, Const(n)) if int(n) > 0:
                last = Fraction(1 - int(n), int(n))
                inner = [_sum({None: last}, form, Fraction(1, int(n))) for form in self._below(a)]
            case _ if not own and (known := bounds(atom, self._known)) is not None:
                inner = [{None: known[1] if c > 0 else known[0]}]
            case _:
                pass
        return own + [_sum({}, form, c) for form in inner]

    def _known(self, atom: Expr) -> Interval | None:
        return self.intervals.get(atom) or data_bounds(atom)

    def _below(self, e: Expr) -> Iterator[Linear]:
        for form in self._above(binary("mul", e, -1)):
            yield _sum({}, form, -1)

    def never_negative(self, e: Expr) -> bool:
        """Returns whether a linear lower bound > -1 proves that the integer `e` is >= 0."""
        return self._is_one_proved([_integral(form) for form in self._below(e)], SPLITS)

    def _is_one_proved(self, forms: Sequence[tuple[Integral, int]], splits: int) -> bool:
        """Returns whether some form is proved > -1, if needed by cases: a loop's last iteration (a tail), the rest."""
        if any(self._is_proved(form, scale) for form, scale in forms):
            return True
        variables = [var for var, (low, high) in self.intervals.items() if isinstance(var, Var) and low < high]
        return any(
            all(case._is_one_proved(forms, splits - 1) for case in self._turns(var))
            for var in variables[: len(variables) if splits else 0]
        )

    def _turns(self, var: Expr) -> Iterator[Facts]:
        """Yields the facts for the last value of a variable, then the facts for all other values."""
        low, high = self.intervals[var]
        last = Facts({**self.intervals, var: (high, high)}, [], self.rank)
        for _, form in self.forms:
            last._add(_sum(form, {var: -1, None: high}, form.get(var, 0)))
        yield last
        yield Facts({**self.intervals, var: (low, high - 1)}, self.forms, self.rank)

    def _is_proved(self, form: Integral, scale: int) -> bool:
        """Returns whether `form / scale > -1`, by eliminating innermost variables with intervals or facts
        (Fourier-Motzkin).
        """
        atom = self._innermost(form)
        if atom is None:
            return form.get(None, 0) > -scale
        c, known = form[atom], self.intervals.get(atom)
        if known is not None:
            rest = {other: d for other, d in form.items() if other is not atom}
            rest[None] = rest.get(None, 0) + c * known[c < 0]
            if self._is_proved(rest, scale):
                return True
        for innermost, fact in self.forms:
            if innermost is atom and (fact[atom] > 0) == (c > 0):
                factor = abs(fact[atom])
                rest = {other: factor * d for other, d in form.items()}
                for other, d in fact.items():
                    rest[other] = rest.get(other, 0) - abs(c) * d
                if self._is_proved({other: d for other, d in rest.items() if d or other is None}, factor * scale):
                    return True
        return False

    def _innermost(self, form: Linear) -> Expr | None:
        return max((atom for atom in form if atom is not None), key=self.rank.__getitem__, default=None)
