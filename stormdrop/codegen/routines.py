"""Routines inside a kernel's module, for rare operations that need a loop or a table.

    call <8 x double> @sd.fmod.v8f64(<8 x double> %a, <8 x double> %b)     # anywhere in the text
    definitions(text, attributes, declarations)                            # its definition, and further routines

The routines are internal to the module: the object keeps no external symbol. Names end in the type, like the names of
LLVM's intrinsics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from stormdrop.codegen import trigonometry
from stormdrop.codegen.text import Writer, suffix, vector_type
from stormdrop.codegen.vector import F64, Vector

_FMOD, _POWER = "sd.fmod", "sd.power"
_CALL = re.compile(r"call [^@\n]*@(sd\.\w+)\.(?:v(\d+))?([if]\d+)\(")
_TYPES = {"f64": "double", "i32": "i32", "i64": "i64"}


def fmod(v: Vector, x: str, y: str) -> str:
    """Emits C's fmod: the exact remainder of x after subtracting as many whole y as fit, with the sign of x.

    The remainder is always a float of the operands' format, so f32 loses nothing in f64.
    """
    kind, wide = v.wide.floats, v.wide.suffix
    return v.narrowed(v.out.op(f"call {kind} @{_FMOD}.{wide}({kind} {v.widened(x)}, {kind} {v.widened(y)})"))


def integer_power(out: Writer, x: str, y: str, element: str, lanes: int) -> str:
    """Emits x to the y of integers, modulo 2^bits.

    For negative y the result is the quotient 1 / x^-y, which is 0 unless x is 1 or -1.
    """
    kind = vector_type(element, lanes)
    return out.op(f"call {kind} @{_POWER}.{suffix(element, lanes)}({kind} {x}, {kind} {y})")


def definitions(ir: str, attributes: str, declarations: set[str]) -> list[str]:
    """Returns the text of every routine that `ir` calls, without duplicates; adds the intrinsics that these routines
    call to `declarations`.
    """
    called = sorted({(name, int(lanes or 1), element) for name, lanes, element in _CALL.findall(ir)})
    parts = [_DEFINITIONS[name](lanes, element, attributes, declarations) for name, lanes, element in called]
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _sine(lanes: int, element: str, attributes: str, declarations: set[str]) -> list[str]:
    scalar = [trigonometry.table(), trigonometry.routine(attributes, declarations)]
    arguments = ["%x", "%usual", "i64 %quadrant"]
    return [*scalar, *_lane_by_lane(trigonometry.SINE, arguments, lanes, element, f"cold {attributes}")]


def _remainder(lanes: int, element: str, attributes: str, declarations: set[str]) -> list[str]:
    return [_fmod(attributes, declarations), *_lane_by_lane(_FMOD, ["%x", "%y"], lanes, element, attributes)]


def _lane_by_lane(name: str, arguments: Sequence[str], lanes: int, element: str, attributes: str) -> list[str]:
    """Returns the vector version of a scalar routine; an argument that has a type is the same for all lanes."""
    if lanes == 1:
        return []
    scalar = _TYPES[element]
    kind = vector_type(scalar, lanes)
    w = Writer()
    result = "poison"
    for k in range(lanes):
        given = [a if " " in a else f"{scalar} {w.op(f'extractelement {kind} {a}, i64 {k}')}" for a in arguments]
        one = w.op(f"call {scalar} @{name}.{element}({', '.join(given)})")
        result = w.op(f"insertelement {kind} {result}, {scalar} {one}, i64 {k}")
    w.line(f"ret {kind} {result}")
    parameters = ", ".join(a if " " in a else f"{kind} {a}" for a in arguments)
    return [w.function(f"internal {kind} @{name}.{suffix(element, lanes)}({parameters}) {attributes}")]


def _fmod(attributes: str, declarations: set[str]) -> str:
    """Returns the text of fmod: long division of the mantissas, eleven bits at a time.

        |x| = m · 2^a, |y| = n · 2^b:    m ← (m · 2^11) mod n    until a - b bits are shifted;    result m · 2^b

    A mantissa has 53 bits, so that it never leaves 64; the remainder is below n and is therefore a float.
    """
    w = Writer(declarations)
    v = Vector(w, F64, 1, has_fma=False)
    w.label("entry")
    x, y = v.to_bits(v.call("fabs", "%x")), v.to_bits(v.call("fabs", "%y"))
    infinity = F64.bits(math.inf)
    is_bad = [w.op(f"icmp uge i64 {x}, {infinity}"), w.op(f"icmp ugt i64 {y}, {infinity}"), w.op(f"icmp eq i64 {y}, 0")]
    is_undefined = v.either(v.either(is_bad[0], is_bad[1]), is_bad[2])
    w.line(f"br i1 {is_undefined}, label %undefined, label %defined")
    w.label("undefined")
    w.line(f"ret double {v.const(math.nan)}")
    w.label("defined")
    w.line(f"br i1 {w.op(f'icmp ult i64 {x}, {y}')}, label %smaller, label %divide")
    w.label("smaller")
    w.line("ret double %x")
    w.label("divide")
    (x_field, x_mantissa), (y_field, divisor) = _parts(w, v, x), _parts(w, v, y)
    first = w.op(f"urem i64 {x_mantissa}, {divisor}")
    bits = w.op(f"sub i64 {x_field}, {y_field}")
    w.line("br label %loop")
    w.label("loop")
    rest, left, remainder, fewer = (w.fresh() for _ in range(4))
    w.line(f"{rest} = phi i64 [ {first}, %divide ], [ {remainder}, %step ]")
    w.line(f"{left} = phi i64 [ {bits}, %divide ], [ {fewer}, %step ]")
    w.line(f"br i1 {w.op(f'icmp eq i64 {left}, 0')}, label %done, label %step")
    w.label("step")
    now = w.op(f"select i1 {w.op(f'icmp ult i64 {left}, 11')}, i64 {left}, i64 11")
    w.line(f"{remainder} = urem i64 {w.op(f'shl i64 {rest}, {now}')}, {divisor}")
    w.line(f"{fewer} = sub i64 {left}, {now}")
    w.line("br label %loop")
    w.label("done")
    # rest * 2^-52 * 2^(field - 1023): both products are exact.
    small = v.mul(w.op(f"sitofp i64 {rest} to double"), v.const(2.0**-52))
    result = v.mul(small, v.from_bits(v.integer("shl", y_field, 52)))
    w.line(f"ret double {v.call('copysign', result, '%x')}")
    return w.function(f"internal double @{_FMOD}.f64(double %x, double %y) {attributes}")


def _parts(w: Writer, v: Vector, size: str) -> tuple[str, str]:
    """Returns the exponent's field, at least 1, and the mantissa with its leading bit, which subnormals have not."""
    field = v.integer("lshr", size, 52)
    is_normal = w.op(f"icmp ne i64 {field}, 0")
    mantissa = v.integer("and", size, (1 << 52) - 1)
    whole = w.op(f"select i1 {is_normal}, i64 {v.integer('or', mantissa, 1 << 52)}, i64 {mantissa}")
    return w.op(f"select i1 {is_normal}, i64 {field}, i64 1"), whole


