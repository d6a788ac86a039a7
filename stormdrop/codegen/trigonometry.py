"""sin and cos of every finite argument.

    x = n · π/2 + r,   |r| <= π/4,   sin(x + q · π/2) = ±sin(r) or ±cos(r) by the parity and the sign of n + q

Up to `NEAR` the reduction is Cody and Waite's: three multiply-adds. Beyond `NEAR`, the reduction is Payne and Hanek's,
in integers. It multiplies only the bits of 2/π that determine the quotient modulo 4 and its fraction. A routine
performs this reduction lane by lane, and is called only if a lane needs it. The usual case costs a comparison and a
branch.

The f32 functions are computed in f64: its 53 bits make the reduction short and exact enough.
"""

from __future__ import annotations

import math
from itertools import pairwise

from stormdrop.codegen.polynomials import COEFFICIENTS
from stormdrop.codegen.text import Writer
from stormdrop.codegen.vector import F64, Vector
from stormdrop.ir.dtypes import Dtype

NEAR = 1e5
"""Three parts of π/2 are enough up to here: the products of two of them with a quotient below 2^20 are exact."""
SINE = "sd.sine"
_TABLE = "@sd.two_over_pi"

# pi/2 in parts of 33, 33 and 53 bits.
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)


def sine(v: Vector, x: str, quadrant: int) -> str:
    """Emits sin(x + quadrant * pi/2)."""
    wide, given = v.wide, v.widened(x)
    usual = _near(wide, given, quadrant, v.format.dtype)
    far = v.is_true("ogt", v.call("fabs", x), v.const(NEAR))

    def reduced_exactly() -> str:
        kind = wide.floats
        return v.out.op(f"call {kind} @{SINE}.{wide.suffix}({kind} {given}, {kind} {usual}, i64 {quadrant})")

    return v.narrowed(v.out.rarely(v.any(far), wide.floats, usual, reduced_exactly))


def _near(v: Vector, x: str, quadrant: int, fit: Dtype) -> str:
    rounder = v.const(v.format.rounder)
    rounded = v.fma(x, v.const(2.0 / math.pi), rounder)
    n = v.sub(rounded, rounder)
    r = x
    for part in _HALF_PI:
        r = v.fma(n, v.const(-part), r)
    return _at_quadrant(v, r, v.integer("add", v.to_bits(rounded), quadrant), fit)


def _at_quadrant(v: Vector, r: str, turns: str, fit: Dtype) -> str:
    """Emits sin(r + turns * pi/2); only the two lowest bits of `turns` count. The shorter polynomials of f32 suffice
    for a result that is narrowed to f32.
    """
    z = v.mul(r, r)
    one = v.const(1.0)
    # r * (1 + ...) and not r + ...: that would lose the sign of -0.
    sin_r = v.mul(r, v.fma(z, v.polynomial(z, COEFFICIENTS["sin", fit]), one))
    cos_r = v.fma(z, v.polynomial(z, (-0.5, *COEFFICIENTS["cos", fit])), one)
    is_odd = v.out.op(f"trunc {v.ints} {turns} to {v.kind('i1')}")
    sign = v.integer("shl", v.integer("and", turns, 2), 62)
    return v.from_bits(v.integers("xor", v.to_bits(v.select(is_odd, cos_r, sin_r)), sign))


# ---- the routine ---------------------------------------------------------------------------------------------------

# The first 1,216 bits of 2/pi: the largest f64 is m * 2^971 and needs the bits from 970 to 1,161.
_TWO_OVER_PI = (
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921C"
    "FE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980F"
    "EF2F118B5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D08"
    "56033046FC7B6BAB"
)


def table() -> str:
    """Returns the constant that the routine reads: a word of zeros, and 2/pi."""
    words = [0, *(int(_TWO_OVER_PI[k : k + 16], 16) for k in range(0, len(_TWO_OVER_PI), 16))]
    return f"{_TABLE} = internal constant [{len(words)} x i64] [{', '.join(f'i64 {w}' for w in words)}]"


