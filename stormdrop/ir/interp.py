"""The reference interpreter: computes a task's outputs with NumPy, slowly and obviously right.

An expression is evaluated on a grid of points at once: every axis is an array of its values, shaped so that axes
broadcast against each other. `evaluate` fills whole tensors in order. `sample` evaluates single elements, and computes
only the elements of producers that these elements need.

Semantics that NumPy leaves open:

* `max` and `min`, as operations and as reductions, propagate NaN (NumPy's maximum and minimum).
* `//` and `%` are Python's (towards minus infinity). Integers wrap around. `round` goes to even.
* Casting a float to an integer rounds towards zero. NaN becomes 0, and a number out of range becomes the nearest value
  of the type (LLVM's fptosi.sat).
* An integer to a negative power is 1 over the positive power, in integers: 0 unless the base is 1 or -1.
* The branch that a Select does not choose is not read; any other index outside a tensor raises UserError.

**Error scales.** `magnitude` gives a number `s` per output element. A float32 kernel is right when it lies within
`c · eps · s` of the float64 result, for the small `c` that the variant states. The scale is a running first-order error
analysis:

* Inputs and constants are exact (s = 0).
* A rounded operation adds |result| to its operands' errors, carried through its derivative.
* A sum of n terms t gets (1 + √n / 2) · Σ max(s(t), |t|), for a matrix product Σ|a·b| times that growth. Terms of one
  sign added one by one in float32 need the growth: 4,608 such terms were 29 eps · Σ|a·b| off, 512 terms were 9 off,
  while random signs stay below 2.
* Moved or maximised data has s = 0: it must be exact.
* Choices made by float data (relu) take the larger scale of both sides.
* Jumps (floor, casts to integers, comparisons as values) cannot be bounded and pass on their operand's scale.
* Quantised numbers may differ by one, `quantum`, if a float lies halfway between two integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir import expr
from stormdrop.ir.contraction import contracted, contraction_boxes, factors_of
from stormdrop.ir.dtypes import INTEGERS, ITEMSIZE, is_exact
from stormdrop.ir.expr import FLOATS, NUMPY, Axis, Bin, Call, Cast, Cmp, Const, Dtype, Expr, Load, Select, walk
from stormdrop.ir.tensor import Compute, Task, Tensor

Array = NDArray[Any]
CHUNK_POINTS = 1_000_000
"""Points evaluated at once; some ten float64 temporaries of this size are alive in the worst case."""
FACTOR_POINTS = 4 * CHUNK_POINTS
"""Points of one factor of a matrix product, which has fewer temporaries."""
UNDERFLOW = 2.0**-103
"""The loss of a float32 by flushing to zero, in the units of scales: 2⁻¹²⁶ / eps."""
ROUNDING = {"f16": 2.0**12, "bf16": 2.0**15}
"""The largest loss by rounding 1 to a half, in the units of scales: 2⁻¹¹ / eps and 2⁻⁸ / eps."""
F16_UNDERFLOW = 0.25
"""The largest loss by rounding to the nearest multiple of 2⁻²⁴ (the least f16), in the units of scales."""
F16_OVERFLOW = 65520.0
"""The least number that rounds to infinity as f16."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Some elements of one output: their index tuple (one array per dimension), float64 values and error scales."""

    indices: tuple[Array, ...]
    values: Array
    magnitudes: Array


def evaluate(
    task: Task,
    arrays: Mapping[str, Array],
    variant: int = 0,
    precision: Literal["f64"] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Array]:
    """Returns the outputs by name.

    With precision "f64" every float is computed as float64; inputs may be float64 already. A cast to f16 or bf16, which
    rounds to nearest even otherwise, then keeps all numbers that do not overflow. Sums of products run as matrix
    products. `tick` is called before every chunk and may raise.

    Raises UserError for missing or misshapen arrays and for reads outside a tensor.
    """
    machine = _Machine(_inputs(task, arrays, precision == "f64"), wide=precision == "f64", tick=tick)
    machine.fill(task.variants[variant].stages)
    return {mine.name: machine.known[t][0] for t, mine in zip(task.variants[variant].outputs, task.outputs)}


def magnitude(task: Task, arrays: Mapping[str, Array], variant: int = 0) -> dict[str, Array]:
    """Returns the error scale of every output element (see the module's text), float64, by output name."""
    machine = _Machine(_inputs(task, arrays, wide=True), wide=True, with_scales=True)
    machine.fill(task.variants[variant].stages)
    return {mine.name: machine.known[t][1] for t, mine in zip(task.variants[variant].outputs, task.outputs)}


