"""Every operator of the suite against an independent NumPy formula, on small odd shapes."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir.interp import evaluate, magnitude, sample
from stormdrop.ir.tensor import Task, Variant, tensor
from stormdrop.operators.catalogue import OPERATORS, BenchmarkOperator, build, resolve
from stormdrop.operators.window import Window, conv_nd
from stormdrop.operators.winograd import winograd_conv2d
from tests.support.winograd import winograd_variant

Array = NDArray[Any]
Arrays = dict[str, Array]
EPS = 2.0**-23
SUITE = Path(__file__).parents[2] / "benchmarks" / "operators.json"


def random_arrays(task: Task, seed: int = 3) -> Arrays:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype("f4") for t in task.inputs}


def convolve(x: Array, w: Array, stride: int, pad: int, dilation: int = 1) -> Array:
    """Any rank, one output pixel at a time; x and w in float64."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), *[(pad, pad)] * rank, (0, 0)])
    out = [(n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[1:-1], w.shape)]
    y = np.zeros((x.shape[0], *out, w.shape[-1]))
    for at in itertools.product(*map(range, out)):
        for tap in itertools.product(*map(range, w.shape[:rank])):
            pixel = tuple(o * stride + t * dilation for o, t in zip(at, tap))
            y[(slice(None), *at)] += x[(slice(None), *pixel)] @ w[tap]
    return y


def c2d(a: Arrays, stride: int, pad: int, dilation: int = 1) -> Array:
    return convolve(a["X"], a["W"], stride, pad, dilation)


def cbr(a: Arrays, stride: int, pad: int) -> Array:
    return np.maximum(c2d(a, stride, pad) * a["scale"] + a["shift"], 0)


def grp(a: Arrays, stride: int, pad: int) -> Array:
    """The channels are cut into as many groups as a filter's fit in."""
    groups = a["X"].shape[3] // a["W"].shape[2]
    parts = zip(np.split(a["X"], groups, axis=3), np.split(a["W"], groups, axis=3))
    return np.concatenate([convolve(x, w, stride, pad) for x, w in parts], axis=3)


def t2d(a: Arrays, stride: int, pad: int) -> Array:
    """Every input pixel adds its product with the whole filter to the output; the pad is cut off at the end."""
    x, w = a["X"], a["W"]
    (n, h, width, _), (kh, kw, _, co) = x.shape, w.shape
    y = np.zeros((n, (h - 1) * stride + kh, (width - 1) * stride + kw, co))
    for i, j in itertools.product(range(h), range(width)):
        y[:, i * stride : i * stride + kh, j * stride : j * stride + kw] += np.einsum("nc,uvcd->nuvd", x[:, i, j], w)
    return y[:, pad : y.shape[1] - pad, pad : y.shape[2] - pad]


