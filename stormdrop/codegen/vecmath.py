"""Elementary functions as straight-line LLVM IR, for any lane count.

LLVM's own vector `exp` and friends become one libm call per lane, so we write our polynomials. The invariant: what is
emitted calls only intrinsics that lower to instructions on SSE4.1, AVX and NEON, so no external symbol is left in the
object. NaN goes through, infinities and signed zeros behave as NumPy's, subnormals are kept.

Coefficients are weighted minimax (Remez) fits, refitted after the leading ones were rounded to the type. The largest
errors measured, in units of the last place, with fma / without (f32: every float of the range that matters, sin and cos
6 million; f64: 6 million samples, erf 48,000):

           exp          log          tanh         erf          sigmoid      sin, cos
    f32    1.62 / 1.92  0.96 / 0.96  1.94 / 1.95  1.67 / 1.98  1.70 / 1.71  0.57 / 0.57
    f64    1.47 / 2.16  0.82 / 0.82  2.07 / 2.10  1.60 / 1.68  1.70 / 1.74  2.77 / 2.77
"""

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol


class Lines(Protocol):
    """Where instructions go."""

    def op(self, text: str) -> str:
        """Append `%new = <text>` and return `%new`."""
        ...


@dataclass(frozen=True, slots=True)
class _Format:
    """An IEEE format, and what depends on it alone."""

    name: str  # LLVM's name of the type
    int_name: str  # of the integer as wide
    mantissa_bits: int
    bias: int
    exp_range: tuple[float, float]  # exp is 0 below and inf above
    sigmoid_end: float  # from here on sigmoid rounds to 1,
    tanh_end: float  # tanh too,
    erf_end: float  # and erf
    ln2: tuple[float, float]  # high part short enough that its product with any exponent is exact

    @property
    def rounder(self) -> float:
        """1.5 * 2^mantissa_bits: adding it rounds to an integer, which the sum's lowest bits then hold."""
        return 1.5 * 2.0**self.mantissa_bits

    def bits(self, value: float) -> int:
        """Return the bit pattern of `value` rounded to this format."""
        float_code, int_code = ("f", "i") if self.int_name == "i32" else ("d", "q")
        return int(struct.unpack(int_code, struct.pack(float_code, value))[0])


_F32 = _Format(
    name="float", int_name="i32", mantissa_bits=23, bias=127, exp_range=(-104.0, 89.0),
    sigmoid_end=20.0, tanh_end=10.0, erf_end=4.0, ln2=(0.693145751953125, 1.4286068203094173e-06),
)  # fmt: skip
_F64 = _Format(
    name="double", int_name="i64", mantissa_bits=52, bias=1023, exp_range=(-746.0, 710.0),
    sigmoid_end=40.0, tanh_end=20.0, erf_end=6.0, ln2=(0.6931471803691238, 1.9082149292705877e-10),
)  # fmt: skip
_FORMATS = {"f32": _F32, "f64": _F64}

# (e^r - 1 - r) / r^2 on |r| <= ln 2, lowest degree first, as all tables here.
_EXP = {
    _F32: (0.500000358, 0.166666165, 0.0416611694, 0.00833590701, 0.00141062192, 0.000196447712),
    _F64: (
        0.4999999999999993, 0.16666666666666935, 0.04166666666670213, 0.008333333333270385, 0.001388888888357207,
        0.0001984126989235808, 2.480159083240468e-05, 2.7557300819701554e-06, 2.75561574952846e-07,
        2.505500233022099e-08, 2.1062376575598253e-09, 1.5937724840432013e-10,
    ),
}  # fmt: skip

# The same on |r| <= ln(2) / 2, weighted for the relative error of e^r - 1 (f32: of r < 0, all that tanh and erf need).
_EXPM1 = {
    _F32: (0.499999851, 0.166665584, 0.0416717306, 0.00836518407, 0.00135781977),
    _F64: (
        0.5, 0.16666666666666677, 0.04166666666666667, 0.008333333333321386, 0.0013888888888886047,
        0.00019841269886817259, 2.4801587317839357e-05, 2.7557243450390565e-06, 2.755728316785302e-07,
        2.510932143766372e-08, 2.0910797600769927e-09,
    ),
}  # fmt: skip

