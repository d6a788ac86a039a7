"""The polynomials are as good as they say, on every kind of input, and never need a library."""

import ctypes
import math
import struct
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from stormdrop.codegen import routines, vecmath
from stormdrop.codegen.llvm import Code, assemble
from stormdrop.codegen.text import Writer, flatten, vector_type
from stormdrop.device.host import detect
from stormdrop.target.cpu import cross

Array: TypeAlias = npt.NDArray[Any]

ULP_BOUNDS = {
    "f32": {
        "exp": 2.0,
        "expm1": 2.0,
        "log": 1.0,
        "log1p": 2.0,
        "tanh": 2.0,
        "erf": 2.0,
        "sigmoid": 2.0,
        "sin": 0.6,
        "cos": 0.6,
    },
    "f64": {
        "exp": 2.5,
        "expm1": 2.5,
        "log": 1.0,
        "log1p": 2.0,
        "tanh": 2.5,
        "erf": 3.0,
        "sigmoid": 2.0,
        "sin": 3.0,
        "cos": 3.0,
    },
}
NUMPY_TYPES: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f64": np.float64}
WIDER_TYPES: dict[str, type[np.floating[Any]]] = {"f32": np.float64, "f64": np.longdouble}
BIT_TYPES: dict[str, type[np.signedinteger[Any]]] = {"f32": np.int32, "f64": np.int64}
HALF_PI = np.longdouble("1.57079632679489661923132169163975144")


HERE = detect()
FMA_CHOICES = (False, True) if HERE.has_fma else (False,)
TARGETS = {isa: cross(isa) for isa in ("sse", "avx2", "avx512", "neon")}
FUNCTIONS = sorted(vecmath.UNARY | vecmath.BINARY)


def kernel(fn: str, dtype: str, lanes: int, fma: bool, declared: set[str] | None = None) -> str:
    """Return a function that maps `fn` over the n values at %in (and those at %second), `lanes` at a time.

    The intrinsics that it calls are added to `declared`.
    """
    element, size = ("float", 4) if dtype == "f32" else ("double", 8)
    vector = element if lanes == 1 else f"<{lanes} x {element}>"
    body = Writer(declared)
    body.block = "loop"
    result = vecmath.emit(fn, body, ["%x", "%y"] if fn in vecmath.BINARY else ["%x"], dtype, lanes, fma)
    return "\n".join(
        [
            f"define void @{fn}_kernel(ptr %in, ptr %second, ptr %out, i64 %n) {{",
            "entry:",
            "  br label %loop",
            "loop:",
            f"  %i = phi i64 [ 0, %entry ], [ %next, %{body.block} ]",
            f"  %from = getelementptr {element}, ptr %in, i64 %i",
            f"  %x = load {vector}, ptr %from, align {size}",
            f"  %other = getelementptr {element}, ptr %second, i64 %i",
            f"  %y = load {vector}, ptr %other, align {size}",
            *flatten(body.text),
            f"  %to = getelementptr {element}, ptr %out, i64 %i",
            f"  store {vector} {result}, ptr %to, align {size}",
            f"  %next = add i64 %i, {lanes}",
            "  %more = icmp ult i64 %next, %n",
            "  br i1 %more, label %loop, label %done",
            "done:",
            "  ret void",
            "}",
        ]
    )


def with_routines(ir: str, declared: set[str]) -> str:
    called = routines.definitions(ir, "nounwind", declared)
    return "\n".join([*declared, *called, ir])


def all_kernels(dtype: str, lanes: int, fma: bool) -> str:
    declared: set[str] = set()
    return with_routines("\n".join(kernel(fn, dtype, lanes, fma, declared) for fn in FUNCTIONS), declared)


@cache
def code(dtype: str, lanes: int, fma: bool) -> Code:
    return Code(assemble(all_kernels(dtype, lanes, fma), HERE))


def run(fn: str, x: Array, dtype: str, lanes: int, fma: bool, y: Array | None = None) -> Array:
    padding = -len(x) % lanes
    given = [x, x if y is None else y]
    sources = [np.ascontiguousarray(np.concatenate([a, np.ones(padding)]), NUMPY_TYPES[dtype]) for a in given]
    result = np.full_like(sources[0], np.nan)
    address = code(dtype, lanes, fma).address(f"{fn}_kernel")
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    signature(address)(sources[0].ctypes.data, sources[1].ctypes.data, result.ctypes.data, len(result))
    return result[: len(x)]