def sample(
    task: Task, arrays: Mapping[str, Array], points: int, rng: np.random.Generator, variant: int = 0
) -> dict[str, Samples]:
    """Returns about `points` random elements of every output in float64, with error scales, often at borders."""
    machine = _Machine(_inputs(task, arrays, wide=True), wide=True, with_scales=True)
    samples: dict[str, Samples] = {}
    for t, mine in zip(task.variants[variant].outputs, task.outputs):
        indices = _random_indices(t.shape, points, rng)
        values, scales = machine.read(t, indices)
        samples[mine.name] = Samples(indices, values, scales)
    return samples


def quantum(task: Task) -> int:
    """Returns the accepted difference of an integer output from its float64 value: 1 if it quantises floats, else 0."""
    bodies = (t.compute.body for v in task.variants for t in v.stages if t.compute is not None)
    casts = (n for body in bodies for n in walk(body) if isinstance(n, Cast))
    return int(any(n.a.dtype in FLOATS and n.dtype in INTEGERS and ITEMSIZE[n.dtype] < 4 for n in casts))


def distances(actual: Array, expected: Array) -> Array:
    """Returns |actual - expected| by element as float64: 0 where both are NaN, NaN where one is.

    Unequal integers are at least 1 apart, also if float64 rounds both to the same number.
    """
    with np.errstate(all="ignore"):
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        apart = np.maximum(np.abs(a - b), float(actual.dtype.kind in "biu"))
        return np.where((actual == expected) | (np.isnan(a) & np.isnan(b)), 0.0, apart)


def _random_indices(shape: tuple[int, ...], points: int, rng: np.random.Generator) -> tuple[Array, ...]:
    """Returns distinct random index tuples; about a fifth of each coordinate's values lie at the ends of its range."""
    if 0 in shape or not shape:
        return tuple(np.zeros(0, np.int64) for _ in shape)
    columns: list[Array] = []
    for extent in shape:
        inside = rng.integers(0, extent, points)
        border = rng.integers(0, 2, points) * (extent - 1)
        columns.append(np.where(rng.random(points) < 0.2, border, inside))
    return _unravel(np.unique(np.ravel_multi_index(tuple(columns), shape)), shape)