# (2 atanh(s) / s - 2) / z with z = s^2, for s = f / (2 + f), 1 + f from sqrt(1/2) to sqrt(2).
_LOG = {
    _F32: (0.666667759, 0.399775803, 0.298708618),
    _F64: (
        0.6666666666666734, 0.3999999999941654, 0.2857142874206536, 0.22222198600045862, 0.18183563163685762,
        0.15314075678270603, 0.14795735621127912,
    ),
}  # fmt: skip

# -ln(erfc x) / x - 1 on 0 <= x <= erf_end, weighted by what its error does to erf: little where erfc is small.
_ERF = {
    _F32: (
        0.128379166, 0.636619568, 0.102776304, -0.0191478021, -0.000169555162, 0.00167573756, -0.000637400779,
        0.000118872493, -9.38924859e-06,
    ),
    _F64: (
        0.12837916709551256, 0.6366197723675898, 0.10277260330135765, -0.01912844699381498, -0.00020919484693644695,
        0.001696207626744345, -0.0005901322483063017, 2.590394994546877e-05, 6.442170534224175e-05,
        -2.9577771441293744e-05, 3.172450448942361e-06, 3.130083354952092e-06, -2.034827441040786e-06,
        5.69090935776978e-07, -1.0905028953828767e-08, -6.60671899454274e-08, 3.469483956277967e-08,
        -1.0801866094538237e-08, 2.3662434013092914e-09, -3.76942523358211e-10, 4.3114622864557466e-11,
        -3.3717317344988025e-12, 1.6183206436024335e-13, -3.599619710153303e-15,
    ),
}  # fmt: skip

# (sin(r) / r - 1) / z and (cos(r) - 1 + z/2) / z^2 with z = r^2, |r| <= pi/4. The shorter ones are good to f32.
_SIN = {
    _F32: (-0.16666654937154501, 0.008332177716181508, -0.00019517238793326482),
    _F64: (
        -0.16666666666666632, 0.008333333333322486, -0.0001984126982985339, 2.755731370507887e-06,
        -2.5050759892510507e-08, 1.5896886705735254e-10,
    ),
}  # fmt: skip
_COS = {
    _F32: (0.04166664685456453, -0.0013887366905845136, 2.4438378901807972e-05),
    _F64: (
        0.0416666666666666, -0.001388888888887447, 2.480158728966692e-05, -2.755731439927309e-07,
        2.0875728995722067e-09, -1.1359917424673839e-11,
    ),
}  # fmt: skip
# pi/2 in parts of 33, 33 and 53 bits: the products of the first two with a quotient below 2^20 are exact without fma.
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)

_INTRINSICS: Mapping[str, int] = {
    "ceil": 1, "copysign": 2, "fabs": 1, "floor": 1, "fma": 3, "roundeven": 1, "sqrt": 1,
}  # fmt: skip
_CALL = re.compile(rf"call (<\d+ x \w+>|\w+) @llvm\.({'|'.join(_INTRINSICS)})\.(\w+)\(")


def emit(fn: str, out: Lines, args: Sequence[str], dtype: str, lanes: int, fma: bool) -> str:
    """Append the instructions that compute `fn(args)` and return the name of the result.

    `fma` says that llvm.fma is one instruction on the target; SSE4.1 or NEON is taken for granted. Every function here
    has one argument. sin and cos hold their accuracy for |x| <= 1e5 and mean nothing from 2^51 on.
    """
    (x,) = args
    return _EMITTERS[fn](_Vector(out, _FORMATS[dtype], lanes, fma), x)