@cache
def samples(dtype: str) -> Array:
    """Random bits, every exponent, plain ranges, and the neighbours of each place where an algorithm switches."""
    float_type, bit_type = NUMPY_TYPES[dtype], BIT_TYPES[dtype]
    info = np.finfo(float_type)
    rng = np.random.default_rng(20240607)
    limits = np.iinfo(bit_type)
    patterns = rng.integers(limits.min, limits.max, 20_000, dtype=bit_type, endpoint=True).view(float_type)
    subnormals = rng.uniform(-1, 1, 500).astype(float_type) * info.smallest_normal
    largest_log = math.log(float(info.max))
    ranges = [rng.uniform(-bound, bound, 6_000) for bound in (0.7, 2.0, 8.0, 45.0, 1.1 * largest_log, 1e5)]
    exponents = np.arange(int(info.minexp) - int(info.nmant), int(info.maxexp), 0.5)
    corners: list[Array] = [
        np.arange(-500, 500) * HALF_PI / 2,
        np.arange(60_000, 61_000) * HALF_PI,
        np.arange(-2200, 2200) * np.log(np.longdouble(2)) / 2,
        np.exp2(exponents),
        np.array([0.0, 0.55, 4.0, 6.0, 10.0, 20.0, 40.0, info.max, np.inf, np.nan]),
        np.array([largest_log, math.log(float(info.smallest_normal)), math.log(float(info.smallest_subnormal))]),
    ]
    centres = np.concatenate(corners).astype(float_type).view(bit_type)
    near = (centres[:, None] + np.arange(-3, 4, dtype=bit_type)).ravel().view(float_type)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        return np.concatenate([patterns, subnormals, *ranges, near, -near]).astype(float_type)