def _unravel(flat: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(np.asarray(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _inputs(task: Task, arrays: Mapping[str, Array], wide: bool) -> dict[Tensor, tuple[Array, Array]]:
    """Returns the given arrays by tensor, with error scales of zero."""
    known: dict[Tensor, tuple[Array, Array]] = {}
    for t in task.inputs:
        if t.name not in arrays:
            raise UserError(f"{task.name}: no array is given for input {t!r}")
        array, kinds = np.asarray(arrays[t.name]), (NUMPY[t.dtype], _numpy(t.dtype, wide))
        if array.shape != t.shape or not any(array.dtype == kind for kind in kinds):
            raise UserError(f"{task.name}: input {t!r} is given as {array.dtype}{list(array.shape)}")
        known[t] = array.astype(_numpy(t.dtype, wide), copy=False), np.broadcast_to(np.zeros(()), t.shape)
    return known


def _numpy(dtype: Dtype, wide: bool) -> type[np.generic]:
    return np.float64 if wide and dtype in FLOATS else NUMPY[dtype]


@dataclass(slots=True)
class _Scope:
    """The points under evaluation: the values of each axis, and the mask of points that are used (None: all)."""

    env: dict[Expr, Array]
    active: Array | None = None
    values: dict[Expr, Array] = field(default_factory=dict[Expr, Array])
    scales: dict[Expr, Array] = field(default_factory=dict[Expr, Array])
    sides: dict[Expr, tuple[_Scope, _Scope]] = field(default_factory=dict[Expr, "tuple[_Scope, _Scope]"])

    def split(self, choice: Select, condition: Array) -> tuple[_Scope, _Scope]:
        """Returns the points at which the condition holds and the points at which it does not."""
        if choice not in self.sides:
            among = np.True_ if self.active is None else self.active
            self.sides[choice] = _Scope(self.env, among & condition), _Scope(self.env, among & ~condition)
        return self.sides[choice]


@dataclass(slots=True)
class _Machine:
    """The evaluator of expressions; `known` holds complete tensors, `partly` single elements of incomplete tensors."""

    known: dict[Tensor, tuple[Array, Array]]
    wide: bool
    with_scales: bool = False
    tick: Callable[[], None] = lambda: None
    partly: dict[Tensor, tuple[Array, Array, Array]] = field(default_factory=dict[Tensor, tuple[Array, Array, Array]])

    def fill(self, stages: Sequence[Tensor]) -> None:
        """Computes complete tensors, producers first."""
        for t in stages:
            assert t.compute is not None
            values = np.empty(t.shape, _numpy(t.dtype, self.wide))
            scales = np.zeros(t.shape if self.with_scales else ())
            for box in self._boxes(t.compute, t.shape):
                self.tick()
                ranges = [np.arange(extent)[part] for extent, part in zip(t.shape, box)]
                grid = np.ix_(*ranges) if ranges else ()
                values[box], part_scales = self.points(t.compute, grid, tuple(len(r) for r in ranges))
                if self.with_scales:
                    scales[box] = part_scales
            self.known[t] = values, scales

    def _boxes(self, c: Compute, shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
        factors = self._factors(c)
        if factors is not None:
            return contraction_boxes(c, factors, FACTOR_POINTS)
        return _boxes(shape, CHUNK_POINTS // max(1, c.terms))

    def _factors(self, c: Compute) -> tuple[Expr, Expr] | None:
        """Returns both sides of a sum of products that runs as a matrix product."""
        return factors_of(c) if self.wide and not self.with_scales else None

    def points(self, c: Compute, at: tuple[Array, ...], shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Returns values and scales of one compute at the axis values `at` (which broadcast to `shape`)."""
        depth = len(c.reduce_axes)
        env: dict[Expr, Array] = {a: i.reshape(i.shape + (1,) * depth) for a, i in zip(c.axes, at)}
        for d, a in enumerate(c.reduce_axes):
            env[a] = np.arange(a.extent).reshape((-1,) + (1,) * (depth - 1 - d))
        scope = _Scope(env)
        full = shape + tuple(a.extent for a in c.reduce_axes)
        with np.errstate(all="ignore"):
            factors = self._factors(c)
            if factors is not None:
                a, b = (self.value(factor, scope) for factor in factors)
                return contracted(a, b, shape, full[len(shape) :]), np.zeros(())
            value = np.broadcast_to(self.value(c.body, scope), full)
            scale = np.broadcast_to(self.scale(c.body, scope), full) if self.with_scales else np.zeros(())
            if c.combiner is None:
                return value, scale
            over = tuple(range(len(shape), len(full)))
            result = _REDUCE[c.combiner](value, axis=over)
            if not self.with_scales:
                return result.astype(value.dtype), scale
            return result.astype(value.dtype), _reduce_scale(c.combiner, value, scale, result, over)

    def read(self, t: Tensor, indices: tuple[Array, ...]) -> tuple[Array, Array]:
        """Returns elements of a tensor; missing elements of an incomplete tensor are computed and kept."""
        if t in self.known:
            values, scales = self.known[t]
            return values[indices], scales[indices] if self.with_scales else scales
        assert t.compute is not None
        flat = np.ravel_multi_index(np.broadcast_arrays(*indices), t.shape) if indices else np.zeros((), np.int64)
        wanted = np.unique(flat)
        empty = np.zeros(0, np.int64), np.zeros(0, _numpy(t.dtype, self.wide)), np.zeros(0)
        have, values, scales = self.partly.get(t, empty)
        missing = np.setdiff1d(wanted, have, assume_unique=True)
        step = max(1, CHUNK_POINTS // max(1, t.compute.terms))
        parts = [missing[k : k + step] for k in range(0, len(missing), step)]
        fresh = [self.points(t.compute, _unravel(part, t.shape), part.shape) for part in parts]
        have = np.concatenate([have, missing])
        values = np.concatenate([values, *(v for v, _ in fresh)])
        scales = np.concatenate([scales, *(s for _, s in fresh)])
        order = np.argsort(have)
        have, values, scales = self.partly[t] = have[order], values[order], scales[order]
        place = np.searchsorted(have, flat)
        return values[place], scales[place]

    def value(self, e: Expr, s: _Scope) -> Array:
        if e not in s.values:
            s.values[e] = np.asarray(self._value(e, s))
        return s.values[e]

    def scale(self, e: Expr, s: _Scope) -> Array:
        if e not in s.scales:
            s.scales[e] = np.asarray(self._scale(e, s) if e.dtype in FLOATS else 0.0)
        return s.scales[e]

    def _value(self, e: Expr, s: _Scope) -> Array:
        match e:
            case Const(value, dtype):
                return np.array(value, NUMPY[dtype]).astype(_numpy(dtype, self.wide))
            case Axis():
                return s.env[e]
            case Bin(op, a, b) | Cmp(op, a, b):
                return OPERATIONS[op](self.value(a, s), self.value(b, s))
            case Select(condition, a, b):
                chosen = self.value(condition, s)
                yes, no = s.split(e, chosen)
                return np.where(chosen, self.value(a, yes), self.value(b, no))
            case Call(fn, a):
                x = self.value(a, s)
                if fn in expr.BITS_AS:
                    return _reinterpreted(x, a.dtype, expr.BITS_AS[fn], self.wide)
                return np.asarray(_UNARY[fn](_widened(x))).astype(x.dtype)
            case Cast(a, dtype):
                x = _cast(self.value(a, s), _numpy(dtype, self.wide))
                if dtype == "f16" and self.wide:
                    return np.where(np.abs(x) >= F16_OVERFLOW, np.copysign(np.inf, x), x)
                return x
            case Load():
                return self._load(e, s)
            case _:
                raise UserError(f"{e} cannot be evaluated")

    def _load(self, e: Load, s: _Scope) -> Array:
        indices: list[Array] = []
        for d, (index, extent) in enumerate(zip(e.indices, e.tensor.shape)):
            i = self.value(index, s).astype(np.int64)
            outside = (i < 0) | (i >= extent)
            if outside.any():
                if np.any(outside if s.active is None else outside & s.active):
                    raise UserError(f"{e} reads outside dimension {d} of {e.tensor!r}")
                i = np.clip(i, 0, max(extent - 1, 0))
            indices.append(i)
        if e.tensor.size == 0:
            shape = np.broadcast_shapes(*(i.shape for i in indices))
            values, scales = np.zeros(shape, _numpy(e.dtype, self.wide)), np.zeros(shape)
        else:
            values, scales = self.read(e.tensor, tuple(indices))
        s.scales[e] = scales
        return values

    def _scale(self, e: Expr, s: _Scope) -> Array:
        result = np.abs(self.value(e, s)) + UNDERFLOW
        match e:
            case Bin(op, a, b):
                x, y, ex, ey = self.value(a, s), self.value(b, s), self.scale(a, s), self.scale(b, s)
                return _binary_scale(op, x, y, ex, ey, result)
            case Select(condition, a, b):
                chosen = self.value(condition, s)
                yes, no = s.split(e, chosen)
                ex, ey = self.scale(a, yes), self.scale(b, no)
                by_data = any(n.dtype in FLOATS for n in walk(condition))
                return np.maximum(ex, ey) if by_data else np.where(chosen, ex, ey)
            case Call(fn, a):
                if fn not in _SLOPE:
                    return self.scale(a, s)
                return _through(_SLOPE[fn](self.value(a, s)), self.scale(a, s)) + result
            case Cast(a):
                if is_exact(a.dtype, e.dtype):
                    return self.scale(a, s)
                rounding = result * ROUNDING.get(e.dtype, 1) + (F16_UNDERFLOW if e.dtype == "f16" else 0)
                return self.scale(a, s) + rounding
            case Load():
                return s.scales[e]
            case _:
                return np.zeros(())


def _boxes(shape: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Yields boxes of at most `limit` points (at least one) that cover an index space, leading dimensions first."""
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    step = max(1, limit // max(1, inner))
    for start in range(0, shape[0], step):
        lead = slice(start, min(start + step, shape[0]))
        if inner <= limit:
            yield (lead, *(slice(0, n) for n in shape[1:]))
        else:
            yield from ((lead, *rest) for rest in _boxes(shape[1:], limit))


def _widened(x: Array) -> Array:
    """Returns f32 as f64: functions then round once, while NumPy's own f32 versions are off by up to 4 ulps."""
    return x.astype(np.float64) if x.dtype == np.float32 else x


def _sigmoid(x: Array) -> Array:
    """Returns 1 / (1 + exp(-x)), by an exponential that cannot overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _cast(x: Array, dtype: type[np.generic]) -> Array:
    """Converts a value: floats to integers saturate, all other conversions follow C's rules."""
    if not (np.issubdtype(x.dtype, np.floating) and np.issubdtype(dtype, np.integer)):
        return x.astype(dtype)
    limits = np.iinfo(np.dtype(dtype).name)
    low, high = int(limits.min), int(limits.max)
    wide = np.trunc(x.astype(np.float64))
    fits = (wide >= low) & (wide < high + 1)
    inside = np.where(fits, wide, 0).astype(dtype)
    return np.where(fits | np.isnan(wide), inside, np.where(wide > 0, np.array(high, dtype), np.array(low, dtype)))


def _reinterpreted(x: Array, dtype: Dtype, to: Dtype, wide: bool) -> Array:
    """Returns the stored bits of x, read as another type."""
    stored = np.ascontiguousarray(x, NUMPY[dtype])
    return stored.view(NUMPY[to]).reshape(x.shape).astype(_numpy(to, wide))


def _shifted(op: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """Shifts by any amount; NumPy's shift is undefined beyond the width of the type."""
    width = 8 * x.dtype.itemsize
    outside = (y < 0) | (y >= width)
    rest = np.where(x < 0, -1, 0).astype(x.dtype) if op is np.right_shift else np.zeros_like(x)
    return np.where(outside, rest, op(x, np.where(outside, 0, y).astype(y.dtype)))


def _through(slope: Array, scale: Array) -> Array:
    """Returns an error after a function of this slope; a zero error stays zero, however steep the function."""
    return np.where(scale == 0, 0.0, np.abs(slope) * scale)


def _binary_scale(op: str, x: Array, y: Array, ex: Array, ey: Array, result: Array) -> Array:
    match op:
        case "mul" | "rounded_mul":
            return _through(y, ex) + _through(x, ey) + result
        case "div":
            return _through(1 / y, ex) + _through(x / (y * y), ey) + result
        case "pow":
            logarithm = np.log(np.abs(x))
            spread = _through(y / x, ex) + _through(logarithm, ey) + 1 + np.abs(y * np.where(x == 0, 0, logarithm))
            return _through(result, spread)
        case "min" | "max":
            return np.maximum(ex, ey)
        case "copysign":
            return ex
        case _:
            return ex + ey + result


def _reduce_scale(combiner: str, value: Array, scale: Array, result: Array, over: tuple[int, ...]) -> Array:
    if not np.issubdtype(value.dtype, np.floating):
        return np.zeros(result.shape)
    match combiner:
        case "sum":
            terms = math.prod(value.shape[d] for d in over)
            return np.sum(np.maximum(scale, np.abs(value)), axis=over) * (1 + math.sqrt(terms) / 2)
        case "prod":
            relative = np.where(value == 0, 1.0, np.maximum(scale / np.abs(value), 1.0))
            return np.abs(result) * np.sum(relative, axis=over)
        case _:
            return np.max(scale, axis=over)


def _power(x: Array, y: Array) -> Array:
    """Returns C's pow of floats; of integers by repeated squaring, modulo 2^bits."""
    if np.issubdtype(x.dtype, np.floating):
        return np.power(_widened(x), _widened(y)).astype(x.dtype)
    base, bits = np.broadcast_arrays(x, y)
    result, left = np.ones_like(base), bits.astype(np.uint64)
    while left.any():
        result = np.where(left & np.uint64(1), result * base, result)
        base, left = base * base, left >> np.uint64(1)
    return np.where((y < 0) & (np.abs(x) != 1), np.zeros_like(result), result)


_REDUCE: dict[str, Callable[..., Array]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}

OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    **expr.ARITHMETIC,
    "div": np.divide,
    "fmod": np.fmod,
    "pow": _power,
    "copysign": np.copysign,
    "xor": np.logical_xor,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": lambda x, y: _shifted(np.left_shift, x, y),
    "shr": lambda x, y: _shifted(np.right_shift, x, y),
}

_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "not": np.logical_not,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64),
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}

_SLOPE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "expm1": np.exp,
    "log": lambda x: 1 / x,
    "log1p": lambda x: 1 / (1 + x),
    "sqrt": lambda x: 0.5 / np.sqrt(x),
    "rsqrt": lambda x: 0.5 / (x * np.sqrt(x)),
    "tanh": lambda x: 1 - np.tanh(x) ** 2,
    "erf": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "sigmoid": lambda x: 1 / (2 + np.exp(x) + np.exp(-x)),
    "sin": np.cos,
    "cos": np.sin,
}
"""Derivatives, up to their sign, of the functions that round."""