def cap(a: Arrays, stride: int, pad: int) -> Array:
    x, w = np.pad(a["X"], [(0, 0), (pad, pad), (pad, pad), (0, 0), (0, 0), (0, 0)]), a["W"]
    k = w.shape[0]
    out = [(n - k) // stride + 1 for n in x.shape[1:3]]
    y = np.zeros((x.shape[0], *out, 4, 4, w.shape[-1]))
    for i, j in itertools.product(*map(range, out)):
        window = x[:, i * stride : i * stride + k, j * stride : j * stride + k]
        y[:, i, j] = np.einsum("nuvikc,uvkjcd->nijd", window, w)
    return y


def mxp(a: Arrays, kernel: int, stride: int, pad: int) -> Array:
    x = np.pad(a["X"], [(0, 0), (pad, pad), (pad, pad), (0, 0)], constant_values=-np.inf)
    out = [(n - kernel) // stride + 1 for n in x.shape[1:3]]
    y = np.zeros((x.shape[0], *out, x.shape[3]))
    for i, j in itertools.product(*map(range, out)):
        y[:, i, j] = x[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel].max(axis=(1, 2))
    return y


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


CASES: list[tuple[str, list[int], Callable[[Arrays], Array]]] = [
    ("GMM", [2, 5, 7, 3], lambda a: a["X"] @ a["W"]),
    ("DEN", [3, 1, 5, 17], lambda a: a["A"] @ a["B"]),
    ("C1D", [2, 11, 3, 5, 3, 2, 1], lambda a: convolve(a["X"], a["W"], 2, 1)),
    ("C1D", [1, 7, 2, 3, 1, 2, 0], lambda a: convolve(a["X"], a["W"], 2, 0)),
    ("C2D", [2, 7, 9, 3, 5, 3, 1, 1], lambda a: c2d(a, 1, 1)),
    ("C2D", [1, 8, 5, 3, 2, 1, 3, 0], lambda a: c2d(a, 3, 0)),
    ("C2D", [1, 4, 3, 2, 3, 5, 2, 4], lambda a: c2d(a, 2, 4)),
    ("C3D", [1, 3, 5, 4, 2, 3, 3, 2, 1], lambda a: convolve(a["X"], a["W"], 2, 1)),
    ("GRP", [1, 5, 7, 6, 9, 3, 2, 1, 3], lambda a: grp(a, 2, 1)),
    ("DIL", [1, 9, 8, 2, 3, 3, 2, 1, 2], lambda a: c2d(a, 2, 1, 2)),
    ("DEP", [1, 7, 6, 5, 3, 2, 1], lambda a: grp(a, 2, 1)),
    ("T2D", [2, 3, 5, 3, 2, 4, 2, 1], lambda a: t2d(a, 2, 1)),
    ("T2D", [1, 4, 3, 2, 3, 3, 2, 0], lambda a: t2d(a, 2, 0)),
    ("T2D", [1, 3, 4, 2, 3, 3, 1, 1], lambda a: t2d(a, 1, 1)),
    ("T2D", [1, 3, 3, 2, 1, 2, 3, 0], lambda a: t2d(a, 3, 0)),
    ("T2D", [1, 4, 5, 1, 2, 5, 3, 4], lambda a: t2d(a, 3, 4)),
    ("CAP", [1, 5, 4, 3, 2, 3, 2, 1], lambda a: cap(a, 2, 1)),
    ("NRM", [3, 5, 7], lambda a: np.sqrt((a["X"] ** 2).sum(axis=(1, 2)))),
    ("SFM", [5, 13], lambda a: softmax(a["X"])),
    ("CBR", [1, 7, 5, 3, 4, 3, 2, 1], lambda a: cbr(a, 2, 1)),
    ("TBG", [2, 5, 3, 7], lambda a: softmax(np.einsum("bihd,bjhd->bhij", a["Q"], a["K"]))),
    ("MXP", [2, 7, 8, 3, 3, 2, 1], lambda a: mxp(a, 3, 2, 1)),
    ("MXP", [1, 5, 4, 2, 2, 2, 0], lambda a: mxp(a, 2, 2, 0)),
    ("ADR", [1, 3, 5, 7], lambda a: np.maximum(a["A"] + a["B"], 0)),
    ("GMV", [7, 13], lambda a: a["W"] @ a["X"]),
    ("DOT", [37], lambda a: a["A"] @ a["B"]),
    ("TRN", [5, 7], lambda a: a["X"].T),
]


@pytest.mark.parametrize(("name", "args", "formula"), CASES, ids=[f"{n}-{'-'.join(map(str, a))}" for n, a, _ in CASES])
def test_operator_computes_its_formula(name: str, args: list[int], formula: Callable[[Arrays], Array]):
    task = build(name, args)
    arrays = random_arrays(task)
    expected = formula({k: v.astype("f8") for k, v in arrays.items()})
    wide = evaluate(task, arrays, precision="f64")["Y"]
    assert wide.shape == expected.shape == task.outputs[0].shape
    np.testing.assert_allclose(wide, expected, rtol=1e-11, atol=1e-11)
    error = np.abs(evaluate(task, arrays)["Y"] - wide)
    assert (error <= task.variants[0].error_bound * EPS * magnitude(task, arrays)["Y"]).all()
    found = sample(task, arrays, 20, np.random.default_rng(1))["Y"]
    np.testing.assert_allclose(found.values, wide[found.indices], rtol=1e-11, atol=1e-11)


def test_every_operator_is_tested():
    assert {name for name, _, _ in CASES} == set(OPERATORS)


def test_all_cases_of_an_operator_in_the_suite_are_one_class():
    suite = json.loads(SUITE.read_text())
    assert list(suite) == list(OPERATORS)
    for name, cases in suite.items():
        assert len({build(name, case).class_key for case in cases}) == 1


def random_args(arguments: tuple[str, ...], rng: np.random.Generator) -> list[int]:
    """Several channels in each of several groups: convolutions of one group or channel are described without it."""
    ranges = {"kernel": (1, 6), "stride": (1, 5), "pad": (0, 4), "dilation": (1, 4), "groups": (2, 4), "in": (2, 12)}
    values = {a: int(rng.integers(*ranges.get(a, (1, 12)))) for a in arguments}
    if "groups" in values:
        values["in"], values["out"] = values["in"] * values["groups"], values["out"] * values["groups"]
    return [values[a] for a in arguments]


@pytest.mark.parametrize("name", OPERATORS)
def test_both_keys_forget_every_size(name: str):
    """All but whether a transposed convolution's stride divides its kernel."""
    rng = np.random.default_rng(5)
    keys: list[tuple[bool, str, str]] = []
    while len(keys) < 40:
        args = random_args(OPERATORS[name].arguments, rng)
        is_uneven = name == "T2D" and args[5] % args[6] != 0
        try:
            task = build(name, args)
            keys.append((is_uneven, task.class_key, task.anchor_key))
        except UserError as error:
            if "window" not in str(error) and "leaves nothing" not in str(error):
                raise
    assert len(set(keys)) == (2 if name == "T2D" else 1)


def test_class_keys_differ_between_operators_except_for_dilation():
    keys = {name: build(name, args).class_key for name, args, _ in CASES}
    assert keys.pop("DIL") == keys["C2D"]
    assert len(set(keys.values())) == len(keys)


def test_the_element_type_is_part_of_the_class():
    assert build("GMM", [1, 2, 3, 4], "f64").class_key != build("GMM", [1, 2, 3, 4]).class_key


@pytest.mark.parametrize("dtype", ["i32", "f64"])
def test_max_pooling_of_other_types_pads_with_their_lowest(dtype: Any):
    task = build("MXP", [1, 5, 5, 2, 3, 1, 1], dtype)
    x = np.random.default_rng(2).integers(-100, 0, task.inputs[0].shape).astype({"i32": "i4", "f64": "f8"}[dtype])
    np.testing.assert_array_equal(evaluate(task, {"X": x})["Y"], mxp({"X": x.astype("f8")}, 3, 1, 1))


@pytest.mark.parametrize(("name", "args"), {name: args for name, args, _ in CASES}.items())
def test_json_keeps_class_and_function(name: str, args: list[int]):
    task = build(name, args)
    again = Task.from_json(json.loads(json.dumps(task.to_json())))
    arrays = random_arrays(task)
    assert again.class_key == task.class_key
    assert str(again) == str(task)
    np.testing.assert_array_equal(evaluate(again, arrays)["Y"], evaluate(task, arrays)["Y"])


@pytest.mark.parametrize(
    ("name", "args", "flops"),
    [
        ("GMM", [2, 5, 7, 3], 2 * 2 * 5 * 7 * 3),
        ("C2D", [2, 7, 9, 3, 5, 3, 1, 1], 2 * 2 * 7 * 9 * 5 * 3 * 3 * 3),
        ("C2D", [1, 8, 8, 4, 6, 3, 2, 1], 2 * 4 * 4 * 6 * 3 * 3 * 4),
        ("CBR", [1, 8, 8, 4, 6, 3, 2, 1], 2 * 4 * 4 * 6 * 3 * 3 * 4 + 2 * 4 * 4 * 6),
        ("DEP", [1, 8, 8, 4, 3, 1, 1], 2 * 8 * 8 * 4 * 9),
        ("T2D", [1, 4, 4, 8, 3, 4, 2, 1], 2 * 8 * 8 * 3 * 2 * 2 * 8),
        ("DOT", [37], 2 * 37),
        ("TRN", [5, 7], 0),
        ("ADR", [1, 3, 5, 7], 3 * 5 * 7),
    ],
)
def test_nominal_flops(name: str, args: list[int], flops: int):
    assert build(name, args).flops == flops


def test_weights_are_constant_and_rearranged_weights_too():
    task = build("T2D", [1, 3, 5, 3, 2, 4, 2, 1])
    assert [t.name for t in task.constants] == ["W"]
    assert {t.name: t.constant for t in task.variants[0].stages} == {"P": False, "V": True, "F": False, "Y": False}
    assert not build("DEN", [1, 2, 3, 4]).constants
    assert [t.name for t in build("CBR", [1, 7, 5, 3, 4, 3, 2, 1]).runtime_inputs] == ["X"]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("GEMM", [1, 2, 3, 4], "did you mean GMM"),
        ("nonsense", [1], r"Known: matmul \(GMM\), conv1d \(C1D\)"),
        ("mat-mull", [1], "did you mean matmul"),
        ("conv", [1], "did you mean conv3d or conv2d or conv1d"),
        ("maxpool2d", [1], "did you mean max_pool2d"),
        ("matmul", [5, 7], r"matmul takes 3 or 4 numbers, not 2: matmul \[batch\] n m k"),
        ("conv2d", [1, 7, 7, 3], "conv2d takes 8 numbers, not 4: conv2d batch h w in out kernel stride pad"),
        ("C2D", [1, 7, 7, 3], "takes 8 numbers, not 4: C2D batch h w in out kernel stride pad"),
        ("C2D", [1, 7, 7, 3, 4, 0, 1, 1], "kernel must be at least 1"),
        ("C2D", [1, 7, 7, 3, 4, 3, 0, 1], "stride must be at least 1"),
        ("C2D", [1, 7, 7, 3, 4, 3, 1, -1], "pad must be at least 0"),
        ("C2D", [0, 7, 7, 3, 4, 3, 1, 1], "batch must be at least 1"),
        ("C2D", [1, 2, 7, 3, 4, 3, 1, 0], "a window of 3 .* does not fit into 2"),
        ("DIL", [1, 4, 4, 3, 4, 3, 1, 0, 2], "a window of 5 .* does not fit into 4"),
        ("GRP", [1, 5, 5, 6, 8, 3, 1, 1, 3], "3 groups must divide both"),
        ("MXP", [1, 5, 5, 2, 2, 1, 2], "wholly outside"),
        ("T2D", [1, 1, 1, 2, 2, 2, 2, 1], "leaves nothing"),
    ],
)
def test_wrong_usage_is_explained(name: str, args: list[int], message: str):
    with pytest.raises(UserError, match=message):
        build(name, args)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.alias)
