"""Models of f16 and bf16: stored and moved in their type, computed in f32, rounded to nearest even."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from stormdrop.compare.interpreter import interpret
from stormdrop.compiler.compile import compile as compile_model
from stormdrop.compiler.compile import tasks_of
from stormdrop.frontend.onnx import load
from stormdrop.graph.passes import optimise
from tests.support.one_node import OneNode

Array = NDArray[Any]
HALVES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
CODES = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}
RNG = np.random.default_rng(0)


def _drawn(kind: str, *shape: int, scale: float = 1.0) -> Array:
    return (scale * RNG.standard_normal(shape)).astype(HALVES[kind])


EXACT = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Equal", "Where")
"""Of two halves, f32 gives a number that rounds to the right half: rounding twice does no harm here."""


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("op", EXACT)
def test_arithmetic_is_rounded_once(kind: str, op: str) -> None:
    x, y = _drawn(kind, 3, 70), _drawn(kind, 70)
    a, b = x.astype(np.float64), y.astype(np.float64)
    wanted = {
        "Add": a + b,
        "Sub": a - b,
        "Mul": a * b,
        "Div": a / b,
        "Max": np.maximum(a, b),
        "Min": np.minimum(a, b),
        "Less": a < b,
        "Equal": a == b,
        "Where": np.where(a > 0, a, b),
    }[op]
    node = OneNode(op, [a > 0, x, y] if op == "Where" else [x, y], opset=22)
    (found,) = node.compiled()
    assert found.dtype == (np.bool_ if op in ("Less", "Equal") else HALVES[kind])
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))


UNARY = ("Relu", "Exp", "Tanh", "Sigmoid", "Sqrt", "Erf", "Neg", "Abs", "Floor", "Softplus", "LeakyRelu", "Sin")


@pytest.mark.parametrize("kind", HALVES)
def test_functions_are_within_a_unit_of_onnxs_reference(kind: str) -> None:
    x = np.abs(_drawn(kind, 5, 33)) + HALVES[kind].type(0.25)
    for op in UNARY:
        (found,) = OneNode(op, [x], opset=22).compiled()
        (wanted,) = OneNode(op, [x.astype(np.float32)], opset=22).on_reference()
        assert found.dtype == HALVES[kind]
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=1.01 * UNIT[kind], err_msg=op)


SUMS: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "MatMul": ([(3, 9, 64), (64, 33)], {}),
    "Gemm": ([(9, 64), (33, 64), (33,)], {"transB": 1, "alpha": 0.5}),
    "Einsum": ([(4, 8, 6), (4, 6, 10)], {"equation": "bij,bjk->bik"}),
    "Conv": ([(1, 8, 9, 9), (16, 8, 3, 3), (16,)], {"pads": [1, 1, 1, 1]}),
    "ConvTranspose": ([(1, 8, 5, 5), (8, 6, 3, 3)], {"strides": [2, 2]}),
    "ReduceSum": ([(7, 300)], {"keepdims": 0}),
    "Softmax": ([(7, 50)], {"axis": -1}),
    "LayerNormalization": ([(7, 64), (64,), (64,)], {}),
    "AveragePool": ([(1, 4, 9, 9)], {"kernel_shape": [3, 3]}),
    "MaxPool": ([(1, 4, 9, 9)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("op", SUMS)
def test_sums_are_f32_and_rounded_once(kind: str, op: str) -> None:
    """Weights are constants in the models of f16, and inputs in those of bf16."""
    shapes, attributes = SUMS[op]
    inputs: list[Array | None] = [_drawn(kind, *shape) for shape in shapes]
    known = range(1, len(inputs)) if kind == "f16" else ()
    (found,) = OneNode(op, inputs, known=known, opset=22, **attributes).compiled()
    wide: list[Array | None] = [None if x is None else x.astype(np.float32) for x in inputs]
    (wanted,) = OneNode(op, wide, opset=22, **attributes).on_reference()
    assert found.dtype == HALVES[kind]
    largest = float(np.abs(wanted).max())
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=1.01 * UNIT[kind], atol=1e-5 * largest + 2.0**-24)


@pytest.mark.parametrize("kind", HALVES)
def test_movements_keep_every_bit(kind: str) -> None:
    bits = RNG.integers(0, 1 << 16, (4, 6, 8)).astype(np.uint16).view(HALVES[kind])
    nodes: dict[str, tuple[list[Array], dict[str, Any]]] = {
        "Transpose": ([bits], {"perm": [2, 0, 1]}),
        "Concat": ([bits, bits], {"axis": 1}),
        "Gather": ([bits, np.array([3, -4, 0])], {"axis": 0}),
        "Reshape": ([bits, np.array([6, -1])], {}),
        "Tile": ([bits, np.array([2, 1, 3])], {}),
        "Slice": ([bits, np.array([3]), np.array([-9]), np.array([0]), np.array([-2])], {}),
        "Pad": ([bits, np.array([0, 1, 0, 2, 0, 3])], {}),
    }
    for op, (inputs, attributes) in nodes.items():
        (found,) = OneNode(op, inputs, known=range(1, len(inputs)), opset=18, **attributes).compiled()
        as_integers: list[Array | None] = [a.view(np.uint16) if a.dtype == bits.dtype else a for a in inputs]
        (wanted,) = OneNode(op, as_integers, known=range(1, len(inputs)), opset=18, **attributes).compiled()
        np.testing.assert_array_equal(found.view(np.uint16), wanted, err_msg=op)


CASTS = ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", "e")


@pytest.mark.parametrize("source", CASTS)
def test_casts_between_all_types_are_numpys_where_values_fit(source: str) -> None:
    small = RNG.integers(0, 100, 77)
    x = (small - (0 if source[0] in "u?" else 50)).astype(source)
    for to in CASTS:
        wanted = x.astype(np.float64).astype(to) if np.issubdtype(np.dtype(to), np.floating) else x.astype(to)
        if source[0] in "fe" and to[0] == "u":
            wanted = np.maximum(x, 0).astype(to)  # negative floats saturate
        code = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        (found,) = OneNode("Cast", [x], to=code, opset=21).compiled()
        np.testing.assert_array_equal(found, wanted, err_msg=to)
        assert found.dtype == np.dtype(to)


def _network(kind: str) -> onnx.ModelProto:
    """Two convolutions with a batch norm, a residual sum and a dense layer."""
    held: list[onnx.TensorProto] = []

    def weights(name: str, array: Array) -> str:
        held.append(helper.make_tensor(name, CODES[kind], array.shape, array.astype(HALVES[kind]).tobytes(), raw=True))
        return name

    ones = np.abs(RNG.standard_normal(16)) + 0.5
    norm = [
        weights(n, ones if n in ("scale", "var") else RNG.standard_normal(16)) for n in ("scale", "shift", "mu", "var")
    ]
    nodes = [
        helper.make_node("Conv", ["x", weights("w1", RNG.standard_normal((16, 8, 3, 3)) / 9)], ["c1"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c1", *norm], ["n1"]),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("Conv", ["r1", weights("w2", RNG.standard_normal((16, 16, 1, 1)) / 4)], ["c2"]),
        helper.make_node("Add", ["c2", "r1"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", weights("w3", RNG.standard_normal((16, 10)) / 4)], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", CODES[kind], [2, 8, 10, 10])],
        [helper.make_tensor_value_info("y", CODES[kind], [2, 10])],
        held,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("kind", HALVES)
def test_a_network_is_as_exact_as_its_type(kind: str) -> None:
    model = _network(kind)
    x = _drawn(kind, 2, 8, 10, 10)
    found: Any = compile_model(model)(x)
    graph = load(model)
    for wanted in (interpret(graph, [x])[0], interpret(optimise(graph), [x])[0]):
        apart = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
        assert apart <= 8 * UNIT[kind] * np.abs(wanted.astype(np.float64)).max()


@pytest.mark.parametrize("kind", HALVES)
def test_kernels_store_halves_and_round_where_they_store(kind: str) -> None:
    parts = tasks_of(load(_network(kind)))
    assert {c.output.dtype for c in parts.calls} == {kind}
    assert {v.dtype for v in parts.graph.constants if v.rank > 1 and v.size > 16} == {kind}
    for call in parts.calls:
        assert sum(n.op == "Cast" and n.output.dtype == kind for n in call.nodes) <= 1


def test_a_cast_of_the_file_rounds_even_inside_a_kernel() -> None:
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["h"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["w", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rounds",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1000])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    found: Any = compile_model(model)(x)
    np.testing.assert_array_equal(found, x.astype(np.float16).astype(np.float32) - x)
    assert found.any()