@cache
def reference(fn: str, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        x = samples(dtype).astype(WIDER_TYPES[dtype])
        match fn:
            case "erf":  # NumPy has none; libm's is good to an ulp of f64
                return np.array([math.erf(float(value)) for value in x], dtype=x.dtype)
            case "sigmoid":
                z = np.exp(-np.abs(x))
                return np.where(x < 0, z, 1) / (1 + z)
            case _:
                return getattr(np, fn)(x)


def ulp_errors(got: Array, exact: Array) -> Array:
    """Return the distances in last places of `got`'s type, infinity being the first power of two that is too large."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        overflow = exact.dtype.type(2) ** int(info.maxexp)

        def finite(y: Array) -> Array:
            return np.where(np.isnan(y), 0, np.clip(y.astype(exact.dtype), -overflow, overflow))

        size = np.spacing(np.minimum(np.abs(finite(exact)), info.max).astype(got.dtype))
        errors = np.abs(finite(got) - finite(exact)) / size
    return np.where(np.isnan(got) == np.isnan(exact), errors, np.inf)


@pytest.mark.parametrize("fma", FMA_CHOICES)
@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("fn", ULP_BOUNDS["f32"])
def test_error_stays_within_the_bound_on_every_kind_of_input(fn: str, dtype: str, lanes: int, fma: bool) -> None:
    x, exact = samples(dtype), reference(fn, dtype)
    errors = ulp_errors(run(fn, x, dtype, lanes, fma), exact)
    worst = int(np.argmax(errors))
    assert errors[worst] <= ULP_BOUNDS[dtype][fn], f"{fn}({x[worst]!r}) is off by {errors[worst]:.2f} ulp"


@pytest.mark.parametrize("lanes", [1, 4])
def test_the_f64_closest_to_a_multiple_of_half_pi_is_reduced_exactly(lanes: int) -> None:
    """6381956970095103 · 2^797 (Kahan, Nearpi): of its fraction 61 bits are zero."""
    x = np.array([math.ldexp(6381956970095103, 797)])
    np.testing.assert_allclose(run("cos", x, "f64", lanes, False), [-4.68716592425462761112e-19], rtol=4e-16)
    np.testing.assert_allclose(run("sin", -x, "f64", lanes, False), np.sin(-x), rtol=4e-16)


@cache
def powers(dtype: str) -> tuple[Array, Array]:
    """Bases of all sizes with exponents that keep the results finite, moderate ones, and pairs of the samples."""
    rng = np.random.default_rng(9)
    float_type = NUMPY_TYPES[dtype]
    limit = math.log(float(np.finfo(float_type).max))
    bases = np.concatenate(
        [np.exp(rng.uniform(-limit, limit, 8_000)), rng.uniform(0, 10, 8_000), rng.uniform(0.9, 1.1, 8_000)]
    )
    bases = bases.astype(float_type)
    exponents = rng.permutation(np.concatenate([rng.uniform(-limit, limit, 16_000), rng.uniform(-3, 3, 8_000)]))
    with np.errstate(all="ignore"):
        exponents = (exponents / np.log(bases.astype(WIDER_TYPES[dtype]))).astype(float_type)
        x = np.concatenate([bases, -bases[:4_000], samples(dtype)])
        return x, np.concatenate([exponents, np.rint(exponents[:4_000]), np.roll(samples(dtype), 1)])


@pytest.mark.parametrize("fma", FMA_CHOICES)
@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_powers_are_as_good_as_rounded_once(dtype: str, lanes: int, fma: bool) -> None:
    x, y = powers(dtype)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    errors = ulp_errors(run("pow", x, dtype, lanes, fma, y), exact)
    moderate = (np.abs(exact) > 1e-18) & (np.abs(exact) < 1e18)
    assert np.max(errors) <= (0.51 if dtype == "f32" else 1.0)
    assert np.max(errors[moderate]) <= 0.54  # so that what is a float itself is found exactly


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_remainders_and_signs_equal_numpys_exactly(dtype: str, lanes: int) -> None:
    x = samples(dtype)
    with np.errstate(all="ignore"):  # signalling NaNs are among them
        divisors = (np.roll(x, 1), np.roll(x, 77), np.full_like(x, 0.1), np.sqrt(np.abs(x)))
    for y in divisors:
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(run("fmod", x, dtype, lanes, False, y), np.fmod(x, y))
        signed = np.isnan(x) | (np.copysign(x, y) == run("copysign", x, dtype, lanes, False, y))
        assert signed.all()


@pytest.mark.parametrize("element", ["i32", "i64"])
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_powers_of_integers_are_exact_modulo_the_type(element: str, lanes: int) -> None:
    bits, kind = int(element[1:]), vector_type(element, lanes)
    w = Writer()
    result = routines.integer_power(w, "%a", "%b", element, lanes)
    loads = [f"  {name} = load {kind}, ptr {at}, align 8" for name, at in (("%a", "%x"), ("%b", "%y"))]
    lines = [*loads, *flatten(w.text), f"  store {kind} {result}, ptr %z, align 8", "  ret void", "}"]
    ir = "\n".join(["define void @f(ptr %x, ptr %y, ptr %z) {", *lines])
    rng = np.random.default_rng(3)
    x = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (200, lanes), BIT_TYPES[f"f{bits}"])
    y = rng.integers(0, 2 ** (bits - 1), x.shape, x.dtype) >> rng.integers(0, bits - 1, x.shape, x.dtype)
    z = np.zeros_like(x)
    loaded = Code(assemble(with_routines(ir, set()), HERE))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(loaded.address("f"))
    for a, b, c in zip(x, y, z):
        function(a.ctypes.data, b.ctypes.data, c.ctypes.data)
    right = [[pow(a, b, 2**bits) for a, b in zip(*rows)] for rows in zip(x.tolist(), y.tolist())]
    assert [[c % 2**bits for c in row] for row in z.tolist()] == right


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_rounding_and_roots_equal_numpys_exactly(dtype: str, lanes: int) -> None:
    x = samples(dtype)
    with np.errstate(all="ignore"):
        expected: dict[str, Array] = {
            "floor": np.floor(x),
            "ceil": np.ceil(x),
            "round": np.rint(x),
            "sqrt": np.sqrt(x),
            "rsqrt": NUMPY_TYPES[dtype](1) / np.sqrt(x),
        }
    for fn, y in expected.items():
        np.testing.assert_array_equal(run(fn, x, dtype, lanes, False), y, err_msg=fn)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("fn", "x", "y"),
    [
        ("exp", -np.inf, 0.0),
        ("exp", np.inf, np.inf),
        ("exp", 1e4, np.inf),
        ("exp", -1e4, 0.0),
        ("exp", 0.0, 1.0),
        ("exp", -0.0, 1.0),
        ("log", 0.0, -np.inf),
        ("log", -0.0, -np.inf),
        ("log", -1.0, np.nan),
        ("log", 1.0, 0.0),
        ("log", np.inf, np.inf),
        ("log", -np.inf, np.nan),
        ("log", -1e-40, np.nan),
        ("tanh", np.inf, 1.0),
        ("tanh", -np.inf, -1.0),
        ("tanh", 0.0, 0.0),
        ("tanh", -0.0, -0.0),
        ("tanh", 1e30, 1.0),
        ("erf", np.inf, 1.0),
        ("erf", -np.inf, -1.0),
        ("erf", 0.0, 0.0),
        ("erf", -0.0, -0.0),
        ("sigmoid", -np.inf, 0.0),
        ("sigmoid", np.inf, 1.0),
        ("sigmoid", 0.0, 0.5),
        ("sigmoid", -1e4, 0.0),
        ("sin", 0.0, 0.0),
        ("sin", -0.0, -0.0),
        ("sin", np.inf, np.nan),
        ("sin", -np.inf, np.nan),
        ("cos", 0.0, 1.0),
        ("cos", np.inf, np.nan),
        ("sqrt", -1.0, np.nan),
        ("sqrt", -0.0, -0.0),
        ("sqrt", np.inf, np.inf),
        ("rsqrt", 0.0, np.inf),
        ("rsqrt", np.inf, 0.0),
        ("round", 2.5, 2.0),
        ("round", 3.5, 4.0),
        ("round", -0.5, -0.0),
        ("floor", -0.5, -1.0),
        ("ceil", -0.5, -0.0),
        ("expm1", -np.inf, -1.0),
        ("expm1", np.inf, np.inf),
        ("expm1", -0.0, -0.0),
        ("expm1", 0.0, 0.0),
        ("expm1", 1e-45, 1e-45),
        ("expm1", -1e4, -1.0),
        ("log1p", -1.0, -np.inf),
        ("log1p", -2.0, np.nan),
        ("log1p", np.inf, np.inf),
        ("log1p", -0.0, -0.0),
        ("log1p", 0.0, 0.0),
        *((fn, np.nan, np.nan) for fn in sorted(vecmath.UNARY)),
    ],
)
def test_special_values_are_numpys_down_to_the_sign_of_zero(fn: str, x: float, y: float, dtype: str) -> None:
    for lanes in (1, 4, 16):
        for fma in FMA_CHOICES:
            got = run(fn, np.array([x]), dtype, lanes, fma)[0]
            assert math.isnan(got) if math.isnan(y) else got == y
            assert math.isnan(y) or math.copysign(1, got) == math.copysign(1, y)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("lanes", [2, 3, 8, 16])
def test_every_lane_count_gives_the_scalar_code_s_bits(dtype: str, lanes: int) -> None:
    fma = FMA_CHOICES[-1]
    x = samples(dtype)[::7]
    y = np.roll(x, 1)
    for fn in FUNCTIONS:
        scalar, vector = run(fn, x, dtype, 1, fma, y), run(fn, x, dtype, lanes, fma, y)
        same = (scalar.view(BIT_TYPES[dtype]) == vector.view(BIT_TYPES[dtype])) | (np.isnan(scalar) & np.isnan(vector))
        assert same.all(), fn


def undefined_symbols(elf: bytes) -> set[str]:
    """Return the names that a linker would have to find for this little-endian ELF64 object."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQII", elf, table + i * entry_size) for i in range(count)]
    names_needed: set[str] = set()
    for _, kind, _, _, offset, size, link, _ in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        names = sections[link][4]
        for at in range(offset, offset + size, 24):
            name, _, _, section = struct.unpack_from("<IBBH", elf, at)
            if name and section == 0:  # SHN_UNDEF
                names_needed.add(elf[names + name : elf.index(b"\0", names + name)].decode())
    return names_needed


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", TARGETS)
def test_no_external_symbol_is_left(name: str, dtype: str, lanes: int) -> None:
    target = TARGETS[name]
    assert undefined_symbols(assemble(all_kernels(dtype, lanes, target.has_fma), target)) == set()