def test_an_alias_builds_the_task_of_the_short_name(operator: BenchmarkOperator):
    args = next(args for name, args, _ in CASES if name == operator.name)
    task = build(operator.name, args)
    for name in (operator.alias, operator.alias.upper(), operator.alias.replace("_", "-"), operator.name.lower()):
        again = build(name, args)
        assert (again.digest, again.name) == (task.digest, task.name)
    assert task.name.split()[0] == operator.name


def test_no_two_operators_share_a_name():
    names = [{o.name.lower(), o.alias} for o in OPERATORS.values()]
    assert len(set().union(*names)) == sum(map(len, names))


def test_the_batch_of_a_product_is_one_by_default():
    assert resolve("matmul", [5, 7, 3]) == (OPERATORS["GMM"], (1, 5, 7, 3))
    assert build("matmul", [5, 7, 3]).name == "GMM 1 5 7 3"
    with pytest.raises(UserError, match="bmm takes 4 numbers, not 3: bmm batch n m k"):
        build("bmm", [5, 7, 3])


def winograd_task(h: int, w: int, ci: int, co: int, pad: int) -> Task:
    x, weights = tensor("X", (1, h, w, ci)), tensor("W", (3, 3, ci, co), constant=True)
    direct = Variant((conv_nd(x, weights, Window.uniform(2, 3, pad=pad), 1, "NHWC"),))
    return Task(variants=[direct, *(winograd_variant(x, weights, pad, tile) for tile in (2, 4))])