def routine(attributes: str, declarations: set[str]) -> str:
    """Returns the text of `double sine(double x, double usual, i64 quadrant)`: the result is `usual` if x is near or
    not finite.

        2/pi = 0.b1 b2 b3 ...,  |x| = m * 2^e:  bits up to b(e-2) add multiples of 4 to |x| * 2/pi and are left out;
        m times the next 192 bits is, modulo 2^192, the quotient modulo 4 (two bits) and its fraction

    No f64 comes closer to a multiple of pi/2 than 2^-62, so that 126 bits of the fraction are more than enough.
    """
    w = Writer(declarations)
    v = Vector(w, F64, 1, has_fma=False)
    w.label("entry")
    size = v.to_bits(v.call("fabs", "%x"))
    far = w.op(f"icmp ugt i64 {size}, {F64.bits(NEAR)}")
    finite = w.op(f"icmp ult i64 {size}, {F64.bits(math.inf)}")
    result = w.rarely(v.both(far, finite), "double", "%usual", lambda: _far(w, v, size))
    w.line(f"ret double {result}")
    return w.function(f"internal double @{SINE}.f64(double %x, double %usual, i64 %quadrant) cold {attributes}")


def _far(w: Writer, v: Vector, size: str) -> str:
    m = v.integer("or", v.integer("and", size, (1 << 52) - 1), 1 << 52)
    # e is the exponent's field less 1075; b(e-1), the first bit that counts, stands at e + 62 in the table.
    position = v.integer("add", v.integer("lshr", size, 52), 62 - 1075)
    at = w.op(f"getelementptr i64, ptr {_TABLE}, i64 {v.integer('lshr', position, 6)}")
    places = [at, *(w.op(f"getelementptr i64, ptr {at}, i64 {k}") for k in (1, 2, 3))]
    words = [w.op(f"load i64, ptr {place}, align 8") for place in places]
    shift = v.integer("and", position, 63)
    high, middle, low = (
        w.intrinsic("fshl.i64", "i64", ("i64", a), ("i64", b), ("i64", shift)) for a, b in pairwise(words)
    )
    # The upper 128 of the product's 192 bits.
    top = w.op(f"shl i128 {_times(w, m, high)}, 64")
    carried = w.op(f"lshr i128 {_times(w, m, low)}, 64")
    product = w.op(f"add i128 {top}, {_times(w, m, middle)}")
    product = w.op(f"add i128 {product}, {carried}")

    # The fraction as a signed number; if it is negative, the quotient is one higher.
    fraction = w.op(f"shl i128 {product}, 2")
    below, quarters = w.op(f"lshr i128 {fraction}, 127"), w.op(f"lshr i128 {product}, 126")
    nearest = w.op(f"add i128 {quarters}, {below}")
    quotient = w.op(f"trunc i128 {nearest} to i64")
    r = _angle(w, v, fraction)

    negative = w.op(f"fcmp olt double %x, {v.const(0.0)}")
    opposite = w.op(f"sub i64 0, {quotient}")
    turns = w.op(f"select i1 {negative}, i64 {opposite}, i64 {quotient}")
    turns = v.integers("add", turns, "%quadrant")
    return _at_quadrant(v, v.select(negative, v.neg(r), r), turns, "f64")


def _times(w: Writer, a: str, b: str) -> str:
    wide = [w.op(f"zext i64 {x} to i128") for x in (a, b)]
    return w.op(f"mul i128 {wide[0]}, {wide[1]}")


def _angle(w: Writer, v: Vector, fraction: str) -> str:
    """Emits fraction * 2^-128 * pi/2 to about an ulp: exact 32-bit pieces, summed to two floats, times two of pi/2."""
    pieces: list[str] = []
    for k, shift in enumerate((96, 64, 32, 0)):
        shifted = w.op(f"ashr i128 {fraction}, {shift}")
        whole = w.op(f"trunc i128 {shifted} to i64")
        piece = whole if k == 0 else v.integer("and", whole, (1 << 32) - 1)
        pieces.append(v.mul(w.op(f"sitofp i64 {piece} to double"), v.const(2.0 ** (shift - 128))))
    high, rest = v.sum_of_ordered(pieces[0], pieces[1])
    high, low = v.sum_of_ordered(high, v.add(rest, v.add(pieces[2], pieces[3])))
    pi_high, pi_low = v.const(math.pi / 2), v.const(6.123233995736766e-17)
    return v.add(v.mul(high, pi_high), v.add(v.mul(high, pi_low), v.mul(low, pi_high)))
