"""Elementary functions as LLVM IR, for any lane count.

LLVM's own vector `exp` and similar intrinsics become one libm call per lane, so this module emits polynomials. The code
is straight-line, except that sin and cos jump over a call, and fmod is a call (see `routines`). Invariant: the emitted
code calls only routines of its module, and intrinsics that lower to instructions on SSE4.1, AVX and NEON. The object
therefore keeps no external symbol. NaN propagates, infinities and signed zeros behave as NumPy's, subnormals are kept.

docs/numerics.md lists the largest measured errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stormdrop.codegen.exponential import exp, expm1, log, log1p, power, reduce_exp, reduced_expm1
from stormdrop.codegen.polynomials import COEFFICIENTS
from stormdrop.codegen.routines import fmod
from stormdrop.codegen.text import Writer
from stormdrop.codegen.trigonometry import sine
from stormdrop.codegen.vector import FORMATS, Vector


def emit(fn: str, out: Writer, args: Sequence[str], dtype: str, lanes: int, fma: bool) -> str:
    """Appends the instructions that compute `fn(args)`, and returns the name of the result.

    `fma`: llvm.fma is a single instruction on the target. SSE4.1 or NEON is a requirement. A module that holds these
    instructions also needs `routines.definitions` of its text.
    """
    v = Vector(out, FORMATS[dtype], lanes, fma)
    if fn in BINARY:
        x, y = args
        return _TWO[fn](v, x, y)
    (x,) = args
    return _ONE[fn](v, x)


def _sigmoid(v: Vector, x: str) -> str:
    """Emits 1 / (1 + e^-x) = s / ((s + 1) + q), with e^x = s e^r and q = e^-r - 1.

    The rounding error of s + 1 is added to q. The sum is nearly as exact as with a single rounding, which keeps f32
    below two ulp. The number s is first computed as s * 2^lift, since s, and then the result too, may be too small for
    the format.
    """
    lift = (v.format.bias + 1) // 2
    drop, one = v.const(2.0**-lift), v.const(1.0)
    r, lifted = reduce_exp(v, v.at_least(v.at_most(x, v.format.sigmoid_end), v.format.exp_range[0]), lift=lift)
    q = reduced_expm1(v, v.neg(r))
    s = v.mul(lifted, drop)
    high = v.add(s, one)
    low = v.sub(s, v.sub(high, one))
    return v.mul(v.div(lifted, v.add(high, v.add(q, low))), drop)


def _tanh(v: Vector, x: str) -> str:
    """Emits tanh |x| = (1 - z) / (1 + z) = 1 - 2z / (1 + z), with z = exp(-2|x|) = s + s q.

    The second form serves for small z: there 1 + z rounds too coarsely for the first form. `copysign` drops the minus
    of the first form.
    """
    one = v.const(1.0)
    magnitude = v.at_most(v.call("fabs", x), v.format.tanh_end)
    r, s = reduce_exp(v, v.mul(magnitude, v.const(-2.0)))
    q = reduced_expm1(v, r)
    minus_2s = v.mul(s, v.const(-2.0))
    is_large = v.is_true("ogt", magnitude, v.const(0.55))
    numerator = v.select(is_large, v.fma(minus_2s, q, minus_2s), v.fma(s, q, v.sub(s, one)))
    quotient = v.div(numerator, v.fma(s, q, v.add(s, one)))
    return v.call("copysign", v.add(quotient, v.select(is_large, one, v.const(0.0))), x)


def _erf(v: Vector, x: str) -> str:
    """Emits erf |x| = 1 - exp(ln erfc |x|) = -(s - 1 + s q): one polynomial for all x, and copysign drops the minus."""
    magnitude = v.at_most(v.call("fabs", x), v.format.erf_end)
    minus = v.neg(magnitude)
    log_erfc = v.fma(minus, v.polynomial(magnitude, COEFFICIENTS["erf", v.format.dtype]), minus)
    r, s = reduce_exp(v, log_erfc)
    return v.call("copysign", v.fma(s, reduced_expm1(v, r), v.add(s, v.const(-1.0))), x)


_ONE: Mapping[str, Callable[[Vector, str], str]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "sin": lambda v, x: sine(v, x, 0),
    "cos": lambda v, x: sine(v, x, 1),
    "sqrt": lambda v, x: v.call("sqrt", x),
    "rsqrt": lambda v, x: v.div(v.const(1.0), v.call("sqrt", x)),
    "floor": lambda v, x: v.call("floor", x),
    "ceil": lambda v, x: v.call("ceil", x),
    "round": lambda v, x: v.call("roundeven", x),
}
_TWO: Mapping[str, Callable[[Vector, str, str], str]] = {
    "pow": power,
    "fmod": fmod,
    "copysign": lambda v, x, y: v.call("copysign", x, y),
}
UNARY, BINARY = frozenset(_ONE), frozenset(_TWO)