@pytest.mark.parametrize(("h", "w", "pad"), [(8, 8, 1), (7, 5, 1), (9, 6, 0), (3, 3, 0), (3, 5, 2)])
def test_winograd_is_a_convolution(h: int, w: int, pad: int):
    task = winograd_task(h, w, 16, 5, pad)
    arrays = random_arrays(task)
    exact, scale = evaluate(task, arrays, precision="f64")["Y"], magnitude(task, arrays)["Y"]
    for k, variant in enumerate(task.variants):
        error = np.abs(evaluate(task, arrays, k)["Y"] - exact)
        assert (error <= variant.error_bound * EPS * scale).all(), variant.name
        assert len(variant.stages) == (2 if k == 0 else 6)


def test_winograd_transforms_its_filters_ahead():
    task = winograd_task(8, 8, 4, 5, 1)
    for variant in task.variants[1:]:
        assert [t.name for t in variant.stages if t.constant] == ["U"]
    again = Task.from_json(json.loads(json.dumps(task.to_json())))
    assert again.class_key == task.class_key == winograd_task(11, 6, 3, 7, 0).class_key
    assert math.isclose(task.flops, 2 * 8 * 8 * 5 * 9 * 4)


def test_winograd_is_for_three_by_three():
    with pytest.raises(UserError, match="no transform for tiles of 3"):
        winograd_conv2d(tensor("X", (1, 8, 8, 4)), tensor("W", (3, 3, 4, 4)), 1, 3)
    with pytest.raises(UserError, match="do not fit"):
        winograd_conv2d(tensor("X", (1, 8, 8, 4)), tensor("W", (5, 5, 4, 4)), 1, 4)


def test_variants_must_read_the_same_inputs():
    x = tensor("X", (1, 8, 8, 4))
    ways = [conv_nd(x, tensor(name, (3, 3, 4, 4)), Window.uniform(2, 3), 1, "NHWC") for name in "WV"]
    with pytest.raises(UserError, match="reads other inputs"):
        Task(variants=[Variant((y,)) for y in ways])