def declarations(ir: str) -> list[str]:
    """Return the `declare` lines, sorted and each once, of the intrinsics of this module that the text `ir` calls."""
    calls = sorted({(name, suffix, kind) for kind, name, suffix in _CALL.findall(ir)})
    return [
        f"declare {kind} @llvm.{name}.{suffix}({', '.join([kind] * _INTRINSICS[name])})" for name, suffix, kind in calls
    ]


@dataclass(frozen=True, slots=True)
class _Vector:
    """Writes instructions on values of one format and lane count."""

    out: Lines
    format: _Format
    lanes: int
    has_fma: bool

    def kind(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    @property
    def floats(self) -> str:
        return self.kind(self.format.name)

    @property
    def ints(self) -> str:
        return self.kind(self.format.int_name)

    def _splat(self, element: str, literal: str) -> str:
        return literal if self.lanes == 1 else f"splat ({element} {literal})"

    def const(self, value: float) -> str:
        """LLVM writes floats of every width as the bits of the equal double."""
        if self.format is _F32:
            value = struct.unpack("f", struct.pack("f", value))[0]
        return self._splat(self.format.name, f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}")

    def int_const(self, value: int) -> str:
        return self._splat(self.format.int_name, str(value))

    def call(self, intrinsic: str, *args: str) -> str:
        width = f"f{self.format.int_name[1:]}"
        suffix = width if self.lanes == 1 else f"v{self.lanes}{width}"
        operands = ", ".join(f"{self.floats} {a}" for a in args)
        return self.out.op(f"call {self.floats} @llvm.{intrinsic}.{suffix}({operands})")

    def binary(self, op: str, a: str, b: str) -> str:
        return self.out.op(f"{op} {self.floats} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        return self.binary("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.binary("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.binary("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        return self.binary("fdiv", a, b)

    def neg(self, a: str) -> str:
        return self.out.op(f"fneg {self.floats} {a}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.call("fma", a, b, c) if self.has_fma else self.add(self.mul(a, b), c)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's rule: the fewest instructions, and neighbouring vectors fill the latency."""
        *rest, last = coefficients
        total = self.const(last)
        for c in reversed(rest):
            total = self.fma(total, x, self.const(c))
        return total

    def is_true(self, predicate: str, a: str, b: str) -> str:
        return self.out.op(f"fcmp {predicate} {self.floats} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.out.op(f"select {self.kind('i1')} {condition}, {self.floats} {a}, {self.floats} {b}")

    def at_most(self, x: str, limit: float) -> str:
        """min(x, limit), but NaN stays; in this operand order it is one minps."""
        top = self.const(limit)
        return self.select(self.is_true("ogt", x, top), top, x)

    def at_least(self, x: str, limit: float) -> str:
        bottom = self.const(limit)
        return self.select(self.is_true("olt", x, bottom), bottom, x)

    def integer(self, op: str, a: str, b: int) -> str:
        return self.out.op(f"{op} {self.ints} {a}, {self.int_const(b)}")

    def to_bits(self, x: str) -> str:
        return self.out.op(f"bitcast {self.floats} {x} to {self.ints}")

    def from_bits(self, i: str) -> str:
        return self.out.op(f"bitcast {self.ints} {i} to {self.floats}")


def _reduce_exp(v: _Vector, x: str, step: int = 1, lift: int = 0) -> tuple[str, str]:
    """Split e^x = e^r * 2^(step * n), with |r| <= step * ln(2) / 2; return r and 2^(n + lift)."""
    high, low = v.format.ln2
    # The exponent's bias rides on the rounder, so that a shift alone makes the power of two.
    rounder = v.const(v.format.rounder + v.format.bias + lift)
    rounded = v.fma(x, v.const(math.log2(math.e) / step), rounder)
    n = v.sub(rounded, rounder)
    r = v.fma(n, v.const(-step * high), x)
    r = v.fma(n, v.const(-step * low), r)
    return r, v.from_bits(v.integer("shl", v.to_bits(rounded), v.format.mantissa_bits))


def _reduced_expm1(v: _Vector, r: str) -> str:
    """e^r - 1 for |r| <= ln(2) / 2, good relative to itself."""
    return v.fma(v.mul(r, r), v.polynomial(r, _EXPM1[v.format]), r)


def _exp(v: _Vector, x: str) -> str:
    """e^x = p * s * s, reduced by 2 ln 2: only the last product can overflow or be subnormal, so it rounds once.

    That costs one degree more of p, and saves the instructions that would split the exponent in two.
    """
    bottom, top = v.format.exp_range
    r, s = _reduce_exp(v, v.at_least(v.at_most(x, top), bottom), step=2)
    p = v.polynomial(r, (1.0, 1.0, *_EXP[v.format]))
    return v.mul(v.mul(p, s), s)


def _sigmoid(v: _Vector, x: str) -> str:
    """1 / (1 + e^-x) = s / ((s + 1) + q), where e^x = s e^r and q = e^-r - 1.

    The sum is as good as rounded once, which keeps f32 below two ulp: what s + 1 drops is added to q. s is first met as
    s * 2^lift, since it may be too small itself, and then so is the result.
    """
    lift = (v.format.bias + 1) // 2
    drop, one = v.const(2.0**-lift), v.const(1.0)
    r, lifted = _reduce_exp(v, v.at_least(v.at_most(x, v.format.sigmoid_end), v.format.exp_range[0]), lift=lift)
    q = _reduced_expm1(v, v.neg(r))
    s = v.mul(lifted, drop)
    high = v.add(s, one)
    low = v.sub(s, v.sub(high, one))
    return v.mul(v.div(lifted, v.add(high, v.add(q, low))), drop)


def _tanh(v: _Vector, x: str) -> str:
    """tanh |x| = (1 - z) / (1 + z) = 1 - 2z / (1 + z), with z = exp(-2|x|) = s + s q.

    The second form serves where z is small: there 1 + z rounds too coarsely for the first, of which copysign drops the
    minus.
    """
    one = v.const(1.0)
    magnitude = v.at_most(v.call("fabs", x), v.format.tanh_end)
    r, s = _reduce_exp(v, v.mul(magnitude, v.const(-2.0)))
    q = _reduced_expm1(v, r)
    minus_2s = v.mul(s, v.const(-2.0))
    is_large = v.is_true("ogt", magnitude, v.const(0.55))
    numerator = v.select(is_large, v.fma(minus_2s, q, minus_2s), v.fma(s, q, v.sub(s, one)))
    quotient = v.div(numerator, v.fma(s, q, v.add(s, one)))
    return v.call("copysign", v.add(quotient, v.select(is_large, one, v.const(0.0))), x)


def _erf(v: _Vector, x: str) -> str:
    """erf |x| = 1 - exp(ln erfc |x|) = -(s - 1 + s q): one polynomial for all x, and copysign drops the minus."""
    magnitude = v.at_most(v.call("fabs", x), v.format.erf_end)
    minus = v.neg(magnitude)
    log_erfc = v.fma(minus, v.polynomial(magnitude, _ERF[v.format]), minus)
    r, s = _reduce_exp(v, log_erfc)
    return v.call("copysign", v.fma(s, _reduced_expm1(v, r), v.add(s, v.const(-1.0))), x)


def _log(v: _Vector, x: str) -> str:
    """ln x = k ln 2 + ln(1 + f), where x = 2^k (1 + f) and 1 + f lies between sqrt(1/2) and sqrt(2).

    ln(1 + f) = 2 atanh(s) = f - s (f - R(s^2)) with s = f / (2 + f).
    """
    fmt = v.format
    lift = fmt.mantissa_bits + 2
    is_tiny = v.is_true("olt", x, v.const(2.0 ** (1 - fmt.bias)))
    normal = v.select(is_tiny, v.mul(x, v.const(2.0**lift)), x)
    # Shift the bit pattern so that the mantissa starts at sqrt(1/2) and the exponent field is k + bias.
    start, bias_field = fmt.bits(math.sqrt(0.5)), fmt.bias << fmt.mantissa_bits
    shifted = v.integer("add", v.to_bits(normal), bias_field - start)
    # An integer below 2^mantissa_bits, put in the mantissa of that power of two, is a float: no conversion needed.
    carrier = 2.0**fmt.mantissa_bits
    exponent = v.integer("lshr", shifted, fmt.mantissa_bits)
    exponent = v.from_bits(v.integer("or", exponent, fmt.bits(carrier)))
    k = v.sub(exponent, v.select(is_tiny, v.const(carrier + fmt.bias + lift), v.const(carrier + fmt.bias)))
    mantissa = v.integer("and", shifted, (1 << fmt.mantissa_bits) - 1)
    f = v.add(v.from_bits(v.integer("add", mantissa, start)), v.const(-1.0))

    s = v.div(f, v.add(f, v.const(2.0)))
    z = v.mul(s, s)
    correction = v.mul(s, v.sub(v.mul(z, v.polynomial(z, _LOG[fmt])), f))
    high, low = fmt.ln2
    result = v.fma(k, v.const(high), v.add(f, v.fma(k, v.const(low), correction)))

    zero, infinity = v.const(0.0), v.const(math.inf)
    result = v.select(v.is_true("olt", x, infinity), result, x)
    result = v.select(v.is_true("olt", x, zero), v.const(math.nan), result)
    return v.select(v.is_true("oeq", x, zero), v.const(-math.inf), result)


def _sine_at_quadrant(v: _Vector, x: str, quadrant: int) -> str:
    """sin(x + quadrant * pi/2); f32 is computed in f64, whose 53 bits make the reduction short and exact enough."""
    if v.format is _F64:
        return _reduced_sine(v, x, quadrant, _SIN[_F64], _COS[_F64])
    wide = replace(v, format=_F64)
    extended = v.out.op(f"fpext {v.floats} {x} to {wide.floats}")
    result = _reduced_sine(wide, extended, quadrant, _SIN[_F32], _COS[_F32])
    return v.out.op(f"fptrunc {wide.floats} {result} to {v.floats}")


def _reduced_sine(v: _Vector, x: str, quadrant: int, sine: Sequence[float], cosine: Sequence[float]) -> str:
    rounder = v.const(v.format.rounder)
    rounded = v.fma(x, v.const(2.0 / math.pi), rounder)
    n = v.sub(rounded, rounder)
    r = x
    for part in _HALF_PI:
        r = v.fma(n, v.const(-part), r)
    z = v.mul(r, r)
    one = v.const(1.0)
    # r * (1 + ...) and not r + ...: that would lose the sign of -0.
    sin_r = v.mul(r, v.fma(z, v.polynomial(z, sine), one))
    cos_r = v.fma(z, v.polynomial(z, (-0.5, *cosine)), one)
    turns = v.integer("add", v.to_bits(rounded), quadrant)
    is_odd = v.out.op(f"trunc {v.ints} {turns} to {v.kind('i1')}")
    sign = v.integer("shl", v.integer("and", turns, 2), 62)
    magnitude = v.to_bits(v.select(is_odd, cos_r, sin_r))
    return v.from_bits(v.out.op(f"xor {v.ints} {magnitude}, {sign}"))


_EMITTERS: Mapping[str, Callable[[_Vector, str], str]] = {
    "exp": _exp,
    "log": _log,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "sin": lambda v, x: _sine_at_quadrant(v, x, 0),
    "cos": lambda v, x: _sine_at_quadrant(v, x, 1),
    "sqrt": lambda v, x: v.call("sqrt", x),
    "rsqrt": lambda v, x: v.div(v.const(1.0), v.call("sqrt", x)),
    "floor": lambda v, x: v.call("floor", x),
    "ceil": lambda v, x: v.call("ceil", x),
    "round": lambda v, x: v.call("roundeven", x),
}
FUNCTIONS: frozenset[str] = frozenset(_EMITTERS)