@pytest.mark.parametrize("name", TARGETS)
def test_an_external_symbol_would_have_been_seen(name: str) -> None:
    ir = "declare float @llvm.exp.f32(float)\ndefine float @f(float %x) {\n  %y = call float @llvm.exp.f32(float %x)"
    assert undefined_symbols(assemble(f"{ir}\n  ret float %y\n}}", TARGETS[name])) == {"expf"}


def test_without_fma_no_fma_is_called() -> None:
    for dtype in ("f32", "f64"):
        for fn in FUNCTIONS:
            assert "llvm.fma" not in kernel(fn, dtype, 4, fma=False)


def test_f32_exp_is_sixteen_operations() -> None:
    out = Writer()
    vecmath.emit("exp", out, ["%x"], "f32", 16, fma=True)
    free = (" = bitcast ", " = fcmp ")  # a compare and its select are one min or max
    assert sum(not any(word in line for word in free) for line in flatten(out.text)) == 16


@pytest.mark.parametrize("fn", ["exp", "log", "tanh", "erf", "sigmoid", "expm1", "log1p", "sqrt", "floor"])
def test_functions_of_hot_loops_have_neither_branches_nor_calls(fn: str) -> None:
    ir = kernel(fn, "f32", 16, True)
    assert ir.count(" br ") == 2  # the loop's own
    assert "@sd." not in ir
    assert routines.definitions(ir, "nounwind", set()) == []


@pytest.mark.parametrize("fn", ["sin", "cos"])
def test_large_arguments_of_sine_are_reduced_aside(fn: str) -> None:
    ir = kernel(fn, "f32", 16, True)
    assert ir.count("@sd.sine.v16f64(") == 1
    assert ir.count(" br ") == 4


def test_an_unknown_function_is_refused() -> None:
    with pytest.raises(KeyError):
        vecmath.emit("gamma", Writer(), ["%x"], "f32", 4, fma=True)