def _power(lanes: int, element: str, attributes: str, declarations: set[str]) -> list[str]:
    """Returns the integer power as a loop: multiplies the squares of x at the set bits of the exponent, until no lane
    has a bit left.

    The bits of a negative exponent have its parity, which suffices for x = 1 and x = -1; for x = 0 all powers stay 0.
    """
    kind, mask = vector_type(element, lanes), vector_type("i1", lanes)
    zero, one, two = (str(k) if lanes == 1 else f"splat ({element} {k})" for k in range(3))
    mask_bits = f"i{lanes}"
    lines = [
        f"define internal {kind} @{_POWER}.{suffix(element, lanes)}({kind} %x, {kind} %y) {attributes} {{",
        "entry:",
        "  br label %loop",
        "loop:",
        f"  %base = phi {kind} [ %x, %entry ], [ %square, %loop ]",
        f"  %exponent = phi {kind} [ %y, %entry ], [ %rest, %loop ]",
        f"  %product = phi {kind} [ {one}, %entry ], [ %next, %loop ]",
        f"  %is_odd = trunc {kind} %exponent to {mask}",
        f"  %times = mul {kind} %product, %base",
        f"  %next = select {mask} %is_odd, {kind} %times, {kind} %product",
        f"  %square = mul {kind} %base, %base",
        f"  %rest = lshr {kind} %exponent, {one}",
        f"  %is_left = icmp ne {kind} %rest, {zero}",
        f"  %left = bitcast {mask} %is_left to {mask_bits}",
        f"  %again = icmp ne {mask_bits} %left, 0",
        "  br i1 %again, label %loop, label %done",
        "done:",
        f"  %is_negative = icmp slt {kind} %y, {zero}",
        f"  %above = add {kind} %x, {one}",
        f"  %is_large = icmp ugt {kind} %above, {two}",
        f"  %vanishes = and {mask} %is_negative, %is_large",
        f"  %result = select {mask} %vanishes, {kind} {zero}, {kind} %next",
        f"  ret {kind} %result",
        "}",
    ]
    return ["\n".join(lines)]


_DEFINITIONS: Mapping[str, Callable[[int, str, str, set[str]], list[str]]] = {
    trigonometry.SINE: _sine,
    _FMOD: _remainder,
    _POWER: _power,
}
